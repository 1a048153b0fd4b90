"""Bijections of vectors whose components are transformed by parameters that a network computes from other components.

In: a conditioner and a transformer. Out: bijections whose intermediates are the transformer's parameters, so that
a log-determinant that is asked for later needs no second call of the conditioner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax.bijectors.bijection import Bijection, check_inputs, joined, node, set_fields
from incrax.bijectors.messages import wrong_conditioner, wrong_size
from incrax.bijectors.networks import MLP, MaskedMLP
from incrax.bijectors.protocol import Pass
from incrax.bijectors.transformers import Transformer, apply


@node("conditioner")
class Coupling(Bijection):
    """Some components pass unchanged and, with the context, tell how the others are transformed.

    Args:
        conditioner: pytree and function of the components that pass, followed by the context, along the last axis; its
            output has `num_parameters` of the transformer for each component that is transformed. `coupling` makes one.
        transformer: `Shift`, `Affine`, `Spline`, or any `Transformer`.
        mask: for each component whether it passes unchanged.
        cond_dim: number of context variables.

    Shapes: events (..., dim), context (..., cond_dim), log-determinants (...).

    Cost: either pass one call of the conditioner and of the transformer; the log-determinant that of the transformer,
    and no call of the conditioner after a pass.

    Source: Dinh, Sohl-Dickstein and Bengio 2016, arXiv:1605.08803; Durkan et al. 2019, arXiv:1906.04032.

    Raises:
        BijectionArgumentError: the mask passes all or nothing, or the conditioner's output is of another size.
    """

    conditioner: Callable[[Any], Any]
    transformer: Transformer
    mask: tuple[bool, ...]

    def __init__(
        self, conditioner: Callable[[Any], Any], transformer: Transformer, mask: Sequence[bool], cond_dim: int = 0
    ) -> None:
        mask = checked_mask(mask)
        expected = (len(mask) - sum(mask), transformer.num_parameters)
        check_conditioner("Coupling", conditioner, sum(mask) + cond_dim, expected)
        set_fields(self, shape=(len(mask),), cond_shape=(cond_dim,) if cond_dim else None)
        set_fields(self, conditioner=conditioner, transformer=transformer, mask=mask)

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the parameters."""
        return self._pass("forward", x, context, requires_ladj)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the parameters."""
        return self._pass("inverse", y, context, requires_ladj)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        x, context = check_inputs(self, x, context)
        parameters = self._parameters(x, context) if intermediates is None else intermediates
        return apply(self.transformer, "forward", x[..., self._positions()[1]], parameters, (1,), True).ladj

    def _pass(self, direction: str, value: Any, context: Any, requires_ladj: bool) -> Pass:
        value, context = check_inputs(self, value, context)
        kept, changed = self._positions()
        parameters = self._parameters(value, context)
        found = apply(self.transformer, direction, value[..., changed], parameters, (1,), requires_ladj)
        order = np.argsort(np.concatenate([kept, changed]))
        output = jnp.concatenate([value[..., kept], found.output], axis=-1)[..., order]
        return Pass(output, found.ladj, parameters)

    def _parameters(self, value: Any, context: Any) -> Any:
        kept, changed = self._positions()
        flat = self.conditioner(joined(value[..., kept], context))
        return flat.reshape((*flat.shape[:-1], len(changed), self.transformer.num_parameters))

    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the components that pass, and of those that are transformed."""
        return np.flatnonzero(self.mask), np.flatnonzero(np.logical_not(self.mask))


def coupling(
    key: Any,
    *,
    dim: int,
    transformer: Transformer,
    hidden: Sequence[int] = (32,),
    mask: Sequence[bool] | None = None,
    cond_dim: int = 0,
    activation: Callable[[Any], Any] = jnp.tanh,
    scale: float = 0.1,
) -> Coupling:
    """A `Coupling` with an `MLP` as conditioner.

    Args:
        key: of the weights.
        dim: of a vector, at least 2.
        transformer: `Shift`, `Affine`, `Spline`, or any `Transformer`.
        hidden: sizes of the hidden layers.
        mask: for each component whether it passes unchanged; None: the first half.
        cond_dim: number of context variables.
        activation: between the layers.
        scale: of the last layer's weights; small: near the identity.

    Raises:
        BijectionArgumentError: sizes or the mask do not fit.
    """
    mask = checked_mask([k < dim // 2 for k in range(dim)] if mask is None else mask)
    if len(mask) != dim:
        raise wrong_size("coupling", "mask", mask, f"of {dim} entries, as dim={dim}")
    sizes = (sum(mask) + cond_dim, *hidden, (dim - sum(mask)) * transformer.num_parameters)
    return Coupling(MLP(key, sizes, activation, scale), transformer, mask, cond_dim)


@node("conditioner")
class Autoregressive(Bijection):
    """Every component is transformed by parameters computed from those before it, and from the context.

    The forward pass takes one call of the conditioner, the inverse one call per component; `Invert` gives the bijection
    with the cheap inverse, as for fitting a density.

    Args:
        conditioner: pytree and function of the vector, followed by the context, along the last axis; output of shape
            (..., dim, num_parameters), where that of a component depends on those before it only. A `MaskedMLP`.
        transformer: `Shift`, `Affine`, `Spline`, or any `Transformer`.
        dim: of a vector.
        cond_dim: number of context variables.

    Shapes: events (..., dim), context (..., cond_dim), log-determinants (...).

    Cost of the log-determinant: of the transformer, and no call of the conditioner after a pass.

    Source: Papamakarios, Pavlakou and Murray 2017, arXiv:1705.07057; Kingma et al. 2016, arXiv:1606.04934;
    `AffineAutoregressive` and `SplineAutoregressive` of FlowTorch.

    Raises:
        BijectionArgumentError: the conditioner's output is of another shape.
    """

    conditioner: Callable[[Any], Any]
    transformer: Transformer

    def __init__(
        self, conditioner: Callable[[Any], Any], transformer: Transformer, dim: int, cond_dim: int = 0
    ) -> None:
        check_conditioner("Autoregressive", conditioner, dim + cond_dim, (dim, transformer.num_parameters))
        set_fields(self, shape=(dim,), cond_shape=(cond_dim,) if cond_dim else None)
        set_fields(self, conditioner=conditioner, transformer=transformer)

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the parameters."""
        x, context = check_inputs(self, x, context)
        parameters = self.conditioner(joined(x, context))
        found = apply(self.transformer, "forward", x, parameters, (1,), requires_ladj)
        return found._replace(intermediates=parameters)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the parameters."""
        y, context = check_inputs(self, y, context)

        def step(x: Any, number: Any) -> tuple[Any, Any]:
            """x_i from y_i and the parameters that x_1, ..., x_(i-1) give."""
            parameters = _take(self.conditioner(joined(x, context)), number, -2)
            found = apply(self.transformer, "inverse", _take(y, number, -1), parameters, (), requires_ladj)
            return x.at[..., number].set(found.output), (found.ladj, parameters)

        x, (ladj, parameters) = jax.lax.scan(step, jnp.zeros_like(y), jnp.arange(self.shape[0]))
        return Pass(x, jnp.sum(ladj, axis=0) if requires_ladj else None, jnp.moveaxis(parameters, 0, -2))

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        x, context = check_inputs(self, x, context)
        parameters = self.conditioner(joined(x, context)) if intermediates is None else intermediates
        return apply(self.transformer, "forward", x, parameters, (1,), True).ladj


def autoregressive(
    key: Any,
    *,
    dim: int,
    transformer: Transformer,
    hidden: Sequence[int] = (32,),
    cond_dim: int = 0,
    activation: Callable[[Any], Any] = jnp.tanh,
    scale: float = 0.1,
) -> Autoregressive:
    """An `Autoregressive` with a `MaskedMLP` as conditioner; arguments as of `coupling`."""
    sizes = {"dim": dim, "num_outputs": transformer.num_parameters, "hidden": hidden, "cond_dim": cond_dim}
    conditioner = MaskedMLP(key, **sizes, activation=activation, scale=scale)
    return Autoregressive(conditioner, transformer, dim, cond_dim)


def _take(x: Any, number: Any, axis: int) -> Any:
    return jax.lax.dynamic_index_in_dim(x, number, axis % x.ndim, keepdims=False)


def checked_mask(mask: Sequence[bool]) -> tuple[bool, ...]:
    """A mask that passes some components and not all.

    Raises:
        BijectionArgumentError: it passes none or all.
    """
    found = tuple(bool(is_kept) for is_kept in mask)
    if all(found) or not any(found):
        raise wrong_size("Coupling", "mask", found, "True for some components and False for others")
    return found


def check_conditioner(name: str, conditioner: Callable[[Any], Any], num_inputs: int, expected: tuple[int, ...]) -> None:
    """Whether a conditioner gives what the transformer needs; that of a coupling gives it in one axis.

    Raises:
        BijectionArgumentError: it does not.
    """
    needed = (expected[0] * expected[1],) if name == "Coupling" else expected
    try:
        seen = jax.eval_shape(conditioner, jax.ShapeDtypeStruct((num_inputs,), jnp.result_type(float)))
    except (TypeError, ValueError) as error:
        raise wrong_conditioner(name, f"no output for an input of shape ({num_inputs},)", needed) from error
    if jnp.shape(seen) != needed:
        raise wrong_conditioner(name, f"an output of shape {jnp.shape(seen)}", needed)
