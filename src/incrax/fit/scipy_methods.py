"""SciPy's minimisers over the saved values: each is given the derivatives that it takes.

In: counted functions of a vector. Out: the end of a search.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from incrax.fit.ended import Ended, Settings
from incrax.fit.messages import no_bounds, unknown_options
from incrax.fit.task import Counted


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
UNKNOWN = "Unknown solver options"
"""How SciPy's warning about them begins."""
LIMITS = ("limit", "maximum number", "maxfun")
"""Words of messages about a limit."""


def named(method: str) -> str | None:
    """A method's name as SciPy writes it, None if there is none."""
    return next((name for name in METHODS if name.lower() == method.lower()), None)


def search(counted: Counted, method: str, settings: Settings) -> Ended:
    """Minimise by a method of `scipy.optimize.minimize`.

    Raises:
        MethodError: it takes no bounds, and there are some, or an option is none of its own.
    """
    takes, task = METHODS[method], counted.task
    if task.is_bounded and not takes.bounds:
        raise no_bounds(method, ["migrad", *BOUNDED])
    watched = _Watched()
    given: dict[str, Any] = {"jac": True} if takes.gradient else {}
    if takes.second is not None:
        given[takes.second] = watched.of(counted.hessian if takes.second == "hess" else counted.hvp)
    if task.is_bounded:
        given["bounds"] = scipy.optimize.Bounds(*task.bounds, keep_feasible=True)  # pyright: ignore[reportArgumentType]
    fun = watched.of(counted.value_and_gradient if takes.gradient else counted.value)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # What they say is told by the status.
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", scipy.optimize.OptimizeWarning)
        warnings.filterwarnings("error", UNKNOWN, scipy.optimize.OptimizeWarning)
        try:
            found = scipy.optimize.minimize(
                fun, task.x, method=method, tol=settings.tolerance, options=dict(settings.options), **given
            )
        except scipy.optimize.OptimizeWarning as warning:
            names = str(warning).removeprefix(UNKNOWN).strip(": ").split(", ")
            raise unknown_options(method, names, ()) from None
        except (ValueError, ArithmeticError) as error:
            if watched.is_finite or watched.failure is error:
                raise
            return Ended(counted.best[1], False, f"a derivative is not finite: {error}")
    is_limited = not found.success and any(word in found.message.lower() for word in LIMITS)
    num_steps = getattr(found, "nit", None)
    return Ended(np.asarray(found.x), bool(found.success), found.message, is_limited=is_limited, num_steps=num_steps)


class _Watched:
    """What a method calls: an error of its own after a derivative that is not finite is an end, not an error."""

    def __init__(self) -> None:
        self.is_finite: bool = True
        self.failure: Exception | None = None

    def of(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """The same function."""

        def evaluated(*given: Any) -> Any:
            try:
                found = evaluate(*given)
            except Exception as error:
                self.failure = error
                raise
            parts = found if isinstance(found, tuple) else (found,)
            self.is_finite &= all(bool(np.all(np.isfinite(part))) for part in parts)
            return found

        return evaluated
