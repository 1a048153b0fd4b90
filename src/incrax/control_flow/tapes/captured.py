"""What a function captures: cells, globals, attributes and defaults that its code names, and
whether they changed.

In: functions. Out: a snapshot that knows whether it is still current. It must not know about paths.

Invariant: a call whose snapshot is current reads the same variables, objects and classes of the
user as the recorded one. Code and state of installed packages are taken as constant, as is what
code reads by a name that it puts together; `jax.jit` freezes all of it.

    Captured       the walk from functions over all that their code names
      CodeNames    what instructions name: globals and attributes
      Container    an object that can change in place, with what it holds
"""

from __future__ import annotations

import contextlib
import datetime
import dis
import functools
import operator
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._locations import defining_file, is_installed, is_own_module
from incrax._messages import listed
from incrax._names import contents
from incrax.engine.inputs.mutable import has_fields_in_c, slots_of
from incrax.errors import CapturedStateError

MISSING = object()
"""Stands for a variable, or an attribute, without a value."""

# --- what code names ------------------------------------------------------------------------------


class CodeNames(NamedTuple):
    """What code, and functions inside it, may read: globals, attributes, modules that it imports."""

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    modules: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> CodeNames:
    """What the instructions of code name."""
    found = [each for part in all_codes(code) for each in dis.get_instructions(part)]
    by = lambda *names: tuple(dict.fromkeys(x.argval for x in found if x.opname in names))
    attributes = by("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
    return CodeNames(by("LOAD_GLOBAL", "LOAD_NAME"), attributes, by("IMPORT_NAME"))


def modules_meant(name: str, package: str) -> Iterable[str]:
    """What `name` in an import may stand for in a package: `a.b` or `a` of it or of one around it,
    since how many dots stand in front is not known; too many cost a comparison each.
    """
    outer = package.split(".") if package else []
    inner = name.split(".") if name else []
    roots = [outer[:n] for n in range(len(outer) + 1)]
    return dict.fromkeys(".".join(root + part) for root in roots for part in (inner[:1], inner))


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and the code of functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_codes(const)


# --- equal content --------------------------------------------------------------------------------


def same_image(a: Any, b: Any) -> bool:
    """Whether two immutable values are of one type and have the same bits; other objects are
    compared by identity.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, jax.Array):
        return _same_array(a, b)
    if hasattr(a, "__dict__"):
        return False
    if isinstance(a, (float, complex, np.generic)):
        ours, theirs = np.asarray(a), np.asarray(b)
        return ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same_image, a, b))
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    return isinstance(a, (bool, int, str, bytes, range, slice, np.dtype)) and a == b


def _same_array(a: Any, b: Any) -> bool:
    if isinstance(a, _jax.Tracer) or isinstance(b, _jax.Tracer) or a.is_deleted() or b.is_deleted():
        return False
    if (a.shape, a.dtype, a.weak_type, a.sharding) != (b.shape, b.dtype, b.weak_type, b.sharding):
        return False
    return _jax.bits_on_host(a).tobytes() == _jax.bits_on_host(b).tobytes()


# --- objects that can change in place -------------------------------------------------------------

Reader = Callable[[], tuple[Any, Collection[Any]]]
"""Gives keys, compared by `==`, and values, which are watched on their own: a tuple that ends with
the names of attributes, a list of typed keys, or anything else for values in a row.
"""


class Container(NamedTuple):
    """An object and what it holds now: items or attributes.

    Their own content is watched by other containers.
    """

    name: str
    read: Reader
    keys: Any
    values: list[Any]

    @staticmethod
    def of(name: str, read: Reader) -> Container:
        """The container with its present content."""
        keys, values = read()
        return Container(name, read, keys, list(values))

    def is_current(self) -> bool:
        """Whether the object holds the same values under the same keys."""
        keys, values = self.read()
        if keys != self.keys or len(values) != len(self.values):
            return False
        return all(map(operator.is_, values, self.values)) or all(
            map(same_image, values, self.values)
        )

    def children(self) -> Iterator[tuple[str, Any]]:
        """The values that code may read, each with its name."""
        for number, value in enumerate(self.values):
            if isinstance(self.keys, tuple):
                attribute = self.keys[number - len(self.values)]
                if callable(value) or not (attribute.startswith("__") and attribute[-2:] == "__"):
                    yield f"{self.name}.{attribute}", value
            else:
                key = self.keys[number][1] if isinstance(self.keys, list) else number
                yield f"{self.name}[{key!r}]", value


def _items_of(value: Any) -> Reader | None:
    """How to read an object's items and their keys; None for one without items."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return lambda: (str(value.shape), value.ravel().tolist())
        return lambda: ([value.shape, str(value.dtype), value.tobytes()], ())
    if isinstance(value, (list, deque)):
        return lambda: (len(value), list(value))
    if isinstance(value, (set, frozenset)):
        return lambda: (frozenset((type(x), x) for x in value), ())
    if isinstance(value, (dict, types.MappingProxyType)):
        return lambda: ([(type(key), key) for key in list(value)], list(value.values()))
    return None


def _attributes_of(value: Any) -> Reader | None:
    """How to read an object's class and attributes; None for one that has none of its own."""
    slots = [name for cls in type(value).__mro__ for name in slots_of(cls)]
    if not slots and getattr(value, "__dict__", None) is None:
        return None

    def read() -> tuple[Any, Collection[Any]]:
        own = getattr(value, "__dict__", {})
        if not slots:
            return ("__class__", *own), [type(value), *own.values()]
        attributes = {"__class__": type(value), **own}
        attributes.update((name, getattr(value, name)) for name in slots if hasattr(value, name))
        return tuple(attributes), list(attributes.values())

    return read


def _pickled(value: Any) -> bytes | None:
    """What an object with fields in C says itself that it holds; None for iterators, and where it
    does not say.
    """
    try:
        return None if hasattr(type(value), "__next__") else pickle.dumps(value)
    except Exception:  # noqa: BLE001 - any class may say in its own way that it cannot be pickled
        return None


# --- the walk -------------------------------------------------------------------------------------

MAX_VALUES = 20_000
"""Values inside captured objects that are compared at each call, at most."""

_NUMBERS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)
_SCALARS = (*_NUMBERS, type(...), range, slice, Decimal)
_SCALARS += (datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
_TRUSTED = frozenset("jax jaxlib logging re _thread _abc typing weakref".split())
"""Packages whose objects are constant; of functions of JAX what they were made of is compared."""

_LRU_CACHE = type(functools.lru_cache(len))
_DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)


class Captured:
    """Captured values at one time."""

    def __init__(self, name: str, roots: Sequence[Any], constant: Sequence[str]) -> None:
        self.name = name
        self.constant = frozenset(constant)
        self.met: set[str] = set()
        """Names among `constant` that the walk came across; it does not enter what they name."""
        self.variables: list[tuple[str, Callable[[], Any], Any]] = []
        """Cells, globals, attributes of modules: name, how to read it, value."""
        self.containers: list[Container] = []
        self.mutable: dict[str, None] = {}
        """Names of objects that can change in place."""
        self.tracers: list[str] = []
        self._seen: dict[int, Any] = {}
        self._waiting: deque[tuple[str, Any]] = deque()
        self._modules: dict[int, tuple[str, types.ModuleType]] = {}
        self._named: dict[str, None] = {}
        """Attributes that code names."""
        self._read: dict[int, set[str]] = {}
        for root in roots:
            self.visit(getattr(root, "__name__", name), root)

    # --- comparison -------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether everything captured has the value that it had."""
        for _, read, value in self.variables:
            now = read()
            if now is not value and not same_image(now, value):
                return False
        return all(container.is_current() for container in self.containers)

    def changed(self) -> list[str]:
        """Names of what changed."""
        names = [n for n, read, value in self.variables if not same_image(read(), value)]
        return names + [c.name for c in self.containers if not c.is_current()]

    # --- the walk ---------------------------------------------------------------------------------

    def visit(self, name: str, value: Any) -> None:
        """Note a value that code can read, and what can be read from it."""
        if self._is_constant(name) or value is MISSING:
            return
        is_scalar = isinstance(value, _SCALARS) and not getattr(value, "__dict__", None)
        if not is_scalar and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._waiting.append((name, value))

    def _visit_variable(self, name: str, read: Callable[[], Any]) -> None:
        if not self._is_constant(name):
            self.variables.append((name, read, read()))
            self.visit(name, read())

    def _is_constant(self, name: str) -> bool:
        """Whether the user said that it never changes."""
        self.met.update(self.constant & {name})
        return name in self.constant

    def walk(self) -> None:
        """Follow what was noted, until nothing is new; no recursion, as values may be nested
        deeply.
        """
        while self._waiting or self._visit_modules():
            name, value = self._waiting.popleft()
            if len(self._seen) > MAX_VALUES:
                reason = f"with more than {MAX_VALUES:,} values in all that it captures"
                raise self._not_comparable(name, reason)
            self._follow(name, value)

    def walk_for_names(self) -> None:
        """Follow all of it for the names alone: what is constant need not be comparable."""
        while self._waiting or self._visit_modules():
            with contextlib.suppress(CapturedStateError):
                self._follow(*self._waiting.popleft())

    def _follow(self, name: str, value: Any) -> None:
        if isinstance(value, _jax.Tracer):
            self.tracers.append(name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(name, value)
        elif isinstance(value, type):
            self._visit_class(name, value)
        elif isinstance(value, types.ModuleType):
            if is_own_module(value):
                self._modules[id(value)] = name, value
                # What code names may not be there yet: a module inside it that is imported later.
                self._watch(name, lambda: (len(vars(value)), ()))
        elif (parts := _parts_of(value)) is not None:
            for part in parts:
                self.visit(name, part)
        elif (read := _reader_of_compiled(value)) is not None:
            self._watch(name, read)
        elif not _is_constant(value):
            self._visit_content(name, value)

    def _visit_content(self, name: str, value: Any) -> None:
        """Note an object's items and attributes.

        Raises:
            CapturedStateError: it has content that cannot be read.
        """
        readers = [read for read in (_items_of(value), _attributes_of(value)) if read is not None]
        if isinstance(value, tuple):
            for number, item in enumerate(value):
                self.visit(f"{name}[{number}]", item)
        elif has_fields_in_c(type(value)) or not (readers or type(value) is object):
            if _pickled(value) is None:
                reason = f"of type {type(value).__name__}, whose content cannot be compared"
                raise self._not_comparable(name, reason)
            readers = [lambda: (_pickled(value), ())]
        for read in readers:
            self.mutable[name] = None
            self._watch(name, read)

    def _not_comparable(self, captured: str, reason: str) -> CapturedStateError:
        return CapturedStateError(
            f"`guarded({self.name})` captures `{captured}`, {reason}. If it changed, a path "
            "recorded before would go on answering as if it had not. Nothing was recorded; paths "
            "recorded before are as they were. Pass what the function reads of it as an argument, "
            "or list it in `constant=` if it never changes."
        )

    def _watch(self, name: str, read: Reader) -> None:
        container = Container.of(name, read)
        self.containers.append(container)
        for child_name, child in container.children():
            self.visit(child_name, child)

    def _visit_class(self, name: str, cls: type) -> None:
        module = defining_file(cls)
        if module is None or is_installed(module):
            return
        self._watch(name, lambda: (tuple(vars(cls)), vars(cls).values()))
        self.visit(type(cls).__name__, type(cls))
        for base in cls.__mro__[1:]:
            self.visit(base.__name__, base)

    def _visit_function(self, name: str, fun: types.FunctionType) -> None:
        is_own = not is_installed(fun.__code__.co_filename)
        if is_own:
            self.visit_code(fun.__code__, fun.__globals__)
            self.visit(f"{name}.__defaults__", fun.__defaults__)
            self.visit(f"{name}.__kwdefaults__", fun.__kwdefaults__)
        for variable, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            self._visit_variable(variable, functools.partial(contents, cell, MISSING))
        if is_own or vars(fun):
            self._watch(name, lambda: _content_of_function(fun))

    def visit_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Note the globals that code can read, and what it names of modules."""
        read = names_read(code)
        self._named.update(dict.fromkeys(read.attributes))
        for name in read.names:
            self._visit_variable(name, functools.partial(scope.get, name, MISSING))
        for module in read.modules:
            for name in modules_meant(module, scope.get("__package__") or ""):
                self._visit_variable(name, functools.partial(sys.modules.get, name, MISSING))

    def _visit_modules(self) -> bool:
        """Note attributes that any code names of any module of the user; whether there is more to
        follow.
        """
        for name, module in list(self._modules.values()):
            scope = vars(module)
            known = self._read.setdefault(id(module), set())
            for attribute in [x for x in self._named if x in scope and x not in known]:
                known.add(attribute)
                read = functools.partial(scope.get, attribute, MISSING)
                self._visit_variable(f"{name}.{attribute}", read)
        return bool(self._waiting)


def captured_by(name: str, roots: Sequence[Any], constant: Sequence[str]) -> Captured:
    """What functions and objects capture now.

    Raises:
        CapturedStateError: something among it cannot be compared.
        ValueError: a name of what is said to be constant is captured nowhere.
    """
    found = Captured(name, roots, constant)
    found.walk()
    unmet = found.constant - found.met
    if unmet:
        # The walk does not enter what is constant, so that one name may stand inside another.
        everywhere = Captured(name, roots, tuple(unmet))
        everywhere.walk_for_names()
        unmet -= everywhere.met
    if unmet:
        known = [name for name, *_ in found.variables] + sorted(found.constant - unmet)
        raise ValueError(
            f"`guarded({name}, constant=...)` got {listed(sorted(unmet))}, which the function does not "
            f"capture; it captures {listed(known, 'nothing')}. Nothing was recorded. Name a variable that the code of "
            "the function reads and that is none of its own."
        )
    return found


def _content_of_function(fun: types.FunctionType) -> tuple[Any, Collection[Any]]:
    """What of a function may be replaced, as reloaders do, by identity; its attributes."""
    parts = id(fun.__code__), id(fun.__defaults__), id(fun.__kwdefaults__)
    return (*parts, *fun.__dict__), fun.__dict__.values()


def _package(value: Any) -> str:
    return type(value).__module__.split(".")[0]


def _parts_of(value: Any) -> Sequence[Any] | None:
    """What methods, partial functions, descriptors, and functions that save their results are made
    of; None for others.
    """
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, _DESCRIPTORS):
        return [getattr(value, part, None) for part in ("fget", "fset", "__func__", "func")]
    is_ours = _package(value) == "incrax" and not hasattr(value, "_captured")
    if isinstance(value, _LRU_CACHE) or (is_ours and hasattr(value, "__wrapped__")):
        return (value.__wrapped__,)
    return (value.__self__,) if _is_in_c(value) and hasattr(value, "__self__") else None


def _is_in_c(value: Any) -> bool:
    """Whether a value is a function, or a descriptor of one, in C, without state in Python."""
    is_function = callable(value) or hasattr(type(value), "__get__")
    file = defining_file(type(value))
    is_own = file is not None and not is_installed(file)
    return is_function and not is_own and not getattr(value, "__dict__", None)


def _reader_of_compiled(value: Any) -> Reader | None:
    """How to read what an object of incrax holds, or the functions and rules that one of JAX was
    made of; None for others.
    """
    if hasattr(type(value), "_captured"):
        return lambda: (0, value._captured())
    if _package(value) not in ("jax", "jaxlib") or not callable(value):
        return None

    def read() -> tuple[Any, Collection[Any]]:
        found = {name: part for name, part in value.__dict__.items() if callable(part)}
        return tuple(found), list(found.values())

    return read if hasattr(value, "__dict__") else None


def _is_constant(value: Any) -> bool:
    """Whether an object is taken not to change."""
    is_trusted = _package(value) in _TRUSTED and not isinstance(value, threading.local)
    return is_trusted or isinstance(value, jax.Array) or _is_in_c(value)
