"""The derivative of a loop's body, split by when things are known: before the loop, in a turn,
along a tangent.

In: a body and which of its inputs move. Out: three bodies. It must not know how loops are run.

    prelude   constants -> residuals that are the same in every turn
    primal    the body, with the residuals of a turn as further ys
    tangent   (residuals of the prelude, tangents of constants | tangents of the carry
              | rows of xs and residuals of the turn, tangents of xs)
              -> (tangents of the carry, tangents of ys)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._program import from_jaxpr
from incrax.control_flow.loops.bodies import (
    BodyLayout,
    avals_in,
    avals_out,
    call,
    close,
    in_groups,
    merged,
    per_configuration,
    remembered,
)
from incrax.engine.program.simplify import drop_dead, needed_equations


class Linearized(NamedTuple):
    """A body and its derivative; masks say which inputs and outputs have a tangent."""

    prelude: Any
    primal: Any
    tangent: Any
    layout: BodyLayout  # of the tangent
    moves_in: tuple[bool, ...]
    moves_out: tuple[bool, ...]
    rows: tuple[int, ...]  # xs that the tangent reads
    stored: tuple[Any, ...]  # types of the residuals of a turn

    @property
    def stored_bytes(self) -> int:
        """Memory for the residuals of one turn."""
        return sum(map(_jax.aval_bytes, self.stored))


@per_configuration
def linearized(jaxpr: Any, layout: BodyLayout, moves: tuple[bool, ...]) -> Linearized:
    """The derivative of a body along the inputs that move; a carry also moves if a turn makes it
    move.
    """
    while True:
        traced = _traced(jaxpr, moves)
        consts, carry, xs = layout.split(moves)
        grown = [old or new for old, new in zip(carry, traced.moves_out, strict=False)]
        if grown == carry:
            return _split(layout, moves, traced)
        moves = (*consts, *grown, *xs)


class _Traced(NamedTuple):
    primal: _jax.Body
    """inputs -> outputs, residuals"""
    tangent: _jax.Body
    """tangents of what moves -> tangents of inexact outputs; its constvars are the residuals"""
    moves_out: tuple[bool, ...]
    is_inexact: tuple[bool, ...]


def _traced(jaxpr: Any, moves: Sequence[bool]) -> _Traced:
    is_inexact = tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals_out(jaxpr))
    is_fixed = [not moving for moving in moves]
    tangents: list[_jax.Body] = []

    def primal(*inputs: Any) -> list[Any]:
        moved = list(compress(inputs, moves))
        fixed = list(compress(inputs, is_fixed))

        def of_moved(*moved: Any) -> tuple[list[Any], list[Any]]:
            outs = call(jaxpr, merged(moves, moved, fixed))
            others = [not inexact for inexact in is_inexact]
            return list(compress(outs, is_inexact)), list(compress(outs, others))

        smooth, push, others = jax.linearize(of_moved, *moved, has_aux=True)
        tangents.append(_jax.trace_body(push, *moved))
        return [*merged(is_inexact, smooth, others), *tangents[-1].consts]

    body = _jax.trace_body(primal, *avals_in(jaxpr))
    tangent = tangents[-1]
    reached = _jax.reached(tangent, tangent.invars)
    flags = [not isinstance(atom, _jax.Literal) and atom in reached for atom in tangent.outvars]
    moves_out = merged(is_inexact, flags, [False] * len(is_inexact))
    return _Traced(body, tangent, tuple(moves_out), is_inexact)


def _split(layout: BodyLayout, moves: tuple[bool, ...], traced: _Traced) -> Linearized:
    """Sort the residuals by where they come from: the constants, a row of xs, or a turn."""
    body = traced.primal
    tangent = traced.tangent
    num_outs = len(traced.is_inexact)
    parts = layout.split(body.invars)
    consts, carry, xs = parts
    changing = _jax.reached(body, [*carry, *xs])
    residuals = body.outvars[num_outs:]
    once = {id(r): r for r in residuals}.values()  # by identity: literals have no hash
    is_fixed = [isinstance(r, _jax.Literal) or r not in changing for r in once]
    fixed = list(compress(once, is_fixed))
    moving = [r for r, stays in zip(once, is_fixed, strict=True) if not stays]
    rows = [r for r in moving if r in xs]
    stored = [r for r in moving if r not in xs]
    sources = {id(r): number for number, r in enumerate([*fixed, *rows, *stored])}

    part_moves = layout.split(moves)
    moved = [list(compress(part, flags)) for part, flags in zip(parts, part_moves, strict=True)]
    moves_out = (*part_moves[1], *traced.moves_out[layout.num_carry :])
    inputs = (fixed, moved[0], moved[1], [*rows, *stored], moved[2])
    counts = tuple(map(len, inputs))

    def along(*values: Any) -> list[Any]:
        before, const_dot, carry_dot, turn, xs_dot = in_groups(values, counts)
        known = [*before, *turn]
        at = tangent._replace(consts=tuple(known[sources[id(r)]] for r in residuals))
        dots = call(at, [*const_dot, *carry_dot, *xs_dot])
        return list(compress(merged(traced.is_inexact, dots, [None] * num_outs), moves_out))

    return Linearized(
        prelude=_part(body, consts, fixed),
        primal=_part(body, body.invars, [*body.outvars[:num_outs], *stored]),
        tangent=close(along, [atom.aval for part in inputs for atom in part]),
        layout=BodyLayout(counts[0] + counts[1], counts[2], counts[3] + counts[4]),
        moves_in=moves,
        moves_out=moves_out,
        rows=tuple(map(xs.index, rows)),
        stored=tuple(var.aval for var in stored),
    )


def _part(body: _jax.Body, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """What makes these outputs of these inputs; effects only where all inputs are there."""
    is_whole = len(inputs) == len(body.invars)
    eqns = needed_equations(body.eqns, outputs, has_effects=is_whole)
    program = from_jaxpr(body._replace(invars=tuple(inputs), outvars=tuple(outputs)))
    return remembered(drop_dead(program.with_eqns(eqns)).as_jaxpr())
