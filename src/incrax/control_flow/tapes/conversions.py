"""Conversions of traced values to Python, each recorded as a guard.

In: a tracer, whose trace tells its value. Out: what Python asked for. It must not know how the
value is found.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._locations import Place, caller, is_asked_by_jax, is_logged, place_of
from incrax.control_flow.tapes.guards import Guard, bits_on_host, key_of

READS = {
    "__bool__": "bool",
    "__int__": "int",
    "__index__": "int",
    "__hex__": "int",
    "__oct__": "int",
    "concrete_or_error": "value",
    "_is_slice_element_none_or_constant_or_symbolic": "int",
    "expand_bool_indices": "value",
}
"""Functions of JAX that get the value of a tracer because Python needs it; any other gets None and
stays traced.
"""


def learned(tracer: Any, kind: str, place: Place | None = None) -> Any:
    """The value of a tracer; what the conversion tells of it becomes a guard."""
    frame = caller(2)
    value = tracer._trace.value_of(tracer)
    place = place or place_of(frame)
    is_float = kind == "value" and jnp.issubdtype(tracer.dtype, jnp.inexact)
    tracer._trace.learn(
        tracer, Guard(kind, key_of(kind, value), place.where, place.expression, bool(is_float))
    )
    return value


def as_text(tracer: Any, form: Callable[[Any], str]) -> str:
    """A tracer's value as text: no guard where it is just printed, no value where JAX names
    something by it.
    """
    if is_asked_by_jax(caller(1)):
        return f"a traced {tracer.dtype.name}{list(tracer.shape)}"
    place = place_of(caller(2))
    if place.use == "print":
        return form(tracer._trace.value_of(tracer))
    return form(learned(tracer, "value", place))


def is_for_log() -> bool:
    """Whether logging asks for a text."""
    return is_logged(caller(2), None)


def formatted(value: Any, spec: str) -> str:
    """What an array gives in an f-string."""
    return (
        format(np.asarray(value)[()], spec)
        if np.ndim(value) == 0
        else format(jnp.asarray(value), spec)
    )


def read_by_jax(tracer: Any) -> Any:
    """The value of a tracer where a function of JAX needs it for Python, else None."""
    frame = caller(1)
    while frame is not None and _passes_on(frame):
        frame = frame.f_back
    kind = None if frame is None else _kind_read(frame)
    if frame is None or kind is None:
        return None
    if kind == "int" and not _is_integer(tracer) and frame.f_code.co_name != "__int__":
        kind = "value"
    return jnp.asarray(learned(tracer, kind))


def _passes_on(frame: FrameType) -> bool:
    """Whether a function just hands on the question for a value."""
    is_ours = frame.f_globals.get("__name__", "").startswith("incrax.control_flow.tapes.")
    return is_ours or frame.f_code.co_name in ("to_concrete_value", "is_concrete")


def _kind_read(frame: FrameType) -> str | None:
    if not frame.f_globals.get("__name__", "").startswith("jax."):
        return None
    return READS.get(frame.f_code.co_name)


def _is_integer(tracer: Any) -> bool:
    return tracer.size == 1 and (jnp.issubdtype(tracer.dtype, jnp.integer) or tracer.dtype == bool)


# --- methods of tracers ---------------------------------------------------------------------------


def to_bool(tracer: Any) -> bool:
    """`bool(x)`."""
    if tracer.size != 1:
        return bool(np.zeros(tracer.shape))
    return bool(np.asarray(learned(tracer, "bool")).reshape(()))


def to_scalar(tracer: Any, kind: type) -> Any:
    """`int(x)`, `float(x)`, `complex(x)`."""
    if tracer.ndim > 0:
        raise TypeError(
            f"Only scalar arrays can be converted to Python scalars; got {tracer.ndim=}"
        )
    is_int = kind is int or (kind is float and _is_integer(tracer))
    return kind(np.asarray(learned(tracer, "int" if is_int else "value"))[()])


def to_index(tracer: Any) -> int:
    """`range(x)`, `values[x]`: what Python needs an integer for."""
    if tracer.shape != () or not jnp.issubdtype(tracer.dtype, jnp.integer):
        raise TypeError("Only integer scalar arrays can be converted to a scalar index.")
    return operator.index(np.asarray(learned(tracer, "int"))[()])


def to_numpy(tracer: Any, dtype: Any = None) -> np.ndarray:
    """`np.asarray(x)`."""
    if _jax.is_key_dtype(tracer.dtype):
        raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array.")
    array = bits_on_host(learned(tracer, "value"))
    return array if dtype is None else array.astype(dtype)
