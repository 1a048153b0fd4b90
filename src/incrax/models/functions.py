"""What a bound function computes: its value, and what becomes of its state.

In: a user's function. Out: functions of all inputs by position, for the engine to trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from incrax._messages import did_you_mean, listed
from incrax._names import name_of, parameters_of
from incrax._program import Function
from incrax._table import many
from incrax.control_flow.tapes.guarded import Guarded
from incrax.derivatives.selection import parts_of, type_name
from incrax.errors import BindError
from incrax.models.names import names_of

OPTIONS = ("roles", "bounds")


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
        raise BindError(
            f"`bind(f)` got {fun!r} of type {type(fun).__name__}, which cannot be called. Nothing "
            "was bound. Pass a function of the inputs."
        )
    if isinstance(fun, Guarded):
        raise BindError(
            f"`bind({name_of(fun)})` got a guarded function, and a bound model traces its function as a "
            "whole. Nothing was bound. Write the branch with `jax.lax.cond` or `jnp.where`, or set "
            "the inputs of `guarded(f)` yourself."
        )
    parameters = parameters_of(fun)
    if parameters is None:
        return dict(inputs)
    named = {
        key: p for key, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    unknown = [key for key in inputs if key not in named]
    has_rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    _check_names(name_of(fun), named, inputs, [] if has_rest else unknown)
    return {key: inputs[key] for key in [*(key for key in named if key in inputs), *unknown]}


def _check_names(
    name: str,
    named: Mapping[str, inspect.Parameter],
    inputs: Collection[str],
    unknown: Sequence[str],
) -> None:
    required = [key for key, p in named.items() if p.default is p.empty]
    for option in OPTIONS:
        if option in required:
            raise BindError(
                f"`bind({name})` cannot bind the parameter `{option}`, because `bind` itself has "
                "an option of this name. Nothing was bound. Give it another name: `bind(lambda "
                f"my_{option}, ...: {name}({option}=my_{option}, ...), my_{option}=...)`."
            )
    if unknown:
        otherwise = f" Options of `bind` itself are {listed(OPTIONS)}."
        raise BindError(
            f"`bind({name})` got {listed(unknown)}, and the function takes {listed(list(named))}. "
            f"This is usually a typing error. Nothing was bound."
            f"{did_you_mean(unknown[0], list(named), otherwise)}"
        )
    missing = [key for key in required if key not in inputs]
    if missing:
        raise BindError(
            f"`bind({name})` got no value for {listed(missing)}, and a bound model has a value for "
            f"each input. Nothing was bound. Pass `bind({name}, {missing[0]}=...)`."
        )


def by_position(fun: Any, number: int) -> BindError:
    """Values without the names of the inputs."""
    shown = ", ".join([name_of(fun), *(f"{each}=..." for each in parameters_of(fun) or ())])
    return BindError(
        f"`bind({name_of(fun)})` got {many(number, 'value')} by position, and inputs go by their "
        f"names, by which they are set later. Nothing was bound. Pass `bind({shown})`."
    )


class HeldState(NamedTuple):
    """Paths of the leaves that a function updates: those with the role now, and those that had it
    when it was bound.
    """

    now: tuple[str, ...]
    ever: tuple[str, ...]


def functions_of(fun: Function, inputs: tuple[str, ...], state: HeldState) -> Functions:
    """Of a function that takes these inputs by name.

    A function with state returns a pair: its value, and a mapping of state inputs to new values.
    Updates of what is no state any more are left out.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(each, kind) for each in inputs])

    def both(*args) -> tuple[Any, tuple[Any, ...]]:
        given = signature.bind(*args).arguments
        out = _applied(fun, dict(given))
        if not state.ever:
            return out, ()
        value, found = _value_and_updates(out)
        return value, _state_leaves(given, state, found)

    value = lambda *args: both(*args)[0]
    updates = lambda *args: both(*args)[1]
    return Functions(*(_named(each, name_of(fun), signature) for each in (value, updates, both)))


def _applied(fun: Function, given: dict[str, Any]) -> Any:
    """A function of inputs by name, some of which it takes by position alone."""
    parameters = (parameters_of(fun) or {}).values()
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_ONLY]
    last = max((k for k, (name, _) in enumerate(positional) if name in given), default=-1)
    first = [given.pop(name, default) for name, default in positional[: last + 1]]
    return fun(*first, **given)


def _value_and_updates(out: Any) -> tuple[Any, Mapping[str, Any]]:
    """What a function with state returned."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping):
        return out
    seen = f"a tuple of {len(out)}" if isinstance(out, tuple) else f"a {type(out).__name__}"
    raise BindError(
        'A function of inputs with the role "state" returns a pair: its value, and a mapping of '
        f"state inputs to their new values. This one returned {seen}. The model is as it was. "
        'Return `value, {"moments": new_moments}`.'
    )


def _named(fun: Any, name: str, signature: inspect.Signature) -> Function:
    """A function of positional arguments that are called as the inputs are."""
    fun.__signature__ = signature
    fun.__name__ = name
    return fun


def _state_leaves(
    trees: Mapping[str, Any], state: HeldState, found: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The new values of the state leaves, as they were where nothing is said of them."""
    names = names_of(trees)
    leaves = jax.tree.leaves(tuple(trees.values()))
    for name, tree in found.items():
        path = names.path(name)
        numbers = names.numbers(path)
        if not any(names.paths[number] in state.ever for number in numbers):
            raise BindError(
                f"The function returned an update of `{path}`, and nothing there has the role "
                f'"state". The model is as it was. Give it that role: `bind(..., roles={{{path!r}: '
                '"state"})`.'
            )
        old = parts_of(trees, path)[path]
        if jax.tree.structure(tree) != jax.tree.structure(old):
            raise _wrong_update(
                path, f"the structure {jax.tree.structure(tree)}", str(jax.tree.structure(old))
            )
        for number, new in zip(numbers, jax.tree.leaves(tree), strict=True):
            if names.paths[number] in state.now:
                leaves[number] = _like(names.paths[number], leaves[number], new)
    return tuple(leaf for path, leaf in zip(names.paths, leaves, strict=True) if path in state.now)


def _like(path: str, old: Any, new: Any) -> Any:
    """A new value of a state leaf, in its dtype."""
    if jnp.shape(new) != jnp.shape(old):
        raise _wrong_update(path, type_name(new), type_name(old))
    dtype = jax.dtypes.result_type(old)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return new
    return jax.lax.stop_gradient(jnp.asarray(new).astype(dtype))


def _wrong_update(path: str, seen: str, expected: str) -> BindError:
    """An update that does not fit the state."""
    return BindError(
        f"The function returned an update of `{path}` of {seen}; the state is of {expected}. The "
        "model is as it was. Return an update of the same structure and shapes."
    )
