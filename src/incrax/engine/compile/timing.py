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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax._jax import Var, first_buffer
from incrax._program import Results, Values
from incrax._stats import Stats
from incrax.engine.compile.background import CALLER_SHARE, Background, Compilation
from incrax.engine.compile.executables import Compiler, Executable, Family
from incrax.engine.compile.recycling import Pool
from incrax.engine.plan.plan import Plan

SAMPLE = 32
"""One in so many runs is timed after the first rounds."""

LONG_S = 0.1
"""Seconds of timed runs in all after which no more are needed at the start."""

PROGRAM_S = 0.05
EQUATION_S = 5e-4
CONSTANT_S = 1e-8
"""Seconds to compile a program, for each of its equations, and for each byte of a constant that is
written into it, on a machine of 2026.
"""

MIN_LARGE = 2000
ONE_BY_ONE_S = 1e-4
"""Equations from which on values to save are at first computed one equation after the other, which
takes so many seconds for each.
"""

WINDOW = 5
"""Latest timed runs, of which the lower quartile counts: noise mostly adds."""


@dataclass(slots=True, eq=False)
class Clock:
    """What the programs of one engine share."""

    rounds: int  # timed runs per program at the start
    now: Callable[[], float]  # what tells the time
    ticks: int = 0  # counts what may change a choice: timed runs, changes of the wanted values
    is_running: bool = True  # measured seconds may decide something
    spent_s: float = 0.0  # in programs so far, each run as long as it usually takes
    passed_s: float = 0.0  # in calls of programs and in waiting for their results
    compiling_s: float = 0.0  # of first runs of plans, most of it compilation
    # A result of each run that was not waited for, to see whether it failed.
    unproven: list[Any] = field(default_factory=list)
    # Times of each family of plans.
    families: weakref.WeakKeyDictionary[Family, Times] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    # Seconds that each was evaluated equation by equation.
    one_by_one_s: weakref.WeakKeyDictionary[Family, float] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    behind: Background = field(default_factory=Background)  # what a thread compiles

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

    def wait_for_unproven(self) -> None:
        """Wait for programs that were not waited for."""
        start = self.now()
        wait(self.unproven)
        self.passed_s += self.now() - start

    def read(self, guard: Any) -> bool:
        """Wait for a result that is true or false, and read it; `bool` of a JAX array takes several
        times as long.
        """
        start = self.now()
        is_true = bool(np.asarray(guard))
        self.passed_s += self.now() - start
        return is_true


def usual_s(num_eqns: int) -> float:
    """Seconds to compile a program of so many equations; assumed where the clock must not decide."""
    return PROGRAM_S + EQUATION_S * num_eqns


def is_large(num_eqns: int) -> bool:
    """Whether a program takes long to compile: a function of 9,500 equations 20 s, as does what
    computes values of it to save.
    """
    return num_eqns >= MIN_LARGE


def wait(results: Any) -> None:
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
    is_measured: bool


@dataclass(slots=True, eq=False)
class TimedProgram:
    """One executable with its times."""

    plan: Plan | None  # None: the whole program
    executable: Executable
    clock: Clock
    pool: Pool
    num_runs: int = 0
    # The latest timed runs.
    times: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    seconds: float | None = None  # of a run; None until one was timed
    is_measured: bool = False  # the first timed runs were made, or took long enough to be believed
    first_s: float = 0.0  # of the first run, compilation included
    is_due: bool = False  # the next run is timed all the same
    job: Compilation | None = None  # what a thread compiles of it

    @property
    def loads(self) -> tuple[Var, ...]:
        """The saved values that it takes, in order."""
        return self.executable.loads

    def is_at_hand(self, feeds: Values) -> bool:
        """Whether a run should not wait for a thread that compiles it, which begins to where there
        is one.
        """
        behind = self.clock.behind
        if self.num_runs or not behind.is_on or self.is_one_by_one:
            return True
        if self.job is None:
            self.job = behind.compile(*self.executable.specimen(feeds))
        return self.job is not None and self.job.has_ended

    @property
    def is_one_by_one(self) -> bool:
        """Whether to evaluate one equation after the other, which computes values to save, until
        that took as long as compiling them would (ski rental).
        """
        family = self.executable.family
        clock = self.clock
        if self.num_runs or not clock.rounds or not is_large(family.num_eqns):
            return False
        passed_s = clock.one_by_one_s.get(family, 0.0)
        return family.one_by_one is not None and passed_s < usual_s(family.num_eqns)

    def retime(self) -> None:
        """Forget the times and take new ones in the next runs, if any are; `seconds` stay until
        then.
        """
        if self.num_runs and self.clock.rounds:
            self.times.clear()
            self.num_runs = 1
            self.is_measured = False

    def __call__(self, feeds: Values, loads: Values) -> Results:
        """Run; where it is timed, wait for what it reads before and for its results after."""
        if self.is_one_by_one:
            return self._run_one_by_one(feeds, loads)
        family = self.executable.family
        buffers = self.pool.take(family.donated) if family.donated else ()
        clock = self.clock
        behind = clock.behind
        is_disturbed = behind.is_on and self.seconds is not None and behind.num_waiting > 0
        is_due = self.is_due or not self.num_runs % SAMPLE
        if is_disturbed or (self.is_measured and not (is_due and clock.rounds)):
            return self._run_untimed(feeds, loads, buffers)
        self.is_due = False
        jax.block_until_ready(loads)
        clock.wait_for_unproven()  # a program that still runs would be timed as well
        start = clock.now()
        results = jax.block_until_ready(self.executable(feeds, loads, buffers))
        elapsed = max(clock.now() - start, 0.0)
        clock.passed_s += elapsed
        self.note(elapsed)
        return results

    def note(self, elapsed: float) -> None:
        """A run was timed, from its arguments to its results."""
        if self.num_runs:
            self._note_run(elapsed)
        else:
            self._note_first(elapsed)
        self.num_runs += 1
        is_long = len(self.times) > 2 and sum(self.times) >= LONG_S
        self.is_measured = self.num_runs > self.clock.rounds or is_long
        if self.plan is not None:
            known = Times(self.num_runs, tuple(self.times), self.seconds, self.is_measured)
            self.clock.families[self.executable.family] = known

    def _run_one_by_one(self, feeds: Values, loads: Values) -> Results:
        clock = self.clock
        family = self.executable.family
        clock.wait_for_unproven()
        start = clock.now()
        results = jax.block_until_ready(self.executable.evaluated(feeds, loads))
        self.seconds = max(clock.now() - start, 0.0)
        before_s = clock.one_by_one_s.get(family)
        clock.one_by_one_s[family] = (before_s or 0.0) + self.seconds
        clock.passed_s += self.seconds
        if before_s is None:  # JAX compiles what each kind of equation is
            clock.compiling_s += self.seconds
        else:
            clock.spent_s += self.seconds
        clock.ticks += 1
        return results

    def _note_run(self, elapsed: float) -> None:
        self.times.append(elapsed)
        self.seconds = sorted(self.times)[len(self.times) // 4]
        self.clock.ticks += 1
        self.clock.spent_s += self.seconds

    def _note_first(self, elapsed: float) -> None:
        """Of what a thread compiled, the seconds count that it took from the caller."""
        clock = self.clock
        behind = clock.behind
        family = self.executable.family
        self.first_s = elapsed if clock.is_running else usual_s(family.num_eqns)
        job_s = 0.0 if self.job is None else self.job.seconds
        self.job = None
        behind.seconds += job_s
        own_s = 0.0 if self.plan is None else self.first_s
        clock.compiling_s += own_s + CALLER_SHARE * job_s

    def _run_untimed(self, feeds: Values, loads: Values, donated: Values) -> Results:
        """Run without waiting; it counts as long as it took before."""
        start = self.clock.now()
        results = self.executable(feeds, loads, donated)
        self.clock.passed_s += self.clock.now() - start
        self.clock.spent_s += self.seconds or 0.0
        self.clock.unproven += first_buffer(results)
        self.num_runs += 1
        return results


@dataclass(frozen=True)
class TimedCompiler:
    """Makes the programs of one engine."""

    compiler: Compiler
    clock: Clock
    pool: Pool
    stats: Stats

    def compile(self, plan: Plan) -> TimedProgram:
        """The program of a plan, which is then in the program's order; counted unless its family has
        one: then it needs no first run, and is as fast as that.
        """
        executable = self.compiler.compile_plan(plan)
        self.stats.compiles += not executable.is_shared
        program = TimedProgram(executable.plan, executable, self.clock, self.pool)
        known = self.clock.families.get(executable.family)
        if known is None:
            return program
        times = deque(known.latest, WINDOW)
        return replace(
            program,
            num_runs=known.num_runs,
            times=times,
            seconds=known.seconds,
            is_measured=known.is_measured,
        )
