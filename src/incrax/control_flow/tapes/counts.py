"""Counters of a guarded function, for users and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class TapeStats:
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

    Example:
        >>> import incrax
        >>> f = incrax.guarded(lambda x: x if x > 0 else -x)
        >>> values = f(1.0), f(-1.0), f(-2.0)
        >>> f.stats.calls, f.stats.recordings
        (3, 2)
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

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)
