"""How far chains can be trusted: whether they agree, and how many independent samples they are
worth.

In: samples of shape (chains, sweeps, n). Out: one number for each of the n. It must not know where
they come from.

Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Buerkner, Rank-normalization, folding,
    and localization: an improved R-hat, Bayesian Analysis 16 (2021), arXiv:1903.08008.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

MIN_SWEEPS = 4
"""Sweeps below which halves of a chain have no variance."""

AT_ONCE = 2**22
"""Numbers, about, of which diagnostics are taken at once."""


def rank_r_hat(samples: np.ndarray) -> np.ndarray:
    """R-hat of ranks, and of the ranks of distances from the median: the larger one, shape (n,)."""

    def of(x: np.ndarray) -> np.ndarray:
        folded = np.abs(x - np.median(x, axis=(0, 1)))
        return np.fmax(r_hat(normal_scores(x)), r_hat(normal_scores(folded)))

    return _by_parts(of, samples)


def ess_bulk(samples: np.ndarray) -> np.ndarray:
    """Effective number of samples for the middle of the distribution, shape (n,)."""
    return _by_parts(lambda x: effective_size(normal_scores(x)), samples)


def ess_tail(samples: np.ndarray) -> np.ndarray:
    """Effective number of samples for its 5 % and 95 % quantiles, the smaller one, shape (n,)."""

    def of(x: np.ndarray) -> np.ndarray:
        low, high = np.quantile(x, [0.05, 0.95], axis=(0, 1))
        is_below = (x <= low).astype(float), (x <= high).astype(float)
        return np.minimum(*map(effective_size, is_below))

    return _by_parts(of, samples)


def r_hat(x: np.ndarray) -> np.ndarray:
    """The root of (between + within) / within, of variances of chains."""
    num = x.shape[1]
    within = x.var(axis=1, ddof=1).mean(axis=0)
    between = x.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((num - 1) / num + between / within)


def effective_size(x: np.ndarray) -> np.ndarray:
    """Samples over their autocorrelation time, 1 + 2 sum_t rho_t.

    The sum is over pairs rho_2k + rho_2k+1 while they are positive, none above the one before
    (Geyer 1992). What does not vary is worth all of its samples.
    """
    num_chains, num, _ = x.shape
    covariance = autocovariance(x)
    within = covariance[:, 0].mean(axis=0) * num / (num - 1)
    variance = covariance[:, 0].mean(axis=0)
    if num_chains > 1:
        variance = variance + x.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance.mean(axis=0)) / variance
    rho[0] = 1.0
    pairs = rho[: num // 2 * 2].reshape(-1, 2, rho.shape[-1]).sum(axis=1)
    is_positive = np.cumprod(pairs > 0, axis=0)
    times = 2 * np.sum(np.minimum.accumulate(pairs, axis=0) * is_positive, axis=0) - 1
    size = num_chains * num
    # Antithetic chains are worth more than their samples, but not without bounds.
    found = size / np.maximum(times, 1 / np.log10(size))
    return np.where(np.ptp(x, axis=(0, 1)) == 0, size, found)


def autocovariance(x: np.ndarray) -> np.ndarray:
    """By lag, of each chain about its own mean: sum_s d_s d_s+t / num, by Fourier transforms."""
    num = x.shape[1]
    deviations = x - x.mean(axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * num)))
    transform = np.fft.rfft(deviations, size, axis=1)
    return np.fft.irfft(np.abs(transform) ** 2, size, axis=1)[:, :num] / num


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Ranks among all chains as quantiles of a normal distribution."""
    flat = x.reshape(-1, x.shape[-1])
    ranks = rankdata(flat, axis=0)
    return ndtri((ranks - 3 / 8) / (len(flat) + 1 / 4)).reshape(x.shape)


def _by_parts(of: Callable[[np.ndarray], np.ndarray], samples: np.ndarray) -> np.ndarray:
    """Of some elements after others, each chain as two halves; NaN where chains are too short."""
    num_chains, num, size = samples.shape
    if num < MIN_SWEEPS:
        return np.full(size, np.nan)
    half = num // 2
    step = max(AT_ONCE // (num_chains * num), 1)
    parts = [samples[..., first : first + step] for first in range(0, size, step)]
    halves = [np.concatenate([x[:, :half], x[:, num - half :]]) for x in parts]
    return np.concatenate([of(x) for x in halves]) if halves else np.empty(0)
