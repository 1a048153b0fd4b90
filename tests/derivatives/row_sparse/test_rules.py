"""Which equations keep rows, which make them arrays, and why; each against the dense program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_sparse_cases import (
    CHANGES,
    READS,
    TABLE,
    check,
    check_rows,
    loss,
    program,
    structured,
    table,
)

import incrax
from incrax.derivatives.row_sparse.structured import sparse_outputs
from incrax.derivatives.row_sparse.values import Context

IDS = jnp.array([3, 3, -1, 41, 12])
PARTS = "parts of rows are read"
NO_ROWS = {
    "all": "",
    "column": "all rows are read in part",
    "element": "",
    "elements": PARTS,
    "columns": PARTS,
    "updated": "",
    "scanned": "there is no rule for `scan`",
    "chosen": "there is no rule for `cond`",
    "of two": "there is no rule for `cond`",
}
DENSE = {
    "cosine": "the sum is over rows that are not zero",
    "read again": "the sum is over rows that are not zero",
    "momentum": "",
    "relu": "the sum is over rows that are not zero",
    "product with itself": "rows become columns",
    "reshaped": "",
    "flattened norm": "",
    "inner product": "",
    "transposed": "rows become columns",
    "columns filled": "",
    "cumulated": "accumulates along the rows",
    "in a loop": "there is no rule for `scan`",
    "slice read": "reads some of the rows by their place",
    "columns taken": "",
    "columns added": "",
    "by the largest": "it is no sum of the rows",
    "shifted by the least": "it is no sum of the rows",
    "apply if finite": "it is no sum of the rows",
    "masked": "",
    "multiplied there": "",
    "chosen": "there is no rule for `cond`",
}


@pytest.mark.parametrize("name", sorted(set(READS) - set(NO_ROWS)))
def test_what_is_read_gives_rows(name):
    check_rows(program([name], [], "by hand"), TABLE, IDS, cut_over=9.0, factor=4096.0)


@pytest.mark.parametrize("name", sorted(set(CHANGES) - set(DENSE)))
def test_changes_keep_rows(name):
    check_rows(program(["index"], [name], "both"), TABLE, IDS, cut_over=9.0, factor=4096.0)


@pytest.mark.parametrize(("name", "why"), sorted(DENSE.items()))
def test_changes_that_make_arrays_say_why(name, why):
    explanation = check(program(["index"], [name], "both"), TABLE, IDS, cut_over=9.0, factor=4096.0)
    assert not why or any(why in event.why for event in explanation.became_dense)


@pytest.mark.parametrize(("name", "why"), sorted(NO_ROWS.items()))
def test_reads_that_make_arrays_say_why(name, why):
    explanation = check(program([name], [], "by hand"), TABLE, IDS, cut_over=9.0, factor=4096.0)
    assert not why or why in [event.why for event in explanation.became_dense]


def test_rows_that_one_side_has_not_are_what_its_others_are():
    def step(t, i, j):
        one, other = jax.grad(loss)(t, i), jax.grad(loss)(t, j)
        return t - (one + 1.0) * other

    check_rows(step, table(), jnp.array([1, 2, 2]), jnp.array([2, 5, -7]))


def test_what_changes_all_rows_of_an_array_is_named():
    larger = lambda t, i: jnp.maximum(t, jax.grad(loss)(t, i))
    explanation = check(larger, table(), jnp.array([1, 2]))
    assert [event.why for event in explanation.became_dense] == ["all rows change in `max`"]


# --- limits ---------------------------------------------------------------------------------------


def step(t, ids):
    return t - 0.1 * jax.grad(loss)(t, ids)


@pytest.mark.parametrize(("count", "is_sparse"), [(100, True), (101, False)])
def test_more_rows_than_the_share_are_dense(count, is_sparse):
    explanation = check(step, table(), jnp.arange(count), cut_over=0.1)
    assert bool(explanation.stayed_sparse) is is_sparse
    whys = [event.why for event in explanation.became_dense]
    assert whys == ([] if is_sparse else ["101 rows stored of 1,000, more than the share 0.1"])


def test_terms_that_are_few_may_be_many_together():
    twice = lambda t, i: t - jax.grad(lambda t: loss(t, i) + loss(t, i + 1))(t)
    check_rows(twice, table(), jnp.arange(50), cut_over=0.1)
    explanation = check(twice, table(), jnp.arange(51), cut_over=0.1)
    assert [event.primitive for event in explanation.became_dense] == ["add_any"]


def test_small_arrays_are_left_alone_and_not_spoken_of():
    explanation = check(step, table(), jnp.arange(3), min_bytes=24_001)
    assert explanation.events == ()
    assert check(step, table(), jnp.arange(3), min_bytes=24_000).stayed_sparse


# --- what is not finite ---------------------------------------------------------------------------

RISKY = {
    "by an infinite number": lambda g, x: g * x[0],
    "by an array with infinities": lambda g, x: g * jnp.broadcast_to(x[:, None], g.shape),
    "by a zero": lambda g, x: g / x[1],
    "by a NaN": lambda g, x: g * x[2],
    "by an array with zeros": lambda g, x: g / jnp.broadcast_to(x[:, None], g.shape),
    "product": lambda g, x: g @ (x[0] * jnp.eye(3)),
}


@pytest.mark.parametrize("name", sorted(RISKY))
def test_rows_that_nothing_reads_are_zero_whatever_they_are_multiplied_by(name):
    x = jnp.ones(1000).at[:3].set(jnp.array([jnp.inf, 0.0, jnp.nan]))
    risky = lambda t, x: t - RISKY[name](jax.grad(loss)(t, jnp.array([5, 6])), x)
    ignored = structured(risky)(table(), x)
    assert bool(jnp.all(ignored[7:] == table()[7:]))
    assert not bool(jnp.all(jnp.isfinite(jax.jit(risky)(table(), x))))


def test_a_constant_infinity_counts():
    check(lambda t, i: t - np.inf * jax.grad(loss)(t, i), table(), jnp.array([1]))


def test_terms_that_cancel_do_so_before_they_meet_the_table():
    def cancelling(t, ids):
        return t - jax.grad(lambda t: jnp.sum(t[ids] * jnp.array([1e17, -1e17])[:, None]))(t)

    t = table()
    assert bool(jnp.all(structured(cancelling)(t, jnp.array([4, 4])) == t))


# --- row-sparse outputs ---------------------------------------------------------------------------


def test_gradients_are_given_as_rows_inside_jit():
    ids = jnp.array([4, 4, -1])

    @jax.jit
    def gradient(t):
        return sparse_outputs(
            jax.value_and_grad(lambda p: loss(p["t"], ids) * p["a"]), {"t": t, "a": 2.0}
        )

    value, g = gradient(table())
    expected, dense = jax.value_and_grad(lambda p: loss(p["t"], ids) * p["a"])(
        {"t": table(), "a": 2.0}
    )
    assert isinstance(g["t"], incrax.RowSparse)
    assert g["t"].num_rows == 3
    assert not isinstance(g["a"], incrax.RowSparse)
    np.testing.assert_allclose(g["t"].todense(), dense["t"], rtol=1e-12)
    np.testing.assert_allclose([value, g["a"]], [expected, dense["a"]], rtol=1e-12)


def test_an_output_that_is_not_zero_elsewhere_is_an_array():
    context = Context(min_bytes=0)
    out = sparse_outputs(
        lambda t: jnp.cos(jax.grad(loss)(t, jnp.array([1]))), table(), context=context
    )
    assert not isinstance(out, incrax.RowSparse)
    assert any("no longer zero" in event.why for event in context.events)


@pytest.mark.parametrize(
    "read",
    [lambda t: t[7] ** 2, lambda t: jnp.sum(t[3:5]), lambda t: jnp.sum(t[jnp.array([1, 1])])],
)
def test_vectors_have_rows_of_one_number(read):
    x = jnp.arange(100.0)
    g = sparse_outputs(jax.grad(read), x)
    assert isinstance(g, incrax.RowSparse)
    assert g.values.shape == g.indices.shape
    np.testing.assert_allclose(g.todense(), jax.grad(read)(x))


# --- the report and options -----------------------------------------------------------------------


def test_the_report_names_the_line_that_made_rows_dense():
    bad = lambda t, i: t - jnp.cumsum(jax.grad(loss)(t, i), axis=0)
    explanation = structured(bad).explain(table(), jnp.array([1, 2]))
    (event,) = [event for event in explanation.became_dense if event.primitive == "cumsum"]
    assert event.num_rows == 2
    assert event.type == "float64[1000, 3]"
    assert "test_rules.py" in event.line
    assert "cumsum" in str(explanation)
    assert explanation.as_dict()["became_dense"][0]["primitive"] == "cumsum"


def test_explaining_evaluates_nothing():
    shapes = (jax.ShapeDtypeStruct((1000, 3), np.float64), jax.ShapeDtypeStruct((2,), np.int32))
    assert structured(step).explain(*shapes).in_place


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="it must be a function"):
        incrax.structured(3)
