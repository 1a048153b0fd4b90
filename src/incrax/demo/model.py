"""An extended unbinned likelihood of arrival delays: two normals and two exponentially modified
normals.

Delays are whole minutes. The density is taken at the minute; for widths of ten minutes and more
this differs from the integral over the minute by (1 min)^2 / (24 width^2), below 0.1 %.

Components, each normalised on the range [LOW, HIGH] in closed form:
- early: normal, the bulk of flights that arrive ahead of schedule;
- punctual: normal, wider;
- late: normal convolved with an exponential, f(x) = exp(s^2 / 2 t^2 - (x - m) / t) Phi((x - m) / s
  - s / t) / t;
- very late: the same m and s with a longer exponential.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from incrax.demo.data import HIGH, LOW

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
