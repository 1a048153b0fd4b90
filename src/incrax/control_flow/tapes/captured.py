"""What a function captures: cells, globals, attributes and defaults that its code can read, and
whether they changed.

In: functions. Out: a snapshot that knows whether it is still current. It must not know about paths.

Invariant: a call whose snapshot is current reads the same captured values as the recorded one,
except in code of installed packages, which is taken as constant.

    Captured       the walk from functions over all that their code can read
      CodeNames    what instructions name: globals, attributes, modules, names in text
      Container    an object that can change in place, with its children
      ProcessState modes, contexts and the like, which no captured object holds
"""

from __future__ import annotations

import abc
import contextvars
import ctypes
import datetime
import decimal
import dis
import functools
import io
import logging
import mmap
import operator
import os
import pickle
import random
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._locations import defining_file, is_installed, is_own_module
from incrax.control_flow.tapes.messages import not_comparable
from incrax.engine.inputs.mutable import has_fields_in_c, slots_of

MISSING = object()
"""Stands for a variable, or an attribute, without a value."""

# --- what code names ------------------------------------------------------------------------------

_BY_TEXT = frozenset(
    "getattr hasattr vars attrgetter __dict__ __import__ import_module modules".split()
)
"""Functions and attributes by which code reads modules, or attributes of them, that it names in
text.
"""

_ANY_MODULE = frozenset("__import__ import_module modules".split())
"""Those by which it reads modules."""


class CodeNames(NamedTuple):
    """What code, and functions inside it, may read: globals, attributes, modules that it imports,
    names in text.
    """

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def reads_by_text(self) -> bool:
        """Whether attributes or modules are read by names that are values."""
        return not _BY_TEXT.isdisjoint(self.names + self.attributes)

    @property
    def reads_any_module(self) -> bool:
        """Whether modules are read by names that are values."""
        return not _ANY_MODULE.isdisjoint(self.names + self.attributes)


_READING = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), 1),
    "IMPORT_NAME": 2,
}


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> CodeNames:
    """What the instructions of code name."""
    found: tuple[dict[str, None], ...] = ({}, {}, {}, {})
    for part in all_codes(code):
        for instruction in dis.get_instructions(part):
            kind = _READING.get(instruction.opname)
            if kind is not None:
                found[kind][instruction.argval] = None
    if not _BY_TEXT.isdisjoint({**found[0], **found[1]}):
        found[3].update(
            dict.fromkeys(text for part in all_codes(code) for text in _texts(part.co_consts))
        )
    return CodeNames(*map(tuple, found))


def _texts(consts: Iterable[Any]) -> Iterator[str]:
    """Names of attributes and modules among constants."""
    for const in consts:
        if isinstance(const, str) and const.replace(".", "_").isidentifier():
            yield const
        elif isinstance(const, tuple):
            yield from _texts(const)


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and the code of functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_codes(const)


# --- state of the process -------------------------------------------------------------------------


class ProcessState(NamedTuple):
    """Something that functions of Python or of packages read, by name."""

    name: str
    read: Callable[[], Any]
    """Gives a value that is compared by `==`."""


def settings_of(context: decimal.Context) -> Any:
    """A context of decimal numbers, without its flags, which computing sets."""
    traps = tuple(signal for signal, is_set in context.traps.items() if is_set)
    return (
        context.prec,
        context.rounding,
        context.Emin,
        context.Emax,
        context.capitals,
        context.clamp,
        traps,
    )


DECIMAL = ProcessState("the context of `decimal`", lambda: settings_of(decimal.getcontext()))


def is_decimal(value: Any) -> bool:
    """Whether arithmetic with a value depends on the context of decimal numbers."""
    return value is decimal or value is decimal.Decimal or isinstance(value, decimal.Decimal)


def level_of(logger: logging.Logger) -> Any:
    """What code can ask a logger; not its attributes, as it saves answers there."""
    return (
        logger.getEffectiveLevel(),
        logger.level,
        logger.disabled,
        logger.propagate,
        logger.manager.disable,
    )


# --- equal content --------------------------------------------------------------------------------


def same_image(a: Any, b: Any) -> bool:
    """Whether two immutable values are of one type and have the same bits; other objects are
    compared by identity.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if hasattr(a, "__dict__") and not isinstance(a, jax.Array):
        return False
    if isinstance(a, (float, complex, np.generic)):
        return (
            np.asarray(a).dtype == np.asarray(b).dtype
            and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        )
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
        a = jax.random.key_data(a)
        b = jax.random.key_data(b)
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --- objects that can change in place -------------------------------------------------------------

Reader = Callable[[], tuple[Any, Sequence[Any]]]
"""Gives keys, compared by `==`, and values, which are watched on their own."""

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
    """An object with children: items, values, attributes.

    Its children's own content is watched by other containers.
    """

    __slots__ = ("children", "is_mutable", "keys", "name", "read", "values")

    def __init__(
        self, name: str, read: Callable[[], tuple[Any, Sequence[Any]]], *, is_mutable: bool = True
    ) -> None:
        self.name = name
        self.read = read
        self.is_mutable = is_mutable
        keys, values = read()
        self.keys = keys
        self.values = list(values)
        self.children = [(f"{name}{_shown(keys, n)}", value) for n, value in enumerate(self.values)]

    def is_current(self) -> bool:
        """Whether the object has the same children under the same keys."""
        keys, values = self.read()
        if keys != self.keys or len(values) != len(self.values):
            return False
        return all(map(operator.is_, values, self.values)) or all(
            map(same_image, values, self.values)
        )

    @staticmethod
    def all_of(function: str, name: str, value: Any) -> list[Container]:
        """The containers of an object: its items, its attributes, or both.

        Raises:
            CapturedStateError: it has content that cannot be read.
        """
        items = _item_reader(value)
        attributes = _attribute_reader(value)
        if type(value) is object:
            return []
        if has_fields_in_c(type(value)) or (items is None and attributes is None):
            items = _pickled_reader(value)
            attributes = None
        has_readers = items is not None or (
            attributes is not None and not hasattr(type(value), "__next__")
        )
        is_mutable = not isinstance(value, (tuple, frozenset))
        readers = [read for read in (items, attributes) if read is not None] if has_readers else []
        found = [Container(name, read, is_mutable=is_mutable) for read in readers]
        if not found or any(container.keys is None for container in found):
            raise not_comparable(
                function, name, f"of type {type(value).__name__}, whose content cannot be compared"
            )
        return found

    @staticmethod
    def of_class(name: str, cls: type) -> Container:
        """The container of a class: its attributes and methods."""
        return Container(name, lambda: _class_content(cls), is_mutable=False)

    @staticmethod
    def of_functions(name: str, value: Any) -> Container:
        """The container of what a compiled function, or one with a derivative of its own, was made
        of.
        """

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
    """Whether a value is, or belongs to, what a function remembers of objects for as long as they
    live.

    That follows from all else that it reads, and needs no comparison where the function is of an
    installed package.
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
        return lambda: ("get()", (value.get(MISSING),))
    for kinds, state_of in _STATES:
        if isinstance(value, kinds):
            return lambda: (state_of(value), ())
    return None


def _object_reader(value: np.ndarray) -> Reader | None:
    """Items of an array of objects; None for one with fields, some of which are objects."""
    return (lambda: (value.shape, value.ravel().tolist())) if value.dtype == object else None


class _Pickled(pickle.Pickler):
    """Bytes that hold all that an object is made of, but for functions, classes, modules and
    arrays: `apart`.
    """

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
    """Its bytes and what is watched apart; without bytes where it cannot be pickled."""
    file = io.BytesIO()
    pickler = _Pickled(file)
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001 - any class may say in its own way that it cannot be pickled
        return None, ()
    return file.getvalue(), pickler.apart


def _pickled_reader(value: Any) -> Reader | None:
    """What an object with fields in C holds, as it says itself where it is copied; None for
    iterators.
    """
    return None if hasattr(type(value), "__next__") else lambda: _pickled(value)


def _bits(value: np.ndarray) -> tuple[Any, ...]:
    return value.shape, str(value.dtype), value.tobytes()


def _attribute_reader(value: Any) -> Reader | None:
    """How to read an object's class and attributes; None for one that has none of its own."""
    slots = [name for cls in type(value).__mro__ for name in slots_of(cls)]
    slots += ["default_factory"] if isinstance(value, defaultdict) else []
    slots += ["args"] if isinstance(value, BaseException) else []
    if isinstance(value, _WITHOUT_ATTRIBUTES) or (
        not slots and getattr(value, "__dict__", None) is None
    ):
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
    found = {
        n: v
        for n, v in vars(cls).items()
        if n not in ("__dict__", "__weakref__", "__doc__", "__annotations__")
    }
    return (".", *found), list(found.values())


# --- the walk -------------------------------------------------------------------------------------

_SCOPES = frozenset(("globals", "vars", "eval", "exec"))
"""Functions that read globals by names which code does not show."""

MAX_VALUES = 20_000
"""Values inside captured objects that are compared at each call, at most."""

_SCALARS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(...),
    range,
    slice,
    np.generic,
    np.dtype,
    Enum,
)
_SCALARS += (datetime.date, datetime.time, datetime.timedelta, datetime.timezone, Decimal)
_WITH_STATE = (threading.local, threading.Event, logging.Logger, logging.LoggerAdapter)
"""Types of trusted packages whose objects hold what code reads."""

_LRU_CACHE = type(functools.lru_cache(len))
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    np.ufunc,
)
_BUILT_IN += (types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType)
_BUILT_IN += (type(vars(NamedTuple("Fields", [("field", int)]))["field"]),)
_BUILT_IN += (ctypes._CFuncPtr,)  # pyright: ignore[reportAttributeAccessIssue]
_PLAIN = (*_SCALARS, list, tuple, dict, set, frozenset, deque, bytearray, np.ndarray)
"""What is compared where code reads it as an attribute of an installed module; functions and
classes are constant.
"""

_TRUSTED = frozenset("jax jaxlib logging re threading _thread _abc _ctypes typing".split())
"""Packages whose objects are compared by identity; of compiled functions also what they were made
of.
"""


class Code(NamedTuple):
    """Code that ran and belongs to no function that could be found."""

    code: types.CodeType
    globals: dict[str, Any]


class Captured:
    """Captured values at one time."""

    def __init__(self, name: str, constant: Sequence[str]) -> None:
        self.name = name
        self.constant = frozenset(constant)
        self.cells: list[tuple[str, Any, Any]] = []
        self.globals: list[tuple[dict[str, Any], str, Any]] = []
        self.functions: list[tuple[types.FunctionType, Any]] = []
        self.containers: list[Container] = []
        self.generators: list[tuple[str, Any]] = []
        self.codes: set[types.CodeType] = set()
        self.tracers: list[str] = []
        self.seen: dict[Any, Any] = {}
        self._waiting: deque[tuple[str, Any]] = deque()
        self._modules: dict[int, tuple[str, types.ModuleType]] = {}
        self._attributes: dict[str, None] = {}
        self._texts: dict[str, None] = {}
        """Captured text, which may name an attribute."""
        self._reads_by_text = False
        self._states: set[str] = set()
        self._read: set[tuple[int, str]] = set()

    # --- comparison -------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether everything captured has the value that it had."""
        for _, cell, value in self.cells:
            if contents(cell) is not value and not same_image(contents(cell), value):
                return False
        for scope, name, value in self.globals:
            now = scope.get(name, MISSING)
            if now is not value and not same_image(now, value):
                return False
        for fun, parts in self.functions:
            if _parts(fun) != parts:
                return False
        return all(container.is_current() for container in self.containers)

    def changed(self) -> list[str]:
        """Names of what changed."""
        names = [n for n, cell, value in self.cells if not same_image(contents(cell), value)]
        names += [
            n for scope, n, value in self.globals if not same_image(scope.get(n, MISSING), value)
        ]
        names += [fun.__name__ for fun, parts in self.functions if _parts(fun) != parts]
        return names + [c.name for c in self.containers if not c.is_current()]

    # --- the walk ---------------------------------------------------------------------------------

    def visit(self, name: str, value: Any) -> None:
        """Note a value that code can read, and what can be read from it."""
        if name in self.constant or value is MISSING:
            return
        if is_decimal(value):
            self.visit_process(DECIMAL)
        if isinstance(value, str):
            self._texts[value] = None
        if _is_scalar(value) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self._waiting.append((name, value))

    def visit_process(self, state: ProcessState) -> None:
        """Note state of the process."""
        if state.name not in self._states and state.name not in self.constant:
            self._states.add(state.name)
            self.containers.append(Container(state.name, lambda: (state.read(), ())))

    def add(self, root: Any) -> None:
        """Note a state of the process, or an object, and what can be read from it."""
        if isinstance(root, ProcessState):
            self.visit_process(root)
        else:
            self.visit(getattr(root, "__name__", self.name), root)
            self.walk()

    def knows(self, root: Any) -> bool:
        """Whether a state of the process, or an object, was noted."""
        return (
            root.name in self._states if isinstance(root, ProcessState) else id(root) in self.seen
        )

    def walk(self) -> None:
        """Follow what was noted, until nothing is new; no recursion, as values may be nested
        deeply.
        """
        while self._waiting or self._visit_attributes_of_modules():
            self._follow(*self._waiting.popleft())

    def _follow(self, name: str, value: Any) -> None:
        if len(self.seen) > MAX_VALUES:
            raise not_comparable(
                self.name, name, f"with more than {MAX_VALUES:,} values in all that it captures"
            )
        if isinstance(value, _jax.Tracer):
            self.tracers.append(name)
        elif isinstance(value, types.FunctionType):
            self._visit_function(name, value)
        elif isinstance(value, type):
            self._visit_class(name, value)
        elif isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            self.generators.append((name, value))
        elif isinstance(value, types.ModuleType):
            self._modules[id(value)] = name, value
        elif not isinstance(value, jax.Array):
            self._visit_object(name, value)

    def _visit_object(self, name: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self.visit(f"{name}.__func__", value.__func__)
            self.visit(name.rpartition(".")[0] or name, value.__self__)
        elif isinstance(value, functools.partial):
            self.visit(name, (value.func, value.args, value.keywords))
        elif isinstance(value, _BUILT_IN):
            self.visit(name, getattr(value, "__self__", None))
        elif isinstance(value, _GETTERS):
            self.visit(name, value.__reduce__())
        elif isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
            self._visit_descriptor(name, value)
        elif _package(value) == "incrax" or isinstance(value, _LRU_CACHE):
            self._visit_compiled(name, value)
        elif not _is_trusted(value):
            self._add_container(name, value)
        elif callable(value) and getattr(value, "__dict__", None):
            self._add(Container.of_functions(name, value))

    def _visit_compiled(self, name: str, value: Any) -> None:
        """Note an object that may save what it computes: that changes, and what it returns does
        not.
        """
        if hasattr(type(value), "_captured"):
            self._add(Container(name, lambda: ((), value._captured())))
        elif hasattr(value, "__wrapped__"):
            self.visit(name, value.__wrapped__)
        else:
            self._add_container(name, value)

    def _visit_descriptor(self, name: str, value: Any) -> None:
        for part in ("fget", "fset", "__func__", "func"):
            self.visit(name, getattr(value, part, None))

    def _add_container(self, name: str, value: Any) -> None:
        for container in Container.all_of(self.name, name, value):
            self._add(container)

    def _add(self, container: Container) -> None:
        self.containers.append(container)
        for child_name, child in container.children:
            self.visit(child_name, child)

    def _visit_class(self, name: str, cls: type) -> None:
        if "_abc_impl" in vars(cls):
            self.containers.append(Container.of_register(name, cls))
        module = defining_file(cls)
        if module is None or is_installed(module):
            return
        self.containers.append(Container.of_class(name, cls))
        self.visit(type(cls).__name__, type(cls))
        for base in cls.__mro__[1:]:
            self.visit(base.__name__, base)
        for member_name, member in vars(cls).items():
            if not (
                member_name.startswith("__") and member_name.endswith("__") and not callable(member)
            ):
                self.visit(f"{name}.{member_name}", member)

    def _visit_function(self, name: str, fun: types.FunctionType) -> None:
        is_own = not is_installed(fun.__code__.co_filename)
        if is_own:
            self.visit_code(fun.__code__, fun.__globals__)
            self.visit(f"{name}.__defaults__", fun.__defaults__)
            self.visit(f"{name}.__kwdefaults__", fun.__kwdefaults__)
        for variable, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            if variable not in self.constant and (is_own or not is_memory(contents(cell))):
                self.cells.append((variable, cell, contents(cell)))
                self.visit(variable, contents(cell))
                self._visit_module(variable, contents(cell), names_read(fun.__code__).attributes)
        if is_own:
            self.functions.append((fun, _parts(fun)))
        if vars(fun):
            self._add(Container.of_attributes(name, fun))

    def visit_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Note the globals that code can read, and the attributes of the user's modules."""
        self.codes.update(all_codes(code))
        read = names_read(code)
        self._attributes.update(dict.fromkeys(read.attributes + read.texts))
        self._reads_by_text |= read.reads_by_text
        if read.reads_any_module:
            for name, module in list(sys.modules.items()):
                if isinstance(module, types.ModuleType) and is_own_module(module):
                    self.visit(name, module)
        for text in read.texts:
            self.visit(text, sys.modules.get(text))
        for name in read.imports:
            self._visit_module(name, sys.modules.get(name), read.attributes)
        for name in read.names:
            value = scope.get(name, MISSING)
            if name in self.constant:
                continue
            self.globals.append((scope, name, value))
            self.visit(name, value)
            self._visit_module(name, value, read.attributes)
        if not _SCOPES.isdisjoint(read.names):
            self._visit_scope(scope)

    def _visit_scope(self, scope: dict[str, Any]) -> None:
        """Note all globals, and which there are."""
        self.containers.append(Container("globals()", lambda: (tuple(scope), ())))
        for name, value in list(scope.items()):
            if not name.startswith("__") and name not in self.constant:
                self.globals.append((scope, name, value))
                self.visit(name, value)

    def _visit_module(self, name: str, module: Any, attributes: Iterable[str]) -> None:
        """Note attributes of a module of the user, and of modules in it."""
        if not isinstance(module, types.ModuleType):
            return
        self.visit(name, module)
        is_own = is_own_module(module)
        for attribute in attributes:
            value = vars(module).get(attribute, MISSING)
            if module is os and attribute in ("environ", "getenv"):
                self.visit("os.environ", os.environ)
            elif (id(module), attribute) in self._read or value is sys.modules:
                continue
            elif is_own or isinstance(value, _PLAIN):
                self._visit_attribute(name, module, attribute)
                self._visit_module(f"{name}.{attribute}", value, attributes)

    def _visit_attribute(self, name: str, module: types.ModuleType, attribute: str) -> None:
        """Note one attribute of a module of the user."""
        full = f"{name}.{attribute}"
        self._read.add((id(module), attribute))
        if full not in self.constant:
            value = vars(module).get(attribute, MISSING)
            self.globals.append((vars(module), attribute, value))
            self.visit(full, value)

    def _visit_attributes_of_modules(self) -> bool:
        """Note attributes that any code names of any module that it may hold; whether there is more
        to follow.
        """
        for name, module in list(self._modules.values()):
            if not is_own_module(module):
                continue
            named = {**self._attributes, **self._texts} if self._reads_by_text else self._attributes
            for attribute in named.keys() & vars(module).keys():
                if (id(module), attribute) not in self._read:
                    self._visit_attribute(name, module, attribute)
        return bool(self._waiting)


def captured_by(name: str, roots: Iterable[Any], constant: Sequence[str]) -> Captured:
    """What functions, code and objects capture now.

    Raises:
        CapturedStateError: something among it cannot be compared.
    """
    found = Captured(name, constant)
    for root in roots:
        if isinstance(root, Code):
            found.visit_code(root.code, root.globals)
        else:
            found.add(root)
    found.walk()
    return found


def _parts(fun: types.FunctionType) -> tuple[Any, ...]:
    """What of a function may be replaced, as reloaders do, by identity; whether it has
    attributes.
    """
    return id(fun.__code__), id(fun.__defaults__), id(fun.__kwdefaults__), bool(fun.__dict__)


def contents(cell: Any) -> Any:
    """What a cell holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _is_scalar(value: Any) -> bool:
    """Whether a value cannot change, nor anything that is read from it."""
    return isinstance(value, _SCALARS) and not getattr(value, "__dict__", None)


def _package(value: Any) -> str:
    return type(value).__module__.split(".")[0]


def _is_trusted(value: Any) -> bool:
    """Whether an object of a package is compared by identity."""
    if _package(value) == "numpy":
        return callable(value) and not getattr(value, "__dict__", None)
    return _package(value) in _TRUSTED and not isinstance(value, _WITH_STATE)
