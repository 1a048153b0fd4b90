"""Every incremental function that is alive, and lists of counters that functions made from now on
are added to.

In: functions when they are made. Out: who is there. It must not keep a function alive.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from incrax._stats import Stats

Counters = list[tuple[str, Stats]]

_functions: weakref.WeakSet[Any] = weakref.WeakSet()
_open: list[Counters] = []


_lock = threading.Lock()


def register(function: Any, name: str, stats: Stats) -> None:
    """A function was made."""
    with _lock:
        _functions.add(function)
        for counters in _open:
            counters.append((name, stats))


def living() -> list[Any]:
    """The functions that are alive."""
    with _lock:
        return list(_functions)


def collect(counters: Counters) -> list[Any]:
    """From now on, add functions to a list when they are made; returns those that are there."""
    with _lock:
        _open.append(counters)
        return list(_functions)


def is_collecting() -> bool:
    """Whether somebody counts."""
    return bool(_open)


def stop_collecting(counters: Counters) -> None:
    """Add no more functions to a list."""
    with _lock:
        _open[:] = [other for other in _open if other is not counters]


def _forget_in_child() -> None:
    """A forked process has none of the threads that may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
