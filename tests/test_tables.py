"""Tables forget what was used least recently; all that remember programs share one bound."""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp
import pytest
from helpers import MINIMAL, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax import _tables
from incrax._tables import CHECK_EVERY, LruTable, make_room, remembered_bytes


@given(
    st.lists(
        st.tuples(st.sampled_from(["get", "peek", "add", "setdefault", "pop"]), st.integers(0, 5))
    ),
    st.integers(1, 4),
)
def test_a_table_is_the_latest_of_a_list(steps, size):
    table, known = LruTable(size), []
    for step, key in steps:
        is_there = key in known
        if is_there and step != "peek":
            known.remove(key)
        if step in ("get", "peek", "pop"):
            assert getattr(table, step)(key) == (str(key) if is_there else None)
        if step in ("add", "setdefault") or (step == "get" and is_there):
            known.append(key)
        if step == "add":
            assert table.add(key, str(key)) == [str(k) for k in known[:-size]]
        elif step == "setdefault":
            other = str(key)
            kept = other if table.peek(key) is None else table.peek(key)
            assert table.setdefault(key, other) is kept
            assert table.peek(key) is kept
        known = known[-size:]
        assert [key for key, _ in table.items()] == known
        assert table.values() == [str(key) for key in known]
        assert len(table) == len(known)


def test_a_value_is_made_once_for_a_key_and_each_time_where_it_has_no_hash():
    table, made = LruTable(1), []
    for key in ("a", "a", "b", "a", ["c"], ["c"]):
        assert table.made(key, lambda key=key: made.append(key) or str(key)) == str(key)
    assert made == ["a", "b", "a", ["c"], ["c"]]
    assert table.values() == ["a"]


def test_a_report_or_a_fresh_call_is_no_use_of_a_trace(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 2)
    f = incrax.incremental(lambda a, x: a * jnp.sum(x))
    for size in (1, 2):
        f(1.0, jnp.ones(size))
    f.fresh(1.0, jnp.ones(1))
    f.explain(1.0, jnp.ones(1))
    f(1.0, jnp.ones(3))  # the first one makes room
    traces = f.stats.traces
    f(1.0, jnp.ones(2))
    assert f.stats.traces == traces


@pytest.fixture
def bound(monkeypatch):
    """Set the bound of what is remembered from now on: so much more than now."""
    monkeypatch.setattr(_tables, "_weighed", weakref.WeakSet())
    name = "MAX_PROGRAM_BYTES"
    return lambda more: monkeypatch.setattr(_tables, name, remembered_bytes() + more)


def test_what_was_used_least_recently_goes_of_whichever_table(bound):
    bound(40)
    first, second = (LruTable(9, weigh=lambda value: 10) for _ in range(2))
    for table in (first, second, first):
        for key in range(3):
            table.add(key, "value")
    first.get(0)
    make_room()
    assert [key for key, _ in second.items()] == [
        2
    ]  # older than all of the first one; its latest stays
    assert [key for key, _ in first.items()] == [1, 2, 0]


def test_the_latest_of_each_table_stays(bound):
    bound(-(10**12))
    table = LruTable(9, weigh=lambda value: 10)
    for key in range(CHECK_EVERY):
        table.add(key % 3, "value")
    make_room()
    assert [key for key, _ in table.items()] == [(CHECK_EVERY - 1) % 3]


def test_programs_of_functions_guarded_functions_and_steps_weigh():
    for _ in range(3):  # functions of other tests, some of which hold others until they are gone
        gc.collect()
    before = remembered_bytes()
    f = incrax.incremental(lambda a, x: a * jnp.sum(jnp.exp(x)))
    f(1.0, jnp.ones(3))
    one = remembered_bytes() - before
    assert one >= _tables.PROGRAM_BYTES
    f(1.0, jnp.ones(4))
    assert remembered_bytes() - before == 2 * one
    f.pure(1.0, jnp.ones(3))
    assert remembered_bytes() - before > 2 * one
    g = incrax.guarded(lambda x: x + 1.0 if x > 0 else x - 1.0)
    known = remembered_bytes()
    g(1.0)
    with_one = remembered_bytes()
    assert with_one > known
    g(-1.0)
    assert remembered_bytes() > with_one
    del f, g
    gc.collect()
    assert remembered_bytes() == before


def test_a_new_plan_makes_room_too(bound):
    x = jnp.ones(3)
    f = incrax.incremental(lambda a, b, x: a * jnp.sum(jnp.exp(x * b)), tuning=MINIMAL)
    f(1.0, 2.0, x)
    others = LruTable(3, weigh=lambda value: _tables.PROGRAM_BYTES)
    for key in range(3):
        others.add(key, "value")
    bound(0)
    for k in range(3):
        f(2.0 + k, 2.0, x)
    assert f.stats.compiles > 1
    assert [key for key, _ in others.items()] == [2]


def test_the_environment_shows_the_bound(bound):
    bound(0)
    shown = incrax.environment()
    assert shown.max_program_bytes == _tables.MAX_PROGRAM_BYTES
    assert shown.program_bytes == remembered_bytes()
    assert "remembered programs" in str(shown)


def test_functions_whose_programs_made_room_are_right_and_traced_again(bound, monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 4 * CHECK_EVERY)
    bound(_tables.PROGRAM_BYTES)
    f = incrax.incremental(lambda a, x: a * jnp.sum(x))
    for _ in range(2):
        for size in range(1, CHECK_EVERY + 2):
            same(f(2.0, jnp.ones(size)), jnp.sum(jnp.ones(size)) * 2.0)
    assert f.stats.traces > CHECK_EVERY + 1
