"""What is known of one kind of change (`Entry`), and what may serve it.

In: measured and estimated seconds. Out: `Entry`, the record of one kind of change. It must not know
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from incrax._table import seconds_text
from incrax.engine.compile.timing import TimedProgram

Candidate = Literal["whole", "segments", "plan", "slices", "priming"]
"""What serves a call: "plan" is a program of its own, "segments" those that all kinds share, "slices" a
program for the rows that changed, "priming" the whole function, which saves what that, or plans of
kinds in turns, read.
"""

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
"""Uses after which contenders are timed again, then after every 256; the blame is forgotten then."""

MAX_UNUSABLE = 4
"""Calls whose results could not be used before a kind of change gets no program any more."""

USES_PER_UNUSABLE = 16
"""Uses that make up for one more of these, where results may be unusable now and then."""


RECENT = 512
"""Calls after which a kind of change that came no more has lost two thirds of its share of all."""

BARRED = "no plan: values derived for it left the range of numbers in which they may be used"


class Known(NamedTuple):
    """What hints and earlier processes say of a kind of change."""

    calls: int  # to expect
    plan_s: float = math.inf  # of a call that something else than the whole program served
    was_compiled: bool = False  # its family had a program
    kin_calls: int = 0  # to expect of its family
    learning_s: float = 0.0  # that its family's programs took; 0: none had been made


@dataclass
class Entry:
    """What is known of one kind of change: of a dirty set, or of a number of rows of some inputs."""

    dirty: int  # the inputs, or elements of them, that change
    clean_share: float = 1.0  # of the program's work, roughly, what the change does not reach
    dirty_share: float = 0.0  # of rows: mean share of the axis from the first of them on
    family: int | None = None  # what changes of its family have in common; None: it has none
    num_reached: int = 0  # equations that it makes run, as far as is known

    # How often it comes.
    count: int = 0  # calls since its program, if it had one, was dropped last
    num_before: int = 0  # calls of the function before the first of them
    recent: float = 0.0  # of the latest calls, up to number `seen_at`
    seen_at: int = 0
    num_expected: int = 0  # calls, by hints or from earlier processes
    num_kin_expected: int = 0  # the same of all its family

    # Whether it gets a program.
    is_decided: bool = False  # whether a plan of its own is to serve it; False: ask again
    may_divide: bool = False  # segments may be compiled for it
    is_barred: bool = False  # it gets no plan any more
    num_unusable: int = 0  # how often results of its plan could not be used
    is_compared: bool = False  # algebra in its plan was compared with the direct form
    promise_s: float = math.inf  # seconds of a call, if it had a program
    fixed_s: float = 0.0  # of rows: which of these do not depend on the work
    # Calls that, had they been expected, would have had a program made that was refused.
    num_paying: float = math.inf
    due_at: float = math.inf  # calls at which to ask again; of a family, see its account
    was_compiled: bool = False  # its family had a program in an earlier process
    known_price_s: float = 0.0  # which took so many seconds; 0: it had none
    learning_s: float = 0.0  # that were spent on it, without its family
    program: TimedProgram | None = None

    # What serves it.
    candidate: Candidate = "whole"
    reason: str = "no plan was made yet"
    seconds: dict[Candidate, float] = field(default_factory=dict)
    is_final: bool = False  # all candidates were timed
    ticks: int = -1  # of the clock, at the last choice
    uses: int = 0

    # Saved values that were stale.
    stale_uses: int = 0  # calls that left some behind by choice
    blame_s: float = 0.0  # seconds that these cost later calls
    prior_s: float = 0.0  # what is assumed of these at first
    num_asked: int = 0  # calls that saved values were to serve
    num_missed: float = 0.0  # of these, each times the share of its gain that was lost

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
        """Seconds of a call that a program, or segments, save, where the whole takes so many; 0: they
        serve none.
        """
        if self.candidate == "whole":
            return 0.0
        is_divided = self.candidate == "segments"
        served_s = self.seconds.get("segments", math.inf) if is_divided else self.served_s
        return max(whole_s - served_s, 0.0)

    @property
    def is_for_rows(self) -> bool:
        """Whether a program of its own would be one for rows."""
        return self.fixed_s > 0.0

    @property
    def overhead_s(self) -> float:
        """Seconds that a call takes beyond such a program's work."""
        return self.fixed_s or UPKEEP_S

    def expect(self, known: Known) -> None:
        """Take what hints and earlier processes say of it."""
        self.num_expected = known.calls
        self.num_kin_expected = known.kin_calls
        self.was_compiled = known.was_compiled
        self.known_price_s = known.learning_s
        self.promise_s = known.plan_s

    def bar(self, reason: str) -> None:
        """It gets no program any more."""
        self.program = None
        self.is_barred = True
        self.is_decided = True
        self.is_final = True
        self.settle("whole", reason)

    def note_unusable(self, *, is_spared: bool) -> bool:
        """Count a call whose results could not be used; whether there were too many. An entry may be
        spared some, in proportion to its uses.
        """
        self.num_unusable += 1
        num_spared = self.uses // USES_PER_UNUSABLE if is_spared else 0
        return self.num_unusable >= MAX_UNUSABLE + num_spared

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
        shown = ", ".join(f"{name} {seconds_text(s)}" for name, s in seconds.items())
        if self.blame_s:
            shown += f"; values left stale cost later calls {seconds_text(blame_s)}"
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
