"""Functions as keys: what tells one from another, although callables may say that they are equal.

In: functions. Out: hashable keys. It must not call them.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import MethodType
from typing import Any


class Identity:
    """A key that only the very same object equals, and that keeps it alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def function_key(function: Any) -> Hashable:
    """What tells functions apart, whatever they themselves call equal: callables with other data
    may be equal.

    JAX makes a new wrapper, and Python a new bound method, for each call of the same function.
    """
    if isinstance(function, MethodType):
        return Identity(function.__self__), Identity(function.__func__)
    if type(function).__name__ == "_FlatCallback":
        return function_key(function.callback_func), function.in_tree
    return Identity(function)
