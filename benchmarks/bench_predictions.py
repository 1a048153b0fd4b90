"""Question: does the cost model foretell seconds, of programs and of compiling them, well enough to
decide by?

For each whole job's function: seconds of the whole program and of the plan of each kind of change,
predicted before anything ran and measured; and of compiling those plans, predicted from what the
whole program took. Targets: within 2x for 90 % of the programs, and of the compilations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import harness
import jax
from harness import Check, Line, Options
from problems.jobs import JOBS

import incrax
from incrax.engine.plan.plan import Prices, plan_dirty, plan_fill
from incrax.engine.program.nested import num_in_all

FACTOR = 2.0
SHARE = 0.9
RUNS = 7
NUM_CALLS = 12
NUM_KINDS = 4
"""Kinds of change of a job that are planned for: those that come first."""

JAX_ONLY = incrax.Tuning(remember=False, history=0)


class Prediction(NamedTuple):
    """Seconds, by the model and by the clock."""

    about: str
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / max(self.predicted_s, 1e-12)

    @property
    def is_close(self) -> bool:
        """Whether they differ by less than the factor."""
        return 1.0 / FACTOR <= self.ratio <= FACTOR


def kinds_of(engine: Any) -> list[int]:
    """The kinds of change that were seen, without those of all inputs."""
    full = engine.layout.full
    return [dirty for dirty in engine.chooser.entries if 0 < dirty < full][:NUM_KINDS]


def best_s(run: Callable[[], Any]) -> float:
    """Least seconds of a few runs."""
    found = []
    for _ in range(RUNS):
        start_s = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - start_s)
    return min(found)


def first_s(run: Callable[[], Any]) -> float:
    """Seconds of the first run, most of it compilation."""
    start_s = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start_s


def predictions(name: str) -> tuple[list[Prediction], list[Prediction]]:
    """Of the programs of a job, and of compiling its plans."""
    make, size = JOBS[name]
    job = make(size)
    ours = incrax.incremental(job.function, tuning=JAX_ONLY)
    calls = job.calls()
    args = [next(calls) for _ in range(NUM_CALLS)]
    for each in args:
        ours(*each)
    traced = ours._traces.latest
    assert traced is not None
    engine = traced.engine
    facts = engine.facts
    feeds = [value.feed for value in engine.store.states[-1].values]
    whole = engine.whole.executable
    whole_s = best_s(lambda: whole(feeds, ()))
    run_price = whole_s / max(facts.total_seconds, 1e-12)
    run_s = [Prediction("whole", facts.total_seconds, whole_s)]
    compile_s = []
    compiler = engine.chooser.compiler
    for number, dirty in enumerate(kinds_of(engine)):
        plan = plan_dirty(facts, dirty, prices=Prices(1.0, run_price))
        if not plan.loads:
            continue
        program = compiler.compile_plan(plan)
        fill = compiler.compile_plan(plan_fill(facts, program.loads, lambda _: False))
        assert fill.plan is not None
        found = dict(zip(fill.plan.saves, fill(feeds, ()), strict=True))
        loads = [found[var] for var in program.loads]
        run = lambda program=program, loads=loads: program(feeds, loads)
        took_s = first_s(run)
        if not program.is_shared:
            predicted_s = engine.chooser.credit.compiling_s(num_in_all(plan.eqns))
            compile_s.append(Prediction(f"plan {number}", predicted_s, took_s))
        run_s.append(Prediction(f"plan {number}", plan.seconds, best_s(run)))
    return run_s, compile_s


def lines(options: Options) -> Iterator[Line]:
    """A line for each job, and one for all of them."""
    all_runs: list[Prediction] = []
    all_compiled: list[Prediction] = []
    for name in JOBS:
        if options.only in name:
            runs, compiled = predictions(name)
            all_runs += runs
            all_compiled += compiled
            yield Line(name, _cells(runs, compiled), _numbers(runs, compiled))
    checks = [scored("programs", all_runs), scored("compilations", all_compiled)]
    yield Line("all", _cells(all_runs, all_compiled), {}, checks)


def scored(about: str, found: list[Prediction]) -> Check:
    """Whether enough of them are close."""
    share = sum(each.is_close for each in found) / max(len(found), 1)
    return Check(
        f"{about} within {FACTOR:.0f}x >= {SHARE:.0%}", f"{about} {share:.0%}", share >= SHARE
    )


def _cells(runs: list[Prediction], compiled: list[Prediction]) -> dict[str, str]:
    return {
        "measured / predicted, programs": _shown(runs),
        "compiling": _shown(compiled),
        "within 2x": f"{sum(each.is_close for each in runs)} of {len(runs)}",
        "compiling within 2x": f"{sum(each.is_close for each in compiled)} of {len(compiled)}",
    }


def _shown(found: list[Prediction]) -> str:
    return " ".join(f"{each.ratio:.2g}" for each in found) or "-"


def _numbers(runs: list[Prediction], compiled: list[Prediction]) -> dict[str, float]:
    named = {f"{each.about}, run": each.ratio for each in runs}
    named |= {f"{each.about}, compile": each.ratio for each in compiled}
    return {name: ratio for name, ratio in named.items() if math.isfinite(ratio)}


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=1, quick_rounds=1)
    harness.report("Predicted and measured seconds", lines(options), options)
