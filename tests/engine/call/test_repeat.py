"""A call like the one before goes a short way: right results, nothing looked up, nothing held
longer than before.
"""

from __future__ import annotations

import gc
import math
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples, file_moves, last_repeat, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.call.repeats import LONG_WAY_EVERY
from incrax.engine.compile.timing import Clock
from incrax.engine.store import comparison

X = jnp.linspace(0.1, 2.0, 200_000)
NUMBERS = st.sampled_from([1.0, 2.0, -0.0, 0.0, float("nan")])


def model(a, b, x):
    """A cheap part in `a` over a sum that costs; what `b` reaches costs."""
    return a * jnp.sum(jnp.exp(-b * x) * jnp.cos(x)), a + 1.0


def settled(fun=model, at=lambda k: (1.0 + k, 0.5, X), **options):
    """A function that was called so often with the same change that its next calls go the short
    way.
    """
    ours = incrax.incremental(fun, tuning=incrax.Tuning(compile_s=10.0), **options)
    ours(*at(0))
    engine = ours._traces.latest.engine
    engine.chooser.race._segments_s = lambda dirty: (
        math.inf
    )  # as fast as a plan here: either may win
    for k in range(1, 4 * LONG_WAY_EVERY):
        ours(*at(k))
    for _ in range(64 * LONG_WAY_EVERY):
        if last_repeat(engine) is not None and last_repeat(engine).entry.uses % LONG_WAY_EVERY == 1:
            return ours, engine
        ours(*at(engine.stats.calls))
    raise AssertionError("its plan never came to serve")


@pytest.fixture(scope="module")
def kept():
    return settled()[0], jax.jit(model)


def long_ways(monkeypatch, engine):
    """The calls that compare with all versions, from now on."""
    seen = []
    ranked = engine.baselines.ranked
    monkeypatch.setattr(engine.baselines, "ranked", lambda pairs: seen.append(1) or ranked(pairs))
    return seen


def ledger(monkeypatch, engine):
    """The seconds that are entered from now on, and the time in a list, which stands still; no run
    is timed.
    """
    spent, now_s, note = [], [0.0], type(engine.chooser).note_call
    monkeypatch.setattr(engine.chooser.clock, "now", lambda: now_s[0])
    monkeypatch.setattr(last_repeat(engine).program, "num_runs", 1)
    monkeypatch.setattr(
        type(engine.chooser),
        "note_call",
        lambda *args: spent.append(args[3] + args[4]) or note(*args),
    )
    return spent, now_s


def test_the_same_change_goes_the_short_way_and_now_and_then_the_long_one(monkeypatch):
    ours, engine = settled()
    seen, ran, entry = long_ways(monkeypatch, engine), engine.stats.ran, last_repeat(engine).entry
    uses, plain, ticks = entry.uses, jax.jit(model), engine.chooser.clock.ticks
    for k in range(LONG_WAY_EVERY):
        same(ours(-1.0 - k, 0.5, X), plain(-1.0 - k, 0.5, X))
    # One call in so many, and those before which a program was timed again.
    assert 1 <= len(seen) <= 1 + engine.chooser.clock.ticks - ticks
    assert entry.uses == uses + LONG_WAY_EVERY
    assert engine.stats.ran == ran + LONG_WAY_EVERY * len(entry.program.plan.eqns)
    assert ours.explain().as_dict()["changed"].keys() == {"a"}


@examples(8 / 5)
@given(st.lists(st.tuples(NUMBERS, st.sampled_from([0.5, 0.7])), max_size=20))
def test_any_calls_after_it_equal_jit(kept, points):
    ours, plain = kept
    for a, b in points:
        for mine, known in zip(ours(a, b, X), plain(a, b, X), strict=True):
            same(mine, known)
            np.testing.assert_array_equal(np.signbit(mine), np.signbit(known))


def test_another_change_goes_the_long_way(monkeypatch):
    ours, engine = settled()
    seen = long_ways(monkeypatch, engine)
    same(ours(3.0, 0.9, X), jax.jit(model)(3.0, 0.9, X))
    assert len(seen) == 1


def in_turns(a, b, x):
    """Two sums over the data, one of each number."""
    return jnp.sum(jnp.exp(-a * x)) * jnp.sum(jnp.sin(b * x) * jnp.cos(x))


def test_changes_in_turns_go_the_short_way_each(monkeypatch):
    """Of one number or the other, about a point that stays."""
    ours = incrax.incremental(in_turns, tuning=incrax.Tuning(timed=False, compile_s=10.0))
    plain = jax.jit(in_turns)

    def call(k):
        at = [0.5, 0.7, X]
        at[k % 2] += 0.001 * (k + 1)
        np.testing.assert_allclose(ours(*at), plain(*at), rtol=1e-12)

    ours(0.5, 0.7, X)
    engine = ours._traces.latest.engine
    monkeypatch.setattr(engine.chooser.race, "_segments_s", lambda dirty: math.inf)
    for k in range(2 * LONG_WAY_EVERY):
        call(k)
    seen = long_ways(monkeypatch, engine)
    ran = ours.stats.ran
    for k in range(2 * LONG_WAY_EVERY, 4 * LONG_WAY_EVERY):
        call(k)
    assert len(seen) == 2  # one call in so many of each
    assert ours.stats.ran - ran < 2 * LONG_WAY_EVERY * ours.num_equations


def test_the_values_of_an_older_version_run_nothing():
    ours, engine = settled()
    ours(-5.0, 0.5, X)
    ours(-6.0, 0.5, X)
    older = engine.store.states[0]
    ran, unchanged = ours.stats.ran, ours.stats.unchanged
    ours(*[value.feed for value in older.values])
    assert (engine.stats.ran, engine.stats.unchanged) == (ran, unchanged + 1)


def test_the_version_that_proposals_start_from_is_kept():
    ours, engine = settled()
    for k in range(6):
        ours(-5.0 - k, 0.5, X)
        assert last_repeat(engine) is not None
        ours(-4.0, 0.5, X)
    used = max(engine.store.states, key=lambda state: state.uses)
    for k in range(5):
        ours(-50.0 - k, 0.5, X)
        assert used in engine.store.states
    ran, unchanged = engine.stats.ran, engine.stats.unchanged
    ours(*[value.feed for value in used.values])
    assert (engine.stats.ran, engine.stats.unchanged) == (ran, unchanged + 1)


def test_an_output_that_its_owner_deleted_is_not_taken_over():
    ours, _ = settled(lambda a, b, x: (a * jnp.sum(jnp.exp(-b * x)), jnp.sum(jnp.sin(b * x))))
    ours(-5.0, 0.5, X)[1].delete()
    assert np.isfinite(ours(-6.0, 0.5, X)[1])


def test_a_failure_leaves_the_store_as_it_was(monkeypatch):
    ours, engine = settled()
    states, entry = list(engine.store.states), last_repeat(engine).entry

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(entry.program), "__call__", fail)
        with pytest.raises(KeyboardInterrupt):
            ours(-7.0, 0.5, X)
    assert engine.store.states == states
    same(ours(-8.0, 0.5, X), jax.jit(model)(-8.0, 0.5, X))


def test_cleared_values_are_free():
    ours, engine = settled()
    saved = [weakref.ref(x) for x in last_repeat(engine).loads_of(engine.store.states[-1])]
    assert saved
    del engine
    ours.clear()
    gc.collect()
    assert all(ref() is None for ref in saved)


def squares(p, s, x):
    """With algebra a plan with a guard serves changes of `p` and `s`."""
    return jnp.sum((x - p) ** 2) / s


def test_a_call_that_waits_for_its_guard_is_not_counted_twice(monkeypatch):
    at = lambda k: (0.5 + 0.01 * k, 1.0 + k, X)
    ours, engine = settled(squares, at, algebra=True)
    program = last_repeat(engine).program
    executable, (spent, now_s) = program.executable, ledger(monkeypatch, engine)

    class Late:
        """A guard that is there when the program has ended."""

        def __array__(self, dtype=None, copy=None):
            now_s[0] += 5.0
            return np.asarray(True)

    class Slow:
        family = executable.family
        leaves = executable.leaves
        constants = executable.constants
        loads = executable.loads

        def __call__(self, *args):
            return [*executable(*args)[:-1], Late()]

    monkeypatch.setattr(program, "executable", Slow())
    ours(*at(engine.stats.calls))
    assert now_s == [5.0]
    assert len(spent) == 1
    assert program.seconds <= spent[0] < program.seconds + 1.0  # what passed outside the engine


def test_waiting_for_an_input_is_no_overhead(monkeypatch):
    at = lambda k: (jnp.asarray(1.0 + k), 0.5, X)
    ours, engine = settled(at=at)
    program, (spent, now_s) = last_repeat(engine).program, ledger(monkeypatch, engine)

    def wait(x):
        now_s[0] += 5.0  # the program of the call before takes as long

    monkeypatch.setattr(comparison, "_is_at_hand", lambda x: not isinstance(x, jax.Array))
    monkeypatch.setattr(comparison, "_wait", wait)
    ours(*at(engine.stats.calls))
    assert now_s == [5.0]
    assert len(spent) == 1
    assert program.seconds <= spent[0] < program.seconds + 1.0


class Array(jax.Array):
    """An array that tells whether it was waited for."""

    def __init__(self, *, is_there=True, fails=False):
        self.is_there, self.fails, self.waits = is_there, fails, 0

    def is_deleted(self):
        return not self.is_there

    def is_ready(self):
        return False

    def block_until_ready(self):
        self.waits += 1
        if self.fails:
            raise jax.errors.JaxRuntimeError("the program failed")


Array.__abstractmethods__ = frozenset()


@pytest.mark.parametrize(
    ("array", "waits"),
    [(Array(), 1), (Array(is_there=False), 0), (Array(fails=True), 1)],
    ids=["", "deleted", "failed"],
)
def test_arrays_that_are_not_there_may_be_waited_for(array, waits, monkeypatch):
    monkeypatch.setattr(comparison, "is_compared_by_identity", lambda x: False)
    compared = comparison.Comparison(SimpleNamespace(states=[]), None)
    times = iter([1.0, 3.0])
    assert compared.wait([array], [0], lambda: next(times)) == 2.0 * waits
    assert array.waits == waits


def test_what_is_no_array_is_not_waited_for():
    compared = comparison.Comparison(SimpleNamespace(states=[]), None)
    leaves = [1.0, np.ones(2), incrax.frozen(np.ones(3)), jax.block_until_ready(jnp.ones(2))]
    assert compared.wait(leaves, range(4), iter([1.0]).__next__) == 0.0


def test_an_input_is_waited_for_before_its_bits_are_read(monkeypatch):
    """Reading them waits as well, and would count as overhead."""
    ours, _ = settled(at=lambda k: (jnp.asarray(1.0 + k), 0.5, X))
    order, resolved = [], comparison.resolved
    monkeypatch.setattr(comparison, "_is_at_hand", lambda x: not isinstance(x, jax.Array))
    monkeypatch.setattr(comparison, "_wait", lambda x: order.append("waited"))
    monkeypatch.setattr(
        comparison, "resolved", lambda x, olds: order.append("read") or resolved(x, olds)
    )
    ours(jnp.asarray(-1.0), 0.5, X)
    assert order == ["waited", "read"]


def test_a_call_like_the_one_before_takes_few_moves_between_files():
    """What a reader of its path goes through; five ways of one call in 16 are longer."""
    ours, engine = settled(at=lambda k: (jnp.asarray(1.0 + k), 0.5, X))
    ours(jnp.asarray(-1.0), 0.5, X)
    assert last_repeat(engine) is not None
    a = jnp.asarray(-2.0)
    assert file_moves(lambda: ours(a, 0.5, X)) <= 50


def test_what_calls_the_host_is_waited_for_as_part_of_its_program(monkeypatch):
    waited, wait = [], Clock.wait
    monkeypatch.setattr(
        Clock, "wait", lambda clock, results: waited.append(results) or wait(clock, results)
    )
    seen = []

    def shown(a, b, x):
        jax.debug.callback(seen.append, a)
        return model(a, b, x)

    ours = incrax.incremental(shown)
    for k in range(LONG_WAY_EVERY):
        waited.clear()
        ours(1.0 + k, 0.5, X)
        assert len(waited) == 1
    assert len(seen) == LONG_WAY_EVERY


def test_a_false_guard_goes_the_long_way():
    ours, engine = settled(squares, lambda k: (0.5 + 0.01 * k, 1.0 + k, X), algebra=True)
    assert last_repeat(engine).plan.guard is not None
    assert engine.last.candidate == "plan"
    same(ours(float("inf"), 1.0, X), jax.jit(squares)(float("inf"), 1.0, X))
    assert engine.last.candidate == "whole"
