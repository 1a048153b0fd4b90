"""Calls of a streak: the results, versions and counters of calls that are looked at."""

from __future__ import annotations

import copy
import gc
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, examples, file_moves, last_repeat, num_functions, same
from hypothesis import given
from hypothesis import strategies as st
from slice_cases import serve_by_rows

import incrax
from incrax.engine.call.repeats import LONG_WAY_EVERY
from incrax.engine.call.streak import NOT_ALIKE, RowStreak, Streak
from incrax.engine.call.traced import Traced
from incrax.engine.compile.timing import SAMPLE
from incrax.engine.inputs import leaves
from incrax.engine.policy.candidates import RETRY_USES

X = np.linspace(0.1, 2.0, 100_000)
TUNING = incrax.Tuning(timed=False, compile_s=10.0)
"""What serves does not depend on seconds."""


def model(p, w, v, x):
    """Two results, of which `p["a"]` reaches one."""
    moving = p["a"] * jnp.sum(jnp.exp(-p["b"] * x) * jnp.cos(x)) + w[0] * w[1] + v[2]
    return moving, jnp.sum(jnp.sin(p["b"] * x))


@pytest.fixture(scope="module")
def made():
    ours = incrax.incremental(model, tuning=TUNING)
    start(ours)
    return ours, jax.jit(model)


def arguments():
    return [{"a": 1.0, "b": 0.5}, np.array([1.0, 2.0]), jnp.array([1.0, 2.0, 3.0]), X.copy()]


def start(ours, change=lambda args, k: args[0].update(a=10.0 + k), args=None):
    """Call with the same change until a streak serves; the arguments."""
    args = arguments() if args is None else args
    for k in range(4 * LONG_WAY_EVERY):
        args[0] = dict(args[0])
        change(args, k)
        ours(*args)
        if ours._streak is not None and ours._streak._num > 1:
            return args
    raise AssertionError("no streak")


NUMBERS = [1.0, 2.0, 3.0, 0.0, -0.0, float("nan"), float("inf")]


def _a(args, number):
    args[0] = {**args[0], "a": number}


def _a_is_integer(args, number):
    args[0] = {**args[0], "a": 3}


def _a_is_array(args, number):
    args[0] = {**args[0], "a": jnp.asarray(number)}


def _b(args, number):
    args[0] = {**args[0], "b": 0.25 if args[0]["b"] == 0.5 else 0.5}


def _w_in_place(args, number):
    args[1][0] = number


def _w(args, number):
    args[1] = np.array([1.0, number])


def _v(args, number):
    args[2] = args[2].at[2].set(number)


def _x_in_place(args, number):
    args[3][-1] += 0.125


def _x_copied(args, number):
    args[3] = args[3].copy()


def _nothing(args, number):
    pass


STEPS = [_a, _a, _a, _a, _a_is_integer, _a_is_array, _b, _w_in_place, _w, _v]
STEPS += [_x_in_place, _x_copied, _nothing]


@examples(1)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(NUMBERS)), max_size=25))
def test_any_calls_are_those_that_are_looked_at(made, steps):
    """Function and counters beside one whose calls are all looked at."""
    ours, plain = copy.copy(made[0]), made[1]
    looked_at = copy.copy(made[0])
    args = start(ours)
    streak, Traced.streak = Traced.streak, lambda traced: None
    try:
        start_args = start_looked_at(looked_at, args)
    finally:
        Traced.streak = streak
    assert start_args[0] == args[0]
    before = ours.stats.as_dict(), looked_at.stats.as_dict()
    for change, number in steps:
        change(args, number)
        known = plain(*args)
        for mine, theirs in zip(ours(*args), known, strict=True):
            same(mine, theirs)
        Traced.streak = lambda traced: None
        try:
            for mine, theirs in zip(looked_at(*args), known, strict=True):
                same(mine, theirs)
        finally:
            Traced.streak = streak
    check_alike(ours, looked_at, before)


def check_alike(ours, looked_at, before):
    """Both have counted the same since, and hold the same versions."""
    after = ours.stats.as_dict(), looked_at.stats.as_dict()
    # Whichever compiles first does so for both.
    names = after[0].keys() - {"compiles"}
    differences = [{k: b[k] - a[k] for k in names} for a, b in zip(before, after, strict=True)]
    assert differences[0] == differences[1]
    assert _versions(ours) == _versions(looked_at)


def start_looked_at(ours, args):
    """The calls of `start` for a function without streaks."""
    target = args[0]["a"]
    own = arguments()
    for k in range(4 * LONG_WAY_EVERY):
        own[0] = {**own[0], "a": 10.0 + k}
        ours(*own)
        if own[0]["a"] == target:
            break
    own[1:] = args[1:]
    return own


def _versions(ours):
    """What the store holds: bits of the inputs and how often each version was a baseline."""
    return [
        (
            state.uses,
            [
                np.asarray(value.anchor if value.bits is None else value.bits).tobytes()
                for value in state.values
            ],
        )
        for state in versions(ours)
    ]


def versions(ours):
    return ours._traces.latest.engine.store.states


def served(monkeypatch):
    """Which calls a streak served, from now on."""
    seen = []
    call = Streak.call

    def noted(streak, args, kwargs):
        result = call(streak, args, kwargs)
        seen.append(result is not NOT_ALIKE)
        return result

    monkeypatch.setattr(Streak, "call", noted)
    return seen


def renewed(ours, args):
    """A streak that has all its calls before it."""
    for k in range(4 * LONG_WAY_EVERY):
        args[0] = {**args[0], "a": 100.0 + k}
        ours(*args)
        streak = ours._streak
        if streak is not None and streak._num == 0 and streak._limit > 5:
            return args
    raise AssertionError("no streak")


def test_a_streak_serves_and_now_and_then_a_call_is_looked_at(made, monkeypatch):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    seen = served(monkeypatch)
    for k in range(2 * LONG_WAY_EVERY):
        _a(args, 200.0 + k)
        ours(*args)
    assert len(seen) - LONG_WAY_EVERY < sum(seen) < len(seen)


def test_no_streak_is_made_that_may_serve_no_call(made):
    ours = copy.copy(made[0])
    renewed(ours, start(ours))
    traced = ours._traces.latest
    assert traced.streak() is not None
    traced.engine.repeated.repeat.entry.uses = LONG_WAY_EVERY
    assert traced.streak() is None


def test_a_run_that_was_to_be_timed_in_a_streak_is_timed_after_it(made):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    program = last_repeat(ours._traces.latest.engine).program
    for num_runs, is_due in ((1, False), (SAMPLE - 2, True)):
        program.is_due = False
        program.num_runs = num_runs
        for k in range(2):
            _a(args, 400.0 + num_runs + k)
            ours(*args)
        assert ours._streak.count() is None
        assert program.is_due == is_due


def test_programs_are_timed_again_where_calls_go_the_long_way():
    assert not any(uses % LONG_WAY_EVERY for uses in RETRY_USES)


CHANGES = {
    "another leaf": _b,
    "an array in place": _w_in_place,
    "an array": _v,
    "data in place": _x_in_place,
    "nothing": _nothing,
    "another type": _a_is_integer,
    "zero": lambda args, number: _a(args, -0.0),
    "not a number": lambda args, number: _a(args, float("nan")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_like_the_last_call_is_looked_at(name, made, monkeypatch):
    ours = copy.copy(made[0])
    args = start(ours)
    _a(args, 0.0 if name == "zero" else 1.25)
    ours(*args)
    args = args if name != "zero" else renewed(ours, args)
    seen = served(monkeypatch)
    if name == "zero":
        _a(args, 0.0)
        ours(*args)
        seen.clear()
    CHANGES[name](args, 7.0)
    for mine, known in zip(ours(*args), made[1](*args), strict=True):
        same(mine, known)
        np.testing.assert_array_equal(np.signbit(mine), np.signbit(known))
    assert not any(seen)


def test_elements_of_an_array_make_a_streak(monkeypatch):
    """The same element, which may be written in place; another one is looked at."""
    tall = lambda w, x: w[0] * jnp.sum(jnp.exp(-w[1] * x)) + w[2]
    ours = incrax.incremental(tall, tuning=TUNING)
    args = [np.array([1.0, 0.5, 2.0]), X]

    def change(args, k):
        args[0][0] = 3.0 + k

    for k in range(4 * LONG_WAY_EVERY):
        change(args, k)
        ours(*args)
        if ours._streak is not None and ours._streak._num == 1 and ours._streak._limit > 4:
            break
    seen = served(monkeypatch)
    change(args, -1.0)
    same(ours(*args), jax.jit(tall)(*args))
    assert seen == [True]
    args[0][2] = 5.0
    same(ours(*args), jax.jit(tall)(*args))
    assert seen == [True, False]


def test_the_same_objects_again_do_not_end_a_streak():
    tall = lambda a, x: a * jnp.sum(jnp.exp(-x))
    ours = incrax.incremental(tall, tuning=TUNING)
    a, x = 0.0, jnp.asarray(X)
    for k in range(4 * LONG_WAY_EVERY):
        a = 3.0 + k
        ours(a, x)
        if ours._streak is not None and ours._streak._num == 1 and ours._streak._limit > 4:
            break
    streak = ours._streak
    unchanged = ours.stats.unchanged
    same(ours(a, x), jax.jit(tall)(a, x))
    assert ours._streak is streak is not None
    assert ours.stats.unchanged == unchanged + 1


def test_counters_are_entered_when_they_are_read(made):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    before = ours.stats.as_dict()
    for k in range(3):
        _a(args, 300.0 + k)
        ours(*args)
    assert ours._streak._num == 3
    after = ours.stats.as_dict()
    assert after["calls"] - before["calls"] == 3
    assert after["loaded"] > before["loaded"]
    assert ours.explain().as_dict()["served_by"] == "plan"


def test_what_was_written_in_between_ends_a_streak(made, monkeypatch):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    seen = served(monkeypatch)
    ours.clear()
    _a(args, 8.0)
    for mine, known in zip(ours(*args), made[1](*args), strict=True):
        same(mine, known)
    assert not any(seen)


def test_calls_of_a_streak_are_counted_when_what_is_saved_is_dropped(made):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    before = ours.stats.calls
    for k in range(3):
        _a(args, 500.0 + k)
        ours(*args)
    held = [weakref.ref(x) for s in versions(ours) for x in s.saved.values()]
    assert ours._streak._num == 3
    assert held
    ours.clear()
    gc.collect()
    assert not any(ref() is not None for ref in held)
    _a(args, 9.0)
    for mine, known in zip(ours(*args), made[1](*args), strict=True):
        same(mine, known)
    assert ours.stats.calls == before + 4


def test_without_memory_nothing_holds_what_was_saved(made, monkeypatch):
    """Not even the streak that refused the call."""
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    engine = ours._traces.latest.engine
    held = [weakref.ref(x) for s in versions(ours) for x in s.saved.values()]
    alive = []

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    def fresh(leaves):
        gc.collect()
        alive.extend(ref for ref in held if ref() is not None)
        return type(engine).fresh(engine, leaves)

    monkeypatch.setattr(engine, "_evaluate", fail)
    monkeypatch.setattr(engine, "fresh", fresh)
    _b(args, 0.0)
    for mine, known in zip(ours(*args), made[1](*args), strict=True):
        same(mine, known)
    assert held
    assert not alive


class Late:
    """A lock that another thread's call gets first."""

    def __init__(self, lock, call):
        self.lock, self.call = lock, call

    def __enter__(self):
        self.call()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_a_streak_that_another_thread_ended_serves_no_call(made, monkeypatch):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    before = ours.stats.calls
    lock = ours._lock

    def call_first():
        ours._lock = lock
        ours._looked_at(tuple(args), {}, None)

    ours._lock = Late(lock, call_first)
    seen = served(monkeypatch)
    ours({**args[0], "a": -3.0}, *args[1:])
    assert not any(seen)
    assert ours.stats.calls == before + 2


def test_another_tree_is_looked_at(made, monkeypatch):
    ours = copy.copy(made[0])
    p, w, v, x = renewed(ours, start(ours))
    seen = served(monkeypatch)
    ours({**p, "a": 7.0}, w, v, x=x)
    assert seen == [False]


def test_a_deleted_input_or_result_is_looked_at(made):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    _a(args, 5.5)
    ours(*args)[1].delete()
    _a(args, 6.5)
    assert np.isfinite(ours(*args)[1])
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    args[2].delete()
    _a(args, 7.5)
    with pytest.raises(incrax.errors.DeletedInputError):
        ours(*args)


def test_inputs_that_the_next_step_overwrites_make_a_streak(monkeypatch):
    """As an optimizer's do; compared where they are, as on a GPU."""
    monkeypatch.setattr(leaves, "_is_large_on_device", lambda x: x.size > 1)
    tall = lambda w, x: jnp.sum(w) * jnp.sum(jnp.exp(-x))
    ours = incrax.incremental(tall, tuning=TUNING)
    step = jax.jit(lambda w: 1.5 * w, donate_argnums=0)
    w, x = jnp.ones(1000), jnp.asarray(X)
    for _ in range(2 * LONG_WAY_EVERY):
        ours(w, x)
        w = step(w)
        if ours._streak is not None and ours._streak._limit > 4:
            break
    seen = served(monkeypatch)
    same(ours(w, x), jax.jit(tall)(w, x))
    assert seen == [True]


def test_nothing_is_held_longer(made):
    """The version of the last call goes with the next one."""
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    results = []
    for k in range(3):
        _a(args, 400.0 + k)
        results.append(weakref.ref(ours(*args)[0]))
    gc.collect()
    assert [ref() is None for ref in results] == [True, True, False]


def test_other_threads_call_as_well(made):
    ours = copy.copy(made[0])
    start(ours)
    plain = made[1]
    wrong = []

    def work(number):
        args = arguments()
        for k in range(40):
            _a(args, number + 0.01 * k)
            mine, known = ours(*args), plain(*args)
            wrong.extend(1 for x, y in zip(mine, known, strict=True) if not np.allclose(x, y))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert ours.stats.calls >= 120


def test_an_interrupt_leaves_a_version_of_one_call(made, monkeypatch):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    _a(args, 8.25)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ours._streak, "_out_tree", types.SimpleNamespace(unflatten=interrupted))
        with pytest.raises(KeyboardInterrupt):
            ours(*args)
    for mine, known in zip(ours(*args), made[1](*args), strict=True):
        same(mine, known)


def test_a_call_takes_few_moves_between_files(made):
    del made
    ours = incrax.incremental(model, tuning=TUNING)
    args = renewed(ours, start(ours))
    _a(args, 9.75)
    assert file_moves(lambda: ours(*args)) <= 35


@pytest.mark.parametrize("context", ["verified", "transformed", "not compiled"])
def test_calls_under_other_rules_are_looked_at(context, made, monkeypatch):
    ours = copy.copy(made[0])
    args = renewed(ours, start(ours))
    seen = served(monkeypatch)
    _a(args, 10.5)
    known = made[1](*args)
    if context == "verified":
        with incrax.verify(every=1):
            result = ours(*args)
    elif context == "transformed":
        result = jax.jit(lambda a: ours({**args[0], "a": a}, *args[1:]))(10.5)
    else:
        with jax.disable_jit():
            result = ours(*args)
    np.testing.assert_allclose(result, known)
    assert not any(seen)


# --- rows -----------------------------------------------------------------------------------------

NUM = 40
Y = np.random.default_rng(3).normal(size=(NUM, 400))


def groups(theta, scale, y):
    """A sum over groups, of which each reads its own row."""
    return jnp.sum(jnp.exp(-((y - theta[:, None]) ** 2) * scale)), jnp.sum(theta**2)


GROUPS = jax.value_and_grad(groups, has_aux=True)


def started_by_rows(ours):
    """Arguments of a function whose next changes of one row are served by a streak."""
    args = [np.zeros(NUM), 0.5, Y]
    for k in range(4 * LONG_WAY_EVERY):
        args[0] = args[0].copy()
        args[0][k % NUM] = 0.01 * (k + 1)
        ours(*args)
        if isinstance(ours._streak, RowStreak) and ours._streak._limit > 8:
            return args
    raise AssertionError("no streak")


@pytest.fixture(scope="module")
def made_by_rows():
    with pytest.MonkeyPatch.context() as patch:
        serve_by_rows(patch)
        ours = incrax.incremental(GROUPS, tuning=EAGER)
        started_by_rows(ours)
        yield ours, jax.jit(GROUPS)


def _row(args, last, k):
    args[0] = args[0].copy()
    args[0][k] += 0.25


def _row_in_place(args, last, k):
    args[0][k] += 0.25


def _two_rows(args, last, k):
    args[0] = args[0].copy()
    args[0][[k, (k + 3) % NUM]] -= 0.125


def _back(args, last, k):
    args[0] = last


def _all_rows(args, last, k):
    args[0] = args[0] + 0.01


def _zero(args, last, k):
    args[0] = args[0].copy()
    args[0][k] = -0.0 if args[0][k] == 0.0 else 0.0


def _scale(args, last, k):
    args[1] = 0.75 if args[1] == 0.5 else 0.5


def _on_device(args, last, k):
    args[0] = jnp.asarray(args[0]).at[k].add(0.25)


ROW_STEPS = [_row, _row, _row, _row_in_place, _two_rows, _back, _all_rows, _zero, _scale]


@examples(1)
@given(st.lists(st.tuples(st.sampled_from(ROW_STEPS), st.integers(0, NUM - 1)), max_size=25))
def test_any_changes_of_rows_are_those_that_are_looked_at(made_by_rows, steps):
    ours, looked_at, plain = copy.copy(made_by_rows[0]), copy.copy(made_by_rows[0]), made_by_rows[1]
    args = started_by_rows(ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Traced, "streak", lambda traced: None)
        repeated_start(looked_at, args)
    before = ours.stats.as_dict(), looked_at.stats.as_dict()
    last = args[0].copy()
    for change, k in steps:
        last, kept = args[0].copy(), last
        change(args, kept, k)
        known = plain(*args)
        mine = ours(*args)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Traced, "streak", lambda traced: None)
            theirs = looked_at(*args)
        for x, y, z in zip(*map(jax.tree.leaves, (mine, theirs, known)), strict=True):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_allclose(x, z, rtol=1e-11, atol=1e-11)
    check_alike(ours, looked_at, before)


def repeated_start(ours, target):
    """The calls of `started_by_rows` for a function without streaks."""
    args = [np.zeros(NUM), 0.5, Y]
    for k in range(4 * LONG_WAY_EVERY):
        args[0] = args[0].copy()
        args[0][k % NUM] = 0.01 * (k + 1)
        ours(*args)
        if np.array_equal(args[0], target[0]):
            return
    raise AssertionError("not there")


def test_rows_make_a_streak(made_by_rows, monkeypatch):
    ours = copy.copy(made_by_rows[0])
    args = started_by_rows(ours)
    seen = served(monkeypatch)
    ran = ours.stats.ran
    for k in range(5):
        _row(args, None, k)
        ours(*args)
    assert seen == [True] * 5
    assert 0 < ours.stats.ran - ran <= 5 * ours.num_equations
    _two_rows(args, None, 7)
    ours(*args)
    assert seen == [True] * 5 + [False]


def test_rows_on_the_device_make_a_streak(made_by_rows, monkeypatch):
    ours = copy.copy(made_by_rows[0])
    args = started_by_rows(ours)
    args[0] = jnp.asarray(args[0])
    for k in range(2 * LONG_WAY_EVERY):
        _on_device(args, None, k % NUM)
        ours(*args)
        if ours._streak is not None and ours._streak._limit > 4:
            break
    seen = served(monkeypatch)
    _on_device(args, None, 5)
    for x, y in zip(*map(jax.tree.leaves, (ours(*args), made_by_rows[1](*args))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)
    assert seen == [True]


MAX_FUNCTIONS = 72
"""Of Python, those of JAX and NumPy included, in a call of a changed row beside an array of NumPy: 63
to 68; 140 and more before what is the same in all calls of a streak was found out once.
"""


def test_a_row_that_is_found_by_comparison_takes_few_functions(made_by_rows):
    ours = copy.copy(made_by_rows[0])
    args = started_by_rows(ours)
    _row(args, None, 3)
    assert num_functions(lambda: ours(*args)) <= MAX_FUNCTIONS
    assert ours._streak._num == 1


def test_a_row_that_is_told_takes_few_functions(made_by_rows):
    ours = copy.copy(made_by_rows[0])
    args = started_by_rows(ours)
    args[0] = jnp.asarray(args[0])
    for k in range(2 * LONG_WAY_EVERY):
        args[0] = incrax.at(args[0])[k % NUM].add(0.25)
        ours(*args)
        if ours._streak is not None and ours._streak._num == 1 and ours._streak._limit > 4:
            break
    args[0] = incrax.at(args[0])[5].add(0.25)
    assert num_functions(lambda: ours(*args)) <= MAX_FUNCTIONS
    assert ours._streak._num == 2


def test_deleted_results_of_the_baseline_are_not_read(made_by_rows):
    """The gradient with respect to a row is written into that of the version before."""
    ours = copy.copy(made_by_rows[0])
    args = started_by_rows(ours)
    for k in range(4):
        _row(args, None, k)
        for x in jax.tree.leaves(ours(*args)):
            x.delete()
    _row(args, None, 9)
    for x, y in zip(*map(jax.tree.leaves, (ours(*args), made_by_rows[1](*args))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)
