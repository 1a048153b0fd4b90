"""Signatures: what must be the same for two calls to share a trace.

In: the arguments of a call. Out: a hashable key, the dynamic leaves, and names for them. It must not know values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from incrax import _jax
from incrax._errors import unhashable_static
from incrax.running.leaves import check_dynamic, descriptor, is_dynamic


@dataclass(frozen=True)
class Signature:
    """The structure of a call: its tree, which leaves are values, the static ones, types, names, configuration."""

    treedef: Any
    is_dynamic: tuple[bool, ...]
    descriptors: tuple[Hashable, ...]
    statics: tuple[Any, ...]
    paths: tuple[str, ...]
    config: Hashable

    @property
    def key(self) -> Hashable:
        """Equal keys share a trace; a static 1, 1.0 and True differ."""
        statics = tuple((type(x), x) for x in self.statics)
        return self.treedef, self.is_dynamic, self.descriptors, statics, self.config

    def dynamic_leaves(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves that are values."""
        return leaves if not self.statics else [x for x, dynamic in zip(leaves, self.is_dynamic, strict=True) if dynamic]

    def matches(self, leaves: Sequence[Any], anchors: Sequence[Any]) -> bool:
        """Whether leaves of the same tree have this signature; identical anchors need no look at their type."""
        for index in [i for i, (x, anchor) in enumerate(zip(leaves, anchors, strict=True)) if x is not anchor]:
            x = leaves[index]
            if self.is_dynamic[index]:
                if not is_dynamic(x) or isinstance(x, jax.core.Tracer) or descriptor(x) != self.descriptors[index]:
                    return False
            elif type(x) is not type(anchors[index]) or x != anchors[index]:
                return False
        return True

    def rebuild(self, dynamic: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments from the dynamic leaves."""
        values, statics = iter(dynamic), iter(self.statics)
        leaves = [next(values) if is_value else next(statics) for is_value in self.is_dynamic]
        return jax.tree.unflatten(self.treedef, leaves)


def make_signature(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The signature of a call.

    Raises:
        UnsupportedLeafError: a leaf is an array of a dtype without JAX type, or a static value without a hash.
    """
    with_paths, treedef = jax.tree.flatten_with_path((args, kwargs))
    names = argument_names(fun, len(args))
    paths = tuple(leaf_path(names, path) for path, _ in with_paths)
    flags, descriptors, statics = [], [], []
    for path, (_, leaf) in zip(paths, with_paths, strict=True):
        flags.append(is_dynamic(leaf))
        if flags[-1]:
            check_dynamic(leaf, path)
            descriptors.append(descriptor(leaf))
        else:
            descriptors.append(None)
            statics.append(_checked_static(leaf, path))
    return Signature(treedef, tuple(flags), tuple(descriptors), tuple(statics), paths, _jax.config_key())


def _checked_static(leaf: Any, path: str) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise unhashable_static(path, leaf) from None
    return leaf


def argument_names(fun: Callable[..., Any], num_args: int) -> list[str]:
    """Names of positional arguments, `args[i]` where the function does not tell."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in positional][:num_args]
    return names + [f"args[{i}]" for i in range(len(names), num_args)]


def leaf_path(names: Sequence[str], path: tuple[Any, ...]) -> str:
    """A leaf's name as users write it: `params['mu']`, `data`."""
    where, first, *rest = path
    name = names[first.idx] if where.idx == 0 else str(first.key)
    return name + jax.tree_util.keystr(tuple(rest))
