"""How much of a program's work a change of rows leaves out, roughly, before anything is traced.

In: `Facts`, the inputs of which rows change, and whether these are among the first or the last. Out:
a share of the work. It asks `slicer.way_of` what an equation does with rows, and is to know no more of it
than where rows go; what it says too much of costs a plan that is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from incrax._jax import Equation, Var
from incrax._program import read_vars
from incrax.engine.plan.environment import MAX_INTERVAL_SHARE
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.looked_up_rows import added_axis
from incrax.engine.plan.met_rows import MEETINGS, RUNNING
from incrax.engine.plan.moved_rows import window_at
from incrax.engine.plan.resumed import resumable
from incrax.engine.plan.row_sets import (
    MAX_HALVINGS,
    ends_of,
    ends_of_all,
    reading_ends,
)
from incrax.engine.plan.slicer import way_of
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import crossed_by
from incrax.primitives.products import across
from incrax.primitives.row_axis import Axes


def accumulates(facts: Facts) -> bool:
    """Whether a program may have operations of which rows depend on all before or after them: running
    ones, or `associative_scan`, which takes every other element.
    """
    return any(
        eqn.primitive.name in RUNNING
        or (eqn.primitive.name == "slice" and 2 in (eqn.params["strides"] or ()))
        for eqn in facts.eqns
    )


class _Rough(NamedTuple):
    """What is known of a dirty variable before anything is traced: an axis of rows, None if it is
    dirty as a whole; of an interval its ends; how often every other row was taken, and which of two it
    was; of slabs the other axis.
    """

    axis: int | None
    ends: tuple[int, int] | None = None
    halvings: int = 0
    residue: int | None = None
    other: int | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes of rows."""
        return tuple(axis for axis in (self.axis, self.other) if axis is not None)

    def share(self, var: Any) -> float:
        """Of all rows, those that are dirty; of no interval they are few."""
        if self.axis is None:
            return 1.0
        if self.ends is None:
            return 0.0
        return (self.ends[1] - self.ends[0]) / max(shape_of(var)[self.axis], 1)


WHOLE = _Rough(None)


class RoughShare(NamedTuple):
    """The share of the work that is left out or done by rows, and the equations that read some rows
    and need all.
    """

    share: float
    widened: list[Equation]


def rough_share(facts: Facts, leaves: Sequence[int], within: int = 0) -> RoughShare:
    """Share of the program's work, roughly, that a change of rows of some leaves leaves out or does
    by rows, as `slice_plan` would; without tracing anything.
    """
    dirty = sum(facts.layout.leaf_mask(leaf) for leaf in leaves)
    rows: dict[Var, _Rough] = {}
    for leaf in leaves:
        var = facts.invars[leaf]
        rows[var] = _Rough(0, ends_of(within, shape_of(var)[0]) if within else None)
    ran_s = 0.0
    widened = []
    for eqn, mask, seconds in zip(
        facts.eqns, facts.equation_masks, facts.rough_seconds, strict=True
    ):
        if not mask & dirty:
            continue
        own = {var: rows[var] for var in read_vars(eqn) if var in rows}
        if not own:
            continue
        outputs = _rough_outputs(eqn, own, max(2 * abs(within), 1))
        if outputs is None and any(state.axis is not None for state in own.values()):
            widened.append(eqn)
        share = 1.0 if outputs is None else max(state.share(var) for var, state in own.items())
        ran_s += share * seconds
        for var, state in zip(eqn.outvars, outputs or [WHOLE] * len(eqn.outvars), strict=True):
            is_reached = state.axis is None or state.ends is not None
            if is_reached or not within:
                rows[var] = state
    return RoughShare(float(1.0 - ran_s / max(sum(facts.rough_seconds), 1e-12)), widened)


def _rough_outputs(eqn: Equation, own: Mapping[Var, _Rough], most: int) -> list[_Rough] | None:
    """What an equation makes dirty; None if it runs as a whole. No interval of `most` rows is too
    long.
    """
    if any(state.axis is None for state in own.values()):
        return None
    states = [own.get(atom, WHOLE) if isinstance(atom, Var) else WHOLE for atom in eqn.invars]
    ends = ends_of_all(state.ends for state in own.values())
    outputs = None
    if all(state.other is None for state in own.values()):
        outputs = _rough_places(eqn, states, ends)
    if outputs is None and ends is None:
        outputs = _rough_slabs(eqn, states)
    if outputs is None:
        return None
    halvings, residue = _halved(eqn, own.values())
    for var, state in zip(eqn.outvars, outputs, strict=True):
        if state.axis is None:
            continue
        if ends is None and halvings > MAX_HALVINGS:
            return None
        low, high = state.ends or (0, 0)
        if high - low > max(most, MAX_INTERVAL_SHARE * shape_of(var)[state.axis]):
            return None
    return [state._replace(halvings=halvings, residue=residue) for state in outputs]


def _halved(eqn: Equation, own: Collection[_Rough]) -> tuple[int, int | None]:
    """How often every other row was taken, or rows were put between others, and which it was where
    nothing else came since. Where both halves meet, in a tree, rows are half as many, too.
    """
    residues = {state.residue for state in own}
    halvings = [state.halvings for state in own]
    params = eqn.params
    if eqn.primitive.name == "slice" and max(params["strides"] or [1]) > 1:
        return max(halvings) + 1, max(params["start_indices"]) % max(params["strides"])
    if eqn.primitive.name == "pad" and any(inner for *_, inner in params["padding_config"]):
        return max(halvings) + 1, None
    return (min(halvings), None) if len(residues) > 1 else (max(halvings), residues.pop())


def _rough_slabs(eqn: Equation, states: Sequence[_Rough]) -> list[_Rough] | None:
    """Where rows along two axes meet, or are summed."""
    crossed = crossed_by(eqn, [state.axes for state in states])
    if crossed is not None:
        return [_Rough(min(crossed), other=max(crossed))]
    is_sum = eqn.primitive.name == "reduce_sum" and states[0].other is not None
    return [WHOLE] if is_sum else None


def _rough_places(
    eqn: Equation, states: Sequence[_Rough], ends: tuple[int, int] | None
) -> list[_Rough] | None:
    """Where its dirty rows go; these ends have all of them."""
    axes = [state.axis for state in states]
    axis = next(axis for axis in axes if axis is not None)
    way, found = way_of(eqn, axes)
    if way == "maps":
        return [_Rough(axis, ends) for axis in found.outputs]
    if way == "moves":
        places = [
            [run.places(own) for run in runs if (own := states[run.operand].ends)] for runs in found
        ]
        return [_Rough(axis, ends_of_all(each)) for each in places]
    if way == "unpools":
        return [_Rough(axis, ends)] if len({*axes} - {None}) == 1 else None
    if way == "meets":
        return _rough_meeting(eqn, axes, axis, ends)
    if eqn.primitive.name == "conv_general_dilated" and axes[1] is not None:
        return [WHOLE] if across(eqn, axes[0], axes[1]) is not None else None
    window = window_at(eqn, source=axes[0])
    if window is None:
        return None
    length = shape_of(eqn.outvars[0])[window.out]
    return [_Rough(window.out, reading_ends(ends, window, length) if ends else None)]


def _rough_meeting(
    eqn: Equation, axes: Axes, axis: int, ends: tuple[int, int] | None
) -> list[_Rough] | None:
    """What is made where rows meet."""
    name = eqn.primitive.name
    if name in RUNNING:
        if ends is None or axis != eqn.params["axis"]:
            return None
        length = shape_of(eqn.outvars[0])[axis]
        return [_Rough(axis, (0, ends[1]) if eqn.params["reverse"] else (ends[0], length))]
    if ends is None and name == "gather" and axes[0] is not None:
        return [_Rough(0)]  # a look-up, maybe
    if ends is None and name == "scatter-add" and axes[2] is not None:
        return [_Rough(added_axis(eqn))]
    outputs = [WHOLE] * len(eqn.outvars)
    loop = resumable(eqn) if ends is None else None
    if loop is not None:
        carried, rows = loop.scan.split_results(outputs)
        return [*carried, *[_Rough(0)] * len(rows)]
    return outputs if name in MEETINGS else None
