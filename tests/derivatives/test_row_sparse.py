"""`grad(sparse="rows")`: gradients of tables that are read in a few rows; oracle: the dense
gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_sparse_cases import structured

import incrax

TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(50, 3)))
W = jnp.array([1.0, -2.0, 0.5])
IDS = jnp.array([3, 7, 3, -1])


def loss(p, ids):
    return jnp.sum(jnp.tanh(p["table"][ids] @ p["w"]))


P = {"table": TABLE, "w": W}


def near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_what_is_read_in_rows_is_row_sparse_and_the_rest_is_not():
    g = incrax.grad(loss, sparse="rows")
    for ids in (IDS, IDS + 1, IDS):
        found, expected = g(P, ids), jax.grad(loss)(P, ids)
        assert isinstance(found["table"], incrax.RowSparse)
        near(found["table"].todense(), expected["table"])
        near(found["w"], expected["w"])
    assert found["table"].values.shape == (4, 3)
    assert g.stats.traces == 1


def test_values_come_with_it():
    value, found = incrax.value_and_grad(loss, wrt="p['table']", sparse="rows")(P, IDS)
    near(value, loss(P, IDS))
    near(found.todense(), jax.grad(loss)(P, IDS)["table"])


def test_no_array_of_the_size_of_the_table_is_made():
    g = incrax.grad(loss, wrt="p['table']", sparse="rows")
    g(P, IDS)
    shapes = [v.aval.shape for e in g._traces.latest.engine.facts.program.eqns for v in e.outvars]
    assert TABLE.shape not in shapes


READS = {
    "a row": lambda t, i: jnp.sum(t[i[0]] ** 2),
    "a slice": lambda t, i: jnp.sum(t[4:9] ** 3),
    "a dynamic slice": lambda t, i: jnp.sum(jax.lax.dynamic_slice(t, (i[0], 0), (4, 3)) ** 2),
    "take": lambda t, i: jnp.sum(jnp.take(t, i, axis=0) ** 2),
    "out of range": lambda t, i: jnp.sum(
        jnp.take(t, i + 48, axis=0, mode="fill", fill_value=0.0) ** 2
    ),
}


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_rows(read):
    found = incrax.grad(READS[read], sparse="rows")(TABLE, IDS)
    assert isinstance(found, incrax.RowSparse)
    near(found.todense(), jax.grad(READS[read])(TABLE, IDS))


def test_what_becomes_dense_is_explained():
    f = lambda t, ids: jnp.sum(t[ids]) + jnp.sum(jnp.exp(t))
    g = incrax.grad(f, sparse="rows")
    near(g(TABLE, IDS), jax.grad(f)(TABLE, IDS))
    report = structured(jax.grad(f)).explain(TABLE, IDS)
    assert report.became_dense or report.in_place
    assert "test_row_sparse.py" in str(report.as_dict())


def test_under_other_transformations():
    g = incrax.grad(lambda t, i: jnp.sum(t[i] ** 2), sparse="rows")
    batch = jnp.stack([IDS, IDS + 1])
    near(
        jax.vmap(lambda i: g(TABLE, i).todense())(batch),
        jax.vmap(lambda i: jax.grad(lambda t: jnp.sum(t[i] ** 2))(TABLE))(batch),
    )
    near(jax.jit(lambda t, i: g(t, i).todense())(TABLE, IDS), g(TABLE, IDS).todense())


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"`grad\(sparse=...\)` got 'columns'"):
        incrax.grad(loss, sparse="columns")
