"""The equations that a change of rows reaches, run on these rows while JAX traces them.

In: equations, the new rows of inputs. Out: what of each variable is dirty, values to be saved, what
must hold. An equation that maps rows to rows runs on the dirty ones; where rows meet, rules say what
is made: `moved_rows`, `looked_up_rows`, `met_rows`, `weighted_rows`; a scan is resumed (`resumed`); all
else runs as a whole, and the report says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.plan.environment import MIXED, InSpans, RowEnvironment, zeros_of
from incrax.engine.plan.looked_up_rows import arranged_rows, looked_up_at
from incrax.engine.plan.met_rows import EACH_READS_ALL, MEETINGS, cross
from incrax.engine.plan.moved_rows import move, moved_back, slid, slide, unpool, unpooled, window_of
from incrax.engine.plan.plan import Extent, Made
from incrax.engine.plan.resumed import (
    Records,
    Resumable,
    Spans,
    named,
    resumable,
    union_of,
)
from incrax.engine.plan.row_sets import (
    DirtyRows,
    FromList,
    RowSet,
    as_argument,
    overlaid,
    taken,
)
from incrax.engine.plan.weighted_rows import weigh
from incrax.primitives.on_rows import (
    Aligned,
    NotByRowsError,
    aligned_back,
    aligned_by,
    runs_along,
)
from incrax.primitives.row_axis import Axes
from incrax.primitives.table import entry_of

MAX_PULLED = 64
"""Equations run for the rows of one operand where different sets meet, before the operand is kept."""

MIN_OVERLAID_BYTES = 2**17
"""Bytes of a value from which on rows of it are those of the baseline, over which new ones are laid."""


def way_of(eqn: Equation, axes: Axes) -> tuple[str, Any]:
    """What an equation does with rows along these axes of its operands, the first that is so, and what
    tells where they go: it maps them to rows, moves them, slides windows over them, distributes along
    windows ("unpools"), or makes them meet.
    """
    aligned = aligned_by(eqn, axes)
    if aligned is not None:
        return "maps", aligned
    runs = runs_along(eqn, next(axis for axis in axes if axis is not None))
    if runs is not None:
        return "moves", runs
    if entry_of(eqn).windows is not None:
        return "slides", None
    if eqn.primitive.name == "select_and_scatter_add":
        return "unpools", None
    return "meets", None


class Slicer(RowEnvironment):
    """One run after the other, until each knows what it reads.

    `made` says what became of each equation, `resumed` has the scans that were resumed, and whether
    their carry will never be the same again.
    """

    made: list[Made]
    resumed: list[tuple[Resumable, bool]]
    num_pulled: int

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
        self.begin(known, olds)
        self.made = []
        self.resumed = []
        for var, change in changes.items():
            self.dirty[var] = None if change is None else self._changed_rows(var, *change)
        for eqn in reached:
            self.made.append(self._made(eqn))
            if not self.drifting.isdisjoint(read_vars(eqn)):
                self.drifting.update(eqn.outvars)

    def _changed_rows(self, var: Var, new: Any, rows: RowSet) -> DirtyRows:
        """The dirty rows of an input."""
        if rows.ends is not None:
            rows = self.sets.interval(*rows.ends, rows.length)
        elif self.adds_changes:  # elsewhere a list would be a constant of the program
            rows = as_argument(rows)
        self.num_changed = rows.size
        old = taken(self.baseline(var), 0, rows) if self.asked.old_rows else None
        return DirtyRows(new, old, 0, rows)

    def _made(self, eqn: Equation) -> Made:
        """Make what an equation writes; what became of it."""
        read = self._extents(eqn.invars)
        with _jax.at_source_of(eqn):
            why_all = self._step(eqn)
        made = self._extents(eqn.outvars)
        atoms = (*eqn.invars, *eqn.outvars)
        factors = [term.rows for atom in atoms for term in self.put_off_as(atom) if term.rows]
        is_put_off = any(map(self.put_off_as, eqn.outvars))
        return Made(eqn, read or self._extents(factors), made, why_all, is_put_off)

    def _step(self, eqn: Equation) -> str:
        """Make what an equation writes, on rows, or from the first of them on; else, why on all."""
        dirty = list(filter(self.is_dirty, read_vars(eqn)))
        rows = [each for each in map(self.rows, dirty) if each is not None]
        self.num_pulled = 0
        if not dirty:  # of what no row reaches, though the loop that makes it is reached
            self.whole.update(zip(eqn.outvars, self.results(eqn), strict=True))
            return "no row reaches it"
        try:
            if len(rows) < len(dirty):
                also = "it also reads what" if rows else "what it reads"
                raise NotByRowsError(f"{also} changed as a whole")
            way, found = way_of(eqn, list(map(self.axis_of, eqn.invars)))
            if way == "maps":
                self._map(eqn, found, self.union([each.of for each in rows]))
            elif way == "moves":
                move(self, eqn, rows[0].axis)
            elif way == "slides":
                slide(self, eqn)
            elif way == "unpools":
                unpool(self, eqn)
            else:
                self._meet(eqn, rows)
        except NotByRowsError as error:
            if not (self._resume(eqn) or cross(self, eqn) or weigh(self, eqn)):
                self._run_whole(eqn)
                return str(error)
        return ""

    def _extents(self, atoms: Sequence[Atom]) -> tuple[Extent, ...]:
        """Of the first that has dirty rows."""
        sides = next(filter(None, map(self.sides, atoms)), ())
        return tuple(Extent(side.of.size, side.of.length, side.axis) for side in sides)

    def _meet(self, eqn: Equation, rows: Sequence[DirtyRows]) -> None:
        """What reads all rows together, or others."""
        if any(each.of is not rows[0].of for each in rows):
            raise NotByRowsError("different rows meet, of which each reaches all others")
        if eqn.primitive.name not in MEETINGS:
            raise NotByRowsError(self._why_all(eqn, rows[0].axis))
        MEETINGS[eqn.primitive.name](self, eqn, rows[0])

    def _why_all(self, eqn: Equation, axis: int) -> str:
        """Why an equation without a rule for what reads all rows needs them."""
        if {*map(self.axis_of, eqn.invars)} - {None, axis}:
            return MIXED
        if eqn.primitive.name == "scan":
            return "rows meet inside, or all of its steps read what changed"
        return (
            EACH_READS_ALL if entry_of(eqn).index else "nothing is known of what its rows depend on"
        )

    # --- rows to rows -----------------------------------------------------------------------------

    def _map(self, eqn: Equation, aligned: Aligned, of: RowSet) -> None:
        """Each row of the results is made of that row of the operands."""
        new, old = self.now_and_then(lambda: self.on_rows(eqn, aligned, of))
        own = [side.of for atom in eqn.invars for side in self.sides(atom)]
        if isinstance(of.origin, FromList) and of not in own:
            self.united.update(eqn.outvars)
        before = old or [None] * len(new)
        for var, axis, now, then in zip(eqn.outvars, aligned.outputs, new, before, strict=True):
            if axis is not None:
                self.dirty[var] = DirtyRows(now, then, axis, of)
            elif var not in self.whole:  # no row reaches it, inside a loop
                self.whole[var] = now

    def derived(self, kind: Any, inputs: Sequence[Var], fun: Callable[..., Any]) -> Var:
        """The variable that a function makes of others, run like an equation of the program."""
        recipes = self.derived_values.recipes
        var = self.derived_values.make(kind, inputs, fun)
        for number, eqn in enumerate(recipes[var], 1):
            if not any(made in self.dirty or made in self.whole for made in eqn.outvars):
                # What is made on the way may have to be kept, too.
                recipes.update(dict.fromkeys(eqn.outvars, recipes[var][:number]))
                self.writer.update(dict.fromkeys(eqn.outvars, eqn))
                self._step(eqn)
        return var

    def pulled(self, var: Var, axis: int, of: RowSet) -> Any:
        """Rows of a variable, made of rows of what it is made of, where that is by rows: it costs
        little, and needs no value of all rows to be kept.
        """
        eqn = self.writer.get(var)
        rows = self.rows(var)
        is_whole = var in self.dirty and rows is None
        # In a tree the other branches begin behind a union: of all of them rows would be made.
        is_kept = rows is not None and rows.of.is_kept
        is_end = is_whole or is_kept or var in self.united
        if eqn is not None and not is_end and self.num_pulled < MAX_PULLED:
            self.num_pulled += 1
            with contextlib.suppress(NotByRowsError):
                return self._pulled_through(eqn, var, axis, of)
        return self._rows_at_hand(var, axis, of)

    def _pulled_through(self, eqn: Equation, var: Var, axis: int, of: RowSet) -> Any:
        """Rows of what an equation writes, from rows that it reads.

        Raises:
            NotByRowsError: they are not made so, or to keep all costs less.
        """
        aligned = aligned_back(eqn, axis)
        is_batch = aligned is not None and aligned.operands[0] is not None
        if eqn.primitive.name == "gather" and self.rows(eqn.invars[0]) and not is_batch:
            return looked_up_at(self, eqn, axis, of)
        if aligned is not None:
            made = self.on_rows(eqn, aligned, of)
            return made[eqn.outvars.index(var)]
        if runs_along(eqn, axis) is not None:
            return moved_back(self, eqn, var, axis, of)
        if eqn.primitive.name == "select_and_scatter_add":
            return unpooled(self, eqn, axis, of)
        if entry_of(eqn).windows is None or self._is_dear(eqn, of):
            raise NotByRowsError
        return slid(self, eqn, window_of(eqn, out=axis), of)

    def _rows_at_hand(self, var: Var, axis: int, of: RowSet) -> Any:
        """Rows of a variable that are not made of others."""
        if self.was_other(var):
            return taken(self.kept(var), axis, of)
        eqn = self.writer.get(var)
        rows = self.rows(var)
        arranged = arranged_rows(self, var, axis, of) if eqn is None and rows is None else None
        if arranged is not None:
            return arranged
        # A value that is read where it was written is copied first, in a loop and where it is large.
        is_small = eqn is not None and _jax.aval_bytes(var.aval) < MIN_OVERLAID_BYTES
        is_there = var in self.whole and var not in self.row_saves
        is_at_hand = not self.adds_changes and (is_small or is_there)
        if rows is not None and not is_at_hand and of.ends is None:
            return overlaid(taken(self.kept(var), axis, of), axis, of, rows)
        return taken(self.result(var), axis, of)

    def _is_dear(self, eqn: Equation, of: RowSet) -> bool:
        """Whether to make rows of a result costs more than to keep all of it."""
        facts = self.facts
        num_bytes = _jax.aval_bytes(eqn.outvars[0].aval)
        return facts.seconds(eqn) * of.size > facts.calibration.save_seconds(num_bytes) * of.length

    # --- all rows ---------------------------------------------------------------------------------

    def _run_whole(self, eqn: Equation) -> None:
        for var, value in zip(eqn.outvars, self.results(eqn), strict=True):
            self.set_whole(var, value)
        if not self.adds_changes:  # where no loop asks
            self._hand_on_spans(eqn)

    def _hand_on_spans(self, eqn: Equation) -> None:
        """Which rows of its results changed, where it maps rows to rows."""
        found = [self.spans(atom) for atom in eqn.invars]
        known = [each.spans for each in found if each is not None]
        if len(known) < sum(map(self.is_dirty, eqn.invars)):
            return
        aligned = aligned_by(eqn, [None if each is None else each.axis for each in found])
        if aligned is None:
            return
        spans = union_of(known)
        for var, axis in zip(eqn.outvars, aligned.outputs, strict=True):
            if axis is not None:
                self.dirty[var] = InSpans(axis, spans)

    # --- loops ------------------------------------------------------------------------------------

    def _resume(self, eqn: Equation) -> bool:
        """Run a scan from the first step that reads something else; whether that can be done.

        Not in compiled loops: under `vmap` each turn would choose between whole buffers.
        """
        loop = None if self.adds_changes else resumable(eqn)
        spans = None if loop is None else self._steps_of(loop)
        if loop is None or spans is None:
            return False
        self._run_from(loop, spans)
        dirty = [n for n, atom in enumerate(eqn.invars) if self.is_dirty(atom)]
        is_endless = loop.remembers(dirty) or (loop.is_reverse and any(x for _, x in self.resumed))
        self.resumed.append((loop, is_endless))
        return True

    def _run_from(self, loop: Resumable, spans: Spans) -> None:
        """Make the results of a scan of which these rows changed, and its records."""
        eqn = loop.eqn
        _, of_rows = loop.scan.split_results(eqn.outvars)
        kept = [var for var in of_rows if not isinstance(var, _jax.DropVar)]
        records = self._records_of(loop)
        num_starts = len(records) - sum(loop.is_sum)
        values = [_typed_literal(self.result(atom), atom) for atom in eqn.invars]
        ys = [self.baseline(var) if var in kept else zeros_of(var) for var in of_rows]
        old = [self.baseline(var) for var in records]

        def run(values: Any, ys: Any, old: Any, spans: Any) -> Any:
            return loop.resumed(values, ys, Records(old[:num_starts], old[num_starts:]), spans)

        results, made, ran = named(run)(values, ys, old, spans)
        for var, value in zip(eqn.outvars, results, strict=True):
            self.set_whole(var, value)
            if var in kept:
                self.saves[var] = value
                self.dirty[var] = InSpans(0, ran)
        self.saves.update(zip(records, [*made.carries, *made.sums], strict=True))

    def _steps_of(self, loop: Resumable) -> Spans | None:
        """The rows of its operands that changed; None if it reads something else in all steps."""
        consts, _, rows = loop.scan.split(loop.eqn.invars)
        found = [self.spans(atom) for atom in rows if self.is_dirty(atom)]
        known = [each.spans for each in found if each is not None and each.axis == 0]
        if any(map(self.is_dirty, consts)) or len(known) < len(found):
            return None
        none = jnp.zeros(0, np.int32)
        return union_of([Spans(none, none), *known])

    def _records_of(self, loop: Resumable) -> list[Var]:
        """The variables of its records."""
        inputs = list(dict.fromkeys(read_vars(loop.eqn)))
        kept = [n for n, x in enumerate(loop.eqn.outvars) if not isinstance(x, _jax.DropVar)]

        def run(*values: Any) -> Any:
            env = dict(zip(inputs, values, strict=True))
            results, made = loop.recorded([_jax.read(atom, env) for atom in loop.eqn.invars])
            return [results[n] for n in kept], [*made.carries, *made.sums]

        return self.derived_values.make_together([loop.eqn.outvars[n] for n in kept], inputs, run)


def _typed_literal(value: Any, atom: Atom) -> Any:
    """A value; of a literal, an array of its dtype."""
    return jnp.asarray(value, atom.aval.dtype) if isinstance(atom, Literal) else value
