"""Models that hold their own variables: Equinox modules, which are pytrees, and Flax NNX modules, which are not.

In: a value that a user binds. Out: a pytree of its arrays, and the way back inside a trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from incrax.binding.roles import DATA, STATE, TRAINABLE


class Opened(NamedTuple):
    """A module as a pytree."""

    tree: Any
    roles: Any
    """A tree of the same structure: what the module says of its leaves."""
    build: Callable[[Any], Any]
    """A module with other leaves."""
    leaves_of: Callable[[Any], Any]
    """The tree of such a module, after it was called."""


def opened(value: Any) -> Opened | None:
    """A Flax NNX module as a pytree; None for everything else."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(value, nnx.Module):
        return None
    definition, state = nnx.split(value)
    roles = jax.tree.map(lambda each: _role(nnx, each), state, is_leaf=lambda each: isinstance(each, nnx.Variable))

    def build(tree: Any) -> Any:
        fresh = jax.tree.map(lambda each: each, state)
        nnx.replace_by_pure_dict(fresh, tree)
        return nnx.merge(definition, fresh)

    def leaves_of(module: Any) -> Any:
        return nnx.to_pure_dict(nnx.state(module))

    return Opened(nnx.to_pure_dict(state), nnx.to_pure_dict(roles), build, leaves_of)


def _role(nnx: Any, variable: Any) -> str:
    """Of a variable: parameters are trained, statistics and the states of generators are updated."""
    if isinstance(variable, nnx.Param):
        return TRAINABLE
    return STATE if isinstance(variable, nnx.Variable) else DATA


def is_module(value: Any) -> bool:
    """Whether something that can be called holds arrays of its own."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(value, nnx.Module):
        return True
    return not jax.tree_util.all_leaves([value])
