"""Maps of single numbers with parameters that a conditioner computes, or that are trained themselves.

In: an array and parameters, one axis more than the array. Out: the mapped array and the log-derivative of every
element. Parameters are unconstrained; where all are 0 the map is the identity. Transformers hold no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from incrax.bijectors import splines
from incrax.bijectors.bijection import Bijection, check_event, checked_shape, event_sum, node, set_fields
from incrax.bijectors.messages import wrong_size
from incrax.bijectors.protocol import Pass


class Transformer(Protocol):
    """An invertible map of numbers, `num_parameters` for each. The log-derivative is None if it is not required."""

    @property
    def num_parameters(self) -> int:
        """How many parameters a number has."""
        ...

    def forward(self, x: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """Output y and log|dy/dx|."""
        ...

    def inverse(self, y: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """Input x and log|dx/dy|."""
        ...


@dataclass(frozen=True)
class Shift:
    """y = x + p: volume preserving, the log-derivative is 0.

    Source: Dinh, Krueger and Bengio 2014, arXiv:1410.8516; `VolumePreserving` of FlowTorch.
    """

    @property
    def num_parameters(self) -> int:
        """One."""
        return 1

    def forward(self, x: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        y = x + parameters[..., 0]
        return y, jnp.zeros_like(y) if requires_ladj else None

    def inverse(self, y: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        return self.forward(y, -parameters, requires_ladj=requires_ladj)


@dataclass(frozen=True)
class Affine:
    """y = exp(s) x + p, with s = limit tanh(q / limit) of the second parameter q.

    Args:
        limit: of the log-scale, so that no number is scaled by more than exp(limit).

    Source: Dinh, Sohl-Dickstein and Bengio 2016, arXiv:1605.08803; `Affine` of FlowTorch, which cuts the log-scale off.
    """

    limit: float = 3.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise wrong_size("Affine", "limit", self.limit, "a positive number")

    @property
    def num_parameters(self) -> int:
        """Two: shift and log-scale."""
        return 2

    def forward(self, x: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        log_scale = self._log_scale(parameters)
        y = jnp.exp(log_scale) * x + parameters[..., 0]
        return y, jnp.broadcast_to(log_scale, y.shape) if requires_ladj else None

    def inverse(self, y: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        log_scale = self._log_scale(parameters)
        x = (y - parameters[..., 0]) * jnp.exp(-log_scale)
        return x, jnp.broadcast_to(-log_scale, x.shape) if requires_ladj else None

    def _log_scale(self, parameters: Any) -> Any:
        return self.limit * jnp.tanh(parameters[..., 1] / self.limit)


@dataclass(frozen=True)
class Spline:
    """A monotone rational spline on [-bound, bound], the identity outside.

    Args:
        num_bins: at least 1.
        bound: of the interval.
        order: "linear" (a quotient of linear functions, two pieces per bin; its inverse is of the same form) or
            "quadratic" (its inverse solves a quadratic equation).

    Source: Dolatabadi, Erfani and Leckie 2020, arXiv:2001.05168 (linear); Durkan, Bekasov, Murray and Papamakarios
    2019, arXiv:1906.04032 (quadratic); `Spline` of FlowTorch.

    Raises:
        BijectionArgumentError: an option is out of its range.
    """

    num_bins: int = 8
    bound: float = 3.0
    order: Literal["linear", "quadratic"] = "linear"

    def __post_init__(self) -> None:
        if not 1 <= self.num_bins < 1 / splines.MIN_SHARE:
            raise wrong_size("Spline", "num_bins", self.num_bins, f"from 1 to {round(1 / splines.MIN_SHARE) - 1}")
        if not self.bound > 0:
            raise wrong_size("Spline", "bound", self.bound, "a positive number")
        if self.order not in ("linear", "quadratic"):
            raise wrong_size("Spline", "order", self.order, '"linear" or "quadratic"')

    @property
    def num_parameters(self) -> int:
        """Widths and heights of the bins, slopes between them, and for the linear order where pieces meet."""
        return (4 if self.order == "linear" else 3) * self.num_bins - 1

    def forward(self, x: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        is_inside = jnp.abs(x) < self.bound
        y, slope = self._at(jnp.where(is_inside, x, 0), parameters)
        return jnp.where(is_inside, y, x), jnp.where(is_inside, jnp.log(slope), 0) if requires_ladj else None

    def inverse(self, y: Any, parameters: Any, *, requires_ladj: bool) -> tuple[Any, Any]:
        """See `Transformer`."""
        is_inside = jnp.abs(y) < self.bound
        bin = splines.find_bin(jnp.where(is_inside, y, 0), parameters, self.num_bins, self.bound, "y")
        invert = splines.inverse_linear if self.order == "linear" else splines.inverse_quadratic
        x = invert(jnp.where(is_inside, y, 0), bin)
        if not requires_ladj:
            return jnp.where(is_inside, x, y), None
        slope = (splines.linear if self.order == "linear" else splines.quadratic)(x, bin)[1]
        return jnp.where(is_inside, x, y), jnp.where(is_inside, -jnp.log(slope), 0)

    def _at(self, x: Any, parameters: Any) -> tuple[Any, Any]:
        bin = splines.find_bin(x, parameters, self.num_bins, self.bound, "x")
        return (splines.linear if self.order == "linear" else splines.quadratic)(x, bin)


@node("parameters")
class Elementwise(Bijection):
    """A transformer with trained parameters, an own set for every element of an event.

    Args:
        transformer: `Shift`, `Affine`, `Spline`, or any `Transformer`.
        shape: of an event; () maps every number alike.
        parameters: array of shape (*shape, num_parameters); None: zeros, the identity.

    Cost of the log-determinant: of an evaluation of the transformer.

    Source: `Elementwise` and the parameters `Tensor` of FlowTorch.

    Raises:
        BijectionArgumentError: the parameters are of another shape.
    """

    transformer: Transformer
    parameters: Any

    def __init__(self, transformer: Transformer, shape: tuple[int, ...] = (), parameters: Any = None) -> None:
        shape = checked_shape("Elementwise", shape)
        expected = (*shape, transformer.num_parameters)
        parameters = jnp.zeros(expected) if parameters is None else jnp.asarray(parameters)
        if parameters.shape != expected:
            raise wrong_size("Elementwise", "parameters.shape", parameters.shape, f"{expected}")
        set_fields(self, shape=shape, cond_shape=None, transformer=transformer, parameters=parameters)

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        return apply(self.transformer, "forward", check_event(self, x), self.parameters, self.shape, requires_ladj)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        return apply(self.transformer, "inverse", check_event(self, y), self.parameters, self.shape, requires_ladj)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        return self.forward(x, requires_ladj=True).ladj


def apply(
    transformer: Transformer, direction: str, value: Any, parameters: Any, shape: tuple[int, ...], requires_ladj: bool
) -> Pass:
    """A pass of every element; the parameters are broadcast over leading axes."""
    parameters = jnp.broadcast_to(parameters, (*value.shape, transformer.num_parameters))
    output, ladj = getattr(transformer, direction)(value, parameters, requires_ladj=requires_ladj)
    return Pass(output, event_sum(ladj, shape) if requires_ladj else None, None)


@node("bijection")
class Fixed(Bijection):
    """A bijection whose parameters are not trained: gradients with respect to them are 0.

    They stay leaves, so that an optimizer that decays weights still changes them; mask them there.

    Source: `Fixed` of FlowTorch.
    """

    bijection: Any

    def __init__(self, bijection: Bijection) -> None:
        set_fields(self, shape=bijection.shape, cond_shape=bijection.cond_shape, bijection=bijection)

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        return jax.lax.stop_gradient(self.bijection).forward(x, context, requires_ladj=requires_ladj)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        return jax.lax.stop_gradient(self.bijection).inverse(y, context, requires_ladj=requires_ladj)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        return jax.lax.stop_gradient(self.bijection).ladj(x, y, context, intermediates)
