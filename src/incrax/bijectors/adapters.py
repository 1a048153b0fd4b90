"""Bijections of other libraries as incrax asks for them.

In: an object. Out: how to evaluate it, chosen by the methods that it has, so that no library is
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from incrax.errors import NotABijectionError

Adapter = Callable[[Any, str, Any, Any], tuple[Any, Any]]
"""(bijection, direction, value, context) -> output, and log|det J| of this pass at its input."""


def _plain(bijection: Any, direction: str, value: Any, context: Any) -> tuple[Any, Any]:
    name = f"{direction}_and_log_det"
    if name == "forward_and_log_det" and hasattr(bijection, "transform_and_log_det"):
        name = "transform_and_log_det"
    method = getattr(bijection, name)
    return method(value) if context is None else method(value, context)


def _flowjax(bijection: Any, direction: str, value: Any, context: Any) -> tuple[Any, Any]:
    """A bijection of one event of a given shape, here over any leading axes of events and
    contexts.
    """
    method = (
        bijection.transform_and_log_det if direction == "forward" else bijection.inverse_and_log_det
    )
    num_context = len(bijection.cond_shape or ())
    if jnp.ndim(value) == len(bijection.shape) and (
        context is None or jnp.ndim(context) == num_context
    ):
        return method(value, context)
    event = _core_axes(bijection.shape, "x")
    if bijection.cond_shape is None:
        return jnp.vectorize(method, signature=f"{event}->{event},()")(value)
    signature = f"{event},{_core_axes(bijection.cond_shape, 'c')}->{event},()"
    return jnp.vectorize(method, signature=signature)(value, context)


def _core_axes(shape: tuple[int, ...], letter: str) -> str:
    """A shape as `jnp.vectorize` writes it."""
    names = (f"{letter}{number}" for number in range(len(shape)))
    return f"({','.join(names)})"


def _numpyro(transform: Any, direction: str, value: Any, context: Any) -> tuple[Any, Any]:
    """A transform that hands over what its log-determinant needs, and takes no context."""
    if direction == "forward":
        y, intermediates = transform.call_with_intermediates(value)
        return y, transform.log_abs_det_jacobian(value, y, intermediates)
    x = transform.inv(value)  # an inverse transform has no `_inverse`
    return x, -transform.log_abs_det_jacobian(x, value)


_FORMS: tuple[tuple[tuple[str, ...], Adapter], ...] = (
    (("transform_and_log_det", "inverse_and_log_det", "shape", "cond_shape"), _flowjax),
    (("call_with_intermediates", "log_abs_det_jacobian", "inv"), _numpyro),
    (("transform_and_log_det", "inverse_and_log_det"), _plain),
    (("forward_and_log_det", "inverse_and_log_det"), _plain),  # distrax
)


def adapter_of(bijection: Any) -> Adapter:
    """How to evaluate a bijection.

    Raises:
        NotABijectionError: it has none of the known forms.
    """
    if not isinstance(bijection, type):
        for names, adapter in _FORMS:
            if all(hasattr(bijection, name) for name in names):
                return adapter
    seen = (
        f"the class {bijection.__name__}" if isinstance(bijection, type) else repr(type(bijection))
    )
    raise NotABijectionError(
        f"`remember` got {seen}, which has none of the forms of a bijection that are known. This "
        "is usually a plain function, a distribution, or the class in place of an instance. "
        "Nothing is remembered. Pass a bijection of FlowJAX, a transform of NumPyro, or an object "
        "with the methods `transform_and_log_det` (or `forward_and_log_det`) and "
        "`inverse_and_log_det`."
    )
