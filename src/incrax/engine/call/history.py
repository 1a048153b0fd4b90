"""The latest calls of one signature, for reports: when, how long, what changed, what ran, bytes saved.

In: records of calls. Out: rows, oldest first. It must keep no values alive, and cost a call next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from incrax._jax import Var, aval_bytes
from incrax.engine.call.call_record import Record
from incrax.engine.store.store import Store

NUM_WEIGHED = 64
WEIGHED_EVERY = 16
"""Saved bytes are added up after the first calls, after those that computed saved values, and after one in so many."""


class Chunks(NamedTuple):
    """What a call with `Rows` did: chunks run, reused and joined."""

    num_run: int
    num_reused: int
    num_joined: int


class Noted(NamedTuple):
    """One call.

    Fields: its number; when it began and returned, seconds of `time.perf_counter`; what it did (None: it rested, and
    was not compared in full); the leaves that were other objects, if it rested; why it was served so; bytes saved.
    """

    number: int
    start_s: float
    end_s: float
    record: Record | Chunks | None
    rested: Sequence[int] | None
    why: str | None
    saved_bytes: int


class History:
    """A bounded list of calls; `num_calls` counts those that were forgotten, too."""

    __slots__ = ("_append", "num_calls", "rows", "size", "sizes")

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_calls = 0
        self.rows: deque[tuple[Any, ...]] = deque(maxlen=size)
        self.sizes: dict[Var, int] = {}
        self._append = self.rows.append

    def note(self, start_s: float, record: Record | None, rested: Sequence[int] | None, store: Store) -> None:
        """A call that began at `start_s` ended now."""
        if not self.size:
            return
        end_s = perf_counter()
        if rested is not None:
            record = None
        entry = None if record is None else record.entry
        number, saved_bytes = self.num_calls, -1
        self.num_calls = number + 1
        if not number % WEIGHED_EVERY or number < NUM_WEIGHED or (record is not None and record.filled):
            saved_bytes = self._weigh(store)
        self._append((start_s, end_s, record, rested, None if entry is None else entry.reason, saved_bytes))

    def _weigh(self, store: Store) -> int:
        """Bytes of the distinct saved buffers."""
        found: dict[int, int] = {}
        for state in store.states:
            for var, x in state.saved.items():
                size = self.sizes.get(var)
                if size is None:
                    size = self.sizes[var] = aval_bytes(var.aval)
                found[id(x)] = size
        return sum(found.values())

    def note_rows(self, start_s: float, chunks: Chunks, saved_bytes: Callable[[], int]) -> None:
        """The same for a call with `Rows`."""
        if not self.size:
            return
        end_s, number = perf_counter(), self.num_calls
        self.num_calls = number + 1
        is_weighed = number < NUM_WEIGHED or not number % WEIGHED_EVERY
        self._append((start_s, end_s, chunks, None, None, saved_bytes() if is_weighed else -1))

    def calls(self) -> Iterator[Noted]:
        """The calls, oldest first; bytes that were not added up are taken to be those of the call before."""
        last_bytes = 0
        for number, row in enumerate(self.rows, self.num_calls - len(self.rows)):
            noted = Noted(number, *row)
            last_bytes = last_bytes if noted.saved_bytes < 0 else noted.saved_bytes
            yield noted._replace(saved_bytes=last_bytes)
