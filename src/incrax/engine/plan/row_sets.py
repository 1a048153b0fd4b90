"""Sets of rows of which the numbers are known when a program runs, and what becomes of them where
rows are moved, or where different ones meet.

In: numbers while JAX traces, and which rows an equation moves where. Out: other sets, rows of
values, values with rows written in. It must not know what the values are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Var
from incrax.primitives.entry import Run, Window, with_item

MAX_UNROLLED = 8
"""Rows up to which each is written by itself: XLA's scatter is a loop."""

MIN_DIVIDED_BYTES = 2**18
MAX_UNDIVIDED = 2**16
"""Bytes of a value from which on XLA may divide a gather among threads; elements of a result that is
not worth that.
"""

MAX_COMPARED = 512
"""Rows of different sets that meet: each is compared with all others."""

MAX_LISTED = 2**18
"""Numbers up to which it is listed what a set is for each argument."""


MAX_HALVINGS = 3
"""How often every other row may be taken, one after the other, before rows at other places come from
a value that is kept: a row of the last level is made of so many of the first as this is a power of
two.
"""


# --- how a set came to be -------------------------------------------------------------------------


class Plain:
    """Numbers of which no more is known, as those that an argument names."""


class Ascending:
    """Distinct numbers in order, spare slots last: searched, where others are compared."""


class FromList:
    """The numbers that the set's list has for its argument."""


class Ids(NamedTuple):
    """The indices of a look-up, or of a sum back to them."""

    indices: Var
    clips: bool  # those out of range read, or write, the last row


class LookedUp(NamedTuple):
    """The rows of `x[ids]` that read a set of rows of x: as many slots for each of these."""

    of: RowSet  # the rows that are read
    ids: Ids
    table: Var  # of the rows of each id


class Image(NamedTuple):
    """A set whose k-th number is `step * (n // modulus) + shift` of the k-th number n of another,
    where `low <= n < high`, and n leaves this residue; else it is none.
    """

    of: RowSet
    step: int
    shift: int
    low: int
    high: int
    modulus: int = 1
    residue: int = 0

    @property
    def rows(self) -> range:
        """The n that have an image."""
        first = self.low + (self.residue - self.low) % self.modulus
        return range(first, max(self.high, first), self.modulus)

    def is_apart(self, other: Image) -> bool:
        """Whether no row of the same set has an image in both."""
        if self.modulus == other.modulus and self.residue != other.residue:
            return True
        return self.high <= other.low or other.high <= self.low


class Union(NamedTuple):
    """All rows of some sets."""

    parts: tuple[RowSet, ...]  # the sets, none of them a union
    is_kept: bool  # of what is made of it, rows elsewhere are kept


class Blocks(NamedTuple):
    """Blocks of consecutive rows, all of one length."""

    starts: Any  # the first row of each
    aligned: int = 1  # of what these are multiples
    # Of an interval, which is one block: low <= n < high, known before the program runs.
    ends: tuple[int, int] | None = None


Origin = Plain | Ascending | FromList | LookedUp | Image | Union | Blocks
"""How a set came to be."""


class Listed(NamedTuple):
    """What a set is for each row that its argument, a set of one row, may be."""

    argument: RowSet
    numbers: np.ndarray  # of rows, int32 of shape (rows of the argument's axis, size)


@dataclass(frozen=True, eq=False)
class RowSet:
    """Some rows of an axis, one in each slot, or none."""

    numbers: Any  # of the rows, shape (size,); of none, `length`
    length: int  # of the axis
    counts: Any  # whether each slot does: not if it has none, or a row that another one has
    has_spare: bool = False  # some slots may have none
    origin: Origin = Plain()
    halvings: int = 0  # how often, on the way, every other row was taken
    listed: Listed | None = None  # what it is for each argument, where that is known

    @property
    def size(self) -> int:
        """The number of slots."""
        return self.numbers.shape[0]

    @property
    def ends(self) -> tuple[int, int] | None:
        """Of an interval; None of other sets."""
        return self.origin.ends if isinstance(self.origin, Blocks) else None

    @property
    def parts(self) -> tuple[RowSet, ...]:
        """The sets of which it has all rows."""
        return self.origin.parts if isinstance(self.origin, Union) else (self,)

    @property
    def firsts(self) -> Any:
        """The first row of each block of consecutive ones; each slot may be a block."""
        return self.origin.starts if isinstance(self.origin, Blocks) else self.numbers

    @property
    def num_blocks(self) -> int:
        """How many there are."""
        return self.firsts.shape[0]

    @property
    def width(self) -> int:
        """Rows of a block."""
        return self.size // self.num_blocks

    @property
    def is_kept(self) -> bool:
        """Whether it is a union of which other rows are kept, not made."""
        return isinstance(self.origin, Union) and self.origin.is_kept

    @property
    def aligned(self) -> int:
        """Of what all first rows are multiples."""
        return self.origin.aligned if isinstance(self.origin, Blocks) else 1

    @property
    def is_row(self) -> Any:
        """Whether each number is one of a row."""
        return self.numbers < self.length


class DirtyRows(NamedTuple):
    """The dirty rows of a variable: their values now and at the baseline, their axis, which."""

    new: Any
    old: Any
    axis: int
    of: RowSet


class Slabs(NamedTuple):
    """Dirty rows along one axis, and along another: of each all elements, also where they meet."""

    first: DirtyRows
    second: DirtyRows


def row_set(numbers: Any, length: int) -> RowSet:
    """The rows that an argument names, filled up by repeating the first."""
    first = lax.index_in_dim(numbers, 0, keepdims=False)
    counts = (numbers != first) | (lax.iota(np.int32, numbers.shape[0]) == 0)
    return RowSet(numbers, length, counts)


# --- what a set is for each argument --------------------------------------------------------------


def as_argument(of: RowSet) -> RowSet:
    """The set, for each of whose rows it will be known what is made of it; it as it is if it has
    more than one, or the axis too many.
    """
    if of.size > 1 or of.length > MAX_LISTED:
        return of
    each = np.arange(of.length, dtype=np.int32)
    return dataclasses.replace(of, listed=Listed(of, each[:, None]))


def _from_list(listed: Listed, length: int) -> RowSet:
    numbers = lax.squeeze(taken(listed.numbers, 0, listed.argument), (0,))
    return RowSet(numbers, length, numbers < length, True, FromList(), listed=listed)


def _beside(sets: Sequence[RowSet], join: Callable[..., np.ndarray] = np.hstack) -> Listed | None:
    """The slots of some sets, for each argument, side by side, or as they are to be joined; None
    where that is not known.
    """
    lists = [each.listed for each in sets if each.listed is not None]
    if len(lists) < len(sets) or len({id(each.argument) for each in lists}) > 1:
        return None
    return Listed(lists[0].argument, join([each.numbers for each in lists]))


def _union_of_lists(sets: Sequence[RowSet]) -> Listed | None:
    """All rows of some sets, each once, for each argument; None where that is not known."""
    listed = _beside(sets)
    if listed is None:
        return None
    length = sets[0].length
    numbers = np.sort(listed.numbers, axis=1)
    is_repeated = numbers[:, 1:] == numbers[:, :-1]
    numbers[:, 1:][is_repeated] = length
    numbers = np.sort(numbers, axis=1)
    width = max(int(np.max(np.sum(numbers < length, axis=1))), 1)
    return Listed(listed.argument, np.ascontiguousarray(numbers[:, :width]))


def listed_members(of: RowSet, ids: np.ndarray) -> Listed | None:
    """Which rows of a look-up read rows of a set, these being the ids of all its rows: for each
    argument; None where that is not known.
    """
    if of.listed is None:
        return None
    argument, numbers = of.listed
    by_id = np.argsort(ids, kind="stable").astype(np.int32)
    # The number that stands for no row is the id of none.
    counts = np.append(np.bincount(ids, minlength=of.length)[: of.length], 0)
    starts = np.cumsum(counts) - counts
    reading = counts[numbers]
    total = np.sum(reading, axis=1)
    width = max(int(np.max(total, initial=0)), 1)
    if len(numbers) * width > MAX_LISTED:
        return None
    # The found rows of all arguments in one line: their places in `by_id`.
    before = np.cumsum(reading.ravel()) - reading.ravel()
    from_id = np.repeat(starts[numbers].ravel() - before, reading.ravel())
    found = np.full((len(numbers), width), ids.size, np.int32)
    found[np.arange(width) < total[:, None]] = by_id[np.arange(total.sum()) + from_id]
    return Listed(argument, found)


# --- sets that are made of others -----------------------------------------------------------------


class RowSets:
    """The sets of one trace: what is made of the same ones in the same way is one set."""

    def __init__(self) -> None:
        self._made: dict[Hashable, RowSet] = {}

    def _once(self, key: Hashable, make: Callable[[], RowSet]) -> RowSet:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def interval(self, low: int, high: int, length: int) -> RowSet:
        """The rows low <= n < high, all of them dirty."""
        return self._once(("interval", low, high, length), lambda: interval(low, high, length))

    def moved(self, of: RowSet, run: Run, length: int) -> RowSet:
        """Where a run of rows takes those of a set, on an axis of another length."""
        if of.ends is not None:
            return self.interval(*(run.places(of.ends) or (0, 0)), length)
        return self._once(("moved", of, run[1:], length), lambda: _moved(of, run, length))

    def reading(self, of: RowSet, window: Window, length: int) -> RowSet:
        """The rows of a result that read some rows by a window: blocks, none of them spare."""
        if of.ends is not None:
            return self.interval(*reading_ends(of.ends, window, length), length)
        key = ("reading", of, window.numbers, length)
        found = self._once(key, lambda: _reading(of, window, length))
        if window.numbers[:4] == (1, 1, 0, 1) and not of.has_spare:
            # Each row becomes so many, which come from it alone.
            back = (window.spread, window.spread, 0, 1, 1, 1)
            self._made.setdefault(("read", found, window.numbers, of.length), of)
            self._made.setdefault(("reading", found, back, of.length), of)
        return found

    def read(self, of: RowSet, window: Window, length: int) -> RowSet:
        """The rows of an operand that blocks of a result read by a window."""
        if of.ends is not None:
            return self.interval(*_read_ends(of.ends, window, length), length)
        key = ("read", of, window.numbers, length)
        return self._once(key, lambda: _read(of, window, length))

    def from_list(self, listed: Listed, length: int) -> RowSet:
        """The set that a list has for its argument."""
        numbers = listed.numbers
        key = ("listed", id(listed.argument), length, numbers.shape, numbers.tobytes())
        return self._once(key, lambda: _from_list(listed, length))

    def side_by_side(self, sets: Sequence[RowSet]) -> RowSet | None:
        """Sets without a row in common, as one; slot by slot where they are images of one set. Of
        intervals the smallest that has all; None if some set is none.
        """
        if any(each.ends is not None for each in sets):
            return self._hull([each for each in sets if each.size] or sets)
        return self._once(("beside", tuple(sets)), lambda: _side_by_side(sets))

    def union(
        self, sets: Sequence[RowSet], are_apart: Callable[[RowSet, RowSet], bool] = lambda *_: False
    ) -> RowSet | None:
        """All rows of some sets of one axis; None if these are too many, or of axes of different
        length. `are_apart`: whether it is known that two of them have no row in common.
        """
        if any(each.ends is not None for each in sets):
            return self._hull(sets)
        parts = tuple(dict.fromkeys(part for each in sets for part in each.parts))
        for each in sets:
            if len(each.parts) == len(parts):
                return each
        if len({part.length for part in parts}) > 1:
            return None
        size = sum(part.size for part in parts)
        listed = _union_of_lists(parts)
        if listed is not None and listed.numbers.shape[1] < size:
            return self.from_list(listed, sets[0].length)
        by_slots = is_by_slots(parts)
        pairs = itertools.combinations(parts, 2)
        all_apart = not by_slots and all(are_apart(*pair) for pair in pairs)
        if not (by_slots or all_apart) and size > MAX_COMPARED:
            return None
        made = lambda: _union(parts, all_apart=all_apart)
        return self._once(("union", frozenset(parts)), made)

    def _hull(self, sets: Sequence[RowSet]) -> RowSet | None:
        """The smallest interval that has some others; None if some set is none."""
        ends = ends_of_all(each.ends for each in sets)
        are_intervals = all(each.ends is not None for each in sets)
        if ends is None or not are_intervals or len({each.length for each in sets}) > 1:
            return None
        return self.interval(*ends, sets[0].length)


# --- moves and windows ----------------------------------------------------------------------------


def ends_of(within: int, length: int) -> tuple[int, int]:
    """The first and the last but one of so many rows at the end of an axis; below 0, its begin."""
    return (length - within, length) if within > 0 else (0, -within)


def ends_of_all(intervals: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The ends of the smallest interval that has some others; None if there is none."""
    known = [ends for ends in intervals if ends is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _places(numbers: Any, run: Run) -> tuple[Any, Any]:
    """Where a run takes some rows, and which it takes at all."""
    _, out, first, num, out_step, step = map(int, run)  # NumPy's would make 64 bits of 32
    place = numbers - first if step > 0 else first - numbers
    is_there = (place >= 0) & (place < num * abs(step))
    if abs(step) > 1:
        is_there &= place % abs(step) == 0
        place //= abs(step)
    return place * out_step + out, is_there


def _moved(of: RowSet, run: Run, length: int) -> RowSet:
    found, is_there = _places(of.numbers, run)
    listed = None
    if of.listed is not None:
        places, is_known = _places(of.listed.numbers, run)
        known = np.where(is_known, places, length).astype(np.int32)
        listed = Listed(of.listed.argument, known)
    return RowSet(
        lax.select(is_there, found, lax.full_like(found, length)),
        length,
        of.counts & is_there,
        of.has_spare or run.num < of.length,
        _image(of, run),
        of.halvings + (abs(run.step) > 1),
        listed,
    )


def _image(of: RowSet, run: Run) -> Image | Plain:
    """How a set that was moved came to be: an image of what that is an image of, if it is one."""
    if run.out_step != 1 or not run.num:
        return Plain()
    last = run.first + run.step * (run.num - 1)
    modulus = abs(run.step)
    step = run.step // modulus
    shift = run.out - step * (run.first // modulus)
    low = min(run.first, last)
    high = max(run.first, last) + 1
    before = of.origin
    if not isinstance(before, Image) or modulus > 1:
        return Image(of, step, shift, low, high, modulus, run.first % modulus)
    modulus = before.modulus
    ends = sorted(before.step * (end - before.shift) for end in (low, high - 1))
    return Image(
        before.of,
        step * before.step,
        step * before.shift + shift,
        max(before.low, modulus * ends[0]),
        min(before.high, modulus * (ends[1] + 1)),
        modulus,
        before.residue,
    )


def interval(low: int, high: int, length: int) -> RowSet:
    """The rows low <= n < high."""
    size = max(high - low, 0)
    numbers = lax.iota(np.int32, size) + int(low)
    starts = lax.full((1,), low, np.int32)
    origin = Blocks(starts, ends=(low, high))
    return RowSet(numbers, length, lax.full((size,), True), origin=origin)


def blocks(firsts: Any, width: int, length: int, aligned: int = 1) -> RowSet:
    """Blocks of as many rows, moved to where the axis has them all: below 0 is 0."""
    starts = lax.clamp(np.int32(0), firsts, np.int32(length - width))
    shape = (starts.shape[0], width)
    places = lax.expand_dims(starts, (1,)) + lax.broadcasted_iota(np.int32, shape, 1)
    numbers = lax.reshape(places, (starts.shape[0] * width,))
    counts = lax.full_like(numbers, True, dtype=bool)
    if shape[0] > 1:  # a row counts in the first block that has it
        places = lax.expand_dims(numbers, (1,)) - lax.expand_dims(starts, (0,))
        slot = lambda axis: lax.broadcasted_iota(np.int32, places.shape, axis)
        is_earlier = slot(1) < lax.div(slot(0), np.int32(width))
        known = (places >= 0) & (places < width) & is_earlier
        counts = ~lax.reduce_or(known, (1,))
    return RowSet(numbers, length, counts, origin=Blocks(starts, aligned))


def _reading(of: RowSet, window: Window, length: int) -> RowSet:
    """Row i, at `size` places from i * spread on, is read by row j where one of these is among
    j * stride - low + (0, dilation, ..., reach).
    """
    places = (of.width - 1) * window.spread + window.size
    is_aligned = not window.low and not of.aligned * window.spread % window.stride
    if is_aligned and window.reach < window.stride:
        firsts = lax.div(of.firsts * window.spread, np.int32(window.stride))
        width = (places - 1) // window.stride + 1
        is_multiple = window.laid is not None and not window.spread % window.stride
        aligned = window.spread // window.stride if is_multiple else 1
        return blocks(firsts, min(width, length), length, aligned)
    first = of.firsts * window.spread + window.low - window.reach
    firsts = lax.div(first + window.stride - 1, np.int32(window.stride))
    width = (places - 1 + window.reach) // window.stride + 1
    return blocks(firsts, min(width, length), length)


def reading_ends(ends: tuple[int, int], window: Window, length: int) -> tuple[int, int]:
    """The same of an interval."""
    low = -((window.reach - window.low - ends[0] * window.spread) // window.stride)
    last = (ends[1] - 1) * window.spread + window.size - 1 + window.low
    return max(low, 0), min(last // window.stride + 1, length)


def _read_ends(ends: tuple[int, int], window: Window, length: int) -> tuple[int, int]:
    low = (ends[0] * window.stride - window.low) // window.spread
    last = (ends[1] - 1) * window.stride - window.low + window.reach
    return max(low, 0), min(last // window.spread + 1, length)


def _read(of: RowSet, window: Window, length: int) -> RowSet:
    first, width = window_of_block(of, window)
    firsts = lax.div(first, np.int32(window.spread))
    is_aligned = not window.low and not of.aligned * window.stride % window.spread
    width = (width - 1) // window.spread + 1 + (not is_aligned)
    is_divided = window.laid is not None and window.spread == 1
    return blocks(firsts, min(width, length), length, window.stride if is_divided else 1)


def window_of_block(of: RowSet, window: Window) -> tuple[Any, int]:
    """The first place that each block of a result reads, and how many it reads."""
    firsts = lax.clamp(np.int32(0), of.firsts, np.int32(of.length - of.width))
    return firsts * window.stride - window.low, (of.width - 1) * window.stride + window.reach + 1


# --- sets that meet -------------------------------------------------------------------------------


def _side_by_side(sets: Sequence[RowSet]) -> RowSet:
    numbers = [each.numbers for each in sets]
    counts = [each.counts for each in sets]
    images = _images(sets)
    if is_by_slots(sets):
        of = images[0].of
        numbers, counts = by_slots(sets, numbers), by_slots(sets, counts)
        has_spare = of.has_spare or sum(len(image.rows) for image in images) < of.length
        listed = _beside(sets, functools.partial(functools.reduce, np.minimum))
    else:
        numbers, counts = lax.concatenate(numbers, 0), lax.concatenate(counts, 0)
        has_spare = any(each.has_spare for each in sets)
        listed = _beside(sets)
    halvings = max(each.halvings for each in sets)
    length = sets[0].length
    return RowSet(numbers, length, counts, has_spare, halvings=halvings, listed=listed)


def _images(sets: Sequence[RowSet]) -> list[Image]:
    return [each.origin for each in sets if isinstance(each.origin, Image)]


def is_by_slots(sets: Sequence[RowSet]) -> bool:
    """Whether sets are images of one set, of which each row is in one of them at most."""
    images = _images(sets)
    if len(images) < len(sets) or any(image.of is not images[0].of for image in images):
        return False
    return all(a.is_apart(b) for a, b in itertools.combinations(images, 2))


def by_slots(sets: Sequence[RowSet], values: Sequence[Any], axis: int = 0) -> Any:
    """Slot by slot, the value of the set that has a row there; those of the first where none has."""
    found = values[0]
    for each, value in zip(sets[1:], values[1:], strict=True):
        is_row = lax.broadcast_in_dim(each.is_row, jnp.shape(value), (axis,))
        found = lax.select(is_row, value, found)
    return found


def _union(parts: tuple[RowSet, ...], *, all_apart: bool) -> RowSet:
    """All rows of some sets. Images of one set without a row in common, as of x[0::2] and x[1::2],
    have as many slots as that, in which two rows may have become one.
    """
    found = _side_by_side(parts)
    by_slots = is_by_slots(parts)
    is_kept = by_slots and found.halvings >= MAX_HALVINGS
    counts = found.counts
    if not all_apart:  # a row counts in the first slot that has its number and counts
        same = equal_numbers(found.numbers, found.numbers)
        counts &= _is_first(same & lax.expand_dims(counts, (0,)))
    return dataclasses.replace(
        found,
        counts=counts,
        origin=Union(parts, is_kept),
        halvings=0 if is_kept else found.halvings,
        listed=found.listed if by_slots else None,
    )


def in_no_row(of: RowSet) -> Any:
    """Which rows of the axis a set has not, shape (length,)."""
    same = equal_numbers(lax.iota(np.int32, of.length), of.numbers)
    return ~lax.reduce_or(same, (1,))


# --- numbers --------------------------------------------------------------------------------------


def grouped(numbers: Any, length: int) -> tuple[RowSet, Any]:
    """The set of the rows that some numbers name, slot by slot, and which slots name the same."""
    same = equal_numbers(numbers, numbers)
    counts = (numbers < length) & _is_first(same)
    return RowSet(numbers, length, counts, has_spare=True), same


def named_rows(numbers: Any, length: int, origin: Origin = Plain()) -> RowSet:
    """The rows that some numbers name, `length` none, slot by slot."""
    return RowSet(numbers, length, numbers < length, True, origin)


def ascending(numbers: Any, length: int) -> tuple[RowSet, Any]:
    """The same, each row in one slot, spare ones last, and the slot of each number: of many numbers,
    which are sorted and searched for, where few are compared with each other (`grouped`).
    """
    count = numbers.shape[0]
    if count <= 1:
        return named_rows(numbers, length, Ascending()), jnp.zeros(count, numbers.dtype)
    # Slots are searched for: XLA on a processor sorts numbers with their places ten times slower.
    ordered = jnp.sort(numbers)
    is_new = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]])
    slots = jnp.cumsum(is_new, dtype=numbers.dtype)
    found = jnp.full(count, length, numbers.dtype).at[slots].set(ordered)
    return named_rows(found, length, Ascending()), jnp.searchsorted(found, numbers)


def ids_read(xp: Any, indices: Any, length: int, *, clips: bool, wraps: bool = False) -> Any:
    """Which row each index reads, by NumPy or `jax.numpy`; `length`: none. Negative ones count from
    the end if it `wraps`.
    """
    dtype = np.dtype(np.int32 if length < np.iinfo(np.int32).max else np.int64)
    ids = indices.reshape(-1)
    ids = ids.astype(dtype) if ids.dtype.itemsize < dtype.itemsize else ids
    if wraps and ids.dtype.kind == "i":
        ids = xp.where(ids < 0, ids + length, ids)
    if clips:
        return xp.clip(ids, 0, length - 1).astype(dtype)
    return xp.where((ids < 0) | (ids >= length), length, ids).astype(dtype)


def equal_numbers(a: Any, b: Any) -> Any:
    """Which numbers of one set are which of another, shape (size of a, size of b)."""
    return lax.expand_dims(a, (1,)) == lax.expand_dims(b, (0,))


def _is_first(same: Any) -> Any:
    """Of each slot, whether no earlier one is the same."""
    slot = lambda axis: lax.broadcasted_iota(np.int32, same.shape, axis)
    return ~lax.reduce_or((slot(1) < slot(0)) & same, (1,))


# --- rows of values -------------------------------------------------------------------------------


def taken(value: Any, axis: int, of: RowSet) -> Any:
    """Some rows of a value; any one for those that are none."""
    if of.ends is not None:
        return lax.slice_in_dim(value, *of.ends, axis=axis)
    most = MAX_UNROLLED if isinstance(of.origin, Blocks) else 1
    if 0 < of.num_blocks <= most:
        sizes = with_item(value.shape, axis, of.width)
        starts = [_start(of, k, axis, value.ndim) for k in range(of.num_blocks)]
        return lax.concatenate([_block(value, start, sizes) for start in starts], axis)
    others = tuple(d for d in range(value.ndim) if d != axis)
    sizes = with_item(value.shape, axis, 1)
    dimensions = lax.GatherDimensionNumbers(others, (axis,), (axis,))
    rows = lax.gather(value, lax.expand_dims(of.numbers, (1,)), dimensions, sizes, mode="clip")
    return by_one_thread(rows, value, of)


def by_one_thread(rows: Any, value: Any, of: RowSet) -> Any:
    """Rows that were gathered from a value, few of many, without waking another thread.

    XLA's cost of a gather on CPUs is that of the value as a whole, so that of 50 numbers out of a
    million each half gets a thread: ten times what reading them takes. Where the result is written
    into something larger, of which more than one value is made, it is not divided.
    """
    # Indices may have been gathered in the same loop, from as many as the axis has rows.
    num_bytes = max(value.size * value.dtype.itemsize, of.length * np.dtype(np.int32).itemsize)
    is_divided = num_bytes >= MIN_DIVIDED_BYTES and jax.default_backend() == "cpu"
    if not is_divided or not 0 < rows.size <= MAX_UNDIVIDED or _jax.is_key_dtype(rows.dtype):
        return rows
    # Zero, which XLA must not know: else it writes nothing.
    place = lax.min(lax.index_in_dim(of.numbers, 0, keepdims=False), np.int32(0))
    room = jnp.zeros((2, *rows.shape), rows.dtype)
    start = (place, *[np.int32(0)] * rows.ndim)
    written = lax.dynamic_update_slice(room, rows[None], start, allow_negative_indices=False)
    return lax.index_in_dim(written, 0, keepdims=False)


def masked(value: Any, axis: int, mask: Any, fill: Any = 0) -> Any:
    """Zero, or another number, where the mask of an axis is false."""
    mask = lax.broadcast_in_dim(mask, jnp.shape(value), (axis,))
    return lax.select(mask, value, lax.full_like(value, fill))


def with_rows(old: Any, rows: DirtyRows) -> Any:
    """A value with new rows."""
    of = rows.of
    # A slot that stands for no row would read what those before it have written.
    if of.num_blocks > (1 if of.has_spare else MAX_UNROLLED) or (of.has_spare and of.width > 1):
        others = tuple(d for d in range(old.ndim) if d != rows.axis)
        dimensions = lax.ScatterDimensionNumbers(others, (rows.axis,), (rows.axis,))
        places = lax.expand_dims(of.numbers, (1,))
        return lax.scatter(old, places, rows.new, dimensions, mode="drop")
    for k in range(of.num_blocks):
        row = lax.slice_in_dim(rows.new, k * of.width, (k + 1) * of.width, axis=rows.axis)
        start = _start(of, k, rows.axis, old.ndim)
        if of.has_spare:  # what stands for no row leaves the last one as it is
            row = lax.select(start[rows.axis] < of.length, row, _block(old, start, row.shape))
        old = lax.dynamic_update_slice(old, row, start, allow_negative_indices=False)
    return old


def overlaid(value: Any, axis: int, of: RowSet, rows: DirtyRows) -> Any:
    """Rows of a set, of the baseline, with those that are dirty in their places."""
    place, is_dirty = _found(of, rows.of)
    slots = RowSet(place, rows.of.size, of.counts, has_spare=True)
    is_dirty = lax.broadcast_in_dim(is_dirty, value.shape, (axis,))
    return lax.select(is_dirty, taken(rows.new, axis, slots), value)


def _found(of: RowSet, within: RowSet) -> tuple[Any, Any]:
    """The slots of the rows of a set in another, and whether they are there."""
    if isinstance(within.origin, Ascending):
        place = jnp.minimum(jnp.searchsorted(within.numbers, of.numbers), within.size - 1)
        return place, within.numbers[place] == of.numbers
    same = equal_numbers(of.numbers, within.numbers) & lax.expand_dims(within.is_row, (0,))
    return lax.argmax(same.astype(np.int32), 1, np.int32), lax.reduce_or(same, (1,))


def _start(of: RowSet, k: int, axis: int, rank: int) -> list[Any]:
    """Where the k-th block begins, along each axis."""
    number = lax.index_in_dim(of.firsts, k, keepdims=False)
    return [number if d == axis else np.int32(0) for d in range(rank)]


def _block(value: Any, start: Sequence[Any], sizes: Sequence[int]) -> Any:
    return lax.dynamic_slice(value, start, sizes, allow_negative_indices=False)
