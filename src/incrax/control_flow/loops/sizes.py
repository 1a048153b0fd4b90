"""Sizes that a compiled function finds out: it starts small, says when it was too small, and is compiled again.

In: how many rows were found where. Out: room for them. It must not know what finds rows.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax import lax

from incrax._context import traced_for
from incrax.control_flow.loops.lengths import SMALLEST, capacity_for


class Excess(NamedTuple):
    """More rows than there was room for: where, how many, and for how many there was room."""

    place: int
    num: int
    room: int


class Sizes:
    """Room at the places of one function where a number of rows is found, in the order in which they are traced."""

    def __init__(self) -> None:
        self.rooms: tuple[int, ...] = ()
        self.excesses: list[Excess] = []
        self.has_places = False
        self._num_places = 0
        self._number = next(_numbers)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """While the function is traced; functions inside it are traced again for other rooms."""
        outer = getattr(_current, "sizes", None)
        self._num_places = 0
        _current.sizes = self
        try:
            with traced_for((self._number, self.rooms)):
                yield
        finally:
            _current.sizes = outer

    def room(self, num: Any) -> int:
        """Room at the next place; `num` is how many rows it finds, which are reported if they are more."""
        place = self._num_places
        self._num_places = self._num_places + 1
        self.has_places = True
        room = self.rooms[place] if place < len(self.rooms) else SMALLEST

        def report(num: Any) -> None:
            if int(num) > room:
                self.excesses.append(Excess(place, int(num), room))

        lax.cond(num > room, lambda: jax.debug.callback(report, num), lambda: None)
        return room

    def grown(self, excesses: list[Excess]) -> tuple[int, ...]:
        """Rooms after these reports."""
        num_places = max(len(self.rooms), *(excess.place + 1 for excess in excesses))
        rooms = list(self.rooms) + [SMALLEST] * (num_places - len(self.rooms))
        for place, num, _ in excesses:
            rooms[place] = max(rooms[place], capacity_for(num))
        return tuple(rooms)


_current = threading.local()
_numbers = itertools.count()


def current_sizes() -> Sizes | None:
    """Those of the function that is being traced."""
    return getattr(_current, "sizes", None)
