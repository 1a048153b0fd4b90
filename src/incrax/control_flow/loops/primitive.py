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
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax.control_flow.loops.batches import batched_body, masked_body, stand_ins
from incrax.control_flow.loops.bodies import (
    BodyLayout,
    avals_in,
    avals_out,
    call,
    close,
    merged,
    transposed,
)
from incrax.control_flow.loops.linearized import Linearized, linearized
from incrax.control_flow.loops.messages import small_memory

NAME = _jax.LOOP


class Spec(NamedTuple):
    """A loop but for its body."""

    layout: BodyLayout
    capacity: int
    reverse: bool
    memory: int  # bytes that residuals of reverse mode may take
    is_linear: tuple[
        bool, ...
    ] = ()  # inputs of the body that it is linear in; empty: none is known to be
    is_strict: bool = (
        False  # whether to raise where `memory` is too little, and not take as little as can be
    )

    def derived(self, **changes: Any) -> Spec:
        """A loop that a derivative of this one runs."""
        return self._replace(**{"is_linear": (), "is_strict": False, **changes})


class Pieces(NamedTuple):
    """A loop cut into segments, each a turn of an outer loop whose residuals are the carries
    between segments.
    """

    num: int
    length: int


def bind(jaxpr: Any, spec: Spec, num: Any, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a loop: (carry, ys)."""
    outs = loop_p.bind(jnp.asarray(num, jnp.int32), *values, jaxpr=jaxpr, spec=spec)
    return outs[: spec.layout.num_carry], outs[spec.layout.num_carry :]


# --- values ---------------------------------------------------------------------------------------


def _run(num: Any, *values: Any, jaxpr: Any, spec: Spec) -> list[Any]:
    consts, init, xs = spec.layout.split(values)
    rows = [
        _jax.stacked_aval(aval, spec.capacity) for aval in avals_out(jaxpr)[spec.layout.num_carry :]
    ]
    ys = [lax.full(aval.shape, 0, aval.dtype) for aval in rows]
    if not spec.capacity:
        return [*init, *ys]

    def step(state: Any) -> Any:
        turn, carry, ys = state
        row = num - 1 - turn if spec.reverse else turn
        x = [lax.dynamic_index_in_dim(x, row, keepdims=False) for x in xs]
        carry, y = BodyLayout(spec.layout.num_carry, len(ys), 0).split(
            call(jaxpr, [*consts, *carry, *x])
        )[:2]
        ys = [
            lax.dynamic_update_index_in_dim(old, new, row, 0)
            for old, new in zip(ys, y, strict=True)
        ]
        return turn + 1, carry, ys

    _, carry, ys = lax.while_loop(lambda state: state[0] < num, step, (jnp.int32(0), init, ys))
    return [*carry, *ys]


def _types(*avals: Any, jaxpr: Any, spec: Spec) -> tuple[list[Any], Any]:
    outs = avals_out(jaxpr)
    rows = [_jax.stacked_aval(aval, spec.capacity) for aval in outs[spec.layout.num_carry :]]
    return [*outs[: spec.layout.num_carry], *rows], _jax.effects_of(jaxpr)


# --- tangents -------------------------------------------------------------------------------------


def push(
    values: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, spec: Spec
) -> tuple[list[Any], list[Any]]:
    """Results and their tangents, None for those that do not move."""
    num, *inputs = values
    split = linearized(jaxpr, spec.layout, tuple(t is not None for t in tangents[1:]))
    if not any(split.moves_out):
        return loop_p.bind(*values, jaxpr=jaxpr, spec=spec), [None] * len(split.moves_out)
    if split.stored_bytes * spec.capacity > spec.memory and spec.capacity > 1:
        outs, dots = _push_pieces(values, tangents, split, jaxpr, spec)
    else:
        outs, dots = _push_stored(num, inputs, tangents[1:], split, spec)
    return outs, merged(split.moves_out, dots, [None] * len(outs))


def _push_stored(
    num: Any, inputs: Sequence[Any], tangents: Sequence[Any], split: Linearized, spec: Spec
) -> tuple[list[Any], list[Any]]:
    """The loop with residuals as further ys, and the linear loop that reads them."""
    outs = loop_p.bind(num, *inputs, jaxpr=split.primal, spec=spec.derived())
    num_outs = len(split.moves_out)
    consts, carry, xs = spec.layout.split([*zip(inputs, tangents, split.moves_in, strict=True)])
    before = call(split.prelude, [x for x, _, _ in consts])
    const_dot = [dot for _, dot, moves in consts if moves]
    carry_dot = [_tangent(x, dot) for x, dot, moves in carry if moves]
    turn = [*(xs[k][0] for k in split.rows), *outs[num_outs:]]
    xs_dot = [dot for _, dot, moves in xs if moves]
    groups = ((before, False), (const_dot, True), (carry_dot, True), (turn, False), (xs_dot, True))
    is_linear = tuple(linear for values, linear in groups for _ in values)
    along = spec.derived(layout=split.layout, is_linear=is_linear)
    return outs[:num_outs], loop_p.bind(
        num, *(x for values, _ in groups for x in values), jaxpr=split.tangent, spec=along
    )


def _tangent(x: Any, dot: Any) -> Any:
    return jnp.zeros_like(x) if dot is None else dot


def _push_pieces(
    values: Sequence[Any], tangents: Sequence[Any], split: Linearized, jaxpr: Any, spec: Spec
) -> tuple[list[Any], list[Any]]:
    """The derivative of the same loop in segments, of which a pullback keeps the carries between
    them.
    """
    carry = avals_in(jaxpr)[spec.layout.num_consts :][: spec.layout.num_carry]
    carry_bytes = sum(map(_jax.aval_bytes, carry))
    pieces = cut(spec, carry_bytes, split.stored_bytes)
    is_moved = [t is not None for t in tangents]
    fixed = [x for x, moved in zip(values, is_moved, strict=True) if not moved]

    def of_moved(*moved: Any) -> tuple[list[Any], list[Any]]:
        num, *inputs = merged(is_moved, moved, fixed)
        outs = in_pieces(num, inputs, pieces, carry_bytes, jaxpr, spec)
        pairs = list(zip(outs, split.moves_out, strict=True))
        return [x for x, moves in pairs if moves], [x for x, moves in pairs if not moves]

    moved = [x for x, moves in zip(values, is_moved, strict=True) if moves]
    outs, dots, others = jax.jvp(
        of_moved, moved, [t for t in tangents if t is not None], has_aux=True
    )
    return merged(split.moves_out, outs, others), dots


def cut(spec: Spec, carry_bytes: int, stored_bytes: int) -> Pieces:
    """Segments such that all levels fit the budget; as few levels as do, then as little memory as
    these need.
    """
    best: tuple[int, Pieces] | None = None
    for levels in range(2, 2 + spec.capacity.bit_length()):
        for num in _sizes(spec.capacity):
            innermost = -(-spec.capacity // num ** (levels - 1))
            needed = (levels - 1) * num * carry_bytes + innermost * stored_bytes
            if best is None or needed < best[0]:
                best = needed, Pieces(num, -(-spec.capacity // num))
        if best is not None and best[0] <= spec.memory:
            return best[1]
    assert best is not None
    if spec.is_strict:
        raise small_memory(spec.memory, best[0], spec.capacity)
    return best[1]


def _sizes(capacity: int) -> list[int]:
    """Numbers of segments that are tried: powers of two."""
    return [2**k for k in range(1, capacity.bit_length())]


def in_pieces(
    num: Any, inputs: Sequence[Any], pieces: Pieces, carry_bytes: int, jaxpr: Any, spec: Spec
) -> list[Any]:
    """The same loop, evaluated in segments."""
    consts, init, xs = spec.layout.split(inputs)
    inner = spec.derived(
        capacity=pieces.length, memory=max(0, spec.memory - pieces.num * carry_bytes)
    )
    rows = [_in_rows(x, pieces) for x in xs]
    starts = jnp.arange(pieces.num, dtype=jnp.int32) * pieces.length

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def segment(total: Any, start: Any, *values: Any) -> list[Any]:
        return loop_p.bind(
            jnp.clip(total - start, 0, pieces.length), *values, jaxpr=jaxpr, spec=inner
        )

    def turn(total: Any, *values: Any) -> list[Any]:
        consts, carry, (start, *x) = spec.layout._replace(num_xs=len(xs) + 1).split(values)
        return segment(total, start, *consts, *carry, *x)

    layout = BodyLayout(1 + len(consts), len(init), 1 + len(xs))
    avals = avals_in(jaxpr)
    integer = jax.typeof(jnp.int32(0))
    stacked = [_jax.stacked_aval(aval, pieces.length) for aval in avals[len(consts) + len(init) :]]
    body = close(turn, [integer, *avals[: len(consts) + len(init)], integer, *stacked])
    outer = Spec(layout, pieces.num, spec.reverse, spec.memory)
    carry, ys = bind(body, outer, -(-num // pieces.length), [num, *consts, *init, starts, *rows])
    return [*carry, *(y.reshape(-1, *y.shape[2:])[: spec.capacity] for y in ys)]


def _in_rows(x: Any, pieces: Pieces) -> Any:
    """(rows, ...) -> (segments, rows of one, ...), with rows of zeros at the end."""
    missing = pieces.num * pieces.length - x.shape[0]
    zeros = lax.full((missing, *x.shape[1:]), 0, x.dtype)
    return lax.concatenate([x, zeros], 0).reshape(pieces.num, pieces.length, *x.shape[1:])


# --- cotangents -----------------------------------------------------------------------------------


def _pull(cotangents: Sequence[Any], values: Sequence[Any], *, jaxpr: Any, spec: Spec) -> list[Any]:
    """A loop the other way round, which carries the cotangents of the carry and sums those of the
    constants.
    """
    num, *inputs = values
    layout = spec.layout
    consts, carry, xs = layout.split(inputs)
    is_linear = (*_are_linear(consts), *(True for _ in carry), *_are_linear(xs))
    carry_ct = cotangents[: layout.num_carry]
    ys_ct = cotangents[layout.num_carry :]
    body = transposed(jaxpr, layout, is_linear, tuple(ct is not None for ct in ys_ct))
    start = [
        _zeros(x) if ct is None else ct for x, ct in zip(avals_out(jaxpr), carry_ct, strict=False)
    ]
    sums = [_zeros(x.aval) for x in consts if isinstance(x, _jax.Linear)]
    known = [[x for x in part if not isinstance(x, _jax.Linear)] for part in (consts, xs)]
    rows = [*known[1], *(ct for ct in ys_ct if ct is not None)]
    reversed_layout = BodyLayout(len(known[0]), len(start) + len(sums), len(rows))
    knowns = (len(known[0]), len(start) + len(sums), len(known[1]), len(rows) - len(known[1]))
    marks = tuple(
        linear
        for size, linear in zip(knowns, (False, True, False, True), strict=True)
        for _ in range(size)
    )
    mirrored = spec.derived(layout=reversed_layout, reverse=not spec.reverse, is_linear=marks)
    ended, xs_ct = bind(body, mirrored, num, [*known[0], *start, *sums, *rows])
    carry_end = ended[: len(start)]
    consts_ct = ended[len(start) :]
    found = iter([*consts_ct, *carry_end, *xs_ct])
    cts = [next(found) if linear else None for linear in is_linear]
    return [
        None,
        *(ct if isinstance(x, _jax.Linear) else None for x, ct in zip(inputs, cts, strict=True)),
    ]


def _are_linear(values: Sequence[Any]) -> list[bool]:
    return [isinstance(x, _jax.Linear) for x in values]


def _zeros(aval: Any) -> Any:
    return jnp.zeros(aval.shape, aval.dtype)


# --- batches --------------------------------------------------------------------------------------


def _batch(
    mapped: _jax.Mapped,
    values: Sequence[Any],
    axes: Sequence[int | None],
    *,
    jaxpr: Any,
    spec: Spec,
) -> tuple[list[Any], list[int | None]]:
    """One loop over rows of batches; as many turns as the longest, if the numbers of turns are a
    batch too.
    """
    if all(axis is None for axis in axes) and not _jax.names_axis(
        _jax.effects_of(jaxpr), mapped.name
    ):
        return loop_p.bind(*values, jaxpr=jaxpr, spec=spec), [None] * len(avals_out(jaxpr))
    num, *inputs = values
    num_axis, *input_axes = axes
    if not mapped.size or not spec.capacity:
        num = jnp.int32(0)
        num_axis = None
    spec = spec._replace(memory=spec.memory * max(mapped.size, 1))
    if num_axis is not None:
        inputs, input_axes, jaxpr, spec = _masked(num, inputs, input_axes, jaxpr, spec)
        num = jnp.max(num)
    is_batched = [axis is not None for axis in input_axes]
    body, outs = batched_body(mapped, jaxpr, spec.layout, is_batched)
    consts, init, xs = spec.layout.split([*zip(inputs, input_axes, strict=True)])
    front = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in consts]
    carry = [
        _as_batch(x, axis, mapped.size) if batched else x
        for (x, axis), batched in zip(init, outs, strict=False)
    ]
    rows = [x if axis is None else jnp.moveaxis(x, axis, 1) for x, axis in xs]
    ended, ys = bind(body, spec, num, [*front, *carry, *rows])
    carry_axes = [0 if batched else None for batched in outs[: len(init)]]
    return [*ended, *ys], [*carry_axes, *(1 if batched else None for batched in outs[len(init) :])]


def _as_batch(x: Any, axis: int | None, size: int) -> Any:
    return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


def _masked(
    num: Any, inputs: list[Any], axes: list[int | None], jaxpr: Any, spec: Spec
) -> tuple[Any, Any, Any, Spec]:
    """The loop for one example with its number of turns as a constant, and the row as one of its
    xs.
    """
    layout = spec.layout
    is_linear = spec.is_linear or (False,) * len(inputs)
    is_const = [number < layout.num_consts for number in range(len(inputs))]
    is_shared = [const and axis is None for const, axis in zip(is_const, axes, strict=True)]
    is_replaced = [
        not linear and not shared for linear, shared in zip(is_linear, is_shared, strict=True)
    ]
    body, new_layout = masked_body(jaxpr, layout, is_replaced)
    first = jnp.maximum(jnp.max(num) - 1, 0) if spec.reverse else jnp.int32(0)
    others = stand_ins(num, inputs, axes, layout, is_replaced, first)
    consts, carry, xs = layout.split([*zip(inputs, axes, is_linear, strict=True)])
    rows = jnp.arange(spec.capacity, dtype=jnp.int32)
    before = [(num, 0, False), *((x, None, False) for x in others)]
    all_inputs = [*before, *consts, *carry, (rows, None, False), *xs]
    new_inputs, new_axes, new_linear = (list(part) for part in zip(*all_inputs, strict=True))
    return new_inputs, new_axes, body, spec._replace(layout=new_layout, is_linear=tuple(new_linear))


loop_p = _jax.new_primitive(NAME, _jax.Rules(_run, _types, push, _pull, _batch))
