"""Versions of inputs: equal bits are the same version, whatever objects hold them.

In: leaf values. Out: a number per version, and the objects that stand for it. It must not know what
depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from incrax.engine.inputs.leaves import LeafValue, same_value


class Version:
    """Values of some inputs, a number that no other values have, and what is handed to programs for
    them.
    """

    __slots__ = ("feeds", "number", "size", "values")

    def __init__(self, number: int, values: tuple[LeafValue, ...], size: int | None) -> None:
        self.number = number
        self.values = values
        self.size = size
        self.feeds = [_feed(value) for value in values]

    def has(self, values: Sequence[LeafValue], size: int | None) -> bool:
        """Whether it has these bits."""
        if size != self.size:
            return False
        pairs = zip(self.values, values, strict=True)
        return all([a is b or (not a.is_deleted() and same_value(a, b)) for a, b in pairs])


def _feed(value: LeafValue) -> Any:
    """One object for all programs, so that they see by its identity that it is the same."""
    feed = value.feed
    return jnp.asarray(feed) if isinstance(feed, np.ndarray) else feed


class Versions:
    """The latest few versions of some inputs, most recently used last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: list[Version] = []
        self._next = 0

    def copy(self) -> Versions:
        """The same versions for another table."""
        other = Versions(self.limit)
        other.kept = list(self.kept)
        other._next = self._next
        return other

    def find(self, values: Sequence[LeafValue], size: int | None) -> Version:
        """The version with these bits; a new one takes the place of the one that was not used for
        longest.
        """
        found = next(
            (version for version in reversed(self.kept) if version.has(values, size)), None
        )
        if found is None:
            found = Version(self._next, tuple(values), size)
            self._next += 1
        self.kept = [*[v for v in self.kept if v is not found][-self.limit + 1 :], found]
        return found

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the versions."""
        return frozenset(version.number for version in self.kept)
