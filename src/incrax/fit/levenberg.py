"""Least squares for users: one call, pytrees in and out.

In: a function of residuals and its arguments. Out: a `FitResult`. The search runs as one program;
where something on the host takes part (an incremental function, a callback), step by step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from incrax import Bound, Incremental, incremental
from incrax._messages import wrong_option
from incrax._progress import Meter
from incrax.derivatives.transforms import options_of, plain
from incrax.fit import steps
from incrax.fit.box import Box
from incrax.fit.large import Solver, check_solver, chosen, sparse
from incrax.fit.losses import Loss, check_loss
from incrax.fit.parameters import Limits, parameters
from incrax.fit.problem import (
    SQUARES,
    ArgumentLayout,
    Problem,
    check_alone,
    problem,
    problem_of,
    remembered,
    roots_of_weights,
    weighed_vector,
)
from incrax.fit.result import FitResult, LinearModel, Status
from incrax.fit.search import evaluations, hosted, least_squares, looped, searched
from incrax.fit.steps import Found, SearchSettings, Setup
from incrax.fit.task import Task, make_task

Function = Callable[..., Any]
FIRST_ROUND = 100
"""Jacobians before the host looks at the clock."""
ROUND_S = 0.5


def levenberg_marquardt(
    residuals: Function | Bound,
    *args: Any,
    wrt: Any = None,
    bounds: Limits | None = None,
    weights: Any = None,
    loss: Loss = "squares",
    loss_scale: float = 1.0,
    tolerance: float | None = None,
    max_steps: int = 5000,
    is_accelerated: bool = True,
    is_absolute: bool = False,
    solver: Solver = "dense",
    callback: Callable[[Any, float], bool | None] | None = None,
    progress: bool = True,
) -> FitResult:
    """Minimise half the sum of squared residuals over part of the arguments of a function.

    The method of Levenberg and Marquardt with a scaled trust region and geodesic acceleration. No
    Jacobian is evaluated after a rejected step.

    Args:
        residuals: function of pytrees that returns the residuals, a pytree of arrays with m
            elements in all; complex ones count as two. If it is an incremental function, each step
            evaluates what the step changed. Or a bound model of residuals: what is trainable is
            free, within the model's bounds, and ends at the minimum.
        *args: the function's arguments, at the start of the search. Data that change from call to
            call belong here, not into a closure: searches are compiled once per function.
        wrt: what is free, n elements in all; as for `minimize`.
        bounds: as for `minimize`.
        weights: of the squares, 1 / sigma^2 for errors sigma: in the structure of the residuals, or
            one array for all.
        loss: `"squares"`, or a robust one that counts large residuals less: `"huber"`, `"soft_l1"`,
            `"cauchy"`, `"arctan"`, with the formulas of `scipy.optimize.least_squares`.
        loss_scale: the residual, after weights, from which on a robust loss counts less.
        tolerance: converged when every element's undamped step is below this times its value, or
            times its standard error. None: epsilon^(2/3), 4e-11 in float64.
        max_steps: steps taken, at most.
        is_accelerated: whether steps are bent along second derivatives of the residuals; saves
            steps in curved valleys.
        is_absolute: whether weights are known errors, so that the covariance is not scaled by the
            residual variance.
        solver: how steps are solved for. `"dense"`: singular values of the Jacobian. `"sparse"`:
            its elements that may be nonzero, and a sparse factorisation of the normal matrix, for
            parameters in groups that share few residuals. `"matrix-free"`: LSMR over products with
            the Jacobian, which is never formed; needs lineax. `"auto"`: dense up to 1,000 free
            elements, else sparse where at most a tenth of the Jacobian may be nonzero, else
            matrix-free.
        callback: called after each step with the parameters (as `result.params`) and the cost;
            stops the search if it returns True. The search then runs step by step.
        progress: whether a search of over two seconds shows its progress on a terminal.

    Returns:
        Parameters, covariance, how the search ended, counters; see `FitResult`. A search that fails
        has a `status` that says so, and raises no error.

    Raises:
        SelectionError: `wrt` cannot be understood, or selects an array of integers or nothing that
            has a derivative.
        BoundsError: bounds name nothing free, are no pairs, or exclude the start.
        WeightsError: weights do not fit the residuals.
        ParameterTypeError: a free leaf of a bound model is complex, none has an element, or the function returns no
            residuals.
        ValueError: a loss or a solver does not exist.
        MissingExtraError: the solver is matrix-free and lineax is not installed.

    Cost: per step one Jacobian (min(m, n) passes, fewer where it is sparse), its factorisation (m
        n^2 + n^3), and, for each step tried, one evaluation of the residuals and one of their
        second derivative along a line. With a sparse Jacobian the host goes step by step. Without
        a dense one nothing is taken from saved values, and a covariance is found when it is asked
        for.

    Source: M. Transtrum and J. Sethna, arXiv:1201.5885; J. Moré, The Levenberg-Marquardt algorithm
    (1978).

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> x, y = np.arange(4.0), np.array([1.0, 3.0, 5.0, 7.0])
        >>> result = fit.levenberg_marquardt(lambda p, x, y: p["a"] + p["b"] * x - y, {"a": 0.0, "b": 0.0}, x, y)
        >>> round(float(result.params["b"]), 4)
        2.0
    """
    if isinstance(residuals, Bound):
        check_alone(residuals, SQUARES, args, wrt, bounds)
        task = problem_of(residuals)
        model = residuals
        residuals = model.function if model.options else plain(model.function)
        cost_of = None
    elif callable(residuals):
        given = parameters(SQUARES, residuals, args, wrt)
        cost_of = functools.partial(_task, residuals, args, wrt, bounds)
        residuals = given.fun
        task = problem(given, bounds)
        model = None
    else:
        raise wrong_option(
            "levenberg_marquardt(residuals)", residuals, "a function or a bound model"
        )
    tolerance = (
        float(np.finfo(task.x.dtype).eps ** (2 / 3)) if tolerance is None else float(tolerance)
    )
    asked = task
    task = task.pinned()
    roots = None if weights is None else roots_of_weights(weights, _types(residuals, task))
    search = chosen(check_solver(solver), residuals, task, roots)
    settings = SearchSettings(check_loss(loss), tolerance, int(max_steps), is_accelerated, search)
    setup = Setup(settings, task.box, np.asarray(loss_scale, task.x.dtype))
    if search != "dense":
        residuals = plain(residuals)
    if search == "sparse":
        squares = sparse(residuals, task, roots, setup)
        found = searched(squares, task, callback, progress=progress)
    elif callback is None and not isinstance(residuals, Incremental):
        found = _compiled(residuals, task, roots, setup, progress=progress)
    else:
        squares = least_squares(hosted(residuals, task.layout), (task.others, roots), setup)
        found = searched(squares, task, callback, progress=progress)
    make_task = None if cost_of is None else functools.partial(cost_of, roots, setup)
    made = _result(asked, found, make_task, is_absolute=is_absolute)
    if model is not None:
        model.keep_differentiated()
        model.set_vector(asked.box.inside(made.values))
    return made


# --- one program ----------------------------------------------------------------------------------


def _compiled(fun: Function, task: Problem, roots: Any, setup: Setup, *, progress: bool) -> Found:
    program = _programs(fun, task.layout, setup.settings)
    limit = FIRST_ROUND
    start_s = time.perf_counter()

    def run(search: Any) -> tuple[Any, Found]:
        numbers = np.concatenate([*setup.box, [setup.loss_scale, limit]], dtype=task.x.dtype)
        return program(search, numbers, (task.others, roots))

    search, found = run(steps.start(task.x))
    with Meter("least squares", setup.settings.max_steps, is_shown=progress) as meter:
        while not found.summary.is_over:
            meter.advance(int(found.summary.num_steps) - meter.done)
            now = time.perf_counter()
            limit = limit + max(1, int(limit * min(2.0, ROUND_S / max(now - start_s, 1e-9))))
            start_s = now
            search, found = run(search)
    return found


@remembered
def _programs(fun: Function, layout: ArgumentLayout, settings: SearchSettings) -> Any:
    @jax.jit
    def program(search: Any, numbers: Any, given: Any) -> tuple[Any, Found]:
        """Of a packed search, and of the bounds, the loss' scale and a limit: one transfer each."""
        setup = Setup(settings, Box(*numbers[:-2].reshape(2, -1)), numbers[-2])
        squares = least_squares(evaluations(fun, layout), given, setup)
        turn = looped(squares, steps.unpacked(search), numbers[-1])
        return steps.packed(turn.search), squares.found(turn.search, turn.at, turn.is_over)

    return program


def _types(fun: Function, task: Problem) -> Any:
    """The types of the residuals."""
    function = plain(fun)
    return jax.eval_shape(lambda *given: function(*task.with_others(*given)), task.x, task.others)


_ENDS = (
    Status.MAX_STEPS,
    Status.CONVERGED,
    Status.AT_PRECISION,
    Status.SINGULAR,
    Status.STALLED,
    Status.NOT_FINITE,
)
"""In the order of the numbers of `steps`."""


def _task(residuals: Function, args: Any, wrt: Any, bounds: Any, roots: Any, setup: Setup) -> Task:
    """The cost of a search as a function for minimisers: profiles, contours, MINOS."""
    fun = plain(residuals)

    @functools.wraps(fun)  # inputs keep their names
    def cost(*args: Any) -> Any:
        return setup.weighed(weighed_vector(fun(*args), roots, setup.box.lower.dtype)).cost

    return make_task(incremental(cost, **options_of(residuals)), args, wrt, bounds)


def _result(
    task: Problem, found: Found, make_task: Callable[[], Task] | None, *, is_absolute: bool
) -> FitResult:
    """Of a search of all elements of the task's layout; what is fixed is left out."""
    end = found.summary
    num_residuals = found.residuals.size
    status = _ENDS[int(end.status)]
    if status is Status.SINGULAR and num_residuals < task.x.size:
        status = Status.UNDERDETERMINED
    num_dof = num_residuals - int(end.rank)
    variance = 1.0 if is_absolute else 2 * end.cost / num_dof if num_dof else np.nan
    linear = LinearModel(found.residuals, found.inverse, found.is_free, found.is_known)
    values = np.asarray(found.x)
    if task.free is not None:
        linear = linear.of(task.free.numbers)
        values = values[task.free.numbers]
    return FitResult(
        status=status,
        method="levenberg-marquardt",
        message="",
        value=end.cost,
        values=values,
        names=task.names,
        bounds=task.box,
        errordef=0.5 * variance,
        num_steps=int(end.num_steps),
        num_jacobians=int(end.num_jacobians),
        num_residuals=int(end.num_residuals),
        num_dof=num_dof,
        is_absolute=is_absolute,
        _linear=linear,
        _problem=task,
        _make_task=make_task,
    )
