"""Traced values that tell Python what they are, each answer recorded as a guard.

In: a tracer, whose trace knows its value. Out: what Python asked for. It must not know how the
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


class RecordedTracer(_jax.JaxprTracer):
    """A staged value that tells what it is, at the price of a guard."""

    __slots__ = ()
    _trace: Any
    """A `Recorder`."""

    def __bool__(self) -> bool:
        if self.size != 1:
            return bool(np.zeros(self.shape))
        return bool(np.asarray(learned(self, "bool")).reshape(()))

    def __int__(self) -> int:
        return self._scalar(int)

    def __float__(self) -> float:
        return self._scalar(float)

    def __complex__(self) -> complex:
        return self._scalar(complex)

    def _scalar(self, kind: type) -> Any:
        if self.ndim > 0:
            raise TypeError(
                f"Only scalar arrays can be converted to Python scalars; got tracer.ndim={self.ndim}"
            )
        is_int = kind is int or (kind is float and _is_integer(self))
        return kind(np.asarray(learned(self, "int" if is_int else "value"))[()])

    def __index__(self) -> int:
        if self.shape != () or not jnp.issubdtype(self.dtype, jnp.integer):
            raise TypeError("Only integer scalar arrays can be converted to a scalar index.")
        return operator.index(np.asarray(learned(self, "int"))[()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if _jax.is_key_dtype(self.dtype):
            raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array.")
        array = bits_on_host(learned(self, "value"))
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        """Nested lists of the value."""
        return self.__array__().tolist()

    def __format__(self, spec: str) -> str:
        def formatted(value: Any) -> str:
            return format(np.asarray(value)[()] if np.ndim(value) == 0 else value, spec)

        return self._text(formatted, super().__str__)

    def __str__(self) -> str:
        return self._text(str, super().__str__)

    def __repr__(self) -> str:
        return self._text(repr, super().__repr__)

    def _text(self, form: Callable[[Any], str], plain: Callable[[], str]) -> str:
        """Text of the value: no guard where it is just printed, no value where JAX names something
        by it; when the run is over just that of a traced value, unless a log is written late.
        """
        frame = caller()
        if self._trace.is_over:
            return form(self._trace.known_value(self)) if is_logged(frame, None) else plain()
        if is_asked_by_jax(frame):
            return f"a traced {self.dtype.name}{list(self.shape)}"
        place = place_of(frame)
        if place.use == "print":
            return form(self._trace.value_of(self))
        return form(learned(self, "value", place))

    def block_until_ready(self) -> Any:
        """The value itself: nothing is computed yet."""
        return self

    def to_concrete_value(self) -> Any:
        """The value where a function of JAX needs it for Python; else None, so that what can stay
        traced does.
        """
        frame = caller()
        while frame is not None and _passes_on(frame):
            frame = frame.f_back
        kind = None if frame is None else _kind_read(frame)
        if frame is None or kind is None:
            return None
        if kind == "int" and not _is_integer(self) and frame.f_code.co_name != "__int__":
            kind = "value"
        return jnp.asarray(learned(self, kind))


def learned(tracer: Any, kind: str, place: Place | None = None) -> Any:
    """The value of a tracer; what the conversion tells of it becomes a guard."""
    value = tracer._trace.value_of(tracer)
    place = place or place_of(caller())
    is_float = kind == "value" and jnp.issubdtype(tracer.dtype, jnp.inexact)
    guard = Guard(kind, key_of(kind, value), place.where, place.expression, bool(is_float))
    tracer._trace.learn(tracer, guard)
    return value


def _passes_on(frame: FrameType) -> bool:
    """Whether a function just hands on the question for a value."""
    is_ours = frame.f_globals.get("__name__", "").startswith("incrax.control_flow.tapes.")
    return is_ours or frame.f_code.co_name in ("to_concrete_value", "is_concrete")


def _kind_read(frame: FrameType) -> str | None:
    is_of_jax = frame.f_globals.get("__name__", "").startswith("jax.")
    return READS.get(frame.f_code.co_name) if is_of_jax else None


def _is_integer(tracer: Any) -> bool:
    return tracer.size == 1 and (jnp.issubdtype(tracer.dtype, jnp.integer) or tracer.dtype == bool)
