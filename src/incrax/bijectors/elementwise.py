"""Bijections of single numbers without trained parameters, of an event of any shape.

In: an array. Out: each element mapped by itself. The log-determinant is a sum of one term per element; nothing else
is kept for it. All cost as much as their output.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from incrax.bijectors.bijection import Bijection, check_event, checked_shape, event_sum, node, set_fields
from incrax.bijectors.messages import wrong_size
from incrax.bijectors.protocol import Pass


class _Elementwise(Bijection):
    """y_i = f(x_i), from `_apply`, `_invert` and `_log_slope`."""

    def _apply(self, x: Any) -> Any:
        raise NotImplementedError

    def _invert(self, y: Any) -> Any:
        raise NotImplementedError

    def _log_slope(self, x: Any) -> Any:
        raise NotImplementedError

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        x = check_event(self, x)
        return Pass(self._apply(x), self.ladj(x, None) if requires_ladj else None, None)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        x = self._invert(check_event(self, y))
        return Pass(x, -self.ladj(x, None) if requires_ladj else None, None)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        return event_sum(self._log_slope(check_event(self, x)), self.shape)


@node()
class ELU(_Elementwise):
    """y = x for x > 0, alpha (exp(x) - 1) otherwise; outputs are above -alpha, and NaN has no inverse below.

    Args:
        shape: of an event; every element is mapped by itself.
        alpha: positive number, not trained.

    Source: Clevert, Unterthiner and Hochreiter 2015, arXiv:1511.07289; `ELU` of FlowTorch.

    Raises:
        BijectionArgumentError: `alpha` is not positive.
    """

    alpha: float

    def __init__(self, shape: tuple[int, ...] = (), alpha: float = 1.0) -> None:
        if not 0 < alpha < math.inf:
            raise wrong_size("ELU", "alpha", alpha, "a positive number")
        set_fields(self, shape=checked_shape("ELU", shape), cond_shape=None, alpha=float(alpha))

    def _apply(self, x: Any) -> Any:
        return jnp.where(x > 0, x, self.alpha * jnp.expm1(jnp.minimum(x, 0)))

    def _invert(self, y: Any) -> Any:
        return jnp.where(y > 0, y, jnp.log1p(jnp.minimum(y, 0) / self.alpha))

    def _log_slope(self, x: Any) -> Any:
        return jnp.where(x > 0, 0, x + math.log(self.alpha))


@node()
class LeakyReLU(_Elementwise):
    """y = x for x > 0, slope * x otherwise.

    Args:
        shape: of an event; every element is mapped by itself.
        slope: positive number, not trained.

    Source: Maas, Hannun and Ng 2013; `LeakyReLU` of FlowTorch.

    Raises:
        BijectionArgumentError: `slope` is not positive.
    """

    slope: float

    def __init__(self, shape: tuple[int, ...] = (), slope: float = 0.01) -> None:
        if not 0 < slope < math.inf:
            raise wrong_size("LeakyReLU", "slope", slope, "a positive number")
        set_fields(self, shape=checked_shape("LeakyReLU", shape), cond_shape=None, slope=float(slope))

    def _apply(self, x: Any) -> Any:
        return jnp.where(x > 0, x, self.slope * x)

    def _invert(self, y: Any) -> Any:
        return jnp.where(y > 0, y, y / self.slope)

    def _log_slope(self, x: Any) -> Any:
        return jnp.where(x > 0, jnp.zeros_like(x), math.log(self.slope))


@node()
class AffineFixed(_Elementwise):
    """y = loc + scale * x with numbers that are not trained.

    Args:
        loc: a number.
        scale: a number that is not 0.
        shape: of an event; every element is mapped by itself.

    Source: `AffineFixed` of FlowTorch.

    Raises:
        BijectionArgumentError: `scale` is 0 or not finite.
    """

    loc: float
    scale: float

    def __init__(self, loc: float = 0.0, scale: float = 1.0, shape: tuple[int, ...] = ()) -> None:
        if scale == 0 or not math.isfinite(scale):
            raise wrong_size("AffineFixed", "scale", scale, "a finite number that is not 0")
        shape = checked_shape("AffineFixed", shape)
        set_fields(self, shape=shape, cond_shape=None, loc=float(loc), scale=float(scale))

    def _apply(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _invert(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def _log_slope(self, x: Any) -> Any:
        return jnp.full_like(x, math.log(abs(self.scale)))
