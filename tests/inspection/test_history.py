"""The history of calls: what it remembers, and that it keeps no values alive."""

from __future__ import annotations

import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL
from inspection.cases import X, model

import incrax

PARAMS = {"a": 1.0, "b": 2.0, "c": 3.0}


def called(changes, tuning=MINIMAL, **options):
    f = incrax.incremental(model, tuning=tuning, **options)
    params = PARAMS
    for name in changes:
        params = {**params, name: params[name] + 1.0} if name else params
        f(params, X)
    return f


def calls_of(f):
    return incrax.report(f).as_dict()["calls"]


def kinds(f):
    calls = calls_of(f)
    return [calls["kinds"][kind] for kind in calls["kind"]]


def test_each_call_has_a_row_that_says_what_changed_and_what_served_it():
    f = called(["", "", "c", "a"])
    calls = calls_of(f)
    assert calls["num"] == len(calls["seconds"]) == 4
    assert kinds(f) == ["first call", "saved outputs", "plan", "plan"]
    changed = [calls["changes"][number]["names"] for number in calls["changed"]]
    assert changed == [
        ["params['a']", "params['b']", "params['c']", "x"],
        [],
        ["params['c']"],
        ["params['a']"],
    ]


def test_equations_run_add_up_to_the_counters():
    f = called(["", "c", "c", "a", "", "b", "c"])
    assert sum(calls_of(f)["ran"]) == f.stats.ran + f.stats.filled


def test_repeated_calls_of_a_settled_plan_are_remembered_too():
    f = called(["", *["c"] * 50], tuning=incrax.Tuning(timed=False, hot_after=1))
    calls = calls_of(f)
    assert len(calls["seconds"]) == 51
    assert sum(calls["ran"]) == f.stats.ran + f.stats.filled


def test_bytes_are_those_saved_after_each_call():
    f = incrax.incremental(model, tuning=MINIMAL)
    expected = []
    for k in range(6):
        f({**PARAMS, "c": float(k)}, X)
        expected.append(f.stats.saved_bytes)
    assert calls_of(f)["saved_bytes"] == expected
    assert expected[-1] > 0


def test_only_the_latest_calls_are_kept(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.record.MAX_CALLS", 7)
    f = called([""] * 30, tuning=MINIMAL)
    calls = calls_of(f)
    assert (calls["num"], calls["first"], len(calls["seconds"])) == (30, 23, 7)


def test_a_call_that_raised_has_no_row():
    f = called([""])
    with pytest.raises(incrax.errors.UnsupportedLeafError):
        f(PARAMS, {"set"})
    assert calls_of(f)["num"] == 1


def test_values_are_not_kept_alive():
    f = incrax.incremental(model, tuning=MINIMAL)
    seen = []
    for k in range(3):
        f({**PARAMS, "c": float(k)}, X)
    store = f._traces.latest.engine.store
    for state in store.states:
        seen += [
            weakref.ref(x)
            for x in (*state.outputs, *state.saved.values())
            if isinstance(x, jax.Array)
        ]
    assert seen
    del state
    f.clear()
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []
    assert calls_of(f)["num"] == 3


def test_calls_that_bypassed_are_counted_and_not_shown():
    f = called([""])
    traced = f._traces.latest
    traced.engine.ledger.grant(2)
    f._bypass = traced.bypass
    for number in range(3):
        f({**PARAMS, "c": 9.0 + number}, X)
    assert calls_of(f)["num"] == 4
    assert len(kinds(f)) == 2


def test_calls_with_rows_count_chunks():
    f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(a * x)), tuning=MINIMAL)
    rows = incrax.Rows(np.linspace(0, 1, 96), chunk_rows=32)
    f(1.0, rows)
    f(1.0, rows)
    f(2.0, rows)
    data = incrax.report(f).as_dict()
    calls = data["calls"]
    assert data["function"]["has_rows"]
    assert kinds(f) == ["rows"] * 3
    assert calls["ran"] == [3, 0, 3]
    assert calls["loaded"][1] == 3
    json.dumps(data, allow_nan=False)
