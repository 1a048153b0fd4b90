"""Values that look equal and are not, and values that look changed and are not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, ran_by, same

import incrax

NAN = float("nan")


def sensitive(x):
    return 1 / x, jnp.arctan2(x, -1.0), jnp.copysign(1.0, x), jnp.sqrt(x), x


@pytest.mark.parametrize(
    "wrap", [float, np.float64, jnp.float64, lambda x: np.array([x, x]), lambda x: jnp.array([x])]
)
@pytest.mark.parametrize(
    ("first", "second"), [(0.0, -0.0), (-0.0, 0.0), (1.0, np.nextafter(1.0, 2.0)), (1.0, NAN)]
)
def test_twins_count_as_changed(wrap, first, second):
    f = incrax.incremental(sensitive, tuning=MINIMAL)
    f(wrap(first))
    ran = ran_by(f, wrap(second))
    assert ran > 0
    same(f(wrap(second)), jax.jit(sensitive)(wrap(second)))
    assert np.signbit(np.asarray(f(wrap(-0.0))[0]).ravel()[0])


@pytest.mark.parametrize(
    "wrap", [float, np.float64, jnp.float64, lambda x: np.array([x, 1.0]), lambda x: jnp.array([x])]
)
@pytest.mark.parametrize("value", [NAN, 0.0, -0.0, 1.5, float("inf")])
def test_the_same_bits_in_another_object_count_as_unchanged(wrap, value):
    f = incrax.incremental(sensitive, tuning=MINIMAL)
    f(wrap(value))
    assert ran_by(f, wrap(float(np.float64(value)))) == 0


def test_nan_in_a_parameter_does_not_poison_later_calls():
    f = incrax.incremental(lambda a, v: jnp.sum(a * jnp.sin(v)), tuning=MINIMAL)
    v = np.linspace(0, 1, 5)
    expected = f(1.0, v)
    assert np.isnan(f(NAN, v))
    same(f(1.0, v), expected)
    assert np.isnan(f(1.0, np.where(v > 0.5, NAN, v)))
    same(f(1.0, v), expected)


def test_weak_and_strong_types_have_results_of_their_own():
    f = incrax.incremental(lambda x, y: x * y, tuning=MINIMAL)
    y = jnp.bfloat16(2)
    for x in (2.0, jnp.float32(2), jnp.float64(2), 2.0):
        same(f(x, y), jax.jit(lambda x, y: x * y)(x, y))


def test_an_array_changed_in_place_counts_as_changed():
    f = incrax.incremental(lambda x: jnp.sum(x), tuning=MINIMAL)
    x = np.arange(5.0)
    view = x[:]
    view.flags.writeable = False
    assert float(f(view)) == 10.0
    x[0] = 5.0
    assert float(f(view)) == 15.0
    large = np.zeros(5000)
    assert float(f(large)) == 0.0
    large[4321] = 2.0
    assert float(f(large)) == 2.0
    assert f.stats.unchanged == 0


def test_the_snapshot_is_private():
    """Saved values must not see a later change of the caller's array."""
    f = incrax.incremental(lambda a, x: a * jnp.sum(jnp.exp(x)), tuning=MINIMAL)
    for size in (4, 5000):
        x = np.zeros(size)
        f(1.0, x)
        x[:] = 1.0
        f(1.0, x)
        x[:] = 0.0
        assert float(f(3.0, x)) == 3.0 * size


def test_typed_keys_are_compared_by_their_data():
    f = incrax.incremental(lambda key: jax.random.normal(key, (3,)), tuning=MINIMAL)
    first = f(jax.random.key(1))
    assert ran_by(f, jax.random.key(1)) == 0
    assert not np.array_equal(f(jax.random.key(2)), first)
    f(jax.random.PRNGKey(1))
    assert f.stats.traces == 2


def test_frozen_data_are_compared_by_pointer():
    x = np.arange(6.0)
    data = incrax.frozen({"x": x})
    f = incrax.incremental(lambda d, a: jnp.sum(d["x"]) * a, tuning=MINIMAL)
    assert float(f(data, 1.0)) == 15.0
    x[0] = 100.0
    assert float(f(data, 2.0)) == 30.0
    again = incrax.frozen({"x": data["x"]})
    assert ran_by(f, again, 2.0) > 0
    assert ran_by(f, again, 2.0) == 0


def test_the_same_array_under_two_arguments_is_two_inputs():
    f = incrax.incremental(lambda x, y: (jnp.sum(jnp.sin(x)), jnp.sum(jnp.cos(y))), tuning=MINIMAL)
    x = jnp.arange(5.0)
    f(x, x)
    same(f(x + 1, x), (jnp.sum(jnp.sin(x + 1)), jnp.sum(jnp.cos(x))))


def test_a_leaf_that_is_always_a_new_object_is_compared_by_its_bits():
    f = incrax.incremental(lambda x, y: jnp.sin(x) * jnp.exp(y), tuning=incrax.Tuning(timed=False))
    for k in range(60):
        x = jnp.float64(k // 3)
        same(f(x, 2.0), jax.jit(lambda x, y: jnp.sin(x) * jnp.exp(y))(x, 2.0))
    assert f.stats.unchanged == 40
