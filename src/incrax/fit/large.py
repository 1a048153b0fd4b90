"""Searches with many parameters: the host goes step by step, with a sparse Jacobian or with none.

In: residuals, a `Problem`. Out: the search. The mathematics are those of `steps`; what differs is
how a step is solved for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from incrax import jacobian
from incrax.derivatives.transforms import plain
from incrax.fit import linear, steps
from incrax.fit.linear import HostModel, SparseModel
from incrax.fit.losses import unknown_option
from incrax.fit.problem import ArgumentLayout, Problem, remembered
from incrax.fit.search import LeastSquares, Maths, evaluations, hosted
from incrax.fit.steps import LinearizedPoint, Search, Setup

SOLVERS = ("dense", "sparse", "matrix-free", "auto")
MAX_DENSE = 1000
"""Free elements up to which `"auto"` is `"dense"`."""
MAX_SHARE = 0.1
"""Share of elements that may be nonzero up to which `"auto"` is `"sparse"`."""


class LargePrograms(NamedTuple):
    """What is compiled beside `Evaluations`, of a vector and of what is given."""

    gradient: Any
    """J^T r; also of r."""
    sparse: Any
    """The Jacobian as BCOO."""
    norms: Any
    """Of columns; also of rows."""
    step: Any
    """By products; also of columns, rows, residuals, damping."""
    moved: Any
    """J v; also of v."""
    dense: Any
    """The Jacobian after all."""


@remembered
def _programs(fun: Any, layout: ArgumentLayout) -> LargePrograms:
    evaluate = evaluations(fun, layout)

    def at(given: Any) -> Callable[[Any], Any]:
        return lambda x: evaluate.residuals(x, given)

    programs = LargePrograms(
        lambda x, given, r: jax.vjp(at(given), x)[1](r)[0],
        lambda x, given: jacobian(at(given), sparse=True)(x),
        lambda x, given, rows: linear.column_norms(at(given), x, rows),
        lambda x, given, *system: linear.matrix_free_step(at(given), x, *system)[0],
        lambda x, given, v: jax.jvp(at(given), (x,), (v,))[1],
        evaluate.jacobian,
    )
    return LargePrograms(*map(jax.jit, programs))


class FreeModel(HostModel):
    """A linear model by products."""

    solver = "matrix-free"

    def __init__(
        self, programs: LargePrograms, x: Any, given: Any, seen: Any, is_free: np.ndarray
    ) -> None:
        self._programs = programs
        self._at = (x, given)
        self._rows = seen.rows
        self._is_free = is_free
        self.residuals = seen.residuals
        norms = np.asarray(programs.norms(*self._at, seen.rows)) * is_free
        self.scale = np.where(norms > 0, norms, 1)
        # At most: the rank is not found out.
        self.rank = min(int(is_free.sum()), seen.residuals.size)

    def step(self, damping: float, residuals: Any = None) -> np.ndarray:
        """The damped step, also for other residuals."""
        residuals = self.residuals if residuals is None else residuals
        columns = self._is_free / self.scale
        return np.asarray(self._programs.step(*self._at, columns, self._rows, residuals, damping))

    def moved(self, step: np.ndarray) -> np.ndarray:
        """J times a step, rows under the loss."""
        return np.asarray(self._rows * self._programs.moved(*self._at, step))

    def dense_inverse(self) -> np.ndarray:
        """(J^T J)^-1, by the Jacobian after all."""
        matrix = self._rows[:, None] * self._programs.dense(*self._at) * self._is_free
        return np.array(linear.dense(matrix, self.residuals, self.scale).inverse_normal())


def large(fun: Any, task: Problem, roots: Any, setup: Setup) -> LeastSquares:
    """The search by a sparse Jacobian or by none."""
    # Copied, since the covariance is found after the fit, when callers may have filled their
    # arrays anew.
    copied = lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x
    given = jax.tree.map(copied, (task.others, roots))
    fun = plain(fun)
    programs = _programs(fun, task.layout)
    evaluate = hosted(fun, task.layout)

    def look(search: Search) -> tuple[Search, LinearizedPoint]:
        x = np.asarray(search.x)
        residuals = evaluate.residuals(x, given)
        seen = setup.weighed(residuals)
        gradient = np.asarray(programs.gradient(x, given, seen.rows * seen.residuals))
        is_free = ~setup.box.is_pressed(x, gradient)
        is_finite = bool(np.isfinite(seen.cost) and np.all(np.isfinite(gradient)))
        if not is_finite:
            model = SparseModel(csr_array((1, x.size)), np.zeros(1), np.zeros(x.size))
        elif setup.settings.solver == "matrix-free":
            model = FreeModel(programs, x, given, seen, is_free)
        else:
            model = _sparse_model(programs.sparse(x, given), seen, is_free, search.scale)
        return steps.linearized(
            search._replace(x=x), residuals, seen, model, is_free, is_finite, setup
        )

    return LeastSquares(evaluate, given, look, setup, Maths())


def _sparse_model(found: Any, seen: Any, is_free: np.ndarray, last_scale: Any) -> SparseModel:
    i, j = np.asarray(found.indices).T
    data = np.asarray(found.data) * np.asarray(seen.rows)[i] * is_free[j]
    matrix = csr_array((data, (i, j)), shape=found.shape)
    scale = steps.FORGETTING * np.asarray(last_scale)
    return SparseModel(matrix, np.asarray(seen.residuals), scale)


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
    programs = _programs(plain(fun), task.layout)
    found = jax.eval_shape(programs.sparse, task.x, (task.others, roots))
    return "sparse" if found.nse <= MAX_SHARE * np.prod(found.shape) else "matrix-free"
