"""Functions that are turns of loops, traced: the types that a carry has in all turns.

In: functions of pytrees. Out: bodies. It must not know how loops are run.
"""

from __future__ import annotations

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


class Start:
    """The first carry of a loop."""

    def __init__(self, name: str, init: Any) -> None:
        self._name = name
        leaves, self._tree = jax.tree.flatten(init)
        self._leaves = [jnp.asarray(x) for x in leaves]
        self._paths = [f"carry{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(init)]

    def traced(self, turn: Callable[..., tuple[Any, list[Any]]], rows: Sequence[Any]) -> TracedBody:
        """Trace (carry, *row) -> (carry, results); Python scalars in the first carry take the types of a turn.

        Raises:
            LoopTypeError: a turn returns a carry of another structure, shape or dtype.
        """

        def flat(*values: Any) -> list[Any]:
            carry, ys = turn(jax.tree.unflatten(self._tree, values[: len(init)]), *values[len(init) :])
            outs, tree = jax.tree.flatten(carry)
            if tree != self._tree:
                raise other_carry(self._name, tree, self._tree)
            return [*map(_strong, map(jnp.asarray, outs), init), *map(jnp.asarray, ys)]

        init = self._leaves
        while True:
            body = _jax.trace_body(flat, *(jax.typeof(x) for x in init), *rows)
            outs = [atom.aval for atom in body.outvars[: len(init)]]
            grown = [_as_type(x, aval) for x, aval in zip(init, outs, strict=True)]
            if all(new is old for new, old in zip(grown, init, strict=True)):
                break
            init = grown
        for path, x, aval in zip(self._paths, init, outs, strict=True):
            if (x.shape, x.dtype) != (aval.shape, aval.dtype):
                raise other_carry_type(self._name, path, _shown(aval), _shown(jax.typeof(x)))
        return TracedBody(lift(body), list(body.consts), init, self._tree)


def _as_type(x: Any, aval: Any) -> Any:
    """A weakly typed value in the type that a turn gives it, as JAX promotes it."""
    is_weak = getattr(jax.typeof(x), "weak_type", False)
    is_other = x.dtype != aval.dtype or not aval.weak_type
    if not is_weak or not is_other or jnp.result_type(x, jnp.empty((), aval.dtype)) != aval.dtype:
        return x
    return lax.convert_element_type(x, aval.dtype)


def _strong(new: Any, old: Any) -> Any:
    """A result without a weak type where the carry has none."""
    is_weak = getattr(jax.typeof(new), "weak_type", False) and not getattr(jax.typeof(old), "weak_type", False)
    return lax.convert_element_type(new, new.dtype) if is_weak else new


def row_aval(x: Any) -> Any:
    """The type of a row of an array."""
    return _jax.row_aval(jax.typeof(x))


def _shown(aval: Any) -> str:
    return aval.str_short(short_dtypes=True)
