"""How many calls a driver is about to make, told to the functions that it calls.

In: functions, and the equal parts of a job. Out: expectations, by what the parts so far took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from incrax._incremental import Incremental


class Forecast:
    """Calls that are still to come in a job of equal parts: sweeps of a chain, points of a scan.

    It is told after one part, two, four and so on, as what a part takes may change.
    """

    def __init__(
        self, functions: Callable[[], Iterable[Incremental[..., Any]]], num_parts: int
    ) -> None:
        self._functions = functions
        self._num_parts = num_parts
        self._done = 0
        self._before = {id(each): each.stats.calls for each in functions()}

    def advance(self) -> None:
        """One more part is done."""
        self._done += 1
        if self._done & (self._done - 1):
            return
        for function in self._functions():
            calls = function.stats.calls - self._before.get(id(function), 0)
            function.expect(calls * (self._num_parts - self._done) // self._done)
