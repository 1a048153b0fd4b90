"""What the bijections of incrax itself have in common.

In: fields. Out: frozen pytrees with the methods of incrax's protocol, and those of FlowJAX in terms of them, so that
they can stand in a `Chain` of FlowJAX. Events are the last axes of an input; any leading axes are events beside one
another, and a log-determinant has the shape of the leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from incrax.bijectors.messages import wrong_context, wrong_event, wrong_size
from incrax.bijectors.protocol import Pass

T = TypeVar("T", bound=type)


class Bijection:
    """Base of incrax's own bijections: an invertible map of arrays of shape `shape`, with `cond_shape` if conditional.

    A subclass has `forward`, `inverse` and `ladj`. Intermediates of either pass serve `ladj`.
    """

    shape: tuple[int, ...]
    cond_shape: tuple[int, ...] | None

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """Output y = f(x), log|det dy/dx| if it is required, and what the latter can be computed from."""
        raise NotImplementedError

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """Input x with f(x) = y, log|det dx/dy| if it is required, and what log|det dy/dx| can be computed from."""
        raise NotImplementedError

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """log|det dy/dx| at x; from the intermediates of a pass, if there are any."""
        raise NotImplementedError

    def transform_and_log_det(self, x: Any, condition: Any = None) -> tuple[Any, Any]:
        """Output and log|det dy/dx|; FlowJAX's name."""
        found = self.forward(x, condition, requires_ladj=True)
        return found.output, found.ladj

    def inverse_and_log_det(self, y: Any, condition: Any = None) -> tuple[Any, Any]:
        """Input and log|det dx/dy|; FlowJAX's name."""
        found = self.inverse(y, condition, requires_ladj=True)
        return found.output, found.ladj

    def transform(self, x: Any, condition: Any = None) -> Any:
        """Output alone; FlowJAX's name."""
        return self.forward(x, condition, requires_ladj=False).output


def node(*leaves: str) -> Callable[[T], T]:
    """Make a class a pytree: the fields named are its children, in that order; the others are compared by value."""

    def register(cls: T) -> T:
        def flatten(x: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
            rest = tuple((name, value) for name, value in vars(x).items() if name not in leaves)
            return tuple((jax.tree_util.GetAttrKey(name), getattr(x, name)) for name in leaves), rest

        def unflatten(rest: tuple[tuple[str, Any], ...], children: Any) -> Any:
            return set_fields(object.__new__(cls), **dict(zip(leaves, children, strict=True)), **dict(rest))

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
        return cls

    return register


def set_fields(x: Any, **fields: Any) -> Any:
    """Set the fields of an object that is being made."""
    for name, value in fields.items():
        object.__setattr__(x, name, value)
    return x


def checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A shape of events.

    Raises:
        BijectionArgumentError: it is no tuple of sizes.
    """
    found = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not all(isinstance(size, int) and size >= 0 for size in found):
        raise wrong_size(name, "shape", shape, "a tuple of sizes")
    return found


def check_event(bijection: Bijection, x: Any) -> Any:
    """An input as an array of a floating type, whose last axes are an event.

    Raises:
        BijectionArgumentError: they are not.
    """
    x = jnp.asarray(x)
    shape = bijection.shape
    if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
        raise wrong_event(type(bijection).__name__, x.shape, shape)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)


def check_inputs(bijection: Bijection, x: Any, context: Any) -> tuple[Any, Any]:
    """A vector and the context that a conditional bijection takes, else None; leading axes are broadcast.

    Raises:
        BijectionArgumentError: the context is missing or of another shape, or the vector is.
    """
    x, expected = check_event(bijection, x), bijection.cond_shape
    if expected is None:
        return x, None
    seen = None if context is None else jnp.shape(context)
    if seen is None or len(seen) < 1 or seen[-1:] != expected:
        raise wrong_context(type(bijection).__name__, seen, expected)
    lead = jnp.broadcast_shapes(x.shape[:-1], seen[:-1])
    parts = (x, jnp.asarray(context, x.dtype))
    wide_x, wide_context = (jnp.broadcast_to(part, (*lead, part.shape[-1])) for part in parts)
    return wide_x, wide_context


def joined(x: Any, context: Any) -> Any:
    """A vector followed by its context."""
    return x if context is None else jnp.concatenate([x, context], axis=-1)


def event_sum(ladj: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the axes of an event."""
    return jnp.sum(ladj, axis=tuple(range(-len(shape), 0)))
