"""What learning may cost: on trust at first, then as much as it would have paid.

In: seconds spent, what a dirty set's program promises. Out: whether to plan and to compile. It must
not know how.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from incrax._tuning import Tuning
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
from incrax.engine.plan.frontier import MAX_EDGES
from incrax.engine.policy.candidates import UPKEEP_S, Entry
from incrax.engine.policy.expectations import Expectations
from incrax.engine.policy.ledger import Ledger

COMPILE_SHARE = 0.02
"""Share of the time spent in programs so far that may go into planning and compiling on trust; the
rest must be earned. A first plan in vain takes half a second, of a job that should lose none.
"""

WON_SHARE = 0.5
"""Share of what a function has gained in all, learning paid, that may be risked at once."""

EARNED_SHARE = 0.1
"""Share of the seconds of segments that a program of its own is expected to save."""

EARNED_FACTOR = 3.0
"""Compilations that the gain over all uses so far must have been worth, where many were made
before.
"""

PLANNED_EQUATION_S = 5e-5
FIRST_PLAN = 5.0
CALIBRATION_S = 0.25
SOLVER_S = 0.25
"""Seconds of planning: per equation of the program, for the first plan, which finds out what all
share and takes so many times as long as the next; for the first one of a process, to measure the
machine where no earlier process has, and to import what finds cuts.
"""

LASTING = math.log(10.0)
DOUBT = 10.0
"""By Lotka's law, a job that came to n calls comes to k n with a probability of 1 / k: over all of
them up to the tenfold, n ln 10 more are to be expected. This is relied on where a plan would
still gain if it took so many times as long as estimated, since nothing else is then unknown.
"""

KNOWN_DOUBT = 2.5
ROW_DOUBT = 2.0
"""The same for the seconds of a promise that do not depend on the work, and for the work of a
program for rows, which is a share of what was measured.
"""

ROW_UNSURE = 0.5
"""Share of the gain by such a program that counts where it is not beyond doubt: a call of 0.4 ms
takes half of that at best, and a job of 0.8 s that paid for it lost a third.
"""

ROW_EQUATION_S = 2e-3
"""Seconds to trace an equation for rows, and to compile what comes of it: as fitted to 28 programs
of `benchmarks/bench_slices.py`, half of which it meets within a quarter.
"""

PRIMING = 1.5
"""Times the whole function's first run that it takes to compile it once more, with more outputs."""

SHORT_S = 0.5
"""Seconds in programs after which a job is worth compiling for, if nothing is known of it: what
could be gained in one that ends before is less than a program takes to compile.
"""

SOLVER = "scipy.sparse.csgraph"

FORESEEN_FACTOR = 2.0
"""Compilations that the gain over all calls to come must be worth: of a plan, and of the programs
that compute what it loads.
"""

SELDOM = 0.1
"""How likely the second plan of a family needs a program of its own."""

LEAST_CLEAN_SHARE = 0.02
"""Of the whole program: what a plan may save where estimates see nothing that it could."""

KEPT_SHARE = 0.5
"""Of the seconds that the whole program took to compile in an earlier process: it took less now,
hence was not compiled.
"""

MIN_COMPILE_S = 0.05
"""Seconds that a compilation is taken to need at least."""


NUM_GRANTED = 32
"""Calls that are taken to have found all that they load, before any did."""

MAX_SLOWNESS = 2.0
"""Times the usual seconds that a machine is believed to need."""


@dataclass
class Account:
    """What changes of one family have been, and have cost, together.

    Before plans are made, changes are taken for a family that make the same equations run, whatever
    these read (`Facts.reached`); most often their plans then share a program. What was lost for
    want of it, each of them has lost, and it is compiled once.

    Fields: kinds of change; their calls, and those expected by hints or from earlier processes; how
    many have a program, and how many of these needed a new one; seconds that plans and programs were
    priced at, and that they took with all that was compiled for them; seconds of a call that a plan
    of the family serves: as promised, then as measured.
    """

    num_kinds: int = 0
    num_calls: int = 0
    num_expected: int = 0
    num_programs: int = 0
    num_new: int = 0
    priced_s: float = 0.0
    learning_s: float = 0.0
    served_s: float = math.inf

    @property
    def spent_s(self) -> float:
        """Seconds spent on the family."""
        return max(self.priced_s, self.learning_s)

    @property
    def mean_calls(self) -> float:
        """Calls of each kind: changes that never come again are of no family's use."""
        return self.num_calls / max(self.num_kinds, 1)

    @property
    def novelty(self) -> float:
        """How likely it is that the next plan needs a new program: the first one does, later ones as
        often as those after it so far, and seldom before any of these.
        """
        if not self.num_programs:
            return 1.0
        return (self.num_new - 1 + SELDOM) / self.num_programs


class Credit:
    """The account of one engine."""

    __slots__ = (
        "accounts",
        "clean_calls",
        "clock",
        "compile_s",
        "due_in",
        "expectations",
        "expected_calls",
        "facts",
        "has_learned",
        "hinted_calls",
        "ledger",
        "num_calls",
        "num_missed",
        "num_uses",
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
        ledger: Ledger,
    ) -> None:
        self.facts = facts
        self.clock = clock
        self.whole = whole
        self.compile_s = tuning.compile_s
        self.hinted_calls = self.expected_calls = tuning.calls or 0
        self.expectations = expectations
        self.ledger = ledger
        self.num_calls = 0
        self.num_uses = 0
        self.num_missed = 0.0
        self.clean_calls = 0.0
        self.has_learned = False
        self.due_in = math.inf
        self.planning_s = 0.0
        self.accounts: dict[int, Account] = {}

    def account(self, entry: Entry) -> Account:
        """That of an entry's family; one that has none is alone."""
        if entry.family is None:
            return Account(1, entry.count, entry.num_expected)
        return self.accounts.setdefault(entry.family, Account())

    def note_kind(self, entry: Entry) -> None:
        """A kind of change was seen for the first time."""
        account = self.account(entry)
        account.num_kinds += 1
        account.num_expected += entry.num_expected
        account.num_expected = max(account.num_expected, entry.num_kin_expected)

    def note_calls(self, entry: Entry, num_calls: int) -> None:
        """So many calls of a kind came."""
        self.num_calls += num_calls
        self.clean_calls += num_calls * entry.clean_share
        entry.note_seen(num_calls, self.num_calls)
        self.account(entry).num_calls += num_calls

    def note_plan(self, entry: Entry, seconds: float) -> None:
        """A plan was made in so many seconds; the first tells what a later one takes at most."""
        before_s = self.planning_s
        self.planning_s = 0.5 * (before_s + seconds) if before_s else seconds / FIRST_PLAN
        self.account(entry).priced_s += seconds

    def note_learning(self, entry: Entry, seconds: float) -> None:
        """A call took so many seconds longer than usual, since something was planned, compiled or
        tried.
        """
        self.account(entry).learning_s += seconds * self.clock.is_running

    @property
    def dearness(self) -> float:
        """How many times dearer learning is than it was priced: values that plans load have to be
        computed by programs, too, other ones for each change.
        """
        learned = [account for account in self.accounts.values() if account.num_programs]
        priced_s = sum(account.priced_s for account in learned)
        return max(sum(account.learning_s for account in learned) / max(priced_s, 1e-9), 1.0)

    @property
    def hit_rate(self) -> float:
        """Of the gain that is promised, what comes true: plans load what others may have left stale."""
        return 1.0 - self.num_missed / (self.num_uses + NUM_GRANTED)

    def note_uses(self, entry: Entry, num_calls: int) -> None:
        """Calls that saved values were to serve."""
        self.num_uses += num_calls
        entry.num_asked += num_calls

    def note_missed(self, entry: Entry, share: float) -> None:
        """Of one of these, such a share of the gain was lost since something that is loaded was stale."""
        self.num_missed += share
        entry.num_missed += share

    def note_promise(self, entry: Entry, seconds: float) -> None:
        """A plan promises so many seconds for each change of the family."""
        self.account(entry).served_s = seconds

    def note_choice(self, entry: Entry) -> None:
        """What serves a change was chosen: it is known how long each of the family takes."""
        if entry.program is not None:
            self.account(entry).served_s = min(entry.seconds.values())

    def note_program(self, entry: Entry, *, is_new: bool) -> None:
        """A plan got a program, a new one or that of its family."""
        account = self.account(entry)
        account.priced_s += self._share * self._own_program_s(entry, self._program_s) * is_new
        account.num_programs += 1
        account.num_new += is_new

    def expect(self, calls: int) -> None:
        """So many more calls will come, of each kind as many as its share so far; no fewer in all
        than the function was made for.
        """
        self.expected_calls = max(self.hinted_calls, self.num_calls + calls)

    def allows_planning(
        self,
        entry: Entry,
        whole_s: float,
        *,
        is_early: bool = True,
        overhead_s: float = UPKEEP_S,
        work: float = 1.0,
        is_for_rows: bool = False,
    ) -> bool:
        """Whether to find out what a program for a dirty set, which takes as much to compile as so many
        whole ones, would save, beyond the overhead.

        On trust if it is early, or when all that it may have saved so far is worth the plan and the
        program, since nothing is compiled before: what takes as long in the whole program as the
        equations that the change does not reach, or what a plan of the family saves. The first of a
        family is made when it is worth plans of all its kinds.

        For rows, JAX traces the equations again, two or three times, which may take as long as all
        calls of a short job: only where the program would be compiled, too. The machine is not
        measured for them.
        """
        account = self.account(entry)
        share = max(entry.clean_share, LEAST_CLEAN_SHARE)
        served_s = (1.0 - share) * whole_s + overhead_s
        if account.served_s < math.inf:
            served_s = account.served_s + overhead_s
            if served_s >= whole_s:
                return False
        plan_s = self._plan_s
        if not account.num_programs:
            plan_s += self._next_plan_s * max(account.num_kinds - 1, 0)
        if not is_for_rows and not self.facts.is_calibrated:
            plan_s += CALIBRATION_S
        program_s = self._price_s(entry, work)
        at_once_s = plan_s + program_s if is_for_rows else plan_s
        has_credit = is_early and self._has_left(at_once_s)
        return has_credit or self._is_paid(
            entry, whole_s, served_s, plan_s + program_s, plan_s + FORESEEN_FACTOR * program_s
        )

    def may_gain(self, entry: Entry, whole_s: float) -> bool:
        """Whether a plan may save something: what was promised, to an entry or to its family; before
        that, what is known roughly.
        """
        promise_s = min(entry.promise_s, self.account(entry).served_s)
        return entry.clean_share > 0.0 if promise_s == math.inf else promise_s < whole_s

    @property
    def _program_s(self) -> float:
        """Seconds to compile a program, if the family has none: what the whole program needed, if it
        was not taken from JAX's compilation cache, is the best guess; beside its constants, which
        plans take as arguments.
        """
        own_share = self._usual_s / (self._usual_s + self._constants_s)
        compile_s = max(self.whole.first_s, self.expectations.compile_s)
        return max(own_share * compile_s, MIN_COMPILE_S)

    def _price_s(self, entry: Entry, work: float) -> float:
        """Seconds that compiling for a dirty set takes from the caller; where JAX kept the whole
        program from an earlier process, it kept what was compiled there for this set, too.
        """
        compile_s = self.expectations.compile_s
        is_kept = entry.was_compiled and self.whole.first_s < KEPT_SHARE * compile_s
        program_s = max(self.whole.first_s, MIN_COMPILE_S) if is_kept else self._program_s
        program_s = self._own_program_s(entry, program_s)
        if work == 1.0:  # of segments, one program serves all
            program_s += (self.num_families - 1.0) * self.compiling_s(entry.num_reached)
        price_s = self._share * work * self.account(entry).novelty * program_s
        return price_s if entry.family is None else self.dearness * price_s

    def _own_program_s(self, entry: Entry, program_s: float) -> float:
        """Seconds to compile a program of an entry, where the whole one needs so many: of a family,
        what it loads is there once something was learned, and is not compiled in large functions.
        """
        if entry.family is None:
            return program_s
        if is_large(len(self.facts.eqns)):
            return min(program_s, self._piecemeal_s(entry.num_reached))
        if not self.has_learned:
            return program_s
        return min(program_s, self.compiling_s(entry.num_reached))

    def _piecemeal_s(self, num_reached: int) -> float:
        """Seconds to compile so many equations of a large function, and to evaluate the others one by
        one: what is loaded is computed so at first.
        """
        return self.compiling_s(num_reached) + ONE_BY_ONE_S * len(self.facts.eqns)

    @property
    def _share(self) -> float:
        """Of what compiling takes, what the caller bears."""
        return CALLER_SHARE if self.clock.behind.is_on else 1.0

    def _calls(self, entry: Entry) -> int:
        """Calls so far of a dirty set and its kin."""
        own = max(entry.count, self.account(entry).num_calls)
        if entry.family is None or self.has_learned or self._is_rare(entry):
            return own
        # Before anything is saved, all have lost for want of the same: what each loads comes then.
        return max(own, int(self.clean_calls / max(entry.clean_share, LEAST_CLEAN_SHARE)))

    def _is_rare(self, entry: Entry) -> bool:
        """Whether its family comes less than half as often as others: not the one to begin with."""
        total = sum(account.num_calls for account in self.accounts.values())
        return 2 * self.num_families * self.account(entry).num_calls < total

    @property
    def num_families(self) -> float:
        """How many families come in turns, each of which needs a program of its own where all are to
        earn the first one together: served as a whole, one would leave stale what others load.
        """
        if self.has_learned:
            return 1.0
        calls = [account.num_calls for account in self.accounts.values()]
        return max(num_in_turns(calls), self.expectations.num_families)

    def _calls_to_come(self, entry: Entry) -> int:
        """As many as there were or, if more, the rest of those that are expected."""
        calls = self._calls(entry)
        expected = self.expected_calls * calls // max(self.num_calls, 1)
        foreseen = max(entry.num_expected, self.account(entry).num_expected, expected)
        return max(calls, foreseen - calls)

    @property
    def _plan_s(self) -> float:
        if self.planning_s and self.clock.is_running:
            return self.planning_s
        # An equation stands for some two edges of the graph that is cut.
        is_first = SOLVER not in sys.modules and len(self.facts.eqns) > MAX_EDGES // 2
        return FIRST_PLAN * self._next_plan_s + SOLVER_S * is_first

    @property
    def _next_plan_s(self) -> float:
        """Seconds of a plan after the first."""
        if self.planning_s and self.clock.is_running:
            return self.planning_s
        return PLANNED_EQUATION_S * len(self.facts.eqns) / FIRST_PLAN

    def work(self, num_eqns: int, *, with_priming: bool) -> float:
        """Seconds to trace so many equations for rows and to compile them, over those of the whole
        program's first run; what saves for them is that program again, with more outputs.
        """
        rows_s = PROGRAM_S + ROW_EQUATION_S * num_eqns
        return rows_s / max(self.whole.first_s, 1e-9) + PRIMING * with_priming

    def compiling_s(self, num_eqns: int) -> float:
        """Seconds to compile so many equations."""
        return self._slowness * usual_s(num_eqns)

    @property
    def _slowness(self) -> float:
        """By how much this machine is slower than usual, as it was with the whole program. One that
        compiled faster says little of other equations; what is far beyond the usual was something
        else.
        """
        slowness = self.whole.first_s / (self._usual_s + self._constants_s)
        return min(max(slowness, 1.0), MAX_SLOWNESS)

    @property
    def _usual_s(self) -> float:
        """Seconds that compiling the whole program's equations usually takes."""
        return usual_s(self.facts.num_compiled)

    @property
    def _constants_s(self) -> float:
        """The same for what it closes over."""
        return CONSTANT_S * self.facts.constant_bytes

    def allows(self, entry: Entry, whole_s: float, *, is_early: bool, work: float = 1.0) -> bool:
        """Whether to compile for a dirty set as much as so many whole programs: on trust if it is
        early, else when it would have paid.

        Ski rental: what was lost for want of a program is then as much as it costs, or some times
        as much.
        """
        first_s = self._share * self.account(entry).novelty * work * self.whole.first_s
        has_credit = is_early and self._has_left(first_s)
        factor = 1.0 if is_early else EARNED_FACTOR
        return has_credit or self.has_earned(entry, whole_s, factor, work)

    def _has_left(self, seconds: float) -> bool:
        """Whether so many more seconds are short against what ran, or what was gained: a short fit
        must not pay for what it hardly uses.
        """
        allowed_s = self.compile_s + COMPILE_SHARE * self.clock.spent_s
        is_short = self.clock.compiling_s + seconds <= allowed_s
        return is_short or seconds <= WON_SHARE * self.ledger.net_s

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
        served_s = min(entry.seconds.values(), default=whole_s)
        # What a plan promised holds: a better guess would have it made again, in vain, at each look.
        is_divided = "segments" in entry.seconds
        usual_s = (1.0 - EARNED_SHARE) * served_s if is_divided else math.inf
        promise_s = min(entry.promise_s, usual_s)
        price_s = self._price_s(entry, work)
        return self._is_paid(
            entry, served_s, promise_s, factor * price_s, FORESEEN_FACTOR * price_s
        )

    def pays_for_fill(
        self, entry: Entry, whole_s: float, served_s: float, compiling_s: float
    ) -> bool:
        """Whether a call that takes so long once nothing is stale is worth programs for what is, beside
        all that was spent on its family.
        """
        if not compiling_s or self._has_left(compiling_s):
            return True
        return self._is_paid(entry, whole_s, served_s, compiling_s, FORESEEN_FACTOR * compiling_s)

    def _is_paid(
        self, entry: Entry, served_s: float, promise_s: float, price_s: float, foreseen_s: float
    ) -> bool:
        """Whether a call that takes so long, where so much is promised, has lost a price so far, or
        will lose another over the calls to come; beside what was spent on the family, unless it has
        a program: then the calls of one kind must be worth the price.
        """
        promise_s += (1.0 - self.hit_rate) * max(served_s - promise_s, 0.0)
        gain_s = served_s - promise_s
        account = self.account(entry)
        if account.num_programs and max(entry.count, account.mean_calls) * gain_s > price_s:
            return True
        lasting = 1.0 if self.expected_calls else LASTING
        known_s = min(entry.fixed_s, promise_s)
        doubt, unsure = (ROW_DOUBT, ROW_UNSURE) if known_s else (DOUBT, 1.0)
        at_most_s = KNOWN_DOUBT * known_s + doubt * (promise_s - known_s)
        sure_s = max(unsure * gain_s, lasting * (served_s - at_most_s))
        spent_s = account.spent_s
        calls = self._calls(entry)
        is_timed = self.clock.is_running
        short_s = SHORT_S - self.clock.spent_s if is_timed else 0.0
        if calls * sure_s > spent_s + price_s and short_s <= 0.0:
            return True
        if self._calls_to_come(entry) * gain_s > spent_s + foreseen_s:
            return True
        if gain_s > 0 and calls:
            entry.num_paying = foreseen_s / gain_s
        if sure_s > 0 and calls:
            num_missing = (spent_s + price_s) / sure_s - calls
            calls_per_use = max(self.num_calls - entry.num_before, calls) / calls
            num_short = short_s / max(served_s, 1e-9)
            self.due_in = min(self.due_in, max(num_missing * calls_per_use, num_short))
        return False

    def take_due_in(self) -> float:
        """After how many calls to decide anew what was refused in this one; infinite: nothing was."""
        due_in = self.due_in
        self.due_in = math.inf
        return due_in


def num_in_turns(shares: Sequence[float]) -> float:
    """How many kinds come in turns: n for n equal shares, one where the others are rare."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 0.0
