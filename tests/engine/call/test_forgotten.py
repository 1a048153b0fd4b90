"""Calls of signatures that are no longer the latest, or were forgotten, are in the counters."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import _tables
from incrax.engine.call import signature_table
from incrax.engine.policy.expectations import Idle

X = np.linspace(0.1, 2.0, 100_000)
OTHER = X[:30]
TUNING = incrax.Tuning(timed=False, compile_s=10.0)
"""What serves does not depend on seconds."""


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x) * jnp.cos(x))


@pytest.fixture
def idle(monkeypatch):
    """The next fifty calls after a first one need not be looked at."""
    monkeypatch.setattr(signature_table, "calls_without_look", lambda *_, **__: Idle(50, 1.0))


@pytest.fixture
def forget(monkeypatch):
    """Has each table forget all but its latest entry."""
    monkeypatch.setattr(_tables, "MAX_PROGRAM_BYTES", 0)
    return _tables.make_room


def call(ours):
    """How many calls were made, of which the last count nothing themselves."""
    for a in range(100):
        ours(1.0 + a, 0.5, X)
        if ours._streak is not None and ours._streak._num > 3:
            return a + 1
    raise AssertionError("no streak")


def test_calls_in_turns_are_counted_once(idle):
    ours = incrax.incremental(model)
    for a in (1.0, 1, 2.0, 2, 3.0, 3):
        ours(a, 0.5, X)
    assert ours.stats.calls == 6
    assert ours.stats.ran == 6 * ours.num_equations


def test_calls_of_a_signature_that_is_forgotten_are_counted(forget):
    ours = incrax.incremental(model, tuning=TUNING)
    num = call(ours)
    ours(1.0, 0.5, OTHER)
    forget()
    assert len(ours._traces.table) == 1
    assert ours.stats.calls == num + 1


def test_calls_of_one_that_was_not_analysed_are_counted(idle, forget):
    ours = incrax.incremental(model)
    for a in range(12):
        ours(1.0 + a, 0.5, X)
    ours(1.0, 0.5, OTHER)
    forget()
    assert ours.stats.calls == 13


def test_calls_of_one_for_which_others_made_room_are_counted(monkeypatch):
    monkeypatch.setattr(signature_table, "MAX_SIGNATURES", 1)
    ours = incrax.incremental(model, tuning=TUNING)
    num = call(ours)
    ours(1.0, 0.5, OTHER)
    assert len(ours._traces.table) == 1
    assert ours.stats.calls == num + 1


def test_the_latest_is_counted_and_cleared_where_others_made_room_for_a_later_one(forget):
    ours = incrax.incremental(model, tuning=TUNING)
    num = call(ours)
    ours.fresh(1.0, 0.5, OTHER)
    forget()
    assert ours._traces.latest not in ours._traces.table.values()
    for a in range(4):
        ours(-1.0 - a, 0.5, X)
    assert ours.stats.calls == num + 4
    assert ours.stats.saved_bytes > 0
    ours.clear()
    assert ours.stats.saved_bytes == 0
