"""How far chains can be trusted: whether they agree, and how many independent samples they are
worth. The statistics are ArviZ's.

In: samples of shape (chains, sweeps, n). Out: one number for each of the n. It must not know where
they come from.

Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Buerkner, Rank-normalization, folding,
    and localization: an improved R-hat, Bayesian Analysis 16 (2021), arXiv:1903.08008.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np

from incrax._extras import needed

MIN_SWEEPS = 4
"""Sweeps below which ArviZ has no statistics."""


def rank_r_hat(samples: np.ndarray) -> np.ndarray:
    """R-hat of ranks, and of the ranks of distances from the median: the larger one, shape (n,)."""
    if len(samples) == 1:  # ArviZ compares chains; of one, its halves
        half = samples.shape[1] // 2
        samples = np.concatenate([samples[:, :half], samples[:, samples.shape[1] - half :]])
    return _by_arviz("rhat", samples, method="rank")


def ess_bulk(samples: np.ndarray) -> np.ndarray:
    """Effective number of samples for the middle of the distribution, shape (n,)."""
    return _by_arviz("ess", samples, method="bulk")


def ess_tail(samples: np.ndarray) -> np.ndarray:
    """Effective number of samples for its 5 % and 95 % quantiles, the smaller one, shape (n,)."""
    return _by_arviz("ess", samples, method="tail", prob=(0.05, 0.95))


def has_arviz() -> bool:
    """Whether ArviZ is installed; it is not imported."""
    return importlib.util.find_spec("arviz") is not None


def inference_data(arviz: Any, groups: dict[str, dict[str, Any]]) -> Any:
    """Groups of variables as an `arviz.InferenceData`; from ArviZ 1 on an `xarray.DataTree`."""
    is_old = "InferenceData" in vars(arviz)  # asking for it warns from ArviZ 1 on
    return arviz.from_dict(**groups) if is_old else arviz.from_dict(groups)


def _by_arviz(name: str, samples: np.ndarray, **options: Any) -> np.ndarray:
    """A statistic of each element; NaN where chains are too short."""
    if samples.shape[1] < MIN_SWEEPS:
        return np.full(samples.shape[2], np.nan)
    # Of an element that never moved variances are zero.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        arviz = needed("arviz", "Chain.r_hat, ess_bulk and ess_tail", "samplers")
        data = inference_data(arviz, {"posterior": {"x": samples}})
        return np.asarray(getattr(arviz, name)(data, **options)["x"])
