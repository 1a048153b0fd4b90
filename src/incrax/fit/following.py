"""The minimum over all other elements, followed while some are moved along a grid.

In: counted functions of a vector, a minimum with its Hessian. Out: minima where chosen elements are
held.

The metric M, an estimate of the Hessian of all elements, comes from the minimum and learns by BFGS
from every evaluation, held elements included, so that one step predicts where the others go when a
held one moves: M_oo s = -(g_o + M_oh d). Elements that would gain less than the tolerance together
stay where they are, and what only they reach is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from incrax.fit.task import CountedTask

MAX_STEPS = 12
"""Steps from one metric; then the Hessian is evaluated."""
MAX_HALVINGS = 6


class Minimum(NamedTuple):
    """Where the search for one point of a grid ended."""

    x: np.ndarray
    value: float
    gradient: np.ndarray
    metric: np.ndarray
    is_converged: bool


PRESSED = 1e-3
"""Of the goal: what the way to its bound may gain an element that stays at it."""


class Follower:
    """Finds minima over all elements but the held ones, each from the nearest known one."""

    def __init__(
        self, counted: CountedTask, first: Minimum, held: Sequence[int], goal: float
    ) -> None:
        """`goal` is the distance to the minimum, in units of the function, that is near enough."""
        self.counted = counted
        self._bounds = counted.bounds
        self.goal = goal
        self.held = np.array(held, int)  # also where nothing is held
        self.known = [first]
        self._places = first.x[self.held][None]
        self._scale = np.sqrt(np.abs(np.diagonal(first.metric))[self.held])
        self._is_other = np.ones(first.x.size, bool)
        self._is_other[self.held] = False
        self._is_moving = np.zeros(first.x.size, bool)

    def at(self, target: Any) -> Minimum:
        """The minimum where the held elements have these values, shape (num held,)."""
        distances = np.sum(((self._places - target) * self._scale) ** 2, axis=1)
        found = self._searched(self.known[int(np.argmin(distances))], np.asarray(target, float))
        if found.is_converged:
            self.known.append(found)
            self._places = np.vstack([self._places, target])
        return found

    # --- inner ------------------------------------------------------------------------------------

    @np.errstate(divide="ignore", invalid="ignore")  # a step along what is flat leads nowhere
    def _searched(self, near: Minimum, target: np.ndarray) -> Minimum:
        at = self._evaluated(near, self._predicted(near, target))
        if not np.isfinite(at.value):
            return at
        for attempt in range(2):
            for _ in range(MAX_STEPS):
                if self.distance(at) <= self.goal:
                    return at._replace(is_converged=True)
                better = self._stepped(at)
                if better is None:
                    break
                at = better
            if attempt == 0 and self.distance(at) > self.goal:
                at = at._replace(metric=self.counted.hessian(at.x))
        return at

    def _predicted(self, near: Minimum, target: np.ndarray) -> np.ndarray:
        x = near.x.copy()
        shift = target - near.x[self.held]
        x[self.held] = target
        ahead = near._replace(x=x, gradient=near.gradient + near.metric[:, self.held] @ shift)
        return self._inside(x + self._step(ahead))

    def _stepped(self, at: Minimum) -> Minimum | None:
        """A point with a lower value, None if there is none along the step."""
        step = self._step(at)
        for _ in range(MAX_HALVINGS):
            found = self._evaluated(at, self._inside(at.x + step))
            at = at._replace(metric=found.metric)
            if found.value <= at.value:
                return found
            step = 0.5 * step
        return None

    def _evaluated(self, near: Minimum, x: np.ndarray) -> Minimum:
        value, gradient = self.counted.value_and_gradient(x)
        metric = near.metric
        if np.isfinite(value):
            metric = learned(metric, x - near.x, gradient - near.gradient)
        return Minimum(x, value, gradient, metric, is_converged=False)

    def _inside(self, x: np.ndarray) -> np.ndarray:
        found = self._bounds.inside(x)
        found[self.held] = x[self.held]
        return found

    def _open(self, at: Minimum) -> np.ndarray:
        """Elements to minimise over: not held, nor pressed against a bound that is as near as makes
        no difference.
        """
        room = self._bounds.room(at.x, at.gradient)
        is_near = (
            np.abs(at.gradient) * np.where(np.isfinite(room), room, 0.0) <= PRESSED * self.goal
        )
        is_pressed = is_near & np.isfinite(room) & (at.gradient != 0)
        return self._is_other & ~is_pressed

    def distance(self, at: Minimum) -> float:
        """To the minimum over all that is not held, in units of the function, by the metric."""
        return _gain(at, np.flatnonzero(self._open(at)))

    def _step(self, at: Minimum) -> np.ndarray:
        """The step of the elements that must move; once one had to, it may for the rest of the
        grid.
        """
        is_open = self._open(at)
        everything = np.flatnonzero(is_open)
        step = np.zeros_like(at.x)
        if everything.size:
            self._let_move(at, everything)
            chosen = np.flatnonzero(self._is_moving & is_open)
            step[chosen] = -_solved(at, chosen)
        return step

    def _let_move(self, at: Minimum, everything: np.ndarray) -> None:
        """Let so many elements move that what the others could gain is below half of the goal."""
        whole = _gain(at, everything)
        missing = 0.5 * self.goal
        single = at.gradient[everything] ** 2 / np.diagonal(at.metric)[everything]
        for number in everything[np.argsort(-single)]:
            if whole - _gain(at, everything[self._is_moving[everything]]) <= missing:
                return
            self._is_moving[number] = True


def _solved(at: Minimum, chosen: np.ndarray) -> np.ndarray:
    """M^-1 g of some elements."""
    part = at.metric[np.ix_(chosen, chosen)]
    scale = 1.0 / np.sqrt(np.abs(np.diagonal(part)))
    return scale * np.linalg.solve(part * scale * scale[:, None], scale * at.gradient[chosen])


def _gain(at: Minimum, chosen: np.ndarray) -> float:
    """What moving some elements would gain, g^T M^-1 g / 2; infinite where the function curves down
    along some way.
    """
    if not chosen.size:
        return 0.0
    try:
        np.linalg.cholesky(at.metric[np.ix_(chosen, chosen)])
    except np.linalg.LinAlgError:
        return np.inf
    return float(0.5 * at.gradient[chosen] @ _solved(at, chosen))


def learned(metric: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """BFGS: the metric with M step = change, as it was where the function curves down along the
    step.
    """
    bend = float(change @ step)
    pushed = metric @ step
    expected = float(step @ pushed)
    if not (bend > 1e-3 * expected and expected > 0):
        return metric
    return metric + np.outer(change, change) / bend - np.outer(pushed, pushed) / expected
