"""Counters that users and tests may assert on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from incrax._table import Counters


@dataclass(repr=False)
class Stats(Counters):
    """Counts since the function was made; `clear` keeps them.

    Fields:
        calls: how often it was called.
        unchanged: calls in which nothing changed that results depend on.
        ran: equations run; of a signature that was forgotten after one call, they are not known.
        loaded: saved values loaded, each once in a call that read it.
        filled: equations run to fill in missing saved values.
        compiles: programs compiled.
        evicted: saved values dropped because of the budget.
        traces: how often it was traced.
        transparent: calls under another transformation.
        aborted: calls that raised.
        races: choices between a plan and the whole program that were decided by timing.
        saved_bytes: bytes of saved values now.
        chunks_run: of `Rows`: chunks evaluated; each counts once per pass over the rows, here and
            in the next two.
        chunks_reused: chunks whose saved results served.
        chunks_joined: chunks whose results were combined from those of the chunks that they were
            joined from.

    Example:
        >>> import incrax
        >>> f = incrax.incremental(lambda a, b: a * b)
        >>> values = f(2.0, 3.0), f(2.0, 3.0), f(2.0, 4.0)
        >>> f.stats.calls, f.stats.unchanged, f.stats.as_dict()["traces"]
        (3, 1, 1)
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

    verdict = ""
    """Whether saving has been worth it, in a sentence; no counter, so that `as_dict` leaves it out.
    """

    _gained_s = math.nan

    @property
    def gained_s(self) -> float:
        """By how many seconds all calls were faster than with `jax.jit`, planning and compiling included;
        below 0: slower. NaN where nobody takes times, or not yet. No counter either.
        """
        return self._gained_s

    def summary(self) -> str:
        """The verdict, if there is one."""
        return self.verdict or super().summary()
