"""What the store may keep, and the default byte budget of saved values."""

from __future__ import annotations

import os
from typing import NamedTuple

import jax

MAX_DEFAULT_BYTES = 2 * 10**9
SHARE = 0.25


class Limits(NamedTuple):
    """What the store may keep: versions, bytes of saved values; and the bytes that plans reckon with."""

    versions: int
    budget_bytes: int
    planned_bytes: int


def make_limits(versions: int, memory: int | None, *, is_exact: bool) -> Limits:
    """Limits from the options; exact plans must not depend on how much memory happens to be free."""
    if memory is not None:
        return Limits(versions, memory, memory)
    budget_bytes = default_budget_bytes()
    return Limits(versions, budget_bytes, MAX_DEFAULT_BYTES if is_exact else budget_bytes)


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
