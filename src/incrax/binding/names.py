"""What the inputs of a model are called.

In: inputs by name, pytrees. Out: paths of their leaves, and what a user's name stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey, keystr, tree_flatten_with_path

from incrax._bind_errors import ambiguous_name, unknown_name
from incrax.running.paths import is_within


class Names(NamedTuple):
    """Inputs, their leaves in order, and what short names stand for."""

    inputs: tuple[str, ...]
    treedef: Any
    paths: tuple[str, ...]
    short: dict[str, tuple[str, ...]]
    """The paths that end with a key: `"mu"` for `params['mu']`."""

    def path(self, name: str) -> str:
        """The path that a name stands for: itself, or the only one that ends with it.

        Raises:
            UnknownInputError: there is none, or more than one.
        """
        if name in self.inputs or any(is_within(path, name) for path in self.paths):
            return name
        found = self.short.get(name, ())
        if len(found) > 1:
            raise ambiguous_name(name, found)
        if not found:
            paths = [path for path in self.paths if path not in self.inputs]
            raise unknown_name(name, [*self.inputs, *paths], list(self.short))
        return found[0]

    def numbers(self, path: str) -> list[int]:
        """The leaves at and below a path."""
        return [number for number, each in enumerate(self.paths) if is_within(each, path)]


def names_of(inputs: Mapping[str, Any]) -> Names:
    """The names of some inputs."""
    paths: list[str] = []
    short: dict[str, list[str]] = {}
    for name, tree in inputs.items():
        for keys, _ in tree_flatten_with_path(tree)[0]:
            paths.append(f"{name}{keystr(keys)}")
            for count, key in enumerate(keys, 1):
                word = _word(key)
                path = f"{name}{keystr(keys[:count])}"
                if word is not None and path not in short.setdefault(word, []):
                    short[word].append(path)
    treedef = jax.tree.structure(tuple(inputs.values()))
    return Names(tuple(inputs), treedef, tuple(paths), {word: tuple(found) for word, found in short.items()})


def _word(key: Any) -> str | None:
    """The name in a key of a path, if it has one."""
    if isinstance(key, GetAttrKey):
        return key.name
    return key.key if isinstance(key, DictKey) and isinstance(key.key, str) else None
