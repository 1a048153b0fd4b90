"""Errors about bound models, in the manner of `_messages`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from incrax._messages import NUM_SHOWN
from incrax.errors import AmbiguousInputError, BindError, InputValueError, UnknownInputError

_NOTHING = "Nothing was bound."
_UNTOUCHED = "The model is as it was."


def _shown(names: Sequence[str]) -> str:
    rest = f", and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
    return (", ".join(f"`{name}`" for name in names[:NUM_SHOWN]) or "none") + rest


def not_callable(seen: str) -> BindError:
    """What is bound is no function."""
    return BindError(
        f"`bind(f)` got {seen}, which cannot be called. {_NOTHING} Pass a function of the inputs."
    )


def missing_inputs(fun: str, missing: Sequence[str]) -> BindError:
    """Parameters without a value."""
    return BindError(
        f"`bind({fun})` got no value for {_shown(missing)}, and a bound model has a value for each "
        f"input. {_NOTHING} "
        "Pass "
        f"`bind({fun}, {missing[0]}=...)`."
    )


def other_inputs(fun: str, unknown: Sequence[str], known: Sequence[str]) -> BindError:
    """Names that the function does not take."""
    near = difflib.get_close_matches(unknown[0], known, 1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return BindError(
        f"`bind({fun})` got {_shown(unknown)}, and the function takes {_shown(known)}. This is "
        "usually a typing error. "
        f"{_NOTHING}{hint}"
    )


def taken_option(fun: str, name: str) -> BindError:
    """The function has a parameter that is called as an option of `bind`."""
    return BindError(
        f"`bind({fun})` cannot bind the parameter `{name}`, because `bind` itself has an option of "
        "this name. "
        f"{_NOTHING} "
        f"Give it another name: `bind(lambda my_{name}, ...: {fun}({name}=my_{name}, ...), "
        f"my_{name}=...)`."
    )


def unknown_name(name: str, known: Sequence[str], short: Sequence[str]) -> UnknownInputError:
    """A name that no input has."""
    near = difflib.get_close_matches(name, [*known, *short], 1)
    hint = (
        f"Did you mean `{near[0]}`?"
        if near
        else "Use an input's name, a path as `print(model)` shows it, or its end."
    )
    return UnknownInputError(
        f"`{name}` names no input of this model, which has {_shown(known)}. {_UNTOUCHED} {hint}"
    )


def no_element(name: str, path: str, shape: Sequence[int]) -> UnknownInputError:
    """An index that an array does not have."""
    return UnknownInputError(
        f"`{name}` names no element: `{path}` is of shape {list(shape)}. This is usually an index "
        f"that counts from 1. {_UNTOUCHED} Indices count from 0, one for each axis."
        if shape
        else f"`{name}` names no element: `{path}` is no array. {_UNTOUCHED} Write `{path}`."
    )


def wrong_element_role(path: str, index: Sequence[int], role: Any, seen: str) -> BindError:
    """A role that single elements cannot have."""
    name = f"{path}{list(index)}"
    return BindError(
        f"`{name}` was to have the role {role!r}, and `{path}` has the role {seen!r}. Elements of "
        'one array differ only in being "trainable" or "fixed": the others are roles of whole '
        f"arrays. {_UNTOUCHED} Give the array itself one of these two roles first, or pass "
        "two arrays."
    )


def ambiguous_name(name: str, found: Sequence[str]) -> AmbiguousInputError:
    """A short name that several paths end with."""
    return AmbiguousInputError(
        f"`{name}` may be {_shown(found)}. {_UNTOUCHED} Write the whole path of the one you mean."
    )


def wrong_role(path: str, seen: Any, known: Sequence[str]) -> BindError:
    """A role that does not exist."""
    shown = ", ".join(f'"{role}"' for role in known)
    return BindError(
        f"`bind(roles=...)` gives `{path}` the role {seen!r}. {_UNTOUCHED} Use one of {shown}."
    )


def wrong_roles(seen: Any) -> BindError:
    """Roles in a form that cannot be understood."""
    return BindError(
        f"`bind(roles=...)` got {seen!r}. {_NOTHING} Pass a mapping of names to roles, "
        '`roles={"x": "data"}`, or a function (path, leaf) -> role.'
    )


def cannot_train(path: str, type_name: str) -> BindError:
    """A leaf without a derivative is to be trained."""
    return BindError(
        f"`{path}` of type {type_name} cannot be trainable, because it has no derivative. This is "
        "usually a number "
        f"without a decimal point. {_UNTOUCHED} Write 1.0 instead of 1, or give it the role "
        '"fixed" or "data".'
    )


def nothing_to_train(method: str) -> BindError:
    """A derivative of a model in which nothing is trainable."""
    return BindError(
        f"`{method}` needs something trainable, and no input of this model is. {_UNTOUCHED} Give a "
        "floating input the "
        'role "trainable": `model.set_role("mu", "trainable")`.'
    )


def traced_value(path: str) -> InputValueError:
    """A value that only a trace has."""
    return InputValueError(
        f"`{path}` was to be set to a traced value, which has no number. This is usually a call of "
        "`set` inside "
        "`jax.jit` "
        f"or `jax.grad`. {_UNTOUCHED} Set it outside; inside compiled code, pass the value to the "
        "function itself."
    )


def other_structure(path: str, seen: str, expected: str) -> InputValueError:
    """A value of another tree structure."""
    return InputValueError(
        f"{path} has the structure {expected} and was to be set to one of {seen}. {_UNTOUCHED} "
        "Pass the same "
        "structure, "
        'or bind a new model; only inputs with the role "data" may change theirs.'
    )


def other_type(path: str, seen: str, expected: str) -> InputValueError:
    """A value of another shape, or whose dtype would lose something."""
    return InputValueError(
        f"`{path}` is of type {expected} and was to be set to {seen}. {_UNTOUCHED} Pass a value of "
        "the same shape and "
        "kind; "
        'only inputs with the role "data" may change theirs.'
    )


def outside(path: str, value: Any, low: Any, high: Any) -> InputValueError:
    """A value outside of the bounds of its input."""
    return InputValueError(
        f"`{path}` was to be set to {value:.6g}, outside of its bounds ({low:.6g}, {high:.6g}). "
        f"{_UNTOUCHED} Set a "
        "value "
        "inside, or bind the model with wider bounds."
    )


def wrong_pair(option: str, path: str, seen: Any, reason: str) -> BindError:
    """Bounds or a transform that are no pair, or do not fit."""
    example = "(0, None)" if option == "bounds" else "(jnp.exp, jnp.log)"
    return BindError(
        f"`bind({option}=...)` got {seen!r} for `{path}`: {reason}. {_NOTHING} Pass a pair: "
        f"`{option}={{{path!r}: {example}}}`."
    )


def not_a_role_for(option: str, path: str, role: str) -> BindError:
    """Bounds or transforms of what is not trainable at all."""
    return BindError(
        f'`bind({option}=...)` names `{path}`, whose role is "{role}"; only what is trainable or '
        "fixed has them. "
        f"{_NOTHING} "
        f'Leave it out, or give it the role "trainable".'
    )


def at_a_bound(path: str) -> InputValueError:
    """A value on its bound has no unbounded counterpart."""
    return InputValueError(
        f"`{path}` lies on its bound, which is infinitely far away in unbounded space. "
        f"{_UNTOUCHED} Set it to a value "
        "inside of its bounds first."
    )


def mixed_elements(path: str) -> BindError:
    """A transform of an array of which some elements are fixed, and others reach those."""
    return BindError(
        f"Some elements of `{path}` are fixed, and its transform makes them of the others, too: in "
        f"unbounded space none of them can be held alone. {_UNTOUCHED} Fix all of `{path}`, or "
        "bind it without this transform."
    )


def no_updates(seen: str) -> BindError:
    """A function with state that returns none."""
    return BindError(
        'A function of inputs with the role "state" returns a pair: its value, and a mapping of '
        "state inputs to their "
        f'new values. This one returned {seen}. {_UNTOUCHED} Return `value, {{"moments": '
        f"new_moments}}`."
    )


def not_a_state(path: str) -> BindError:
    """An update of what is no state."""
    return BindError(
        f'The function returned an update of `{path}`, and nothing there has the role "state". '
        f"{_UNTOUCHED} Give it "
        "that "
        f'role: `bind(..., roles={{{path!r}: "state"}})`.'
    )


def wrong_update(path: str, seen: str, expected: str) -> BindError:
    """An update that does not fit the state."""
    return BindError(
        f"The function returned an update of `{path}` of {seen}; the state is of {expected}. "
        f"{_UNTOUCHED} Return an "
        "update "
        "of the same structure and shapes."
    )


def no_state(method: str) -> BindError:
    """An update of a model without state."""
    return BindError(
        f'`{method}` needs inputs with the role "state", and this model has none. {_UNTOUCHED} '
        "Give an input that "
        "role: "
        '`bind(..., roles={"moments": "state"})`.'
    )


def wrong_choice(option: str, seen: Any, known: Sequence[str]) -> BindError:
    """An option that is none of a few words."""
    shown = ", ".join(f'"{word}"' for word in known)
    return BindError(f"`training({option}=...)` got {seen!r}. {_UNTOUCHED} Use one of {shown}.")


def other_definition(path: str) -> InputValueError:
    """A module of another definition than the one that is bound."""
    return InputValueError(
        f"`{path}` was to be set to a module that is defined in another way: another class, other "
        "layers, or another "
        "mode of "
        f"training and evaluation. {_UNTOUCHED} Bind a new model of it."
    )


def overlapping_names(first: str, second: str) -> InputValueError:
    """Two names of one change stand for the same leaf."""
    return InputValueError(
        f"`{first}` and `{second}` were to be set at once, and one is part of the other. "
        f"{_UNTOUCHED} Set one of them."
    )


def wrong_size(seen: Any, expected: int) -> InputValueError:
    """A vector of another size than there are trainable elements."""
    return InputValueError(
        f"A vector of shape {seen} was given for {expected} trainable elements. {_UNTOUCHED} Pass "
        "one of shape "
        f"[{expected}], "
        "in the order of `model.names`."
    )


def guarded_function(name: str) -> BindError:
    """A guarded function cannot be bound."""
    return BindError(
        f"`bind({name})` got a guarded function, and a bound model traces its function as a whole. "
        f"{_NOTHING} Write "
        "the branch "
        "with `jax.lax.cond` or `jnp.where`, or set the inputs of `guarded(f)` yourself."
    )


def roles_changed() -> BindError:
    """Steps that were made for other roles."""
    return BindError(
        "Roles of the model changed since `training` was called, and its steps are those of the "
        "earlier roles. "
        f"{_UNTOUCHED} "
        "Call `model.training(optimizer)` again."
    )
