"""State that is easily missed: of compiled code, of installed functions and modules, of the
process, of incrax itself.

Each case changes something in place that a function reads; the oracle is the function itself,
called as it is.
"""

from __future__ import annotations

import contextvars
import copy
import ctypes
import decimal
import functools
import itertools
import logging
import math
import os
import random
import re
import sys
import threading
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

pandas = pytest.importorskip("pandas")
X = np.float64(1.5)


def total(values):
    return float(np.sum(np.asarray(values, float)))


def frame(change):
    table = pandas.DataFrame({"w": [1.0, 2.0], "v": [3.0, 4.0]}, index=["a", "b"])
    names = lambda: [len(name) for name in [*table.columns, *table.index]]  # noqa: E731
    return lambda: total(table.iloc[:, 0]) + total(names()), lambda: change(table)


def series(change):
    column = pandas.Series([1.0, 2.0])
    return lambda: total(column), lambda: change(column)


def in_an_object():
    holder = types.SimpleNamespace(tables=[pandas.DataFrame({"w": [1.0]})])
    return lambda: total(holder.tables[0]["w"]), lambda: holder.tables[0].__setitem__("w", 7.0)


def of_strings():
    table = pandas.DataFrame({"name": ["a", "bb"]})
    return lambda: float(table["name"].str.len().sum()), lambda: table.__setitem__(
        "name", ["a", "bbb"]
    )


def array_of_objects():
    values = np.array([1.0, [2.0]], dtype=object)
    return lambda: float(values[1][0]), lambda: values[1].__setitem__(0, 3.0)


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_double), ("b", ctypes.c_int))


def structure_of_c():
    value = Pair(2.0, 1)
    return lambda: value.a, lambda: setattr(value, "a", 3.0)


def tree_of_scipy():
    spatial = pytest.importorskip("scipy.spatial")
    holder = [spatial.cKDTree([[0.0], [3.0]])]
    return lambda: float(holder[0].query([1.0])[0]), lambda: holder.__setitem__(
        0, spatial.cKDTree([[5.0]])
    )


def dispatched():
    weight = functools.singledispatch(lambda t: 1.0)
    return lambda: weight(3), lambda: weight.register(int)(lambda t: 5.0)


def dispatched_method():
    class Own:
        @functools.singledispatchmethod
        def weight(self, t):
            return 1.0

    own = Own()
    return lambda: own.weight(3), lambda: Own.weight.register(int)(lambda self, t: 5.0)


def partial_method():
    factors = [2.0]

    class Own:
        def scaled(self, factors, x):
            return factors[0] * x

        doubled = functools.partialmethod(scaled, factors)

    own = Own()
    return lambda: own.doubled(1.0), lambda: factors.__setitem__(0, 3.0)


def cell_of_an_installed_function():
    scale = [2.0]
    gradient = jax.grad(lambda x: scale[0] * x)
    return lambda: gradient(1.0), lambda: scale.__setitem__(0, 3.0)


def rule_of_a_custom_derivative():
    @jax.custom_jvp
    def fun(x):
        return x

    fun.defjvp(lambda primals, tangents: (primals[0], 2.0 * tangents[0]))
    change = lambda: fun.defjvp(lambda primals, tangents: (primals[0], 3.0 * tangents[0]))  # noqa: E731
    return lambda: jax.grad(fun)(1.0), change


def module_made_by_a_program():
    settings = types.ModuleType("settings_of_a_program")
    settings.scale = 2.0
    return lambda: settings.scale, lambda: setattr(settings, "scale", 3.0)


def precision_of_a_context():
    context = decimal.Context(prec=28)
    return lambda: float(context.divide(1, 3)), lambda: setattr(context, "prec", 3)


def bound_value():
    model = incrax.bind(lambda a, x: a * jnp.sum(x), a=2.0, x=jnp.ones(3))
    return model.value, lambda: model.set(a=5.0)


def bound_input():
    model = incrax.bind(lambda a, x: a * jnp.sum(x), a=2.0, x=jnp.ones(3))
    return lambda: model["a"], lambda: model.set(a=5.0)


def bound_gradient():
    model = incrax.bind(lambda a: a**2, a=2.0)
    return lambda: model.grad()["a"], lambda: model.set(a=5.0)


def bound_role():
    model = incrax.bind(lambda a: a**2, a=2.0)
    return lambda: float(len(model.trainable_paths)), lambda: model.set_role("a", "fixed")


def bound_in_training():
    optax = pytest.importorskip("optax")
    model = incrax.bind(lambda a: a**2, a=2.0)
    training = model.training(optax.sgd(0.1))
    return lambda: float(training.num_steps) + model["a"], training


def rows_in_a_list():
    rows = [incrax.Rows(np.ones((4, 2)))]
    return lambda: float(len(rows[0])), lambda: rows.__setitem__(0, rows[0].append(np.ones((3, 2))))


def counters():
    f = incrax.incremental(lambda x: x)
    stats = f.stats
    return lambda: float(stats.calls), lambda: f(1.0)


def guarded_function():
    scale = [2.0]
    compiled = incrax.guarded(lambda x: scale[0] * x)
    return lambda: compiled(2.0), lambda: scale.__setitem__(0, 3.0)


KINDS = {
    "a column of a frame": lambda: frame(lambda table: table.__setitem__("w", table["w"] + 10)),
    "a value of a frame": lambda: frame(lambda table: table.loc.__setitem__(("a", "w"), 9.0)),
    "a frame with a column more": lambda: frame(lambda table: table.insert(0, "u", [0.0, 0.0])),
    "the names of columns": lambda: frame(lambda table: setattr(table, "columns", ["w", "vvvv"])),
    "the index of a frame": lambda: frame(lambda table: setattr(table, "index", ["aaa", "b"])),
    "a column dropped in place": lambda: frame(lambda table: table.pop("w")),
    "a value of a series": lambda: series(lambda column: column.__setitem__(0, 5.0)),
    "a frame in an object": in_an_object,
    "a frame of text": of_strings,
    "an array of objects": array_of_objects,
    "a structure of C": structure_of_c,
    "a tree of SciPy": tree_of_scipy,
    "a function that dispatches": dispatched,
    "a method that dispatches": dispatched_method,
    "a partial method": partial_method,
    "a cell": cell_of_an_installed_function,
    "the rule of a derivative": rule_of_a_custom_derivative,
    "a module made by a program": module_made_by_a_program,
    "the precision of a context": precision_of_a_context,
    "a model's value": bound_value,
    "a model's input": bound_input,
    "a model's gradient": bound_gradient,
    "a model's role": bound_role,
    "a model in training": bound_in_training,
    "rows in a list": rows_in_a_list,
    "counters": counters,
    "a guarded function": guarded_function,
}
REMEMBERS = {
    kind
    for kind in KINDS
    if "frame" in kind or "series" in kind or "column" in kind or "rows" in kind
}
REMEMBERS |= {"a method that dispatches", "the precision of a context"}
"""Where the first call leaves something in the object that the second takes for a change, as pandas
does.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_noticed_and_nothing_else_is(kind):
    read, change = KINDS[kind]()
    f = incrax.guarded(lambda x: x * read() if x > 0 else x)
    before = [float(f(X)) for _ in range(3)]
    assert before == [pytest.approx(float(X * read()), rel=1e-12)] * 3
    settled = f.stats.recordings
    assert settled <= (2 if kind in REMEMBERS else 1)
    change()
    assert float(X * read()) != before[0]
    assert float(f(X)) == pytest.approx(float(X * read()), rel=1e-12)
    f(X)
    assert f.stats.recordings == settled + 1


@pytest.mark.parametrize("wrap", [incrax.incremental, incrax.grad])
def test_what_a_compiled_function_was_made_of_is_compared_and_what_it_saves_is_not(wrap):
    scale = [2.0]
    compiled = wrap(lambda x: scale[0] * x * x)
    f = incrax.guarded(lambda x: compiled(x) if x > 0 else x)
    first = float(f(X))
    compiled(2.5)
    compiled(3.5)
    assert float(f(X)) == first
    assert f.stats.recordings == 1
    scale[0] = 4.0
    assert float(f(X)) == 2 * first


# --- what cannot be compared ----------------------------------------------------------------------


class Pointing(ctypes.Structure):
    _fields_ = (("at", ctypes.POINTER(ctypes.c_double)),)


REFUSED = {
    "an iterator": lambda: itertools.count(1),
    "a generator": lambda: (x for x in [1.0]),
    "a variable of a context": lambda: contextvars.ContextVar("scale", default=2.0),
    "a pointer of C": lambda: Pointing(ctypes.pointer(ctypes.c_double(2.0))),
    "a file": lambda: open(os.devnull),  # noqa: SIM115
    "a compiled regular expression's scanner": lambda: re.compile("a").scanner("a"),
    "a frame with a function without a name": lambda: pandas.DataFrame({"a": [threading.Lock()]}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_compared_is_refused_by_name(kind):
    value = REFUSED[kind]()
    f = incrax.guarded(lambda x: x if value is None else 2 * x)
    with pytest.raises(
        incrax.errors.CapturedStateError, match="captures `value.*`, of type .*cannot be compared"
    ):
        f(X)
    assert f.stats.recordings == 0
    if hasattr(value, "close"):
        value.close()


def test_what_is_refused_may_be_declared_constant():
    value = itertools.count(1)
    f = incrax.guarded(lambda x: x if value is None else 2 * x, constant="value")
    assert float(f(X)) == 3.0


# --- what was never a danger ----------------------------------------------------------------------


class Layer(eqx.Module):
    scale: jax.Array
    activation: object = eqx.field(static=True)

    def __call__(self, x):
        return self.activation(self.scale * x)


LAYER = Layer(jnp.float64(2.0), jnp.tanh)
CACHED = functools.lru_cache(lambda n: n * 2.0)
FINE = {
    "an Equinox module": lambda: LAYER(1.0),
    "functions of JAX": lambda: (
        jax.vmap(jax.grad(jnp.sin))(jnp.ones(2)).sum() + jax.nn.relu(1.0) + jnp.vectorize(abs)(1)
    ),
    "a function of SciPy": lambda: float(pytest.importorskip("scipy.special").expit(0.3)),
    "a cached function": lambda: CACHED(3),
    "constants of modules": lambda: np.pi + math.e,
    "a logged line": lambda: logging.getLogger("incrax.test.line").debug("here") or 2.0,
    "a printed line": lambda: print("here", file=sys.stderr) or 2.0,
    "a lock": lambda: 2.0 if threading.Lock().acquire() else 1.0,
    "a copy": lambda: copy.deepcopy([2.0])[0],
    "a seed": lambda: random.Random(3).random(),
    "a regular expression": lambda: float(len(re.compile("a+").findall("aabaa"))),
    "a weak reference": lambda: 2.0 if weakref.ref(LAYER)() is LAYER else 1.0,
}


@pytest.mark.parametrize("kind", FINE)
def test_what_does_not_change_is_recorded_once(kind):
    read = FINE[kind]
    f = incrax.guarded(lambda x: x * read() if x > 0 else x)
    assert [float(f(X)) for _ in range(3)] == [pytest.approx(float(X * read()), rel=1e-12)] * 3
    assert f.stats.recordings == 1


def test_a_frame_that_is_only_read_costs_one_recording():
    table = pandas.DataFrame({"w": [1.0, 2.0], "g": ["a", "b"]})
    f = incrax.guarded(lambda x: x * float(table.groupby("g")["w"].sum().loc["b"]) if x > 0 else x)
    for _ in range(3):
        assert float(f(X)) == 3.0
        table.describe()
        assert table.index.get_loc(1) == 1
    assert f.stats.recordings == 1
