"""Models that hold their own variables: Equinox modules and Flax NNX modules, whole or inside other
structures.

In: a value that a user binds. Out: a pytree whose leaves are arrays and static values, and the way
back inside a trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from incrax._extras import is_of
from incrax.models.roles import DATA, STATE, TRAINABLE, Static


class Opened(NamedTuple):
    """A value with modules in it as a pytree; also one module, or a leaf outside of all."""

    tree: Any
    roles: Any = None
    """What modules say of their leaves, in the structure of `tree`; None where nothing is said."""
    definition: Any = None
    """What of the modules is no leaf."""
    has_updates: bool = False
    """Whether a call changes modules in place."""
    build: Callable[[Any], Any] = lambda tree: tree
    """The value with other leaves."""
    leaves_of: Callable[[Any], Any] = lambda value: value
    """The tree of such a value, after its modules were called."""


def opened(value: Any) -> Opened | None:
    """A value as a pytree; None if no module is in it."""
    outer, treedef = jax.tree.flatten(value, is_leaf=lambda x: _opener_of(x) is not None)
    if not any(map(_opener_of, outer)):
        return None
    parts = [(_opener_of(each) or Opened)(each) for each in outer]
    joined = lambda values: jax.tree.unflatten(treedef, list(values))

    def build(tree: Any) -> Any:
        trees = treedef.flatten_up_to(tree)
        return joined(part.build(each) for part, each in zip(parts, trees, strict=True))

    def leaves_of(built: Any) -> Any:
        values = treedef.flatten_up_to(built)
        return joined(part.leaves_of(each) for part, each in zip(parts, values, strict=True))

    return Opened(
        joined(part.tree for part in parts),
        joined(part.roles for part in parts),
        tuple(part.definition for part in parts),
        any(part.has_updates for part in parts),
        build,
        leaves_of,
    )


def _opener_of(x: Any) -> Callable[[Any], Opened] | None:
    """What opens a module."""
    if is_of("flax.nnx", "Module", x):
        return _flax_part
    return _equinox_part if is_of("equinox", "Module", x) else None


def unwrapped(tree: Any) -> Any:
    """A part of an opened value with its Python numbers."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Static) else leaf, tree)


def _equinox_part(module: Any) -> Opened:
    """Python numbers in a module are settings (`inference`, a rate of dropout), as they are for
    Equinox.
    """
    wrap = lambda leaf: Static(leaf) if type(leaf) in (bool, int, float, complex) else leaf
    wrapped = lambda built: jax.tree.map(wrap, built)
    return Opened(wrapped(module), build=unwrapped, leaves_of=wrapped)


def _flax_part(module: Any) -> Opened:
    """Parameters are trained, statistics and the states of generators are updated."""
    nnx = sys.modules["flax.nnx"]
    definition, state = nnx.split(module)
    is_variable = lambda each: isinstance(each, nnx.Variable)
    role = lambda each: (
        TRAINABLE if isinstance(each, nnx.Param) else STATE if is_variable(each) else DATA
    )
    roles = jax.tree.map(role, state, is_leaf=is_variable)

    def build(tree: Any) -> Any:
        fresh = jax.tree.map(lambda each: each, state)
        nnx.replace_by_pure_dict(fresh, tree)
        return nnx.merge(definition, fresh)

    leaves_of = lambda built: nnx.to_pure_dict(nnx.state(built))
    pure = nnx.to_pure_dict
    return Opened(pure(state), pure(roles), definition, True, build, leaves_of)


def is_module(value: Any) -> bool:
    """Whether something that can be called holds arrays of its own."""
    return callable(value) and (opened(value) is not None or not jax.tree_util.all_leaves([value]))
