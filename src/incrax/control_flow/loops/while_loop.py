"""`while_loop`: turns while a condition holds, differentiable in every mode.

In: a condition, a turn and a carry. Out: the last carry.

The derivative counts the turns first, and is then that of a loop of a known number of turns, in levels: each keeps
the carries between its segments, and a turn of it is a loop of the level below, evaluated again in the pullback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.dtypes
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._messages import wrong_option
from incrax.control_flow.loops import primitive
from incrax.control_flow.loops.bodies import BodyLayout, call, close, lift, merged
from incrax.control_flow.loops.lengths import as_size, checked
from incrax.control_flow.loops.linearized import linearized
from incrax.control_flow.loops.messages import no_condition, small_memory
from incrax.control_flow.loops.primitive import Spec
from incrax.control_flow.loops.tracing import Start

MEMORY = 2**26
"""Bytes that the residuals of one loop may take unless the caller says otherwise: 64 MiB."""
MOST = 2**31 - 1
"""Turns that can be counted."""


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    max_steps: int | None = None,
    memory: int = MEMORY,
) -> Any:
    """Repeat a turn while a condition holds; derivatives of any order in any mode.

    Law: equals `jax.lax.while_loop(cond, body, init)`; derivatives are those of the turns that were taken.

    Args:
        cond: carry -> one boolean.
        body: carry -> carry; pure, traced once per call.
        init: first carry, a pytree of arrays.
        max_steps: the most turns of a call that is differentiated. None: no bound.
        memory: bytes that residuals of a first derivative may take, per example of a batch. Where those of all turns do
            not fit, carries between segments are kept, in as few levels as fit, and segments are evaluated again.

    Returns:
        The last carry.

    Raises:
        LoopTypeError: `body` changes the type of the carry, or `cond` returns no boolean scalar.
        MemoryBudgetError: differentiated, and `memory` is too little for any number of levels.
        CapacityError: differentiated, and more than `max_steps` turns; from inside a program as a `JaxRuntimeError`.

    Cost: that of `lax.while_loop`. A derivative, in forward mode too, evaluates the turns once to count them, once to
        store, and once more per level but the first. A bound by `max_steps` saves memory and levels.

    Example:
        >>> import incrax, jax
        >>> root = lambda a: incrax.while_loop(lambda x: abs(x * x - a) > 1e-6, lambda x: 0.5 * (x + a / x), a)
        >>> round(float(jax.grad(root)(4.0)), 4)
        0.25
    """
    for name, value in (("cond", cond), ("body", body)):
        if not callable(value):
            raise wrong_option(f"while_loop({name})", value, "a function")
    most = MOST if max_steps is None else as_size("while_loop", "max_steps", max_steps)
    memory = as_size("while_loop", "memory", memory)
    traced = Start("while_loop", init).traced(lambda carry: (body(carry), []), [])
    condition = _jax.trace_body(_flat(cond, traced.tree), *map(jax.typeof, traced.init))
    parts = _Parts(lift(condition), traced.jaxpr, len(condition.consts), len(traced.consts), most, memory)
    return jax.tree.unflatten(traced.tree, _while(parts, *condition.consts, *traced.consts, *traced.init))


def _flat(cond: Callable[[Any], Any], tree: Any) -> Callable[..., Any]:
    def holds(*leaves: Any) -> Any:
        held = jnp.asarray(cond(jax.tree.unflatten(tree, leaves)))
        if held.shape or held.dtype != bool:
            raise no_condition(jax.typeof(held).str_short(short_dtypes=True))
        return held

    return holds


class _Parts(NamedTuple):
    """A loop but for its values."""

    cond: Any
    body: Any
    num_cond: int
    num_body: int
    most: int
    memory: int

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants of the condition, of the turn, carry."""
        first = self.num_cond + self.num_body
        return list(values[: self.num_cond]), list(values[self.num_cond : first]), list(values[first:])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _while(parts: _Parts, *values: Any) -> list[Any]:
    return _run(parts, *values)[1]


@functools.partial(jax.jit, static_argnums=0)
def _run(parts: _Parts, *values: Any) -> tuple[Any, list[Any]]:
    """(number of turns, last carry)."""
    cond_consts, consts, init = parts.split(values)
    turn = lambda state: (state[0] + 1, call(parts.body, [*consts, *state[1]]))
    return lax.while_loop(lambda state: call(parts.cond, [*cond_consts, *state[1]])[0], turn, (jnp.int32(0), init))


@functools.partial(_while.defjvp, symbolic_zeros=True)
def _while_jvp(parts: _Parts, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Of as many turns as the values take, which does not depend on the values smoothly."""
    num, _ = _run(parts, *map(lax.stop_gradient, values))
    moves = [not isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents]
    _, consts_move, carry_moves = parts.split(moves)
    layout = BodyLayout(parts.num_body, len(carry_moves), 0)
    split = linearized(parts.body, layout, (*consts_move, *carry_moves))
    levels = _levels(parts, layout, split.stored_bytes)
    if parts.most < MOST:
        num = checked("while_loop", num, parts.most)
    fixed = [x for x, moving in zip(values, moves, strict=True) if not moving]

    def of_moved(*moved: Any) -> tuple[list[Any], list[Any]]:
        outs = _steps(levels, parts, layout, num, merged(moves, moved, fixed)[parts.num_cond :])
        pairs = list(zip(outs, split.moves_out, strict=True))
        return [x for x, moving in pairs if moving], [x for x, moving in pairs if not moving]

    moved, dots = ([x for x, moving in zip(part, moves, strict=True) if moving] for part in (values, tangents))
    smooth, smooth_dots, others = jax.jvp(of_moved, moved, dots, has_aux=True)
    return merged(split.moves_out, smooth, others), merged(
        split.moves_out, smooth_dots, [_no_tangent(x) for x in others]
    )


def _no_tangent(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


# --- a known number of turns ------------------------------------------------------------------------------------------


def _levels(parts: _Parts, layout: BodyLayout, stored_bytes: int) -> list[int]:
    """Room for turns at each level, the outermost first: as few levels as fit the budget."""
    carry = [var.aval for var in _jax.open_jaxpr(parts.body).invars[layout.num_consts :]]
    carry_bytes = sum(map(_jax.aval_bytes, carry))
    least = parts.memory + 1
    for num in range(1, 32):
        room = _root(parts.most, num)
        needed = room * ((num - 1) * carry_bytes + stored_bytes)
        if needed <= parts.memory:
            return [room] * num
        least = needed if num == 1 else min(least, needed)
    raise small_memory(parts.memory, least, parts.most)


def _root(total: int, num: int) -> int:
    """The least integer of which `num` factors make at least `total`."""
    room = max(1, int(round(total ** (1.0 / num))) - 1)
    while room**num < total:
        room += 1
    return room


def _steps(levels: Sequence[int], parts: _Parts, layout: BodyLayout, num: Any, values: Sequence[Any]) -> list[Any]:
    """`num` turns on (constants, carry)."""
    if len(levels) == 1:
        return primitive.bind(parts.body, Spec(layout, levels[0], False, parts.memory), num, values)[0]
    # Segments are as long as the innermost level stores, or as few as the level has room for.
    length = jnp.maximum(-(-num // levels[0]), jnp.clip(num, 1, levels[-1]))

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def segment(num: Any, length: Any, start: Any, *values: Any) -> list[Any]:
        return _steps(levels[1:], parts, layout, jnp.minimum(length, num - start * length), values)

    def turn(num: Any, length: Any, *rest: Any) -> list[Any]:
        *values, start = rest
        return segment(num, length, start, *values)

    integer = jax.typeof(jnp.int32(0))
    avals = [var.aval for var in _jax.open_jaxpr(parts.body).invars]
    body = close(turn, [integer, integer, *avals, integer])
    outer = BodyLayout(2 + layout.num_consts, layout.num_carry, 1)
    starts = jnp.arange(levels[0], dtype=jnp.int32)
    return primitive.bind(
        body, Spec(outer, levels[0], False, parts.memory), -(-num // length), [num, length, *values, starts]
    )[0]
