"""Names of functions, and objects that are found under their own."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from incrax._messages import wrong_option

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


def names_in(option: str, given: Any, kinds: type | tuple[type, ...] = str) -> tuple[Any, ...]:
    """What an option was given as names: one, or several, as several.

    Raises:
        TypeError: it is something else.
    """
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(name, kinds) for name in names):
        raise wrong_option(option, given, "a name, or several")
    return names


def groups_in(option: str, given: Any) -> tuple[tuple[str, ...], ...]:
    """What an option was given as names of what goes alone, and tuples of what goes together.

    Raises:
        TypeError: it is something else.
    """
    groups = names_in(option, given, (str, tuple, list))
    return tuple(names_in(option, group) for group in groups)


def parameters_of(fun: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where it does not tell."""
    try:
        return inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return None


def check_taken(method: str, fun: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise where a report is asked for about a call that a function does not take.

    Raises:
        TypeError: it is so.
    """
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"`{method}` got arguments that `{name_of(fun)}` does not take: {error}. This is usually "
            "an option, and it has none: what it is given are the arguments of a call to report on. "
            "Nothing was evaluated or stored. Give it those, or nothing for the last call; what it "
            "returns prints, and `as_dict()` has all of it."
        ) from None


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


def contents(cell: types.CellType, otherwise: Any = None) -> Any:
    """What a variable holds that a function closes over; `otherwise` where it is not yet set."""
    try:
        return cell.cell_contents
    except ValueError:
        return otherwise


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
