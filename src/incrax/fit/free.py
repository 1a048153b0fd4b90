"""Linear least squares with damping by products with a Jacobian that is never formed.

In: residuals as a function of a vector. Out: steps, by LSMR (Fong and Saunders 2011) over pushforwards and pullbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from incrax._extras import needed

NUM_PROBES = 8
"""Random products that estimate the norms of the columns."""
ACCURACY = 1e-4
"""By what a solution lowers the gradient of the linear model; inexact steps are still steps down."""
WHAT = 'levenberg_marquardt(solver="matrix-free")'


def column_norms(fun: Callable[[Any], Any], x: Any, rows: Any) -> Any:
    """Estimates of the norms of the columns of a Jacobian, shape (n,), for shape (m,) of `rows`, which weigh its rows.

    The mean of (J^T z)^2 is the sum of squares of each column, for signs z at random.
    """
    _, pullback = jax.vjp(fun, x)
    signs = jax.random.rademacher(jax.random.PRNGKey(0), (NUM_PROBES, rows.size), rows.dtype)
    products = jax.vmap(lambda z: pullback(rows * z)[0])(signs)
    return jnp.sqrt(jnp.mean(products**2, axis=0))


def step(fun: Callable[[Any], Any], x: Any, columns: Any, rows: Any, residuals: Any, damping: Any) -> tuple[Any, Any]:
    """The minimiser p of |r + R J p|^2 + damping |y|^2 for p = C y, and R J p, with diagonal R and C.

    Args:
        fun: (n,) -> (m,).
        x: where it is linearised.
        columns: C, zero for elements that do not move.
        rows: R.
        residuals: r.
        damping: at least zero.

    Raises:
        MissingExtraError: lineax is not installed.
    """
    lineax = needed("lineax", WHAT, "fit")
    push = jax.linearize(fun, x)[1]
    pull = jax.linear_transpose(push, x)
    root, eps = jnp.sqrt(damping), jnp.finfo(x.dtype).eps
    apply = lambda y: (rows * push(columns * y), root * y)
    operator = lineax.FunctionLinearOperator(apply, jax.ShapeDtypeStruct(x.shape, x.dtype))
    # LSMR ends where |A^T r| <= rtol |A| |r|, which near a minimum holds from the start: it is to fall by a factor.
    slope = jnp.linalg.norm(columns * pull(rows * residuals)[0])
    size = jnp.sqrt(x.size) * jnp.linalg.norm(residuals)
    rtol = jnp.clip(ACCURACY * slope / jnp.where(size > 0, size, 1), eps, ACCURACY)
    solver = lineax.LSMR(rtol=rtol, atol=rtol, conlim=1 / float(eps))
    right = (-residuals, jnp.zeros_like(x))
    y = lineax.linear_solve(operator, right, solver, throw=False).value
    return columns * y, rows * push(columns * y)
