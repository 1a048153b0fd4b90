"""Robust losses: how much a large residual counts.

In: squared residuals in units of the loss' scale. Out: rho(z) and its first two derivatives. rho(z) ~ z for small z.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from incrax.fit.messages import unknown_option


class Rho(NamedTuple):
    """rho at z, and its first and second derivative."""

    value: Any
    first: Any
    second: Any


def _squares(z: Any) -> Rho:
    return Rho(z, jnp.ones_like(z), jnp.zeros_like(z))


def _huber(z: Any) -> Rho:
    """2 sqrt(z) - 1 beyond z = 1."""
    is_small = z <= 1
    root = jnp.sqrt(jnp.where(is_small, 1, z))
    return Rho(
        jnp.where(is_small, z, 2 * root - 1), jnp.where(is_small, 1, 1 / root), jnp.where(is_small, 0, -0.5 / root**3)
    )


def _soft_l1(z: Any) -> Rho:
    """2 (sqrt(1 + z) - 1)."""
    root = jnp.sqrt(1 + z)
    return Rho(2 * z / (root + 1), 1 / root, -0.5 / root**3)


def _cauchy(z: Any) -> Rho:
    """log(1 + z)."""
    return Rho(jnp.log1p(z), 1 / (1 + z), -1 / (1 + z) ** 2)


def _arctan(z: Any) -> Rho:
    return Rho(jnp.arctan(z), 1 / (1 + z**2), -2 * z / (1 + z**2) ** 2)


LOSSES: dict[str, Callable[[Any], Rho]] = {
    "squares": _squares,
    "huber": _huber,
    "soft_l1": _soft_l1,
    "cauchy": _cauchy,
    "arctan": _arctan,
}
"""By the names of `scipy.optimize.least_squares`, whose "linear" is "squares" here."""


LEAST_CURVATURE = 0.3
"""Of rho'(z): where a loss curves less than that, or down, this much of it stands for its curvature."""


class Weighed(NamedTuple):
    """Residuals as the linear model of a robust cost sees them."""

    cost: Any
    """1/2 sum s^2 rho((r / s)^2)."""
    residuals: Any
    """With these in place of r, and `rows` times J in place of J, the gradient is the cost's, and the Gauss-Newton
    matrix wherever the loss curves up enough."""
    rows: Any


def weighed(name: str, residuals: Any, scale: Any) -> Weighed:
    """Residuals of shape (m,) under a loss.

    The curvature of the cost along a residual, rho' + 2 z rho'', is zero or negative for large ones. Epsilon in its
    place, as SciPy has it, promises steps longer by 1 / epsilon, and a damping that forbids them is far too large where
    residuals are small again: the search stalls. A share of rho' (share 1: reweighted least squares, which never
    overshoots, but converges slowly) bounds both.

    Source: B. Triggs et al., Bundle adjustment - a modern synthesis (2000), section 4.3.
    """
    if name == "squares":
        return Weighed(0.5 * jnp.sum(residuals**2), residuals, jnp.ones_like(residuals))
    z = (residuals / scale) ** 2
    rho = LOSSES[name](z)
    curvature = jnp.maximum(rho.first + 2 * rho.second * z, LEAST_CURVATURE * rho.first)
    rows = jnp.sqrt(curvature)
    return Weighed(0.5 * scale**2 * jnp.sum(rho.value), rho.first / rows * residuals, rows)


def cost(name: str, residuals: Any, scale: Any) -> Any:
    """The cost alone."""
    return weighed(name, residuals, scale).cost


def check_loss(name: Any) -> str:
    """A loss' name.

    Raises:
        ValueError: it is none.
    """
    if name not in LOSSES:
        raise unknown_option("loss", name, tuple(LOSSES))
    return name
