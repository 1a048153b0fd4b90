"""Rows chosen by their values: `select_rows`, with room for as many as may be found.

In: arrays. Out: `Padded`. Gathers only, so that derivatives are JAX's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
from incrax.errors import CapacityError, LoopTypeError

NAME = "select_rows"


def select_rows(x: Any, mask: Any, size: int | None = None) -> Padded:
    """The rows of arrays where a mask is True, in their order: `x[mask]` with room for more.

    Promise: `select_rows(x, mask).exact()` equals `x[mask]`, and so do derivatives.

    Args:
        x: pytree of arrays of shape (n, ...).
        mask: booleans of shape (n,).
        size: room for rows. None: a power of two that they fit in; inside a traced function, only
            in one of `guarded`.

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
            raise LoopTypeError(
                f"`select_rows` got a mask of type {jax.typeof(mask)} for "
                f"`x{jax.tree_util.keystr(path)}` of type {jax.typeof(jnp.asarray(leaf))}; it takes "
                "one boolean per row. Nothing was evaluated. Reduce a mask of elements to one of "
                "rows, for example by `jnp.all(mask, axis=1)`."
            )
    rows, num = _chosen(mask, size)
    return Padded(jax.tree.map(lambda leaf: _gathered(leaf, rows, num), x), num, is_checked=True)


# --- which rows -----------------------------------------------------------------------------------


def _chosen(mask: Any, size: int | None) -> tuple[Any, Any]:
    """Numbers of chosen rows, out of range past as many as there are, and how many these are;
    NumPy's where the mask is known.
    """
    if is_on_host(mask) and not is_staged():
        found = np.flatnonzero(np.asarray(mask))
        num, room = _with_room(len(found), size)
        return np.append(found, np.full(room - num, mask.size)).astype(np.int32), num
    num, room = _with_room(jnp.sum(mask, dtype=jnp.int32), size)
    rows = jnp.flatnonzero(mask, size=room, fill_value=mask.size).astype(jnp.int32)
    # so that no row is had without the check
    return jnp.where(jnp.arange(room) < num, rows, mask.size), num


def _with_room(num: Any, size: int | None) -> tuple[Any, int]:
    """The number of rows, and room for them."""
    if size is not None:
        room = as_size(NAME, "size", size)
        return checked(NAME, num, room), room
    if not is_traced(num):
        return num, capacity_for(int(num))
    return num, _room_by_guards(num)


def _room_by_guards(num: Any) -> int:
    """Room for a traced number, where a branch on it is a guard: a path per capacity."""
    room = SMALLEST
    try:
        while num > room:
            room *= 2
    except jax.errors.ConcretizationTypeError:
        raise CapacityError(
            "`select_rows` was called inside a traced function (jit, grad, vmap), where the number "
            "of rows that it finds is unknown. Nothing was evaluated. Pass `size=`, the largest "
            "number that may come, or call it in a function of `incrax.guarded`, where a capacity "
            "is a path."
        ) from None
    return room


def _gathered(x: Any, rows: Any, num: Any) -> jax.Array:
    """The chosen rows, on the device of x."""
    if isinstance(rows, np.ndarray) and is_on_host(x):
        return put_like(padded(np.asarray(x)[rows[:num]], len(rows)), x)
    x = jnp.asarray(x)
    if not x.shape[0]:
        return lax.full((len(rows), *x.shape[1:]), 0, x.dtype)
    return x.at[rows].get(mode="fill", fill_value=0)
