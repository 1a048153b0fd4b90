"""What a review of bound models found: each was wrong once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import fit

X = np.arange(4.0)


def test_a_missing_input_is_told_from_all_other_missing_ones():
    def fun(a, weights, mask, x):
        assert mask is None
        return a * jnp.sum(x * (1.0 if weights is None else weights))

    m = incrax.bind(fun, a=1.0, weights=None, mask=None, x=X, roles={"x": "data"})
    m.set(weights=2 * np.ones(4))
    assert m.value() == 12.0
    assert m["mask"] is None
    with m.at(weights=None):
        assert m.value() == 6.0
    assert m.value() == 12.0


def test_a_part_without_leaves_is_set_by_its_path():
    m = incrax.bind(
        lambda a, d: a * jnp.sum(d["x"]), a=1.0, d={"x": X, "y": None}, roles={"d": "data"}
    )
    with m.at({"d['y']": X}):
        assert m.value() == 6.0
        assert m["d"]["y"].shape == (4,)
    assert m["d"]["y"] is None
    with m.at({"d['x']": 2 * X}):
        assert m.value() == 12.0
    assert m.value() == 6.0


def test_steps_are_compiled_for_the_structure_of_their_data():
    optax = pytest.importorskip("optax", reason="optax is not installed")
    fun = lambda w, d: w * (jnp.sum(d["x"]) if "x" in d else 100.0 * jnp.sum(d["y"]))
    m = incrax.bind(fun, w=1.0, d={"x": X}, roles={"d": "data"})
    step = m.training(optax.sgd(0.0))
    assert (step(d={"x": X}), step({"d": {"y": X}})) == (6.0, 600.0)
    with pytest.raises(TypeError, match="must be a mapping of names to values"):
        step(X)  # a batch has a name


def test_optimisers_see_names():
    optax = pytest.importorskip("optax", reason="optax is not installed")
    m = incrax.bind(lambda w, b: jnp.sum(w**2) + b**2, w=np.ones(2), b=1.0)
    labels = {"w": "moves", "b": "stays"}
    step = m.training(
        optax.multi_transform({"moves": optax.sgd(0.1), "stays": optax.set_to_zero()}, labels)
    )
    step()
    np.testing.assert_allclose(m["w"], 0.8 * np.ones(2))
    assert m["b"] == 1.0
    m.set_role("b", "fixed")
    with pytest.raises(incrax.errors.BindError) as caught:
        step()
    assert str(caught.value) == (
        "Roles of the model changed since `training` was called, and its steps are those of the "
        "earlier roles. The "
        "model is as "
        "it was. Call `model.training(optimizer)` again."
    )


def test_restored_takes_back_roles_with_their_functions():
    m = incrax.bind(lambda a, b: a**2 + 3 * b**2, a=1.0, b=2.0, roles={"b": "fixed"})
    with m.restored():
        m.set_role("a", "fixed")
        m.set_role("b", "trainable")
        assert m.grad() == {"b": 12.0}
    assert m.grad() == {"a": 2.0}


def test_state_that_is_fixed_later_is_not_updated_and_not_returned():
    m = incrax.bind(lambda w, s, t: (w**2 + s, {"s": s + 1, "t": t + 1}), w=2.0, s=1.0, t=0.0,
                    roles={"s": "state", "t": "state"})  # fmt: skip
    m.set_role("s", "fixed")
    assert m.value() == 5.0
    m.update()
    assert (m["s"], m["t"]) == (1.0, 1.0)
    m.set_role("t", "fixed")
    assert fit.constrained(m).value() == 5.0
    assert set(m.grad()) == {"w"}


def test_masks_traced_values_and_texts_are_refused_as_data():
    fun = lambda a, x: a * jnp.sum(x)
    with pytest.raises(incrax.errors.UnsupportedLeafError):
        incrax.bind(fun, a=1.0, x=np.ma.array(X, mask=X > 1), roles={"x": "data"}).value()
    m = incrax.bind(fun, a=1.0, x=X, roles={"x": "data"})
    with pytest.raises(incrax.errors.InputValueError, match="traced"):
        jax.jit(lambda x: m.set(x=x))(X)
    assert m.value() == 6.0
    with pytest.raises(incrax.errors.UnsupportedLeafError):
        incrax.bind(fun, a=1.0, x=np.array(["a"]), roles={"x": "data"}).value()


def test_skipped_positional_parameters_have_their_defaults():
    def fun(a, b=2.0, c=3.0, /):
        return a + 10 * b + 100 * c

    assert incrax.bind(fun, a=1.0, c=5.0).value() == 521.0


def test_bounds_of_float32_hold_their_own_ends():
    m = incrax.bind(lambda w: (w - 1) ** 2, w=np.float32(0.1), bounds={"w": (0.0, 0.1)})
    with m.at(w=0.02):
        pass
    assert m["w"] == np.float32(0.1)


def test_a_watcher_that_fails_leaves_nothing_behind_in_a_block():
    m = incrax.bind(lambda a: a, a=1.0)

    def watch(paths):
        if m["a"] == 2.0:
            raise ZeroDivisionError

    m.on_change(watch)
    with pytest.raises(ZeroDivisionError), m.at(a=2.0):
        pass
    assert m["a"] == 1.0


def test_names_that_overlap_are_refused_before_anything_is_set():
    m = incrax.bind(lambda a, d: a * jnp.sum(d["x"]), a=1.0, d={"x": X}, roles={"d": "data"})
    with pytest.raises(incrax.errors.InputValueError) as caught:
        m.set({"d": {"x": X[:2]}, "d['x']": X[:3]})
    assert str(caught.value) == (
        "`d` and `d['x']` were to be set at once, and one is part of the other. The model is as it "
        "was. Set one of "
        "them."
    )
    assert m.value() == 6.0


def test_a_vector_of_another_size_is_refused():
    m = incrax.bind(lambda w: jnp.sum(w), w=np.ones(3))
    with pytest.raises(incrax.errors.InputValueError) as caught:
        m.set_vector(np.ones(5))
    assert str(caught.value) == (
        "A vector of shape [5] was given for 3 trainable elements. The model is as it was. Pass "
        "one of shape [3], in "
        "the order "
        "of `model.names`."
    )


def test_updates_keep_python_numbers():
    m = incrax.bind(
        lambda w, s: (w * s, {"s": s + 1}), w=np.float32(2.0), s=1.0, roles={"s": "state"}
    )
    assert m.value().dtype == np.float32
    m.update()
    assert m.value().dtype == np.float32
    assert type(m["s"]) is float


def test_bounds_wait_while_a_leaf_is_data():
    m = incrax.bind(
        lambda mu, x: mu * jnp.sum(x), mu=0.5, x=X, bounds={"mu": (0.0, 1.0)}, roles={"x": "data"}
    )
    m.set_role("mu", "data")
    assert not m.bounds
    m.set(mu=-5.0)
    with pytest.raises(incrax.errors.InputValueError, match="outside of its bounds"):
        m.set_role("mu", "trainable")
    m.set(mu=np.ones(2))
    with pytest.raises(incrax.errors.InputValueError, match="of type"):
        m.set_role("mu", "trainable")
    with pytest.raises(incrax.errors.BindError, match="complex numbers have no order"):
        incrax.bind(lambda z: jnp.abs(z), z=1.0 + 1.0j, bounds={"z": (0, 2)})


def test_a_role_that_is_no_state_leaves_the_value_traced():
    m = incrax.bind(lambda a, b: a * b, a=1.0, b=2.0)
    for role in ("fixed", "trainable", "fixed"):
        m.set_role("b", role)
        m.value()
    assert m.stats["value"].traces == 1


def test_a_guarded_function_is_refused():
    with pytest.raises(incrax.errors.BindError) as caught:
        incrax.bind(incrax.guarded(lambda a: a if a > 0 else -a), a=1.0)
    assert (
        "got a guarded function, and a bound model traces its function as a whole. Nothing was "
        "bound." in str(caught.value)
    )


def test_what_is_no_mapping_and_no_name_is_refused():
    m = incrax.bind(lambda mu: mu**2, mu=1.0)
    with pytest.raises(TypeError, match="must be a mapping of names to values"):
        m.set(np.ones(3))
    with pytest.raises(TypeError, match="must be a name of one"):
        m.fix(["mu"])
