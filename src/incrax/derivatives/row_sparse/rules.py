"""What an equation makes of values that are held as rows.

In: an equation and its inputs. Out: its output. What an equation does to the axis of rows stands in
the table of primitives. Where each row is treated by itself, it is evaluated on the touched rows,
and on the base: f(base with rows) = f(base) with f(rows). A base that is a constant is computed
here and now, so that zeros stay known; one that is an array by an equation that XLA drops where
nothing reads it. Reductions over rows read the touched ones. What has a rule of its own reads or
writes rows by their place, or makes rows of arrays: windows, slices, broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.row_sparse.rows import (
    canonical,
    distinct,
    found_at,
    number_dtype,
    over_rows,
)
from incrax.derivatives.row_sparse.values import (
    BecomesDense,
    CarryRead,
    Context,
    Patched,
    Summed,
    Swept,
    Uniform,
    Value,
    added,
    coalesced,
    dense,
    has_rows,
    is_known,
    is_sparse,
    is_structured,
    joined,
    num_stored,
    overlaid,
    row_flags,
    rows_at,
    spread,
)
from incrax.engine.program.constants import numpy_value
from incrax.primitives.entry import NOTHING_KNOWN, Axis, Kind
from incrax.primitives.indexing import windows_of
from incrax.primitives.row_axis import Reduction, Verdict, row_verdict
from incrax.primitives.table import algebra_of, entry_of


def evaluated(eqn: Equation, values: Sequence[Value], context: Context) -> Value:
    """The output of an equation of which some inputs are structured, or that makes rows of
    arrays.
    """
    name = eqn.primitive.name
    if not any(map(is_structured, values)):
        return MAKERS[name](eqn, values, context)
    if is_sum(eqn) and all(map(is_sparse, values)) and any(map(has_rows, values)):
        total = _sum(eqn, values, context)
        if total is not None:
            return total
    values = [coalesced(value) for value in values]
    axes, verdict = _rows_of(eqn, values)
    values = [
        dense(x) if isinstance(x, Uniform) and d != 0 else x
        for x, d in zip(values, axes, strict=True)
    ]
    if isinstance(verdict, Kind):
        if name not in BY_PLACE:
            raise BecomesDense(verdict.mixes)
        return BY_PLACE[name](eqn, values, context)
    if any(has_rows(x) and d != 0 for x, d in zip(values, axes, strict=True)):
        raise BecomesDense("rows become columns")
    if verdict is None:
        return _row_by_row(eqn, values, axes, context)
    return _reduced(eqn, values, axes, verdict, context)


def _rows_of(eqn: Equation, values: Sequence[Value]) -> tuple[list[int | None], Verdict]:
    """The axis of each operand that goes where rows go, and what becomes of rows; raises where
    nothing is known.
    """
    rule = entry_of(eqn).index
    found = None if rule is None or len(eqn.outvars) != 1 else rule(eqn, NOTHING_KNOWN)
    if found is None:
        raise BecomesDense(f"there is no rule for `{eqn.primitive.name}`")
    reads: list[tuple[Axis, ...]] = [read.axes if read else () for read in found[0].operands]
    held = [n for n, value in enumerate(values) if has_rows(value) and reads[n]]
    held = held or [n for n, value in enumerate(values) if isinstance(value, Uniform) and reads[n]]
    if not held:
        raise BecomesDense("it holds no rows")
    place = reads[held[0]][0].out
    count = values[held[0]].shape[0]
    axes: list[int | None] = []
    for value, read in zip(values, reads, strict=False):
        there = [
            d for d, axis in enumerate(read) if axis.out == place and np.shape(value)[d] == count
        ]
        axes.append(there[0] if there else None)
    verdict = row_verdict(eqn, axes, [place if place >= 0 else None])
    if verdict is None and place:
        raise BecomesDense("rows become columns")
    if verdict is None and eqn.outvars[0].aval.shape[0] != count:
        raise BecomesDense("rows are repeated or moved")
    return axes, verdict


# --- each row by itself ---------------------------------------------------------------------------


SIZES = {"broadcast_in_dim": "shape", "reshape": "new_sizes", "slice": "limit_indices"}
SIZES |= {"gather": "slice_sizes", "dynamic_slice": "slice_sizes"}
"""Parameters whose first entry is the number of rows."""


def apply(eqn: Equation, values: Sequence[Any], **params: Any) -> Any:
    """The output of an equation of one output, with other inputs and some other parameters."""
    changed = eqn.replace(params={**eqn.params, **params}) if params else eqn
    return _jax.apply(changed, values)[0]


def _of_rows(eqn: Equation, count: int) -> Equation:
    """The equation for another number of rows."""
    name = SIZES.get(eqn.primitive.name)
    if name is None:
        return eqn
    return eqn.replace(params={**eqn.params, name: (count, *eqn.params[name][1:])})


def folded(eqn: Equation, values: Sequence[Any]) -> np.ndarray:
    """The output on constants, here and now."""
    found = numpy_value(eqn, values)
    if found is not None:
        return found
    with jax.ensure_compile_time_eval():
        return np.asarray(apply(eqn, list(map(jnp.asarray, values))))


def _row_by_row(
    eqn: Equation, values: Sequence[Value], axes: Sequence[int | None], context: Context
) -> Value:
    aval = eqn.outvars[0].aval
    bases = [_base_of(value, axis) for value, axis in zip(values, axes, strict=True)]
    patched = [value for value in values if isinstance(value, Patched)]
    if not patched:
        if any(isinstance(base, Swept) for base in bases):
            raise BecomesDense("an operand is an array")
        return _uniform(eqn, bases)
    sets = list({id(value.numbers): value.numbers for value in patched}.values())
    if len(sets) > 1:
        context.check(sum(numbers.shape[0] for numbers in sets), aval)
    numbers = joined(sets, aval.shape[0])
    given = [x if d is None else rows_at(x, numbers, d) for x, d in zip(values, axes, strict=True)]
    rows = apply(_of_rows(eqn, numbers.shape[0]), given)
    return Patched(
        _base(eqn, bases, context), numbers, rows, aval.shape, _addend(eqn, values, axes)
    )


def _base_of(value: Value, axis: int | None) -> Any:
    """The base of a value; what has no rows stays what it is."""
    if isinstance(value, Patched):
        return value.base
    return value if axis is None or isinstance(value, Uniform) else Swept(value)


def _addend(eqn: Equation, values: Sequence[Value], axes: Sequence[int | None]) -> Any | None:
    """The rows that a sum of rows and an array adds to the array."""
    if not is_sum(eqn) or sum(map(has_rows, values)) != 1:
        return None
    number = 0 if has_rows(values[0]) else 1
    rows = values[number]
    other = values[1 - number]
    is_array = not is_structured(other) and axes[1 - number] is not None
    if (
        not is_sparse(rows)
        or not is_array
        or {rows.shape, np.shape(other)} != {eqn.outvars[0].aval.shape}
    ):
        return None
    return -rows.rows if number and _is_difference(eqn) else rows.rows


# --- bases ----------------------------------------------------------------------------------------


MAX_FOLDED = 2**16
"""Elements of a row that is computed while tracing."""


def _base(eqn: Equation, bases: Sequence[Any], context: Context) -> Uniform | Swept:
    """The output's base: a constant, one of the inputs as it is, or the equation on all rows."""
    unchanged = _unchanged(eqn, bases, is_strict=context.is_strict)
    if isinstance(unchanged, (Uniform, Swept)) and unchanged.shape == eqn.outvars[0].aval.shape:
        return unchanged
    if not any(isinstance(base, Swept) for base in bases):
        return _uniform(eqn, bases)
    arrays = [dense(base) for base in bases]
    return context.swept(eqn, apply(eqn, arrays), bases)


def _uniform(eqn: Equation, bases: Sequence[Any]) -> Uniform:
    """The output where all rows are alike: of numbers a number, else of one row of each."""
    shape = eqn.outvars[0].aval.shape
    inner = [base.value if isinstance(base, Uniform) else base for base in bases]
    are_known = all(map(is_known, inner))
    if entry_of(eqn).is_elementwise and not any(map(np.ndim, inner)):
        return Uniform(folded(eqn, inner) if are_known else apply(eqn, inner), shape)
    of_one = _of_rows(eqn, 1)
    sizes = [(1, *x.shape[1:]) if isinstance(x, Uniform) else () for x in bases]
    if not are_known or max(map(math.prod, sizes)) > MAX_FOLDED:
        rows = [spread(x.value, size) if size else x for x, size in zip(bases, sizes, strict=True)]
        return Uniform(apply(of_one, rows)[0], shape)
    row = folded(of_one, [np.broadcast_to(x, size) for x, size in zip(inner, sizes, strict=True)])
    is_one = row.size > 0 and row.tobytes() == np.full_like(row, row.flat[0]).tobytes()
    return Uniform(np.asarray(row.flat[0]) if is_one else jnp.asarray(row)[0], shape)


def _unchanged(eqn: Equation, bases: Sequence[Any], *, is_strict: bool) -> Any:
    """The base that an equation passes on, as x + 0 does x; None where it computes something.

    0 * x and 0 / x are 0 for finite x (other than 0 for /). That is assumed, unless strict, of all
    but constants; and always true of integer products.
    """
    aval = eqn.outvars[0].aval
    algebra = algebra_of(eqn)
    form = "" if algebra is None else algebra.form
    name = eqn.primitive.name
    if entry_of(eqn).is_identity or (
        name == "convert_element_type" and eqn.invars[0].aval.dtype == aval.dtype
    ):
        return bases[0]
    constants = [_constant(base) for base in bases]
    if name == "select_n":
        return _selected(constants[0], bases[1:])
    zeros = [constant is not None and bool(constant == 0) for constant in constants]
    if all(constant is not None for constant in constants):
        return None
    if form == "sum" and zeros[1]:
        return bases[0]
    if form == "sum" and zeros[0] and not _is_difference(eqn):
        return bases[1]
    linear = {
        "linear": [0],
        "joined": [n for n in range(len(bases)) if algebra and algebra.sign(n)],
    }.get(form, [])
    fills = name == "gather" and windows_of(eqn).is_dropping and eqn.params["fill_value"] != 0
    if linear and all(zeros[n] for n in linear) and not fills:
        return Uniform(np.zeros((), aval.dtype), aval.shape)
    is_exact = not jnp.issubdtype(aval.dtype, jnp.inexact)
    is_infinite = any(
        c is not None and not np.isfinite(np.asarray(c, np.complex128)) for c in constants
    )
    is_zero_product = (
        form == "product" and any(zeros) and (is_exact or not is_strict) and not is_infinite
    )
    is_zero_quotient = form == "quotient" and zeros[0] and not is_exact and not is_strict
    return (
        Uniform(np.zeros((), aval.dtype), aval.shape)
        if is_zero_product or is_zero_quotient
        else None
    )


def _constant(base: Any) -> Any | None:
    """The constant that a base is, if it is one."""
    value = base.value if isinstance(base, (Uniform, Swept)) else base
    return value if is_known(value) else None


def _selected(which: Any, cases: Sequence[Any]) -> Any:
    """What is selected from bases by a constant, or from bases that are all the same."""
    if not all(isinstance(case, (Uniform, Swept)) for case in cases):
        return None
    if which is not None:
        return cases[int(which)]
    values = [case.value for case in cases]
    are_same = all(value is values[0] for value in values)
    are_equal = (
        all(map(is_known, values))
        and len({(value.dtype, value.tobytes()) for value in values}) == 1
    )
    return cases[0] if are_same or are_equal else None


# --- sums of rows ---------------------------------------------------------------------------------


def is_sum(eqn: Equation) -> bool:
    """Whether an equation adds its operands, or one less the other."""
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum"


def _is_difference(eqn: Equation) -> bool:
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum" and algebra.is_negative(1)


def _sum(eqn: Equation, values: Sequence[Value], context: Context) -> Value | None:
    """Rows of all terms one after the other; None where they have the same numbers, as any
    elementwise equation.
    """
    aval = eqn.outvars[0].aval
    carries = [
        n for n, value in enumerate(values) if isinstance(value, Summed) and value.carry is not None
    ]
    are_alike = all(value.shape == aval.shape for value in values)
    if carries and (len(carries) > 1 or not are_alike or (_is_difference(eqn) and carries[0] != 0)):
        raise CarryRead(values[carries[0]].carry)
    are_patched = all(isinstance(value, Patched) for value in values)
    if not are_alike or (are_patched and len({id(value.numbers) for value in values}) == 1):
        return None
    context.check(sum(map(num_stored, values)), aval)
    terms = list(values)
    if _is_difference(eqn) and has_rows(terms[1]):
        terms[1] = Summed(terms[1].numbers, -terms[1].rows, terms[1].shape)
    return added(terms)


# --- reductions over rows -------------------------------------------------------------------------


def _reduced(
    eqn: Equation,
    values: Sequence[Value],
    axes: Sequence[int | None],
    found: Reduction,
    context: Context,
) -> Any:
    """Of the rows stored; a sum where all others are zero, an extreme with one of the others, if
    there are any.
    """
    if found.start is not None or found.kind not in ("sum", "max", "min", "and", "or"):
        raise BecomesDense(
            "only the updates are rows" if found.start is not None else "its rows are multiplied"
        )
    if found.kind != "sum":
        return _extreme(eqn, values[0])
    if context.is_strict and len(values) > 1:
        raise BecomesDense('it is multiplied by an array, which nonfinite="dense" keeps exact')
    sparse = next(
        (value for value in values if isinstance(value, Patched) and is_sparse(value)), None
    )
    if sparse is None:
        raise BecomesDense("the sum is over rows that are not zero")
    rows = []
    for value, axis in zip(values, axes, strict=True):
        row = rows_at(value, sparse.numbers, axis or 0)
        flags = jax.lax.expand_dims(row_flags(sparse), [d for d in range(row.ndim) if d != axis])
        is_safe = value is not sparse and not jnp.issubdtype(row.dtype, jnp.inexact)
        rows.append(row if is_safe else jnp.where(flags, row, jnp.zeros((), row.dtype)))
    return apply(eqn, rows)


def _extreme(eqn: Equation, operand: Value) -> Any:
    """In the place of spare slots, and once more, stands a row that counts: the base's, or the
    first one stored.
    """
    base = operand.base if isinstance(operand, Patched) else operand
    if not isinstance(base, Uniform):
        raise BecomesDense("all rows of an array are reduced")
    other = spread(base.value, (1, *base.shape[1:]))
    if not isinstance(operand, Patched) or not num_stored(operand):
        return apply(eqn, [other])
    flags = row_flags(operand)
    other = jnp.where(jnp.sum(flags) < operand.shape[0], other, operand.rows[:1])
    rows = jnp.where(over_rows(flags, operand.rows.ndim), operand.rows, other)
    return apply(eqn, [jnp.concatenate([rows, other])])


# --- windows --------------------------------------------------------------------------------------


class RowWindows(NamedTuple):
    """Where windows of rows start: `starts` of shape (count,), canonical; `width` rows each; the
    column of indices.
    """

    starts: Any
    width: int
    num_rows: int
    column: int

    @property
    def num_covered(self) -> int:
        """How many rows all windows cover, overlaps and dropped ones included."""
        return self.starts.shape[0] * self.width

    @property
    def are_there(self) -> Any:
        """Which windows are not dropped."""
        return self.starts < self.num_rows

    def numbers(self) -> Any:
        """The rows of the windows, one after the other; of a dropped window, no rows."""
        rows = self.starts[:, None] + jnp.arange(self.width, dtype=self.starts.dtype)
        return jnp.where(self.are_there[:, None], rows, self.num_rows).reshape(-1)

    def one_by_one(self) -> Any:
        """Where they start if they lie one after the other."""
        return jnp.arange(self.starts.shape[0]) * self.width


def _windows(eqn: Equation, indices: Any) -> RowWindows:
    """Windows where JAX reads the indices: clipped so that a window fits, or dropped where it does
    not.
    """
    windows = windows_of(eqn)
    if windows.batching:
        raise BecomesDense("rows of a batch of arrays are read")
    if 0 not in windows.indexed:
        raise BecomesDense("all rows are read in part: the index is of another axis")
    column = windows.indexed.index(0)
    width = windows.sizes[0]
    num_rows = windows.shape[0]
    raw = indices[..., column].reshape(-1)
    last = num_rows - width
    if windows.is_dropping:
        inside = canonical(raw, last + 1, wraps=False)
        starts = jnp.where(inside > last, num_rows, inside).astype(number_dtype(num_rows))
    else:
        starts = _clipped(raw, last, number_dtype(num_rows))
    return RowWindows(starts, width, num_rows, column)


def _clipped(raw: Any, last: int, dtype: Any) -> Any:
    """Numbers clipped to [0, last], in a dtype that holds both."""
    raw = jnp.asarray(raw)
    if raw.dtype.itemsize < np.dtype(dtype).itemsize:
        raw = raw.astype(dtype)
    return jnp.clip(raw, 0, last).astype(dtype)


def _renumbered(indices: Any, column: int, starts: Any) -> Any:
    """The indices with other starts along axis 0."""
    wide = indices if indices.dtype.itemsize >= 4 else indices.astype(np.int32)
    return wide.at[..., column].set(starts.reshape(indices.shape[:-1]).astype(wide.dtype))


def _gather(eqn: Equation, values: Sequence[Value], context: Context) -> Any:
    """Rows of a structured array, read from where it is stored, else from its base; then the gather
    on these.
    """
    operand = _with_rows(values[0])
    indices = context.dense(values[1], eqn, "rows are indices of a gather")
    windows = _windows(eqn, indices)
    if windows.width > 1:
        context.check(windows.num_covered, eqn.invars[0].aval)
    local = jnp.where(windows.are_there, windows.one_by_one(), windows.num_covered)
    rows = rows_at(operand, windows.numbers())
    return apply(eqn, [rows, _renumbered(indices, windows.column, local)], indices_are_sorted=False)


def _scatter(eqn: Equation, values: Sequence[Value], context: Context) -> Value:
    """Rows scattered into zeros are a sum; scattered into rows, they are rows of both."""
    operand, *others = values
    if not is_structured(operand):
        raise BecomesDense("only the updates are rows")
    indices, updates = (
        context.dense(x, eqn, "rows are indices or updates of a scatter") for x in others
    )
    windows = _windows(eqn, indices)
    aval = eqn.outvars[0].aval
    context.check(windows.num_covered + num_stored(operand), aval)
    if eqn.primitive.name == "scatter-add" and is_sparse(operand):
        rows = Summed(windows.numbers(), _added_rows(eqn, indices, updates, windows), aval.shape)
        return added([operand, rows]) if has_rows(operand) else rows
    if windows.width != 1:
        raise BecomesDense("several rows at once are scattered into rows")
    # The scatter on those rows that are stored or written; what it drops it drops there too.
    base = operand.base if isinstance(operand, Patched) else operand
    sets = [windows.starts, *([operand.numbers] if isinstance(operand, Patched) else [])]
    numbers = distinct(jnp.concatenate(sets), windows.num_rows).numbers
    slots, _ = found_at(numbers, windows.starts)
    local = jnp.where(windows.are_there, slots, numbers.shape[0])
    given = [rows_at(operand, numbers), _renumbered(indices, windows.column, local), updates]
    return Patched(base, numbers, apply(eqn, given, indices_are_sorted=False), operand.shape)


def _added_rows(eqn: Equation, indices: Any, updates: Any, windows: RowWindows) -> Any:
    """What a scatter adds to the rows of its windows: the updates themselves, if they are whole
    rows.
    """
    aval = eqn.outvars[0].aval
    whole = windows_of(eqn)
    shape = (windows.num_covered, *aval.shape[1:])
    is_whole = (
        whole.collapsed == (0,) and whole.indexed == (0,) and whole.sizes[1:] == aval.shape[1:]
    )
    if is_whole and whole.offsets == tuple(range(updates.ndim - len(shape) + 1, updates.ndim)):
        return updates.reshape(shape)
    zeros = jnp.zeros(shape, aval.dtype)
    local = _renumbered(indices, windows.column, windows.one_by_one())
    return apply(eqn, [zeros, local, updates], indices_are_sorted=False)


# --- runs of rows ---------------------------------------------------------------------------------


def _with_rows(operand: Value) -> Patched:
    if not isinstance(operand, Patched):
        raise BecomesDense("it holds no rows")
    return operand


def _slice(eqn: Equation, values: Sequence[Value], context: Context) -> Any:
    """A run of rows, or every n-th."""
    operand = _with_rows(values[0])
    starts, limits, strides = (
        eqn.params[name] for name in ("start_indices", "limit_indices", "strides")
    )
    step = 1 if strides is None else strides[0]
    numbers = np.arange(starts[0], limits[0], step, dtype=number_dtype(operand.shape[0]))
    context.check(len(numbers), eqn.invars[0].aval)
    steps = None if strides is None else (1, *strides[1:])
    inner = {
        "start_indices": (0, *starts[1:]),
        "limit_indices": (len(numbers), *limits[1:]),
        "strides": steps,
    }
    return apply(eqn, [rows_at(operand, jnp.asarray(numbers))], **inner)


def _dynamic_slice(eqn: Equation, values: Sequence[Value], context: Context) -> Any:
    """A run of rows from a start that is computed."""
    operand, start, *others = values
    count = eqn.params["slice_sizes"][0]
    context.check(count, eqn.invars[0].aval)
    numbers = _run(start, count, operand.shape[0])
    return apply(
        eqn,
        [rows_at(_with_rows(operand), numbers), jnp.zeros((), jnp.asarray(start).dtype), *others],
    )


def _run(start: Any, count: int, num_rows: int) -> Any:
    first = _clipped(start, num_rows - count, number_dtype(num_rows))
    return first + jnp.arange(count, dtype=first.dtype)


def _dynamic_update_slice(eqn: Equation, values: Sequence[Value], context: Context) -> Value:
    """The transpose of a dynamic slice: a run of rows in zeros, or written over rows."""
    operand, update, start, *others = values
    if not is_structured(operand) or has_rows(update):
        raise BecomesDense("rows are written into an array")
    update = dense(update)
    shape = operand.shape
    context.check(update.shape[0] + num_stored(operand), eqn.outvars[0].aval)
    numbers = _run(start, update.shape[0], shape[0])
    zero = jnp.zeros((), jnp.asarray(start).dtype)
    written = apply(eqn, [rows_at(operand, numbers), update, zero, *others])
    if not isinstance(operand, Patched):
        return Patched(operand, numbers, written, shape)
    both = joined([operand.numbers, numbers], shape[0])
    return Patched(
        operand.base, both, overlaid(rows_at(operand, both), both, numbers, written), shape
    )


def _reshape(eqn: Equation, values: Sequence[Value], context: Context) -> Patched:
    """Rows cut into shorter ones."""
    del context
    operand = _with_rows(values[0])
    new = tuple(eqn.params["new_sizes"])
    old = operand.shape
    pieces = new[0] // old[0] if new else 0
    parts = [math.prod(old[1 : i + 1]) for i in range(1, len(old))]
    if eqn.params.get("dimensions") is not None or pieces not in parts or new[0] % old[0]:
        raise BecomesDense("rows are joined")
    if not isinstance(operand.base, Uniform) or operand.base.value.shape != ():
        raise BecomesDense("an array is flattened")
    dtype = number_dtype(new[0])
    if dtype != operand.numbers.dtype and jax.dtypes.canonicalize_dtype(np.int64) != np.dtype(
        np.int64
    ):
        raise BecomesDense("its elements are too many to be numbered in 32 bits")
    numbers = operand.numbers.astype(dtype)[:, None]
    numbers = jnp.where(
        numbers < old[0], numbers * pieces + jnp.arange(pieces, dtype=dtype), new[0]
    ).reshape(-1)
    return Patched(
        replace(operand.base, shape=new), numbers, operand.rows.reshape(-1, *new[1:]), new
    )


# --- rows of arrays -------------------------------------------------------------------------------


def _broadcast(eqn: Equation, values: Sequence[Value], context: Context) -> Uniform:
    """A number, or one row, made an array of equal rows."""
    (operand,), aval, dims = values, eqn.outvars[0].aval, tuple(eqn.params["broadcast_dimensions"])
    if not context.is_large(aval):
        raise BecomesDense("the array is small")
    if operand.shape == ():
        return Uniform(operand, aval.shape)
    if 0 in dims and operand.shape[dims.index(0)] == aval.shape[0]:
        raise BecomesDense("its rows differ")
    return Uniform(apply(_of_rows(eqn, 1), [operand])[0], aval.shape)


def _pad(eqn: Equation, values: Sequence[Value], context: Context) -> Patched:
    """The transpose of a slice: a run of rows, or every n-th row, in an array of one constant."""
    if has_rows(values[0]):
        raise BecomesDense("rows are moved")
    operand = dense(values[0])
    fill = values[1]
    aval = eqn.outvars[0].aval
    (low, high, inner), *rest = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    if not isinstance(fill, (np.ndarray, np.generic)) or fill.shape != ():
        raise BecomesDense("it is padded by no constant")
    if low < 0 or high < 0:
        raise BecomesDense("rows are cut off")
    if (low, high, inner) == (0, 0, 0):
        raise BecomesDense("all rows are read in part")
    count = operand.shape[0]
    context.check(count, aval)
    rows = apply(eqn, [operand, fill], padding_config=((0, 0, 0), *rest))
    numbers = low + (inner + 1) * jnp.arange(count, dtype=number_dtype(aval.shape[0]))
    return Patched(Uniform(np.asarray(fill), aval.shape), numbers, rows, aval.shape)


Rule = Callable[[Equation, Sequence[Value], Context], Value]
_SCATTERS = ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
BY_PLACE: dict[str, Rule] = {
    **dict.fromkeys(_SCATTERS, _scatter),
    "gather": _gather,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "reshape": _reshape,
    "pad": _pad,
}
"""Rules of what reads or writes rows by their place; they get each row once."""

MAKERS: dict[str, Rule] = {"broadcast_in_dim": _broadcast, "pad": _pad}
"""Rules that make rows of arrays."""
