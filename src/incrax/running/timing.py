"""A compiled program with its measured seconds: the first run compiles and does not count, the next few are timed.

In: a plan and its executable. Out: results, and `seconds`. It must not know what the program is for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from incrax.planning.plan import Plan
from incrax.running.compiled import Executable


class TimedProgram:
    """One executable; `plan` is None for the whole program, `seconds` is None until it was timed."""

    __slots__ = ("executable", "num_runs", "plan", "rounds", "seconds")

    def __init__(self, plan: Plan | None, executable: Executable, rounds: int) -> None:
        self.plan = plan
        self.executable = executable
        self.rounds = rounds
        self.num_runs = 0
        self.seconds: float | None = None

    def copy(self) -> TimedProgram:
        """The same executable with an independent clock."""
        other = TimedProgram(self.plan, self.executable, self.rounds)
        other.num_runs, other.seconds = self.num_runs, self.seconds
        return other

    @property
    def is_settled(self) -> bool:
        """Whether all timed runs were made."""
        return self.num_runs > self.rounds

    def __call__(self, feeds: Sequence[Any], loads: Sequence[Any]) -> list[Any]:
        """Run; while it is timed, wait for what it reads before and for its results after."""
        if self.num_runs > self.rounds:
            return self.executable(feeds, loads)
        jax.block_until_ready(loads)
        start = time.perf_counter()
        results = jax.block_until_ready(self.executable(feeds, loads))
        elapsed = time.perf_counter() - start
        if self.num_runs:
            self.seconds = elapsed if self.seconds is None else min(self.seconds, elapsed)
        self.num_runs += 1
        return results
