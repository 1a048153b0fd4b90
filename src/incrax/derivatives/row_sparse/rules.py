"""What an equation makes of values that are held as rows.

In: an equation and its inputs. Out: its output. What an equation does to the axis of rows stands in
the table of primitives. Where each row is treated by itself, it is evaluated on the touched rows,
and on the base: f(base with rows) = f(base) with f(rows). A base that is a constant is computed
here and now, so that zeros stay known; one that is an array when somebody needs it. Reductions over
rows read the touched ones. What has a rule of its own reads or writes rows by their place, or makes
rows of arrays: windows, runs of rows, broadcasts.
"""

from __future__ import annotations

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
    Context,
    TouchedRows,
    Uniform,
    Value,
    Whole,
    added,
    coalesced,
    dense,
    has_rows,
    is_known,
    is_sparse,
    is_structured,
    joined,
    num_stored,
    rows_at,
    summed_rows,
    written,
    zeros,
)
from incrax.engine.program.constants import numpy_value
from incrax.primitives.entry import NOTHING_KNOWN, Axis, Kind
from incrax.primitives.indexing import windows_of
from incrax.primitives.on_rows import Aligned, NotByRowsError, run_on_rows
from incrax.primitives.row_axis import Reduction, Verdict, row_verdict
from incrax.primitives.table import algebra_of, entry_of


def evaluated(eqn: Equation, values: Sequence[Value], context: Context) -> Value:
    """The output of an equation of which some inputs are structured, or that makes rows of
    arrays.
    """
    name = eqn.primitive.name
    if not any(map(is_structured, values)):
        return MAKERS[name](eqn, values, context)
    if is_sum_of_rows(eqn, values):
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


def apply(eqn: Equation, values: Sequence[Any], **params: Any) -> Any:
    """The output of an equation of one output, with other inputs and some other parameters."""
    changed = eqn.replace(params={**eqn.params, **params}) if params else eqn
    return _jax.apply(changed, values)[0]


# --- each row by itself ---------------------------------------------------------------------------

Axes = Sequence["int | None"]


def _row_by_row(
    eqn: Equation, values: Sequence[Value], axes: Axes, context: Context
) -> TouchedRows | Uniform:
    aval = eqn.outvars[0].aval
    held = list(filter(has_rows, values))
    bases = [value.base if isinstance(value, TouchedRows) else value for value in values]
    are_equal = all(d is None or isinstance(x, Uniform) for x, d in zip(bases, axes, strict=True))
    if not held:
        if not are_equal:
            raise BecomesDense("an operand is an array")
        return _of_equal_rows(eqn, bases, axes)
    if _is_copy(eqn):
        return values[0]
    sets = list({id(value.numbers): value.numbers for value in held}.values())
    if len(sets) > 1:
        context.check(sum(each.shape[0] for each in sets), aval)
    numbers = joined(sets, aval.shape[0])

    def rows_of(numbers: Any) -> Any:
        given = [
            x if d is None else rows_at(x, numbers, d) for x, d in zip(values, axes, strict=True)
        ]
        return _by_rows(eqn, axes, numbers.shape[0], given)

    passed = _passed_on(eqn, bases)
    if _makes_zeros(eqn, bases, is_strict=context.is_strict):
        base = zeros(aval.shape, aval.dtype)
    elif passed is not None and isinstance(bases[passed], Uniform):
        base = bases[passed]
    elif are_equal:
        base = _of_equal_rows(eqn, bases, axes)
    elif passed is not None:
        base = _written_in_place(eqn, values, passed, rows_of, context)
    else:
        base = _swept(eqn, values, rows_of, context)
    rows = base.rows_at(numbers) if isinstance(base, Whole) else rows_of(numbers)
    return TouchedRows(base, numbers, rows, aval.shape)


def _by_rows(eqn: Equation, axes: Axes, count: int, values: Sequence[Any]) -> Any:
    """The equation on so many rows."""
    try:
        return run_on_rows(eqn, Aligned((0,), tuple(axes)), count, values)[0]
    except NotByRowsError as error:
        raise BecomesDense("it cannot be evaluated on some of the rows") from error


def _of_equal_rows(eqn: Equation, bases: Sequence[Any], axes: Axes) -> Uniform:
    """The output where all rows are alike."""
    rows = [base.row if isinstance(base, Uniform) else base for base in bases]
    shape = eqn.outvars[0].aval.shape
    if not all(map(is_known, rows)):
        return Uniform(_by_rows(eqn, axes, 1, rows), shape)
    if entry_of(eqn).is_elementwise:
        return Uniform(folded(eqn, rows), shape)
    with jax.ensure_compile_time_eval():
        return Uniform(np.asarray(_by_rows(eqn, axes, 1, list(map(jnp.asarray, rows)))), shape)


def folded(eqn: Equation, values: Sequence[Any]) -> np.ndarray:
    """The output of an elementwise equation on constants, here and now."""
    found = numpy_value(eqn, values)
    if found is not None:
        return found
    with jax.ensure_compile_time_eval():
        return np.asarray(apply(eqn, list(map(jnp.asarray, values))))


RowsOf = Callable[[Any], Any]
"""Numbers -> rows of an output."""


def _written_in_place(
    eqn: Equation, values: Sequence[Value], passed: int, rows_of: RowsOf, context: Context
) -> Whole:
    """An operand with other rows; where the equation is a sum, they are added to it."""
    below = values[passed]
    changed = [value for n, value in enumerate(values) if n != passed and has_rows(value)]
    adds = is_sum(eqn) and _are_alike(eqn, values)
    is_subtracted = passed == 0 and _is_difference(eqn)

    def make() -> Any:
        array = context.dense(below, eqn, "")
        for value in changed:
            terms = -value.rows if is_subtracted else value.rows
            rows = terms if adds else rows_of(value.numbers)
            array = written(array, value.numbers, rows, adds=adds)
        return array

    if has_rows(below):
        return Whole(make, rows_of)
    # What is written is read from there: reading what is then overwritten makes XLA copy it.
    whole = Whole(make, lambda numbers: rows_at(whole.array, numbers))
    return whole


def _swept(eqn: Equation, values: Sequence[Value], rows_of: RowsOf, context: Context) -> Whole:
    """The equation on all rows: first rows are written into what is an array, then all rows change.

    XLA would copy an array of which the rows and all others are computed apart.
    """
    apart = [value for value in values if has_rows(value) and isinstance(value.base, Uniform)]

    def without_rows(value: Value) -> Any:
        is_apart = has_rows(value) and isinstance(value.base, Uniform)
        return dense(value.base) if is_apart else context.dense(value, eqn, "")

    def make() -> Any:
        array = apply(eqn, list(map(without_rows, values)))
        for value in apart:
            array = written(array, value.numbers, rows_of(value.numbers))
        return array

    by = f"`{eqn.primitive.name}` ({context.line_of(eqn)})"
    return Whole(make, rows_of, by, loses_rows=bool(apart))


# --- bases ----------------------------------------------------------------------------------------


def _constants(bases: Sequence[Any]) -> list[Any | None]:
    """The constants that bases are."""
    values = [base.row if isinstance(base, Uniform) else base for base in bases]
    return [value if is_known(value) else None for value in values]


def _is_copy(eqn: Equation) -> bool:
    is_cast = eqn.primitive.name == "convert_element_type"
    is_same = is_cast and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    return entry_of(eqn).is_identity or is_same


def _is_zero(constant: Any | None) -> bool:
    return constant is not None and not np.any(constant)


def _passed_on(eqn: Equation, bases: Sequence[Any]) -> int | None:
    """The operand whose base is that of the output, as x is of x + 0; None where something is
    computed.
    """
    constants = _constants(bases)
    passed = None
    if eqn.primitive.name == "select_n":
        passed = _selected(*constants)
    elif is_sum(eqn) and _is_zero(constants[1]):
        passed = 0
    elif is_sum(eqn) and _is_zero(constants[0]) and not _is_difference(eqn):
        passed = 1
    is_whole = passed is not None and np.shape(bases[passed]) == eqn.outvars[0].aval.shape
    return passed if is_whole else None


def _selected(which: Any | None, *cases: Any | None) -> int | None:
    """The operand that is selected by a constant, or from constants that are all the same."""
    if which is not None and np.unique(which).size == 1:
        return 1 + int(np.ravel(which)[0])
    known = [case for case in cases if case is not None]
    are_same = len(known) == len(cases) and all(np.array_equal(c, known[0]) for c in known)
    return 1 if are_same else None


def _makes_zeros(eqn: Equation, bases: Sequence[Any], *, is_strict: bool) -> bool:
    """Whether a zero makes a product or a quotient zero.

    0 * x and 0 / x are 0 for finite x (other than 0 for /). That is assumed, unless strict, of all
    but constants; and always true of integer products.
    """
    algebra = algebra_of(eqn)
    constants = _constants(bases)
    known = [np.asarray(c, np.complex128) for c in constants if c is not None]
    if algebra is None or len(known) == len(bases):
        return False
    is_exact = not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    if algebra.form == "product":
        is_finite = all(np.isfinite(constant).all() for constant in known)
        return any(map(_is_zero, constants)) and is_finite and (is_exact or not is_strict)
    return algebra.form == "quotient" and _is_zero(constants[0]) and not is_exact and not is_strict


# --- sums of rows ---------------------------------------------------------------------------------


def is_sum(eqn: Equation) -> bool:
    """Whether an equation adds its operands, or one less the other."""
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum"


def _is_difference(eqn: Equation) -> bool:
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.is_negative(1)


def _are_alike(eqn: Equation, values: Sequence[Value]) -> bool:
    """Whether nothing is spread."""
    return all(np.shape(value) == eqn.outvars[0].aval.shape for value in values)


def is_sum_of_rows(eqn: Equation, values: Sequence[Value]) -> bool:
    """Whether an equation adds values that are zero but for stored rows."""
    return is_sum(eqn) and all(map(is_sparse, values)) and any(map(has_rows, values))


def _sum(eqn: Equation, values: Sequence[Value], context: Context) -> TouchedRows | None:
    """Rows of all terms one after the other; None where they have the same numbers, as any
    elementwise equation.
    """
    aval = eqn.outvars[0].aval
    are_distinct = all(has_rows(value) and not value.repeats for value in values)
    are_together = are_distinct and len({id(value.numbers) for value in values}) == 1
    if are_together or not _are_alike(eqn, values):
        return None
    context.check(sum(map(num_stored, values)), aval)
    terms = list(values)
    if _is_difference(eqn) and has_rows(terms[1]):
        terms[1] = replace(terms[1], rows=-terms[1].rows)
    return added(terms)


# --- reductions over rows -------------------------------------------------------------------------


def _reduced(
    eqn: Equation, values: Sequence[Value], axes: Axes, found: Reduction, context: Context
) -> Any:
    """Of the rows stored; a sum where all others are zero, an extreme with one of the others, if
    there are any.
    """
    if found.start is not None or found.kind not in ("sum", "max", "min", "and", "or"):
        raise BecomesDense("it is no sum and no extreme of the rows")
    if found.kind != "sum":
        return _extreme(eqn, values[0])
    if context.is_strict and len(values) > 1:
        raise BecomesDense('it is multiplied by an array, which nonfinite="dense" keeps exact')
    sparse = next((value for value in values if has_rows(value) and is_sparse(value)), None)
    if sparse is None:
        raise BecomesDense("the sum is over rows that are not zero")
    rows = []
    for value, axis in zip(values, axes, strict=True):
        row = rows_at(value, sparse.numbers, axis or 0)
        flags = jax.lax.expand_dims(_are_rows(sparse), [d for d in range(row.ndim) if d != axis])
        rows.append(jnp.where(flags, row, jnp.zeros((), row.dtype)))
    return apply(eqn, rows)


def _are_rows(value: TouchedRows) -> Any:
    """Which stored rows are rows, and not spare."""
    return value.numbers < value.shape[0]


def _extreme(eqn: Equation, operand: Value) -> Any:
    """In the place of spare slots, and once more, stands a row that counts: the base's, or the
    first one stored.
    """
    base = operand.base if isinstance(operand, TouchedRows) else operand
    if not isinstance(base, Uniform):
        raise BecomesDense("all rows of an array are reduced")
    other = base.rows(1)
    if not num_stored(operand):
        return apply(eqn, [other])
    flags = _are_rows(operand)
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
        """Where they start if they lie one after the other; of a dropped window, outside."""
        places = jnp.arange(self.starts.shape[0]) * self.width
        return jnp.where(self.are_there, places, self.num_covered)

    def renumbered(self, indices: Any, starts: Any) -> Any:
        """The indices with other starts along axis 0."""
        wide = indices if indices.dtype.itemsize >= 4 else indices.astype(np.int32)
        new = starts.reshape(indices.shape[:-1]).astype(wide.dtype)
        return wide.at[..., self.column].set(new)


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


def _gather(eqn: Equation, values: Sequence[Value], context: Context) -> Any:
    """Rows of a structured array, read from where it is stored, else from its base; then the gather
    on these.
    """
    operand = values[0]
    if not has_rows(operand):
        raise BecomesDense("it holds no rows")
    indices = context.dense(values[1], eqn, "rows are indices of a gather")
    windows = _windows(eqn, indices)
    context.check(windows.num_covered, eqn.invars[0].aval)
    local = windows.renumbered(indices, windows.one_by_one())
    return apply(eqn, [rows_at(operand, windows.numbers()), local], indices_are_sorted=False)


def _scatter(eqn: Equation, values: Sequence[Value], context: Context) -> TouchedRows:
    """Rows scattered into zeros are a sum; scattered into rows, they are rows of both."""
    operand = values[0]
    base = _base_written_to(operand)
    indices, updates = (
        context.dense(x, eqn, "rows are indices or updates of a scatter") for x in values[1:]
    )
    windows = _windows(eqn, indices)
    aval = eqn.outvars[0].aval
    context.check(windows.num_covered + num_stored(operand), aval)
    if eqn.primitive.name == "scatter-add" and base.is_zero:
        rows = _added_rows(eqn, indices, updates, windows)
        return added([operand, summed_rows(windows.numbers(), rows, aval.shape)])
    if windows.width != 1:
        raise BecomesDense("several rows at once are scattered into rows")
    # The scatter on those rows that are stored or written; what it drops it drops there too.
    sets = [windows.starts, *([operand.numbers] if has_rows(operand) else [])]
    numbers = distinct(jnp.concatenate(sets), windows.num_rows).numbers
    slots, _ = found_at(numbers, windows.starts)
    local = windows.renumbered(indices, jnp.where(windows.are_there, slots, numbers.shape[0]))
    rows = apply(eqn, [rows_at(operand, numbers), local, updates], indices_are_sorted=False)
    return TouchedRows(base, numbers, rows, operand.shape)


def _base_written_to(operand: Value) -> Uniform:
    base = operand.base if has_rows(operand) else operand
    if not isinstance(base, Uniform):
        raise BecomesDense("rows are written into an array")
    return base


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
    local = windows.renumbered(indices, windows.one_by_one())
    return apply(eqn, [jnp.zeros(shape, aval.dtype), local, updates], indices_are_sorted=False)


# --- runs of rows, and equal rows -----------------------------------------------------------------


def _dynamic_update_slice(eqn: Equation, values: Sequence[Value], context: Context) -> TouchedRows:
    """The transpose of a dynamic slice: a run of rows in equal ones."""
    operand, update, start, *others = values
    if not isinstance(operand, Uniform) or has_rows(update):
        raise BecomesDense("rows are written into an array, or over others")
    shape = operand.shape
    count = update.shape[0]
    context.check(count, eqn.outvars[0].aval)
    first = _clipped(start, shape[0] - count, number_dtype(shape[0]))
    zero = jnp.zeros((), jnp.asarray(start).dtype)
    rows = apply(eqn, [operand.rows(count), dense(update), zero, *others])
    return TouchedRows(operand, first + jnp.arange(count, dtype=first.dtype), rows, shape)


def _pad(eqn: Equation, values: Sequence[Value], context: Context) -> TouchedRows:
    """The transpose of a slice: a run of rows, or every n-th row, in an array of one constant."""
    operand, fill = values
    aval = eqn.outvars[0].aval
    (low, high, inner), *rest = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    if has_rows(operand) or low < 0 or high < 0 or not is_known(fill):
        raise BecomesDense("rows are moved")
    if (low, high, inner) == (0, 0, 0):
        raise BecomesDense("all rows are read in part")
    count = operand.shape[0]
    context.check(count, aval)
    rows = apply(eqn, [dense(operand), fill], padding_config=((0, 0, 0), *rest))
    numbers = low + (inner + 1) * jnp.arange(count, dtype=number_dtype(aval.shape[0]))
    return TouchedRows(_equal(fill, aval), numbers, rows, aval.shape)


def _equal(number: Any, aval: Any) -> Uniform:
    return Uniform(np.full((1, *aval.shape[1:]), number, aval.dtype), aval.shape)


def _broadcast(eqn: Equation, values: Sequence[Value], context: Context) -> Uniform:
    """A number, or one row, made an array of equal rows."""
    operand = values[0]
    aval = eqn.outvars[0].aval
    dims = tuple(eqn.params["broadcast_dimensions"])
    if not context.is_large(aval):
        raise BecomesDense("the array is small")
    if 0 in dims and operand.shape[dims.index(0)] == aval.shape[0]:
        raise BecomesDense("its rows differ")
    if is_known(operand):
        return _equal(operand, aval)
    return Uniform(_by_rows(eqn, [None], 1, [operand]), aval.shape)


Rule = Callable[[Equation, Sequence[Value], Context], Value]
BY_PLACE: dict[str, Rule] = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul"), _scatter),
    "gather": _gather,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
}
"""Rules of what reads or writes rows by their place; they get each row once."""

MAKERS: dict[str, Rule] = {"broadcast_in_dim": _broadcast, "pad": _pad}
"""Rules that make rows of arrays."""
