"""What code on a side of a branch may read: values whose operations change nothing.

In: values. Out: the same, or a refusal. It must not know what a side is for.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import types
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax._locations import is_installed
from incrax.control_flow.tapes.captured import MISSING, contents
from incrax.control_flow.tapes.syntax import Refused

SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...))
_CONTAINERS = (tuple, list, dict, set, frozenset, range, slice)
_MUTABLE = (list, dict, set, np.ndarray)
_ITERATED = (*_CONTAINERS, zip, enumerate, reversed, type({}.items()), type({}.keys()), type({}.values()), np.ndarray)
_METHODS = {dict: "get items keys values", list: "index count", tuple: "index count"}
_METHODS[np.ndarray] = "shape size ndim dtype T"
_BUILT_IN = "abs min max sum len range float int bool complex tuple list dict zip enumerate reversed round pow any all"
_PURE = frozenset(getattr(builtins, name) for name in f"{_BUILT_IN} divmod sorted isinstance slice str".split())
_WRAPPERS = frozenset("PjitFunction custom_jvp custom_vjp Partial".split())
_VALUES = frozenset("ShapeDtypeStruct _IndexUpdateHelper _IndexUpdateRef".split())
_CHANGING = frozenset(
    "delete clear_cache defjvp defjvps defvjp clear_caches clear_backends update set_printoptions".split()
)
_LOOSE = (
    "profiler",
    "monitoring",
    "distributed",
    "_src.config",
    "_src.profiler",
    "_src.monitoring",
    "_src.distributed",
)
_LOOSE = tuple(f"jax.{name}" for name in _LOOSE)
MAX_ITEMS = 4096
"""Values in a container that a side reads, at most."""

MAX_LEVELS = 8
"""Functions of packages around a function, at most."""

_FIELD = type(vars(NamedTuple("Fields", [("field", int)]))["field"])


class Unbound:
    """Stands for a variable without a value."""


class Reading:
    """Checks of what a side reads; code that was rewritten calls them."""

    unbound = Unbound()

    def plain(self, value: Any) -> Any:
        """A value that a side reads.

        Raises:
            Refused: what is done with it could change something.
        """
        if isinstance(value, (types.FunctionType, types.MethodType)):
            return self.function(value)
        if not isinstance(value, types.ModuleType):
            _check_items(value)
        return value

    def function(self, value: Any) -> Any:
        """A function that a side may call; `tapes.sides` knows how."""
        raise NotImplementedError

    def attribute(self, base: Any, name: str) -> Any:
        """An attribute that a side reads.

        Raises:
            Refused: reading it, or what is done with it, could change something.
        """
        kind = type(base)
        if isinstance(base, jax.Array) or _package(kind) in ("jax", "jaxlib"):
            if name in _CHANGING:
                raise Refused(f"a side calls `{name}`, which changes an array or JAX")
            return getattr(self.plain(base), name)
        if isinstance(base, types.ModuleType):
            return self._of_module(base, name)
        if isinstance(base, (np.generic, np.dtype)) or kind in (*SCALARS, range, slice):
            return getattr(base, name)
        if kind in _METHODS or kind in _CONTAINERS:
            if name not in _METHODS.get(kind, "").split():
                raise Refused(f"a side calls `{name}` of a {kind.__name__}")
            return getattr(self.plain(base), name)
        return self.plain(self._read(base, name))

    def _of_module(self, module: types.ModuleType, name: str) -> Any:
        if type(module) is not types.ModuleType or name not in vars(module):
            raise Refused(f"`{module.__name__}.{name}` is computed when it is read")
        value = vars(module)[name]
        if _package(module) == "numpy" and callable(value) and not isinstance(value, type):
            raise Refused(f"a side uses `{module.__name__}.{name}`")
        return self.plain(value)

    def _read(self, base: Any, name: str) -> Any:
        """An attribute of an object of the user, without calling anything."""
        if base is self.unbound or type(base).__getattribute__ is not object.__getattribute__:
            raise Refused("a variable has no value there" if base is self.unbound else f"`{name}` is computed")
        found = inspect.getattr_static(base, name)
        if name in getattr(base, "__dict__", ()) and found is vars(base)[name]:
            return found
        if isinstance(found, types.FunctionType):
            return types.MethodType(found, base)
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, (types.MemberDescriptorType, _FIELD)):
            return getattr(base, name)
        if hasattr(type(found), "__get__"):
            raise Refused(f"`{name}` is computed when it is read")
        return found

    def rows(self, values: Any) -> Any:
        """What a side iterates over."""
        if not isinstance(values, jax.Array) and type(values) not in _ITERATED:
            raise Refused(f"a side iterates over a {type(values).__name__}")
        if type(values) in (tuple, list) and any(hasattr(type(x), "__next__") for x in values):
            raise Refused("a side iterates over iterators")
        return values

    def unchanging(self, value: Any) -> Any:
        """A value that `+=` does not change in place."""
        if type(value) in _MUTABLE:
            raise Refused(f"a side changes a {type(value).__name__}")
        return value


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return name.split(".")[0] if isinstance(name, str) else ""


def _check_items(value: Any) -> None:
    """Refuse a value if operations of it, or of what it contains, could run code of the user.

    Raises:
        Refused: they could, or there are too many values in it.
    """
    waiting, count = [value], 0
    while waiting:
        item, count = waiting.pop(), count + 1
        if count > MAX_ITEMS:
            raise Refused(f"a side reads a {type(value).__name__} of more than {MAX_ITEMS} values")
        if type(item) in (tuple, list, set, frozenset):
            waiting.extend(item)
        elif type(item) is dict:
            waiting.extend((*item.keys(), *item.values()))
        elif type(item) is slice:
            waiting.extend((item.start, item.stop, item.step))
        elif not _is_known(item):
            shown = getattr(item, "__name__", type(item).__name__)
            raise Refused(f"a side reads a `{shown}`, which could have effects")


def _is_known(value: Any) -> bool:
    """Whether operations of a value are known to change nothing."""
    if isinstance(value, (np.ndarray, np.generic, np.dtype)):
        return isinstance(value, np.dtype) or (type(value).__module__ == "numpy" and not value.dtype.hasobject)
    if isinstance(value, jax.Array) or type(value) in (*SCALARS, range):
        return True
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return _is_pure(value)
    if isinstance(value, types.FunctionType):
        return is_of_jax(value)
    kind = type(value)
    if _package(kind) not in ("jax", "jaxlib"):
        return False
    if kind.__name__ == "ufunc":
        return getattr(jnp, getattr(value, "__name__", ""), None) is value
    return isinstance(value, Enum) or kind.__name__ in _VALUES or (kind.__name__ in _WRAPPERS and is_of_jax(value))


def is_of_jax(value: Any) -> bool:
    """Whether a function, or an object of JAX around one, is of JAX alone."""
    if hides_code(value, is_watched=False):
        return False
    while not isinstance(value, types.FunctionType) and _inner(value) is not None:
        value = _inner(value)
    return isinstance(value, types.FunctionType) and is_quiet(value)


def is_quiet(fun: types.FunctionType) -> bool:
    """Whether a function is of JAX, or of incrax, and changes no settings."""
    scope = fun.__globals__.get("__name__", "")
    if scope.split(".")[0] not in ("jax", "jaxlib", "incrax") or not is_installed(fun.__code__.co_filename):
        return False
    return not scope.startswith(_LOOSE) and fun.__name__ not in _CHANGING and not fun.__name__.startswith("register")


def hides_code(value: Any, *, is_watched: bool = True, depth: int = MAX_LEVELS) -> bool:
    """Whether code of the user is reached from a value in other ways than by cells of functions, which are watched."""
    if not depth:
        return True
    if isinstance(value, types.FunctionType):
        if not is_installed(value.__code__.co_filename):
            return not is_watched
        cells = [x for x in map(contents, value.__closure__ or ()) if x is not value and x is not MISSING]
        return any(hides_code(x, is_watched=is_watched, depth=depth - 1) for x in cells)
    if type(value) in (tuple, list, set, frozenset, dict):
        items = (*value, *value.values()) if type(value) is dict else value
        return any(hides_code(x, is_watched=False, depth=depth - 1) for x in items)
    if isinstance(value, (types.MethodType, functools.partial)) or _inner(value) is not None:
        parts = (value.__func__, value.__self__) if isinstance(value, types.MethodType) else (_inner(value), None)
        is_kept = is_watched and isinstance(value, types.MethodType)
        return any(hides_code(x, is_watched=is_kept, depth=depth - 1) for x in parts)
    call = inspect.getattr_static(type(value), "__call__", None)
    return isinstance(call, types.FunctionType) and hides_code(call, is_watched=is_watched, depth=depth - 1)


def _inner(value: Any) -> Any:
    """What a wrapper is around."""
    if isinstance(value, functools.partial):
        return value.func
    return value.__wrapped__ if _package(type(value)) in ("jax", "jaxlib") and hasattr(value, "__wrapped__") else None


def _is_pure(value: Any) -> bool:
    """Whether a function in C, or a class, changes nothing when it is called."""
    if isinstance(value, type):
        return value in _PURE or issubclass(value, np.generic) or _package(value) in ("jax", "jaxlib")
    if not isinstance(value.__self__, types.ModuleType):
        return type(value.__self__) in _METHODS and value.__name__ in _METHODS[type(value.__self__)].split()
    return value in _PURE or value.__self__ is math
