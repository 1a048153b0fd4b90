"""What it takes to plan and to compile, before it is done: estimates, in seconds.

In: `Facts`, the whole program's first run, what planning took, accounts. Out: seconds. It must not
know whether they are worth it.
"""

from __future__ import annotations

from dataclasses import dataclass

from incrax.engine.compile.background import CALLER_SHARE
from incrax.engine.compile.timing import (
    CONSTANT_S,
    ONE_BY_ONE_S,
    PROGRAM_S,
    Clock,
    TimedProgram,
    is_large,
    usual_s,
)
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.accounts import Accounts
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.expectations import Expectations

PLANNED_EQUATION_S = 5e-5
"""Seconds of the first plan of a function, for each of its equations."""

FIRST_PLAN = 5.0
"""Times the seconds of a later plan that it takes: it finds out what all share."""

CALIBRATION_S = 0.25
"""Seconds to measure the machine, in the first process that does."""

ROW_EQUATION_S = 1.1e-3
"""Seconds to trace an equation for rows, and to compile what comes of it."""

ROW_PROGRAM_S = 0.1
"""The same of a program for rows, whatever it runs; of 26 functions, first processes, these and what
saves for it took half to twice as long, but for three.
"""

PRIMING = 0.8
"""Times the whole function's first run that it takes to compile it once more, with more outputs: JAX
is up by then.
"""

EQUATION_BOUNDS_S = 2.5e-4, 3e-3
"""Seconds to compile an equation, at least and at most, as far as the whole program tells."""

KEPT_SHARE = 0.5
"""Of the seconds that the whole program took to compile in an earlier process: it took less now,
hence was not compiled.
"""

MIN_COMPILE_S = 0.05
"""Seconds that a compilation is taken to need at least."""

MAX_SLOWNESS = 2.0
"""Times what it is expected to take that an earlier process is believed to have needed."""


CAUTION = 1.2
"""Times what a program for rows takes to compile that must be lost before, since both estimates are
rough: a job that only just reached the price lost a fifth of its time.
"""

DIVIDED = 3.0
"""What all segments take to compile together, the one that fills them at first and that from them to
the outputs, in whole programs.
"""


@dataclass(eq=False)
class LearningCosts:
    """Of one function, on this machine: seconds, and prices, which are what the caller loses of them."""

    facts: Facts
    clock: Clock
    whole: TimedProgram
    expectations: Expectations
    accounts: Accounts
    planning_s: float = 0.0  # of a plan after the first, a running mean

    # --- planning ---------------------------------------------------------------------------------

    def note_plan(self, seconds: float, expected_s: float) -> None:
        """A plan was made in so many seconds, where others were expected, beside measuring the
        machine; the first tells by how much later ones may take longer than expected, too.
        """
        before_s = self.planning_s
        if before_s:
            self.planning_s = 0.5 * (before_s + seconds)
        else:
            self.planning_s = self.later_plan_s * seconds / expected_s

    @property
    def plan_s(self) -> float:
        """Seconds to make the next plan, beside measuring the machine."""
        return self.later_plan_s * (1.0 if self._is_known else FIRST_PLAN)

    @property
    def later_plan_s(self) -> float:
        """Seconds to make a plan after the first."""
        if self._is_known:
            return self.planning_s
        return PLANNED_EQUATION_S * max(len(self.facts.eqns), 1) / FIRST_PLAN

    @property
    def _is_known(self) -> bool:
        return bool(self.planning_s) and self.clock.is_running

    @property
    def calibration_s(self) -> float:
        """Seconds to measure the machine, if no process has."""
        return 0.0 if self.facts.is_calibrated else CALIBRATION_S

    # --- prices -----------------------------------------------------------------------------------

    @property
    def _caller_share(self) -> float:
        """Of compiling."""
        behind = self.clock.behind
        return CALLER_SHARE if behind.is_on else 1.0

    def program_price_s(self, entry: Entry) -> float:
        """The price of a new program for an entry's plan."""
        return self._caller_share * self._plan_program_s(entry)

    def plan_price_s(self, entry: Entry, *, divides: bool = False) -> float:
        """The price of what may have to be compiled for an entry's plan, or for segments, which serve
        all that come in turns.
        """
        price_s = self.program_price_s(entry) * (DIVIDED if divides else 1.0)
        if entry.family is None:
            return self._as_known_s(entry, price_s)
        accounts = self.accounts
        if not entry.known_price_s:  # else that has what was compiled beside it
            if not divides:
                others = accounts.families_in_turns - 1.0
                price_s += self._caller_share * others * self.equations_s(accounts.mean_reached)
            price_s *= accounts.dearness
        return accounts.of(entry).novelty * self._as_known_s(entry, price_s)

    def rows_price_s(self, entry: Entry, num_eqns: int, *, with_priming: bool) -> float:
        """The same of a program for rows, of so many equations, which are traced, too; what saves for
        it is the whole program again, with more outputs.
        """
        priming_s = PRIMING * self._program_of_s(entry) * with_priming
        program_s = ROW_PROGRAM_S + ROW_EQUATION_S * num_eqns + priming_s
        return self._as_known_s(entry, self._caller_share * CAUTION * program_s)

    def _as_known_s(self, entry: Entry, price_s: float) -> float:
        """What it took in an earlier process, if that is known, else an estimate; no more than
        twice that, since the machine may have stood still then.
        """
        return min(entry.known_price_s or price_s, MAX_SLOWNESS * price_s)

    # --- compiling --------------------------------------------------------------------------------

    @property
    def program_s(self) -> float:
        """Seconds to compile a program with about all equations: what the whole program needed, if it was not
        taken from JAX's compilation cache, is the best guess; beside its constants, which plans take
        as arguments.
        """
        own_share = self._usual_s / (self._usual_s + self._constants_s)
        return max(own_share * self._compile_s, MIN_COMPILE_S)

    def _program_of_s(self, entry: Entry) -> float:
        """Seconds to compile a program for an entry, before its plan is known: where JAX kept the
        whole program from an earlier process, it kept what was compiled there for this change, too.
        """
        is_kept = self.whole.first_s < KEPT_SHARE * self.expectations.compile_s
        if entry.was_compiled and is_kept:
            return max(self.whole.first_s, MIN_COMPILE_S)
        return self.program_s

    def _plan_program_s(self, entry: Entry) -> float:
        """Seconds to compile the program of an entry's plan: of a family, what it loads is there once something was
        learned, and is not compiled in large functions.
        """
        program_s = self._program_of_s(entry)
        if entry.family is None:
            return program_s
        if is_large(len(self.facts.eqns)):
            # What is loaded is computed one equation after the other at first.
            beside_s = ONE_BY_ONE_S * len(self.facts.eqns)
            return min(program_s, self.equations_s(entry.num_reached) + beside_s)
        if not self.accounts.has_learned:
            return program_s
        return min(program_s, self.equations_s(entry.num_reached))

    def equations_s(self, num_eqns: float) -> float:
        """Seconds to compile so many equations, each of which takes as long as those of the whole
        program: what they are, and the machine, make a difference of ten.
        """
        own_s = self._compile_s - self._constants_s - PROGRAM_S
        least_s, most_s = EQUATION_BOUNDS_S
        equation_s = min(max(own_s / max(self.facts.num_compiled, 1), least_s), most_s)
        return PROGRAM_S + equation_s * num_eqns

    @property
    def _compile_s(self) -> float:
        """What the whole program needed, here or in an earlier process."""
        return max(self.whole.first_s, self.expectations.compile_s)

    @property
    def _usual_s(self) -> float:
        """Of the whole program's equations, usually."""
        return usual_s(self.facts.num_compiled)

    @property
    def _constants_s(self) -> float:
        """The same of what it closes over."""
        return CONSTANT_S * self.facts.constant_bytes
