"""What reports and counters say of a call, however it is served: the programs that run, and the arrays
that these are given, are the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL
from slice_cases import CASES, NUM, divide_into_blocks, serve_by_rows

import incrax
from incrax.engine.call.streak import PlanStreak
from incrax.engine.compile.executables import Executable
from incrax.explanation import DELETED, NOT_COMPARED, NOT_READY

X = np.linspace(0.1, 2.0, 30_000)
UNTIMED = incrax.Tuning(timed=False, compile_s=1e9)
ROWS = CASES["groups"]


class Job(NamedTuple):
    """A function, its options, and calls of which the last is served by `kind`, and, where values
    are computed first, `fills`.
    """

    fun: Callable[..., Any]
    options: dict[str, Any]
    calls: Sequence[tuple[Any, ...]]
    kind: str
    fills: bool = False
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda patch: None


def three(a, b, c, x):
    u = jnp.exp(a * x)
    w = jnp.sum((jnp.sin(b * x) * u) ** 2)
    return w * c + jnp.sum(u)


@jax.value_and_grad
def terms(theta, x):
    total = sum(jnp.exp(-a * x) * jnp.sin(b * x) for a, b in theta)
    return jnp.sum(jnp.log(jnp.abs(total) + 1.0))


def in_turns(num):
    """In each call the next number is another."""
    theta = [[0.5 + k, 0.7 + k] for k in range(5)]
    for step in range(num):
        theta = [list(pair) for pair in theta]
        theta[step % 5][step // 5 % 2] += 0.01
        yield theta, X


def moved(step, *others):
    """A proposal for one row, from where all began."""
    theta, *rest = ROWS.args
    return theta + (2.0 + step) * np.eye(NUM)[step], *(others or rest)


def guarded(t, s, rows):
    """A plan divides the sums by their scale; its guard refuses zero."""
    u = jnp.exp(t * X)
    return [jnp.sum((u * (k + t)) * jnp.sin(row)) / s for k, row in enumerate(rows)]


NOISE = list(np.random.default_rng(1).normal(size=(8, X.size)) + 0.3)
CHANGED = [(1.0, 2.0, 3.0 + k, X) for k in range(3)]
SCALED = [(0.5 + 0.01 * k, 1.0 + k, NOISE) for k in range(8)]
SECOND = [(ROWS.args[0], mu, 0.9) for mu in (0.5, 0.6)]  # versions without what rows read
PRIMED = [*map(moved, range(6)), *SECOND, *(moved(k, 0.6, 0.9) for k in range(2))]
EXACT = {"policy": "exact"}


def blocks(patch):
    divide_into_blocks(patch, 5)


JOBS = {
    "first": Job(three, {}, CHANGED[:1], "whole"),
    "whole": Job(three, {"tuning": EAGER}, CHANGED[:2], "whole"),
    "minimal": Job(three, {"tuning": MINIMAL}, CHANGED, "plan"),
    "minimal, fills": Job(three, {"tuning": MINIMAL, "memory": 0}, CHANGED, "plan", fills=True),
    "plan": Job(guarded, {"tuning": EAGER}, SCALED, "plan"),
    "plan, fills": Job(guarded, {"tuning": EAGER}, SCALED[:4], "plan", fills=True),
    "plan in vain": Job(guarded, {"tuning": EAGER}, [*SCALED, (0.9, 0.0, NOISE)], "whole"),
    "segments": Job(terms, {"tuning": UNTIMED}, [*in_turns(60)], "segments", fills=True),
    "exact": Job(three, EXACT, CHANGED, "segments"),
    "blocks": Job(ROWS.fun, EXACT, [*map(moved, range(3))], "segments", True, blocks),
    "rows": Job(
        ROWS.fun, {"tuning": EAGER}, [*map(moved, range(6))], "slices", False, serve_by_rows
    ),
    "priming": Job(
        ROWS.fun,
        {"tuning": EAGER},
        [*map(moved, range(6)), SECOND[0]],
        "priming",
        False,
        serve_by_rows,
    ),
    "rows, fills": Job(ROWS.fun, {"tuning": EAGER}, PRIMED, "slices", True, serve_by_rows),
    "rows after fills": Job(
        ROWS.fun, {"tuning": EAGER}, [*PRIMED, moved(2, 0.6, 0.9)], "slices", False, serve_by_rows
    ),
}


@pytest.fixture(params=JOBS)
def job(request, monkeypatch):
    found = JOBS[request.param]
    found.prepare(monkeypatch)
    return found


def counters(f):
    found = f.stats.as_dict()
    return np.array([found["ran"] + found["filled"], found["loaded"]])


def test_counts_are_those_of_the_programs_that_ran(job, monkeypatch):
    f: Any = incrax.incremental(job.fun, **job.options)
    *before, last = job.calls
    for args in before:
        f(*args)
    counted = counters(f)
    states = f._traces.latest.engine.store.states if before else []
    stored = [x for each in states for x in (*each.saved.values(), *each.outputs)]
    stored += [value.feed for each in states for value in each.values]
    runs = []
    given = []
    call = Executable.__call__

    def spy(executable, feeds, loads, donated=()):
        runs.append(executable.plan)
        given.extend(loads)
        return call(executable, feeds, loads, donated)

    monkeypatch.setattr(Executable, "__call__", spy)
    streak = f._streak
    if isinstance(streak, PlanStreak):  # it knows what its executable would call
        plan, run = streak._plan, streak._run

        def spy_run(*values):
            runs.append(plan)
            given.extend(values[len(values) - len(plan.loads) :])
            return run(*values)

        monkeypatch.setattr(streak, "_run", spy_run)
    f(*last)
    report = f.explain().as_dict()
    assert report["served_by"] == job.kind
    assert bool(report["filled"]) == job.fills
    # A call that found its short way unusable goes the long one, by the same programs again.
    ran = {id(plan): plan for plan in runs}.values() if before else [None]
    expected = sum(f.num_equations if plan is None else plan.num_eqns for plan in ran)
    assert report["num_ran"] == expected
    loaded = {id(x) for x in given} & set(map(id, stored))
    in_blocks = any(plan is not None and plan.blocked is not None for plan in ran)
    assert in_blocks or len(report["loaded"]) == len(loaded)
    np.testing.assert_array_equal(counters(f) - counted, [report["num_ran"], len(report["loaded"])])


def test_work_that_ran_and_was_avoided_is_that_of_the_function(job):
    f: Any = incrax.incremental(job.fun, **job.options)
    first, *others = job.calls
    whole = f.explain(*first).as_dict()["flops_ran"]
    for args in (first, *others):
        f(*args)
        report = f.explain()
        found = report.as_dict()
        assert found["flops_ran"] + found["flops_avoided"] == pytest.approx(whole)
        shown = dict(report.tables()[0].rows)
        assert shown["FLOPs avoided"].endswith(f" of {whole:.3g}")
        num, *of = shown["equations ran"].split(" of ", 1)
        assert not of or not of[0].isdigit() or int(num) <= int(of[0])


@pytest.mark.parametrize("calls", [SCALED[:3], [*SCALED, (0.9, 0.0, NOISE)]])
def test_a_plan_that_is_faster_and_did_not_serve_is_explained(calls):
    f: Any = incrax.incremental(guarded, tuning=EAGER)
    for args in calls:
        f(*args)
    assert f.explain().served_by == "whole"
    assert f.explain().why.endswith("; " + NOT_READY.format("plan"))


# --- the same arguments once more -----------------------------------------------------------------

AGAIN = {
    "objects": lambda args: args,
    "copies": lambda args: jax.tree.map(lambda x: x + np.zeros_like(x), args),
    "arrays of JAX": lambda args: jax.tree.map(jnp.asarray, args),
}


@pytest.mark.parametrize("how", AGAIN)
def test_a_call_with_the_same_arguments_says_so(job, how):
    f: Any = incrax.incremental(job.fun, **job.options)
    for args in job.calls:
        f(*args)
    again = AGAIN[how](job.calls[-1])
    f(*again)  # of arrays where there were numbers it is another signature
    for _ in range(2):
        before = f.stats.as_dict()
        f(*again)
        assert f.stats.as_dict() == {
            **before,
            "calls": before["calls"] + 1,
            "unchanged": before["unchanged"] + 1,
        }
        for report in (f.explain(), f.explain(*again)):
            assert (report.served_by, report.why) == ("saved outputs", "no input changed")
            assert (report.changed, report.num_ran, report.ran, report.loaded) == ((), 0, (), ())


def test_while_calls_bypass_those_with_the_same_objects_say_so():
    x = jnp.asarray(X)
    f: Any = incrax.incremental(three)
    for c in (1.0, 2.0):
        f(1.0, 2.0, c, x)
    f._traces.latest.engine.ledger.grant(50)
    f._bypass = f._traces.latest.bypass
    whole = f.num_equations
    args = 1.0, 2.0, 3.0, x
    copies = 1.0, 2.0, 3.0, x + 0.0  # of the same bits: nobody looks
    for again, num_ran in ((args, whole), (args, 0), (copies, whole), (copies, 0), (args, whole)):
        before = f.stats.as_dict()
        f(*again)
        after = f.stats.as_dict()
        report = f.explain()
        assert report.num_ran == after["ran"] - before["ran"] == num_ran
        assert report.served_by == ("whole" if num_ran else "saved outputs")
        assert report.why == (NOT_COMPARED if num_ran else "no input changed")
        assert after["unchanged"] - before["unchanged"] == (num_ran == 0)


@pytest.mark.parametrize("options", [{"tuning": EAGER}, {"tuning": MINIMAL}, EXACT])
@pytest.mark.parametrize("is_donated", [False, True])
def test_a_call_whose_saved_result_is_gone_says_so(options, is_donated):
    f: Any = incrax.incremental(lambda a, x: jnp.exp(a * x), **options)
    args = 2.0, jnp.asarray(X)
    f(1.0, args[1])
    result = f(*args)
    if is_donated:
        jax.jit(lambda y: y + 1.0, donate_argnums=0)(result)
    else:
        result.delete()
    before = f.stats.as_dict()
    dry = f.explain(*args)
    f(*args)
    assert f.stats.unchanged == before["unchanged"]
    for report in (dry, f.explain()):
        assert report.why == DELETED
        assert report.changed == ()
        assert report.num_ran == f.num_equations
    f(*args)
    assert f.explain().why == "no input changed"
