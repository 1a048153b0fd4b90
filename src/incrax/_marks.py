"""Marks: what the user knows to be worth saving, and what it depends on.

In: values inside a function that is being traced. Out: the same values, marked in the program.
Outside an incremental function marks do nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import jax

from incrax import _jax
from incrax._messages import check_function, wrong_option
from incrax._names import name_of, names_in
from incrax.errors import UnknownInputError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def keep(x: T, name: str | None = None, *, deps: Any = None) -> T:
    """Mark a value as worth saving, inside a function that is made incremental.

    The value is saved from the first change on that leaves it alone, is the last to go when the
    byte budget is short, and has its name in `explain()`. Derivatives go through. Whether loading
    it pays is still measured.

    Args:
        x: pytree of arrays.
        name: shown in reports.
        deps: pytree of values, inputs of the function or made from them, that `x` depends on and
            nothing else, for code of which the trace overestimates that. None: as traced. A false
            claim gives stale results, which `incrax.verify` finds. The claim is about values:
            derivatives with respect to other inputs are not cut.

    Returns:
        `x`, unchanged.

    Cost: none at run time; the identity.

    Source: `cache_value(result, deps=...)` of zfit-development#47.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.incremental
        ... def f(scale, x):
        ...     shape = incrax.keep(jnp.exp(x) / jnp.sum(jnp.exp(x)), "shape")
        ...     return jnp.max(scale * shape)
        >>> x = jnp.zeros(4)
        >>> float(f(2.0, x)), float(f(8.0, x))
        (0.5, 2.0)
    """
    if name is not None and not isinstance(name, str):
        raise wrong_option("keep(name=...)", name, "a string, or None")
    leaves, treedef = jax.tree.flatten(x)
    dependencies = None if deps is None else [y for y in jax.tree.leaves(deps) if _is_traced(y)]
    numbers = [number for number, leaf in enumerate(leaves) if _is_traced(leaf)]
    if numbers:
        marked = _jax.keep([leaves[number] for number in numbers], dependencies, name)
        for number, value in zip(numbers, marked, strict=True):
            leaves[number] = value
    return jax.tree.unflatten(treedef, leaves)


@overload
def cached(
    f: Callable[P, R], *, deps: Iterable[str] | None = ..., name: str | None = ...
) -> Callable[P, R]: ...


@overload
def cached(
    f: None = None, *, deps: Iterable[str] | None = ..., name: str | None = ...
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def cached(
    f: Callable[P, R] | None = None, *, deps: Iterable[str] | None = None, name: str | None = None
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark the results of a function or a method as worth saving; see `keep`.

    Args:
        f: function of pytrees that is called inside a function that is made incremental. May be
            left out to use `cached(...)` as a decorator with options.
        deps: names of the arguments that the result depends on, or of attributes of them, as one
            would write them in the function: `"mu"`, `"self.mu"`. All other arguments are taken
            for constants by the engine, in the result and in all that is computed on the way to
            it, derivatives included. None: as traced.
        name: shown in reports; the function's own by default.

    Returns:
        A function with the signature and results of `f`.

    Raises:
        UnknownInputError: at a call where a name of `deps` is not there.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.cached(deps=["x"])
        ... def spectrum(x, settings):
        ...     return jnp.exp(-x * settings["resolution"])
        >>> float(spectrum(0.0, {"resolution": 1.0}))
        1.0
    """
    paths = None if deps is None else names_in("cached(deps=...)", deps)

    def wrap(fun: Callable[P, R]) -> Callable[P, R]:
        check_function("cached(f)", fun)
        shown = getattr(fun, "__name__", None) if name is None else name

        @functools.wraps(fun)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            if paths is None:
                return keep(fun(*args, **kwargs), shown)
            found = [part for path in paths for part in _leaves_at(fun, path, args, kwargs)]
            args, kwargs = _without_others((args, kwargs), found, shown)
            return keep(fun(*args, **kwargs), shown, deps=found)

        return marked

    return wrap if f is None else wrap(f)


def _is_traced(x: Any) -> bool:
    return isinstance(x, _jax.Tracer)


# --- dependencies by name -------------------------------------------------------------------------


def _leaves_at(fun: Callable[..., Any], path: str, args: Any, kwargs: Any) -> list[Any]:
    """The traced leaves of an argument, or of an attribute of one.

    Raises:
        UnknownInputError: the path names nothing.
    """
    bound = inspect.signature(fun).bind(*args, **kwargs)
    bound.apply_defaults()
    name, *attributes = str(path).split(".")
    try:
        value = functools.reduce(getattr, attributes, bound.arguments[name])
    except (KeyError, AttributeError):
        raise UnknownInputError(
            f"`cached(deps=...)` names `{path}`, which is no argument of `{name_of(fun)}` and no "
            f"attribute of one; its arguments are: {', '.join(bound.arguments) or 'none'}. Without "
            "it the engine cannot know when the result is stale. Write `mu` or `self.mu`; make an "
            "item, such as `params['mu']`, an argument of its own."
        ) from None
    return list(filter(_is_traced, jax.tree.leaves(value)))


def _without_others(tree: Any, found: list[Any], name: str | None) -> Any:
    """Arguments of which only the leaves found are known to depend on anything."""
    known = set(map(id, found))
    is_other = lambda leaf: _is_traced(leaf) and id(leaf) not in known
    return jax.tree.map(lambda x: _jax.as_constant(x, name) if is_other(x) else x, tree)
