"""Look-ups of which an index stands for more, or for less, than one row, in steps that are by rows.

    x[i, j] = rows[n, j[n]],  rows = x[i],  n over all places of i and j, one after the other

In: a gather, or the scatter-add that is its transpose, and the axis of rows of what is looked up. Out:
the functions of the steps; what becomes of rows in each is told by the rules for plain look-ups, for
batches, and for axes that are divided. Of the rows x[i] those alone are made that a change reaches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from incrax._jax import Equation
from incrax.primitives.indexing import Windows, windows_of


class Steps(NamedTuple):
    """The steps of one equation."""

    windows: Windows
    axis: int
    mode: Any
    fill_value: Any

    @property
    def _others(self) -> list[int]:
        """The other axes, which all rows have whole, behind the one that numbers them."""
        return [d for d in range(len(self.windows.shape)) if d != self.axis]

    def ids(self, indices: Any) -> Any:
        """The number of the row that each index names, shape (indices, 1)."""
        place = self.windows.indexed.index(self.axis)
        return lax.reshape(lax.index_in_dim(indices, place, -1), (_count(indices), 1))

    def rows(self, operand: Any, ids: Any) -> Any:
        """The row that each index names."""
        numbers = lax.GatherDimensionNumbers(self._offsets, (self.axis,), (self.axis,))
        sizes = [1 if d == self.axis else n for d, n in enumerate(operand.shape)]
        return lax.gather(operand, ids, numbers, sizes, mode=self.mode, fill_value=self.fill_value)

    def windows_in(self, rows: Any, indices: Any) -> Any:
        """The window of each row: the result of the gather."""
        windows = self.windows
        named = [d for d in self._others if d in (*windows.indexed, *windows.batching)]
        # Along the other axes each window begins where the row does.
        limits = [windows.shape[d] if d in named else windows.sizes[d] for d in self._others]
        rows = lax.slice(rows, [0] * rows.ndim, [len(rows), *limits])
        if named:
            rows = self._named_in(rows, indices, named)
        sizes = [windows.sizes[d] for d in windows.window_axes]
        found = lax.reshape(rows, (*indices.shape[:-1], *sizes))
        return lax.transpose(found, np.argsort([*windows.batch, *windows.offsets]))

    def _named_in(self, rows: Any, indices: Any, named: list[int]) -> Any:
        """Of each row, what its index names along the other axes."""
        windows = self.windows
        columns = [lax.reshape(self._places(indices, d), (len(rows), 1)) for d in named]
        is_gone = lambda d: d in windows.collapsed or d in windows.batching
        place = {d: number for number, d in enumerate(self._others, 1)}
        left = [d for d in self._others if not is_gone(d)]
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, 1 + len(left))),
            collapsed_slice_dims=tuple(place[d] for d in self._others if is_gone(d)),
            start_index_map=tuple(place[d] for d in named),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(0,),
        )
        sizes = [1, *(windows.sizes[d] for d in self._others)]
        columns = lax.concatenate(columns, 1)
        return lax.gather(rows, columns, numbers, sizes, mode=self.mode, fill_value=self.fill_value)

    def _places(self, indices: Any, axis: int) -> Any:
        """Where along another axis the window of each index is: its place in a batch, or as it says."""
        windows = self.windows
        if axis in windows.batching:
            along = windows.indices_batching[windows.batching.index(axis)]
            return lax.broadcasted_iota(indices.dtype, indices.shape[:-1], along)
        return lax.index_in_dim(indices, windows.indexed.index(axis), -1)

    def rows_of(self, updates: Any, indices: Any) -> Any:
        """Updates as what is added to all of the row that each index names."""
        shape = [self.windows.shape[d] for d in self._others]
        rows = jax.ShapeDtypeStruct((_count(indices), *shape), updates.dtype)
        (found,) = jax.linear_transpose(lambda x: self.windows_in(x, indices), rows)(updates)
        return found

    def added(self, into: Any, ids: Any, rows: Any) -> Any:
        """The result of the scatter-add."""
        numbers = lax.ScatterDimensionNumbers(self._offsets, (self.axis,), (self.axis,))
        return lax.scatter_add(into, ids, rows, numbers, mode=self.mode)

    @property
    def _offsets(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.windows.shape)))


def steps_of(eqn: Equation, axis: int) -> Steps | None:
    """The steps of a gather, or a scatter-add, whose indices name single rows of an axis; None if
    they do not.
    """
    windows = windows_of(eqn)
    if axis not in windows.indexed or windows.sizes[axis] != 1:
        return None
    return Steps(windows, axis, eqn.params["mode"], eqn.params.get("fill_value"))


def _count(indices: Any) -> int:
    return math.prod(indices.shape[:-1])
