"""A search step by step: the host evaluates, through the engine, and lets others watch.

In: residuals as an incremental function. Out: the end of a search, with the same mathematics as one program.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from incrax._incremental import Incremental
from incrax.derivatives.differentiated import Jacobian
from incrax.derivatives.transforms import engine_options_of, plain
from incrax.engine.call.signature_table import Options
from incrax.fit import steps
from incrax.fit.compiled import second_derivative
from incrax.fit.losses import cost
from incrax.fit.problem import Layout, Problem, weighed_vector
from incrax.fit.steps import Found, Point, Search, Settings
from incrax.fit.turns import Callback, searched

NUM_KEPT = 64
"""Functions that are not incremental whose derivatives are kept."""


# --- functions of a search --------------------------------------------------------------------------------------------


class Functions(NamedTuple):
    """What the host evaluates: functions of the free leaves, of what is fixed, and of the roots of the weights."""

    residuals: Incremental[..., Any]
    jacobian: Incremental[..., Any]
    curvature: Incremental[..., Any]
    """Also of the tangents of the free leaves."""


def functions(fun: Any, layout: Layout) -> Functions:
    """Residuals, Jacobian and second derivative as incremental functions with the options of the one given.

    Made once, so that a second fit traces nothing. Those of an incremental function live as long as it does, share its
    budget of memory, and a second fit finds what the first one saved.
    """
    kept = _kept.setdefault(fun, {}) if isinstance(fun, Incremental) else None
    try:
        if kept is None:
            return _made_once(fun, layout)
        if layout not in kept:
            kept[layout] = _made(plain(fun), layout, engine_options_of(fun))
        return kept[layout]
    except TypeError:  # a static value that cannot be hashed
        return _made(plain(fun), layout, engine_options_of(fun))


def _made(function: Any, layout: Layout, options: Options) -> Functions:
    dtype = np.result_type(*layout.dtypes)

    def residuals(leaves: Any, others: Any, roots: Any) -> Any:
        return weighed_vector(function(*layout.filled(leaves, others)), roots, dtype)

    def curvature(leaves: Any, tangents: Any, others: Any, roots: Any) -> Any:
        return second_derivative(lambda leaves: residuals(leaves, others, roots), leaves, tangents)

    made: tuple[Any, ...] = (residuals, Jacobian(residuals, None, "jacobian"), curvature)
    memory = None if options.memory is None else options.memory // len(made)
    return Functions(*(Incremental(each, options._replace(memory=memory)) for each in made))


@functools.lru_cache(NUM_KEPT)
def _made_once(fun: Any, layout: Layout) -> Functions:
    return _made(fun, layout, engine_options_of(fun))


_kept: WeakKeyDictionary[Incremental[..., Any], dict[Layout, Functions]] = WeakKeyDictionary()


# --- the search -------------------------------------------------------------------------------------------------------


class Hosted:
    """A search whose steps the host takes."""

    def __init__(self, fun: Any, task: Problem, settings: Settings, roots: Any, scale: Any) -> None:
        self.task, self.settings, self.roots, self.scale = task, settings, roots, scale
        self.bounds = (task.lower, task.upper)
        self.functions = functions(fun, task.layout)

    def clear(self) -> None:
        """Drop what the search saved."""
        for function in self.functions:
            function.clear()

    def run(self, callback: Callback | None, *, progress: bool) -> Found:
        """Search to the end."""
        search, at = searched(self._at, self._attempted, self.task, self.settings, callback, progress=progress)
        return _found(search, at, True)

    # --- inner ---------------------------------------------------------------------------------------------------

    def _at(self, search: Search) -> tuple[Search, Point]:
        given = (self.task.layout.free_leaves(search.x), self.task.others, self.roots)
        residuals, blocks = self.functions.residuals(*given), self.functions.jacobian(*given)
        return _modelled(search, residuals, blocks, self.bounds, self.scale, settings=self.settings)

    def _attempted(self, search: Search, at: Point) -> tuple[Search, Any]:
        others, layout = self.task.others, self.task.layout
        (velocity, root), curvature = _direction(at, search.damping), None
        if self.settings.is_accelerated:
            leaves, tangents = layout.free_leaves(at.x), layout.free_leaves(velocity)
            curvature = self.functions.curvature(leaves, tangents, others, self.roots)
        step = _trial(at, velocity, root, curvature, self.bounds)
        residuals = self.functions.residuals(layout.free_leaves(step.x), others, self.roots)
        return _judged(search, at, step, residuals, self.scale, loss=self.settings.loss)


@functools.partial(jax.jit, static_argnames="settings")
def _modelled(
    search: Search, residuals: Any, blocks: Any, bounds: Any, scale: Any, *, settings: Settings
) -> tuple[Search, Point]:
    matrix = jnp.concatenate([block.reshape(residuals.size, -1) for block in blocks], axis=1)
    at = steps.point(search, residuals, matrix.astype(search.x.dtype), bounds, settings.loss, scale)
    return steps.judged(search, at, settings), at


@functools.partial(jax.jit, static_argnames="loss")
def _judged(search: Search, at: Point, step: Any, residuals: Any, scale: Any, *, loss: str) -> tuple[Search, Any]:
    return steps.answered(search, at, step, cost(loss, residuals, scale))


_direction, _trial, _found = jax.jit(steps.direction), jax.jit(steps.trial), jax.jit(steps.found)
