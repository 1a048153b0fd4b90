"""Marks: what the user knows to be worth saving, and what it depends on.

In: values inside a function that is being traced. Out: the same values, marked in the program.
Outside an incremental function marks do nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._messages import wrong_option
from incrax._names import name_of
from incrax.errors import UnknownInputError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PATH = re.compile(r"^(?P<name>[^\W\d]\w*)(?P<rest>(\.[^\W\d]\w*|\[[^\[\]]+\])*)$")
_STEP = re.compile(r"\.(?P<attribute>\w+)|\[(?P<key>[^\[\]]+)\]")


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
        deps: names of the arguments that the result depends on, or of parts of them, as one would
            write them in the function: `"mu"`, `"self.mu"`, `"params['mu']"`, `"theta[3]"`. All
            other arguments are taken for constants by the engine, in the result and in all that is
            computed on the way to it, derivatives included. None: as traced.
        name: shown in reports; the function's own by default.

    Returns:
        A function with the signature and results of `f`.

    Raises:
        UnknownInputError: at a call where a name of `deps` is not there.
        TypeError: a name of `deps` is no path.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.cached(deps=["x"])
        ... def spectrum(x, settings):
        ...     return jnp.exp(-x * settings["resolution"])
        >>> float(spectrum(0.0, {"resolution": 1.0}))
        1.0
    """
    paths = None if deps is None else tuple([deps] if isinstance(deps, str) else deps)

    def wrap(fun: Callable[P, R]) -> Callable[P, R]:
        shown = getattr(fun, "__name__", None) if name is None else name

        @functools.wraps(fun)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            if paths is None:
                return keep(fun(*args, **kwargs), shown)
            found = [part for path in paths for part in _leaves_at(fun, path, args, kwargs)]
            args, kwargs = _without_others((args, kwargs), found, shown)
            return keep(
                fun(*args, **kwargs),
                shown,
                deps=[leaf if k is None else leaf[k] for leaf, k in found],
            )

        return marked

    return wrap if f is None else wrap(f)


def _is_traced(x: Any) -> bool:
    return isinstance(x, _jax.Tracer)


# --- dependencies by name -------------------------------------------------------------------------


def _leaves_at(fun: Callable[..., Any], path: str, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """The traced leaves that a path names, each with an index if it names elements of it.

    Raises:
        UnknownInputError: it names nothing.
    """
    name, steps = _parsed(path)
    bound = inspect.signature(fun).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        value = bound.arguments[name]
        for attribute, key in steps[:-1]:
            value = _part(value, attribute, key)
        if steps and steps[-1][0] is None and _is_traced(value):
            np.empty(value.shape, bool)[steps[-1][1]]
            return [(value, steps[-1][1])]
        value = value if not steps else _part(value, *steps[-1])
    except (KeyError, AttributeError, IndexError, TypeError):
        raise UnknownInputError(
            f"`cached(deps=...)` names `{path}`, which is no argument of `{name_of(fun)}` and no "
            f"part of one; its arguments are: {', '.join(bound.arguments) or 'none'}. Without it "
            "the engine cannot know when the result is stale. Write it as in the function's body: "
            "`mu`, `self.mu`, `params['mu']`, `theta[3]`."
        ) from None
    return [(leaf, None) for leaf in jax.tree.leaves(value) if _is_traced(leaf)]


def _part(value: Any, attribute: str | None, key: Any) -> Any:
    """A part of a container; arrays have none."""
    if _is_traced(value):
        raise TypeError
    return value[key] if attribute is None else getattr(value, attribute)


def _parsed(path: Any) -> tuple[str, list[tuple[str | None, Any]]]:
    """A path's first name and its steps, (attribute, None) or (None, key)."""
    match = _PATH.match(path) if isinstance(path, str) else None
    try:
        if match is not None:
            steps = _STEP.finditer(match["rest"])
            return match["name"], [
                (s["attribute"], ast.literal_eval(s["key"]) if s["key"] else None) for s in steps
            ]
    except (ValueError, SyntaxError):
        pass
    raise wrong_option(
        "cached(deps=...)",
        path,
        "the name of an argument or of a part of it, like \"params['mu']\"",
    )


def _without_others(tree: Any, found: list[tuple[Any, Any]], name: str | None) -> Any:
    """Arguments of which only the leaves and elements found are known to depend on anything."""

    def narrowed(leaf: Any) -> Any:
        keys = [key for other, key in found if other is leaf]
        if not _is_traced(leaf) or None in keys:
            return leaf
        constant = _jax.as_constant(leaf, name)
        if not keys:
            return constant
        chosen = np.zeros(leaf.shape, bool)
        for key in keys:
            chosen[key] = True
        return jnp.where(chosen, leaf, constant)

    return jax.tree.map(narrowed, tree)
