"""Errors about costs, in the manner of `_errors`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from incrax.errors import CostError

_NOTHING = "Nothing was evaluated."


def not_callable(seen: str) -> TypeError:
    """What is asked for is no function."""
    return TypeError(f"`cost(f)` got {seen}; it must be a function.")


def wrong_option(name: str, seen: object, words: Sequence[str], others: str = "") -> CostError:
    """An option with a value that it does not take: it takes some words, and perhaps something else."""
    near = difflib.get_close_matches(str(seen), words, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return CostError(f"`cost({name}=...)` got {seen!r}; use {', '.join(map(repr, words))}{others}. {_NOTHING}{hint}")


def needs_values(option: str, path: str, seen: str) -> CostError:
    """An argument that is a type only, where the function must run."""
    return CostError(
        f"`cost({option})` runs the function, and `{path}` is {seen} without values. {_NOTHING} Pass an array, "
        f"or leave {option} out."
    )


def has_effects(option: str, effects: Sequence[str]) -> CostError:
    """A function that would do something beside computing its result."""
    return CostError(
        f"`cost({option})` runs the function, and it has effects: {', '.join(effects)}. This is usually a print or a "
        f"callback, which would be repeated with each run. {_NOTHING} Take it out, or leave {option} out."
    )


def parameter_as_option(fun: str, names: Sequence[str]) -> CostError:
    """The function lacks arguments that are called as options of `cost`."""
    shown = ", ".join(f"`{name}`" for name in names)
    return CostError(
        f"`cost({fun})` takes {shown} for itself, and the function has a parameter of that name, which got no value. "
        f"{_NOTHING} Pass it by position, or give it another name: "
        f"`cost(lambda my_{names[0]}, ...: {fun}({names[0]}=my_{names[0]}, ...), ...)`."
    )


def branch_in_function(fun: str, place: str) -> CostError:
    """Python control flow on a value that is not known."""
    return CostError(
        f"`cost({fun})` found Python control flow on a traced value: {place}. What runs depends on values, and "
        f"there is no one program to count. {_NOTHING} Pass `incrax.guarded({fun})`: the path that these values take "
        f"is counted. Or write `jax.lax.cond`, or fix the argument: `cost(lambda x: {fun}(x, flag=True), x)`."
    )


def value_for_numpy(fun: str, place: str) -> CostError:
    """A traced value in the hands of NumPy."""
    return CostError(
        f"`cost({fun})` found a traced value turned into a NumPy array: {place}. This is usually a function of `numpy` "
        f"where that of `jax.numpy` is meant, or one for minimisers on the host, such as `model.flat().value`. "
        f"{_NOTHING} Use `jax.numpy`, `jax.pure_callback` around what must run on the host, or pass the model."
    )


def static_number(fun: str) -> CostError:
    """A jitted function whose static argument is a number."""
    return CostError(
        f"`cost({fun})` got a jitted function with a static argument that is a number or an array. `cost` traces all "
        f"numbers, and `jax.jit` refuses what is traced there. {_NOTHING} Fix the argument: "
        f"`cost(lambda x: {fun}(x, n=3), x)`."
    )


def no_type(path: str, seen: str) -> CostError:
    """An argument that JAX has no type for."""
    return CostError(
        f"`cost(f)` got `{path}` as {seen}, which JAX has no type for. This is usually a ragged list, strings or dates "
        f"in an array. {_NOTHING} Convert it to a numeric array."
    )


def wrong_rule(name: str, seen: str) -> CostError:
    """A rule of the user's that gives no number of FLOPs."""
    return CostError(
        f"The rule for `{name}` in `cost(rules=...)` gave {seen}; it must give a number of FLOPs, not negative, from "
        "the types of the inputs, those of the results and the parameters of one equation. Nothing was counted."
    )


def not_evaluating(method: str, methods: Sequence[str]) -> CostError:
    """A method of a bound model that has no cost of its own."""
    shown = ", ".join(f"`{each}`" for each in methods)
    return CostError(
        f"`cost(model.{method})` got a method of a bound model that does not evaluate its inputs as they are; {shown} "
        f"do. {_NOTHING} Pass the model itself: `cost(model)` counts its value, its gradient and its Hessian times a "
        "vector."
    )


def inputs_by_position(num: int) -> CostError:
    """A bound model with further arguments."""
    return CostError(
        f"`cost(model)` got {num} argument{'s' * (num > 1)} by position; a bound model holds values for its inputs. "
        f"{_NOTHING} Name those that are to be other: `cost(model, x=...)`, arrays or types."
    )


def needs_a_path(fun: str, place: str, path: str, seen: str) -> CostError:
    """A guarded function, where no value tells which path is right."""
    return CostError(
        f"`cost({fun})` got a guarded function, which has a program for each path, and `{path}` is {seen} without "
        f"values; Python asks for one: {place}. {_NOTHING} Pass an array: the path that it takes is counted."
    )
