"""Whether learning pays: planning and compiling are done on trust while they are short, else when
they would have paid.

A kind of change is served in `served_s` seconds a call. A program of its own promises `promise_s` for
a price. It is made when the calls so far have lost as much for want of it (ski rental: never worse
than twice the best), sooner where the gain is beyond doubt, and at once where the calls to come are
known and gain more than that.

In: entries, accounts, costs. Out: yes or no, and when to ask again. It must not know how a plan is
made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from incrax.engine.compile.timing import Clock
from incrax.engine.policy.accounts import LEAST_CLEAN_SHARE, Accounts
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.learning_costs import LearningCosts
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

FORESEEN_FACTOR = 2.0
"""Compilations that the gain over all calls to come must be worth: of a plan, and of the programs
that compute what it loads.
"""

KNOWN_FACTOR = 1.5
"""The same for rows where the calls to come are known: their price has what computes what they load."""

COLD_S = 3e-4
"""Seconds, or half of them, by which a look may take the whole program for slower than it is, as long as
no call that bypassed was timed: it finds colder caches.
"""

LASTING = math.log(10.0)
"""By Lotka's law, a job that came to n calls comes to k n with a probability of 1 / k: over all of
them up to the tenfold, n ln 10 more are to be expected. This is relied on where a plan would
still gain at the worst, since nothing else is then unknown.
"""

DOUBT = 10.0
"""Times as long as estimated that a plan takes at the worst."""

KNOWN_DOUBT = 2.5
"""The same of the seconds of a promise that do not depend on the work."""

ROW_DOUBT = 2.0
"""The same of the work of a program for rows, which is a share of what was measured."""

ROW_UNSURE = 0.5
"""Share of the gain by such a program that counts where it is not beyond doubt: a call of 0.4 ms
takes half of that at best, and a job of 0.8 s that paid for it lost a third.
"""

SHORT_S = 0.5
"""Seconds in programs after which a job is worth compiling for, if nothing is known of it: what
could be gained in one that ends before is less than a program takes to compile.
"""


class Offer(NamedTuple):
    """A program for a kind of change, which is not made yet."""

    served_s: float  # seconds of a call now
    promise_s: float  # seconds of a call that it serves
    price_s: float  # seconds that calls must have lost for want of it
    foreseen_s: float  # seconds that it must gain in as many calls to come as there were
    known_s: float  # the same in the calls to come, if these are known


@dataclass(eq=False)
class Credit:
    """What one engine may spend on learning."""

    costs: LearningCosts
    accounts: Accounts
    ledger: Ledger
    clock: Clock
    compile_s: float  # of compiling, on trust
    hinted_calls: int  # that the function was made for
    expected_calls: int = field(init=False)  # of all kinds; 0: nothing is known of them

    def __post_init__(self) -> None:
        self.expected_calls = self.hinted_calls

    def expect(self, calls: int) -> None:
        """So many more calls will come, of each kind as many as its share so far; no fewer in all
        than the function was made for.
        """
        self.expected_calls = max(self.hinted_calls, self.accounts.num_calls + calls)

    # --- what was learned -------------------------------------------------------------------------

    def note_plan(self, entry: Entry, seconds: float, expected_s: float) -> None:
        """A plan was made in so many seconds, where others were expected."""
        self.costs.note_plan(seconds, expected_s)
        self.accounts.of(entry).priced_s += seconds

    def note_program(self, entry: Entry, *, is_new: bool) -> None:
        """A plan got a program, a new one or that of its family."""
        self.accounts.note_program(entry, self.costs.program_price_s(entry), is_new=is_new)

    def note_learning(self, entry: Entry, seconds: float) -> None:
        """A call took so many seconds longer than usual, since something was planned, compiled or
        tried.
        """
        seconds *= self.clock.is_running
        entry.learning_s += seconds
        self.accounts.of(entry).learning_s += seconds

    # --- decisions --------------------------------------------------------------------------------

    def allows_planning(
        self,
        entry: Entry,
        served_s: float,
        price_s: float,
        *,
        on_trust: bool = True,
    ) -> bool:
        """Whether to find out what a program at this price would save of the seconds that calls take
        now.

        On trust, or when all that it may have saved so far is worth the plan and the
        program, since nothing is compiled before: what takes as long in the whole program as the
        equations that the change does not reach, or what a plan of the family saves. The first of a
        family is made when it is worth plans of all its kinds.

        For rows, JAX traces the equations again, two or three times, which may take as long as all
        calls of a short job: only where the program would be compiled, too. The machine is not
        measured for them.
        """
        account = self.accounts.of(entry)
        share = max(entry.clean_share, LEAST_CLEAN_SHARE)
        promise_s = (1.0 - share) * served_s + entry.overhead_s
        if account.served_s < math.inf:
            promise_s = account.served_s + entry.overhead_s
            if promise_s >= served_s:
                return False
        plan_s = self.costs.plan_s
        if not account.num_programs:
            plan_s += self.costs.later_plan_s * max(self.accounts.num_kinds_with(entry) - 1, 0)
        if not entry.is_for_rows:
            plan_s += self.costs.calibration_s
        at_once_s = plan_s + price_s if entry.is_for_rows else plan_s
        has_credit = on_trust and self._has_left(at_once_s)
        foreseen_s = plan_s + FORESEEN_FACTOR * price_s
        known_s = plan_s + _known_factor(entry) * price_s
        offer = Offer(served_s, promise_s, plan_s + price_s, foreseen_s, known_s)
        return has_credit or self.is_worth(entry, offer)

    def allows(self, entry: Entry, whole_s: float, price_s: float, *, on_trust: bool) -> bool:
        """Whether to compile for an entry: on trust, and at this price, for one of the first; later
        when the gain over as many calls as there were is worth `EARNED_FACTOR` times that.
        """
        if on_trust and self._has_left(price_s):
            return True
        served_s = min(entry.seconds.values(), default=whole_s)
        # What a plan promised holds: a better guess would have it made again, in vain, at each look.
        is_divided = "segments" in entry.seconds
        usual_s = (1.0 - EARNED_SHARE) * served_s if is_divided else math.inf
        promise_s = min(entry.promise_s, usual_s)
        earned_s = price_s if on_trust else EARNED_FACTOR * price_s
        foreseen_s = FORESEEN_FACTOR * price_s
        known_s = _known_factor(entry) * price_s
        return self.is_worth(entry, Offer(served_s, promise_s, earned_s, foreseen_s, known_s))

    def pays_for_fill(
        self, entry: Entry, whole_s: float, served_s: float, compiling_s: float
    ) -> bool:
        """Whether a call that takes so long once nothing is stale is worth programs for what is. All of a
        family with a program wait for them: what its calls so far would have gained pays for those,
        whatever was spent before.
        """
        if not compiling_s or self._has_left(compiling_s):
            return True
        account = self.accounts.of(entry)
        gained_s = account.num_calls * (whole_s - served_s) * self.accounts.hit_rate_with(entry)
        if account.num_programs and gained_s > account.filled_s + compiling_s:
            return True
        foreseen_s = FORESEEN_FACTOR * compiling_s
        offer = Offer(whole_s, served_s, compiling_s, foreseen_s, foreseen_s)
        return self.is_worth(entry, offer)

    def may_gain(self, entry: Entry, whole_s: float) -> bool:
        """Whether a plan may save something: what was promised, to an entry or to its family; before
        that, what is known roughly.
        """
        promise_s = min(entry.promise_s, self.accounts.of(entry).served_s)
        return entry.clean_share > 0.0 if promise_s == math.inf else promise_s < whole_s

    def _has_left(self, seconds: float) -> bool:
        """Whether so many more seconds are short against what ran, or what was gained: a short fit
        must not pay for what it hardly uses.
        """
        allowed_s = self.compile_s + COMPILE_SHARE * self.clock.spent_s
        is_short = self.clock.compiling_s + seconds <= allowed_s
        return is_short or seconds <= WON_SHARE * self.ledger.net_s

    def is_worth(self, entry: Entry, offer: Offer) -> bool:
        """Whether calls so far have lost the price of an offer, or those to come will lose another;
        beside what was spent on the family, unless it has a program: then the calls of one kind must
        be worth the price. Where not, notes when to ask again.
        """
        account = self.accounts.of(entry)
        asked = entry if entry.family is None else account
        asked.due_at = math.inf
        gain_s = offer.served_s - offer.promise_s
        if gain_s > 0.0:
            gain_s *= self.accounts.hit_rate_with(entry) + self.accounts.blame_of(entry)
        of_one_kind = max(entry.count, account.mean_calls)
        if account.num_programs and of_one_kind * gain_s > offer.price_s:
            return True
        calls = self.accounts.calls(entry)
        num_left = self._calls_left(entry, calls)
        sure_s = self._sure_s(entry, offer, gain_s)
        price_s = account.spent_s + offer.price_s
        short_s = SHORT_S - self.clock.spent_s if self.clock.is_running else 0.0
        if calls * sure_s > price_s and short_s <= 0.0 and num_left is None:
            return True
        # A few runs here may have been slow: an earlier process tells what they take.
        earlier_s = self.accounts.expectations.whole_s
        is_cold = self.clock.is_running and not self.ledger.turn_s
        cold_s = min(COLD_S, 0.5 * offer.served_s) if is_cold else 0.0
        slower_s = max(offer.served_s - earlier_s, 0.0) if earlier_s else cold_s
        num_to_come = self._calls_to_come(entry, calls) if num_left is None else num_left
        is_known = num_left is not None or num_to_come > calls
        enough_s = offer.known_s if is_known else offer.foreseen_s
        if num_to_come * (gain_s - slower_s) > account.spent_s + enough_s:
            return True
        if gain_s > 0 and calls:
            entry.num_paying = offer.known_s / gain_s
        if sure_s > 0 and calls:
            num_missing = max(price_s / sure_s - calls, num_left or 0)
            calls_per_use = max(self.accounts.num_calls - entry.num_before, calls) / calls
            num_short = short_s / max(offer.served_s, 1e-9)
            due_in = max(num_missing * calls_per_use, num_short)
            asked.due_at = self.ledger.num_calls + due_in
        return False

    def _calls_left(self, entry: Entry, calls: int) -> int | None:
        """Calls of a kind that an earlier process knew, until the job is as long as there: as many as
        were there or, if it came more often, as it came so far. None: the kind is new, or the job longer.
        """
        accounts = self.accounts
        expected = accounts.num_expected(entry)
        num_left = accounts.expectations.num_calls - self.ledger.num_calls
        if not expected or num_left <= 0:
            return None
        return min(expected - calls if expected > calls else calls, num_left)

    def _sure_s(self, entry: Entry, offer: Offer, gain_s: float) -> float:
        """The gain of a call that those so far are multiplied with: what is promised, half of it for
        rows; or, if more, what is left of it at the worst, times `LASTING`.
        """
        lasting = 1.0 if self.expected_calls else LASTING
        promise_s = max(offer.served_s - gain_s, 0.0)
        fixed_s = min(entry.fixed_s, promise_s)
        doubt = ROW_DOUBT if entry.is_for_rows else DOUBT
        at_most_s = KNOWN_DOUBT * fixed_s + doubt * (promise_s - fixed_s)
        beyond_doubt_s = lasting * (offer.served_s - at_most_s)
        return max(ROW_UNSURE * gain_s if entry.is_for_rows else gain_s, beyond_doubt_s)

    def _calls_to_come(self, entry: Entry, calls: int) -> int:
        """As many as there were or, if more, the rest of those that are expected."""
        accounts = self.accounts
        expected = self.expected_calls * calls // max(accounts.num_calls, 1)
        foreseen = max(entry.num_expected, accounts.of(entry).num_expected, expected)
        return max(calls, foreseen - calls)


def _known_factor(entry: Entry) -> float:
    """Times its price that a program must gain in the calls to come, if these are known."""
    return KNOWN_FACTOR if entry.is_for_rows else FORESEEN_FACTOR
