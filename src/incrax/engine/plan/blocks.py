"""Blocks: values that one program computes in blocks of rows, as many as are dirty.

    v[b] = F(x[b], w),  b = rows of block b

Every block of a value is computed by the body of one loop, whose list of blocks is an argument: a
first evaluation lists all of them, a change of some rows those that have such a row. So the bits of
a block depend on the block's own inputs, and not on what else was computed, or when. A row alone, or
a batch of another size, has other bits (docs/design/exact.md).

In: `Facts`, variables to compute. Out: a `Plan` that takes numbers of blocks and the values to write
them to. It must not know which rows change.

Law: where the inputs differ from a baseline's in rows of `by_rows` alone, all of them in the listed
blocks, running the plan on the baseline's values gives the values that it gives from nothing, bit
for bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import Values, read_vars, reads_of, writes_of, written_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Blocked, Plan, plan_fill
from incrax.engine.rewrites.derived import traced_equations
from incrax.engine.rewrites.row_reductions import RowAxes, row_axes
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import Aligned, NotByRowsError, aligned_back, run_on_rows

BLOCK_S = 2e-5
"""Estimated seconds of a block: a turn of the loop takes some 5e-6 beyond its work."""

MIN_BLOCKS = 8
"""Blocks of an axis that is worth dividing."""

MIN_VALUE_S = 5e-5
"""Estimated seconds of work behind a value that is computed in blocks; less is done as a whole."""


@dataclass(frozen=True)
class RowValues:
    """Values that are computed in blocks of rows, of axes of one length."""

    length: int  # how many rows there are
    size: int  # rows of a block
    rows: RowAxes  # what they reach row by row
    divided: frozenset[Var]  # variables with enough work behind them
    # Those of them that something else reads than equations from rows to rows.
    ends: tuple[Var, ...]
    seconds: float  # estimated, of all such equations

    @property
    def saved_s(self) -> float:
        """Estimated seconds that a change of one row leaves out."""
        return self.seconds * (1.0 - self.size / self.length)


def find_row_values(facts: Facts) -> list[RowValues]:
    """What can be divided, by the length of the axis; those with the most work first."""
    rows = row_axes(facts.eqns, facts.invars)
    work: dict[int, list[Equation]] = {}
    for eqn in facts.eqns:
        if id(eqn) in rows.aligned:
            with_rows = [var for var in eqn.outvars if var in rows.axes]
            length = shape_of(with_rows[0])[rows.axes[with_rows[0]]]
            work.setdefault(length, []).append(eqn)
    found = []
    for length, eqns in work.items():
        seconds = sum(map(facts.seconds, eqns))
        size = rows_of_a_block(seconds / length)
        if math.ceil(length / size) >= MIN_BLOCKS:
            divided = _with_work(facts, eqns, rows)
            ends = _ends(facts, rows, divided)
            found.append(RowValues(length, size, rows, divided, ends, seconds))
    return sorted(found, key=lambda each: -each.seconds)


def rows_of_a_block(row_s: float) -> int:
    """How many rows of so many estimated seconds are worth a turn of the loop."""
    return max(math.ceil(BLOCK_S / row_s), 1)


def _with_work(facts: Facts, eqns: Iterable[Equation], rows: RowAxes) -> frozenset[Var]:
    """What has a chain of work behind it that is worth a loop."""
    behind: dict[Var, float] = {}
    for eqn in eqns:
        before = max((behind.get(var, 0.0) for var in read_vars(eqn)), default=0.0)
        behind.update(dict.fromkeys(written_vars(eqn), before + facts.seconds(eqn)))
    has_rows = lambda var: var in rows.axes and var in facts.saveable
    is_key = lambda var: _jax.is_key_dtype(var.aval.dtype)
    return frozenset(
        v for v, s in behind.items() if s >= MIN_VALUE_S and has_rows(v) and not is_key(v)
    )


def _ends(facts: Facts, rows: RowAxes, divided: frozenset[Var]) -> tuple[Var, ...]:
    others = [var for eqn in facts.eqns if id(eqn) not in rows.aligned for var in read_vars(eqn)]
    return tuple(var for var in dict.fromkeys([*facts.returned, *others]) if var in divided)


# --- the plan of a group --------------------------------------------------------------------------


@dataclass
class _InBlocks:
    """Equations that run inside the loop, on rows, and those in front of it, as a whole, both in
    order.
    """

    values: RowValues
    group: Mapping[Var, int]  # of what the loop makes for others, the axis of rows
    rows: dict[Var, int]  # of what is read in blocks, the axis of rows
    inside: list[tuple[Equation, Aligned]] = field(default_factory=list)
    outside: list[Equation] = field(default_factory=list)
    whole: set[Var] = field(default_factory=set)  # variables that are needed whole

    @property
    def made(self) -> set[Var]:
        """What the loop makes."""
        return set(writes_of(eqn for eqn, _ in self.inside))

    def run(self, env: dict[Var, Any], numbers: Any, count: Any, olds: Values) -> list[Any]:
        """The values with these blocks written in."""
        _jax.evaluate(self.outside, env)

        def turn(k: Any, held: list[Any]) -> list[Any]:
            block = lax.dynamic_index_in_dim(numbers, k, keepdims=False)
            return self._with_block(block, env, held)

        return lax.fori_loop(np.int32(0), count, turn, list(olds))

    def _with_block(self, block: Any, whole: Mapping[Var, Any], held: Values) -> list[Any]:
        """The values with one block written in.

        The last block begins where it has as many rows as all others; of those that it has in common
        with the one before, it writes none: each row is always written by the same block.
        """
        size = self.values.size
        first = block * size
        start = lax.min(first, np.int32(self.values.length - size))
        is_own = start + lax.iota(np.int32, size) >= first
        rows_of = self._rows_at(start, whole)
        results = []
        for (var, axis), old in zip(self.group.items(), held, strict=True):
            new = rows_of(var, axis)
            if self.values.length % size:
                own = lax.broadcast_in_dim(is_own, jnp.shape(new), (axis,))
                new = lax.select(own, new, lax.dynamic_slice_in_dim(old, start, size, axis))
            results.append(lax.dynamic_update_slice_in_dim(old, new, start, axis))
        return results

    def _rows_at(self, start: Any, whole: Mapping[Var, Any]) -> Callable[[Var, int], Any]:
        """What tells the rows of a variable, along an axis, from some one on."""
        size = self.values.size
        made: dict[Var, Any] = {}

        def rows_of(var: Var, axis: int) -> Any:
            if var in made:
                return made[var]
            return lax.dynamic_slice_in_dim(whole[var], start, size, axis)

        def operand(atom: Atom, axis: int | None) -> Any:
            if isinstance(atom, Literal):
                return atom.val
            return whole[atom] if axis is None else rows_of(atom, axis)

        for eqn, aligned in self.inside:
            operands = list(map(operand, eqn.invars, aligned.operands))
            made.update(zip(eqn.outvars, run_on_rows(eqn, aligned, size, operands), strict=True))
        return rows_of


def _divide(eqns: Sequence[Equation], group: Sequence[Var], values: RowValues) -> _InBlocks:
    """Walk back from the group: what its rows are made of row by row is made inside."""
    axes = {var: values.rows.axes[var] for var in group}
    found = _InBlocks(values, axes, dict(axes))
    for eqn in reversed(eqns):
        written = written_vars(eqn)
        needed = {var: found.rows[var] for var in written if var in found.rows}
        is_inside = bool(needed) and found.whole.isdisjoint(written)
        aligned = _aligned(eqn, needed, values.rows) if is_inside else None
        if aligned is None:
            found.outside.insert(0, eqn)
            found.whole.update(read_vars(eqn))
            continue
        found.inside.insert(0, (eqn, aligned))
        for atom, axis in zip(eqn.invars, aligned.operands, strict=True):
            if isinstance(atom, Var) and (
                axis is None or found.rows.setdefault(atom, axis) != axis
            ):
                found.whole.add(atom)
    return found


def _aligned(eqn: Equation, needed: Mapping[Var, int], rows: RowAxes) -> Aligned | None:
    """Where these rows of its results come from, row by row."""
    known = rows.aligned.get(id(eqn))
    if known is not None:
        axes = dict(zip(eqn.outvars, known.outputs, strict=True))
        if all(axes[var] == axis for var, axis in needed.items()):
            return known
    (axis, *others) = needed.values()
    return None if others or len(eqn.outvars) > 1 else aligned_back(eqn, axis)


def block_plan(
    facts: Facts,
    group: Sequence[Var],
    values: RowValues,
    is_below: Callable[[Var], bool],
    blocked_of: Callable[[Var], Blocked | None],
) -> Plan:
    """The plan that computes a group in blocks; as a whole where some equation cannot run on rows,
    where no row of an input stays in its block, or where it is little work.

    `is_below` are saved values that may be read, `blocked_of` how these are computed.
    """
    axes = values.rows.axes

    def may_load(var: Var) -> bool:
        # A value that has rows and is not divided would bring in the rows of all other blocks.
        has_rows = var in axes and shape_of(var)[axes[var]] == values.length
        return is_below(var) and not (has_rows and blocked_of(var) is None)

    fill = plan_fill(facts, group, may_load)
    division = _divide(fill.eqns, group, values)
    by_rows = _reaching(facts, division, fill.loads, blocked_of)
    if by_rows and fill.seconds >= MIN_VALUE_S:
        with contextlib.suppress(NotByRowsError):
            return _traced(group, fill, division, by_rows)
    return plan_fill(facts, group, is_below)


def _reaching(
    facts: Facts,
    division: _InBlocks,
    loads: Iterable[Var],
    blocked_of: Callable[[Var], Blocked | None],
) -> int:
    """Mask of the inputs of which a row reaches its own block alone."""
    values = division.values
    by_rows = 0
    whole = facts.masks.of_all(division.whole)
    loaded = frozenset(loads)
    made = division.made
    axes = values.rows.axes
    for var, axis in division.rows.items():
        if var in made:
            continue
        mine = 0
        if var in facts.invars and axis == 0 and shape_of(var)[0] == values.length:
            mine = facts.mask(var)
        elif var in loaded:
            blocked = blocked_of(var)
            is_along = axis == axes.get(var)
            if blocked is not None and is_along and blocked.length == values.length:
                mine = blocked.by_rows
        by_rows |= mine
        whole |= facts.mask(var) & ~mine
    return by_rows & ~whole


def _traced(group: Sequence[Var], fill: Plan, division: _InBlocks, by_rows: int) -> Plan:
    values = division.values
    num = math.ceil(values.length / values.size)
    blocked = Blocked(
        length=values.length,
        size=values.size,
        by_rows=by_rows,
        numbers=_jax.new_var(_jax.array_aval((num,), np.int32)),
        count=_jax.new_var(_jax.array_aval((), np.int32)),
        olds={_jax.new_var(var.aval): var for var in group},
        eqns=fill.eqns,
    )
    written = set(writes_of(fill.eqns))
    read = dict.fromkeys(reads_of(fill.eqns))
    known = [var for var in read if var not in written]

    def fun(*given: Any) -> list[Any]:
        env = dict(zip(known, given, strict=False))
        numbers, count, *olds = given[len(known) :]
        return division.run(env, numbers, count, olds)

    own = (blocked.numbers, blocked.count, *blocked.olds)
    _, eqns = traced_equations(fun, [*known, *own], group)
    loads = (*fill.loads, *own)
    return Plan(0, loads, eqns, tuple(group), (), fill.seconds, fill.loads, blocked=blocked)
