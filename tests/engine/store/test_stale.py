"""Saved values that a change reaches are never read again, whatever serves the change."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax

X = np.linspace(0.1, 2.0, 100_000)


def model(a, b, c, x):
    first, second = jnp.exp(jnp.sin(a * x) ** 3), jnp.exp(jnp.cos(b * x) ** 5)
    return jnp.sum(first * second), jnp.sum(jnp.tanh(c * first) * second)


@pytest.mark.parametrize(
    "order", list(itertools.permutations("abc")) + ["aabb", "abab", "aaab", "abcacb"]
)
def test_changes_in_turn_equal_jit(order):
    ours, plain = incrax.incremental(model, tuning=EAGER), jax.jit(model)
    p = {"a": 1.0, "b": 2.0, "c": 0.5}
    ours(**p, x=X)
    for name in (*order, *order, *order):
        p[name] *= 1.07
        for mine, known in zip(ours(**p, x=X), plain(**p, x=X), strict=True):
            same(mine, known, factor=1024)
    assert ours.stats.loaded
