"""A saved matrix whose entries leave their range is not used: the whole program serves instead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax

X = np.linspace(0.1, 2.0, 100_000)


def model(n, m, s, t, x):
    """The derivatives by s and t add up terms with clean factors such as s**-2 and s**-3."""
    first, second = jnp.exp(-((x / s) ** 2)) / s, jnp.exp(-x * t) * t
    return n + m - jnp.sum(jnp.log(n * first + m * second))


GRADIENT = jax.value_and_grad(model, argnums=(0, 1, 2, 3))


def entries(ours):
    return [entry for entry in ours._latest.engine.chooser.entries.values() if entry.is_planned]


@pytest.mark.parametrize("s", [1.0, 1e-3, 1e8, 1e60, 1e100, 1e150, 1e-120])
def test_results_equal_jit_whatever_the_range(s):
    ours, plain = incrax.incremental(GRADIENT, tuning=EAGER), jax.jit(GRADIENT)
    for n in (1.0, 2.0, 3.0, 4.0, 4.5):
        (value, gradient), (known_value, known) = ours(n, 2.0, s, 1.1, X), plain(n, 2.0, s, 1.1, X)
        same(value, known_value, factor=1024)
        for mine, other in zip(gradient, known, strict=True):
            same(mine, other, factor=4096)


def test_an_unusable_matrix_bars_the_plan_and_says_why():
    ours = incrax.incremental(GRADIENT, tuning=EAGER)
    for n in (3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6):
        ours(n, 2.0, 1e-120, 1.1, X)
    derived = ours._latest.engine.facts.derived
    assert derived.flags
    barred = [entry for entry in entries(ours) if entry.is_barred]
    assert len(barred) == 1
    assert "range" in ours.explain().as_dict()["why"]
    assert barred[0].program is None
    compiles = ours.stats.compiles
    for n in (5.0, 6.0, 7.0, 8.0):
        ours(n, 2.0, 1e-120, 1.1, X)
    assert ours.stats.compiles == compiles


def test_a_usable_matrix_is_used():
    ours = incrax.incremental(GRADIENT, tuning=EAGER)
    for n in (3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6):
        ours(n, 2.0, 0.7, 1.1, X)
    assert "dot_general" in [step["primitive"] for step in ours.explain().as_dict()["ran"]]
    assert not any(entry.is_barred for entry in entries(ours))
