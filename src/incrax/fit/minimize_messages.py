"""Errors about minimisers and scans, in the manner of `_errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._messages import NUM_SHOWN
from incrax.errors import MethodError, MinimumError

_UNTOUCHED = "Nothing was evaluated."


def unknown_method(method: Any, known: Sequence[str]) -> MethodError:
    """A minimiser that does not exist."""
    return MethodError(
        f"`minimize(method=...)` got {method!r}. {_UNTOUCHED} Use one of {', '.join(map(repr, known))}, or an "
        "optimiser of optax or a minimiser of optimistix as an object: `method=optax.adam(0.01)`."
    )


def no_bounds(method: str, known: Sequence[str]) -> MethodError:
    """Bounds for a method that takes none."""
    return MethodError(
        f"`minimize(bounds=...)` was given bounds, and the method {method!r} has none: it would walk out of them. "
        f"{_UNTOUCHED} Use one of {', '.join(map(repr, known))}, or optax, or write the parameter as a function of an "
        "unbounded one."
    )


def unknown_options(method: str, options: Sequence[str], known: Sequence[str]) -> MethodError:
    """Options that a method does not have."""
    shown = ", ".join(f"`{name}`" for name in options)
    listed = ", ".join(f"`{name}`" for name in known)
    rest = (
        f"Those of {method!r} are {listed}." if known else f"`scipy.optimize.show_options` lists those of {method!r}."
    )
    return MethodError(f"`minimize(method={method!r})` got the options {shown}. {_UNTOUCHED} {rest}")


def no_callback(method: str) -> MethodError:
    """A callback for a search that never comes back to the host."""
    return MethodError(
        f"`minimize(callback=...)` was given a callback, and {method} searches within one compiled program that never "
        f"calls the host. {_UNTOUCHED} Leave the callback out, or use a method of SciPy, Minuit or optax."
    )


def not_scalar(seen: str) -> MethodError:
    """A function whose result cannot be minimised."""
    return MethodError(
        f"`minimize` needs a function that returns one real number, and got {seen} from it. {_UNTOUCHED} Sum it up, or "
        "pass residuals to `levenberg_marquardt`."
    )


def unknown_element(name: Any, names: Sequence[str]) -> MinimumError:
    """A scan over what is not free."""
    shown = ", ".join(f"`{each}`" for each in names[:NUM_SHOWN])
    return MinimumError(
        f"{name!r} names no free element of this fit. This is usually a typing error, an array without `[i]`, or a "
        f"parameter that `wrt` leaves out. {_UNTOUCHED} Free are {shown}."
    )


def same_element(name: str) -> MinimumError:
    """A scan of an element against itself."""
    return MinimumError(f"A scan of two elements got `{name}` twice. {_UNTOUCHED} Name two different ones.")


def wrong_grid(name: str, seen: str, reason: str) -> MinimumError:
    """A grid that cannot be scanned."""
    return MinimumError(
        f"A scan of `{name}` got the grid {seen}: {reason}. {_UNTOUCHED} Pass a vector of values within the bounds."
    )


def without_function(what: str, kind: str = "FitResult") -> MinimumError:
    """A result that was read from JSON."""
    use = "Read it by `from_json(text, fun, *args, wrt=...)` with what was minimised."
    if kind != "FitResult":
        use = "Its `names` and `values` are there; put them into your parameters."
    return MinimumError(
        f"`{what}` needs the function, and this result was read from JSON, which holds none. {_UNTOUCHED} {use}"
    )


def other_function(names: Sequence[str], expected: Sequence[str]) -> MinimumError:
    """JSON of another function's fit."""
    return MinimumError(
        f"`from_json` was given a function with the free elements {', '.join(names[:NUM_SHOWN])}, and the fit was of "
        f"{', '.join(expected[:NUM_SHOWN])}. {_UNTOUCHED} Pass the function, arguments and `wrt` of the fit."
    )


def other_record(seen: str, expected: str) -> MinimumError:
    """JSON of something else."""
    return MinimumError(f"`from_json` got {seen}; it reads what `{expected}.to_json` wrote. {_UNTOUCHED}")


def not_a_minimum(what: str, status: str) -> MinimumError:
    """A scan around a point that is no minimum."""
    return MinimumError(
        f"`{what}` goes out from a minimum, and this search ended as: {status}. Its Hessian is needed, positive "
        "definite, for a first guess. This is usually a search that was stopped, or a parameter that the data do not "
        "determine. Minimise again from here, or fix that parameter by `wrt`."
    )


def failed_minuit(what: str, reason: str) -> MinimumError:
    """Minuit gave up."""
    return MinimumError(
        f"`{what}` was given up by Minuit: {reason}. This is usually a minimum that is not sharp enough, or bounds in "
        "the way. Minimise again with a smaller `tolerance`, or use `profile`."
    )
