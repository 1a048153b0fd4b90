"""Small functions that use rows and their number in many ways, through any timeline: plain JAX, or
refused.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FAST, MINIMAL, examples, same
from hypothesis import example, given
from hypothesis import strategies as st

import incrax

TABLE = np.array([0.5, -1.0, 2.0])


def scanned(step, start, xs):
    return jax.lax.scan(lambda c, x: (step(c, x), None), start, xs)[0]


MAPPED = {
    "sum": lambda a, x: jnp.sum(jnp.sin(x @ a)),
    "mean": lambda a, x: jnp.mean(jnp.sin(x @ a)),
    "over a part of n": lambda a, x: jnp.sum(x @ a) / (len(x) // 7 + 1),
    "half of n rows": lambda a, x: jnp.sum(jnp.tanh(x @ a * (len(x) // 2))),
    "times n": lambda a, x: jnp.sum(x @ a * len(x)),
    "over n - 1": lambda a, x: jnp.sum((x @ a) ** 2) / (len(x) - 1 or 1),
    "a share of n": lambda a, x: jnp.sum(x @ a) * max(1, int(0.1 * len(x))),
    "at most n": lambda a, x: jnp.sum(x @ a) / min(len(x), 18) + max(len(x), 25) * a[0],
    "few rows or many": lambda a, x: jnp.sum(x @ a) * (1.0 if len(x) < 19 else 0.5),
    "n by itself": lambda a, x: a[0] * len(x) + a[1] * math.log(len(x)) + a[2] * (len(x) % 3),
    "variance": lambda a, x: jnp.var(x @ a) + jnp.std(x[:, 0] * a[1]),
    "softmax over rows": lambda a, x: jnp.sum(jax.nn.softmax(x @ a) * x[:, 0]),
    "standardised": lambda a, x: jnp.sum(
        jnp.tanh((x @ a - jnp.mean(x @ a)) / (jnp.std(x @ a) + 1))
    ),
    "range": lambda a, x: jnp.max(x @ a) - jnp.min(jnp.abs(x) * a),
    "largest share": lambda a, x: jnp.max(x @ a / (1 + jnp.max(jnp.abs(x @ a)))),
    "at the least": lambda a, x: jnp.sum(
        jnp.where((z := jnp.sin(x @ a)) == jnp.min(z, keepdims=True), z * x[:, 0], 0.0)
    ),
    "residuals": lambda a, x: jnp.mean((x - a) ** 2),
    "columns": lambda a, x: jnp.sum((x - x.mean(1, keepdims=True)) ** 2 @ a),
    "where in a scan": lambda a, x: jnp.sum(
        jax.lax.scan(lambda c, y: (jnp.where(y > c, c, y * 0.5), None), x @ a, x.T)[0]
    ),
    "product of matrices": lambda a, x: jnp.sum(jnp.linalg.inv(x.T @ x / len(x) + jnp.eye(3)) @ a),
}
BESIDE = {
    "nothing": lambda a, x: None,
    "a constant": lambda a, x: (TABLE, 3.0),
    "each row": lambda a, x: (x * a, x @ a / len(x)),
    "n": lambda a, x: (len(x), len(x) // 4, 1 / len(x)),
    "a parameter": lambda a, x: {"a": a, "x": x},
}
REFUSED = {
    "loop": lambda a, x: jax.lax.fori_loop(0, len(x), lambda i, c: c * 0.9, a) * jnp.sum(x),
    "loop of half": lambda a, x: (
        jax.lax.fori_loop(0, len(x) // 2, lambda i, c: c * 0.9, a) * jnp.sum(x)
    ),
    "stacked": lambda a, x: (
        jnp.sum(x) + jax.lax.scan(lambda c, _: (c, c[0]), a, None, length=len(x))[1]
    ),
    "in a loop": lambda a, x: jax.lax.fori_loop(0, 2, lambda i, c: c / len(x), a) * jnp.sum(x),
    "bins": lambda a, x: jnp.zeros(len(x) // 5) + jnp.sum(x @ a),
    "another function": lambda a, x: jnp.sum(x @ a) if len(x) < 23 else jnp.sum(jnp.exp(x @ a)),
    "cumulated": lambda a, x: jnp.sum(jnp.cumsum(x @ a)),
    "first rows": lambda a, x: jnp.sum(x[: len(x) // 2]),
}
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "replace", "parameter", "back"]),
        st.sampled_from([1, 2, 9]),
    ),
    max_size=4,
)


def rows_like(num, seed):
    return np.random.default_rng(seed).normal(size=(num, 3))


def timeline(actions, start, chunk_rows):
    """Parameters and rows of each call."""
    rows, a = incrax.Rows(rows_like(start, 0), chunk_rows=chunk_rows), np.array([0.7, -0.4, 0.2])
    points = [(a, rows)]
    for number, (action, size) in enumerate(actions, 1):
        if action == "append":
            rows = rows.append(rows_like(size, number))
        elif action == "replace":
            first = max(len(rows) - size - 1, 0)
            rows = rows.replace(first, rows_like(min(size, len(rows) - first), number))
        elif action == "parameter":
            a = a + np.eye(3)[number % 3] * 0.1 * size
        else:
            a, rows = points[-size % len(points)]
        points.append((a, rows))
    return points


@given(
    st.sampled_from(sorted(MAPPED)),
    st.sampled_from(sorted(BESIDE)),
    st.booleans(),
    ACTIONS,
    st.sampled_from([1, 2, 7, 16]),
    st.sampled_from([1, 4, 8, 1024]),
)
@example("over a part of n", "n", True, [("append", 9), ("append", 9)], 16, 8)
@example("residuals", "each row", True, [("append", 1), ("append", 9)], 1, 8)
@example(
    "few rows or many", "a constant", False, [("append", 2), ("append", 2), ("back", 2)], 16, 1
)
@pytest.mark.exhaustive
def test_any_function_of_rows_is_plain_jax_at_every_call(
    name, beside, is_gradient, actions, start, chunk_rows
):
    value = jax.value_and_grad(MAPPED[name]) if is_gradient else MAPPED[name]
    fun = lambda a, x: (value(a, x), BESIDE[beside](a, x))
    f, plain = incrax.incremental(fun, tuning=MINIMAL if start % 2 else FAST), jax.jit(fun)
    for a, rows in timeline(actions, start, chunk_rows):
        same(f(a, rows), plain(a, rows.tree()), factor=4096)


@examples(1 / 5)
@given(st.sampled_from(sorted(REFUSED)), st.sampled_from([2, 7, 16]), st.sampled_from([1, 8, 1024]))
def test_no_function_that_mixes_rows_is_evaluated(name, start, chunk_rows):
    f = incrax.incremental(REFUSED[name])
    with pytest.raises(incrax.errors.MixedRowsError):
        f(np.array([0.7, -0.4, 0.2]), incrax.Rows(rows_like(start, 0), chunk_rows=chunk_rows))
    assert f.stats.chunks_run == f.stats.ran == 0
