"""Functions that are turns of loops, traced: the types that a carry has in all turns.

In: functions of pytrees. Out: bodies. It must not know how loops are run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax.control_flow.loops.bodies import lift
from incrax.control_flow.loops.messages import other_carry, other_carry_type


class TracedBody(NamedTuple):
    """A body, the constants that its function closes over, and the first carry in its types."""

    jaxpr: Any
    consts: list[Any]
    init: list[Any]
    tree: Any


def traced_turn(
    name: str, init: Any, turn: Callable[..., tuple[Any, list[Any]]], rows: Sequence[Any] = ()
) -> TracedBody:
    """Trace (carry, *row) -> (carry, results); Python scalars in the first carry take the types of
    a turn.

    Raises:
        LoopTypeError: a turn returns a carry of another structure, shape or dtype.
    """
    with_paths, tree = jax.tree.flatten_with_path(init)
    start = [jnp.asarray(x) for _, x in with_paths]

    def flat(*values: Any) -> list[Any]:
        carry, ys = turn(jax.tree.unflatten(tree, values[: len(start)]), *values[len(start) :])
        outs, out_tree = jax.tree.flatten(carry)
        if out_tree != tree:
            raise other_carry(name, out_tree, tree)
        return [*map(_strong, map(jnp.asarray, outs), start), *map(jnp.asarray, ys)]

    while True:
        body = _jax.trace_body(flat, *map(jax.typeof, start), *rows)
        outs = [atom.aval for atom in body.outvars[: len(start)]]
        grown = list(map(_as_type, start, outs))
        if all(map(operator.is_, grown, start)):
            break
        start = grown
    for (path, _), x, aval in zip(with_paths, start, outs, strict=True):
        if (x.shape, x.dtype) != (aval.shape, aval.dtype):
            where = f"carry{jax.tree_util.keystr(path)}"
            raise other_carry_type(name, where, _shown(aval), _shown(jax.typeof(x)))
    return TracedBody(lift(body), list(body.consts), start, tree)


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


def _shown(aval: Any) -> str:
    return aval.str_short(short_dtypes=True)
