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
    return [
        entry for entry in ours._traces.latest.engine.chooser.entries.values() if entry.is_decided
    ]


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
    derived = ours._traces.latest.engine.facts.derived
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


def many(t, s, r, rows):
    """Sums with a scale outside; the guard refuses scales that are zero, infinite or not a
    number.
    """
    u = jnp.exp(t * r)
    return [jnp.sum((u * (k + t)) * jnp.sin(row)) / s for k, row in enumerate(rows)]


def test_a_guard_that_is_false_costs_a_plan_only_after_some_calls():
    rows = [np.random.default_rng(k).normal(size=X.size) + 0.3 for k in range(8)]
    x = np.linspace(0.9, 1.0, X.size)
    ours, plain = incrax.incremental(many, tuning=EAGER), jax.jit(many)
    calls = [(0.5 + 0.01 * k, 0.0 if k in (8, 10) else 1.0 + 0.01 * k, x, rows) for k in range(14)]
    for args in calls:
        same(ours(*args), plain(*args), factor=1024)
    (entry,) = [e for e in entries(ours) if e.num_unusable]
    assert entry.num_unusable == 2
    assert entry.program is not None
    for k, s in enumerate((1e300, np.inf)):
        args = (1.0 + k, s, x, rows)
        same(ours(*args), plain(*args), factor=1024)
    assert entry.is_barred
    assert entry.program is None


def test_an_error_after_a_false_guard_leaves_the_store_as_it_was(monkeypatch):
    rows = [np.random.default_rng(k).normal(size=X.size) + 0.3 for k in range(8)]
    x = np.linspace(0.9, 1.0, X.size)
    ours = incrax.incremental(many, tuning=EAGER)
    for k in range(6):
        ours(0.5 + 0.01 * k, 1.0 + k, x, rows)
    engine = ours._traces.latest.engine
    before = list(engine.store.states)

    def fail(engine, saved):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(engine), "_run_whole", fail)
        with pytest.raises(MemoryError):
            ours(0.7, 0.0, x, rows)
    assert engine.store.states == before
    same(ours(0.8, 0.0, x, rows), jax.jit(many)(0.8, 0.0, x, rows), factor=1024)
