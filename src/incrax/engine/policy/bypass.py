"""Does saving pay over many calls? If not, the engine rests: it runs the whole program for a while.

Each choice may be right by itself and their sequence wrong, where values that are saved become
stale before they are used; and choosing costs time, too. The ledger compares what was spent with
what the whole program would have taken.

In: seconds, and how many inputs changed. Out: whether to rest. It must not know candidates.
"""

from __future__ import annotations

from incrax.engine.policy.verdict import Verdict

FIRST_WINDOW = 64
WINDOW = 32
"""Calls over which the ledger is kept: at first, and after a rest."""

MAX_LOSS = 1.02
"""Seconds spent relative to the whole program's from which on the engine rests; after a gain, only
if the next window, with all programs timed anew, says so too: the machine may have become busier
between the times that are compared.
"""

HOPE_SHARE = 0.1
"""Of the seconds that plans may save which are not made yet: a smaller loss is the price of finding
out.
"""

IDLE = 16
"""Calls in a row that the whole program serves by choice from which on the engine rests: it
compares less.
"""

FIRST_REST = 128
MAX_REST = 2048
"""Calls of the first rest; each rest that follows at once is twice as long."""

LOOK_EVERY = 16
MAX_LOOKS = 32
"""One in so many calls of a rest is compared in full, to notice a change of habit, but no more than
so many of a long one: each takes as long as the short way of some ten calls.
"""

NUM_LOOKS = 2
"""Looks in a row that must find at most half of the changes there were before, to end a rest."""


class Watch:
    """The ledger of one engine; `rest` is the number of calls for which the whole program still
    serves all, `counts_rows` whether a program for a few rows is being earned meanwhile.
    """

    __slots__ = (
        "ahead_since",
        "balance_s",
        "baseline_s",
        "calls",
        "changes",
        "counts_rows",
        "has_gained",
        "hoped_s",
        "idle",
        "learning_s",
        "length",
        "looks",
        "rest",
        "rested",
        "spent_s",
        "total",
        "unchanged",
        "usual",
        "window",
    )

    def __init__(self) -> None:
        self.total = Verdict()
        self.ahead_since = 0
        self.balance_s = 0.0
        self.learning_s = 0.0
        self.rested = 0
        self.unchanged = 0
        self.calls = 0
        self.baseline_s = 0.0
        self.spent_s = 0.0
        self.hoped_s = 0.0
        self.changes = 0
        self.usual = 0.0
        self.rest = 0
        self.looks = 0
        self.length = FIRST_REST
        self.window = FIRST_WINDOW
        self.has_gained = False
        self.idle = 0
        self.counts_rows = False

    def note(
        self,
        spent_s: float,
        whole_s: float,
        num_changed: int,
        hoped_s: float = 0.0,
        *,
        is_idle: bool = False,
    ) -> bool:
        """Count a call that took so many seconds, with so many changed inputs; the whole program
        takes `whole_s`.

        Args:
            spent_s: seconds in programs and of the overhead.
            whole_s: seconds of the whole program.
            num_changed: changed inputs.
            hoped_s: seconds that a plan may save which is not made yet.
            is_idle: whether the whole program served the call by choice.

        Returns:
            Whether all programs should be timed anew.
        """
        self.calls += 1
        self.spent_s += spent_s
        self.baseline_s += whole_s
        self.changes += num_changed
        self.hoped_s += hoped_s
        self._weigh(whole_s - spent_s)
        self.idle = self.idle + 1 if is_idle else 0
        if self.idle >= IDLE:
            return self._settle(has_lost=True, is_doubtful=False)
        lost_s = self.spent_s - self.baseline_s
        has_lost = lost_s > max((MAX_LOSS - 1) * self.baseline_s, HOPE_SHARE * self.hoped_s)
        return self.calls >= self.window and self._settle(
            has_lost=has_lost, is_doubtful=has_lost and self.has_gained
        )

    def note_learning(self, seconds: float) -> None:
        """Count seconds of planning, compiling and trying, beyond what calls usually take."""
        self.learning_s += seconds
        self._weigh(-seconds)

    def _weigh(self, gained_s: float) -> None:
        self.balance_s += gained_s
        if self.balance_s <= 0:
            self.ahead_since = 0
        elif not self.ahead_since:
            self.ahead_since = self.total.calls + self.calls + self.unchanged + self.rested

    @property
    def verdict(self) -> Verdict:
        """What saving has been worth since the start."""
        calls, spent_s, whole_s, *_ = self.total
        return Verdict(
            calls + self.calls,
            spent_s + self.spent_s,
            whole_s + self.baseline_s,
            self.unchanged,
            self.rested,
            self.learning_s,
            ahead_since=self.ahead_since,
            gained_s=(self.baseline_s - self.spent_s) / self.calls if self.calls else 0.0,
            is_learning=self.hoped_s > 0,
        )

    def _settle(self, *, has_lost: bool, is_doubtful: bool) -> bool:
        if has_lost and not is_doubtful:
            self.rest = self.length
            self.looks = 0
            self.usual = self.changes / self.calls
            self.length = min(2 * self.length, MAX_REST)
            self.window = WINDOW
        elif not has_lost:
            self.length = FIRST_REST
        self.has_gained = not has_lost
        self.total = self.verdict
        self.calls = 0
        self.changes = 0
        self.idle = 0
        self.baseline_s = 0.0
        self.spent_s = 0.0
        self.hoped_s = 0.0
        return is_doubtful

    def wants_look(self) -> bool:
        """Count a call during a rest; whether to compare it in full."""
        self.rest -= 1
        self.rested += 1
        return self.rest % self.look_every == 0

    @property
    def to_look(self) -> int:
        """Calls of the rest up to the next one that wants a look; none where it has ended."""
        return (self.rest - 1) % self.look_every + 1 if self.rest else 0

    @property
    def look_every(self) -> int:
        """One in so many calls of the present rest is compared."""
        return max(self.length // MAX_LOOKS, LOOK_EVERY)

    def skip(self, num_calls: int) -> None:
        """Count calls of a rest that nothing looked at."""
        self.rest -= num_calls
        self.rested += num_calls

    def look(self, num_changed: int, *, is_idle: bool = False) -> None:
        """A call during a rest was compared: end the rest if fewer inputs change than used to; not
        for a change that the whole program served by choice before: it is no new habit.
        """
        self.looks = self.looks + 1 if 2 * num_changed <= self.usual and not is_idle else 0
        if self.looks >= NUM_LOOKS:
            self.rest = 0
            self.rested -= 1  # this one is weighed
            self.length = FIRST_REST
            self.window = FIRST_WINDOW
