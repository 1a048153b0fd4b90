"""What a function captures: cells, globals, attributes and defaults that its code can read, and whether they changed.

In: functions. Out: a snapshot that knows whether it is still current. It must not know about paths.

Invariant: a call whose snapshot is current reads the same captured values as the recorded one, except in code of
installed packages, which is taken as constant.
"""

from __future__ import annotations

import datetime
import dis
import functools
import operator
import os
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._locations import is_installed
from incrax.control_flow.tapes.images import Container, same_image
from incrax.control_flow.tapes.messages import not_comparable

MISSING = object()
_SCOPES = frozenset(("globals", "vars", "eval", "exec"))
"""Functions that read globals by names which code does not show."""

_BY_TEXT = frozenset("getattr hasattr vars attrgetter __dict__ __import__ import_module modules".split())
"""Functions and attributes by which code reads modules, or attributes of them, that it names in text."""

MAX_VALUES = 20_000
"""Values inside captured objects that are compared at each call, at most."""

_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, np.generic, np.dtype, Enum)
_SCALARS += (datetime.date, datetime.time, datetime.timedelta, datetime.timezone, Decimal)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, np.ufunc)
_BUILT_IN += (types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType)
_BUILT_IN += (type(vars(NamedTuple("Fields", [("field", int)]))["field"]),)
_TRUSTED = frozenset("jax jaxlib incrax logging re threading _thread _abc typing functools".split())
"""Packages whose objects are compared by identity."""


class Code(NamedTuple):
    """Code that ran and belongs to no function that could be found."""

    code: types.CodeType
    globals: dict[str, Any]


class Captured:
    """Captured values at one time."""

    def __init__(self, name: str, constant: Sequence[str]) -> None:
        self.name, self.constant = name, frozenset(constant)
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
        self._read: set[tuple[int, str]] = set()

    # --- comparison -----------------------------------------------------------------------------------------------

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
        names += [n for scope, n, value in self.globals if not same_image(scope.get(n, MISSING), value)]
        names += [fun.__name__ for fun, parts in self.functions if _parts(fun) != parts]
        return names + [c.name for c in self.containers if not c.is_current()]

    # --- the walk -------------------------------------------------------------------------------------------------

    def visit(self, name: str, value: Any) -> None:
        """Note a value that code can read, and what can be read from it."""
        if name in self.constant or value is MISSING or _is_scalar(value) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self._waiting.append((name, value))

    def walk(self) -> None:
        """Follow what was noted, until nothing is new; no recursion, as values may be nested deeply."""
        while self._waiting or self._visit_attributes_of_modules():
            self._follow(*self._waiting.popleft())

    def _follow(self, name: str, value: Any) -> None:
        if len(self.seen) > MAX_VALUES:
            raise not_comparable(self.name, name, f"with more than {MAX_VALUES:,} values in all that it captures")
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
        elif not _is_trusted(value):
            self._add_container(name, value)
        elif hasattr(value, "__wrapped__"):
            self.visit(name, value.__wrapped__)

    def _visit_descriptor(self, name: str, value: Any) -> None:
        for part in ("fget", "fset", "__func__", "func"):
            self.visit(name, getattr(value, part, None))

    def _add_container(self, name: str, value: Any) -> None:
        for container in Container.all_of(self.name, name, value):
            self.containers.append(container)
            for child_name, child in container.children:
                self.visit(child_name, child)

    def _visit_class(self, name: str, cls: type) -> None:
        module = defining_file(cls)
        if module is None or is_installed(module):
            return
        self.containers.append(Container.of_class(name, cls))
        self.visit(type(cls).__name__, type(cls))
        for base in cls.__mro__[1:]:
            self.visit(base.__name__, base)
        for member_name, member in vars(cls).items():
            if not (member_name.startswith("__") and member_name.endswith("__") and not callable(member)):
                self.visit(f"{name}.{member_name}", member)

    def _visit_function(self, name: str, fun: types.FunctionType) -> None:
        if is_installed(fun.__code__.co_filename):
            return
        self.visit_code(fun.__code__, fun.__globals__)
        for variable, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            if variable not in self.constant:
                self.cells.append((variable, cell, contents(cell)))
                self.visit(variable, contents(cell))
                self._visit_module(variable, contents(cell), names_read(fun.__code__).attributes)
        self.functions.append((fun, _parts(fun)))
        self.visit(f"{name}.__defaults__", fun.__defaults__)
        self.visit(f"{name}.__kwdefaults__", fun.__kwdefaults__)
        if vars(fun):
            self.visit(f"{name}.__dict__", vars(fun))

    def visit_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Note the globals that code can read, and the attributes of the user's modules."""
        self.codes.update(all_codes(code))
        read = names_read(code)
        self._attributes.update(dict.fromkeys(read.attributes + read.texts))
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
        is_own = _is_own_module(module)
        for attribute in attributes:
            if module is os and attribute in ("environ", "getenv"):
                self.visit("os.environ", os.environ)
            elif is_own and (id(module), attribute) not in self._read:
                self._visit_attribute(name, module, attribute)
                self._visit_module(f"{name}.{attribute}", vars(module).get(attribute), attributes)

    def _visit_attribute(self, name: str, module: types.ModuleType, attribute: str) -> None:
        """Note one attribute of a module of the user."""
        full = f"{name}.{attribute}"
        self._read.add((id(module), attribute))
        if full not in self.constant:
            value = vars(module).get(attribute, MISSING)
            self.globals.append((vars(module), attribute, value))
            self.visit(full, value)

    def _visit_attributes_of_modules(self) -> bool:
        """Note attributes that any code names of any module that it may hold; whether there is more to follow."""
        for name, module in list(self._modules.values()):
            if not _is_own_module(module):
                continue
            for attribute in self._attributes.keys() & vars(module).keys():
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
            found.visit(getattr(root, "__name__", name), root)
    found.walk()
    return found


def _parts(fun: types.FunctionType) -> tuple[Any, ...]:
    """What of a function may be replaced, as reloaders do, by identity; whether it has attributes."""
    return id(fun.__code__), id(fun.__defaults__), id(fun.__kwdefaults__), bool(fun.__dict__)


def contents(cell: Any) -> Any:
    """What a cell holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


class Names(NamedTuple):
    """What code, and functions inside it, may read: globals, attributes, modules that it imports, names in text."""

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]
    texts: tuple[str, ...]


_READING = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), 1),
    "IMPORT_NAME": 2,
}


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> Names:
    """What the instructions of code name."""
    found: tuple[dict[str, None], ...] = ({}, {}, {}, {})
    for part in all_codes(code):
        for instruction in dis.get_instructions(part):
            kind = _READING.get(instruction.opname)
            if kind is not None:
                found[kind][instruction.argval] = None
    if not _BY_TEXT.isdisjoint({**found[0], **found[1]}):
        found[3].update(dict.fromkeys(text for part in all_codes(code) for text in _texts(part.co_consts)))
    return Names(*map(tuple, found))


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


def defining_file(cls: type) -> str | None:
    """The file that defines a class; None for built-in ones."""
    for member in vars(cls).values():
        if isinstance(member, types.FunctionType) and member.__module__ == cls.__module__:
            return member.__code__.co_filename
    import_name = cls.__module__
    module = sys.modules.get(import_name)
    return getattr(module, "__file__", None) or ("<main>" if import_name == "__main__" else None)


def _is_scalar(value: Any) -> bool:
    """Whether a value cannot change, nor anything that is read from it."""
    return isinstance(value, _SCALARS) and not getattr(value, "__dict__", None)


def _is_own_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not is_installed(file)


def _is_trusted(value: Any) -> bool:
    """Whether an object of a package is compared by identity."""
    package = type(value).__module__.split(".")[0]
    if package == "numpy":
        return callable(value) and not getattr(value, "__dict__", None)
    return package in _TRUSTED and not isinstance(value, (threading.local, threading.Event))
