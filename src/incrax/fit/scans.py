"""Profiles, scans and contours around a minimum, over the saved values.

In: a `FitResult`, names, grids. Out: what was found along them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import chi2

from incrax._extras import needed
from incrax._progress import Meter
from incrax.fit.following import Follower, Minimum
from incrax.fit.messages import failed_minuit, not_a_minimum, same_element, wrong_grid
from incrax.fit.minimizing import minimize
from incrax.fit.minimum import FitResult
from incrax.fit.scanned import Contour, Profile, Scan2D
from incrax.fit.task import Counted, Work, work_of

TOLERANCE = 1e-5
"""Of the error definition: the distance to the minimum over the others that is near enough."""
MARGIN = 1.6
"""Of a contour by a grid: how much farther than the ellipse the grid goes."""


def profile(
    result: FitResult | tuple[Any, ...],
    name: str,
    *,
    grid: Any = None,
    num_points: int = 30,
    width: float = 2.0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Profile:
    """The function along one element, minimised over all others at each point.

    Each point starts from its neighbour, moved by what second derivatives predict; one evaluation of value and gradient
    is enough for most. Elements that would gain nothing stay where they are, and what only they reach is loaded.

    Args:
        result: a minimum; or a tuple of what `minimize` takes, which is minimised first.
        name: of the element, as in `result.names`.
        grid: values of the element, shape (k,), in any order; None: `num_points` around the minimum.
        num_points: of the grid.
        width: half of the grid's, in standard errors; bounds cut it.
        tolerance: of the distance to the minimum over the others, in error definitions.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Grid, values, all elements at each point; see `Profile`.

    Raises:
        MinimumError: the name is no free element, there is no minimum, or the grid cannot be used.

    Cost: one to two evaluations of value and gradient per point, and one Hessian.

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
    counted, minima, work = _followed(result, [number], points[:, None], tolerance, progress=progress)
    return Profile(
        name=name,
        names=result.names,
        grid=points,
        values=np.array([each.value for each in minima]),
        free=np.stack([each.x for each in minima]),
        is_converged=np.array([each.is_converged for each in minima]),
        minimum=result.value,
        errordef=result.errordef,
        counts=counted.counts,
        work=work,
    )


def scan2d(
    result: FitResult | tuple[Any, ...],
    first: str,
    second: str,
    *,
    grids: tuple[Any, Any] | None = None,
    num_points: int | tuple[int, int] = 20,
    width: float = 3.0,
    is_minimized: bool = True,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Scan2D:
    """The function over a grid of two elements, minimised over all others at each point.

    Args:
        result: as for `profile`.
        first: an element, as in `result.names`.
        second: another one.
        grids: values of each, shapes (k,) and (l,); None: around the minimum.
        num_points: of each grid, or of both.
        width: half of the grids', in standard errors; bounds cut it.
        is_minimized: whether the others are minimised over; if not they stay at the minimum, and only values are
            evaluated.
        tolerance: as for `profile`.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Grids, values of shape (k, l), all elements at each point; see `Scan2D`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or a grid cannot be used.

    Cost: one to two evaluations of value and gradient per point, or one value if nothing is minimised.
    """
    result = _minimum(result, "scan2d")
    numbers = _pair(result, first, second)
    sizes = num_points if isinstance(num_points, tuple) else (num_points, num_points)
    given = (None, None) if grids is None else grids
    axes = [_grid(result, *each, width) for each in zip(numbers, given, sizes, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    if is_minimized:
        counted, minima, work = _followed(result, numbers, points, tolerance, progress=progress)
    else:
        counted, minima, work = _sliced(result, numbers, points, progress=progress)
    shape = len(axes[0]), len(axes[1])
    return Scan2D(
        axes=(first, second),
        names=result.names,
        grids=(axes[0], axes[1]),
        values=np.array([each.value for each in minima]).reshape(shape),
        free=np.stack([each.x for each in minima]).reshape(*shape, -1),
        is_converged=np.array([each.is_converged for each in minima]).reshape(shape),
        minimum=result.value,
        errordef=result.errordef,
        counts=counted.counts,
        work=work,
    )


def contour(
    result: FitResult | tuple[Any, ...],
    first: str,
    second: str,
    *,
    cl: float = 0.68,
    num_points: int = 40,
    method: str = "mncontour",
    progress: bool = True,
) -> Contour:
    """Where the function, minimised over all other elements, has risen to a confidence level of two elements.

    Args:
        result: as for `profile`.
        first: an element, as in `result.names`.
        second: another one.
        cl: confidence level of the pair; from 1 on a number of standard deviations of one element.
        num_points: of the contour by Minuit; of each side of the grid otherwise.
        method: `"mncontour"`, Minuit's; `"grid"`, interpolated in a `scan2d`, which finds several pieces as well.
        progress: whether a scan of over two seconds shows its progress on a terminal.

    Returns:
        Pieces of points, each closed where it does not leave the grid; see `Contour`.

    Raises:
        MinimumError: a name is no free element or both are one, there is no minimum, or no contour is found.
        MissingExtraError: iminuit, or for `"grid"` matplotlib, is not installed.

    Cost: of Minuit some three evaluations per point.
    """
    if method not in ("mncontour", "grid"):
        raise ValueError(f'`contour(method=...)` got {method!r}; use "mncontour" or "grid".')
    result = _minimum(result, "contour")
    _pair(result, first, second)
    rise = result.errordef * level(cl)
    if method == "mncontour":
        counted, before = Counted(result.task("contour")), work_of(result.task().prepared)
        pieces = (result.minuit_errors(counted, "contour").contour((first, second), cl, num_points),)
        counts, work = counted.counts, work_of(result.task().prepared).since(before)
    else:
        width = MARGIN * float(np.sqrt(level(cl)))
        scan = scan2d(result, first, second, num_points=num_points, width=width, progress=progress)
        pieces, counts, work = _lines(scan, rise), scan.counts, scan.work
    return Contour((first, second), cl, rise, pieces, counts, work)


def level(cl: float) -> float:
    """Rise of twice the negative log-likelihood at a confidence level of two elements."""
    return float(chi2.ppf(chi2.cdf(cl**2, 1) if cl >= 1 else cl, 2))


# --- inner ------------------------------------------------------------------------------------------------------------


def _minimum(result: Any, what: str) -> FitResult:
    found = result if isinstance(result, FitResult) else minimize(*result)
    found.task(what)
    if not found.is_near:
        raise not_a_minimum(what, found.status.value)
    return found


def _pair(result: FitResult, first: str, second: str) -> tuple[int, int]:
    if first == second:
        raise same_element(first)
    return result.number(first), result.number(second)


def _grid(result: FitResult, number: int, grid: Any, num_points: int, width: float) -> np.ndarray:
    lower, upper = result.bounds[0][number], result.bounds[1][number]
    if grid is None:
        error = result.errors[number]
        if not np.isfinite(error):
            raise wrong_grid(result.names[number], "None", f"its standard error is {error}, so that there is no width")
        center = result.values[number]
        low, high = max(lower, center - width * error), min(upper, center + width * error)
        return np.linspace(low, high, num_points)
    found = np.asarray(grid, np.float64)
    if found.ndim != 1 or not found.size or not np.all(np.isfinite(found)):
        raise wrong_grid(result.names[number], repr(grid), "it is no vector of finite numbers")
    if np.any((found < lower) | (found > upper)):
        raise wrong_grid(result.names[number], repr(grid), f"it leaves the bounds ({lower:.6g}, {upper:.6g})")
    return found


def _followed(
    result: FitResult, held: Sequence[int], points: np.ndarray, tolerance: float, *, progress: bool
) -> tuple[Counted, list[Minimum], Work]:
    """Minima at points, found outward from the minimum so that each has a neighbour."""
    task = result.task("profile")
    counted, before = Counted(task), work_of(task.prepared)
    first = Minimum(result.values, result.value, result.gradient, result.hessian, is_converged=True)
    goal = tolerance * result.errordef
    follower = Follower(counted, first, held, goal)
    errors = result.errors[list(held)]
    distance = np.sum(((points - result.values[list(held)]) / np.where(errors > 0, errors, 1.0)) ** 2, axis=1)
    found: dict[int, Minimum] = {}
    with Meter("scan", len(points), is_shown=progress) as meter:
        for k in _outward(points, distance, result.values[list(held)]):
            found[k] = follower.at(points[k])
            meter.advance()
    return counted, [found[k] for k in range(len(points))], work_of(task.prepared).since(before)


def _outward(points: np.ndarray, distance: np.ndarray, center: np.ndarray) -> Iterable[int]:
    """An order of points: of one element first up, then down; of two by distance."""
    if points.shape[1] > 1:
        return [int(k) for k in np.argsort(distance, kind="stable")]
    is_up = points[:, 0] >= center[0]
    return [int(k) for k in np.lexsort((distance, ~is_up))]


def _sliced(
    result: FitResult, held: Sequence[int], points: np.ndarray, *, progress: bool
) -> tuple[Counted, list[Minimum], Work]:
    """Values at points, all else at the minimum."""
    task = result.task("scan2d")
    counted, before = Counted(task), work_of(task.prepared)
    found = []
    with Meter("scan", len(points), is_shown=progress) as meter:
        for point in points:
            x = result.values.copy()
            x[list(held)] = point
            value = counted.value(x)
            found.append(Minimum(x, value, result.gradient, result.hessian, is_converged=bool(np.isfinite(value))))
            meter.advance()
    return counted, found, work_of(task.prepared).since(before)


def _lines(scan: Scan2D, rise: float) -> tuple[np.ndarray, ...]:
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
