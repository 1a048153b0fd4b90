"""Impacts: how far each nuisance parameter moves the parameter of interest.

In: a minimum, names, constraints. Out: `Impacts`, sorted, which plots itself and goes to and from
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from incrax import Bound
from incrax._progress import Meter
from incrax._table import Printable, Table, many
from incrax.errors import MinimumError
from incrax.fit.drawing import axes_for
from incrax.fit.following import Follower, Minimum
from incrax.fit.records import Record
from incrax.fit.result import FitResult, elements_named
from incrax.fit.scans import fit_of, minimum_of
from incrax.fit.task import CountedTask, Counts, Work

TOLERANCE = 1e-6
"""Of the error definition: the distance to each minimum that is near enough. The parameter of
interest is then known to a thousandth of its error, and small impacts are told apart.
"""
HEADER = ("nuisance", "value", "error", "pull", "shift at - error", "shift at + error")
NUM_DRAWN = 30
"""Rows of a plot."""

Constraints = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Impacts(Record, Printable):
    """Impacts of k nuisance parameters on a parameter of interest, the greatest first.

    Made by `impacts`. NaN where there is none: of a parameter that a bound holds, or that the data
    do not determine; those are the last.

    Example:
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * ((p["mu"] + p["nu"] - 1.0) ** 2 + p["nu"] ** 2)
        >>> found = fit.impacts((nll, {"mu": 0.0, "nu": 0.0}), "p['mu']")
        >>> found.names, [round(float(size), 2) for size in found.sizes]
        (("p['nu']",), [1.0])
    """

    poi: str
    """Name of the parameter of interest."""
    value: float
    """Of the parameter of interest, at the minimum, which is found anew with the tolerance."""
    error: float
    """Its standard error."""
    names: tuple[str, ...]
    """Of the nuisance parameters."""
    values: np.ndarray
    """Of the nuisance parameters, at the minimum, shape (k,)."""
    errors: np.ndarray
    """Their errors after the fit, below and above, shape (k, 2), both positive: those of MINOS
    where the result has them, else standard errors.
    """
    held: np.ndarray
    """Where they were held, shape (k, 2): value less and plus error, within their bounds."""
    shifts: np.ndarray
    """By how much the parameter of interest moves, shape (k, 2)."""
    is_converged: np.ndarray
    """Whether the minimum over all others was found, shape (k, 2)."""
    centres: np.ndarray
    """Of their constraints, shape (k,); NaN where none was given."""
    widths: np.ndarray
    """Standard errors of their constraints, shape (k,); NaN where none was given."""
    counts: Counts
    """Evaluations on the way."""
    work: Work
    """What saved values avoided."""

    @property
    def sizes(self) -> np.ndarray:
        """The greater of both shifts by size, shape (k,)."""
        return _sizes(self.shifts)

    @property
    def pulls(self) -> np.ndarray:
        """(value - centre) / width of the constraint, shape (k,)."""
        return (self.values - self.centres) / self.widths

    @property
    def pull_errors(self) -> np.ndarray:
        """Errors after the fit in units of the constraint's width, below and above, shape (k, 2):
        1 where the data say nothing, less where they do.
        """
        return self.errors / self.widths[:, None]

    def plot(self, ax: Any = None, *, num_rows: int = NUM_DRAWN) -> Any:
        """Draw pulls on the left and impacts on the right, a row for each nuisance parameter.

        A parameter without a constraint has no pull; its row says value and error.

        Args:
            ax: two matplotlib axes; None: those of a new figure.
            num_rows: rows, at most.

        Returns:
            The figure.

        Raises:
            ValueError: it is another number of axes.
            MissingExtraError: matplotlib is not installed.
        """
        count = min(num_rows, len(self.names))
        size = (9, 1.5 + 0.28 * count)
        figure, (left, right) = axes_for("Impacts.plot", ax, 2, size, sharey=True)
        places = np.arange(count)[::-1]
        left.axvspan(-1, 1, color="0.9")
        left.axvline(0, color="0.6", lw=0.8)
        errors = self.pull_errors[:count].T
        left.errorbar(self.pulls[:count], places, xerr=errors, fmt="o", ms=4, color="black")
        left.set_yticks(places, [self._label(k) for k in range(count)])
        left.set_xlim(*np.array([-1.0, 1.0]) * max(2.0, *np.abs(left.get_xlim())))
        left.set_xlabel("pull, (value - centre) / width")
        shifts = self.shifts[:count].T
        for side, shift, color in zip("-+", shifts, ("C1", "C0"), strict=True):
            right.barh(
                places, shift, 0.7, color=color, alpha=0.8, label=f"held at value {side} error"
            )
        right.axvline(0, color="0.6", lw=0.8)
        right.set_xlabel(f"shift of {self.poi} = {self.value:.4g} ± {self.error:.2g}")
        right.locator_params(axis="x", nbins=5)
        # Above the bars, as there is no corner that is free in all rankings.
        right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        return figure

    def _label(self, k: int) -> str:
        if np.isfinite(self.widths[k]):
            return self.names[k]
        return f"{self.names[k]} = {self.values[k]:.4g} ± {self.errors[k].mean():.2g}"

    @property
    def _num_failed(self) -> int:
        return int(np.sum(~self.is_converged))

    @property
    def is_alarming(self) -> bool:
        """Whether minima were not found."""
        return bool(self._num_failed)

    def summary(self) -> str:
        """The parameter of interest, the nuisance parameter that moves it most, and minima that
        were not found.
        """
        head = f"{self.poi} = {self.value:.6g} ± {self.error:.3g}"
        moved = f"; most by {self.names[0]}" if self.names else ""
        failed = f"; {self._num_failed} of {self.is_converged.size} minima not found"
        return f"{head}, moved by {many(len(self.names), 'parameter')}{moved}{failed if self._num_failed else ''}"

    def tables(self) -> list[Table]:
        """The first impacts and pulls."""
        rows = [
            (
                name,
                f"{value:.4g}",
                f"{errors.mean():.3g}",
                "" if np.isnan(pull) else f"{pull:+.2f}",
                *(f"{shift:+.3g}" for shift in shifts),
            )
            for name, value, errors, pull, shifts in zip(
                self.names, self.values, self.errors, self.pulls, self.shifts, strict=True
            )
        ]
        return [Table("", HEADER, rows)]


def impacts(
    result: FitResult | Bound | tuple[Any, ...],
    poi: str,
    *,
    nuisances: str | Iterable[str] | None = None,
    constraints: Constraints | None = None,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Impacts:
    """How far each nuisance parameter moves the parameter of interest.

    Each is held at its best value less and plus its error after the fit, and the function is
    minimised over all others: the shift of the parameter of interest is the impact. In a Gaussian
    model it is the covariance of the two over the nuisance parameter's error.

    Args:
        result: a minimum; or a bound model, or a tuple of what `minimize` takes, which is minimised
            first.
        poi: name of the parameter of interest, as in `result.names`, or the end of it where only
            one fits.
        nuisances: names of the others, also of arrays of them. None: all free elements.
        constraints: what is known of nuisance parameters beside the data, for pulls: a mapping of
            names to pairs (centre, standard error), numbers, or arrays of the shape of the named
            one. It is what the function has as constraint terms already, and changes no minimum.
        tolerance: of the distance to each minimum, in error definitions; rounding errors of the
            function are tolerated as well.
        progress: whether more than two seconds show their progress on a terminal.

    Returns:
        Impacts and pulls, sorted by the size of the impact; see `Impacts`.

    Raises:
        MinimumError: a name is no free element or stands for several, there is no minimum, or a
            constraint does not fit.

    Cost: one to three evaluations of value and gradient per nuisance parameter and side. If the
        result has no second derivatives yet, they are found as for its errors. So nothing is traced
        or compiled after most fits.

    Example:
        >>> from incrax import fit
        >>> def loss(p):
        ...     return 0.5 * (p["mu"] + 0.5 * p["theta"] - 2.0) ** 2 + 0.5 * p["theta"] ** 2
        >>> found = fit.impacts((loss, {"mu": 0.0, "theta": 0.5}), "mu", constraints={"theta": (0, 1)})
        >>> found.names, found.shifts.round(3).tolist(), abs(found.pulls.round(2)).tolist()
        (("p['theta']",), [[0.5, -0.5]], [0.0])
    """
    result = fit_of(result, "impacts")
    counted = CountedTask(result.task("impacts"))
    result.check_near("impacts")
    interest = result.number(poi)
    numbers = _nuisances(result, interest, nuisances)
    centres, widths = _known(result, constraints or {})
    errors = np.array([result.error_sides(number) for number in numbers]).reshape(-1, 2)
    goal = result.near_enough(tolerance)
    best = _best(result, counted, goal)
    ends = best.x[numbers, None] + errors * [-1.0, 1.0]
    held = np.clip(ends, *(bound[numbers, None] for bound in result.bounds))
    shifts = np.full(held.shape, np.nan)
    is_converged = np.zeros(held.shape, bool)
    with Meter("impacts", held.size, is_shown=progress) as meter:
        for row, number in enumerate(numbers):
            follower = Follower(counted, best, [number], goal)
            for side in np.flatnonzero(np.isfinite(held[row])):
                at = follower.at(held[row, [side]])
                shifts[row, side] = at.x[interest] - best.x[interest]
                is_converged[row, side] = at.is_converged
                meter.advance()
    order = np.argsort(-np.nan_to_num(_sizes(shifts), nan=-1.0), kind="stable")
    chosen = numbers[order]
    return Impacts(
        poi=result.names[interest],
        value=float(best.x[interest]),
        error=float(result.errors[interest]),
        names=tuple(result.names[number] for number in chosen),
        values=best.x[chosen],
        errors=errors[order],
        held=held[order],
        shifts=shifts[order],
        is_converged=is_converged[order],
        centres=centres[chosen],
        widths=widths[chosen],
        counts=counted.counts,
        work=counted.work,
    )


# --- inner ----------------------------------------------------------------------------------------


def _sizes(shifts: np.ndarray) -> np.ndarray:
    return np.fmax(*np.abs(shifts).T)


def _best(result: FitResult, counted: CountedTask, goal: float) -> Minimum:
    """The minimum, as exact as those that are compared with it.

    A method of a fit is content a hundredth of an error away, which would be part of every shift.
    """
    first = minimum_of(result)
    found = Follower(counted, first, [], goal).at([])
    return found if found.is_converged else first


# --- names ----------------------------------------------------------------------------------------

_INDEX = re.compile(r"\[(-?\d+(?:, -?\d+)*)\]")


def _nuisances(result: FitResult, interest: int, nuisances: Any) -> np.ndarray:
    """The elements that are held, shape (k,)."""
    if nuisances is None:
        return np.delete(np.arange(len(result.names)), interest)
    found: dict[int, None] = {}
    for name in (nuisances,) if isinstance(nuisances, str) else nuisances:
        numbers = [*elements_named(name, result.names)]
        if numbers == [interest]:
            raise MinimumError(
                f"`impacts` got `{name}` both as the parameter of interest and in `nuisances`, and "
                "its impact on itself is its error. Nothing was evaluated. Leave it out of "
                "`nuisances`."
            )
        found |= dict.fromkeys(number for number in numbers if number != interest)
    return np.array(list(found), int)


def _known(result: FitResult, constraints: Constraints) -> tuple[np.ndarray, np.ndarray]:
    """Centre and width of each element's constraint, shape (n,) each; NaN where there is none."""
    found = np.full((2, len(result.names)), np.nan)
    for name, pair in constraints.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _wrong_nuisance_constraint(name, repr(pair), "it is no pair")
        for number, rest in elements_named(name, result.names).items():
            index = _INDEX.fullmatch(rest)
            place = tuple(map(int, index[1].split(","))) if index else ()
            for row, given in enumerate(np.asarray(each, float) for each in pair):
                try:
                    found[row, number] = given[place] if given.ndim else given
                except (IndexError, TypeError, ValueError) as error:
                    seen = f"an array of shape {list(given.shape)}"
                    reason = f"it does not fit the element `{name}{rest}`"
                    raise _wrong_nuisance_constraint(name, seen, reason) from error
            if not 0 < found[1, number] < np.inf:
                seen = f"the standard error {found[1, number]:.6g}"
                raise _wrong_nuisance_constraint(name, seen, "it is no number above zero")
    return found[0], found[1]


def _wrong_nuisance_constraint(name: str, seen: str, reason: str) -> MinimumError:
    """A constraint that gives no pull."""
    return MinimumError(
        f"`impacts(constraints=...)` got {seen} for `{name}`: {reason}. Nothing was evaluated. "
        "Pass the centre and the standard error of the constraint, numbers or arrays of the "
        'parameter\'s shape: `constraints={"theta": (0.0, 1.0)}`.'
    )
