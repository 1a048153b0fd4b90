"""Numbers of rows: canonical, distinct, joined, looked up.

In: integer arrays. Out: integer arrays of static length. Canonical numbers are in [0, num_rows]; num_rows stands for
"no row". Distinct numbers ascend, unused slots hold num_rows at the end. It must not know about values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_COMPARED = 128
"""So many numbers are compared with one another rather than sorted."""


class Slots(NamedTuple):
    """Distinct canonical numbers, ascending, and for each of the numbers they came from its slot."""

    numbers: Any
    slot_of: Any


def number_dtype(num_rows: int) -> Any:
    """The narrowest of JAX's default integers that counts the rows."""
    return np.dtype(np.int32) if num_rows < np.iinfo(np.int32).max else np.dtype(np.int64)


def canonical(numbers: Any, num_rows: int, *, wraps: bool) -> Any:
    """Numbers with what names no row replaced by `num_rows`; negative ones count from the end if `wraps`."""
    dtype = number_dtype(num_rows)
    if numbers.dtype.itemsize < dtype.itemsize:
        numbers = numbers.astype(dtype)
    if wraps and not jnp.issubdtype(numbers.dtype, jnp.unsignedinteger):
        numbers = jnp.where(numbers < 0, numbers + num_rows, numbers)
    return jnp.where((numbers >= 0) & (numbers < num_rows), numbers, num_rows).astype(dtype)


def distinct(numbers: Any, num_rows: int) -> Slots:
    """Each number once, in as many slots as there are numbers."""
    count = numbers.shape[0]
    if count <= 1:
        return Slots(numbers, jnp.zeros(count, numbers.dtype))
    slots = _ranks(numbers) if count <= MAX_COMPARED else _sorted_ranks(numbers)
    return Slots(jnp.full(count, num_rows, numbers.dtype).at[slots].set(numbers), slots)


def _ranks(numbers: Any) -> Any:
    """How many distinct numbers are smaller than each, by comparing all with all: for few, faster than sorting."""
    is_equal = numbers[:, None] == numbers[None, :]
    is_first = ~jnp.any(jnp.tril(is_equal, -1), axis=1)
    return jnp.sum((numbers[None, :] < numbers[:, None]) & is_first[None, :], axis=1, dtype=numbers.dtype)


def _sorted_ranks(numbers: Any) -> Any:
    """The same by sorting."""
    places = jnp.arange(numbers.shape[0], dtype=numbers.dtype)
    ascending, order = jax.lax.sort((numbers, places), num_keys=1)
    is_new = jnp.concatenate([jnp.zeros(1, bool), ascending[1:] != ascending[:-1]])
    return jnp.zeros_like(numbers).at[order].set(jnp.cumsum(is_new, dtype=numbers.dtype), unique_indices=True)


def summed(values: Any, slots: Slots) -> Any:
    """Sums of the values of each slot, in the order of the values, as a dense scatter adds them."""
    if values.shape[0] <= 1:
        return values
    return jnp.zeros_like(values).at[slots.slot_of].add(values)


def found_at(distinct_numbers: Any, wanted: Any) -> tuple[Any, Any]:
    """The slots of wanted numbers among distinct ones, at least one, and whether they are there."""
    slots = jnp.minimum(jnp.searchsorted(distinct_numbers, wanted), distinct_numbers.shape[0] - 1)
    return slots, distinct_numbers[slots] == wanted


def over_rows(flags: Any, ndim: int) -> Any:
    """Flags of rows, shaped to select whole rows of an array of `ndim` axes."""
    return jax.lax.expand_dims(flags, tuple(range(1, ndim)))
