"""`select_rows`, `nonzero`, `unique`: exact against NumPy, differentiable, never cut off in
silence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, examples, primitives_run
from hypothesis import given
from hypothesis import strategies as st
from loop_cases import close, counted_compiles

import incrax

X = np.array([0.5, -1.0, 2.0, -3.0, 4.0])
TOO_MANY = "was asked for 3 rows or turns, and there is room for 2"


def exact(*args, **options):
    return incrax.select_rows(*args, **options).exact()


@pytest.mark.parametrize("mask", [X > 0, X > 9, X < 9], ids=["some", "none", "all"])
@pytest.mark.parametrize("size", [None, 5, 8])
def test_selected_rows_are_those_of_numpy(mask, size):
    tree = {"x": X, "y": np.arange(10).reshape(5, 2)}
    close(exact(tree, mask, size=size), jax.tree.map(lambda x: jnp.asarray(x[mask]), tree))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=20))
@examples(4 / 5)
def test_rows_of_any_number(rows):
    x, mask = np.array([r[0] for r in rows], int), np.array([r[1] for r in rows], bool)
    np.testing.assert_array_equal(exact(x, mask), x[mask])
    np.testing.assert_array_equal(incrax.nonzero(x).exact()[0], np.nonzero(x)[0])
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    found = incrax.unique(x)
    for actual, expected in ((found.values, values), (found.first, first), (found.counts, counts)):
        np.testing.assert_array_equal(actual.exact(), expected)
    np.testing.assert_array_equal(found.inverse, inverse)


def test_rows_past_the_length_are_zero():
    rows = incrax.select_rows(np.full(3, np.nan), np.array([False, True, False]), size=3)
    np.testing.assert_array_equal(rows.values, [np.nan, 0.0, 0.0])
    assert rows.mask.tolist() == [True, False, False]
    assert rows.filled(7.0).tolist()[1:] == [7.0, 7.0]


def test_nonzero_of_several_axes():
    x = np.array([[0, 2, 0], [3, 0, 4]])
    close(incrax.nonzero(x).exact(), tuple(map(jnp.asarray, np.nonzero(x))))


@pytest.mark.parametrize(
    "x", [[3.0, np.nan, 0.0, 3.0, np.nan, -1.0], [2, 2, 0], []], ids=["NaN", "integers", "none"]
)
def test_inside_compiled_programs_too(x):
    x = np.array(x)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    found = jax.jit(lambda x: incrax.unique(x, size=7))(x)
    np.testing.assert_array_equal(found.inverse, inverse)
    for actual, expected in ((found.values, values), (found.first, first), (found.counts, counts)):
        np.testing.assert_array_equal(actual.exact(), expected)
        assert not np.any(actual.values[len(values) :])
    np.testing.assert_array_equal(
        jax.jit(lambda x: incrax.nonzero(x, size=7))(x).exact()[0], np.nonzero(x)[0]
    )
    rows = jax.jit(lambda x: incrax.select_rows(x, x > 0, size=7))(x)
    np.testing.assert_array_equal(rows.exact(), x[x > 0])


def test_exact_rows_of_more_than_there_are_are_an_error():
    with pytest.raises(
        incrax.errors.CapacityError, match="asked for 9 rows or turns, and there is room for 5"
    ):
        incrax.Padded(X, 9).exact()


def test_nans_are_one_element():
    assert incrax.unique(np.array([np.nan, 1.0, np.nan])).counts.exact().tolist() == [1, 2]


def test_nans_of_bfloat16_are_one_element():
    x = np.array([2, 0, np.nan, 2, np.nan], jnp.bfloat16)
    for found in (incrax.unique(x), jax.jit(lambda x: incrax.unique(x, size=5))(x)):
        values = found.values.exact()
        assert values.dtype == jnp.bfloat16
        np.testing.assert_array_equal(values.astype(float), [0.0, 2.0, np.nan])
        assert found.inverse.tolist() == [1, 0, 2, 1, 2]


def test_rows_stay_on_the_device_that_their_array_was_put_on():
    put = jax.device_put(X, jax.devices()[0])
    for x, is_put in ((X, False), (put, True)):
        unique = incrax.unique(x)
        found = (
            incrax.select_rows(x, X > 0),
            incrax.nonzero(x),
            unique.values,
            unique.counts,
            unique.inverse,
        )
        assert {
            leaf.committed for leaf in jax.tree.leaves(found) if isinstance(leaf, jax.Array)
        } == {is_put}


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("derivative", [jax.grad, jax.hessian])
def test_derivatives_of_selected_rows(derivative):
    def loss(x):
        rows = incrax.select_rows(x, x > 0, size=4)
        return jnp.sum(jnp.where(rows.mask, jnp.log(rows.filled(1.0)) ** 2, 0.0))

    plain = lambda x: jnp.sum(jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)) ** 2, 0.0))
    close(jax.jit(derivative(loss))(X), derivative(plain)(X))


def test_the_derivative_of_a_repeated_element_goes_to_the_first():
    weights = jnp.arange(1.0, 4.0)
    f = lambda x: jnp.sum(incrax.unique(x, size=3).values.values * weights)
    assert jax.grad(f)(jnp.array([2.0, 1.0, 2.0])).tolist() == [2.0, 1.0, 0.0]


def test_a_fold_over_selected_rows():
    def total(x):
        rows = incrax.select_rows(x, x > 0, size=4)
        return incrax.scan(lambda c, x: (c * x, None), 1.0, rows)[0]

    close(
        jax.jit(jax.value_and_grad(total))(X), jax.value_and_grad(lambda x: x[0] * x[2] * x[4])(X)
    )


def test_a_batch_of_masks():
    rows = jax.vmap(lambda m: incrax.select_rows(X, m, size=5))(jnp.stack([X > 0, X < 0]))
    assert rows.length.tolist() == [3, 2]
    assert rows.values[1].tolist() == [-1.0, -3.0, 0.0, 0.0, 0.0]


# --- sizes ----------------------------------------------------------------------------------------


def test_more_rows_than_the_size_are_an_error_outside_and_inside_compiled_programs():
    with pytest.raises(incrax.errors.CapacityError, match=TOO_MANY):
        incrax.select_rows(X, X > 0, size=2)
    f = jax.jit(lambda x: incrax.select_rows(x, x > 0, size=2).values)
    with pytest.raises(jax.errors.JaxRuntimeError, match=TOO_MANY):
        f(X).block_until_ready()
    assert f(-X).tolist() == [1.0, 3.0]


def test_rows_found_again_are_saved_ones_in_incremental_functions():
    f = incrax.incremental(
        lambda a, x: (a * a, incrax.select_rows(x, x > 0, size=2).values), tuning=MINIMAL
    )
    assert f(2.0, -X)[1].tolist() == [1.0, 3.0]
    assert f(3.0, -X)[0] == 9.0
    assert primitives_run(f) == ["mul"]
    with pytest.raises(jax.errors.JaxRuntimeError, match=TOO_MANY):
        jax.block_until_ready(f(3.0, X))


def test_numbers_of_rows_up_to_a_power_of_two_share_programs():
    masks = [np.arange(100) < n for n in (3, 9, 60)]
    exact(np.arange(100.0), masks[0])
    with counted_compiles() as count:
        for mask in masks:
            exact(np.arange(100.0), mask)
    assert count.num == 0
