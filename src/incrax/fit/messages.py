"""Errors about fits, in the manner of `_errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._messages import NUM_SHOWN
from incrax.errors import BindError, BoundsError, CovarianceError, ParameterTypeError, WeightsError

_UNTOUCHED = "Nothing was evaluated."
SQUARES = "levenberg_marquardt"


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


def unrecorded_covariance(n: int) -> CovarianceError:
    """A result that was read back without its covariance."""
    return CovarianceError(
        f"The covariance of {n:,} parameters is not in this record: it was too large to be found when the fit was "
        "written. All else is here. Fit again from these values with the parameters of interest in `wrt`."
    )


def complex_parameter(caller: str, path: str, type_name: str) -> ParameterTypeError:
    """A free leaf is complex."""
    what, rest = ("least squares need", " Residuals may be complex.") if caller == SQUARES else ("minimisers need", "")
    return ParameterTypeError(
        f"`{caller}` was asked to fit `{path}` of type {type_name}, and {what} real parameters. "
        f"{_UNTOUCHED} Pass real and imaginary part as two parameters, or leave it out of `wrt`.{rest}"
    )


def unknown_bound(caller: str, path: str, free: Sequence[str]) -> BoundsError:
    """A bound of what is not free."""
    shown = ", ".join(f"`{each}`" for each in free[:NUM_SHOWN])
    return BoundsError(
        f"`{caller}(bounds=...)` names `{path}`, and no free parameter has this path. This is usually a "
        f"typing error, or a parameter that `wrt` leaves out. {_UNTOUCHED} Free are {shown}."
    )


def wrong_bounds(caller: str, seen: str, reason: str) -> BoundsError:
    """Bounds that cannot be understood."""
    return BoundsError(
        f"`{caller}(bounds=...)` got {seen}: {reason}. {_UNTOUCHED} Pass a mapping of paths to pairs, with "
        "None for no bound: `bounds={\"params['sigma']\": (0, None)}`."
    )


def outside_bounds(caller: str, name: str, value: Any, low: Any, high: Any) -> BoundsError:
    """A start that the bounds exclude."""
    return BoundsError(
        f"`{caller}` starts with `{name}` = {value:.6g}, outside of its bounds ({low:.6g}, {high:.6g}). "
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


def beside_a_model(caller: str, given: Sequence[str]) -> BindError:
    """A bound model, and something beside it that it says itself."""
    return BindError(
        f"`{caller}` got a bound model and {', '.join(given)} beside it. A model has values, roles and bounds of its "
        "own. "
        f"{_UNTOUCHED} Use `model.set`, `model.set_role` and `bind(bounds=...)`, or pass the function itself."
    )


# --- sums of models ---------------------------------------------------------------------------------------------------

_NO_MODEL = "No model was made."


def wrong_constraint(names: Sequence[str], reason: str) -> BindError:
    """A constraint that cannot be evaluated."""
    shown = ", ".join(f"`{name}`" for name in names)
    return BindError(
        f"The constraint of {shown} {reason}. {_NO_MODEL} Pass `gaussian_constraint(name, value, sigma)`, or "
        "`covariance=` of "
        "shape (k, k) for k elements in all."
    )


def state_in_sum(name: str) -> BindError:
    """A model with state cannot be part of a sum."""
    return BindError(
        f'The model `{name}` has inputs with the role "state", and a sum of models has no updates. {_NO_MODEL} Give '
        "them the "
        'role "fixed" first: `model.set_role("moments", "fixed")`.'
    )


def taken_model_name(name: str) -> BindError:
    """A model is called as a shared input."""
    return BindError(f"`simultaneous` got `{name}` both as a model and as shared. {_NO_MODEL} Rename the model.")


def not_shared(name: str, models: Sequence[str]) -> BindError:
    """A shared name that no model has."""
    shown = ", ".join(f"`{each}`" for each in models[:NUM_SHOWN])
    return BindError(
        f"`simultaneous(shared=...)` names `{name}`, and none of the models {shown} has one input of this name. "
        f"{_NO_MODEL} "
        "Use an input's name, a path as `print(model)` shows it, or its end where that is unique."
    )


def other_shared_type(name: str, model: str, seen: str, first: str, expected: str) -> BindError:
    """A shared input is of different types."""
    return BindError(
        f"`{name}` is to be shared, and is of type {seen} in `{model}` but {expected} in `{first}`. {_NO_MODEL} Give "
        "it the "
        "same structure, shape and dtype in all models."
    )


def no_data_sets() -> BindError:
    """A study without data."""
    return BindError(
        "`toys(model, data_sets)` got no data set. This is usually a generator that was used up before. Nothing was "
        "fitted. "
        'Pass a list, or a new generator: `({"x": sample(k)} for k in range(100))`.'
    )


def no_models() -> BindError:
    """A sum of nothing."""
    return BindError(f"`simultaneous(models)` got no model. {_NO_MODEL} Pass a mapping of names to bound models.")


def wrong_part_name(name: Any) -> BindError:
    """A part of a sum whose name cannot be that of an input."""
    return BindError(
        f"`simultaneous` got {name!r} as the name of a part. {_NO_MODEL} Names of parts are names of inputs: letters, "
        "digits "
        "and underscores."
    )


def shared_twice(first: str, second: str, model: str) -> BindError:
    """Two shared names stand for the same leaf of a model."""
    return BindError(
        f"`simultaneous(shared=...)` names `{first}` and `{second}`, and in `{model}` one is part of the other. "
        f"{_NO_MODEL} "
        "Share one of them."
    )
