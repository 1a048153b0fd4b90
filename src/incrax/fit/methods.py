"""Minimisers of other libraries over the saved values: Minuit, SciPy, optax.

In: counted functions of a vector. Out: the end of a search; of Minuit also intervals and contours.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax._messages import listed
from incrax._tables import LruTable
from incrax.engine.compile.captured import with_captured
from incrax.errors import MethodError, MinimumError
from incrax.fit.task import CountedTask, Ended, MethodSettings, Stopped, Task
from incrax.models.bounds import Box

# --- Minuit ---------------------------------------------------------------------------------------

MINUIT_OPTIONS = ("strategy", "with_gradient")
NEAR_BOUND = 3.0
"""Of an element's error."""
BAD_START = "not finite at the start: usually NaN in data, or a start outside of the support"


def by_minuit(counted: CountedTask, settings: MethodSettings) -> Ended:
    """MIGRAD with the gradient, and from strategy 1 on the Hessian, of the task."""
    options = settings.options
    strategy = options.get("strategy", 0)
    with_gradient = options.get("with_gradient", True)
    hessian = (lambda x: positive(counted.hessian(x))) if strategy and with_gradient else None
    start = counted.task.x
    gradient = counted.gradient if with_gradient else False
    # Three for each first step, and two for each of some n + 5 line searches.
    counted.expect_values(5 * start.size + 10)
    minuit = _minuit(counted, start, settings.errordef, hessian, gradient)
    minuit.strategy = strategy
    if settings.tolerance is not None:
        minuit.tol = settings.tolerance
    # Limits are this package's: Minuit counts calls that remembered values answer.
    ncall = max(10 * settings.max_calls, 10_000)
    minuit.migrad(ncall=ncall)
    reasons = [text for name, text in _REASONS.items() if getattr(minuit.fmin, name)]
    return Ended(
        np.array(minuit.values),
        bool(minuit.valid),
        "; ".join(reasons) or "valid minimum",
        _metric(minuit),
    )


def _metric(minuit: Any) -> np.ndarray | None:
    """The Hessian as Minuit has learned it; None near bounds, where its inner coordinates say
    nothing of ours.
    """
    if minuit.covariance is None:
        return None
    covariance = np.array(minuit.covariance)
    errors = np.sqrt(np.abs(np.diagonal(covariance)))
    # How far each element is from its bounds.
    room = np.abs(np.array(minuit.limits).T - np.array(minuit.values))
    if not np.all(np.isfinite(covariance)) or np.any(room <= NEAR_BOUND * errors):
        return None
    try:
        return 2 * minuit.errordef * np.linalg.inv(covariance)
    except np.linalg.LinAlgError:
        return None


def positive(hessian: np.ndarray) -> np.ndarray:
    """A Hessian with the signs of its eigenvalues turned where they are negative: iminuit has no
    way out of those.
    """
    if not np.all(np.isfinite(hessian)):
        return np.eye(len(hessian))
    found, vectors = np.linalg.eigh(hessian)
    if found.min() > 0:
        return hessian
    least = 1e-8 * np.abs(found).max() or 1.0
    return (vectors * np.maximum(np.abs(found), least)) @ vectors.T


def _minuit(
    counted: CountedTask, x: np.ndarray, errordef: float, hessian: Any, gradient: Any
) -> Any:
    library = needed("iminuit", 'minimize(method="migrad"), minos and contour', "fit")
    names = counted.task.names
    evaluate = counted.value_of_step if gradient else counted.value

    def value(x: np.ndarray) -> float:
        found = evaluate(x)
        if not (np.isfinite(found) or np.isfinite(counted.best[0])):
            raise Stopped(BAD_START)  # Minuit would search on, for hundreds of evaluations
        return found

    minuit = library.Minuit(value, x, grad=gradient, hessian=hessian, name=names)
    minuit.errordef = errordef
    minuit.limits = np.stack(counted.bounds, axis=1)
    minuit.print_level = -1  # else it writes to the terminal why it gives up; we say so
    return minuit


_REASONS = {
    "is_above_max_edm": "the estimated distance to the minimum is above its goal",
    "has_reached_call_limit": "call limit reached",
    "has_parameters_at_limit": "a parameter is at its limit",
    "hesse_failed": "the Hessian cannot be inverted",
}
"""What Minuit says of an end, by the attributes that say it."""


# --- intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Where the profile of an element has risen by the error definition: distances from the
    minimum, below and above.

    Fields:
        lower: distance to the lower end, or to a bound before it, negative; NaN if not found.
        upper: distance to the upper end, as `lower`.
        is_valid: whether both were found.
        cl: the confidence level asked for; None: one sigma.

    Example:
        >>> from incrax import fit
        >>> result = fit.minimize(lambda p: 0.5 * ((p["a"] - 1.0) / 0.2) ** 2, {"a": 0.0})
        >>> interval = result.minos("a")["a"]
        >>> round(interval.lower, 2), round(interval.upper, 2), interval.is_valid
        (-0.2, 0.2, True)
    """

    lower: float
    upper: float
    is_valid: bool
    cl: float | None = None


def interval_of(found: Any, cl: float | None) -> Interval:
    """What MINOS found. Minuit gives the standard error for an end that it did not find."""
    lower = found.lower if found.lower_valid or found.at_lower_limit else np.nan
    upper = found.upper if found.upper_valid or found.at_upper_limit else np.nan
    return Interval(lower, upper, bool(found.is_valid), cl)


MOST_SIGMAS = 30
"""Standard deviations that a confidence level can be given in; 95 is meant as 0.95."""


def check_level(caller: str, cl: float) -> None:
    """Refuse what is no confidence level, nor a number of standard deviations."""
    if not 0 < cl <= MOST_SIGMAS:
        raise ValueError(
            f"`{caller}(cl=...)` got {cl!r}. Nothing was evaluated. Pass a confidence level below "
            f"1, such as 0.95, or from 1 to {MOST_SIGMAS} a number of standard deviations."
        )


@contextmanager
def minuit_at(
    counted: CountedTask, x: np.ndarray, hessian: np.ndarray | None, errordef: float, what: str
) -> Iterator[Any]:
    """Minuit at a minimum, for MINOS and contours.

    Its inner searches start from the Hessian at the minimum instead of numeric second derivatives
    at every point.

    Raises:
        MinimumError: inside of the `with` block, Minuit gives up.
    """
    metric = None if hessian is None else (lambda _: hessian)
    minuit = _minuit(counted, x, errordef, metric, counted.gradient)
    minuit.strategy = 0
    minuit.hesse()
    if not minuit.valid:
        minuit.migrad()
    try:
        yield minuit
    except RuntimeError as error:
        raise failed_minuit(what, str(error).splitlines()[0]) from error


# --- SciPy: each method is given the derivatives that it takes ------------------------------------


class Takes(NamedTuple):
    """What a method takes: second derivatives (`"hess"`, `"hessp"` or none), a gradient, bounds."""

    second: str | None = None
    gradient: bool = True
    bounds: bool = False


METHODS = {
    "Nelder-Mead": Takes(gradient=False, bounds=True),
    "Powell": Takes(gradient=False, bounds=True),
    "COBYLA": Takes(gradient=False, bounds=True),
    "COBYQA": Takes(gradient=False, bounds=True),
    "CG": Takes(),
    "BFGS": Takes(),
    "L-BFGS-B": Takes(bounds=True),
    "TNC": Takes(bounds=True),
    "SLSQP": Takes(bounds=True),
    "Newton-CG": Takes("hessp"),
    "trust-ncg": Takes("hessp"),
    "trust-krylov": Takes("hessp"),
    "trust-exact": Takes("hess"),
    "dogleg": Takes("hess"),
    "trust-constr": Takes("hess", bounds=True),
}
BOUNDED = tuple(name for name, takes in METHODS.items() if takes.bounds)
UNKNOWN_OPTIONS = "Unknown solver options"
"""How SciPy's warning about them begins."""
LIMITS = ("limit", "maximum number", "maxfun")
"""Words of messages about a limit."""


def scipy_name(method: str) -> str | None:
    """A method's name as SciPy writes it, None if there is none."""
    return next((name for name in METHODS if name.lower() == method.lower()), None)


def by_scipy(counted: CountedTask, method: str, settings: MethodSettings) -> Ended:
    """Minimise by a method of `scipy.optimize.minimize`.

    Raises:
        MethodError: it takes no bounds, and there are some, or an option is none of its own.
    """
    import scipy.optimize  # here, as it takes longer than many a fit, and Minuit needs none of it

    takes = METHODS[method]
    task = counted.task
    given: dict[str, Any] = {"jac": takes.gradient}
    if takes.second is not None:
        given[takes.second] = counted.hessian if takes.second == "hess" else counted.hvp
    if task.bounds.is_bounded:
        if not takes.bounds:
            raise _no_bounds(method, ["migrad", *BOUNDED])
        given["bounds"] = scipy.optimize.Bounds(*task.bounds, keep_feasible=True)  # pyright: ignore[reportArgumentType]
    fun = counted.value_and_gradient if takes.gradient else counted.value
    asked = {"tol": settings.tolerance, "options": dict(settings.options)}
    try:
        with _without_warnings(scipy.optimize.OptimizeWarning):
            found = scipy.optimize.minimize(fun, task.x, method=method, **asked, **given)
    except scipy.optimize.OptimizeWarning as warning:
        names = str(warning).removeprefix(UNKNOWN_OPTIONS).strip(": ").split(", ")
        raise unknown_options(method, names, ()) from None
    except (ValueError, ArithmeticError) as error:
        if counted.is_finite:
            raise
        return Ended(counted.best[1], False, f"a derivative is not finite: {error}")
    return Ended(
        np.asarray(found.x),
        bool(found.success),
        found.message,
        is_limited=not found.success and any(word in found.message.lower() for word in LIMITS),
        num_steps=found.get("nit"),
    )


@contextmanager
def _without_warnings(kind: type[Warning]) -> Iterator[None]:
    """What they say is told by the status; but for unknown options, which are an error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", kind)
        warnings.filterwarnings("error", UNKNOWN_OPTIONS, kind)
        yield


# --- optax, step by step over the saved values -----------------------------------------------------

MAX_STEPS = 10_000
NUM_KEPT = 8
"""Optimisers whose programs are kept, of each function."""
TOLERANCE = 1e-6
"""The greatest element of the gradient, relative to the value or 1."""


class _Given(NamedTuple):
    """What a compiled step reads beside the point, as arguments: as constants data would
    be folded and compiled for a minute, and compile anew for the next data set.
    """

    value_of: Any
    """The function of a vector and of what is fixed, a pytree; None where nobody asks for it."""
    others: Any
    box: Box

    def value(self, x: Any) -> Any:
        """The function of a vector."""
        return self.value_of(x, self.others)


def _value_of(task: Task) -> Any:
    value = lambda x, others: task.fun(*task.problem.with_others(x, others))
    return with_captured(value, jnp.asarray(task.x), task.problem.others)


_programs: WeakKeyDictionary[Any, LruTable[Any, Any]] = WeakKeyDictionary()
"""What was compiled for functions whose derivatives are kept, those of bound models."""


def _program(task: Task, optimiser: Any) -> tuple[Any, _Given]:
    """A compiled step, and what it reads beside the point."""
    program, value_of = _programs_of(task).made(optimiser, lambda: _optax_step(task, optimiser))
    on_device = lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x
    others = None if value_of is None else jax.tree.map(on_device, task.problem.others)
    return program, _Given(value_of, others, task.bounds)


def _programs_of(task: Task) -> LruTable[Any, Any]:
    """What was made before for this function.

    Only a bound model comes back with the same derivatives. Any other function is traced anew at
    each fit, as what it closes over may have changed; a model of which something is held, too, as
    that is a constant of the trace.
    """
    nothing = LruTable[Any, Any](NUM_KEPT)
    if task.prepared is None or task.problem.free is not None:
        return nothing
    return _programs.setdefault(task.prepared, nothing)


def by_optax(counted: CountedTask, optimiser: Any, settings: MethodSettings) -> Ended:
    """Steps of an optimiser, each followed by a projection into the bounds."""
    tolerance = TOLERANCE if settings.tolerance is None else settings.tolerance
    advanced, given = _program(counted.task, optimiser)
    x = jnp.asarray(counted.task.x)
    state = optimiser.init(x)
    max_steps = settings.options.get("max_steps", MAX_STEPS)
    for number in range(max_steps + 1):
        at = np.asarray(x)  # one eager operation of JAX takes as long as a small gradient
        value, gradient = counted.value_and_gradient(at)
        step = at - counted.bounds.inside(at - gradient)
        is_done = bool(np.abs(step).max() <= tolerance * max(1.0, abs(value)))
        if is_done or not np.isfinite(value):
            message = "gradient below the tolerance" if is_done else "not finite"
            return Ended(np.asarray(x), is_done, message, num_steps=number)
        if number < max_steps:
            x, state = advanced(given, x, state, (value, gradient))
    return Ended(np.asarray(x), False, "step limit reached", is_limited=True, num_steps=max_steps)


def _optax_step(task: Task, optimiser: Any) -> tuple[Any, Any]:
    optax = needed("optax", "minimize(method=an optax optimiser)", "fit")
    transform = optax.with_extra_args_support(optimiser)
    takes_value = isinstance(optimiser, optax.GradientTransformationExtraArgs)

    @jax.jit
    def advanced(given: _Given, x, state, seen: tuple[Any, Any]):
        value, gradient = seen
        extra = {"value": value, "grad": gradient, "value_fn": given.value}
        updates, state = transform.update(gradient, state, x, **extra)
        return given.box.inside(optax.apply_updates(x, updates)), state

    return advanced, _value_of(task) if takes_value else None


def _no_bounds(method: str, known: Sequence[str]) -> MethodError:
    """Bounds for a method that takes none."""
    return MethodError(
        f"`minimize(bounds=...)` was given bounds, and the method {method!r} has none: it would "
        f"walk out of them. Nothing was evaluated. Use one of {', '.join(map(repr, known))}, or "
        "optax, or write the parameter as a function of an unbounded one."
    )


def unknown_options(method: str, options: Sequence[str], known: Sequence[str]) -> MethodError:
    """Options that a method does not have."""
    rest = f"`scipy.optimize.show_options` lists those of {method!r}."
    if known:
        rest = f"Those of {method!r} are {listed(known)}."
    return MethodError(
        f"`minimize(method={method!r})` got the options {listed(options)}. Nothing was evaluated. {rest} "
        "Arguments of the function go by position; `wrt` says which of them are free, `bounds` how far."
    )


def failed_minuit(what: str, reason: str) -> MinimumError:
    """Minuit gave up."""
    return MinimumError(
        f"`{what}` was given up by Minuit: {reason}. This is usually a minimum that is not sharp "
        "enough, or bounds in the way. Minimise again with a smaller `tolerance`, or use `profile` "
        "or `scan2d`."
    )
