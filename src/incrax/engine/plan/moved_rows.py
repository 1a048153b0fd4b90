"""Rules for rows that go elsewhere: to other places (slices, pads, concatenations), or to what reads
them by windows (convolutions, pooling, axes that are divided or merged).

In: an equation, and the rows of its operands. Out: the rows of its result; or, of a result, the rows
that it is made of. Rows that were moved are dirty where they go, and what reads some by windows in
blocks of consecutive rows, each made of the block that it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax._jax import Atom, Equation, Var
from incrax.engine.plan.environment import MIXED, RowEnvironment, zeros_of
from incrax.engine.plan.row_sets import (
    DirtyRows,
    RowSet,
    by_slots,
    is_by_slots,
    masked,
    window_of_block,
)
from incrax.primitives.entry import Run, Window, shape_of, with_item
from incrax.primitives.on_rows import (
    NotByRowsError,
    fill_of,
    interval_of_runs,
    moved_beside,
    runs_along,
)
from incrax.primitives.products import across
from incrax.primitives.reductions import unpooled as window_back
from incrax.primitives.table import entry_of


def move(env: RowEnvironment, eqn: Equation, axis: int) -> None:
    """Rows go to other places of the results."""
    for var, runs in zip(eqn.outvars, runs_along(eqn, axis) or (), strict=True):
        _check_moves(env, eqn, runs, axis)
        length = shape_of(var)[axis]
        if not length:
            env.whole[var] = zeros_of(var)
            continue
        found: list[tuple[DirtyRows, RowSet]] = []
        for run in runs:
            rows = env.rows(eqn.invars[run.operand])
            if rows is not None:
                found.append((rows, env.sets.moved(rows.of, run, length)))
        places = [place for _, place in found]
        of = places[0] if len(places) == 1 else env.sets.side_by_side(places)
        if of is None:
            raise NotByRowsError(MIXED)
        if of.ends is None:
            env.check_size(of, places)
            make = functools.partial(_together, env, eqn, found, axis)
        else:
            env.check_size(of)
            make = functools.partial(_interval_back, env, eqn, axis, runs, of)
        env.set_rows(var, axis, of, make)


def _fill(env: RowEnvironment, eqn: Equation) -> Any:
    """The value that stands where no row goes."""
    fill = fill_of(eqn)
    return None if fill is None else env.result(fill)


def _together(
    env: RowEnvironment,
    eqn: Equation,
    found: Sequence[tuple[DirtyRows, RowSet]],
    axis: int,
) -> Any:
    """Rows of several sets, as one."""
    fill = _fill(env, eqn)
    values = [moved_beside(eqn, axis, env.at(rows), fill) for rows, _ in found]
    places = [place for _, place in found]
    if len(places) == 1:
        return values[0]
    return by_slots(places, values, axis) if is_by_slots(places) else lax.concatenate(values, axis)


def _check_moves(env: RowEnvironment, eqn: Equation, runs: Sequence[Run], axis: int) -> None:
    """Raise where an operand that is dirty in other ways than along this axis is moved, or
    fills.
    """
    moved = {run.operand for run in runs}
    for number, atom in enumerate(eqn.invars):
        if isinstance(atom, Var) and atom in env.dirty:
            if number not in moved or env.axis_of(atom) != axis:
                raise NotByRowsError(MIXED)


def moved_back(env: RowEnvironment, eqn: Equation, var: Var, axis: int, of: RowSet) -> Any:
    """Rows of a result, from where they were moved."""
    all_runs = runs_along(eqn, axis)
    assert all_runs is not None
    runs = [run for run in all_runs[eqn.outvars.index(var)] if run.num]
    _check_moves(env, eqn, runs, axis)
    if of.ends is not None:
        return _interval_back(env, eqn, axis, runs, of)
    fill = _fill(env, eqn)
    sources = []
    values = []
    for run in runs:
        atom = eqn.invars[run.operand]
        source = env.sets.moved(of, run.reversed(), shape_of(atom)[axis])
        sources.append(source)
        rows = env.rows_of(atom, axis, source)
        values.append(moved_beside(eqn, axis, rows, fill))
    if sum(run.num for run in runs) < of.length:
        value = lax.broadcast(fill, with_item(shape_of(var), axis, of.size))
        return by_slots([of, *sources], [value, *values], axis)
    return by_slots(sources, values, axis)


def _interval_back(
    env: RowEnvironment, eqn: Equation, axis: int, runs: Sequence[Run], of: RowSet
) -> Any:
    """An interval of a result, from the intervals that were moved there, side by side."""
    assert of.ends is not None

    def rows_of(atom: Atom, ends: tuple[int, int]) -> Any:
        source = env.sets.interval(*ends, shape_of(atom)[axis])
        return env.rows_of(atom, axis, source)

    return interval_of_runs(eqn, axis, runs, of.ends, rows_of, _fill(env, eqn))


def slide(env: RowEnvironment, eqn: Equation) -> None:
    """Rows are read by those of the result whose windows they are in."""
    (var,) = eqn.outvars
    operand = eqn.invars[0]
    rows = env.rows(operand)
    if sum(map(env.is_dirty, eqn.invars)) > (rows is not None):
        _correlate(env, eqn)
        return
    assert rows is not None
    window = window_of(eqn, source=rows.axis)
    of = env.sets.reading(rows.of, window, shape_of(var)[window.out])
    env.check_size(of)
    env.set_rows(var, window.out, of, functools.partial(slid, env, eqn, window, of))


def slid(env: RowEnvironment, eqn: Equation, window: Window, of: RowSet) -> Any:
    """Rows of a result, from those that they read."""
    operand, *others = eqn.invars
    if any(map(env.is_dirty, others)):
        raise NotByRowsError("what its windows are weighted with changed, too")
    others = [env.result(atom) for atom in others]
    source = env.sets.read(of, window, shape_of(operand)[window.source])
    value = env.rows_of(operand, window.source, source)
    found = Windowed(window, of, source).made(value, others)
    if jnp.shape(found) != with_item(shape_of(eqn.outvars[0]), window.out, of.size):
        raise NotByRowsError("it cannot be run on blocks of rows")
    return found


def _correlate(env: RowEnvironment, eqn: Equation) -> None:
    """A convolution summed over the rows of what is its kernel, as the gradient by a kernel is:
    its change.
    """
    if eqn.primitive.name != "conv_general_dilated":
        raise NotByRowsError("its windows read two operands that changed")
    image, kernel = eqn.invars
    rows, taps = env.rows(image), env.rows(kernel)
    found = across(eqn, env.axis_of(image), env.axis_of(kernel))
    if found is None:
        raise NotByRowsError("what its windows are weighted with changed, too")
    window, axis = found
    length = shape_of(kernel)[axis]
    sets = [] if rows is None else [env.sets.reading(rows.of, window, length)]
    of = env.union([*sets, *([] if taps is None else [taps.of])])
    env.check_size(of)
    source = env.sets.read(of, window, shape_of(image)[window.source])

    def part() -> Any:
        value = env.rows_of(image, window.source, source)
        own = masked(env.rows_of(kernel, axis, of), axis, of.counts)
        return Windowed(window, of, source).summed(value, own, axis)

    env.add_difference(eqn, part)


def unpool(env: RowEnvironment, eqn: Equation) -> None:
    """The gradient of a largest or least of each window: the rows of the windows of which a row
    or the gradient changed.
    """
    (var,) = eqn.outvars
    gradient, operand = (env.rows(atom) for atom in eqn.invars)
    axis = next(each.axis for each in (gradient, operand) if each is not None)
    window = _window_back(env, eqn, axis)
    count = shape_of(eqn.invars[0])[axis]
    sets = [] if gradient is None else [gradient.of]
    sets += [] if operand is None else [env.sets.reading(operand.of, window, count)]
    of = env.sets.read(env.union(sets), window, shape_of(var)[axis])
    env.check_size(of)
    env.set_rows(var, axis, of, functools.partial(unpooled, env, eqn, axis, of))


def _window_back(env: RowEnvironment, eqn: Equation, axis: int) -> Window:
    if any(env.axis_of(atom) not in (None, axis) for atom in eqn.invars):
        raise NotByRowsError(MIXED)
    return window_back(eqn, axis)


def unpooled(env: RowEnvironment, eqn: Equation, axis: int, of: RowSet) -> Any:
    """Rows of it, from all windows that they are in, and the rows of these."""
    window = _window_back(env, eqn, axis)
    count, length = (shape_of(atom)[axis] for atom in eqn.invars)
    near = env.sets.reading(of, window, count)
    around = env.sets.read(near, window, length)
    values = [
        env.rows_of(atom, axis, own) for atom, own in zip(eqn.invars, (near, around), strict=True)
    ]

    beside = window.stride + of.width  # rows that are in no window at all
    gaps = [(beside, beside, 0) if d == axis else (0, 0, 0) for d in range(values[0].ndim)]
    windowed = Windowed(window, near, around)

    def run(gradient: Any, x: Any, offset: Any, first: Any) -> Any:
        found = window.run(gradient, windowed.places(x, offset))
        found = lax.pad(found, np.zeros((), found.dtype), gaps)
        return lax.dynamic_slice_in_dim(found, first + beside, of.width, axis)

    firsts = of.firsts - window_of_block(near, window)[0]
    operands = [*((value, axis) for value in values), (windowed.offsets, None), (firsts, None)]
    return _by_blocks(run, operands, of.num_blocks, axis)


class Windowed(NamedTuple):
    """Blocks of a result that read an operand by windows."""

    window: Window
    of: RowSet  # these blocks
    source: RowSet  # the blocks of the operand that they read

    @property
    def offsets(self) -> Any:
        """The places of each block of the source at which what a block reads begins."""
        first, _ = window_of_block(self.of, self.window)
        return first - self.source.firsts * self.window.spread

    def places(self, part: Any, offset: Any) -> Any:
        """All that a block reads, from a block of rows: these were moved to where the axis has them
        all, and what is beyond its ends is filled.
        """
        window, of, source = self
        width = window_of_block(of, window)[1]
        last = (of.length - of.width) * window.stride - window.low + width
        low = max(0, window.low)
        high = max(0, last - (source.length - 1) * window.spread - window.size)
        holes = window.spread - window.size
        gaps = [(0, 0, 0)] * part.ndim
        gaps[window.source] = (low, high + holes, holes)
        if window.laid is not None:
            part = window.laid(part)
        elif any(gaps[window.source]):
            part = lax.pad(part, np.asarray(window.fill, part.dtype), gaps)
        if part.shape[window.source] == width:
            return part
        return lax.dynamic_slice_in_dim(part, offset + low, width, window.source)

    def made(self, value: Any, others: Sequence[Any]) -> Any:
        """The blocks, of the rows of the source and of the other operands."""
        run = lambda part, offset: self.window.run(self.places(part, offset), *others)
        operands = [(value, self.window.source), (self.offsets, None)]
        return _by_blocks(run, operands, self.of.num_blocks, self.window.out)

    def summed(self, value: Any, taps: Any, axis: int) -> Any:
        """The sum over all blocks of what is made of the places that windows of each would read, and
        of a second operand, of which each row meets what its window reads.
        """
        run = lambda part, offset, own: self.window.run(self.places(part, offset), own)
        operands = [(value, self.window.source), (self.offsets, None), (taps, axis)]
        one = lambda *parts: run(*parts)[None]
        return lax.reduce_sum(_by_blocks(one, operands, self.of.num_blocks, 0), (0,))


def _by_blocks(
    run: Callable[..., Any], operands: Sequence[tuple[Any, int | None]], num_blocks: int, out: int
) -> Any:
    """A function of each block, the results side by side along an axis; each operand has its blocks
    along an axis, or (None) an entry for each.
    """
    if num_blocks == 1:
        return run(*(lax.squeeze(x, (0,)) if axis is None else x for x, axis in operands))
    parts = []
    for x, axis in operands:
        shape = jnp.shape(x)
        if axis is not None:
            apart = (num_blocks, shape[axis] // num_blocks)
            x = lax.reshape(x, (*shape[:axis], *apart, *shape[axis + 1 :]))
        parts.append(x)
    found = jax.vmap(run, [axis or 0 for _, axis in operands], out)(*parts)
    shape = found.shape
    return lax.reshape(found, (*shape[:out], num_blocks * shape[out + 1], *shape[out + 2 :]))


def window_at(eqn: Equation, *, source: int | None = None, out: int | None = None) -> Window | None:
    """The window along an axis of the operand, or of the result, if there is one."""
    find = entry_of(eqn).windows
    windows = find(eqn) if find else ()
    return next((x for x in windows if source == x.source or out == x.out), None)


def window_of(eqn: Equation, **axis: int) -> Window:
    """The same.

    Raises:
        NotByRowsError: there is none.
    """
    window = window_at(eqn, **axis)
    if window is None:
        raise NotByRowsError("its windows are not along the rows")
    return window
