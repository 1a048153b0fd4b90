"""Where a bijection can be changed in place.

In: containers, and what they held. Out: whether they hold the same objects still.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple, Protocol

import numpy as np


class Place(Protocol):
    """Somewhere that held objects when it was looked at."""

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        ...


class Attributes(NamedTuple):
    """What some objects have as an attribute: what functions close over, their defaults."""

    owners: Sequence[Any]
    held: Sequence[Any]
    name: str

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        return all(map(is_, map(attrgetter(self.name), self.owners), self.held))


class Empty(NamedTuple):
    """Dictionaries without items."""

    items: Sequence[dict[Any, Any]]

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        return not any(self.items)


class Items(NamedTuple):
    """A dictionary, and the objects that it held."""

    items: dict[Any, Any]
    keys: Sequence[Any]
    values: Sequence[Any]

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        if len(self.items) != len(self.keys):
            return False
        return all(map(is_, self.items, self.keys)) and all(map(is_, self.items.values(), self.values))


class Parts(NamedTuple):
    """Another container, and the objects that it held."""

    read: Callable[[], Sequence[Any]]
    held: Sequence[Any]

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        held = self.read()
        return len(held) == len(self.held) and all(map(is_, held, self.held))


class Bits(NamedTuple):
    """A NumPy array, its shape and type, and the bits that it held."""

    array: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    held: bytes

    def is_unchanged(self) -> bool:
        """Whether it holds the same."""
        array = self.array
        return array.shape == self.shape and array.dtype == self.dtype and array.tobytes() == self.held


def class_attributes(cls: type) -> Sequence[Any]:
    """Names and values of what a class holds, other than methods and what Python keeps there."""
    found = {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith(("__", "_abc_")) and not hasattr(value, "__get__")
    }
    return (*found.keys(), *found.values())


def attributes(x: Any) -> Sequence[Any]:
    """Names and values of an object's attributes; without the inverse that NumPyro notes at its first use."""
    found = {name: value for name, value in vars(x).items() if not isinstance(value, weakref.ref)}
    return (*found.keys(), *found.values())
