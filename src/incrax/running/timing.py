"""A compiled program with its measured seconds.

The first run compiles and does not count; the next few are timed, then one in `SAMPLE`, so that a machine that became
busier or quieter is noticed.

In: a plan and its executable. Out: results, and `seconds`. It must not know what the program is for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax

from incrax.planning.plan import Plan
from incrax.running.compiled import Executable

SAMPLE = 32
"""One in so many runs is timed after the first rounds."""

LONG_S = 0.03
"""Seconds of timed runs in all after which no more are needed at the start."""

WINDOW = 5
"""Latest timed runs of which the least counts: noise only ever adds."""


class Clock:
    """Counts what may change a choice between programs: timed runs, and changes of the wanted values."""

    __slots__ = ("rounds", "ticks")

    def __init__(self, rounds: int, ticks: int = 0) -> None:
        self.rounds = rounds
        self.ticks = ticks


class TimedProgram:
    """One executable; `plan` is None for the whole program, `seconds` is None until it was timed.

    `first_s` are the seconds of the first run, compilation included.
    """

    __slots__ = ("clock", "executable", "first_s", "is_due", "num_runs", "plan", "seconds", "times")

    def __init__(self, plan: Plan | None, executable: Executable, clock: Clock) -> None:
        self.plan = plan
        self.executable = executable
        self.clock = clock
        self.num_runs = 0
        self.is_due = False
        self.times: deque[float] = deque(maxlen=WINDOW)
        self.seconds: float | None = None
        self.first_s = 0.0

    def copy(self, clock: Clock) -> TimedProgram:
        """The same executable with times of its own."""
        other = TimedProgram(self.plan, self.executable, clock)
        other.num_runs, other.times, other.seconds = self.num_runs, self.times.copy(), self.seconds
        other.first_s = self.first_s
        return other

    @property
    def is_settled(self) -> bool:
        """Whether the first timed runs were made, or took long enough to be believed."""
        return self.num_runs > self.clock.rounds or (len(self.times) > 1 and sum(self.times) >= LONG_S)

    def retime(self) -> None:
        """Time the next run."""
        self.is_due = True

    def __call__(self, feeds: Sequence[Any], loads: Sequence[Any]) -> list[Any]:
        """Run; where it is timed, wait for what it reads before and for its results after."""
        rounds = self.clock.rounds
        if not self.is_due and self.is_settled and (self.num_runs % SAMPLE or not rounds):
            self.num_runs += 1
            return self.executable(feeds, loads)
        jax.block_until_ready(loads)
        start = time.perf_counter()
        results = jax.block_until_ready(self.executable(feeds, loads))
        elapsed = time.perf_counter() - start
        if self.num_runs:
            self.times.append(elapsed)
            self.seconds = min(self.times)
            self.clock.ticks += 1
        else:
            self.first_s = elapsed
        self.num_runs += 1
        self.is_due = False
        return results
