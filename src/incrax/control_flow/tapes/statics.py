"""Static arguments of a guarded function: values that select their own tapes.

In: names and positions. Out: arguments in which static ones are part of the structure. It must not
know about tapes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import jax

from incrax._messages import unhashable_static
from incrax.control_flow.loops.padded import NamedArguments, Names
from incrax.engine.inputs.signature import Function


@jax.tree_util.register_static
@dataclass(frozen=True)
class StaticValue:
    """A static argument: a pytree without leaves, whose structure is its value."""

    key: Hashable
    value: Any = field(compare=False)


def static_arguments(fun: Function, static: str | int | Names) -> NamedArguments:
    """What the user wrote, resolved.

    Raises:
        ValueError: a name or position that the function does not have.
    """
    found = NamedArguments(fun, [static] if isinstance(static, (str, int)) else static)
    known = found.parameters
    for name, (_, keyword) in zip(found.names, found.places, strict=True):
        if known and keyword not in known:
            raise ValueError(
                f"`guarded(static=...)` got {name!r}, which is no argument of the function; it has "
                f"{known}."
            )
    return found


def as_static(name: str | int, x: Any) -> StaticValue:
    """A static argument.

    Raises:
        UnsupportedLeafError: it has no hash.
    """
    try:
        hash(x)
    except TypeError:
        raise unhashable_static(str(name), x) from None
    return StaticValue(_typed(x), x)


def _typed(x: Any) -> Hashable:
    """A value whose twins differ: 1, 1.0 and True, 0.0 and -0.0, also inside tuples."""
    if isinstance(x, tuple):
        return type(x), tuple(map(_typed, x))
    return type(x), x.hex() if isinstance(x, float) else x


def of_static(fun: Function) -> Function:
    """The function of arguments among which there may be static ones."""

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {name: _value(x) for name, x in kwargs.items()}
        return fun(*map(_value, args), **values)

    return call


def _value(x: Any) -> Any:
    return x.value if isinstance(x, StaticValue) else x


def static_values(args: Any, kwargs: Any) -> list[Any]:
    """The static ones among arguments."""
    return [x.value for x in (*args, *kwargs.values()) if isinstance(x, StaticValue)]
