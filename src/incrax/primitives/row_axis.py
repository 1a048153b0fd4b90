"""The axis of rows: what an equation does to rows, each of which is to be treated by itself.

In: an equation, and which axis of each operand and output has an entry a row. Out: nothing where
rows go to the same rows, a `Reduction` over them, or what mixes them. It reads the index rules; a
primitive without one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from incrax._jax import Equation
from incrax.primitives.entry import (
    GONE,
    NOTHING_KNOWN,
    REARRANGED,
    Axis,
    Kind,
    Read,
    shape_of,
)
from incrax.primitives.table import entry_of

Axes: TypeAlias = Sequence["int | None"]
"""The row axis of each operand, or output; None: it has none; below 0: it cannot be told."""


class Reduction(NamedTuple):
    """A reduction over rows: its kind, and the inputs to mask. What a scatter adds rows to is no part
    of it.

    Kinds: sum, prod, max, min, and, or, xor.
    """

    kind: str
    masked: tuple[int, ...]


Verdict: TypeAlias = "Reduction | Kind | None"

UNKNOWN = Kind("has no rule that says what it does to rows")
PAIRED = Kind("pairs every row with every row", is_final=True)


def row_verdict(eqn: Equation, ins: Axes, outs: Axes) -> Verdict:
    """What an equation does to rows."""
    rule = entry_of(eqn).index
    found = None if rule is None else rule(eqn, NOTHING_KNOWN)
    if found is None:
        return UNKNOWN
    return verdict_by([reads.operands for reads in found], eqn, ins, outs)


def verdict_by(
    found: Sequence[Sequence[Read | None]], eqn: Equation, ins: Axes, outs: Axes
) -> Verdict:
    """The same by how each output reads the operands."""
    verdicts = (_verdict(eqn, reads, ins, out) for reads, out in zip(found, outs, strict=True))
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _verdict(eqn: Equation, reads: Sequence[Read | None], ins: Axes, out: int | None) -> Verdict:
    """By the kind of each row axis, and of what else goes to the output's."""
    labels = {axis.out for read in reads if read for axis in read.axes if axis.kind.reduction}
    rows: list[tuple[int, Axis]] = []
    for number, read in enumerate(reads):
        row = ins[number] if number < len(ins) else None
        for d, axis in enumerate(() if read is None else read.axes):
            if d == row:
                rows.append((number, axis))
            elif 0 <= axis.out == out and not _is_stretched(eqn, number, d, axis):
                return axis.kind if axis.kind.mixes else REARRANGED
    mixed = [axis.kind for _, axis in rows if axis.kind.mixes and axis.out not in labels]
    if mixed:
        return mixed[0]
    reduced = [(number, axis) for number, axis in rows if axis.out in labels]
    if reduced:
        return _reduction(eqn, reads, reduced, ins)
    return _mapped(eqn, {axis.out for _, axis in rows}, out)


def _mapped(eqn: Equation, places: set[int], out: int | None) -> Verdict:
    """All that are rows are to go to the rows of the output."""
    if len(places) > 1:
        # By another operation the pairs may be taken apart again, as by the diagonal.
        return REARRANGED if entry_of(eqn).is_elementwise else PAIRED
    # Below 0 the output has another number of entries: said by who compares the traces.
    if places <= {out} or (out is not None and out < 0):
        return None
    return GONE if out is None else REARRANGED


def _is_stretched(eqn: Equation, number: int, d: int, axis: Axis) -> bool:
    """Whether one element stands in every row."""
    is_one = number < len(eqn.invars) and shape_of(eqn.invars[number])[d] == 1
    return is_one and axis.kind.is_map and not axis.kind.is_rigid and not axis.kind.mixes


def _reduction(
    eqn: Equation, reads: Sequence[Read | None], reduced: Sequence[tuple[int, Axis]], ins: Axes
) -> Verdict:
    """All that is read along the label must be rows; of these, those are masked that are themselves
    reduced.
    """
    (label, kind), *_ = (axis for _, axis in reduced)
    known = [(number, read.axes) for number, read in enumerate(reads) if read]
    are_rows = all(
        ins[number] == d
        for number, axes in known
        for d, axis in enumerate(axes)
        if axis.out == label
    )
    masked = tuple(number for number, axis in reduced if axis.kind.reduction)
    if not masked or not are_rows or len({axis.out for _, axis in reduced}) > 1:
        return kind
    reduction = next(axis.kind.reduction for _, axis in reduced if axis.kind.reduction)
    return Reduction(reduction, masked)
