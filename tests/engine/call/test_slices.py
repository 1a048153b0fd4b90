"""Calls in which a few rows change: right whatever came before, and served by few programs."""

from __future__ import annotations

import itertools
import math
import re
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, check, examples, last_repeat, same
from hypothesis import given
from hypothesis import strategies as st
from slice_cases import CASES, EARLY, IDS, LATE, NUM, THETA, Case, serve_by_rows

import incrax
from incrax.engine.call import analysis
from incrax.engine.call.rehearsal import dry_run
from incrax.engine.call.streak import RowStreak
from incrax.engine.plan import looked_up_rows, met_rows, row_share, weighted_rows
from incrax.engine.plan.plan import RowKind
from incrax.engine.policy import expectations
from incrax.engine.policy import slices as policy
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.compile_budget import Credit
from incrax.engine.policy.slices import RowChanges
from incrax.engine.program.cost import Calibration

FACTOR = 1024.0
LEAST_SHARE = policy.LEAST_SHARE


@pytest.fixture(autouse=True)
def small(monkeypatch):
    serve_by_rows(monkeypatch)


class Job:
    """One function, incremental and plain, with arguments that change."""

    def __init__(self, name, **options):
        self.fun, args, _ = (CASES | LATE | EARLY)[name]
        self.ours = incrax.incremental(self.fun, tuning=EAGER, **options)
        self.plain = jax.jit(self.fun)
        self.args = jax.tree.map(np.asarray, args)
        self.rng = np.random.default_rng(7)
        self.shift = 3.0 if name.startswith("waves") else 0.8 if "processes" in name else 0.0

    @property
    def engine(self):
        return self.ours._traces.latest.engine

    def call(self):
        found = self.ours(*self.args)
        same(found, self.plain(*self.args), factor=FACTOR, terms=30.0, is_zero_signed=False)
        check(self.ours)
        return found

    def change(self, *rows):
        x = self.args[0].copy()
        x[list(rows)] = self.rng.uniform(-0.5, 0.5, x[list(rows)].shape) + self.shift
        self.args = (x, *self.args[1:])
        return self.call()

    def settle(self):
        """Calls up to those that a program for one row serves."""
        for row in (0, 1, 2, 3):
            self.change(row)
        assert self.engine.last.candidate == "slices"
        return self


@pytest.mark.parametrize("name", CASES)
def test_any_row_is_served_by_the_same_program(name):
    job = Job(name).settle()
    compiles = job.ours.stats.compiles
    for row in range(NUM - 1, 3, -4):
        job.change(row)
        assert job.engine.last.candidate == "slices"
    assert job.ours.stats.compiles == compiles <= 4
    assert len(job.engine.slices.entries) == 1


def test_fewer_rows_are_filled_up_and_more_have_a_program_of_their_own():
    job = Job("groups, gradient").settle()
    compiles = job.ours.stats.compiles
    for rows in ((5, 6), (1, 9, 17, 23), (4, 2), (0, 7, 8)):
        job.change(*rows)
    assert job.engine.last.candidate == "slices"
    assert job.ours.stats.compiles == compiles + 1  # what is saved is the same
    kinds = [kind.capacity for kind in job.engine.slices.entries]
    assert kinds == [1, 4]
    job.change(*range(12))
    assert job.engine.last.candidate == "priming"
    job.change(12)
    assert job.engine.last.candidate == "slices"


def end(name, far):
    """A row so far from the end of the axis that others are at the same side of; from its begin."""
    return NUM - 1 - far if name in LATE else far


@pytest.mark.parametrize("name", [*LATE, *EARLY])
def test_where_rows_accumulate_a_program_runs_all_rows_from_the_first_that_changed(name):
    job = Job(name)
    for far in (1, 5, 1, 4):
        job.change(end(name, far))
    sign = 1 if name in LATE else -1
    kinds = {kind.within for kind in job.engine.slices.entries}
    if "gradient" in name or name == "joined":  # which needs more, so that it may not be worth it
        assert kinds <= {0, 2 * sign, 6 * sign}
        return
    assert kinds == {2 * sign, 6 * sign}
    for far in (3, 4, 2, 5):
        job.change(end(name, far))
        job.change(*[end(name, n) for n in range(far + 1)])
    assert job.engine.last.candidate == "slices"
    side = "last" if name in LATE else "first"
    assert job.ours.explain().as_dict()["rows"].startswith(f"the {side} 6 of 24 along")


@pytest.mark.parametrize("name", ["hazard", "running, gradient", "joined", "risk sets, gradient"])
def test_calls_with_rows_here_and_there_are_right(name):
    job = Job(name)
    for far in (1, 1, 1, 5, 5, 9, 5, 23, 23, 1, 5, 14, 4, 0, 3, 2):
        job.change(end(name, far))
        if far == 9:
            job.args = (job.args[0], 0.4)
            job.call()


def test_a_running_sum_beside_much_more_changes_nothing():
    """Many rows would run for it, of which one changed."""

    def fun(theta, scale):
        rows = jnp.sin(theta[:, None] * jnp.arange(400.0))
        return jnp.sum(rows**2) * scale + jnp.sum(jnp.cumsum(theta) ** 2)

    ours = incrax.incremental(fun, tuning=EAGER)
    theta = np.linspace(0.0, 1.0, 64)
    for row in (63, 62, 63, 60):
        theta = theta.copy()
        theta[row] += 0.1
        ours(theta, 0.5)
    assert [kind.within for kind in ours._traces.latest.engine.slices.entries] == [0]


def unrolled(c, x):
    """Horner's rule, element by element of `c`."""
    total = c[9]
    for k in range(8, -1, -1):
        total = c[k] + x * total
    return jnp.sum(total)


def test_one_element_that_is_read_by_itself_gets_a_plan_of_its_own(monkeypatch):
    """A program for rows would leave out no more of the function; it comes with the next element."""
    monkeypatch.setattr(policy, "LEAST_SHARE", LEAST_SHARE)
    ours = incrax.incremental(jax.value_and_grad(unrolled), tuning=EAGER)
    plain = jax.jit(jax.value_and_grad(unrolled))
    c = np.linspace(0.1, 1.0, 10)
    x = jnp.linspace(-1.0, 1.0, 10_000)
    served = []
    for number in range(16):
        c = c.copy()
        c[2 + number // 12] = 0.01 * number
        same(ours(c, x), plain(c, x), factor=FACTOR, terms=1e4)
        engine = ours._traces.latest.engine
        served.append(engine.last.candidate)
        if number == 11:
            element = engine.chooser.entries[engine.layout.leaf_mask(0) & engine.last.dirty]
            assert element.is_decided
    chooser = engine.chooser
    (entry,) = chooser.slices.entries.values()
    assert "slices" not in served[:12]
    assert not any(known.is_deferred for known in chooser.slices.changes.values())
    assert entry.program is not None


def test_of_versions_with_as_many_changed_rows_the_one_with_saved_values_is_taken():
    """Else the whole function would save for rows at every call, and nobody would read it."""
    job = Job("groups, gradient").settle()
    engine = job.engine
    emptied, kept = engine.store.states  # they differ in row 3
    emptied.saved = {}
    emptied.uses = kept.uses + 1000
    for _ in range(3):
        job.ours._streak = None  # the long way
        job.change(3)
        assert engine.last.candidate == "slices"


def short_ways(monkeypatch, job):
    """The calls of a streak of rows, from now on."""
    seen = []
    evaluated = RowStreak._evaluated

    def in_a_row(streak, leaves):
        outputs = evaluated(streak, leaves)
        seen.extend([True] if outputs is not None else [])
        return outputs

    monkeypatch.setattr(RowStreak, "_evaluated", in_a_row)
    return seen


@pytest.mark.parametrize("name", ["groups, gradient", "look-up"])
@pytest.mark.parametrize("is_numpy", [True, False])
def test_a_change_like_the_last_goes_the_short_way(monkeypatch, name, is_numpy):
    job = Job(name).settle()
    if not is_numpy:
        job.args = jax.tree.map(jnp.asarray, job.args)
        monkeypatch.setattr(job, "change", lambda row: moved(job, row))
    for row in range(8):
        job.change(row)
    seen = short_ways(monkeypatch, job)
    ran = job.ours.stats.ran
    for row in range(15):
        job.change(row)
    assert sum(seen) >= 14  # one in 16 goes the long way
    assert job.ours.stats.ran - ran == 15 * job.engine.last.plan.num_eqns


def moved(job, row):
    """A row of an array that may be still computed when the call begins."""
    job.args = (jnp.asarray(job.args[0]).at[row].set(float(job.rng.uniform())), *job.args[1:])
    return job.call()


def test_other_changes_do_not_go_the_short_way(monkeypatch):
    job = Job("groups, gradient").settle()
    for row in range(8):
        job.change(row)
    seen = short_ways(monkeypatch, job)
    theta, mu, sigma = job.args
    job.call()  # nothing changed
    job.args = theta, mu + 0.1, sigma
    job.call()
    job.change(3, 4)
    job.args = (job.args[0] + (np.arange(NUM) == 5), mu, sigma)
    job.call()
    assert not any(seen)


def test_the_short_way_starts_where_fewest_rows_differ(monkeypatch):
    job = Job("groups, gradient").settle()
    for row in range(8):
        job.change(row)
    seen = short_ways(monkeypatch, job)
    accepted = job.args
    for row in (4, 9, 9, 14):
        job.args = accepted
        job.change(row)
    assert seen.count(True) >= 3


def test_rows_are_planned_without_measuring_the_machine(monkeypatch):
    monkeypatch.setenv("INCRAX_BACKGROUND", "0")

    def never(*_):
        raise AssertionError

    monkeypatch.setattr("incrax.engine.plan.facts.calibrate", never)
    monkeypatch.setattr("incrax.engine.plan.facts.is_calibrated", lambda: False)
    monkeypatch.setattr("incrax.engine.policy.chooser.ROUNDS", 0)
    job = Job("look-up, gradient")
    tuning = incrax.Tuning(compile_s=np.inf)  # which has no prices
    job.ours = incrax.incremental(job.fun, tuning=tuning)
    job.settle()


def test_what_planning_for_rows_takes_is_learning(monkeypatch):
    monkeypatch.setattr(Credit, "allows", lambda *_, **__: False)  # nothing is compiled
    job = Job("look-up, gradient")
    job.ours = incrax.incremental(job.fun, tuning=replace(EAGER, hot_after=3))
    job.call()
    learning = []
    for row in range(6):
        job.change(row)
        learning.append((job.engine.slices.num_planned, job.engine.ledger.learning_s))
    planned = [after[0] > before[0] for before, after in itertools.pairwise(learning)]
    learned = [after[1] > before[1] for before, after in itertools.pairwise(learning)]
    assert planned.count(True) == 1
    assert planned == learned


def test_a_change_of_rows_is_looked_at_until_its_program_is_decided_on(monkeypatch):
    """Else what looks cost would put off a program that may be compiled: it is asked for at the
    third change that is seen.
    """
    seen = []
    noted = Chooser.note_call

    def note(chooser, *args, is_new=False, **options):
        seen.append(is_new)
        noted(chooser, *args, is_new=is_new, **options)

    job = Job("look-up, gradient")
    job.ours = incrax.incremental(job.fun, tuning=replace(EAGER, hot_after=3))
    job.call()
    job.engine.whole.is_measured = True
    monkeypatch.setattr(Chooser, "note_call", note)
    monkeypatch.setattr(Credit, "allows_planning", lambda *_, **__: False)
    for row in range(5):
        job.change(row)
    assert seen == [True, True, False, False, False]


def test_what_one_element_decides_is_not_current_after_a_short_way_changed_it():
    """Saved for changes of `mu`; the row before did not reach it, this one does."""
    grid = jnp.linspace(0.0, 1.0, 100_000)

    def mixed(theta, mu):
        own = jnp.sum(jnp.sin(grid * theta[3]) ** 2 * jnp.cos(grid * theta[3]))
        return jnp.sum((np.arange(50.0) - theta[:, None]) ** 2) + mu * own

    ours = incrax.incremental(mixed, tuning=EAGER)
    theta = np.linspace(0.1, 1.0, NUM)
    seen = []
    for mu in (0.5, 0.6, 0.7, 0.8):
        ours(theta, mu)
    for row in (4, 5, 6, 7, 8, 3):
        theta = np.where(np.arange(NUM) == row, theta + 0.3, theta)
        same(ours(theta, 0.8), mixed(theta, 0.8), factor=FACTOR, terms=1e5)
        seen.append(ours._traces.latest.engine.last.candidate)
    assert seen[2:] == ["slices"] * 4
    same(ours(theta, 0.9), mixed(theta, 0.9), factor=FACTOR)


def test_an_output_that_rows_do_not_reach_is_not_handed_on_when_deleted():
    def two(theta, mu):
        return jnp.sum((np.arange(50.0) - theta[:, None]) ** 2), mu * jnp.arange(4.0)

    ours = incrax.incremental(two, tuning=EAGER)
    theta = np.linspace(0.1, 1.0, NUM)
    for row in range(8):
        theta = np.where(np.arange(NUM) == row, theta + 0.3, theta)
        found = ours(theta, 0.5)
    assert ours._traces.latest.engine.last.candidate == "slices"
    found[1].delete()
    for row in range(3):
        theta = np.where(np.arange(NUM) == row, theta + 0.3, theta)
        same(ours(theta, 0.5), two(theta, 0.5), factor=FACTOR, terms=1e5)


def test_an_output_that_no_input_reaches_stays_where_rows_of_the_only_input_change():
    """Then every input is dirty, of which the plan for a first call returns all outputs."""
    fun = lambda x: (jnp.sum(jnp.sin(x)), jnp.sin(jnp.arange(5000.0)), x[:0], 2)
    ours, plain = incrax.incremental(fun, tuning=EAGER), jax.jit(fun)
    x = THETA
    for number in range(5):
        x = np.where(np.arange(NUM) == number, 0.3 * number, x)
        same(ours(x), plain(x), factor=FACTOR)
    assert ours.explain().as_dict()["served_by"] == "slices"


def test_the_short_way_needs_what_the_last_call_saved():
    job = Job("groups, gradient").settle()
    for row in range(8):
        job.change(row)
    assert last_repeat(job.engine) is not None
    job.engine.store.forget(list(job.engine.store.states[-1].saved)[:1])
    job.change(8)


def test_an_error_in_a_streak_is_left_to_the_long_way(monkeypatch):
    job = Job("groups, gradient").settle()
    for row in range(8):
        job.change(row)
    assert job.ours._streak is not None
    executable = last_repeat(job.engine).program.executable
    run = type(executable).__call__
    calls = []

    def fails_once(own, *args):
        calls.append(own)
        if len(calls) == 1:
            raise RuntimeError("lost")
        return run(own, *args)

    monkeypatch.setattr(type(executable), "__call__", fails_once)
    job.change(3)
    assert calls == [executable, executable]  # once more, the long way


def test_only_what_the_rows_need_is_counted():
    job = Job("groups").settle()
    before = job.ours.stats.ran
    job.change(9)
    record = job.engine.last
    assert job.ours.stats.ran - before == record.plan.num_eqns < len(record.plan.eqns)
    assert record.plan.num_eqns <= job.engine.num_eqns


def test_the_version_with_the_fewest_changed_rows_is_the_baseline():
    """A proposal that was refused: the next one differs from the version before it in one row."""
    job = Job("groups, gradient").settle()
    accepted = job.args
    compiles = job.ours.stats.compiles
    for row in (4, 9, 9, 14):
        job.args = accepted
        job.change(row)
        assert job.engine.last.candidate == "slices"
        assert job.engine.last.plan.sliced.kind.capacity == 1
    assert job.ours.stats.compiles == compiles


def test_a_version_that_differs_in_no_row_is_no_baseline_of_rows():
    """One program serves rows of two inputs, which both are new values to it where one changed: then
    versions have the same bits of the other one as two values.
    """
    x = np.linspace(0.1, 2.0, 7)
    fun = lambda a, b: jnp.sum(jnp.log1p(jnp.sin(a[:, None] * x) ** 2 + (b[:, None] - x) ** 2))
    ours = incrax.incremental(fun, tuning=EAGER)
    args = [np.linspace(0.0, 1.0, 2000), np.linspace(1.0, 2.0, 2000)]
    for k in range(8):
        args[0][k] += 0.25
        args[1][k] += 0.25
        ours(*args)
    before = args[0].copy()
    args[0][9] += 0.25
    ours(*args)
    engine = ours._traces.latest.engine
    assert last_repeat(engine).moving == (0, 1)
    same(ours(before, args[1]), jax.jit(fun)(before, args[1]), factor=FACTOR)
    assert engine.last.candidate == "slices"
    check(ours)


@pytest.mark.parametrize("name", ["groups", "groups, gradient", "look-up"])
def test_one_version_that_all_calls_start_from_is_made_to_save_what_rows_need(name):
    """Element after element of one fixed point, from the first call on."""
    job = Job(name)
    fixed = job.args
    job.call()
    served = []
    for row in range(2, 12):
        job.args = fixed
        job.change(row)
        served.append(job.engine.last.candidate)
    assert served[-6:] == ["slices"] * 6
    assert served.count("priming") <= 1
    assert job.engine.last.plan.sliced.kind.capacity == 1
    assert job.ours.stats.compiles <= 4


def test_a_version_that_one_call_starts_from_is_not_evaluated_again():
    """What changes in between makes all saved values stale, so that nothing is to be gained."""
    job = Job("groups").settle()
    theta, mu, sigma = job.args
    before = job.ours.stats.filled
    for k in range(8):
        for shift in (0.1, 0.2):
            job.args = job.args[0], mu + k + shift, sigma
            job.call()
        job.change(4 + k)
        assert job.engine.last.candidate == "priming"
    assert job.ours.stats.filled == before


def test_a_change_of_something_else_is_served_by_what_saves_for_rows():
    job = Job("groups").settle()
    theta, mu, sigma = job.args
    job.args = theta, mu + 0.1, sigma
    job.call()
    assert job.engine.last.candidate == "priming"
    job.args = theta, mu + 0.2, sigma
    job.call()
    assert job.engine.last.candidate != "priming"  # nobody has read what was saved
    job.change(5)
    assert job.engine.last.candidate == "priming"
    job.change(6)
    assert job.engine.last.candidate == "slices"


def test_several_inputs_may_change_by_rows_together():
    job = Job("processes, gradient")
    for row in (0, 1, 2, 3, 4):
        job.args = (job.args[0], job.args[1] + 0.01 * (np.arange(NUM) == row))
        job.change(row)
    assert job.engine.last.candidate == "slices"
    assert job.engine.last.plan.sliced.kind.leaves == (0, 1)


ACTIONS = st.one_of(
    st.tuples(st.just("rows"), st.lists(st.integers(0, NUM - 1), min_size=1, max_size=7)),
    st.tuples(st.just("scalar"), st.integers(1, 2)),
    st.tuples(st.sampled_from(["back", "same", "copy", "clear", "all"]), st.just(0)),
)


@given(st.lists(ACTIONS, min_size=4, max_size=24), st.sampled_from(["groups, gradient", "look-up"]))
@examples(0.5)
def test_any_sequence_of_changes(actions, name):
    job = Job(name)
    history = [job.args]
    for kind, what in actions:
        if kind == "rows":
            job.change(*dict.fromkeys(what))
        elif kind == "scalar":
            args = list(job.args)
            what = min(what, len(args) - 1)
            args[what] = args[what] + 0.05
            job.args = tuple(args)
        elif kind == "back":
            job.args = history[len(history) // 2]
        elif kind == "copy":
            job.args = jax.tree.map(np.copy, job.args)
        elif kind == "clear":
            job.ours.clear()
        elif kind == "all":
            job.args = (job.args[0] * 1.01, *job.args[1:])
        history.append(job.args)
        job.call()


def test_outputs_that_were_deleted_are_not_read():
    job = Job("groups, gradient").settle()
    (_, (by_row, *_)) = job.ours(*job.args)
    by_row.delete()
    job.change(7)
    assert job.engine.last.candidate == "priming"
    job.change(8)
    assert job.engine.last.candidate == "slices"


def test_a_false_guard_has_the_whole_function_run(monkeypatch):
    monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
    job = Job("groups").settle()
    whole, mu, sigma = job.args
    for value in (1e12, 0.5, np.nan, 0.25, np.inf, 0.75):
        x = whole.copy()
        x[7] = value
        job.args = x, mu, sigma
        job.call()
    (entry,) = job.engine.slices.entries.values()
    assert entry.num_unusable >= 1


def test_after_many_false_guards_there_is_no_program_for_rows(monkeypatch):
    monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
    job = Job("groups").settle()
    whole, mu, sigma = job.args
    for k in range(30):
        x = whole.copy()
        x[7] = np.nan if k % 2 else k
        job.args = x, mu, sigma
        job.call()
    (entry,) = job.engine.slices.entries.values()
    assert entry.program is None
    assert "lost to rounding" in entry.reason


def test_differences_are_summed_anew_after_so_many(monkeypatch):
    monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
    monkeypatch.setattr(policy, "MAX_DIFFERENCES", 5)
    job = Job("groups")
    served = [job.change(k % NUM) is not None and job.engine.last.candidate for k in range(30)]
    primings = [k for k, candidate in enumerate(served) if candidate == "priming"]
    assert np.diff(primings).tolist() == [6] * (len(primings) - 1)
    assert len(primings) >= 4


def test_a_dry_run_says_what_a_call_does():
    job = Job("groups").settle()
    x = job.args[0].copy()
    x[11] = 0.125
    record = dry_run(job.engine, [x, *job.args[1:]])
    job.args = (x, *job.args[1:])
    job.call()
    assert (record.candidate, record.plan) == (job.engine.last.candidate, job.engine.last.plan)
    report = job.ours.explain()
    assert report.as_dict()["rows"] == "at most 1 of 24 along the first axis of theta"
    assert "rows ran" in str(report)


@pytest.mark.parametrize("num_calls", [1, 2, 5])
def test_a_report_names_the_elements_that_changed_and_no_others(num_calls):
    """Calls of other rows are alike, and share what is noted of them."""
    job = Job("groups").settle()
    for number in range(num_calls):
        job.change(3 + number)
    changed = job.ours.explain().as_dict()["changed"]
    assert list(changed) == [f"theta[{2 + num_calls}]"]


def test_a_report_says_where_all_rows_were_needed():
    def ordered(theta):
        return jnp.sum(jnp.sin(theta)) + jnp.sum(jax.lax.cumsum(theta) * jnp.sort(theta))

    ours = incrax.incremental(ordered, tuning=EAGER)
    theta = np.zeros(NUM)
    for k in range(6):
        theta = np.where(np.arange(NUM) == k, 1.0 + k, theta)
        same(ours(theta), ordered(theta), factor=FACTOR, terms=200.0)
    assert ours._traces.latest.engine.last.candidate == "slices"
    rows = ours.explain().as_dict()["rows"]
    where = r"cumsum .*test_slices.py:\d+.*, sort .*test_slices.py:\d+.*"
    assert re.fullmatch(
        f"at most 1 of 24 along the first axis of theta; all rows from {where} on", rows
    )
    of_each = {x["primitive"]: x["rows"] for x in ours.explain().as_dict()["by_rows"]}
    assert of_each["sin"] == "1 of 24 along axis 0"
    assert of_each["cumsum"] == "all: all rows behind the first changed one follow from it"
    assert of_each["sort"] == "all: each row of its result depends on all rows"
    assert "all: each row of its result depends on all rows" in str(ours.explain().verbose)


def test_a_report_says_what_was_put_off(monkeypatch):
    monkeypatch.setattr(weighted_rows, "MIN_SIZE", 1)

    def weighted(theta):
        shapes = jnp.sin(theta[:, None] * jnp.arange(1.0, 8.0))
        return jnp.sum(jnp.sum(shapes, axis=0)[None] * jnp.arctan(shapes), axis=1)

    ours = incrax.incremental(weighted, tuning=EAGER)
    theta = np.zeros(NUM)
    for k in range(6):
        theta = np.where(np.arange(NUM) == k, 1.0 + k, theta)
        same(ours(theta), weighted(theta), factor=FACTOR, terms=200.0)
    assert ours._traces.latest.engine.last.candidate == "slices"
    rows = [x["rows"] for x in ours.explain().as_dict()["by_rows"]]
    assert "none: it is the same for all rows" in rows
    assert rows[-2:] == [
        "factors of 1 of 24 along axis 0",
        "all of its result, from 1 of 24 along axis 0",
    ]


def test_a_report_names_the_loops_that_were_resumed():
    job = Job("forgetting").settle()
    rows = job.ours.explain().as_dict()["rows"]
    where = r"scan .*slice_cases.py:\d+.*"
    assert re.fullmatch(
        f"at most 1 of 24 along the first axis of series; from the first of these on all steps of {where}",
        rows,
    )


@pytest.mark.parametrize(("row", "is_worth"), [(0, False), (NUM - 1, True)])
def test_a_loop_that_never_forgets_is_resumed_only_where_changes_are_late(
    monkeypatch, row, is_worth
):
    """In a price that has nothing but the loop."""
    monkeypatch.setattr(policy, "MIN_GAIN", 0.02)
    monkeypatch.setattr(policy.Slices, "_promised_s", _of_loops(policy.Slices._promised_s))
    monkeypatch.setattr(analysis, "assumed_prices", lambda _: Calibration(call_s=0.0))
    walk = lambda theta, scale: jax.lax.scan(lambda c, x: (c + x, c * scale), scale, theta)
    monkeypatch.setitem(CASES, "walk", Case(walk, (np.ones(NUM), 0.5)))
    job = Job("walk")
    for k in range(12):
        x = job.args[0].copy()
        x[row] = 0.1 * k
        job.args = (x, *job.args[1:])
        job.call()
    (entry,) = job.engine.slices.entries.values()
    assert entry.dirty_share == pytest.approx(1 - row / NUM)
    assert (entry.program is not None) == is_worth
    assert ("nothing to win" in entry.reason) == (not is_worth)


def _of_loops(promised_s):
    return lambda own, plan, *args: promised_s(own, replace(plan, seconds=0.0), *args)


def test_indices_that_change_are_no_change_of_rows():
    job = Job("look-up by an argument").settle()
    theta, ids = job.args
    job.args = theta, np.roll(ids, 1)
    job.call()
    job.args = theta, np.zeros_like(ids)  # more members than the table has slots
    job.call()
    for row in (0, 1, 0, 2):
        job.change(row)


@pytest.mark.parametrize("changes_before", [False, True])
def test_what_was_arranged_by_ids_follows_the_data(changes_before, monkeypatch):
    arranged = []
    arrange = looked_up_rows._arranged
    note = lambda *args, axis: arranged.append(axis) or arrange(*args, axis=axis)
    monkeypatch.setattr(looked_up_rows, "_arranged", note)
    fun = lambda theta, y: jnp.sum((y - theta[IDS]) ** 2)
    monkeypatch.setitem(CASES, "observations", Case(fun, (THETA, np.cos(np.arange(IDS.size)))))
    job = Job("observations")
    job.call()

    def change_data():
        job.args = job.args[0], job.args[1] + 1.0
        job.call()

    if changes_before:
        change_data()
    job.settle()
    for row in range(20):
        job.change(row)
    assert len(arranged) == (not changes_before)
    change_data()
    for row in (0, 5, 0, 2):
        job.change(row)
    assert len(arranged) == 2 * (not changes_before)


def test_threads_get_right_results():
    job = Job("groups, gradient").settle()
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        theta, mu, sigma = job.args
        for _ in range(15):
            x = theta.copy()
            x[rng.integers(NUM)] = rng.normal()
            try:
                found = job.ours(x, mu, sigma)
                same(found, job.plain(x, mu, sigma), factor=FACTOR, terms=30.0)
            except AssertionError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("options", [{"policy": "exact"}, {"memory": 10}])
def test_where_rows_are_not_divided(options):
    job = Job("groups", **options)
    for row in (0, 1, 2, 3):
        job.change(row)
        assert job.engine.last.candidate not in ("slices", "priming")


def test_a_small_memory_has_no_room_for_values_per_row():
    job = Job("look-up", memory=300)
    for row in (0, 1, 2, 3, 4):
        job.change(row)
    assert not any(entry.program for entry in job.engine.slices.entries.values())


@pytest.mark.parametrize("name", CASES)
def test_most_of_the_work_is_by_rows_or_it_is_not_tried(name):
    args = CASES[name].args
    ours = incrax.incremental(CASES[name].fun)
    ours(*args)
    share = row_share.rough_share(ours._traces.latest.engine.facts, (0,)).share
    steps = ("from row to row", "forgetting", "recurrent", "read inside")
    wide = ("blurred, gradient", "deblurred", "binned, gradient")  # of these few rows, all
    crossed = ("all pairs, gradient", "gram", "tied", "kernels")  # rows along both axes count once
    together = ("waves", "resonances", "coherent", "mixture")  # summed over the rows first
    others = (*together, "graph", "filters, counted", *wide, *steps)
    assert (share > LEAST_SHARE) is (
        CASES[name].is_by_rows or name in crossed or name.startswith(others)
    )


def test_what_rows_were_worth_is_known_to_the_next_process(monkeypatch, tmp_path):
    monkeypatch.setenv("INCRAX_BACKGROUND", "0")
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("INCRAX_REMEMBER", "1")
    monkeypatch.setattr(expectations, "LEAST_S", 0.0)
    tuning = incrax.Tuning(compile_s=np.inf, hot_after=1)
    fun, args, _ = CASES["groups"]

    def called(tuning, num_calls):
        ours = incrax.incremental(fun, tuning=tuning)
        theta = args[0]
        for row in range(num_calls):
            theta = np.where(np.arange(NUM) == row % NUM, 0.1 * row, theta)
            ours(theta, *args[1:])
        return ours

    first = called(tuning, 40)
    (entry,) = first._traces.latest.engine.slices.entries.values()
    first._traces.latest.engine.whole.seconds = 1.0  # it pays, whatever else runs on the machine
    entry.num_missed = 0.0
    expectations.write()
    entry_after = next(
        iter(called(incrax.Tuning(), 12)._traces.latest.engine.slices.entries.values())
    )
    assert entry_after.num_expected == entry.count
    # Its seconds, or, on a machine that was too busy to time it often enough, its promise.
    worth_s = expectations._learned(entry, 1.0).plan_s
    assert entry_after.promise_s == worth_s < 1.0


def test_an_element_that_came_once_in_an_earlier_process_gets_no_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("INCRAX_REMEMBER", "1")
    monkeypatch.setattr(expectations, "LEAST_S", 0.0)
    fun, args, _ = CASES["groups"]
    for _ in range(2):
        ours = incrax.incremental(fun, tuning=incrax.Tuning(compile_s=np.inf))
        theta = args[0]
        for row in range(4):  # while the whole function is timed
            theta = np.where(np.arange(NUM) == row, 0.1 * row + 1.0, theta)
            ours(theta, *args[1:])
        expectations.write()
    chooser = ours._traces.latest.engine.chooser
    assert any(entry.num_expected == 1 for entry in chooser.entries.values())
    assert chooser.planner.num_planned == 0


def test_what_rows_were_not_worth_is_known_to_the_next_process(monkeypatch, tmp_path):
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("INCRAX_REMEMBER", "1")
    monkeypatch.setattr(expectations, "LEAST_S", 0.0)
    monkeypatch.setattr(policy, "LEAST_SHARE", 2.0)
    job = Job("groups")
    for _ in range(2):
        job.ours = incrax.incremental(job.fun, tuning=incrax.Tuning(compile_s=np.inf, hot_after=1))
        for row in range(12):
            job.change(row)
        (entry,) = job.engine.slices.entries.values()
        expectations.write()
    assert "earlier process" in entry.reason


def test_functions_with_effects_are_left_whole():
    def shown(theta):
        jax.debug.callback(lambda x: None, theta[0])
        return jnp.sum(jnp.sin(theta))

    ours = incrax.incremental(shown, tuning=EAGER)
    theta = np.zeros(NUM)
    for k in range(5):
        theta = theta.copy()
        theta[k] = 1.0
        ours(theta)
    assert not ours._traces.latest.engine.slices.lengths


@pytest.mark.parametrize("start_s", [0.0, math.inf])
def test_on_a_gpu_a_program_for_rows_must_save_more_than_its_start(start_s, monkeypatch):
    monkeypatch.setattr(policy, "MIN_GAIN", -1e9)
    monkeypatch.setattr(policy, "ACCELERATED_START_S", start_s)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    job = Job("groups")
    for row in range(6):
        job.change(row)
    (entry,) = job.engine.slices.entries.values()
    assert (entry.program is None) == (start_s > 0)


@pytest.mark.parametrize(
    ("server", "other", "is_covered"),
    [
        (RowKind((0, 1), 4), RowKind((1,), 1), True),
        (RowKind((0, 1), 4), RowKind((0, 1), 4), True),
        (RowKind((0,), 4), RowKind((1,), 1), False),
        (RowKind((0, 1), 1), RowKind((0,), 4), False),
        (RowKind((0,), 1, 6), RowKind((0,), 1), False),
    ],
)
def test_a_program_serves_fewer_rows_of_fewer_inputs(server, other, is_covered):
    assert server.covers(other) is is_covered


def test_kinds_of_change_that_come_as_often_share_a_program():
    """Rows of one input, of another, and of both, in turns."""
    job = Job("processes, gradient")
    width, length, *others = job.args
    job.call()
    job.engine.slices.hot_after = 4
    for row in range(12):
        step = 0.01 * (np.arange(NUM) == row)
        if row % 2:
            length = length + step
        else:
            width = width + step
        job.args = width, length, *others
        job.call()
    assert job.engine.last.candidate == "slices"
    entries = job.engine.slices.entries
    made = [kind for kind, entry in entries.items() if entry.program is not None]
    assert made[0] == RowKind((0, 1), 1)


def test_a_kind_that_came_once_widens_no_program():
    job = Job("processes, gradient")
    width, length, *others = job.args
    job.call()
    changes = job.engine.slices.changes
    changes[RowKind((1,), 1)] = RowChanges(num_calls=1, num_looks=1)
    changes[RowKind((0,), 1)] = RowChanges(num_calls=20, num_looks=20)
    for row in range(4):
        width = width + 0.01 * (np.arange(NUM) == row)
        job.args = width, length, *others
        job.call()
    assert job.engine.last.plan.sliced.kind.leaves == (0,)


@pytest.mark.parametrize(
    ("seconds", "is_measured", "candidate"),
    [(5.0, False, "slices"), (20.0, False, "whole"), (5.0, True, "whole"), (0.5, True, "slices")],
)
@pytest.mark.every_case
def test_one_slow_run_does_not_bar_a_program(seconds, is_measured, candidate):
    """Where the whole function takes a second."""
    job = Job("groups").settle()
    slices = job.engine.slices
    (entry,) = slices.entries.values()
    entry.program.seconds = seconds
    entry.program.is_measured = is_measured
    slices._choose(entry, entry.program, 1.0)
    assert entry.candidate == candidate


def test_the_arguments_of_the_call_before_where_one_of_two_inputs_changed():
    """Of NumPy arrays, which are compared anew in each call, two versions may hold one value each."""
    ours = incrax.incremental(lambda x, y: (jnp.sin(x) * y, jnp.sum(x * y)), tuning=EAGER)
    args = [np.linspace(0.0, 1.0, 4000).reshape(400, 10) for _ in range(2)]
    rng = np.random.default_rng(0)
    served = set()
    for call in range(24):
        for which in range(1 + call % 2):
            args[which] = args[which].copy()
            args[which][rng.choice(400, 1 + call % 3)] = rng.normal()
        result = ours(*args)
        served.add(ours._traces.latest.engine.last.candidate)
        unchanged = ours.stats.unchanged
        same(ours(*args), result)
        assert ours.stats.unchanged == unchanged + 1
    assert "slices" in served
