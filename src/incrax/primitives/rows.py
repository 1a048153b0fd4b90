"""Row rules: what a primitive does to the row axis, one small function per kind, in a table beside the walk.

A rule reads an equation and the row axes of its inputs and outputs (None: no such axis) and returns None where it maps
rows to the same rows, a `Reduction` where it reduces over them, or the reason why it does neither. A primitive without
a rule is refused: a missing rule costs generality, never correctness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from incrax._jax import KEEP, Equation
from incrax.primitives.masks import ELEMENTWISE

Axes: TypeAlias = Sequence[int | None]


class Reduction(NamedTuple):
    """A reduction over rows: its kind, the inputs to mask, and the input that is no row but starts it, if any.

    Kinds: sum, prod, max, min, and, or, xor.
    """

    kind: str
    masked: tuple[int, ...]
    start: int | None = None


Verdict: TypeAlias = Reduction | str | None
RowRule: TypeAlias = Callable[[Equation, Axes, Axes], Verdict]

MIXES = "puts rows in another order or place"
COMPLEX = "compares complex numbers, of which none is the least or the largest"
READS_SOME = "reads some of the rows by their place"


def _elementwise(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    is_same = all(axis is None or axis == outs[0] for axis in ins)
    is_whole = all(len(a.aval.shape) in (0, len(eqn.outvars[0].aval.shape)) for a in eqn.invars)
    return None if is_same and is_whole else MIXES


def _unchecked(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    del eqn, ins, outs


def _along(axes: Callable[[Equation], Sequence[int]], reason: str) -> RowRule:
    """A rule for what leaves rows alone unless they are among the axes that it works on."""

    def rule(eqn: Equation, ins: Axes, _: Axes) -> Verdict:
        return reason if any(axis in axes(eqn) for axis in ins) else None

    return rule


def _param(name: str) -> Callable[[Equation], Sequence[int]]:
    def axes(eqn: Equation) -> Sequence[int]:
        value = eqn.params[name]
        return (value,) if isinstance(value, int) else tuple(value)

    return axes


def _last(count: int) -> Callable[[Equation], Sequence[int]]:
    """The last axes of the first input."""

    def axes(eqn: Equation) -> Sequence[int]:
        rank = len(eqn.invars[0].aval.shape)
        return range(rank - count, rank)

    return axes


# --- moves of data ------------------------------------------------------------------------------------------------


def _broadcast(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    axis = ins[0]
    return None if axis is None or eqn.params["broadcast_dimensions"][axis] == outs[0] else MIXES


def _iota(eqn: Equation, _: Axes, outs: Axes) -> Verdict:
    if eqn.params["dimension"] != outs[0]:
        return None
    return "numbers the rows (`jnp.arange`, or `x[jnp.arange(n), i]`: use `jnp.take_along_axis`)"


def _reshape(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    old, new = ins[0], outs[0]
    is_told = old is not None and new is not None and new >= 0 and eqn.params.get("dimensions") is None
    is_kept = is_told and math.prod(before[:old]) == math.prod(after[:new])
    return None if is_kept else "merges the row axis with another one, or splits it"


def _transpose(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    return None if ins[0] is None or eqn.params["permutation"].index(ins[0]) == outs[0] else MIXES


def _tile(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    """Rows once, or one entry in every row."""
    axis = outs[0]
    is_whole = is_single = False
    if axis is not None and axis >= 0:
        is_whole = ins[0] == axis and eqn.params["reps"][axis] == 1
        is_single = ins[0] is None and _length(eqn, 0, axis) == 1
    return None if is_whole or is_single else "repeats the rows, or something else along them"


def _slice(eqn: Equation, ins: Axes, _: Axes) -> Verdict:
    axis = ins[0]
    if axis is None:
        return None
    strides = eqn.params["strides"]
    is_whole = eqn.params["start_indices"][axis] == 0 and (strides is None or strides[axis] == 1)
    return None if is_whole and eqn.params["limit_indices"][axis] == _length(eqn, 0, axis) else READS_SOME


def _length(eqn: Equation, number: int, axis: int) -> int:
    return eqn.invars[number].aval.shape[axis]


def _dynamic_slice(eqn: Equation, ins: Axes, _: Axes) -> Verdict:
    axis = ins[0]
    is_whole = axis is not None and eqn.params["slice_sizes"][axis] == _length(eqn, 0, axis)
    return None if is_whole and not any(a is not None for a in ins[1:]) else READS_SOME


def _dynamic_update_slice(_: Equation, ins: Axes, outs: Axes) -> Verdict:
    is_whole = ins[0] == ins[1] == outs[0] and not any(a is not None for a in ins[2:])
    return None if is_whole else "writes to some of the rows by their place"


def _pad(eqn: Equation, ins: Axes, _: Axes) -> Verdict:
    axis = ins[0]
    if axis is None or ins[1] is not None:
        return MIXES
    return None if eqn.params["padding_config"][axis] == (0, 0, 0) else "adds rows, or drops some"


def _concatenate(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    is_beside = eqn.params["dimension"] != outs[0] and all(axis == outs[0] for axis in ins)
    return None if is_beside else "joins arrays along the rows"


# --- reductions and products --------------------------------------------------------------------------------------


def _reduce(kind: str) -> RowRule:
    def rule(eqn: Equation, ins: Axes, _: Axes) -> Verdict:
        if ins[0] not in eqn.params["axes"]:
            return None
        return COMPLEX if _compares_complex(kind, eqn) else Reduction(kind, (0,))

    return rule


def _compares_complex(kind: str | None, eqn: Equation) -> bool:
    return kind in ("max", "min") and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating)


def _dot_general(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    (contracts, batches), (lhs, rhs) = eqn.params["dimension_numbers"], ins
    if lhs in contracts[0] or rhs in contracts[1]:
        pairs = list(zip(*contracts, strict=True))
        return Reduction("sum", (0, 1)) if (lhs, rhs) in pairs else "multiplies rows with something else by their place"
    if lhs in batches[0] or rhs in batches[1]:
        return None if (lhs, rhs) in list(zip(*batches, strict=True)) else MIXES
    if lhs is not None and rhs is not None:
        return "pairs every row with every row"
    return None if outs[0] is not None else MIXES


def _gather(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    """Rows of the operand must be whole windows or a batch; rows of the indices a batch that stays in its place."""
    numbers = eqn.params["dimension_numbers"]
    operand, indices = ins[0], ins[1]
    batch_out = [d for d in range(len(eqn.outvars[0].aval.shape)) if d not in numbers.offset_dims]
    if operand is None:
        return None if indices is not None and _batch_place(batch_out, indices) == outs[0] else MIXES
    if operand in numbers.operand_batching_dims:
        number = numbers.operand_batching_dims.index(operand)
        is_paired = numbers.start_indices_batching_dims[number] == indices
        return None if is_paired and _batch_place(batch_out, indices) == outs[0] else MIXES
    if indices is not None or not _is_window(eqn, operand, numbers.collapsed_slice_dims, numbers.start_index_map):
        return READS_SOME
    gone = [*numbers.collapsed_slice_dims, *numbers.operand_batching_dims]
    return None if numbers.offset_dims[operand - sum(d < operand for d in gone)] == outs[0] else MIXES


def _batch_place(batch_out: Sequence[int], axis: int | None) -> int | None:
    return batch_out[axis] if axis is not None and axis < len(batch_out) else None


def _is_window(eqn: Equation, axis: int, collapsed: Sequence[int], started: Sequence[int]) -> bool:
    is_full = eqn.params["slice_sizes"][axis] == _length(eqn, 0, axis)
    return is_full and axis not in collapsed and axis not in started


def _scatter(kind: str | None) -> RowRule:
    """Updates by rows into something without rows are a reduction; windows of all rows, or a batch, are row-wise."""

    def rule(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
        numbers = eqn.params["dimension_numbers"]
        operand, indices, updates = ins
        if operand is None:
            batch = [d for d in range(len(eqn.invars[2].aval.shape)) if d not in numbers.update_window_dims]
            is_by_row = indices is not None and _batch_place(batch, indices) == updates
            if _compares_complex(kind, eqn):
                return COMPLEX
            return Reduction(kind, (2,), start=0) if kind and is_by_row else "writes rows over each other"
        if operand in numbers.operand_batching_dims:
            place = numbers.operand_batching_dims.index(operand)
            is_paired = numbers.scatter_indices_batching_dims[place] == indices
            return None if is_paired and updates is not None and operand == outs[0] else MIXES
        is_started = operand in numbers.inserted_window_dims or operand in numbers.scatter_dims_to_operand_dims
        is_window = not is_started and indices is None and updates in numbers.update_window_dims
        return None if is_window and operand == outs[0] else "writes to some of the rows by their place"

    return rule


# --- linear algebra -------------------------------------------------------------------------------------------------


def _triangular_solve(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    """A right-hand side per row: a batch of systems, or the free axis of one."""
    matrix, rhs = ins
    rank = len(eqn.invars[1].aval.shape)
    free = rank - 1 if eqn.params["left_side"] else rank - 2
    is_free = matrix is None and rhs == free
    is_batch = all(a is None or a < rank - 2 for a in ins) and (matrix is None or matrix == outs[0])
    return None if (is_free or is_batch) and (rhs is None or rhs == outs[0]) else "solves for all rows at once"


def _keep(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    return None if list(ins[: len(eqn.outvars)]) == list(outs) else MIXES


_NEWER = "le_to log2 lt_to mulhi one_minus_square".split()
"""Elementwise primitives that some versions of JAX have."""

_LINEAR_ALGEBRA = _along(_last(2), "takes the rows for a matrix")

row_rules: dict[str, RowRule] = {
    **dict.fromkeys([*ELEMENTWISE, *_NEWER], _elementwise),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": _reshape,
    "transpose": _transpose,
    "tile": _tile,
    "squeeze": _unchecked,
    "expand_dims": _unchecked,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "split": _along(_param("axis"), READS_SOME),
    "unstack": _along(_param("axis"), READS_SOME),
    "stack": _unchecked,
    "rev": _along(_param("dimensions"), "reverses the rows"),
    "sort": _along(_param("dimension"), "sorts the rows"),
    "top_k": _along(_last(1), "sorts the rows"),
    "argmax": _along(_param("axes"), "looks for a row by its place"),
    "argmin": _along(_param("axes"), "looks for a row by its place"),
    **dict.fromkeys(
        "cumsum cumprod cummax cummin cumlogsumexp".split(), _along(_param("axis"), "accumulates along the rows")
    ),
    "reduce_sum": _reduce("sum"),
    "reduce_prod": _reduce("prod"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_and": _reduce("and"),
    "reduce_or": _reduce("or"),
    "reduce_xor": _reduce("xor"),
    "dot_general": _dot_general,
    "gather": _gather,
    "scatter-add": _scatter("sum"),
    "scatter-mul": _scatter("prod"),
    "scatter-min": _scatter("min"),
    "scatter-max": _scatter("max"),
    "scatter": _scatter(None),
    "triangular_solve": _triangular_solve,
    "lu_pivots_to_permutation": _along(_last(1), "takes the rows for a matrix"),
    **dict.fromkeys("cholesky eigh lu qr svd householder_product".split(), _LINEAR_ALGEBRA),
    KEEP: _keep,
}


def row_verdict(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    """What an equation does to rows."""
    rule: Any = row_rules.get(eqn.primitive.name)
    return "has no rule that says what it does to rows" if rule is None else rule(eqn, ins, outs)
