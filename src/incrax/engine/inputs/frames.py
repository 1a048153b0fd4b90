"""A tree taken apart: what is static in it, and values that change.

In: a tree, which of its leaves are values. Out: a `Frame` with holes, and the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax


class Hole:
    """Stands where a value was: the class itself, whose hash is that of an object."""


class Frame(NamedTuple):
    """A tree without its values."""

    treedef: Any
    leaves: tuple[Any, ...]
    """Those that are static; `Hole` for each value."""

    def filled(self, values: Iterable[Any]) -> Any:
        """The tree with these values."""
        return jax.tree.unflatten(self.treedef, self.with_values(values))

    def with_values(self, values: Iterable[Any]) -> list[Any]:
        """All leaves of the tree."""
        rest = iter(values)
        return [next(rest) if leaf is Hole else leaf for leaf in self.leaves]


def framed(
    treedef: Any, leaves: Sequence[Any], is_value: Sequence[bool]
) -> tuple[Frame, list[Any]]:
    """A tree as its frame and its values."""
    pairs = list(zip(leaves, is_value, strict=True))
    frame = Frame(treedef, tuple(Hole if flag else leaf for leaf, flag in pairs))
    return frame, [leaf for leaf, flag in pairs if flag]
