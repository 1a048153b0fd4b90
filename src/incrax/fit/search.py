"""A search of least squares: as one program, or in turns of the host, through the engine.

In: residuals, a start. Out: the end of the search; both ways by the mathematics of `steps`. The host takes turns where
something on it takes part: an incremental function, which saves what a step does not change, or a callback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import Incremental
from incrax._progress import Meter
from incrax.derivatives.differentiated import Jacobian
from incrax.derivatives.transforms import engine_options_of, plain
from incrax.engine.call.signature_table import Options
from incrax.fit import steps
from incrax.fit.losses import cost
from incrax.fit.problem import ArgumentLayout, Problem, weighed_vector
from incrax.fit.steps import End, Found, LinearizedPoint, Search, SearchSettings

# --- one program, in rounds that give the host a moment ---------------------------------------------------------------

Residuals = Callable[[Any], Any]
Linearized = Callable[[Any], tuple[Any, Any]]


class Turn(NamedTuple):
    """What goes round the loop."""

    search: Search
    at: LinearizedPoint
    is_new: Any
    """Whether the search is not where `at` is."""
    num_refused: Any
    """Steps refused in a row."""
    is_over: Any


class Round:
    """One search's programs, traced for a function of a vector."""

    def __init__(
        self, residuals: Residuals, linearized: Linearized, settings: SearchSettings, bounds: Any, loss_scale: Any
    ):
        """Residuals of shape (m,), both with their Jacobian of shape (m, n), bounds of shape (n,) each."""
        self.residuals = residuals
        self.linearized = linearized
        self.settings = settings
        self.bounds = bounds
        self.loss_scale = loss_scale

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

    def _begun(self, search: Search, _: Any) -> tuple[Search, LinearizedPoint]:
        """The linear model where a search is, and whether that is its end."""
        residuals, jacobian = self.linearized(search.x)
        at = steps.point(search, residuals, jacobian, self.bounds, self.settings.loss, self.loss_scale)
        return steps.judged(search, at, self.settings), at

    def _tried(self, search: Search, at: LinearizedPoint) -> tuple[Search, Any]:
        """Try a step from a point; without another Jacobian."""
        velocity, root = steps.direction(at, search.damping)
        is_accelerated = self.settings.is_accelerated
        curvature = second_derivative(self.residuals, at.x, velocity) if is_accelerated else None
        step = steps.trial(at, velocity, root, curvature, self.bounds)
        return steps.answered(search, at, step, cost(self.settings.loss, self.residuals(step.x), self.loss_scale))


def _stayed(search: Search, _: LinearizedPoint) -> tuple[Search, Any]:
    return search, jnp.array(False)


def _polished(search: Search, at: LinearizedPoint) -> tuple[Search, Any]:
    return steps.polished(search, at), jnp.array(True)


def second_derivative(residuals: Residuals, x: Any, v: Any) -> Any:
    """r''(v, v), shape (m,), for x and v of one structure."""
    along = lambda x: jax.jvp(residuals, (x,), (v,))[1]
    return jax.jvp(along, (x,), (v,))[1]


# --- turns of the host, whatever evaluates and solves -----------------------------------------------------------------

Callback = Callable[[Any, float], bool | None]
Look = Callable[[Search], tuple[Search, Any]]
Attempt = Callable[[Search, Any], tuple[Search, Any]]


def searched(
    look: Look, attempt: Attempt, task: Problem, settings: SearchSettings, callback: Callback | None, *, progress: bool
) -> tuple[Search, Any]:
    """Search to the end; a callback that returns True is one."""
    search, at = look(steps.unpacked(jnp.asarray(steps.start(task.x))))
    with Meter("least squares", settings.max_steps, is_shown=progress) as meter:
        while int(search.status) == steps.RUNNING and int(search.num_steps) < settings.max_steps:
            search = _moved(search, at, attempt)
            if int(search.status) == steps.RUNNING:
                search, at = look(search)
            meter.advance()
            if callback is not None and callback(task.tree(search.x), float(at.cost)):
                break
    return search, at


def _moved(search: Search, at: Any, attempt: Attempt) -> Search:
    """After the first step that is taken."""
    if bool(steps.is_quiet(search)):
        return steps.polished(search, at)
    for _ in range(steps.MAX_TRIALS):
        search, is_taken = attempt(search, at)
        if bool(is_taken):
            return search
    return steps.stalled(search, at, steps.MAX_TRIALS)[0]


NUM_KEPT = 64
"""Functions that are not incremental whose derivatives are kept."""


# --- functions of a search --------------------------------------------------------------------------------------------


class HostFunctions(NamedTuple):
    """What the host evaluates: functions of the free leaves, of what is fixed, and of the roots of the weights."""

    residuals: Incremental[..., Any]
    jacobian: Incremental[..., Any]
    curvature: Incremental[..., Any]
    """Also of the tangents of the free leaves."""


def functions(fun: Any, layout: ArgumentLayout) -> HostFunctions:
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


def _made(function: Any, layout: ArgumentLayout, options: Options) -> HostFunctions:
    dtype = np.result_type(*layout.dtypes)

    def residuals(leaves: Any, others: Any, roots: Any) -> Any:
        return weighed_vector(function(*layout.filled(leaves, others)), roots, dtype)

    def curvature(leaves: Any, tangents: Any, others: Any, roots: Any) -> Any:
        return second_derivative(lambda leaves: residuals(leaves, others, roots), leaves, tangents)

    made: tuple[Any, ...] = (residuals, Jacobian(residuals, None, "jacobian"), curvature)
    memory = None if options.memory is None else options.memory // len(made)
    return HostFunctions(*(Incremental(each, options._replace(memory=memory)) for each in made))


@functools.lru_cache(NUM_KEPT)
def _made_once(fun: Any, layout: ArgumentLayout) -> HostFunctions:
    return _made(fun, layout, engine_options_of(fun))


_kept: WeakKeyDictionary[Incremental[..., Any], dict[ArgumentLayout, HostFunctions]] = WeakKeyDictionary()


# --- the search -------------------------------------------------------------------------------------------------------


class Hosted:
    """A search whose steps the host takes."""

    def __init__(self, fun: Any, task: Problem, settings: SearchSettings, roots: Any, scale: Any) -> None:
        self.task = task
        self.settings = settings
        self.roots = roots
        self.scale = scale
        self.bounds = (task.lower, task.upper)
        self.functions = functions(fun, task.layout)

    def clear(self) -> None:
        """Drop what the search saved."""
        for function in self.functions:
            function.clear()

    def run(self, callback: Callback | None, *, progress: bool) -> Found:
        """Search to the end."""
        search, at = searched(self._at, self._attempted, self.task, self.settings, callback, progress=progress)
        x = steps.last(search, at)
        residuals = self.functions.residuals(self.task.layout.free_leaves(x), self.task.others, self.roots)
        return _found(search, at, x, residuals, self.scale, loss=self.settings.loss)

    # --- inner ---------------------------------------------------------------------------------------------------

    def _at(self, search: Search) -> tuple[Search, LinearizedPoint]:
        given = (self.task.layout.free_leaves(search.x), self.task.others, self.roots)
        residuals = self.functions.residuals(*given)
        blocks = self.functions.jacobian(*given)
        return _modelled(search, residuals, blocks, self.bounds, self.scale, settings=self.settings)

    def _attempted(self, search: Search, at: LinearizedPoint) -> tuple[Search, Any]:
        others = self.task.others
        layout = self.task.layout
        (velocity, root), curvature = _direction(at, search.damping), None
        if self.settings.is_accelerated:
            leaves = layout.free_leaves(at.x)
            tangents = layout.free_leaves(velocity)
            curvature = self.functions.curvature(leaves, tangents, others, self.roots)
        step = _trial(at, velocity, root, curvature, self.bounds)
        residuals = self.functions.residuals(layout.free_leaves(step.x), others, self.roots)
        return _judged(search, at, step, residuals, self.scale, loss=self.settings.loss)


@functools.partial(jax.jit, static_argnames="settings")
def _modelled(
    search: Search, residuals: Any, blocks: Any, bounds: Any, scale: Any, *, settings: SearchSettings
) -> tuple[Search, LinearizedPoint]:
    matrix = jnp.concatenate([block.reshape(residuals.size, -1) for block in blocks], axis=1)
    at = steps.point(search, residuals, matrix.astype(search.x.dtype), bounds, settings.loss, scale)
    return steps.judged(search, at, settings), at


@functools.partial(jax.jit, static_argnames="loss")
def _judged(
    search: Search, at: LinearizedPoint, step: Any, residuals: Any, scale: Any, *, loss: str
) -> tuple[Search, Any]:
    return steps.answered(search, at, step, cost(loss, residuals, scale))


@functools.partial(jax.jit, static_argnames="loss")
def _found(search: Search, at: LinearizedPoint, x: Any, residuals: Any, scale: Any, *, loss: str) -> Found:
    end = steps.ended(at, x, residuals, cost(loss, residuals, scale))
    return steps.found(search, at, end, True)


_direction = jax.jit(steps.direction)
_trial = jax.jit(steps.trial)
