"""Tables that forget what was used least recently, and one bound for all programs that they
remember.

A function, a tape or the body of a loop is traced and compiled once for each kind of arguments, and
found again in such a table. Each table is bounded by itself. Those that say what their entries
weigh are bounded together as well: beyond `MAX_PROGRAM_BYTES` the entry that was used least
recently goes, of whichever table, but never the latest of a table, which the next call will most
likely ask for.

In: keys and values. Out: the values. It must not know what they are.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Generic, TypeVar

logger = logging.getLogger("incrax")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_PROGRAM_BYTES = 2 * 10**9
"""Bytes that remembered programs may take, by the estimate of `program_bytes`."""

PROGRAM_BYTES = 100_000
EQUATION_BYTES = 4_000
"""Memory of one compiled program and of each of its equations on a processor: of elementwise
programs of 100 and 500 equations, 3.7 and 3.3 kB for each equation were measured.
"""

CHECK_EVERY = 16
"""Additions to tables that say what their entries weigh, of which one has all of them weighed."""


class LruTable(Generic[K, V]):
    """A table of at most `max_size` entries.

    Args:
        max_size: entries that are kept.
        weigh: estimated bytes of a value, where it holds programs; it may have become larger since
            it was added.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()
    """Of all tables; here, since weak references may call back when names of the module are
    gone.
    """

    def __init__(self, max_size: int, *, weigh: Callable[[V], int] | None = None) -> None:
        self.max_size = max_size
        self.weigh = weigh
        self._entries: OrderedDict[K, tuple[int, V]] = (
            OrderedDict()
        )  # with the tick of their last use
        if weigh is not None:
            with self._lock:
                _weighed.add(self)

    def get(self, key: K) -> V | None:
        """The value, which is the latest used now; None if there is none."""
        with self._lock:
            found = self.peek(key)
            if found is not None:
                self._put(key, found)
            return found

    def peek(self, key: K) -> V | None:
        """The value, if there is one; this is no use of it."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def add(self, key: K, value: V) -> list[V]:
        """Put a value in, which is the latest used now; returns those that made room for it in this
        table.
        """
        with self._lock:
            self._put(key, value)
            forgotten = [self._pop_oldest() for _ in range(len(self._entries) - self.max_size)]
        if self.weigh is not None and next(_additions) % CHECK_EVERY == 0:
            make_room()
        return forgotten

    def setdefault(self, key: K, value: V) -> V:
        """The value, which is the latest used now; this one is put in if there is none."""
        with self._lock:
            found = self.get(key)
            if found is None:
                self.add(key, value)
            return value if found is None else found

    def made(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if there is none; not kept if something in the key has no hash."""
        try:
            found = self.get(key)
        except TypeError:
            return make()
        return self.setdefault(key, make()) if found is None else found

    def pop(self, key: K) -> V | None:
        """Take a value out, if it is there."""
        with self._lock:
            entry = self._entries.pop(key, None)
            return None if entry is None else entry[1]

    def clear(self) -> None:
        """Take all out."""
        with self._lock:
            self._entries.clear()

    def items(self) -> list[tuple[K, V]]:
        """The keys with their values, the latest used last."""
        with self._lock:
            return [(key, value) for key, (_, value) in self._entries.items()]

    def values(self) -> list[V]:
        """The values, the latest used last."""
        return [value for _, value in self.items()]

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, key: K, value: V) -> None:
        self._entries[key] = next(_ticks), value
        self._entries.move_to_end(key)

    def _pop_oldest(self) -> V:
        return self._entries.popitem(last=False)[1][1]

    def _oldest_tick(self) -> int | None:
        """When the oldest entry was used, if it is not the latest as well."""
        return next(iter(self._entries.values()))[0] if len(self._entries) > 1 else None


_ticks = itertools.count()
_additions = itertools.count(1)
_weighed: weakref.WeakSet[LruTable[Any, Any]] = weakref.WeakSet()


def program_bytes(num_equations: int, num_programs: int = 1) -> int:
    """Estimated bytes of compiled programs with so many equations in all."""
    return num_programs * PROGRAM_BYTES + num_equations * EQUATION_BYTES


def remembered_bytes() -> int:
    """Estimated bytes of all remembered programs of this process."""
    with LruTable._lock:
        tables = list(_weighed)
        return sum(
            table.weigh(value)
            for table in tables
            if table.weigh is not None
            for value in table.values()
        )


def make_room() -> None:
    """Forget what was used least recently until the bound of all remembered programs holds."""
    excess = remembered_bytes() - MAX_PROGRAM_BYTES
    while excess > 0:
        with LruTable._lock:
            ages = [
                (tick, table) for table in _weighed if (tick := table._oldest_tick()) is not None
            ]
            if not ages:
                return
            _, table = min(ages, key=lambda item: item[0])
            forgotten = table._pop_oldest()
            excess -= 0 if table.weigh is None else table.weigh(forgotten)
        logger.info(
            "the program used least recently made room: all take %.3g bytes at most",
            MAX_PROGRAM_BYTES,
        )


def _forget_in_child() -> None:
    """A forked process has none of the threads that may have held the lock."""
    LruTable._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
