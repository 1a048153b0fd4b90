"""Whether saving has been worth it: what calls took so far and what `jax.jit` would have taken.

In: seconds of the ledger. Out: one sentence, the same in reports, counters and the log. It must not
decide anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from incrax._table import many, seconds_text
from incrax.engine.compile.background import CALLER_SHARE

UNCHANGED_S = 1e-5
"""Seconds that a call with nothing changed is taken to need."""

BYPASS_S = 1.5e-6
"""Seconds that a call of a bypass needs beyond the whole program."""

ENDED_CALLS = 1000
"""Calls, most of which bypassed, after which a plan that has not come is not waited for."""

CHEAP_S = 2e-3
"""Seconds of a whole call from which on what a call costs beyond its program is a few percent."""

ADVICE = "call it under `jax.jit` instead, or change fewer inputs at a time"

OUTSIDE = (
    "it calls code outside of JAX (`jax.pure_callback`), which runs for new inputs only, and whose "
    "seconds are not counted; compare with `jax.jit` by a clock"
)


@dataclass(slots=True)
class Verdict:
    """What calls took so far."""

    calls: int = 0  # that were looked at, with a change
    spent_s: float = 0.0  # what these took, in programs and of the overhead
    whole_s: float = 0.0  # what the whole program would have taken for them
    unchanged: int = 0  # calls with nothing changed
    bypassed: int = 0  # calls that nobody looked at
    learning_s: float = 0.0  # of planning, compiling and trying
    compile_s: float = 0.0  # of compiling the whole program
    behind_s: float = 0.0  # of a thread that compiled beside the calls
    num_behind: int = 0  # programs that it has yet to compile
    ahead_since: int = (
        0  # the call since which there is a gain, learning included; 0: there is none
    )
    bypassed_s: float = 0.0  # what `jax.jit` took in those that bypassed
    gained_s: float = 0.0  # by a call of late
    num_outside: int = 0  # calls to the host in an evaluation: no seconds are compared then
    is_learning: bool = False  # plans are being earned
    is_put_off: bool = False  # nothing was known before of a function that takes long to analyse

    @property
    def num_calls(self) -> int:
        """All of them."""
        return self.calls + self.unchanged + self.bypassed

    @property
    def ours(self) -> dict[str, float]:
        """Seconds that all of them took, by what for; learning with what a thread took from them."""
        bypassed_s = self.bypassed_s + self.bypassed * BYPASS_S
        return {
            "compiling": self.compile_s,
            "learning": self.learning_s + CALLER_SHARE * self.behind_s,
            "calls": self.spent_s + bypassed_s + self.unchanged * UNCHANGED_S,
        }

    @property
    def jit(self) -> dict[str, float]:
        """Seconds that the whole program would have taken for all of them, by what for."""
        beside_s = self.bypassed_s + self.unchanged * self._each_s
        return {"compiling": self.compile_s, "calls": self.whole_s + beside_s}

    @property
    def ours_s(self) -> float:
        """Seconds that all of them took, learning included."""
        return sum(self.ours.values())

    @property
    def jit_s(self) -> float:
        """Seconds that the whole program would have taken for all of them."""
        return sum(self.jit.values())

    @property
    def _each_s(self) -> float:
        return self.whole_s / max(self.calls, 1)

    @property
    def has_ended(self) -> bool:
        """Whether so many calls bypassed that a plan, if one still comes, would come late."""
        return self.num_calls >= ENDED_CALLS and self.bypassed > self.calls

    @property
    def gain(self) -> float | None:
        """How many times faster than the whole program; None before any call counts, and where code
        outside of JAX is spared, whose seconds are not counted.
        """
        is_known = self.calls and self.ours_s and not self.num_outside
        return self.jit_s / self.ours_s if is_known else None

    @property
    def ahead_s(self) -> float:
        """Seconds by which all of them were faster; NaN where the gain is not known."""
        return math.nan if self.gain is None else self.jit_s - self.ours_s

    @property
    def sentence(self) -> str:
        """Whether it is worth it, in words."""
        if self.num_outside:
            return f"not known: {OUTSIDE}"
        if self.gain is None and self.bypassed:
            put_off = "analysing a function of so many operations would have taken longer than 1 % of the job"
            since = put_off if self.is_put_off else "saving did not pay in an earlier process"
            return f"not known yet: {self.bypassed} calls went to `jax.jit`, since {since}"
        if self.gain is None:
            return "not known yet: the first calls tell how long the function takes"
        learning = f" and {seconds_text(self.learning_s)} learning" if self.learning_s else ""
        if self.behind_s:
            learning += f" ({seconds_text(self.behind_s)} more in the background)"
        took = (
            f"{self.num_calls} calls took {seconds_text(self.ours_s)}, with {seconds_text(self.compile_s)} "
            f"compiling first{learning}; `jax.jit` would have taken {seconds_text(self.jit_s)}"
        )
        if self.gain >= 1.0:
            is_named = self.learning_s and self.ahead_since
            since = f"; ahead since call {self.ahead_since}" if is_named else ""
            return f"yes: {took}{since}"
        if self.num_behind:
            plans = many(self.num_behind, "plan")
            return f"learning: compiling {plans} in the background, {self.num_calls} calls so far"
        if self.gained_s > 0 and self.learning_s:
            call = self.num_calls + int((self.ours_s - self.jit_s) / self.gained_s) + 1
            return f"not yet: {took}; ahead from call {call} on if calls go on like this"
        if self.is_learning and not self.has_ended:
            return f"learning: {took}; a plan is made when the calls so far would have repaid it"
        reason = f"too much of its {seconds_text(self._each_s)} changes at every call"
        if self._each_s < CHEAP_S:
            reason = f"the function is too cheap, or {reason}"
        return f"no: {took}; {reason}; {ADVICE}"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict about several, of one function with arguments of other types, whose calls are
    counted each by themselves.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    sums: list[Any] = [sum(column) for column in zip(*map(astuple, verdicts), strict=True)]
    found = Verdict(*sums)
    num_calls = max(found.num_calls, 1)
    gained_s = sum(v.gained_s * v.num_calls for v in verdicts) / num_calls
    return replace(
        found,
        ahead_since=0,
        gained_s=gained_s,
        is_learning=found.is_learning > 0,
        is_put_off=found.is_put_off > 0,
    )
