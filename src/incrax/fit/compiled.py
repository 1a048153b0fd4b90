"""A whole search as one program, in rounds that give the host a moment.

In: residuals as a function of a vector. Out: the search after a round, and the linear model where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax.fit import steps
from incrax.fit.losses import cost
from incrax.fit.steps import End, Point, Search, Settings

Residuals = Callable[[Any], Any]
Jacobian = Callable[[Any], tuple[Any, Any]]


class Turn(NamedTuple):
    """What goes round the loop."""

    search: Search
    at: Point
    is_new: Any
    """Whether the search is not where `at` is."""
    num_refused: Any
    """Steps refused in a row."""
    is_over: Any


class Round:
    """One search's programs, traced for a function of a vector."""

    def __init__(self, residuals: Residuals, linearized: Jacobian, settings: Settings, bounds: Any, loss_scale: Any):
        """Residuals of shape (m,), both with their Jacobian of shape (m, n), bounds of shape (n,) each."""
        self.residuals, self.linearized = residuals, linearized
        self.settings, self.bounds, self.loss_scale = settings, bounds, loss_scale

    def run(self, search: Search, max_jacobians: Any) -> Turn:
        """Iterate until it is over, or so many Jacobians were evaluated in all.

        A turn tries one step. Loops are not nested: in a small fit, entering one costs more than a step.
        """

        def is_running(turn: Turn) -> Any:
            return ~turn.is_over & (~turn.is_new | (turn.search.num_jacobians < max_jacobians))

        types = jax.eval_shape(self._begun, search, None)[1]
        nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), types)
        first = Turn(search, nothing, jnp.array(True), jnp.array(0), jnp.array(False))
        return lax.while_loop(is_running, self._turned, first)

    def end(self, turn: Turn) -> End:
        """Where a search is over: residuals and cost belong to the point that is returned."""
        x = steps.last(turn.search, turn.at)
        residuals = self.residuals(x)
        return steps.ended(turn.at, x, residuals, cost(self.settings.loss, residuals, self.loss_scale))

    def _turned(self, turn: Turn) -> Turn:
        search, at = lax.cond(turn.is_new, self._begun, lambda *given: given, turn.search, turn.at)
        is_over = (search.status != steps.RUNNING) | (search.num_steps >= self.settings.max_steps)
        way = jnp.where(is_over, 0, jnp.where(steps.is_quiet(search), 1, 2))
        search, is_new = lax.switch(way, (_stayed, _polished, self._tried), search, at)
        num_refused = jnp.where(is_new, 0, turn.num_refused + 1)
        search, has_stalled = steps.stalled(search, at, num_refused)
        is_over |= search.status != steps.RUNNING
        return Turn(search, at, is_new | has_stalled, num_refused, is_over)

    def _begun(self, search: Search, _: Any) -> tuple[Search, Point]:
        """The linear model where a search is, and whether that is its end."""
        residuals, jacobian = self.linearized(search.x)
        at = steps.point(search, residuals, jacobian, self.bounds, self.settings.loss, self.loss_scale)
        return steps.judged(search, at, self.settings), at

    def _tried(self, search: Search, at: Point) -> tuple[Search, Any]:
        """Try a step from a point; without another Jacobian."""
        velocity, root = steps.direction(at, search.damping)
        is_accelerated = self.settings.is_accelerated
        curvature = second_derivative(self.residuals, at.x, velocity) if is_accelerated else None
        step = steps.trial(at, velocity, root, curvature, self.bounds)
        return steps.answered(search, at, step, cost(self.settings.loss, self.residuals(step.x), self.loss_scale))


def _stayed(search: Search, _: Point) -> tuple[Search, Any]:
    return search, jnp.array(False)


def _polished(search: Search, at: Point) -> tuple[Search, Any]:
    return steps.polished(search, at), jnp.array(True)


def second_derivative(residuals: Residuals, x: Any, v: Any) -> Any:
    """r''(v, v), shape (m,), for x and v of one structure."""
    along = lambda x: jax.jvp(residuals, (x,), (v,))[1]
    return jax.jvp(along, (x,), (v,))[1]
