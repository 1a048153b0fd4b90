"""Captured objects that can change in place, and whether they did.

In: objects. Out: containers that remember their children. It must not know about functions.
"""

from __future__ import annotations

import os
import types
from collections import deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._tape_errors import not_comparable

MAX_DEPTH = 64


class Container:
    """An object with children: items, values, attributes. Its children's own content is watched by other containers."""

    __slots__ = ("children", "is_mutable", "keys", "name", "read", "values")

    def __init__(self, name: str, read: Callable[[], tuple[Any, Sequence[Any]]], *, is_mutable: bool = True) -> None:
        self.name, self.read, self.is_mutable = name, read, is_mutable
        keys, values = read()
        self.keys, self.values = keys, list(values)
        self.children = [(f"{name}{_shown(keys, n)}", value) for n, value in enumerate(self.values)]

    def is_current(self) -> bool:
        """Whether the object has the same children under the same keys."""
        keys, values = self.read()
        if keys != self.keys or len(values) != len(self.values):
            return False
        return all(map(is_, values, self.values)) or all(map(same_image, values, self.values))

    @staticmethod
    def of(function: str, name: str, value: Any) -> Container:
        """The container of an object.

        Raises:
            CapturedStateError: it has content that cannot be read.
        """
        read = _reader(value)
        if read is None:
            raise not_comparable(function, name, f"of type {type(value).__name__}, whose content cannot be compared")
        return Container(name, read, is_mutable=not isinstance(value, (tuple, frozenset)))

    @staticmethod
    def of_class(name: str, cls: type) -> Container:
        """The container of a class: its attributes and methods."""
        return Container(name, lambda: _class_content(cls), is_mutable=False)


def _shown(keys: Any, number: int) -> str:
    if isinstance(keys, tuple) and number < len(keys) and keys and keys[0] == ".":
        return f".{keys[number + 1]}" if number + 1 < len(keys) else ""
    return f"[{keys[number][1]!r}]" if isinstance(keys, list) else f"[{number}]"


def _reader(value: Any) -> Callable[[], tuple[Any, Sequence[Any]]] | None:
    """How to read an object's keys and values; None for one whose content cannot be read."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else lambda: (_bits(value), ())
    if isinstance(value, (list, tuple, deque)):
        return lambda: (len(value), list(value))
    if isinstance(value, (set, frozenset)):
        return lambda: (frozenset((type(x), x) for x in value), ())
    if isinstance(value, (dict, os._Environ, types.MappingProxyType)):
        return lambda: ([(type(key), key) for key in value], list(value.values()))
    if hasattr(value, "__next__"):
        return None
    return _attribute_reader(value)


def _bits(value: np.ndarray) -> tuple[Any, ...]:
    return value.shape, str(value.dtype), value.tobytes()


def _attribute_reader(value: Any) -> Callable[[], tuple[Any, Sequence[Any]]] | None:
    slots = [name for cls in type(value).__mro__ for name in _as_tuple(vars(cls).get("__slots__", ()))]
    slots = [name for name in slots if name not in ("__dict__", "__weakref__")]
    own = getattr(value, "__dict__", None)
    if own is None and not slots:
        return None if type(value).__module__ not in ("builtins",) or type(value) is not object else lambda: ((), ())

    def read() -> tuple[Any, Sequence[Any]]:
        attributes = dict(own or {})
        attributes.update((name, getattr(value, name)) for name in slots if hasattr(value, name))
        return (".", *attributes), list(attributes.values())

    return read


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _class_content(cls: type) -> tuple[Any, Sequence[Any]]:
    found = {n: v for n, v in vars(cls).items() if n not in ("__dict__", "__weakref__", "__doc__", "__annotations__")}
    return (".", *found), list(found.values())


# --- equal content ------------------------------------------------------------------------------------------------


def same_image(a: Any, b: Any) -> bool:
    """Whether two immutable values are of one type and have the same bits; other objects are compared by identity."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex, np.generic)):
        return np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, (bool, int, str, bytes, range, slice, np.dtype)):
        return a == b
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same_image, a, b))
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    return isinstance(a, jax.Array) and _same_array(a, b)


def _same_array(a: Any, b: Any) -> bool:
    if isinstance(a, _jax.Tracer) or isinstance(b, _jax.Tracer) or a.is_deleted() or b.is_deleted():
        return False
    if (a.shape, a.dtype, a.weak_type, a.sharding) != (b.shape, b.dtype, b.weak_type, b.sharding):
        return False
    if _jax.is_key_dtype(a.dtype):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
