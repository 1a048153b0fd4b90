"""What a minimiser found.

In: the end of a search and its task. Out: a `FitResult`: values, errors, intervals, tables, JSON, plots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.table import Table

from incrax._console import ShownAsText
from incrax.fit import records
from incrax.fit.covariance import Curvature, curvature, is_held_by, left_to_gain
from incrax.fit.messages import not_a_minimum, other_function, unknown_element, without_function
from incrax.fit.minuit import Errors, Interval
from incrax.fit.result import Status
from incrax.fit.task import Counted, Counts, Task, Work, make_task

NEAR = 0.1
"""Of the error definition: farther from the minimum than this, intervals from here would be about another point."""
ENOUGH = 1e-2
"""Of the error definition: what may be left to gain at the end of a search that converged, a tenth of an error."""
NOISE = 10.0
"""Rounding errors of a value, in units of epsilon times the value."""
PRECISE = 1e-4
"""Of the error definition: an estimated distance to the minimum below this ends in rounding errors, not in a stall."""


def element_number(name: str, names: Sequence[str]) -> int:
    """The place of a free element among the names of all.

    Raises:
        MinimumError: none has this name.
    """
    if name not in names:
        raise unknown_element(name, names)
    return names.index(name)


@dataclass(frozen=True, eq=False)
class FitResult(ShownAsText):
    """The end of a search for the minimum of a function of n free elements. Made by `minimize`.

    Errors come from the Hessian at the end, which is evaluated when the first of them is asked for.
    """

    status: Status
    """How the search ended."""
    method: str
    """Its name."""
    message: str
    """The method's own account."""
    value: float
    """Of the function at the end."""
    values: np.ndarray
    """Of the free elements, shape (n,), float64."""
    names: tuple[str, ...]
    """Of the free elements, in the order of `values` and `covariance`."""
    bounds: tuple[np.ndarray, np.ndarray]
    """Lower and upper bound of each, shape (n,); infinite where there is none."""
    errordef: float
    """How far the function rises at one standard error: 0.5 for a negative log-likelihood, 1 for chi squared."""
    counts: Counts
    """Evaluations during the search."""
    work: Work
    """What saved values avoided in the search."""
    num_steps: int | None
    """Steps by the method's own count."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """By name, those that `minos` found so far."""
    _edm: float = np.nan
    _task: Task | None = field(default=None, repr=False)

    # --- where ---------------------------------------------------------------------------------------------------

    @property
    def is_converged(self) -> bool:
        """Whether the method ended by its own account, and the gradient bears it out; see `Status` and `is_minimum`."""
        return self.status.is_converged

    @cached_property
    def params(self) -> Any:
        """The first argument of the function at the end; what was not free as it was given."""
        return self.task("params").problem.tree(jnp.asarray(self.values))

    @cached_property
    def free(self) -> Any:
        """The free leaves in the shape of `wrt`, None where nothing is free."""
        return self.task("free").problem.selected(jnp.asarray(self.values))

    def task(self, what: str = "task") -> Task:
        """What was minimised, for `what` needs it.

        Raises:
            MinimumError: the result was read from JSON without a function.
        """
        if self._task is None:
            raise without_function(what)
        return self._task

    def number(self, name: str) -> int:
        """The place of a free element in `values`.

        Raises:
            MinimumError: none has this name.
        """
        return element_number(name, self.names)

    # --- derivatives and errors ----------------------------------------------------------------------------------

    @cached_property
    def gradient(self) -> np.ndarray:
        """At the end, shape (n,)."""
        return np.asarray(self.task("gradient").flat.value_and_gradient(self.values)[1])

    @cached_property
    def hessian(self) -> np.ndarray:
        """At the end, shape (n, n)."""
        return np.asarray(self.task("hessian").flat.hessian(self.values))

    @cached_property
    def is_held(self) -> np.ndarray:
        """Which elements a bound holds, shape (n,)."""
        return is_held_by(self.values, (self.gradient, np.diagonal(self.hessian)), self.bounds, self.errordef)

    @cached_property
    def _curvature(self) -> Curvature:
        return curvature(self.hessian, self.errordef, self.is_held)

    def hesse(self) -> np.ndarray:
        """The covariance, 2 errordef H^-1, shape (n, n), from the exact Hessian.

        Infinite for what the function does not determine; NaN for what a bound holds, and where it is no minimum.

        Cost: one Hessian, once.
        """
        return self._curvature.covariance

    @property
    def covariance(self) -> np.ndarray:
        """What `hesse` returns."""
        return self.hesse()

    @property
    def is_minimum(self) -> bool:
        """Whether nothing is left to gain, and the Hessian is positive definite for all that no bound holds."""
        return self._curvature.is_definite and self._left <= self.goal

    @property
    def is_near(self) -> bool:
        """Whether the Hessian is positive definite, and its minimum near enough for intervals and scans from here."""
        return self._curvature.is_definite and self._left <= max(NEAR * self.errordef, self.goal)

    @property
    def goal(self) -> float:
        """What may be left to gain at a minimum, in units of the function: a tenth of an error, or rounding errors."""
        eps = np.finfo(np.float64 if self._task is None else self._task.problem.x.dtype).eps
        return max(ENOUGH * self.errordef, NOISE * float(eps) * abs(self.value))

    def left(self, hessian: np.ndarray) -> float:
        """What is left to gain within the bounds, by a Hessian or an estimate of it."""
        return left_to_gain(self.values, self.gradient, hessian, self.bounds, self.errordef)

    @cached_property
    def _left(self) -> float:
        return self.left(self.hessian)

    @cached_property
    def errors(self) -> np.ndarray:
        """Standard errors, shape (n,): roots of the diagonal of `covariance`."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diagonal(self.covariance))

    @cached_property
    def correlation(self) -> np.ndarray:
        """Shape (n, n)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covariance / self.errors / self.errors[:, None]

    @cached_property
    def gradient_norm(self) -> float:
        """The greatest element of the gradient, those aside that a bound holds."""
        return float(np.max(np.abs(self.gradient[~self.is_held]), initial=0.0))

    @cached_property
    def edm(self) -> float:
        """Estimated distance to the minimum, in units of the function: g^T H^-1 g / 2 of what may move.

        Along directions in which the function has no minimum, what it gains by one error or the element's size.
        """
        return self._edm if np.isfinite(self._edm) else self._left

    def minos(self, *names: str, cl: float | None = None) -> dict[str, Interval]:
        """Asymmetric errors: how far an element goes until the function, minimised over all others, rises by errordef.

        By Minuit's MINOS, after any method.

        Args:
            *names: free elements; none: all that no bound holds.
            cl: confidence level; from 1 on a number of standard deviations. None: one standard deviation.

        Returns:
            Intervals by name, which `intervals` keeps as well.

        Raises:
            MissingExtraError: iminuit is not installed.
            MinimumError: a name is no free element, or there is no minimum here.

        Cost: some ten evaluations per element and side, and one Hessian for all.
        """
        task = self.task("minos")
        for name in names:
            self.number(name)
        chosen = names or tuple(name for name, is_held in zip(self.names, self.is_held, strict=True) if not is_held)
        found = self.minuit_errors(Counted(task), "minos").intervals(chosen, cl)
        self.intervals.update(found)
        return found

    def minuit_errors(self, counted: Counted, what: str) -> Errors:
        """Minuit at the minimum, over these functions.

        Raises:
            MinimumError: it is no minimum.
        """
        if not self.is_near:
            raise not_a_minimum(what, self.status.value)
        return Errors(counted, self.values, None if np.any(self.is_held) else self.hessian, self.errordef)

    # --- reports -------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """The free elements with their errors, for a terminal."""
        columns = {"value": [f"{x:.8g}" for x in self.values], "error": [f"{x:.3g}" for x in self.errors]}
        if self.intervals:
            found = [self.intervals.get(name) for name in self.names]
            columns["MINOS"] = ["" if each is None else f"{each.lower:+.3g} {each.upper:+.3g}" for each in found]
        return records.element_table(self.names, columns)

    def _head(self) -> str:
        done = ", ".join(f"{count} {name}" for name, count in self.counts._asdict().items() if count)
        avoided = f", {self.work.avoided:.0%} of the work avoided" if self.work.ran else ""
        return f"{self.method}: {self.status.value}, value {self.value:.8g}, edm {self.edm:.2g}; {done}{avoided}"

    def __str__(self) -> str:
        return records.printed(self._head(), self.table())

    def plot(self, axes: Any = None) -> Any:
        """Draw relative errors, those of MINOS where there are some, and the correlations.

        Args:
            axes: two matplotlib axes; None: new ones.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        found = [self.intervals.get(name) for name in self.names]
        rows = zip(found, self.errors, strict=True)
        sides = [(error, error) if each is None else (-each.lower, each.upper) for each, error in rows]
        return records.draw_fit(self.names, self.values, np.transpose(sides), self.correlation, axes)

    def to_json(self) -> str:
        """Everything but the function, as JSON; `from_json` reads it, every float to the last bit.

        Cost: a Hessian, if none was evaluated yet.
        """
        names = ("method", "message", "value", "values", "names", "bounds", "errordef", "num_steps")
        content = {name: getattr(self, name) for name in (*names, "gradient", "hessian")}
        content |= {"status": self.status.name, "edm": self._edm, "intervals": self.intervals}
        content |= {"counts": self.counts._asdict(), "work": self.work._asdict()}
        return records.to_json("FitResult", content)

    @staticmethod
    def from_json(
        text: str,
        fun: Callable[..., Any] | None = None,
        *args: Any,
        wrt: Any = None,
        bounds: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> FitResult:
        """What `to_json` wrote.

        Args:
            text: JSON.
            fun: what was minimised, for `params`, `minos` and scans; None: they raise.
            *args: its arguments, as for `minimize`.
            wrt: as for `minimize`.
            bounds: as for `minimize`; None: those of the record.

        Raises:
            MinimumError: the text is something else, or the function has other free elements.
        """
        content = records.from_json("FitResult", text)
        task = None if fun is None else make_task(fun, args, wrt, bounds)
        if task is not None and bounds is None:
            known = dict(zip(("lower", "upper"), map(records.array, content["bounds"]), strict=True))
            task = task._replace(problem=task.problem._replace(**known))
        if task is not None and list(task.problem.names) != content["names"]:
            raise other_function(task.problem.names, content["names"])
        intervals = {name: Interval(float(a), float(b), *rest) for name, (a, b, *rest) in content["intervals"].items()}
        found = FitResult(
            status=Status[content["status"]],
            method=content["method"],
            message=content["message"],
            value=float(content["value"]),
            values=records.array(content["values"]),
            names=tuple(content["names"]),
            bounds=(records.array(content["bounds"][0]), records.array(content["bounds"][1])),
            errordef=content["errordef"],
            counts=Counts(**content["counts"]),
            work=Work(**content["work"]),
            num_steps=content["num_steps"],
            intervals=intervals,
            _edm=float(content["edm"]),
            _task=task,
        )
        found.keep(gradient=records.array(content["gradient"]), hessian=records.array(content["hessian"]))
        return found

    def judged(self) -> FitResult:
        """The same, where a search that gave up is at its rounding errors: nothing is left to gain."""
        is_done = self.is_minimum and self._left <= PRECISE * self.errordef
        return self.retold(status=Status.AT_PRECISION) if is_done else self

    def keep(self, **derivatives: np.ndarray) -> None:
        """Derivatives at the end that are known already."""
        self.__dict__.update(derivatives)

    def retold(self, reason: str = "", status: Status | None = None, edm: float = np.nan) -> FitResult:
        """The same point with another status and a reason behind the method's own account."""
        message = f"{self.message}; {reason}" if reason else self.message
        found = replace(self, status=status or self.status, message=message, _edm=edm)
        found.keep(**{name: self.__dict__[name] for name in ("gradient", "hessian") if name in self.__dict__})
        return found
