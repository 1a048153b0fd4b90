"""What saving has cost and gained, and how many calls may bypass it.

A call that *looks*, that is compared and may be served from saved values, takes some 0.1 ms beyond
its program. Where nothing is gained, looks may take `LOOK_SHARE` of the whole program's seconds; the
calls between them are those of `jax.jit`, and are not looked at. A share of what was gained so far
may be spent on looks as well, so that a kind of change that pays is still known after others came.
What a look finds counts for the calls before it that nobody looked at, so that a kind of change is
noticed as if all were seen.

In: seconds of calls. Out: how many calls may bypass, and the verdict. It must not know candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import repeat
from operator import length_hint

from incrax.engine.policy.verdict import BYPASS_S, Verdict

LOOK_SHARE = 0.005
"""Of the whole program's seconds, compilation included, what looks that gain nothing may take."""

MAX_BYPASSED = 4096
"""Calls in a row that nobody looks at."""

MAX_CREDIT = 16
"""Looks without a gain, after many with one, until calls bypass."""

GAIN_SHARE = 0.05
"""Of what was gained so far, what looks that gain nothing may take."""

MAX_OUTLIER = 8.0
"""Times the usual that a look counts at most: beyond, something else ran on the machine, which the
whole program would have met, too.
"""

MAX_RISE = 2.0
"""Times the usual that a look counts at most in what one takes. One slow look would else more than
double it, and put off the looks of a kind that gains, of which each costs what looks usually do.
"""

CENSUS = 8
"""Looks among which the calls that bypassed before them are divided, as far as so many come in a row:
one alone, which stood for thousands of calls, would make a kind of change that is rare the usual one.
"""

NUM_TELLING = 16
"""Looks that tell how often what they met came in the calls that nobody looked at."""

MAX_DEFERRED = 2
"""Looks after a bypass that let the next one stand for the calls before."""

NEWEST = 0.25
"""Weight of the newest call in running means."""


def calls_worth(seconds: float, whole_s: float) -> int:
    """Calls of which such a share as looks may take comes to so many seconds."""
    return math.ceil(seconds / max(LOOK_SHARE * whole_s, 1e-12))


@dataclass(slots=True, eq=False)
class Ledger(Verdict):
    """The account of one engine: the verdict on all calls so far, and the present bypass and look.

    After a bypass two calls are looked at: the first is compared with a version that is long gone,
    which tells nothing of what changes from call to call, the second with the first. Where that one
    was a proposal that was refused, the second differs from it in what both propose: so one or two
    more are looked at, where a change of several inputs is new (`defer`).
    """

    # The present bypass: each of its calls takes one of `turns`, and counts nothing.
    turns: Iterator[None] = field(default_factory=lambda: repeat(None, 0))
    granted: int = 0
    _num_counted: int = 0
    is_timing_due: bool = False

    # The present look stands for `weight` calls, those that bypassed before among them.
    weight: int = 1
    _waiting: int = 0
    _share: int = 0
    _num_deferred: int = 0

    credit_s: float = 0.0  # what looks may take
    look_s: float = 0.0  # what one takes, a running mean
    turn_s: float = 0.0  # of a call that bypassed, a running mean; 0: none was timed

    def grant(self, num_calls: int) -> None:
        """So many calls may bypass from now on; the last of them is timed."""
        self.end()
        self.granted = self._num_counted = 0
        if num_calls > 1:
            self.grant_more(num_calls)

    def grant_more(self, num_calls: int) -> None:
        """So many more calls may bypass, after those granted before, of which none is left."""
        self.turns = repeat(None, num_calls - 1)
        self.granted += num_calls - 1
        self.is_timing_due = True

    def end(self) -> None:
        """The next call is looked at, whatever was granted."""
        self.granted = self.skipped
        self.turns = repeat(None, 0)
        self.is_timing_due = False

    @property
    def left(self) -> int:
        """Calls that may still bypass without being timed."""
        return length_hint(self.turns)

    @property
    def skipped(self) -> int:
        """Calls that bypassed since the last look: nothing is counted while they do."""
        return max(self.granted - self.left, 0)

    def take_back(self) -> None:
        """A call that took a turn did not bypass after all."""
        self.granted -= 1

    @property
    def unseen(self) -> float:
        """How many times as many calls there were as looks stood for so far; 1 where these were few."""
        num_seen = self.num_calls - self._waiting
        return (self.num_calls + self.skipped) / num_seen if self.calls >= NUM_TELLING else 1.0

    def uncounted(self) -> int:
        """Calls that bypassed since this was asked last."""
        number = self.skipped - self._num_counted
        self._num_counted += number
        return number

    def note_turn(self, seconds: float, whole_s: float) -> None:
        """The last call that bypassed was timed; looks, which find colder caches, take the whole
        program's seconds for more.
        """
        self.is_timing_due = False
        self.granted += 1
        newest = NEWEST if self.turn_s else 1.0
        self.turn_s += newest * (min(seconds, whole_s) - self.turn_s)

    def pass_by(self, whole_s: float) -> None:
        """A call of the whole program, which takes so many seconds and is compared with nothing,
        counts as one that bypassed.
        """
        self.bypassed += 1
        self.bypassed_s += whole_s
        self._earn(LOOK_SHARE * whole_s)

    def begin_look(self, whole_s: float) -> None:
        """A call is looked at, where the whole program takes so many seconds."""
        skipped = self.skipped
        self.grant(0)
        if skipped:
            self.bypassed += skipped
            self.bypassed_s += skipped * self._turn_of_jit(whole_s)
            self._earn(LOOK_SHARE * skipped * (self.turn_s or whole_s))
            self.weight = 0
            self._waiting += skipped + 1
            self._share = math.ceil(self._waiting / CENSUS)
            self._num_deferred = 0
        else:
            share = min(self._share, self._waiting)
            self.weight = 1 + share
            self._waiting -= share

    def defer(self) -> None:
        """What this look finds may be of two calls: let the next one stand for those before."""
        if self.weight > 1 and self._num_deferred < MAX_DEFERRED:
            self._num_deferred += 1
            self._waiting += self.weight
            self.weight = 0

    def note_compiled(self, seconds: float) -> None:
        """The whole program was compiled."""
        self.credit_s += LOOK_SHARE * seconds

    def note_call(
        self,
        spent_s: float,
        whole_s: float,
        overhead_s: float,
        *,
        is_learning: bool = False,
        num_calls: int = 1,
    ) -> bool:
        """Count a look, or several that were alike.

        Args:
            spent_s: seconds in programs and of the overhead.
            whole_s: seconds of the whole program.
            overhead_s: seconds of the overhead.
            is_learning: whether a plan may come that gains.
            num_calls: how many looks took so many seconds each.

        Returns:
            Whether the next calls bypass.
        """
        self.calls += num_calls
        self.spent_s += num_calls * spent_s
        self.whole_s += num_calls * whole_s
        if self.look_s:
            excess_s = max(overhead_s - MAX_OUTLIER * self.look_s, 0.0)
            overhead_s -= excess_s
            spent_s -= excess_s
        gained_s = whole_s - spent_s
        is_first = self.calls == num_calls
        newest = 1.0 if is_first else NEWEST
        usual_s = overhead_s if is_first else min(overhead_s, MAX_RISE * self.look_s)
        self.look_s += newest * (usual_s - self.look_s)
        self.gained_s += newest * (gained_s - self.gained_s)
        self.is_learning = is_learning
        self._weigh()
        self._earn(num_calls * (LOOK_SHARE * whole_s + gained_s))
        # What gains is looked at again, whatever looks have cost before.
        if gained_s > 0 or self.credit_s >= 0 or not self.weight:
            return False
        if is_learning and self._waiting:  # more looks say better what the calls before them were
            return False
        missing_s = 2 * self.look_s - self.credit_s
        num_granted = calls_worth(missing_s, self.turn_s or whole_s)
        if num_granted > 1:
            self.grant(min(num_granted, MAX_BYPASSED))
        return num_granted > 1

    def note_learning(self, seconds: float) -> None:
        """Count seconds of planning, compiling and trying, beyond what calls usually take."""
        self.learning_s += seconds
        self._weigh()

    def _earn(self, seconds: float) -> None:
        """Add to what looks may take, up to a bound that compiling alone may exceed."""
        bound_s = max(MAX_CREDIT * self.look_s, GAIN_SHARE * self.net_s, self.credit_s)
        self.credit_s = min(self.credit_s + seconds, bound_s)

    def _weigh(self) -> None:
        if self.net_s <= 0:
            self.ahead_since = 0
        elif not self.ahead_since:
            self.ahead_since = self.num_calls

    @property
    def net_s(self) -> float:
        """Seconds gained by the calls that were looked at, beyond all that was learned."""
        return self.whole_s - self.spent_s - self.learning_s

    @property
    def lost_s(self) -> float:
        """Seconds that learning took, or looks, too, where they gained nothing."""
        return max(self.learning_s, -self.net_s)

    @property
    def verdict(self) -> Verdict:
        """What saving has been worth since the start, as far as is known now."""
        found = Verdict(*[getattr(self, each.name) for each in fields(Verdict)])
        found.bypassed += self.skipped
        found.bypassed_s += self.skipped * self._turn_of_jit(self._each_s)
        return found

    def _turn_of_jit(self, whole_s: float) -> float:
        """Seconds of `jax.jit` in a call of the present bypass."""
        return max(self.turn_s - BYPASS_S, 0.0) or whole_s
