"""A mixture fitted to the arrival delays of real flights, profiled and sampled.

An extended likelihood of two normals and two exponentially modified normals with twelve parameters.
MIGRAD fits it with its gradient, a profile fits the other eleven at each of five points, and a chain
moves one parameter at a time. The same on `jax.jit` gives the same results.

Delays are whole minutes. The density is taken at the minute; for widths of ten minutes and more
this differs from the integral over the minute by (1 min)^2 / (24 width^2), below 0.1 %. Components,
each normalised on the range [LOW, HIGH] in closed form:
- early: normal, the bulk of flights that arrive ahead of schedule;
- punctual: normal, wider;
- late: normal convolved with an exponential, f(x) = exp(s^2 / 2 t^2 - (x - m) / t) Phi((x - m) / s
  - s / t) / t;
- very late: the same m and s with a longer exponential.

Run: python examples/delay_mixture.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

import incrax
from incrax.demo.data import read_flights

LOW, HIGH = -80.5, 500.5
"""Fit range, minutes; half-integers, because delays are whole minutes."""

NAMES = (
    "n_early",
    "n_punctual",
    "n_late",
    "n_very_late",
    "mu_early",
    "sigma_early",
    "mu_punctual",
    "sigma_punctual",
    "mu_late",
    "sigma_late",
    "tau_late",
    "tau_very_late",
)
COMPONENTS = ("early", "punctual", "late", "very late")
FRACTIONS = np.array([0.42, 0.26, 0.24, 0.08])
SHAPES = np.array([-15.0, 13.0, -2.0, 19.0, 1.0, 14.0, 38.0, 80.0])
LOWER = np.array([0.0] * 4 + [-60.0, 2.0, -60.0, 2.0, -60.0, 2.0, 5.0, 20.0])
UPPER = np.array([np.inf] * 4 + [40.0, 60.0, 60.0, 80.0, 80.0, 60.0, 150.0, 400.0])


def start(num_rows: int) -> np.ndarray:
    """Start values, shape (12,): yields in flights, the rest in minutes."""
    return np.concatenate([FRACTIONS * num_rows, SHAPES])


def normal(x: jax.Array, mu: jax.Array, sigma: jax.Array) -> jax.Array:
    """A normal density on the range, per minute."""
    z = (x - mu) / sigma
    norm = ndtr((HIGH - mu) / sigma) - ndtr((LOW - mu) / sigma)
    return jnp.exp(-0.5 * z * z) / (sigma * np.sqrt(2 * np.pi) * norm)


def modified_normal(x: jax.Array, mu: jax.Array, sigma: jax.Array, tau: jax.Array) -> jax.Array:
    """A normal convolved with an exponential of mean tau, on the range, per minute."""
    norm = _modified_cdf(HIGH, mu, sigma, tau) - _modified_cdf(LOW, mu, sigma, tau)
    return _decay(x, mu, sigma, tau) / (tau * norm)


def _modified_cdf(
    x: jax.Array | float, mu: jax.Array, sigma: jax.Array, tau: jax.Array
) -> jax.Array:
    return ndtr((x - mu) / sigma) - _decay(x, mu, sigma, tau)


def _decay(x: jax.Array | float, mu: jax.Array, sigma: jax.Array, tau: jax.Array) -> jax.Array:
    rate = sigma / tau
    z = (x - mu) / sigma
    return jnp.exp(0.5 * rate * rate - z * rate) * ndtr(z - rate)


def densities(theta: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """The four component densities at the delays, each of shape (n,)."""
    mu_e, sigma_e, mu_p, sigma_p, mu_l, sigma_l, tau_l, tau_v = (theta[k] for k in range(4, 12))
    return (
        normal(x, mu_e, sigma_e),
        normal(x, mu_p, sigma_p),
        modified_normal(x, mu_l, sigma_l, tau_l),
        modified_normal(x, mu_l, sigma_l, tau_v),
    )


def negative_log_likelihood(theta: jax.Array, x: jax.Array) -> jax.Array:
    """Extended: sum_k n_k - sum_i log sum_k n_k f_k(x_i).

    Args:
        theta: parameters in the order of `NAMES`, shape (12,).
        x: delays, minutes, shape (n,).
    """
    early, punctual, late, very_late = densities(theta, x)
    rate = theta[0] * early + theta[1] * punctual + theta[2] * late + theta[3] * very_late
    return theta[0] + theta[1] + theta[2] + theta[3] - jnp.sum(jnp.log(rate))


# --- the work, by one way to evaluate -------------------------------------------------------------

NUM_ROWS = 100_000
NUM_SWEEPS = 50
PROFILED = "tau_very_late"


def fit(value, gradient, x):
    """MIGRAD, and the errors that it finds on its way."""
    from iminuit import Minuit

    begin = start(len(x))
    offset = float(value(begin, x))
    minuit = Minuit(
        lambda theta: float(value(np.array(theta), x)) - offset,
        begin,
        grad=lambda theta: np.asarray(gradient(np.array(theta), x)),
        name=NAMES,
    )
    minuit.errordef = Minuit.LIKELIHOOD
    minuit.limits = list(zip(LOWER, UPPER, strict=True))
    minuit.strategy = 0
    minuit.migrad()
    minuit.hesse()
    return minuit


def sample(value, minuit, x):
    """Metropolis within Gibbs: each sweep proposes one parameter after the other."""
    rng = np.random.default_rng(1)
    theta = np.array(minuit.values)
    widths = 1.0 / np.sqrt(np.diag(np.linalg.inv(np.asarray(minuit.covariance))))
    current = float(value(theta, x))
    chain = []
    for _ in range(NUM_SWEEPS):
        for index, width in enumerate(widths):
            proposal = theta.copy()
            proposal[index] += 1.5 * width * rng.normal()
            threshold = -np.log(rng.uniform())
            if not LOWER[index] < proposal[index] < UPPER[index]:
                continue
            new = float(value(proposal, x))
            if new - current < threshold:
                theta, current = proposal, new
        chain.append(theta)
    return np.array(chain)


def work(make, x):
    """Fit, profile and chain, with seconds."""
    seconds = [time.perf_counter()]
    value, gradient = make(negative_log_likelihood), make(jax.grad(negative_log_likelihood))
    minuit = fit(value, gradient, x)
    best = np.array(minuit.values)
    minimum = float(value(best, x))
    seconds.append(time.perf_counter())
    _, profile, _ = minuit.mnprofile(PROFILED, size=5, bound=1, subtract_min=True)
    seconds.append(time.perf_counter())
    minuit.values = best
    chain = sample(value, minuit, x)
    seconds.append(time.perf_counter())
    return np.diff(seconds), (best, np.array(minuit.errors)), minimum, profile, chain


def main():
    """Both ways, side by side."""
    jax.config.update("jax_enable_x64", True)
    delays = read_flights(NUM_ROWS * 11 // 10).delay
    delays = delays[(delays > LOW) & (delays < HIGH)][:NUM_ROWS]
    x = incrax.frozen(delays)
    ours = work(incrax.incremental, x)
    plain = work(jax.jit, x)
    best, errors = ours[1]
    for name, value, error in zip(NAMES, best, errors, strict=True):
        print(f"{name:14} {value:10.4g} +- {error:.2g}")
    for stage, s, t in zip(("fit", "profile", "chain"), ours[0], plain[0], strict=True):
        print(f"{stage:8} incrax {s:5.1f} s, jax.jit {t:5.1f} s, {t / s:.2f} times")
    print(f"same minimum: {abs(ours[2] / plain[2] - 1):.1e} relative")
    print(f"same profile: {np.abs(ours[3] - plain[3]).max():.1e} at most")
    print(f"same parameters: {np.abs((best - plain[1][0]) / errors).max():.1e} errors at most")
    assert abs(ours[2] / plain[2] - 1) < 1e-9


if __name__ == "__main__":
    main()
