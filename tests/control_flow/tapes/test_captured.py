"""What a function captures is compared at each call: no change is missed, and what cannot be
compared is refused.
"""

from __future__ import annotations

import functools
import gc
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

SCALE = 2.0
SETTINGS = {"power": 2, "offsets": [0.0, 1.0]}
TABLE = np.array([1.0, 2.0, 3.0])
X = np.float64(1.5)


def check(f, expected, *, recordings):
    assert float(f(X)) == pytest.approx(expected, rel=1e-12)
    assert f.stats.recordings == recordings


def helper(x):
    return x * SCALE


def test_a_global_that_is_bound_anew_is_noticed(monkeypatch):
    f = incrax.guarded(lambda x: x * SCALE)
    check(f, 3.0, recordings=1)
    check(f, 3.0, recordings=1)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    check(f, 6.0, recordings=2)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    check(f, 3.0, recordings=2)


def test_a_global_read_by_a_function_that_is_called_is_noticed(monkeypatch):
    f = incrax.guarded(lambda x: helper(x) if x > 0 else x)
    check(f, 3.0, recordings=1)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    check(f, 6.0, recordings=2)


def test_a_function_that_is_replaced_is_noticed(monkeypatch):
    f = incrax.guarded(lambda x: helper(x))
    check(f, 3.0, recordings=1)
    monkeypatch.setitem(globals(), "helper", lambda x: -x)
    check(f, -1.5, recordings=2)


def test_a_cell_is_noticed():
    scale = 2.0
    f = incrax.guarded(lambda x: x * scale)
    check(f, 3.0, recordings=1)
    scale = 5.0
    check(f, 7.5, recordings=2)
    scale = 2.0
    check(f, 3.0, recordings=2)


def test_a_cell_with_an_array_is_noticed_and_equal_bits_are_the_same():
    w = jnp.float64(2.0)
    f = incrax.guarded(lambda x: x * w)
    check(f, 3.0, recordings=1)
    w = jnp.float64(2.0)
    check(f, 3.0, recordings=1)
    w = jnp.float64(4.0)
    check(f, 6.0, recordings=2)


@pytest.mark.parametrize("twins", [(0.0, -0.0), (1, 1.0), (True, 1)])
def test_twins_of_a_captured_value_are_told_apart(twins):
    value = twins[0]
    f = incrax.guarded(lambda x: (x, jnp.copysign(1.0, value) * x, jnp.asarray(value)))
    f(X)
    value = twins[1]
    expected = (X, jnp.copysign(1.0, value) * X, jnp.asarray(value))
    for a, b in zip(f(X), expected, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert a.dtype == b.dtype
    assert f.stats.recordings == 2


def test_a_dictionary_changed_in_place_is_noticed(monkeypatch):
    f = incrax.guarded(lambda x: x ** SETTINGS["power"] + SETTINGS["offsets"][1])
    check(f, 3.25, recordings=1)
    monkeypatch.setitem(SETTINGS, "power", 3)
    check(f, 4.375, recordings=2)
    SETTINGS["offsets"][1] = 2.0
    check(f, 5.375, recordings=3)
    SETTINGS["offsets"][1] = 1.0


def test_a_numpy_array_changed_in_place_is_noticed():
    f = incrax.guarded(lambda x: x * jnp.sum(jnp.asarray(TABLE)))
    check(f, 9.0, recordings=1)
    TABLE[0] = 2.0
    check(f, 10.5, recordings=2)
    TABLE[0] = 1.0


class Model:
    factor = 3.0

    def __init__(self):
        self.scale = 2.0
        self.layers = [types.SimpleNamespace(w=1.0)]

    def value(self, x):
        return x * self.scale * self.factor * self.layers[0].w

    @property
    def doubled(self):
        return 2.0 * self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


def test_attributes_of_an_object_are_noticed_at_any_depth():
    model = Model()
    f = incrax.guarded(lambda x: model.value(x))
    check(f, 9.0, recordings=1)
    model.scale = 4.0
    check(f, 18.0, recordings=2)
    model.layers[0].w = 2.0
    check(f, 36.0, recordings=3)


def test_attributes_of_a_class_are_noticed(monkeypatch):
    model = Model()
    f = incrax.guarded(model.value)
    check(f, 9.0, recordings=1)
    monkeypatch.setattr(Model, "factor", 1.0)
    check(f, 3.0, recordings=2)
    monkeypatch.setattr(Model, "value", lambda self, x: x)
    g = incrax.guarded(lambda x: model.value(x))
    check(g, 1.5, recordings=1)


class Scaled:
    """A decorator with state of its own."""

    def __init__(self, fun):
        functools.update_wrapper(self, fun)
        self.scale = 2.0

    def __call__(self, x):
        return self.scale * self.__wrapped__(x)


def test_a_decorator_with_state_is_noticed():
    scaled = Scaled(lambda x: x + SCALE)
    f = incrax.guarded(lambda x: scaled(x))
    check(f, 7.0, recordings=1)
    scaled.scale = 1.0
    check(f, 3.5, recordings=2)


def test_state_of_a_thread_and_of_a_polynomial_is_noticed():
    local, polynomial = threading.local(), np.poly1d([1.0, 2.0])
    local.scale = 2.0
    f = incrax.guarded(lambda x: x * local.scale + polynomial.coeffs[0])
    check(f, 4.0, recordings=1)
    local.scale = 1.0
    check(f, 2.5, recordings=2)
    polynomial.coeffs[0] = 3.0
    check(f, 4.5, recordings=3)


def test_functions_of_numpy_and_compiled_ones_may_be_captured():
    total, compiled, cached = (
        np.sum,
        jax.jit(lambda x: x * SCALE),
        functools.lru_cache(lambda n: n * 2.0),
    )
    f = incrax.guarded(lambda x: compiled(x) * float(total(np.ones(2))) * cached(3))
    check(f, 36.0, recordings=1)


def test_a_property_and_slots_are_noticed():
    model, slotted = Model(), Slotted()
    f = incrax.guarded(lambda x: x * model.doubled * slotted.scale)
    check(f, 12.0, recordings=1)
    model.scale = 3.0
    check(f, 18.0, recordings=2)
    slotted.scale = 1.0
    check(f, 9.0, recordings=3)


def test_the_instance_of_a_method_is_noticed():
    class Own:
        def __init__(self):
            self.scale = 2.0

        @incrax.guarded
        def value(self, x):
            return x * self.scale if x > 0 else x

    own = Own()
    assert float(own.value(X)) == 3.0
    own.scale = 4.0
    assert float(own.value(X)) == 6.0


def test_defaults_and_partial_arguments_are_noticed():
    offsets = [1.0]

    def g(x, offsets=offsets):
        return x + offsets[0]

    f = incrax.guarded(g)
    check(f, 2.5, recordings=1)
    offsets[0] = 2.0
    check(f, 3.5, recordings=2)
    factors = [3.0]
    h = incrax.guarded(functools.partial(lambda factors, x: factors[0] * x, factors))
    check(h, 4.5, recordings=1)
    factors[0] = 1.0
    check(h, 1.5, recordings=2)


def test_an_attribute_of_a_function_is_noticed():
    def g(x):
        return x * g.scale

    g.scale = 2.0
    f = incrax.guarded(g)
    check(f, 3.0, recordings=1)
    g.scale = 3.0
    check(f, 4.5, recordings=2)


def test_an_attribute_of_a_module_is_noticed(monkeypatch, tmp_path):
    (tmp_path / "own_module.py").write_text("SCALE = 2.0\ndef scaled(x):\n    return x * SCALE\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_module

    f = incrax.guarded(lambda x: own_module.SCALE * x)
    g = incrax.guarded(lambda x: own_module.scaled(x))
    check(f, 3.0, recordings=1)
    check(g, 3.0, recordings=1)
    own_module.SCALE = 4.0
    check(f, 6.0, recordings=2)
    check(g, 6.0, recordings=2)


def test_code_that_is_found_only_by_running_it_is_followed(monkeypatch):
    functions = types.MappingProxyType({"f": helper})
    f = incrax.guarded(lambda x: next(iter(functions.values()))(x))
    check(f, 3.0, recordings=1)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    check(f, 6.0, recordings=2)


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
        return x * self.w * SCALE


def test_a_method_of_an_argument_is_followed(monkeypatch):
    f = incrax.guarded(lambda layer, x: layer(x))
    assert float(f(Layer(3.0), X)) == 9.0
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert float(f(Layer(3.0), X)) == 18.0


PARTS = {
    "of a list": (lambda layer: [layer], lambda tree: tree[0]),
    "of a tuple in a dictionary": (lambda layer: {"a": (layer,)}, lambda tree: tree["a"][0]),
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_class_of_a_part_of_an_argument_is_followed(kind, monkeypatch):
    monkeypatch.setattr(Layer, "rate", 2.0, raising=False)
    wrap, part = PARTS[kind]
    f = incrax.guarded(lambda tree, x: part(tree).rate * x)
    assert float(f(wrap(Layer(3.0)), X)) == 3.0
    monkeypatch.setattr(Layer, "rate", 4.0)
    assert float(f(wrap(Layer(3.0)), X)) == 6.0


def test_a_state_that_each_call_turns_never_mixes_paths():
    state = [0]

    def turn(x):
        state[0] = 1 - state[0]
        if x > 0:
            return x + state[0]
        return x - state[0]

    f = incrax.guarded(turn)
    expected, actual, results = [0], [0], []
    for x in (1.0, 1.0, -1.0, -1.0, 1.0, -1.0):
        state[0] = expected[0]
        before = float(turn(x))
        expected[0] = state[0]
        state[0] = actual[0]
        results.append((float(f(x)), before))
        actual[0] = state[0] = expected[0]
    assert all(a == b for a, b in results)


def test_a_global_that_appears_later_is_noticed(monkeypatch):
    monkeypatch.delitem(globals(), "LATER", raising=False)

    def g(x):
        try:
            return x * LATER  # noqa: F821
        except NameError:
            return x

    f = incrax.guarded(g)
    check(f, 1.5, recordings=1)
    monkeypatch.setitem(globals(), "LATER", 2.0)
    check(f, 3.0, recordings=2)


def test_what_a_call_changes_itself_is_seen_by_the_next():
    state = {"n": 0}

    def count(x):
        state["n"] += 1
        return x * state["n"]

    f = incrax.guarded(count, max_paths=3)
    assert [float(f(X)) for _ in range(3)] == [1.5, 3.0, 4.5]
    with pytest.warns(UserWarning, match="captured `state"):
        assert float(f(X)) == 6.0
    assert float(f(X)) == 7.5
    assert f.stats.eager == 2


def test_a_name_declared_constant_is_not_compared():
    history = iter([1.0])
    f = incrax.guarded(lambda x: x if history else -x, constant="history")
    check(f, 1.5, recordings=1)


def test_a_name_declared_constant_may_stand_inside_another_beside_what_cannot_be_compared():
    sign = 1.0
    parts = [iter([1.0]), lambda x: x * sign]
    f = incrax.guarded(lambda x: parts[1](x), constant=("parts", "sign"))
    check(f, 1.5, recordings=1)


@pytest.mark.parametrize(
    "make", [lambda: iter([1.0, 2.0]), lambda: (v for v in [1.0])], ids=["iterator", "generator"]
)
def test_what_cannot_be_compared_is_refused_by_name(make):
    values = make()
    f = incrax.guarded(lambda x: x * next(values))
    with pytest.raises(incrax.errors.CapturedStateError, match="captures `values`"):
        f(X)


def test_a_captured_generator_draws_at_each_call():
    """As the function itself: each draw is a change of what is captured."""
    ours, theirs = np.random.default_rng(1), np.random.default_rng(1)
    f = incrax.guarded(lambda x: x + ours.normal())
    assert [float(f(X)) for _ in range(3)] == [1.5 + theirs.normal() for _ in range(3)]
    assert f.stats.recordings == 3


def test_another_way_at_equal_values_is_an_error(request):
    def g(x):
        if gc.isenabled():
            return x if x > 0 else -x
        return x if x + 1 > 0 else -x

    f = incrax.guarded(g)
    f(X)
    gc.disable()
    request.addfinalizer(gc.enable)
    with pytest.raises(incrax.errors.NotReproducibleError, match="another way"):
        f(-X)
