"""Counters that users and tests may assert on."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Stats:
    """Counts since the function was made; `clear` keeps them.

    Fields: calls; calls with nothing changed that results depend on; equations run; saved values loaded; equations run
    to fill missing saved values; programs compiled; saved values evicted; traces; calls under another transformation;
    calls that raised; races decided; bytes of saved values now. Of `Rows`: chunks evaluated, chunks whose saved results
    served, and chunks whose results were combined from those of the chunks that they were joined from, each once per
    pass over the rows.
    """

    calls: int = 0
    unchanged: int = 0
    ran: int = 0
    loaded: int = 0
    filled: int = 0
    compiles: int = 0
    evicted: int = 0
    traces: int = 0
    transparent: int = 0
    aborted: int = 0
    races: int = 0
    saved_bytes: int = 0
    chunks_run: int = 0
    chunks_reused: int = 0
    chunks_joined: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)
