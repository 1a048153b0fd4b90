"""Patterns found from derivatives at some points: what the analysis must never miss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from incrax._program import trace
from incrax.derivatives.sparsity.search import hessian_pattern, pattern_of

N = 12
POINTS = [np.random.default_rng(seed).normal(size=N) for seed in range(3)] + [
    np.linspace(0.1, 2.0, N)
]


def flat(fun):
    """A function of one vector to all of its outputs in one vector."""
    return lambda x: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(fun(x))])


def found(fun, x=POINTS[0]):
    return pattern_of(trace(fun, x)).toarray()


def found_hessian(fun, x=POINTS[0]):
    return hessian_pattern(trace(fun, x)).toarray()


def seen(derivative, points=POINTS):
    """Where the derivative is nonzero at any of the points; compiled, which is faster than
    operation by operation.
    """
    compiled = jax.jit(derivative)
    return np.any([np.nan_to_num(np.asarray(compiled(x))) != 0 for x in points], axis=0)


def band(size, lower, upper, *, rows=None):
    """Row i has columns i - lower to i + upper."""
    difference = np.arange(size)[None, :] - np.arange(rows or size)[:, None]
    return (difference >= -lower) & (difference <= upper)


def blocks(count, size):
    return np.kron(np.eye(count, dtype=bool), np.ones((size, size), bool))
