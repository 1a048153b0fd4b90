"""Errors about fits, in the manner of `_errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._errors import NUM_SHOWN, IncraxError

_UNTOUCHED = "Nothing was evaluated."


class BoundsError(IncraxError, ValueError):
    """Bounds do not fit the parameters."""


class ParameterTypeError(IncraxError, TypeError):
    """A parameter has a type that cannot be fitted."""


class WeightsError(IncraxError, ValueError):
    """Weights do not fit the residuals."""


class CovarianceError(IncraxError, ValueError):
    """A covariance was asked for that is too large."""


def unknown_option(option: str, name: Any, known: Sequence[str]) -> ValueError:
    """A loss or a solver that does not exist."""
    shown = ", ".join(f'"{each}"' for each in known)
    return ValueError(f"`levenberg_marquardt({option}=...)` got {name!r}. {_UNTOUCHED} Use one of {shown}.")


def no_covariance(solver: str, n: int, most: int) -> CovarianceError:
    """A dense matrix that is too large."""
    return CovarianceError(
        f'A covariance of {n:,} parameters was asked for after a fit with `solver="{solver}"`. It is a dense matrix '
        f"of {n:,} x {n:,}, found on demand for up to {most:,} parameters. The fit itself is whole. Name the "
        'parameters of interest by `wrt` and fit these again from here, or use `solver="dense"`.'
    )


def complex_parameter(name: str, path: str, type_name: str) -> ParameterTypeError:
    """A free leaf is complex."""
    return ParameterTypeError(
        f"`{name}` was asked to fit `{path}` of type {type_name}, and least squares need real parameters. "
        f"{_UNTOUCHED} Pass real and imaginary part as two parameters, or leave it out of `wrt`. Residuals may be "
        "complex."
    )


def unknown_bound(path: str, free: Sequence[str]) -> BoundsError:
    """A bound of what is not free."""
    shown = ", ".join(f"`{each}`" for each in free[:NUM_SHOWN])
    return BoundsError(
        f"`levenberg_marquardt(bounds=...)` names `{path}`, and no free parameter has this path. This is usually a "
        f"typing error, or a parameter that `wrt` leaves out. {_UNTOUCHED} Free are {shown}."
    )


def wrong_bounds(seen: str, reason: str) -> BoundsError:
    """Bounds that cannot be understood."""
    return BoundsError(
        f"`levenberg_marquardt(bounds=...)` got {seen}: {reason}. {_UNTOUCHED} Pass a mapping of paths to pairs, with "
        "None for no bound: `bounds={\"params['sigma']\": (0, None)}`."
    )


def outside_bounds(name: str, value: Any, low: Any, high: Any) -> BoundsError:
    """A start that the bounds exclude."""
    return BoundsError(
        f"`levenberg_marquardt` starts with `{name}` = {value:.6g}, outside of its bounds ({low:.6g}, {high:.6g}). "
        f"{_UNTOUCHED} Start inside, or widen the bounds."
    )


def wrong_weights(seen: str, expected: str) -> WeightsError:
    """Weights that do not fit the residuals."""
    return WeightsError(
        f"`levenberg_marquardt(weights=...)` got {seen}; expected {expected}. {_UNTOUCHED} A weight multiplies a "
        "squared residual: pass 1 / sigma**2 in the structure of the residuals, or one array that broadcasts to each."
    )


def no_residuals(seen: str) -> ParameterTypeError:
    """A function that returns nothing to be squared."""
    return ParameterTypeError(
        f"`levenberg_marquardt` needs a function that returns residuals, and got {seen} from it. {_UNTOUCHED} Return "
        "an array, or a pytree of arrays, whose squares are to be summed; for a scalar cost "
        "pass `prepare(cost, ...).flat` to a minimiser."
    )


def not_positive(name: str, option: str, value: Any) -> ValueError:
    """An option that must be above zero."""
    return ValueError(f"`{name}({option}=...)` got {value!r}. {_UNTOUCHED} Pass a number above zero.")
