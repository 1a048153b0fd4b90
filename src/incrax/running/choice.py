"""Which program serves a dirty set: its own plan or the whole function. A race on the first uses decides.

In: measured and estimated seconds. Out: `Entry`, the record of one dirty set. It must not know values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from incrax.planning.plan import Plan
from incrax.running.compiled import Executable

Status = Literal["cold", "race", "plan", "whole"]

MIN_GAIN = 0.02
"""Share of the whole program's time that a plan must save to be kept."""

MIN_GAIN_S = 1e-6
"""Seconds that a plan must save to be worth compiling."""

RACE_FREE_S = 2.0
RACE_SHARE = 0.1
"""Races may cost this many seconds, and beyond them this share of all time spent evaluating."""

FREE_FILLS = 3
"""Fills that a dirty set may cost before they must have paid for themselves."""


@dataclass
class Entry:
    """What is known of one dirty set.

    Fields: status; uses; the plan and its executable; seconds of timed uses of either candidate; fills that states
    made by this entry needed later; the balance of seconds won by uses and spent on fills; why the status is so.
    """

    dirty: int
    status: Status = "cold"
    count: int = 0
    plan: Plan | None = None
    executable: Executable | None = None
    plan_times: list[float] = field(default_factory=list)
    whole_times: list[float] = field(default_factory=list)
    refills: int = 0
    refill_s: float = 0.0
    fills: int = 0
    won_s: float = 0.0
    misses: int = 0
    is_saving: bool = False
    reason: str = "seen for the first time"
    is_warm: bool = False

    def copy(self) -> Entry:
        """An independent record."""
        return replace(self, plan_times=list(self.plan_times), whole_times=list(self.whole_times))

    def next_candidate(self) -> Literal["plan", "whole"]:
        """Whose turn it is: the winner, or in a race the candidate that was timed less often."""
        if self.status == "race":
            return "plan" if len(self.plan_times) <= len(self.whole_times) else "whole"
        return "plan" if self.status == "plan" else "whole"

    def record(self, candidate: str, seconds: float, rounds: int) -> None:
        """Note a timed use; the race ends when both candidates have been timed often enough."""
        times = self.plan_times if candidate == "plan" else self.whole_times
        times.append(seconds)
        if self.status == "race" and min(len(self.plan_times), len(self.whole_times)) >= rounds:
            self._decide()

    def _decide(self) -> None:
        plan_s, whole_s = min(self.plan_times), min(self.whole_times)
        bonus_s = self.refill_s / max(self.refills, 1) * self.refill_rate if self.is_saving else 0.0
        wins = plan_s < (whole_s + bonus_s) * (1 - MIN_GAIN)
        self.status = "plan" if wins else "whole"
        sign = "<" if wins else ">="
        self.reason = f"race: plan {plan_s * 1e3:.3g} ms {sign} whole {(whole_s + bonus_s) * 1e3:.3g} ms"

    @property
    def refill_rate(self) -> float:
        """How often a use of this entry was followed by a fill of what it did not save."""
        return min(self.refills / max(self.count, 1), 1.0)

    @property
    def expected_s(self) -> float:
        """Seconds that a use of the plan takes, measured if it was timed."""
        estimate = self.plan.seconds if self.plan is not None else float("inf")
        return min(self.plan_times, default=estimate)

    @property
    def gain_s(self) -> float:
        """Seconds that one use of the plan wins over the whole program."""
        if self.plan_times and self.whole_times:
            return max(min(self.whole_times) - min(self.plan_times), 0.0)
        return 0.0

    def may_fill(self) -> bool:
        """Whether another fill is justified: the first few are free, later ones must be paid by what was won."""
        if self.fills < FREE_FILLS or self.won_s > 0.0:
            return True
        self.misses += 1
        return self.misses & (self.misses - 1) == 0  # at the 1st, 2nd, 4th, 8th ... miss
