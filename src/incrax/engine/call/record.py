"""What calls were: one record for each, and the latest of them, which reports read.

In: what served a call, and when. Out: records, oldest first. It must keep no values alive, and cost
a call next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from incrax._jax import Var
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry

MAX_CALLS = 1000
"""Latest calls that are remembered."""

NUM_WEIGHED = 64
WEIGHED_EVERY = 16
"""Saved bytes are added up after the first calls, after those that computed saved values, and after
one in so many.
"""


class CallRecord(NamedTuple):
    """What one call did; calls that are alike share it.

    Fields: the dirty set; what served it; its entry, if it was compared in full; the plan that ran
    last; values loaded, and filled before; the plans that filled them; whether it was the first
    call.
    """

    dirty: int
    candidate: str
    entry: Entry | None = None
    plan: Plan | None = None
    loads: tuple[Var, ...] = ()
    filled: tuple[Var, ...] = ()
    segments: tuple[Plan, ...] = ()
    is_first: bool = False


UNCHANGED = CallRecord(0, "saved outputs")
BYPASSED = CallRecord(0, "whole")
"""A call of `jax.jit`, of which nothing was compared."""


class Chunks(NamedTuple):
    """What a call with `Rows` did: chunks run, reused and joined."""

    num_run: int
    num_reused: int
    num_joined: int

    entry = None
    filled = ()


class Holder(Protocol):
    """What has saved values."""

    @property
    def saved_bytes(self) -> int:
        """Their bytes."""
        ...


class PastCall(NamedTuple):
    """One call of the history.

    Fields: its number, calls that bypassed counted; when it began and returned, seconds of
    `time.perf_counter`; what it did; why it was served so; bytes saved.
    """

    number: int
    start_s: float
    end_s: float
    record: CallRecord | Chunks | None
    why: str | None
    saved_bytes: int


class History:
    """A bounded list of calls that were looked at; `num_calls` counts those that were forgotten, and
    those that bypassed, too.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.rows: deque[tuple[Any, ...]] = deque(maxlen=MAX_CALLS)

    def note(
        self,
        start_s: float,
        end_s: float,
        record: CallRecord | Chunks | None,
        holder: Holder | None = None,
    ) -> None:
        """A call between these times; `holder`: of what it may have saved, None where that was
        nothing.
        """
        entry = None if record is None else record.entry
        why = None if entry is None else entry.reason
        number = self.num_calls
        is_filled = record is not None and record.filled
        is_weighed = is_filled or number < NUM_WEIGHED or not number % WEIGHED_EVERY
        saved_bytes = holder.saved_bytes if holder is not None and is_weighed else -1
        self.rows.append((number, start_s, end_s, record, why, saved_bytes))
        self.num_calls = number + 1

    def calls(self) -> Iterator[PastCall]:
        """The calls, oldest first; bytes that were not added up are taken to be those of the call
        before.
        """
        last_bytes = 0
        for row in self.rows:
            call = PastCall(*row)
            last_bytes = last_bytes if call.saved_bytes < 0 else call.saved_bytes
            yield call._replace(saved_bytes=last_bytes)
