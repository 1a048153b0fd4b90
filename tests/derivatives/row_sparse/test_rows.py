"""`RowSparse`: every operation equals the same operation on the dense array."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from hypothesis import given
from hypothesis import strategies as st
from row_sparse_cases import PATTERNS

import incrax
from incrax import RowSparse

SHAPE = (12, 2)


def made(indices, shape=SHAPE, seed=0, dtype=np.float64):
    values = np.random.default_rng(seed).normal(size=(len(indices), *shape[1:]))
    return RowSparse(jnp.asarray(indices, np.int32), jnp.asarray(values, dtype), shape)


def reference(rows):
    """The law, in NumPy."""
    dense = np.zeros(rows.shape, rows.dtype)
    for index, value in zip(np.asarray(rows.indices), np.asarray(rows.values), strict=True):
        if -rows.shape[0] <= index < rows.shape[0]:
            dense[index] += value
    return dense


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_dense_form_adds_repeated_wraps_negative_and_drops_other_indices(name):
    rows = made(PATTERNS[name], shape=(1000, 2))
    same(rows.todense(), jnp.asarray(reference(rows)))


OPERATIONS = {
    "coalesce": (lambda a, b: a.coalesce(), lambda a, b: a),
    "sum": (lambda a, b: a + b, lambda a, b: a + b),
    "negative": (lambda a, b: -a, lambda a, b: -a),
    "scaled": (lambda a, b: 3.0 * a, lambda a, b: 3.0 * a),
    "scaled from the right": (lambda a, b: a * jnp.asarray(2.5), lambda a, b: a * 2.5),
    "added to": (lambda a, b: a.add_to(b.todense()), lambda a, b: a + b),
}

lists = st.lists(st.integers(-14, 14), max_size=6)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@given(lists, lists)
def test_operations_are_those_of_the_dense_array(name, first, second):
    a, b = made(first), made(second, seed=1)
    ours, dense = OPERATIONS[name]
    result = ours(a, b)
    result = result.todense() if isinstance(result, RowSparse) else result
    # A row that is not stored is 0.0, and so is its negative: the sign of a zero has no place to
    # be.
    same(result, dense(a.todense(), b.todense()), is_zero_signed=name != "negative")


@given(st.lists(st.integers(-14, 14), max_size=300))
def test_coalesced_rows_are_stored_once_and_ascend(indices):
    rows = made(indices).coalesce()
    numbers = np.asarray(rows.indices)
    stored = numbers[numbers < SHAPE[0]]
    assert len(numbers) == len(indices)
    assert sorted(set(stored)) == list(stored)
    assert set(stored) == {i % SHAPE[0] for i in indices if -SHAPE[0] <= i < SHAPE[0]}
    assert np.all(np.asarray(rows.values)[len(stored) :] == 0)
    assert np.all(numbers[len(stored) :] == SHAPE[0])


def test_operations_keep_the_number_of_rows_static():
    rows = made([1, 1, 5])
    assert (
        rows.num_rows,
        rows.coalesce().num_rows,
        (rows + rows).num_rows,
        (2 * rows).num_rows,
    ) == (3, 3, 6, 3)
    assert (rows.ndim, rows.dtype, rows.shape) == (2, np.float64, SHAPE)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint32])
def test_indices_may_be_of_any_integer_type(dtype):
    rows = RowSparse(np.array([3, 100, 3], dtype), np.ones((3, 1)), (300, 1))
    assert float(rows.todense()[3, 0]) == 2.0
    assert float(rows.todense().sum()) == 3.0


@pytest.mark.parametrize("shape", [(9,), (9, 2, 3)])
def test_rows_may_be_numbers_or_have_several_axes(shape):
    rows = made([2, -1, 2], shape)
    same(rows.coalesce().todense(), jnp.asarray(reference(rows)))


def test_a_pytree_through_jit_scan_cond_and_grad():
    rows = made([1, 5, 1])
    same(jax.jit(lambda r: (2 * r).coalesce())(rows).todense(), 2 * rows.todense())
    same(jax.lax.cond(True, lambda r: r * 2.0, lambda r: r, rows).todense(), 2 * rows.todense())
    total, _ = jax.lax.scan(lambda t, _: (rows.add_to(t), None), jnp.zeros(SHAPE), length=3)
    same(total, 3 * rows.todense())
    weight = jnp.arange(24.0).reshape(SHAPE)
    slope = jax.grad(lambda v: jnp.sum(weight * RowSparse(rows.indices, v, SHAPE).todense()))(
        rows.values
    )
    same(slope, weight[rows.indices])


def test_a_batch_under_vmap():
    batch = jax.vmap(lambda v: RowSparse(jnp.array([1, 1]), v, SHAPE))(jnp.ones((4, 2, 2)))
    dense = jax.vmap(lambda r: r.coalesce().todense())(batch)
    same(dense, jnp.zeros((4, *SHAPE)).at[:, 1].set(2.0))


def test_leaves_are_named():
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path({"g": made([1])})
    ]
    assert paths == ["['g'].indices", "['g'].values"]


def test_it_is_immutable_and_survives_copies():
    rows = made([1, 2])
    with pytest.raises(AttributeError):
        rows.values = 1
    with pytest.raises(AttributeError):
        del rows.shape
    for other in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        same(other.todense(), rows.todense())


@pytest.mark.parametrize(
    ("indices", "values", "shape"),
    [
        (1, np.ones(2), SHAPE),
        ([1.5], np.ones((1, 2)), SHAPE),
        ([1], np.ones((1, 3)), SHAPE),
        ([], 1.0, ()),
    ],
)
def test_parts_that_do_not_fit_are_refused(indices, values, shape):
    with pytest.raises(incrax.errors.RowShapeError, match="it needs k integer indices"):
        RowSparse(jnp.asarray(indices), values, shape)


def test_operands_that_would_make_it_dense_are_refused():
    rows = made([1])
    for factor in (jnp.ones(2), rows):
        with pytest.raises(TypeError, match="rows are multiplied by scalars"):
            rows * factor
    with pytest.raises(TypeError, match="unsupported operand"):
        rows + jnp.ones(SHAPE)
    with pytest.raises(incrax.errors.RowShapeError, match="nothing is broadcast"):
        rows + made([1], (13, 2))
    with pytest.raises(incrax.errors.RowShapeError, match="nothing is broadcast"):
        rows.add_to(jnp.zeros(2))
