"""A compiled program with its measured seconds.

The first run compiles and does not count; the next few are timed, then one in `SAMPLE`, so that a
machine that became busier or quieter is noticed. None is timed again while a thread compiles.

In: a plan and its executable. Out: results, and `seconds`. It must not know what the program is
for.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax._jax import Var, first_buffer
from incrax._profiling import is_profiled, profiled
from incrax._stats import Stats
from incrax.engine.compile.background import CALLER_SHARE, Background, Compilation
from incrax.engine.compile.executables import Compiler, Executable, Family
from incrax.engine.compile.recycling import Pool
from incrax.engine.plan.plan import Plan

SAMPLE = 32
"""One in so many runs is timed after the first rounds."""

LONG_S = 0.1
"""Seconds of timed runs in all after which no more are needed at the start."""

EQUATION_S = 2e-3
"""Seconds to compile one equation, assumed where the clock must not decide."""

WINDOW = 5
"""Latest timed runs, of which the lower quartile counts: noise mostly adds."""


class Clock:
    """What the programs of one engine share.

    Fields: timed runs per program at the start; `ticks` counts what may change a choice between
    programs (timed runs, changes of the wanted values); what tells the time; whether measured
    seconds may decide anything; seconds spent in programs so far, each run as long as it usually
    takes; seconds that passed in calls of programs and in waiting for their results; seconds of
    first runs of plans, most of it compilation; a result of each run that was not waited for, by
    which one sees whether it failed; the times of each family of plans; what a thread compiles.
    """

    __slots__ = (
        "behind",
        "compiling_s",
        "families",
        "is_running",
        "now",
        "passed_s",
        "rounds",
        "spent_s",
        "ticks",
        "unproven",
    )

    def __init__(
        self, rounds: int, now: Callable[[], float], ticks: int = 0, *, is_running: bool = True
    ) -> None:
        self.rounds = rounds
        self.now = now
        self.ticks = ticks
        self.is_running = is_running
        self.spent_s = 0.0
        self.passed_s = 0.0
        self.compiling_s = 0.0
        self.unproven: list[Any] = []
        self.families: weakref.WeakKeyDictionary[Family, Times] = weakref.WeakKeyDictionary()
        self.behind = Background()

    def copy(self) -> Clock:
        """A clock for a fork: what was spent so far is not its own."""
        other = Clock(self.rounds, self.now, self.ticks, is_running=self.is_running)
        other.unproven = list(self.unproven)
        other.families.update(self.families)
        other.behind = Background(is_on=self.behind.is_on)
        return other

    def began(self, begin_s: float | None) -> float:
        """When a call began, by this clock; `begin_s` is that of `perf_counter`, None stands for
        now.
        """
        return self.now() - (0.0 if begin_s is None else time.perf_counter() - begin_s)

    def wait(self, results: Any) -> None:
        """Wait for results of programs: their seconds count as spent already, and these are no
        overhead.
        """
        start = self.now()
        jax.block_until_ready(results)
        self.passed_s += self.now() - start

    def settle(self) -> None:
        """Wait for programs that were not waited for."""
        start = self.now()
        settle(self.unproven)
        self.passed_s += self.now() - start

    def read(self, guard: Any) -> bool:
        """Wait for a result that is true or false, and read it; `bool` of a JAX array takes several
        times as long.
        """
        start = self.now()
        is_true = bool(np.asarray(guard))
        self.passed_s += self.now() - start
        return is_true


def settle(results: Any) -> None:
    """Wait for results of earlier calls; whether they failed, or are deleted, is for others to say."""
    for x in jax.tree.leaves(results):
        with contextlib.suppress(Exception):
            jax.block_until_ready(x)


class Times(NamedTuple):
    """What is known of the programs of a family: how often they ran, the latest timed runs, seconds,
    and whether these are to be believed.
    """

    num_runs: int
    latest: tuple[float, ...]
    seconds: float | None
    is_settled: bool


class TimedProgram:
    """One executable; `plan` is None for the whole program, `seconds` is None until it was timed.

    `first_s` are the seconds of the first run, compilation included; `is_settled` says that the
    first timed runs were made, or took long enough to be believed; `is_due` that the next one is
    timed all the same. A plan whose family is known needs no first run, and is as fast as that.
    """

    __slots__ = (
        "clock",
        "executable",
        "first_s",
        "is_due",
        "is_settled",
        "job",
        "num_runs",
        "plan",
        "pool",
        "seconds",
        "times",
    )

    def __init__(self, plan: Plan | None, executable: Executable, clock: Clock, pool: Pool) -> None:
        self.plan = plan
        self.executable = executable
        self.clock = clock
        self.pool = pool
        self.num_runs = 0
        self.is_settled = False
        self.is_due = False
        self.times: deque[float] = deque(maxlen=WINDOW)
        self.seconds: float | None = None
        self.first_s = 0.0
        known = None if plan is None else clock.families.get(executable.family)
        if known is not None:
            self.num_runs = known.num_runs
            self.times.extend(known.latest)
            self.seconds = known.seconds
            self.is_settled = known.is_settled
        self.job: Compilation | None = None

    @property
    def loads(self) -> tuple[Var, ...]:
        """The saved values that it takes, in order."""
        return self.executable.loads

    def copy(self, clock: Clock, pool: Pool) -> TimedProgram:
        """The same executable with times of its own."""
        other = TimedProgram(self.plan, self.executable, clock, pool)
        other.num_runs = self.num_runs
        other.times = self.times.copy()
        other.seconds = self.seconds
        other.first_s = self.first_s
        other.is_settled = self.is_settled
        return other

    def is_at_hand(self, feeds: Sequence[Any]) -> bool:
        """Whether a run should not wait for a thread that compiles it, which begins to where there
        is one.
        """
        behind = self.clock.behind
        if self.num_runs or not behind.is_on:
            return True
        if self.job is None:
            self.job = behind.compile(*self.executable.specimen(feeds))
        return self.job is not None and behind.has_ended(self.job)

    def retime(self) -> None:
        """Forget the times and take new ones in the next runs, if any are; `seconds` stay until
        then.
        """
        if self.num_runs and self.clock.rounds:
            self.times.clear()
            self.num_runs = 1
            self.is_settled = False

    def __call__(self, feeds: Sequence[Any], loads: Sequence[Any]) -> list[Any]:
        """Run; where it is timed, wait for what it reads before and for its results after."""
        return (
            profiled("run", self._run, feeds, loads) if is_profiled() else self._run(feeds, loads)
        )

    def _run(self, feeds: Sequence[Any], loads: Sequence[Any]) -> list[Any]:
        rounds = self.clock.rounds
        donated = self.pool.take(self.executable.donated) if self.executable.donated else ()
        is_due = self.is_due or not self.num_runs % SAMPLE
        behind = self.clock.behind
        is_disturbed = behind.is_on and self.seconds is not None and behind.num_waiting > 0
        if is_disturbed or (self.is_settled and not (is_due and rounds)):
            return self._run_settled(feeds, loads, donated)
        self.is_due = False
        jax.block_until_ready(loads)
        self.clock.settle()  # a program that still runs would be timed as well
        start = self.clock.now()
        results = jax.block_until_ready(self.executable(feeds, loads, donated))
        elapsed = max(self.clock.now() - start, 0.0)
        self.clock.passed_s += elapsed
        if self.num_runs:
            self.times.append(elapsed)
            self.seconds = sorted(self.times)[len(self.times) // 4]
            self.clock.ticks += 1
            self.clock.spent_s += self.seconds
        else:
            self.first_s = (
                elapsed if self.clock.is_running else EQUATION_S * self.executable.num_eqns
            )
            self.clock.compiling_s += self.first_s if self.plan is not None else 0.0
            self._count_job()
        self.num_runs += 1
        self.is_settled = self.num_runs > rounds or (
            len(self.times) > 2 and sum(self.times) >= LONG_S
        )
        if self.plan is not None:
            known = Times(self.num_runs, tuple(self.times), self.seconds, self.is_settled)
            self.clock.families[self.executable.family] = known
        return results

    def _count_job(self) -> None:
        """What a thread needed counts by what it took from the caller."""
        job_s = 0.0 if self.job is None else self.job.seconds
        self.job = None
        self.clock.behind.seconds += job_s
        self.clock.compiling_s += CALLER_SHARE * job_s

    def _run_settled(
        self, feeds: Sequence[Any], loads: Sequence[Any], donated: Sequence[Any]
    ) -> list[Any]:
        """Run without waiting; it counts as long as it took before."""
        start = self.clock.now()
        results = self.executable(feeds, loads, donated)
        self.clock.passed_s += self.clock.now() - start
        self.clock.spent_s += self.seconds or 0.0
        self.clock.unproven += first_buffer(results)
        self.num_runs += 1
        return results


def compiled(
    plan: Plan, compiler: Compiler, stats: Stats, clock: Clock, pool: Pool
) -> TimedProgram:
    """The program of a plan, counted unless its family has one; its plan is in the program's order."""
    executable = compiler.compile_plan(plan)
    stats.compiles += not executable.is_shared
    return TimedProgram(executable.plan, executable, clock, pool)
