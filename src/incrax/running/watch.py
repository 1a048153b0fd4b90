"""Does saving pay over many calls? If not, the engine rests: it runs the whole program for a while.

Each choice may be right by itself and their sequence wrong, where values that are saved become stale before they are
used. The ledger compares what was spent in programs with what the whole program would have taken.

In: seconds. Out: whether to rest. It must not know candidates.
"""

from __future__ import annotations

WINDOW = 64
"""Calls over which the ledger is kept."""

MAX_LOSS = 1.02
"""Seconds spent relative to the whole program's from which on the engine rests."""

FIRST_REST = 128
MAX_REST = 8192
"""Calls of the first rest; each rest that follows at once is twice as long."""


class Watch:
    """The ledger of one engine."""

    __slots__ = ("baseline_s", "calls", "length", "rest", "start_s")

    def __init__(self) -> None:
        self.calls = 0
        self.baseline_s = 0.0
        self.start_s = 0.0
        self.rest = 0
        self.length = FIRST_REST

    @property
    def is_resting(self) -> bool:
        """Whether the whole program serves every call for now."""
        return self.rest > 0

    def note(self, spent_s: float, whole_s: float | None) -> None:
        """Count a call: seconds spent so far in all, and the whole program's (None: not known yet)."""
        if self.rest or whole_s is None:
            self.rest = max(self.rest - 1, 0)
            self.start_s = spent_s
            return
        self.calls += 1
        self.baseline_s += whole_s
        if self.calls >= WINDOW:
            self._settle(spent_s)

    def _settle(self, spent_s: float) -> None:
        if spent_s - self.start_s > MAX_LOSS * self.baseline_s:
            self.rest = self.length
            self.length = min(2 * self.length, MAX_REST)
        else:
            self.length = FIRST_REST
        self.calls, self.baseline_s, self.start_s = 0, 0.0, spent_s
