"""What the inputs of a model are called.

In: inputs by name, pytrees. Out: paths of their leaves, and what a user's name stands for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from incrax._messages import did_you_mean, listed
from incrax.derivatives.selection import children
from incrax.engine.inputs.paths import completed, is_within
from incrax.errors import AmbiguousInputError, UnknownInputError

_completed = functools.lru_cache(1024)(completed)  # users set the same few names again and again


class Names(NamedTuple):
    """Inputs, and the paths of their leaves in order."""

    inputs: tuple[str, ...]
    treedef: Any
    paths: tuple[str, ...]

    def path(self, name: str) -> str:
        """The path that a name stands for: itself, or the only one that ends with it.

        Raises:
            UnknownInputError: there is none, or more than one.
        """
        if name in self.inputs:
            return name
        found = _completed(self.paths, name)
        if len(found) > 1:
            raise AmbiguousInputError(
                f"`{name}` may be {listed(found)}. The model is as it was. Write the whole path of "
                "the one you mean."
            )
        if not found:
            known = list(dict.fromkeys((*self.inputs, *self.paths)))
            otherwise = " Use an input's name, a path as `print(model)` shows it, or its end."
            raise UnknownInputError(
                f"`{name}` names no input of this model, which has "
                f"{listed(known)}. The model is as it was."
                f"{did_you_mean(name, known, otherwise)}"
            )
        return found[0]

    def numbers(self, path: str) -> list[int]:
        """The leaves at and below a path."""
        return [number for number, each in enumerate(self.paths) if is_within(each, path)]

    def number(self, path: str) -> int:
        """The leaf at a path."""
        return self.paths.index(path)


def names_of(inputs: Mapping[str, Any]) -> Names:
    """The names of some inputs."""
    paths = [
        f"{name}{keystr(keys)}"
        for name, tree in inputs.items()
        for keys, _ in tree_flatten_with_path(tree)[0]
    ]
    return Names(tuple(inputs), jax.tree.structure(tuple(inputs.values())), tuple(paths))


# --- elements of arrays ---------------------------------------------------------------------------

_ELEMENT = re.compile(r"(?P<path>.*)\[(?P<index>-?\d+(?:, *-?\d+)*)\]")
_PART = re.compile(r"(\.re|\.im)(\[[^]]*\])$")
"""Of the name of an element of a complex array, `c.re[0]`."""


def without_index(name: str) -> tuple[str, tuple[int, ...] | None]:
    """The name of an array and the index in it, of that of an element: `theta[0, 1]`."""
    found = _ELEMENT.fullmatch(name)
    if found is None:
        return name, None
    return found["path"], tuple(map(int, found["index"].split(",")))


def elements_named(name: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """What a name may stand for among elements of these names: each part, by its whole name, with
    the places of its elements. More than one part: the name is ambiguous.
    """
    if not isinstance(name, str):
        return {}
    found = completed(names, name)
    if not found:  # the element `c[0]` of a complex array is both `c.re[0]` and `c.im[0]`
        names = [_PART.sub(r"\2\1", each) for each in names]
        found = completed(names, name)
    return {part: [k for k, each in enumerate(names) if is_within(each, part)] for part in found}


# --- parts of trees -------------------------------------------------------------------------------


def with_part(trees: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The inputs with another value at a path."""
    return {name: _with_part(name, tree, path, value) for name, tree in trees.items()}


def _with_part(name: str, tree: Any, path: str, value: Any) -> Any:
    if name == path:
        return value
    if not is_within(path, name):
        return tree
    parts = [_with_part(key, part, path, value) for key, part in children(name, tree)]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=lambda x: x is not tree), parts)
