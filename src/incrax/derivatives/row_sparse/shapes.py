"""Equations that move whole rows, reduce, or contract.

In: an equation and its inputs. Out: its outputs, structured where axis 0 stays the axis of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.row_sparse.context import BecomesDense, Context
from incrax.derivatives.row_sparse.elementwise import apply, folded
from incrax.derivatives.row_sparse.indices import number_dtype
from incrax.derivatives.row_sparse.values import (
    Patched,
    Swept,
    Uniform,
    Value,
    coalesced,
    dense,
    has_rows,
    is_row_flag,
    is_structured,
    rows_at,
    spread,
)

Rule = Callable[[Equation, Sequence[Value], Context], list[Value]]


def _patched(value: Value) -> Patched:
    """The value with each row once; raises where it holds none."""
    value = coalesced(value)
    if not isinstance(value, Patched):
        raise BecomesDense("it holds no rows")
    return value


# --- moves --------------------------------------------------------------------------------------------------------


def broadcast(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A number, or one row, made an array of equal rows; or rows made longer."""
    operand, aval = values[0], eqn.outvars[0].aval
    dims, count = eqn.params["broadcast_dimensions"], aval.shape[0] if aval.shape else 0
    if isinstance(operand, Uniform) and not operand.is_known:
        raise BecomesDense("it holds no rows")
    if is_structured(operand):
        if not dims or dims[0] != 0 or operand.shape[0] != count:
            raise BecomesDense("rows are repeated or moved")
        return [_each_row(eqn, operand, context, shape=lambda k: (k, *aval.shape[1:]))]
    if not context.is_large(aval):
        raise BecomesDense("the array is small")
    if operand.shape == ():
        return [Uniform(operand, aval.shape)]
    if 0 in dims and operand.shape[tuple(dims).index(0)] == count:
        raise BecomesDense("its rows differ")
    row = apply(eqn, [operand], shape=(1, *aval.shape[1:]))
    return [Uniform(row.reshape(aval.shape[1:]), aval.shape)]


def _each_row(
    eqn: Equation, operand: Value, context: Context, *, shape: Callable[[int], tuple[int, ...]] | None = None
) -> Value:
    """An equation that does the same to each row; `shape` gives its parameter for a number of rows."""
    out, name = eqn.outvars[0].aval.shape, "shape" if eqn.primitive.name == "broadcast_in_dim" else "new_sizes"

    def on(x: Any) -> Any:
        return apply(eqn, [x], **({} if shape is None else {name: shape(x.shape[0])}))

    if isinstance(operand, Uniform):
        return _uniform_base(operand, on, out)
    operand = _patched(operand)
    base = operand.base
    if isinstance(base, Swept):
        base = context.swept(eqn, apply(eqn, [base.value]), [base])
    else:
        base = _uniform_base(base, on, out)
    return Patched(base, operand.numbers, on(operand.rows), out)


def _uniform_base(base: Uniform, on: Callable[[Any], Any], shape: tuple[int, ...]) -> Uniform:
    """Equal rows of another shape: a number stays, a row is moved like any other."""
    if base.value.shape == ():
        return Uniform(base.value, shape)
    return Uniform(on(base.value[None])[0], shape)


def reshape(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows of another shape, or rows cut into shorter ones."""
    operand, new = values[0], tuple(eqn.params["new_sizes"])
    old = operand.shape
    if eqn.params.get("dimensions") is not None or not new:
        raise BecomesDense("rows are moved")
    if new[0] == old[0]:
        return [_each_row(eqn, operand, context, shape=lambda k: (k, *new[1:]))]
    parts = [math.prod(old[1 : i + 1]) for i in range(1, len(old))]
    if not new[0] or new[0] % old[0] or new[0] // old[0] not in parts:
        raise BecomesDense("rows are joined")
    return [_cut(eqn, _patched(operand), new[0] // old[0])]


def _cut(eqn: Equation, operand: Patched, pieces: int) -> Patched:
    """Each row as several."""
    new = tuple(eqn.params["new_sizes"])
    if not isinstance(operand.base, Uniform) or operand.base.value.shape != ():
        raise BecomesDense("an array is flattened")
    if number_dtype(new[0]) != operand.numbers.dtype and jax.dtypes.canonicalize_dtype(np.int64) != np.dtype(np.int64):
        raise BecomesDense("its elements are too many to be numbered in 32 bits")
    numbers = operand.numbers.astype(number_dtype(new[0]))
    within = jnp.arange(pieces, dtype=numbers.dtype)
    numbers = jnp.where(numbers[:, None] < operand.shape[0], numbers[:, None] * pieces + within, new[0]).reshape(-1)
    return Patched(Uniform(operand.base.value, new), numbers, operand.rows.reshape(-1, *new[1:]), new)


def transpose(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows transposed."""
    if eqn.params["permutation"][0] != 0:
        raise BecomesDense("rows become columns")
    return [_each_row(eqn, values[0], context)]


def within_rows(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """`squeeze` and `rev` of other axes than that of rows."""
    if 0 in eqn.params["dimensions"]:
        raise BecomesDense("the axis of rows is moved")
    return [_each_row(eqn, values[0], context)]


# --- reductions ---------------------------------------------------------------------------------------------------


def reduction(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Reductions of each row, or over all rows."""
    axes, operand = eqn.params["axes"], values[0]
    if not isinstance(operand, Uniform):
        operand = _patched(operand)
    if 0 not in axes:
        return [_each_reduced(eqn, operand, context)]
    operand = _patched(operand)
    if eqn.primitive.name == "reduce_sum":
        return [_total(eqn, operand)]
    return [_extreme(eqn, operand)]


def _each_reduced(eqn: Equation, operand: Value, context: Context) -> Value:
    shape = eqn.outvars[0].aval.shape
    if isinstance(operand, Uniform):
        return _row_reduced(eqn, operand, shape)
    base = operand.base
    if isinstance(base, Swept):
        base = context.swept(eqn, apply(eqn, [base.value]), [base])
    else:
        base = _row_reduced(eqn, base, shape)
    return Patched(base, operand.numbers, apply(eqn, [operand.rows]), shape)


def _row_reduced(eqn: Equation, base: Uniform, shape: tuple[int, ...]) -> Uniform:
    """The reduction of one of equal rows; constants stay constants."""
    row = (1, *base.shape[1:])
    if base.is_known and math.prod(row) <= 2**16:
        result = folded(eqn, [np.broadcast_to(base.value, row)])
        return Uniform(np.asarray(result.flat[0]), shape) if result.size else Uniform(jnp.asarray(result)[0], shape)
    return Uniform(apply(eqn, [spread(base.value, row)])[0], shape)


def _total(eqn: Equation, operand: Patched) -> Any:
    if not operand.is_sparse:
        raise BecomesDense("the sum is over rows that are not zero")
    return apply(eqn, [jnp.where(is_row_flag(operand), operand.rows, jnp.zeros((), operand.rows.dtype))])


def _extreme(eqn: Equation, operand: Patched) -> Any:
    """The extreme of the stored rows, and of the base if any row is not stored."""
    if not isinstance(operand.base, Uniform):
        raise BecomesDense("all rows of an array are reduced")
    combine, identity = _COMBINE[eqn.primitive.name], _identity(eqn.primitive.name, operand.rows.dtype)
    stored = apply(eqn, [jnp.where(is_row_flag(operand), operand.rows, identity)])
    is_any_left = jnp.sum(operand.numbers < operand.shape[0]) < operand.shape[0]
    rest = apply(eqn, [spread(operand.base.value, (1, *operand.shape[1:]))])
    return combine(stored, jnp.where(is_any_left, rest, identity))


_COMBINE = {
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
}


def _identity(name: str, dtype: Any) -> Any:
    """What does not change an extreme."""
    if name in ("reduce_and", "reduce_or"):
        return jnp.asarray(-1 if name == "reduce_and" else 0).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise BecomesDense("complex numbers have no extreme")
    if jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(name == "reduce_min")
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(-jnp.inf if name == "reduce_max" else jnp.inf, dtype)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if name == "reduce_max" else info.max, dtype)


# --- contractions -------------------------------------------------------------------------------------------------


def dot_general(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Contracted over rows: the stored rows with the same rows of the other; else each row by itself."""
    contract, batch = eqn.params["dimension_numbers"]
    sides = [coalesced(value) for value in values]
    if context.is_strict:
        raise BecomesDense('it is multiplied by an array, which nonfinite="dense" keeps exact')
    if batch[0] or not any(isinstance(side, Patched) and side.is_sparse for side in sides):
        raise BecomesDense("a product of whole arrays")
    first = 0 if isinstance(sides[0], Patched) and sides[0].is_sparse else 1
    if 0 in contract[first]:
        return [_contracted(eqn, sides, first, contract)]
    if first == 1 or has_rows(sides[1]):
        raise BecomesDense("rows become columns of a product")
    shape = eqn.outvars[0].aval.shape
    zero = Uniform(np.zeros((), eqn.outvars[0].aval.dtype), shape)
    return [Patched(zero, sides[0].numbers, apply(eqn, [sides[0].rows, dense(sides[1])]), shape)]


def _contracted(eqn: Equation, sides: list[Value], first: int, contract: Any) -> Any:
    sparse, other = sides[first], sides[1 - first]
    axis = contract[1 - first][tuple(contract[first]).index(0)]
    if has_rows(other) and axis != 0:
        raise BecomesDense("rows meet columns")
    rows = jnp.where(is_row_flag(sparse), sparse.rows, jnp.zeros((), sparse.rows.dtype))
    if axis == 0:
        others = rows_at(other, sparse.numbers)
    else:
        others = jnp.take(dense(other), sparse.numbers, axis=axis, mode="clip")
    if jnp.issubdtype(others.dtype, jnp.inexact):
        flag = jax.lax.expand_dims(sparse.numbers < sparse.shape[0], [d for d in range(others.ndim) if d != axis])
        others = jnp.where(flag, others, jnp.zeros((), others.dtype))
    return apply(eqn, [rows, others] if first == 0 else [others, rows])


# --- marks --------------------------------------------------------------------------------------------------------


def barrier(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Structured values stay what they are, the others are kept from moving."""
    del context
    plain = [number for number, value in enumerate(values) if not is_structured(value)]
    results = list(values)
    for number, value in zip(plain, _jax.apply(eqn, [values[number] for number in plain]), strict=True):
        results[number] = value
    return results
