"""Comparisons with the dense program, and what a compiled program holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers import same

from incrax.derivatives.row_sparse.structured import Structured
from incrax.derivatives.row_sparse.values import Context

NUM_ROWS = 1000

PATTERNS = {
    "one": [7],
    "repeated": [3, 3, 3, 9],
    "negative": [-1, 5, -1000, 999],
    "out of range": [1000, 2, -1001, 5000, 2],
    "all the same place": [0] * 6,
    "empty": [],
    "descending": [9, 7, 5, 3, 1],
    "many": list(range(0, 200, 2)),
}


def table(n: int = NUM_ROWS, d: int = 3, seed: int = 0, dtype: Any = np.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)).astype(dtype))


def indices(name: str) -> jax.Array:
    return jnp.asarray(PATTERNS[name], np.int32)


def loss(t: Any, ids: Any) -> Any:
    """A loss that reads rows; what is out of range counts as a zero row."""
    rows = t.at[ids].get(mode="fill", fill_value=0.0)
    return jnp.sum(jnp.sin(rows + 0.3) ** 2 * jnp.arange(1.0, 1.0 + rows.size).reshape(rows.shape))


def sgd(t: Any, ids: Any) -> Any:
    return t - 0.1 * jax.grad(loss)(t, ids)


def momentum(t: Any, m: Any, ids: Any) -> Any:
    m = 0.9 * m + jax.grad(loss)(t, ids)
    return t - 0.1 * m, m


def adagrad(t: Any, s: Any, ids: Any) -> Any:
    g = jax.grad(loss)(t, ids)
    s = s + g * g
    return t - 0.1 * g * jax.lax.rsqrt(s + 1e-7), s


@functools.lru_cache(maxsize=8)
def structured(step: Callable[..., Any], **options: Any) -> Any:
    """`incrax.structured(step)` with other limits, for tables of any size; one object, compiled
    once, for all checks of a step.
    """
    return Structured(step, (), Context(**{"min_bytes": 0, "cut_over": 0.5, **options}))


def check(step: Callable[..., Any], *args: Any, factor: float = 512.0, **options: Any) -> Any:
    """`structured(step)` gives what `jax.jit(step)` gives; returns its explanation."""
    function = structured(step, **options)
    same(function(*args), jax.jit(step)(*args), factor=factor)
    return function.explain(*args)


def check_rows(step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The same, and nothing became dense."""
    explanation = check(step, *args, **options)
    assert explanation.stayed_sparse
    assert not explanation.became_dense, str(explanation)
    return explanation


# --- programs of a small table --------------------------------------------------------------------

N, D, K = 40, 3, 5
TABLE = jnp.asarray(np.random.default_rng(1).normal(size=(N, D)))
OTHER = jnp.asarray(np.random.default_rng(2).uniform(0.5, 1.5, size=(N, D)))

READS = {
    "index": lambda t, i: t[i],
    "fill": lambda t, i: t.at[i].get(mode="fill", fill_value=0.5),
    "clip": lambda t, i: jnp.take(t, i, axis=0, mode="clip"),
    "element": lambda t, i: t[i[0], 1][None, None],
    "elements": lambda t, i: t[i, i % D][:, None],
    "columns": lambda t, i: t[i, 1:],
    "slice": lambda t, i: t[4:9],
    "strided": lambda t, i: t[2:14:3],
    "part": lambda t, i: t[3:6, 1:2],
    "dynamic slice": lambda t, i: jax.lax.dynamic_slice(t, (i[0], i[1] % 2), (4, 2)),
    "twice": lambda t, i: t[i] * t[i[::-1]],
    "grid": lambda t, i: t[i[:4].reshape(2, 2)].reshape(4, D),
    "vmapped": lambda t, i: jax.vmap(lambda j: jnp.tanh(t[j]))(i),
    "mask": lambda t, i: t[np.arange(N) % 7 == 3],
    "updated": lambda t, i: t.at[i[:2]].set(2.0)[i],
    "added": lambda t, i: t.at[i[:2]].add(2.0)[i[1:]] ** 2,
    "scanned": lambda t, i: jax.lax.scan(lambda c, j: (c + jnp.sum(t[j]), t[j]), 0.0, i)[1],
    "chosen": lambda t, i: jax.lax.cond(i[0] > 3, lambda: t[i], lambda: 2.0 * t[i + 1]),
    "of two": lambda t, i: jax.lax.switch(
        i[0] % 3, [lambda: t[i], lambda: t[:K] * 3.0, lambda: jnp.ones((K, D))]
    ),
    "recomputed": lambda t, i: jax.checkpoint(lambda t: jnp.sin(jnp.cos(t[i])))(t),
    "cast": lambda t, i: t[i].astype(np.float32),
    "all": lambda t, i: t * 1.5,
    "column": lambda t, i: t[:, 1:2],
}

CHANGES = {
    "scale": lambda g, t, i: -0.5 * g,
    "by a number": lambda g, t, i: g * jnp.sum(t[0]),
    "divide": lambda g, t, i: g / (1.0 + jnp.sum(t[1] ** 2)),
    "by an array": lambda g, t, i: g * OTHER,
    "by a row": lambda g, t, i: g * t[2],
    "clip": lambda g, t, i: jnp.clip(g, -0.3, 0.4),
    "clip by norm": lambda g, t, i: g * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(g * g) + 1e-6)),
    "by the largest": lambda g, t, i: g / (1.0 + jnp.max(jnp.abs(g))),
    "shifted by the least": lambda g, t, i: g - jnp.min(g) * g,
    "row norms": lambda g, t, i: g / (1.0 + jnp.linalg.norm(g, axis=1, keepdims=True) ** 2),
    "square": lambda g, t, i: jnp.square(g) - g,
    "sign": lambda g, t, i: jnp.sign(g),
    "where": lambda g, t, i: jnp.where(g > 0, g, 0.1 * g),
    "finite": lambda g, t, i: jnp.where(jnp.isfinite(g), g, 0.0),
    "apply if finite": lambda g, t, i: jnp.where(jnp.all(jnp.isfinite(g)), g, 0.0),
    "momentum": lambda g, t, i: 0.9 * OTHER + g,
    "cosine": lambda g, t, i: jnp.cos(g),
    "inner product": lambda g, t, i: g * jnp.vdot(g, OTHER),
    "product with itself": lambda g, t, i: g + 0.01 * g @ (g.T @ g),
    "of columns": lambda g, t, i: g @ jnp.ones((D, D)),
    "column sums": lambda g, t, i: g - 0.1 * jnp.sum(g, axis=0) * g,
    "reshaped": lambda g, t, i: (g.reshape(N * D) * 2.0).reshape(N, D),
    "flattened norm": lambda g, t, i: g / (1.0 + jnp.sum(g.ravel() ** 2)),
    "transposed": lambda g, t, i: (2.0 * g.T).T,
    "more axes": lambda g, t, i: jnp.squeeze(g[:, None, ::-1] * 3.0, 1),
    "joined": lambda g, t, i: g + jnp.zeros_like(g).at[i].add(1.0, mode="drop"),
    "halved": lambda g, t, i: g.astype(np.float32).astype(np.float64),
    "read again": lambda g, t, i: g + jnp.sum(g[i] ** 2),
    "slice read": lambda g, t, i: g * jnp.sum(g[2:7]),
    "masked": lambda g, t, i: g.at[i[0]].set(0.0),
    "multiplied there": lambda g, t, i: g.at[i[:2]].multiply(3.0),
    "sorted": lambda g, t, i: jnp.sort(g, axis=1),
    "sorted and turned": lambda g, t, i: jnp.sort(g[:, ::-1] * OTHER, axis=1),
    "cumulated in rows": lambda g, t, i: jnp.cumsum(g, axis=1),
    "columns taken": lambda g, t, i: jnp.take(g, jnp.array([2, 0, 7]), axis=1, mode="clip"),
    "columns filled": lambda g, t, i: jnp.nan_to_num(
        g.at[:, jnp.array([2, 0, 7])].get(mode="fill"), nan=0.25
    ),
    "columns joined": lambda g, t, i: jnp.concatenate([g[:, 1:], OTHER[:, :1] * g[:, :1]], axis=1),
    "columns added": lambda g, t, i: g.at[:, jnp.array([2, 0])].add(0.5 * g[:, :2]),
    "columns padded": lambda g, t, i: jnp.pad(g, ((0, 0), (1, 0)))[:, :D],
    "product of each row": lambda g, t, i: g * jnp.einsum("nd,nd->n", g, OTHER)[:, None],
    "a matrix for each row": lambda g, t, i: jnp.einsum(
        "nd,nde->ne", g, OTHER[:, :, None] * OTHER[:, None]
    ),
    "largest place": lambda g, t, i: g * jnp.argmax(g, axis=1, keepdims=True),
    "cumulated": lambda g, t, i: jnp.cumsum(g, axis=0),
    "chosen": lambda g, t, i: jax.lax.cond(t[0, 0] > 0, lambda: 2.0 * g, lambda: jnp.zeros_like(g)),
    "in a loop": lambda g, t, i: jax.lax.fori_loop(0, 3, lambda _, x: 0.5 * x, g),
    "in a jit": lambda g, t, i: jax.jit(lambda g: 2.0 * g)(g),
    "barrier": lambda g, t, i: jax.lax.optimization_barrier(g),
    "relu": lambda g, t, i: jax.nn.relu(g) + jax.nn.softplus(g),
}

UPDATES = {
    "by hand": lambda t, g: t - 0.1 * g,
    "reversed": lambda t, g: -g + t,
    "gradient": lambda t, g: g,
    "both": lambda t, g: (t - 0.1 * g, jnp.sum(g), g * g + OTHER),
    "nothing": lambda t, g: t,
    "only norm": lambda t, g: jnp.sqrt(jnp.sum(g**2)),
}


def program(read: Any, changed: Any, update: str) -> Any:
    """A step: a loss of what is read, its gradient changed, an update."""

    def step(t, i):
        def loss(t):
            return sum(
                jnp.sum(jnp.sin(READS[name](t, i)) * (1.0 + n)) for n, name in enumerate(read)
            )

        g = jax.grad(loss)(t)
        for name in changed:
            g = CHANGES[name](g, t, i)
        return UPDATES[update](t, g)

    return step
