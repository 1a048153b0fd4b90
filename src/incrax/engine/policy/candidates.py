"""Which candidate serves a dirty set: its own plan, the segments, or the whole program.

In: measured and estimated seconds. Out: `Entry`, the record of one dirty set. It must not know
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from incrax.engine.compile.timing import TimedProgram

Candidate = Literal["whole", "segments", "plan", "slices", "priming"]
"""What serves a call. Of slices: rows alone, or the whole function, which saves what they read."""

MIN_GAIN = 0.02
"""Share of the whole program's time that another candidate must save to be chosen."""

UPKEEP_S = 2e-5
"""Seconds per call, at least, that it costs to compare its inputs and to look after saved values,
beyond a bypass.
"""

SEGMENTS_S = 5e-5
"""Seconds per call beyond these that segments take: each is looked up anew."""

MIN_BLAMED_USES = 3
"""Uses of a dirty set over which their cost to later calls is spread at least."""

RETRY_USES = (16, 64, 256)
"""Uses after which contenders are timed again; after the last, every so many, when blame is
forgotten too.
"""


RECENT = 512
"""Calls after which a kind of change that came no more has lost two thirds of its share of all."""

BARRED = "no plan: values derived for it left the range of numbers in which they may be used"


@dataclass
class Entry:
    """What is known of one dirty set.

    Fields: how often it was seen, and how many calls there were before it; how many of the latest
    ones it was, at which call; what changes of its family have in common (None: it has none, or it
    is not known); how many equations it makes run, as far as is known; whether its needs are among
    the wanted values; whether segments may be compiled for it; whether it gets no plan any more;
    how often results of its plan could not be used; whether algebra in it was compared with the
    direct form; its own plan, compiled; the present candidate and why; the share of the program's
    work, roughly, that the change does not reach; of a change of rows, the mean share of the axis
    from the first of them on; seconds estimated for a program of its own, and which of them are
    known; seconds by candidate; whether they were measured, up to which tick of the clock; uses;
    how many calls are expected by hints or from earlier processes, and of all its family; whether
    that had a program in these; how many of its family, had they been expected, would have got it
    one that was refused (infinite: none was, or none would); how many left saved values stale by choice; seconds that
    these cost later calls, and what is assumed of these at first; calls that saved values were to
    serve, and of how many of these the gain was lost since something was stale.
    """

    dirty: int
    count: int = 0
    num_before: int = 0
    recent: float = 0.0
    seen_at: int = 0
    family: int | None = None
    num_reached: int = 0
    is_planned: bool = False
    may_divide: bool = False
    is_barred: bool = False
    num_unusable: int = 0
    is_compared: bool = False
    program: TimedProgram | None = None
    candidate: Candidate = "whole"
    reason: str = "seen for the first time"
    clean_share: float = 1.0
    dirty_share: float = 0.0
    promise_s: float = math.inf
    fixed_s: float = 0.0
    seconds: dict[Candidate, float] = field(default_factory=dict)
    is_final: bool = False
    ticks: int = -1
    uses: int = 0
    num_expected: int = 0
    num_kin_expected: int = 0
    was_compiled: bool = False
    num_paying: float = math.inf
    stale_uses: int = 0
    blame_s: float = 0.0
    prior_s: float = 0.0
    num_asked: int = 0
    num_missed: float = 0.0

    def note_seen(self, num_calls: int, num_in_all: int) -> None:
        """So many calls came, the last ones of so many of the function."""
        faded = self.recent * math.exp((self.seen_at - num_in_all) / RECENT)
        self.recent = faded + RECENT * -math.expm1(-num_calls / RECENT)
        self.seen_at = num_in_all
        self.count += num_calls

    def recent_share(self, num_in_all: int) -> float:
        """Of the latest calls, of which there were so many in all, how many were of this kind."""
        faded = self.recent * math.exp((self.seen_at - num_in_all) / RECENT)
        return faded / max(RECENT * -math.expm1(-num_in_all / RECENT), 1.0)

    @property
    def served_s(self) -> float:
        """Seconds of its own program, as measured or as promised."""
        seconds = None if self.program is None else self.program.seconds
        return self.promise_s if seconds is None else seconds

    def gain_s(self, whole_s: float) -> float:
        """Seconds of a call that a program saves, where the whole takes so many; 0: it serves none."""
        is_served = self.program is not None and self.candidate != "whole"
        return max(whole_s - self.served_s, 0.0) if is_served else 0.0

    def settle(self, candidate: Candidate, reason: str) -> None:
        """Choose, for the time being."""
        self.candidate = candidate
        self.reason = reason

    @property
    def is_foretold(self) -> bool:
        """Whether calls are expected, and what a program of its own promises for them is known."""
        return self.num_expected > 0 and self.promise_s < math.inf

    @property
    def blame_per_use_s(self) -> float:
        """Seconds that one use that leaves values stale costs later calls."""
        return self.blame_s / max(self.stale_uses, MIN_BLAMED_USES)

    def leaves_stale(self, candidate: Candidate) -> bool:
        """Whether a candidate does not save anew the wanted values that the change makes stale."""
        plan = None if self.program is None else self.program.plan
        if candidate == "plan" and plan is not None:
            return not plan.saves
        return candidate == "whole"

    def choose(self, seconds: Mapping[Candidate, float]) -> None:
        """Take the fastest candidate; what leaves values stale bears their cost, and the whole
        program wins ties.
        """
        self.seconds = dict(seconds)
        blame_s = self.blame_per_use_s
        total: dict[Candidate, float] = {
            name: s
            + (MIN_GAIN * s + UPKEEP_S) * (name != "whole")
            + SEGMENTS_S * (name == "segments")
            + blame_s * self.leaves_stale(name)
            for name, s in seconds.items()
        }
        shown = ", ".join(f"{name} {s * 1e3:.3g} ms" for name, s in seconds.items())
        if self.blame_s:
            shown += f"; values left stale cost later calls {blame_s * 1e3:.2g} ms"
        if self.is_barred:
            shown += f"; {BARRED}"
        self.settle(min(total, key=lambda name: total[name]), shown)

    def contenders(self) -> list[Candidate]:
        """The candidates that are not slower than the best by more than the square root of the
        uses.
        """
        limit_s = math.sqrt(self.uses) * min(self.seconds.values(), default=0.0)
        return [name for name, s in self.seconds.items() if s <= limit_s]

    @property
    def is_retry_due(self) -> bool:
        """Whether contenders should be timed again at this use."""
        is_time = self.uses in RETRY_USES or (self.uses > 0 and self.uses % RETRY_USES[-1] == 0)
        return is_time and self.is_final

    def note_use(self, candidate: Candidate, num: int = 1) -> None:
        """Count uses; now and then forget the blame, so that a change of habit is noticed."""
        self.uses += num
        self.stale_uses += num * (candidate == self.candidate and self.leaves_stale(candidate))
        if self.blame_s and self.uses % RETRY_USES[-1] < num:
            self.blame_s = self.prior_s
            self.stale_uses = 0
            self.is_final = False
