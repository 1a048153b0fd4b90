"""Static arguments of a guarded function: values that select their own tapes.

In: names and positions. Out: a call split into static and other arguments. It must not know about
tapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from incrax._messages import unhashable_static


class StaticNames(NamedTuple):
    """Which arguments are static, by name and, where the function tells, by position."""

    names: frozenset[str]
    positions: frozenset[int]

    @staticmethod
    def none() -> StaticNames:
        """No static arguments."""
        return StaticNames(frozenset(), frozenset())

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.names or self.positions)


def static_names(fun: Callable[..., Any], static: str | int | Sequence[str | int]) -> StaticNames:
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
    for x in given:
        if parameters and (
            x not in names if isinstance(x, str) else not -len(positional) <= x < len(positional)
        ):
            raise ValueError(
                f"`guarded(static=...)` got {x!r}, which is no argument of the function; it has "
                f"{names}."
            )
    chosen = {
        x if isinstance(x, str) else positional[x]
        for x in given
        if isinstance(x, str) or positional
    }
    return StaticNames(
        frozenset(chosen), frozenset(n for n, name in enumerate(positional) if name in chosen)
    )


class Split(NamedTuple):
    """A call without its static arguments, the key of these, and the function of the others."""

    key: Hashable
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    statics: tuple[Any, ...]


def split(
    fun: Callable[..., Any], statics: StaticNames, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Split:
    """Take the static arguments out of a call.

    Raises:
        UnsupportedLeafError: a static value without a hash.
    """
    fixed = {n: x for n, x in enumerate(args) if n in statics.positions}
    named = {name: x for name, x in kwargs.items() if name in statics.names}
    for name, x in [*((f"args[{n}]", x) for n, x in fixed.items()), *named.items()]:
        try:
            hash(x)
        except TypeError:
            raise unhashable_static(name, x) from None
    total = len(args)

    def call(*others: Any, **more: Any) -> Any:
        rest = iter(others)
        return fun(*[fixed[n] if n in fixed else next(rest) for n in range(total)], **named, **more)

    call.__name__ = getattr(fun, "__name__", "f")
    chosen = [*fixed.items(), *sorted(named.items())]
    others = tuple(x for n, x in enumerate(args) if n not in fixed)
    more = {name: x for name, x in kwargs.items() if name not in named}
    key = (total, tuple((n, _typed(x)) for n, x in chosen))
    return Split(key, call, others, more, tuple(x for _, x in chosen))


def _typed(x: Any) -> Hashable:
    """A value whose twins differ: 1, 1.0 and True, 0.0 and -0.0, also inside tuples."""
    if isinstance(x, tuple):
        return type(x), tuple(map(_typed, x))
    return type(x), x.hex() if isinstance(x, float) else x
