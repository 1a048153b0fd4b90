"""`scan`, a fold over rows whose number is a value, `map`, a function of each of them, and
`while_loop`, turns while a condition holds: loops of JAX, with room for the most turns that may
come.

In: a function, a carry and rows. Out: the last carry and the stacked results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax.control_flow.loops.padded import (
    Padded,
    as_length,
    as_size,
    checked,
    cut,
    is_traced,
    num_rows,
)
from incrax.errors import LoopTypeError

SEGMENT = 32
"""Turns of a loop of traced length between two looks at the length: a look costs a microsecond."""


@spelled_here
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Any = None,
    *,
    reverse: bool = False,
    capacity: int | None = None,
) -> tuple[Any, Any]:
    """Fold a function over rows; inside `jit` or `bucketed` one compiled program for all lengths
    that there is room for.

    Promise: equals `jax.lax.scan(f, init, xs, length, reverse)`, and so do its derivatives of any
    order in any mode.

    Args:
        f: (carry, row of xs) -> (carry, y); pure. Under `jax.checkpoint` its residuals are
            computed again, not stored.
        init: first carry, a pytree of arrays.
        xs: pytree of arrays with equal first axes, a `Padded` of such, or None.
        length: number of turns, an integer or a traced one; at most the number of rows, of which
            the first count.
        reverse: whether to begin with the last row that counts.
        capacity: room for turns where `xs` is None and `length` is traced.

    Returns:
        (last carry, stacked y). Stacked arrays have as many rows as there are turns; with a traced
        `length` as many as `xs` or `capacity`, zero past it; with a `Padded` they are a `Padded`.

    Raises:
        LoopTypeError: arrays have different numbers of rows, or no length is known.
        CapacityError: `length` is more than there are rows; from inside a compiled program as a
            `JaxRuntimeError`.
        TypeError: as from `lax.scan`, which it is where the length is known.

    Cost: that of `lax.scan`. With a traced length 1.2 to 2 times the turns that are taken, and
        residuals of a derivative for all that there is room for.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> total, sums = incrax.scan(lambda c, x: (c + x, c + x), 0.0, jnp.arange(1.0, 4.0))
        >>> float(total), sums.tolist()
        (6.0, [1.0, 3.0, 6.0])
    """
    check_function("scan(f)", f)
    capacity = None if capacity is None else as_size("scan", "capacity", capacity)
    rows, num, room = _sized(xs, length, capacity)
    if not (isinstance(xs, Padded) and xs.is_checked and length is None and is_traced(num)):
        num = checked("scan", num, room)
    turn = lambda carry, x: f(
        carry, x
    )  # anew: JAX takes what a known function closes over as it was
    if is_traced(num):
        carry, ys = _folded(turn, init, rows, num, room, reverse=reverse)
    else:
        rows = jax.tree.map(lambda x: cut(x, num), rows)
        carry, ys = lax.scan(turn, init, rows, num, reverse=reverse)
    return carry, Padded(ys, num, is_checked=True) if isinstance(xs, Padded) else ys


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


def _folded(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    rows: Any,
    num: Any,
    room: int,
    *,
    reverse: bool = False,
    size: int = SEGMENT,
    is_stored: bool = True,
) -> tuple[Any, Any]:
    """`num` turns, at most `room`, in segments: those of which all turns count are plain scans,
    others look at each turn, or are left out.

    Under `vmap` over numbers of turns all kinds of segments are evaluated for all examples. What an
    example does not need is then evaluated at its first turn, not at padding or at what it stopped
    with: a derivative that is infinite there would be NaN, times the zero of the selection.

    `size` is turns of a segment; where residuals are not stored, only carries between segments are.
    """
    if not room:
        return init, lax.scan(f, init, rows, 0)[1]
    types = jax.eval_shape(lambda init, rows: lax.scan(f, init, rows, room), init, rows)
    init = jax.tree.map(lambda x, kind: jnp.asarray(x).astype(kind.dtype), init, types[0])
    nothing = jax.tree.map(lambda y: lax.full(y.shape[1:], 0, y.dtype), types[1])
    first = jax.tree.map(lambda x: x[0], rows)

    def turn(carry: Any, numbered: Any) -> Any:
        number, row = numbered
        counts = number < num
        taken = lambda *at: f(*_where(counts, at, (init, first)))
        return lax.cond(counts, taken, lambda carry, _: (carry, nothing), carry, row)

    def segment(carry: Any, numbered: Any) -> Any:
        numbers, rows = numbered
        is_whole = numbers[-1] < num

        def whole(*at: Any) -> Any:
            carry, some = _where(is_whole, at, (init, first))
            return lax.scan(f, carry, some, size, reverse=reverse)

        part = lambda carry, rows: lax.scan(turn, carry, (numbers, rows), reverse=reverse)
        stacked = jax.tree.map(lambda y: jnp.broadcast_to(y, (size, *y.shape)), nothing)
        kinds = [lambda carry, _: (carry, stacked), part, whole]
        kind = (numbers[0] < num).astype(int) + is_whole
        return lax.switch(kind, kinds, carry, rows)

    length = -(-room // size)
    cut_up = lambda x: _in_rows(x, length * size).reshape(length, size, *x.shape[1:])
    segments = jnp.arange(length * size).reshape(length, size), jax.tree.map(cut_up, rows)
    body = segment if is_stored else jax.checkpoint(segment, prevent_cse=False)
    carry, ys = lax.scan(body, init, segments, reverse=reverse)
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:])[:room], ys)


def _where(holds: Any, values: Any, others: Any) -> Any:
    return jax.tree.map(lambda x, other: jnp.where(holds, x, other), values, others)


def _in_rows(x: Any, num: int) -> Any:
    """The array with the first row again and again, up to so many rows."""
    missing = num - x.shape[0]
    if not missing:
        return jnp.asarray(x)
    return jnp.concatenate([x, jnp.broadcast_to(x[:1], (missing, *x.shape[1:]))])


@spelled_here
def map(f: Callable[[Any], Any], xs: Any, length: Any = None) -> Any:  # noqa: A001
    """A function of each row, one after the other; inside `jit` or `bucketed` one compiled program
    for all lengths that there is room for.

    Promise: equals `jax.lax.map(f, xs)`, and so do its derivatives.

    Args:
        f: row of xs -> y.
        xs: pytree of arrays with equal first axes, or a `Padded` of such.
        length: see `scan`.

    Returns:
        Stacked y; see `scan`.

    Raises:
        LoopTypeError: see `scan`.
        CapacityError: see `scan`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.map(lambda x: x**2, jnp.arange(3.0)).tolist()
        [0.0, 1.0, 4.0]
    """
    check_function("map(f)", f)
    return scan(lambda carry, x: (carry, f(x)), (), xs, length)[1]


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """Repeat a turn while a condition holds; derivatives of any order in any mode.

    Promise: equals `jax.lax.while_loop(cond, body, init)`; derivatives are those of the turns that
    are taken.

    Args:
        cond: carry -> one boolean.
        body: carry -> carry; pure.
        init: first carry, a pytree of arrays.
        max_steps: the most turns. None: no bound, and no derivatives in reverse mode: it is
            `lax.while_loop`.

    Returns:
        The last carry.

    Raises:
        CapacityError: more than `max_steps` turns; from inside a program as a `JaxRuntimeError`.
        TypeError: as from `lax.while_loop`.

    Cost: with `max_steps` turns are counted first, so that they are evaluated twice; a derivative
        stores the carries of some sqrt(max_steps) turns, and evaluates each turn once more.

    Example:
        >>> import incrax, jax
        >>> def root(a):
        ...     near = lambda x: abs(x * x - a) > 1e-6
        ...     return incrax.while_loop(near, lambda x: 0.5 * (x + a / x), a, max_steps=100)
        >>> round(float(jax.grad(root)(4.0)), 4)
        0.25
    """
    check_function("while_loop(cond)", cond)
    check_function("while_loop(body)", body)
    if max_steps is None:
        return lax.while_loop(cond, body, init)
    most = as_size("while_loop", "max_steps", max_steps)
    counted = lambda state: (state[0] + 1, body(state[1]))
    start = jnp.int32(0), lax.stop_gradient(init)
    num = checked(
        "while_loop", lax.while_loop(lambda state: cond(state[1]), counted, start)[0], most
    )
    size = 1 << (most.bit_length() // 2)
    turn = lambda carry, _: (body(carry), None)
    return _folded(turn, init, None, jnp.asarray(num), most, size=size, is_stored=False)[0]
