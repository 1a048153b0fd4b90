"""Bijections of other libraries as incrax asks for them.

In: an object. Out: its adapter, chosen by the methods that it has, so that no library is imported.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp

from incrax.bijectors.messages import not_a_bijection
from incrax.bijectors.protocol import Adapter, Pass


@runtime_checkable
class _Own(Protocol):
    """A bijection written for incrax."""

    def forward(self, x: Any, context: Any, *, requires_ladj: bool) -> Pass: ...
    def inverse(self, y: Any, context: Any, *, requires_ladj: bool) -> Pass: ...
    def ladj(self, x: Any, y: Any, context: Any, intermediates: Any) -> Any: ...


@runtime_checkable
class _FlowJax(Protocol):
    shape: Any
    cond_shape: Any

    def transform_and_log_det(self, x: Any, condition: Any = ...) -> Any: ...
    def inverse_and_log_det(self, y: Any, condition: Any = ...) -> Any: ...


@runtime_checkable
class _NumPyro(Protocol):
    def __call__(self, x: Any) -> Any: ...
    def _inverse(self, y: Any) -> Any: ...
    def call_with_intermediates(self, x: Any) -> Any: ...
    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = ...) -> Any: ...


@runtime_checkable
class _Plain(Protocol):
    def transform_and_log_det(self, x: Any) -> Any: ...
    def inverse_and_log_det(self, y: Any) -> Any: ...


@runtime_checkable
class _Distrax(Protocol):
    def forward_and_log_det(self, x: Any) -> Any: ...
    def inverse_and_log_det(self, y: Any) -> Any: ...


class _Separate:
    """An adapter of bijections whose methods give the log-determinant with the output; XLA drops it if unused."""

    def apply(self, params: Any, name: str, value: Any, context: Any) -> tuple[Any, Any]:
        """Output and log-determinant of one of the two methods."""
        method = getattr(params, _METHODS.get((name, isinstance(params, _Plain)), name))
        return method(value) if context is None else method(value, context)

    def forward(self, params: Any, x: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return self._pass(params, "forward", x, context, requires_ladj)

    def inverse(self, params: Any, y: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return self._pass(params, "inverse", y, context, requires_ladj)

    def _pass(self, params: Any, direction: str, value: Any, context: Any, requires_ladj: bool) -> Pass:
        output, ladj = self.apply(params, f"{direction}_and_log_det", value, context)
        return Pass(output, ladj if requires_ladj else None, None)

    def ladj(self, params: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """See `Adapter`; the forward pass again, of which XLA drops what only the output needs."""
        return self.apply(params, "forward_and_log_det", x, context)[1]

    def parts(self, params: Any) -> tuple[Any, ...]:
        """See `Adapter`."""
        return ()


_METHODS = {("forward_and_log_det", True): "transform_and_log_det"}


class _Batched(_Separate):
    """FlowJAX: bijections of one event of a given shape, here over any leading axes of events and contexts."""

    def apply(self, params: Any, name: str, value: Any, context: Any) -> tuple[Any, Any]:
        """Output and log-determinant of one of the two methods."""
        method = getattr(params, _METHODS.get((name, True), name))
        num_value, num_context = len(params.shape), len(params.cond_shape or ())
        if jnp.ndim(value) == num_value and (context is None or jnp.ndim(context) == num_context):
            return method(value, context)
        event = _axes(params.shape, "x")
        operands = [value] if params.cond_shape is None else [value, context]
        shapes = [event] if params.cond_shape is None else [event, _axes(params.cond_shape, "c")]
        return jnp.vectorize(method, signature=f"{','.join(shapes)}->{event},()")(*operands)


def _axes(shape: tuple[int, ...], letter: str) -> str:
    """A shape as `jnp.vectorize` writes it."""
    return f"({','.join(f'{letter}{number}' for number in range(len(shape)))})"


class _Chained(_Batched):
    """FlowJAX's `Chain`: every part is a pass of its own."""

    def forward(self, params: Any, x: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return through(params.bijections, "forward", x, context, requires_ladj)

    def inverse(self, params: Any, y: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return through(tuple(reversed(params.bijections)), "inverse", y, context, requires_ladj)

    def ladj(self, params: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """See `Adapter`; from the outputs of the parts, where they are there."""
        return ladj_through(params.bijections, x, y, context, intermediates)

    def parts(self, params: Any) -> tuple[Any, ...]:
        """See `Adapter`."""
        return tuple(params.bijections)


def through(parts: tuple[Any, ...], direction: str, value: Any, context: Any, requires_ladj: bool) -> Pass:
    """The passes through bijections, one after another."""
    passes = []
    for part in parts:
        run: Callable[..., Pass] = getattr(adapter_of(part), direction)
        passes.append(run(part, value, context, requires_ladj=requires_ladj))
        value = passes[-1].output
    ladj = functools.reduce(operator.add, [each.ladj for each in passes]) if requires_ladj else None
    return Pass(value, ladj, (*passes[:-1], passes[-1]._replace(output=None)))


def ladj_through(parts: tuple[Any, ...], x: Any, y: Any, context: Any, intermediates: Any) -> Any:
    """The log-determinant of bijections one after another, from the passes through them, where they are there."""
    if intermediates is None:
        intermediates = through(parts, "forward", x, context, True).intermediates
    ladjs = []
    for part, each in zip(parts, intermediates, strict=True):
        h = y if each.output is None else each.output
        kept = each.intermediates
        ladjs.append(adapter_of(part).ladj(part, x, h, context, kept) if each.ladj is None else each.ladj)
        x = h
    return functools.reduce(operator.add, ladjs)


class _Intermediate:
    """NumPyro: transforms that hand over what their log-determinant needs, and take no context."""

    def forward(self, params: Any, x: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        y, intermediates = params.call_with_intermediates(x)
        if not requires_ladj:
            return Pass(y, None, intermediates)
        return Pass(y, params.log_abs_det_jacobian(x, y, intermediates), None)

    def inverse(self, params: Any, y: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        x = params.inv(y)  # an inverse transform has no `_inverse`
        return Pass(x, -params.log_abs_det_jacobian(x, y) if requires_ladj else None, None)

    def ladj(self, params: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """See `Adapter`."""
        return params.log_abs_det_jacobian(x, y, intermediates)

    def parts(self, params: Any) -> tuple[Any, ...]:
        """See `Adapter`."""
        return ()


class _Native:
    """Bijections written for incrax; the protocol, with `params` as `self`."""

    def forward(self, params: Any, x: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return params.forward(x, context, requires_ladj=requires_ladj)

    def inverse(self, params: Any, y: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """See `Adapter`."""
        return params.inverse(y, context, requires_ladj=requires_ladj)

    def ladj(self, params: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """See `Adapter`."""
        return params.ladj(x, y, context, intermediates)

    def parts(self, params: Any) -> tuple[Any, ...]:
        """See `Adapter`; of a bijection that says so."""
        return tuple(getattr(params, "parts", ()))


_FORMS: tuple[tuple[Any, Adapter], ...] = (
    (_Own, _Native()),
    (_FlowJax, _Batched()),
    (_NumPyro, _Intermediate()),
    (_Plain, _Separate()),
    (_Distrax, _Separate()),
)
_CHAINED = _Chained()


def adapter_of(bijection: Any) -> Adapter:
    """How to evaluate a bijection.

    Raises:
        NotABijectionError: it has none of the known forms.
    """
    for form, adapter in () if isinstance(bijection, type) else _FORMS:
        if isinstance(bijection, form):
            return _CHAINED if _is_chain(bijection, adapter) else adapter
    raise not_a_bijection(f"the class {bijection.__name__}" if isinstance(bijection, type) else repr(type(bijection)))


def _is_chain(bijection: Any, adapter: Adapter) -> bool:
    """Whether a bijection of FlowJAX is one after another, each by itself."""
    if type(bijection).__module__ != "flowjax.bijections.chain" or type(bijection).__name__ != "Chain":
        return False
    return isinstance(adapter, _Batched) and all(isinstance(part, _FlowJax) for part in bijection.bijections)
