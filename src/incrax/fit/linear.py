"""Linear least squares with damping: a dense Jacobian, a sparse one, or products with one that is
never formed.

In: a Jacobian of shape (m, n). Out: steps, covariance.

Dense: with k = min(m, n) singular values s and D the scale of the columns, J / D = left diag(s)
right. The step that minimises |r + J p|^2 + damping |D p|^2 is D p = -right^T y, where y = s / (s^2
+ damping) left^T r.

Sparse: with A = J / D, (A^T A + damping) y = -A^T r, D p = y, corrected once by the residual of
that, which undoes most of what is lost by squaring. Where parameters come in groups that share no
residual (points and cameras, curves with a common shape), the order of elimination takes the groups
first.

Matrix-free: LSMR (Fong and Saunders 2011) over pushforwards and pullbacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu

from incrax import jacobian
from incrax._extras import needed
from incrax.errors import CovarianceError


class DenseModel(NamedTuple):
    """The linear model |r + J p|^2 at a point, by the singular values of J / D."""

    left: Any
    """Shape (m, k)."""
    sizes: Any
    """Singular values, shape (k,)."""
    inverses: Any
    """Theirs; zero for those that are rounding errors."""
    right: Any
    """Shape (k, n)."""
    scale: Any
    """D, shape (n,), positive."""
    along: Any
    """left^T r, shape (k,)."""
    rank: Any

    def step(self, damping: Any, residuals: Any = None) -> Any:
        """The damped step p, shape (n,); also for other residuals.

        Undamped, the shortest in scaled units where the Jacobian is singular.
        """
        along = self.along if residuals is None else residuals @ self.left
        # s / (s^2 + damping), also for s = 0.
        shares = self.inverses / (1 + damping * self.inverses**2)
        return -((along * shares) @ self.right) / self.scale

    def moved(self, step: Any) -> Any:
        """left^T J p, of the length of J p."""
        return self.sizes * (self.right @ (self.scale * step))

    def reduction(self, step: Any) -> Any:
        """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
        return reduction_by(self.moved(step), self.along)

    def inverse_normal(self) -> Any:
        """(J^T J)^-1, shape (n, n); of what the data determine, where that is not all."""
        half = self._half()
        return half.T @ half

    def variances(self) -> Any:
        """Its diagonal."""
        return jnp.sum(self._half() ** 2, axis=0)

    def _half(self) -> Any:
        return self.inverses[:, None] * self.right / self.scale

    def is_known(self, is_free: Any) -> Any:
        """Which elements the data determine, shape (n,)."""
        share = jnp.sum(self.right**2, axis=0, where=self.inverses[:, None] > 0)
        return share > 1 - jnp.sqrt(jnp.finfo(share.dtype).eps)


def dense(jacobian: Any, residuals: Any, last_scale: Any) -> DenseModel:
    """The linear model of shapes (m, n), (m,), by a scale of at least (n,).

    Cost: m n^2; one decomposition serves every damping.
    """
    scale = jnp.maximum(last_scale, jnp.sqrt(jnp.sum(jacobian**2, axis=0)))
    scale = jnp.where(scale > 0, scale, 1)
    left, sizes, right = jnp.linalg.svd(jacobian / scale, full_matrices=False)
    is_kept = sizes > jnp.finfo(sizes.dtype).eps * max(jacobian.shape) * sizes[0]
    inverses = jnp.where(is_kept, 1 / jnp.where(is_kept, sizes, 1), 0)
    sizes = jnp.where(is_kept, sizes, 0)
    return DenseModel(left, sizes, inverses, right, scale, residuals @ left, jnp.sum(is_kept))


def reduction_by(moved: Any, residuals: Any) -> Any:
    """1/2 |r|^2 - 1/2 |r + J p|^2 from J p and r, without cancellation."""
    return -(moved * residuals).sum() - 0.5 * (moved**2).sum()


# --- without a dense Jacobian ---------------------------------------------------------------------

MAX_COVARIANCE = 4096
"""Free elements up to which a covariance is found, a dense matrix."""


class LargeModel:
    """The linear model |r + J p|^2 of many elements at a point.

    Standard errors, which a test of convergence wants, are too dear: each element's error with all
    others fixed, which is smaller, stands for it, so that the test is the stricter. Which elements
    the data determine is not found out: all, or none. NumPy makes (J^T J)^-1 of it, shape (n, n),
    when it is asked for.
    """

    solver: str
    scale: Any
    """D, shape (n,), positive."""
    residuals: Any
    """Under the loss, shape (m,)."""
    rank: Any
    """How many elements the data determine."""

    def moved(self, step: Any) -> Any:
        """J p, shape (m,)."""
        raise NotImplementedError

    def inverse(self) -> Any:
        """(J^T J)^-1, shape (n, n)."""
        raise NotImplementedError

    def reduction(self, step: Any) -> Any:
        """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
        return reduction_by(self.moved(step), self.residuals)

    def variances(self) -> Any:
        """Of each element with all others fixed, for residuals of variance 1."""
        return self.scale**-2

    def is_known(self, is_free: Any) -> Any:
        """Which elements the data determine, shape (n,)."""
        return (is_free | True) & (self.rank >= is_free.sum())

    def inverse_normal(self) -> LargeModel:
        """(J^T J)^-1, not computed before it is asked for."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """(J^T J)^-1.

        Raises:
            CovarianceError: it is too large.
        """
        n = len(self.scale)
        if n > MAX_COVARIANCE:
            raise CovarianceError(
                f"A covariance of {n:,} parameters was asked for after a fit with "
                f'`solver="{self.solver}"`. It is a dense matrix of {n:,} x {n:,}, found on '
                f"demand for up to {MAX_COVARIANCE:,} parameters. The fit itself is whole. Name "
                "the parameters of interest by `wrt` and fit these again from here, or use "
                '`solver="dense"`.'
            )
        return np.asarray(self.inverse(), dtype)


# --- a sparse Jacobian: the normal matrix, factorised sparse --------------------------------------


class SparseModel(LargeModel):
    """By the normal matrix; arrays of NumPy and SciPy."""

    solver = "sparse"

    def __init__(self, jacobian: csr_array, residuals: np.ndarray, last_scale: np.ndarray) -> None:
        """Of shapes (m, n), (m,), (n,), all finite."""
        norms = np.sqrt(np.asarray(jacobian.power(2).sum(axis=0)).reshape(-1))
        scale = np.maximum(last_scale, norms)
        self.scale = np.where(scale > 0, scale, 1)
        self.scaled: Any = jacobian @ diags_array(1 / self.scale)
        self.residuals = residuals
        self._is_empty = norms == 0
        # What moves no residual stays where it is.
        held = diags_array(self._is_empty.astype(norms.dtype))
        self._normal: Any = self.scaled.T @ self.scaled + held
        self._factors: dict[float, Any] = {}
        self.rank = self._rank()

    def _rank(self) -> int:
        """How many pivots of the undamped normal matrix are above rounding errors."""
        try:
            pivots = np.abs(self._factor(0.0).U.diagonal())
        except RuntimeError:  # one is zero
            return int(np.sum(~self._is_empty)) - 1
        return int(np.sum(pivots > self._tiny()) - np.sum(self._is_empty))

    def step(self, damping: float, residuals: Any = None) -> np.ndarray:
        """The damped step p, shape (n,); also for other residuals."""
        residuals = self.residuals if residuals is None else np.asarray(residuals)
        damping = max(float(damping), self._least())
        factor = self._factor(damping)
        y = factor.solve(-(self.scaled.T @ residuals))
        y += factor.solve(-(self.scaled.T @ (residuals + self.scaled @ y)) - damping * y)
        return y / self.scale

    def moved(self, step: np.ndarray) -> np.ndarray:
        """J p, shape (m,)."""
        return self.scaled @ (np.asarray(step) * self.scale)

    def inverse(self) -> np.ndarray:
        """(J^T J)^-1, shape (n, n). Cost: n solutions."""
        inverse = self._factor(self._least()).solve(np.eye(self.scale.size))
        return inverse / self.scale / self.scale[:, None]

    def _least(self) -> float:
        """No damping, or the least that makes a solution unique where the Jacobian is singular."""
        return 0.0 if self.rank == np.sum(~self._is_empty) else self._tiny()

    def _tiny(self) -> float:
        return 10 * self.scale.size * float(np.finfo(self.scale.dtype).eps)

    def _factor(self, damping: float) -> Any:
        if damping not in self._factors:
            matrix = self._normal + diags_array(np.full_like(self.scale, damping))
            options = {"SymmetricMode": True}
            order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0}
            self._factors[damping] = splu(csc_array(matrix), options=options, **order)
        return self._factors[damping]


# --- no Jacobian ----------------------------------------------------------------------------------

NUM_PROBES = 8
"""Random products that estimate the norms of the columns."""
ACCURACY = 1e-4
"""By what a solution lowers the gradient of the linear model; inexact steps are still steps
down.
"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FreeModel(LargeModel):
    """By products; arrays of JAX."""

    fun: Any
    """A pytree that can be called: (n,) -> (m,)."""
    x: Any
    """Where it is linearised."""
    rows: Any
    """R, what the loss makes of the rows of J."""
    residuals: Any
    is_free: Any
    scale: Any
    rank: Any
    solver = "matrix-free"

    def step(self, damping: Any, residuals: Any = None) -> Any:
        """The minimiser p of |r + R J p|^2 + damping |y|^2 for p = C y, with C diagonal.

        Raises:
            MissingExtraError: lineax is not installed.
        """
        lineax = needed("lineax", 'levenberg_marquardt(solver="matrix-free")', "fit")
        x = self.x
        rows = self.rows
        residuals = self.residuals if residuals is None else residuals
        columns = self.is_free / self.scale
        push = jax.linearize(self.fun, x)[1]
        root = jnp.sqrt(damping)
        apply = lambda y: (rows * push(columns * y), root * y)
        operator = lineax.FunctionLinearOperator(apply, jax.ShapeDtypeStruct(x.shape, x.dtype))
        # LSMR ends where |A^T r| <= rtol |A| |r|, which near a minimum holds from the start: it is
        # to fall by a factor.
        slope = jnp.linalg.norm(columns * jax.linear_transpose(push, x)(rows * residuals)[0])
        size = jnp.sqrt(x.size) * jnp.linalg.norm(residuals)
        eps = jnp.finfo(x.dtype).eps
        rtol = jnp.clip(ACCURACY * slope / jnp.where(size > 0, size, 1), eps, ACCURACY)
        solver = lineax.LSMR(rtol=rtol, atol=rtol, conlim=1 / float(eps))
        right = (-residuals, jnp.zeros_like(x))
        return columns * lineax.linear_solve(operator, right, solver, throw=False).value

    def moved(self, step: Any) -> Any:
        """R J p, shape (m,)."""
        return self.rows * jax.jvp(self.fun, (self.x,), (step,))[1]

    def inverse(self) -> Any:
        """By the Jacobian after all."""
        matrix = self.rows[:, None] * jacobian(self.fun)(self.x) * self.is_free
        return dense(matrix, self.residuals, self.scale).inverse_normal()


def matrix_free(fun: Any, x: Any, rows: Any, residuals: Any, is_free: Any) -> FreeModel:
    """The linear model with the norms of columns estimated.

    The mean of (J^T z)^2 is the sum of squares of each column, for signs z at random.
    """
    pullback = jax.vjp(fun, x)[1]
    signs = jax.random.rademacher(jax.random.PRNGKey(0), (NUM_PROBES, rows.size), rows.dtype)
    products = jax.vmap(lambda z: pullback(rows * z)[0])(signs)
    norms = jnp.sqrt(jnp.mean(products**2, axis=0)) * is_free
    # At most: the rank is not found out.
    rank = jnp.minimum(is_free.sum(), residuals.size)
    return FreeModel(fun, x, rows, residuals, is_free, jnp.where(norms > 0, norms, 1), rank)
