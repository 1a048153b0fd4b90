"""What an equation makes of values that are held as rows.

In: an equation and what its inputs are. Out: its output. What an equation does to rows says the
table of primitives, and it runs on some of them as in programs for slices (`primitives.on_rows`).
Where each row is treated by itself, it is evaluated on the touched rows, and on one of the others if
these are alike; one that is a constant is computed here and now, so that zeros stay known. Rows of an
array are written into it. Reductions over rows read the touched ones. What has a rule of its own
reads or writes rows by their place, or makes rows of arrays: windows, runs of rows, broadcasts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Values
from incrax.derivatives.row_sparse.values import (
    DENSE,
    IN_PLACE,
    Context,
    TouchedRows,
    Value,
    WrittenRows,
    added,
    coalesced,
    dense,
    has_rows,
    is_by_rows,
    is_known,
    is_sparse,
    is_structured,
    is_written,
    is_zero,
    num_stored,
    rows_at,
    union,
    untouched,
    written,
)
from incrax.engine.plan.row_sets import RowSet, ids_read, masked, named_rows, taken
from incrax.engine.program.constants import numpy_value
from incrax.primitives.entry import Algebra, Kind
from incrax.primitives.indexing import windows_of
from incrax.primitives.on_rows import (
    Aligned,
    NotByRowsError,
    aligned_back,
    aligned_by,
    moved_beside,
    reduced_by,
    run_on_rows,
    runs_along,
)
from incrax.primitives.row_axis import Axes, Reduction
from incrax.primitives.table import algebra_of, entry_of

MAX_MADE = 64
"""Equations in a row by which rows of a set are made of those of arrays with other rows written."""


def evaluated(eqn: Equation, values: Values, context: Context) -> Value:
    """The output of an equation of which some inputs are held as rows, or that makes rows of arrays.

    Raises:
        NotByRowsError: it is an array.
    """
    terms = _sum(eqn, values, context)
    if terms is not None:
        return terms
    values = list(map(coalesced, values))
    name = eqn.primitive.name
    why = f"there is no rule for `{name}`"
    forms = (has_rows, is_structured, is_written)
    is_held = next((form for form in forms if any(map(form, values))), None)
    if is_held is not None:
        if len(eqn.outvars) != 1 or entry_of(eqn).index is None:
            raise NotByRowsError(why)
        axes = [0 if is_held(value) else None for value in values]
        aligned = aligned_by(eqn, axes)
        if aligned is not None:
            return _row_by_row(eqn, _along(values, aligned.operands), aligned, context)
        axes, verdict = reduced_by(eqn, axes)
        if is_held is not is_written and isinstance(verdict, Reduction):
            return _reduced(eqn, _along(values, axes), axes, verdict)
        why = verdict.mixes if isinstance(verdict, Kind) else "rows become columns"
    if name not in RULES:
        raise NotByRowsError(why)
    return RULES[name](eqn, values, context)


def _along(values: Values, axes: Axes) -> list[Value]:
    """Operands with rows along these axes; those that have none there are arrays."""
    pairs = list(zip(values, axes, strict=False))
    if any(has_rows(x) and d != 0 for x, d in pairs):
        raise NotByRowsError("rows become columns")
    return [x if d == 0 else dense(x) for x, d in pairs]


def apply(eqn: Equation, values: Values) -> Any:
    """The output of an equation of one output, of other inputs."""
    return _jax.apply(eqn, values)[0]


# --- each row by itself ---------------------------------------------------------------------------


def _row_by_row(eqn: Equation, values: Values, aligned: Aligned, context: Context) -> Value:
    """f(base with rows) = f(base) with f(rows); the base is what each row is, or an array."""
    aval = eqn.outvars[0].aval
    if aligned.outputs != (0,):
        raise NotByRowsError("rows become columns")
    if any(value.shape[0] != aval.shape[0] for value in filter(is_by_rows, values)):
        raise NotByRowsError("rows are repeated or moved")
    constants = [_constant(value) for value in values]
    passed = _passed_on(eqn, values, constants)
    row = _other_row(eqn, values, aligned, constants, passed)
    touched = list(dict.fromkeys(value.of for value in filter(has_rows, values)))
    if not touched:
        if row is None:
            return _followed(eqn, values, aligned)
        return TouchedRows(row, aval.shape)
    if len(touched) > 1:
        context.check(sum(each.size for each in touched), aval)
    of = union(touched)
    rows = _on_rows(eqn, values, aligned, of)
    if row is None:
        return _written(eqn, values, passed, of, rows, context)
    return TouchedRows(row, aval.shape, of, rows)


def _followed(eqn: Equation, values: Values, aligned: Aligned) -> WrittenRows:
    """What follows from arrays into which rows were written: those of the first."""
    held = list(filter(is_written, values))
    if not held:
        raise NotByRowsError("an operand is an array")
    array = apply(eqn, list(map(untouched, values)))
    make = functools.cache(functools.partial(_on_rows, eqn, values, aligned))
    depth = 1 + max(value.depth for value in held)
    of = held[0].of
    return WrittenRows(array, of, make(of), make if depth <= MAX_MADE else None, depth)


def _on_rows(eqn: Equation, values: Values, aligned: Aligned, of: RowSet) -> Any:
    pairs = zip(values, aligned.operands, strict=True)
    operands = [value if d is None else rows_at(value, d, of) for value, d in pairs]
    return run_on_rows(eqn, aligned, of.size, operands)[0]


def _written(
    eqn: Equation, values: Values, passed: int | None, of: RowSet, rows: Any, context: Context
) -> WrittenRows:
    """An array with other rows: an operand that has all others, in a sum with rows added; else what
    the equation makes of all rows.
    """
    held = next(filter(has_rows, values))
    form = None if passed is None else _sum_form(eqn)
    if passed is None:
        context.note(DENSE, eqn, held, f"all rows change in `{eqn.primitive.name}`")
        array = apply(eqn, list(map(untouched, values)))
    else:
        context.note(IN_PLACE, eqn, held, "rows written into an array that is there anyway")
        array = dense(values[passed])
    if form is None or passed is None:
        return WrittenRows(written(array, of, rows), of, rows)
    terms = -held.rows if form.is_negative(1 - passed) else held.rows
    array = array.at[of.numbers].add(terms, mode="drop", indices_are_sorted=True)
    # Read behind the addition: XLA would copy an argument that is read, and then overwritten.
    return WrittenRows(array, of, taken(array, 0, of))


def _constant(value: Value) -> Any | None:
    """The constant that a value is, or each row of it but for the touched ones; None where it is
    none.
    """
    found = value.row if is_structured(value) else value
    return found if is_known(found) else None


def _other_row(
    eqn: Equation, values: Values, aligned: Aligned, constants: Values, passed: int | None
) -> Any | None:
    """What each row of the output is but for touched ones; None where these are not alike."""
    if _makes_zeros(eqn, constants):
        return _filled(0, eqn.outvars[0].aval)
    if passed is not None and is_structured(values[passed]):
        return values[passed].row
    pairs = zip(values, aligned.operands, strict=True)
    if not all(d is None or is_structured(value) for value, d in pairs):
        return None
    rows = [value.row if is_structured(value) else value for value in values]
    if all(map(is_known, rows)):
        return folded(eqn, rows, aligned)
    return run_on_rows(eqn, aligned, 1, rows)[0]


NO_ROWS = Aligned((None,), ())


def folded(eqn: Equation, values: Values, aligned: Aligned = NO_ROWS) -> np.ndarray:
    """The output of an equation on constants, or one row of it, here and now."""
    found = numpy_value(eqn, values) if entry_of(eqn).is_elementwise else None
    if found is not None:
        return found
    with jax.ensure_compile_time_eval():
        return np.asarray(run_on_rows(eqn, aligned, 1, list(map(jnp.asarray, values)))[0])


# --- what is known of all other rows --------------------------------------------------------------


def _passed_on(eqn: Equation, values: Values, constants: Values) -> int | None:
    """The operand that the output is but for touched rows, as x + 0 is x; None where something is
    computed.
    """
    form = _sum_form(eqn)
    passed = None
    if eqn.primitive.name == "select_n":
        passed = _selected(*constants)
    elif form is not None:
        is_alone = lambda n: is_zero(constants[1 - n]) and not form.is_negative(n)
        passed = next(filter(is_alone, (0, 1)), None)
    is_whole = passed is not None and np.shape(values[passed]) == eqn.outvars[0].aval.shape
    return passed if is_whole else None


def _selected(which: Any | None, *cases: Any | None) -> int | None:
    """The operand that is selected by a constant, or from constants that are all the same."""
    if which is not None and np.unique(which).size == 1:
        return 1 + int(np.ravel(which)[0])
    known = [case for case in cases if case is not None]
    are_same = len(known) == len(cases) and all(np.array_equal(c, known[0]) for c in known)
    return 1 if are_same else None


def _makes_zeros(eqn: Equation, constants: Values) -> bool:
    """Whether a zero makes a product or a quotient zero.

    0 * x and 0 / x are 0 for finite x (other than 0 for /). That is assumed of all but constants.
    """
    algebra = algebra_of(eqn)
    known = [np.asarray(c, np.complex128) for c in constants if c is not None]
    if algebra is None or len(known) == len(constants):
        return False
    if algebra.form == "product":
        is_finite = all(np.isfinite(constant).all() for constant in known)
        return any(map(is_zero, constants)) and is_finite
    is_exact = not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    return algebra.form == "quotient" and is_zero(constants[0]) and not is_exact


# --- sums of rows ---------------------------------------------------------------------------------


def _sum_form(eqn: Equation) -> Algebra | None:
    """The signs of what an equation adds; None where it is no sum."""
    algebra = algebra_of(eqn)
    return algebra if algebra is not None and algebra.form == "sum" else None


def _sum(eqn: Equation, values: Values, context: Context) -> TouchedRows | None:
    """The numbers of all terms one after the other, where an equation adds values that are zero but
    for stored rows; None where it does not. With the same distinct ones, rows are added as by any.
    """
    form = _sum_form(eqn)
    if form is None or not any(map(has_rows, values)) or not all(map(is_sparse, values)):
        return None
    aval = eqn.outvars[0].aval
    is_same = all(value.of is values[0].of and not value.is_sum for value in values)
    if is_same or any(value.shape != aval.shape for value in values):
        return None
    context.check(sum(map(num_stored, values)), aval)
    is_less = [has_rows(x) and form.is_negative(n) for n, x in enumerate(values)]
    pairs = zip(is_less, values, strict=True)
    return added([replace(x, rows=-x.rows) if less else x for less, x in pairs])


# --- reductions over rows -------------------------------------------------------------------------


def _reduced(eqn: Equation, values: Values, axes: Axes, found: Reduction) -> Any:
    """Of the rows stored: a sum, where all others are zero."""
    places = [d for d in axes if d is not None]
    if len(places) < len(values) or found.kind != "sum":
        raise NotByRowsError("it is no sum of the rows")
    of = next((value.of for value in values if has_rows(value) and is_sparse(value)), None)
    if of is None:
        raise NotByRowsError("the sum is over rows that are not zero")
    pairs = zip(values, places, strict=True)
    return apply(eqn, [masked(rows_at(x, d, of), d, of.is_row) for x, d in pairs])


# --- rows by their numbers, runs of rows, and equal rows -------------------------------------------


def _scatter_add(eqn: Equation, values: Values, context: Context) -> TouchedRows:
    """The transpose of a look-up of whole rows: rows added to zeros."""
    operand, *others = values
    if not is_sparse(operand):
        raise NotByRowsError("rows are written into an array")
    windows = windows_of(eqn)
    if windows.entry_axis != 0:
        raise NotByRowsError("parts of rows are read")
    why = "rows are indices or updates of a scatter"
    indices, updates = (context.dense(x, eqn, why) for x in others)
    rows_read = indices[..., windows.indexed.index(0)]
    numbers = ids_read(jnp, rows_read, operand.shape[0], clips=not windows.is_dropping)
    context.check(numbers.size + num_stored(operand), eqn.outvars[0].aval)
    rows = jnp.moveaxis(updates, windows.batch, range(len(windows.batch)))
    rows = rows.reshape(-1, *operand.shape[1:])
    terms = replace(operand, of=named_rows(numbers, operand.shape[0]), rows=rows)
    return added([operand, terms])


def _dynamic_update_slice(eqn: Equation, values: Values, context: Context) -> TouchedRows:
    """The transpose of a dynamic slice: a run of rows in equal ones."""
    update, start, *others = values[1:]
    operand = values[0]
    if not isinstance(operand, TouchedRows) or has_rows(operand) or has_rows(update):
        raise NotByRowsError("rows are written over others")
    num_rows = operand.shape[0]
    count = np.shape(update)[0]
    context.check(count, eqn.outvars[0].aval)
    first = ids_read(jnp, jnp.asarray(start), num_rows - count + 1, clips=True)
    of = named_rows(first + jnp.arange(count, dtype=np.int32), num_rows)
    zero = jnp.zeros((), jnp.asarray(start).dtype)
    rows = apply(eqn, [rows_at(operand, 0, of), dense(update), zero, *others])
    return replace(operand, of=of, rows=rows)


def _pad(eqn: Equation, values: Values, context: Context) -> TouchedRows:
    """The transpose of a slice: a run of rows, or every n-th row, in an array of one constant."""
    operand, fill = values
    aval = eqn.outvars[0].aval
    runs = runs_along(eqn, 0)
    assert runs is not None
    ((run,),) = runs
    if has_rows(operand) or not is_known(fill):
        raise NotByRowsError("rows are moved")
    if run.num == aval.shape[0]:
        raise NotByRowsError("all rows are read in part")
    context.check(run.num, aval)
    rows = moved_beside(eqn, 0, dense(operand)[run.first : run.first + run.num], fill)
    numbers = run.out + run.out_step * jnp.arange(run.num, dtype=np.int32)
    return TouchedRows(_filled(fill, aval), aval.shape, named_rows(numbers, aval.shape[0]), rows)


def _filled(number: Any, aval: Any) -> np.ndarray:
    return np.full((1, *aval.shape[1:]), number, aval.dtype)


def _broadcast(eqn: Equation, values: Values, context: Context) -> TouchedRows:
    """A number, or one row, made an array of equal rows."""
    operand = context.dense(values[0], eqn, "its rows are repeated")
    aval = eqn.outvars[0].aval
    if not context.is_large(aval):
        raise NotByRowsError("the array is small")
    if is_known(operand):
        return TouchedRows(_filled(operand, aval), aval.shape)
    aligned = aligned_back(eqn, 0)
    if aligned is None or aligned.operands != (None,):
        raise NotByRowsError("its rows differ")
    return TouchedRows(run_on_rows(eqn, aligned, 1, [operand])[0], aval.shape)


RULES: dict[str, Callable[[Equation, Values, Context], TouchedRows]] = {
    "scatter-add": _scatter_add,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "broadcast_in_dim": _broadcast,
}
"""Rules of what writes rows by their place, or makes rows of arrays."""
