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

from incrax.models.roles import DATA, STATE, TRAINABLE, Static


class Opened(NamedTuple):
    """A value with modules in it as a pytree."""

    tree: Any
    roles: Any
    """What modules say of their leaves, in the structure of `tree`; None where nothing is said."""
    definition: tuple[Any, ...]
    """What of the modules is no leaf."""
    has_updates: bool
    """Whether a call changes modules in place."""
    build: Callable[[Any], Any]
    """The value with other leaves."""
    leaves_of: Callable[[Any], Any]
    """The tree of such a value, after its modules were called."""


class _Part(NamedTuple):
    """One module, or a leaf outside of all."""

    tree: Any
    roles: Any = None
    definition: Any = None
    build: Callable[[Any], Any] = lambda tree: tree
    leaves_of: Callable[[Any], Any] = lambda value: value


def opened(value: Any) -> Opened | None:
    """A value as a pytree; None if no module is in it."""
    flax = sys.modules.get("flax.nnx")
    equinox = sys.modules.get("equinox")
    kinds = tuple(library.Module for library in (flax, equinox) if library is not None)
    if not kinds:
        return None
    outer, treedef = jax.tree.flatten(value, is_leaf=lambda x: isinstance(x, kinds))
    if not any(isinstance(each, kinds) for each in outer):
        return None
    is_flax = [flax is not None and isinstance(each, flax.Module) for each in outer]
    parts = [
        _flax_part(flax, each)
        if is_one
        else _equinox_part(each)
        if isinstance(each, kinds)
        else _Part(each)
        for each, is_one in zip(outer, is_flax, strict=True)
    ]

    def build(tree: Any) -> Any:
        trees = treedef.flatten_up_to(tree)
        return jax.tree.unflatten(
            treedef, [part.build(each) for part, each in zip(parts, trees, strict=True)]
        )

    def leaves_of(built: Any) -> Any:
        values = treedef.flatten_up_to(built)
        return jax.tree.unflatten(
            treedef, [part.leaves_of(each) for part, each in zip(parts, values, strict=True)]
        )

    return Opened(
        tree=jax.tree.unflatten(treedef, [part.tree for part in parts]),
        roles=jax.tree.unflatten(treedef, [part.roles for part in parts]),
        definition=tuple(part.definition for part in parts),
        has_updates=any(is_flax),
        build=build,
        leaves_of=leaves_of,
    )


def unwrapped(tree: Any) -> Any:
    """A part of an opened value with its Python numbers."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Static) else leaf, tree)


def _equinox_part(module: Any) -> _Part:
    """Python numbers in a module are settings (`inference`, a rate of dropout), as they are for
    Equinox.
    """
    wrap = lambda leaf: Static(leaf) if type(leaf) in (bool, int, float, complex) else leaf
    return _Part(
        jax.tree.map(wrap, module), None, None, unwrapped, lambda built: jax.tree.map(wrap, built)
    )


def _flax_part(nnx: Any, module: Any) -> _Part:
    definition, state = nnx.split(module)
    is_variable = lambda each: isinstance(each, nnx.Variable)
    roles = jax.tree.map(lambda each: _role(nnx, each), state, is_leaf=is_variable)

    def build(tree: Any) -> Any:
        fresh = jax.tree.map(lambda each: each, state)
        nnx.replace_by_pure_dict(fresh, tree)
        return nnx.merge(definition, fresh)

    leaves_of = lambda built: nnx.to_pure_dict(nnx.state(built))
    return _Part(nnx.to_pure_dict(state), nnx.to_pure_dict(roles), definition, build, leaves_of)


def _role(nnx: Any, variable: Any) -> str:
    """Of a variable: parameters are trained, statistics and the states of generators are
    updated.
    """
    if isinstance(variable, nnx.Param):
        return TRAINABLE
    return STATE if isinstance(variable, nnx.Variable) else DATA


def is_module(value: Any) -> bool:
    """Whether something that can be called holds arrays of its own."""
    return callable(value) and (opened(value) is not None or not jax.tree_util.all_leaves([value]))
