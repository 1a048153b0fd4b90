"""Of arrays that are put together of clean and dirty pieces, the clean rows are set apart.

`jnp.array([a, b, c])` of which b changes has one dirty row, and so has all that is made of it row by
row. A sum over the rows is then R + r_b, and R a value that plans can save: as `regroup` does with
terms that the program writes one by one. The order of summation changes, by a few units in the last
place of the largest term.

For example, sum(sin(array([a, b, c])[:, None] * x), 0) becomes sin(b * x) + R, with the recipe
R = sum(sin(array([a, c])[:, None] * x), 0) of a derived variable.

In: the equations that a change reaches, in order. Out: equations that give the same targets. It must
not know values.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import read_vars
from incrax.engine.program.simplify import needed_equations
from incrax.engine.rewrites.derived import DerivedTable, traced_equations
from incrax.engine.rewrites.read_rows import Part
from incrax.engine.rewrites.row_reductions import REDUCTIONS
from incrax.engine.rewrites.sums_of_products import IsDirty
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


How = Callable[[], object]
"""Writes an equation on clean and dirty rows."""


def with_clean_rows_apart(
    eqns: Sequence[Equation], table: DerivedTable, is_dirty: IsDirty, targets: Sequence[Var]
) -> tuple[Equation, ...] | None:
    """The equations with sums over rows as sums over their dirty rows, added to what a derived
    variable has of the clean ones; None where nothing is to be won.
    """
    if not any(eqn.primitive.name in ("concatenate", "stack") for eqn in eqns):
        return None
    apart = _Apart(table, is_dirty)
    for eqn in eqns:
        apart.follow(eqn)
    if apart.largest < MIN_SIZE:
        return None
    with contextlib.suppress(NotByRowsError):
        for eqn in eqns:
            apart.write(eqn)
        apart.join(targets)
        return tuple(needed_equations(apart.eqns, targets))
    return None


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


class _Apart:
    """Of each value that has dirty rows and clean ones, which are dirty, and a variable for either.

    Equations are followed first, which traces nothing, and written if that is worth it: of each
    value the dirty rows, and a derived variable for the clean ones.
    """

    def __init__(self, table: DerivedTable, is_dirty: IsDirty) -> None:
        self.table = table
        self.is_dirty = is_dirty
        self.rows: dict[Var, Part] = {}
        self.how: dict[int, How] = {}  # of equations on rows, by their identity
        self.largest = 0
        self.clean: dict[Var, Var] = {}
        self.dirty: dict[Var, Var] = {}
        self.joined: set[Var] = set()
        self.eqns: list[Equation] = []

    # --- following --------------------------------------------------------------------------------

    def of(self, atom: Atom) -> Part | None:
        """The dirty rows of an atom that has clean ones, too."""
        return self.rows.get(atom) if isinstance(atom, Var) else None

    def follow(self, eqn: Equation) -> None:
        """Follow the rows through the next equation."""
        if len(eqn.outvars) != 1 or eqn.effects:
            return
        how = self._begun(eqn) or self._followed(eqn)
        if how is not None:
            self.how[id(eqn)] = how

    def _begun(self, eqn: Equation) -> How | None:
        """Of clean and dirty pieces put side by side the rows from the first dirty piece to the last
        are dirty.
        """
        numbers = [n for n, x in enumerate(eqn.invars) if isinstance(x, Var) and self.is_dirty(x)]
        is_stack = eqn.primitive.name == "stack"
        if not numbers or not (is_stack or eqn.primitive.name == "concatenate"):
            return None
        axis = eqn.params["axis" if is_stack else "dimension"]
        sizes = [1 if is_stack else shape_of(atom)[axis] for atom in eqn.invars]
        first, stop = numbers[0], numbers[-1] + 1
        low, high = sum(sizes[:first]), sum(sizes[:stop])
        inner = self.of(eqn.invars[first]) if len(numbers) == 1 else None
        if inner is not None:
            if is_stack or inner.axis != axis:
                return None
            low, high = low + inner.low, low + inner.high
        if 2 * (high - low) > sum(sizes):
            return None
        self.rows[eqn.outvars[0]] = Part(axis, low, high)
        return functools.partial(self._begin, eqn, axis, range(first, stop))

    def _followed(self, eqn: Equation) -> How | None:
        """Of one that makes rows of rows, reduces them, or reads some."""
        own = [self.of(atom) for atom in eqn.invars]
        known = [rows for rows in own if rows is not None]
        is_whole = any(
            rows is None and isinstance(atom, Var) and self.is_dirty(atom)
            for atom, rows in zip(eqn.invars, own, strict=True)
        )
        if not known or is_whole or len({rows.ends for rows in known}) > 1:
            return None
        axes = [None if rows is None else rows.axis for rows in own]
        aligned = aligned_by(eqn, axes)
        if aligned is None:
            return self._cut(eqn) if eqn.primitive.name == "slice" else self._reduced(eqn, axes)
        axis = aligned.outputs[0]
        if axis is None:
            return None
        self.rows[eqn.outvars[0]] = known[0]._replace(axis=axis)
        return functools.partial(self._map, eqn, aligned)

    def _reduced(self, eqn: Equation, axes: Axes) -> How | None:
        """Of a reduction over the rows."""
        if eqn.primitive.name not in ("dot_general", *REDUCTIONS):
            return None
        axes, verdict = reduced_by(eqn, axes)
        if not isinstance(verdict, Reduction) or verdict.kind not in JOINED:
            return None
        self.largest = max(self.largest, *(math.prod(shape_of(atom)) for atom in eqn.invars))
        return functools.partial(self._sum, eqn, axes, JOINED[verdict.kind])

    def _cut(self, eqn: Equation) -> How | None:
        """Of one that reads dirty rows alone: they are there."""
        rows = self.of(eqn.invars[0])
        if rows is None or any(stride != 1 for stride in eqn.params["strides"] or ()):
            return None
        starts = list(eqn.params["start_indices"])
        limits = list(eqn.params["limit_indices"])
        if not rows.low <= starts[rows.axis] < limits[rows.axis] <= rows.high:
            return None
        starts[rows.axis] -= rows.low
        limits[rows.axis] -= rows.low
        cut = lambda values: lax.slice(values[0], starts, limits)
        return lambda: self._written(cut, [self.dirty[eqn.invars[0]]], eqn.outvars[0])

    # --- writing ----------------------------------------------------------------------------------

    def write(self, eqn: Equation) -> None:
        """The next equation, on the rows that changed where that can be."""
        how = self.how.get(id(eqn))
        if how is not None:
            how()
            return
        self.join(read_vars(eqn))
        self.eqns.append(eqn)

    def join(self, variables: Iterable[Var]) -> None:
        """Make all rows of some variables, for what reads them together."""
        for var in variables:
            rows = self.of(var)
            if rows is not None and var not in self.joined:
                self.joined.add(var)
                joined = functools.partial(_together, rows)
                self._written(joined, [self.clean[var], self.dirty[var]], var)

    def _written(
        self, fun: Callable[[list[Any]], Any], atoms: Sequence[Atom], var: Var | None = None
    ) -> Var:
        """The variable that a function of others computes."""
        names = _variables(atoms)
        (made,), eqns = traced_equations(_of_atoms(fun, atoms, names), names, [var])
        self.eqns += eqns
        return made

    def _derived(
        self, kind: Hashable, fun: Callable[[list[Any]], Any], atoms: Sequence[Atom]
    ) -> Var:
        """The same of a derived variable."""
        names = _variables(atoms)
        return self.table.make(kind, names, _of_atoms(fun, atoms, names))

    def _begin(self, eqn: Equation, axis: int, numbers: range) -> None:
        """Clean and dirty pieces put side by side, each by themselves."""
        (var,) = eqn.outvars
        dirty = [eqn.invars[n] for n in numbers]
        clean = [*eqn.invars[: numbers.start], *eqn.invars[numbers.stop :]]
        is_stack = eqn.primitive.name == "stack"
        if len(dirty) == 1 and dirty[0] in self.clean and not is_stack:
            clean.insert(numbers.start, self.clean[dirty[0]])
            dirty = [self.dirty[dirty[0]]]
        self.join(_variables(dirty))
        join = jnp.stack if is_stack else lax.concatenate
        together = lambda values: join(values, axis)
        self.clean[var] = self._derived(("clean pieces", var, numbers), together, clean)
        self.dirty[var] = self._written(together, dirty)

    def _map(self, eqn: Equation, aligned: Aligned) -> None:
        """An equation that makes rows of rows."""
        (var,) = eqn.outvars
        rows = self.rows[var]
        clean = self._operands(eqn, aligned.operands, rows, is_clean=True)
        dirty = self._operands(eqn, aligned.operands, rows, is_clean=False)
        num_clean = shape_of(var)[rows.axis] - rows.num
        kind = "clean rows", var, rows
        if not entry_of(eqn).is_elementwise:
            of_clean = lambda values: run_on_rows(eqn, aligned, num_clean, values)[0]
            of_dirty = lambda values: run_on_rows(eqn, aligned, rows.num, values)[0]
            self.clean[var] = self._derived(kind, of_clean, clean)
            self.dirty[var] = self._written(of_dirty, dirty)
            return
        # Most equations are of this kind; to write them down takes a tenth of the time of a trace.
        aval_of = lambda num: var.aval.update(shape=with_item(shape_of(var), rows.axis, num))
        names = _variables(clean)
        write = lambda new: (
            *self.table.recipe(names),
            eqn.replace(invars=clean, outvars=[new]),
        )
        self.clean[var] = self.table.make_written(kind, names, aval_of(num_clean), write)
        self.dirty[var] = _jax.new_var(aval_of(rows.num))
        self.eqns.append(eqn.replace(invars=dirty, outvars=[self.dirty[var]]))

    def _sum(self, eqn: Equation, axes: Axes, joined: Callable[[Any, Any], Any]) -> None:
        """A reduction over the rows: that of the dirty ones, joined with that of the clean ones."""
        (var,) = eqn.outvars
        rows = next(rows for atom in eqn.invars if (rows := self.of(atom)))
        reduced = lambda values: _jax.apply(eqn, values)[0]
        clean = self._operands(eqn, axes, rows, is_clean=True)
        dirty = self._operands(eqn, axes, rows, is_clean=False)
        rest = self._derived(("clean sum", var, rows), reduced, clean)
        total = lambda values: joined(values[0], reduced(values[1:]))
        self._written(total, [rest, *dirty], var)

    def _operands(self, eqn: Equation, axes: Axes, rows: Part, *, is_clean: bool) -> list[Atom]:
        """The clean rows of an equation's operands, or the dirty ones, which are along these axes."""
        made = self.clean if is_clean else self.dirty
        take = _others if is_clean else _rows
        found: list[Atom] = []
        for atom, axis in zip(eqn.invars, axes, strict=True):
            if isinstance(atom, Var) and atom in made:
                found.append(made[atom])
            elif isinstance(atom, Var) and axis is not None:
                # Rows of a clean operand: a value of its own, so that a plan may load these alone.
                own = rows._replace(axis=axis)
                kind = "rows", is_clean, own
                found.append(
                    self.table.make(kind, [atom], functools.partial(take, own), is_alike=True)
                )
            else:
                found.append(atom)
        return found


# --- rows of values -------------------------------------------------------------------------------


def _rows(part: Part, value: Any) -> Any:
    """The rows of a value that has all of them."""
    return lax.slice_in_dim(value, part.low, part.high, axis=part.axis)


def _others(part: Part, value: Any) -> Any:
    """Its other rows."""
    before = lax.slice_in_dim(value, 0, part.low, axis=part.axis)
    behind = lax.slice_in_dim(value, part.high, None, axis=part.axis)
    return lax.concatenate([before, behind], part.axis)


def _together(part: Part, values: Sequence[Any]) -> Any:
    """All rows, of the others and these."""
    others, rows = values
    before = lax.slice_in_dim(others, 0, part.low, axis=part.axis)
    behind = lax.slice_in_dim(others, part.low, None, axis=part.axis)
    return lax.concatenate([before, rows, behind], part.axis)
