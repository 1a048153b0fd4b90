"""Rules for rows that meet: reductions, products of matrices, running sums, and rows along two axes.

In: an equation that reads all rows of a dirty operand. Out: its result, from what is kept of it.

- A reduction is cut in two, over all other axes first, then over the rows: x_i. = sum_j x_ij is
  kept, and sum_i x_i. is summed anew, without drift, whatever the operation.
- A sum or a product of matrices whose x_i. are too large to be kept gets the difference,
  S + sum_dirty new - sum_dirty old, with the old rows computed again from the old inputs.
- In a program for a part of the axis, what all rows beside it make together stays.
- Rows along two axes that meet, as in `x[:, None] - x`, give slabs; a sum over these, or a product
  with a clean matrix, gets the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.engine.plan.environment import MIXED, RowEnvironment
from incrax.engine.plan.looked_up_rows import add_back, look_up, sum_by_ids
from incrax.engine.plan.row_sets import (
    DirtyRows,
    LookedUp,
    RowSet,
    Slabs,
    in_no_row,
    masked,
    taken,
    with_rows,
)
from incrax.engine.rewrites.row_reductions import REDUCTIONS
from incrax.primitives.entry import shape_of, with_parameters
from incrax.primitives.on_rows import Aligned, NotByRowsError, aligned_by, crossed_by

MAX_PARTIAL = 2**17
"""Elements of a value per row up to which it is kept for a reduction over the rows."""

MIN_PRODUCT_S = 5e-6
"""Seconds of a product of matrices from which on its difference is computed, not all of it."""

RUNNING = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})

EACH_READS_ALL = "each row of its result depends on all rows"


def _reduce(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """A reduction: of a value per row, or, of a sum where these are too large, its change."""
    axes = eqn.params["axes"]
    if rows.axis not in axes:
        raise NotByRowsError(EACH_READS_ALL)
    if rows.of.ends is not None:
        both = lambda *parts: lax.concatenate([part[None] for part in parts], 0)
        join = lambda *parts: with_parameters(eqn, {"axes": (0,)})(both(*parts))
        _of_interval(env, eqn, [rows.axis], rows.of, [rows.new], join)
        return
    others = tuple(d for d in axes if d != rows.axis)
    is_sum = eqn.primitive.name == "reduce_sum"
    if is_sum and isinstance(rows.of.origin, LookedUp) and not env.adds_changes:
        sum_by_ids(env, eqn, rows, others)
        return
    sizes = [size for d, size in enumerate(shape_of(eqn.invars[0])) if d not in others]
    is_large = np.prod(sizes) > MAX_PARTIAL
    if is_large and not is_sum:
        raise NotByRowsError("of its rows too much would be kept, and it has no differences")
    if is_sum and (is_large or env.adds_changes):
        _add_change(env, eqn, lambda: [env.counted(rows)])
        return
    _reduce_twice(env, eqn, rows, others)


def _reduce_twice(
    env: RowEnvironment, eqn: Equation, rows: DirtyRows, others: tuple[int, ...]
) -> None:
    """A reduction over all other axes, of which a value per row is kept, then over the rows."""
    operand = eqn.invars[0]
    assert isinstance(operand, Var)
    last = rows
    if others:
        of_rows = with_parameters(eqn, {"axes": others})
        operand = env.derived_values.make((eqn.primitive.name, others), [operand], of_rows)
        axis = rows.axis - sum(d < rows.axis for d in others)
        last = DirtyRows(of_rows(rows.new), None, axis, rows.of)
    together = with_parameters(eqn, {"axes": (last.axis,)})
    env.set_whole(eqn.outvars[0], together(env.all_rows(operand, last)))


def _of_interval(
    env: RowEnvironment,
    eqn: Equation,
    axes: Sequence[int],
    of: RowSet,
    values: Sequence[Any],
    join: Callable[[Any, Any], Any],
) -> None:
    """What an equation makes of an interval along an axis of each operand, joined with what it makes
    of all rows beside it, which stays.
    """
    assert of.ends is not None
    low, high = of.ends
    (var,) = eqn.outvars

    def without(x: Any, axis: int) -> Any:
        before = lax.slice_in_dim(x, 0, low, axis=axis)
        return lax.concatenate([before, lax.slice_in_dim(x, high, None, axis=axis)], axis)

    (value,) = _jax.apply(eqn, values)
    if of.size < of.length:
        run = lambda *values: _jax.apply(eqn, list(map(without, values, axes)))[0]
        operands = [atom for atom in eqn.invars if isinstance(atom, Var)]
        rest = env.derived_values.make(("beside", var, low, high), operands, run)
        value = join(env.stays(rest), value)
    env.set_whole(var, value)


def _contract(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """A product of matrices, summed over the rows: its change."""
    is_interval = rows.of.ends is not None
    is_small = env.facts.seconds(eqn) < MIN_PRODUCT_S
    if is_small and not env.adds_changes and not is_interval:
        raise NotByRowsError("all of it takes no longer")
    own = next(n for n, atom in enumerate(eqn.invars) if env.rows(atom) is not None)
    axes = _summed_together(eqn, own, rows.axis)
    if any(env.axis_of(atom) not in (None, d) for atom, d in zip(eqn.invars, axes, strict=True)):
        raise NotByRowsError(MIXED)
    operands = lambda: [
        masked(env.rows_of(atom, axis, rows.of), axis, rows.of.counts)
        for atom, axis in zip(eqn.invars, axes, strict=True)
    ]
    if is_interval:
        _of_interval(env, eqn, axes, rows.of, operands(), lax.add)
        return
    _add_change(env, eqn, operands)


def _summed_together(eqn: Equation, number: int, axis: int) -> list[int]:
    """The axes of the operands of a product that are summed over with one of an operand.

    Raises:
        NotByRowsError: that is not summed over.
    """
    contracted, _ = eqn.params["dimension_numbers"]
    if axis not in contracted[number]:
        raise NotByRowsError(MIXED)
    place = contracted[number].index(axis)
    return [each[place] for each in contracted]


def _add_change(env: RowEnvironment, eqn: Equation, operands: Callable[[], list[Any]]) -> None:
    env.add_difference(eqn, lambda: _jax.apply(eqn, operands())[0])


def _accumulate(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """A running sum, or another operation: from the first dirty row on, which takes in what was
    accumulated before; of this, the baseline's is kept.
    """
    (var,) = eqn.outvars
    ends = rows.of.ends
    axis = eqn.params["axis"]
    if ends is None or rows.axis != axis:
        raise NotByRowsError("all rows behind the first changed one follow from it")
    is_reverse = eqn.params["reverse"]
    length = rows.of.length
    low, high = (0, ends[1]) if is_reverse else (ends[0], length)
    of = env.sets.interval(low, high, length)
    env.check_size(of)
    place = high if is_reverse else low - 1
    is_all = of.size == length
    before = [] if is_all else [env.piece(var, axis, place, place + 1)]

    def accumulated() -> Any:
        part = env.rows_of(eqn.invars[0], axis, of)
        parts = [part, *before] if is_reverse else [*before, part]
        (found,) = _jax.apply(eqn, [lax.concatenate(parts, axis)])
        first = 0 if is_reverse else len(before)
        return lax.slice_in_dim(found, first, first + of.size, axis=axis)

    env.set_rows(var, axis, of, accumulated)


def cross(env: RowEnvironment, eqn: Equation) -> bool:
    """Make slabs where rows along different axes meet, as in `x[:, None] - x`, or what follows from
    slabs; whether that can be done. Until something reads all of it, nothing else is made.
    """
    sides = [env.sides(atom) for atom in eqn.invars]
    is_known = all(own or not env.is_dirty(a) for own, a in zip(sides, eqn.invars, strict=True))
    if env.adds_changes or not is_known or any(s.of.ends for own in sides for s in own):
        return False
    crossed = crossed_by(eqn, [[side.axis for side in own] for own in sides])
    env.crosses = True
    try:
        if crossed is not None:
            made = [_slab(env, eqn, sides, *each) for each in crossed.items()]
            env.dirty[eqn.outvars[0]] = Slabs(*made)
        elif not _sum_slabs(env, eqn, sides):
            return False
    except NotByRowsError:
        return False
    finally:
        env.crosses = False
    return True


def _slab(
    env: RowEnvironment,
    eqn: Equation,
    sides: Sequence[Sequence[DirtyRows]],
    axis: int,
    aligned: Aligned,
) -> DirtyRows:
    """The rows along one axis, each all of the other."""
    pairs = zip(sides, aligned.operands, strict=True)
    of = env.union([side.of for own, place in pairs for side in own if side.axis == place])
    new, old = env.now_and_then(lambda: env.on_rows(eqn, aligned, of)[0])
    return DirtyRows(new, old, axis, of)


_Slab = tuple[DirtyRows, "int | None"]
"""Dirty rows, and their axis in what sums; None: they are summed over."""


def _summed(eqn: Equation, sides: Sequence[Sequence[DirtyRows]]) -> list[_Slab]:
    """The slabs of an operand of which axes are summed over, or a product with a clean one is, one
    that is summed over first; none where it does something else, or two operands changed.
    """
    changed = [own for own in sides if own]
    if len(changed) > 1 or eqn.primitive.name not in ("reduce_sum", "dot_general"):
        return []
    slabs: list[_Slab] = []
    for side in changed[0]:
        rows = [side.axis if own else None for own in sides]
        left = aligned_by(eqn, rows)
        if left is not None and left.operands != tuple(rows):
            return []  # a batch of products
        slabs.append((side, None if left is None else left.outputs[0]))
    slabs.sort(key=lambda slab: slab[1] is not None)
    return slabs if len(slabs) > 1 and slabs[0][1] is None else []


def _sum_slabs(env: RowEnvironment, eqn: Equation, sides: Sequence[Sequence[DirtyRows]]) -> bool:
    """A sum over one of their axes, or both: the difference of the slab that is summed over. What
    both have counts once; rows that are left are summed anew. Whether it is such a sum.
    """
    slabs = _summed(eqn, sides)
    if not slabs:
        return False
    (across, _), (along, place) = slabs
    number = next(number for number, own in enumerate(sides) if own)

    def total(value: Any, rows: DirtyRows | None = None) -> Any:
        """Of all of the operand, or of these rows of an axis that is summed over."""
        values = [value if own else env.result(x) for own, x in zip(sides, eqn.invars, strict=True)]
        if rows is not None and len(values) > 1:
            beside = 1 - number
            axis = _summed_together(eqn, number, rows.axis)[beside]
            values[beside] = taken(values[beside], axis, rows.of)
        return _jax.apply(eqn, values)[0]

    def part() -> Any:
        one = env.counted(across)
        if place is not None:
            return total(one, across)
        one = masked(one, along.axis, in_no_row(along.of))
        return total(one, across) + total(env.counted(along), along)

    def with_rows_left(after: Any) -> Any:
        if place is None:
            return after
        return with_rows(after, DirtyRows(total(along.new), None, place, along.of))

    env.add_difference(eqn, part, with_rows_left)
    return True


MEETINGS: dict[str, Callable[[RowEnvironment, Equation, DirtyRows], None]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "dot_general": _contract,
    "gather": look_up,
    "scatter-add": add_back,
    **dict.fromkeys(RUNNING, _accumulate),
}
"""By primitive: what is made where it reads all rows together, or others."""
