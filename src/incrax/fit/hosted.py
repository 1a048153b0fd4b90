"""A search step by step: the host evaluates, through the engine, and lets others watch.

In: residuals as an incremental function. Out: the end of a search, with the same mathematics as one program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from incrax._api import incremental
from incrax.derivatives.transforms import jacobian, plain
from incrax.fit import steps
from incrax.fit.compiled import second_derivative
from incrax.fit.losses import cost
from incrax.fit.problem import Problem, weighed_vector
from incrax.fit.steps import Found, Point, Search, Settings
from incrax.running.progress import Meter

Callback = Callable[[Any, float], bool | None]


class Hosted:
    """Residuals, Jacobian and second derivatives as incremental functions of the arguments."""

    def __init__(self, fun: Any, task: Problem, settings: Settings, roots: Any, scale: Any) -> None:
        self.task, self.settings, self.roots, self.scale = task, settings, roots, scale
        self.bounds = (task.lower, task.upper)
        function = plain(fun)
        dtype = task.x.dtype

        def residuals(leaves: Any, others: Any, roots: Any) -> Any:
            return weighed_vector(function(*task.layout.filled(leaves, others)), roots, dtype)

        def curvature(leaves: Any, tangents: Any, others: Any, roots: Any) -> Any:
            return second_derivative(lambda leaves: residuals(leaves, others, roots), leaves, tangents)

        self._residuals = incremental(residuals)
        self._jacobian = jacobian(residuals)
        self._curvature = incremental(curvature)
        self._model = jax.jit(self._modelled)
        self._judge = jax.jit(self._judged)
        self._step = jax.jit(steps.trial)

    def run(self, callback: Callback | None, *, progress: bool) -> Found:
        """Search to the end."""
        search, at = self._at(steps.first(jnp.asarray(self.task.x)))
        with Meter("least squares", self.settings.max_steps, is_shown=progress) as meter:
            while int(search.status) == steps.RUNNING and int(search.num_steps) < self.settings.max_steps:
                search = self._moved(search, at)
                if int(search.status) == steps.RUNNING:
                    search, at = self._at(search)
                meter.advance()
                if callback is not None and callback(self.task.tree(search.x), float(at.cost)):
                    break
        return steps.found(search, at, True)

    # --- inner ---------------------------------------------------------------------------------------------------

    def _at(self, search: Search) -> tuple[Search, Point]:
        leaves = self.task.layout.free_leaves(search.x)
        blocks = self._jacobian(leaves, self.task.others, self.roots)
        return self._model(search, self._residuals(leaves, self.task.others, self.roots), blocks, self.scale)

    def _modelled(self, search: Search, residuals: Any, blocks: Any, scale: Any) -> tuple[Search, Point]:
        matrix = jnp.concatenate([block.reshape(residuals.size, -1) for block in blocks], axis=1)
        at = steps.point(search, residuals, matrix.astype(search.x.dtype), self.bounds, self.settings.loss, scale)
        return steps.judged(search, at, self.settings), at

    def _moved(self, search: Search, at: Point) -> Search:
        if bool(steps.is_quiet(search)):
            return steps.polished(search, at)
        for _ in range(steps.MAX_TRIALS):
            search, is_taken = self._attempted(search, at)
            if bool(is_taken):
                return search
        return steps.stalled(search, at)

    def _attempted(self, search: Search, at: Point) -> tuple[Search, Any]:
        others, layout = self.task.others, self.task.layout
        velocity, curvature = steps.direction(at, search.damping), None
        if self.settings.is_accelerated:
            leaves, tangents = layout.free_leaves(at.x), layout.free_leaves(velocity)
            curvature = self._curvature(leaves, tangents, others, self.roots)
        step = self._step(at, velocity, curvature, search.damping, self.bounds)
        residuals = self._residuals(layout.free_leaves(step.x), others, self.roots)
        return self._judge(search, at, step, residuals, self.scale)

    def _judged(self, search: Search, at: Point, step: Any, residuals: Any, scale: Any) -> tuple[Search, Any]:
        return steps.answered(search, at, step, cost(self.settings.loss, residuals, scale))
