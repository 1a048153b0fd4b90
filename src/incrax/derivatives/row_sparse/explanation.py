"""The report of `structured(step).explain`: what stayed rows, what became dense and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from incrax._table import Printable, Table
from incrax.derivatives.row_sparse.context import DENSE, IN_PLACE, KEPT, Event

NUM_LISTED = 30


@dataclass(frozen=True)
class RowsExplanation(Printable):
    """Report of one program; `events` in the order of its equations."""

    events: tuple[Event, ...]

    @property
    def stayed_sparse(self) -> tuple[Event, ...]:
        """Values held as rows, by the equation that made them."""
        return self._of(KEPT)

    @property
    def became_dense(self) -> tuple[Event, ...]:
        """Values that were rows, or could have been, by the equation that made them dense."""
        return self._of(DENSE)

    @property
    def in_place(self) -> tuple[Event, ...]:
        """Rows written into an array that is there anyway."""
        return self._of(IN_PLACE)

    def _of(self, what: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.what == what)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs."""
        lists = {"stayed_sparse": self.stayed_sparse, "became_dense": self.became_dense, "in_place": self.in_place}
        return {name: [event._asdict() for event in events] for name, events in lists.items()}

    def tables(self) -> list[Table]:
        """The report for people."""
        header = ("primitive", "type", "rows stored", "why", "source")
        named = [("became dense", self.became_dense), ("written in place", self.in_place)]
        return [_table(title, header, events) for title, events in [*named, ("stayed row-sparse", self.stayed_sparse)]]


def _table(title: str, header: tuple[str, ...], events: tuple[Event, ...]) -> Table:
    rows = [(e.primitive, e.type, f"{e.num_rows:,}", e.why, e.line) for e in events[:NUM_LISTED]]
    if len(events) > NUM_LISTED:
        rows.append((f"... {len(events) - NUM_LISTED} more", "", "", "", ""))
    return Table(title, header, rows or [("nothing", "", "", "", "")])
