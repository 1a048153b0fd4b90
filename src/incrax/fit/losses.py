"""Robust losses: how much a large residual counts.

In: squared residuals in units of the loss' scale. Out: rho(z), whose first two derivatives JAX
finds. rho(z) ~ z for small z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Loss = Literal["squares", "huber", "soft_l1", "cauchy", "arctan"]


def _huber(z: Any) -> Any:
    """2 sqrt(z) - 1 beyond z = 1."""
    is_small = z <= 1
    return jnp.where(is_small, z, 2 * jnp.sqrt(jnp.where(is_small, 1, z)) - 1)


LOSSES: dict[Loss, Callable[[Any], Any]] = {
    "squares": lambda z: z,
    "huber": _huber,
    "soft_l1": lambda z: 2 * z / (jnp.sqrt(1 + z) + 1),  # 2 (sqrt(1 + z) - 1)
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
}
"""rho(z), by the names of `scipy.optimize.least_squares`, whose "linear" is "squares" here."""


LEAST_CURVATURE = 0.3
"""Of rho'(z): where a loss curves less than that, or down, this much of it stands for its
curvature.
"""


class Weighed(NamedTuple):
    """Residuals as the linear model of a robust cost sees them."""

    cost: Any
    """1/2 sum s^2 rho((r / s)^2)."""
    residuals: Any
    """With these in place of r, and `rows` times J in place of J, the gradient is the cost's, and
    the Gauss-Newton matrix wherever the loss curves up enough.
    """
    rows: Any


def weighed(name: Loss, residuals: Any, scale: Any) -> Weighed:
    """Residuals of shape (m,) under a loss.

    The curvature of the cost along a residual, rho' + 2 z rho'', is zero or negative for large
    ones. Epsilon in its place, as SciPy has it, promises steps longer by 1 / epsilon, and a damping
    that forbids them is far too large where residuals are small again: the search stalls. A share
    of rho' (share 1: reweighted least squares, which never overshoots, but converges slowly) bounds
    both.

    Source: B. Triggs et al., Bundle adjustment - a modern synthesis (2000), section 4.3.
    """
    if name == "squares":
        return Weighed(0.5 * jnp.sum(residuals**2), residuals, jnp.ones_like(residuals))
    z = (residuals / scale) ** 2
    slope = lambda z: jax.jvp(LOSSES[name], (z,), (jnp.ones_like(z),))
    (rho, first), (_, second) = jax.jvp(slope, (z,), (jnp.ones_like(z),))
    rows = jnp.sqrt(jnp.maximum(first + 2 * second * z, LEAST_CURVATURE * first))
    return Weighed(0.5 * scale**2 * jnp.sum(rho), first / rows * residuals, rows)


def check_loss(name: Any) -> Loss:
    """A loss' name.

    Raises:
        ValueError: it is none.
    """
    if name not in LOSSES:
        raise unknown_option("loss", name, tuple(LOSSES))
    return name


def unknown_option(option: str, name: Any, known: Sequence[str]) -> ValueError:
    """A loss or a solver that does not exist."""
    shown = ", ".join(f'"{each}"' for each in known)
    return ValueError(
        f"`levenberg_marquardt({option}=...)` got {name!r}. Nothing was evaluated. Use one of "
        f"{shown}."
    )
