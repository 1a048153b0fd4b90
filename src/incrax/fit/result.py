"""What a fit of least squares found.

In: vectors. Out: a `LeastSquaresResult` in the user's structures.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.table import Table

from incrax._console import ShownAsText
from incrax.errors import CovarianceError
from incrax.fit import records, steps
from incrax.fit.messages import unrecorded_covariance, without_function
from incrax.fit.problem import Problem
from incrax.fit.steps import Found, Summary


class Status(enum.Enum):
    """How a search ended."""

    CONVERGED = "converged"
    """Every element's undamped step is below the tolerance times its value, or times its standard error.

    Of a minimiser: it says so, and the gradient leaves at most a hundredth of the error definition to gain."""
    AT_PRECISION = "converged to rounding errors"
    """What is left to gain is below the rounding errors of the cost; nothing better can be had in this precision."""
    SINGULAR = "converged, not determined"
    """A minimum, but the data do not determine all parameters: the Jacobian has not full rank there."""
    UNDERDETERMINED = "converged, fewer residuals than parameters"
    """A point of least squares among many."""
    STALLED = "stalled"
    """No step lowers the cost and the cost is not at its rounding errors: a function that jumps, a wrong derivative.

    Of a minimiser: it gave up, or its gradient contradicts what it says of itself."""
    MAX_STEPS = "step limit reached"
    NOT_FINITE = "not finite"
    """A value, residual or derivative is NaN or infinite at the start, or at a point that was taken."""

    @property
    def is_converged(self) -> bool:
        """Whether the point is a minimum that the data determine."""
        return self in (Status.CONVERGED, Status.AT_PRECISION)


_ENDS = {
    steps.RUNNING: Status.MAX_STEPS,
    steps.CONVERGED: Status.CONVERGED,
    steps.QUIET: Status.AT_PRECISION,
    steps.SINGULAR: Status.SINGULAR,
    steps.STALLED: Status.STALLED,
    steps.NOT_FINITE: Status.NOT_FINITE,
}


def status_of(code: int, num_residuals: int, num_params: int) -> Status:
    """The end of a search by its number."""
    found = _ENDS[code]
    if found is Status.SINGULAR and num_residuals < num_params:
        return Status.UNDERDETERMINED
    return found


@dataclass(frozen=True, eq=False)
class LeastSquaresResult(ShownAsText):
    """The end of a fit of m residuals by n free elements. Made by `levenberg_marquardt`."""

    status: Status
    """How the search ended."""
    cost: float
    """Half the sum of squares, weighed and under the loss."""
    names: tuple[str, ...]
    """Of the n free elements, in the order of `values` and `covariance`."""
    num_steps: int
    """Steps taken."""
    num_jacobians: int
    """Evaluations of the Jacobian."""
    num_residuals: int
    """Evaluations of the residuals for steps that were tried."""
    num_dof: int
    """Degrees of freedom: residuals less the rank of their Jacobian."""
    is_absolute: bool
    """Whether the covariance is not scaled by the residual variance."""
    _found: Found = field(repr=False)
    _problem: Problem | None = field(repr=False)

    @cached_property
    def params(self) -> Any:
        """The first argument of the function at the minimum; what was not free as it was given."""
        return self._known("params").tree(jnp.asarray(self._found.x))

    @cached_property
    def free(self) -> Any:
        """The free leaves in the shape of `wrt`, None where nothing is free."""
        return self._known("free").selected(jnp.asarray(self._found.x))

    def _known(self, what: str) -> Problem:
        """The problem, which `what` needs."""
        if self._problem is None:
            raise without_function(what, "LeastSquaresResult")
        return self._problem

    @cached_property
    def values(self) -> np.ndarray:
        """Of the free elements, shape (n,)."""
        return np.asarray(self._found.x)

    @cached_property
    def residuals(self) -> np.ndarray:
        """Weighed, shape (m,)."""
        return np.asarray(self._found.residuals)

    @cached_property
    def covariance(self) -> np.ndarray:
        """(J^T J)^-1, shape (n, n), times the residual variance unless `is_absolute`.

        Infinite for what the data do not determine, NaN for what a bound holds.
        """
        if self._found.inverse is None:
            raise unrecorded_covariance(self.values.size)
        variance = 1.0 if self.is_absolute else 2 * self.cost / self.num_dof if self.num_dof > 0 else np.nan
        covariance = variance * np.asarray(self._found.inverse)
        is_known, is_free = np.asarray(self._found.is_known), np.asarray(self._found.is_free)
        covariance[~is_known] = covariance[:, ~is_known] = np.inf
        covariance[~is_free] = covariance[:, ~is_free] = np.nan
        return covariance

    @property
    def is_converged(self) -> bool:
        """Whether the point is a minimum that the data determine; see `Status`."""
        return self.status.is_converged

    @cached_property
    def standard_errors(self) -> np.ndarray:
        """Of each free element, shape (n,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def errors(self) -> np.ndarray:
        """What `standard_errors` is, under the name that all results of fits share."""
        return self.standard_errors

    @cached_property
    def correlation(self) -> np.ndarray:
        """Shape (n, n)."""
        errors = self.standard_errors
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covariance / errors / errors[:, None]

    def table(self) -> Table:
        """The free elements with their errors, for a terminal."""
        columns = {"value": [f"{value:.8g}" for value in self.values]}
        with contextlib.suppress(CovarianceError):
            columns["standard error"] = [f"{error:.3g}" for error in self.standard_errors]
        return records.element_table(self.names, columns)

    def _head(self) -> str:
        return f"{self.status.value}: cost {self.cost:.6g}, {self.num_steps} steps, {self.num_jacobians} Jacobians"

    def __str__(self) -> str:
        return records.printed(self._head(), self.table())

    def plot(self, axes: Any = None) -> Any:
        """Draw relative errors and correlations into two matplotlib axes, new ones if None; returns them.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return records.draw_fit(self.names, self.values, (self.errors, self.errors), self.correlation, axes)

    def to_json(self) -> str:
        """Everything but the function, as JSON; `from_json` reads it, every float to the last bit.

        A covariance that is too large to be found is left out.
        """
        content = {name: getattr(self, name) for name in _NUMBERS}
        content |= {name: np.asarray(getattr(self._found, name)) for name in _ARRAYS if name != "inverse"}
        content["inverse"] = None
        with contextlib.suppress(CovarianceError):
            content["inverse"] = np.asarray(self._found.inverse)
        return records.to_json("LeastSquaresResult", {**content, "status": self.status.name, "names": self.names})

    @staticmethod
    def from_json(text: str) -> LeastSquaresResult:
        """What `to_json` wrote; `params` and `free`, which need the function, raise.

        Raises:
            MinimumError: the text is something else.
        """
        content = records.from_json("LeastSquaresResult", text)
        arrays: dict[str, Any] = {name: records.array(content[name]) for name in _ARRAYS}
        arrays["inverse"] = None if content["inverse"] is None else arrays["inverse"]
        flags = {name: np.array(content[name], bool) for name in ("is_free", "is_known")}
        numbers: dict[str, Any] = {name: content[name] for name in _NUMBERS}
        numbers["cost"] = float(content["cost"])
        report = np.concatenate([arrays.pop("x"), np.zeros(len(Summary._fields))])
        found = Found(report=report, **arrays | flags)
        status, names = Status[content["status"]], tuple(content["names"])
        return LeastSquaresResult(status=status, names=names, **numbers, _found=found, _problem=None)


_NUMBERS = ("cost", "num_steps", "num_jacobians", "num_residuals", "num_dof", "is_absolute")
_ARRAYS = ("x", "residuals", "inverse", "is_free", "is_known")
