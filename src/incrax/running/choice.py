"""Which candidate serves a dirty set: its own plan, the segments, or the whole function. A race on first uses decides.

In: measured and estimated seconds. Out: `Entry`, the record of one dirty set. It must not know values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from incrax.planning.plan import Plan
from incrax.running.compiled import Executable

Candidate = Literal["whole", "segments", "plan"]

MIN_GAIN = 0.02
"""Share of the whole program's time that another candidate must save to be chosen."""


@dataclass
class Entry:
    """What is known of one dirty set.

    Fields: uses; the plan and its executable; candidates still in the race (one: decided); seconds of their timed
    uses, with what it took to compute missing values; candidates that ran once (compiled); why the choice is so; uses
    of the present choice; seconds that later calls lost because the whole program left saved values stale.
    """

    dirty: int
    count: int = 0
    is_planned: bool = False
    plan: Plan | None = None
    executable: Executable | None = None
    candidates: tuple[Candidate, ...] = ("whole",)
    times: dict[str, list[float]] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    reason: str = "seen for the first time"
    uses: int = 0
    blame_s: float = 0.0

    def copy(self) -> Entry:
        """An independent record."""
        return replace(self, times={name: list(times) for name, times in self.times.items()}, warm=set(self.warm))

    @property
    def is_racing(self) -> bool:
        """Whether several candidates are still being timed."""
        return len(self.candidates) > 1

    def next_candidate(self) -> Candidate:
        """The winner, or in a race the candidate that was timed least often."""
        if not self.is_racing:
            return self.candidates[0]
        return min(self.candidates, key=lambda name: (len(self.times.get(name, ())), name not in self.warm))

    def record(self, candidate: Candidate, seconds: float, rounds: int) -> bool:
        """Note a timed use; True if that decides the race."""
        self.times.setdefault(candidate, []).append(seconds)
        if not self.is_racing or any(len(self.times.get(name, ())) < rounds for name in self.candidates):
            return False
        best = min(self.candidates, key=lambda name: min(self.times[name]) * (1 + MIN_GAIN * (name != "whole")))
        shown = ", ".join(f"{name} {min(self.times[name]) * 1e3:.3g} ms" for name in self.candidates)
        self.settle(best, f"race: {shown}")
        return True

    def settle(self, candidate: Candidate, reason: str) -> None:
        """End the race."""
        self.candidates = (candidate,)
        self.reason = reason
        self.uses, self.blame_s = 0, 0.0

    def seconds(self, candidate: Candidate, estimate: float) -> float:
        """Measured seconds of a candidate, or an estimate."""
        return min(self.times.get(candidate, ()), default=estimate)
