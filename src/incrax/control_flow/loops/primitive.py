"""The loop as a primitive: as many turns as a number says, at most `capacity`; all rules of JAX in
terms of itself.

In: bodies and values. Out: values. It must not know about pytrees.

A loop takes (number of turns, *constants, *initial carry, *xs with `capacity` rows each) and
returns (*carry, *ys with `capacity` rows each); rows of ys past the number are zero. Derivatives
are two loops, which partial evaluation and transposition find apart: one of the primal values that
stores residuals, and a linear one of tangents that reads them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._jax import LoopParts
from incrax._program import Values
from incrax.control_flow.loops.bodies import (
    Linearized,
    ListPair,
    avals_in,
    avals_out,
    batched_body,
    call,
    close,
    linearized,
    merged,
    parted,
    transposed,
)
from incrax.errors import MemoryBudgetError

NAME = _jax.LOOP


class Spec(NamedTuple):
    """A loop but for its body."""

    layout: LoopParts
    capacity: int
    reverse: bool
    memory: int  # bytes that residuals of reverse mode may take
    is_linear: tuple[bool, ...] = ()
    """Inputs of the body that it is linear in; empty: none is known to be."""
    is_strict: bool = False
    """Whether to raise where `memory` is too little, and not take as little as can be."""

    def derived(self, **changes: Any) -> Spec:
        """A loop that a derivative of this one runs."""
        return self._replace(**{"is_linear": (), "is_strict": False, **changes})


def bind(jaxpr: Any, spec: Spec, num: Any, values: Values) -> ListPair:
    """Run a loop: (carry, ys)."""
    outs = loop_p.bind(jnp.asarray(num, jnp.int32), *values, jaxpr=jaxpr, spec=spec)
    return spec.layout.split_results(outs)


# --- values ---------------------------------------------------------------------------------------


def _run(num: Any, *values: Any, jaxpr: Any, spec: Spec) -> list[Any]:
    consts, init, xs = spec.layout.split(values)
    _, rows = spec.layout.split_results(_types(jaxpr=jaxpr, spec=spec)[0])
    ys = [lax.full(aval.shape, 0, aval.dtype) for aval in rows]
    if not spec.capacity:
        return [*init, *ys]

    def step(state):
        turn, carry, ys = state
        row = num - 1 - turn if spec.reverse else turn
        x = [lax.dynamic_index_in_dim(x, row, keepdims=False) for x in xs]
        carry, y = spec.layout.split_results(call(jaxpr, [*consts, *carry, *x]))
        ys = [
            lax.dynamic_update_index_in_dim(old, new, row, 0)
            for old, new in zip(ys, y, strict=True)
        ]
        return turn + 1, carry, ys

    _, carry, ys = lax.while_loop(lambda state: state[0] < num, step, (jnp.int32(0), init, ys))
    return [*carry, *ys]


def _types(*avals: Any, jaxpr: Any, spec: Spec) -> tuple[list[Any], Any]:
    carry, row = spec.layout.split_results(avals_out(jaxpr))
    ys = [_jax.stacked_aval(aval, spec.capacity) for aval in row]
    return [*carry, *ys], jaxpr.effects


# --- tangents -------------------------------------------------------------------------------------


def push(values: Values, tangents: Values, *, jaxpr: Any, spec: Spec) -> ListPair:
    """Results and their tangents, None for those that do not move."""
    split = linearized(jaxpr, spec.layout, tuple(t is not None for t in tangents[1:]))
    if not any(split.moves_out):
        return loop_p.bind(*values, jaxpr=jaxpr, spec=spec), [None] * len(split.moves_out)
    if split.stored_bytes * spec.capacity > spec.memory and spec.capacity > 1:
        outs, dots = _push_pieces(values, tangents, split, jaxpr, spec)
    else:
        outs, dots = _push_stored(values, tangents, split, spec)
    return outs, merged(split.moves_out, dots, [None] * len(outs))


def _push_stored(values: Values, tangents: Values, split: Linearized, spec: Spec) -> ListPair:
    """The loop with residuals as further ys, and the linear loop that reads them."""
    outs = loop_p.bind(*values, jaxpr=split.primal, spec=spec.derived())
    num_outs = len(split.moves_out)
    num, *inputs = zip(values, tangents, (False, *split.moves_in), strict=True)
    consts, carry, xs = spec.layout.split(inputs)
    before = call(split.prelude, [x for x, _, _ in consts])
    const_dot = [dot for _, dot, moves in consts if moves]
    carry_dot = [jnp.zeros_like(x) if dot is None else dot for x, dot, moves in carry if moves]
    turn = [*(xs[k][0] for k in split.rows), *outs[num_outs:]]
    xs_dot = [dot for _, dot, moves in xs if moves]
    groups = ((before, False), (const_dot, True), (carry_dot, True), (turn, False), (xs_dot, True))
    along = spec.derived(layout=split.layout, is_linear=_marks(groups))
    return outs[:num_outs], loop_p.bind(num[0], *_joined(groups), jaxpr=split.tangent, spec=along)


def _push_pieces(
    values: Values, tangents: Values, split: Linearized, jaxpr: Any, spec: Spec
) -> ListPair:
    """The derivative of the same loop in segments, of which a pullback keeps the carries between
    them.
    """
    _, carry, _ = spec.layout.split(avals_in(jaxpr))
    carry_bytes = sum(map(_jax.aval_bytes, carry))
    pieces = cut(spec, carry_bytes, split.stored_bytes)
    is_moved = [t is not None for t in tangents]
    moved, fixed = parted(is_moved, values)

    def of_moved(*moved) -> ListPair:
        num, *inputs = merged(is_moved, moved, fixed)
        outs = in_pieces(num, inputs, pieces, carry_bytes, jaxpr, spec)
        return parted(split.moves_out, outs)

    directions, _ = parted(is_moved, tangents)
    outs, dots, others = jax.jvp(of_moved, moved, directions, has_aux=True)
    return merged(split.moves_out, outs, others), dots


def cut(spec: Spec, carry_bytes: int, stored_bytes: int) -> int:
    """The number of segments, each a turn of an outer loop whose residuals are the carries between
    segments, such that all levels fit the budget; as few levels as do, then as little memory as
    these need.
    """
    sizes = [2**k for k in range(1, spec.capacity.bit_length())]
    best = (math.inf, 0)
    for levels in range(1, 1 + spec.capacity.bit_length()):
        for num in sizes:
            innermost = -(-spec.capacity // num**levels)
            best = min(best, (levels * num * carry_bytes + innermost * stored_bytes, num))
        if best[0] <= spec.memory:
            break
    else:
        if spec.is_strict:
            raise MemoryBudgetError(
                f"A loop of up to {spec.capacity:,} turns was given {spec.memory:,} bytes for the "
                f"residuals of its derivative, and needs {int(best[0]):,} even with as few "
                "checkpoints as can be. Nothing was evaluated. Pass more: "
                f"`memory={int(best[0])}`."
            )
    return best[1]


def in_pieces(
    num: Any, inputs: Values, pieces: int, carry_bytes: int, jaxpr: Any, spec: Spec
) -> list[Any]:
    """The same loop, evaluated in segments."""
    length = -(-spec.capacity // pieces)
    consts, init, xs = spec.layout.split(inputs)
    memory = max(0, spec.memory - pieces * carry_bytes)
    inner = spec.derived(capacity=length, memory=memory)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def turn(*values):
        consts, carry, (count, *rows) = spec.layout.split(values)
        return loop_p.bind(count, *consts, *carry, *rows, jaxpr=jaxpr, spec=inner)

    starts = jnp.arange(pieces, dtype=jnp.int32) * length
    counts = jnp.clip(num - starts, 0, length)
    before, carried, row = spec.layout.split(avals_in(jaxpr))
    rows = [_jax.stacked_aval(aval, length) for aval in row]
    body = close(turn, [*before, *carried, _jax.row_aval(jax.typeof(counts)), *rows])
    outer = Spec(spec.layout, pieces, spec.reverse, spec.memory)
    segments = [counts, *(_in_rows(x, pieces, length) for x in xs)]
    carry, ys = bind(body, outer, -(-num // length), [*consts, *init, *segments])
    return [*carry, *(y.reshape(-1, *y.shape[2:])[: spec.capacity] for y in ys)]


def _in_rows(x: Any, pieces: int, length: int) -> Any:
    """(rows, ...) -> (segments, rows of one, ...), with rows of zeros at the end."""
    missing = pieces * length - x.shape[0]
    zeros = lax.full((missing, *x.shape[1:]), 0, x.dtype)
    return lax.concatenate([x, zeros], 0).reshape(pieces, length, *x.shape[1:])


# --- cotangents -----------------------------------------------------------------------------------


def _pull(cotangents: Values, values: Values, *, jaxpr: Any, spec: Spec) -> list[Any]:
    """A loop the other way round, which carries the cotangents of the carry and sums those of the
    constants.
    """
    num, *inputs = values
    is_asked = [isinstance(x, _jax.Linear) for x in inputs]
    are_sums, carry, are_rows = spec.layout.split(is_asked)
    is_linear = (*are_sums, *(True for _ in carry), *are_rows)
    consts, _, xs = spec.layout.split(inputs)
    carry_ct, ys_ct = spec.layout.split_results(cotangents)
    body = transposed(jaxpr, spec.layout, is_linear, tuple(ct is not None for ct in ys_ct))
    ended, _ = spec.layout.split_results(avals_out(jaxpr))
    ended_ct = [_zeros(x) if ct is None else ct for x, ct in zip(ended, carry_ct, strict=True)]
    linear, known = parted(are_sums, consts)
    sums = [_zeros(x.aval) for x in linear]
    _, known_rows = parted(are_rows, xs)
    wanted = [ct for ct in ys_ct if ct is not None]
    groups = ((known, False), ([*ended_ct, *sums], True), (known_rows, False), (wanted, True))
    layout = LoopParts(len(known), len(ended_ct) + len(sums))
    mirrored = spec.derived(layout=layout, reverse=not spec.reverse, is_linear=_marks(groups))
    ended, xs_ct = bind(body, mirrored, num, _joined(groups))
    start_ct, sums_ct = spec.layout.split_results(ended)
    cts = merged(is_linear, [*sums_ct, *start_ct, *xs_ct], [None] * len(inputs))
    return [None, *(ct if asked else None for asked, ct in zip(is_asked, cts, strict=True))]


Groups = Sequence[tuple[Sequence[Any], bool]]
"""Inputs of a loop, each group with whether its body is linear in them."""


def _joined(groups: Groups) -> list[Any]:
    return [x for values, _ in groups for x in values]


def _marks(groups: Groups) -> tuple[bool, ...]:
    return tuple(linear for values, linear in groups for _ in values)


def _zeros(aval: Any) -> Any:
    return jnp.zeros(aval.shape, aval.dtype)


# --- batches --------------------------------------------------------------------------------------


def _batch(
    mapped: Any, values: Values, axes: Sequence[int | None], *, jaxpr: Any, spec: Spec
) -> tuple[list[Any], list[int | None]]:
    """One loop over rows of batches; as many turns as the longest, if the numbers of turns are a
    batch too.
    """
    num, *inputs = values
    num_axis, *input_axes = axes
    if not mapped.size or not spec.capacity:
        num = jnp.int32(0)
    elif num_axis is not None:
        is_linear = spec.is_linear or (False,) * len(inputs)
        given = [*zip(inputs, input_axes, is_linear, strict=True)]
        jaxpr, spec, given = _masked(jaxpr, spec, num, given)
        inputs, input_axes, _ = map(list, zip(*given, strict=True))
        num = jnp.max(num)
    is_mapped = [axis is not None for axis in input_axes]
    body, outs = batched_body(mapped, jaxpr, spec.layout, is_mapped)
    if any(outs):
        spec = spec._replace(memory=spec.memory * max(mapped.size, 1))
    consts, init, xs = spec.layout.split([*zip(inputs, input_axes, strict=True)])
    carry = [
        jnp.broadcast_to(x, (mapped.size, *jnp.shape(x)))  # a literal has no `x.shape`
        if batched and axis is None
        else _moved(x, axis, 0)
        for (x, axis), batched in zip(init, outs, strict=False)
    ]
    front = [_moved(x, axis, 0) for x, axis in consts]
    rows = [_moved(x, axis, 1) for x, axis in xs]
    ended, ys = bind(body, spec, num, [*front, *carry, *rows])
    out_axes = [0] * len(ended) + [1] * len(ys)
    pairs = zip(out_axes, outs, strict=True)
    return [*ended, *ys], [axis if batched else None for axis, batched in pairs]


Given = tuple[Any, int | None, bool]
"""An input: its value, the axis of examples, whether the body is linear in it."""


def _masked(
    jaxpr: Any, spec: Spec, num: Any, given: Sequence[Given]
) -> tuple[Any, Spec, list[Given]]:
    """The loop for examples that take different numbers of turns: its body, all else, its inputs.

    (num, stand-ins, *constants | carry | row, *xs) -> (carry | ys). In rows from `num` on the body
    leaves the carry alone; it is evaluated at the stand-ins there, those of an example that takes
    all turns, so that its derivatives, multiplied by zero, are finite. What a body is linear in has
    no stand-in, or it were linear no more; nor has a constant that all examples share.
    """
    first = jnp.maximum(jnp.max(num) - 1, 0) if spec.reverse else jnp.int32(0)
    stand_ins = _stand_ins(spec.layout, given, jnp.argmax(num), first)
    consts, carry, xs = spec.layout.split(given)
    front: list[Given] = [(num, 0, False), *((x, None, False) for x in stand_ins.values())]
    rows: Given = (jnp.arange(spec.capacity, dtype=jnp.int32), None, False)
    layout = LoopParts(len(front) + len(consts), len(carry))

    def turn(*values):
        (num, *before), old, (row, *x) = layout.split(values)
        is_active = row < num
        inputs = [*before[len(stand_ins) :], *old, *x]
        for number, other in zip(stand_ins, before, strict=False):
            inputs[number] = lax.select(is_active, inputs[number], other)
        outs = call(jaxpr, inputs)
        kept = [*old, *(lax.full(y.shape, 0, y.dtype) for y in outs[len(old) :])]
        return [lax.select(is_active, new, other) for new, other in zip(outs, kept, strict=True)]

    avals = avals_in(jaxpr)
    const_avals, carry_avals, row_avals = spec.layout.split(avals)
    integer = _jax.array_aval((), jnp.int32)
    replaced = [avals[number] for number in stand_ins]
    body = close(turn, [integer, *replaced, *const_avals, *carry_avals, integer, *row_avals])
    inputs = [*front, *consts, *carry, rows, *xs]
    is_linear = tuple(linear for _, _, linear in inputs)
    return body, spec._replace(layout=layout, is_linear=is_linear), inputs


def _stand_ins(
    layout: LoopParts, inputs: Sequence[Given], example: Any, row: Any
) -> dict[int, Any]:
    """Of one example the inputs that need one, by number; of its xs a row."""
    at = functools.partial(lax.dynamic_index_in_dim, keepdims=False)
    found: dict[int, Any] = {}
    for number, (x, axis, linear) in enumerate(inputs):
        if not linear and (axis is not None or number >= layout.num_consts):
            one = x if axis is None else at(x, example, axis)
            is_row = number >= layout.num_consts + layout.num_carry
            found[number] = lax.stop_gradient(at(one, row, 0) if is_row else one)
    return found


def _moved(x: Any, axis: int | None, place: int) -> Any:
    """The value with its axis of examples, if it has one, in this place."""
    return x if axis is None else jnp.moveaxis(x, axis, place)


loop_p = _jax.new_primitive(NAME, _jax.Rules(_run, _types, push, _batch, _pull))
