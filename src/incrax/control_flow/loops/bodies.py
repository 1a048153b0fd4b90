"""Bodies of loops as data, and what derivatives and batches make of them.

In: functions and avals. Out: closed jaxprs without constants, one object for all that are alike. It
must not know how loops are run.

A body maps (constants, carry, row of xs) to (carry, row of ys); `LoopParts` says which input is
which.

    traced_turn    a function of pytrees -> a body, in the types that a carry has in all turns
    linearized     a body -> its derivative, split by when things are known
    transposed     a linear body -> its pullback
    batched_body   a body -> the body over a batch
    remembered     a body -> the first one that is like it
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._context import context_key
from incrax._jax import LoopParts
from incrax._program import Values, from_jaxpr
from incrax._tables import LruTable, program_bytes
from incrax.engine.program.simplify import drop_dead, needed_equations
from incrax.engine.program.structure import jaxpr_key
from incrax.errors import LoopTypeError

T = TypeVar("T")
ListPair: TypeAlias = tuple[list[Any], list[Any]]
MAX_BODIES = 512
"""Bodies that are remembered; a forgotten one is compiled again."""


def in_groups(values: Iterable[T], sizes: Iterable[int]) -> list[list[T]]:
    """Values in groups of these sizes, in their order."""
    left = iter(values)
    return [list(itertools.islice(left, size)) for size in sizes]


def avals_in(jaxpr: Any) -> list[Any]:
    """Types of a body's inputs."""
    return [var.aval for var in _jax.open_jaxpr(jaxpr).invars]


def avals_out(jaxpr: Any) -> list[Any]:
    """Types of a body's outputs."""
    return [atom.aval for atom in _jax.open_jaxpr(jaxpr).outvars]


def call(jaxpr: Any, values: Values) -> list[Any]:
    """Evaluate a body, open or not, an equation at a time."""
    return from_jaxpr(jaxpr)(*values)


def close(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> Any:
    """A function of values of these types as a jaxpr; small constants stay in it."""
    return remembered(_jax.closed_jaxpr(_jax.trace_body(function, *avals)))


def lift(body: _jax.Body) -> Any:
    """A jaxpr (constants, *inputs) -> outputs without constants of its own."""
    invars = (*body.constvars, *body.invars)
    return remembered(_jax.closed_jaxpr(body._replace(invars=invars, constvars=(), consts=())))


def per_configuration(maker: Callable[..., T]) -> Callable[..., T]:
    """The maker of jaxprs, called once per arguments and per configuration of JAX."""

    @functools.lru_cache(maxsize=MAX_BODIES)
    def made(_: Hashable, *args) -> T:
        return maker(*args)

    return functools.wraps(maker)(lambda *args: made(context_key(), *args))


def parted(mask: Iterable[bool], values: Iterable[T]) -> tuple[list[T], list[T]]:
    """Values where the mask is True, and the others."""
    found: tuple[list[T], list[T]] = ([], [])
    for is_chosen, x in zip(mask, values, strict=True):
        found[not is_chosen].append(x)
    return found


def merged(mask: Sequence[bool], chosen: Sequence[Any], others: Values) -> list[Any]:
    """Values in the order of the mask, `chosen` where it is True: what `parted` parted."""
    left = iter(chosen)
    right = iter(others)
    return [next(left) if is_chosen else next(right) for is_chosen in mask]


def _outputs_of(body: _jax.Body, variables: Values) -> list[bool]:
    """Which outputs depend on some variables."""
    reached = _jax.reached(body, variables)
    return [not isinstance(atom, _jax.Literal) and atom in reached for atom in body.outvars]


# --- turns ----------------------------------------------------------------------------------------


class TracedBody(NamedTuple):
    """A body, the constants that its function closes over, and the first carry in its types."""

    jaxpr: Any
    consts: list[Any]
    init: list[Any]
    tree: Any
    ys_tree: Any


def traced_turn(
    name: str, init: Any, turn: Callable[..., tuple[Any, Any]], rows: Sequence[Any] = ()
) -> TracedBody:
    """Trace (carry, *row) -> (carry, results); Python scalars in the first carry take the types of
    a turn.

    Raises:
        LoopTypeError: a turn returns a carry of another structure, shape or dtype.
    """
    with_paths, tree = jax.tree.flatten_with_path(init)
    start = [jnp.asarray(x) for _, x in with_paths]
    ys_tree: list[Any] = [None]

    def flat(*values):
        carry, ys = turn(jax.tree.unflatten(tree, values[: len(start)]), *values[len(start) :])
        outs, out_tree = jax.tree.flatten(carry)
        results, ys_tree[0] = jax.tree.flatten(ys)
        if out_tree != tree:
            raise LoopTypeError(
                f"The function of `{name}` got a carry of the structure {tree} and returned one of "
                f"{out_tree}. A loop's carry has one type for all turns. Nothing was evaluated. "
                "Return a carry like `init`."
            )
        return [*map(_strong, map(jnp.asarray, outs), start), *map(jnp.asarray, results)]

    while True:
        body = _jax.trace_body(flat, *map(jax.typeof, start), *rows)
        outs = [atom.aval for atom in body.outvars[: len(start)]]
        grown = list(map(_as_type, start, outs))
        if all(map(operator.is_, grown, start)):
            break
        start = grown
    for (path, _), x, aval in zip(with_paths, start, outs, strict=True):
        if (x.shape, x.dtype) != (aval.shape, aval.dtype):
            raise LoopTypeError(
                f"The function of `{name}` got `carry{jax.tree_util.keystr(path)}` as "
                f"{_jax.short_type(jax.typeof(x))} and returned it as {_jax.short_type(aval)}. This is usually an "
                "`init` of integers that becomes floating-point, of float32 beside float64, or of "
                "one shape that is broadcast to another. A loop's carry has one type for all "
                "turns. Nothing was evaluated. Give `init` the type that a turn returns."
            )
    return TracedBody(lift(body), list(body.consts), start, tree, ys_tree[0])


def _as_type(x: Any, aval: Any) -> Any:
    """A weakly typed value in the type that a turn gives it, as JAX promotes it."""
    is_other = x.dtype != aval.dtype or not aval.weak_type
    if (
        not _is_weak(x)
        or not is_other
        or jnp.result_type(x, jnp.empty((), aval.dtype)) != aval.dtype
    ):
        return x
    return lax.convert_element_type(x, aval.dtype)


def _strong(new: Any, old: Any) -> Any:
    """A result without a weak type where the carry has none."""
    is_weaker = _is_weak(new) and not _is_weak(old)
    return lax.convert_element_type(new, new.dtype) if is_weaker else new


def _is_weak(x: Any) -> bool:
    return getattr(jax.typeof(x), "weak_type", False)


# --- derivatives ----------------------------------------------------------------------------------


class Linearized(NamedTuple):
    """A body and its derivative, split by when things are known: before the loop, in a turn, along
    a tangent; masks say which inputs and outputs have one.

        prelude   constants -> residuals that are the same in every turn
        primal    the body, with the residuals of a turn as further ys
        tangent   (residuals of the prelude, tangents of constants | tangents of the carry
                  | rows of xs and residuals of the turn, tangents of xs)
                  -> (tangents of the carry, tangents of ys)
    """

    prelude: Any
    primal: Any
    tangent: Any
    layout: LoopParts  # of the tangent
    moves_in: tuple[bool, ...]
    moves_out: tuple[bool, ...]
    rows: tuple[int, ...]  # xs that the tangent reads
    stored_bytes: int  # memory for the residuals of one turn


@per_configuration
def linearized(jaxpr: Any, layout: LoopParts, moves: tuple[bool, ...]) -> Linearized:
    """The derivative of a body along the inputs that move; a carry also moves if a turn makes it
    move.
    """
    traced = _traced(jaxpr, moves)
    grown = _with_carried(layout, moves, traced.moves_out)
    if grown == moves:
        return _split(layout, moves, traced)
    return linearized(jaxpr, layout, grown)


def _with_carried(
    layout: LoopParts, inputs: Sequence[bool], outputs: Sequence[bool]
) -> tuple[bool, ...]:
    """What inputs of a turn are, and of the carry what a turn makes it."""
    consts, carry, xs = layout.split(inputs)
    grown = map(operator.or_, carry, outputs)
    return (*consts, *grown, *xs)


class _TracedBody(NamedTuple):
    primal: _jax.Body
    """inputs -> outputs, residuals"""
    tangent: _jax.Body
    """tangents of what moves -> tangents of inexact outputs; its constvars are the residuals"""
    moves_out: tuple[bool, ...]
    is_inexact: tuple[bool, ...]


def _traced(jaxpr: Any, moves: Sequence[bool]) -> _TracedBody:
    is_inexact = tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals_out(jaxpr))
    tangents: list[_jax.Body] = []

    def primal(*inputs):
        moved, fixed = parted(moves, inputs)

        def of_moved(*moved) -> ListPair:
            return parted(is_inexact, call(jaxpr, merged(moves, moved, fixed)))

        smooth, push, others = jax.linearize(of_moved, *moved, has_aux=True)
        tangents.append(_jax.trace_body(push, *moved))
        return [*merged(is_inexact, smooth, others), *tangents[-1].consts]

    body = _jax.trace_body(primal, *avals_in(jaxpr))
    tangent = tangents[-1]
    flags = _outputs_of(tangent, tangent.invars)
    moves_out = merged(is_inexact, flags, [False] * len(is_inexact))
    return _TracedBody(body, tangent, tuple(moves_out), is_inexact)


def _split(layout: LoopParts, moves: tuple[bool, ...], traced: _TracedBody) -> Linearized:
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
    fixed, moving = parted(is_fixed, once)
    rows, stored = parted([r in xs for r in moving], moving)

    part_moves = layout.split(moves)
    moved = [list(compress(part, flags)) for part, flags in zip(parts, part_moves, strict=True)]
    moves_out = (*part_moves[1], *traced.moves_out[layout.num_carry :])
    inputs = (fixed, moved[0], moved[1], [*rows, *stored], moved[2])
    counts = tuple(map(len, inputs))

    def along(*values):
        before, const_dot, carry_dot, turn, xs_dot = in_groups(values, counts)
        known = dict(zip(map(id, [*fixed, *rows, *stored]), [*before, *turn], strict=True))
        at = tangent._replace(consts=tuple(known[id(r)] for r in residuals))
        dots = call(at, [*const_dot, *carry_dot, *xs_dot])
        return list(compress(merged(traced.is_inexact, dots, [None] * num_outs), moves_out))

    return Linearized(
        prelude=_part(body, consts, fixed),
        primal=_part(body, body.invars, [*body.outvars[:num_outs], *stored]),
        tangent=close(along, [atom.aval for part in inputs for atom in part]),
        layout=LoopParts(counts[0] + counts[1], counts[2]),
        moves_in=moves,
        moves_out=moves_out,
        rows=tuple(map(xs.index, rows)),
        stored_bytes=sum(_jax.aval_bytes(var.aval) for var in stored),
    )


def _part(body: _jax.Body, inputs: Values, outputs: Values) -> Any:
    """What makes these outputs of these inputs; effects only where all inputs are there."""
    is_whole = len(inputs) == len(body.invars)
    eqns = needed_equations(body.eqns, outputs, has_effects=is_whole)
    program = from_jaxpr(body._replace(invars=tuple(inputs), outvars=tuple(outputs)))
    return remembered(drop_dead(program.with_eqns(eqns)).as_jaxpr())


@per_configuration
def transposed(
    jaxpr: Any, layout: LoopParts, is_linear: tuple[bool, ...], is_wanted: tuple[bool, ...]
) -> Any:
    """The pullback of a body, as a body.

    (known consts | cotangents of the carry, sums of cotangents of linear consts | known xs, wanted
    cotangents of ys) -> (cotangents of the carry, sums | cotangents of linear xs).

    Args:
        jaxpr: linear in its carry and in what `is_linear` marks.
        layout: of the body.
        is_linear: which inputs are linear; of the carry, all.
        is_wanted: which ys have a cotangent.
    """
    avals = layout.split(avals_in(jaxpr))
    masks = layout.split(is_linear)
    sums, known_consts = parted(masks[0], avals[0])
    carry = avals[1]
    xs, known_xs = parted(masks[2], avals[2])
    wanted = list(compress(layout.split_results(avals_out(jaxpr))[1], is_wanted))
    inputs = (known_consts, carry, sums, known_xs, wanted)

    def pull(*values):
        consts, carry_ct, total, rows, ys_ct = in_groups(values, map(len, inputs))

        def of_linear(linear: list[Any]):
            outs = call(jaxpr, merged(is_linear, linear, consts + rows))
            carry, ys = layout.split_results(outs)
            return [*carry, *compress(ys, is_wanted)]

        (cts,) = jax.linear_transpose(of_linear, [*sums, *carry, *xs])(carry_ct + ys_ct)
        consts_ct, new_carry_ct, xs_ct = LoopParts(len(sums), len(carry)).split(cts)
        return [*new_carry_ct, *(t + ct for t, ct in zip(total, consts_ct, strict=True)), *xs_ct]

    return close(pull, list(itertools.chain(*inputs)))


# --- batches --------------------------------------------------------------------------------------


def batched_body(
    axis: Any, jaxpr: Any, layout: LoopParts, is_mapped: Sequence[bool]
) -> tuple[Any, list[bool]]:
    """The body over a mapped axis, the first of what is mapped, and which outputs are.

    A carry is as soon as a turn makes it so.
    """
    _, carry, _ = layout.split(is_mapped)
    num_ys = len(avals_out(jaxpr)) - layout.num_carry
    body, outs = _jax.batched_along_rows(axis, jaxpr, is_mapped, [*carry, *[False] * num_ys])
    grown = _with_carried(layout, is_mapped, outs)
    if grown == tuple(is_mapped):
        return remembered(body), outs
    return batched_body(axis, jaxpr, layout, grown)


# --- one object for bodies that are alike ---------------------------------------------------------


_known: LruTable[Hashable, Any] = LruTable(
    MAX_BODIES, weigh=lambda jaxpr: program_bytes(len(_jax.open_jaxpr(jaxpr).eqns))
)


def remembered(jaxpr: Any) -> Any:
    """The first jaxpr that is like this one, equation by equation: what was compiled for it serves
    this one too.
    """
    key = (context_key(), jaxpr_key(jaxpr))
    return _known.setdefault(key, jaxpr)
