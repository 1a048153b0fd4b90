"""A first call is that of `jax.jit`; the function is analysed when a second one comes, or a report
asks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.engine.call import analysis, signature_table, traced
from incrax.engine.policy.expectations import Idle

X = np.linspace(0.1, 2.0, 50)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x)), a + 1


@pytest.fixture
def analysed(monkeypatch):
    """The programs that are analysed from now on."""
    seen = []
    facts_of = analysis.facts_of

    def noted(traced, *args, **kwargs):
        seen.append(traced)
        return facts_of(traced, *args, **kwargs)

    monkeypatch.setattr(analysis, "facts_of", noted)
    return seen


def check(ours, *args):
    for mine, known in zip(ours(*args), jax.jit(model)(*args), strict=True):
        same(mine, known)


def test_a_second_call_has_the_function_analysed(analysed):
    ours = incrax.incremental(model)
    check(ours, 1.0, 0.5, X)
    assert not analysed
    check(ours, 2.0, 0.5, X)
    check(ours, 3.0, 0.5, X)
    assert len(analysed) == 1


def test_a_signature_with_one_call_is_never_analysed(analysed):
    """A start in integers, from which an optimiser goes on in floats."""
    ours = incrax.incremental(model)
    check(ours, 1, 0.5, X)
    for k in range(3):
        check(ours, 1.5 + k, 0.5, X)
    assert ours._traces.stats.traces == 2
    assert len(analysed) == 1


def test_types_in_turns_are_compared_each_with_their_own_last_call():
    ours = incrax.incremental(model)
    for a in (1.0, 1, 1.0, 1, 1.0):
        check(ours, a, 0.5, X.copy())
    assert ours.stats.traces == 2
    assert ours.stats.unchanged == 3


def test_the_second_call_is_compared_with_the_first():
    ours = incrax.incremental(model)
    v = X.copy()
    first = ours(1.0, 0.5, v)
    assert ours(1.0, 0.5, X.copy())[0] is first[0]
    assert (ours.stats.calls, ours.stats.unchanged, ours.stats.compiles) == (2, 1, 1)
    ours = incrax.incremental(model)
    ours(1.0, 0.5, v)
    v[3] = 7.0
    check(ours, 1.0, 0.5, v)


def test_counters_and_reports_are_those_of_a_call_that_was_analysed_at_once(analysed):
    ours = incrax.incremental(model)
    at_once = incrax.incremental(model, calls=1)
    for function in (ours, at_once):
        function(1.0, 0.5, X)
    assert len(analysed) == 1
    assert ours.stats.as_dict() == at_once.stats.as_dict()
    assert ours.explain().as_dict() == at_once.explain().as_dict()
    assert ours.stats.ran == ours.num_equations


def shown(a, b, x):
    jax.debug.print("{}", a)
    return model(a, b, x)


def marked(a, b, x):
    return a * jax.jit(lambda b: incrax.keep(jnp.sum(jnp.exp(-b * x))))(b)


@pytest.mark.parametrize(
    ("fun", "options"),
    [
        (shown, {}),
        (marked, {}),
        (model, {"policy": "exact"}),
        (model, {"changing": ["a"]}),
        (model, {"tuning": incrax.Tuning(planner="minimal")}),
    ],
    ids=["it prints", "marked values", "exact", "hints", "minimal"],
)
def test_what_the_first_call_needs_is_found_out_at_once(fun, options, analysed):
    incrax.incremental(fun, **options)(1.0, 0.5, X)
    assert len(analysed) == 1


def looped(a, b, x):
    """What does not change in the loop is computed in front of it, by equations that are made."""

    def turn(carry, _):
        return 0.5 * carry + jnp.sum(jnp.exp(-a * x)), carry

    return jax.lax.scan(turn, 1.0 * b, jnp.arange(10))


def test_a_report_in_another_configuration_changes_no_type():
    ours = incrax.incremental(looped)
    ours(1.0, 0.5, X)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert ours.stats.ran == ours.num_equations
    for k in range(12):
        found, known = ours(2.0 + k, 0.5, X), jax.jit(looped)(2.0 + k, 0.5, X)
        for mine, theirs in zip(found, known, strict=True):
            same(mine, theirs)


def test_a_report_inside_a_traced_function_leaves_nothing_there():
    ours = incrax.incremental(model)
    check(ours, 1.0, 0.5, X)
    jax.jit(lambda y: y + ours.stats.ran)(1.0)
    for k in range(12):
        check(ours, 2.0 + k, 0.5, X)


def test_a_first_call_that_fails_is_told_as_ever():
    a = jnp.asarray(1.0)
    a.delete()
    ours = incrax.incremental(model)
    with pytest.raises(incrax.errors.DeletedInputError, match="`a`"):
        ours(a, 0.5, X)
    check(ours, jnp.asarray(2.0), 0.5, X)


# --- where nothing came of looking in an earlier process ------------------------------------------


@pytest.fixture
def idle(monkeypatch):
    """The next five calls after a first one need not be looked at."""
    monkeypatch.setattr(signature_table, "calls_without_look", lambda *_, **__: Idle(5, 1.0))


def test_calls_that_need_no_look_are_those_of_jit(idle, analysed):
    ours = incrax.incremental(model)
    v = X.copy()
    for k in range(6):
        v[3] = k  # the same object: an array of NumPy is not unchanged
        check(ours, 1.0 + k, 0.5, v)
    assert not analysed
    check(ours, 7.0, 0.5, v)
    check(ours, 8.0, 0.5, v)
    assert len(analysed) == 1
    assert list(ours.explain().as_dict()["changed"]) == ["a"]
    assert (ours.stats.calls, ours.stats.compiles) == (8, 1)


def test_what_is_found_after_them_stands_for_them(idle):
    ours = incrax.incremental(model)
    for a in range(8):
        check(ours, float(a), 0.5, X)
    engine = ours._traces.latest.engine
    (entry,) = (e for e in engine.chooser.entries.values() if e.dirty == engine.layout.leaf_mask(0))
    assert entry.count + engine.ledger._waiting == 7  # all but the first call


def test_a_report_looks_at_a_function_that_need_not_be_looked_at(idle, analysed):
    ours = incrax.incremental(model)
    check(ours, 1.0, 0.5, X)
    check(ours, 2.0, 0.5, X)
    assert ours.stats.calls == 2
    assert "since saving did not pay in an earlier process" in ours.stats.verdict
    assert len(analysed) == 1
    check(ours, 3.0, 0.5, X)


def test_the_same_objects_have_the_last_result_without_an_analysis(idle, analysed):
    ours = incrax.incremental(model)
    x = jnp.asarray(X)
    ours(1.0, 0.5, x)
    a = 2.0
    last = ours(a, 0.5, x)
    assert ours(a, 0.5, x) is last
    assert not analysed
    assert (ours.stats.calls, ours.stats.unchanged) == (3, 1)
    for k in range(7):
        ours(3.0 + k, 0.5, x)
    assert ours.stats.calls == 10


def test_an_interrupt_in_one_of_them_counts_once(idle, monkeypatch):
    ours = incrax.incremental(model)
    check(ours, 1.0, 0.5, X)
    check(ours, 2.0, 0.5, X)

    def interrupted(*_):
        raise KeyboardInterrupt

    ours._bypass = None  # as after a call of other types
    with monkeypatch.context() as patch:
        patch.setattr(ours._traces.latest, "_run_first", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours(3.0, 0.5, X)
    check(ours, 4.0, 0.5, X)
    assert (ours.stats.calls, ours.stats.aborted) == (4, 1)


def test_types_in_turns_need_no_look_each(idle, analysed):
    ours = incrax.incremental(model)
    for a in (1.0, 1, 2.0, 2, 3.0, 3):
        check(ours, a, 0.5, X)
    assert not analysed
    assert ours.stats.traces == 2


def test_an_error_in_a_call_that_needs_no_look_is_that_of_a_look(idle):
    ours = incrax.incremental(model)
    ours(1.0, 0.5, jnp.asarray(X))
    ours(1, 0.5, X)  # other types, so that the next call comes back to the first ones
    gone = jnp.asarray(X)
    gone.delete()
    with pytest.raises(incrax.errors.DeletedInputError):
        ours(2.0, 0.5, gone)
    check(ours, 3.0, 0.5, X)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "exact"},
        {"calls": 10},
        {"changing": ["a"]},
        {"tuning": incrax.Tuning(planner="minimal")},
    ],
)
def test_who_wants_looks_has_them(options, idle, analysed):
    ours = incrax.incremental(model, **options)
    check(ours, 1.0, 0.5, X)
    assert len(analysed) == 1


@pytest.mark.parametrize(
    ("num_calls", "say"),
    [
        (0, lambda f: f.warm_up(7.0, 0.5, X, changing=["a"])),
        (3, lambda f: (f(7.0, 0.5, X), f.expect(10**9))),
    ],
)
def test_who_asks_later_has_looks_from_the_next_call_on(num_calls, say, idle):
    ours = incrax.incremental(model)
    for a in range(num_calls):
        check(ours, float(a), 0.5, X)
    say(ours)
    for a in (8.0, 9.0):
        check(ours, a, 0.5, X)
    assert list(ours.explain().as_dict()["changed"]) == ["a"]
    assert ours.stats.calls == num_calls + 3


def test_what_calls_the_host_is_analysed_at_once(idle, analysed):
    ours = incrax.incremental(lambda a: jax.debug.print("{}", a) or a + 1)
    ours(1.0)
    assert len(analysed) == 1


# --- where nothing is known of a function that takes long to analyse ------------------------------


@pytest.fixture
def large(monkeypatch):
    """Each equation takes a second to analyse."""
    monkeypatch.setattr(traced, "EQUATION_S", 1.0)


def test_a_large_function_is_not_analysed_before_its_calls_took_long(large, analysed):
    ours = incrax.incremental(model)
    for k in range(20):
        check(ours, 1.0 + k, 0.5, X)
    assert not analysed
    assert (ours.stats.calls, ours.stats.compiles) == (20, 1)
    assert "analysing a function of so many operations" in ours.stats.verdict
    assert len(analysed) == 1


def test_a_large_function_is_looked_at_once_a_report_has_analysed_it(large):
    ours = incrax.incremental(model)
    for a in range(4):
        check(ours, float(a), 0.5, X)
    assert list(ours.explain().as_dict()["changed"]) == ["not compared"]
    check(ours, 5.0, 0.5, X)
    assert list(ours.explain().as_dict()["changed"]) == ["a"]
    assert ours.stats.calls == 5


def test_how_many_calls_an_analysis_is_put_off_by(large, monkeypatch):
    """By 500 s for 5 s; 100 s of them are of the first call, and 20 s of ten others."""
    ours = incrax.incremental(model)
    for a in range(4):
        check(ours, float(a), 0.5, X)
    found = ours._traces.latest
    monkeypatch.setattr(traced, "EQUATION_S", 5.0 / len(found.analysis.traced.eqns))
    found._first = found._first._replace(program_s=100.0)
    found._ledger.turn_s = 2.0
    found._ledger.grant(10)
    found._ledger.granted = 10
    found._ledger.turns = iter(())
    assert found._num_put_off() == 190


def test_an_analysis_that_was_put_off_is_made_in_the_end(large, analysed, monkeypatch):
    ours = incrax.incremental(model)
    for a in range(3):
        check(ours, float(a), 0.5, X)
    ledger = ours._traces.latest._ledger
    ledger.turn_s = 500.0  # that has taken long enough
    while ledger.left:
        check(ours, 3.0 + ledger.left, 0.5, X)
    num_before = ledger.skipped + 1
    assert not analysed
    for a in range(4):
        check(ours, -1.0 - a, 0.5, X)
    assert len(analysed) == 1
    assert ours.stats.calls == num_before + 4
    engine = ours._traces.latest.engine
    (entry,) = (e for e in engine.chooser.entries.values() if e.dirty == engine.layout.leaf_mask(0))
    assert entry.count + engine.ledger._waiting == num_before + 3  # all but the first call


@pytest.mark.parametrize(
    "tuning", [incrax.Tuning(timed=False), incrax.Tuning(compile_s=9.0)], ids=["untimed", "trust"]
)
def test_who_does_not_weigh_seconds_has_an_analysis_at_once(tuning, large, analysed):
    ours = incrax.incremental(model, tuning=tuning)
    check(ours, 1.0, 0.5, X)
    check(ours, 2.0, 0.5, X)
    assert len(analysed) == 1
