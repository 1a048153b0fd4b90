"""Searches with many parameters: the host goes step by step, with a sparse Jacobian or with none.

In: residuals, a `Problem`. Out: the end of a search. The mathematics are those of `steps`; what differs is how a step
is solved for, and that standard errors, which a test of convergence wants, are too dear: each element's error with all
others fixed, which is smaller, stands for it, so that the test is the stricter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from incrax.derivatives.differentiated import Jacobian
from incrax.derivatives.transforms import plain
from incrax.fit import linear, steps
from incrax.fit.linear import SparseModel
from incrax.fit.losses import weighed
from incrax.fit.messages import no_covariance, unknown_option
from incrax.fit.problem import ArgumentLayout, Problem, kept_or_made, weighed_vector
from incrax.fit.search import Callback, searched, second_derivative
from incrax.fit.steps import Found, Search, SearchSettings, Summary

SOLVERS = ("dense", "sparse", "matrix-free", "auto")
MAX_COVARIANCE = 4096
"""Free elements up to which a covariance is found, a dense matrix."""
MAX_DENSE = 1000
"""Free elements up to which `"auto"` is `"dense"`."""
MAX_SHARE = 0.1
"""Share of elements that may be nonzero up to which `"auto"` is `"sparse"`."""
NUM_KEPT = 64


class LargePrograms(NamedTuple):
    """What is compiled of a function of a vector, of what is fixed, of roots of weights and of the loss' scale."""

    values: Any
    """Residuals as the function gives them, and weighed."""
    gradient: Any
    curvature: Any
    """Also of v: r''(v, v) under the loss."""
    sparse: Any
    """The Jacobian as BCOO, its rows not under the loss."""
    norms: Any
    step: Any
    """By products; also of columns, rows, residuals, damping."""
    moved: Any
    dense: Any


@functools.lru_cache(NUM_KEPT)
def _programs(fun: Any, layout: ArgumentLayout, loss: str) -> LargePrograms:
    def at(others: Any, roots: Any) -> Callable[[Any], Any]:
        return lambda x: weighed_vector(fun(*layout.arguments(x, others)), roots, x.dtype)

    def values(x: Any, given: Any, scale: Any) -> Any:
        residuals = at(*given)(x)
        return residuals, weighed(loss, residuals, scale)

    def gradient(x: Any, given: Any, scale: Any) -> Any:
        return jax.grad(lambda x: values(x, given, scale)[1].cost)(x)

    def moved(x: Any, given: Any, rows: Any, v: Any) -> Any:
        return rows * jax.jvp(at(*given), (x,), (v,))[1]

    def step(x: Any, given: Any, columns: Any, rows: Any, residuals: Any, damping: Any) -> Any:
        return linear.matrix_free_step(at(*given), x, columns, rows, residuals, damping)

    jacobian = lambda **settings: lambda x, given: Jacobian(at(*given), None, "jacobian", settings)(x)
    return LargePrograms(
        jax.jit(values),
        jax.jit(gradient),
        jax.jit(lambda x, given, rows, v: rows * second_derivative(at(*given), x, v)),
        jax.jit(jacobian(sparse=True)),
        jax.jit(lambda x, given, rows: linear.column_norms(at(*given), x, rows)),
        jax.jit(step),
        jax.jit(moved),
        jax.jit(jacobian()),
    )


class FreeModel:
    """A linear model by products."""

    def __init__(self, programs: LargePrograms, x: Any, given: Any, seen: Any, is_free: np.ndarray) -> None:
        self._programs = programs
        self._x = x
        self._given = given
        self._seen = seen
        self._is_free = is_free
        norms = np.asarray(programs.norms(x, given, seen.rows)) * is_free
        self.scale = np.where(norms > 0, norms, 1)

    def rank(self) -> int:
        """How many elements the data determine, at most; the rank is not found out."""
        return min(int(self._is_free.sum()), self._seen.residuals.size)

    def newton(self) -> np.ndarray:
        """The undamped step."""
        return self.step(0.0)

    def step(self, damping: float, residuals: Any = None) -> np.ndarray:
        """The damped step, for other residuals if given."""
        r = self._seen.residuals if residuals is None else residuals
        columns = self._is_free / self.scale
        return np.asarray(self._programs.step(self._x, self._given, columns, self._seen.rows, r, damping)[0])

    def moved(self, step: np.ndarray) -> np.ndarray:
        """J times a step, rows under the loss."""
        return np.asarray(self._programs.moved(self._x, self._given, self._seen.rows, step))

    def inverse_normal(self) -> np.ndarray:
        """(J^T J)^-1, dense."""
        jacobian = self._seen.rows[:, None] * self._programs.dense(self._x, self._given) * self._is_free
        found = linear.reduced(jacobian)
        f, _ = linear.factored(found, self.scale, linear.components(found.left, self._seen.residuals))
        return np.array(linear.inverse_normal(f))


class _Nowhere:
    """The linear model where a residual or derivative is not finite."""

    def __init__(self, x: np.ndarray) -> None:
        self.scale = np.ones_like(x)

    def rank(self) -> int:
        return 0

    def newton(self) -> np.ndarray:
        return self.step(0.0)

    def step(self, damping: float, residuals: Any = None) -> np.ndarray:
        return np.zeros_like(self.scale)

    def moved(self, step: np.ndarray) -> np.ndarray:
        return np.zeros(1)

    def inverse_normal(self) -> np.ndarray:
        return np.full((self.scale.size, self.scale.size), np.nan)


Model = SparseModel | FreeModel | _Nowhere
"""The linear model at a point. `rank`: how many elements the data determine. `newton`: the undamped step, `step` the
damped one, for other residuals if given. `moved`: J times a step, rows under the loss. `inverse_normal`: (J^T J)^-1."""


class LargePoint(NamedTuple):
    """Where a search is."""

    x: np.ndarray
    residuals: np.ndarray
    cost: float
    model: Model
    rows: Any
    newton: np.ndarray
    along: np.ndarray
    """J times the undamped step."""
    is_free: np.ndarray


class Large:
    """A search by a sparse Jacobian or by none."""

    def __init__(self, fun: Any, task: Problem, settings: SearchSettings, roots: Any, scale: Any) -> None:
        self.task = task
        self.settings = settings
        self.scale = scale
        # Copied, since the covariance is found after the fit, when callers may have filled their arrays anew.
        self.given = jax.tree.map(lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x, (task.others, roots))
        self.programs = kept_or_made(_programs, plain(fun), task.layout, settings.loss)

    def run(self, callback: Callback | None, *, progress: bool) -> Found:
        """Search to the end."""
        search, at = searched(self._at, self._attempted, self.task, self.settings, callback, progress=progress)
        return self._found(search, at)

    # --- inner ---------------------------------------------------------------------------------------------------

    def _at(self, search: Search) -> tuple[Search, LargePoint]:
        x, (lower, upper) = np.asarray(search.x), (self.task.lower, self.task.upper)
        residuals, seen = self.programs.values(x, self.given, self.scale)
        gradient = np.asarray(self.programs.gradient(x, self.given, self.scale))
        held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
        is_finite = bool(np.isfinite(seen.cost) and np.all(np.isfinite(gradient)))
        model = self._model(x, seen, ~held, np.asarray(search.scale)) if is_finite else _Nowhere(x)
        newton = np.clip(x + model.newton(), lower, upper) - x
        at = LargePoint(x, residuals, float(seen.cost), model, seen.rows, newton, model.moved(newton), ~held)
        errors = np.sqrt(2 * at.cost / max(residuals.size - x.size, 1)) / model.scale
        is_regular = model.rank() >= at.is_free.sum()
        signs = steps.Signs(at.cost, newton, model.scale, errors, np.sum(at.along**2), is_regular, is_finite)
        return steps.concluded(search, signs, self.settings.tolerance), at

    def _model(self, x: np.ndarray, seen: Any, is_free: np.ndarray, last_scale: np.ndarray) -> Model:
        if self.settings.solver == "matrix-free":
            return FreeModel(self.programs, x, self.given, seen, is_free)
        found = self.programs.sparse(x, self.given)
        i, j = np.asarray(found.indices).T
        data = np.asarray(found.data) * np.asarray(seen.rows)[i] * is_free[j]
        jacobian = csr_array((data, (i, j)), shape=found.shape)
        return SparseModel(jacobian, np.asarray(seen.residuals), steps.FORGETTING * last_scale)

    def _attempted(self, search: Search, at: LargePoint) -> tuple[Search, Any]:
        tried = self._trial(at, float(search.damping))
        cost = self.programs.values(tried.x, self.given, self.scale)[1].cost
        return steps.answered(search, at, tried, cost)

    def _trial(self, at: LargePoint, damping: float) -> steps.Trial:
        bounds = (self.task.lower, self.task.upper)
        scale = at.model.scale
        velocity = step = at.model.step(damping)
        is_sound = True
        if self.settings.is_accelerated:
            bent = np.asarray(self.programs.curvature(at.x, self.given, at.rows, velocity))
            acceleration = 0.5 * at.model.step(damping, bent)
            bend = np.linalg.norm(scale * acceleration)
            length = np.linalg.norm(scale * velocity)
            is_sound = bool(bend <= steps.MAX_ACCELERATION * length)
            step = velocity + acceleration if is_sound else velocity
        moved = at.model.moved(np.clip(at.x + velocity, *bounds) - at.x)
        reduction = -np.sum(moved * self._weighed(at)) - 0.5 * np.sum(moved**2)
        return steps.Trial(np.clip(at.x + step, *bounds), reduction, is_sound)

    def _weighed(self, at: LargePoint) -> np.ndarray:
        return np.asarray(weighed(self.settings.loss, at.residuals, self.scale).residuals)

    def _found(self, search: Search, at: LargePoint) -> Found:
        counts = (search.status, search.num_steps, search.num_jacobians, search.num_residuals)
        rank = at.model.rank()
        x = steps.last(search, at)
        residuals, seen = self.programs.values(x, self.given, self.scale)
        end = steps.ended(at, x, residuals, seen.cost)
        report = steps.packed((end.x, *Summary(jnp.array(True), *counts, rank=rank, cost=end.cost)))
        is_known = np.full(at.x.shape, rank >= at.is_free.sum())
        return Found(report, end.residuals, OnDemand(at.model, self.settings.solver), at.is_free, is_known)


class OnDemand:
    """(J^T J)^-1 for whoever asks NumPy for an array of it."""

    def __init__(self, model: Model, solver: str) -> None:
        self.model = model
        self.solver = solver

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The matrix.

        Raises:
            CovarianceError: it is too large.
        """
        n = self.model.scale.size
        if n > MAX_COVARIANCE:
            raise no_covariance(self.solver, n, MAX_COVARIANCE)
        return np.asarray(self.model.inverse_normal(), dtype)


def check_solver(name: Any) -> str:
    """A solver's name.

    Raises:
        ValueError: it is none.
    """
    if name not in SOLVERS:
        raise unknown_option("solver", name, SOLVERS)
    return name


def chosen(solver: str, fun: Any, task: Problem, roots: Any) -> str:
    """What `"auto"` stands for."""
    n = task.x.size
    if solver != "auto":
        return solver
    if n <= MAX_DENSE:
        return "dense"
    found = jax.eval_shape(
        kept_or_made(_programs, plain(fun), task.layout, "squares").sparse, task.x, (task.others, roots)
    )
    return "sparse" if found.nse <= MAX_SHARE * np.prod(found.shape) else "matrix-free"
