"""Levenberg-Marquardt with geodesic acceleration: the mathematics of one iteration, as pure
functions.

In: residuals and a Jacobian at a point. Out: where to go, and whether it is over. It must not know
who evaluates. Under a robust loss the cost is 1/2 sum s^2 rho((r / s)^2), with rho(z) ~ z for small
z, whose first two derivatives JAX finds.

    damped step      D v = -argmin |r + J v|^2 + damping |D v|^2
    acceleration     D a = the same with r'' (v, v) / 2 for r; taken where |D a| <= 3/8 |D v|
    damping          by the ratio of gained to predicted reduction (Nielsen 1999)
    scale            D = max(column norms of J, D / 2): what was steep long ago is forgotten

Source: M. Transtrum and J. Sethna, Improvements to the Levenberg-Marquardt algorithm
(arXiv:1201.5885).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax.fit import linear
from incrax.models.bounds import Box

# --- losses ---------------------------------------------------------------------------------------

Loss = Literal["squares", "huber", "soft_l1", "cauchy", "arctan"]


def _huber(z: Any) -> Any:
    """2 sqrt(z) - 1 beyond z = 1."""
    is_small = z <= 1
    return jnp.where(is_small, z, 2 * jnp.sqrt(jnp.where(is_small, 1, z)) - 1)


LOSSES: dict[Loss, Callable[[Any], Any]] = {
    "squares": lambda z: z,
    "huber": _huber,
    "soft_l1": lambda z: 2 * z / (jnp.sqrt(1 + z) + 1),  # 2 (sqrt(1 + z) - 1)
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
}
"""rho(z), by the names of `scipy.optimize.least_squares`, whose "linear" is "squares" here."""

LEAST_CURVATURE = 0.3
"""Of rho'(z): where a loss curves less than that, or down, this much of it stands for its
curvature.
"""


class Weighed(NamedTuple):
    """Residuals as the linear model of a robust cost sees them."""

    cost: Any
    """1/2 sum s^2 rho((r / s)^2)."""
    residuals: Any
    """With these in place of r, and `rows` times J in place of J, the gradient is the cost's, and
    the Gauss-Newton matrix wherever the loss curves up enough.
    """
    rows: Any


def weighed(name: Loss, residuals: Any, scale: Any) -> Weighed:
    """Residuals of shape (m,) under a loss.

    The curvature of the cost along a residual, rho' + 2 z rho'', is zero or negative for large
    ones. Epsilon in its place, as SciPy has it, promises steps longer by 1 / epsilon, and a damping
    that forbids them is far too large where residuals are small again: the search stalls. A share
    of rho' (share 1: reweighted least squares, which never overshoots, but converges slowly) bounds
    both.

    Source: B. Triggs et al., Bundle adjustment - a modern synthesis (2000), section 4.3.
    """
    if name == "squares":
        return Weighed(0.5 * jnp.sum(residuals**2), residuals, jnp.ones_like(residuals))
    z = (residuals / scale) ** 2
    slope = lambda z: jax.jvp(LOSSES[name], (z,), (jnp.ones_like(z),))
    (rho, first), (_, second) = jax.jvp(slope, (z,), (jnp.ones_like(z),))
    rows = jnp.sqrt(jnp.maximum(first + 2 * second * z, LEAST_CURVATURE * first))
    return Weighed(0.5 * scale**2 * jnp.sum(rho), first / rows * residuals, rows)


# --- one iteration --------------------------------------------------------------------------------

MAX_ACCELERATION = 0.375
"""Largest |D a| / |D v|: 2 |a / 2| / |v| <= 3/4 in the source's units."""
FIRST_DAMPING = 1e-3
LEAST_DAMPING = 1e-14
SMALLEST_FACTOR = 0.2
FIRST_GROWTH = 2.0
FORGETTING = 0.5
MAX_TRIALS = 40
"""Steps tried from one point; the damping grows by more than 1e200 in as many."""
LEAST_PROGRESS = 1e-6
MAX_IDLE = 50
"""Steps in a row that each gain less than this part of what the undamped one promises. Where the
derivative is that of the function, a bent valley still gives a thousandth a step; at a kink, or by
a wrong derivative, steps shrink with no end, and each of thousands takes off a little.
"""
NOISE = 4.0
"""Rounding errors of a residual, in units of epsilon times the sizes of its terms."""

inlined = functools.partial(jax.jit, inline=True)
"""Steps for the host are compiled; in a program of the whole search they leave no trace."""

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
    first_cost: Any
    """Infinite before the first Jacobian."""
    status: Any
    num_steps: Any
    num_jacobians: Any
    num_residuals: Any
    num_idle: Any
    """Steps taken in a row that gained next to nothing; see `LEAST_PROGRESS`."""


class LinearizedPoint(NamedTuple):
    """The linear model at a point."""

    x: Any
    residuals: Any
    """As the function gives them, shape (m,)."""
    cost: Any
    rows: Any
    """What the loss makes of each row of the Jacobian."""
    whole: Any
    """A `linear.DenseModel`."""
    model: Any
    """That of the elements that are free."""
    is_free: Any
    """Which elements are not held by a bound, shape (n,)."""
    room: Box | None
    """The bounds of steps from here; None: there are none."""
    newton: Any
    """The undamped step, within bounds."""
    is_minimum: Any
    """Whether that is the minimum of the linear model; else it says nothing of an end."""
    gain: Any
    """Twice what the undamped step takes off the cost, by the linear model."""
    is_finite: Any
    """Whether the derivatives are."""


class Trial(NamedTuple):
    """A step to be judged."""

    x: Any
    reduction: Any
    """Of the cost, as the linear model predicts it."""
    is_sound: Any
    """Whether the model is good enough there: the acceleration is not large."""


class Summary(NamedTuple):
    """How a search ended, in numbers."""

    is_over: Any
    status: Any
    num_steps: Any
    num_jacobians: Any
    num_residuals: Any
    rank: Any
    cost: Any


class Found(NamedTuple):
    """The end of a search."""

    report: Any
    """x of shape (n,), and behind it a `Summary`: one array, fetched at once."""
    residuals: Any
    """At x, as the function gives them, shape (m,)."""
    inverse: Any
    """(J^T J)^-1, shape (n, n)."""
    is_free: Any
    """Which elements are not held by a bound, shape (n,)."""
    is_known: Any
    """Which elements the data determine, shape (n,)."""

    @property
    def x(self) -> np.ndarray:
        """Where it ended, shape (n,)."""
        return np.asarray(self.report)[: -len(Summary._fields)]

    @property
    def summary(self) -> Summary:
        """How."""
        return Summary(*np.asarray(self.report)[-len(Summary._fields) :].tolist())


@jax.tree_util.register_static
@dataclass(frozen=True)
class SearchSettings:
    """What does not change in a search, and is part of its program."""

    loss: Loss
    tolerance: float
    max_steps: int
    is_bounded: bool
    """Whether what is free has bounds: else half of the program, and three of four decompositions,
    would be compiled for nothing. What is fixed, between two bounds at its value, needs none of it.
    """


class Setup(NamedTuple):
    """What all steps of a search are told."""

    settings: SearchSettings
    box: Box
    loss_scale: Any

    def weighed(self, residuals: Any) -> Weighed:
        """Residuals under the loss."""
        return weighed(self.settings.loss, residuals, self.loss_scale)


def start(x: np.ndarray) -> np.ndarray:
    """A search that starts at x, as `packed`: what the host gives to a program is one transfer."""
    return np.concatenate(
        [x, np.zeros_like(x), [FIRST_DAMPING, FIRST_GROWTH, np.inf, np.inf, RUNNING, 0, 0, 0, 0]],
        dtype=x.dtype,
    )


def packed(parts: Sequence[Any]) -> Any:
    """Numbers and vectors as one vector of the first one's type."""
    return jnp.concatenate([jnp.ravel(each).astype(parts[0].dtype) for each in parts])


def unpacked(vector: Any) -> Search:
    """The search that a vector stands for."""
    num_scalars = len(Search._fields) - 2
    n = (vector.size - num_scalars) // 2
    counts = vector[-5:].astype(int)
    return Search(vector[:n], vector[n : 2 * n], *vector[2 * n : -5], *counts)


@inlined
def looked(
    search: Search, residuals: Any, jacobian: Any, setup: Setup
) -> tuple[Search, LinearizedPoint]:
    """The linear model where the search is, and whether that is its end.

    The Jacobian is of shape (m, n).
    """
    x = search.x
    seen = setup.weighed(residuals)
    matrix = seen.rows[:, None] * jacobian
    last_scale = search.scale * FORGETTING
    if setup.settings.is_bounded:
        is_free = ~setup.box.is_pressed(x, seen.residuals @ matrix)
        whole = linear.dense(matrix, seen.residuals, last_scale)
        model = lax.cond(jnp.all(is_free), lambda: whole, lambda: whole.of_columns(is_free))
        room = Box(*(each - x for each in setup.box))
    else:
        is_free = setup.box.lower < setup.box.upper
        whole = linear.dense(jnp.where(is_free, matrix, 0), seen.residuals, last_scale)
        model = whole
        room = None
    is_finite = jnp.all(jnp.isfinite(whole.sizes))
    newton, _, is_minimum = linear.bounded_step(whole, model, is_free, room, 0.0)
    gain = 2 * whole.reduction(newton)
    parts = seen.cost, seen.rows, whole, model, is_free, room
    at = LinearizedPoint(x, residuals, *parts, newton, is_minimum, gain, is_finite)
    return judged(search, at, setup), at


def judged(search: Search, at: LinearizedPoint, setup: Setup) -> Search:
    """Whether the search is over: nothing left to gain, or nothing but rounding errors.

    Converged: every element's undamped step is below the tolerance times its value, or times its
    standard error. Quiet: what the linear model promises is below the rounding errors of the cost;
    undamped steps are then taken as long as they become shorter. Also: residuals are below epsilon
    times those at the start, whose rounding errors they then are; where a minimum is a double root,
    elements go on being halved for ever. Stalled: steps gain next to nothing of what is promised.
    """
    scale = at.whole.scale
    size = jnp.sqrt(jnp.sum((at.newton * scale) ** 2))
    is_quiet = at.is_minimum & ~_has_gain(search, at) | jnp.isfinite(search.last_quiet)
    first_cost = jnp.where(jnp.isinf(search.first_cost), at.cost, search.first_cost)
    is_nothing = at.cost <= jnp.finfo(search.x.dtype).eps ** 2 * first_cost
    is_last = is_nothing | is_quiet & (size >= 0.9 * search.last_quiet)
    is_regular = at.model.rank >= jnp.sum(at.is_free)
    is_short = _is_short(search, at, setup.settings.tolerance)
    status = jnp.where(is_last, QUIET, RUNNING)
    status = jnp.where(is_short | (at.cost == 0), CONVERGED, status)
    status = jnp.where((status != RUNNING) & ~is_regular, SINGULAR, status)
    is_idle = (status == RUNNING) & (search.num_idle >= MAX_IDLE)
    status = jnp.where(is_idle, STALLED, status)
    status = jnp.where(jnp.isfinite(at.cost) & at.is_finite, status, NOT_FINITE)
    return search._replace(
        scale=scale,
        status=status,
        first_cost=first_cost,
        last_quiet=jnp.where(is_quiet, size, jnp.inf),
        num_jacobians=search.num_jacobians + 1,
    )


def _is_short(search: Search, at: LinearizedPoint, tolerance: float) -> Any:
    """Whether the undamped step is below the tolerance."""
    variance = 2 * at.cost / max(at.residuals.size - search.x.size, 1)
    errors = jnp.sqrt(variance * at.model.variances())
    is_within = jnp.abs(at.newton) <= tolerance * jnp.maximum(jnp.abs(search.x), errors)
    return at.is_minimum & jnp.all(is_within)


def _has_gain(search: Search, at: LinearizedPoint) -> Any:
    """Whether the linear model promises more than rounding errors."""
    eps = jnp.finfo(search.x.dtype).eps
    noise = NOISE * eps * jnp.sqrt(jnp.sum((jnp.abs(search.x) * at.whole.scale) ** 2))
    return (at.gain > noise**2) & (at.gain > 100 * eps * at.cost)


@inlined
def trial(
    search: Search, at: LinearizedPoint, velocity: linear.BoundedStep, curvature: Any, setup: Setup
) -> Trial:
    """The step to try, from v and r''(v, v) of shape (m,); what v holds is not accelerated."""
    scale = at.whole.scale
    acceleration = 0.5 * velocity.model.step(search.damping, at.rows * curvature)
    length = jnp.sqrt(jnp.sum((scale * velocity.step) ** 2))
    bend = jnp.sqrt(jnp.sum((scale * acceleration) ** 2))
    is_sound = bend <= MAX_ACCELERATION * length
    step = jnp.where(is_sound, velocity.step + acceleration, velocity.step)
    return Trial(setup.box.inside(at.x + step), at.whole.reduction(velocity.step), is_sound)


@inlined
def answered(
    search: Search, at: LinearizedPoint, tried: Trial, residuals: Any, setup: Setup
) -> tuple[Search, Any]:
    """The search after a trial, and whether the step was taken."""
    cost = setup.weighed(residuals).cost
    is_taken = tried.is_sound & (cost < at.cost)
    ratio = (at.cost - cost) / tried.reduction
    damping, growth = adapted(search.damping, search.growth, ratio, is_taken)
    is_idle = (at.cost - cost < LEAST_PROGRESS * at.gain / 2) & ~is_near(at)
    return search._replace(
        x=jnp.where(is_taken, tried.x, search.x),
        damping=jnp.maximum(damping, LEAST_DAMPING),
        growth=growth,
        num_steps=search.num_steps + is_taken,
        num_residuals=search.num_residuals + 1,
        # A refused step counts with the one that is taken after it.
        num_idle=jnp.where(is_taken, (search.num_idle + 1) * is_idle, search.num_idle),
    ), is_taken


def is_near(at: LinearizedPoint) -> Any:
    """Whether so little is promised that rounding errors may be why it is not gained."""
    return at.gain <= jnp.sqrt(jnp.finfo(at.x.dtype).eps) * at.cost


def adapted(damping: Any, growth: Any, ratio: Any, is_taken: Any) -> tuple[Any, Any]:
    """Nielsen's damping for the next step, by the ratio of gained to predicted reduction."""
    factor = jnp.maximum(SMALLEST_FACTOR, 1 - (2 * ratio - 1) ** 3)
    grown = jnp.where(is_taken, FIRST_GROWTH, 2 * growth)
    return damping * jnp.where(is_taken, factor, growth), grown


def stalled(search: Search, at: LinearizedPoint, num_refused: Any) -> tuple[Search, Any]:
    """The search after so many refused steps in a row, and whether they were too many.

    It is over then, unless so little is promised that rounding errors may be the reason.
    """
    limits = jnp.finfo(search.x.dtype)
    has_stalled = num_refused >= MAX_TRIALS
    may_be_noise = is_near(at)
    status = jnp.where(may_be_noise, search.status, STALLED)
    last_quiet = jnp.where(may_be_noise, limits.max, jnp.inf)
    return search._replace(
        status=jnp.where(has_stalled, status, search.status),
        last_quiet=jnp.where(has_stalled, last_quiet, search.last_quiet),
    ), has_stalled


def is_quiet(search: Search) -> Any:
    """Whether only rounding errors are left, so that the undamped step is taken as it is."""
    return jnp.isfinite(search.last_quiet)


def polished(search: Search, at: LinearizedPoint) -> Search:
    """After an undamped step, which no cost can judge."""
    return search._replace(x=at.x + at.newton, num_steps=search.num_steps + 1)


@inlined
def velocity(search: Search, at: LinearizedPoint) -> linear.BoundedStep:
    """The damped step v."""
    return linear.bounded_step(at.whole, at.model, at.is_free, at.room, search.damping)


def last(search: Search, at: LinearizedPoint) -> Any:
    """Where a search ends: one undamped step further where that is below the tolerance, for its
    digits.
    """
    return jnp.where(search.status == CONVERGED, at.x + at.newton, search.x)


@inlined
def found(
    search: Search, at: LinearizedPoint, x: Any, residuals: Any, setup: Setup, is_over: Any
) -> Found:
    """The end of a search, from its last point and the linear model before it, where it is if the
    last step left the region with values.
    """
    cost = setup.weighed(residuals).cost
    chosen = lambda new, old: jnp.where(jnp.isfinite(cost), new, old)
    counts = search.status, search.num_steps, search.num_jacobians, search.num_residuals
    summary = Summary(is_over, *counts, at.model.rank, chosen(cost, at.cost))
    return Found(
        packed((chosen(x, at.x), *summary)),
        chosen(residuals, at.residuals),
        at.model.inverse_normal(),
        at.is_free,
        at.model.is_known(at.is_free),
    )
