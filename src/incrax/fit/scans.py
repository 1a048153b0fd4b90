"""Profiles, scans and contours around a minimum, over the saved values.

In: a `FitResult`, names, grids. Out: a `Scan`, which plots itself and goes to and from JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import erfc

from incrax import Bound
from incrax._extras import needed
from incrax._forecast import Forecast
from incrax._progress import Meter
from incrax._table import Printable, Table, many
from incrax.errors import MinimumError
from incrax.fit.drawing import axes_for
from incrax.fit.following import Follower, Minimum
from incrax.fit.methods import failed_minuit
from incrax.fit.minimizing import minimize
from incrax.fit.records import Record
from incrax.fit.result import NEAR, FitResult
from incrax.fit.task import CountedTask, Counts, Work

TOLERANCE = 1e-5
"""Of the error definition: the distance to the minimum over the others that is near enough."""
MARGIN = 1.6
"""Of a contour by a grid: how much farther than the ellipse the grid goes."""
LEVELS = (1.0, 4.0, 9.0)
"""Of plots: rises at one, two and three standard errors, in error definitions."""


def _nothing() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, repr=False)
class Scan(Record, Printable):
    """The function along one element or over two. Made by `profile`, `scan2d` and `contour`.

    A contour by Minuit has no grid: `grids` is empty, and so are `values`, `free` and
    `is_converged`.

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * ((p["a"] - 1.0) ** 2 + (p["b"] - p["a"]) ** 2)
        >>> scan = fit.profile((nll, {"a": 0.0, "b": 0.0}), "p['a']", grid=[0.0, 1.0, 3.0])
        >>> scan.grid.tolist(), np.round(np.abs(scan.rise), 3).tolist()
        ([0.0, 1.0, 3.0], [0.5, 0.0, 2.0])
    """

    axes: tuple[str, ...]
    """Names of the elements, one or two."""
    names: tuple[str, ...]
    """Of all n free elements, in the order of `free`."""
    minimum: float
    """Of the function, where the scan started."""
    errordef: float
    """How far the function rises at one standard error."""
    counts: Counts
    """Evaluations on the way."""
    work: Work
    """What saved values avoided."""
    grids: tuple[np.ndarray, ...] = ()
    """Values of the elements: shape (k,), or shapes (k,) and (l,)."""
    values: np.ndarray = field(default_factory=_nothing)
    """Of the function, minimised over the others or not, shape (k,) or (k, l)."""
    free: np.ndarray = field(default_factory=_nothing)
    """All elements at each point, shape (k, n) or (k, l, n)."""
    is_converged: np.ndarray = field(default_factory=_nothing)
    """Whether the minimum over the others was found, in the shape of `values`."""
    cl: float | None = None
    """Of a contour: the confidence level."""
    level: float | None = None
    """Of a contour: how far the function has risen above the minimum on it."""
    pieces: tuple[np.ndarray, ...] = ()
    """Of a contour: points, shape (m, 2) each; usually one closed piece."""

    @property
    def grid(self) -> np.ndarray:
        """Values of the first element, shape (k,)."""
        return self.grids[0]

    @property
    def rise(self) -> np.ndarray:
        """Values less the minimum; below zero where a better minimum was found."""
        return self.values - self.minimum

    @property
    def points(self) -> np.ndarray:
        """Of a contour: the longest piece, shape (m, 2)."""
        return max(self.pieces, key=len)

    @property
    def is_alarming(self) -> bool:
        """Whether minima were not found, or a better one was."""
        return bool(self._num_failed or self._gain)

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

    @property
    def _lowest(self) -> str:
        if np.all(np.isnan(self.values)):
            return "nowhere finite"
        place = np.unravel_index(np.nanargmin(self.values), self.values.shape)
        at = [f"{grid[k]:.6g}" for grid, k in zip(self.grids, place, strict=True)]
        return f"lowest at {', '.join(at)}"

    def summary(self) -> str:
        """What was scanned, and what went wrong."""
        names = " and ".join(self.axes)
        if self.cl is not None:
            kind = f"contour of {names} at the confidence level {self.cl:g}"
            found = many(len(self.pieces), "piece")
        else:
            kind = f"scan of {names}"
            found = f"{' x '.join(map(str, self.values.shape))} points, {self._lowest}"
        failed = f"; {self._num_failed} minima not found" if self._num_failed else ""
        better = f"; a minimum lower by {self._gain:.3g} was found" if self._gain else ""
        return f"{kind}: {found}{failed}{better}; {self.counts.text(self.work)}"

    def tables(self) -> list[Table]:
        """Where each element went."""
        places = self.grids or np.concatenate(self.pieces).T
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
        axes.set_ylabel(self.axes[1] if len(self.axes) > 1 else "rise above the minimum")
        if self.cl is not None:
            axes.set_title(f"confidence level {self.cl:g}")
            for piece in self.pieces:
                axes.plot(*piece.T, color="C0")
        elif len(self.axes) == 1:
            self._draw_line(axes)
        else:
            self._draw_plane(axes)
        return figure

    def _draw_line(self, axes: Any) -> None:
        order = np.argsort(self.grid)
        axes.plot(self.grid[order], self.rise[order], ".-")
        for level in self._levels(1.2 * np.nanmax(self.rise, initial=self.errordef)):
            axes.axhline(level, color="grey", lw=0.5)

    def _levels(self, highest: float) -> list[float]:
        """Rises at one, two and three standard errors, those that are drawn."""
        return [rise for level in LEVELS if (rise := level * self.errordef) < highest]

    def _draw_plane(self, axes: Any) -> None:
        filled = axes.contourf(*self.grids, self.rise.T, levels=20, cmap="viridis_r")
        levels = self._levels(np.nanmax(self.rise))
        if levels:
            axes.contour(*self.grids, self.rise.T, levels=levels, colors="white", linewidths=0.7)
        axes.figure.colorbar(filled, ax=axes, label="rise above the minimum")


# --- scans ----------------------------------------------------------------------------------------


def profile(
    result: FitResult | Bound | tuple[Any, ...],
    name: str,
    *,
    grid: Any = None,
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
    grids: tuple[Any, Any] | None = None,
    num_points: int | tuple[int, int] = 20,
    width: float = 3.0,
    is_minimized: bool = True,
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
        is_minimized: whether the others are minimised over; if not they stay at the minimum, and
            only values are evaluated.
        tolerance: as for `profile`.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Grids, values of shape (k, l), all elements at each point; see `Scan`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or a grid
            cannot be used.

    Cost: one to two evaluations of value and gradient per point, or one value if nothing is
    minimised.

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
    sizes = num_points if isinstance(num_points, tuple) else (num_points, num_points)
    given = (None, None) if grids is None else grids
    axes = [_grid(result, *each, width) for each in zip(numbers, given, sizes, strict=True)]
    goal = tolerance if is_minimized else None
    return _scan(result, numbers, tuple(axes), goal, progress=progress)


def contour(
    result: FitResult | Bound | tuple[Any, ...],
    first: str,
    second: str,
    *,
    cl: float = 0.68,
    num_points: int = 40,
    method: Literal["mncontour", "grid"] = "mncontour",
    progress: bool = True,
) -> Scan:
    """Where the function, minimised over all other elements, has risen to a confidence level of two
    elements.

    Args:
        result: as for `profile`.
        first: an element, named as for `profile`.
        second: another one.
        cl: confidence level of the pair; from 1 on a number of standard deviations of one element.
        num_points: of the contour by Minuit; of each side of the grid otherwise.
        method: `"mncontour"`, Minuit's; `"grid"`, interpolated in a `scan2d`, which finds several
            pieces as well.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Pieces of points, each closed where it does not leave the grid; see `Scan`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or no contour
            is found.
        MissingExtraError: iminuit, or for `"grid"` matplotlib, is not installed.

    Cost: of Minuit some three evaluations per point.

    Example:
        >>> import numpy as np
        >>> from incrax import fit
        >>> nll = lambda p: 0.5 * (p["a"] ** 2 + (p["b"] / 2) ** 2)
        >>> found = fit.contour((nll, {"a": 0.5, "b": 0.5}), "p['a']", "p['b']", cl=1 - np.exp(-0.5))
        >>> np.abs(np.concatenate(found.pieces)).max(axis=0).round(1).tolist()
        [1.0, 2.0]
    """
    if method not in ("mncontour", "grid"):
        raise ValueError(f'`contour(method=...)` got {method!r}; use "mncontour" or "grid".')
    result = _minimum(result, "contour")
    names = tuple(result.names[number] for number in _pair(result, first, second))
    standard = _standard_rise(cl)
    level = result.errordef * standard
    if method == "grid":
        width = MARGIN * float(np.sqrt(standard))
        scan = scan2d(result, first, second, num_points=num_points, width=width, progress=progress)
        return replace(scan, cl=cl, level=level, pieces=_lines(scan, level))
    task = result.task("contour")
    counted = CountedTask(task)
    with result.minuit(counted, "contour") as minuit:
        points = np.asarray(minuit.mncontour(*names, cl=cl, size=num_points))
    if len(points) < 4:
        raise failed_minuit("contour", f"{max(len(points) - 1, 0)} points were found")
    return _scan_of(result, names, counted, cl=cl, level=level, pieces=(points,))


def _standard_rise(cl: float) -> float:
    """Rise of twice the negative log-likelihood at a confidence level of two elements."""
    outside = erfc(cl / np.sqrt(2)) if cl >= 1 else 1.0 - cl
    return float(-2.0 * np.log(outside))


# --- inner ----------------------------------------------------------------------------------------


def fit_of(result: Any, what: str) -> FitResult:
    """What users gave, or where it is minimised.

    Raises:
        MinimumError: it is no fit of a scalar function, or has none with it.
    """
    if isinstance(result, Bound):
        result = (result,)
    found = result if isinstance(result, FitResult) else minimize(*result)
    found.task(what)
    return found


def minimum_of(result: FitResult) -> Minimum:
    """Where scans start from."""
    derivatives = result.gradient, result.second_derivatives
    return Minimum(result.values, result.value, *derivatives, is_converged=True)


def _minimum(result: Any, what: str) -> FitResult:
    found = fit_of(result, what)
    found.check_near(what)
    return found


def _pair(result: FitResult, first: str, second: str) -> tuple[int, int]:
    numbers = result.number(first), result.number(second)
    if numbers[0] == numbers[1]:
        raise MinimumError(
            f"A scan of two elements got `{first}` twice. Nothing was evaluated. Name two "
            "different ones."
        )
    return numbers


def _grid(result: FitResult, number: int, grid: Any, num_points: int, width: float) -> np.ndarray:
    name = result.names[number]
    lower, upper = (bound[number] for bound in result.bounds)
    if grid is None:
        error = result.errors[number]
        if not np.isfinite(error):
            reason = f"its standard error is {error}, so that there is no width"
            raise _wrong_grid(name, "None", reason)
        ends = result.values[number] + width * error * np.array([-1.0, 1.0])
        low, high = ends.clip(lower, upper)
        return np.linspace(low, high, num_points)
    found = np.asarray(grid, np.float64)
    if found.ndim != 1 or not found.size or not np.all(np.isfinite(found)):
        raise _wrong_grid(name, repr(grid), "it is no vector of finite numbers")
    if np.any((found < lower) | (found > upper)):
        raise _wrong_grid(name, repr(grid), f"it leaves the bounds ({lower:.6g}, {upper:.6g})")
    return found


def _scan(
    result: FitResult,
    held: Sequence[int],
    grids: tuple[np.ndarray, ...],
    tolerance: float | None,
    *,
    progress: bool,
) -> Scan:
    """The function over a grid, the last axis running fastest; without a tolerance nothing is
    minimised.
    """
    task = result.task("profile")
    counted = CountedTask(task)
    held = list(held)
    points = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(held))
    first = minimum_of(result)
    follower = Follower(counted, first, held, (tolerance or TOLERANCE) * result.errordef)
    forecast = Forecast(task.methods, len(points))
    found: dict[int, Minimum] = {}

    def evaluated(point: np.ndarray) -> Minimum:
        if tolerance is not None:
            return follower.at(point)
        x = first.x.copy()
        x[held] = point
        value = counted.value(x)
        return first._replace(x=x, value=value, is_converged=bool(np.isfinite(value)))

    with Meter("scan", len(points), is_shown=progress) as meter:
        for k in _outward(result, held, points):
            found[k] = evaluated(points[k])
            forecast.advance()
            meter.advance()
    minima = [found[k] for k in range(len(points))]
    shape = tuple(map(len, grids))
    return _scan_of(
        result,
        [result.names[number] for number in held],
        counted,
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
        minimum=result.value,
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


def _lines(scan: Scan, rise: float) -> tuple[np.ndarray, ...]:
    """The contours of a scan at a rise.

    Raises:
        MinimumError: it does not reach it.
    """
    contourpy = needed("contourpy", 'contour(method="grid")', "fit")
    made = contourpy.contour_generator(*scan.grids, scan.rise.T)
    lines = tuple(np.asarray(line) for line in made.lines(rise))
    if not lines:
        raise failed_minuit("contour", "the grid does not reach the level")
    return lines


def _wrong_grid(name: str, seen: str, reason: str) -> MinimumError:
    """A grid that cannot be scanned."""
    return MinimumError(
        f"A scan of `{name}` got the grid {seen}: {reason}. Nothing was evaluated. Pass a vector "
        "of values within the bounds."
    )
