"""Rows at the edges: one row, constants, functions on the host, loops with calls in them, ancestors
without end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax
from incrax.engine.inputs import chunks

CHUNK = 8
RNG = np.random.default_rng(4)
X = RNG.normal(size=(21, 3))
A = 0.7


def check_parts(fun, starts=(9, 1), chunk_rows=CHUNK):
    """From a few rows to more of them, with parameters that change."""
    plain = jax.jit(fun)
    for start in starts:
        f, rows = (
            incrax.incremental(fun, tuning=MINIMAL),
            incrax.Rows(X[:start], chunk_rows=chunk_rows),
        )
        for a, part in ((A, X[:0]), (1.1, X[3:14]), (A, X[:0])):
            rows = rows.append(part)
            same(f(a, rows), plain(a, rows.tree()), factor=1024)


# --- one row --------------------------------------------------------------------------------------

BROADCASTING = {
    "columns": lambda a, x: jnp.sum(x[:, :1] * jnp.arange(4.0) * a),
    "centred": lambda a, x: jnp.sum((x - x.mean(0)) ** 2 * a),
    "residuals": lambda a, x: jnp.sum((x - a * jnp.array([1.0, 2.0, 3.0])) ** 2),
    "keepdims": lambda a, x: jnp.sum((x - x.mean(1, keepdims=True)) ** 2 * a),
    "softmax": lambda a, x: -jnp.mean(jax.nn.log_softmax(x * a, axis=1)[:, 0]),
    "mean": lambda a, x: jnp.mean(x * a),
    "number": lambda a, x: jnp.sum(x * a) / (len(x) + 2) + len(x) // 2,
}


@pytest.mark.parametrize("name", BROADCASTING)
def test_one_row_is_like_many(name):
    check_parts(jax.value_and_grad(BROADCASTING[name]))


@pytest.mark.parametrize("name", BROADCASTING)
@pytest.mark.parametrize("chunk_rows", [1, 2])
def test_chunks_of_one_row_are_like_larger_ones(name, chunk_rows):
    check_parts(jax.value_and_grad(BROADCASTING[name]), (5,), chunk_rows)


def test_the_softmax_over_few_rows_maps_them():
    check_parts(lambda a, x: jax.nn.softmax(x * a, axis=0))


def test_one_row_is_evaluated_as_an_array_and_saved_as_one():
    f = incrax.incremental(
        lambda a, x: (jnp.sum(jnp.sin(x)) * a, 1 if len(x) == 1 else 2), tuning=MINIMAL
    )
    rows = incrax.Rows(X[:1])
    same(f(A, rows), jax.jit(f.__wrapped__)(A, X[:1]))
    ran = f.stats.ran
    f(A, rows)
    assert f.stats.ran == ran
    assert f.stats.calls == 2
    assert f.stats.chunks_run == 0


def test_one_row_in_two_places_is_refused_like_many():
    rows = incrax.Rows(X[:1])
    with pytest.raises(incrax.errors.RowsError, match="in 2 places"):
        incrax.incremental(lambda x, y: jnp.sum(x + y))(rows, rows)


# --- constants ------------------------------------------------------------------------------------

TABLE = np.arange(5.0)
CONSTANTS = {
    "array": lambda a, x: (jnp.sum(x * a), TABLE),
    "device array": lambda a, x: (jnp.sum(x * a), jnp.asarray(TABLE)),
    "used as well": lambda a, x: (jnp.sum(x * a) * TABLE[1:], TABLE),
    "numbers": lambda a, x: (jnp.sum(x), 3.0, 2, True, None, np.float32(3), len(x), len(x) / 2),
    "scalar": lambda a, x: (jnp.sum(x), jnp.asarray(2.5)),
    "nothing else": lambda a, x: TABLE,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_may_be_results(name):
    check_parts(CONSTANTS[name])


def test_results_that_are_constants_belong_to_the_caller():
    table = jnp.arange(5.0)
    f, rows = (
        incrax.incremental(lambda a, x: (jnp.sum(x * a), table)),
        incrax.Rows(X, chunk_rows=CHUNK),
    )
    f(A, rows)[1].delete()
    same(f(A, rows)[1], jnp.arange(5.0))


# --- loops ----------------------------------------------------------------------------------------


def in_loop(step):
    return lambda a, x: jnp.sum(jax.lax.fori_loop(0, 3, lambda i, c: step(a, c), x))


CALLING = {
    "where": in_loop(lambda a, c: c + jnp.where(c > a, 1.0, 0.0)),
    "clip": in_loop(lambda a, c: jnp.clip(c * a, -1, 1)),
    "relu and gelu": in_loop(lambda a, c: jax.nn.relu(c * a) + jax.nn.gelu(c)),
    "nested": in_loop(
        lambda a, c: jax.lax.cond(a > 0, lambda y: jnp.where(y > 0, y, a), jnp.sin, c)
    ),
    "interp": lambda a, x: jnp.sum(jnp.interp(x, jnp.linspace(-3, 3, 9), jnp.arange(9.0) * a)),
    "digitize": lambda a, x: jnp.sum(jnp.digitize(x, jnp.linspace(-3, 3, 9)) * a),
    "searchsorted": lambda a, x: jnp.sum(jnp.searchsorted(jnp.linspace(-3, 3, 9), x * a)),
    "scan": lambda a, x: jnp.sum(
        jax.lax.scan(lambda c, y: (jnp.where(y > 0, c, y * a), None), x[:, 0], x.T)[0]
    ),
}


@pytest.mark.parametrize("name", CALLING)
def test_calls_in_loops_map_rows(name):
    check_parts(CALLING[name])


def test_a_reduction_in_a_call_in_a_loop_is_refused_with_its_line():
    f = incrax.incremental(in_loop(lambda a, c: c - jnp.mean(c * a, axis=0)))
    with pytest.raises(
        incrax.errors.MixedRowsError, match=r"`reduce_sum` at .*test_edges\.py:\d+.* inside a loop"
    ):
        f(A, incrax.Rows(X, chunk_rows=CHUNK))


# --- functions on the host ------------------------------------------------------------------------

SCALAR = jax.ShapeDtypeStruct((), np.float64)


def test_what_a_function_on_the_host_returned_is_remembered():
    seen = []

    def host(a):
        seen.append(float(a))
        return np.asarray(2 * a)

    fun = lambda a, b, x: (
        jnp.sum(x) * b + jax.pure_callback(host, SCALAR, a) + jax.pure_callback(host, SCALAR, b)
    )
    f, rows = incrax.incremental(fun), incrax.Rows(X, chunk_rows=CHUNK)
    for b, part in ((1.0, X[:0]), (1.0, X[:2]), (3.0, X[:1]), (1.0, X[:3])):
        rows = rows.append(part)
        found = f(A, b, rows)
        before = len(seen)
        same(found, jax.jit(fun)(A, b, rows.tree()), factor=256)
        del seen[before:]
    assert sorted(seen) == [A, 1.0, 3.0]


@pytest.mark.cpu
@pytest.mark.parametrize("place", ["after the reduction", "before it"])
def test_a_function_on_the_host_that_calls_its_own_function_is_an_error(place):
    def host(a):
        return np.asarray(f(3.0, rows))

    def fun(a, x):
        inner = jax.pure_callback(host, SCALAR, a)
        return jnp.sum(x) * inner if place == "after the reduction" else jnp.sum(jnp.sin(x * inner))

    f, rows = incrax.incremental(fun), incrax.Rows(X, chunk_rows=CHUNK)
    with pytest.raises(Exception, match="its own|ReentrantCallError"):
        f(2.0, rows)


# --- ancestors ------------------------------------------------------------------------------------


def test_joined_chunks_know_those_that_they_were_joined_from(monkeypatch):
    monkeypatch.setattr(chunks, "MAX_CHUNKS", 4)
    f = incrax.incremental(lambda a, x: jnp.sum(x) * a, tuning=MINIMAL)
    rows = incrax.Rows(X[:1, 0], chunk_rows=2**14)
    for _ in range(6000):
        rows = rows.append(X[:1, 0])
    assert max(len(chunk.parents) for chunk in rows._chunks) <= 5
    same(f(2.0, rows), jax.jit(f.__wrapped__)(2.0, rows.tree()), factor=1024)


# --- types ----------------------------------------------------------------------------------------


def test_numbers_of_rows_may_be_of_any_integer_type():
    class Source:
        num_rows = np.int64(21)

        def read(self, start, stop):
            return X[start:stop]

    for rows in (
        incrax.Rows(X, chunk_rows=np.int64(8)),
        incrax.Rows.from_source(Source(), chunk_rows=np.int64(8)),
        incrax.Rows(X, chunk_rows=8).replace(np.int32(3), X[3:5]),
    ):
        assert len(rows._chunks) == 3
        assert type(rows.chunk_rows) is int
        same(rows.tree(), jnp.asarray(X))


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min], ids=["max", "min"])
def test_the_largest_of_complex_rows_is_refused_with_its_line(reduce):
    f = incrax.incremental(lambda a, x: reduce(x * a))
    with pytest.raises(
        incrax.errors.MixedRowsError, match=r"test_edges\.py:\d+.* compares complex numbers"
    ):
        f(A, incrax.Rows(X[:, 0] + 1j, chunk_rows=CHUNK))
