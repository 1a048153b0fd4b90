"""Errors of tapes, each message built by one function: what was seen, the usual cause, the
consequence, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from incrax.errors import (
    CapturedStateError,
    FloatGuardError,
    GuardOnEffectError,
    NotReproducibleError,
    PythonBranchError,
    TapeError,
    TooManyPathsError,
)

_UNTOUCHED = "Nothing was recorded; paths recorded before are as they were."


def float_guard(name: str, places: Sequence[str]) -> FloatGuardError:
    """A float became a Python value."""
    return FloatGuardError(
        f"`guarded({name})` saw floats turned into Python or NumPy values, or text: "
        f"{'; '.join(places)}. A compiled path holds for one value of what Python read, so that "
        "each new float would be recorded and compiled anew, and no derivative would pass through "
        f"it. {_UNTOUCHED} Compare the array itself (`if x > 0:` records only the side), compute "
        "with `jax.numpy`, print with `jax.debug.print`; or pass `floats=True` if it takes few "
        "values."
    )


def guard_on_effect(primitive: str, line: str) -> GuardOnEffectError:
    """A guard depends on an effect."""
    return GuardOnEffectError(
        f"Python asked for a value that `{primitive}` made ({line}). That is an effect: to find "
        "out which path is right, it would have to run before it is known that it should. "
        f"{_UNTOUCHED} Branch on values that need no effect, use `jax.pure_callback` if the "
        "function on the host is pure, or `jax.lax.cond` for this branch."
    )


def not_comparable(name: str, captured: str, reason: str) -> CapturedStateError:
    """A captured object that cannot be guarded."""
    return CapturedStateError(
        f"`guarded({name})` captures `{captured}`, {reason}. If it changed, a path recorded before "
        f"would go on answering as if it had not. {_UNTOUCHED} Pass what the function reads of it "
        "as an argument, or list it in `constant=` if it never changes."
    )


def kept_tracer(name: str, captured: str) -> CapturedStateError:
    """A traced value that outlived its call."""
    return CapturedStateError(
        f"`guarded({name})` captures `{captured}`, which holds a traced value that an earlier call "
        "put there. Functions are recorded with traced values in place of arrays; outside of that "
        f"call they have no value. {_UNTOUCHED} Remove it there, and return what is to be kept as "
        "a result instead."
    )


def no_array(name: str, result: object) -> TapeError:
    """A result that a program cannot give."""
    return TapeError(
        f"`guarded({name})` returned {result!r:.60}, of type {type(result).__name__}. What a "
        f"compiled path returns are arrays and numbers, in any pytree. {_UNTOUCHED} Return a "
        "number that stands for it, or compute it outside."
    )


def escaped_tracer() -> str:
    """A traced value that is read outside of its call."""
    return (
        "A traced value of a guarded function was read after the call that made it. Functions are "
        "recorded with traced values in place of arrays, and later calls do not run them, so that "
        "it would be out of date. Return it as a result instead of storing it."
    )


def clock_or_random(name: str, source: str, where: str) -> NotReproducibleError:
    """A clock, a file, or randomness outside JAX."""
    return NotReproducibleError(
        f"`guarded({name})` saw {source} ({where}). A compiled path would repeat what it gave "
        f"while recording, at every call. {_UNTOUCHED} Pass what it read as an argument, or draw "
        "with `jax.random` from a key that is one."
    )


def other_way(name: str, place: str) -> NotReproducibleError:
    """The same values led elsewhere."""
    return NotReproducibleError(
        f"`guarded({name})` went another way than before although all it had read was the same: at "
        f"{place}. It depends on something that is no argument and was not seen to be captured: a "
        f"file, an iterator, an object inside an installed package. {_UNTOUCHED} Pass it as an "
        "argument, or as `static=`."
    )


def unknown_branch(name: str, place: str) -> PythonBranchError:
    """A branch under an abstract transformation."""
    return PythonBranchError(
        f"`guarded({name})` was called inside `jit`, `vmap`, `scan` or another transformation that "
        f"knows no values, and Python asks for one: {place}. Which path is right cannot be known "
        "there; under `vmap`, rows may need different ones. Use `jax.lax.cond` (or `jnp.where`) "
        "for this branch, call it outside the transformation, or put `guarded` outside: "
        "`guarded(jax.grad(f))`, and a loop over rows instead of `vmap`."
    )


def branch_inside(name: str, place: str) -> PythonBranchError:
    """A branch in a part that JAX traces by itself."""
    return PythonBranchError(
        f"`guarded({name})` found Python control flow in a part that JAX traces without values (a "
        "function under `jax.jit` or `vmap`, a body of `scan`, a function with a derivative rule "
        f"of its own): {place}. {_UNTOUCHED} Use `jax.lax.cond` or `jnp.where` there, or move the "
        "branch out of that part."
    )


def constant_of_derivative(name: str, places: Sequence[str]) -> FloatGuardError:
    """A derivative through a float that became a constant."""
    return FloatGuardError(
        f"`guarded({name})` is differentiated, and its path turned floats into Python or NumPy "
        f"values: {'; '.join(places)}. They are constants of the path, so that their part of the "
        "derivative would be missing. Compute with `jax.numpy` there, or mark what is meant to be "
        "constant by `jax.lax.stop_gradient`."
    )


def too_many_paths(name: str, max_paths: int, lines: Sequence[str]) -> TooManyPathsError:
    """More paths than allowed."""
    return TooManyPathsError(
        _explosion(name, max_paths, lines) + ' Raise `max_paths`, or pass `fallback="eager"`.'
    )


def eager_from_now(name: str, max_paths: int, lines: Sequence[str]) -> str:
    """A warning: a function is evaluated eagerly on paths that are not recorded."""
    rest = (
        "Recorded paths stay compiled; on any other the function is called as it is, operation by "
        "operation."
    )
    return f"{_explosion(name, max_paths, lines)} {rest}"


def _explosion(name: str, max_paths: int, lines: Sequence[str]) -> str:
    return (
        f"`guarded({name})` has met more than {max_paths} paths. Outcomes seen, by guard: "
        f"{'; '.join(lines)}. The usual cause is a branch inside a loop over elements, or a Python "
        "integer that takes many values. Use `jnp.where` or `jax.lax.cond` for the first of these "
        "guards."
    )
