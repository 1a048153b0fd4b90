"""A search of least squares: as one program, or in turns of the host, through the engine.

In: what evaluates residuals and linear models, a start. Out: the end of the search; both ways by
the mathematics of `steps`. The host takes turns where something on it takes part: an incremental
function, which saves what a step does not change, a sparse solver, or a callback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from jax import lax

from incrax import Incremental, incremental, jacobian
from incrax._progress import Meter
from incrax.derivatives.transforms import options_of, plain
from incrax.fit import steps
from incrax.fit.problem import ArgumentLayout, Problem, remembered, weighed_vector
from incrax.fit.steps import Found, LinearizedPoint, Search, SearchSettings, Setup
from incrax.fit.task import Callback


class Maths(NamedTuple):
    """The steps of a search, as they are or compiled."""

    looked: Any = steps.looked
    looked_by_products: Any = steps.looked_by_products
    velocity: Any = steps.velocity
    trial: Any = steps.trial
    answered: Any = steps.answered
    found: Any = steps.found


COMPILED = Maths(*(jax.jit(each, inline=True) for each in Maths()))
"""For linear models of JAX arrays. Inlined, they leave no trace in a program of the whole."""


class HostFunctions(NamedTuple):
    """What a search evaluates, functions of a vector and of what is given: all that is fixed, and
    the roots of the weights.
    """

    residuals: Any
    """Shape (m,)."""
    jacobian: Any
    """Shape (m, n)."""
    curvature: Any
    """r''(v, v), also of v; shape (m,)."""


def evaluations(fun: Callable[..., Any], layout: ArgumentLayout) -> HostFunctions:
    """Those of a function, for JAX to trace."""

    def residuals(x: Any, given: Any) -> Any:
        others, roots = given
        return weighed_vector(fun(*layout.arguments(x, others)), roots, x.dtype)

    def matrix(x: Any, given: Any) -> Any:
        return jacobian(lambda x: residuals(x, given))(x)

    def curvature(x: Any, given: Any, v: Any) -> Any:
        along = lambda x: jax.jvp(lambda x: residuals(x, given), (x,), (v,))[1]
        return jax.jvp(along, (x,), (v,))[1]

    return HostFunctions(residuals, matrix, curvature)


@remembered
def _compiled(fun: Any, layout: ArgumentLayout) -> HostFunctions:
    return HostFunctions(*map(jax.jit, evaluations(fun, layout)))


def hosted(fun: Any, layout: ArgumentLayout) -> HostFunctions:
    """Those of a function for the host, made once, so that a second fit traces nothing.

    Those of an incremental function have its options, live as long as it does, share its budget of
    memory, and a second fit finds what the first one saved.
    """
    if not isinstance(fun, Incremental):
        return _compiled(fun, layout)
    if fun not in _of_incremental:
        _of_incremental[fun] = remembered(functools.partial(_saving, plain(fun), options_of(fun)))
    return _of_incremental[fun](layout)


def _saving(fun: Any, options: Any, layout: ArgumentLayout) -> HostFunctions:
    made = evaluations(fun, layout)
    if options.get("memory") is not None:
        options = {**options, "memory": options["memory"] // len(made)}
    return HostFunctions(
        incremental(made.residuals, **options),
        jacobian(made.residuals, **options),
        incremental(made.curvature, **options),
    )


_of_incremental: WeakKeyDictionary[Incremental[..., Any], Any] = WeakKeyDictionary()


class LeastSquares(NamedTuple):
    """One search, whoever drives it: a loop in a program, where all is traced, or the host."""

    evaluate: HostFunctions
    given: Any
    look: Callable[[Search], tuple[Search, LinearizedPoint]]
    """The linear model where a search is, and whether that is its end."""
    setup: Setup
    maths: Maths = COMPILED

    @property
    def settings(self) -> SearchSettings:
        """What was asked of the search."""
        return self.setup.settings

    def residuals(self, x: Any) -> Any:
        """Of a vector, shape (m,)."""
        return self.evaluate.residuals(x, self.given)

    def attempt(self, search: Search, at: LinearizedPoint) -> tuple[Search, Any]:
        """Try a step from a point, without another Jacobian; whether it was taken."""
        velocity = self.maths.velocity(search, at)
        curvature = None
        if self.settings.is_accelerated:
            curvature = self.evaluate.curvature(at.x, self.given, velocity)
        tried = self.maths.trial(search, at, velocity, curvature, self.setup)
        return self.maths.answered(search, at, tried, self.residuals(tried.x), self.setup)

    def found(self, search: Search, at: LinearizedPoint, is_over: Any = True) -> Found:
        """The end: residuals and cost belong to the point that is returned."""
        x = steps.last(search, at)
        return self.maths.found(search, at, x, self.residuals(x), self.setup, is_over)


def least_squares(evaluate: HostFunctions, given: Any, setup: Setup) -> LeastSquares:
    """A search by dense Jacobians, or by none."""

    def look(search: Search) -> tuple[Search, LinearizedPoint]:
        residuals = evaluate.residuals(search.x, given)
        if setup.settings.solver == "matrix-free":
            fun = jax.tree_util.Partial(evaluate.residuals, given=given)
            return COMPILED.looked_by_products(search, fun, residuals, setup)
        return COMPILED.looked(search, residuals, evaluate.jacobian(search.x, given), setup)

    return LeastSquares(evaluate, given, look, setup)


# --- driven by a loop in a program, in rounds that give the host a moment -------------------------


class Turn(NamedTuple):
    """What goes round the loop."""

    search: Search
    at: LinearizedPoint
    is_new: Any
    """Whether the search is not where `at` is."""
    num_refused: Any
    """Steps refused in a row."""
    is_over: Any


def looped(squares: LeastSquares, search: Search, max_jacobians: Any) -> Turn:
    """Iterate until it is over, or so many Jacobians were evaluated in all.

    A turn tries one step. Loops are not nested: in a small fit, entering one costs more than a
    step.
    """
    stay = lambda search, _: (search, jnp.array(False))
    polish = lambda search, at: (steps.polished(search, at), jnp.array(True))

    def is_running(turn: Turn) -> Any:
        return ~turn.is_over & (~turn.is_new | (turn.search.num_jacobians < max_jacobians))

    def turned(turn: Turn) -> Turn:
        look = lambda: squares.look(turn.search)
        search, at = lax.cond(turn.is_new, look, lambda: (turn.search, turn.at))
        has_ended = search.num_steps >= squares.settings.max_steps
        is_over = (search.status != steps.RUNNING) | has_ended
        way = jnp.where(is_over, 0, jnp.where(steps.is_quiet(search), 1, 2))
        search, is_new = lax.switch(way, (stay, polish, squares.attempt), search, at)
        num_refused = jnp.where(is_new, 0, turn.num_refused + 1)
        search, has_stalled = steps.stalled(search, at, num_refused)
        is_over |= search.status != steps.RUNNING
        return Turn(search, at, is_new | has_stalled, num_refused, is_over)

    types = jax.eval_shape(squares.look, search)[1]
    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), types)
    first = Turn(search, nothing, jnp.array(True), jnp.array(0), jnp.array(False))
    return lax.while_loop(is_running, turned, first)


# --- driven by the host, whatever evaluates and solves --------------------------------------------


def searched(
    squares: LeastSquares, task: Problem, callback: Callback | None, *, progress: bool
) -> Found:
    """Search to the end; a callback that returns True is one."""
    max_steps = squares.settings.max_steps
    search, at = squares.look(steps.unpacked(jnp.asarray(steps.start(task.x))))
    with Meter("least squares", max_steps, is_shown=progress) as meter:
        while int(search.status) == steps.RUNNING and int(search.num_steps) < max_steps:
            search = _moved(squares, search, at)
            if int(search.status) == steps.RUNNING:
                search, at = squares.look(search)
            meter.advance()
            if callback is not None and callback(task.tree(search.x), float(at.cost)):
                break
    return squares.found(search, at)


def _moved(squares: LeastSquares, search: Search, at: LinearizedPoint) -> Search:
    """After the first step that is taken."""
    if bool(steps.is_quiet(search)):
        return steps.polished(search, at)
    for _ in range(steps.MAX_TRIALS):
        search, is_taken = squares.attempt(search, at)
        if bool(is_taken):
            return search
    return steps.stalled(search, at, steps.MAX_TRIALS)[0]
