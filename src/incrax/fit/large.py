"""Searches with many parameters: the host goes step by step, with a sparse Jacobian.

In: residuals, a `Problem`. Out: the search. The mathematics are those of `steps`; what differs is
how a step is solved for.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from incrax import jacobian
from incrax.derivatives.transforms import plain
from incrax.fit import steps
from incrax.fit.linear import SparseModel
from incrax.fit.losses import unknown_option
from incrax.fit.problem import ArgumentLayout, Problem, remembered
from incrax.fit.search import LeastSquares, Maths, evaluations, hosted
from incrax.fit.steps import LinearizedPoint, Search, Setup

Solver = Literal["dense", "sparse", "matrix-free", "auto"]
SOLVERS = get_args(Solver)
MAX_DENSE = 1000
"""Free elements up to which `"auto"` is `"dense"`."""
MAX_SHARE = 0.1
"""Share of elements that may be nonzero up to which `"auto"` is `"sparse"`."""


class SparsePrograms(NamedTuple):
    """What is compiled beside `Evaluations`, of a vector and of what is given."""

    gradient: Any
    """J^T r; also of r."""
    jacobian: Any
    """As BCOO."""


@remembered
def _programs(fun: Any, layout: ArgumentLayout) -> SparsePrograms:
    residuals = evaluations(fun, layout).residuals
    at = lambda given: lambda x: residuals(x, given)
    return SparsePrograms(
        jax.jit(lambda x, given, r: jax.vjp(at(given), x)[1](r)[0]),
        jax.jit(lambda x, given: jacobian(at(given), sparse=True)(x)),
    )


def sparse(fun: Any, task: Problem, roots: Any, setup: Setup) -> LeastSquares:
    """The search by a sparse Jacobian."""
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
        if is_finite:
            model = _sparse_model(programs.jacobian(x, given), seen, is_free, search.scale)
        else:
            model = SparseModel(csr_array((1, x.size)), np.zeros(1), np.zeros(x.size))
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
    found = jax.eval_shape(programs.jacobian, task.x, (task.others, roots))
    return "sparse" if found.nse <= MAX_SHARE * np.prod(found.shape) else "matrix-free"
