"""`select_rows`: exact against NumPy, differentiable, never cut off in silence."""

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


def test_rows_past_the_length_are_zero():
    rows = incrax.select_rows(np.full(3, np.nan), np.array([False, True, False]), size=3)
    np.testing.assert_array_equal(rows.values, [np.nan, 0.0, 0.0])
    assert rows.mask.tolist() == [True, False, False]
    assert rows.filled(7.0).tolist()[1:] == [7.0, 7.0]


@pytest.mark.parametrize(
    "x", [X, np.array([2, 2, 0]), np.zeros(0)], ids=["some", "integers", "none"]
)
def test_inside_compiled_programs_too(x):
    rows = jax.jit(lambda x: incrax.select_rows(x, x > 0, size=7))(x)
    np.testing.assert_array_equal(rows.exact(), x[x > 0])
    assert not np.any(rows.values[len(x[x > 0]) :])


def test_exact_rows_of_more_than_there_are_are_an_error():
    with pytest.raises(
        incrax.errors.CapacityError, match="asked for 9 rows or turns, and there is room for 5"
    ):
        incrax.Padded(X, 9).exact()


def test_rows_stay_on_the_device_that_their_array_was_put_on():
    put = jax.device_put(X, jax.devices()[0])
    for x, is_put in ((X, False), (put, True)):
        found = incrax.select_rows(x, X > 0)
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
