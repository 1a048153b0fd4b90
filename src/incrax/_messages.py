"""Errors of incrax, each message built by one function: what was seen, the usual cause, the
consequence, what to do.
"""

from __future__ import annotations

import contextlib
import difflib
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

from incrax.errors import (
    AmbiguousInputError,
    DeletedInputError,
    NotCalledError,
    PythonBranchError,
    StaleResultError,
    StepTypeError,
    UnknownInputError,
    UnsupportedLeafError,
)

NUM_SHOWN = 8
"""Entries of a list that a message names."""


def listed(names: Iterable[str], nothing: str = "none") -> str:
    """The first names of a list, each as code; `nothing` where there are none."""
    shown = [f"`{name}`" for name in names]
    more = [f"and {len(shown) - NUM_SHOWN} more"] * (len(shown) > NUM_SHOWN)
    return ", ".join([*shown[:NUM_SHOWN], *more]) or nothing


def first_few(texts: Sequence[str], at_most: int = 5) -> str:
    """The first of some texts, and how many more there are."""
    rest = [f"{len(texts) - at_most} more"] if len(texts) > at_most else []
    return ", ".join([*texts[:at_most], *rest])


def did_you_mean(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """The known name that has this word, or the name, or word in one, that is most like it."""
    words = [*known, *re.findall(r"\w+", " ".join(known))]
    having = [path for path in known if name in re.findall(r"\w+", path)]
    found = having or difflib.get_close_matches(name, words, 1)
    return f" Did you mean `{found[0]}`?" if found else otherwise


def stale_result(name: str, output: str, error: float, changed: Sequence[str]) -> StaleResultError:
    """A result that differs from a fresh one."""
    return StaleResultError(
        f"`{name}` returned an output{output} that differs from a fresh evaluation by {error:.2g} "
        f"of its largest element. Changed in this call: {listed(changed, 'not known')}. Usual causes: a claim "
        "of yours that leaves an input or a row out (`deps=` of `cached` and `keep`, `at(x)[i].became`), memory of "
        "an input that was changed behind JAX's back (`jax.device_put` and dlpack share it with "
        "NumPy), a `pure_callback` that is not pure, or terms that cancel (then give `verify` an "
        "`atol`). All saved values were dropped; the next call is evaluated from scratch."
    )


def not_deterministic(name: str, output: str, error: float) -> StaleResultError:
    """Two fresh evaluations differ."""
    return StaleResultError(
        f"Two fresh evaluations of `{name}` at the same inputs differ in an output{output} by "
        f"{error:.2g} of its largest element: the function is not deterministic. This is usually a "
        "callback that reads a clock, a file or a random state. Saved values of it mean nothing. "
        "Make it a function of its arguments, for example of a key."
    )


def other_structure(seen: Any, expected: Any) -> StepTypeError:
    """Arguments of another structure."""
    return StepTypeError(
        f"`step` got arguments of the structure {seen}; the pure form was made for {expected}. A "
        "compiled loop cannot "
        "change types. Pass arguments like those given to `pure`, or make another form for these."
    )


def other_statics(paths: Sequence[str]) -> StepTypeError:
    """Other static values."""
    return StepTypeError(
        f"`step` got other static values in {', '.join(f'`{path}`' for path in paths)} than the "
        "pure form was made "
        "with. They are part of the compiled function. Make another form for these."
    )


def other_type(path: str, seen: str, expected: str) -> StepTypeError:
    """An argument of another shape or dtype."""
    return StepTypeError(
        f"`step` got `{path}` as {seen}; the pure form was made for {expected}. A compiled loop "
        "cannot change types. Convert it, or make another form for this type."
    )


def wrong_site(method: str, path: str, seen: str, expected: str) -> StepTypeError:
    """What a method of sites was given for an input is no value, or no rows, of it."""
    return StepTypeError(
        f"`{method}` got `{path}` as {seen}; expected {expected}. This is usually a value that was "
        "computed in another dtype, or without its first axis. A compiled loop cannot change "
        "types, and nothing was evaluated. Convert it to the input's own type: `look` takes the "
        "whole value, `(number, row)` for one row or `(numbers, rows)` for several, all else the "
        "whole value."
    )


def other_state(method: str, seen: str) -> StepTypeError:
    """A state, or a change of one, that is not of this function, these data and these types."""
    return StepTypeError(
        f"`{method}` got a `{seen}` that is no state of this function, or no change of one: it was "
        "made by another function, with other data that stay, or has other types. This is usually "
        "the state of another function, or a carry that holds more than the state. Values saved "
        "for the one are wrong for the other. Nothing was evaluated. Pass what `pure` or `sites` "
        "of this function returned, or a step of theirs."
    )


def no_parts(paths: Sequence[str]) -> str:
    """What rows add to a function is not known."""
    return (
        f"`parts` cannot say what each row of {listed(paths)} adds to the function: its rows meet in "
        "something else than sums of terms that each read few of them, such as a product, a sort or a "
        "maximum. Nothing was evaluated. Ask `look` for what a change of some rows makes."
    )


def no_sites() -> NotCalledError:
    """A function of which nothing can be looked at without being done."""
    return NotCalledError(
        "`sites()`, by which samplers compile sweeps, cannot serve this function: it has side effects "
        "or calls the host, and a look at a proposal would do so. Take these out of the function, "
        "let blocks walk that are named without `[*]`, or carry `pure()` through the loop."
    )


def not_by_rows(path: str, shape: tuple[int, ...]) -> StepTypeError:
    """Rows asked for of an input that has none."""
    return StepTypeError(
        f"`moves` names rows of `{path}`, an input of shape {shape}, which has no rows. "
        f"Write `{path}` for the whole input."
    )


def other_weak_type(paths: Sequence[str]) -> StepTypeError:
    """Arguments whose types are weak where the examples' are not, or the other way round, in other
    arithmetic.
    """
    return StepTypeError(
        f"`step` got {listed(paths)} as a Python number where the pure form was made with an array, or the "
        "other way round. JAX gives numbers and arrays different types here: the function computes "
        "with other dtypes than those that the state has. Make the form with the same kind, such "
        "as `jnp.float32(1.0)` for an array."
    )


def other_frozen(path: str) -> StepTypeError:
    """Another object than the frozen one."""
    return StepTypeError(
        f"`step` got `{path}` as another object than the frozen one that the pure form was made "
        "with. This is usually the array that was frozen, or a copy. Frozen data are no part of "
        "the state, so that a change could not be noticed. Pass the frozen object itself, or take "
        "it as an argument of the function that is compiled, or make the form from an array that "
        "is not frozen."
    )


def unsupported_dtype(path: str, dtype: Any) -> UnsupportedLeafError:
    """An array of a dtype that JAX has no type for."""
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` as an array of dtype {dtype}, which JAX has no type for. "
        "This is usually a ragged list, strings or dates in an array. Nothing was evaluated or "
        "stored. Convert it to a numeric array, or pass it as a static Python value (str, tuple) "
        "instead."
    )


def masked_array(path: str) -> UnsupportedLeafError:
    """A masked array, whose mask JAX would drop."""
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` as a masked array; masked arrays are not supported. JAX "
        "has no masks, so what is masked would count as data. Nothing was evaluated or stored. "
        "Fill it, or pass data and mask as two arrays."
    )


def unhashable_static(path: str, value: Any) -> UnsupportedLeafError:
    """A static leaf that cannot be part of a key."""
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` of type {type(value).__name__}, which is no array and "
        "cannot be hashed, so it can be neither traced nor used as a static value. This is usually "
        "a set, a mutable object or a data frame. Nothing was evaluated or stored. Pass its "
        "arrays, or make the type hashable or a registered pytree."
    )


def mutable_static(path: str, value: Any, part: Any) -> UnsupportedLeafError:
    """A static leaf that can change without being another value."""
    held = "" if part is value else f", which holds a {type(part).__name__}"
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` of type {type(value).__name__}{held}: no array, with "
        "state, and hashed by its identity. Usually a configuration or a method's `self`. If it "
        "changed, it would be the same static value, and the answer that of before. Nothing was "
        "evaluated or stored. Pass what changes as arguments, make it a pytree, a frozen dataclass "
        "or hashed by its content, or promise by `incrax.frozen(object)` that it stays."
    )


def unknown_input(name: str, known: Sequence[str]) -> UnknownInputError:
    """A path that names no input leaf."""
    return UnknownInputError(
        f"`{name}` names no input of this function; its inputs are: {listed(known)}. Use a path as "
        "`explain()` prints it, "
        "a prefix of one (all leaves below it), or `path[i]` for an element of a small array."
        f"{did_you_mean(name, known)}"
    )


def unmoved_input(name: str) -> UnknownInputError:
    """A path of an input that the sites of a function hold fixed."""
    return UnknownInputError(
        f"`{name}` is an input that `moves` did not name, and these stay. Nothing was evaluated. Name "
        "it in `f.sites(..., moves=[...])` as well."
    )


def ambiguous_input(name: str, found: Sequence[str]) -> AmbiguousInputError:
    """A short name that several inputs have."""
    return AmbiguousInputError(
        f"`{name}` may be {listed(found)}. Nothing was "
        "evaluated or stored. Write the whole path of the one you mean."
    )


def not_called(method: str) -> NotCalledError:
    """A report without a call."""
    return NotCalledError(
        f"`{method}` needs a call to report on, and this function has not been called yet. Call it "
        f"once, or give `{method}` example arguments."
    )


def called_plainly(method: str) -> NotCalledError:
    """A report without a call that is tracked."""
    return NotCalledError(
        f"`{method}` needs a call to report on, and this function was called only where it is the "
        "plain function and nothing is saved: inside `jax.jit`, `grad`, `vmap` or `scan`, with a "
        "mutable array (`jax.Ref`), or switched off. Call it once outside, or give "
        f"`{method}` example arguments; in a compiled loop, carry saved values by `f.pure`."
    )


def nothing_saved(method: str) -> NotCalledError:
    """A report on a call that is not tracked."""
    return NotCalledError(
        f"`{method}` has nothing to report on: these arguments contain a mutable array (`jax.Ref`) "
        "or a tracer, or the function closes over a mutable array. Then it is called as it is and "
        "nothing is saved. Give arguments without one, or pass the array's value."
    )


MAX_SHOWN = 200
"""Characters of a value in a message."""


def many_functions(paths: str, max_signatures: int) -> str:
    """A warning: functions among the arguments are compared by identity, and there were many."""
    return (
        f"`incremental(f)` was traced for more than {max_signatures} signatures and forgets the "
        f"oldest. A function is among its arguments ({paths}), compared by identity: a lambda made "
        "anew at each call is another function each time, and each call traces and compiles again. "
        "Pass the same function object."
    )


def wrong_option(option: str, value: Any, expected: str) -> TypeError:
    """An option of a wrong type; of long data the begin is shown."""
    text = repr(value)
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return TypeError(
        f"`{option}` got {shown} of type {type(value).__name__}; it must be {expected}."
    )


def as_int(x: Any) -> int | None:
    """An integer of any type as `int`; None for what is none, as a boolean."""
    try:
        return None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        return None


def checked_count(option: str, value: Any, least: int = 1) -> int:
    """What counts something, as `int`.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below the least.
    """
    expected = f"an integer of {least} or more"
    number = as_int(value)
    if number is None:
        raise wrong_option(option, value, expected)
    if number < least:
        raise ValueError(f"`{option}` got {number}; it must be {expected}.")
    return number


def as_real(option: str, value: Any) -> float:
    """A number, of any type of real number, as `float`; NaN is one.

    Raises:
        TypeError: it is none.
    """
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, str):
            return float(value)
    raise wrong_option(option, value, "a real number")


def check_function(option: str, value: Any) -> None:
    """Raise where an argument that must be a function is none."""
    if not callable(value):
        raise wrong_option(option, value, "a function")


def deleted_input(path: str) -> DeletedInputError:
    """An input that was donated or deleted."""
    return DeletedInputError(
        f"Array has been deleted: `incremental(f)` got `{path}` whose buffer was donated to "
        "another computation or deleted. The saved values are untouched and the next call works. "
        "Pass a copy, or do not donate this array."
    )


def numpy_in_incremental(name: str, place: str) -> PythonBranchError:
    """A function of NumPy in an incremental function."""
    return PythonBranchError(
        f"`incremental({name})` found NumPy, or another library, on a traced value: {place}. It "
        "wants numbers, and JAX traces without any. Nothing was evaluated or stored. Write "
        "`jax.numpy` in place of `numpy` there, or put what is outside of JAX into "
        "`jax.pure_callback`."
    )


def branch_in_incremental(name: str, place: str) -> PythonBranchError:
    """A branch in an incremental function."""
    return PythonBranchError(
        f"`incremental({name})` found Python control flow on a traced value: {place}. Tracing sees "
        "one side only, and would be wrong on the other. Nothing was evaluated or stored. Write "
        "`incremental(guarded(f))`, which records each path and keeps values for each "
        "(`incrax.guarded`; derivatives inside: `incremental(guarded(jax.grad(f)))`), or "
        "`jax.lax.cond` for this branch."
    )


def numbers_of_module(name: str, paths: Sequence[str]) -> str:
    """A note: whole numbers of Python that are attributes."""
    return (
        f"`{name}` was traced with whole numbers of Python inside an object: {first_few(paths)}. They "
        "are traced like arrays, so that Python cannot read them as a shape, a length or a switch. If "
        "that is why, pass the object's arrays and close over the rest: `arrays, rest = "
        "equinox.partition(module, equinox.is_inexact_array)`, and `equinox.combine(arrays, rest)` "
        "inside the function."
    )


def numpyro_in_place_of_function(name: str) -> str:
    """A note: a model of NumPyro where a function of numbers was meant."""
    return (
        f"`{name}` is a model of NumPyro, or calls one, and has values only inside an inference. "
        "`found = samplers.from_numpyro(model, *data)` has a log-density and parameters; "
        "`samplers.gibbs(found.log_density, *found.args, updates=found.updates, ...)` samples them."
    )
