"""What learning may cost: on trust at first, then as much as it would have paid.

In: seconds spent, what a dirty set's program promises. Out: whether to plan and to compile. It must
not know how.
"""

from __future__ import annotations

from incrax._tuning import Tuning
from incrax.engine.compile.timing import Clock, TimedProgram
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.candidates import Entry

COMPILE_SHARE = 0.1
"""Share of the time spent in programs so far that may go into compiling on trust; the rest must be
earned.
"""

EARNED_SHARE = 0.1
"""Share of what serves a dirty set now that a program of its own is expected to save."""

EARNED_FACTOR = 3.0
"""Compilations that the gain over all uses so far must have been worth, where many were made
before.
"""

FIRST_PLAN_S = 0.5
PLANNED_EQUATION_S = 2e-4
"""Seconds of planning: of the first plan of a process, for which the machine is measured and SciPy
imported, and of later ones per equation of the program.
"""

LEAST_CLEAN_SHARE = 0.02
"""Of the whole program: what a plan may save where estimates see nothing that it could."""

MIN_COMPILE_S = 0.05
"""Seconds that a compilation is taken to need at least; what the whole program needed is the better
guess.
"""


class Credit:
    """The account of one engine."""

    __slots__ = ("clock", "compile_s", "facts", "whole")

    def __init__(self, facts: Facts, clock: Clock, whole: TimedProgram, tuning: Tuning) -> None:
        self.facts = facts
        self.clock = clock
        self.whole = whole
        self.compile_s = tuning.compile_s

    def allows_planning(self, entry: Entry, whole_s: float) -> bool:
        """Whether to find out what a program for a dirty set would save.

        On trust, or when all that it may have saved so far is worth it: what takes as long in the
        whole program as the equations that the change does not reach.
        """
        share = max(entry.clean_share, LEAST_CLEAN_SHARE)
        plan_s = self._plan_s
        return self._has_left(plan_s) or entry.count * share * whole_s > plan_s

    @property
    def _plan_s(self) -> float:
        later_s = PLANNED_EQUATION_S * len(self.facts.eqns)
        return later_s if self.facts.is_calibrated else FIRST_PLAN_S

    def allows(self, entry: Entry, whole_s: float, *, is_early: bool) -> bool:
        """Whether to compile for a dirty set: on trust if it is early, else when it would have
        paid.

        Ski rental: what was lost for want of a program is then as much as it costs, or some times
        as much.
        """
        has_credit = is_early and self._has_left(self.whole.first_s)
        return has_credit or self.has_earned(entry, whole_s, 1.0 if is_early else EARNED_FACTOR)

    def _has_left(self, seconds: float) -> bool:
        """Whether so many more seconds are short against what ran: a short fit must not pay for
        what it hardly uses.
        """
        allowed_s = self.compile_s + COMPILE_SHARE * self.clock.spent_s
        return self.clock.compiling_s + seconds <= allowed_s

    def has_earned(self, entry: Entry, whole_s: float, factor: float = EARNED_FACTOR) -> bool:
        """Whether the gain expected over as many uses as there were is so many times the time to
        compile.
        """
        served_s = entry.seconds.get(entry.candidate, whole_s)
        is_promising = entry.candidate == "segments" or not entry.is_planned
        gain_s = max(served_s - entry.promise_s, EARNED_SHARE * served_s if is_promising else 0.0)
        return entry.count * gain_s > factor * max(self.whole.first_s, MIN_COMPILE_S)
