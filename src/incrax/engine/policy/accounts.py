"""How often changes came and what was spent on them: of each family, and of all.

In: entries, as calls use them. Out: counts and seconds. It must not decide anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.expectations import Expectations

SELDOM = 0.1
"""How likely the second plan of a family needs a program of its own."""

LEAST_CLEAN_SHARE = 0.02
"""Of the whole program: what a plan may save where estimates see nothing that it could."""

NUM_GRANTED = 32
"""Calls that are taken to have found all that they load, before any did."""


@dataclass
class Account:
    """What changes of one family have been, and have cost, together.

    Before plans are made, changes are taken for a family that make the same equations run, whatever
    these read (`Facts.reached`); most often their plans then share a program. What was lost for
    want of it, each of them has lost, and it is compiled once.
    """

    num_kinds: int = 0  # of change
    num_reached: int = 0  # equations that each makes run
    num_calls: int = 0
    squares: int = 0  # of how many of these each look stood for
    num_expected: int = 0  # calls, by hints or from earlier processes
    num_programs: int = 0  # kinds that have a program
    num_new: int = 0  # of these, how many needed a new one
    priced_s: float = 0.0  # what plans and programs were priced at
    learning_s: float = 0.0  # what they took, with all that was compiled for them
    filled_s: float = 0.0  # programs that compute what others leave stale, as priced
    served_s: float = math.inf  # of a call that a plan serves: as promised, then as measured
    num_blamed: float = 0.0  # of `Accounts.num_missed`, what these changes left stale
    due_at: float = math.inf  # calls of the function, bypassed ones too, at which to ask again

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
        """Of a new program, what the next plan has to pay for: the first one all of it, later ones as
        much as those after it needed so far. That the second needs one is found out for all of them
        at once, and is a risk that they share.
        """
        if not self.num_programs:
            return 1.0
        num_later = max(self.num_new - 1, 0)
        return num_later / self.num_programs + SELDOM / max(self.num_kinds, self.num_programs)


class Accounts:
    """The families of one function, and the calls of all of them."""

    def __init__(self, expectations: Expectations) -> None:
        self.expectations = expectations
        self.families: dict[int, Account] = {}
        self.num_calls = 0
        # Calls, each times the share of the work that it leaves clean; the same of what had a program
        # in an earlier process.
        self.clean_calls = 0.0
        self.known_calls = 0.0
        self.num_asked = 0  # calls that saved values were to serve
        self.num_missed = 0.0  # of these, each times the share of its gain that did not come true
        self.has_learned = False

    def of(self, entry: Entry) -> Account:
        """The account of an entry's family. One without a family, as all of rows, has a new account
        each time: what is written to it is lost, so that nothing was ever spent on it.
        """
        if entry.family is None:
            return Account(num_kinds=1, num_calls=entry.count, num_expected=entry.num_expected)
        return self.families.setdefault(entry.family, Account())

    def note_kind(self, entry: Entry) -> None:
        """A kind of change was seen for the first time."""
        account = self.of(entry)
        account.num_kinds += 1
        account.num_reached = max(account.num_reached, entry.num_reached)
        account.num_expected += entry.num_expected
        account.num_expected = max(account.num_expected, entry.num_kin_expected)

    def forget_kind(self, entry: Entry) -> None:
        """A kind is counted no more; nor is its family, where it was the last one and had no program."""
        if entry.family is None:
            return
        account = self.of(entry)
        account.num_kinds -= 1
        if not account.num_kinds and not account.num_programs:
            del self.families[entry.family]

    def note_calls(self, entry: Entry, num_calls: int) -> None:
        """So many calls of a kind came."""
        self.num_calls += num_calls
        entry.note_seen(num_calls, self.num_calls)
        if entry.family is None:  # what serves rows leaves nothing of it to plans
            return
        self.clean_calls += num_calls * entry.clean_share
        self.known_calls += num_calls * entry.clean_share * entry.was_compiled
        account = self.of(entry)
        account.num_calls += num_calls
        account.squares += num_calls**2

    def note_uses(self, entry: Entry, num_calls: int) -> None:
        """Saved values were to serve so many calls."""
        self.num_asked += num_calls
        entry.num_asked += num_calls

    def note_missed(self, entry: Entry, share: float, culprit: Entry | None = None) -> None:
        """Of one of these, such a share of the gain was lost since something that is loaded was stale,
        which the culprit left so.
        """
        self.num_missed += share
        entry.num_missed += share
        if culprit is not None:
            self.of(culprit).num_blamed += share

    def note_choice(self, entry: Entry) -> None:
        """What serves a change was chosen: it is known how long each of the family takes. A program
        that serves may take a fraction of what its first run took, which says nothing of the others.
        """
        program = entry.program
        if program is not None and (program.is_measured or entry.candidate == "whole"):
            self.of(entry).served_s = min(entry.seconds.values())

    def note_program(self, entry: Entry, price_s: float, *, is_new: bool) -> None:
        """A plan got a program: a new one, at this price, or that of its family."""
        account = self.of(entry)
        account.priced_s += price_s * is_new
        account.num_programs += 1
        account.num_new += is_new

    def note_fill(self, entry: Entry, price_s: float) -> None:
        """A call computes what was stale, by programs at this price that are new."""
        self.of(entry).filled_s += price_s

    def calls(self, entry: Entry) -> int:
        """Calls so far of a kind of change and its kin."""
        own = max(entry.count, self.of(entry).num_calls)
        if not self._is_first(entry):
            return own
        # Before anything is saved, all have lost for want of the same: what each loads comes then. What
        # a program took in an earlier process pays for those that were made there.
        clean_calls = self.known_calls if entry.known_price_s else self.clean_calls
        return max(own, _as_calls_of(entry, clean_calls))

    def num_expected(self, entry: Entry) -> int:
        """Calls that an earlier process knew, counted as those so far."""
        own = max(entry.num_expected, self.of(entry).num_expected)
        if not own or not self._is_first(entry):
            return own
        return max(own, _as_calls_of(entry, self.expectations.clean_calls))

    def num_kinds_with(self, entry: Entry) -> int:
        """Kinds of change whose calls count as those of an entry (`calls`): each needs a plan, but those
        that came once.
        """
        if not self._is_first(entry):
            return self.of(entry).num_kinds
        accounts = self.families.values()
        return sum(min(account.num_kinds, account.num_calls // 2) for account in accounts)

    def _is_first(self, entry: Entry) -> bool:
        """Whether an entry may get the first plan of all, which they earn together."""
        return not (entry.family is None or self.has_learned or self._is_rare(entry))

    def _is_rare(self, entry: Entry) -> bool:
        """Whether its family comes less than half as often as others: not the one to begin with."""
        total = sum(account.num_calls for account in self.families.values())
        return 2 * self.families_in_turns * self.of(entry).num_calls < total

    @property
    def squares(self) -> int:
        """Of how many calls each look stood for: the sum."""
        return sum(account.squares for account in self.families.values())

    @property
    def families_in_turns(self) -> float:
        """How many families come in turns, each of which needs a program of its own where all are to
        earn the first one together: served as a whole, one would leave stale what others load.
        """
        if self.has_learned:
            return 1.0
        calls = [account.num_calls for account in self.families.values()]
        return max(effective_number(calls, self.squares), self.expectations.num_families)

    @property
    def mean_reached(self) -> float:
        """Equations that a call makes run: one near the end of a chain of 46 steps reaches 40, one at its
        beginning all 650.
        """
        reached = [(a.num_calls, a.num_reached) for a in self.families.values()]
        return sum(n * num for n, num in reached) / max(sum(n for n, _ in reached), 1)

    @property
    def dearness(self) -> float:
        """How many times dearer learning is than it was priced: values that plans load have to be
        computed by programs, too, other ones for each change.
        """
        learned = [account for account in self.families.values() if account.num_programs]
        priced_s = sum(account.priced_s for account in learned)
        return max(sum(account.learning_s for account in learned) / max(priced_s, 1e-9), 1.0)

    @property
    def hit_rate(self) -> float:
        """Of the gain that is promised, what comes true: plans load what others may have left stale."""
        return 1.0 - self.num_missed / (self.num_asked + NUM_GRANTED)

    def hit_rate_with(self, entry: Entry) -> float:
        """The same with a program for an entry: its family leaves nothing stale then."""
        num_missed = self.num_missed - self.of(entry).num_blamed
        return 1.0 - num_missed / (self.num_asked + NUM_GRANTED)

    def blame_of(self, entry: Entry) -> float:
        """Of the gain of a call, how much calls of others lose for one of an entry's family, which leaves
        stale what these load.
        """
        account = self.of(entry)
        return min(account.num_blamed / max(account.num_calls, 1), 1.0)


def _as_calls_of(entry: Entry, clean_calls: float) -> int:
    """Calls of a kind that leave as much of the work clean as these, each times its share, together."""
    return int(clean_calls / max(entry.clean_share, LEAST_CLEAN_SHARE))


def effective_number(shares: Sequence[float], squares: float = 0.0) -> float:
    """How many kinds come in turns: n for n equal shares, one where the others are rare.

    1 / n is the probability that two calls are of one kind. Shares that few looks tell, each of which
    stands for many calls, have every look agree with itself: what that adds is their sum of squares,
    and is taken off. Of 46 kinds, 60 such looks seem to be 19.
    """
    total = sum(shares)
    if not total:
        return 0.0
    own = squares / total**2
    agreeing = sum(share * share for share in shares) / total**2
    prior = 2.0 * own * own  # as if one more pair agreed, of these looks: n is finite
    return (1.0 - own + prior) / (agreeing - own + prior)
