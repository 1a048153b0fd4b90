"""Primitives that read or write at indices: gathers, scatters, slices at a start that is computed.

Where the indices are known, each element's place is; else all elements along the axes that they
index are read, and the batch and whole windows keep their places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import (
    LINEAR,
    NOTHING,
    OVERWRITES,
    PUT,
    WINDOW,
    WRITTEN,
    Algebra,
    Axis,
    EquationWork,
    Evaluations,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    along,
    counted,
    each,
    element_numbers,
    no_work,
    operand_numbers,
    rank_of,
    shape_of,
    with_item,
)
from incrax.primitives.reductions import of_numbers

LOOKED_UP = Kind(WINDOW.mixes, is_final=True)
INDICES = Kind("reads some of the rows by their place", is_final=True)
WRITTEN_OVER = Kind("writes rows over each other")
SCATTERED = {
    kind: WRITTEN_OVER._replace(reduction=kind, is_final=True)
    for kind in ("sum", "prod", "min", "max")
}

# --- slices at a start ----------------------------------------------------------------------------


def _starts(eqn: Equation, first: int, sizes: Sequence[int], view: View) -> list[slice] | None:
    """The part that is read or written, clamped as XLA does; None where its start is unknown."""
    starts = [view.value(atom) for atom in eqn.invars[first:]]
    lengths = shape_of(eqn.invars[0])
    clamped = [
        min(max(int(start), 0), length - size)
        for start, length, size in zip(starts, lengths, sizes, strict=True)
        if start is not None
    ]
    if len(clamped) < len(lengths):
        return None
    return [slice(start, start + size) for start, size in zip(clamped, sizes, strict=True)]


def _dynamic_slice(eqn: Equation, view: View) -> list[Reads]:
    lengths = shape_of(eqn.invars[0])
    sizes = eqn.params["slice_sizes"]
    cut = [d for d, size in enumerate(sizes) if size != lengths[d]]
    part = _starts(eqn, 1, sizes, view)
    moved = None if part is None else lambda: element_numbers(lengths)[tuple(part)]
    return [Reads([along(len(sizes), cut, WINDOW), *(Read(()) for _ in eqn.invars[1:])], moved)]


def _dynamic_update_slice(eqn: Equation, view: View) -> list[Reads]:
    """Each element is the old one, or a new one along the axes that are cut."""
    lengths = shape_of(eqn.invars[0])
    sizes = shape_of(eqn.invars[1])
    cut = [d for d, size in enumerate(sizes) if size != lengths[d]]
    old = along(len(sizes), cut, WRITTEN)
    new = tuple(Axis(d, OVERWRITES if d in cut else PUT) for d in range(len(sizes)))
    part = _starts(eqn, 2, sizes, view)

    def moved() -> np.ndarray:
        numbers, written, *_ = operand_numbers(eqn)
        numbers[tuple(part or ())] = written
        return numbers

    operands = [old, Read(new), *(Read(()) for _ in eqn.invars[2:])]
    return [Reads(operands, None if part is None else moved)]


# --- gathers and scatters -------------------------------------------------------------------------


class Windows(NamedTuple):
    """Windows of an array at indices: a gather reads them, a scatter writes them."""

    shape: tuple[int, ...]  # of the array
    sizes: tuple[int, ...]  # of a window in it
    collapsed: tuple[int, ...]  # axes that a window lacks
    indexed: tuple[int, ...]  # axes that the indices number
    batching: tuple[int, ...]  # axes of the array
    indices_batching: tuple[int, ...]  # those of the indices
    offsets: tuple[int, ...]  # axes of the windows, in what is read or written
    batch: tuple[int, ...]  # the other axes of that
    is_dropping: bool  # a window that is not all inside counts as none

    @property
    def window_axes(self) -> list[int]:
        """The array's axes that a window has, in the order of `offsets`."""
        return [
            d for d in range(len(self.shape)) if d not in self.collapsed and d not in self.batching
        ]

    @property
    def entry_axis(self) -> int | None:
        """The axis of which each window is one entry, all of it; None if there is none.

        A window as wide as the array starts at 0, wherever it is asked for, if it is clipped.
        """
        if self.batching or (len(self.indexed) > 1 and self.is_dropping):
            return None
        is_entry = lambda axis: self.sizes == with_item(self.shape, axis, 1)
        return next(filter(is_entry, self.indexed), None)

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The number of the element at each place of each window; -1 where a window is dropped."""
        batch = indices.shape[:-1]
        rank = len(self.shape)
        starts = np.zeros((rank, *batch), int)
        starts[list(self.indexed)] = np.moveaxis(indices, -1, 0)
        starts[list(self.batching)] = np.indices(batch)[list(self.indices_batching)]
        last = np.subtract(self.shape, self.sizes).reshape(-1, *(1,) * len(batch))
        is_inside = ((starts >= 0) & (starts <= last)).all(0)
        # Not `np.ravel_multi_index`, which refuses arrays without elements.
        strides = np.array([math.prod(self.shape[d + 1 :]) for d in range(rank)], int)
        first = np.tensordot(strides, np.clip(starts, 0, last), 1)
        within = np.tensordot(strides, np.indices(self.sizes), 1)
        within = within.reshape([self.sizes[d] for d in self.window_axes])
        numbers = np.array(np.add.outer(first, within))
        if self.is_dropping:
            numbers[~is_inside] = -1
        return np.transpose(numbers, np.argsort([*self.batch, *self.offsets]))

    def place_of(self, axis: int) -> int | None:
        """The axis of what is read or written along which windows are whole, or a batch, of an axis
        of the array.
        """
        if axis in self.batching:
            return self.batch[self.indices_batching[self.batching.index(axis)]]
        is_whole = self.sizes[axis] == self.shape[axis] and axis not in self.indexed
        if axis not in self.window_axes or not is_whole:
            return None
        return self.offsets[self.window_axes.index(axis)]


def windows_of(eqn: Equation) -> Windows:
    """The windows of a gather or a scatter."""
    numbers = eqn.params["dimension_numbers"]
    shape = shape_of(eqn.invars[0])
    mode = eqn.params["mode"]
    if eqn.primitive.name == "gather":
        moved = eqn.outvars[0]
        indices_batching = numbers.start_indices_batching_dims
        collapsed = numbers.collapsed_slice_dims
        indexed = numbers.start_index_map
        offsets = numbers.offset_dims
        is_dropping = mode == GatherScatterMode.FILL_OR_DROP
    else:
        moved = eqn.invars[2]
        indices_batching = numbers.scatter_indices_batching_dims
        collapsed = numbers.inserted_window_dims
        offsets = numbers.update_window_dims
        indexed = numbers.scatter_dims_to_operand_dims
        is_dropping = mode != GatherScatterMode.CLIP
    batching = tuple(numbers.operand_batching_dims)
    lengths = iter([shape_of(moved)[d] for d in offsets])
    return Windows(
        shape,
        tuple(1 if d in collapsed or d in batching else next(lengths) for d in range(len(shape))),
        tuple(collapsed),
        tuple(indexed),
        batching,
        tuple(indices_batching),
        tuple(offsets),
        tuple(d for d in range(rank_of(moved)) if d not in offsets),
        is_dropping,
    )


def _gather(eqn: Equation, view: View) -> list[Reads]:
    windows = windows_of(eqn)
    places = enumerate(map(windows.place_of, range(len(windows.shape))))
    axes = [Axis(-1 - d, LOOKED_UP) if place is None else Axis(place) for d, place in places]
    where = tuple(Axis(d) for d in windows.batch)
    indices = Read((*where, Axis(-1 - len(axes), INDICES)))
    known = view.value(eqn.invars[1])
    moved = None if known is None else lambda: windows.numbers(known)
    return [Reads([Read(tuple(axes)), indices], moved)]


def _scatter(kind: str) -> Any:
    """Updates by rows into something without rows are a reduction; windows of all rows, or a batch,
    are row-wise.
    """

    def index(eqn: Equation, view: View) -> list[Reads]:
        windows = windows_of(eqn)
        old, indices, new = _scattered(eqn, windows, kind)
        view.check(math.prod(windows.shape))
        known = view.value(eqn.invars[1])
        if known is not None:
            written = lambda: _written(windows.numbers(known).ravel())
            new = new._replace(pairs=written)
            # `x.at[i].apply(f)`, which reads what it replaces, is a scatter, too.
            if eqn.primitive.name == "scatter" and not _jax.sub_bodies(eqn):
                old = old._replace(pairs=lambda: _all_but(written()[0], windows.shape))
        return [Reads([old, indices, new])]

    return index


def _scattered(eqn: Equation, windows: Windows, kind: str) -> tuple[Read, Read, Read]:
    """How the operand, the indices and the updates are read, axis by axis."""
    scattered = of_numbers(SCATTERED.get(kind, WRITTEN_OVER), eqn.invars[0])
    rank = len(windows.shape)
    places = {place: d for d in range(rank) if (place := windows.place_of(d)) is not None}
    old = along(rank, set(range(rank)) - set(places.values()), WRITTEN)
    new = []
    rank = rank_of(eqn.invars[2])
    for axis in range(rank):
        other = Axis(-1 - axis, scattered if axis in windows.batch else OVERWRITES)
        new.append(Axis(places[axis], PUT) if axis in places else other)
    batch = [new[d] for d in windows.batch]
    batch = [axis if axis.out >= 0 else Axis(axis.out, WRITTEN_OVER) for axis in batch]
    return old, Read((*batch, Axis(-1 - rank, INDICES))), Read(tuple(new))


def _written(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which elements are written by which updates, of those that are not dropped."""
    return targets[targets >= 0], np.flatnonzero(targets >= 0)


def _all_but(written: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    kept = np.setdiff1d(element_numbers(shape), written)
    return kept, kept


# --- work -----------------------------------------------------------------------------------------


def _per_update(complex_factor: float) -> Any:
    """One operation per update."""
    return lambda eqn: counted(eqn, _jax.aval_size(eqn.invars[2].aval), complex_factor)


def _scatter_by(eqn: Equation) -> EquationWork | Evaluations:
    """A function of each element that is updated, or nothing but moves."""
    bodies = _jax.sub_bodies(eqn)
    return Evaluations(bodies[0], _jax.aval_size(eqn.invars[2].aval)) if bodies else NOTHING


# --- entries --------------------------------------------------------------------------------------


def _linear_where_nothing_is_filled_in(eqn: Equation) -> Algebra | None:
    """Or zero or NaN, of which any multiple is the same."""
    fill = eqn.params["fill_value"]
    return LINEAR if fill is None or fill == 0 or fill != fill else None


_SCATTER = Primitive(index=_scatter(""), work=_per_update(2.0), puts_together=True)
_SUM = replace(
    _SCATTER,
    index=_scatter("sum"),
    algebra=Algebra("joined", (1, 0, 1)),
    is_unfused=True,
    additions=8.0,
)

FAMILY: Family = {
    "dynamic_slice": Primitive(index=_dynamic_slice, work=no_work, algebra=LINEAR),
    "dynamic_update_slice": Primitive(
        index=_dynamic_update_slice,
        work=no_work,
        algebra=Algebra("joined", (1, 1, 0)),
        puts_together=True,
        is_unfused=True,
    ),
    "gather": Primitive(
        index=_gather,
        work=no_work,
        algebra=_linear_where_nothing_is_filled_in,
        is_unfused=True,
        additions=25.0,
    ),
    "scatter": replace(_SCATTER, work=_scatter_by, is_unfused=True),
    **each("scatter-add scatter_add", _SUM),
    **each("scatter-sub scatter_sub", _SCATTER),
    **each(
        "scatter-mul scatter_mul", replace(_SCATTER, index=_scatter("prod"), work=_per_update(6.0))
    ),
    **each("scatter-min scatter_min", replace(_SCATTER, index=_scatter("min"))),
    **each("scatter-max scatter_max", replace(_SCATTER, index=_scatter("max"))),
    "addupdate": Primitive(work=lambda eqn: counted(eqn, _jax.aval_size(eqn.invars[1].aval), 2.0)),
    **each("get swap select_and_gather", Primitive(work=no_work)),
}
