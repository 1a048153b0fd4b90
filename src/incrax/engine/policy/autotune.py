"""Racing: which candidate of a dirty set is fastest, and which is to be timed next.

In: programs with their measured seconds, estimates where there are none. Out: the choice, in the
entry. It must not know how programs are made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from incrax._stats import Stats
from incrax.engine.compile.timing import Clock, TimedProgram
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.candidates import MIN_BLAMED_USES, RETRY_USES, Candidate, Entry
from incrax.engine.policy.expectations import Expectations
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.segments import Segments

MAX_RUN_PRICE = 10.0
"""Bound of the measured factor on the estimated seconds of equations, either way."""

SPARED_S = 1e-3
"""Seconds that a function on the host is taken to take where nobody remembers what it returned."""

RACE_FREE_S = 0.05
"""Seconds that trying candidates may lose."""

RACE_SHARE = 0.02
"""Share of all time that it may lose beyond these."""


@dataclass(eq=False)
class Race:
    """The candidates of one engine's dirty sets."""

    facts: Facts
    clock: Clock
    whole: TimedProgram
    segments: Segments
    expectations: Expectations
    ledger: Ledger
    stats: Stats
    num_spared: int  # results of the host that saved values must stand for
    started_s: float = field(default_factory=time.perf_counter)
    lost_s: float = 0.0  # by trying candidates
    retimed_at: int = 0  # call at which the whole program was timed again last

    @cached_property
    def callback_s(self) -> float:
        """Seconds that functions on the host take where saved values of them are stale; 0: none must be
        saved.
        """
        return self.num_spared * MIN_BLAMED_USES * SPARED_S

    @property
    def whole_s(self) -> float:
        """Seconds of a call that the whole program serves: as it was timed, or in calls in a row, if
        one of those was: timed runs find colder caches. What was measured a few times may be far too
        long: what earlier processes know bounds it.
        """
        known_s = None if self.whole.is_measured else self.expectations.whole_s
        return min(self.timed_s, self.ledger.turn_s or math.inf, known_s or math.inf)

    @property
    def timed_s(self) -> float:
        """Seconds of the whole program, measured if it was timed, or in earlier processes
        if that is known; the machine is not measured for this.
        """
        if self.whole.seconds is not None:
            return self.whole.seconds
        if self.expectations.whole_s is not None:
            return self.expectations.whole_s
        facts = self.facts
        return facts.total_seconds if facts.is_calibrated else facts.unmeasured.total_seconds

    @property
    def run_price(self) -> float:
        """How much slower this program is than its equations add up to (what XLA does not fuse
        well), measured.
        """
        factor = self.timed_s / max(self.facts.total_seconds, 1e-12)
        return min(max(factor, 1.0 / MAX_RUN_PRICE), MAX_RUN_PRICE)

    @property
    def is_exploring(self) -> bool:
        """Whether trying candidates has lost little time so far."""
        return bool(self.clock.rounds) and self.lost_s <= RACE_FREE_S + RACE_SHARE * (
            time.perf_counter() - self.started_s
        )

    def _segments_s(self, dirty: int) -> float:
        """Seconds of the segments for a change; optimistic where not measured, so that each is
        tried once.
        """
        price = min(self.run_price, 1.0) if self.is_exploring else self.run_price
        return self.segments.seconds(dirty, price)

    def choose(self, entry: Entry) -> None:
        """Choose by seconds; what was not timed yet is estimated."""
        if not entry.is_decided and not self.segments.wanted:
            return
        segments = self.segments
        dirty = entry.dirty
        is_refused = entry.is_barred and segments.top_plan().guard is not None
        is_marked = bool(self.num_spared or self.facts.kept)
        is_at_hand = entry.may_divide or is_marked or segments.is_compiled(dirty)
        serve = bool(segments.wanted) and is_at_hand and not is_refused
        seconds: dict[Candidate, float] = {"whole": self.timed_s}
        if serve:
            seconds["segments"] = self._segments_s(dirty)
        program = entry.program
        if program is not None and program.plan is not None:
            seconds["plan"] = program.plan.seconds if program.seconds is None else program.seconds
        entry.ticks = self.clock.ticks
        if len(seconds) > 1:
            entry.choose(seconds)
        untimed = self._untimed(entry)
        if untimed is not None and untimed != entry.candidate:
            entry.settle(untimed, "being timed, to compare others with it")
        was_final = entry.is_final
        entry.is_final = entry.is_decided and untimed is None
        self.stats.races += entry.is_final and not was_final and len(seconds) > 1

    def _untimed(self, entry: Entry) -> Candidate | None:
        """The next candidate to be timed, as long as that loses little."""
        if not self.is_exploring:
            return None
        if not self.whole.is_measured and not self.callback_s:
            return "whole"
        if entry.program is not None and not entry.program.is_measured:
            return "plan"
        segments_s = entry.seconds.get("segments", math.inf)
        others = [s for name, s in entry.seconds.items() if name != "segments"]
        # What is worse by an optimistic estimate need not be compiled.
        is_open = segments_s < min(others, default=0.0) and not self.segments.is_measured(
            entry.dirty
        )
        return "segments" if is_open else None

    def retry(self, entry: Entry) -> None:
        """Time the contenders again: they may have been timed while the process or the machine was
        busy otherwise.
        """
        contenders = entry.contenders()
        if len(contenders) < 2:
            return
        entry.is_final = False
        # Not for each of many kinds in turns: what the whole program serves leaves values stale.
        since = self.ledger.num_calls - self.retimed_at
        if "whole" in contenders and since >= min(entry.uses, RETRY_USES[-1]) // 2:
            self.whole.retime()
            self.retimed_at = self.ledger.num_calls
        if "segments" in contenders:
            self.segments.retime(entry.dirty)
        if "plan" in contenders and entry.program is not None:
            entry.program.retime()
        self.choose(entry)

    def retime(self, programs: Iterable[TimedProgram | None]) -> None:
        """Time the whole program, all segments and the given programs anew."""
        self.segments.retime_all()
        for program in (self.whole, *programs):
            if program is not None:
                program.retime()
