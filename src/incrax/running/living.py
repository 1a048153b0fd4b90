"""Every incremental function that is alive, and lists of counters that functions made from now on are added to.

In: functions when they are made. Out: who is there. It must not keep a function alive.
"""

from __future__ import annotations

import weakref
from typing import Any

from incrax.running.stats import Stats

Counters = list[tuple[str, Stats]]

_functions: weakref.WeakSet[Any] = weakref.WeakSet()
_open: list[Counters] = []


def register(function: Any, name: str, stats: Stats) -> None:
    """A function was made."""
    _functions.add(function)
    for counters in _open:
        counters.append((name, stats))


def living() -> list[Any]:
    """The functions that are alive."""
    return list(_functions)


def collect(counters: Counters) -> None:
    """From now on, add functions to a list when they are made."""
    _open.append(counters)


def stop_collecting(counters: Counters) -> None:
    """Add no more functions to a list."""
    _open[:] = [other for other in _open if other is not counters]
