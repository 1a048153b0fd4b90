"""Names of functions, and objects that are found under their own."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

NAME_LENGTH = 80
"""Characters of a program's name: the name of a file has up to 255 bytes."""


def name_of(fun: Any) -> str:
    """What messages, reports and compiled programs call a function: the same in every process.

    Not by `repr`, which has an address, or whole arrays: JAX names programs, and finds them in its
    cache, by this.
    """
    if isinstance(fun, functools.partial):
        return name_of(fun.func)
    return getattr(fun, "__name__", None) or type(fun).__name__


def names_in(given: Any) -> tuple[Any, ...]:
    """One name, or several, as several."""
    return (given,) if isinstance(given, (str, int)) else tuple(given)


def parameters_of(fun: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where it does not tell."""
    try:
        return inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return None


def as_program_name(name: str) -> str:
    """A name for a compiled program: JAX begins that of a file in its cache with it."""
    return name.encode("ascii", "replace").decode()[:NAME_LENGTH]


def is_global(x: Any) -> bool:
    """Whether an object is found under its own name in its module, so that it is a global
    variable.
    """
    name = getattr(x, "__qualname__", None)
    found = sys.modules.get(getattr(x, "__module__", None) or "")
    if not isinstance(name, str) or found is None:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is x


class WrapsFunction:
    """Base of what stands for a function: in a class it is a method, with the instance as first
    argument: a static value of what is compiled, unless its class is a pytree.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method."""
        return self if instance is None else types.MethodType(self, instance)  # pyright: ignore


def reduced(x: Any, otherwise: Any) -> Any:
    """What `__reduce__` returns: a name where the object is found by it, else how it is made
    anew.
    """
    return x.__qualname__ if is_global(x) else otherwise
