"""Rules for look-ups, `x[ids]`, and sums back to the ids, `zeros.at[ids].add(r)`.

In: a gather or a scatter, and the rows of its operands. Out: rows of its result. With clean ids a
look-up is dirty in the rows that have a dirty one as id: a table of each id's rows is kept, made on
the host. The sum of rows back to their ids is one over the table's rows, and of a sum over all of them
a value per id is kept.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.engine.plan.environment import MIXED, RowEnvironment, check_few, is_few
from incrax.engine.plan.row_sets import (
    MAX_COMPARED,
    DirtyRows,
    FromList,
    Ids,
    Listed,
    LookedUp,
    RowSet,
    grouped,
    ids_read,
    listed_members,
    masked,
    taken,
)
from incrax.engine.plan.windows_by_rows import Steps, steps_of
from incrax.engine.rewrites.derived import HostRecipe
from incrax.primitives.entry import shape_of, with_parameters
from incrax.primitives.indexing import windows_of
from incrax.primitives.on_rows import NotByRowsError

MIN_ARRANGED_BYTES = 2**18
MAX_ARRANGED = 2
"""Bytes of a clean value from which on it is kept arranged by the ids of a look-up, and how many slots
there may be for each of its rows.
"""


NO_ROWS = "an index stands for more, or for less, than one row"


def look_up(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """`x[ids]`, x dirty in some rows: dirty where ids are those, read from a table."""
    operand, indices = eqn.invars
    if env.rows(operand) is None or env.rows(indices) is not None:
        raise NotByRowsError("its indices changed, too")
    batch = _plain_batch(eqn, rows.axis)
    if batch is None:
        _look_up_windows(env, eqn, rows)
        return
    ids = _ids_of(eqn)
    if not (ids.clips or windows_of(eqn).is_dropping):
        _check_in_range(env, ids.indices, rows.of.length)
    members = _members(env, ids, rows.of)
    make = lambda: _repeated(env.at(rows), rows.axis, batch, members.size)
    if isinstance(members.origin, FromList):
        make = functools.partial(looked_up_at, env, eqn, batch, members)
    env.set_rows(eqn.outvars[0], batch, members, make)


def _look_up_windows(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """`x[i, j]`, in steps."""
    steps = steps_of(eqn, rows.axis)
    if steps is None:
        raise NotByRowsError(NO_ROWS)
    operand, indices = eqn.invars
    (found,) = eqn.outvars
    ids = _row_ids(env, steps, indices)
    # First of all, since it may refuse: else a step would run on all rows.
    members = _members(env, _ids_of(eqn)._replace(indices=ids), rows.of)
    check_few(members.size, shape_of(indices)[0])
    read = env.derived(("rows named", found), [operand, ids], steps.rows)
    made = env.derived(("windows", found), [read, indices], steps.windows_in)
    env.note_same(found, made)


def _row_ids(env: RowEnvironment, steps: Steps, indices: Var) -> Var:
    """The rows that indices name, of a gather and of the sum back to them the same variable."""
    return env.derived(("ids", steps.windows.indexed.index(steps.axis)), [indices], steps.ids)


def _ids_of(eqn: Equation) -> Ids:
    indices = eqn.invars[1]
    assert isinstance(indices, Var)
    return Ids(indices, eqn.params["mode"] == lax.GatherScatterMode.CLIP)


def looked_up_at(env: RowEnvironment, eqn: Equation, axis: int, of: RowSet) -> Any:
    """Rows of `x[ids]`, x dirty in some rows: those of x that the ids of these rows name."""
    operand, indices = eqn.invars
    rows = env.rows(operand)
    if rows is None or batch_of(eqn, rows.axis) != axis or env.rows(indices) is not None:
        raise NotByRowsError(MIXED)
    length = rows.of.length
    indices, clips = _ids_of(eqn)
    is_some_row = clips or (env.are_fixed(indices) and np.all(env.ids_of(indices, length) < length))
    if not is_some_row:
        raise NotByRowsError("its indices are not known before it runs")
    key = (indices, "ids", of, length)
    if key not in env.rows_at:
        ids = ids_read(jnp, env.rows_of(indices, 0, of), length, clips=clips)
        env.rows_at[key] = RowSet(ids, length, of.counts, has_spare=True)
    places = env.rows_at[key]
    return jnp.moveaxis(env.rows_of(operand, rows.axis, places), rows.axis, axis)


_AGAIN = "it looks up what was looked up, by indices that may change"


def _check_in_range(env: RowEnvironment, indices: Var, length: int) -> None:
    """Where nothing is said of an index out of range, XLA reads the first row or the last."""
    if not _are_in_range(env.ids_of(indices, length), length):
        raise NotByRowsError("an index that was to be in range is not")
    if not env.are_fixed(indices):
        recipe = HostRecipe((indices,), functools.partial(_are_in_range, length=length))
        are_inside = env.derived_values.make_on_host(("in range", length), _jax.bool_aval(), recipe)
        env.guards.append(env.table(are_inside))


def _members(env: RowEnvironment, ids: Ids, of: RowSet) -> RowSet:
    """The rows of indices that are among some others."""
    key = (ids.indices, "members", of, ids.clips)
    if key not in env.rows_at:
        is_again = isinstance(of.origin, LookedUp | FromList)
        if is_again and not env.are_fixed(ids.indices):
            raise NotByRowsError(_AGAIN)
        numbers = env.ids_of(ids.indices, of.length, clips=ids.clips)
        listed = listed_members(of, numbers) if env.are_fixed(ids.indices) else None
        if not is_again:
            env.rows_at[key] = _from_table(env, ids, of, numbers, listed)
        elif listed is None:
            raise NotByRowsError(_AGAIN)
        else:  # they are many, for each argument different ones
            check_few(listed.numbers.shape[1], numbers.size)
            env.rows_at[key] = env.sets.from_list(listed, numbers.size)
    return env.rows_at[key]


def _from_table(
    env: RowEnvironment, ids: Ids, of: RowSet, numbers: np.ndarray, listed: Listed | None
) -> RowSet:
    """These rows, in as many slots for each id as the most frequent one has."""
    length = numbers.size
    width = int(np.bincount(numbers, minlength=of.length + 1)[:-1].max(initial=1))
    check_few(width * of.size, length)
    table = _table(env, ids, of.length, width)
    width = min(width, env.widths.get(table, width))
    slots = lax.slice_in_dim(taken(env.table(table), 0, of), 0, width, axis=1)
    if of.has_spare:  # a slot of no row has no members
        is_row = lax.broadcast_in_dim(of.is_row, slots.shape, (0,))
        slots = lax.select(is_row, slots, lax.full_like(slots, length))
    counts = lax.expand_dims(of.counts, (1,)) & (slots < length)
    slots, counts = (lax.reshape(x, (of.size * width,)) for x in (slots, counts))
    origin = LookedUp(of, ids, table)
    found = RowSet(slots, length, counts, True, origin, listed=listed)
    env.looked_up[table] = found
    return found


def _table(env: RowEnvironment, ids: Ids, length: int, width: int) -> Var:
    """The rows of each id; of indices that may change, no id is to have more than there are slots."""
    derived = env.derived_values
    options = {"length": length, "width": width, "clips": ids.clips}
    kind = tuple(options.values())
    recipe = HostRecipe((ids.indices,), functools.partial(member_table, **options))
    aval = _jax.array_aval((length, width), np.int32)
    table = derived.make_on_host(("members", *kind), aval, recipe)
    if not env.are_fixed(ids.indices):
        recipe = HostRecipe((ids.indices,), functools.partial(_fits, **options))
        fits = derived.make_on_host(("fits", *kind), _jax.bool_aval(), recipe)
        env.guards.append(env.table(fits))
    return table


def arranged_rows(env: RowEnvironment, var: Var, axis: int, of: RowSet) -> Any | None:
    """The rows of a clean value that a look-up found, read from a copy in which those of each id lie
    side by side: in a large value each of them waits for memory.

    None where the copy would be much larger, or the value is likely to change: each time it would be
    arranged anew.
    """
    is_steady = not env.facts.mask(var) & env.moving
    if not isinstance(of.origin, LookedUp) or env.adds_changes or not is_steady:
        return None
    if _jax.is_key_dtype(var.aval.dtype):
        return None
    table = of.origin.table
    is_worth = _jax.aval_bytes(var.aval) >= MIN_ARRANGED_BYTES
    if not is_worth or _jax.aval_size(table.aval) > MAX_ARRANGED * of.length:
        return None
    others = [size for d, size in enumerate(shape_of(var)) if d != axis]
    aval = _jax.array_aval((*table.aval.shape, *others), var.aval.dtype)
    recipe = HostRecipe((var, table), functools.partial(_arranged, axis=axis))
    by_id = env.derived_values.make_on_host(("arranged", axis), aval, recipe)
    rows = taken(env.table(by_id), 0, of.origin.of)
    return jnp.moveaxis(lax.reshape(rows, (of.size, *others)), 0, axis)


def add_back(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """`zeros.at[ids].add(x)`: by the ids of a look-up, the sum over each id's rows; by others,
    the change.
    """
    into, indices, updates = eqn.invars
    if env.rows(updates) is None or env.rows(indices) is not None:
        raise NotByRowsError("its indices, or what it adds to, changed")
    windows = windows_of(eqn)
    if env.rows(into) is not None:
        raise NotByRowsError("what it adds to changed, too")
    if _add_windows_back(env, eqn, rows):
        return
    if windows.batch != (rows.axis,) or windows.batching:
        raise NotByRowsError(NO_ROWS)
    axis = added_axis(eqn)
    parent = _parent(rows, _ids_of(eqn))
    # Of another length, other indices are out of range than those of the look-up.
    if parent and axis is not None and shape_of(into)[axis] == parent.length:
        _sum_of_members(env, eqn, rows, parent, axis)
    else:
        _scatter_change(env, eqn, rows)


def _parent(rows: DirtyRows, ids: Ids) -> RowSet | None:
    """The rows of which these were looked up by the same ids."""
    origin = rows.of.origin
    return origin.of if isinstance(origin, LookedUp) and origin.ids == ids else None


def _add_windows_back(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> bool:
    """`x.at[i, j].add(r)`, in steps, where r was looked up by i, or there are several for each row;
    else the change of single elements costs less.
    """
    into, indices, updates = eqn.invars
    (total,) = eqn.outvars
    windows = windows_of(eqn)
    if added_axis(eqn) is not None and len(windows.batch) == 1:
        return False
    for steps in filter(None, (steps_of(eqn, axis) for axis in windows.indexed)):
        ids = _row_ids(env, steps, indices)
        has_parent = _parent(rows, _ids_of(eqn)._replace(indices=ids)) is not None
        if not has_parent and len(windows.batch) == 1:
            continue
        if not has_parent:
            env.want_difference(total)
        of_rows = env.derived(("rows of updates", total), [updates, indices], steps.rows_of)
        made = env.derived(("added", total), [into, ids, of_rows], steps.added)
        env.note_same(total, made)
        return True
    return False


def _sum_of_members(
    env: RowEnvironment, eqn: Equation, rows: DirtyRows, parent: RowSet, axis: int
) -> None:
    base = env.rows_of(eqn.invars[0], axis, parent)

    def summed() -> Any:
        sums = _sums(jnp.moveaxis(env.at(rows), rows.axis, 0), rows.of, parent)
        return base + jnp.moveaxis(sums, 0, axis)

    env.set_rows(eqn.outvars[0], axis, parent, summed)


def _scatter_change(env: RowEnvironment, eqn: Equation, rows: DirtyRows) -> None:
    """`x.at[ids].add(r)`, r dirty in some rows: the change of the rows that these name, or, where
    they are too many, of all.
    """
    _, indices, _ = eqn.invars
    (total,) = eqn.outvars
    env.want_difference(total)
    places = env.rows_of(indices, 0, rows.of)
    counted = lambda: env.counted(rows)
    new, old = counted(), env.as_they_were(counted)
    change = new - old
    before = env.baseline(total)
    axis = added_axis(eqn)
    size = rows.of.size
    if axis is None or size > MAX_COMPARED or not is_few(size, shape_of(total)[axis]):
        # Slots are in any order, and may repeat a row.
        add = with_parameters(eqn, {"unique_indices": False, "indices_are_sorted": False})
        env.set_changed(total, before, add(before, places, change), new, old)
        return
    length = shape_of(total)[axis]
    ids = ids_read(jnp, places, length, clips=_ids_of(eqn).clips)
    of, sums = _grouped_sums(ids, jnp.moveaxis(change, rows.axis, 0), length)
    rows_before = taken(before, axis, of)
    rows_after = rows_before + jnp.moveaxis(sums, 0, axis)
    found = DirtyRows(rows_after, rows_before, axis, of)
    env.drifting.add(total)
    env.dirty[total] = found
    env.written(total, found)
    env.guard_difference(rows_before, rows_after, new, old)


def _grouped_sums(ids: Any, change: Any, length: int) -> tuple[RowSet, Any]:
    """The rows that ids name, and of each the sum of what is to be added there."""
    of, same = grouped(ids, length)
    over_slots = ((1,), (0,)), ((), ())
    same = same.astype(change.dtype)
    return of, lax.dot_general(same, change, over_slots, precision=Precision.HIGHEST)


def sum_by_ids(
    env: RowEnvironment, eqn: Equation, rows: DirtyRows, others: tuple[int, ...]
) -> None:
    """A sum over rows that were looked up: of a value per id, with one for those of none."""
    operand = eqn.invars[0]
    members = rows.of
    assert isinstance(members.origin, LookedUp)
    assert isinstance(operand, Var)
    parent = members.origin.of
    indices, clips = members.origin.ids

    def per_row(x: Any) -> Any:
        x = jnp.moveaxis(x, rows.axis, 0)
        axes = tuple(d + (d < rows.axis) for d in others)
        return lax.reduce_sum(x, axes) if axes else x

    def per_id(x: Any, indices: Any) -> Any:
        x = per_row(x)
        ids = ids_read(jnp, indices, parent.length, clips=clips)
        return jnp.zeros((parent.length + 1, *x.shape[1:]), x.dtype).at[ids].add(x)

    kind = ("sum by ids", others, rows.axis, parent.length, clips)
    partial = env.derived_values.make(kind, [operand, indices], per_id)
    sums = DirtyRows(_sums(per_row(rows.new), members, parent), None, 0, parent)
    together = with_parameters(eqn, {"axes": (0,)})
    env.set_whole(eqn.outvars[0], together(env.written(partial, sums)))


def added_axis(eqn: Equation) -> int | None:
    """The axis of which each index of a scatter names one entry, all of it; None if there is none."""
    windows = windows_of(eqn)
    is_plain = len(windows.indexed) == 1 and windows.collapsed == windows.indexed
    return windows.entry_axis if is_plain else None


def _repeated(value: Any, axis: int, target: int, count: int) -> Any:
    """Each row so often that there are `count` of them, along another axis."""
    value = jnp.moveaxis(value, axis, 0)
    number, *rest = value.shape
    spread = (number, count // number, *rest)
    value = lax.broadcast_in_dim(value, spread, (0, *range(2, len(spread))))
    return jnp.moveaxis(lax.reshape(value, (count, *rest)), 0, target)


def _sums(value: Any, members: RowSet, parent: RowSet) -> Any:
    """The sum over each id's rows, these along the first axis."""
    # Not `counts`: what repeats an id is to have its sum, too.
    value = masked(value, 0, members.is_row)
    shape = (parent.size, members.size // parent.size, *value.shape[1:])
    return lax.reduce_sum(lax.reshape(value, shape), (1,))


def batch_of(eqn: Equation, axis: int) -> int:
    """The axis of a gather's result that has an entry for each index of an axis of the operand.

    Raises:
        NotByRowsError: it reads windows that are more than one such entry, or not all of another
            axis.
    """
    batch = _plain_batch(eqn, axis)
    if batch is None:
        raise NotByRowsError(NO_ROWS)
    return batch


def _plain_batch(eqn: Equation, axis: int) -> int | None:
    windows = windows_of(eqn)
    is_plain = windows.indexed == (axis,) == windows.collapsed and not windows.batching
    others = [d for d in range(len(windows.shape)) if d != axis]
    is_whole = all(windows.place_of(d) is not None for d in others)
    return windows.batch[0] if is_plain and is_whole and len(windows.batch) == 1 else None


def member_table(indices: np.ndarray, length: int, width: int, *, clips: bool) -> np.ndarray:
    """For each id, the numbers of the rows that have it, in `width` slots; int32 of shape
    (length, width). Spare slots hold the number of rows; more rows than slots are left out.
    """
    ids = ids_read(np, indices, length, clips=clips)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    starts = np.searchsorted(ids[order], np.arange(length + 1))
    slots = starts[:-1, None] + np.arange(width)
    is_there = slots < starts[1:, None]
    found = order[np.minimum(slots, ids.size - 1)]
    return np.where(is_there, found, np.int32(ids.size))


def _arranged(value: np.ndarray, table: np.ndarray, *, axis: int) -> np.ndarray:
    """The rows of a value in the slots of a table; any one in spare ones."""
    return np.take(np.moveaxis(value, axis, 0), table, axis=0, mode="clip")


def _fits(indices: np.ndarray, length: int, width: int, *, clips: bool) -> np.ndarray:
    """Whether no id has more rows than there are slots."""
    ids = ids_read(np, indices, length, clips=clips)
    counts = np.bincount(ids, minlength=length + 1)
    return np.asarray(counts[:-1].max() <= width)


def _are_in_range(indices: np.ndarray, length: int) -> np.ndarray:
    return np.asarray(np.all((indices >= 0) & (indices < length)))
