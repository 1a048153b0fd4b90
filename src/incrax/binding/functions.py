"""What a bound function computes: its value, and what becomes of its state.

In: a user's function. Out: functions of all inputs by position, for the engine to trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from incrax._bind_errors import (
    missing_inputs,
    no_updates,
    not_a_state,
    not_callable,
    other_inputs,
    taken_option,
    wrong_update,
)
from incrax.binding.modules import Opened
from incrax.binding.names import Names, names_of
from incrax.derivatives.selection import at_path, type_name

Function = Callable[..., Any]
OPTIONS = ("roles", "bounds", "transforms")


class Functions(NamedTuple):
    """Of all inputs by position."""

    value: Function
    """What the function returns, without updates."""
    updates: Function
    """New values of the state leaves, a tuple in their order."""
    both: Function
    """Value and updates: a pair."""


def checked_inputs(fun: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in the order of the function's parameters.

    Raises:
        BindError: the function cannot be called, or its parameters are not those that are given.
    """
    if not callable(fun):
        raise not_callable(f"{fun!r} of type {type(fun).__name__}")
    name = _name(fun)
    try:
        parameters = inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return dict(inputs)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {key: each for key, each in parameters.items() if each.kind not in kinds}
    required = [key for key, each in named.items() if each.default is inspect.Parameter.empty]
    for option in OPTIONS:
        if option in required:
            raise taken_option(name, option)
    missing = [key for key in required if key not in inputs]
    unknown = [key for key in inputs if key not in named]
    has_rest = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if unknown and not has_rest:
        raise other_inputs(name, unknown, list(named))
    if missing:
        raise missing_inputs(name, missing)
    return {key: inputs[key] for key in [*(key for key in named if key in inputs), *unknown]}


def _name(fun: Any) -> str:
    return getattr(fun, "__name__", type(fun).__name__)


def functions_of(
    fun: Function, inputs: tuple[str, ...], opened: Mapping[str, Opened], state: tuple[str, ...]
) -> Functions:
    """Of a function that takes these inputs by name; `state` are the paths of what it updates.

    A function with state returns a pair: its value, and a mapping of state inputs to new values; modules that hold
    their own state are asked for it after the call.
    """
    positional = _positional_only(fun)

    def called(args: tuple[Any, ...]) -> tuple[Any, Mapping[str, Any]]:
        given = dict(zip(inputs, args, strict=True))
        modules = {name: opened[name].build(given[name]) for name in opened}
        given.update(modules)
        first = [given.pop(name) for name in positional if name in given]
        out = fun(*first, **given)
        own = {name: opened[name].leaves_of(module) for name, module in modules.items()}
        asked = [path for path in state if not any(path.startswith(name) for name in opened)]
        if not asked:
            return out, own
        if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping)):
            raise no_updates(f"a {type(out).__name__}" if not isinstance(out, tuple) else f"a tuple of {len(out)}")
        return out[0], {**own, **out[1]}

    def both(*args: Any) -> tuple[Any, tuple[Any, ...]]:
        value, found = called(args)
        return value, _state_leaves(names_of(dict(zip(inputs, args, strict=True))), args, state, opened, found)

    def value(*args: Any) -> Any:
        return called(args)[0]

    def updates(*args: Any) -> tuple[Any, ...]:
        return both(*args)[1]

    return Functions(*(_named(each, _name(fun), inputs) for each in (value, updates, both)))


def _positional_only(fun: Function) -> list[str]:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]


def _named(fun: Any, name: str, inputs: Sequence[str]) -> Function:
    """A function of positional arguments that are called as the inputs are."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fun.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each in inputs])
    fun.__name__ = name
    return fun


def _state_leaves(
    names: Names, args: tuple[Any, ...], state: Sequence[str], opened: Mapping[str, Opened], found: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The new values of the state leaves, as they were where nothing is said of them."""
    leaves = jax.tree.leaves(args)
    for name, tree in found.items():
        path = names.path(name)
        numbers = names.numbers(path)
        if not any(names.paths[number] in state for number in numbers):
            if name in opened:
                continue
            raise not_a_state(path)
        old = at_path(path, (args, {}), names.inputs, names.paths)
        if jax.tree.structure(tree) != jax.tree.structure(old):
            raise wrong_update(path, f"the structure {jax.tree.structure(tree)}", str(jax.tree.structure(old)))
        for number, new in zip(numbers, jax.tree.leaves(tree), strict=True):
            if names.paths[number] in state:
                leaves[number] = _like(names.paths[number], leaves[number], new)
    return tuple(leaf for path, leaf in zip(names.paths, leaves, strict=True) if path in state)


def _like(path: str, old: Any, new: Any) -> Any:
    """A new value of a state leaf, in its dtype."""
    if jnp.shape(new) != jnp.shape(old):
        raise wrong_update(path, type_name(new), type_name(old))
    dtype = jax.dtypes.result_type(old)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return new
    return jax.lax.stop_gradient(jnp.asarray(new).astype(dtype))
