"""Static arguments of a guarded function: values that select their own tapes.

In: names and positions. Out: arguments in which static ones are part of the structure. It must not
know about tapes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from incrax._messages import unhashable_static


@jax.tree_util.register_static
@dataclass(frozen=True)
class StaticValue:
    """A static argument: a pytree without leaves, whose structure is its value."""

    key: Hashable
    value: Any = field(compare=False)


class StaticArguments(NamedTuple):
    """Which arguments are static, by name and, where the function tells, by position."""

    names: frozenset[str] = frozenset()
    positions: frozenset[int] = frozenset()

    def marked(self, args: Any, kwargs: Any, mark: Callable[[str, Any], Any]) -> tuple[Any, Any]:
        """The arguments with `mark(name, value)` in the place of static ones."""
        given = [mark(f"args[{n}]", x) if n in self.positions else x for n, x in enumerate(args)]
        named = {name: mark(name, x) if name in self.names else x for name, x in kwargs.items()}
        return tuple(given), named


def static_arguments(
    fun: Callable[..., Any], static: str | int | Sequence[str | int]
) -> StaticArguments:
    """Resolve what the user wrote.

    Raises:
        ValueError: a name or position that the function does not have.
    """
    given = [static] if isinstance(static, (str, int)) else list(static)
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters]
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    chosen = {x for x in given if isinstance(x, str)}
    for x in given if parameters else ():
        is_there = x in names if isinstance(x, str) else -len(positional) <= x < len(positional)
        if not is_there:
            raise ValueError(
                f"`guarded(static=...)` got {x!r}, which is no argument of the function; it has "
                f"{names}."
            )
        chosen.add(x if isinstance(x, str) else positional[x])
    positions = frozenset(n for n, name in enumerate(positional) if name in chosen)
    return StaticArguments(frozenset(chosen), positions)


def as_static(name: str, x: Any) -> StaticValue:
    """A static argument.

    Raises:
        UnsupportedLeafError: it has no hash.
    """
    try:
        hash(x)
    except TypeError:
        raise unhashable_static(name, x) from None
    return StaticValue(_typed(x), x)


def _typed(x: Any) -> Hashable:
    """A value whose twins differ: 1, 1.0 and True, 0.0 and -0.0, also inside tuples."""
    if isinstance(x, tuple):
        return type(x), tuple(map(_typed, x))
    return type(x), x.hex() if isinstance(x, float) else x


def of_static(fun: Callable[..., Any]) -> Callable[..., Any]:
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
