"""Of arrays that are put together of clean and dirty pieces, the clean rows are set apart.

`jnp.array([a, b, c])` of which b changes has one dirty row, and so has all that is made of it row by
row. A sum over the rows is then R + r_b, and R a value that plans can save: as `regroup` does with
terms that the program writes one by one. The order of summation changes, by a few units in the last
place of the largest term.

In: the equations that a change reaches, in order. Out: equations that give the same targets. It must
not know values.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import read_vars
from incrax.engine.program.simplify import needed_equations
from incrax.engine.rewrites.derived import DerivedTable, traced_equations
from incrax.engine.rewrites.row_reductions import REDUCTIONS
from incrax.primitives.entry import shape_of, with_item
from incrax.primitives.on_rows import (
    Aligned,
    NotByRowsError,
    aligned_by,
    reduced_by,
    run_on_rows,
)
from incrax.primitives.row_axis import Axes, Reduction
from incrax.primitives.table import entry_of

MIN_SIZE = 4096
"""Elements of the largest array that is summed over its rows, for equations that are worth changing."""

JOINED = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}
"""By the kind of a reduction, what makes one result of those of two sets of rows."""

IsDirty = Callable[[Var], bool]


class RowsApart(NamedTuple):
    """The dirty rows of a value, low <= n < high of so many along an axis; all others are clean."""

    axis: int
    low: int
    high: int
    length: int

    @property
    def num_dirty(self) -> int:
        """How many."""
        return self.high - self.low

    @property
    def num_clean(self) -> int:
        """How many others there are."""
        return self.length - self.num_dirty

    def dirty_of(self, value: Any, axis: int) -> Any:
        """These rows of a value that has all of them."""
        return lax.slice_in_dim(value, self.low, self.high, axis=axis)

    def clean_of(self, value: Any, axis: int) -> Any:
        """Its other rows."""
        before = lax.slice_in_dim(value, 0, self.low, axis=axis)
        return lax.concatenate([before, lax.slice_in_dim(value, self.high, None, axis=axis)], axis)


class _Pieces(NamedTuple):
    """What an equation puts side by side: along which axis, how many rows each operand is, and those
    from the first dirty operand to the last.
    """

    axis: int
    sizes: list[int]
    dirty: range


def _pieces_of(eqn: Equation, is_dirty: IsDirty) -> _Pieces | None:
    """The pieces, some of them dirty; None of any other equation."""
    name = eqn.primitive.name
    numbers = [n for n, var in enumerate(eqn.invars) if isinstance(var, Var) and is_dirty(var)]
    if name not in ("concatenate", "stack") or not numbers:
        return None
    axis = eqn.params["axis" if name == "stack" else "dimension"]
    sizes = [1 if name == "stack" else shape_of(atom)[axis] for atom in eqn.invars]
    return _Pieces(axis, sizes, range(numbers[0], numbers[-1] + 1))


class _Sum(NamedTuple):
    """A reduction over the rows: where these are in its operands, and what joins two results."""

    axes: Axes
    joined: Callable[[Any, Any], Any]


def with_clean_rows_apart(
    eqns: Sequence[Equation], table: DerivedTable, is_dirty: IsDirty, targets: Sequence[Var]
) -> tuple[Equation, ...] | None:
    """The equations with sums over rows as sums over their dirty rows, added to what a derived
    variable has of the clean ones; None where nothing is to be won.
    """
    if not any(eqn.primitive.name in ("concatenate", "stack") for eqn in eqns):
        return None
    found = _Follower(is_dirty)
    for eqn in eqns:
        found.look_at(eqn)
    if found.largest < MIN_SIZE:
        return None
    made = _Split(found, table)
    with contextlib.suppress(NotByRowsError):
        for eqn in eqns:
            made.add(eqn)
        made.join(targets)
        return tuple(needed_equations(made.eqns, targets))
    return None


class _Follower:
    """Where rows go: of each value that has dirty rows and clean ones, which are dirty; of each
    equation on rows, by its identity, what it does to them. Nothing is traced for it.
    """

    def __init__(self, is_dirty: IsDirty) -> None:
        self.is_dirty = is_dirty
        self.rows: dict[Var, RowsApart] = {}
        self.begun: dict[int, _Pieces] = {}
        self.mapped: dict[int, Aligned] = {}
        self.summed: dict[int, _Sum] = {}
        self.largest = 0

    def of(self, atom: Atom) -> RowsApart | None:
        """The dirty rows of an atom that has clean ones, too."""
        return self.rows.get(atom) if isinstance(atom, Var) else None

    def look_at(self, eqn: Equation) -> None:
        """Follow the rows through the next equation."""
        if len(eqn.outvars) != 1 or eqn.effects:
            return
        if self._begin(eqn):
            return
        own = [self.of(atom) for atom in eqn.invars]
        known = [rows for rows in own if rows is not None]
        is_whole = any(
            rows is None and isinstance(atom, Var) and self.is_dirty(atom)
            for atom, rows in zip(eqn.invars, own, strict=True)
        )
        if not known or is_whole or len({rows[1:] for rows in known}) > 1:
            return
        axes = [None if rows is None else rows.axis for rows in own]
        aligned = aligned_by(eqn, axes)
        if aligned is None:
            self._sum(eqn, axes)
        elif aligned.outputs[0] is not None:
            self.mapped[id(eqn)] = aligned
            self.rows[eqn.outvars[0]] = known[0]._replace(axis=aligned.outputs[0])

    def _begin(self, eqn: Equation) -> bool:
        """Whether clean and dirty pieces are put side by side: dirty are the rows from the first dirty
        piece to the last.
        """
        pieces = _pieces_of(eqn, self.is_dirty)
        if pieces is None:
            return False
        axis, sizes, dirty = pieces
        low, high = sum(sizes[: dirty.start]), sum(sizes[: dirty.stop])
        inner = self.of(eqn.invars[dirty.start])
        if len(dirty) == 1 and inner is not None:
            if eqn.primitive.name == "stack" or inner.axis != axis:
                return False
            low, high = low + inner.low, low + inner.high
        if 2 * (high - low) > sum(sizes):
            return False
        self.rows[eqn.outvars[0]] = RowsApart(axis, low, high, sum(sizes))
        self.begun[id(eqn)] = pieces
        return True

    def _sum(self, eqn: Equation, axes: Axes) -> None:
        """Note a reduction over the rows."""
        if eqn.primitive.name not in ("dot_general", *REDUCTIONS):
            return
        axes, verdict = reduced_by(eqn, axes)
        if isinstance(verdict, Reduction) and verdict.kind in JOINED:
            self.summed[id(eqn)] = _Sum(axes, JOINED[verdict.kind])
            self.largest = max(self.largest, *(math.prod(shape_of(atom)) for atom in eqn.invars))


def _variables(atoms: Iterable[Atom]) -> list[Var]:
    return list(dict.fromkeys(atom for atom in atoms if isinstance(atom, Var)))


def _of_atoms(
    fun: Callable[[list[Any]], Any], atoms: Sequence[Atom], names: Sequence[Var]
) -> Callable[..., Any]:
    """A function of the values of atoms as one of those of the variables among them."""

    def run(*values: Any) -> Any:
        env = dict(zip(names, values, strict=True))
        return fun([_jax.read(atom, env) for atom in atoms])

    return run


class _Split:
    """One walk through the equations, which makes of each value the dirty rows, and has a derived
    variable for the clean ones.
    """

    def __init__(self, found: _Follower, table: DerivedTable) -> None:
        self.found = found
        self.table = table
        self.clean: dict[Var, Var] = {}
        self.dirty: dict[Var, Var] = {}
        self.joined: set[Var] = set()
        self.eqns: list[Equation] = []

    def add(self, eqn: Equation) -> None:
        """The next equation, on the rows that changed where that can be."""
        if id(eqn) in self.found.mapped:
            self._map(eqn, self.found.mapped[id(eqn)])
        elif id(eqn) in self.found.summed:
            self._sum(eqn, self.found.summed[id(eqn)])
        elif id(eqn) in self.found.begun:
            self._begin(eqn, self.found.begun[id(eqn)])
        elif not self._take_piece(eqn):
            self.join(read_vars(eqn))
            self.eqns.append(eqn)

    def join(self, variables: Iterable[Var]) -> None:
        """Make all rows of some variables, for what reads them together."""
        for var in variables:
            rows = self.found.of(var)
            if rows is None or var in self.joined:
                continue
            self.joined.add(var)

            def joined(clean: Any, dirty: Any, rows: RowsApart = rows) -> Any:
                before = lax.slice_in_dim(clean, 0, rows.low, axis=rows.axis)
                behind = lax.slice_in_dim(clean, rows.low, None, axis=rows.axis)
                return lax.concatenate([before, dirty, behind], rows.axis)

            self._write(joined, [self.clean[var], self.dirty[var]], var)

    def _write(self, fun: Callable[..., Any], inputs: Sequence[Var], var: Var | None = None) -> Var:
        """The variable that a function of others computes."""
        typed = (lambda *values: _jax.as_weak(fun(*values))) if var and var.aval.weak_type else fun
        (made,), eqns = traced_equations(typed, inputs, [var])
        self.eqns += eqns
        return made

    def _begin(self, eqn: Equation, pieces: _Pieces) -> None:
        """Clean and dirty pieces put side by side, each by themselves."""
        (var,) = eqn.outvars
        start, stop = pieces.dirty.start, pieces.dirty.stop
        dirty = list(eqn.invars[start:stop])
        clean = [*eqn.invars[:start], *eqn.invars[stop:]]
        if len(dirty) == 1 and dirty[0] in self.clean and eqn.primitive.name == "concatenate":
            clean.insert(start, self.clean[dirty[0]])
            dirty = [self.dirty[dirty[0]]]
        self.join([atom for atom in dirty if isinstance(atom, Var)])
        join = jnp.stack if eqn.primitive.name == "stack" else lax.concatenate
        together = lambda values: join(values, pieces.axis)
        names = _variables(clean)
        kind = "clean pieces", var, pieces.dirty
        self.clean[var] = self.table.make(kind, names, _of_atoms(together, clean, names))
        names = _variables(dirty)
        self.dirty[var] = self._write(_of_atoms(together, dirty, names), names)

    def _map(self, eqn: Equation, aligned: Aligned) -> None:
        """An equation that makes rows of rows."""
        (var,) = eqn.outvars
        rows = self.found.rows[var]
        clean = self._operands(eqn, aligned.operands, rows, is_clean=True)
        dirty = self._operands(eqn, aligned.operands, rows, is_clean=False)
        kind = "clean rows", var, rows
        if not entry_of(eqn).is_elementwise:
            of_clean = lambda values: run_on_rows(eqn, aligned, rows.num_clean, values)[0]
            of_dirty = lambda values: run_on_rows(eqn, aligned, rows.num_dirty, values)[0]
            names = _variables(clean)
            self.clean[var] = self.table.make(kind, names, _of_atoms(of_clean, clean, names))
            names = _variables(dirty)
            self.dirty[var] = self._write(_of_atoms(of_dirty, dirty, names), names)
            return
        # Most equations are of this kind; to write them down takes a tenth of the time of a trace.
        aval_of = lambda num: var.aval.update(shape=with_item(shape_of(var), rows.axis, num))
        names = _variables(clean)
        write = lambda new: (
            *self.table.recipe(names),
            eqn.replace(invars=clean, outvars=[new]),
        )
        self.clean[var] = self.table.make_written(kind, names, aval_of(rows.num_clean), write)
        self.dirty[var] = _jax.new_var(aval_of(rows.num_dirty))
        self.eqns.append(eqn.replace(invars=dirty, outvars=[self.dirty[var]]))

    def _sum(self, eqn: Equation, found: _Sum) -> None:
        """A reduction over the rows: that of the dirty ones, joined with that of the clean ones."""
        (var,) = eqn.outvars
        rows = next(rows for atom in eqn.invars if (rows := self.found.of(atom)))
        reduced = lambda values: _jax.apply(eqn, values)[0]
        clean = self._operands(eqn, found.axes, rows, is_clean=True)
        dirty = self._operands(eqn, found.axes, rows, is_clean=False)
        names = _variables(clean)
        kind = "clean sum", var, rows
        rest = self.table.make(kind, names, _of_atoms(reduced, clean, names))
        names = _variables(dirty)
        of_dirty = _of_atoms(reduced, dirty, names)
        joined = lambda rest, *values: found.joined(rest, of_dirty(*values))
        self._write(joined, [rest, *names], var)

    def _operands(
        self, eqn: Equation, axes: Axes, rows: RowsApart, *, is_clean: bool
    ) -> list[Atom]:
        """The clean rows of an equation's operands, or the dirty ones, which are along these axes."""
        made = self.clean if is_clean else self.dirty
        take = rows.clean_of if is_clean else rows.dirty_of
        found: list[Atom] = []
        for atom, axis in zip(eqn.invars, axes, strict=True):
            if isinstance(atom, Var) and atom in made:
                found.append(made[atom])
            elif isinstance(atom, Var) and axis is not None:
                # Rows of a clean operand: a value of its own, so that a plan may load these alone.
                kind = "rows", is_clean, axis, rows
                own = functools.partial(take, axis=axis)
                found.append(self.table.make(kind, [atom], own, is_alike=True))
            else:
                found.append(atom)
        return found

    def _take_piece(self, eqn: Equation) -> bool:
        """Whether an equation reads dirty rows alone: then they are there."""
        rows = self.found.of(eqn.invars[0]) if eqn.primitive.name == "slice" else None
        if rows is None or any(stride != 1 for stride in eqn.params["strides"] or ()):
            return False
        starts = list(eqn.params["start_indices"])
        limits = list(eqn.params["limit_indices"])
        if not rows.low <= starts[rows.axis] < limits[rows.axis] <= rows.high:
            return False
        starts[rows.axis] -= rows.low
        limits[rows.axis] -= rows.low
        cut = lambda value: lax.slice(value, starts, limits)
        self._write(cut, [self.dirty[eqn.invars[0]]], eqn.outvars[0])
        return True
