"""Errors about fits, minimisers and scans, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._messages import NUM_SHOWN
from incrax.errors import (
    BindError,
    BoundsError,
    CovarianceError,
    MethodError,
    MinimumError,
    ParameterTypeError,
    WeightsError,
)

_UNTOUCHED = "Nothing was evaluated."
SQUARES = "levenberg_marquardt"


def unknown_option(option: str, name: Any, known: Sequence[str]) -> ValueError:
    """A loss or a solver that does not exist."""
    shown = ", ".join(f'"{each}"' for each in known)
    return ValueError(
        f"`levenberg_marquardt({option}=...)` got {name!r}. {_UNTOUCHED} Use one of {shown}."
    )


def no_covariance(solver: str, n: int, most: int) -> CovarianceError:
    """A dense matrix that is too large."""
    return CovarianceError(
        f'A covariance of {n:,} parameters was asked for after a fit with `solver="{solver}"`. It '
        "is a dense matrix "
        f"of {n:,} x {n:,}, found on demand for up to {most:,} parameters. The fit itself is "
        "whole. Name the "
        'parameters of interest by `wrt` and fit these again from here, or use `solver="dense"`.'
    )


def unrecorded_covariance(n: int) -> CovarianceError:
    """A result that was read back without its covariance."""
    return CovarianceError(
        f"The covariance of {n:,} parameters is not in this record: it was too large to be found "
        "when the fit was "
        "written. All else is here. Fit again from these values with the parameters of interest in "
        "`wrt`."
    )


def complex_parameter(caller: str, path: str, type_name: str) -> ParameterTypeError:
    """A free leaf is complex."""
    what, rest = (
        ("least squares need", " Residuals may be complex.")
        if caller == SQUARES
        else ("minimisers need", "")
    )
    return ParameterTypeError(
        f"`{caller}` was asked to fit `{path}` of type {type_name}, and {what} real parameters. "
        f"{_UNTOUCHED} Pass real and imaginary part as two parameters, or leave it out of "
        f"`wrt`.{rest}"
    )


def no_parameters(caller: str, paths: Sequence[str]) -> ParameterTypeError:
    """Nothing that is free has an element."""
    shown = ", ".join(f"`{each}`" for each in paths[:NUM_SHOWN])
    return ParameterTypeError(
        f"`{caller}` has no parameter to fit: {shown} without any element. This is usually an "
        "array that was cut or "
        f"filtered to nothing. {_UNTOUCHED} Pass at least one number, or name what is free by "
        "`wrt`."
    )


def unknown_bound(caller: str, path: str, free: Sequence[str]) -> BoundsError:
    """A bound of what is not free."""
    shown = ", ".join(f"`{each}`" for each in free[:NUM_SHOWN])
    return BoundsError(
        f"`{caller}(bounds=...)` names `{path}`, and no free parameter has this path. This is "
        "usually a "
        f"typing error, or a parameter that `wrt` leaves out. {_UNTOUCHED} Free are {shown}."
    )


def wrong_bounds(caller: str, seen: str, reason: str) -> BoundsError:
    """Bounds that cannot be understood."""
    return BoundsError(
        f"`{caller}(bounds=...)` got {seen}: {reason}. {_UNTOUCHED} Pass a mapping of paths to "
        "pairs, with "
        "None for no bound: `bounds={\"params['sigma']\": (0, None)}`."
    )


def outside_bounds(caller: str, name: str, value: Any, low: Any, high: Any) -> BoundsError:
    """A start that the bounds exclude."""
    return BoundsError(
        f"`{caller}` starts with `{name}` = {value:.6g}, outside of its bounds ({low:.6g}, "
        f"{high:.6g}). "
        f"{_UNTOUCHED} Start inside, or widen the bounds."
    )


def wrong_weights(seen: str, expected: str) -> WeightsError:
    """Weights that do not fit the residuals."""
    return WeightsError(
        f"`levenberg_marquardt(weights=...)` got {seen}; expected {expected}. {_UNTOUCHED} A "
        "weight multiplies a "
        "squared residual: pass 1 / sigma**2 in the structure of the residuals, or one array that "
        "broadcasts to each."
    )


def no_residuals(seen: str) -> ParameterTypeError:
    """A function that returns nothing to be squared."""
    return ParameterTypeError(
        f"`levenberg_marquardt` needs a function that returns residuals, and got {seen} from it. "
        f"{_UNTOUCHED} Return "
        "an array, or a pytree of arrays, whose squares are to be summed; for a scalar cost "
        "pass `prepare(cost, ...).flat` to a minimiser."
    )


def not_positive(name: str, option: str, value: Any) -> ValueError:
    """An option that must be above zero."""
    return ValueError(
        f"`{name}({option}=...)` got {value!r}. {_UNTOUCHED} Pass a number above zero."
    )


def beside_a_model(caller: str, given: Sequence[str]) -> BindError:
    """A bound model, and something beside it that it says itself."""
    return BindError(
        f"`{caller}` got a bound model and {', '.join(given)} beside it. A model has values, roles "
        "and bounds of its "
        "own. "
        f"{_UNTOUCHED} Use `model.set`, `model.set_role` and `bind(bounds=...)`, or pass the "
        "function itself."
    )


# --- sums of models -------------------------------------------------------------------------------

_NO_MODEL = "No model was made."


def wrong_constraint(names: Sequence[str], reason: str) -> BindError:
    """A constraint that cannot be evaluated."""
    shown = ", ".join(f"`{name}`" for name in names)
    return BindError(
        f"The constraint of {shown} {reason}. {_NO_MODEL} Pass `gaussian_constraint(name, value, "
        "sigma)`, or "
        "`covariance=` of "
        "shape (k, k) for k elements in all."
    )


def state_in_sum(name: str) -> BindError:
    """A model with state cannot be part of a sum."""
    return BindError(
        f'The model `{name}` has inputs with the role "state", and a sum of models has no updates. '
        f"{_NO_MODEL} Give "
        "them the "
        'role "fixed" first: `model.set_role("moments", "fixed")`.'
    )


def taken_model_name(name: str) -> BindError:
    """A model is called as a shared input."""
    return BindError(
        f"`simultaneous` got `{name}` both as a model and as shared. {_NO_MODEL} Rename the model."
    )


def not_shared(name: str, models: Sequence[str]) -> BindError:
    """A shared name that no model has."""
    shown = ", ".join(f"`{each}`" for each in models[:NUM_SHOWN])
    return BindError(
        f"`simultaneous(shared=...)` names `{name}`, and none of the models {shown} has one input "
        "of this name. "
        f"{_NO_MODEL} "
        "Use an input's name, a path as `print(model)` shows it, or its end where that is unique."
    )


def other_shared_type(name: str, model: str, seen: str, first: str, expected: str) -> BindError:
    """A shared input is of different types."""
    return BindError(
        f"`{name}` is to be shared, and is of type {seen} in `{model}` but {expected} in "
        f"`{first}`. {_NO_MODEL} Give "
        "it the "
        "same structure, shape and dtype in all models."
    )


def no_data_sets() -> BindError:
    """A study without data."""
    return BindError(
        "`toys(model, data_sets)` got no data set. This is usually a generator that was used up "
        "before. Nothing was "
        "fitted. "
        'Pass a list, or a new generator: `({"x": sample(k)} for k in range(100))`.'
    )


def no_models() -> BindError:
    """A sum of nothing."""
    return BindError(
        f"`simultaneous(models)` got no model. {_NO_MODEL} Pass a mapping of names to bound models."
    )


def wrong_part_name(name: Any) -> BindError:
    """A part of a sum whose name cannot be that of an input."""
    return BindError(
        f"`simultaneous` got {name!r} as the name of a part. {_NO_MODEL} Names of parts are names "
        "of inputs: letters, "
        "digits "
        "and underscores."
    )


def shared_twice(first: str, second: str, model: str) -> BindError:
    """Two shared names stand for the same leaf of a model."""
    return BindError(
        f"`simultaneous(shared=...)` names `{first}` and `{second}`, and in `{model}` one is part "
        "of the other. "
        f"{_NO_MODEL} "
        "Share one of them."
    )


# --- minimisers and scans -------------------------------------------------------------------------


def unknown_method(method: Any, known: Sequence[str]) -> MethodError:
    """A minimiser that does not exist."""
    return MethodError(
        f"`minimize(method=...)` got {method!r}. {_UNTOUCHED} Use one of "
        f"{', '.join(map(repr, known))}, or an "
        "optimiser of optax or a minimiser of optimistix as an object: `method=optax.adam(0.01)`."
    )


def no_bounds(method: str, known: Sequence[str]) -> MethodError:
    """Bounds for a method that takes none."""
    return MethodError(
        f"`minimize(bounds=...)` was given bounds, and the method {method!r} has none: it would "
        "walk out of them. "
        f"{_UNTOUCHED} Use one of {', '.join(map(repr, known))}, or optax, or write the parameter "
        "as a function of an "
        "unbounded one."
    )


def unknown_options(method: str, options: Sequence[str], known: Sequence[str]) -> MethodError:
    """Options that a method does not have."""
    shown = ", ".join(f"`{name}`" for name in options)
    listed = ", ".join(f"`{name}`" for name in known)
    rest = (
        f"Those of {method!r} are {listed}."
        if known
        else f"`scipy.optimize.show_options` lists those of {method!r}."
    )
    return MethodError(
        f"`minimize(method={method!r})` got the options {shown}. {_UNTOUCHED} {rest}"
    )


def no_callback(method: str) -> MethodError:
    """A callback for a search that never comes back to the host."""
    return MethodError(
        f"`minimize(callback=...)` was given a callback, and {method} searches within one compiled "
        "program that never "
        f"calls the host. {_UNTOUCHED} Leave the callback out, or use a method of SciPy, Minuit or "
        "optax."
    )


def not_scalar(seen: str) -> MethodError:
    """A function whose result cannot be minimised."""
    return MethodError(
        f"`minimize` needs a function that returns one real number, and got {seen} from it. "
        f"{_UNTOUCHED} Sum it up, or "
        "pass residuals to `levenberg_marquardt`."
    )


def unknown_element(name: Any, names: Sequence[str]) -> MinimumError:
    """A scan over what is not free."""
    shown = ", ".join(f"`{each}`" for each in names[:NUM_SHOWN])
    return MinimumError(
        f"{name!r} names no free element of this fit. This is usually a typing error, an array "
        "without `[i]`, or a "
        f"parameter that `wrt` leaves out. {_UNTOUCHED} Free are {shown}."
    )


def several_elements(name: str, found: Sequence[str]) -> MinimumError:
    """A name that several elements have."""
    shown = ", ".join(f"`{each}`" for each in found[:NUM_SHOWN])
    return MinimumError(
        f"`impacts` got {name!r}, which may be {shown}. This is usually an array without `[i]`, or "
        f"a name that two models have. {_UNTOUCHED} Write the whole name of the one you mean."
    )


def nuisance_of_interest(name: str) -> MinimumError:
    """The parameter of interest among those that are held."""
    return MinimumError(
        f"`impacts` got `{name}` both as the parameter of interest and in `nuisances`, and its "
        f"impact on itself is its error. {_UNTOUCHED} Leave it out of `nuisances`."
    )


def wrong_nuisance_constraint(name: str, seen: str, reason: str) -> MinimumError:
    """A constraint that gives no pull."""
    return MinimumError(
        f"`impacts(constraints=...)` got {seen} for `{name}`: {reason}. {_UNTOUCHED} Pass the "
        "centre and the standard error of the constraint, numbers or arrays of the parameter's "
        'shape: `constraints={"theta": (0.0, 1.0)}`.'
    )


def same_element(name: str) -> MinimumError:
    """A scan of an element against itself."""
    return MinimumError(
        f"A scan of two elements got `{name}` twice. {_UNTOUCHED} Name two different ones."
    )


def wrong_grid(name: str, seen: str, reason: str) -> MinimumError:
    """A grid that cannot be scanned."""
    return MinimumError(
        f"A scan of `{name}` got the grid {seen}: {reason}. {_UNTOUCHED} Pass a vector of values "
        "within the bounds."
    )


def without_function(what: str) -> MinimumError:
    """A result that was read from JSON."""
    return MinimumError(
        f"`{what}` needs the function, and this result was read from JSON, which holds none. "
        f"{_UNTOUCHED} "
        "Read it by `from_json(text, fun, *args, wrt=...)` with what was minimised."
    )


def no_scalar_function(what: str) -> MinimumError:
    """A fit of least squares."""
    return MinimumError(
        f"`{what}` needs a scalar function, and this is a fit of residuals by "
        f"`levenberg_marquardt`. {_UNTOUCHED} "
        "Pass half the sum of their squares to `minimize`, from these `params`."
    )


def other_function(names: Sequence[str], expected: Sequence[str]) -> MinimumError:
    """JSON of another function's fit."""
    return MinimumError(
        f"`from_json` was given a function with the free elements {', '.join(names[:NUM_SHOWN])}, "
        "and the fit was of "
        f"{', '.join(expected[:NUM_SHOWN])}. {_UNTOUCHED} Pass the function, arguments and `wrt` "
        "of the fit."
    )


def other_record(seen: str, expected: str) -> MinimumError:
    """JSON of something else."""
    return MinimumError(
        f"`from_json` got {seen}; it reads what `{expected}.to_json` wrote. {_UNTOUCHED}"
    )


def not_a_minimum(what: str, status: str) -> MinimumError:
    """A scan around a point that is no minimum."""
    return MinimumError(
        f"`{what}` goes out from a minimum, and this search ended as: {status}. Its Hessian is "
        "needed, positive "
        "definite, for a first guess. This is usually a search that was stopped, or a parameter "
        "that the data do not "
        "determine. Minimise again from here, or fix that parameter by `wrt`."
    )


def failed_minuit(what: str, reason: str) -> MinimumError:
    """Minuit gave up."""
    return MinimumError(
        f"`{what}` was given up by Minuit: {reason}. This is usually a minimum that is not sharp "
        "enough, or bounds in "
        "the way. Minimise again with a smaller `tolerance`, or use `profile`."
    )
