"""Objects that can change in place: refused as static values, unless a user promises that they do
not change.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import logging
import math
import random
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax.engine.inputs import mutable

X = np.linspace(0.1, 1.0, 5)


class Config:
    scale = 1.0

    def scaled(self, x):
        return self.scale * x


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class OwnHash:
    def __init__(self):
        self.scale = 1.0

    def __eq__(self, other):
        return isinstance(other, OwnHash) and self.scale == other.scale

    def __hash__(self):
        return hash(self.scale)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 1.0
    inner: object = None


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenByIdentity:
    scale: float = 1.0


class Color(enum.Enum):
    RED = 1


class Layer(eqx.Module):
    scale: float = 2.0
    name: str = eqx.field(static=True, default="layer")


def anything(_, x):
    return jnp.sum(jnp.sin(x))


MUTABLE = {
    "an object": lambda: (Config(), "Config"),
    "an object with slots": lambda: (Slotted(), "Slotted"),
    "a generator of random numbers": lambda: (np.random.default_rng(1), "Generator"),
    "another one": lambda: (random.Random(1).random, "Random"),
    "a logger": lambda: (logging.getLogger("incrax.test"), "Logger"),
    "a method of an object": lambda: (Config().scaled, "Config"),
    "a method of a list": lambda: ([1.0].copy, "list"),
    "an argument of a partial function": lambda: (functools.partial(anything, Config()), "Config"),
    "an array in a partial function": lambda: (
        functools.partial(anything, x=np.ones(3)),
        "ndarray",
    ),
    "a field of a frozen dataclass": lambda: (Frozen(inner=Config()), "Config"),
    "a field of a tuple in one": lambda: (Frozen(inner=(1, Slotted())), "Slotted"),
}
FIXED = {
    "a function": lambda: anything,
    "a built-in function": lambda: math.sin,
    "a compiled function": lambda: jax.jit(anything),
    "a function with a rule": lambda: jax.custom_jvp(anything),
    "an incremental function": lambda: incrax.incremental(anything),
    "a guarded function": lambda: incrax.guarded(anything),
    "a function of NumPy": lambda: np.sin,
    "a partial function": lambda: functools.partial(anything, 1.0),
    "a module": lambda: types,
    "a class": lambda: Config,
    "a member of an enumeration": lambda: Color.RED,
    "a frozen dataclass": Frozen,
    "one without `__eq__`": FrozenByIdentity,
    "a class with a hash of its own": OwnHash,
    "an object without state": object,
    "an Equinox module": Layer,
    "a device": lambda: jax.devices()[0],
    "text": lambda: "text",
}
VERBS = {
    "incremental": lambda: incrax.incremental(anything),
    "fresh": lambda: incrax.incremental(anything).fresh,
    "explain": lambda: incrax.incremental(anything).explain,
    "warm_up": lambda: incrax.incremental(anything).warm_up,
    "pure": lambda: incrax.incremental(anything).pure,
    "grad": lambda: incrax.grad(anything, wrt="x"),
    "value_and_grad": lambda: incrax.value_and_grad(anything, wrt="x"),
    "hessian": lambda: incrax.hessian(anything, wrt="x"),
    "vjp": lambda: lambda c, x: incrax.vjp(anything, c, x),
    "prepare": lambda: lambda c, x: incrax.prepare(anything, c, x, wrt="x"),
    "bind": lambda: lambda c, x: incrax.bind(lambda c, x: anything(c, x), c=c, x=x).value(),
}


@pytest.mark.parametrize("kind", MUTABLE)
def test_what_can_change_in_place_is_refused_by_name(kind):
    value, name = MUTABLE[kind]()
    f = incrax.incremental(anything)
    with pytest.raises(
        incrax.errors.UnsupportedLeafError, match=rf"`_` of type .*{name}.*incrax.frozen"
    ):
        f(value, X)
    assert f.stats.traces == 0


@pytest.mark.parametrize("kind", FIXED)
def test_what_is_compared_by_its_content_or_cannot_change_is_accepted(kind):
    value = FIXED[kind]()
    f = incrax.incremental(anything)
    for _ in range(2):
        assert float(f(value, X)) == pytest.approx(float(np.sum(np.sin(X))), rel=1e-12)
    assert f.stats.traces == 1


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_it(verb):
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="hashed by its identity"):
        VERBS[verb]()(Config(), X)


def test_the_instance_of_a_method_is_refused():
    class Model(Config):
        @incrax.incremental
        def value(self, x):
            return self.scale * jnp.sum(x)

    with pytest.raises(incrax.errors.UnsupportedLeafError, match="`self` of type Model"):
        Model().value(X)


def test_the_message_says_what_was_seen_why_it_matters_and_what_to_do():
    with pytest.raises(incrax.errors.UnsupportedLeafError) as error:
        incrax.incremental(lambda settings, x: x)(Frozen(inner=Config()), X)
    assert str(error.value) == (
        "`incremental(f)` got `settings` of type Frozen, which holds a Config: no array, with "
        "state, and hashed by its "
        "identity. Usually a configuration or a method's `self`. If it changed, it would be the "
        "same static value, "
        "and the answer that of before. Nothing was evaluated or stored. Pass what changes as "
        "arguments, make it "
        "a pytree, a frozen dataclass or hashed by its content, or promise by "
        "`incrax.frozen(object)` that it stays."
    )


def test_the_store_is_as_it_was_after_a_refusal():
    f = incrax.incremental(anything)
    f("a", X)
    with pytest.raises(incrax.errors.UnsupportedLeafError):
        f(Config(), X)
    f("a", X)
    assert f.stats.traces == 1
    assert f.stats.unchanged == 1


@pytest.mark.parametrize(
    "make", [Config, Slotted, lambda: Frozen(inner=Config()), lambda: Config().scaled]
)
def test_a_promise_makes_it_a_static_value(make):
    value = make()
    assert incrax.frozen(value) is value
    f = incrax.incremental(anything)
    f(value, X)
    f(value, 2 * X)
    assert f.stats.traces == 1
    with pytest.raises(incrax.errors.UnsupportedLeafError):
        f(make(), X)


def test_a_promise_covers_what_cannot_be_hashed():
    value = functools.partial(anything, [Config()])
    assert incrax.frozen(value) is value
    f = incrax.incremental(anything)
    assert f(value, X) is not None
    frame = collections.UserDict(x=X)  # like a data frame: no pytree, and no hash
    assert incrax.frozen(frame) is frame
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="cannot be hashed"):
        f(frame, X)


def test_a_promise_is_forgotten_with_its_object():
    value = Config()
    key = id(value)
    incrax.frozen({"config": value, "x": X})
    assert key in mutable._declared
    del value
    gc.collect()
    assert key not in mutable._declared


def test_an_object_with_a_hash_of_its_content_is_another_value_after_a_change():
    value = OwnHash()
    f = incrax.incremental(lambda c, x: c.scale * jnp.sum(x))
    assert float(f(value, 2.0)) == 2.0
    value.scale = 5.0
    assert [float(f(value, 2.0)), float(f.fresh(value, 2.0))] == [10.0, 10.0]
    value.scale = 1.0
    assert float(f(value, 2.0)) == 2.0
    assert f.stats.traces == 2


def test_guarded_functions_compare_what_it_holds_instead():
    value = Config()
    f = incrax.guarded(lambda c, x: c.scale * x if x > 0 else x)
    assert float(f(value, 2.0)) == 2.0
    value.scale = 5.0
    assert float(f(value, 2.0)) == 10.0
    assert f.stats.recordings == 2


# --- fields in C ----------------------------------------------------------------------------------


class Named(collections.namedtuple("Named", ["a"])):
    pass


class Error(ValueError):
    __slots__ = ("code",)


class Table(np.ndarray):
    pass


@pytest.mark.parametrize(
    "kind",
    [Config, Slotted, Frozen, Layer, Named, Error, Table, Color, dict, types.SimpleNamespace],
)
def test_classes_written_in_python_have_no_fields_in_c(kind):
    assert not mutable.has_fields_in_c(kind)


def test_classes_written_in_c_have():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1.0]})
    for value in (table._mgr, iter([]), np.random.default_rng(1), functools.partial(math.sin)):
        assert mutable.has_fields_in_c(type(value))
