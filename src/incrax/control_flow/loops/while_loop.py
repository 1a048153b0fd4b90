"""`while_loop`: turns while a condition holds, differentiable in every mode.

In: a condition, a turn and a carry. Out: the last carry.

The derivative counts the turns first, and is then that of the loop of a known number of turns,
which has room for all that may come and keeps what fits the budget.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.dtypes
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import LoopParts
from incrax._messages import check_function
from incrax._program import Values
from incrax.control_flow.loops.bodies import ListPair, call, lift, traced_turn
from incrax.control_flow.loops.padded import as_size, checked
from incrax.control_flow.loops.primitive import Spec, push
from incrax.errors import LoopTypeError

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

    Promise: equals `jax.lax.while_loop(cond, body, init)`; derivatives are those of the turns that
    were taken.

    Args:
        cond: carry -> one boolean.
        body: carry -> carry; pure, traced once per call.
        init: first carry, a pytree of arrays.
        max_steps: the most turns of a call that is differentiated. None: no bound.
        memory: bytes that residuals of a first derivative may take, per example of a batch. Where
            those of all turns do not fit, carries between segments are kept, in as few levels as
            fit, and segments are evaluated again.

    Returns:
        The last carry.

    Raises:
        LoopTypeError: `body` changes the type of the carry, or `cond` returns no boolean scalar.
        MemoryBudgetError: differentiated, and `memory` is too little for any number of levels.
        CapacityError: differentiated, and more than `max_steps` turns; from inside a program as a
            `JaxRuntimeError`, or `ValueError`, as JAX calls it.

    Cost: that of `lax.while_loop`. A derivative, in forward mode too, evaluates the turns once to
        count them, once to store, and once more per level but the first. A bound by `max_steps`
        saves memory and levels.

    Example:
        >>> import incrax, jax
        >>> root = lambda a: incrax.while_loop(lambda x: abs(x * x - a) > 1e-6, lambda x: 0.5 * (x + a / x), a)
        >>> round(float(jax.grad(root)(4.0)), 4)
        0.25
    """
    check_function("while_loop(cond)", cond)
    check_function("while_loop(body)", body)
    most = MOST if max_steps is None else as_size("while_loop", "max_steps", max_steps)
    memory = as_size("while_loop", "memory", memory)
    traced = traced_turn("while_loop", init, lambda carry: (body(carry), None))
    condition = _jax.trace_body(_flat(cond, traced.tree), *map(jax.typeof, traced.init))
    values = LoopParts(len(condition.consts), len(traced.consts))
    parts = _Parts(lift(condition), traced.jaxpr, values, most, memory)
    outs = _while(parts, *condition.consts, *traced.consts, *traced.init)
    return jax.tree.unflatten(traced.tree, outs)


def _flat(cond: Callable[[Any], Any], tree: Any) -> Callable[..., Any]:
    def holds(*leaves):
        held = jnp.asarray(cond(jax.tree.unflatten(tree, leaves)))
        if held.shape or held.dtype != bool:
            raise LoopTypeError(
                "The condition of `while_loop` must return one boolean, and returned "
                f"{_jax.short_type(jax.typeof(held))}. Nothing was evaluated. Reduce "
                "it, for example by `jnp.any`, or compare it with a number."
            )
        return held

    return holds


class _Parts(NamedTuple):
    """A loop but for its values."""

    cond: Any
    body: Any
    values: LoopParts
    """Constants of the condition, of the turn, carry."""
    most: int
    memory: int


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _while(parts: _Parts, *values: Any) -> list[Any]:
    return _run(parts, *values)[1]


@functools.partial(jax.jit, static_argnums=0)
def _run(parts: _Parts, *values: Any) -> tuple[Any, list[Any]]:
    """(number of turns, last carry)."""
    cond_consts, consts, init = parts.values.split(values)
    turn = lambda state: (state[0] + 1, call(parts.body, [*consts, *state[1]]))
    goes_on = lambda state: call(parts.cond, [*cond_consts, *state[1]])[0]
    return lax.while_loop(goes_on, turn, (jnp.int32(0), init))


@functools.partial(_while.defjvp, symbolic_zeros=True)
def _while_jvp(parts: _Parts, values: Values, tangents: Values) -> ListPair:
    """Of as many turns as the values take, which does not depend on the values smoothly."""
    dots = [None if type(t) is jax.custom_derivatives.SymbolicZero else t for t in tangents]
    num_cond, num_body, _ = parts.values
    inputs = values[num_cond:]
    layout = LoopParts(num_body, len(inputs) - num_body)
    num, _ = _run(parts, *map(lax.stop_gradient, values))
    if parts.most < MOST:
        num = checked("while_loop", num, parts.most)
    spec = Spec(layout, parts.most, False, parts.memory, is_strict=True)
    outs, outs_dot = push([num, *inputs], [None, *dots[num_cond:]], jaxpr=parts.body, spec=spec)
    pairs = zip(outs, outs_dot, strict=True)
    return outs, [_no_tangent(x) if dot is None else dot for x, dot in pairs]


def _no_tangent(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)
