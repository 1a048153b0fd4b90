"""`scan`, a fold over rows whose number is a value.

In: a function, a carry and rows. Out: the last carry and the stacked results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import LoopParts
from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax.control_flow.loops.bodies import traced_turn
from incrax.control_flow.loops.padded import (
    Padded,
    as_length,
    as_size,
    capacity_for,
    checked,
    cut,
    is_staged,
    is_traced,
    num_rows,
    padded,
)
from incrax.control_flow.loops.primitive import Spec, bind
from incrax.errors import LoopTypeError

MEMORY = 2**28
"""Bytes that the residuals of one loop may take unless the caller says otherwise: 256 MiB."""


@spelled_here
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Any = None,
    *,
    reverse: bool = False,
    memory: int = MEMORY,
    capacity: int | None = None,
) -> tuple[Any, Any]:
    """Fold a function over rows; one compiled program for all lengths up to a capacity that
    doubles.

    Promise: equals `jax.lax.scan(f, init, xs, length, reverse)`, and so do its derivatives of any
    order in any mode.

    Args:
        f: (carry, row of xs) -> (carry, y); pure, traced once per call.
        init: first carry, a pytree of arrays.
        xs: pytree of arrays with equal first axes, a `Padded` of such, or None.
        length: number of turns, an integer or a traced one; at most the number of rows, of which
            the first count.
        reverse: whether to begin with the last row that counts.
        memory: bytes that residuals of a first derivative may take, per example of a batch. Where
            they do not fit, carries between segments are kept, and the segments are evaluated
            again. Loops of higher derivatives take as much, each, or as little as can be.
        capacity: room for turns where `xs` is None and `length` is traced; the least room
            otherwise.

    Returns:
        (last carry, stacked y). Stacked arrays have as many rows as there are turns; with a traced
        `length` as many as `xs` or `capacity`, zero past it; with a `Padded` they are a `Padded`.

    Raises:
        LoopTypeError: f changes the type of the carry, arrays have different numbers of rows, or no
            length is known.
        CapacityError: `length` is more than there are rows; from inside a compiled program as a
            `JaxRuntimeError`, or `ValueError`, as JAX calls it.
        MemoryBudgetError: differentiated, and `memory` is too little for any number of checkpoints.

    Cost: a turn costs what it costs in `lax.scan`; rows past the length cost memory only. A call
        traces f; outside of traced functions it compiles once per capacity, where `xs` are padded
        on the host. Derivatives evaluate f once, twice if residuals do not fit `memory`; forward
        mode stores residuals too.

    Not handled: ordered effects in f; `unroll`; mutable references (`jax.Ref`) in f; numbers of
        rows that are symbolic; explicit sharding, and `shard_map` that checks what varies.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> total, sums = incrax.scan(lambda c, x: (c + x, c + x), 0.0, jnp.arange(1.0, 4.0))
        >>> float(total), sums.tolist()
        (6.0, [1.0, 3.0, 6.0])
    """
    check_function("scan(f)", f)
    capacity = None if capacity is None else as_size("scan", "capacity", capacity)
    memory = as_size("scan", "memory", memory)
    rows, num, room = _sized(xs, length, capacity)
    if not (isinstance(xs, Padded) and xs._is_checked and length is None and is_traced(num)):
        num = checked("scan", num, room)
    if not is_staged() and not any(is_traced(x) for x in (num, *jax.tree.leaves(rows))):
        room = capacity_for(max(room, capacity or 0))
    types = [_jax.row_aval(jax.typeof(x)) for x in jax.tree.leaves(rows)]
    rows = jax.tree.map(lambda x: jnp.asarray(padded(x, room)), rows)
    loop = functools.partial(Spec, capacity=room, reverse=reverse, memory=memory, is_strict=True)
    carry, ys = _fold(f, init, rows, types, num, loop)
    if isinstance(xs, Padded):
        return carry, Padded(ys, num, _is_checked=True)
    return carry, ys if is_traced(num) else jax.tree.map(lambda y: cut(y, num), ys)


def _sized(xs: Any, length: Any, capacity: int | None) -> tuple[Any, Any, int]:
    """Rows, how many of them count, and how many there are."""
    rows = xs.values if isinstance(xs, Padded) else xs
    there = num_rows("scan", rows)
    if length is None:
        length = xs.length if isinstance(xs, Padded) else there
    if length is None:
        raise LoopTypeError(
            "`scan` got neither arrays in `xs` nor a `length`, so that the number of turns is "
            "unknown. Nothing was evaluated. Pass one of them."
        )
    num = as_length("scan", "length", length)
    room = capacity if there is None else there
    if room is None and is_traced(num):
        raise LoopTypeError(
            "`scan` got a traced `length` and no arrays in `xs`. What it stacks, and what its "
            "derivatives store, needs a size that is known while tracing. Nothing was evaluated. "
            "Pass `capacity=`, the largest length that may come."
        )
    return rows, num, num if room is None else room


def _fold(
    f: Callable[..., Any],
    init: Any,
    rows: Any,
    types: list[Any],
    num: Any,
    loop: Callable[[LoopParts], Spec],
) -> tuple[Any, Any]:
    """The loop as a primitive, on the leaves of pytrees."""
    leaves, rows_tree = jax.tree.flatten(rows)

    turn = lambda carry, *row: _pair(f(carry, jax.tree.unflatten(rows_tree, row)))
    traced = traced_turn("scan", init, turn, types)
    spec = loop(LoopParts(len(traced.consts), len(traced.init)))
    carry, ys = bind(traced.jaxpr, spec, num, [*traced.consts, *traced.init, *leaves])
    return jax.tree.unflatten(traced.tree, carry), jax.tree.unflatten(traced.ys_tree, ys)


def _pair(out: Any) -> tuple[Any, Any]:
    """What a turn returned."""
    if isinstance(out, (tuple, list)) and len(out) == 2:
        return out[0], out[1]
    seen = f"{len(out)} things" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
    raise LoopTypeError(
        "The function of `scan` must return a pair, the carry and a row of results, and "
        f"returned {seen}. Nothing was evaluated. Return `(carry, y)`, with None "
        "for y where there is nothing to stack."
    )
