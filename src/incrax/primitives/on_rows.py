"""An equation on some rows of its operands, where each row of a result is made of that row of them.

In: an equation, and which axis of an operand, or of the result, has an entry per row. Out: where the
rows go, and what the equation makes of some of them. It reads the index rules; a primitive without
one is refused, but for loops, of which every equation inside must do so. It must not know which rows
these are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax.primitives.entry import NOTHING_KNOWN, Read, Run, shape_of, with_item
from incrax.primitives.row_axis import UNKNOWN, Axes, Verdict, verdict_by
from incrax.primitives.table import entry_of


class NotByRowsError(Exception):
    """An equation cannot be run on some rows alone; the text, if any, says why, for reports."""


class Aligned(NamedTuple):
    """Which axis of each output, and of each operand, is that of the rows; None: it has none."""

    outputs: tuple[int | None, ...]
    operands: tuple[int | None, ...]


def aligned_by(eqn: Equation, rows: Axes) -> Aligned | None:
    """Where the rows of an equation's operands go, if each row of an output is made of that row of
    the operands; None if not, or if nothing is known.
    """
    if eqn.primitive.name == "scan":
        return _aligned_loop(eqn, rows)
    found = _reads(eqn)
    return None if found is None else _aligned(eqn, found, [_place(r, rows) for r in found], rows)


def aligned_back(eqn: Equation, axis: int) -> Aligned | None:
    """Where the rows of an equation's outputs come from, likewise: of all along one axis."""
    found = _reads(eqn)
    if found is None or len({shape_of(var)[axis:][:1] for var in eqn.outvars}) != 1:
        return None
    aligned = _aligned(eqn, found, [axis] * len(found), [None] * len(eqn.invars))
    is_spread = eqn.primitive.name == "broadcast_in_dim"  # its rows may all be alike
    has_rows = aligned is not None and aligned.operands != (None,) * len(eqn.invars)
    return aligned if has_rows or is_spread else None


def crossed_by(eqn: Equation, rows: Sequence[Sequence[int]]) -> dict[int, Aligned] | None:
    """Where rows along different axes of the operands meet, and each reaches all of the other axis: by
    the two axes of the only output, where they come from; None if they do not meet so.
    """
    found: dict[int | None, Aligned] = {}
    for number, axes in enumerate(rows):
        for axis in axes:
            own = [axis if n == number else None for n in range(len(rows))]
            aligned = aligned_by(eqn, own) if len(eqn.outvars) == 1 else None
            if aligned is None:
                return None
            found.setdefault(aligned.outputs[0], aligned)
    return {axis: x for axis, x in found.items() if axis is not None} if len(found) == 2 else None


def reduced_by(eqn: Equation, rows: Axes) -> tuple[Axes, Verdict]:
    """The axis of each operand that goes where the rows of some operands go, and what becomes of
    these: the equation has one output, and does not treat each row by itself.
    """
    found = _reads(eqn)
    if found is None:
        return rows, UNKNOWN
    (reads,) = found
    pairs = zip(reads, rows, strict=False)
    places = {read.axes[d].out for read, d in pairs if read and d is not None}
    axes = [
        next((d for d, axis in enumerate(read.axes) if axis.out in places), None) if read else None
        for read, _ in zip(reads, eqn.invars, strict=False)
    ]
    return axes, verdict_by(found, eqn, axes, [max(places, default=-1)])


def run_on_rows(eqn: Equation, aligned: Aligned, count: int, values: Sequence[Any]) -> list[Any]:
    """What an equation makes of so many rows of its operands.

    Raises:
        NotByRowsError: it cannot be run on another number of rows.
    """
    shapes = [
        _at(shape_of(var), axis, count)
        for var, axis in zip(eqn.outvars, aligned.outputs, strict=True)
    ]
    if eqn.primitive.name == "scan" and not _is_map(_jax.scan_of(eqn), aligned.operands):
        return _run_loop(eqn, aligned, count, values)
    change = _PARAMETERS.get(eqn.primitive.name)
    if change is not None:
        eqn = eqn.replace(params={**eqn.params, **change(eqn.params, aligned, count)})
    try:
        results = list(_jax.apply(eqn, values))
    except (TypeError, ValueError) as error:
        raise NotByRowsError(_ONE_SHAPE) from error
    if [jnp.shape(x) for x in results] != shapes:
        raise NotByRowsError(_ONE_SHAPE)
    return results


_ONE_SHAPE = "it cannot be run on another number of rows"


def runs_along(eqn: Equation, axis: int) -> Sequence[Sequence[Run]] | None:
    """For each output, the runs of rows that an equation moves along an axis; None if it moves none:
    what joins, splits or reverses arrays does so along the axes that it names.
    """
    runs, params = entry_of(eqn).runs, eqn.params
    axes = params.get("dimensions", [params.get("dimension", params.get("axis", axis))])
    return runs(eqn, axis) if runs is not None and axis in axes else None


def sources_of_runs(
    eqn: Equation, runs: Sequence[Run], ends: tuple[int, int]
) -> list[tuple[Atom, tuple[int, int]]]:
    """The intervals of operands from which runs of rows come that are in an interval of the result."""
    found = ((eqn.invars[run.operand], run.reversed().places(ends)) for run in runs)
    return [(atom, source) for atom, source in found if source is not None]


def interval_of_runs(
    eqn: Equation,
    axis: int,
    runs: Sequence[Run],
    ends: tuple[int, int],
    rows_of: Callable[[Atom, tuple[int, int]], Any],
    fill: Any,
) -> Any:
    """An interval of the result of an equation that moves rows, from the intervals of its operands
    (`rows_of`) that were moved there, side by side; `fill` stands where none was.
    """
    low, high = ends
    found = [(run, moved) for run in runs if (moved := run.within(low, high))]
    is_full = sum(len(moved) for _, moved in found) == high - low
    sources = sources_of_runs(eqn, runs, ends)
    parts = []
    for (run, moved), source in zip(found, sources, strict=True):
        part = moved_beside(eqn, axis, rows_of(*source), fill)
        part = lax.slice_in_dim(part, 0, None, abs(run.step), axis)
        part = lax.rev(part, (axis,)) if run.step < 0 else part
        if not is_full:
            first, last = (run.out + i * run.out_step for i in (moved[0], moved[-1]))
            gaps = [(0, 0, 0)] * part.ndim
            gaps[axis] = (first - low, high - 1 - last, run.out_step - 1)
            part = lax.pad(part, fill, gaps)
        parts.append(part)
    if not parts:
        dtype = eqn.outvars[0].aval.dtype
        if isinstance(fill, _jax.Tracer):
            fill = lax.convert_element_type(fill, dtype)
        else:  # a literal, whose type is weak, stays one
            fill = np.asarray(fill, dtype)[()]
        return lax.broadcast(fill, with_item(shape_of(eqn.outvars[0]), axis, high - low))
    return lax.concatenate(parts, axis)


def fill_of(eqn: Equation) -> Atom | None:
    """What stands where an equation that moves rows puts none, if there is such a place."""
    return eqn.invars[1] if eqn.primitive.name == "pad" else None


def moved_beside(eqn: Equation, axis: int, rows: Any, fill: Any) -> Any:
    """What an equation that moves rows along an axis does to them along the others."""
    params = eqn.params
    others = [d for d in range(rows.ndim) if d != axis]
    if eqn.primitive.name == "slice":
        strides = params["strides"] or (1,) * rows.ndim
        starts = _at(params["start_indices"], axis, 0)
        limits = _at(params["limit_indices"], axis, rows.shape[axis])
        return lax.slice(rows, starts, limits, _at(strides, axis, 1))
    if eqn.primitive.name == "pad" and any(
        map(any, map(params["padding_config"].__getitem__, others))
    ):
        config = [(0, 0, 0) if d == axis else c for d, c in enumerate(params["padding_config"])]
        return lax.pad(rows, fill, config)
    if eqn.primitive.name == "rev":
        return lax.rev(rows, [d for d in params["dimensions"] if d != axis])
    return rows


# --- parameters that hold the shape of a result ---------------------------------------------------


Change = Callable[[dict[str, Any], Aligned, int], dict[str, Any]]


def _resized(name: str) -> Change:
    """The result's axis of rows has another length; where a slice begins, it has all of it."""
    return lambda params, to, count: {name: _at(params[name], to.outputs[0], count)}


def _windows(params: dict[str, Any], to: Aligned, count: int) -> dict[str, Any]:
    """Windows that are as long as the operand's axis of rows; of a batch each has one. Where the
    rows are those of the indices, they are in any order, and some may repeat.
    """
    axis = to.operands[0]
    is_batch = axis in params["dimension_numbers"].operand_batching_dims
    sizes = _at(params["slice_sizes"], None if is_batch else axis, count)
    return {"slice_sizes": sizes, "indices_are_sorted": False, "unique_indices": False}


def _at(sizes: Sequence[int], axis: int | None, count: int) -> tuple[int, ...]:
    return tuple(count if d == axis else size for d, size in enumerate(sizes))


_PARAMETERS: dict[str, Change] = {
    "broadcast_in_dim": _resized("shape"),
    "reshape": _resized("new_sizes"),
    "slice": _resized("limit_indices"),
    "dynamic_slice": _resized("slice_sizes"),
    "gather": _windows,
    "scan": lambda params, to, count: {"length": count},
}


# --- loops ----------------------------------------------------------------------------------------


class _Inside(NamedTuple):
    """The axis of rows of each variable of a loop's body that has one, and the equations in order
    with what they do to rows (None: they have none).
    """

    axes: dict[Var, int]
    eqns: list[tuple[Equation, Aligned | None]]

    def of(self, atom: Any) -> int | None:
        """The axis of rows of an atom."""
        return self.axes.get(atom) if isinstance(atom, Var) else None

    def mark(self, atoms: Iterable[Any], axes: Iterable[int | None]) -> None:
        """Note that atoms have rows along these axes.

        Raises:
            NotByRowsError: one has them along another axis, or cannot have any.
        """
        for atom, axis in zip(atoms, axes, strict=True):
            if axis is not None:
                can_have = isinstance(atom, Var) and axis >= 0
                if not can_have or self.axes.setdefault(atom, axis) != axis:
                    raise NotByRowsError

    def aligned(self, eqn: Equation) -> Aligned | None:
        """What an equation does to rows, those of what it reads and makes noted; None: it has none.

        Raises:
            NotByRowsError: it does not treat each row by itself.
        """
        own = list(map(self.of, eqn.invars))
        made = self.of(eqn.outvars[0])
        if own != [None] * len(own):
            aligned = aligned_by(eqn, own)
        elif made is None:
            return None
        else:
            aligned = aligned_back(eqn, made)
        if aligned is None:
            raise NotByRowsError
        self.mark(eqn.invars, aligned.operands)
        self.mark(eqn.outvars, aligned.outputs)
        return aligned


def _is_map(scan: _jax.LoopParts, rows: Axes) -> bool:
    """Whether each turn of a scan makes its row by itself, and the rows are the turns."""
    consts, carry, xs = scan.split(rows)
    return not carry and {*consts} <= {None} and {*xs} <= {None, 0}


def _aligned_loop(eqn: Equation, rows: Axes) -> Aligned | None:
    """The same of a scan: its turns are the rows and carry nothing, or each turn treats each row by
    itself.
    """
    if eqn.effects:
        return None
    scan = _jax.scan_of(eqn)
    if _is_map(scan, rows):
        num_xs = len(eqn.invars) - scan.num_consts
        return Aligned((0,) * len(eqn.outvars), (None,) * scan.num_consts + (0,) * num_xs)
    inside = _inside(eqn, tuple(rows))
    if inside is None:
        return None
    body = _jax.open_jaxpr(eqn.params["jaxpr"])
    first = scan.num_consts + scan.num_carry
    return Aligned(
        _turned(map(inside.of, body.outvars), scan.num_carry, 1),
        _turned(map(inside.of, body.invars), first, 1),
    )


def _turned(axes: Iterable[int | None], num_whole: int, more: int) -> tuple[int | None, ...]:
    """Axes of what a scan takes or gives, from those of one turn: there is one `more` (1) of all but
    the first. Or these from those, of which there is one less (-1).
    """
    return tuple(
        axis if axis is None or n < num_whole else axis + more for n, axis in enumerate(axes)
    )


@functools.lru_cache(maxsize=16)  # a plan asks several times, of few scans
def _inside(eqn: Equation, rows: Axes) -> _Inside | None:
    """Where the rows are inside a scan, if every equation treats each by itself.

    The least fixed point: what is made of rows has them, what is read beside rows is made to have
    them, and a carry has those that it has after a turn.
    """
    body = _jax.open_jaxpr(eqn.params["jaxpr"])
    scan = _jax.scan_of(eqn)
    _, carries, _ = scan.split(body.invars)
    carried, _ = scan.split_results(body.outvars)
    inside = _Inside({}, [])
    num_known = -1
    try:
        inside.mark(body.invars, _turned(rows, scan.num_consts + scan.num_carry, -1))
        while num_known != len(inside.axes):
            num_known = len(inside.axes)
            inside.eqns[:] = [(each, inside.aligned(each)) for each in body.eqns if each.outvars]
            inside.mark(carries, map(inside.of, carried))
            inside.mark(carried, map(inside.of, carries))
    except NotByRowsError:
        return None
    return inside


def _run_loop(eqn: Equation, aligned: Aligned, count: int, values: Sequence[Any]) -> list[Any]:
    """A scan on some rows, each turn on these."""
    inside = _inside(eqn, aligned.operands)
    if inside is None:
        raise NotByRowsError("inside it, rows meet")
    body = _jax.open_jaxpr(eqn.params["jaxpr"])
    scan = _jax.scan_of(eqn)
    consts, start, rows = scan.split(values)

    def turn(carry: Any, xs: Any) -> Any:
        env = dict(zip(body.constvars, body.consts, strict=True))
        env.update(zip(body.invars, (*consts, *carry, *xs), strict=True))
        for each, by_rows in inside.eqns:
            given = [_jax.read(atom, env) for atom in each.invars]
            found = (
                _jax.apply(each, given)
                if by_rows is None
                else run_on_rows(each, by_rows, count, given)
            )
            env.update(zip(each.outvars, found, strict=True))
        return scan.split_results([_jax.read(atom, env) for atom in body.outvars])

    return scan.run(turn, start, rows)


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
    is_by_rows = verdict_by(found, eqn, operands, outputs) is None
    return Aligned(outputs, tuple(operands)) if is_by_rows else None


_GROUPS = "feature_group_count", "batch_group_count"
"""Of convolutions: which group a row is in is told by its place among all of them."""
