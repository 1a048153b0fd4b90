"""An equation on some rows of its operands, where each row of a result is made of that row of them.

In: an equation, and which axis of an operand, or of the result, has an entry per row. Out: where the
rows go, and what the equation makes of some of them. It reads the index rules; a primitive without
one is refused. It must not know which rows these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import NOTHING_KNOWN, Read, shape_of
from incrax.primitives.row_axis import Axes, row_verdict
from incrax.primitives.table import entry_of


class NotByRowsError(Exception):
    """An equation cannot be run on some rows alone."""


class Aligned(NamedTuple):
    """Which axis of each output, and of each operand (None: it has none), is that of the rows."""

    outputs: tuple[int, ...]
    operands: tuple[int | None, ...]


def aligned_by(eqn: Equation, rows: Axes) -> Aligned | None:
    """Where the rows of an equation's operands go, if each row of an output is made of that row of
    the operands; None if not, or if nothing is known.
    """
    found = _reads(eqn)
    return None if found is None else _aligned(eqn, found, [_place(r, rows) for r in found], rows)


def aligned_back(eqn: Equation, axis: int) -> Aligned | None:
    """Where the rows of an equation's only output come from, likewise."""
    found = _reads(eqn)
    if found is None or len(found) != 1:
        return None
    aligned = _aligned(eqn, found, [axis], [None] * len(eqn.invars))
    is_spread = eqn.primitive.name == "broadcast_in_dim"  # its rows may all be alike
    has_rows = aligned is not None and aligned.operands != (None,) * len(eqn.invars)
    return aligned if has_rows or is_spread else None


def run_on_rows(eqn: Equation, aligned: Aligned, count: int, values: Sequence[Any]) -> list[Any]:
    """What an equation makes of so many rows of its operands.

    Raises:
        NotByRowsError: it cannot be run on another number of rows.
    """
    shapes = [
        tuple(count if d == axis else size for d, size in enumerate(shape_of(var)))
        for var, axis in zip(eqn.outvars, aligned.outputs, strict=True)
    ]
    change = _PARAMETERS.get(eqn.primitive.name)
    if change is not None:
        eqn = eqn.replace(params={**eqn.params, **change(eqn.params, aligned, count)})
    try:
        results = list(_jax.apply(eqn, values))
    except (TypeError, ValueError) as error:
        raise NotByRowsError from error
    if [jnp.shape(x) for x in results] != shapes:
        raise NotByRowsError
    return results


# --- parameters that hold the shape of a result ---------------------------------------------------


Change = Callable[[dict[str, Any], Aligned, int], dict[str, Any]]


def _resized(name: str) -> Change:
    """The result's axis of rows has another length; where a slice begins, it has all of it."""
    return lambda params, to, count: {name: _at(params[name], to.outputs[0], count)}


def _windows(params: dict[str, Any], to: Aligned, count: int) -> dict[str, Any]:
    """Windows that are as long as the operand's axis of rows."""
    return {"slice_sizes": _at(params["slice_sizes"], to.operands[0], count)}


def _at(sizes: Sequence[int], axis: int | None, count: int) -> tuple[int, ...]:
    return tuple(count if d == axis else size for d, size in enumerate(sizes))


_PARAMETERS: dict[str, Change] = {
    "broadcast_in_dim": _resized("shape"),
    "reshape": _resized("new_sizes"),
    "slice": _resized("limit_indices"),
    "dynamic_slice": _resized("slice_sizes"),
    "gather": _windows,
}


# --- axes -----------------------------------------------------------------------------------------


def _reads(eqn: Equation) -> list[Sequence[Read | None]] | None:
    entry = entry_of(eqn)
    if entry.index is None or entry.inside is not None or eqn.effects:
        return None
    if any(eqn.params.get(name, 1) != 1 for name in _GROUPS):
        return None
    found = entry.index(eqn, NOTHING_KNOWN)
    return None if found is None else [reads.operands for reads in found]


def _place(reads: Sequence[Read | None], rows: Axes) -> int | None:
    """The axis of an output to which all rows go."""
    places = {
        read.axes[axis].out if read.axes[axis].kind.is_map else None
        for read, axis in zip(reads, rows, strict=False)
        if read is not None and axis is not None
    }
    return places.pop() if len(places) == 1 else None


def _aligned(
    eqn: Equation, found: Sequence[Sequence[Read | None]], places: Axes, rows: Axes
) -> Aligned | None:
    """The axis of each operand whose elements go to these places of the outputs, where that is all
    that the equation does to rows.
    """
    outputs = tuple(place for place in places if place is not None and place >= 0)
    if len(outputs) < len(eqn.outvars):
        return None
    operands = list(rows)
    for reads, place, var in zip(found, outputs, eqn.outvars, strict=True):
        for number, (read, atom) in enumerate(zip(reads, eqn.invars, strict=False)):
            for d, axis in enumerate(() if read is None else read.axes):
                is_row = axis.out == place and shape_of(atom)[d] == shape_of(var)[place]
                if is_row and operands[number] is None:
                    operands[number] = d
    is_by_rows = row_verdict(eqn, operands, outputs) is None
    return Aligned(outputs, tuple(operands)) if is_by_rows else None


_GROUPS = "feature_group_count", "batch_group_count"
"""Of convolutions: which group a row is in is told by its place among all of them."""
