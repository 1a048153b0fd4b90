"""What learning may cost: on trust at first, then as much as it would have paid.

In: seconds spent, what a dirty set's program promises. Out: whether to plan and to compile. It must
not know how.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from incrax._jax import Equation
from incrax._tuning import Tuning
from incrax.engine.compile.background import CALLER_SHARE
from incrax.engine.compile.timing import Clock, TimedProgram, usual_s
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.frontier import MAX_EDGES
from incrax.engine.policy.candidates import UPKEEP_S, Entry
from incrax.engine.policy.expectations import Expectations
from incrax.engine.program.nested import num_in_all

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

PLANNED_EQUATION_S = 5e-5
CALIBRATION_S = 0.25
SOLVER_S = 0.25
"""Seconds of planning: per equation of the program, until a plan was made; for the first plan of a
process, to measure the machine where no earlier process has, and to import what finds cuts.
"""

ROW_PLANNING = 8.0
"""Times what another plan takes: for rows, JAX traces the equations again, two or three times."""

SOLVER = "scipy.sparse.csgraph"

FORESEEN_FACTOR = 2.0
"""Compilations that the gain over all calls to come must be worth: of a plan, and of the programs
that compute what it loads.
"""

LEAST_CLEAN_SHARE = 0.02
"""Of the whole program: what a plan may save where estimates see nothing that it could."""

KEPT_SHARE = 0.5
"""Of the seconds that the whole program took to compile in an earlier process: it took less now,
hence was not compiled.
"""

MIN_COMPILE_S = 0.05
"""Seconds that a compilation is taken to need at least."""


MAX_SLOWNESS = 2.0
"""Times the usual seconds that a machine is believed to need."""


class Credit:
    """The account of one engine."""

    __slots__ = (
        "clock",
        "compile_s",
        "due_in",
        "expectations",
        "expected_calls",
        "facts",
        "hinted_calls",
        "num_calls",
        "num_new",
        "num_programs",
        "planning_s",
        "whole",
    )

    def __init__(
        self,
        facts: Facts,
        clock: Clock,
        whole: TimedProgram,
        tuning: Tuning,
        expectations: Expectations,
    ) -> None:
        self.facts = facts
        self.clock = clock
        self.whole = whole
        self.compile_s = tuning.compile_s
        self.hinted_calls = self.expected_calls = tuning.calls or 0
        self.expectations = expectations
        self.num_calls = 0
        self.due_in = math.inf
        self.planning_s = 0.0
        self.num_programs = 0
        self.num_new = 0

    def note_plan(self, seconds: float) -> None:
        """A plan was made in so many seconds; those of the first, which imports a solver, fade."""
        self.planning_s = 0.5 * (self.planning_s + seconds) if self.planning_s else seconds

    def note_program(self, *, is_new: bool) -> None:
        """A plan got a program, a new one or that of its family."""
        self.num_programs += 1
        self.num_new += is_new

    @property
    def novelty(self) -> float:
        """The share of plans that need a program of their own, by what was seen so far: where one
        change is like another, most do not.
        """
        return (self.num_new + 1) / (self.num_programs + 1)

    def expect(self, calls: int) -> None:
        """So many more calls will come, of each kind as many as its share so far; no fewer in all
        than the function was made for.
        """
        self.expected_calls = max(self.hinted_calls, self.num_calls + calls)

    def allows_planning(
        self, entry: Entry, whole_s: float, *, overhead_s: float = UPKEEP_S, of_rows: bool = False
    ) -> bool:
        """Whether to find out what a program for a dirty set would save, beyond the overhead.

        On trust, or when all that it may have saved so far is worth the plan and the program, since
        nothing is compiled before: what takes as long in the whole program as the equations that
        the change does not reach. Rows are planned for without measuring the machine.
        """
        share = max(entry.clean_share, LEAST_CLEAN_SHARE)
        gain_s = share * whole_s - overhead_s
        plan_s = self._plan_s * (ROW_PLANNING if of_rows else 1.0)
        if not of_rows and not self.facts.is_calibrated:
            plan_s += CALIBRATION_S
        program_s = self._price_s(entry, 1.0)
        if self._has_left(plan_s) or entry.count * gain_s > plan_s + program_s:
            return True
        if self._calls(entry) * gain_s > plan_s + FORESEEN_FACTOR * program_s:
            return True
        self._wait(entry, gain_s, plan_s + program_s)
        return False

    @property
    def _program_s(self) -> float:
        """Seconds to compile a program, if the family has none: what the whole program needed is the
        best guess, if it was not taken from JAX's compilation cache.
        """
        compile_s = max(self.whole.first_s, self.expectations.compile_s, MIN_COMPILE_S)
        return compile_s * self.novelty

    def _price_s(self, entry: Entry, work: float) -> float:
        """Seconds that compiling for a dirty set takes from the caller; where JAX kept the whole
        program from an earlier process, it kept what was compiled there for this set, too.
        """
        compile_s = self.expectations.compile_s
        is_kept = entry.was_compiled and self.whole.first_s < KEPT_SHARE * compile_s
        program_s = max(self.whole.first_s, MIN_COMPILE_S) if is_kept else self._program_s
        return self._share * work * program_s

    @property
    def _share(self) -> float:
        """Of what compiling takes, what the caller bears."""
        return CALLER_SHARE if self.clock.behind.is_on else 1.0

    def _calls(self, entry: Entry) -> int:
        """Of a dirty set, still to come: as many as there were or, if more, the rest of those that
        are expected.
        """
        expected = self.expected_calls * entry.count // max(self.num_calls, 1)
        return max(entry.count, max(entry.num_expected, expected) - entry.count)

    @property
    def _plan_s(self) -> float:
        if self.planning_s and self.clock.is_running:
            return self.planning_s
        later_s = PLANNED_EQUATION_S * len(self.facts.eqns)
        # An equation stands for some two edges of the graph that is cut.
        is_first = SOLVER not in sys.modules and len(self.facts.eqns) > MAX_EDGES // 2
        return later_s + SOLVER_S * is_first

    def work(self, eqns: Iterable[Equation], num_more: int = 0) -> float:
        """Seconds to compile equations, and so many more, over those of the whole program's first
        run; of these, what is far beyond the usual is its run and its constants, which no other
        has.
        """
        whole_s = usual_s(num_in_all(self.facts.eqns))
        usual_share = min(MAX_SLOWNESS * whole_s / max(self.whole.first_s, 1e-9), 1.0)
        return usual_share * usual_s(num_in_all(eqns) + num_more) / whole_s

    def allows(self, entry: Entry, whole_s: float, *, is_early: bool, work: float = 1.0) -> bool:
        """Whether to compile for a dirty set as much as so many whole programs: on trust if it is
        early, else when it would have paid.

        Ski rental: what was lost for want of a program is then as much as it costs, or some times
        as much.
        """
        first_s = self._share * self.novelty * work * self.whole.first_s
        has_credit = is_early and self._has_left(first_s)
        factor = 1.0 if is_early else EARNED_FACTOR
        return has_credit or self.has_earned(entry, whole_s, factor, work)

    def _has_left(self, seconds: float) -> bool:
        """Whether so many more seconds are short against what ran: a short fit must not pay for
        what it hardly uses.
        """
        allowed_s = self.compile_s + COMPILE_SHARE * self.clock.spent_s
        return self.clock.compiling_s + seconds <= allowed_s

    def has_earned(
        self,
        entry: Entry,
        whole_s: float,
        factor: float = EARNED_FACTOR,
        work: float = 1.0,
    ) -> bool:
        """Whether the gain over as many calls as there were, or over those to come, is so many
        times the time to compile.
        """
        served_s = entry.seconds.get(entry.candidate, whole_s)
        is_promising = entry.candidate == "segments" or not (entry.is_planned or entry.is_foretold)
        gain_s = max(served_s - entry.promise_s, EARNED_SHARE * served_s if is_promising else 0.0)
        price_s = self._price_s(entry, work)
        if entry.count * gain_s > factor * price_s:
            return True
        if self._calls(entry) * gain_s > FORESEEN_FACTOR * price_s:
            return True
        self._wait(entry, gain_s, factor * price_s)
        return False

    def _wait(self, entry: Entry, gain_s: float, price_s: float) -> None:
        """Note when so many calls like this one came that their gain is worth a price, if they come
        as often as so far.
        """
        if gain_s > 0 and entry.count:
            num_missing = price_s / gain_s - entry.count
            self.due_in = min(self.due_in, num_missing * self.num_calls / entry.count)

    def take_due_in(self) -> float:
        """After how many calls to decide anew what was refused in this one; infinite: nothing was."""
        due_in = self.due_in
        self.due_in = math.inf
        return due_in
