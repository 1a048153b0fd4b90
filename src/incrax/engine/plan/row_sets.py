"""Sets of rows of which the numbers are known when a program runs, and what becomes of them where
rows are moved, or where different ones meet.

In: numbers while JAX traces, and which rows an equation moves where. Out: other sets, rows of
values, values with rows written in. It must not know what the values are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom
from incrax.primitives.entry import Run

MAX_UNROLLED = 8
"""Rows up to which each is written by itself: XLA's scatter is a loop."""

MIN_DIVIDED_BYTES = 2**18
MAX_UNDIVIDED = 2**16
"""Bytes of a value from which on XLA may divide a gather among threads; elements of a result that is
not worth that.
"""

MAX_JOINED = 512
"""Rows of different sets that meet: each is compared with all others."""

MAX_LISTED = 2**18
"""Numbers up to which it is listed what a set is for each argument."""


class Image(NamedTuple):
    """A set whose k-th number is `step * n + shift` of the k-th number n of another, where
    `low <= n < high`; else it is none.
    """

    of: RowSet
    step: int
    shift: int
    low: int
    high: int


class Listed(NamedTuple):
    """What a set is for each row that its argument, a set of one row, may be: numbers of rows, int32
    of shape (rows of the argument's axis, size).
    """

    argument: RowSet
    numbers: np.ndarray


@dataclass(frozen=True, eq=False)
class RowSet:
    """Some rows of an axis.

    Fields: their numbers, shape (size,); how many; the axis' length; whether each counts: the
    others repeat one, or stand for none, where `length` is their number; whether there may be some
    of none; the set from which it was looked up, by which indices, and whether those out of range
    read the last row; the set that it is the image of; those that it joins; what it is for each
    argument, where that is known; whether it is read from this list.
    """

    numbers: Any
    size: int
    length: int
    counts: Any
    has_spare: bool = False
    parent: RowSet | None = None
    indices: Atom | None = None
    clips: bool = False
    image: Image | None = None
    parts: frozenset[RowSet] = frozenset()
    listed: Listed | None = None
    is_from_list: bool = False

    @property
    def is_row(self) -> Any:
        """Whether each number is one of a row."""
        return lax.lt(self.numbers, np.int32(self.length))


class DirtyRows(NamedTuple):
    """The dirty rows of a variable: their values now and at the baseline, their axis, which."""

    new: Any
    old: Any
    axis: int
    of: RowSet


def row_set(numbers: Any, capacity: int, length: int) -> RowSet:
    """The rows of an argument, which repeats the first to be as long as it is."""
    first = lax.broadcast_in_dim(lax.slice_in_dim(numbers, 0, 1), (capacity,), (0,))
    is_first = lax.eq(lax.iota(np.int32, capacity), np.int32(0))
    counts = lax.bitwise_or(lax.ne(numbers, first), is_first)
    return RowSet(numbers, capacity, length, counts)


def as_argument(of: RowSet) -> RowSet:
    """The set, for each of whose rows it will be known what is made of it; it as it is if it has
    more than one, or the axis too many.
    """
    if of.size > 1 or of.length > MAX_LISTED:
        return of
    each = np.arange(of.length, dtype=np.int32)
    return dataclasses.replace(of, listed=Listed(of, each[:, None]))


def _from_list(listed: Listed, length: int) -> RowSet:
    size = listed.numbers.shape[1]
    numbers = lax.squeeze(taken(listed.numbers, 0, listed.argument), (0,))
    counts = lax.lt(numbers, np.int32(length))
    return RowSet(numbers, size, length, counts, True, listed=listed, is_from_list=True)


def _beside(sets: Sequence[RowSet], *, by_slots: bool = False) -> Listed | None:
    """The slots of some sets, for each argument; None where that is not known. By slots: of those
    that have a row in one of the sets at most.
    """
    lists = [each.listed for each in sets if each.listed is not None]
    if len(lists) < len(sets) or len({id(each.argument) for each in lists}) > 1:
        return None
    join = functools.partial(functools.reduce, np.minimum) if by_slots else np.hstack
    return Listed(lists[0].argument, join([each.numbers for each in lists]))


def _joined(sets: Sequence[RowSet]) -> Listed | None:
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
    # The found rows of all arguments in one line: places in `by_id`, then in the list.
    before = np.cumsum(reading.ravel()) - reading.ravel()
    places = np.arange(total.sum())
    from_id = np.repeat(starts[numbers].ravel() - before, reading.ravel())
    row = np.repeat(np.arange(len(numbers)), total)
    slot = places - np.repeat(np.cumsum(total) - total, total)
    found = np.full((len(numbers), width), ids.size, np.int32)
    found[row, slot] = by_id[places + from_id]
    return Listed(argument, found)


class RowSets:
    """The sets of one trace: what is made of the same ones in the same way is one set."""

    def __init__(self) -> None:
        self._made: dict[Hashable, RowSet] = {}

    def _once(self, key: Hashable, make: Callable[[], RowSet]) -> RowSet:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def moved(self, of: RowSet, run: Run, length: int) -> RowSet:
        """Where a run of rows takes those of a set, on an axis of another length."""
        return self._once(("moved", of, run[1:], length), lambda: _moved(of, run, length))

    def source(self, of: RowSet, run: Run, length: int) -> RowSet:
        """Where the rows of a set come from, by a run of rows of an axis of another length."""
        return self.moved(of, run.reversed(), length)

    def from_list(self, listed: Listed, length: int) -> RowSet:
        """The set that a list has for its argument."""
        numbers = listed.numbers
        key = ("listed", id(listed.argument), length, numbers.shape, numbers.tobytes())
        return self._once(key, lambda: _from_list(listed, length))

    def side_by_side(self, sets: Sequence[RowSet]) -> RowSet:
        """Sets without a row in common, as one; slot by slot where they are images of one set."""
        return self._once(("beside", tuple(sets)), lambda: _side_by_side(sets))

    def union(
        self, sets: Sequence[RowSet], are_apart: Callable[[RowSet, RowSet], bool] = lambda *_: False
    ) -> RowSet | None:
        """All rows of some sets of one axis; None if these are too many, or of axes of different
        length. `are_apart`: whether it is known that two of them have no row in common.
        """
        parts = dict.fromkeys(part for each in sets for part in each.parts or (each,))
        for each in sets:
            if (each.parts or {each}) >= parts.keys():
                return each
        if len({part.length for part in parts}) > 1:
            return None
        listed = _joined(tuple(parts))
        if listed is not None and listed.numbers.shape[1] < sum(part.size for part in parts):
            return self.from_list(listed, sets[0].length)
        all_apart = all(are_apart(*pair) for pair in itertools.combinations(parts, 2))
        if not all_apart and sum(part.size for part in parts) > MAX_JOINED:
            return None
        made = lambda: _union(tuple(parts), all_apart=all_apart)
        return self._once(("union", frozenset(parts)), made)


def _moved_list(listed: Listed | None, run: Run, length: int) -> Listed | None:
    """The same as `_moved` does, of each argument."""
    if listed is None:
        return None
    place, off_step = np.divmod((listed.numbers - run.first) * np.sign(run.step), abs(run.step))
    is_there = (place >= 0) & (place < run.num) & (off_step == 0)
    numbers = np.where(is_there, place * run.out_step + run.out, length).astype(np.int32)
    return Listed(listed.argument, numbers)


def _moved(of: RowSet, run: Run, length: int) -> RowSet:
    place = lax.mul(lax.sub(of.numbers, np.int32(run.first)), np.int32(np.sign(run.step)))
    step = abs(run.step)
    is_there = lax.bitwise_and(lax.ge(place, np.int32(0)), lax.lt(place, np.int32(run.num * step)))
    if step > 1:
        is_there = lax.bitwise_and(is_there, lax.eq(lax.rem(place, np.int32(step)), np.int32(0)))
        place = lax.div(place, np.int32(step))
    found = lax.add(lax.mul(place, np.int32(run.out_step)), np.int32(run.out))
    numbers = lax.select(is_there, found, lax.full_like(found, length))
    has_spare = of.has_spare or run.num < of.length
    counts = lax.bitwise_and(of.counts, is_there)
    image = _image(of, run)
    listed = _moved_list(of.listed, run, length)
    return RowSet(numbers, of.size, length, counts, has_spare, image=image, listed=listed)


def _image(of: RowSet, run: Run) -> Image | None:
    """Of the set that a moved one is an image of already, if any."""
    if abs(run.step) != 1 or run.out_step != 1:
        return None
    last = run.first + run.step * (run.num - 1)
    step = run.step
    shift = run.out - run.step * run.first
    low = min(run.first, last)
    high = max(run.first, last) + 1
    before = of.image
    if before is None:
        return Image(of, step, shift, low, high)
    ends = sorted(before.step * (end - before.shift) for end in (low, high - 1))
    return Image(
        before.of,
        step * before.step,
        step * before.shift + shift,
        max(before.low, ends[0]),
        min(before.high, ends[1] + 1),
    )


def _side_by_side(sets: Sequence[RowSet]) -> RowSet:
    length = sets[0].length
    images = [each.image for each in sets if each.image is not None]
    if not is_by_slots(sets):
        numbers = lax.concatenate([each.numbers for each in sets], 0)
        counts = lax.concatenate([each.counts for each in sets], 0)
        size = sum(each.size for each in sets)
        has_spare = any(each.has_spare for each in sets)
        return RowSet(numbers, size, length, counts, has_spare, listed=_beside(sets))
    of = images[0].of
    covered = sum(max(image.high - image.low, 0) for image in images)
    return RowSet(
        by_slots(sets, [each.numbers for each in sets]),
        of.size,
        length,
        by_slots(sets, [each.counts for each in sets]),
        of.has_spare or covered < of.length,
        listed=_beside(sets, by_slots=True),
    )


def is_by_slots(sets: Sequence[RowSet]) -> bool:
    """Whether sets are images of one set, of which each row is in one of them at most."""
    images = sorted(
        (each.image for each in sets if each.image is not None), key=lambda image: image.low
    )
    if len(images) < len(sets) or any(image.of is not images[0].of for image in images):
        return False
    return all(a.high <= b.low for a, b in zip(images, images[1:], strict=False))


def by_slots(sets: Sequence[RowSet], values: Sequence[Any], axis: int = 0) -> Any:
    """Slot by slot, the value of the set that has a row there; those of the first where none has."""
    found = values[0]
    for each, value in zip(sets[1:], values[1:], strict=True):
        is_row = lax.broadcast_in_dim(each.is_row, jnp.shape(value), (axis,))
        found = lax.select(is_row, value, found)
    return found


def _union(parts: Sequence[RowSet], *, all_apart: bool) -> RowSet:
    numbers = lax.concatenate([part.numbers for part in parts], 0)
    counts = lax.concatenate([part.counts for part in parts], 0)
    size = numbers.shape[0]
    if not all_apart:
        # A row counts once: in the first slot that has its number and counts.
        earlier = lax.broadcast_in_dim(counts, (size, size), (1,))
        counts = lax.bitwise_and(counts, _is_first(equal_numbers(numbers, numbers), earlier))
    has_spare = any(part.has_spare for part in parts)
    return RowSet(numbers, size, parts[0].length, counts, has_spare, parts=frozenset(parts))


def grouped(numbers: Any, length: int) -> tuple[RowSet, Any]:
    """The set of the rows that some numbers name, slot by slot, and which slots name the same."""
    same = equal_numbers(numbers, numbers)
    is_row = lax.lt(numbers, np.int32(length))
    counts = lax.bitwise_and(is_row, _is_first(same, lax.full_like(same, True)))
    return RowSet(numbers, numbers.shape[0], length, counts, has_spare=True), same


def equal_numbers(a: Any, b: Any) -> Any:
    """Which numbers of one set are which of another, shape (size of a, size of b)."""
    shape = (a.shape[0], b.shape[0])
    return lax.eq(lax.broadcast_in_dim(a, shape, (0,)), lax.broadcast_in_dim(b, shape, (1,)))


def _is_first(same: Any, may_be_first: Any) -> Any:
    """Whether no earlier slot that may be is the same."""
    slot = lambda axis: lax.broadcasted_iota(np.int32, same.shape, axis)
    earlier = lax.bitwise_and(lax.lt(slot(1), slot(0)), lax.bitwise_and(same, may_be_first))
    return lax.bitwise_not(lax.reduce_or(earlier, (1,)))


# --- rows of values -------------------------------------------------------------------------------


def taken(value: Any, axis: int, of: RowSet) -> Any:
    """Some rows of a value; any one for those that are none."""
    if of.size == 1 and of.parent is None:
        sizes = [1 if d == axis else size for d, size in enumerate(value.shape)]
        start = _start(of, 0, axis, value.ndim)
        return lax.dynamic_slice(value, start, sizes, allow_negative_indices=False)
    others = tuple(d for d in range(value.ndim) if d != axis)
    sizes = tuple(1 if d == axis else size for d, size in enumerate(value.shape))
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
    if not is_divided or rows.size > MAX_UNDIVIDED or _jax.is_key_dtype(rows.dtype):
        return rows
    # Zero, which XLA must not know: else it writes nothing.
    place = lax.min(lax.squeeze(lax.slice_in_dim(of.numbers, 0, 1), (0,)), np.int32(0))
    room = jnp.zeros((2, *rows.shape), rows.dtype)
    start = (place, *[np.int32(0)] * rows.ndim)
    written = lax.dynamic_update_slice(room, rows[None], start, allow_negative_indices=False)
    return lax.squeeze(lax.slice_in_dim(written, 0, 1), (0,))


def with_rows(old: Any, rows: DirtyRows) -> Any:
    """A value with new rows."""
    of = rows.of
    if of.size > MAX_UNROLLED:
        others = tuple(d for d in range(old.ndim) if d != rows.axis)
        dimensions = lax.ScatterDimensionNumbers(others, (rows.axis,), (rows.axis,))
        places = lax.expand_dims(of.numbers, (1,))
        return lax.scatter(old, places, rows.new, dimensions, mode="drop")
    for k in range(of.size):
        row = lax.slice_in_dim(rows.new, k, k + 1, axis=rows.axis)
        start = _start(of, k, rows.axis, old.ndim)
        if of.has_spare:  # what stands for no row leaves the last one as it is
            before = lax.dynamic_slice(old, start, row.shape, allow_negative_indices=False)
            is_row = lax.lt(start[rows.axis], np.int32(of.length))
            row = lax.select(is_row, row, before)
        old = lax.dynamic_update_slice(old, row, start, allow_negative_indices=False)
    return old


def overlaid(value: Any, axis: int, of: RowSet, rows: DirtyRows) -> Any:
    """Rows of a set, of the baseline, with those that are dirty in their places."""
    shape = (of.size, rows.of.size)
    same = equal_numbers(of.numbers, rows.of.numbers)
    same = lax.bitwise_and(same, lax.broadcast_in_dim(rows.of.is_row, shape, (1,)))
    place = lax.argmax(same.astype(np.int32), 1, np.int32)
    slots = RowSet(place, of.size, rows.of.size, of.counts, has_spare=True)
    is_dirty = lax.broadcast_in_dim(lax.reduce_or(same, (1,)), value.shape, (axis,))
    return lax.select(is_dirty, taken(rows.new, axis, slots), value)


def _start(of: RowSet, k: int, axis: int, rank: int) -> list[Any]:
    """Where the k-th row begins, along each axis."""
    number = lax.squeeze(lax.slice_in_dim(of.numbers, k, k + 1), (0,))
    return [number if d == axis else np.int32(0) for d in range(rank)]
