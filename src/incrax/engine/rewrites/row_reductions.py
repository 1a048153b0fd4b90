"""Reductions over rows and over other axes, the others first:

    sum_ij x_ij = sum_i (sum_j x_ij)

so that there is a value per row, which can be saved and computed for some rows alone. For the exact
policy: it is another order of summation, in the program and so in every call.

In: a `Program`. Out: a `Program`, and which variables rows of inputs reach row by row. It must not
know which inputs are dirty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Program, written_vars
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import Aligned, aligned_by

MIN_LENGTH = 8
MAX_LENGTH = 4096
"""Rows of an input of which single ones are expected to change; more are taken for data."""

REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
)


class RowAxes(NamedTuple):
    """What rows of inputs reach row by row.

    Fields: of each variable that they reach so, the axis that has an entry per row; of each equation
    that does this, by its identity, where the rows go.
    """

    axes: dict[Var, int]
    aligned: dict[int, Aligned]

    def note(self, eqn: Equation) -> None:
        """Follow the rows through the next equation."""
        own = [self.axes.get(atom) if isinstance(atom, Var) else None for atom in eqn.invars]
        rows = [number for number, axis in enumerate(own) if axis is not None]
        if not rows:
            return
        found = aligned_by(eqn, own)
        # Of operands with different rows, as of a table of pairs, those of the first.
        first = [axis if number == rows[0] else None for number, axis in enumerate(own)]
        found = aligned_by(eqn, first) if found is None and len(rows) > 1 else found
        if found is not None:
            self.aligned[id(eqn)] = found
            pairs = zip(eqn.outvars, found.outputs, strict=True)
            self.axes.update((var, axis) for var, axis in pairs if axis is not None)


def row_axes(eqns: Iterable[Equation], inputs: Sequence[Var]) -> RowAxes:
    """What rows of inputs, along their first axes, reach row by row.

    Cost: asks the index rule of each equation that they reach.
    """
    found = _axes_of_inputs(inputs)
    for eqn in eqns:
        found.note(eqn)
    return found


def reduce_rows_last(program: Program) -> Program:
    """The program with each reduction over rows and other axes as two, the rows last."""
    found = _axes_of_inputs(program.invars)
    eqns: list[Equation] = []
    for eqn in program.eqns:
        parts = _in_two(eqn, found.axes) if eqn.primitive.name in REDUCTIONS else [eqn]
        for part in parts:
            found.note(part)
        eqns += parts
    return program.with_eqns(eqns)


def _axes_of_inputs(inputs: Sequence[Var]) -> RowAxes:
    lengths = [(var, shape_of(var)[:1]) for var in inputs]
    rows = [var for var, length in lengths if length and MIN_LENGTH <= length[0] < MAX_LENGTH]
    return RowAxes(dict.fromkeys(rows, 0), {})


def _in_two(eqn: Equation, rows: dict[Var, int]) -> list[Equation]:
    (operand,) = eqn.invars
    axis = rows.get(operand) if isinstance(operand, Var) else None
    axes = eqn.params["axes"]
    others = tuple(d for d in axes if d != axis)
    if axis not in axes or not others:
        return [eqn]
    (result,) = written_vars(eqn) or [None]
    if result is None:
        return [eqn]
    shape = shape_of(operand)
    kept = [d for d in range(len(shape)) if d not in others]
    per_row = _jax.new_var(_jax.array_aval([shape[d] for d in kept], result.aval.dtype))
    apart = eqn.replace(params={**eqn.params, "axes": others}, outvars=[per_row])
    last = (kept.index(axis),)
    together = eqn.replace(params={**eqn.params, "axes": last}, invars=[per_row])
    return [apart, together]
