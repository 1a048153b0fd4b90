"""What the store may keep: the default byte budget of saved values.

Budgets decide what is planned and evicted. The processes of one run must decide alike, so that with
several of them no budget depends on the memory that happens to be free.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import jax

MAX_DEFAULT_BYTES = 2 * 10**9
SHARE = 0.25


class Limits(NamedTuple):
    """What the store may keep: versions, bytes of saved values; and the bytes that plans reckon
    with.
    """

    versions: int
    budget_bytes: int
    planned_bytes: int


def make_limits(versions: int, memory: int | None, *, is_exact: bool, num_parts: int = 1) -> Limits:
    """Limits from the options, for inputs in `num_parts` parts; exact plans must not depend on the
    free memory.
    """
    if memory is not None:
        return Limits(versions, memory, memory)
    budget_bytes = num_parts * default_budget_bytes()
    return Limits(
        versions, budget_bytes, num_parts * MAX_DEFAULT_BYTES if is_exact else budget_bytes
    )


def default_budget_bytes() -> int:
    """A quarter of the free memory of a device, at most 2 GB; just that much in each of several
    processes.
    """
    if jax.process_count() > 1:
        return MAX_DEFAULT_BYTES
    return int(min(SHARE * _free_bytes(), MAX_DEFAULT_BYTES))


def _free_bytes() -> float:
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4.0 * MAX_DEFAULT_BYTES
