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


Given = tuple[Any, int | None, bool]
"""An input: its value, the axis of examples, whether the body is linear in it."""


def masked_loop(
    jaxpr: Any, layout: BodyLayout, inputs: Sequence[Given], num: Any, rows: Any, first: Any
) -> tuple[Any, BodyLayout, list[Given]]:
    """A body that leaves the carry alone in rows from `num` on, its layout and its inputs.

    (num, stand-ins, *constants | carry | row, *xs) -> (carry | ys). In such rows the body is
    evaluated at the stand-ins, those of an example that takes all turns, so that its derivatives,
    multiplied by zero there, are finite. What a body is linear in has no stand-in, or it were
    linear no more; nor has a constant that all examples share.

    Args:
        jaxpr: a body for one example.
        layout: of the body.
        inputs: of the loop.
        num: numbers of turns of the examples.
        rows: numbers of the rows.
        first: number of the row of the first turn of the longest example.
    """
    longest = jnp.argmax(num)
    start_of_xs = layout.num_consts + layout.num_carry
    avals = avals_in(jaxpr)
    stand_ins: dict[int, Any] = {}
    for number, (x, axis, linear) in enumerate(inputs):
        if not linear and (axis is not None or number >= layout.num_consts):
            one = x if axis is None else lax.dynamic_index_in_dim(x, longest, axis, keepdims=False)
            if number >= start_of_xs:
                one = lax.dynamic_index_in_dim(one, first, 0, keepdims=False)
            stand_ins[number] = lax.stop_gradient(one)

    def turn(num: Any, *values: Any) -> list[Any]:
        others = dict(zip(stand_ins, values, strict=False))
        rest = list(values[len(stand_ins) :])
        is_active = rest.pop(start_of_xs) < num
        used = [
            lax.select(is_active, x, others[n]) if n in others else x for n, x in enumerate(rest)
        ]
        outs = call(jaxpr, used)
        old = rest[layout.num_consts : start_of_xs]
        kept = [*old, *(lax.full(y.shape, 0, y.dtype) for y in outs[layout.num_carry :])]
        return [lax.select(is_active, new, other) for new, other in zip(outs, kept, strict=True)]

    integer = jax.typeof(jnp.int32(0))
    replaced = [avals[number] for number in stand_ins]
    body = close(turn, [integer, *replaced, *avals[:start_of_xs], integer, *avals[start_of_xs:]])
    before: list[Given] = [(num, 0, False), *((x, None, False) for x in stand_ins.values())]
    new = BodyLayout(len(before) + layout.num_consts, layout.num_carry, 1 + layout.num_xs)
    row: Given = (rows, None, False)
    return body, new, [*before, *inputs[:start_of_xs], row, *inputs[start_of_xs:]]
