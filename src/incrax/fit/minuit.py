"""Minuit over the saved values: MIGRAD, MINOS, contours.

In: counted functions of a vector. Out: the end of a search, intervals, points. Minuit itself is iminuit's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from incrax._extras import needed
from incrax.fit.ended import Ended, Settings
from incrax.fit.messages import failed_minuit
from incrax.fit.task import Counted

OPTIONS = ("strategy", "step", "precision", "use_simplex", "with_gradient")
NEAR_BOUND = 3.0
"""Of an element's error."""


def migrad(counted: Counted, settings: Settings) -> Ended:
    """MIGRAD with the gradient, and from strategy 1 on the Hessian, of the task."""
    options = dict(settings.options)
    strategy, use_simplex = options.pop("strategy", 0), options.pop("use_simplex", True)
    with_gradient = options.pop("with_gradient", True)
    hessian = (lambda x: positive(counted.hessian(x))) if strategy and with_gradient else None
    minuit = _made(counted, counted.task.x, settings.errordef, hessian=hessian, with_gradient=with_gradient)
    minuit.strategy = strategy
    if "step" in options:
        minuit.errors = np.broadcast_to(options["step"], counted.task.x.shape)
    minuit.precision = options.get("precision")
    if settings.tolerance is not None:
        minuit.tol = settings.tolerance
    # Limits are this package's: Minuit counts calls that remembered values answer.
    minuit.migrad(ncall=max(10 * settings.max_calls, 10_000), use_simplex=use_simplex)
    found = minuit.fmin
    reasons = [text for is_one, text in _reasons(found) if is_one]
    return Ended(np.array(minuit.values), bool(minuit.valid), "; ".join(reasons) or "valid minimum", _metric(minuit))


def _metric(minuit: Any) -> np.ndarray | None:
    """The Hessian as Minuit has learned it; None near bounds, where its inner coordinates say nothing of ours."""
    if minuit.covariance is None:
        return None
    covariance, x = np.array(minuit.covariance), np.array(minuit.values)
    lower, upper = np.array(minuit.limits).T
    room = np.minimum(x - lower, upper - x)
    if not np.all(np.isfinite(covariance)) or np.any(room <= NEAR_BOUND * np.sqrt(np.abs(np.diagonal(covariance)))):
        return None
    try:
        return 2 * minuit.errordef * np.linalg.inv(covariance)
    except np.linalg.LinAlgError:
        return None


def positive(hessian: np.ndarray) -> np.ndarray:
    """A Hessian with the signs of its eigenvalues turned where they are negative: iminuit has no way out of those."""
    if not np.all(np.isfinite(hessian)):
        return np.eye(len(hessian))
    found, vectors = np.linalg.eigh(hessian)
    if found.min() > 0:
        return hessian
    least = 1e-8 * np.abs(found).max() or 1.0
    return (vectors * np.maximum(np.abs(found), least)) @ vectors.T


def _made(counted: Counted, x: np.ndarray, errordef: float, *, hessian: Any, with_gradient: bool = True) -> Any:
    library = needed("iminuit", 'minimize(method="migrad"), minos and contour', "fit")
    gradient = counted.gradient if with_gradient else False
    minuit = library.Minuit(counted.value, x, grad=gradient, hessian=hessian, name=_names(counted))
    minuit.errordef = errordef
    minuit.limits = np.stack(counted.task.bounds, axis=1)
    return minuit


def _names(counted: Counted) -> tuple[str, ...]:
    return counted.task.problem.names


def _reasons(found: Any) -> list[tuple[bool, str]]:
    return [
        (found.is_above_max_edm, "the estimated distance to the minimum is above its goal"),
        (found.has_reached_call_limit, "call limit reached"),
        (found.has_parameters_at_limit, "a parameter is at its limit"),
        (found.hesse_failed, "the Hessian cannot be inverted"),
    ]


# --- intervals --------------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Where the profile of an element has risen by the error definition: distances from the minimum, below and above.

    Fields:
        lower: distance to the lower end, negative.
        upper: distance to the upper end.
        is_valid: whether both were found.
        cl: the confidence level asked for; None: one sigma.
    """

    lower: float
    upper: float
    is_valid: bool
    cl: float | None = None


class Errors:
    """Minuit at a minimum, for MINOS and contours.

    Its inner searches start from the Hessian at the minimum instead of numeric second derivatives at every point.
    """

    def __init__(self, counted: Counted, x: np.ndarray, hessian: np.ndarray | None, errordef: float) -> None:
        metric = None if hessian is None else (lambda _: hessian)
        self._minuit = minuit = _made(counted, x, errordef, hessian=metric)
        minuit.strategy = 0
        minuit.hesse()
        if not minuit.valid:
            minuit.migrad()

    def intervals(self, names: Sequence[str], cl: float | None) -> dict[str, Interval]:
        """By MINOS.

        Raises:
            MinimumError: Minuit finds no minimum here.
        """
        self._run("minos", lambda: self._minuit.minos(*names, cl=cl))
        found = {name: self._minuit.merrors[name] for name in names}
        return {name: Interval(each.lower, each.upper, bool(each.is_valid), cl) for name, each in found.items()}

    def contour(self, pair: tuple[str, str], cl: float | None, num_points: int) -> np.ndarray:
        """Points where the profile of two elements is at a level, shape (num_points + 1, 2), closed.

        Raises:
            MinimumError: Minuit finds no minimum here, or no contour.
        """
        points = self._run("contour", lambda: self._minuit.mncontour(*pair, cl=cl, size=num_points))
        if len(points) < 4:
            raise failed_minuit("contour", f"{max(len(points) - 1, 0)} points were found")
        return np.asarray(points)

    @staticmethod
    def _run(what: str, call: Any) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise failed_minuit(what, str(error).splitlines()[0]) from error
