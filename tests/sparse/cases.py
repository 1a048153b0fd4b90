"""Comparisons with the dense program, and what a compiled program holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers import same

import incrax

N, D = 1000, 3

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


def table(n: int = N, d: int = D, seed: int = 0, dtype: Any = np.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)).astype(dtype))


def indices(name: str) -> jax.Array:
    return jnp.asarray(PATTERNS[name], np.int32)


def loss(t: Any, ids: Any) -> Any:
    """A loss that reads rows; what is out of range counts as a zero row."""
    rows = t.at[ids].get(mode="fill", fill_value=0.0)
    return jnp.sum(jnp.sin(rows) ** 2 * jnp.arange(1.0, 1.0 + rows.size).reshape(rows.shape))


def check(step: Callable[..., Any], *args: Any, factor: float = 512.0, **options: Any) -> Any:
    """`structured(step)` gives what `jax.jit(step)` gives; returns its explanation."""
    function = incrax.structured(step, **{"min_bytes": 0, "cut_over": 0.5, **options})
    same(function(*args), jax.jit(step)(*args), factor=factor)
    return function.explain(*args)


def check_rows(step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The same, and nothing became dense."""
    explanation = check(step, *args, **options)
    assert explanation.stayed_sparse
    assert not explanation.became_dense, str(explanation)
    return explanation
