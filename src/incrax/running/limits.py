"""The default byte budget of saved values."""

from __future__ import annotations

import os

import jax

MAX_DEFAULT_BYTES = 2 * 10**9
SHARE = 0.25


def default_budget_bytes() -> int:
    """A quarter of the free memory of the default device, at most 2 GB."""
    return int(min(SHARE * _free_bytes(), MAX_DEFAULT_BYTES))


def _free_bytes() -> float:
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4.0 * MAX_DEFAULT_BYTES
