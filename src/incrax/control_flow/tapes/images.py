"""Captured objects that can change in place, and whether they did.

In: objects. Out: containers that remember their children. It must not know about functions.
"""

from __future__ import annotations

import os
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax.control_flow.tapes.messages import not_comparable

Reader = Callable[[], tuple[Any, Sequence[Any]]]
"""Gives keys, compared by `==`, and values, which are watched on their own."""

_NONE: Mapping[str, Any] = types.MappingProxyType({})
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
_WITHOUT_ATTRIBUTES = (os._Environ, weakref.ref, threading.Event, *_WEAK)
"""Types whose attributes tell nothing that their items do not."""


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
    def all_of(function: str, name: str, value: Any) -> list[Container]:
        """The containers of an object: its items, its attributes, or both.

        Raises:
            CapturedStateError: it has content that cannot be read.
        """
        items, attributes = _item_reader(value), _attribute_reader(value)
        if items is None and (attributes is None or hasattr(type(value), "__next__")):
            raise not_comparable(function, name, f"of type {type(value).__name__}, whose content cannot be compared")
        is_mutable = not isinstance(value, (tuple, frozenset))
        return [Container(name, read, is_mutable=is_mutable) for read in (items, attributes) if read is not None]

    @staticmethod
    def of_class(name: str, cls: type) -> Container:
        """The container of a class: its attributes and methods."""
        return Container(name, lambda: _class_content(cls), is_mutable=False)


def _shown(keys: Any, number: int) -> str:
    if isinstance(keys, tuple) and number < len(keys) and keys and keys[0] == ".":
        return f".{keys[number + 1]}" if number + 1 < len(keys) else ""
    return f"[{keys[number][1]!r}]" if isinstance(keys, list) else f"[{number}]"


def _item_reader(value: Any) -> Reader | None:
    """How to read an object's items and their keys; None for one without items that can be read."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else lambda: (_bits(value), ())
    if isinstance(value, (list, tuple, deque)):
        return lambda: (len(value), list(value))
    if isinstance(value, (set, frozenset)):
        return lambda: (frozenset((type(x), x) for x in value), ())
    if isinstance(value, (dict, os._Environ, types.MappingProxyType, *_WEAK)):
        return lambda: ([(type(key), key) for key in list(value)], list(value.values()))
    if isinstance(value, weakref.ref):
        return lambda: ("()", (value(),))
    if isinstance(value, threading.Event):
        return lambda: (value.is_set(), ())
    if type(value) is object:
        return lambda: ((), ())
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    return lambda: (memoryview(value).tobytes(), ())


def _bits(value: np.ndarray) -> tuple[Any, ...]:
    return value.shape, str(value.dtype), value.tobytes()


def _attribute_reader(value: Any) -> Reader | None:
    """How to read an object's class and attributes; None for one that has none of its own."""
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    slots += ["default_factory"] if isinstance(value, defaultdict) else []
    slots += ["args"] if isinstance(value, BaseException) else []
    if isinstance(value, _WITHOUT_ATTRIBUTES) or (not slots and getattr(value, "__dict__", None) is None):
        return None

    def read() -> tuple[Any, Sequence[Any]]:
        own = getattr(value, "__dict__", _NONE)
        if not slots:
            return (".", "__class__", *own), [type(value), *own.values()]
        attributes = {"__class__": type(value), **own}
        attributes.update((name, getattr(value, name)) for name in slots if hasattr(value, name))
        return (".", *attributes), list(attributes.values())

    return read


def _slots(cls: type) -> list[str]:
    """The names of a class's slots, private ones as Python stores them."""
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{cls.__name__.lstrip('_')}"
    names = [f"{private}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


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
    if hasattr(a, "__dict__") and not isinstance(a, jax.Array):
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
