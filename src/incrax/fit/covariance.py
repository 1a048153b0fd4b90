"""Covariance from second derivatives.

In: a Hessian at a minimum. Out: the covariance of what it determines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from incrax.models.bounds import Box

RANK_TOLERANCE = 1e-11
"""Eigenvalues of the scaled Hessian below this times the greatest are zero: rounding errors of
second derivatives.
"""
HELD = 1e-2
"""Of the error definition: what may be left to gain between an element and the bound that holds
it.
"""
SLOPE = 1e-3
"""Of the value or the error definition: what an element may gain by its size, where second
derivatives are unknown.
"""
LONGEST = 1e6
"""Of an element's size: an error larger than that is no unit but a rounding error of a second
derivative of zero.
"""
SHARE = 1e-6
"""An element is undetermined when a flat direction has at least this much of it, squared."""


STEP = 3e-4
"""Of differences of gradients, in errors of the element: the next term of the series is 1e-8 of the
first there, as are rounding errors in float64.
"""
MAX_STEPS = 4
"""Sizes that are tried until one is right."""
LEAST_EIGENVALUE = 1e-5
"""Of a Hessian by differences, scaled: below, rounding errors may be what is seen."""


class Curvature(NamedTuple):
    """A Hessian, judged."""

    covariance: np.ndarray
    """Shape (n, n)."""
    is_definite: bool
    """Whether it is positive definite where nothing is held."""
    is_saddle: bool = False
    """Whether the function falls along some direction there."""


def curvature(hessian: np.ndarray, errordef: float, is_held: np.ndarray) -> Curvature:
    """2 errordef H^-1 of the elements that no bound holds.

    The covariance is NaN for what is held, infinite for what is not determined, and NaN for what
    falls along some direction: there is no minimum.
    """
    covariance = np.full(hessian.shape, np.nan)
    free = np.flatnonzero(~is_held)
    part = hessian[np.ix_(free, free)]
    if not free.size or not np.all(np.isfinite(part)):
        return Curvature(covariance, is_definite=not free.size)
    # H = S U diag(e) U^T S with S the roots of the diagonal, so that units do not matter.
    scale = np.sqrt(np.abs(np.diagonal(part)))
    scale[scale == 0] = 1.0
    found, vectors = np.linalg.eigh(0.5 * (part + part.T) / scale / scale[:, None])
    least = RANK_TOLERANCE * np.abs(found).max()
    is_flat = np.abs(found) <= least
    is_falling = found < -least
    inverse = np.divide(1.0, found, out=np.zeros_like(found), where=~is_flat)
    inside = 2 * errordef * (vectors * inverse) @ vectors.T / scale / scale[:, None]
    for is_bad, value in ((is_flat, np.inf), (is_falling, np.nan)):
        touched = np.sum(vectors[:, is_bad] ** 2, axis=1) > SHARE
        inside[touched] = inside[:, touched] = value
    covariance[np.ix_(free, free)] = inside
    is_definite = not np.any(is_flat | is_falling)
    return Curvature(covariance, is_definite, is_saddle=bool(np.any(is_falling)))


def differenced(
    gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, bounds: Box, errordef: float
) -> np.ndarray | None:
    """The Hessian by central differences of an exact gradient, shape (n, n), to some 1e-8.

    Nothing is compiled for it: a Hessian of a program of some thousand equations can take XLA
    minutes. None where it is no substitute for the exact one: near a bound, where something is
    hardly determined, and where a gradient is not finite.

    Cost: two gradients per element, four or more where the size of the element does not tell its
        error.
    """
    columns = []
    for number in range(x.size):
        columns.append(_column(gradient, x, number, bounds, errordef))
        if columns[-1] is None:
            return None
    hessian = 0.5 * (np.stack(columns) + np.transpose(columns))
    scale = np.sqrt(np.diagonal(hessian))
    is_clear = np.linalg.eigvalsh(hessian / scale / scale[:, None])[0] > LEAST_EIGENVALUE
    return hessian if is_clear else None


def _column(
    gradient: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    number: int,
    bounds: Box,
    errordef: float,
) -> np.ndarray | None:
    """Second derivatives by one element and all, shape (n,); the step is tried until it fits."""
    step = STEP * max(abs(x[number]), 1.0)
    column = None
    for _ in range(MAX_STEPS):
        ends = np.stack([x, x])
        ends[:, number] += [-step, step]
        if np.any(bounds.inside(ends) != ends):
            return None
        below, above = map(gradient, ends)
        column = (above - below) / (ends[1, number] - ends[0, number])
        second = column[number]
        if not (np.all(np.isfinite(column)) and second > 0):
            return None
        wanted = STEP * np.sqrt(2 * errordef / second)
        if 0.1 * wanted <= step <= 2 * wanted:
            break
        step = wanted
    return column


def is_held_by(
    x: np.ndarray, derivatives: tuple[np.ndarray, np.ndarray], bounds: Box, errordef: float
) -> np.ndarray:
    """Which elements a bound holds: a Newton step of the element alone crosses it, and little is
    gained on the way.

    `derivatives` are the first and the second by each element, shape (n,) each. Minuit ends a
    little inside of bounds.
    """
    gradient, second = derivatives
    room = bounds.room(x, gradient)
    slope = np.abs(gradient)
    with np.errstate(invalid="ignore"):  # without a bound, 0 inf
        return (slope > 0) & (second * room <= slope) & (slope * room <= HELD * errordef)


def left_to_gain(
    x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, bounds: Box, errordef: float
) -> float:
    """What steps within the bounds may still take off the function: its distance to the minimum, in
    its units.

    With each element in units of its error, others fixed: g^2 / 2h along a direction that curves
    up. Along one that does not there is no minimum, and the gain of one unit stands for it. NaN
    where a derivative is not finite.
    """
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return np.nan
    free = np.flatnonzero(~bounds.is_pressed(x, gradient))
    free = free[~is_held_by(x, (gradient, np.diagonal(hessian)), bounds, errordef)[free]]
    if not free.size:
        return 0.0
    size = np.maximum(np.abs(x[free]), 1.0)
    second = np.abs(np.diagonal(hessian))[free]
    with np.errstate(divide="ignore"):
        error = np.sqrt(2 * errordef / second)
    unit = np.where(error <= LONGEST * size, error, size)
    part = hessian[np.ix_(free, free)]
    found, vectors = np.linalg.eigh(0.5 * (part + part.T) * unit * unit[:, None])
    along = np.abs((gradient[free] * unit) @ vectors)
    is_up = found > RANK_TOLERANCE * np.abs(found).max()
    return float(np.sum(np.divide(along**2, 2 * found, out=along, where=is_up)))


def steepest(x: np.ndarray, gradient: np.ndarray, bounds: Box) -> float:
    """The greatest slope along an element that may move, per size of the element: without second
    derivatives.
    """
    is_free = ~bounds.is_pressed(x, gradient)
    return float(np.max(np.abs(gradient) * np.maximum(np.abs(x), 1.0), where=is_free, initial=0.0))
