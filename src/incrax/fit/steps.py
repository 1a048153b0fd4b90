"""Levenberg-Marquardt with geodesic acceleration: the mathematics of one iteration, as pure functions.

In: residuals and a Jacobian at a point. Out: where to go, and whether it is over. It must not know who evaluates.

    damped step      D v = -argmin |r + J v|^2 + damping |D v|^2
    acceleration     D a = the same with r'' (v, v) / 2 for r; taken where |D a| <= 3/8 |D v|
    damping          by the ratio of gained to predicted reduction (Nielsen 1999)
    scale            D = max(column norms of J, D / 2): what was steep long ago is forgotten

Source: M. Transtrum and J. Sethna, Improvements to the Levenberg-Marquardt algorithm (arXiv:1201.5885).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax.fit.linear import Factored, components, damped, factored, inverse_normal, reduction, undamped
from incrax.fit.losses import weighed

MAX_ACCELERATION = 0.375
"""Largest |D a| / |D v|: 2 |a / 2| / |v| <= 3/4 in the source's units."""
FIRST_DAMPING = 1e-3
LEAST_DAMPING = 1e-14
SMALLEST_FACTOR = 0.2
FIRST_GROWTH = 2.0
FORGETTING = 0.5
MAX_TRIALS = 40
"""Steps tried from one point; the damping grows by more than 1e200 in as many."""
NOISE = 4.0
"""Rounding errors of a residual, in units of epsilon times the sizes of its terms."""

RUNNING, CONVERGED, QUIET, SINGULAR, STALLED, NOT_FINITE = range(6)
"""What became of a search; `Status` names them for users."""


class Search(NamedTuple):
    """Where a search is."""

    x: Any
    scale: Any
    damping: Any
    growth: Any
    last_quiet: Any
    """Scaled length of the last step taken where only rounding errors are left; infinite before."""
    status: Any
    num_steps: Any
    num_jacobians: Any
    num_residuals: Any


class Point(NamedTuple):
    """The linear model at a point."""

    x: Any
    residuals: Any
    """As the function gives them, shape (m,)."""
    cost: Any
    rows: Any
    jacobian: Factored
    along: Any
    """U^T r under the loss."""
    newton: Any
    """The undamped step, within bounds."""
    is_free: Any
    """Which elements are not held by a bound, shape (n,)."""


class Trial(NamedTuple):
    """A step to be judged."""

    x: Any
    reduction: Any
    """Of the cost, as the linear model predicts it."""
    is_sound: Any
    """Whether the model is good enough there: the acceleration is not large."""


class Found(NamedTuple):
    """The end of a search."""

    x: Any
    summary: Any
    """Whether it is over, status, steps, Jacobians, residuals, rank, cost: in one array, fetched at once."""
    residuals: Any
    inverse: Any
    """(J^T J)^-1, shape (n, n)."""
    is_free: Any
    """Which elements are not held by a bound, shape (n,)."""
    is_known: Any
    """Which elements the data determine, shape (n,)."""


class Settings(NamedTuple):
    """What does not change in a search. Hashable."""

    loss: str
    tolerance: float
    max_steps: int
    is_accelerated: bool


def first(x: Any) -> Search:
    """A search that starts at x."""
    number = x.dtype.type
    zero = np.zeros((), jnp.asarray(0).dtype)
    return Search(
        x, np.zeros_like(x), number(FIRST_DAMPING), number(FIRST_GROWTH), number(np.inf), zero, zero, zero, zero
    )


def point(search: Search, residuals: Any, jacobian: Any, bounds: Any, loss: str, loss_scale: Any) -> Point:
    """The linear model where the search is."""
    seen = weighed(loss, residuals, loss_scale)
    jacobian = seen.rows[:, None] * jacobian
    gradient = seen.residuals @ jacobian
    lower, upper = bounds
    is_free = ~(((search.x <= lower) & (gradient > 0)) | ((search.x >= upper) & (gradient < 0)))
    jacobian = jnp.where(is_free, jacobian, 0)
    scale = jnp.maximum(search.scale * FORGETTING, jnp.sqrt(jnp.sum(jacobian**2, axis=0)))
    f = factored(jacobian, jnp.where(scale > 0, scale, 1))
    along = components(f, seen.residuals)
    newton = jnp.clip(search.x + undamped(f, along), lower, upper) - search.x
    return Point(search.x, residuals, seen.cost, seen.rows, f, along, newton, is_free)


def judged(search: Search, at: Point, settings: Settings) -> Search:
    """Whether the search is over: nothing left to gain, or nothing but rounding errors.

    Converged: every element's undamped step is below the tolerance times its value, or times its standard error.
    Quiet: what the linear model promises is below the rounding errors of the cost; undamped steps are then taken as
    long as they become shorter.
    """
    eps = jnp.finfo(search.x.dtype).eps
    m, n = at.residuals.size, search.x.size
    f = at.jacobian
    is_regular = jnp.sum(f.is_kept) >= jnp.sum(at.is_free)
    variance = 2 * at.cost / max(m - n, 1)
    errors = jnp.sqrt(variance * jnp.diagonal(inverse_normal(f)))
    is_short = jnp.all(jnp.abs(at.newton) <= settings.tolerance * jnp.maximum(jnp.abs(search.x), errors))
    size = jnp.sqrt(jnp.sum((at.newton * f.scale) ** 2))
    gain = _gain(at)
    noise = NOISE * eps * jnp.sqrt(jnp.sum((jnp.abs(search.x) * f.scale) ** 2))
    is_quiet = (gain <= noise**2) | (gain <= 100 * eps * at.cost) | jnp.isfinite(search.last_quiet)
    is_last = is_quiet & (size >= 0.9 * search.last_quiet)
    is_finite = jnp.isfinite(at.cost) & jnp.all(jnp.isfinite(f.singular))
    status = jnp.where(is_last, QUIET, RUNNING)
    status = jnp.where(is_short | (at.cost == 0), CONVERGED, status)
    status = jnp.where((status != RUNNING) & ~is_regular, SINGULAR, status)
    status = jnp.where(is_finite, status, NOT_FINITE)
    return search._replace(
        scale=f.scale,
        status=status,
        last_quiet=jnp.where(is_quiet, size, jnp.inf),
        num_jacobians=search.num_jacobians + 1,
    )


def _gain(at: Point) -> Any:
    """Twice what the undamped step takes off the cost, by the linear model."""
    return jnp.sum(jnp.where(at.jacobian.is_kept, at.along, 0) ** 2)


def direction(at: Point, damping: Any) -> Any:
    """The damped step v, shape (n,)."""
    return damped(at.jacobian, at.along, damping) / at.jacobian.scale


def trial(at: Point, velocity: Any, curvature: Any | None, damping: Any, bounds: Any) -> Trial:
    """The step to try, from v and r''(v, v) of shape (m,), or None."""
    f = at.jacobian
    step, is_sound = velocity, jnp.array(True)
    if curvature is not None:
        acceleration = 0.5 * damped(f, components(f, at.rows * curvature), damping) / f.scale
        length, bend = (jnp.sqrt(jnp.sum((f.scale * each) ** 2)) for each in (velocity, acceleration))
        is_sound = bend <= MAX_ACCELERATION * length
        step = jnp.where(is_sound, velocity + acceleration, velocity)
    linear = jnp.clip(at.x + velocity, *bounds) - at.x
    x = jnp.clip(at.x + step, *bounds)
    return Trial(x, reduction(f, at.along, f.scale * linear), is_sound)


def answered(search: Search, at: Point, tried: Trial, cost: Any) -> tuple[Search, Any]:
    """The search after a trial, and whether the step was taken."""
    is_taken = tried.is_sound & (cost < at.cost)
    ratio = (at.cost - cost) / tried.reduction
    factor = jnp.maximum(SMALLEST_FACTOR, 1 - (2 * ratio - 1) ** 3)
    damping = search.damping * jnp.where(is_taken, factor, search.growth)
    return search._replace(
        x=jnp.where(is_taken, tried.x, search.x),
        damping=jnp.maximum(damping, LEAST_DAMPING),
        growth=jnp.where(is_taken, FIRST_GROWTH, 2 * search.growth),
        num_steps=search.num_steps + is_taken,
        num_residuals=search.num_residuals + 1,
    ), is_taken


def stalled(search: Search, at: Point) -> Search:
    """Where no step lowers the cost: over, unless so little is promised that rounding errors may be the reason."""
    is_near = _gain(at) <= jnp.sqrt(jnp.finfo(search.x.dtype).eps) * at.cost
    return search._replace(
        status=jnp.where(is_near, search.status, STALLED),
        last_quiet=jnp.where(is_near, jnp.finfo(search.x.dtype).max, jnp.inf),
    )


def is_quiet(search: Search) -> Any:
    """Whether only rounding errors are left, so that the undamped step is taken as it is."""
    return jnp.isfinite(search.last_quiet)


def polished(search: Search, at: Point) -> Search:
    """After an undamped step, which no cost can judge."""
    return search._replace(x=at.x + at.newton, num_steps=search.num_steps + 1)


def found(search: Search, at: Point, is_over: Any) -> Found:
    """The end of a search, from the linear model where it ended."""
    f = at.jacobian
    share = jnp.sum(jnp.where(f.is_kept[:, None], f.right, 0) ** 2, axis=0)
    is_known = share > 1 - jnp.sqrt(jnp.finfo(share.dtype).eps)
    counts = (search.status, search.num_steps, search.num_jacobians, search.num_residuals)
    summary = jnp.stack([jnp.asarray(each, float) for each in (is_over, *counts, jnp.sum(f.is_kept), at.cost)])
    x = jnp.where(search.status == CONVERGED, at.x + at.newton, search.x)  # below the tolerance, and free
    return Found(x, summary, at.residuals, inverse_normal(f), at.is_free, is_known)
