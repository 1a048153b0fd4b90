"""The derivative of a loop's body, split by when things are known: before the loop, in a turn, along a tangent.

In: a body and which of its inputs move. Out: three bodies. It must not know how loops are run.

    prelude   constants -> residuals that are the same in every turn
    primal    the body, with the residuals of a turn as further ys
    tangent   (residuals of the prelude, tangents of constants | tangents of the carry | rows of xs and residuals of the
              turn, tangents of xs) -> (tangents of the carry, tangents of ys)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax.control_flow.loops.bodies import (
    BodyLayout,
    avals_in,
    avals_out,
    call,
    close,
    merged,
    per_configuration,
    run_body,
)


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
    """The derivative of a body along the inputs that move; a carry also moves if a turn makes it move."""
    while True:
        traced = _traced(jaxpr, moves)
        consts, carry, xs = layout.split(moves)
        grown = [old or new for old, new in zip(carry, traced.moves_out, strict=False)]
        if grown == carry:
            return _split(layout, moves, traced)
        moves = (*consts, *grown, *xs)


class _Traced(NamedTuple):
    primal: _jax.Body  # inputs -> outputs, residuals
    tangent: _jax.Body  # tangents of what moves -> tangents of inexact outputs; constvars are the residuals
    moves_out: tuple[bool, ...]
    is_inexact: tuple[bool, ...]


def _traced(jaxpr: Any, moves: Sequence[bool]) -> _Traced:
    is_inexact = tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals_out(jaxpr))
    tangents: list[_jax.Body] = []

    def primal(*inputs: Any) -> list[Any]:
        moved = [x for x, moves_ in zip(inputs, moves, strict=True) if moves_]
        fixed = [x for x, moves_ in zip(inputs, moves, strict=True) if not moves_]

        def of_moved(*moved: Any) -> tuple[list[Any], list[Any]]:
            outs = call(jaxpr, merged(moves, moved, fixed))
            pairs = list(zip(outs, is_inexact, strict=True))
            return [x for x, inexact in pairs if inexact], [x for x, inexact in pairs if not inexact]

        smooth, push, others = jax.linearize(of_moved, *moved, has_aux=True)
        tangents.append(_jax.trace_body(push, *moved))
        return [*merged(is_inexact, smooth, others), *tangents[-1].consts]

    body = _jax.trace_body(primal, *avals_in(jaxpr))
    tangent = tangents[-1]
    reached = _jax.reached(tangent, tangent.invars)
    flags = iter([not isinstance(atom, _jax.Literal) and atom in reached for atom in tangent.outvars])
    return _Traced(body, tangent, tuple(inexact and next(flags) for inexact in is_inexact), is_inexact)


def _split(layout: BodyLayout, moves: tuple[bool, ...], traced: _Traced) -> Linearized:
    """Sort the residuals by where they come from: the constants, a row of xs, or a turn."""
    body = traced.primal
    tangent = traced.tangent
    num_outs = len(traced.is_inexact)
    consts, carry, xs = layout.split(body.invars)
    changing = _jax.reached(body, [*carry, *xs])
    residuals = body.outvars[num_outs:]
    variables = [r for r in residuals if not isinstance(r, _jax.Literal)]
    rows = tuple(dict.fromkeys(xs.index(r) for r in variables if r in xs))
    stored = list(dict.fromkeys(r for r in variables if r in changing and r not in xs))
    fixed_unique = _unique([r for r in residuals if isinstance(r, _jax.Literal) or r not in changing])
    sources = [*fixed_unique, *(xs[k] for k in rows), *stored]
    order = [_position(sources, r) for r in residuals]

    const_moves, carry_moves, xs_moves = layout.split(moves)
    counts = (len(fixed_unique), sum(const_moves), sum(carry_moves), len(rows) + len(stored), sum(xs_moves))

    def along(*values: Any) -> list[Any]:
        rest = list(values)
        before, const_dot, carry_dot, turn, xs_dot = ([rest.pop(0) for _ in range(num)] for num in counts)
        known = [*before, *turn]
        env = tangent._replace(consts=tuple(known[k] for k in order))
        dots = iter(run_body(env, [*const_dot, *carry_dot, *xs_dot]))
        dots = [next(dots) if inexact else None for inexact in traced.is_inexact]
        moved = [*carry_moves, *traced.moves_out[layout.num_carry :]]
        return [dot for dot, moves_ in zip(dots, moved, strict=True) if moves_]

    invars = dict(zip([*consts, *carry, *xs], moves, strict=True))
    dots = [[var.aval for var in part if invars[var]] for part in (consts, carry, xs)]
    known = [source.aval for source in sources]
    avals = [*known[: counts[0]], *dots[0], *dots[1], *known[counts[0] :], *dots[2]]
    return Linearized(
        prelude=_part(body, consts, fixed_unique),
        primal=_part(body, body.invars, [*body.outvars[:num_outs], *stored]),
        tangent=close(along, avals),
        layout=BodyLayout(counts[0] + counts[1], counts[2], counts[3] + counts[4]),
        moves_in=moves,
        moves_out=(*carry_moves, *traced.moves_out[layout.num_carry :]),
        rows=rows,
        stored=tuple(var.aval for var in stored),
    )


def _unique(atoms: Sequence[Any]) -> list[Any]:
    """Each variable once; literals are not hashable and stay."""
    found: list[Any] = []
    for atom in atoms:
        if not any(atom is other for other in found):
            found.append(atom)
    return found


def _position(atoms: Sequence[Any], atom: Any) -> int:
    return next(k for k, other in enumerate(atoms) if other is atom)


def _part(body: _jax.Body, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """The part of a body that makes these outputs of these inputs."""
    avals = [var.aval for var in inputs]

    def evaluate(*values: Any) -> list[Any]:
        env = dict(zip(inputs, values, strict=True)) | dict(zip(body.constvars, body.consts, strict=True))
        needed = _needed(body, outputs, is_output_only=len(inputs) < len(body.invars))
        _jax.evaluate(needed, env)
        return [_jax.read(atom, env) for atom in outputs]

    return close(evaluate, avals)


def _needed(body: _jax.Body, outputs: Sequence[Any], *, is_output_only: bool) -> list[Any]:
    """Equations that outputs need; those with effects too, unless only outputs are asked for."""
    wanted = {atom for atom in outputs if not isinstance(atom, _jax.Literal)}
    kept = []
    for eqn in reversed(body.eqns):
        if any(var in wanted for var in eqn.outvars) or (eqn.effects and not is_output_only):
            kept.append(eqn)
            wanted.update(atom for atom in eqn.invars if not isinstance(atom, _jax.Literal))
    return kept[::-1]
