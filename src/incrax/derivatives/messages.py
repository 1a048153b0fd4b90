"""Errors about what to differentiate, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._messages import NUM_SHOWN
from incrax.errors import FreedResidualError, PreparedTypeError, SelectionError, TangentError

_WRT = (
    "`wrt` takes the path of an argument or of a part of it as `explain()` prints it (or a tuple "
    "of paths), the number of an argument, a pytree of booleans for the first argument, or a "
    "function that picks parts: `lambda p: (p.mu, p.layers[0].w)`."
)
_UNTOUCHED = "Nothing was evaluated or stored."


def wrong_wrt(name: str, wrt: Any, reason: str) -> SelectionError:
    """A selection that cannot be understood."""
    return SelectionError(f"`{name}(wrt=...)` got {_shown(wrt)}: {reason}. {_UNTOUCHED} {_WRT}")


def not_differentiable(name: str, path: str, type_name: str) -> SelectionError:
    """A leaf that has no derivative was named."""
    return SelectionError(
        f"`{name}(wrt=...)` selects `{path}` of type {type_name}, and only floating-point and "
        "complex arrays have derivatives. This is usually an index, a count or a flag. "
        f"{_UNTOUCHED} Convert it to a floating-point type, or leave it out."
    )


def integer_parameter(name: str, path: str, type_name: str) -> SelectionError:
    """An array of integers was offered as a parameter."""
    return SelectionError(
        f"`{name}` was asked to move `{path}` of type {type_name}, and integers have no "
        "derivative: it would stay where it is. This is usually a number without a decimal point. "
        f"{_UNTOUCHED} Write 1.0 instead of 1, `np.array([1.0, 2.0])`; if it is no parameter, pass "
        "it as another argument or leave it out of `wrt`."
    )


def cut_input(name: str, path: str) -> SelectionError:
    """A leaf that is cut was named."""
    return SelectionError(
        f"`{name}(wrt=...)` selects `{path}`, which is marked as constant by `cut`. {_UNTOUCHED} "
        "Take it out of `wrt`, or take the mark off with `uncut`."
    )


def nothing_selected(name: str, paths: Sequence[str]) -> SelectionError:
    """There is nothing to differentiate."""
    seen = ", ".join(f"`{path}`" for path in paths[:NUM_SHOWN]) or "no leaves"
    return SelectionError(
        f"`{name}` has nothing to differentiate: of {seen}, none is a floating-point or complex "
        "array without a mark. This is usually a function whose first argument holds integers "
        f"only, or where all is marked by `cut`. {_UNTOUCHED} Name others by `wrt`. {_WRT}"
    )


def wrong_tangent(name: str, what: str, seen: str, expected: str) -> TangentError:
    """A tangent of another structure or type."""
    return TangentError(
        f"`{name}` got a {what} that is {seen}, and it belongs to {expected}. {_UNTOUCHED} Pass a "
        "pytree like what it belongs to, with arrays of the same shapes and dtypes; None for "
        "leaves that are not selected."
    )


def taken_name(name: str, fun_name: str) -> TangentError:
    """A function has a parameter of the name that a derivative takes for itself."""
    return TangentError(
        f"`{name}` takes `tangent=` for itself, and `{fun_name}` has a parameter of that name, "
        f"which the call leaves out. {_UNTOUCHED} Pass that one by position; if it is "
        "keyword-only, give it another name: `lambda x, t: f(x, tangent=t)`."
    )


def not_in_pullback(path: str, known: Sequence[str]) -> SelectionError:
    """A cotangent of a leaf that the function was not differentiated by."""
    return SelectionError(
        f"The pullback was asked for the cotangent of `{path}`, and it has those of "
        f"{_listed(known)}. This is usually "
        "an argument that the `wrt` of `vjp` leaves out. Nothing was evaluated. Name it there."
    )


def freed_residuals(paths: Sequence[str], kept: Sequence[str]) -> FreedResidualError:
    """A cotangent after `keep` for others."""
    return FreedResidualError(
        f"The pullback was asked for the cotangent of {_listed(paths)} after `keep(wrt=...)`, "
        f"which kept what {_listed(kept)} needs and freed the rest. Nothing was evaluated. Keep "
        "these as well, or call `vjp` again."
    )


def other_num_arguments(method: str, seen: int, expected: int) -> PreparedTypeError:
    """More or fewer arguments."""
    return PreparedTypeError(
        f"`prepare(f).{method}` got {seen} arguments; it was prepared for {expected}. {_UNTOUCHED} "
        "Pass arguments like those given to `prepare`, all by position."
    )


def other_argument_type(method: str, path: str, seen: str, expected: str) -> PreparedTypeError:
    """An argument of another type or static value."""
    return PreparedTypeError(
        f"`prepare(f).{method}` got `{path}` as {seen}; it was prepared for {expected}. "
        f"{_UNTOUCHED} Convert it, or prepare the function for this type."
    )


def not_flat(path: str, type_name: str) -> SelectionError:
    """A leaf that has no place in a vector of real numbers."""
    return SelectionError(
        f"`prepare(f).flat` is a vector of real numbers, and `{path}` is {type_name}. {_UNTOUCHED} "
        "Pass its real and imaginary parts as two arguments, or leave it out of `wrt`."
    )


def wrong_length(seen: str, expected: int) -> TangentError:
    """A vector of another length."""
    return TangentError(
        f"`prepare(f).flat` got a vector of type {seen}, and the selection has {expected} "
        f"elements. {_UNTOUCHED} Pass a vector like `flat.x0`."
    )


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:NUM_SHOWN])
    return shown + (f" and {len(paths) - NUM_SHOWN} more" if len(paths) > NUM_SHOWN else "")


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else f"{text[:77]}..."
