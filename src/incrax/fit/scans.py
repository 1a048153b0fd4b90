"""What lies around a minimum, over the saved values: profiles, scans and contours; and impacts,
how far each nuisance parameter moves the parameter of interest.

In: a `FitResult`, names, grids, constraints. Out: a `Scan` or `Impacts`, which plot themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from incrax import Bound
from incrax._forecast import Forecast
from incrax._jax_options import spelled_here
from incrax._messages import wrong_option
from incrax._progress import Meter
from incrax._table import Printable, Table, many
from incrax.errors import MinimumError
from incrax.fit.axes import axes_for
from incrax.fit.following import Follower, Minimum
from incrax.fit.methods import check_level, failed_minuit
from incrax.fit.minimizing import minimize
from incrax.fit.result import (
    NEAR,
    FitResult,
    check_near,
    error_sides,
    minuit_from,
    near_enough,
    part_named,
)
from incrax.fit.task import CountedTask, Counts, Work, methods_of
from incrax.models.names import without_index

TOLERANCE = 1e-5
"""Of the error definition: the distance to the minimum over the others that is near enough."""
LEVELS = (1.0, 4.0, 9.0)
"""Of plots: rises at one, two and three standard errors, in error definitions."""


def _nothing() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, repr=False)
class Scan(Printable):
    """The function along one element or over two. Made by `profile`, `scan2d` and `contour`.

    A contour has no grid: `grids` is empty, and so are `values`, `free` and `is_converged`.

    Fields:
        axes: names of the elements, one or two.
        names: names of all n free elements, in the order of `free`.
        minimum: the function where the scan started; of a grid, as exact as its points.
        errordef: how far the function rises at one standard error.
        counts: evaluations on the way.
        work: what saved values avoided.
        grids: values of the elements: shape (k,), or shapes (k,) and (l,).
        values: the function, minimised over the other elements, shape (k,) or (k, l).
        free: all elements at each point, shape (k, n) or (k, l, n).
        is_converged: whether the minimum over the others was found, in the shape of `values`.
        cl: the confidence level of a contour.
        level: how far above the minimum the function is on a contour.
        points: those of a contour, in order, shape (m, 2); the last one is the first.

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * ((p["a"] - 1.0) ** 2 + (p["b"] - p["a"]) ** 2)
        >>> scan = fit.profile((nll, {"a": 0.0, "b": 0.0}), "p['a']", grid=[0.0, 1.0, 3.0])
        >>> scan.grid.tolist(), np.round(np.abs(scan.rise), 3).tolist()
        ([0.0, 1.0, 3.0], [0.5, 0.0, 2.0])
    """

    axes: tuple[str, ...]
    names: tuple[str, ...]
    minimum: float
    errordef: float
    counts: Counts
    work: Work
    grids: tuple[np.ndarray, ...] = ()
    values: np.ndarray = field(default_factory=_nothing)
    free: np.ndarray = field(default_factory=_nothing)
    is_converged: np.ndarray = field(default_factory=_nothing)
    cl: float | None = None
    level: float | None = None
    points: np.ndarray = field(default_factory=_nothing)

    @property
    def grid(self) -> np.ndarray:
        """Values of the first element, shape (k,)."""
        return self.grids[0]

    @property
    def rise(self) -> np.ndarray:
        """Values less the minimum; below zero where a better minimum was found."""
        return self.values - self.minimum

    @property
    def is_alarming(self) -> bool:
        """Whether minima were not found, or a better one was."""
        return bool(self._num_failed or self._gain)

    @property
    def _at(self) -> str:
        """Where a contour runs, as it was asked for."""
        cl = self.cl or 0.0
        return f"the confidence level {cl:g}" if cl < 1 else f"{cl:g} sigma"

    @property
    def _num_failed(self) -> int:
        return int(np.sum(~self.is_converged.astype(bool)))

    @property
    def _gain(self) -> float:
        """By how much a point lies below the minimum that the scan started from; 0 if only by its
        tolerance.
        """
        gain = -np.nanmin(self.rise, initial=0.0)
        return gain if gain > NEAR * self.errordef else 0.0

    def summary(self) -> str:
        """What was scanned, and what went wrong."""
        names = " and ".join(self.axes)
        kind = f"scan of {names}: {' x '.join(map(str, self.values.shape))} points"
        if self.cl is not None:
            found = many(len(self.points), "point")
            kind = f"contour of {names} at {self._at}: {found}"
        failed = f"; {self._num_failed} minima not found" if self._num_failed else ""
        better = f"; a minimum lower by {self._gain:.3g} was found" if self._gain else ""
        return f"{kind}{failed}{better}; {self.counts.text(self.work)}"

    def tables(self) -> list[Table]:
        """The rise along one element; of two where each went."""
        if len(self.axes) == 1:
            line = [
                (f"{at:.6g}", f"{rise:.4g}") for at, rise in zip(self.grid, self.rise, strict=True)
            ]
            return [Table("", (self.axes[0], "rise"), line)]
        places = self.grids or self.points.T
        rows = [
            (name, at.size, f"{at.min():.6g}", f"{at.max():.6g}")
            for name, at in zip(self.axes, places, strict=True)
        ]
        return [Table("", ("element", "points", "from", "to"), rows)]

    def plot(self, ax: Any = None) -> Any:
        """Draw the rise, or the contour.

        Along one element with lines at one, two and three standard errors, over two as filled
        contours.

        Args:
            ax: matplotlib axes; None: those of a new figure.

        Returns:
            The figure.

        Raises:
            ValueError: it is another number of axes.
            MissingExtraError: matplotlib is not installed.
        """
        figure, (axes,) = axes_for("Scan.plot", ax, 1, (6.4, 4.8))
        axes.set_xlabel(self.axes[0])
        axes.set_ylabel([*self.axes, "rise above the minimum"][1])
        highest = 1.2 * np.nanmax(self.rise, initial=self.errordef)
        levels = [level * self.errordef for level in LEVELS if level * self.errordef < highest]
        if self.cl is not None:
            axes.set_title(self._at)
            axes.plot(*self.points.T, color="C0")
        elif len(self.axes) == 1:
            order = np.argsort(self.grid)
            axes.plot(self.grid[order], self.rise[order], ".-")
            for level in levels:
                axes.axhline(level, color="grey", lw=0.5)
        else:
            at = *self.grids, self.rise.T
            filled = axes.contourf(*at, levels=20, cmap="viridis_r")
            axes.contour(*at, levels=levels, colors="white", linewidths=0.7)
            figure.colorbar(filled, ax=axes, label="rise above the minimum")
        return figure


# --- scans ----------------------------------------------------------------------------------------


@spelled_here
def profile(
    result: FitResult | Bound | tuple[Any, ...],
    name: str,
    *,
    grid: ArrayLike | None = None,
    num_points: int = 30,
    width: float = 2.0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Scan:
    """The function along one element, minimised over all others at each point.

    Each point starts from its neighbour, moved by what second derivatives predict; one evaluation
    of value and gradient is enough for most. Elements that would gain nothing stay where they are,
    and what only they reach is loaded.

    Args:
        result: a minimum; or a bound model, or a tuple of what `minimize` takes, which is minimised
            first.
        name: of the element, as in `result.names`, or the end of it where only one fits.
        grid: values of the element, shape (k,), in any order; None: `num_points` around the
            minimum.
        num_points: of the grid.
        width: half of the grid's, in standard errors; bounds cut it.
        tolerance: of the distance to the minimum over the others, in error definitions.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Grid, values, all elements at each point; see `Scan`.

    Raises:
        MinimumError: the name is no free element, there is no minimum, or the grid cannot be used.

    Cost: one to two evaluations of value and gradient per point, and second derivatives as for errors.

    Example:
        >>> from incrax import fit
        >>> loss = lambda p: 0.5 * (p["a"] - 1.0) ** 2 + 2.0 * (p["b"] - p["a"]) ** 2
        >>> found = fit.profile((loss, {"a": 0.0, "b": 0.0}), "p['a']", grid=[0.0, 1.0, 2.0])
        >>> abs(found.rise).round(3).tolist()
        [0.5, 0.0, 0.5]
    """
    result = _minimum(result, "profile")
    number = result.number(name)
    points = _grid(result, number, grid, num_points, width)
    return _scan(result, [number], (points,), tolerance, progress=progress)


def scan2d(
    result: FitResult | Bound | tuple[Any, ...],
    first: str,
    second: str,
    *,
    grids: tuple[ArrayLike, ArrayLike] | None = None,
    num_points: int | tuple[int, int] = 20,
    width: float = 3.0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Scan:
    """The function over a grid of two elements, minimised over all others at each point.

    Args:
        result: as for `profile`.
        first: an element, named as for `profile`.
        second: another one.
        grids: values of each, shapes (k,) and (l,); None: around the minimum.
        num_points: of each grid, or of both.
        width: half of the grids', in standard errors; bounds cut it.
        tolerance: as for `profile`.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Grids, values of shape (k, l), all elements at each point; see `Scan`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or a grid
            cannot be used.

    Cost: one to two evaluations of value and gradient per point.

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * (p["a"] ** 2 + p["b"] ** 2)
        >>> start = (nll, {"a": 0.5, "b": 0.5})
        >>> scan = fit.scan2d(start, "p['a']", "p['b']", grids=([0.0, 1.0], [0.0, 2.0]))
        >>> np.abs(scan.rise).round(3).tolist()
        [[0.0, 2.0], [0.5, 2.5]]
    """
    result = _minimum(result, "scan2d")
    numbers = _pair(result, first, second)
    given = _two("grids", (None, None) if grids is None else grids)
    sizes = _two("num_points", (num_points,) * 2 if np.isscalar(num_points) else num_points)
    columns = zip(numbers, given, sizes, strict=True)
    axes = tuple(_grid(result, *column, width) for column in columns)
    return _scan(result, numbers, axes, tolerance, progress=progress)


@spelled_here
def contour(
    result: FitResult | Bound | tuple[Any, ...],
    first: str,
    second: str,
    *,
    cl: float = 0.68,
    num_points: int = 40,
) -> Scan:
    """Where the function, minimised over all other elements, has risen to a confidence level of two
    elements, by Minuit.

    Args:
        result: as for `profile`.
        first: an element, named as for `profile`.
        second: another one.
        cl: confidence level of the pair; from 1 on a number of standard deviations of one element.
        num_points: of the contour.

    Returns:
        Points around the minimum; see `Scan`. A contour of several pieces is a line of a plot of
        `scan2d` at the same `level`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or no contour
            is found.
        MissingExtraError: iminuit is not installed.

    Cost: some three evaluations per point.

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * (p["a"] ** 2 + (p["b"] / 2) ** 2)
        >>> found = fit.contour((nll, {"a": 0.5, "b": 0.5}), "p['a']", "p['b']", cl=1 - np.exp(-0.5))
        >>> np.abs(found.points).max(axis=0).round(1).tolist()
        [1.0, 2.0]
    """
    check_level("contour", cl)
    result = _minimum(result, "contour")
    names = tuple(result.names[number] for number in _pair(result, first, second))
    level = result.errordef * _standard_rise(cl)
    counted = CountedTask(result.task)
    with minuit_from(result, counted, "contour") as minuit:
        points = np.asarray(minuit.mncontour(*names, cl=cl, size=num_points))
    if len(points) < 4:
        raise failed_minuit("contour", f"{max(len(points) - 1, 0)} points were found")
    found = {"minimum": result.value, "level": level, "points": points}
    return _scan_of(result, names, counted, cl=cl, **found)


def _standard_rise(cl: float) -> float:
    """Rise of twice the negative log-likelihood at a confidence level of two elements.

    It is chi squared of two degrees of freedom: P(rise < r) = 1 - exp(-r / 2). A number n of
    standard deviations is the level P = erf(n / sqrt 2).
    """
    outside = math.erfc(cl / math.sqrt(2)) if cl >= 1 else 1.0 - cl
    return float(-2.0 * np.log(outside))


# --- impacts --------------------------------------------------------------------------------------

IMPACT_TOLERANCE = 1e-6
"""Of the error definition: the distance to each minimum that is near enough. The parameter of
interest is then known to a thousandth of its error, and small impacts are told apart.
"""
HEADER = ("nuisance", "value", "error", "pull", "shift at - error", "shift at + error")
NUM_DRAWN = 30
"""Rows of a plot."""

Constraints = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Impacts(Printable):
    """Impacts of k nuisance parameters on a parameter of interest, the greatest first.

    Made by `impacts`. NaN where there is none: of a parameter that a bound holds, or that the data
    do not determine; those are the last.

    Fields:
        poi: name of the parameter of interest.
        value: the parameter of interest at the minimum, which is found once more with `tolerance`.
        error: its standard error.
        names: names of the nuisance parameters.
        values: the nuisance parameters at the minimum, shape (k,).
        errors: their errors after the fit, below and above, shape (k, 2), both positive: those of
            MINOS where the result has them, else standard errors.
        held: where they were held, shape (k, 2): value less and plus error, within their bounds.
        shifts: by how much the parameter of interest moves, shape (k, 2).
        is_converged: whether the minimum over all others was found, shape (k, 2).
        centres: centres of their constraints, shape (k,); NaN where none was given.
        widths: standard errors of their constraints, shape (k,); NaN where none was given.
        counts: evaluations on the way.
        work: what saved values avoided.

    Example:
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * ((p["mu"] + p["nu"] - 1.0) ** 2 + p["nu"] ** 2)
        >>> found = fit.impacts((nll, {"mu": 0.0, "nu": 0.0}), "p['mu']")
        >>> found.names, [round(float(size), 2) for size in found.sizes]
        (("p['nu']",), [1.0])
    """

    poi: str
    value: float
    error: float
    names: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    held: np.ndarray
    shifts: np.ndarray
    is_converged: np.ndarray
    centres: np.ndarray
    widths: np.ndarray
    counts: Counts
    work: Work

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
        self._draw_pulls(left, np.arange(count)[::-1])
        self._draw_shifts(right, np.arange(count)[::-1])
        return figure

    def _draw_pulls(self, axes: Any, places: np.ndarray) -> None:
        count = len(places)
        axes.axvspan(-1, 1, color="0.9")
        axes.axvline(0, color="0.6", lw=0.8)
        errors = self.pull_errors[:count].T
        axes.errorbar(self.pulls[:count], places, xerr=errors, fmt="o", ms=4, color="black")
        axes.set_yticks(places, [self._label(k) for k in range(count)])
        axes.set_xlim(*np.array([-1.0, 1.0]) * max(2.0, *np.abs(axes.get_xlim())))
        axes.set_xlabel("pull, (value - centre) / width")

    def _draw_shifts(self, axes: Any, places: np.ndarray) -> None:
        shifts = self.shifts[: len(places)].T
        for side, shift, color in zip("-+", shifts, ("C1", "C0"), strict=True):
            label = f"held at value {side} error"
            axes.barh(places, shift, 0.7, color=color, alpha=0.8, label=label)
        axes.axvline(0, color="0.6", lw=0.8)
        axes.set_xlabel(f"shift of {self.poi} = {self.value:.4g} ± {self.error:.2g}")
        axes.locator_params(axis="x", nbins=5)
        # Above the bars, as there is no corner that is free in all rankings.
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)

    def _label(self, k: int) -> str:
        if np.isfinite(self.widths[k]):
            return self.names[k]
        return f"{self.names[k]} = {self.values[k]:.4g} ± {self.errors[k].mean():.2g}"

    @property
    def _num_failed(self) -> int:
        return int(np.sum(~self.is_converged & np.isfinite(self.held)))

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
        num = self._num_failed
        failed = f"; {num} of {self.is_converged.size} minima not found" if num else ""
        return f"{head}, moved by {many(len(self.names), 'parameter')}{moved}{failed}"

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
    constraints: Constraints | None = None,
    tolerance: float = IMPACT_TOLERANCE,
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
    result = _minimum(result, "impacts")
    counted = CountedTask(result.task)
    interest = result.number(poi)
    numbers = np.delete(np.arange(len(result.names)), interest)
    centres, widths = _known(result, constraints or {})
    goal = near_enough(result, tolerance)
    best = _sharpened(counted, _minimum_of(result), goal)
    errors = np.array([error_sides(result, number) for number in numbers.tolist()]).reshape(-1, 2)
    held = best.x[numbers, None] + errors * [-1.0, 1.0]
    held = np.clip(held, *(bound[numbers, None] for bound in result.bounds))
    followers = [Follower(counted, best, [number], goal) for number in numbers.tolist()]
    ends, is_converged = _moved(followers, held, interest, progress=progress)
    shifts = ends - best.x[interest]
    order = np.argsort(-np.nan_to_num(_sizes(shifts), nan=-1.0), kind="stable")
    ranked = numbers[order]
    return Impacts(
        poi=result.names[interest],
        value=float(best.x[interest]),
        error=float(result.errors[interest]),
        names=tuple(result.names[number] for number in ranked),
        values=best.x[ranked],
        errors=errors[order],
        held=held[order],
        shifts=shifts[order],
        is_converged=is_converged[order],
        centres=centres[ranked],
        widths=widths[ranked],
        counts=counted.counts,
        work=counted.work,
    )


def _sharpened(counted: CountedTask, first: Minimum, goal: float) -> Minimum:
    """A minimum as exact as those that are compared with it: a method of a fit is content a
    hundredth of an error away, which would be part of every rise and shift.
    """
    follower = Follower(counted, first, [], goal)
    if follower.distance(first) <= goal:
        return first
    found = follower.at([])
    return found if found.is_converged else first


def _moved(
    followers: Sequence[Follower], held: np.ndarray, interest: int, *, progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Where one element is while another is held at two places, shape (k, 2), and whether that is a
    minimum over all others.
    """
    found = np.full(held.shape, np.nan)
    is_converged = np.zeros(held.shape, bool)
    with Meter("impacts", held.size, is_shown=progress) as meter:
        for place in map(tuple, np.argwhere(np.isfinite(held))):
            at = followers[place[0]].at(held[place])
            found[place] = at.x[interest]
            is_converged[place] = at.is_converged
            meter.advance()
    return found, is_converged


def _sizes(shifts: np.ndarray) -> np.ndarray:
    return np.fmax(*np.abs(shifts).T)


def _known(result: FitResult, constraints: Constraints) -> tuple[np.ndarray, np.ndarray]:
    """Centre and width of each element's constraint, shape (n,) each; NaN where there is none."""
    if not isinstance(constraints, Mapping):
        raise wrong_option("impacts(constraints=...)", constraints, "a mapping from names to pairs")
    found = np.full((2, len(result.names)), np.nan)
    for name, pair in constraints.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _wrong_nuisance_constraint(name, repr(pair), "it is no pair")
        try:
            known = [np.asarray(each, float) for each in pair]
        except (TypeError, ValueError) as error:
            raise _wrong_nuisance_constraint(name, repr(pair), "it is no numbers") from error
        part, numbers = part_named(name, result.names)
        for number in numbers:
            rest = result.names[number].removeprefix(part)
            _, index = without_index(rest)
            place = index or ()
            for row, given in enumerate(known):
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


# --- inner ----------------------------------------------------------------------------------------


def _minimum_of(result: FitResult) -> Minimum:
    """Where scans start from."""
    derivatives = result.gradient, result.second_derivatives
    return Minimum(result.values, result.value, *derivatives, is_converged=True)


def _minimum(result: Any, what: str) -> FitResult:
    """What users gave, or where it is minimised."""
    if not isinstance(result, FitResult):
        if not isinstance(result, (Bound, tuple)):
            raise wrong_option(
                what, result, "a fit, a bound model, or a tuple of what `minimize` takes"
            )
        result = minimize(result) if isinstance(result, Bound) else minimize(*result)
    check_near(result, what)
    return result


def _pair(result: FitResult, first: str, second: str) -> tuple[int, int]:
    numbers = result.number(first), result.number(second)
    if numbers[0] == numbers[1]:
        raise MinimumError(
            f"A scan of two elements got `{first}` twice. Nothing was evaluated. Name two "
            "different ones."
        )
    return numbers


def _two(option: str, given: Any) -> Any:
    if not isinstance(given, (tuple, list, np.ndarray)) or len(given) != 2:
        raise wrong_option(f"scan2d({option}=...)", given, "a pair, one for each element")
    return given


def _grid(result: FitResult, number: int, grid: Any, num_points: int, width: float) -> np.ndarray:
    name = result.names[number]
    lower, upper = (bound[number] for bound in result.bounds)
    if grid is None:
        if not isinstance(num_points, (int, np.integer)) or num_points < 1:
            raise _wrong_grid(name, f"of {num_points!r} points", "it has none")
        error = result.errors[number]
        if not np.isfinite(error):
            reason = f"its standard error is {error}, so that there is no width"
            raise _wrong_grid(name, "None", reason)
        ends = result.values[number] + width * error * np.array([-1.0, 1.0])
        low, high = ends.clip(lower, upper)
        grid = np.linspace(low, high, num_points)
    try:
        found = np.asarray(grid, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 1 or not found.size or not np.all(np.isfinite(found)):
        raise _wrong_grid(name, repr(grid), "it is no vector of finite numbers")
    if np.any((found < lower) | (found > upper)):
        raise _wrong_grid(name, repr(grid), f"it leaves the bounds ({lower:.6g}, {upper:.6g})")
    return found


def _scan(
    result: FitResult,
    held: Sequence[int],
    grids: tuple[np.ndarray, ...],
    tolerance: float,
    *,
    progress: bool,
) -> Scan:
    """The function over a grid, the last axis running fastest."""
    task = result.task
    counted = CountedTask(task)
    held = list(held)
    points = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(held))
    goal = tolerance * result.errordef
    best = _sharpened(counted, _minimum_of(result), goal)
    follower = Follower(counted, best, held, goal)
    forecast = Forecast(lambda: methods_of(task), len(points))
    found: dict[int, Minimum] = {}
    with Meter("scan", len(points), is_shown=progress) as meter:
        for k in _outward(result, held, points):
            found[k] = follower.at(points[k])
            forecast.advance()
            meter.advance()
    minima = [found[k] for k in range(len(points))]
    shape = tuple(map(len, grids))
    return _scan_of(
        result,
        [result.names[number] for number in held],
        counted,
        minimum=best.value,
        grids=grids,
        values=np.array([each.value for each in minima]).reshape(shape),
        free=np.stack([each.x for each in minima]).reshape(*shape, -1),
        is_converged=np.array([each.is_converged for each in minima]).reshape(shape),
    )


def _scan_of(result: FitResult, axes: Iterable[str], counted: CountedTask, **found: Any) -> Scan:
    """What was found around a minimum, by some evaluations."""
    return Scan(
        axes=tuple(axes),
        names=result.names,
        errordef=result.errordef,
        counts=counted.counts,
        work=counted.work,
        **found,
    )


def _outward(result: FitResult, held: Sequence[int], points: np.ndarray) -> Iterable[int]:
    """An order in which each point has a neighbour: of one element first up, then down; of two by
    distance.
    """
    center = result.values[held]
    errors = result.errors[held]
    distance = np.sum(((points - center) / np.where(errors > 0, errors, 1.0)) ** 2, axis=1)
    is_down = points[:, 0] < center[0] if len(held) == 1 else np.zeros(len(points), bool)
    return map(int, np.lexsort((distance, is_down)))


def _wrong_grid(name: str, seen: str, reason: str) -> MinimumError:
    """A grid that cannot be scanned."""
    return MinimumError(
        f"A scan of `{name}` got the grid {seen}: {reason}. Nothing was evaluated. Pass a vector "
        "of values within the bounds."
    )
