"""What a bijection's answers depend on: its arrays by identity, everything else by value.

In: a bijection, any Python object. Out: its `Snapshot`, comparable with another, and a
`BijectionWatch` that tells cheaply whether the object has changed since. Invariants:

- two equal snapshots are of one function: same arrays, same functions with what they close over,
  same other values;
- a snapshot holds arrays and functions weakly, so that a record with one keeps no parameter alive;
- what cannot be seen to change (NumPy arrays, objects of other languages) makes a snapshot opaque,
  equal to none;
- as under `jax.jit`, global variables and attributes of classes that a method reads do not count.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from operator import is_, methodcaller
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._extras import is_of
from incrax._names import contents, is_global

_PLAIN_VALUES = frozenset((type(None), bool, int, str, bytes, type(Ellipsis), range))
_VALUES = (enum.Enum, type, np.dtype, jax.tree_util.PyTreeDef, jax.ShapeDtypeStruct)
_BITS = (float, complex, np.generic)
_IDENTITIES = (
    types.BuiltinFunctionType,
    types.CodeType,
    types.ModuleType,
    np.ufunc,
    inspect.Signature,
)
_IS_PYTHON_CLASS = 1 << 9
_FROZEN = ("jax", "jaxlib", "equinox")
"""Libraries whose objects are not changed once they are made, other than arrays."""
_LIBRARIES = (
    frozenset((*_FROZEN, *"numpy flowjax paramax numpyro distrax incrax".split()))
    | sys.stdlib_module_names
)
"""Whose functions are not changed, nor what they close over."""


class BijectionCode:
    """A bijection without its arrays: compared by value, its functions by identity and held
    weakly.
    """

    __slots__ = ("_functions", "_hash", "_tags")

    def __init__(self, tags: Sequence[Any], functions: Sequence[Any]) -> None:
        self._tags = tuple(tags)
        self._functions = tuple(map(reference, functions))
        self._hash = hash(self._tags)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BijectionCode) or self._tags != other._tags:
            return False
        return _are_same(self._functions, other._functions)


class Snapshot:
    """What a bijection's answers depend on, at one time; see this module."""

    __slots__ = ("arrays", "code", "is_opaque", "is_traced")

    def __init__(self, code: BijectionCode, arrays: Sequence[Any], is_opaque: bool = False) -> None:
        self.code: BijectionCode = code
        self.arrays: tuple[Callable[[], Any], ...] = tuple(map(reference, arrays))
        self.is_opaque: bool = is_opaque
        self.is_traced: bool = any(isinstance(array, _jax.Tracer) for array in arrays)
        """Whether an array is a tracer."""

    def is_same(self, other: Snapshot) -> bool:
        """Whether both are of one function."""
        if self.is_opaque:
            return False
        return self is other or (self.code == other.code and _are_same(self.arrays, other.arrays))


def _are_same(references: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both refer to the same living objects, in order."""
    if len(references) != len(others):
        return False
    return all(
        mine() is not None and mine() is other()
        for mine, other in zip(references, others, strict=True)
    )


def reference(x: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one to what has none."""
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x


Reader = Callable[[], Sequence[Any]]
"""Gives the objects that something holds which can be changed in place."""


class BijectionWatch(NamedTuple):
    """The snapshot of an object, the containers in which it can be changed, and its arrays."""

    snapshot: Snapshot
    containers: Sequence[tuple[Reader, Sequence[Any]]]
    """With what they held."""
    arrays: Sequence[Any]

    def is_current(self) -> bool:
        """Whether the object is still as it was."""
        for read, held in self.containers:
            now = read()
            if now is held:  # both are empty
                continue
            if len(now) != len(held) or not all(map(is_, now, held)):
                return False
        return True

    def is_readable(self) -> bool:
        """Whether no array was deleted or donated."""
        arrays = self.arrays
        if self.snapshot.is_traced:
            arrays = [array for array in arrays if not isinstance(array, _jax.Tracer)]
        return not any(map(_IS_DELETED, arrays))


_IS_DELETED = methodcaller("is_deleted")


def watch(x: Any) -> BijectionWatch:
    """The snapshot of an object. Cost: one walk over all that it holds."""
    walk = _ObjectWalk()
    walk.visit(x)
    snapshot = Snapshot(BijectionCode(walk.tags, walk.functions), walk.arrays, walk.is_opaque)
    return BijectionWatch(snapshot, walk.containers, walk.arrays)


# --- the walk -------------------------------------------------------------------------------------


class _ObjectWalk:
    """One visit of each object: what it is as a tag, what it holds in turn."""

    def __init__(self) -> None:
        self.tags: list[Any] = []
        self.arrays: list[Any] = []
        self.functions: list[Any] = []
        self.containers: list[tuple[Reader, Sequence[Any]]] = []
        self.is_opaque = False
        self._is_in_library = False
        self._numbers: dict[int, tuple[int, Any]] = {}

    def visit(self, x: Any) -> None:
        """Add an object and what it holds."""
        kind = type(x)
        if kind in _PLAIN_VALUES or isinstance(x, _VALUES):
            self.tags.append((kind, x))
        elif kind in _BITS or isinstance(x, np.generic):
            self.tags.append((kind, np.asarray(x).tobytes()))
        elif kind is slice:
            self.tags.append((kind, repr(x)))
        elif kind is tuple:  # whether equal ones are one object depends on how the whole was made
            self.tags.append(kind)
            self._visit_all(x)
        elif id(x) in self._numbers:
            self.tags.append(("again", self._numbers[id(x)][0]))
        else:
            self._numbers[id(x)] = (len(self._numbers), x)
            self.tags.append("array" if isinstance(x, jax.Array) else kind)
            self._visit_new(x)

    def _visit_new(self, x: Any) -> None:
        library = type(x).__module__.partition(".")[0]
        if type(x).__module__ == "incrax.bijectors.remembered":
            self.visit(x.bijection)
        elif library == "jaxlib" and hasattr(x, "__wrapped__"):  # what `jax.jit` made
            self.functions.append(x)
            self.visit(x.__wrapped__)
        elif isinstance(x, (_jax.ArrayImpl, _jax.Tracer)):
            self.arrays.append(x)
        elif isinstance(x, _IDENTITIES) or (callable(x) and is_global(x)) or library == "typing":
            self.functions.append(x)
        elif isinstance(x, np.ndarray) and self._is_in_library:  # a table of indices, say
            self.functions.append(x)
        elif isinstance(x, types.FunctionType):
            self._visit_function(x)
        else:
            self._visit_parts(x, library)

    def _visit_parts(self, x: Any, library: str) -> None:
        if isinstance(x, types.MethodType):
            self._visit_all((x.__func__, x.__self__))
        elif isinstance(x, functools.partial):
            self._visit_all((x.func, x.args, x.keywords))
        elif isinstance(x, (tuple, frozenset)) and not hasattr(x, "__dict__"):
            self._visit_all(tuple(x))
        elif type(x) in _READERS:
            self._visit_container(functools.partial(_READERS[type(x)], x))
        elif is_of("equinox", "Module", x) or (library in _FROZEN and _has_attributes_only(x)):
            self._visit_all(_attributes(x))
        elif _has_attributes_only(x):
            self._visit_container(functools.partial(_attributes, x))
        else:
            self.is_opaque = True

    def _visit_all(self, parts: Sequence[Any]) -> None:
        self.tags.append(len(parts))
        for part in parts:
            self.visit(part)

    def _visit_container(self, read: Reader) -> None:
        held = read()
        self.containers.append((read, held))
        self._visit_all(held)

    def _visit_function(self, x: types.FunctionType) -> None:
        self.functions.append(x)
        was_in_library = self._is_in_library
        self._is_in_library = (x.__module__ or "").partition(".")[0] in _LIBRARIES
        if self._is_in_library:
            self._visit_all(_held_by_function(x))
        else:
            self._visit_container(functools.partial(_held_by_function, x))
        self._is_in_library = was_in_library


_READERS: dict[type, Callable[[Any], Sequence[Any]]] = {
    list: tuple,
    dict: lambda x: (*x.keys(), *x.values()),
}


def _held_by_function(x: types.FunctionType) -> Sequence[Any]:
    """What a function may be given anew: its code, defaults and attributes, and what it closes
    over.
    """
    cells = map(contents, x.__closure__ or ())
    return (x.__code__, x.__defaults__, x.__kwdefaults__, *vars(x).values(), *cells)


def _attributes(x: Any) -> Sequence[Any]:
    """Names and values of an object's attributes; without the inverse that NumPyro notes at its
    first use.
    """
    names = sorted(name for name, value in vars(x).items() if not isinstance(value, weakref.ref))
    return (*names, *(vars(x)[name] for name in names))


def _has_attributes_only(x: Any) -> bool:
    """Whether an object's attributes are all that it holds: no slots, no base class in another
    language.
    """
    bases = [base for base in type(x).__mro__ if base is not object]
    are_plain = all(
        base.__flags__ & _IS_PYTHON_CLASS and not vars(base).get("__slots__") for base in bases
    )
    return are_plain and isinstance(getattr(x, "__dict__", None), dict)
