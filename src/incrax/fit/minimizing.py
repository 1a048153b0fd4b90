"""Minimisers for users: one call, pytrees in and out, every method over the saved values.

In: a scalar function and its arguments. Out: a `FitResult`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from incrax import Bound
from incrax._extras import is_of
from incrax._messages import checked_count
from incrax._progress import Meter
from incrax.errors import MethodError
from incrax.fit.covariance import SLOPE, steepest
from incrax.fit.methods import (
    METHODS,
    MINUIT_OPTIONS,
    by_minuit,
    by_optax,
    by_scipy,
    scipy_name,
    unknown_options,
)
from incrax.fit.problem import Limits, check_positive, check_search
from incrax.fit.result import (
    IN_FLOAT32,
    NO_DERIVATIVE,
    FitResult,
    Status,
    gain_left,
    in_float32,
    near_enough,
)
from incrax.fit.task import (
    Callback,
    CountedTask,
    Ended,
    MethodSettings,
    Stopped,
    make_task,
)

MIGRAD = "migrad"
MAX_CALLS = 10_000
MAX_JUDGED = 256
"""Elements up to which the end of a search is judged by a Hessian."""
PRECISE = 1e-4
"""Of the error definition: an estimated distance to the minimum below this ends in rounding errors,
not in a stall.
"""


def minimize(
    fun: Callable[..., Any] | Bound,
    *args: Any,
    wrt: Any = None,
    bounds: Limits | None = None,
    method: Any = MIGRAD,
    errordef: float = 0.5,
    tolerance: float | None = None,
    max_calls: int = MAX_CALLS,
    callback: Callback | None = None,
    progress: bool = True,
    **options: Any,
) -> FitResult:
    """Minimise a scalar function over part of its arguments, by Minuit, SciPy or optax.

    Values, gradients and Hessians are incremental functions in which each leaf stays an input of
    its own: what is fixed is evaluated once, and a step that moves a few elements costs what they
    reach.

    Args:
        fun: function of pytrees that returns one real number, usually a negative log-likelihood. An
            incremental function keeps its options. Or a bound model: what is trainable is free,
            within the model's bounds, and ends at the minimum; programs and saved values are the
            model's, also for its next fit.
        *args: the function's arguments, at the start of the search; all positional.
        wrt: what is free, n elements in all; as in `grad`, and also elements of arrays: names
            (`"theta[3]"`), or a pytree of arrays of booleans. None: the first argument. All else is
            fixed. Integers of Python among it are floats. Complex leaves are fitted by their parts,
            which are named `c.re` and `c.im`.
        bounds: a mapping of names of what is free to pairs (lower, upper) that broadcast to it;
            None for no bound: `{"sigma": (0, None), "theta[3]": (-5, 5)}`. Where one array is
            free, also a list of pairs, one for each element. A name is a path, as `explain()`
            prints it, of a leaf or an element, or the end of one where only one fits.
        method: `"migrad"` (Minuit, with exact gradients); the name of a method of
            `scipy.optimize.minimize`, which is given the gradients, Hessians or products that it
            takes (`"COBYLA"` may evaluate a little outside of bounds); an optimiser of optax.
        errordef: how far the function rises at one standard error: 0.5 for a negative
            log-likelihood, 1 for chi squared. Scales errors; of the search only Minuit's idea of
            near enough.
        tolerance: the method's own: of Minuit `tol` (0.1: an estimated distance to the minimum of
            2e-4 errordef); of SciPy `tol`; of optax the greatest element of the gradient, relative
            to the value or 1 (1e-6). None: its default.
        max_calls: evaluations, at most.
        callback: called with the parameters (as `result.params`) and the value at each point better
            than all before; stops the search if it returns True.
        progress: whether a search of over two seconds shows its progress on a terminal.
        **options: of the method. Minuit: `strategy` (0; from 1 on our Hessian is its start),
            `with_gradient` (False: differences by single elements). SciPy: its `options`. optax:
            `max_steps`.

    Returns:
        Parameters, how the search ended, counters; errors, intervals, tables and plots when they
        are asked for; see `FitResult`. A search that fails says so by its `status`, never by an error.

    Raises:
        SelectionError: `wrt` cannot be understood, or selects an array of integers or nothing that
            has a derivative.
        BoundsError: bounds name nothing free, are no pairs, or exclude the start.
        ParameterTypeError: a free leaf of a bound model is complex, or none has an element.
        MethodError: the method does not exist, or takes no bounds or option that was
            given, or the function returns no real number.
        MissingExtraError: the library of the method is not installed.

    Cost: that of the method's evaluations; a gradient and its value are one program. Errors cost
        two gradients for each element, or one Hessian, when they are first read, or when a method
        of SciPy or optax says that it converged.

    Source: F. James and M. Roos, MINUIT (1975), by iminuit; SciPy; optax.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import fit
        >>> loss = lambda p: 0.5 * (p["a"] - 1.0) ** 2 + 2.0 * (p["b"] - p["a"]) ** 2
        >>> result = fit.minimize(loss, {"a": 0.0, "b": 0.0}, method="BFGS")
        >>> round(float(result.params["b"]), 4), result.errors.round(3).tolist()
        (1.0, [1.0, 1.118])
    """
    check_positive("minimize(errordef=...)", errordef)
    check_search("minimize", tolerance, callback)
    max_calls = checked_count("minimize(max_calls=...)", max_calls)
    task = make_task(fun, args, wrt, bounds)
    settings = MethodSettings(float(errordef), tolerance, max_calls, options)
    name, search = _method(method, settings)
    with Meter(name, settings.max_calls, is_shown=progress) as meter:
        counted = CountedTask(task, settings.max_calls, meter.advance, callback)
        ended = _ended(counted, search)
    found = _result(counted, ended, name, settings.errordef)
    if isinstance(fun, Bound):
        fun.set_vector(found.bounds.inside(found.values))
    return found


def _method(method: Any, settings: MethodSettings) -> tuple[str, Callable[[CountedTask], Ended]]:
    """The name of a method, and the method."""
    if isinstance(method, str) and method.lower() == MIGRAD:
        _check_options(MIGRAD, settings, MINUIT_OPTIONS)
        return MIGRAD, lambda counted: by_minuit(counted, settings)
    known = scipy_name(method) if isinstance(method, str) else None
    if known is not None:
        return known, lambda counted: by_scipy(counted, known, settings)
    if is_of("optax", "GradientTransformation", method):
        _check_options("optax", settings, ("max_steps",))
        return "optax", lambda counted: by_optax(counted, method, settings)
    raise MethodError(
        f"`minimize(method=...)` got {method!r}. Nothing was evaluated. Use one of "
        f"{', '.join(map(repr, [MIGRAD, *METHODS]))}, or an optimiser of optax as an object: "
        "`method=optax.adam(0.01)`."
    )


def _check_options(name: str, settings: MethodSettings, known: tuple[str, ...]) -> None:
    unknown = [option for option in settings.options if option not in known]
    if unknown:
        raise unknown_options(name, unknown, known)


def _ended(counted: CountedTask, search: Callable[[CountedTask], Ended]) -> Ended:
    """The end of a search, by itself, by a limit, or by a start that is not finite."""
    try:
        ended = search(counted)
    except Stopped as stopped:
        ended = Ended(counted.best[1], False, str(stopped), is_limited=True)
    is_better = ended.is_limited and counted.best[0] < np.inf
    return ended._replace(x=counted.best[1]) if is_better else ended


def _result(counted: CountedTask, ended: Ended, name: str, errordef: float) -> FitResult:
    """Of the end of a search; what is evaluated now counts for nobody."""
    task = counted.task
    counts = counted.counts
    work = counted.work
    counted.max_calls = np.inf
    counted.callback = None
    unfinished = Status.MAX_STEPS if ended.is_limited else Status.STALLED
    status = Status.CONVERGED if ended.is_done else unfinished
    x = ended.x
    # The test of the end asks for the gradient next.
    value = counted.value_of_step if counts.gradients else counted.value
    if not np.isfinite(value(x)):
        status = Status.NOT_FINITE
        x = counted.best[1]
    found = FitResult(
        status=status,
        method=name,
        message=ended.message,
        value=value(x),
        values=np.asarray(x, np.float64),
        names=task.names,
        bounds=task.bounds,
        errordef=errordef,
        counts=counts,
        work=work,
        num_steps=ended.num_steps,
        _problem=task.problem,
        _make_task=lambda: task,
    )
    is_tested = status in (Status.CONVERGED, Status.STALLED)
    return _tested(found, counted, ended.metric) if is_tested else found


# --- our own test of an end -----------------------------------------------------------------------


def _tested(found: FitResult, counted: CountedTask, metric: np.ndarray | None) -> FitResult:
    """The same, where the gradient bears out what the method says; else with another status and
    message.
    """
    try:
        gradient = counted.gradient(found.values)
    except NO_DERIVATIVE:
        if found.counts.gradients:
            raise
        return _retold(found, "its gradient, which the function does not have, was not tested")
    found.__dict__["gradient"] = gradient
    if not np.all(np.isfinite(gradient)):
        return _retold(found, "the gradient is not finite there", Status.NOT_FINITE)
    if found.status is Status.STALLED:
        is_small = len(found.values) <= MAX_JUDGED
        is_done = is_small and found.is_minimum and found.edm <= PRECISE * found.errordef
        return _retold(found, status=Status.AT_PRECISION if is_done else Status.STALLED)
    gain = _left_to_gain(found, metric)
    if np.isfinite(gain):
        goal = near_enough(found)
        if gain <= goal:
            return _retold(found, edm=gain)
        reason = f"by the gradient {gain:.3g} is left to gain, and near enough is {goal:.3g}"
        return _retold(found, reason, Status.STALLED, gain)
    slope = steepest(found.values, gradient, found.bounds)
    most = SLOPE * max(abs(found.value), found.errordef)
    if slope <= most:
        return found
    return _retold(
        found,
        f"the gradient is {slope:.3g} per size of an element, above {most:.3g}",
        Status.STALLED,
    )


def _left_to_gain(found: FitResult, metric: np.ndarray | None) -> float:
    """By what the method knows of the Hessian, or by the Hessian; NaN where there is neither.

    In float32 a method may have learned rounding errors of the gradient for second derivatives.
    """
    if metric is not None and not in_float32(found):
        return gain_left(found, metric)
    if len(found.values) <= MAX_JUDGED:
        with contextlib.suppress(*NO_DERIVATIVE):
            return gain_left(found, found.second_derivatives)
    return np.nan


def _retold(
    found: FitResult, reason: str = "", status: Status | None = None, edm: float = np.nan
) -> FitResult:
    """The same point with another status and reasons behind the method's own account."""
    digits = IN_FLOAT32 if status is Status.STALLED and in_float32(found) else ""
    message = "; ".join(filter(None, (found.message, reason, digits)))
    other = replace(found, status=status or found.status, message=message, _edm=edm)
    known = {"gradient", "hessian", "second_derivatives"} & found.__dict__.keys()
    other.__dict__.update({name: found.__dict__[name] for name in known})
    return other
