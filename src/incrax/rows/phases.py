"""A program of rows cut into passes: for each, what is computed for a chunk, and what follows once
chunks are combined.

In: a program with numbers lifted, and what it does to rows. Out: one `Phase` per pass over the
rows. It must not know values or chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from incrax._jax import DropVar, Equation, Var
from incrax._program import Program, read_vars
from incrax.primitives.row_axis import Reduction
from incrax.rows.axis import RowsComparison
from incrax.rows.numbers import NONE, ZERO, Degree, Lifted, Number, degrees_of, typed_as


@dataclass(frozen=True)
class RowProgram:
    """A program whose inputs start with arrays of rows, analysed.

    Fields: the program, in which numbers made from the number of rows are variables; those `sizes`;
    for how many rows chunks are evaluated where their number is a factor; how many inputs are
    arrays of rows; the row axis of each row-wise variable;
    reductions by the variable that they write; for a row-wise variable the pass over the rows in
    which it can be computed (from 1), for any other the pass after which it can (from 0).
    """

    program: Program
    sizes: Mapping[Var, Number]
    assumed_rows: int
    num_row_inputs: int
    axes: Mapping[Var, int]
    reductions: Mapping[Var, Reduction]
    passes: Mapping[Var, int]

    def reduction_of(self, eqn: Equation) -> Reduction | None:
        """The reduction over rows that an equation is."""
        return next((self.reductions[v] for v in eqn.outvars if v in self.reductions), None)

    @cached_property
    def row_outputs(self) -> tuple[Var, ...]:
        """The outputs with a row axis."""
        outputs = (a for a in self.program.outvars if isinstance(a, Var) and a in self.axes)
        return tuple(dict.fromkeys(outputs))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """One for each pass over the rows that the outputs need, at least one."""
        last = max((self.passes[v] for v in (*self.reductions, *self.row_outputs)), default=1)
        return tuple(_phase(self, number, last) for number in range(1, last + 1))


def analyse_rows(
    lifted: Lifted, found: RowsComparison, assumed_rows: int, num_row_inputs: int
) -> RowProgram:
    """The program, of which it was found what it does to rows, with the passes counted."""
    program, sizes = lifted
    axes = {var: axis for var, axis in found.axes.items() if axis is not None}
    reductions = {v: r for v, r in found.reductions.items() if not isinstance(v, DropVar)}
    passes: dict[Var, int] = dict.fromkeys((*program.invars, *program.constvars, *sizes), 0)
    passes.update(dict.fromkeys(program.invars[:num_row_inputs], 1))
    for eqn in program.eqns:
        is_row_wise = any(v in axes for v in (*read_vars(eqn), *eqn.outvars))
        start = next((reductions[v].start for v in eqn.outvars if v in reductions), None)
        number = int(is_row_wise)
        for place, atom in enumerate(eqn.invars):
            if isinstance(atom, Var):
                # rows wait for the pass that what else they read comes from
                waits = is_row_wise and atom not in axes and place != start
                number = max(number, passes[atom] + waits)
        passes.update(dict.fromkeys(eqn.outvars, number))
    return RowProgram(program, sizes, assumed_rows, num_row_inputs, axes, reductions, passes)


@dataclass(frozen=True)
class Section:
    """Numbers of some equations in program order, what they read from outside (but arrays of rows),
    and what they are for.
    """

    eqns: tuple[int, ...]
    reads: tuple[Var, ...]
    targets: tuple[Var, ...]


@dataclass(frozen=True)
class Phase:
    """One pass over the rows.

    Fields: its number, from 1; `chunk`, whose targets are reductions, then per-row results; the
    `kinds` of the reductions; the row `axes` of the per-row results; `rest`, which reads the
    combined reductions and earlier values and is for what later passes or the outputs need; the
    numbers that chunks have `assumed`, as for another number of rows, and the `degrees` by which
    the reductions grow with it (both empty where they do not follow so).
    """

    number: int
    chunk: Section
    kinds: tuple[Reduction, ...]
    axes: tuple[int, ...]
    rest: Section
    assumed: Mapping[Var, Any] = field(default_factory=dict)
    degrees: tuple[Degree, ...] = ()

    @cached_property
    def partials(self) -> tuple[Var, ...]:
        """The reductions."""
        return self.chunk.targets[: len(self.kinds)]

    @cached_property
    def per_row(self) -> tuple[Var, ...]:
        """The results with a row axis."""
        return self.chunk.targets[len(self.kinds) :]

    def is_scaled(self, number: int) -> bool:
        """Whether a reduction grows with the number of rows that chunks are not asked for."""
        return bool(self.degrees) and self.degrees[number] not in (NONE, ZERO)


def _phase(rows: RowProgram, number: int, last: int) -> Phase:
    partials = [var for var in rows.reductions if rows.passes[var] == number]
    per_row = [var for var in rows.row_outputs if rows.passes[var] == number]
    earlier = {v for v, n in rows.passes.items() if 1 <= n < number and v not in rows.axes}
    chunk = _section(rows, [*partials, *per_row], earlier)
    kinds = tuple(rows.reductions[var] for var in partials)
    axes = tuple(rows.axes[var] for var in per_row)
    rest = _section(rows, _lasting(rows, number, last), earlier, partials)
    forms = {v: rows.sizes[v].form for v in chunk.reads if v in rows.sizes}
    eqns = [rows.program.eqns[number] for number in chunk.eqns]
    degrees = degrees_of(eqns, forms, rows.reductions, chunk.targets)
    if degrees is None:
        return Phase(number, chunk, kinds, axes, rest)
    assumed = {
        v: typed_as(v, form.value(rows.assumed_rows + form.offset))
        for v, form in forms.items()
        if form
    }
    reads = tuple(v for v in chunk.reads if v not in assumed)
    chunk = Section(chunk.eqns, reads, chunk.targets)
    return Phase(number, chunk, kinds, axes, rest, assumed, degrees[: len(partials)])


def _lasting(rows: RowProgram, number: int, last: int) -> list[Var]:
    """What can be had after a pass and is read later; what depends on no rows is computed where it
    is read.
    """
    found: dict[Var, None] = {}
    for eqn in rows.program.eqns:
        is_row_wise = any(v in rows.axes for v in (*read_vars(eqn), *eqn.outvars))
        if is_row_wise or any(rows.passes[v] > number for v in eqn.outvars):
            found.update(dict.fromkeys(v for v in read_vars(eqn) if rows.passes[v] == number))
    wanted = {number, 0} if number == last else {number}
    outputs = (a for a in rows.program.outvars if isinstance(a, Var))
    found.update(dict.fromkeys(v for v in outputs if rows.passes[v] in wanted))
    return [v for v in found if v not in rows.axes]


def _section(
    rows: RowProgram,
    targets: Iterable[Var],
    earlier: Collection[Var],
    combined: Collection[Var] = (),
) -> Section:
    """The equations that targets need; `earlier` values are read, and of combined reductions only
    what starts them.
    """
    targets = tuple(targets)
    needed = set(targets)
    written: set[Var] = set()
    kept: list[int] = []
    for number, eqn in reversed(list(enumerate(rows.program.eqns))):
        outputs = [v for v in eqn.outvars if v in needed and v not in earlier]
        if not outputs:
            continue
        written.update(outputs)
        reduction = rows.reduction_of(eqn)
        start = None if reduction is None else reduction.start
        is_combined = any(v in combined for v in outputs)
        if is_combined and start is None:
            continue
        kept.append(number)
        atoms = enumerate(eqn.invars)
        needed.update(a for i, a in atoms if isinstance(a, Var) and (i == start) is is_combined)
    inputs = {*rows.program.invars[: rows.num_row_inputs], *rows.program.constvars, *written}
    reads = tuple(v for v in rows.passes if v in needed and v not in inputs)
    return Section(tuple(kept[::-1]), reads, targets)
