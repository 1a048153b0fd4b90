"""Programs with arrays of no elements: as `jax.jit`, in value and gradient, under both policies,
with and without algebra over rows.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax

S = 0.7
V3 = np.array([0.5, 1.0, 2.0])
E0 = np.zeros(0)
E03 = np.zeros((0, 3))
E30 = np.zeros((3, 0))
A35 = np.linspace(-1.0, 1.0, 15).reshape(3, 5)
I0 = np.zeros(0, int)


def normal(x, mu, sigma):
    return -0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma)


# Each is a function of a number, a vector of three, and the empty array given here.
PROGRAMS = {
    "matrix times vector": (lambda s, v, e: jnp.sum(s * (e @ v)), E03),
    "matrix times matrix": (lambda s, v, e: s * jnp.sum((e @ (v[:, None] * A35)) ** 2), E03),
    "vector times matrix": (lambda s, v, e: s * (v @ e), E30),
    "sum over nothing in a product": (lambda s, v, e: s * v * (e @ e.T), E30),
    "outer product": (lambda s, v, e: s * jnp.outer(e, v), E0),
    "batched product": (lambda s, v, e: s * jnp.einsum("bij,j->bi", e, v), np.zeros((0, 2, 3))),
    "convolution": (lambda s, v, e: s * jnp.sum(jnp.convolve(v, jnp.ones(2)) * jnp.sum(e)), E0),
    "sum of a polynomial": (lambda s, v, e: jnp.sum((s * e - v[0]) ** 2), E0),
    "likelihood": (lambda s, v, e: jnp.sum(normal(e, v[0], s)), E0),
    "mixture": (lambda s, v, e: jnp.sum(jnp.log(s * jnp.exp(normal(e, v[0], v[1])) + 0.1)), E0),
    "sum of rows": (lambda s, v, e: jnp.sum(s * e, axis=0) * v, E03),
    "sum of columns": (lambda s, v, e: jnp.sum(s * e * v, axis=1), E03),
    "product of all": (lambda s, v, e: s * jnp.prod(e), E0),
    "largest of each": (lambda s, v, e: s * jnp.max(e * v, axis=1), E03),
    "mean": (lambda s, v, e: s * jnp.mean(e), E0),
    "running sum": (lambda s, v, e: s * jnp.cumsum(e * v[0]), E0),
    "running sum along rows": (lambda s, v, e: s * jnp.cumsum(e * v, axis=0), E03),
    "logsumexp with a number": (lambda s, v, e: jax.nn.logsumexp(jnp.concatenate([e, v * s])), E0),
    "concatenation": (lambda s, v, e: jnp.sum(jnp.concatenate([e, v * s]) ** 2), E0),
    "stack": (lambda s, v, e: jnp.stack([e * s, e * v[0]]), E0),
    "split": (lambda s, v, e: jnp.split(jnp.concatenate([v, s * e]), [0, 3])[0], E0),
    "padding": (lambda s, v, e: jnp.pad(s * e, 2, constant_values=1.0) * v[0], E0),
    "padding with insides": (lambda s, v, e: jax.lax.pad(s * e, v[0], [(1, 1, 2)]), E0),
    "reshape": (lambda s, v, e: s * e.reshape(0, 7), E03),
    "transpose and reversal": (lambda s, v, e: s * e.T[::-1], E03),
    "no rows of a vector": (lambda s, v, e: s * v[e.astype(int)], E0),
    "no rows of known numbers": (lambda s, v, e: s * v[I0] + jnp.sum(e), E0),
    "rows of nothing": (
        lambda s, v, e: jnp.take(s * e, jnp.arange(2), axis=1, mode="fill", fill_value=1.0),
        E03,
    ),
    "slice": (lambda s, v, e: s * v[3:] * e, E0),
    "dynamic slice": (lambda s, v, e: jax.lax.dynamic_slice(s * v, (1,), (0,)) * e, E0),
    "dynamic update": (lambda s, v, e: jax.lax.dynamic_update_slice(s * v, e, (1,)), E0),
    "scatter": (lambda s, v, e: (s * v).at[I0].add(e), E0),
    "scatter into nothing": (
        # JAX has no derivative of it.
        lambda s, v, e: s * e + jax.ops.segment_sum(jax.lax.stop_gradient(s * v), np.arange(3), 0),
        E0,
    ),
    "selection": (lambda s, v, e: jnp.where(e > 0, s * e, v[0]), E0),
    "broadcast": (lambda s, v, e: s * jnp.broadcast_to(v, (0, 3)) * e, E03),
    "sort": (lambda s, v, e: s * jnp.sort(e), E0),
    "scan over nothing": (lambda s, v, e: jax.lax.scan(lambda c, x: (c * x, c), v * s, e), E0),
    "scan of empty carry": (lambda s, v, e: jax.lax.scan(lambda c, x: (c * x, x), s * e, v), E0),
    "branches": (lambda s, v, e: jax.lax.cond(s > 0, lambda: s * e, lambda: e * v[0]), E0),
    "vmap over nothing": (lambda s, v, e: jax.vmap(lambda x: jnp.sum(x * v) * s)(e), E03),
    "complex": (lambda s, v, e: jnp.sum(jnp.abs(jnp.exp(1j * e * s)) ** 2), E0),
    "factorised": (
        lambda s, v, e: s * jnp.sum(e * v[0]) + s * jnp.sum(e * v[1] ** 2) + jnp.sum(v),
        E0,
    ),
}


def total(fun):
    """The sum of all that a function returns, to be differentiated."""
    return lambda s, v, e: sum(jnp.sum(jnp.real(x)) for x in jax.tree.leaves(fun(s, v, e)))


OPTIONS = [{}, {"algebra": True}, {"policy": "exact"}]


@pytest.mark.parametrize(("name", "options"), list(zip(PROGRAMS, itertools.cycle(OPTIONS))))  # noqa: B905
def test_programs_with_empty_arrays_are_as_under_jit(name, options):
    value, empty = PROGRAMS[name]
    fun = lambda s, v, e: (value(s, v, e), jax.grad(total(value), argnums=(0, 1, 2))(s, v, e))
    ours, expected = incrax.incremental(fun, tuning=EAGER, **options), jax.jit(fun)
    for args in [(S, V3), (0.9, V3), (0.9, V3 + 1), (0.8, V3 + 1), (0.8, V3 * [1, 1, 2]), (S, V3)]:
        same(ours(*args, empty), expected(*args, empty))


def test_hessian_and_pure_form_of_an_empty_product():
    fun = jax.hessian(lambda v, e: jnp.sum((e @ v) ** 2) + jnp.sum(v**3))
    state, step = incrax.incremental(fun).pure(V3, E03)
    same(jax.jit(step)(state, 2 * V3, E03)[1], jax.jit(fun)(2 * V3, E03))


def test_rows_without_features():
    """Rows as `Rows`, of which each has no elements."""
    fun = lambda v, data: jnp.sum(data @ v) + jnp.sum(v)
    ours = incrax.incremental(fun)
    for scale in (1.0, 2.0):
        same(
            ours(np.zeros(0) * scale, incrax.Rows(np.zeros((20, 0)))),
            jax.jit(fun)(np.zeros(0), np.zeros((20, 0))),
        )
