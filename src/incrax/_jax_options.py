"""Options of `jax.jit`, `jax.grad` and `jax.vmap` that are spelled otherwise here.

In: the keywords of a call of ours. Out: an error that says what to write. It must not know what an
option does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_BY_ITSELF = (
    "Leave it out: text, None, functions and other values that JAX cannot trace are static by "
    "themselves. Bind a number or a flag that Python code reads with `functools.partial`"
)
_DONATION = (
    "Leave it out: saved values may be read again, so that nothing is donated. `jax.jit` and "
    "`incrax.structured` donate the arguments of a training step"
)
_MAPPED = "Map first: `incremental(jax.vmap(f, {name}={value}))`; a row that changes runs alone"
_PLACED = "Leave it out: results are where the arguments are, and sharded as they are"
ADVICE = {
    "argnums": "Write `wrt={value}`; names of inputs do as well, as `wrt=\"params['mu']\"`",
    "static_argnums": _BY_ITSELF,
    "static_argnames": _BY_ITSELF,
    "donate_argnums": _DONATION,
    "donate_argnames": _DONATION,
    "in_axes": _MAPPED,
    "out_axes": _MAPPED,
    "axis_size": _MAPPED,
    "axis_name": _MAPPED,
    "spmd_axis_name": _MAPPED,
    "sum_match": _MAPPED,
    "has_aux": "Differentiate what alone is returned: `lambda *args: f(*args)[0]`",
    "holomorphic": "Differentiate by JAX: `incremental(jax.grad(f, holomorphic={value}))`",
    "allow_int": "Leave it out: integers have no derivative, and None stands in their place",
    "reduce_axes": "Leave it out, as JAX did",
    "in_shardings": _PLACED,
    "out_shardings": _PLACED,
    "device": _PLACED,
    "backend": _PLACED,
    "keep_unused": "Leave it out: arguments that nothing reads cost nothing",
    "inline": "Leave it out: calls inside a program are opened",
    "compiler_options": "Set them for JAX, in the environment variable `XLA_FLAGS`",
}
"""What to write, by JAX's name of an option."""

_DIFFERENTIATE = "Write `incrax.value_and_grad(f, {name}={value})`, or `incrax.grad`"
ADVICE_OF_ONE = {
    ("incremental", "argnums"): "Write `incrax.grad(f, wrt={value})`",
    ("incremental", "has_aux"): _DIFFERENTIATE,
    ("guarded", "argnums"): "Write `guarded(jax.grad(f, argnums={value}))`",
    ("guarded", "has_aux"): "Write `guarded(jax.grad(f, has_aux={value}))`",
    ("guarded", "static_argnums"): "Write `static={value}`",
    ("guarded", "static_argnames"): "Write `static={value}`",
}
SECOND = {
    "grad": "argnums",
    "value_and_grad": "argnums",
    "jacobian": "argnums",
    "hessian": "argnums",
}
"""What JAX takes by position after the function."""


def spelled_here(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which answers an option of JAX that it lacks with what to write instead.

    What it has under JAX's name (`has_aux` of `grad`) means the same.
    """
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def entry(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1 and name in SECOND:
            raise _foreign(name, SECOND[name], args[1])
        if not ADVICE.keys().isdisjoint(kwargs):
            own = inspect.signature(function).parameters
            for option, value in kwargs.items():
                if option in ADVICE and option not in own:
                    raise _foreign(name, option, value)
        return function(*args, **kwargs)

    return entry


def _foreign(name: str, option: str, value: Any) -> TypeError:
    """An option of JAX in a call of ours."""
    advice = ADVICE_OF_ONE.get((name, option), ADVICE[option])
    text = advice.format(name=option, value=repr(value))
    return TypeError(f"`incrax.{name}` has no `{option}`, which is an option of JAX. {text}.")
