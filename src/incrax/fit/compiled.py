"""A whole search as one program, in rounds that give the host a moment.

In: residuals as a function of a vector. Out: the search after a round, and the linear model where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from incrax.fit import steps
from incrax.fit.losses import cost
from incrax.fit.steps import Point, Search, Settings

Residuals = Callable[[Any], Any]
Jacobian = Callable[[Any], tuple[Any, Any]]


class Round:
    """One search's programs, traced for a function of a vector."""

    def __init__(self, residuals: Residuals, linearized: Jacobian, settings: Settings, bounds: Any, loss_scale: Any):
        """Residuals of shape (m,), both with their Jacobian of shape (m, n), bounds of shape (n,) each."""
        self.residuals, self.linearized = residuals, linearized
        self.settings, self.bounds, self.loss_scale = settings, bounds, loss_scale

    def run(self, search: Search, max_jacobians: Any) -> tuple[Search, Point, Any]:
        """Iterate until it is over, or so many Jacobians were evaluated in all.

        Returns:
            The search, the linear model that it looked at last, and whether it is over, so that both are of one point.
        """

        def is_running(carry: tuple[Search, Point, Any]) -> Any:
            search, _, is_over = carry
            return ~is_over & (search.num_jacobians < max_jacobians)

        def advance(carry: tuple[Search, Point, Any]) -> tuple[Search, Point, Any]:
            search, at = self._begun(carry[0])
            is_over = (search.status != steps.RUNNING) | (search.num_steps >= self.settings.max_steps)
            moved = lax.cond(is_over, lambda search, _: search, self._moved, search, at)
            return moved, at, is_over | (moved.status != steps.RUNNING)

        types = jax.eval_shape(self._begun, search)[1]
        nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), types)
        return lax.while_loop(is_running, advance, (search, nothing, jnp.array(False)))

    def _begun(self, search: Search) -> tuple[Search, Point]:
        """The linear model where a search is, and whether that is its end."""
        residuals, jacobian = self.linearized(search.x)
        at = steps.point(search, residuals, jacobian, self.bounds, self.settings.loss, self.loss_scale)
        return steps.judged(search, at, self.settings), at

    def _moved(self, search: Search, at: Point) -> Search:
        return lax.cond(steps.is_quiet(search), steps.polished, self._tried, search, at)

    def _tried(self, search: Search, at: Point) -> Search:
        """Try steps from a point until one is taken; without another Jacobian."""

        def attempt(carry: tuple[Search, Any, Any]) -> tuple[Search, Any, Any]:
            search, _, count = carry
            velocity, root = steps.direction(at, search.damping)
            is_accelerated = self.settings.is_accelerated
            curvature = second_derivative(self.residuals, at.x, velocity) if is_accelerated else None
            step = steps.trial(at, velocity, root, curvature, self.bounds)
            found = cost(self.settings.loss, self.residuals(step.x), self.loss_scale)
            return *steps.answered(search, at, step, found), count + 1

        def is_running(carry: tuple[Search, Any, Any]) -> Any:
            _, is_taken, count = carry
            return ~is_taken & (count < steps.MAX_TRIALS)

        search, is_taken, _ = lax.while_loop(is_running, attempt, (search, jnp.array(False), 0))
        return lax.cond(is_taken, lambda search: search, lambda search: steps.stalled(search, at), search)


def second_derivative(residuals: Residuals, x: Any, v: Any) -> Any:
    """r''(v, v), shape (m,), for x and v of one structure."""
    along = lambda x: jax.jvp(residuals, (x,), (v,))[1]
    return jax.jvp(along, (x,), (v,))[1]
