"""Rows chosen by their values: `select_rows`, `nonzero`, `unique`, with room for as many as may be
found.

In: arrays. Out: `Padded`. Gathers only, so that derivatives are JAX's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax.control_flow.loops.bucketed import current_sizes
from incrax.control_flow.loops.messages import no_size, other_mask
from incrax.control_flow.loops.padded import (
    SMALLEST,
    Padded,
    as_size,
    capacity_for,
    checked,
    is_on_host,
    is_staged,
    is_traced,
    padded,
    put_like,
)


def select_rows(x: Any, mask: Any, size: int | None = None) -> Padded:
    """The rows of arrays where a mask is True, in their order: `x[mask]` with room for more.

    Promise: `select_rows(x, mask).exact()` equals `x[mask]`, and so do derivatives.

    Args:
        x: pytree of arrays of shape (n, ...).
        mask: booleans of shape (n,).
        size: room for rows. None: a power of two that they fit in; inside a traced function, only
            in one of `bucketed` or `guarded`.

    Returns:
        A `Padded` of arrays of shape (size, ...) whose `length` is the number of True; rows past it
        are zero.

    Raises:
        CapacityError: more rows than `size`; from inside a compiled program as a `JaxRuntimeError`.
            Or no `size` inside a traced function.
        LoopTypeError: `mask` is no array of n booleans.

    Cost: a cumulative sum over the mask and a gather of `size` rows.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> x = jnp.array([1.0, -2.0, 3.0])
        >>> incrax.select_rows(x, x > 0, size=4).values.tolist()
        [1.0, 3.0, 0.0, 0.0]
    """
    mask = mask if isinstance(mask, (np.ndarray, jax.Array)) else np.asarray(mask)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if mask.dtype != bool or mask.ndim != 1 or np.shape(leaf)[:1] != mask.shape:
            seen = str(jax.typeof(jnp.asarray(leaf)))
            raise other_mask(f"x{jax.tree_util.keystr(path)}", str(jax.typeof(mask)), seen)
    chosen = _chosen("select_rows", mask, size)
    rows = jax.tree.map(lambda leaf: _gathered(leaf, chosen), x)
    return Padded(rows, chosen.num, is_checked=True)


def nonzero(x: Any, size: int | None = None) -> Padded:
    """Where an array is not zero: `jnp.nonzero` with room for more.

    Args:
        x: array of shape (...).
        size: see `select_rows`.

    Returns:
        A `Padded` of a tuple with one array of indices of shape (size,) per axis of `x`, in
        row-major order.

    Raises:
        CapacityError: see `select_rows`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.nonzero(jnp.array([0, 5, 7])).exact()[0].tolist()
        [1, 2]
    """
    like = x
    x = np.asarray(x) if _is_known(x) else jnp.asarray(x)
    shape = x.shape or (1,)
    chosen = _chosen("nonzero", x.reshape(-1) != 0, size)
    parts = np.unravel_index(np.arange(x.size), shape)
    indices = tuple(_gathered(part, chosen, like) for part in parts)
    return Padded(indices, chosen.num, is_checked=True)


class Unique(NamedTuple):
    """The distinct elements of an array, in order.

    `values`, `first` (where each is first) and `counts` are `Padded`; `inverse`, of the shape of
    the array, says which of the values each element is.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> found = incrax.unique(jnp.array([3, 1, 3]))
        >>> found.values.exact().tolist(), found.counts.exact().tolist(), found.inverse.tolist()
        ([1, 3], [1, 2], [1, 0, 1])
    """

    values: Padded
    first: Padded
    inverse: jax.Array
    counts: Padded


def unique(x: Any, size: int | None = None) -> Unique:
    """The distinct elements of an array: `jnp.unique` with room for more, and differentiable.

    The derivative by an element that is repeated goes to the first one.

    Args:
        x: array of shape (...). NaNs are one element, the last.
        size: see `select_rows`.

    Returns:
        A `Unique`.

    Raises:
        CapacityError: see `select_rows`.

    Cost: one stable sort.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> found = incrax.unique(jnp.array([3.0, 1.0, 3.0]))
        >>> found.values.exact().tolist(), found.counts.exact().tolist(), found.inverse.tolist()
        ([1.0, 3.0], [1, 2], [1, 0, 1])
    """
    given = x
    is_known = _is_known(x)
    xp: Any = np if is_known else jnp  # NumPy compiles nothing for each number of elements
    x = xp.asarray(x)
    flat = x.reshape(-1)
    order = _order(flat)
    ordered = flat[order]
    is_first = xp.concatenate(
        [xp.ones(min(1, flat.size), bool), ~_equal(ordered[1:], ordered[:-1])]
    )
    chosen = _chosen("unique", is_first, size)
    ranks = xp.cumsum(is_first) - 1
    if is_known:
        inverse = np.zeros_like(ranks)
        inverse[order] = ranks
    else:
        inverse = jnp.zeros_like(ranks).at[order].set(ranks)
    counts = xp.diff(chosen.rows, append=flat.size)  # rows past the last are `flat.size`
    put = lambda part: put_like(part, given) if is_known else part
    as_rows = lambda part: Padded(part, chosen.num, is_checked=True)
    return Unique(
        as_rows(_gathered(ordered, chosen, given)),
        as_rows(_gathered(order, chosen, given)),
        put(inverse.reshape(x.shape)),
        as_rows(put(counts.astype(ranks.dtype))),
    )


def _order(x: Any) -> Any:
    """Which element comes where when they are sorted, equal ones as they stand."""
    if not isinstance(x, np.ndarray):
        return jnp.argsort(lax.stop_gradient(x), stable=True)
    is_foreign = x.dtype.kind == "V"  # bfloat16 and the like, whose NaNs NumPy does not know
    if is_foreign and jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(np.float32)
    return np.argsort(x, kind="stable")


def _equal(a: Any, b: Any) -> Any:
    """Equal, or both NaN."""
    return (a == b) | ((a != a) & (b != b))  # noqa: PLR0124


# --- which rows -----------------------------------------------------------------------------------


class _Chosen(NamedTuple):
    """Numbers of chosen rows, of shape (size,), out of range past `num`; NumPy's where the mask is
    known.
    """

    rows: Any
    num: Any


def _is_known(x: Any) -> bool:
    return is_on_host(x) and not is_staged()


def _chosen(name: str, mask: Any, size: int | None) -> _Chosen:
    if _is_known(mask):
        found = np.flatnonzero(np.asarray(mask))
        num, room = _with_room(name, len(found), size)
        rows = np.append(found, np.full(room - num, mask.size))
        return _Chosen(rows.astype(np.int32), num)
    num, room = _with_room(name, jnp.sum(mask, dtype=jnp.int32), size)
    rows = jnp.flatnonzero(mask, size=room, fill_value=mask.size).astype(jnp.int32)
    # so that no row is had without the check
    return _Chosen(jnp.where(jnp.arange(room) < num, rows, mask.size), num)


def _with_room(name: str, num: Any, size: int | None) -> tuple[Any, int]:
    """The number of rows, and room for them."""
    if size is not None:
        room = as_size(name, "size", size)
        return checked(name, num, room), room
    if not is_traced(num):
        return num, capacity_for(int(num))
    sizes = current_sizes()
    return num, _room_by_guards(name, num) if sizes is None else sizes.room(num)


def _room_by_guards(name: str, num: Any) -> int:
    """Room for a traced number, where a branch on it is a guard: a path per capacity."""
    room = SMALLEST
    try:
        while num > room:
            room *= 2
    except jax.errors.ConcretizationTypeError:
        raise no_size(name) from None
    return room


def _gathered(x: Any, chosen: _Chosen, like: Any = None) -> jax.Array:
    """The chosen rows, on the device of `like`, or of x."""
    if isinstance(chosen.rows, np.ndarray) and is_on_host(x):
        rows = padded(np.asarray(x)[chosen.rows[: chosen.num]], len(chosen.rows))
        return put_like(rows, x if like is None else like)
    x = jnp.asarray(x)
    if not x.shape[0]:
        return lax.full((len(chosen.rows), *x.shape[1:]), 0, x.dtype)
    return x.at[chosen.rows].get(mode="fill", fill_value=0)
