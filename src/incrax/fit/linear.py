"""Linear least squares with damping, also within bounds, by a Jacobian of shape (m, n).

With k = min(m, n) singular values s and D the scale of the columns, J / D = left diag(s)
right. The step that minimises |r + J p|^2 + damping |D p|^2 is D p = -right^T y, where y = s / (s^2
+ damping) left^T r.

Within bounds each element of the step is free, and the derivative by it zero, or held by the bound
that the model falls towards. Which ones are held is guessed, and the guess improved by projected
steps to the minimum over what is free, each of which gains something.

Source: J. Moré and G. Toraldo, On the solution of large quadratic programming problems with bound
constraints (1991).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from incrax.models.bounds import Box

MAX_GUESSES = 200
NOISE = 10.0
"""Rounding errors of a slope, in units of epsilon times the residuals."""


class DenseModel(NamedTuple):
    """The linear model |r + J p|^2 at a point, by the singular values of J / D."""

    left: Any
    """Shape (m, k)."""
    sizes: Any
    """Singular values, shape (k,)."""
    inverses: Any
    """Theirs; zero for those that are rounding errors."""
    right: Any
    """Shape (k, n)."""
    scale: Any
    """D, shape (n,), positive."""
    along: Any
    """left^T r, shape (k,)."""
    rank: Any

    @property
    def matrix(self) -> Any:
        """left^T J / D, shape (k, n)."""
        return self.sizes[:, None] * self.right

    def step(self, damping: Any, residuals: Any = None) -> Any:
        """The damped step p, shape (n,); also for other residuals.

        Undamped, the shortest in scaled units where the Jacobian is singular.
        """
        along = self.along if residuals is None else residuals @ self.left
        # s / (s^2 + damping), also for s = 0.
        shares = self.inverses / (1 + damping * self.inverses**2)
        return -((along * shares) @ self.right) / self.scale

    def moved(self, step: Any) -> Any:
        """left^T J p, of the length of J p."""
        return self.sizes * (self.right @ (self.scale * step))

    def reduction(self, step: Any) -> Any:
        """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
        return reduction_by(self.moved(step), self.along)

    def inverse_normal(self) -> Any:
        """(J^T J)^-1, shape (n, n); of what the data determine, where that is not all."""
        half = self._half()
        return half.T @ half

    def variances(self) -> Any:
        """Its diagonal."""
        return jnp.sum(self._half() ** 2, axis=0)

    def _half(self) -> Any:
        return self.inverses[:, None] * self.right / self.scale

    def of_columns(self, is_free: Any, along: Any = None) -> DenseModel:
        """The model in which only some elements move, with the same scale; also for another
        left^T r. It decomposes a matrix of shape (k, n).
        """
        matrix = jnp.where(is_free, self.matrix, 0)
        inner, sizes, right = jnp.linalg.svd(matrix, full_matrices=False)
        along = self.along if along is None else along
        return _regular(self.left @ inner, sizes, right, self.scale, along @ inner)

    def is_known(self, is_free: Any) -> Any:
        """Which elements the data determine, shape (n,)."""
        share = jnp.sum(self.right**2, axis=0, where=self.inverses[:, None] > 0)
        return share > 1 - jnp.sqrt(jnp.finfo(share.dtype).eps)


def dense(jacobian: Any, residuals: Any, last_scale: Any) -> DenseModel:
    """The linear model of shapes (m, n), (m,), by a scale of at least (n,).

    Cost: m n^2; one decomposition serves every damping.
    """
    scale = jnp.maximum(last_scale, jnp.sqrt(jnp.sum(jacobian**2, axis=0)))
    scale = jnp.where(scale > 0, scale, 1)
    left, sizes, right = jnp.linalg.svd(jacobian / scale, full_matrices=False)
    return _regular(left, sizes, right, scale, residuals @ left)


def _regular(left: Any, sizes: Any, right: Any, scale: Any, along: Any) -> DenseModel:
    """Of a decomposition, without the singular values that are rounding errors."""
    least = jnp.finfo(sizes.dtype).eps * max(len(left), scale.size) * sizes[0]
    is_kept = sizes > least
    inverses = jnp.where(is_kept, 1 / jnp.where(is_kept, sizes, 1), 0)
    sizes = jnp.where(is_kept, sizes, 0)
    return DenseModel(left, sizes, inverses, right, scale, along, jnp.sum(is_kept))


def reduction_by(moved: Any, residuals: Any) -> Any:
    """1/2 |r|^2 - 1/2 |r + J p|^2 from J p and r, without cancellation."""
    return -(moved * residuals).sum() - 0.5 * (moved**2).sum()


# --- within bounds --------------------------------------------------------------------------------


class BoundedStep(NamedTuple):
    """A step within bounds, and what it holds."""

    step: Any
    """Shape (n,)."""
    model: DenseModel
    """Of the elements that are not held."""
    is_minimum: Any
    """Whether it is; else guesses came to their limit, and it is the best one."""


class _Guess(NamedTuple):
    """A guess of what bounds hold, shapes (n,)."""

    best: Any
    """The best step within bounds so far, at a bound where the guess holds."""
    is_free: Any
    model: DenseModel
    target: Any
    """The minimum over what is free."""
    is_wrong: Any
    """Whether the target lies outside, or falls off what holds it; at the minimum it does not."""
    count: Any


def bounded_step(
    whole: DenseModel, model: DenseModel, is_free: Any, room: Box | None, damping: Any
) -> BoundedStep:
    """The damped step p with room.lower <= p <= room.upper; without room, anywhere.

    A first guess is that only some elements are free, and `model` is theirs; the others are at a
    bound, without a step. Where that is right, nothing is decomposed.
    """
    if room is None:
        return BoundedStep(jnp.where(is_free, model.step(damping), 0), model, jnp.array(True))
    noise = NOISE * jnp.finfo(whole.scale.dtype).eps * jnp.sqrt(jnp.sum(whole.along**2))

    def gain(p: Any) -> Any:
        return whole.reduction(p) - 0.5 * damping * jnp.sum((whole.scale * p) ** 2)

    def is_pressed(p: Any) -> Any:
        slope = (whole.along + whole.moved(p)) @ whole.matrix + damping * whole.scale * p
        return room.is_pressed(p, slope, noise)

    def guess(best: Any, is_free: Any, model: DenseModel, count: Any) -> _Guess:
        target = jnp.where(is_free, model.step(damping), best)
        is_outside = target != room.inside(target)
        is_wrong = jnp.any(jnp.where(is_free, is_outside, ~is_pressed(target)))
        return _Guess(best, is_free, model, target, is_wrong, count)

    def improved(last: _Guess) -> _Guess:
        """The better of two points on the way to the target: its projection, which many elements
        reach the bounds by, and the last one within bounds, which is no worse than the best.
        """
        way = last.target - last.best
        end = jnp.where(way < 0, room.lower, room.upper)
        share = jnp.where(way == 0, jnp.inf, (end - last.best) / way)
        first = jnp.minimum(jnp.min(share), 1)
        short = jnp.where(share <= first, end, room.inside(last.best + first * way))
        projected = room.inside(last.target)
        best = jnp.where(gain(projected) >= gain(short), projected, short)
        is_better = gain(best) > gain(last.best)
        best = jnp.where(is_better, best, last.best)
        # Where the first element stops at once, what stops is held too.
        is_free = jnp.where(is_better, ~is_pressed(best), last.is_free & (share > 0))
        along = whole.along + whole.moved(jnp.where(is_free, 0, best))
        return guess(best, is_free, whole.of_columns(is_free, along), last.count + 1)

    goes_on = lambda last: last.is_wrong & (last.count < MAX_GUESSES)
    first = guess(jnp.zeros_like(whole.scale), is_free, model, 0)
    found = lax.while_loop(goes_on, improved, first)
    step = jnp.where(found.is_wrong, found.best, found.target)
    return BoundedStep(step, found.model, ~found.is_wrong)
