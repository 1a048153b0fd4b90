"""What a bijection's answers depend on: its arrays by identity, everything else by value.

In: a bijection, any Python object. Out: its `State`, comparable with another, and a `Watch` that tells cheaply whether
the object has changed since. Invariants:

- two equal states are of one function: same arrays, same functions with what they close over, same other values;
- a state holds arrays and functions weakly, so that a record with one keeps no parameter alive;
- what cannot be seen to change (NumPy arrays, objects of other languages) makes a state opaque, equal to no state;
- as under `jax.jit`, global variables that a function reads do not count.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._names import is_global
from incrax.bijectors.places import Attributes, Bits, Empty, Items, Parts, Place, attributes, class_attributes

_ATOMS = (type(None), bool, int, str, bytes, enum.Enum, type, np.dtype, type(Ellipsis), range, slice)
_VALUES = (*_ATOMS, float, complex, np.generic, jax.Array, tuple, list, dict)
_ATOMS_OF_JAX = (jax.tree_util.PyTreeDef, jax.ShapeDtypeStruct)
_IS_PYTHON_CLASS = 1 << 9
_LIBRARIES = ("jax", "equinox")
"""Whose objects are not changed once they are made, other than arrays."""
_LIBRARIES_OF_CLASSES = frozenset(
    (*_LIBRARIES, *"jaxlib numpy flowjax paramax numpyro distrax tensorflow_probability incrax".split())
) | frozenset(sys.stdlib_module_names)
"""Whose classes and functions are not changed."""
MAX_HIDDEN_BYTES = 4096
"""Of a NumPy array that a function closes over, to be compared bit by bit."""


class State:
    """What a bijection's answers depend on, at one time; see this module."""

    __slots__ = ("arrays", "functions", "is_opaque", "is_traced", "tags")

    def __init__(self, walk: _Walk) -> None:
        self.tags: tuple[Any, ...] = tuple(walk.tags)
        self.arrays: tuple[Callable[[], Any], ...] = tuple(map(reference, walk.arrays))
        self.functions: tuple[Callable[[], Any], ...] = tuple(map(reference, walk.functions))
        self.is_opaque: bool = walk.is_opaque
        self.is_traced: bool = any(isinstance(leaf, _jax.Tracer) for leaf in walk.arrays)
        """Whether an array is a tracer."""

    def is_same(self, other: State) -> bool:
        """Whether both are of one function."""
        if self.is_opaque:
            return False
        return self is other or (self.is_same_code(other) and _are_same(self.arrays, other.arrays))

    def is_same_code(self, other: State) -> bool:
        """Whether both differ in their arrays at most."""
        return self is other or (self.tags == other.tags and _are_same(self.functions, other.functions))


class Kind:
    """A state without its arrays. Compared by value."""

    __slots__ = ("_hash", "state")

    def __init__(self, state: State) -> None:
        self.state: State = state
        self._hash = hash(state.tags)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and self.state.is_same_code(other.state)

    def with_arrays(self, arrays: Sequence[Any]) -> State:
        """The state with other arrays."""
        found = object.__new__(State)
        found.tags, found.functions, found.is_opaque = self.state.tags, self.state.functions, self.state.is_opaque
        found.arrays = tuple(map(reference, arrays))
        found.is_traced = any(isinstance(array, _jax.Tracer) for array in arrays)
        return found


def _are_same(references: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both refer to the same living objects, in order."""
    if len(references) != len(others):
        return False
    return all(mine() is not None and mine() is other() for mine, other in zip(references, others, strict=True))


def reference(x: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one to what has none."""
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x


class Watch(NamedTuple):
    """The state of an object, the places where it can be changed, and its arrays."""

    state: State
    places: tuple[Place, ...]
    arrays: tuple[Any, ...]

    def is_current(self) -> bool:
        """Whether the object still has this state."""
        for place in self.places:
            if not place.is_unchanged():
                return False
        return True

    def is_readable(self) -> bool:
        """Whether no array was deleted or donated."""
        arrays = self.arrays
        if self.state.is_traced:
            arrays = [array for array in arrays if not isinstance(array, _jax.Tracer)]
        return not any(map(_IS_DELETED, arrays))


_IS_DELETED = methodcaller("is_deleted")


def watch(x: Any) -> Watch:
    """The state of an object. Cost: one walk over all that it holds."""
    walk = _Walk()
    walk.visit(x)
    return Watch(State(walk), (*walk.merged_places(), *walk.places), tuple(walk.arrays))


# --- the walk ---------------------------------------------------------------------------------------------------------


class _Walk:
    """One visit of each object: what it is as a tag, what it holds in turn."""

    def __init__(self) -> None:
        self.tags: list[Any] = []
        self.arrays: list[Any] = []
        self.functions: list[Any] = []
        self.places: list[Place] = []
        self.is_opaque: bool = False
        self._is_hidden = False
        self._attributes: dict[str, list[tuple[Any, Any]]] = {}
        self._empty: list[dict[Any, Any]] = []
        self._numbers: dict[int, tuple[int, Any]] = {}

    def visit(self, x: Any) -> None:
        """Add an object and what it holds."""
        if isinstance(x, _ATOMS):
            self.tags.append((type(x), repr(x) if isinstance(x, slice) else x))
            self._visit_own_attributes(x)
        elif isinstance(x, (float, complex, np.generic)):
            self.tags.append((type(x), np.asarray(x).tobytes()))
            self._visit_own_attributes(x)
        elif type(x) is tuple:  # whether equal ones are one object depends on how the whole was made
            self.tags.append(tuple)
            self._visit_all(x)
        elif id(x) in self._numbers:
            self.tags.append(("again", self._numbers[id(x)][0]))
        else:
            self._numbers[id(x)] = (len(self._numbers), x)
            self.tags.append("array" if isinstance(x, jax.Array) else type(x))
            self._visit_new(x)

    def _visit_new(self, x: Any) -> None:
        for types_, visit in _VISITS:
            if isinstance(x, types_):
                visit(self, x)
                return self._visit_own_attributes(x)
        return self._visit_object(x)

    def _visit_own_attributes(self, x: Any) -> None:
        """What an object of a user's subclass of a built-in type holds beside its items."""
        if type(x).__flags__ & _IS_PYTHON_CLASS and not isinstance(x, (type, enum.Enum, jax.Array)):
            self._visit_class(x)
            if isinstance(getattr(x, "__dict__", None), dict):
                self._visit_dict(vars(x))

    def _visit_class(self, x: Any) -> None:
        """The attributes of a user's class, and of which class an object is."""
        self._attributes.setdefault("__class__", []).append((x, type(x)))
        for cls in type(x).__mro__:
            if cls.__module__.partition(".")[0] in _LIBRARIES_OF_CLASSES or id(cls) in self._numbers:
                continue
            self._numbers[id(cls)] = (len(self._numbers), cls)
            held = class_attributes(cls)
            self.places.append(Parts(functools.partial(class_attributes, cls), held))
            for value in held:
                if isinstance(value, _VALUES):
                    self.visit(value)
                else:
                    self.functions.append(value)

    def _visit_array(self, x: Any) -> None:
        self.arrays.append(x)

    def _visit_all(self, parts: Any) -> None:
        self.tags.append(len(parts))
        for part in parts:
            self.visit(part)

    def _visit_place(self, read: Callable[[], Sequence[Any]]) -> None:
        held = read()
        self.places.append(Parts(read, held))
        self._visit_all(held)

    def _visit_list(self, x: list[Any]) -> None:
        self._visit_place(lambda: tuple(x))

    def _visit_dict(self, x: dict[Any, Any]) -> None:
        if x:
            self.places.append(Items(x, tuple(x.keys()), tuple(x.values())))
        else:
            self._empty.append(x)
        self._visit_all((*x.keys(), *x.values()))

    def _visit_numpy(self, x: np.ndarray) -> None:
        if not self._is_hidden or x.dtype.hasobject or x.nbytes > MAX_HIDDEN_BYTES:
            self.is_opaque = True
            return
        held = x.tobytes()
        self.places.append(Bits(x, x.shape, x.dtype, held))
        self.tags.append((x.shape, x.dtype, held))

    def _visit_function(self, x: types.FunctionType) -> None:
        self.functions.append(x)
        if (x.__module__ or "").partition(".")[0] not in _LIBRARIES_OF_CLASSES or x.__module__ == "__main__":
            self.functions.append(x.__code__)
            self._attributes.setdefault("__code__", []).append((x, x.__code__))
            self._visit_dict(x.__dict__)
        if callable(x) and is_global(x):
            return
        was_hidden, self._is_hidden = self._is_hidden, True
        for cell in x.__closure__ or ():
            self._visit_attribute(cell, "cell_contents")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(x, name) is not None:
                self._visit_attribute(x, name)
        self._is_hidden = was_hidden

    def _visit_attribute(self, owner: Any, name: str) -> None:
        try:
            held = getattr(owner, name)
        except ValueError:  # a variable of an enclosing function that is not yet set
            self.is_opaque = True
            return
        self._attributes.setdefault(name, []).append((owner, held))
        self.visit(held)

    def merged_places(self) -> list[Any]:
        """The places in functions, and the empty ones."""
        empty = [Empty(tuple(self._empty))] if self._empty else []
        attributes = []
        for name, pairs in self._attributes.items():
            owners, held = zip(*pairs, strict=True)
            attributes.append(Attributes(owners, held, name))
        return [*empty, *attributes]

    def _visit_known_function(self, x: Any) -> None:
        self.functions.append(x)

    def _visit_method(self, x: types.MethodType) -> None:
        self._visit_all((x.__func__, x.__self__))

    def _visit_partial(self, x: functools.partial[Any]) -> None:
        self._visit_place(lambda: (x.func, x.args, x.keywords))

    def _visit_object(self, x: Any) -> None:  # noqa: C901
        library = type(x).__module__.partition(".")[0]
        if library not in _LIBRARIES_OF_CLASSES and type(x).__flags__ & _IS_PYTHON_CLASS:
            self._visit_class(x)
        if type(x).__module__ == "incrax.bijectors.remembered":
            self.visit(x.bijection)
        elif (callable(x) and is_global(x)) or library == "typing":
            self.functions.append(x)
        elif _is_equinox_module(x) or (library in _LIBRARIES and _is_plain_object(x)):
            self._visit_all(tuple(part for item in sorted(vars(x).items()) for part in item))
        elif isinstance(x, _ATOMS_OF_JAX):
            self.tags.append(x)
        elif library == "jaxlib" and callable(x) and getattr(x, "__wrapped__", None) is not None:
            self.functions.append(x)
            self.visit(getattr(x, "__wrapped__"))  # noqa: B009
        elif _is_plain_object(x) and any(isinstance(value, weakref.ref) for value in vars(x).values()):
            self._visit_place(functools.partial(attributes, x))
        elif _is_plain_object(x):
            self._visit_dict(vars(x))
        else:
            self.is_opaque = True


_VISITS: tuple[tuple[Any, Callable[[_Walk, Any], None]], ...] = (
    ((_jax.ArrayImpl, _jax.Tracer), _Walk._visit_array),
    ((tuple, frozenset), _Walk._visit_all),
    (list, _Walk._visit_list),
    (dict, _Walk._visit_dict),
    (np.ndarray, _Walk._visit_numpy),
    (types.FunctionType, _Walk._visit_function),
    ((types.BuiltinFunctionType, np.ufunc, types.ModuleType, inspect.Signature), _Walk._visit_known_function),
    (types.MethodType, _Walk._visit_method),
    (functools.partial, _Walk._visit_partial),
)


def _is_equinox_module(x: Any) -> bool:
    """Whether an object's fields cannot be set."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def _is_plain_object(x: Any) -> bool:
    """Whether an object's attributes are all that it holds: no slots, no base class in another language."""
    bases = [base for base in type(x).__mro__ if base is not object]
    has_attributes_only = all(base.__flags__ & _IS_PYTHON_CLASS and not vars(base).get("__slots__") for base in bases)
    return has_attributes_only and isinstance(getattr(x, "__dict__", None), dict)
