"""A row program cut into passes: for each, what is computed for a chunk, and what follows once
chunks are combined.

In: a `RowProgram`. Out: one `Phase` per pass over the rows. It must not know values or chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from incrax._jax import Equation, Var
from incrax._program import read_vars
from incrax.primitives.row_axis import Reduction
from incrax.rows.axis import RowProgram


@dataclass(frozen=True)
class Part:
    """Some equations in program order, what they read from outside (but arrays of rows), and what
    they are for.
    """

    eqns: tuple[Equation, ...]
    reads: tuple[Var, ...]
    targets: tuple[Var, ...]


@dataclass(frozen=True)
class Phase:
    """One pass over the rows.

    Fields: its number, from 1; `chunk`, whose targets are reductions, then per-row results; the
    `kinds` of the reductions; the row `axes` of the per-row results; `rest`, which reads the
    combined reductions and earlier values and is for what later passes or the outputs need.
    """

    number: int
    chunk: Part
    kinds: tuple[Reduction, ...]
    axes: tuple[int, ...]
    rest: Part

    @cached_property
    def partials(self) -> tuple[Var, ...]:
        """The reductions."""
        return self.chunk.targets[: len(self.kinds)]

    @cached_property
    def per_row(self) -> tuple[Var, ...]:
        """The results with a row axis."""
        return self.chunk.targets[len(self.kinds) :]


def cut_phases(rows: RowProgram) -> tuple[Phase, ...]:
    """One phase for each pass that the outputs need, at least one."""
    numbers = [rows.passes[var] for var in {*rows.reductions, *_row_outputs(rows)}]
    return tuple(_phase(rows, number) for number in range(1, max(numbers, default=1) + 1))


def _row_outputs(rows: RowProgram) -> list[Var]:
    return list(
        dict.fromkeys(a for a in rows.program.outvars if isinstance(a, Var) and a in rows.axes)
    )


def _phase(rows: RowProgram, number: int) -> Phase:
    partials = [var for var in rows.reductions if rows.passes[var] == number]
    per_row = [var for var in _row_outputs(rows) if rows.passes[var] == number]
    earlier = {v for v, n in rows.passes.items() if 1 <= n < number and v not in rows.axes}
    chunk = _part(rows, [*partials, *per_row], earlier)
    return Phase(
        number,
        chunk,
        tuple(rows.reductions[var] for var in partials),
        tuple(rows.axes[var] for var in per_row),
        _part(rows, _lasting(rows, number), earlier, frozenset(partials)),
    )


def _lasting(rows: RowProgram, number: int) -> list[Var]:
    """What can be had after a pass and is read later; what depends on no rows is computed where it
    is read.
    """
    found: dict[Var, None] = {}
    for eqn in rows.program.eqns:
        is_row_wise = any(v in rows.axes for v in (*read_vars(eqn), *eqn.outvars))
        if is_row_wise or any(rows.passes[v] > number for v in eqn.outvars):
            found.update(
                dict.fromkeys(
                    v for v in read_vars(eqn) if v not in rows.axes and rows.passes[v] == number
                )
            )
    numbers = [rows.passes[v] for v in (*rows.reductions, *_row_outputs(rows))]
    wanted = {number, 0} if number == max(numbers, default=1) else {number}
    outputs = [a for a in rows.program.outvars if isinstance(a, Var) and a not in rows.axes]
    found.update(dict.fromkeys(v for v in outputs if rows.passes[v] in wanted))
    return list(found)


def _part(
    rows: RowProgram,
    targets: Iterable[Var],
    earlier: set[Var],
    combined: frozenset[Var] = frozenset(),
) -> Part:
    """The equations that targets need; `earlier` values are read, and of combined reductions only
    what starts them.
    """
    targets = tuple(targets)
    needed = set(targets)
    written = set()
    kept: list[Equation] = []
    for eqn in reversed(rows.program.eqns):
        outputs = [v for v in eqn.outvars if v in needed and v not in earlier]
        if not outputs:
            continue
        start = next((r.start for v in outputs if (r := rows.reductions.get(v)) is not None), None)
        is_combined = any(v in combined for v in outputs)
        if is_combined and start is None:
            written.update(outputs)
            continue
        kept.append(eqn)
        written.update(outputs)
        needed.update(
            a
            for i, a in enumerate(eqn.invars)
            if isinstance(a, Var) and (i == start) is is_combined
        )
    inputs = {*rows.program.invars[: rows.num_row_inputs], *rows.program.constvars, *written}
    reads = tuple(v for v in rows.passes if v in needed and v not in inputs)
    return Part(tuple(kept[::-1]), reads, targets)
