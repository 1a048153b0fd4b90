"""Reading and writing windows: scatter, gather, pad, slices. A window along axis 0 is a run of rows.

Each rule splits an equation: the numbers of its rows, and the same equation on an array that holds just these rows, the
windows one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax._jax import Equation
from incrax.derivatives.row_sparse.context import BecomesDense, Context
from incrax.derivatives.row_sparse.elementwise import apply
from incrax.derivatives.row_sparse.indices import canonical, distinct, found_at, number_dtype
from incrax.derivatives.row_sparse.values import (
    Patched,
    Summed,
    Uniform,
    Value,
    added,
    coalesced,
    dense,
    has_rows,
    is_sparse,
    is_structured,
    joined,
    num_stored,
    overlaid,
    rows_at,
)


class Windows(NamedTuple):
    """Where windows start along axis 0: `starts` of shape (count,), canonical; `width` rows each."""

    starts: Any
    width: int
    num_rows: int

    @property
    def num_covered(self) -> int:
        """How many rows all windows cover, overlaps and dropped ones included."""
        return self.starts.shape[0] * self.width

    def numbers(self) -> Any:
        """The rows of the windows, one after the other; of a dropped window, no rows."""
        rows = self.starts[:, None] + jnp.arange(self.width, dtype=self.starts.dtype)
        return jnp.where(self.starts[:, None] < self.num_rows, rows, self.num_rows).reshape(-1)


def _starts(raw: Any, width: int, num_rows: int, *, clips: bool) -> Windows:
    """Start indices as JAX reads them: clipped so that a window fits, or dropped where it does not."""
    if clips:
        starts = _clipped(raw, num_rows - width, number_dtype(num_rows))
    else:
        inside = canonical(raw, num_rows - width + 1, wraps=False)
        starts = jnp.where(inside > num_rows - width, num_rows, inside).astype(number_dtype(num_rows))
    return Windows(starts, width, num_rows)


def _clipped(raw: Any, last: int, dtype: Any) -> Any:
    """Numbers clipped to [0, last], in a dtype that holds both."""
    raw = jnp.asarray(raw)
    if raw.dtype.itemsize < np.dtype(dtype).itemsize:
        raw = raw.astype(dtype)
    return jnp.clip(raw, 0, last).astype(dtype)


def _column(eqn: Equation, dims: Sequence[int], batching: Sequence[int]) -> int:
    """The column of the indices that numbers rows."""
    if batching:
        raise BecomesDense("rows of a batch of arrays are read")
    if 0 not in dims:
        raise BecomesDense("all rows are read in part: the index is of another axis")
    return tuple(dims).index(0)


def _renumbered(indices: Any, column: int, starts: Any) -> Any:
    """The indices with other starts along axis 0."""
    wide = indices if indices.dtype.itemsize >= 4 else indices.astype(np.int32)
    return wide.at[..., column].set(starts.reshape(indices.shape[:-1]).astype(wide.dtype))


def _mode(eqn: Equation) -> str:
    return getattr(eqn.params["mode"], "name", str(eqn.params["mode"]))


# --- scatter ------------------------------------------------------------------------------------------------------


def scatter(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows scattered into zeros are a sum; scattered into rows, they are rows of both."""
    operand, indices, updates = values
    if not is_structured(operand):
        raise BecomesDense("only the updates are rows")
    indices, updates = (context.dense(x, eqn, "rows are indices or updates of a scatter") for x in (indices, updates))
    numbers = eqn.params["dimension_numbers"]
    column = _column(eqn, numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims)
    aval = eqn.outvars[0].aval
    width = 1 if 0 in numbers.inserted_window_dims else updates.shape[numbers.update_window_dims[0]]
    windows = _starts(indices[..., column].reshape(-1), width, aval.shape[0], clips=_mode(eqn) == "CLIP")
    context.check(windows.num_covered + num_stored(operand), aval)
    if eqn.primitive.name == "scatter-add" and is_sparse(operand):
        rows = _window_rows(eqn, column, indices, updates, windows)
        return [_plus(operand, Summed(windows.numbers(), rows, aval.shape))]
    return [_scattered(eqn, column, coalesced(operand), indices, updates, windows)]


def _plus(operand: Value, rows: Summed) -> Summed:
    return added([operand, rows]) if has_rows(operand) else rows


def _window_rows(eqn: Equation, column: int, indices: Any, updates: Any, windows: Windows) -> Any:
    """What a scatter adds to the rows of its windows."""
    aval = eqn.outvars[0].aval
    shape, numbers = (windows.num_covered, *aval.shape[1:]), eqn.params["dimension_numbers"]
    order = tuple(range(updates.ndim - len(shape) + 1, updates.ndim))
    if (
        tuple(numbers.inserted_window_dims) == (0,)
        and tuple(numbers.scatter_dims_to_operand_dims) == (0,)
        and tuple(numbers.update_window_dims) == order
        and math.prod(updates.shape) == math.prod(shape)
    ):
        return updates.reshape(shape)
    local = jnp.arange(windows.starts.shape[0]) * windows.width
    zeros = jnp.zeros(shape, aval.dtype)
    return apply(eqn, [zeros, _renumbered(indices, column, local), updates], indices_are_sorted=False)


def _scattered(
    eqn: Equation, column: int, operand: Patched | Uniform, indices: Any, updates: Any, windows: Windows
) -> Patched:
    """The scatter on those rows that are stored or written; what it drops it drops there too."""
    if windows.width != 1:
        raise BecomesDense("several rows at once are scattered into rows")
    base = operand.base if isinstance(operand, Patched) else operand
    sets = [windows.starts, *([operand.numbers] if isinstance(operand, Patched) else [])]
    numbers = distinct(jnp.concatenate(sets), windows.num_rows).numbers
    slots, _ = found_at(numbers, windows.starts)
    local = jnp.where(windows.starts < windows.num_rows, slots, numbers.shape[0])
    rows = rows_at(operand, numbers)
    rows = apply(eqn, [rows, _renumbered(indices, column, local), updates], indices_are_sorted=False)
    return Patched(base, numbers, rows, operand.shape)


# --- gather -------------------------------------------------------------------------------------------------------


def gather(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows of a structured array, read from where it is stored, else from its base."""
    operand, indices = coalesced(values[0]), context.dense(values[1], eqn, "rows are indices of a gather")
    if not isinstance(operand, Patched):
        raise BecomesDense("it holds no rows")
    numbers = eqn.params["dimension_numbers"]
    column = _column(eqn, numbers.start_index_map, numbers.operand_batching_dims)
    width, clips = eqn.params["slice_sizes"][0], _mode(eqn) != "FILL_OR_DROP"
    windows = _starts(indices[..., column].reshape(-1), width, operand.shape[0], clips=clips)
    if width > 1:
        context.check(windows.num_covered, eqn.invars[0].aval)
    local = jnp.arange(windows.starts.shape[0]) * width
    local = jnp.where(windows.starts < windows.num_rows, local, windows.num_covered)
    rows = rows_at(operand, windows.numbers())
    return [apply(eqn, [rows, _renumbered(indices, column, local)], indices_are_sorted=False)]


# --- slices -------------------------------------------------------------------------------------------------------


def pad(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """The transpose of a slice: a run of rows, or every n-th row, in an array of one constant."""
    operand, fill = values
    config, aval = eqn.params["padding_config"], eqn.outvars[0].aval
    (low, high, inner), *rest = [tuple(map(int, c)) for c in config]
    constant = Uniform(np.asarray(fill), aval.shape) if isinstance(fill, (np.ndarray, np.generic)) else None
    if constant is None or constant.value.shape != ():
        raise BecomesDense("it is padded by no constant")
    if low < 0 or high < 0:
        raise BecomesDense("rows are cut off")
    if has_rows(operand):
        return [_padded_within(eqn, operand, fill, (low, high, inner))]
    operand = dense(operand)
    count = operand.shape[0]
    if (low, high, inner) == (0, 0, 0):
        raise BecomesDense("all rows are read in part")
    context.check(count, aval)
    rows = apply(eqn, [operand, fill], padding_config=((0, 0, 0), *rest))
    numbers = low + (inner + 1) * jnp.arange(count, dtype=number_dtype(aval.shape[0]))
    return [Patched(constant, numbers, rows, aval.shape)]


def _padded_within(eqn: Equation, operand: Value, fill: Any, along_rows: tuple[int, int, int]) -> Value:
    """Rows that grow at their ends."""
    operand = coalesced(operand)
    if along_rows != (0, 0, 0) or not is_sparse(operand) or not has_rows(operand) or fill != 0:
        raise BecomesDense("rows are moved")
    shape = eqn.outvars[0].aval.shape
    base = Uniform(operand.base.value, shape)
    return Patched(base, operand.numbers, apply(eqn, [operand.rows, fill]), shape)


def dynamic_update_slice(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """The transpose of a dynamic slice: a run of rows in zeros, or written over rows."""
    operand, update, start, *others = values
    aval = eqn.outvars[0].aval
    if not is_structured(operand) or has_rows(update):
        raise BecomesDense("rows are written into an array")
    update = dense(update)
    operand, count = coalesced(operand), update.shape[0]
    context.check(count + num_stored(operand), aval)
    first = _clipped(start, aval.shape[0] - count, number_dtype(aval.shape[0]))
    numbers = first + jnp.arange(count, dtype=first.dtype)
    zero = jnp.zeros((), jnp.asarray(start).dtype)
    written = apply(eqn, [rows_at(operand, numbers), update, zero, *others])
    if not isinstance(operand, Patched):
        return [Patched(operand, numbers, written, aval.shape)]
    both = joined([operand.numbers, numbers], aval.shape[0])
    return [Patched(operand.base, both, overlaid(rows_at(operand, both), both, numbers, written), aval.shape)]


def dynamic_slice(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A run of rows of a structured array."""
    operand, start, *others = values
    operand = coalesced(operand)
    count = eqn.params["slice_sizes"][0]
    _check_read(operand, count, eqn, context)
    first = _clipped(start, operand.shape[0] - count, number_dtype(operand.shape[0]))
    rows = rows_at(operand, first + jnp.arange(count, dtype=first.dtype))
    return [apply(eqn, [rows, jnp.zeros((), jnp.asarray(start).dtype), *others])]


def static_slice(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A run of rows, or of each row some columns."""
    operand = coalesced(values[0])
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    step = (eqn.params["strides"] or (1,))[0]
    if (starts[0], limits[0], step) == (0, operand.shape[0], 1):
        return [_sliced_within(eqn, operand)]
    numbers = np.arange(starts[0], limits[0], step, dtype=number_dtype(operand.shape[0]))
    _check_read(operand, len(numbers), eqn, context)
    rows = rows_at(operand, jnp.asarray(numbers))
    steps = None if eqn.params["strides"] is None else (1, *eqn.params["strides"][1:])
    inner = {"start_indices": (0, *starts[1:]), "limit_indices": (len(numbers), *limits[1:]), "strides": steps}
    return [apply(eqn, [rows], **inner)]


def _check_read(operand: Value, count: int, eqn: Equation, context: Context) -> None:
    if not isinstance(operand, Patched):
        raise BecomesDense("it holds no rows")
    context.check(count, eqn.invars[0].aval)


def _sliced_within(eqn: Equation, operand: Value) -> Value:
    if not isinstance(operand, Patched) or not isinstance(operand.base, Uniform) or np.ndim(operand.base.value):
        raise BecomesDense("each row is cut")
    limits = (operand.rows.shape[0], *eqn.params["limit_indices"][1:])
    shape = eqn.outvars[0].aval.shape
    rows = apply(eqn, [operand.rows], limit_indices=limits)
    return Patched(Uniform(operand.base.value, shape), operand.numbers, rows, shape)
