"""Python objects that can change in place without becoming another value.

In: objects. Out: which part of one can change, and whether Python can read all that it holds. It
must not know signatures.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import datetime
import decimal
import functools
import mmap
import struct
import threading
import types
import weakref
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_POINTER_BYTES = struct.calcsize("P")

_READABLE = {x for x in vars(builtins).values() if isinstance(x, type)}
_READABLE |= {
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    types.MappingProxyType,
    weakref.ref,
    threading.local,
    contextvars.ContextVar,
    decimal.Context,
    mmap.mmap,
    np.ndarray,
}
"""Types whose fields in C are their items, their arguments, or cannot change."""

_IMMUTABLE = (
    np.generic,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
)
"""Types whose fields in C cannot change; objects of subclasses have attributes beside them."""

_FUNCTIONS = (
    types.FunctionType,
    np.ufunc,
    type,
    types.ModuleType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)
"""What is compared by identity, as `jax.jit` does."""

_COMPILED = frozenset(("jax", "jaxlib"))
"""Packages whose objects, compiled functions among them, are taken not to change."""

_unchanging: set[type] = set()
"""Types of ours whose objects never change."""

_declared: dict[int, Any] = {}
"""Objects that a user promised not to change, by their `id`: weak references, or the objects that
allow none.
"""


def never_changes(kind: type[T]) -> type[T]:
    """A decorator of classes whose methods make new objects instead of changing one."""
    _unchanging.add(kind)
    return kind


def declare(x: Any) -> None:
    """Note the promise that an object will not change."""
    key = id(x)
    try:
        _declared[key] = weakref.ref(x, lambda _: _declared.pop(key, None))
    except TypeError:  # has slots, and none for weak references
        _declared[key] = lambda: x


def mutable_part(x: Any) -> Any:
    """The object inside a static value that can change while it goes on to equal itself; None if
    there is none.

    Such an object has attributes or fields, and its hash is its identity. A type with a hash of its
    own says itself when it is another value.
    """
    parts = _parts_of(x)
    if parts is not None:
        return next((found for found in map(mutable_part, parts) if found is not None), None)
    if type(x) in _unchanging or _is_declared(x):
        return None
    hashed_by = type(x).__hash__
    if hashed_by is None:  # inside of a partial function, or a data frame that `frozen` got
        return x
    if isinstance(x, _FUNCTIONS) or hashed_by is not object.__hash__:
        return None
    wrapped = getattr(x, "__wrapped__", None)
    if callable(x) and wrapped is not None and type(x).__module__.split(".")[0] == "incrax":
        # A compiled function: its saved values change, what it returns does not.
        return mutable_part(wrapped)
    if type(x).__module__.split(".")[0] in _COMPILED:
        return None
    return x if has_state(x) else None


def _parts_of(x: Any) -> Iterable[Any] | None:
    """What an object is that is no more than its parts; None for any other."""
    if isinstance(x, (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)):
        return (x.__self__,)  # of a function: its module, or None
    if isinstance(x, functools.partial):
        return (x.func, *x.args, *x.keywords.values())
    if isinstance(x, (tuple, frozenset)):
        return x
    if is_dataclass(x) and not isinstance(x, type) and x.__dataclass_params__.frozen:  # pyright: ignore
        return (getattr(x, field.name, None) for field in fields(x))
    return None


def _is_declared(x: Any) -> bool:
    reference = _declared.get(id(x))
    return reference is not None and reference() is x


def has_state(x: Any) -> bool:
    """Whether an object has attributes, slots, or fields in C."""
    kind = type(x)
    return hasattr(x, "__dict__") or any(map(slots_of, kind.__mro__)) or has_fields_in_c(kind)


def slots_of(cls: type) -> list[str]:
    """The names of a class's slots, private ones as Python stores them."""
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{cls.__name__.lstrip('_')}"
    names = [f"{private}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def has_fields_in_c(cls: type) -> bool:
    """Whether objects of a class hold more than Python shows: attributes, slots, and the items of
    known types.

    An object is as large as one of its base class, and a pointer more for each slot, for its
    dictionary, and for its weak references. What is larger has fields that are declared in C.
    """
    unread = [
        base for base in cls.__mro__ if base not in _READABLE and not issubclass(base, _IMMUTABLE)
    ]
    return any(map(_has_own_fields, unread))


def _has_own_fields(cls: type) -> bool:
    parent = cls.__base__
    if parent is None:
        return False
    pointers = len(slots_of(cls)) + ("__dict__" in vars(cls)) + ("__weakref__" in vars(cls))
    return cls.__basicsize__ - parent.__basicsize__ > pointers * _POINTER_BYTES
