"""Least squares for users: one call, pytrees in and out.

In: a function of residuals and its arguments. Out: a `FitResult`. The search runs as one program,
or in turns of the host, both by the mathematics of `steps`. The host takes turns where something on
it takes part: an incremental function, which saves what a step does not change, or a callback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import Bound, Incremental, incremental, jacobian
from incrax._messages import checked_count
from incrax._program import Function
from incrax._progress import Meter
from incrax.derivatives.transforms import options_of, plain
from incrax.fit import steps
from incrax.fit.problem import (
    ArgumentLayout,
    Limits,
    Problem,
    check_positive,
    check_search,
    posed,
    remembered,
    residual_vector,
)
from incrax.fit.result import FitResult, LinearModel, Status
from incrax.fit.steps import (
    LOSSES,
    Found,
    LinearizedPoint,
    Loss,
    Search,
    SearchSettings,
    Setup,
)
from incrax.fit.task import Callback, Task, task_of
from incrax.models.bound import keep_differentiated
from incrax.models.bounds import Box

SQUARES = "levenberg_marquardt"
ONE_RESIDUAL = (
    "the function returns one number, of which half the square was minimised; return the residuals, "
    "each divided by its error, or take `fit.minimize` for a likelihood or a cost"
)
ROUND = 100
"""Jacobians of a program before the host has a moment, to show progress or to hear Ctrl-C."""


def levenberg_marquardt(
    residuals: Function | Bound,
    *args: Any,
    wrt: Any = None,
    bounds: Limits | None = None,
    loss: Loss = "squares",
    loss_scale: float = 1.0,
    tolerance: float | None = None,
    max_steps: int = 5000,
    is_absolute: bool = False,
    callback: Callable[[Any, float], bool | None] | None = None,
    progress: bool = True,
) -> FitResult:
    """Minimise half the sum of squared residuals over part of the arguments of a function.

    The method of Levenberg and Marquardt with a scaled trust region and geodesic acceleration. No
    Jacobian is evaluated after a rejected step.

    Args:
        residuals: function of pytrees that returns the residuals, a pytree of arrays with m
            elements in all, each divided by its error; complex ones count as two. If it is an
            incremental function, each step evaluates what the step changed. Or a bound model of
            residuals: what is trainable is free, within the model's bounds, and ends at the
            minimum.
        *args: the function's arguments, at the start of the search. Data that change from call to
            call belong here, not into a closure: searches are compiled once per function, and once
            for any bounds.
        wrt: what is free, n elements in all; as for `minimize`.
        bounds: as for `minimize`.
        loss: `"squares"`, or a robust one that counts large residuals less: `"huber"`, `"soft_l1"`,
            `"cauchy"`, `"arctan"`, with the formulas of `scipy.optimize.least_squares`.
        loss_scale: the residual from which on a robust loss counts less.
        tolerance: converged when every element's undamped step is below this times its value, or
            times its standard error. None: epsilon^(2/3), 4e-11 in float64.
        max_steps: steps taken, at most.
        is_absolute: whether residuals are in units of known errors, so that the covariance is not scaled by the
            residual variance.
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
        ParameterTypeError: a free leaf of a bound model is complex, none has an element, or the function returns no
            residuals.
        ValueError: a loss does not exist.

    Cost: per step one Jacobian (min(m, n) passes, fewer where it is sparse), its factorisation (m
        n^2 + n^3), and, for each step tried, one evaluation of the residuals and one of their
        second derivative along a line. Memory: m n.

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
    if loss not in LOSSES:
        shown = ", ".join(f'"{each}"' for each in LOSSES)
        raise ValueError(
            f"`levenberg_marquardt(loss=...)` got {loss!r}. Nothing was evaluated. Use one of "
            f"{shown}."
        )
    check_positive(f"{SQUARES}(loss_scale=...)", loss_scale)
    check_search(SQUARES, tolerance, callback)
    max_steps = checked_count(f"{SQUARES}(max_steps=...)", max_steps)
    asked = posed(SQUARES, residuals, args, wrt, bounds, parameter="residuals")
    model = residuals if isinstance(residuals, Bound) else None
    is_plain = model is not None and not model.options
    residuals = plain(asked.fun) if is_plain else asked.fun
    task = asked.pinned()
    tolerance = (
        float(np.finfo(task.x.dtype).eps ** (2 / 3)) if tolerance is None else float(tolerance)
    )
    settings = SearchSettings(loss, tolerance, max_steps, asked.box.is_bounded)
    setup = Setup(settings, task.box, np.asarray(loss_scale, task.x.dtype))
    if callback is None and not isinstance(residuals, Incremental):
        found = _in_one_program(residuals, task, setup, progress=progress)
    else:
        squares = LeastSquares(hosted(residuals, task.layout), task.others, setup)
        found = searched(squares, task, callback, progress=progress)
    make_task = functools.partial(_task, asked, setup)
    made = _result(asked, found, make_task, is_absolute=is_absolute)
    if model is not None:
        keep_differentiated(model)
        model.set_vector(asked.box.inside(made.values))
    return made


# --- one program ----------------------------------------------------------------------------------


def _in_one_program(fun: Function, task: Problem, setup: Setup, *, progress: bool) -> Found:
    program = _programs(fun, task.layout, setup.settings)
    search = steps.start(task.x)
    limit = 0
    with Meter("least squares", setup.settings.max_steps, is_shown=progress) as meter:
        while True:
            limit += ROUND
            numbers = np.concatenate([*setup.box, [setup.loss_scale, limit]], dtype=task.x.dtype)
            search, found = program(search, numbers, task.others)
            end = found.summary
            if end.is_over:
                return found
            meter.advance(int(end.num_steps) - meter.done)


@remembered
def _programs(fun: Function, layout: ArgumentLayout, settings: SearchSettings) -> Any:
    @jax.jit
    def program(search, numbers, given) -> tuple[Any, Found]:
        """Of a packed search, and of the bounds, the loss' scale and a limit: one transfer each."""
        setup = Setup(settings, Box(*numbers[:-2].reshape(2, -1)), numbers[-2])
        squares = LeastSquares(evaluations(fun, layout), given, setup)
        turn = looped(squares, steps.unpacked(search), numbers[-1])
        return steps.packed(turn.search), squares.found(turn.search, turn.at, turn.is_over)

    return program


_ENDS = (
    Status.MAX_STEPS,
    Status.CONVERGED,
    Status.AT_PRECISION,
    Status.SINGULAR,
    Status.STALLED,
    Status.NOT_FINITE,
)
"""In the order of the numbers of `steps`."""


def _task(asked: Problem, setup: Setup) -> Task:
    """The cost of a search as a function for minimisers: profiles, contours, MINOS."""
    fun = plain(asked.fun)

    @functools.wraps(fun)  # inputs keep their names
    def cost(*args):
        return setup.weighed(residual_vector(fun(*args), asked.x.dtype)).cost

    return task_of(asked._replace(fun=incremental(cost, **options_of(asked.fun))))


def _result(
    task: Problem, found: Found, make_task: Callable[[], Task], *, is_absolute: bool
) -> FitResult:
    """Of a search of all elements of the task's layout; what is fixed is left out."""
    end = found.summary
    num_residuals = found.residuals.size
    status = _ENDS[int(end.status)]
    if status is Status.SINGULAR and num_residuals < task.x.size:
        status = Status.UNDERDETERMINED
    num_dof = num_residuals - int(end.rank)
    variance = 1.0 if is_absolute else 2 * end.cost / num_dof if num_dof else np.nan
    chosen = ... if task.free is None else task.free.numbers
    linear = LinearModel(found.residuals, found.inverse, found.is_free, found.is_known)
    if task.free is not None:
        linear = linear.of(task.free.numbers)
    return FitResult(
        status=status,
        method="levenberg-marquardt",
        message=ONE_RESIDUAL if num_residuals == 1 else "",
        value=end.cost,
        values=np.asarray(found.x)[chosen],
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


# --- what a search evaluates ----------------------------------------------------------------------


class HostFunctions(NamedTuple):
    """What a search evaluates, functions of a vector and of all that is fixed."""

    residuals: Any
    """Shape (m,)."""
    jacobian: Any
    """Shape (m, n)."""
    curvature: Any
    """r''(v, v), also of v; shape (m,)."""


def evaluations(fun: Callable[..., Any], layout: ArgumentLayout) -> HostFunctions:
    """Those of a function, for JAX to trace."""

    def residuals(x, given):
        return residual_vector(fun(*layout.arguments(x, given)), x.dtype)

    def matrix(x, given):
        return jacobian(lambda x: residuals(x, given))(x)

    def curvature(x, given, v):
        along = lambda x: jax.jvp(lambda x: residuals(x, given), (x,), (v,))[1]
        return jax.jvp(along, (x,), (v,))[1]

    return HostFunctions(residuals, matrix, curvature)


@remembered
def _compiled(fun: Any, layout: ArgumentLayout) -> HostFunctions:
    return HostFunctions(*map(jax.jit, evaluations(fun, layout)))


def hosted(fun: Any, layout: ArgumentLayout) -> HostFunctions:
    """Those of a function for the host, made once, so that a second fit traces nothing.

    Those of an incremental function have its options, live as long as it does, share its budget of
    memory, and a second fit finds what the first one saved.
    """
    if not isinstance(fun, Incremental):
        return _compiled(fun, layout)
    if fun not in _of_incremental:
        _of_incremental[fun] = remembered(functools.partial(_saving, plain(fun), options_of(fun)))
    return _of_incremental[fun](layout)


def _saving(fun: Any, options: Any, layout: ArgumentLayout) -> HostFunctions:
    made = evaluations(fun, layout)
    if options.get("memory") is not None:
        options = {**options, "memory": options["memory"] // len(made)}
    return HostFunctions(
        incremental(made.residuals, **options),
        jacobian(made.residuals, **options),
        incremental(made.curvature, **options),
    )


_of_incremental: WeakKeyDictionary[Incremental[..., Any], Any] = WeakKeyDictionary()


class LeastSquares(NamedTuple):
    """One search, whoever drives it: a loop in a program, where all is traced, or the host."""

    evaluate: HostFunctions
    given: Any
    setup: Setup

    @property
    def settings(self) -> SearchSettings:
        """What was asked of the search."""
        return self.setup.settings

    def residuals(self, x: Any) -> Any:
        """Of a vector, shape (m,)."""
        return self.evaluate.residuals(x, self.given)

    def look(self, search: Search) -> tuple[Search, LinearizedPoint]:
        """The linear model where a search is, and whether that is its end."""
        residuals = self.residuals(search.x)
        matrix = self.evaluate.jacobian(search.x, self.given)
        return steps.looked(search, residuals, matrix, self.setup)

    def attempt(self, search: Search, at: LinearizedPoint) -> tuple[Search, Any]:
        """Try a step from a point, without another Jacobian; whether it was taken."""
        velocity = steps.velocity(search, at)
        curvature = self.evaluate.curvature(at.x, self.given, velocity.step)
        tried = steps.trial(search, at, velocity, curvature, self.setup)
        return steps.answered(search, at, tried, self.residuals(tried.x), self.setup)

    def turned(self, turn: Turn) -> Turn:
        """One step tried, inside of a program."""
        stay = lambda search, _: (search, jnp.array(False))
        polish = lambda search, at: (steps.polished(search, at), jnp.array(True))
        look = lambda: self.look(turn.search)
        search, at = lax.cond(turn.is_new, look, lambda: (turn.search, turn.at))
        has_ended = search.num_steps >= self.settings.max_steps
        is_over = (search.status != steps.RUNNING) | has_ended
        way = jnp.where(is_over, 0, jnp.where(steps.is_quiet(search), 1, 2))
        search, is_new = lax.switch(way, (stay, polish, self.attempt), search, at)
        num_refused = jnp.where(is_new, 0, turn.num_refused + 1)
        search, has_stalled = steps.stalled(search, at, num_refused)
        is_over |= search.status != steps.RUNNING
        return Turn(search, at, is_new | has_stalled, num_refused, is_over)

    def found(self, search: Search, at: LinearizedPoint, is_over: Any = True) -> Found:
        """The end: residuals and cost belong to the point that is returned."""
        x = steps.last(search, at)
        return steps.found(search, at, x, self.residuals(x), self.setup, is_over)


# --- driven by a loop in a program, in rounds that give the host a moment -------------------------


class Turn(NamedTuple):
    """What goes round the loop."""

    search: Search
    at: LinearizedPoint
    is_new: Any
    """Whether the search is not where `at` is."""
    num_refused: Any
    """Steps refused in a row."""
    is_over: Any


def looped(squares: LeastSquares, search: Search, max_jacobians: Any) -> Turn:
    """Iterate until it is over, or so many Jacobians were evaluated in all.

    A turn tries one step. Loops are not nested: in a small fit, entering one costs more than a
    step.
    """

    def is_running(turn: Turn):
        return ~turn.is_over & (~turn.is_new | (turn.search.num_jacobians < max_jacobians))

    types = jax.eval_shape(squares.look, search)[1]
    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), types)
    first = Turn(search, nothing, jnp.array(True), jnp.array(0), jnp.array(False))
    return lax.while_loop(is_running, squares.turned, first)


# --- driven by the host, whatever evaluates and solves --------------------------------------------


def searched(
    squares: LeastSquares, task: Problem, callback: Callback | None, *, progress: bool
) -> Found:
    """Search to the end; a callback that returns True is one."""
    max_steps = squares.settings.max_steps
    search, at = squares.look(steps.unpacked(jnp.asarray(steps.start(task.x))))
    with Meter("least squares", max_steps, is_shown=progress) as meter:
        while int(search.status) == steps.RUNNING and int(search.num_steps) < max_steps:
            search = _moved(squares, search, at)
            if int(search.status) == steps.RUNNING:
                search, at = squares.look(search)
            meter.advance()
            if callback is not None and callback(task.tree(np.asarray(search.x)), float(at.cost)):
                break
    return squares.found(search, at)


def _moved(squares: LeastSquares, search: Search, at: LinearizedPoint) -> Search:
    """After the first step that is taken."""
    if bool(steps.is_quiet(search)):
        return steps.polished(search, at)
    for _ in range(steps.MAX_TRIALS):
        search, is_taken = squares.attempt(search, at)
        if bool(is_taken):
            return search
    return steps.stalled(search, at, steps.MAX_TRIALS)[0]
