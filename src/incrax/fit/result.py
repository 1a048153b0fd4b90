"""What a fit of least squares found.

In: vectors. Out: a `LeastSquaresResult` in the user's structures.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from incrax.fit import steps
from incrax.fit.problem import Problem
from incrax.fit.steps import Found


class Status(enum.Enum):
    """How a search ended."""

    CONVERGED = "converged"
    """Every element's undamped step is below the tolerance times its value, or times its standard error."""
    AT_PRECISION = "converged to rounding errors"
    """What is left to gain is below the rounding errors of the cost; nothing better can be had in this precision."""
    SINGULAR = "converged, not determined"
    """A minimum, but the data do not determine all parameters: the Jacobian has not full rank there."""
    UNDERDETERMINED = "converged, fewer residuals than parameters"
    """A point of least squares among many."""
    STALLED = "stalled"
    """No step lowers the cost and the cost is not at its rounding errors: a function that jumps, a wrong derivative."""
    MAX_STEPS = "step limit reached"
    NOT_FINITE = "not finite"
    """A residual or derivative is NaN or infinite at the start, or at a point that was taken."""

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
class LeastSquaresResult:
    """The end of a fit of m residuals by n free elements. Made by `levenberg_marquardt`."""

    status: Status
    cost: float
    """Half the sum of squares, weighed and under the loss."""
    names: tuple[str, ...]
    """Of the n free elements, in the order of `values` and `covariance`."""
    num_steps: int
    num_jacobians: int
    num_residuals: int
    """Evaluations of the residuals for steps that were tried."""
    num_dof: int
    """Degrees of freedom: residuals less the rank of their Jacobian."""
    is_absolute: bool
    """Whether the covariance is not scaled by the residual variance."""
    _found: Found = field(repr=False)
    _problem: Problem = field(repr=False)

    @cached_property
    def params(self) -> Any:
        """The first argument of the function at the minimum; what was not free as it was given."""
        return self._problem.tree(jnp.asarray(self._found.x))

    @cached_property
    def free(self) -> Any:
        """The free leaves in the shape of `wrt`, None where nothing is free."""
        return self._problem.selected(jnp.asarray(self._found.x))

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

    @cached_property
    def correlation(self) -> np.ndarray:
        """Shape (n, n)."""
        errors = self.standard_errors
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covariance / errors / errors[:, None]

    def table(self) -> Table:
        """The free elements with their errors, for a terminal."""
        table = Table()
        for name in ("parameter", "value", "standard error"):
            table.add_column(name, justify="left" if name == "parameter" else "right")
        for name, value, error in zip(self.names, self.values, self.standard_errors, strict=True):
            table.add_row(name, f"{value:.8g}", f"{error:.3g}")
        return table

    def __str__(self) -> str:
        head = f"{self.status.value}: cost {self.cost:.6g}, {self.num_steps} steps, {self.num_jacobians} Jacobians\n"
        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(self.table())
        return head + captured.get()
