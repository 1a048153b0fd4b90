"""Counters of a guarded function, for users and tests."""

from __future__ import annotations

from dataclasses import dataclass

from incrax._table import Counters


@dataclass(repr=False)
class TapeStats(Counters):
    """Counts since the function was made.

    Fields:
        calls: how often it was called.
        hits: calls that the expected path answered.
        misses: calls that another recorded path answered, or none.
        recordings: paths recorded.
        compiles: programs compiled.
        checks: programs of guards alone that ran.
        transparent: calls under another transformation.
        eager: calls evaluated operation by operation because there were too many paths.
        aborted: calls that raised.
    """

    calls: int = 0
    hits: int = 0
    misses: int = 0
    recordings: int = 0
    compiles: int = 0
    checks: int = 0
    transparent: int = 0
    eager: int = 0
    aborted: int = 0
