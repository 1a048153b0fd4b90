"""Captured objects that can change in place, and whether they did.

In: objects. Out: containers that remember their children. It must not know about functions.
"""

from __future__ import annotations

import abc
import contextvars
import decimal
import io
import logging
import mmap
import os
import pickle
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
from incrax.control_flow.tapes.process import level_of, settings_of
from incrax.engine.inputs.mutable import has_fields_in_c, slots_of

Reader = Callable[[], tuple[Any, Sequence[Any]]]
"""Gives keys, compared by `==`, and values, which are watched on their own."""

_UNSET = object()
_NONE: Mapping[str, Any] = types.MappingProxyType({})
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
_WITHOUT_ATTRIBUTES = (os._Environ, weakref.ref, threading.Event, logging.Logger, *_WEAK)
"""Types whose attributes tell nothing that their items do not."""


_STATES: Sequence[tuple[Any, Callable[[Any], Any]]] = (
    (threading.Event, lambda event: event.is_set()),
    (logging.Logger, level_of),
    (decimal.Context, settings_of),
    ((bytearray, memoryview, mmap.mmap), lambda buffer: memoryview(buffer).tobytes()),
)
"""Types with state that is compared by `==`."""


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
        if type(value) is object:
            return []
        if has_fields_in_c(type(value)) or (items is None and attributes is None):
            items, attributes = _pickled_reader(value), None
        if items is None and (attributes is None or hasattr(type(value), "__next__")):
            raise not_comparable(function, name, f"of type {type(value).__name__}, whose content cannot be compared")
        is_mutable = not isinstance(value, (tuple, frozenset))
        return [Container(name, read, is_mutable=is_mutable) for read in (items, attributes) if read is not None]

    @staticmethod
    def of_class(name: str, cls: type) -> Container:
        """The container of a class: its attributes and methods."""
        return Container(name, lambda: _class_content(cls), is_mutable=False)

    @staticmethod
    def of_functions(name: str, value: Any) -> Container:
        """The container of what a compiled function, or one with a derivative of its own, was made of."""

        def read() -> tuple[Any, Sequence[Any]]:
            found = {key: part for key, part in vars(value).items() if callable(part)}
            return (".", *found), list(found.values())

        return Container(name, read)

    @staticmethod
    def of_attributes(name: str, fun: types.FunctionType) -> Container:
        """The container of a function's attributes."""

        def read() -> tuple[Any, Sequence[Any]]:
            found = {key: value for key, value in vars(fun).items() if not is_memory(value)}
            return (".", *found), list(found.values())

        return Container(name, read)

    @staticmethod
    def of_register(name: str, cls: type) -> Container:
        """The container of the classes that were registered with an abstract one."""
        dump: Any = abc._get_dump  # pyright: ignore[reportAttributeAccessIssue]
        return Container(f"{name}.register", lambda: (frozenset(dump(cls)[0]), ()))


def is_memory(value: Any) -> bool:
    """Whether a value is, or belongs to, what a function remembers of objects for as long as they live.

    That follows from all else that it reads, and needs no comparison where the function is of an installed package.
    """
    return isinstance(getattr(value, "__self__", value), _WEAK)


def _shown(keys: Any, number: int) -> str:
    if isinstance(keys, tuple) and number < len(keys) and keys and keys[0] == ".":
        return f".{keys[number + 1]}" if number + 1 < len(keys) else ""
    return f"[{keys[number][1]!r}]" if isinstance(keys, list) else f"[{number}]"


def _item_reader(value: Any) -> Reader | None:
    """How to read an object's items and their keys; None for one without items that can be read."""
    if isinstance(value, np.ndarray):
        return _object_reader(value) if value.dtype.hasobject else lambda: (_bits(value), ())
    if isinstance(value, (list, tuple, deque)):
        return lambda: (len(value), list(value))
    if isinstance(value, (set, frozenset)):
        return lambda: (frozenset((type(x), x) for x in value), ())
    if isinstance(value, (dict, os._Environ, types.MappingProxyType, *_WEAK)):
        return lambda: ([(type(key), key) for key in list(value)], list(value.values()))
    if isinstance(value, weakref.ref):
        return lambda: ("()", (value(),))
    if isinstance(value, contextvars.ContextVar):
        return lambda: ("get()", (value.get(_UNSET),))
    for kinds, state_of in _STATES:
        if isinstance(value, kinds):
            return lambda: (state_of(value), ())
    return None


def _object_reader(value: np.ndarray) -> Reader | None:
    """Items of an array of objects; None for one with fields, some of which are objects."""
    return (lambda: (value.shape, value.ravel().tolist())) if value.dtype == object else None


class _Pickled(pickle.Pickler):
    """Bytes that hold all that an object is made of, but for functions, classes, modules and arrays: `apart`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.apart: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        """The number of an object that is watched on its own."""
        if not isinstance(obj, (types.FunctionType, type, types.ModuleType, jax.Array)):
            return None
        self.apart.append(obj)
        return len(self.apart) - 1


def _pickled(value: Any) -> tuple[Any, Sequence[Any]]:
    file = io.BytesIO()
    pickler = _Pickled(file)
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001 - any class may say in its own way that it cannot be pickled
        return None, ()
    return file.getvalue(), pickler.apart


def _pickled_reader(value: Any) -> Reader | None:
    """What an object with fields in C holds, as it says itself where it is copied; None for iterators and the like."""
    if hasattr(type(value), "__next__") or _pickled(value)[0] is None:
        return None
    return lambda: _pickled(value)


def _bits(value: np.ndarray) -> tuple[Any, ...]:
    return value.shape, str(value.dtype), value.tobytes()


def _attribute_reader(value: Any) -> Reader | None:
    """How to read an object's class and attributes; None for one that has none of its own."""
    slots = [name for cls in type(value).__mro__ for name in slots_of(cls)]
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
