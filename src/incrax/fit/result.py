"""What a fit found, by a minimiser or by least squares.

In: the end of a search. Out: a `FitResult`: values, errors, intervals, a table, plots.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from incrax._jax_options import missing
from incrax._messages import did_you_mean, listed
from incrax._table import Printable, Table, many
from incrax.engine.inputs.paths import completed
from incrax.errors import MinimumError
from incrax.fit.axes import axes_for
from incrax.fit.covariance import Curvature, curvature, differenced, is_held_by, left_to_gain
from incrax.fit.methods import Interval, check_level, interval_of, minuit_at
from incrax.fit.problem import Problem
from incrax.fit.task import CountedTask, Counts, Task, Work, slope
from incrax.models.bounds import Box
from incrax.models.names import elements_named

NEAR = 0.1
"""Of the error definition: farther from the minimum than this, intervals from here would be about
another point.
"""
ENOUGH = 1e-2
"""Of the error definition: what may be left to gain at the end of a search that converged, a tenth
of an error.
"""
NOISE = 10.0
"""Rounding errors of a value, in units of epsilon times the value."""
IN_FLOAT32 = (
    "the function is evaluated in float32, to 7 digits: "
    '`jax.config.update("jax_enable_x64", True)` ahead of the first array, and data in float64, '
    "give 16"
)


class Intervals(dict[str, Interval]):
    """Asymmetric errors by the names of elements, or the ends of these: `found["mu"]`."""

    def __missing__(self, name: str) -> Interval:
        found = [each for each in completed([*self], name) if each in self]
        if len(found) != 1:
            raise MinimumError(
                f"MINOS has no interval by the name {name!r}. This is usually a typing error, an "
                "element that was not asked for, or an end that several names have. Nothing was "
                f"evaluated. There are those of {listed(self)}; or ask `result.minos` for it."
            )
        return self[found[0]]


ELSEWHERE = {
    "x": "`result.values`, or `result.params`",
    "fun": "`result.value`",
    "fval": "`result.value`",
    "nll": "`result.value`",
    "fmin": "`result.value`, `result.edm` and `result.is_converged`",
    "limits": "`result.bounds`",
    "success": "`result.is_converged`",
    "valid": "`result.is_converged`",
    "jac": "`result.gradient`",
    "cov": "`result.covariance`",
    "hess_inv": "`result.covariance`",
    "hesse": "`result.errors`",
    "merrors": "`result.minos()`",
    "nfev": "`result.counts`",
    "nit": "`result.num_steps`",
    "ndof": "`result.num_dof`",
    "profile": "`fit.profile(result, name)`",
    "contour": "`fit.contour(result, first, second)`",
    "impacts": "`fit.impacts(result, name)`",
}
"""What to write, by the names that results of SciPy and iminuit have, or of functions of `fit`."""
NO_DERIVATIVE = (TypeError, ValueError, NotImplementedError)
"""What JAX raises for functions that have no derivative, or no second one."""
NUM_ROWS = 100
"""Elements that are printed."""
MOST_LABELS = 30
"""Elements up to which a drawn correlation names its rows."""
MOST = 256
"""Elements up to which second derivatives are found by differences of gradients."""


def part_named(name: str, names: Sequence[str]) -> tuple[str, list[int]]:
    """The whole name of what a name, or the end of it, stands for, and the places of its elements.

    Raises:
        MinimumError: there are none, or several things end so.
    """
    found = elements_named(name, names)
    if not found:
        raise MinimumError(
            f"{name!r} names no free element of this fit. This is usually a typing error, an array "
            "without `[i]`, or a parameter that `wrt` leaves out. Nothing was evaluated. Free are "
            f"{listed(names)}.{did_you_mean(str(name), names)}"
        )
    if len(found) > 1:
        raise _several_elements(name, [names[k] for own in found.values() for k in own])
    return next(iter(found.items()))


class Status(enum.Enum):
    """How a search ended.

    Fields:
        CONVERGED: every element's undamped step is below the tolerance times its value, or times
            its standard error. Of a minimiser: it says so, and the gradient leaves at most a
            hundredth of the error definition to gain.
        AT_PRECISION: what is left to gain is below the rounding errors of the cost; nothing better
            can be had in this precision.
        SINGULAR: a minimum, but the data do not determine all parameters: the Jacobian has not full
            rank there.
        UNDERDETERMINED: the same, because there are fewer residuals than parameters.
        STALLED: no step lowers the cost and the cost is not at its rounding errors: a function that
            jumps, a wrong derivative. Of a minimiser: it gave up, or its gradient contradicts what
            it says of itself.
        MAX_STEPS: the limit of steps or calls was reached, or a callback ended the search.
        NOT_FINITE: a value, residual or derivative is NaN or infinite at the start, or at a point
            that was taken.

    Example:
        >>> from incrax import fit
        >>> fit.Status.CONVERGED.is_converged, fit.Status.MAX_STEPS.is_converged
        (True, False)
    """

    CONVERGED = "converged"
    AT_PRECISION = "converged to rounding errors"
    SINGULAR = "converged, not determined"
    UNDERDETERMINED = "converged, fewer residuals than parameters"
    STALLED = "stalled"
    MAX_STEPS = "step limit reached"
    NOT_FINITE = "not finite"

    @property
    def is_converged(self) -> bool:
        """Whether the point is a minimum that the data determine."""
        return self in (Status.CONVERGED, Status.AT_PRECISION)


class LinearModel(NamedTuple):
    """Residuals at the end of a fit of least squares, and what their Jacobian says of errors.

    Arrays, or what NumPy makes an array of: nothing is fetched or computed before it is asked for.
    """

    residuals: Any
    """Shape (m,)."""
    inverse: Any
    """(J^T J)^-1, shape (n, n)."""
    is_free: Any
    """Which elements are not held by a bound, shape (n,)."""
    is_known: Any
    """Which elements the data determine, shape (n,)."""

    def of(self, numbers: np.ndarray) -> LinearModel:
        """That of some elements, all others fixed."""
        inverse = np.asarray(self.inverse)[np.ix_(numbers, numbers)]
        flags = (np.asarray(each)[numbers] for each in (self.is_free, self.is_known))
        return LinearModel(self.residuals, inverse, *flags)


@dataclass(frozen=True, eq=False, repr=False)
class FitResult(Printable):
    """The end of a search for the minimum of a function of n free elements.

    Made by `minimize`, `levenberg_marquardt`.

    Errors are found when the first of them is asked for: from the Hessian at the end, of least
    squares from the Jacobian there. A gradient, a Hessian, `edm`, `minos` and scans of least
    squares are those of the cost, `value`. `result["mu"]` is the value of a free element, or the
    array of those of a part, by name or the end of it, and `result.error("mu")` its error.

    Fields:
        status: how the search ended.
        method: the name of the method.
        message: what the method said, and which test failed.
        value: the function at the end; of least squares half the sum of squares under the loss.
        values: the free elements at the end, shape (n,).
        names: names of the free elements, in the order of `values` and `covariance`.
        bounds: lower and upper bounds, shape (n,) each; infinite where there is none.
        errordef: how far the function rises at one standard error: 0.5 for a negative
            log-likelihood, 1 for chi squared; of least squares half the residual variance, or 0.5
            if `is_absolute`.
        counts: evaluations during the search of a minimiser.
        work: what saved values avoided in the search.
        num_steps: steps by the method's own count.
        intervals: what `minos` found so far, by name or the end of one.
        num_jacobians: of least squares: evaluations of the Jacobian.
        num_residuals: of least squares: evaluations of the residuals for steps that were tried.
        num_dof: of least squares, degrees of freedom: residuals less the rank of their Jacobian.
        is_absolute: whether the covariance is not scaled by the residual variance.

    Example:
        >>> from incrax import fit
        >>> result = fit.minimize(lambda p: (p["a"] - 1.0) ** 2 + p["b"] ** 2, {"a": 0.0, "b": 3.0})
        >>> result.is_converged, result.names
        (True, ("p['a']", "p['b']"))
        >>> {name: abs(round(float(value), 1)) for name, value in result.params.items()}
        {'a': 1.0, 'b': 0.0}
        >>> round(float(result["a"]), 1)
        1.0
    """

    status: Status
    method: str
    message: str
    value: float
    values: np.ndarray
    names: tuple[str, ...]
    bounds: Box
    errordef: float
    _problem: Problem
    _make_task: Callable[[], Task]
    """What was minimised; the cost of least squares is a function only when one asks for it."""
    counts: Counts = Counts()
    work: Work = Work(0, 0)
    num_steps: int | None = None
    intervals: dict[str, Interval] = field(default_factory=Intervals)
    num_jacobians: int | None = None
    num_residuals: int | None = None
    num_dof: int | None = None
    is_absolute: bool = True
    _edm: float = np.nan
    _linear: LinearModel | None = field(default=None, repr=False)

    # --- where ------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # else a checker would take any name

        def __getattr__(self, name: str) -> Any:
            """Never found: the error says what has the place of what SciPy and iminuit have."""
            if name not in ELSEWHERE:  # raises what a property raised, if any
                return object.__getattribute__(self, name)
            raise missing(self, name, ELSEWHERE)

    @property
    def is_converged(self) -> bool:
        """Whether the method ended by its own account, and the gradient agrees; see `Status`
        and `is_minimum`.
        """
        return self.status.is_converged

    @cached_property
    def params(self) -> Any:
        """The first argument of the function at the end; what was not free as it was given."""
        return self._problem.tree(self.values)

    @cached_property
    def free(self) -> Any:
        """The free leaves in the shape of `wrt`, None where nothing is free."""
        return self._problem.selected(self.values)

    @cached_property
    def task(self) -> Task:
        """What was minimised."""
        return self._make_task()

    @property
    def cost(self) -> float:
        """What `value` is, by the name that least squares have for it."""
        return self.value

    @cached_property
    def residuals(self) -> np.ndarray | None:
        """Of least squares: shape (m,)."""
        return None if self._linear is None else np.asarray(self._linear.residuals)

    def number(self, name: str) -> int:
        """The place of a free element in `values`, by its name or the end of it.

        Raises:
            MinimumError: none has this name, or several.
        """
        _, numbers = part_named(name, self.names)
        if len(numbers) > 1:
            raise _several_elements(name, [self.names[k] for k in numbers])
        return numbers[0]

    def __getitem__(self, name: str) -> Any:
        """The fitted value of a free element, by its name or the end of it, or the array of those of
        a part.

        Raises:
            MinimumError: nothing free has this name, or several things have.
        """
        return self._named(name, self.values)

    def error(self, name: str) -> Any:
        """The standard error of a free element, or those of a part; names as in `result["mu"]`.

        Raises:
            MinimumError: nothing free has this name, or several things have.
        """
        return self._named(name, self.errors)

    def _named(self, name: str, of_elements: np.ndarray) -> Any:
        part, numbers = part_named(name, self.names)
        return of_elements[numbers[0] if part in self.names else numbers]

    # --- derivatives and errors -------------------------------------------------------------------

    @cached_property
    def gradient(self) -> np.ndarray:
        """At the end, shape (n,)."""
        return slope(self.task, self.values)

    @cached_property
    def hessian(self) -> np.ndarray:
        """At the end, shape (n, n)."""
        flat = self.task.flat
        return np.asarray(flat.hessian(self.values))

    @cached_property
    def second_derivatives(self) -> np.ndarray:
        """What errors, tests of an end and scans go by, shape (n, n): `hessian` if it is known.

        Else differences of gradients, to some 1e-8, where they determine everything: XLA compiles a
        Hessian for longer than most fits take. Else `hessian`.
        """
        if "hessian" in self.__dict__ or self.values.size > MOST or in_float32(self):
            return self.hessian
        task = self.task
        found = differenced(lambda x: slope(task, x), self.values, self.bounds, self.errordef)
        return self.hessian if found is None else found

    @cached_property
    def is_held(self) -> np.ndarray:
        """Which elements a bound holds, shape (n,)."""
        if self._linear is not None:
            return ~np.asarray(self._linear.is_free)
        return is_held_by(
            self.values,
            (self.gradient, np.diagonal(self.second_derivatives)),
            self.bounds,
            self.errordef,
        )

    @cached_property
    def _curvature(self) -> Curvature:
        if not np.isfinite(self.value):  # derivatives may be finite there, and mean nothing
            return Curvature(np.full(2 * self.values.shape, np.nan), is_definite=False)
        return curvature(self.second_derivatives, self.errordef, self.is_held)

    @cached_property
    def covariance(self) -> np.ndarray:
        """2 errordef H^-1, shape (n, n), H the second derivatives at the end.

        Of least squares H is J^T J, so that it is (J^T J)^-1 times the residual variance, or times
        one if `is_absolute`. Infinite for
        what the function, or the data, do not determine; NaN for what a bound holds, and where it
        is no minimum.

        Cost: one Hessian, or two gradients for each element, once; of least squares nothing more
        than a fit with a dense Jacobian has found already.
        """
        if self._linear is None or not np.isfinite(self.value):
            return self._curvature.covariance
        linear = self._linear
        covariance = 2 * self.errordef * np.asarray(linear.inverse)
        for is_good, value in ((linear.is_known, np.inf), (linear.is_free, np.nan)):
            is_bad = ~np.asarray(is_good)
            covariance[is_bad] = covariance[:, is_bad] = value
        return covariance

    @property
    def is_minimum(self) -> bool:
        """Whether nothing is left to gain, and the Hessian is positive definite for all that no
        bound holds.
        """
        return self._curvature.is_definite and self._left <= near_enough(self)

    @property
    def is_saddle(self) -> bool:
        """Whether the function falls from here along some way, by second derivatives."""
        return self._curvature.is_saddle

    @cached_property
    def _left(self) -> float:
        return gain_left(self, self.second_derivatives)

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

    @property
    def edm(self) -> float:
        """Estimated distance to the minimum, in units of the function: g^T H^-1 g / 2 of what may
        move, H by second derivatives where they are known, else what the method has learned of it.

        Along directions in which the function has no minimum, what it gains by one error or the
        element's size.
        """
        is_learned = np.isfinite(self._edm) and "second_derivatives" not in self.__dict__
        return self._edm if is_learned else self._left

    def minos(self, *names: str, cl: float | None = None) -> dict[str, Interval]:
        """Asymmetric errors: how far an element goes until the function, minimised over all others,
        rises by errordef.

        By Minuit's MINOS, after any method.

        Args:
            *names: free elements, or the ends of their names where only one fits; none: all that no
                bound holds.
            cl: confidence level; from 1 on a number of standard deviations. None: one standard
                deviation.

        Returns:
            Intervals by whole names, and as `intervals`, which keeps them, by the ends of these:
            `minos()["mu"]`.

        Raises:
            MissingExtraError: iminuit is not installed.
            MinimumError: a name is no free element, or there is no minimum here.

        Cost: some ten evaluations per element and side, and second derivatives for all.
        """
        if cl is not None:
            check_level("minos", cl)
        chosen = [self.names[self.number(name)] for name in names] or [
            name for name, is_held in zip(self.names, self.is_held, strict=True) if not is_held
        ]
        with minuit_from(self, CountedTask(self.task), "minos") as minuit:
            minuit.minos(*chosen, cl=cl)
            merrors = [minuit.merrors[name] for name in chosen]
        intervals = Intervals(zip(chosen, [interval_of(each, cl) for each in merrors], strict=True))
        self.intervals.update(intervals)
        return intervals

    # --- reports ----------------------------------------------------------------------------------

    @property
    def is_alarming(self) -> bool:
        """Whether the search did not converge."""
        return not self.is_converged

    def tables(self) -> list[Table]:
        """The free elements with their errors."""
        errors, reasons = self._told_errors()
        columns = {
            "parameter": self.names,
            "value": [f"{x:.8g}" for x in self.values],
            "error": [f"{x:.3g}" for x in errors],
            "": reasons.tolist(),
        }
        if self.intervals:
            found = [self.intervals.get(name, ())[:2] for name in self.names]
            columns["MINOS"] = [" ".join(map(_told_side, ends)) for ends in found]
        why = self.message if self.is_alarming else ""
        return [Table(why, [*columns], [*zip(*columns.values(), strict=True)], NUM_ROWS)]

    def _told_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Errors, and in words why there is none."""
        if not np.isfinite(self.value):
            return self.errors, np.full(self.values.shape, "not finite")
        try:
            errors = self.errors
        except NO_DERIVATIVE:
            return np.full(self.values.shape, np.nan), np.full(self.values.shape, "no derivative")
        falls = "no degrees of freedom" if self.num_dof == 0 else "Hessian not positive"
        reasons = (self.is_held, np.isinf(errors), np.isnan(errors))
        return errors, np.select(reasons, ("at a bound", "not determined", falls), "")

    def summary(self) -> str:
        """How the search ended, where, and what it took; the distance to the minimum if it is
        known, as this evaluates nothing.
        """
        start = f"{self.method}: {self.status.value}, value {self.value:.8g}"
        if self._linear is not None:
            steps = many(self.num_steps or 0, "step")
            return f"{start}; {steps}, {many(self.num_jacobians or 0, 'Jacobian')}"
        is_exact = "second_derivatives" in self.__dict__
        is_known = is_exact or np.isfinite(self._edm)
        edm = f", edm {self.edm:.2g}" if is_known else ""
        if is_exact and near_enough(self) < self._left < np.inf:
            edm = f"{edm} by second derivatives: minimise again from here"
        if is_exact and self.is_saddle:
            edm = ", at a saddle by second derivatives: minimise again from here with strategy=1"
        return f"{start}{edm}; {self.counts.text(self.work)}"

    def plot(self, ax: Any = None) -> Any:
        """Draw relative errors, those of MINOS where there are some, and the correlations.

        Args:
            ax: two matplotlib axes; None: those of a new figure.

        Returns:
            The figure.

        Raises:
            ValueError: it is another number of axes.
            MissingExtraError: matplotlib is not installed.
        """
        size = (10, 1.5 + 0.3 * len(self.names))
        figure, (left, right) = axes_for("FitResult.plot", ax, 2, size)
        sides = [error_sides(self, k) for k in range(len(self.names))]
        scale = np.where(self.values == 0, 1.0, np.abs(self.values)) / 100
        places = np.arange(len(self.names))[::-1]
        relative = np.nan_to_num(np.transpose(sides) / scale)
        left.errorbar(0 * places, places, xerr=relative, fmt="o", color="C0")
        pairs = zip(self.names, self.values, strict=True)
        left.set_yticks(places, [f"{name} = {value:.5g}" for name, value in pairs])
        left.set_xlabel("error, % of the value")
        image = right.imshow(self.correlation, vmin=-1, vmax=1, cmap="RdBu")
        if len(self.names) <= MOST_LABELS:  # beyond, they lie on each other; the left has them, too
            right.set_xticks(range(len(self.names)), self.names, rotation=90)
            right.set_yticks(range(len(self.names)), self.names)
        figure.colorbar(image, ax=right, label="correlation")
        return figure


# --- for other modules ----------------------------------------------------------------------------


def near_enough(result: FitResult, share: float = ENOUGH) -> float:
    """What may be left to gain, in units of the function: a share of the error definition, or
    rounding errors where these are larger.
    """
    eps = float(np.finfo(np.float32 if in_float32(result) else np.float64).eps)
    return max(share * result.errordef, NOISE * eps * abs(result.value))


def in_float32(result: FitResult) -> bool:
    """Whether the function is evaluated in float32: what is free is, or data make it so."""
    free = result._problem.x.dtype
    # Evaluations that are not ours have no account of it.
    dtypes = free, getattr(result.task.flat, "value_dtype", free)
    return min(dtype.itemsize for dtype in dtypes) < np.dtype(np.float64).itemsize


def gain_left(result: FitResult, hessian: np.ndarray) -> float:
    """What is left to gain within the bounds, by a Hessian or an estimate of it."""
    return left_to_gain(result.values, result.gradient, hessian, result.bounds, result.errordef)


def error_sides(result: FitResult, number: int) -> tuple[float, float]:
    """The error of an element below and above, both positive: those of MINOS for one sigma where
    it found them, else the standard error; NaN where there is none.
    """
    found = result.intervals.get(result.names[number])
    if found is not None and found.is_valid and found.cl in (None, 1):
        return -found.lower, found.upper
    error = float(result.errors[number])
    return (error, error) if np.isfinite(error) else (np.nan, np.nan)


def minuit_from(result: FitResult, counted: CountedTask, what: str) -> AbstractContextManager[Any]:
    """Minuit at the minimum, over these functions.

    Raises:
        MinimumError: it is no minimum.
    """
    check_near(result, what)
    hessian = None if np.any(result.is_held) else result.second_derivatives
    return minuit_at(counted, result.values, hessian, result.errordef, what)


def check_near(result: FitResult, what: str) -> None:
    """Refuse a point to go out from whose Hessian is not positive definite, or has its minimum
    elsewhere.

    Raises:
        MinimumError: as it says.
    """
    if result._curvature.is_definite and result._left <= near_enough(result, NEAR):
        return
    flat = [name for name, x in zip(result.names, result.errors, strict=True) if np.isinf(x)]
    here = f" (here {listed(flat)})" if flat else ""
    is_definite = result._curvature.is_definite
    above = f", {result._left:.2g} above it by second derivatives" if is_definite else ""
    digits = f" Also, {IN_FLOAT32}." if in_float32(result) else ""
    raise MinimumError(
        f"`{what}` goes out from a minimum, and this search ended as: {result.status.value}{above}. "
        "Its Hessian is needed, positive definite, for a first guess. This is usually a "
        "search that was stopped, a function with kinks, or a parameter that the data do "
        f"not determine{here}. Minimise again from here with `strategy=1`, which finds the "
        f"way down from a saddle, smooth the function, or fix that parameter by `wrt`.{digits}"
    )


def _told_side(end: float) -> str:
    """An end of an interval."""
    return "not found" if np.isnan(end) else f"{end:+.3g}"


def _several_elements(name: str, found: Sequence[str]) -> MinimumError:
    """A name that several elements have."""
    return MinimumError(
        f"{name!r} may be {listed(found)}. This is usually an array without `[i]`, or a name that two "
        "models have. Nothing was evaluated. Write the whole name of the one you mean."
    )
