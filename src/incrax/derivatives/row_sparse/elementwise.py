"""Elementwise equations and sums on structured values: f(base with rows) = f(base) with f(rows).

In: an equation and its inputs. Out: its output. A base that is a constant is computed here and now, so that zeros stay
known; a base that is an array is computed by an equation that XLA drops where nothing reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.row_sparse.context import BecomesDense, CarryRead, Context
from incrax.derivatives.row_sparse.values import (
    Patched,
    Summed,
    Swept,
    Uniform,
    Value,
    added,
    all_equal,
    coalesced,
    dense_base,
    has_rows,
    is_sparse,
    is_structured,
    joined,
    num_stored,
    rows_at,
    spread,
)
from incrax.primitives.table import algebra_of, entry_of


def is_sum(eqn: Equation) -> bool:
    """Whether an equation adds its operands, or one less the other."""
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum"


def _is_difference(eqn: Equation) -> bool:
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum" and algebra.is_negative(1)


def apply(eqn: Equation, values: Sequence[Any], **params: Any) -> Any:
    """The output of an equation of one output, with other inputs and some other parameters."""
    changed = eqn.replace(params={**eqn.params, **params}) if params else eqn
    return _jax.apply(changed, values)[0]


def folded(eqn: Equation, values: Sequence[Any]) -> np.ndarray:
    """The same on constants, here and now."""
    with jax.ensure_compile_time_eval():
        return np.asarray(apply(eqn, [jnp.asarray(value) for value in values]))


def elementwise(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """The rule of all elementwise primitives."""
    aval = eqn.outvars[0].aval
    values = [_widened(value, aval.shape) for value in values]
    if is_sum(eqn) and all(map(is_sparse, values)) and any(map(has_rows, values)):
        total = _sum(eqn, values, context)
        if total is not None:
            return [total]
    for value in values:
        if _carry(value) is not None:
            raise CarryRead(_carry(value))
    values = [coalesced(value) for value in values]
    patched = [value for value in values if isinstance(value, Patched)]
    if not patched:
        return [_uniform(eqn, values)]
    sets = list({id(value.numbers): value.numbers for value in patched}.values())
    if len(sets) > 1:
        context.check(sum(numbers.shape[0] for numbers in sets), aval)
    numbers = joined(sets, aval.shape[0])
    rows = apply(eqn, [x if _is_scalar(x) else rows_at(x, numbers) for x in values])
    return [Patched(_base(eqn, values, context), numbers, rows, aval.shape, _addend(eqn, values))]


def _widened(value: Value, shape: tuple[int, ...]) -> Value:
    """A structured value in the output's shape: axes of one element are spread by the equation itself."""
    if not is_structured(value) or value.shape == shape:
        return value
    if isinstance(value, Uniform):
        return Uniform(value.value if np.ndim(value.value) == 0 else spread(value.value, shape[1:]), shape)
    if value.shape[0] != shape[0] or (isinstance(value, Patched) and isinstance(value.base, Swept)):
        raise BecomesDense("operands of other shapes are spread")
    wide = replace(value, rows=spread(value.rows, (value.rows.shape[0], *shape[1:])), shape=shape)
    return wide if isinstance(wide, Summed) else replace(wide, base=_widened(wide.base, shape), addend=None)


def _is_scalar(value: Any) -> bool:
    return not is_structured(value) and not isinstance(value, Swept) and np.ndim(value) == 0


def _as_base(value: Value) -> Any:
    """The base of a value; a number stays a number."""
    if isinstance(value, Patched):
        return value.base
    return value if isinstance(value, Uniform) or _is_scalar(value) else Swept(value)


# --- sums of rows -------------------------------------------------------------------------------------------------


def _sum(eqn: Equation, values: Sequence[Value], context: Context) -> Value | None:
    """Rows of all terms one after the other; None where they have the same numbers, as any elementwise equation."""
    if len({id(value.numbers) for value in values if isinstance(value, Patched)}) == 1 and all(
        isinstance(value, Patched) for value in values
    ):
        return None
    carries = [value.carry for value in values if isinstance(value, Summed) and value.carry is not None]
    if carries and (len(carries) > 1 or (_is_difference(eqn) and carries[0] is not _carry(values[0]))):
        raise CarryRead(carries[0])
    context.check(sum(map(num_stored, values)), eqn.outvars[0].aval)
    terms = list(values)
    if _is_difference(eqn) and has_rows(terms[1]):
        terms[1] = Summed(terms[1].numbers, -terms[1].rows, terms[1].shape)
    return added(terms)


def _addend(eqn: Equation, values: Sequence[Value]) -> Any | None:
    """The rows that a sum of rows and an array adds to the array."""
    if not is_sum(eqn) or sum(map(has_rows, values)) != 1:
        return None
    number = 0 if has_rows(values[0]) else 1
    rows, is_array = values[number], not is_structured(values[1 - number]) and not _is_scalar(values[1 - number])
    if not rows.is_sparse or not is_array:
        return None
    return -rows.rows if number and _is_difference(eqn) else rows.rows


def _carry(value: Value) -> Any:
    return value.carry if isinstance(value, Summed) else None


# --- bases --------------------------------------------------------------------------------------------------------


def _uniform(eqn: Equation, values: Sequence[Value]) -> Uniform:
    """The output where all inputs have equal rows."""
    if any(not _is_scalar(x) and not isinstance(x, Uniform) for x in values):
        raise BecomesDense("an operand is an array")
    shape = eqn.outvars[0].aval.shape
    inner = [x.value if isinstance(x, Uniform) else x for x in values]
    if all(_is_known(x) for x in inner):
        return Uniform(folded(eqn, inner), shape)
    if any(np.ndim(x) for x in inner):
        inner = [spread(x.value, shape[1:]) if isinstance(x, Uniform) else x for x in values]
    return Uniform(apply(eqn, inner), shape)


def _is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)) and np.ndim(value) == 0


def _base(eqn: Equation, values: Sequence[Value], context: Context) -> Uniform | Swept:
    """The output's base: a constant, one of the inputs as it is, or the equation on all rows."""
    bases = [_as_base(value) for value in values]
    unchanged = _unchanged(eqn, bases, is_strict=context.is_strict)
    if unchanged is not None and _shape_of(unchanged) == eqn.outvars[0].aval.shape:
        return unchanged
    if not any(isinstance(base, Swept) for base in bases):
        return _uniform(eqn, bases)
    arrays = [dense_base(base) if isinstance(base, (Uniform, Swept)) else base for base in bases]
    return context.swept(eqn, apply(eqn, arrays), bases)


def _shape_of(base: Uniform | Swept) -> tuple[int, ...]:
    return base.shape if isinstance(base, Uniform) else np.shape(base.value)


def _unchanged(eqn: Equation, bases: Sequence[Any], *, is_strict: bool) -> Uniform | Swept | None:
    """The base that an equation passes on, as x + 0 does x; None where it computes something.

    0 * x and 0 / x are 0 for finite x (other than 0 for /). That is assumed, unless strict, of all but constants; and
    always true of integer products.
    """
    shape, algebra = eqn.outvars[0].aval.shape, algebra_of(eqn)
    form = "" if algebra is None else algebra.form
    zeros = [_constant(base) is not None and bool(_constant(base) == 0) for base in bases]
    is_known = all(_constant(base) is not None for base in bases)
    name = eqn.primitive.name
    if entry_of(eqn).is_identity or (name == "convert_element_type" and _keeps_dtype(eqn)):
        return bases[0]
    if name == "select_n":
        return _selected(bases)
    if is_known:
        return None
    if form == "sum" and zeros[1] and not _is_scalar(bases[0]):
        return bases[0]
    if form == "sum" and not _is_difference(eqn) and zeros[0] and not _is_scalar(bases[1]):
        return bases[1]
    is_exact = not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    if (form == "product" and any(zeros) and (is_exact or not is_strict) and not _is_infinite(bases)) or (
        form == "quotient" and zeros[0] and not is_exact and not is_strict
    ):
        return Uniform(np.zeros((), eqn.outvars[0].aval.dtype), shape)
    return None


def _constant(base: Any) -> Any | None:
    """The constant that a base is, if it is one."""
    value = base.value if isinstance(base, (Uniform, Swept)) else base
    return value if _is_known(value) else None


def _is_infinite(bases: Sequence[Any]) -> bool:
    """Whether a constant is not finite: 0 times it is no zero."""
    constants = [_constant(base) for base in bases]
    return any(c is not None and not np.isfinite(np.asarray(c, np.complex128)) for c in constants)


def _keeps_dtype(eqn: Equation) -> bool:
    return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype


def _selected(bases: Sequence[Any]) -> Uniform | Swept | None:
    """What is selected from bases by a constant, or from bases that are all the same."""
    which, *cases = bases
    if any(_is_scalar(case) for case in cases):
        return None
    known = _constant(which)
    if known is not None:
        return cases[int(known)]
    return cases[0] if all_equal([case.value for case in cases]) else None
