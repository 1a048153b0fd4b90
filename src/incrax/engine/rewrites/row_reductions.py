"""Reductions over rows and over other axes, as two, so that there is a value per row.

    sum_ij x_ij = sum_i (sum_j x_ij)

That value can be saved, and computed for some rows alone. For the exact policy: it is another order
of summation, in the program and so in every call.

In: a `Program`. Out: a `Program`, and which variables rows of inputs reach row by row. It must not
know which inputs are dirty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Program, read_vars
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import Aligned, aligned_by

MIN_LENGTH = 8
"""Rows of an axis that is worth dividing."""

MAX_LENGTH = 4096
"""Rows of an input from which on it is taken for data, of which no single rows change."""

REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
)


class RowAxes:
    """What rows of inputs reach row by row."""

    def __init__(self, inputs: Sequence[Var]) -> None:
        lengths = [(var, shape_of(var)[:1]) for var in inputs]
        rows = [var for var, length in lengths if length and MIN_LENGTH <= length[0] < MAX_LENGTH]
        self.axes: dict[Var, int] = dict.fromkeys(rows, 0)
        """Of each variable that they reach so, the axis that has an entry per row."""
        self.aligned: dict[int, Aligned] = {}
        """Of each equation that does this, by its identity, where the rows go."""
        self._reach = {var: (1 << number, 0) for number, var in enumerate(rows)}
        """Of each variable, the inputs whose row reaches its own row alone, and those whose row
        reaches other rows.
        """

    def note(self, eqn: Equation) -> None:
        """Follow the rows through the next equation."""
        reached = 0
        for var in read_vars(eqn):
            alone, whole = self._reach.get(var, (0, 0))
            reached |= alone | whole
        if not reached:
            return
        self._reach.update(dict.fromkeys(eqn.outvars, (0, reached)))
        found = self._aligned(eqn)
        alone = 0 if found is None else reached & ~self._reaching_others(eqn, found)
        if found is None or not alone:
            return
        self.aligned[id(eqn)] = found
        for var, axis in zip(eqn.outvars, found.outputs, strict=True):
            if axis is not None:
                self.axes[var] = axis
                self._reach[var] = alone, reached & ~alone

    def _aligned(self, eqn: Equation) -> Aligned | None:
        own = [self.axes.get(atom) if isinstance(atom, Var) else None for atom in eqn.invars]
        rows = [number for number, axis in enumerate(own) if axis is not None]
        found = aligned_by(eqn, own) if rows else None
        if found is None and len(rows) > 1:
            # Of operands with different rows, as of a table of pairs, those of the first.
            first = [axis if number == rows[0] else None for number, axis in enumerate(own)]
            return aligned_by(eqn, first)
        return found

    def _reaching_others(self, eqn: Equation, aligned: Aligned) -> int:
        """The inputs whose row reaches other rows of the results."""
        reached = 0
        for atom, axis in zip(eqn.invars, aligned.operands, strict=True):
            if isinstance(atom, Var):
                alone, whole = self._reach.get(atom, (0, 0))
                reached |= whole if axis == self.axes.get(atom) else alone | whole
        return reached


def row_axes(eqns: Iterable[Equation], inputs: Sequence[Var]) -> RowAxes:
    """What rows of inputs, along their first axes, reach row by row.

    Cost: asks the index rule of each equation that they reach.
    """
    found = RowAxes(inputs)
    for eqn in eqns:
        found.note(eqn)
    return found


def reduce_rows_last(program: Program) -> Program:
    """The program with each reduction over rows and other axes as two, the rows last."""
    found = RowAxes(program.invars)
    eqns: list[Equation] = []
    for eqn in program.eqns:
        parts = _in_two(eqn, found.axes) if eqn.primitive.name in REDUCTIONS else [eqn]
        for part in parts:
            found.note(part)
        eqns += parts
    return program.with_eqns(eqns)


def _in_two(eqn: Equation, rows: dict[Var, int]) -> list[Equation]:
    (operand,) = eqn.invars
    axis = rows.get(operand) if isinstance(operand, Var) else None
    axes = eqn.params["axes"]
    others = tuple(d for d in axes if d != axis)
    if axis is None or axis not in axes or not others:
        return [eqn]
    (result,) = eqn.outvars
    shape = shape_of(operand)
    kept = [d for d in range(len(shape)) if d not in others]
    per_row = _jax.new_var(_jax.array_aval([shape[d] for d in kept], result.aval.dtype))
    apart = eqn.replace(params={**eqn.params, "axes": others}, outvars=[per_row])
    last = (kept.index(axis),)
    together = eqn.replace(params={**eqn.params, "axes": last}, invars=[per_row])
    return [apart, together]
