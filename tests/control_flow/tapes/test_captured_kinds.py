"""Kinds of captured values whose change is easily missed, and what code reads from outside without
any argument.
"""

from __future__ import annotations

import abc
import ctypes
import datetime
import enum
import importlib
import operator
import sys
import threading
import types
import typing
from decimal import Decimal

import jax
import numpy as np
import pytest

import incrax

X = np.float64(1.5)


class Items(dict):
    factor = 2.0


class Number(float):
    pass


class Array(np.ndarray):
    pass


class Private:
    __slots__ = ("__scale",)

    def __init__(self):
        self.__scale = 2.0

    def get(self):
        return self.__scale

    def set(self, value):
        self.__scale = value


class Dynamic:
    def __init__(self):
        self.__dict__["content"] = {"scale": 2.0}

    def __getattr__(self, name):
        return self.__dict__["content"][name]


def with_attribute(value):
    value.scale = 2.0
    return lambda: value.scale, lambda: setattr(value, "scale", 3.0)


def class_of_a_dictionary():
    class Own(Items):
        pass

    value = Own()
    return lambda: value.factor, lambda: setattr(Own, "factor", 3.0)


def private_slot():
    value = Private()
    return value.get, lambda: value.set(3.0)


def dictionary_of_an_object():
    class Own:
        scale = 2.0

    value = Own()
    return lambda: value.scale, lambda: setattr(value, "__dict__", {"scale": 3.0})


def class_of_an_object():
    class Two:
        scale = 2.0

    class Three:
        scale = 3.0

    value = Two()
    return lambda: value.scale, lambda: setattr(value, "__class__", Three)


def code_of_a_function():
    def value():
        return 2.0

    def other():
        return 3.0

    return lambda: value(), lambda: setattr(value, "__code__", other.__code__)


def defaults_of_a_function():
    def value(scale=2.0):
        return scale

    return lambda: value(), lambda: setattr(value, "__defaults__", (3.0,))


def new_attribute_of_a_function():
    def value():
        return getattr(value, "scale", 2.0)

    return lambda: value(), lambda: setattr(value, "scale", 3.0)


def bytes_in_place():
    value = bytearray(b"ab")
    return lambda: float(len(value)), lambda: value.append(1)


def number_of_c():
    value = ctypes.c_double(2.0)
    return lambda: value.value, lambda: setattr(value, "value", 3.0)


def metaclass():
    class OwnMeta(type):
        scale = 2.0

    class Own(metaclass=OwnMeta):
        pass

    return lambda: Own.scale, lambda: setattr(OwnMeta, "scale", 3.0)


def member_of_an_enumeration():
    class Own(enum.Enum):
        A = [2.0]

    member = Own.A
    return lambda: member.value[0], lambda: member.value.__setitem__(0, 3.0)


def event():
    value = threading.Event()
    return lambda: 1.0 if value.is_set() else 2.0, value.set


def attribute_by_getattr():
    value = Dynamic()
    return lambda: value.scale, lambda: value.__dict__["content"].__setitem__("scale", 3.0)


def deep_list():
    root = value = [2.0]
    for _ in range(2000):
        value = [value]

    def read():
        found = value
        while isinstance(found, list):
            found = found[0]
        return found

    return read, lambda: root.__setitem__(0, 3.0)


class Own:
    scale = 2.0


KINDS = {
    "an attribute of a dictionary": lambda: with_attribute(Items()),
    "an attribute of a number": lambda: with_attribute(Number(1.0)),
    "an attribute of an array": lambda: with_attribute(np.ones(3).view(Array)),
    "a class attribute of a dictionary": class_of_a_dictionary,
    "a private slot": private_slot,
    "the dictionary of an object": dictionary_of_an_object,
    "the class of an object": class_of_an_object,
    "a metaclass": metaclass,
    "the code of a function": code_of_a_function,
    "the defaults of a function": defaults_of_a_function,
    "a new attribute of a function": new_attribute_of_a_function,
    "bytes changed in place": bytes_in_place,
    "a number of C": number_of_c,
    "the value of an enumeration's member": member_of_an_enumeration,
    "an event": event,
    "an object with `__getattr__`": attribute_by_getattr,
    "a list nested 2,000 times": deep_list,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_noticed(kind):
    read, change = KINDS[kind]()
    f = incrax.guarded(lambda x: x * read())
    assert float(f(X)) == 1.5 * read()
    change()
    assert float(f(X)) == 1.5 * read()
    f(X)
    recordings = f.stats.recordings
    f(X)
    assert f.stats.recordings == recordings


def test_numbers_that_are_equal_but_have_other_attributes_are_told_apart():
    value = Number(1.0)
    value.scale = 2.0
    f = incrax.guarded(lambda x: x * value.scale)
    f(X)
    value = Number(1.0)
    value.scale = 3.0
    assert float(f(X)) == 4.5


# --- modules --------------------------------------------------------------------------------------


def scale_of(module):
    return module.SCALE


READS = {
    "by its name": lambda own, holder: own.SCALE,
    "by a function that is given it": lambda own, holder: scale_of(own),
    "in a list": lambda own, holder: holder.items[0].SCALE,
    "in an object": lambda own, holder: holder.module.SCALE,
}


@pytest.mark.parametrize("read", READS)
def test_an_attribute_of_a_module_is_noticed_however_it_is_read(read, monkeypatch, tmp_path):
    (tmp_path / "own_module_of_kinds.py").write_text("SCALE = 2.0\nOTHER = iter(())\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = __import__("own_module_of_kinds")
    monkeypatch.setattr(own, "SCALE", 2.0)
    holder = types.SimpleNamespace(items=[own], module=own)
    reader = READS[read]
    f = incrax.guarded(lambda x: x * reader(own, holder))
    assert float(f(X)) == 3.0
    own.SCALE = 4.0
    assert float(f(X)) == 6.0
    assert f.stats.recordings == 2


INSIDE = """
def whole(x):
    import own_package.rates
    return x * own_package.rates.SCALE

def named(x):
    from own_package.rates import SCALE
    return x * SCALE

def beside(x):
    from .rates import SCALE
    return x * SCALE

def part(x):
    from . import rates as own
    return x * own.SCALE
"""


@pytest.mark.parametrize("kind", ["whole", "named", "beside", "part"])
def test_a_module_that_a_function_imports_is_followed(kind, monkeypatch, tmp_path):
    folder = tmp_path / "own_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rates.py").write_text("SCALE = 2.0")
    (folder / "inner.py").write_text(INSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_package", "own_package.rates", "own_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    f = incrax.guarded(getattr(importlib.import_module("own_package.inner"), kind))
    assert float(f(X)) == 3.0
    assert float(f(X)) == 3.0
    monkeypatch.setattr(sys.modules["own_package.rates"], "SCALE", 4.0)
    assert float(f(X)) == 6.0


def test_an_attribute_that_a_module_gets_later_is_noticed():
    own = types.ModuleType("own")
    f = incrax.guarded(lambda x: x * own.SCALE if hasattr(own, "SCALE") else x)
    assert float(f(X)) == 1.5
    own.SCALE = 4.0
    assert float(f(X)) == 6.0


# --- what needs no comparison ---------------------------------------------------------------------


class Abstract(abc.ABC):
    @abc.abstractmethod
    def value(self): ...


class Concrete(Abstract):
    def value(self):
        return 2.0


class Pair(typing.NamedTuple):
    a: float = 2.0

    def value(self):
        return self.a


@pytest.mark.parametrize("kind", [Concrete, Pair])
def test_abstract_classes_and_named_tuples_may_be_captured(kind):
    f = incrax.guarded(lambda x: x * kind().value())
    assert float(f(X)) == 3.0


def test_dates_decimals_and_getters_may_be_captured():
    day, number, get = datetime.date(2020, 1, 2), Decimal(2), operator.itemgetter("a")
    f = incrax.guarded(lambda x: x * day.day * int(number) * get({"a": 2.0}))
    assert [float(f(X)), float(f(X))] == [12.0, 12.0]
    assert f.stats.recordings == 1


# --- what is read from outside --------------------------------------------------------------------


# --- traced values that outlive their call --------------------------------------------------------


def test_a_traced_value_that_was_stored_is_refused_by_name():
    history = []
    f = incrax.guarded(lambda x: (history.append(x), 2 * x)[1])
    assert float(f(X)) == 3.0
    with pytest.raises(
        incrax.errors.CapturedStateError,
        match=r"captures `history\[0\]`, which holds a traced value",
    ):
        f(X)


@pytest.mark.parametrize("read", [float, bool, int, np.asarray, lambda x: x.item()])
def test_a_traced_value_that_was_stored_tells_no_value_later(read):
    history = []
    incrax.guarded(lambda x: (history.append(x), 2 * x)[1])(X)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="out of date"):
        read(history[0])
    assert "1.5" not in f"{history[0]}{history[0]!r}{history[0]!s}"


@jax.tree_util.register_pytree_node_class
class Layer:
    def __init__(self, w):
        self.w = w

    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def __call__(self, x):
        def power(n):
            return x * self.w if n == 0 else power(n - 1)

        return power(3)


def test_a_function_that_the_run_made_is_not_taken_for_captured():
    f = incrax.guarded(lambda layer, x: layer(x) if x > 0 else x)
    assert [float(f(Layer(2.0), X)), float(f(Layer(3.0), X))] == [3.0, 4.5]
    assert f.stats.recordings == 1
