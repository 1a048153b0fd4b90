"""Which candidate serves a dirty set: its own plan, the segments, or the whole program.

In: measured and estimated seconds. Out: `Entry`, the record of one dirty set. It must not know values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from incrax.running.timing import Clock, TimedProgram

Candidate = Literal["whole", "segments", "plan"]

MIN_GAIN = 0.02
"""Share of the whole program's time that another candidate must save to be chosen."""

MIN_BLAMED_USES = 3
"""Whole evaluations of a dirty set over which their cost to later calls is spread at least."""

RETRY_USES = 256
"""Uses after which the runner-up is timed again, and blame must prove itself again."""

RETRY_FACTOR = 4.0
"""A runner-up slower than the best by this factor is not tried again."""


@dataclass
class Entry:
    """What is known of one dirty set.

    Fields: how often it was seen; whether its needs are among the wanted values; its own plan, compiled; the present
    candidate and why; seconds estimated for a program of its own; seconds by candidate; whether they were measured, up
    to which tick of the clock; uses; how many ran the whole program by choice; seconds that these cost later calls, for
    saved values they left stale, and what is assumed of these at first.
    """

    dirty: int
    count: int = 0
    is_planned: bool = False
    program: TimedProgram | None = None
    candidate: Candidate = "whole"
    reason: str = "seen for the first time"
    promise_s: float = math.inf
    seconds: dict[Candidate, float] = field(default_factory=dict)
    is_final: bool = False
    ticks: int = -1
    uses: int = 0
    whole_uses: int = 0
    blame_s: float = 0.0
    prior_s: float = 0.0

    def copy(self, clock: Clock) -> Entry:
        """An independent record."""
        program = None if self.program is None else self.program.copy(clock)
        return replace(self, seconds=dict(self.seconds), program=program)

    def settle(self, candidate: Candidate, reason: str) -> None:
        """Choose, for the time being."""
        self.candidate, self.reason = candidate, reason

    @property
    def blame_per_use_s(self) -> float:
        """Seconds that one evaluation of the whole program costs later calls."""
        return self.blame_s / max(self.whole_uses, MIN_BLAMED_USES)

    def choose(self, seconds: Mapping[Candidate, float]) -> None:
        """Take the fastest candidate; the whole program bears what it costs later calls, and wins ties."""
        self.seconds = dict(seconds)
        total: dict[Candidate, float] = {name: s * (1 + MIN_GAIN) for name, s in seconds.items()}
        total["whole"] = seconds["whole"] + self.blame_per_use_s
        shown = ", ".join(f"{name} {s * 1e3:.3g} ms" for name, s in seconds.items())
        if self.blame_s:
            shown += f"; a whole evaluation costs later calls {self.blame_per_use_s * 1e3:.2g} ms"
        self.settle(min(total, key=lambda name: total[name]), shown)

    def runner_up(self) -> Candidate | None:
        """The second best candidate, if it is not hopeless."""
        others = {name: s for name, s in self.seconds.items() if name != self.candidate}
        second = min(others, key=lambda name: others[name], default=None)
        is_close = second is not None and others[second] < RETRY_FACTOR * self.seconds[self.candidate]
        return second if is_close else None

    def note_use(self, candidate: Candidate) -> None:
        """Count a use; now and then forget the blame, so that a change of habit is noticed."""
        self.uses += 1
        self.whole_uses += candidate == "whole" == self.candidate
        if self.blame_s and self.uses % RETRY_USES == 0:
            self.blame_s, self.whole_uses, self.is_final = self.prior_s, 0, False
