"""Counters of all incremental functions over a stretch of code.

In: incremental functions and their counters. Out: what was counted, function by function and in
all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from incrax._stats import Stats
from incrax._table import Printable, Table, many
from incrax.engine.call.registry import Counters, collect, living, stop_collecting

SHOWN = ("calls", "unchanged", "ran", "loaded", "filled", "compiles", "traces", "evicted")
"""Counters that are printed; `as_dict()` has all."""


class totals(Printable):  # noqa: N801
    """Counters of all incremental functions, of all threads, while a `with` block runs.

    `by_function` are the counters by function, those that were called at all; names that several
    functions share get a number. `total` are their sums. Both may be read inside the block, and
    stay as they are after it. `saved_bytes` is what is saved at the end, not a difference.

    Cost: nothing per call; entering and leaving read the counters of every living function.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(x))
        >>> with incrax.totals() as counted:
        ...     results = [float(f(scale, jnp.ones(3))) for scale in (1.0, 2.0, 2.0)]
        >>> counted.total.calls, counted.total.traces
        (3, 1)
    """

    def __init__(self) -> None:
        """Counters that start at zero where the block begins."""
        self._before: dict[int, Stats] = {}
        self._counters: Counters = []
        self._found: dict[str, Stats] = {}
        self._is_open = False

    def __enter__(self) -> totals:
        """Begin.

        Raises:
            RuntimeError: this object is counting already.
        """
        if self._is_open:
            raise RuntimeError(
                "`totals()` is counting already: the same object was entered twice, and would "
                "count everything twice. Nothing was changed. Write `with incrax.totals() as "
                "inner:` for a block inside another one."
            )
        self._is_open = True
        self._counters = []
        present = [(function._name, function.stats) for function in collect(self._counters)]
        self._before = {id(stats): Stats(**stats.as_dict()) for _, stats in present}
        self._counters += present
        return self

    def __exit__(self, *exception: object) -> None:
        stop_collecting(self._counters)
        try:
            self._found = self._differences()
        finally:
            self._is_open = False
            self._counters = []
            self._before = {}

    @property
    def by_function(self) -> dict[str, Stats]:
        """Counters of each function that was called."""
        return self._differences() if self._is_open else dict(self._found)

    @property
    def total(self) -> Stats:
        """The sums over all functions."""
        return _sum(self.by_function.values())

    def as_dict(self) -> dict[str, Any]:
        """The counters for programs."""
        found = self.by_function
        return {
            "total": _sum(found.values()).as_dict(),
            "functions": {name: stats.as_dict() for name, stats in found.items()},
        }

    def summary(self) -> str:
        """The sums."""
        total = self.total
        return (
            f"{many(total.calls, 'call')}, {total.unchanged} unchanged, {total.ran} equations run"
        )

    def tables(self) -> list[Table]:
        """The counters for people."""
        found = self.by_function
        every = found if len(found) == 1 else {**found, "in all": _sum(found.values())}
        rows = [
            (name, *(getattr(stats, counter) for counter in SHOWN)) for name, stats in every.items()
        ]
        return [Table("", ("function", *SHOWN), rows)]

    def _differences(self) -> dict[str, Stats]:
        found: dict[str, Stats] = {}
        used: Counter[str] = Counter()
        alive = {id(each.stats) for each in living()}  # which brings the saved bytes up to date
        for name, stats in list(self._counters):
            counted = _difference(stats, self._before.get(id(stats), Stats()))
            counted.saved_bytes = stats.saved_bytes if id(stats) in alive else 0
            if counted.calls or counted.traces or counted.transparent:
                used[name] += 1
                found[name if used[name] == 1 else f"{name} ({used[name]})"] = counted
        return found


def _difference(after: Stats, before: Stats) -> Stats:
    earlier = before.as_dict()
    return Stats(**{name: count - earlier[name] for name, count in after.as_dict().items()})


def _sum(found: Iterable[Stats]) -> Stats:
    total: Counter[str] = Counter()
    for stats in found:
        total.update(stats.as_dict())
    return Stats(**total)
