"""Bodies of loops over batches: rows of examples, and turns that some examples no longer take.

In: a body and which inputs are batches. Out: a body. It must not know how loops are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax.control_flow.loops.bodies import BodyLayout, avals_in, call, close


def batched_body(
    mapped: _jax.Mapped, jaxpr: Any, layout: BodyLayout, is_batched: Sequence[bool]
) -> tuple[Any, list[bool]]:
    """The body over batches along the first axis, and which outputs are batches.

    A carry is one as soon as a turn makes it one.
    """
    consts, carry, xs = layout.split(is_batched)
    while True:
        outs = _depend(mapped, jaxpr, [*consts, *carry, *xs])
        grown = [old or new for old, new in zip(carry, outs, strict=False)]
        if grown == carry:
            break
        carry = grown
    outs = [*carry, *outs[layout.num_carry :]]
    flags = [*consts, *carry, *xs]
    axes = [0 if batched else None for batched in flags]
    run = mapped.vmap(
        lambda *values: call(jaxpr, values),
        tuple(axes),
        [0 if batched else None for batched in outs],
    )
    avals = [
        _jax.stacked_aval(a, mapped.size) if b else a
        for a, b in zip(avals_in(jaxpr), flags, strict=True)
    ]
    return close(run, avals), outs


def _depend(mapped: _jax.Mapped, jaxpr: Any, is_batched: Sequence[bool]) -> list[bool]:
    """Which outputs depend on a batch, or on which example it is."""
    body = _jax.open_jaxpr(jaxpr)
    batched = [var for var, b in zip(body.invars, is_batched, strict=True) if b]
    named = [
        var for eqn in body.eqns if _jax.names_axis(eqn.effects, mapped.name) for var in eqn.outvars
    ]
    reached = _jax.reached(body, [*batched, *named])
    return [not isinstance(atom, _jax.Literal) and atom in reached for atom in body.outvars]


# --- turns that an example does not take ----------------------------------------------------------


def masked_body(
    jaxpr: Any, layout: BodyLayout, is_replaced: Sequence[bool]
) -> tuple[Any, BodyLayout]:
    """A body that leaves the carry alone in rows from `num` on.

    (num, stand-ins, *constants | carry | row, *xs) -> (carry | ys). In such rows the body is
    evaluated at the stand-ins, those of an example that takes all turns, so that its derivatives,
    multiplied by zero there, are finite. What a body is linear in has no stand-in, or it were
    linear no more.

    Args:
        jaxpr: a body for one example.
        layout: of the body.
        is_replaced: inputs that have a stand-in.
    """
    num_stand_ins = sum(is_replaced)
    avals = avals_in(jaxpr)
    consts, carry, xs = layout.split(avals)

    def turn(num: Any, *values: Any) -> list[Any]:
        stand_ins = iter(values[:num_stand_ins])
        rest = list(values[num_stand_ins:])
        row = rest.pop(layout.num_consts + layout.num_carry)
        is_active = row < num
        used = [
            lax.select(is_active, x, next(stand_ins)) if r else x
            for x, r in zip(rest, is_replaced, strict=True)
        ]
        outs = call(jaxpr, used)
        old = rest[layout.num_consts :][: layout.num_carry]
        kept = [*old, *(lax.full(y.shape, 0, y.dtype) for y in outs[layout.num_carry :])]
        return [lax.select(is_active, new, other) for new, other in zip(outs, kept, strict=True)]

    integer = jax.typeof(jnp.int32(0))
    replaced = [aval for aval, r in zip(avals, is_replaced, strict=True) if r]
    body = close(turn, [integer, *replaced, *consts, *carry, integer, *xs])
    return body, BodyLayout(1 + num_stand_ins + len(consts), len(carry), 1 + len(xs))


def stand_ins(
    num: Any,
    inputs: Sequence[Any],
    axes: Sequence[int | None],
    layout: BodyLayout,
    is_replaced: Sequence[bool],
    first: Any,
) -> list[Any]:
    """The inputs in the first turn, row `first`, of the example with most turns."""
    longest = jnp.argmax(num)
    found = []
    for number, (x, axis, replaced) in enumerate(zip(inputs, axes, is_replaced, strict=True)):
        if replaced:
            one = x if axis is None else lax.dynamic_index_in_dim(x, longest, axis, keepdims=False)
            is_row = number >= layout.num_consts + layout.num_carry
            found.append(
                lax.stop_gradient(
                    lax.dynamic_index_in_dim(one, first, 0, keepdims=False) if is_row else one
                )
            )
    return found
