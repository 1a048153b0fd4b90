"""Where saving does not pay, chunks run the whole program one after the other, and one of them is
looked at for all.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from helpers import same

import incrax

LONG = 10**6
DATA = np.random.default_rng(1).uniform(0.1, 2.0, 9_000)
ROWS = incrax.Rows(DATA, chunk_rows=2048)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x) * jnp.cos(x))


def bypassing(calls=4):
    """A function whose programs bypass, and the engines of its chunks, the padded last one apart."""
    ours = incrax.incremental(model)
    for k in range(calls):
        ours(1.0 + k, 2.0 + k, ROWS)
    chunks = ours._traces.latest
    for kin in chunks.kin.values():
        kin.ledger.grant(LONG)
    return ours, chunks.engines()


def test_every_call_equals_jit():
    ours, _ = bypassing()
    for a, b in ((0.5, 2.0), (0.5, 3.0), (float("nan"), 3.0), (-0.0, 3.0), (-0.0, 3.0), (0.5, 2.0)):
        same(ours(a, b, ROWS), jax.jit(model)(a, b, DATA), factor=64)


def test_one_chunk_is_compared_and_the_others_keep_nothing():
    ours, engines = bypassing()
    chooser, ran = engines[0].chooser, ours.stats.ran
    ours(0.5, 7.0, ROWS)
    assert chooser.ledger.bypassed == 3
    assert ours.stats.ran == ran + sum(len(engine.facts.program.eqns) for engine in engines)
    of_four, padded = engines[:4], engines[4]
    assert [len(engine.store.states) > 0 for engine in of_four] == [True, False, False, False]
    assert padded.store.states


def test_after_the_bypass_every_chunk_is_compared_again():
    ours, engines = bypassing()
    ours(0.5, 7.0, ROWS)
    for engine in engines:
        engine.ledger.grant(0)
    same(ours(0.5, 8.0, ROWS), jax.jit(model)(0.5, 8.0, DATA), factor=64)
    assert all(engine.store.states for engine in engines)
