"""Slices: the plan for a change of a few rows of some inputs, whichever rows these are.

In: `Facts`, the inputs of which rows change, how many rows at most. Out: a `Plan` that takes the
numbers of the rows as an argument, so that one program serves all of them. Of values it knows those
of indices alone.

A variable that the change reaches is dirty in some *rows* of one axis, or *whole*. An equation that
maps rows to rows runs on the dirty ones alone: of its dirty operands there is nothing else, from the
clean ones rows are taken. What reads all rows of a dirty variable gets the baseline's value of it
with the new rows written in, which is saved again. Where rows meet:

- a reduction is cut in two, over all other axes first, then over the rows: x_i. = sum_j x_ij is
  kept, and sum_i x_i. is summed anew, without drift, whatever the operation;
- a sum or a product of matrices whose x_i. are too large to be kept gets the difference,
  S + sum_dirty new - sum_dirty old, with the old rows computed again from the old inputs; a guard
  says whether more was lost to rounding than the sum itself loses;
- rows that are moved by fixed distances (slices, pads, concatenations, so also `roll`) are dirty
  where they go; where different sets meet, as in `x[1:] - x[:-1]`, their union is, and each operand
  is made for all of it;
- windows (convolutions, pooling) are dirty in the rows that read a dirty one: blocks of consecutive
  rows, each made of the block of rows that it reads;
- rows along two axes that meet, as in `x[:, None] - x`, give slabs; a sum over these gets the
  difference;
- a scan from row to row is resumed at the first dirty one, and left where it carries again what it
  carried at the baseline (`resumed`); of what it makes, the steps that ran are known as `spans`, and
  what maps rows to rows hands them on: so also the scan back of a gradient is resumed;
- a look-up `x[ids]` with clean ids is dirty in the rows that have a dirty one as id: a table of
  each id's rows is kept. The sum of rows back to their ids is one over the table's rows, and of a
  sum over all of them a value per id is kept.

Promise: with the numbers of all rows that differ from the baseline's among those given, running the
plan gives the outputs of the whole program up to rounding. The rules are those of `primitives`; no
rule, no claim: the variable is taken whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars, written_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.frontier import choose_frontier
from incrax.engine.plan.plan import (
    NEW_VALUE_S,
    Extent,
    Made,
    Plan,
    Sliced,
    plan_fill,
    reached_equations,
)
from incrax.engine.plan.resumed import (
    NAME,
    Records,
    Resumable,
    Spans,
    joined,
    named,
    resumable,
    spans_of,
)
from incrax.engine.plan.row_sets import (
    MAX_JOINED,
    DirtyRows,
    RowSet,
    RowSets,
    Slabs,
    as_argument,
    at_places,
    by_blocks,
    by_one_thread,
    by_slots,
    correlated,
    ends_of_all,
    grouped,
    ids_read,
    in_no_row,
    interval,
    is_by_slots,
    listed_members,
    offsets_of,
    overlaid,
    places_of,
    row_set,
    taken,
    window_of_block,
    windowed,
    with_rows,
)
from incrax.engine.rewrites.derived import HostRecipe, written_by
from incrax.engine.rewrites.row_reductions import REDUCTIONS
from incrax.primitives.entry import Run, Window, shape_of, with_item
from incrax.primitives.indexing import windows_of
from incrax.primitives.on_rows import (
    Aligned,
    NotByRowsError,
    aligned_back,
    aligned_by,
    crossed_by,
    run_on_rows,
)
from incrax.primitives.products import across
from incrax.primitives.reductions import unpooled
from incrax.primitives.table import entry_of

MAX_PARTIAL = 2**17
"""Elements of a value per row up to which it is kept for a reduction over the rows."""

MIN_PRODUCT_S = 5e-6
"""Seconds of a product of matrices from which on its difference is computed, not all of it."""

MAX_LOST = 2.0**10
"""By how much what goes into a difference may exceed what comes out, and the new rows."""

MAX_TABLE_SHARE = 0.25
"""Of all rows, those that a look-up, or different sets that meet, may make dirty."""

MAX_INTERVAL_SHARE = 0.5
"""The same of an interval that is known when the plan is made."""

MAX_HALVINGS = 3
"""How often every other row may be taken, one after the other: each time there are two sets that
meet, so that rows are twice as many of half as many.
"""

MAX_PULLED = 64
"""Equations run for the rows of one operand where different sets meet, before the operand is kept."""

RUNNING = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})

UPDATES = {"dynamic_update_slice": 1, "scatter": 2}
"""Of equations that write into a value: the operand that is written."""

ValueOf = Callable[[Var], "np.ndarray | None"]
"""The present value of a clean variable; None where it is not to be had."""


@dataclass
class _Asked:
    """What a trace turns out to read besides clean variables: of these, the baseline's value; of
    those, which are derived and clean, the present one; and whether old rows are needed.
    """

    olds: dict[Var, None] = field(default_factory=dict)
    tables: dict[Var, None] = field(default_factory=dict)
    old_rows: bool = False


class Slicer:
    """Runs the equations that a change reaches on its rows, while JAX traces it.

    `whole` has the values of variables as they are now, `dirty` the rows of those that are dirty;
    None: as a whole. `saves` is what is to be saved, `guards` what must hold, `made` what became of
    each equation, `met` what was made where different sets met and is known for each argument,
    `drifting` what stands on differences, `resumed` the scans that were resumed, and whether their
    carry will never be the same again. `slabs` has, of variables that are dirty as a whole, rows
    along two axes of which alone they are dirty; what all else reads of these is made when it is
    read. `spans` has, of variables that are dirty as a whole, an axis
    of which only these rows changed.

    `adds_changes`: sums get their difference whatever it costs to sum anew, so that nothing but the
    new rows is made: for steps of compiled loops.

    `widths`: of the table of a look-up, how many slots are read; the caller knows that the others
    of these rows are spare. `looked_up` has the tables, and the rows that were found in each.
    """

    def __init__(
        self,
        facts: Facts,
        value_of: ValueOf,
        *,
        adds_changes: bool = False,
        widths: Mapping[Var, int] | None = None,
    ) -> None:
        self.facts = facts
        self.value_of = value_of
        self.adds_changes = adds_changes
        self.widths = widths or {}
        self.writer = {var: eqn for eqn in facts.eqns for var in written_vars(eqn)}
        self.asked = _Asked()
        self.whole: dict[Var, Any] = {}
        self.olds: dict[Var, Any] = {}
        self.dirty: dict[Var, DirtyRows | None] = {}
        self.sets = RowSets()
        self.rows_at: dict[Any, Any] = {}
        self.met: set[Var] = set()
        self.num_pulled = 0
        self.num_changed = 0
        self.saves: dict[Var, Any] = {}
        self.row_saves: dict[Var, DirtyRows] = {}
        self.guards: list[Any] = []
        self.drifting: set[Var] = set()
        self.made: list[Made] = []
        self.spans: dict[Var, tuple[int, Spans]] = {}
        self.slabs: dict[Var, Slabs] = {}
        self.crosses = False
        self.resumed: list[tuple[Resumable, bool]] = []
        self.looked_up: dict[Var, RowSet] = {}

    def run(
        self,
        reached: Iterable[Equation],
        known: dict[Var, Any],
        olds: dict[Var, Any],
        changes: Mapping[Var, tuple[Any, RowSet] | None],
    ) -> None:
        """Make all that the change reaches.

        Args:
            reached: the equations.
            known: clean variables and tables asked for, and the inputs that changed as a whole.
            olds: values of the baseline that were asked for.
            changes: the inputs that changed: their new rows along the first axis, and which; None:
                as a whole.
        """
        self.whole = known
        self.olds = olds
        self.dirty = {}
        self.sets = RowSets()
        self.rows_at = {}
        self.met = set()
        self.drifting = set()
        self.saves = {}
        self.row_saves = {}
        self.guards = []
        self.made = []
        self.spans = {}
        self.slabs = {}
        self.resumed = []
        for var, change in changes.items():
            self.dirty[var] = None
            if change is not None:
                new, rows = change
                if rows.ends is not None:
                    rows = self.sets.interval(*rows.ends, rows.length)
                elif self.adds_changes:  # elsewhere a list would be a constant of the program
                    rows = as_argument(rows)
                self.num_changed = rows.size
                old = taken(self._old(var), 0, rows) if self.asked.old_rows else None
                self.dirty[var] = DirtyRows(new, old, 0, rows)
        for eqn in reached:
            read = self._extents(eqn.invars)
            why_all = self._step(eqn)
            made = self._extents(eqn.outvars)
            self.made.append(Made(eqn, read, made, why_all))
            if not self.drifting.isdisjoint(read_vars(eqn)):
                self.drifting.update(eqn.outvars)

    def result(self, atom: Atom) -> Any:
        """A value as a whole, new rows written in."""
        if isinstance(atom, Literal):
            return atom.val
        state = self.dirty.get(atom)
        if atom in self.slabs and atom not in self.whole:
            first, second = self.slabs[atom]
            self.saves[atom] = self.whole[atom] = with_rows(
                with_rows(self._old(atom), first), second
            )
        return self.whole[atom] if state is None else self._written(atom, state)

    def _step(self, eqn: Equation) -> str:
        """Make what an equation writes, on rows, or from the first of them on; else, why on all."""
        states = [self.dirty[var] for var in read_vars(eqn) if var in self.dirty]
        rows = [state for state in states if state is not None]
        self.num_pulled = 0
        if not states:  # of what no row reaches, though the loop that makes it is reached
            values = _jax.apply(eqn, [self.result(atom) for atom in eqn.invars])
            self.whole.update(zip(eqn.outvars, values, strict=True))
            return "no row reaches it"
        try:
            if len(rows) < len(states):
                also = "it also reads what" if rows else "what it reads"
                raise NotByRowsError(f"{also} changed as a whole")
            aligned = aligned_by(eqn, [self._axis_of(atom) for atom in eqn.invars])
            if aligned is not None:
                self._map(eqn, aligned, self._joined([each.of for each in rows]))
            elif entry_of(eqn).runs is not None:
                self._move(eqn, rows[0].axis)
            elif entry_of(eqn).windows is not None:
                self._slide(eqn)
            elif eqn.primitive.name == "select_and_scatter_add":
                self._unpool(eqn)
            elif all(each.of is rows[0].of for each in rows):
                self._meet(eqn, rows[0])
            else:
                raise NotByRowsError("different rows meet, of which each reaches all others")
        except NotByRowsError as error:
            if not self._resume(eqn) and not self._cross(eqn):
                self._run_whole(eqn)
                return str(error)
        return ""

    def _joined(self, sets: Sequence[RowSet]) -> RowSet:
        """The rows of all sets."""
        found = self.sets.union(sets, self._are_apart)
        if found is None:
            sizes = " and ".join(f"{each.size} of {each.length}" for each in sets)
            raise NotByRowsError(f"different rows meet: {sizes}")
        self._check_size(found, sets)
        return found

    def _check_size(self, of: RowSet, sets: Sequence[RowSet] = ()) -> None:
        """Raise where rows are too many to be told apart: not if one of the sets that they are made
        of has as many. Side by side they cost less: as many as changed are never too many.
        """
        if any(of.size <= each.size for each in sets):
            return
        if of.halvings > MAX_HALVINGS and of.ends is None:
            raise NotByRowsError(f"every other row was taken more than {MAX_HALVINGS} times")
        is_few = _is_few(of.size, of.length)
        if of.ends is not None:
            is_few = of.size <= max(MAX_INTERVAL_SHARE * of.length, 2 * self.num_changed)
        if not is_few:
            raise _too_many(of.size, of.length)

    def _are_apart(self, one: RowSet, other: RowSet) -> bool:
        """Whether two look-ups of one row have no row in common: those of pairs of different ones."""
        a, b = one.indices, other.indices
        if one.parent is None or one.parent is not other.parent or one.parent.size > 1:
            return False
        if not isinstance(a, Var) or not isinstance(b, Var) or not self._are_fixed(a, b):
            return False
        length = one.parent.length
        return not np.any(
            self._ids_of(a, length, clips=one.clips) == self._ids_of(b, length, clips=other.clips)
        )

    def _are_fixed(self, *indices: Var) -> bool:
        """Whether indices are the same for as long as the program lives: constants, or, in compiled
        loops, what does not move there.
        """
        return self.adds_changes or not any(map(self.facts.mask, indices))

    def _rows(self, atom: Atom) -> DirtyRows | None:
        return self.dirty.get(atom) if isinstance(atom, Var) else None

    def _extents(self, atoms: Sequence[Atom]) -> tuple[Extent, ...]:
        """Of the first that has dirty rows."""
        sides = next(filter(None, map(self._sides, atoms)), ())
        return tuple(Extent(side.of.size, side.of.length, side.axis) for side in sides)

    def _axis_of(self, atom: Atom) -> int | None:
        rows = self._rows(atom)
        return None if rows is None else rows.axis

    def _run_whole(self, eqn: Equation) -> None:
        values = _jax.apply(eqn, [self.result(atom) for atom in eqn.invars])
        for var, value in zip(eqn.outvars, values, strict=True):
            self._set_whole(var, value)
        if not self.adds_changes:  # where no loop asks
            self._hand_on_spans(eqn)

    def _hand_on_spans(self, eqn: Equation) -> None:
        """Which rows of its results changed, where it maps rows to rows."""
        found = [self._spans(atom) for atom in eqn.invars]
        known = [each for each in found if each is not None]
        if len(known) < sum(map(self._is_dirty, eqn.invars)):
            return
        aligned = aligned_by(eqn, [None if each is None else each[0] for each in found])
        if aligned is None:
            return
        spans = joined([each[1] for each in known])
        for var, axis in zip(eqn.outvars, aligned.outputs, strict=True):
            if axis is not None:
                self.spans[var] = (axis, spans)

    def _is_dirty(self, atom: Atom) -> bool:
        return isinstance(atom, Var) and atom in self.dirty

    def _spans(self, atom: Atom) -> tuple[int, Spans] | None:
        """An axis of a dirty variable, and what changed of it; None if nothing is known."""
        rows = self._rows(atom)
        if rows is not None:
            return rows.axis, spans_of(rows.of)
        return self.spans.get(atom) if isinstance(atom, Var) else None

    def _set_whole(self, var: Var, value: Any) -> None:
        self.dirty[var] = None
        self.whole[var] = value

    # --- rows to rows -----------------------------------------------------------------------------

    def _map(self, eqn: Equation, aligned: Aligned, of: RowSet) -> None:
        """Each row of the results is made of that row of the operands."""
        new = self._on_rows(eqn, aligned, of, is_old=False)
        old: list[Any] = [None] * len(new)
        if self.asked.old_rows:
            old = self._on_rows(eqn, aligned, of, is_old=True)
        own = [self._rows(atom) for atom in eqn.invars]
        if of.is_from_list and all(each is None or each.of is not of for each in own):
            self.met.update(eqn.outvars)
        for var, axis, now, then in zip(eqn.outvars, aligned.outputs, new, old, strict=True):
            if axis is not None:
                self.dirty[var] = DirtyRows(now, then, axis, of)
            elif var not in self.whole:  # no row reaches it, inside a loop
                self.whole[var] = now

    def _on_rows(self, eqn: Equation, aligned: Aligned, of: RowSet, *, is_old: bool) -> list[Any]:
        values = [
            self._all_of(atom, is_old=is_old)
            if axis is None
            else self._rows_of(atom, axis, of, is_old=is_old)
            for atom, axis in zip(eqn.invars, aligned.operands, strict=True)
        ]
        found = run_on_rows(eqn, aligned, of.size, values)
        if eqn.primitive.name == "gather":
            found = [by_one_thread(found[0], values[0], of)]
        return found

    def _all_of(self, atom: Atom, *, is_old: bool) -> Any:
        """An operand that has no rows."""
        if self._rows(atom) is not None and not self.crosses:
            raise NotByRowsError("each row meets all rows of another operand that changed")
        is_dirty = isinstance(atom, Var) and atom in self.dirty
        return self._kept(atom) if is_old and is_dirty else self.result(atom)

    def _rows_of(self, atom: Atom, axis: int, of: RowSet, *, is_old: bool) -> Any:
        """The rows of an operand in a set, as they are now or were at the baseline: those that were
        made, or made now.
        """
        for side in self._sides(atom):
            if side.of is of and side.axis == axis:
                return side.old if is_old else side.new
        rows = self._rows(atom)
        assert isinstance(atom, Var)
        is_old = is_old and atom in self.dirty
        if rows is not None and of.ends is not None and atom not in self.facts.invars:
            return self._interval_of(atom, rows, axis, of.ends, is_old=is_old)
        key = (atom, axis, of, is_old)
        if key not in self.rows_at:
            self.rows_at[key] = self._pulled(atom, axis, of, is_old=is_old)
        return self.rows_at[key]

    def _interval_of(
        self, var: Var, rows: DirtyRows, axis: int, ends: tuple[int, int], *, is_old: bool
    ) -> Any:
        """An interval of a variable that is dirty in one: the baseline's beside that."""
        if rows.of.ends is None or rows.axis != axis:
            raise NotByRowsError(_MIXED)
        low, high = ends
        first, stop = (min(max(end, low), high) for end in rows.of.ends)
        parts = []
        if low < first:
            parts.append(self._piece(var, axis, low, first))
        if first < stop:
            inside = (place - rows.of.ends[0] for place in (first, stop))
            value = rows.old if is_old else rows.new
            parts.append(lax.slice_in_dim(value, *inside, axis=axis))
        if stop < high:
            parts.append(self._piece(var, axis, stop, high))
        return lax.concatenate(parts, axis)

    def _piece(self, var: Var, axis: int, low: int, high: int) -> Any:
        """An interval of the baseline's value, which this change does not reach."""
        cut = lambda x: lax.slice_in_dim(x, low, high, axis=axis)
        return self._stays(self.facts.derived.make(("rows", low, high, axis), [var], cut))

    def _stays(self, var: Var) -> Any:
        """The baseline's value of what this change does not reach, and which stays current."""
        self.saves[var] = self._old(var)
        return self.saves[var]

    def _pulled(self, var: Var, axis: int, of: RowSet, *, is_old: bool) -> Any:
        """Rows of a variable, made of rows of what it is made of, where that is by rows: it costs
        little, and needs no value of all rows to be kept.
        """
        eqn = self.writer.get(var)
        rows = self._rows(var)
        is_whole = var in self.dirty and rows is None
        # In a tree the other branches begin behind what met: of all of them rows would be made.
        is_end = is_whole or var in self.met
        if eqn is not None and not is_end and self.num_pulled < MAX_PULLED:
            self.num_pulled += 1
            aligned = aligned_back(eqn, axis)
            try:
                if eqn.primitive.name == "gather" and self._rows(eqn.invars[0]) is not None:
                    return self._looked_up_at(eqn, axis, of, is_old=is_old)
                if aligned is not None:
                    return self._on_rows(eqn, aligned, of, is_old=is_old)[0]
                if entry_of(eqn).runs is not None:
                    return self._moved_back(eqn, var, axis, of, is_old=is_old)
                if eqn.primitive.name == "select_and_scatter_add":
                    return self._unpooled(eqn, axis, of, is_old=is_old)
                if entry_of(eqn).windows is not None and not self._is_dear(eqn, of):
                    return self._slid(eqn, _window_of(eqn, out=axis), of, is_old=is_old)
            except NotByRowsError:
                pass
        if is_old:
            return taken(self._kept(var), axis, of)
        # Elsewhere the value is written in place anyway; in a loop that would be another copy.
        is_at_hand = not self.adds_changes and (eqn is not None or var in self.whole)
        if rows is not None and not is_at_hand and of.ends is None:
            return overlaid(taken(self._kept(var), axis, of), axis, of, rows)
        return taken(self.result(var), axis, of)

    def _is_dear(self, eqn: Equation, of: RowSet) -> bool:
        """Whether to make rows of a result costs more than to keep all of it."""
        facts = self.facts
        num_bytes = _jax.aval_bytes(eqn.outvars[0].aval)
        return facts.seconds(eqn) * of.size > facts.calibration.save_seconds(num_bytes) * of.length

    # --- rows along two axes ----------------------------------------------------------------------

    def _sides(self, atom: Atom) -> Sequence[DirtyRows]:
        """Its dirty rows, along each axis that has some."""
        rows = self._rows(atom)
        if rows is not None:
            return (rows,)
        return self.slabs.get(atom, ()) if isinstance(atom, Var) else ()

    def _cross(self, eqn: Equation) -> bool:
        """Make slabs where rows along different axes meet, as in `x[:, None] - x`, or what follows from
        slabs; whether that can be done. Until something reads all of it, nothing else is made.
        """
        sides = [self._sides(atom) for atom in eqn.invars]
        is_known = all(
            own or not self._is_dirty(a) for own, a in zip(sides, eqn.invars, strict=True)
        )
        if self.adds_changes or not is_known or any(s.of.ends for own in sides for s in own):
            return False
        crossed = crossed_by(eqn, [[side.axis for side in own] for own in sides])
        self.crosses = True
        try:
            if crossed is not None:
                made = [self._slab(eqn, sides, *each) for each in crossed.items()]
                self.dirty[eqn.outvars[0]] = None
                self.slabs[eqn.outvars[0]] = Slabs(*made)
            elif eqn.primitive.name == "reduce_sum" and len(sides[0]) > 1:
                self._sum_slabs(eqn, Slabs(*sides[0]))
            else:
                return False
        except NotByRowsError:
            return False
        finally:
            self.crosses = False
        return True

    def _slab(
        self, eqn: Equation, sides: Sequence[Sequence[DirtyRows]], axis: int, aligned: Aligned
    ) -> DirtyRows:
        """The rows along one axis, each all of the other."""
        pairs = zip(sides, aligned.operands, strict=True)
        of = self._joined([side.of for own, place in pairs for side in own if side.axis == place])
        (new,) = self._on_rows(eqn, aligned, of, is_old=False)
        old = self._on_rows(eqn, aligned, of, is_old=True)[0] if self.asked.old_rows else None
        return DirtyRows(new, old, axis, of)

    def _sum_slabs(self, eqn: Equation, slabs: Slabs) -> None:
        """A sum over one of their axes, or both: the difference of the slab that is summed over. What
        both have counts once; rows that are left are summed anew.
        """
        (total,) = eqn.outvars
        axes = eqn.params["axes"]
        across, along = slabs if slabs.first.axis in axes else reversed(slabs)
        is_left = along.axis not in axes
        summed = lambda x: _jax.apply(eqn, [x])[0]

        def part(is_old: bool) -> Any:
            one, other = (side.old if is_old else side.new for side in (across, along))
            one = self._counted(one, across.axis, across)
            if is_left:
                return summed(one)
            one = _masked(one, along.axis, in_no_row(along.of))
            return lax.add(summed(one), summed(self._counted(other, along.axis, along)))

        self._want_old_rows()
        new, old = part(False), part(True)
        before = self._old(total)
        after = lax.add(before, lax.sub(new, old))
        if is_left:
            axis = along.axis - sum(d < along.axis for d in axes)
            after = with_rows(after, DirtyRows(summed(along.new), None, axis, along.of))
        self._changed(total, before, after, new, old)

    # --- rows to other places ---------------------------------------------------------------------

    def _move(self, eqn: Equation, axis: int) -> None:
        """Rows go to other places of the results."""
        entry = entry_of(eqn)
        assert entry.runs is not None
        for var, runs in zip(eqn.outvars, entry.runs(eqn, axis), strict=True):
            self._check_moves(eqn, runs, axis)
            length = shape_of(var)[axis]
            if any(rows is not None and rows.of.ends for rows in map(self._rows, eqn.invars)):
                self._move_interval(eqn, var, axis, runs)
                continue
            found: list[tuple[DirtyRows, RowSet]] = []
            for run in runs:
                rows = self._rows(eqn.invars[run.operand])
                if rows is not None:
                    found.append((rows, self.sets.moved(rows.of, run, length)))
            places = [place for _, place in found]
            of = places[0] if len(places) == 1 else self.sets.side_by_side(places)
            self._check_size(of, places)

            def put(values: Sequence[Any], places: Sequence[RowSet] = places) -> Any:
                if len(places) == 1:
                    return values[0]
                if is_by_slots(places):
                    return by_slots(places, values, axis)
                return lax.concatenate(values, axis)

            new = put([rows.new for rows, _ in found])
            old = put([rows.old for rows, _ in found]) if self.asked.old_rows else None
            self.dirty[var] = DirtyRows(new, old, axis, of)

    def _check_moves(self, eqn: Equation, runs: Sequence[Run], axis: int) -> None:
        """Raise where an operand that is dirty in other ways than along this axis is moved, or
        fills.
        """
        moved = {run.operand for run in runs}
        for number, atom in enumerate(eqn.invars):
            if isinstance(atom, Var) and atom in self.dirty:
                if number not in moved or self._axis_of(atom) != axis:
                    raise NotByRowsError(_MIXED)

    def _moved_back(self, eqn: Equation, var: Var, axis: int, of: RowSet, *, is_old: bool) -> Any:
        """Rows of a result, from where they were moved."""
        entry = entry_of(eqn)
        assert entry.runs is not None
        runs = [run for run in entry.runs(eqn, axis)[eqn.outvars.index(var)] if run.num]
        self._check_moves(eqn, runs, axis)
        if of.ends is not None:
            return self._interval_back(eqn, axis, runs, of, is_old=is_old)
        sources = []
        values = []
        for run in runs:
            atom = eqn.invars[run.operand]
            source = self.sets.source(of, run, shape_of(atom)[axis])
            sources.append(source)
            values.append(self._rows_of(atom, axis, source, is_old=is_old))
        if sum(run.num for run in runs) < of.length:
            value = lax.broadcast(self.result(eqn.invars[-1]), values[0].shape)
            return by_slots([of, *sources], [value, *values], axis)
        return by_slots(sources, values, axis)

    def _move_interval(self, eqn: Equation, var: Var, axis: int, runs: Sequence[Run]) -> None:
        """An interval goes to the smallest one that has all of its rows."""
        places = []
        for run in runs:
            rows = self._rows(eqn.invars[run.operand])
            if rows is not None:
                if rows.of.ends is None:
                    raise NotByRowsError(_MIXED)
                places.append(places_of(run, rows.of.ends))
        ends = ends_of_all(places)
        if ends is None:
            self.whole[var] = self._stays(var)
            return
        of = self.sets.interval(*ends, shape_of(var)[axis])
        self._check_size(of)
        new = self._interval_back(eqn, axis, runs, of, is_old=False)
        old = None
        if self.asked.old_rows:
            old = self._interval_back(eqn, axis, runs, of, is_old=True)
        self.dirty[var] = DirtyRows(new, old, axis, of)

    def _interval_back(
        self, eqn: Equation, axis: int, runs: Sequence[Run], of: RowSet, *, is_old: bool
    ) -> Any:
        """An interval of a result, from the intervals that were moved there, side by side."""
        assert of.ends is not None
        low, high = of.ends
        fill = self.result(eqn.invars[-1]) if sum(run.num for run in runs) < of.length else None
        parts = []
        for run in runs:
            moved = run.within(low, high)
            if not moved:
                continue
            atom = eqn.invars[run.operand]
            first, last = (run.first + i * run.step for i in (moved[0], moved[-1]))
            ends = min(first, last), max(first, last) + 1
            source = self.sets.interval(*ends, shape_of(atom)[axis])
            part = self._rows_of(atom, axis, source, is_old=is_old)
            part = lax.slice_in_dim(part, 0, None, abs(run.step), axis)
            part = lax.rev(part, (axis,)) if run.step < 0 else part
            if fill is not None:
                first, last = (run.out + i * run.out_step for i in (moved[0], moved[-1]))
                gaps = [(0, 0, 0)] * part.ndim
                gaps[axis] = (first - low, high - 1 - last, run.out_step - 1)
                part = lax.pad(part, fill, gaps)
            parts.append(part)
        if not parts:
            assert fill is not None
            return lax.broadcast(fill, with_item(shape_of(eqn.outvars[0]), axis, of.size))
        return lax.concatenate(parts, axis)

    # --- rows to their neighbours -----------------------------------------------------------------

    def _slide(self, eqn: Equation) -> None:
        """Rows are read by those of the result whose windows they are in."""
        (var,) = eqn.outvars
        operand = eqn.invars[0]
        rows = self._rows(operand)
        if sum(map(self._is_dirty, eqn.invars)) > (rows is not None):
            self._correlate(eqn)
            return
        assert rows is not None
        window = _window_of(eqn, source=rows.axis)
        of = self.sets.reading(rows.of, window, shape_of(var)[window.out])
        if not of.size:
            self.whole[var] = self._stays(var)
            return
        self._check_size(of)
        new = self._slid(eqn, window, of, is_old=False)
        old = self._slid(eqn, window, of, is_old=True) if self.asked.old_rows else None
        self.dirty[var] = DirtyRows(new, old, window.out, of)

    def _slid(self, eqn: Equation, window: Window, of: RowSet, *, is_old: bool) -> Any:
        """Rows of a result, from those that they read."""
        operand, *others = eqn.invars
        if any(map(self._is_dirty, others)):
            raise NotByRowsError("what its windows are weighted with changed, too")
        others = [self.result(atom) for atom in others]
        source = self.sets.read(of, window, shape_of(operand)[window.source])
        value = self._rows_of(operand, window.source, source, is_old=is_old)
        found = windowed(window, of, source, value, others)
        if jnp.shape(found) != with_item(shape_of(eqn.outvars[0]), window.out, of.size):
            raise NotByRowsError("it cannot be run on blocks of rows")
        return found

    def _correlate(self, eqn: Equation) -> None:
        """A convolution summed over the rows of what is its kernel, as the gradient by a kernel is:
        its change.
        """
        if eqn.primitive.name != "conv_general_dilated":
            raise NotByRowsError("its windows read two operands that changed")
        image, kernel = eqn.invars
        rows, taps = self._rows(image), self._rows(kernel)
        found = across(eqn, self._axis_of(image), self._axis_of(kernel))
        if found is None:
            raise NotByRowsError("what its windows are weighted with changed, too")
        window, axis = found
        length = shape_of(kernel)[axis]
        sets = [] if rows is None else [self.sets.reading(rows.of, window, length)]
        of = self._joined([*sets, *([] if taps is None else [taps.of])])
        self._check_size(of)
        source = self.sets.read(of, window, shape_of(image)[window.source])
        known = DirtyRows(None, None, axis, of)

        def part(is_old: bool) -> Any:
            value = self._rows_of(image, window.source, source, is_old=is_old)
            own = self._counted(self._rows_of(kernel, axis, of, is_old=is_old), axis, known)
            return correlated(window, of, source, value, own, axis)

        self._add_difference(eqn, part)

    def _unpool(self, eqn: Equation) -> None:
        """The gradient of a largest or least of each window: the rows of the windows of which a row
        or the gradient changed.
        """
        (var,) = eqn.outvars
        gradient, operand = (self._rows(atom) for atom in eqn.invars)
        axis = next(each.axis for each in (gradient, operand) if each is not None)
        window = self._window_back(eqn, axis)
        count = shape_of(eqn.invars[0])[axis]
        sets = [] if gradient is None else [gradient.of]
        sets += [] if operand is None else [self.sets.reading(operand.of, window, count)]
        of = self.sets.read(self._joined(sets), window, shape_of(var)[axis])
        self._check_size(of)
        old = self._unpooled(eqn, axis, of, is_old=True) if self.asked.old_rows else None
        self.dirty[var] = DirtyRows(self._unpooled(eqn, axis, of, is_old=False), old, axis, of)

    def _window_back(self, eqn: Equation, axis: int) -> Window:
        if any(self._axis_of(atom) not in (None, axis) for atom in eqn.invars):
            raise NotByRowsError(_MIXED)
        return unpooled(eqn, axis)

    def _unpooled(self, eqn: Equation, axis: int, of: RowSet, *, is_old: bool) -> Any:
        """Rows of it, from all windows that they are in, and the rows of these."""
        window = self._window_back(eqn, axis)
        count, length = (shape_of(atom)[axis] for atom in eqn.invars)
        near = self.sets.reading(of, window, count)
        around = self.sets.read(near, window, length)
        values = [
            self._rows_of(atom, axis, own, is_old=is_old)
            for atom, own in zip(eqn.invars, (near, around), strict=True)
        ]

        beside = window.stride + of.width  # rows that are in no window at all
        gaps = [(beside, beside, 0) if d == axis else (0, 0, 0) for d in range(values[0].ndim)]

        def run(gradient: Any, x: Any, offset: Any, first: Any) -> Any:
            found = window.run(gradient, at_places(window, near, around, x, offset))
            found = lax.pad(found, np.zeros((), found.dtype), gaps)
            first = lax.add(first, np.int32(beside))
            return lax.dynamic_slice_in_dim(found, first, of.width, axis)

        firsts = lax.sub(of.firsts, window_of_block(near, window)[0])
        offsets = offsets_of(window, near, around)
        operands = [*((value, axis) for value in values), (offsets, None), (firsts, None)]
        return by_blocks(run, operands, of.num_blocks, axis)

    # --- all rows ---------------------------------------------------------------------------------

    def _old(self, var: Var) -> Any:
        """The baseline's value of a variable; nothing of worth where it was not asked for before."""
        self.asked.olds[var] = None
        return self.olds[var] if var in self.olds else _zeros(var)

    def _kept(self, var: Var) -> Any:
        """The baseline's value of a dirty variable, which is saved for the next call."""
        rows = self._rows(var)
        if var in self.facts.invars:
            return self._old(var)
        if rows is None:
            self.saves[var] = self.result(var)
        else:
            self._written(var, rows)
        return self._old(var)

    def _table(self, var: Var) -> Any:
        """A clean derived value, likewise."""
        self.asked.tables[var] = None
        return self.whole[var] if var in self.whole else _zeros(var)

    def _written(self, var: Var, rows: DirtyRows) -> Any:
        """The baseline's value of a variable with its new rows; that of a leaf may be there."""
        if var not in self.saves and not (var in self.facts.invars and var in self.whole):
            self.saves[var] = self.whole[var] = with_rows(self._old(var), rows)
            self.row_saves[var] = rows
        return self.whole[var]

    def _meet(self, eqn: Equation, rows: DirtyRows) -> None:
        """What reads all rows together, or others."""
        rule = MEETINGS.get(eqn.primitive.name)
        if rule is None:
            raise NotByRowsError(self._why_all(eqn, rows.axis))
        rule(self, eqn, rows)

    def _why_all(self, eqn: Equation, axis: int) -> str:
        """Why an equation without a rule for what reads all rows needs them."""
        if {*map(self._axis_of, eqn.invars)} - {None, axis}:
            return _MIXED
        if eqn.primitive.name == "scan":
            return "rows meet inside, or all of its steps read what changed"
        return _ALL if entry_of(eqn).index else "nothing is known of what its rows depend on"

    def _reduce(self, eqn: Equation, rows: DirtyRows) -> None:
        """A reduction: of a value per row, or, of a sum where these are too large, its change."""
        operand = eqn.invars[0]
        axes = eqn.params["axes"]
        assert isinstance(operand, Var)
        if rows.axis not in axes:
            raise NotByRowsError(_ALL)
        others = tuple(d for d in axes if d != rows.axis)
        if rows.of.ends is not None:
            self._reduce_interval(eqn, rows)
            return
        if self.adds_changes and eqn.primitive.name == "reduce_sum":
            self._add_change_of_rows(eqn, rows)
            return
        if rows.of.parent is not None and eqn.primitive.name == "reduce_sum":
            self._sum_by_ids(eqn, rows, others)
            return
        shape = shape_of(operand)
        if np.prod([size for d, size in enumerate(shape) if d not in others]) > MAX_PARTIAL:
            if eqn.primitive.name != "reduce_sum":
                raise NotByRowsError(
                    "of its rows too much would be kept, and it has no differences"
                )
            self._add_change_of_rows(eqn, rows)
            return
        last = rows
        if others:
            apart = eqn.replace(params={**eqn.params, "axes": others})
            of_rows = lambda x: _jax.apply(apart, [x])[0]
            operand = self.facts.derived.make((eqn.primitive.name, others), [operand], of_rows)
            axis = rows.axis - sum(d < rows.axis for d in others)
            last = DirtyRows(of_rows(rows.new), None, axis, rows.of)
        together = eqn.replace(params={**eqn.params, "axes": (last.axis,)})
        (value,) = _jax.apply(together, [self._written(operand, last)])
        self._set_whole(eqn.outvars[0], value)

    def _reduce_interval(self, eqn: Equation, rows: DirtyRows) -> None:
        """Of an interval: with what the other rows make together, which stays."""
        reduced = lambda x: _jax.apply(eqn, [x])[0]
        rest = self._beside(eqn, [rows.axis], rows.of)
        value = reduced(rows.new)
        if rest is not None:
            both = eqn.replace(params={**eqn.params, "axes": (0,)})
            (value,) = _jax.apply(both, [lax.concatenate([rest[None], value[None]], 0)])
        self._set_whole(eqn.outvars[0], value)

    def _beside(self, eqn: Equation, axes: Sequence[int], of: RowSet) -> Any | None:
        """What an equation makes of all rows beside an interval, along an axis of each operand; None
        where there are none.
        """
        assert of.ends is not None
        low, high = of.ends
        if of.size == of.length:
            return None

        def run(*values: Any) -> Any:
            parts = [
                lax.concatenate(
                    [
                        lax.slice_in_dim(x, 0, low, axis=axis),
                        lax.slice_in_dim(x, high, None, axis=axis),
                    ],
                    axis,
                )
                for x, axis in zip(values, axes, strict=True)
            ]
            return _jax.apply(eqn, parts)[0]

        operands = [atom for atom in eqn.invars if isinstance(atom, Var)]
        kind = ("beside", eqn.outvars[0], low, high)
        return self._stays(self.facts.derived.make(kind, operands, run))

    def _sum_by_ids(self, eqn: Equation, rows: DirtyRows, others: tuple[int, ...]) -> None:
        """A sum over rows that were looked up: of a value per id, with one for those of none."""
        operand = eqn.invars[0]
        members = rows.of
        parent, indices = members.parent, members.indices
        assert parent is not None
        assert isinstance(operand, Var)
        assert isinstance(indices, Var)

        def per_row(x: Any) -> Any:
            x = _moved(x, rows.axis, 0)
            axes = tuple(d + (d < rows.axis) for d in others)
            return lax.reduce_sum(x, axes) if axes else x

        def per_id(x: Any, indices: Any) -> Any:
            x = per_row(x)
            ids = ids_read(jnp, indices, parent.length, clips=members.clips)
            return jnp.zeros((parent.length + 1, *x.shape[1:]), x.dtype).at[ids].add(x)

        kind = ("sum by ids", others, rows.axis, parent.length, members.clips)
        partial = self.facts.derived.make(kind, [operand, indices], per_id)
        sums = DirtyRows(_sums(per_row(rows.new), members, parent), None, 0, parent)
        together = eqn.replace(params={**eqn.params, "axes": (0,)})
        (value,) = _jax.apply(together, [self._written(partial, sums)])
        self._set_whole(eqn.outvars[0], value)

    def _contract(self, eqn: Equation, rows: DirtyRows) -> None:
        """A product of matrices, summed over the rows: its change."""
        is_interval = rows.of.ends is not None
        is_small = self.facts.seconds(eqn) < MIN_PRODUCT_S
        if is_small and not self.adds_changes and not is_interval:
            raise NotByRowsError("all of it takes no longer")
        contracted, _ = eqn.params["dimension_numbers"]
        own = next(n for n, atom in enumerate(eqn.invars) if self._rows(atom) is not None)
        if rows.axis not in contracted[own]:
            raise NotByRowsError(_MIXED)
        place = contracted[own].index(rows.axis)
        axes = [each[place] for each in contracted]
        if any(
            self._axis_of(atom) not in (None, d) for atom, d in zip(eqn.invars, axes, strict=True)
        ):
            raise NotByRowsError(_MIXED)
        operands = lambda is_old: [
            self._counted(self._rows_of(atom, axis, rows.of, is_old=is_old), axis, rows)
            for atom, axis in zip(eqn.invars, axes, strict=True)
        ]
        if is_interval:
            (value,) = _jax.apply(eqn, operands(False))
            rest = self._beside(eqn, axes, rows.of)
            self._set_whole(eqn.outvars[0], value if rest is None else lax.add(rest, value))
            return
        self._add_change(eqn, operands)

    def _add_change_of_rows(self, eqn: Equation, rows: DirtyRows) -> None:
        part = lambda is_old: rows.old if is_old else rows.new
        self._add_change(eqn, lambda is_old: [self._counted(part(is_old), rows.axis, rows)])

    def _add_change(self, eqn: Equation, operands: Callable[[bool], list[Any]]) -> None:
        self._add_difference(eqn, lambda is_old: _jax.apply(eqn, operands(is_old))[0])

    def _add_difference(self, eqn: Equation, part: Callable[[bool], Any]) -> None:
        """S + (sum over the dirty rows now) - (the same at the baseline), which is saved."""
        (total,) = eqn.outvars
        if _jax.is_key_dtype(total.aval.dtype) or total.aval.dtype == np.bool_:
            raise NotByRowsError("of its type there are no differences")
        self._want_old_rows()
        new, old = part(False), part(True)
        before = self._old(total)
        self._changed(total, before, lax.add(before, lax.sub(new, old)), new, old)

    def _changed(self, var: Var, before: Any, after: Any, new: Any, old: Any) -> None:
        """Note a value that was changed by a difference, and when it may be used."""
        self._set_whole(var, after)
        self.drifting.add(var)
        self.saves[var] = after
        self._guard(before, after, new, old)

    def _guard(self, before: Any, after: Any, new: Any, old: Any) -> None:
        if jnp.issubdtype(after.dtype, jnp.inexact):
            lost = lax.max(_largest(before), _largest(old))
            left = lax.max(_largest(after), _largest(new))
            bound = lax.mul(left, np.asarray(MAX_LOST, left.dtype))
            self.guards += [lax.le(lost, bound), lax.is_finite(lost)]

    def _want_old_rows(self) -> None:
        """The rows as they were are computed again, by the next run."""
        if not self.asked.old_rows:
            self.asked.old_rows = True
            raise AgainError

    def _counted(self, value: Any, axis: int, rows: DirtyRows) -> Any:
        """Rows, zero where they repeat others."""
        return _masked(value, axis, rows.of.counts)

    def _accumulate(self, eqn: Equation, rows: DirtyRows) -> None:
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
        of = self.sets.interval(low, high, length)
        self._check_size(of)
        place = high if is_reverse else low - 1
        is_all = of.size == length
        before = [] if is_all else [self._piece(var, axis, place, place + 1)]

        def accumulated(*, is_old: bool) -> Any:
            part = self._rows_of(eqn.invars[0], axis, of, is_old=is_old)
            parts = [part, *before] if is_reverse else [*before, part]
            (found,) = _jax.apply(eqn, [lax.concatenate(parts, axis)])
            first = 0 if is_reverse else len(before)
            return lax.slice_in_dim(found, first, first + of.size, axis=axis)

        old = accumulated(is_old=True) if self.asked.old_rows else None
        self.dirty[var] = DirtyRows(accumulated(is_old=False), old, axis, of)

    # --- loops ------------------------------------------------------------------------------------

    def _resume(self, eqn: Equation) -> bool:
        """Run a scan from the first step that reads something else; whether that can be done.

        Not in compiled loops: under `vmap` each turn would choose between whole buffers.
        """
        loop = None if self.adds_changes else resumable(eqn)
        spans = None if loop is None else self._steps_of(loop)
        if loop is None or spans is None:
            return False
        of_rows = eqn.outvars[loop.num_carry :]
        kept = [var for var in of_rows if not isinstance(var, _jax.DropVar)]
        records = self._records_of(loop)
        num_starts = len(records) - sum(loop.is_sum)
        values = [_typed_literal(self.result(atom), atom) for atom in eqn.invars]
        ys = [self._old(var) if var in kept else _zeros(var) for var in of_rows]
        old = [self._old(var) for var in records]

        def run(values: Any, ys: Any, old: Any, spans: Any) -> Any:
            return loop.resumed(values, ys, Records(old[:num_starts], old[num_starts:]), spans)

        results, made, ran = named(run)(values, ys, old, spans)
        for var, value in zip(eqn.outvars, results, strict=True):
            self._set_whole(var, value)
            if var in kept:
                self.saves[var] = value
                self.spans[var] = (0, ran)
        self.saves.update(zip(records, [*made.starts, *made.sums], strict=True))
        dirty = [n for n, atom in enumerate(eqn.invars) if self._is_dirty(atom)]
        is_endless = loop.remembers(dirty) or (loop.is_reverse and any(x for _, x in self.resumed))
        self.resumed.append((loop, is_endless))
        return True

    def _steps_of(self, loop: Resumable) -> Spans | None:
        """The rows of its operands that changed; None if it reads something else in all steps."""
        found = [Spans(jnp.zeros(0, np.int32), jnp.zeros(0, np.int32))]
        for number, atom in enumerate(loop.eqn.invars):
            if self._is_dirty(atom) and not loop.num_consts <= number < loop.first_row:
                each = self._spans(atom)
                if number < loop.num_consts or each is None or each[0] != 0:
                    return None
                found.append(each[1])
        return joined(found)

    def _records_of(self, loop: Resumable) -> list[Var]:
        """The variables of its records."""
        inputs = list(dict.fromkeys(read_vars(loop.eqn)))
        kept = [n for n, x in enumerate(loop.eqn.outvars) if not isinstance(x, _jax.DropVar)]

        def run(*values: Any) -> Any:
            env = dict(zip(inputs, values, strict=True))
            results, made = loop.recorded([_jax.read(atom, env) for atom in loop.eqn.invars])
            return [results[n] for n in kept], [*made.starts, *made.sums]

        return self.facts.derived.make_together([loop.eqn.outvars[n] for n in kept], inputs, run)

    # --- look-ups ---------------------------------------------------------------------------------

    def _look_up(self, eqn: Equation, rows: DirtyRows) -> None:
        """`x[ids]`, x dirty in some rows: dirty where ids are those, read from a table."""
        operand, indices = eqn.invars
        if self._rows(operand) is None or self._rows(indices) is not None:
            raise NotByRowsError("its indices changed, too")
        batch = batch_of(eqn, rows.axis)
        length = shape_of(indices)[0]
        if rows.of.parent is not None or rows.of.is_from_list:
            members = self._members_listed(eqn, rows.of, length)
            read = functools.partial(self._looked_up_at, eqn, batch, members)
            old = read(is_old=True) if self.asked.old_rows else None
            self.dirty[eqn.outvars[0]] = DirtyRows(read(is_old=False), old, batch, members)
            return
        members = self._members(eqn, rows.of, length)
        new, old = (
            None if value is None else _repeated(value, rows.axis, batch, members.size)
            for value in (rows.new, rows.old)
        )
        self.dirty[eqn.outvars[0]] = DirtyRows(new, old, batch, members)

    def _looked_up_at(self, eqn: Equation, axis: int, of: RowSet, *, is_old: bool) -> Any:
        """Rows of `x[ids]`, x dirty in some rows: those of x that the ids of these rows name."""
        operand, indices = eqn.invars
        rows = self._rows(operand)
        if rows is None or batch_of(eqn, rows.axis) != axis or self._rows(indices) is not None:
            raise NotByRowsError(_MIXED)
        length = rows.of.length
        clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
        assert isinstance(indices, Var)
        is_some_row = clips or (
            self._are_fixed(indices) and np.all(self._ids_of(indices, length) < length)
        )
        if not is_some_row:
            raise NotByRowsError("its indices are not known before it runs")
        key = (indices, "ids", of, length)
        if key not in self.rows_at:
            ids = ids_read(jnp, self._rows_of(indices, 0, of, is_old=False), length, clips=clips)
            self.rows_at[key] = RowSet(ids, of.size, length, of.counts, has_spare=True)
        places = self.rows_at[key]
        return _moved(self._rows_of(operand, rows.axis, places, is_old=is_old), rows.axis, axis)

    def _ids_of(self, indices: Var, length: int, *, clips: bool = False) -> np.ndarray:
        """The present indices of a look-up."""
        with jax.ensure_compile_time_eval():  # else it would be part of what is traced
            value = self.value_of(indices)
        if value is None:
            raise NotByRowsError("its indices are not known before it runs")
        return ids_read(np, value, length, clips=clips)

    def _members_listed(self, eqn: Equation, of: RowSet, length: int) -> RowSet:
        """The same where the others are many, for each argument different ones: from a list."""
        indices = eqn.invars[1]
        if not isinstance(indices, Var) or not self._are_fixed(indices):
            raise NotByRowsError("it looks up what was looked up, by indices that may change")
        clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
        found = listed_members(of, self._ids_of(indices, of.length, clips=clips))
        if found is None:
            raise NotByRowsError("it looks up what was looked up, by indices that may change")
        if not _is_few(found.numbers.shape[1], length):
            raise _too_many(found.numbers.shape[1], length)
        return self.sets.from_list(found, length)

    def _members(self, eqn: Equation, of: RowSet, length: int) -> RowSet:
        """The rows of indices that are among some others."""
        indices = eqn.invars[1]
        if not isinstance(indices, Var) or of.parent is not None:
            raise NotByRowsError("it looks up what was looked up")
        key = (indices, "members", of)
        if key in self.rows_at:
            return self.rows_at[key]
        mode = eqn.params["mode"]
        clips = mode == lax.GatherScatterMode.CLIP
        ids = self._ids_of(indices, of.length, clips=clips)
        width = int(np.bincount(ids, minlength=of.length + 1)[:-1].max(initial=1))
        if not _is_few(width * of.size, length):
            raise _too_many(width * of.size, length)
        kind = ("members", of.length, width, clips)
        make = functools.partial(member_table, length=of.length, width=width, clips=clips)
        aval = _jax.array_aval((of.length, width), np.int32)
        recipe = HostRecipe(indices, make)
        table = self.facts.derived.make_on_host(kind, aval, recipe)
        if not self._are_fixed(indices):
            make = functools.partial(_fits, length=of.length, width=width, clips=clips)
            recipe = HostRecipe(indices, make)
            fits = self.facts.derived.make_on_host(("fits", *kind), _jax.bool_aval(), recipe)
            self.guards.append(self._table(fits))
        width = min(width, self.widths.get(table, width))
        numbers_of = lax.slice_in_dim(taken(self._table(table), 0, of), 0, width, axis=1)
        if of.has_spare:  # no row has no members
            is_row = lax.broadcast_in_dim(of.is_row, (of.size, width), (0,))
            numbers_of = lax.select(is_row, numbers_of, lax.full_like(numbers_of, length))
        numbers = lax.reshape(numbers_of, (of.size * width,))
        counts = lax.broadcast_in_dim(of.counts, (of.size, width), (0,))
        counts = lax.bitwise_and(
            lax.reshape(counts, numbers.shape), lax.lt(numbers, np.int32(length))
        )
        listed = listed_members(of, ids) if self._are_fixed(indices) else None
        found = RowSet(
            numbers, of.size * width, length, counts, True, of, indices, clips, listed=listed
        )
        self.looked_up[table] = found
        self.rows_at[key] = found
        return found

    def _add_back(self, eqn: Equation, rows: DirtyRows) -> None:
        """`zeros.at[ids].add(x)`: by the ids of a look-up, the sum over each id's rows; by others,
        the change.
        """
        into, indices, updates = eqn.invars
        of = rows.of
        if self._rows(updates) is None or self._rows(indices) is not None:
            raise NotByRowsError("its indices changed, too")
        windows = windows_of(eqn)
        is_back = of.parent is not None and of.indices is indices and self._rows(into) is None
        if is_back and len(windows.indexed) == 1 and windows.batch == (rows.axis,):
            (axis,) = windows.indexed
            if windows.collapsed != (axis,) or windows.batching:
                raise NotByRowsError("an index stands for more than one row")
            self._sum_of_members(eqn, rows, axis)
        elif self._rows(into) is None and windows.batch == (rows.axis,) and not windows.batching:
            self._scatter_change(eqn, rows)
        else:
            raise NotByRowsError(
                "what it adds to changed, too, or an index stands for more than one row"
            )

    def _sum_of_members(self, eqn: Equation, rows: DirtyRows, axis: int) -> None:
        parent = rows.of.parent
        assert parent is not None
        base = self._rows_of(eqn.invars[0], axis, parent, is_old=False)

        def summed(value: Any) -> Any:
            sums = _sums(_moved(value, rows.axis, 0), rows.of, parent)
            return lax.add(base, _moved(sums, 0, axis))

        old = None if rows.old is None else summed(rows.old)
        self.dirty[eqn.outvars[0]] = DirtyRows(summed(rows.new), old, axis, parent)

    def _scatter_change(self, eqn: Equation, rows: DirtyRows) -> None:
        """`x.at[ids].add(r)`, r dirty in some rows: the change of the rows that these name, or, where
        they are too many, of all.
        """
        self._want_old_rows()
        _, indices, _ = eqn.invars
        (total,) = eqn.outvars
        places = self._rows_of(indices, 0, rows.of, is_old=False)
        new, old = (self._counted(value, rows.axis, rows) for value in (rows.new, rows.old))
        change = lax.sub(new, old)
        before = self._old(total)
        axis = added_axis(eqn)
        size = rows.of.size
        if axis is None or size > min(MAX_JOINED, MAX_TABLE_SHARE * shape_of(total)[axis]):
            (after,) = _jax.apply(eqn, [before, places, change])
            self._changed(total, before, after, new, old)
            return
        clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
        of, same = grouped(
            ids_read(jnp, places, shape_of(total)[axis], clips=clips), shape_of(total)[axis]
        )
        change = _moved(change, rows.axis, 0)
        sums = lax.dot_general(same.astype(change.dtype), change, (((1,), (0,)), ((), ())))
        rows_before = taken(before, axis, of)
        rows_after = lax.add(rows_before, _moved(sums, 0, axis))
        found = DirtyRows(rows_after, rows_before, axis, of)
        self.drifting.add(total)
        self.dirty[total] = found
        self._written(total, found)
        self._guard(rows_before, rows_after, new, old)


def window_at(eqn: Equation, axis: int | None) -> Window | None:
    """The window along an axis of the operand, if there is one."""
    find = entry_of(eqn).windows
    return next((x for x in find(eqn) if x.source == axis), None) if find else None


def _window_of(eqn: Equation, *, source: int | None = None, out: int | None = None) -> Window:
    """The window along an axis of the operand, or of the result.

    Raises:
        NotByRowsError: there is none.
    """
    find = entry_of(eqn).windows
    assert find is not None
    for window in find(eqn):
        if source == window.source or out == window.out:
            return window
    raise NotByRowsError("its windows are not along the rows")


def added_axis(eqn: Equation) -> int | None:
    """The axis of which each index of a scatter names one entry, all of it; None if there is none."""
    windows = windows_of(eqn)
    if len(windows.indexed) != 1 or windows.collapsed != windows.indexed or windows.batching:
        return None
    (axis,) = windows.indexed
    sizes = list(windows.shape)
    sizes[axis] = 1
    return axis if list(windows.sizes) == sizes else None


_ALL = "each row of its result depends on all rows"
_MIXED = "rows meet along different axes"


def _too_many(num_rows: int, length: int) -> NotByRowsError:
    found = f"{min(num_rows, length)} of {length} rows would run"
    return NotByRowsError(f"{found}, which is too many to be told apart")


def _is_few(num_rows: int, length: int) -> bool:
    """Whether to run that many rows of an axis, rather than all: one always, as where the levels of
    a tree get short there are long ones behind.
    """
    return num_rows <= max(1, MAX_TABLE_SHARE * length)


class AgainError(Exception):
    """A run found out that it needs what it was not given."""


MEETINGS: dict[str, Callable[[Slicer, Equation, DirtyRows], None]] = {
    **dict.fromkeys(REDUCTIONS, Slicer._reduce),
    "dot_general": Slicer._contract,
    "gather": Slicer._look_up,
    "scatter-add": Slicer._add_back,
    **dict.fromkeys(RUNNING, Slicer._accumulate),
}


# --- values ---------------------------------------------------------------------------------------


def _typed_literal(value: Any, atom: Atom) -> Any:
    """A value; of a literal, an array of its dtype."""
    return jnp.asarray(value, atom.aval.dtype) if isinstance(atom, Literal) else value


def _zeros(var: Var) -> Any:
    return jnp.zeros(var.aval.shape, var.aval.dtype)


def _masked(value: Any, axis: int, mask: Any) -> Any:
    """Zero where the mask of an axis is false."""
    mask = lax.broadcast_in_dim(mask, jnp.shape(value), (axis,))
    return lax.select(mask, value, lax.full_like(value, 0))


def _largest(value: Any) -> Any:
    """The largest absolute value."""
    size = lax.abs(value)
    return lax.reduce_max(size, tuple(range(size.ndim)))


def _moved(value: Any, source: int, target: int) -> Any:
    """With an axis in another place."""
    order = [d for d in range(value.ndim) if d != source]
    order.insert(target, source)
    return value if order == sorted(order) else lax.transpose(value, order)


def _repeated(value: Any, axis: int, target: int, count: int) -> Any:
    """Each row so often that there are `count` of them, along another axis."""
    value = _moved(value, axis, 0)
    number, *rest = value.shape
    spread = (number, count // number, *rest)
    value = lax.broadcast_in_dim(value, spread, (0, *range(2, len(spread))))
    return _moved(lax.reshape(value, (count, *rest)), 0, target)


def _sums(value: Any, members: RowSet, parent: RowSet) -> Any:
    """The sum over each id's rows, these along the first axis."""
    # Not `counts`: what repeats an id is to have its sum, too.
    value = _masked(value, 0, lax.lt(members.numbers, np.int32(members.length)))
    shape = (parent.size, members.size // parent.size, *value.shape[1:])
    return lax.reduce_sum(lax.reshape(value, shape), (1,))


def batch_of(eqn: Equation, axis: int) -> int:
    """The axis of a gather's result that has an entry for each index of an axis of the operand.

    Raises:
        NotByRowsError: it reads windows that are more than one such entry, or not all of another
            axis.
    """
    windows = windows_of(eqn)
    is_plain = windows.indexed == (axis,) == windows.collapsed and not windows.batching
    others = [d for d in range(len(windows.shape)) if d != axis]
    is_whole = all(windows.place_of(d) is not None for d in others)
    if not is_plain or not is_whole or len(windows.batch) != 1:
        raise NotByRowsError("an index stands for more, or for less, than one row")
    return windows.batch[0]


def member_table(indices: np.ndarray, length: int, width: int, *, clips: bool) -> np.ndarray:
    """For each id, the numbers of the rows that have it, in `width` slots; int32 of shape
    (length, width). Spare slots hold the number of rows; more rows than slots are left out.
    """
    ids = ids_read(np, indices, length, clips=clips)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    starts = np.searchsorted(ids[order], np.arange(length + 1))
    slots = starts[:-1, None] + np.arange(width)
    is_there = slots < starts[1:, None]
    found = order[np.minimum(slots, ids.size - 1)]
    return np.where(is_there, found, np.int32(ids.size))


def _fits(indices: np.ndarray, length: int, width: int, *, clips: bool) -> np.ndarray:
    """Whether no id has more rows than there are slots."""
    ids = ids_read(np, indices, length, clips=clips)
    return np.asarray(np.bincount(ids, minlength=length + 1)[:-1].max() <= width)


# --- the plan -------------------------------------------------------------------------------------


def value_at(facts: Facts, feeds: Sequence[Any]) -> ValueOf:
    """The values of variables where the inputs are these; with NumPy, where that is known, as it
    compiles nothing.
    """

    def value_of(var: Var) -> np.ndarray:
        program = facts.program
        env: dict[Var, Any] = dict(zip(program.invars, feeds, strict=True))
        env.update(zip(program.constvars, program.consts, strict=True))
        for eqn in plan_fill(facts.unmeasured, [var], lambda _: False).eqns:
            constant = entry_of(eqn).constant
            if constant is None:
                _jax.evaluate([eqn], env)
            else:
                values = [np.asarray(_jax.read(atom, env)) for atom in eqn.invars]
                env[eqn.outvars[0]] = constant(*values, **eqn.params)
        return np.asarray(env[var])

    return value_of


def can_slice(facts: Facts) -> bool:
    """Whether changes of rows may have plans: not where equations have effects or call the host."""
    return not (facts.has_effects or facts.calls_host or facts.is_minimal or facts.is_explicit)


def slice_plan(
    facts: Facts,
    leaves: Sequence[int],
    capacity: int,
    value_of: ValueOf = lambda _: None,
    *,
    within: int = 0,
) -> Plan:
    """The plan for a change of at most `capacity` rows of some leaves, along their first axes; or of
    any among the last `within` ones, or, below 0, among the first.

    `value_of` is asked for indices of look-ups.

    Cost: traces the equations that the change reaches, two or three times.
    """
    dirty = sum(facts.layout.leaf_mask(leaf) for leaf in leaves)
    outputs = facts.dirty_outputs(dirty)
    traced = _Tracing(facts, tuple(leaves), capacity, within, dirty, outputs, value_of).trace()
    read = dict.fromkeys(var for eqn in traced.eqns for var in read_vars(eqn))
    written = {var for eqn in traced.eqns for var in written_vars(eqn)}
    extra = {traced.sliced.numbers, *traced.sliced.olds}
    needed = [var for var in read if var not in written and var not in extra]
    tables = traced.sliced.tables
    frontier = choose_frontier(
        facts.listing,
        [var for var in needed if var not in tables],
        (),
        lambda var: facts.load_seconds(var) + NEW_VALUE_S if facts.is_saveable(var) else None,
        lambda number: facts.seconds(facts.eqns[number]),
    )
    ran = (*(facts.eqns[number] for number in frontier.run), *traced.eqns)
    base_loads = (*frontier.load, *tables)
    loads = (*base_loads, *(var for var in read if var in extra))
    written = (_jax.aval_bytes(var.aval) for var in traced.written)
    moved_s = sum(map(facts.load_seconds, loads))
    moved_s += sum(map(facts.calibration.save_seconds, written))
    seconds = moved_s + sum(
        _in_place_seconds(facts, eqn) for eqn in ran if eqn.params.get("name") != NAME
    )
    return Plan(
        dirty,
        loads,
        ran,
        traced.saves,
        outputs,
        seconds,
        base_loads,
        traced.guard,
        sliced=replace(
            traced.sliced,
            num_eqns=traced.sliced.num_eqns + len(frontier.run),
            moved_s=moved_s,
        ),
    )


def _in_place_seconds(facts: Facts, eqn: Equation) -> float:
    """Estimated seconds of an equation of a plan for rows: what writes some of them writes no others.
    That the value is copied before, once, is counted with what is saved.
    """
    update = UPDATES.get(eqn.primitive.name)
    if update is None:
        return facts.seconds(eqn)
    return 2.0 * facts.calibration.read_s * _jax.aval_bytes(eqn.invars[update].aval)


def ends_of(within: int, length: int) -> tuple[int, int]:
    """The first and the last but one of so many rows at the end of an axis; below 0, its begin."""
    return (length - within, length) if within > 0 else (0, -within)


def priming_saves(facts: Facts, plan: Plan) -> list[Var]:
    """What a plan for rows reads besides inputs, outputs and tables."""
    assert plan.sliced is not None
    given = {atom for atom in (*facts.outvars, *facts.invars) if isinstance(atom, Var)}
    read = [*plan.sliced.olds.values(), *plan.base_loads]
    return [var for var in read if var not in given and var not in plan.sliced.tables]


class _RowProgram(NamedTuple):
    """Equations on rows, what they save, what of that and of the outputs is written, what must hold,
    and what they take.
    """

    eqns: tuple[Equation, ...]
    saves: tuple[Var, ...]
    written: tuple[Var, ...]
    guard: Var | None
    sliced: Sliced


class _Tracing(NamedTuple):
    """What is traced: see `slice_plan`."""

    facts: Facts
    leaves: tuple[int, ...]
    capacity: int
    within: int
    dirty: int
    outputs: tuple[int, ...]
    value_of: ValueOf

    def trace(self) -> _RowProgram:
        """Once to find out which values are read, then with these as arguments."""
        slicer = Slicer(self.facts, self.value_of)
        while True:
            asked = slicer.asked
            slicer.asked = _Asked(old_rows=asked.old_rows)
            try:
                found = self._run(slicer, asked)
            except AgainError:
                continue
            if slicer.asked == asked:
                return found

    def _run(self, slicer: Slicer, asked: _Asked) -> _RowProgram:
        facts = self.facts
        targets = self._targets
        reached = reached_equations(facts, self.dirty, targets)
        moved = [facts.invars[leaf] for leaf in self.leaves]
        length = moved[0].aval.shape[0]
        known = [*moved, *self._clean]
        numbers = _jax.new_var(_jax.array_aval((self.capacity,), np.int32))
        names = {var: _jax.new_var(var.aval) for var in asked.olds}
        guard = _jax.new_var(_jax.bool_aval())
        results: dict[Var, Any] = {}

        def fun(*values: Any) -> list[Any]:
            at_hand = dict(zip([*known, *asked.tables], values, strict=False))
            olds = dict(zip(asked.olds, values[len(at_hand) : -1], strict=True))
            rows = row_set(values[-1], self.capacity, length)
            if self.within:
                rows = interval(*ends_of(self.within, length), length)
            changes = {var: (taken(at_hand[var], 0, rows), rows) for var in moved}
            slicer.run(reached, at_hand, olds, changes)
            results.update({var: slicer.result(var) for var in targets})
            results.update(slicer.saves)
            if slicer.guards:
                results[guard] = functools.reduce(lax.bitwise_and, slicer.guards)
            return list(results.values())

        inputs = [*known, *asked.tables, *names.values(), numbers]
        body = _jax.trace_body(fun, *map(_type_of, inputs))
        eqns = written_by(body, inputs, list(results))
        seconds_of = {False: 0.0, True: 0.0}
        for loop, is_endless in slicer.resumed:
            price = loop.price if is_endless else 1.0
            seconds_of[is_endless] += price * facts.seconds(loop.eqn)
        sliced = Sliced(
            self.leaves,
            self.capacity,
            length,
            numbers,
            {name: var for var, name in names.items()},
            len(reached),
            tuple(slicer.made),
            tuple(asked.tables),
            tuple(loop.eqn for loop, _ in slicer.resumed),
            seconds_of[False],
            seconds_of[True],
            self.within,
        )
        returned = set(targets)
        saves = tuple(var for var in slicer.saves if var not in returned)
        written = tuple(slicer.saves)
        return _RowProgram(eqns, saves, written, guard if slicer.guards else None, sliced)

    @property
    def _targets(self) -> list[Var]:
        """The outputs that equations write."""
        atoms = dict.fromkeys(self.facts.outvars[i] for i in self.outputs)
        return [atom for atom in atoms if isinstance(atom, Var) and atom not in self.facts.invars]

    @property
    def _clean(self) -> list[Var]:
        program = self.facts.program
        written = (var for eqn in program.eqns for var in written_vars(eqn))
        known = (*program.invars, *program.constvars, *written)
        return [var for var in known if not self.facts.mask(var) & self.dirty]


def _type_of(var: Var) -> Any:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
