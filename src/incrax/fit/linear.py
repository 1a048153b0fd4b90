"""Linear least squares with damping: a dense Jacobian, a sparse one, or products with one that is never formed.

In: a Jacobian of shape (m, n). Out: steps, covariance.

Dense: one factorisation serves every damping. With k = min(m, n), D the scale of the columns: J / D = left core right,
of orthonormal columns and rows. The step that minimises |r + J p|^2 + damping |D p|^2 is D p = right^T y, where y
minimises |core y + left^T r|^2 + damping |y|^2.

Sparse: with A = J / D, (A^T A + damping) y = -A^T r, D p = y, corrected once by the residual of that, which undoes most
of what is lost by squaring. Where parameters come in groups that share no residual (points and cameras, curves with a
common shape), the order of elimination takes the groups first.

Matrix-free: LSMR (Fong and Saunders 2011) over pushforwards and pullbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu

from incrax._extras import needed


class Reduced(NamedTuple):
    """A Jacobian as J = left core; its columns are not scaled yet, to which QR is blind."""

    left: Any | None
    """Shape (m, n); None for the identity, where m < n."""
    core: Any
    """Shape (min(m, n), n)."""


class FactoredJacobian(NamedTuple):
    """A scaled Jacobian as J / D = left core right."""

    left: Any | None
    """Shape (m, k); None for the identity."""
    core: Any
    """Shape (k, k)."""
    right: Any | None
    """Shape (k, n); None for the identity."""
    scale: Any
    """D, shape (n,), positive."""
    inverse: Any
    """The pseudo-inverse of the core."""
    kept: Any
    """The projection on what it determines, shape (k, k): the identity where the core is regular."""
    rank: Any


def reduced(jacobian: Any) -> Reduced:
    """By QR where there are more rows than columns. Cost: m n^2."""
    m, n = jacobian.shape
    return Reduced(*jnp.linalg.qr(jacobian)) if m >= n else Reduced(None, jacobian)


def components(left: Any | None, residuals: Any) -> Any:
    """left^T r."""
    return residuals if left is None else residuals @ left


def factored(found: Reduced, scale: Any, along: Any) -> tuple[FactoredJacobian, Any]:
    """A Jacobian with scaled columns, and of left^T r the part that it can change.

    Cost: n^3; m^2 n for m < n. Singular values are found only where the rank is in doubt.
    """
    core = found.core / scale
    right = None
    if found.left is None:
        basis, triangle = jnp.linalg.qr(core.T)
        core = triangle.T
        right = basis.T
    size = scale.size if found.left is None else found.left.shape[0]
    eye = jnp.eye(core.shape[0], dtype=core.dtype)
    guess = _inverse(core, lower=found.left is None)
    is_sure = _norm(core) * _norm(guess) * jnp.finfo(core.dtype).eps * size < 1
    regular = lambda core, guess, along: (guess, eye, along, jnp.asarray(len(eye)))
    singular = lambda core, _, along: _pseudo_inverse(core, along, size)
    inverse, kept, along, rank = lax.cond(is_sure, regular, singular, core, guess, along)
    return FactoredJacobian(found.left, core, right, scale, inverse, kept, rank), along


def _norm(matrix: Any) -> Any:
    return jnp.sqrt(jnp.sum(matrix**2))


def _pseudo_inverse(core: Any, along: Any, size: int) -> tuple[Any, Any, Any, Any]:
    """Pseudo-inverse, projection on its range, the part of a vector that the matrix reaches, rank."""
    u, s, v = jnp.linalg.svd(core)
    is_kept = s > jnp.finfo(s.dtype).eps * size * s[0]
    v = jnp.where(is_kept[:, None], v, 0)
    u = jnp.where(is_kept, u, 0)
    return (v.T / jnp.where(is_kept, s, 1)) @ u.T, v.T @ v, u @ (along @ u), jnp.sum(is_kept)


def damped(f: FactoredJacobian, along: Any, damping: Any) -> tuple[Any, Any]:
    """The damped step p for components left^T r, and R^-1, where Q R = (core; sqrt(damping) I). Cost: k^3."""
    k = f.core.shape[0]
    above = jnp.concatenate([f.core, along[:, None]], axis=1)
    below = jnp.sqrt(damping) * jnp.eye(k, k + 1, dtype=f.core.dtype)
    triangle = jnp.linalg.qr(jnp.concatenate([above, below]), mode="r")
    root = _inverse(triangle[:k, :k], lower=False)
    return -_spread(f, root @ triangle[:k, k]), root


def damped_again(f: FactoredJacobian, along: Any, root: Any) -> Any:
    """The same for other components, as -R^-1 R^-T core^T left^T r.

    Its error grows with epsilon / damping, which is no harm to a correction of a step.
    """
    return -_spread(f, root @ ((along @ f.core) @ root))


def _inverse(triangle: Any, *, lower: bool) -> Any:
    eye = jnp.eye(triangle.shape[0], dtype=triangle.dtype)
    return lax.linalg.triangular_solve(triangle, eye, left_side=True, lower=lower)


def undamped(f: FactoredJacobian, along: Any) -> Any:
    """The step p of Gauss and Newton, shape (n,); the shortest in scaled units where the Jacobian is singular."""
    return -_spread(f, f.inverse @ along)


def _spread(f: FactoredJacobian, y: Any) -> Any:
    return (y if f.right is None else y @ f.right) / f.scale


def reduction(f: FactoredJacobian, along: Any, step: Any) -> Any:
    """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
    scaled = f.scale * step
    moved = f.core @ (scaled if f.right is None else f.right @ scaled)
    return -jnp.sum(moved * along) - 0.5 * jnp.sum(moved**2)


def inverse_normal(f: FactoredJacobian) -> Any:
    """(J^T J)^-1, shape (n, n); of what the data determine, where that is not all."""
    half = _half(f)
    return half @ half.T


def variances(f: FactoredJacobian) -> Any:
    """Its diagonal."""
    return jnp.sum(_half(f) ** 2, axis=1)


def _half(f: FactoredJacobian) -> Any:
    return (f.inverse if f.right is None else f.right.T @ f.inverse) / f.scale[:, None]


def shares(f: FactoredJacobian) -> Any:
    """Which part of each element the data determine, shape (n,): 1 if all."""
    if f.right is None:
        return jnp.diagonal(f.kept)
    return jnp.sum((f.kept @ f.right) * f.right, axis=0)


# --- a sparse Jacobian: the normal matrix, factorised sparse ----------------------------------------------------------


class SparseModel:
    """The linear model at a point, |r + J p|^2; arrays of NumPy and SciPy."""

    def __init__(self, jacobian: csr_array, residuals: np.ndarray, last_scale: np.ndarray) -> None:
        """Of shapes (m, n), (m,), (n,), all finite."""
        norms = np.sqrt(np.asarray(jacobian.power(2).sum(axis=0)).reshape(-1))
        scale = np.maximum(last_scale, norms)
        self.scale = np.where(scale > 0, scale, 1)
        self.scaled: Any = jacobian @ diags_array(1 / self.scale)
        self.residuals = residuals
        self._is_empty = norms == 0
        held = diags_array(self._is_empty.astype(norms.dtype))  # what moves no residual stays where it is
        self._normal: Any = self.scaled.T @ self.scaled + held
        self._factors: dict[float, Any] = {}

    def rank(self) -> int:
        """How many elements the data determine: pivots of the undamped normal matrix above rounding errors."""
        try:
            pivots = np.abs(self._factor(0.0).U.diagonal())
        except RuntimeError:  # one is zero
            return int(np.sum(~self._is_empty)) - 1
        return int(np.sum(pivots > self._tiny()) - np.sum(self._is_empty))

    def newton(self) -> np.ndarray:
        """The undamped step."""
        return self.step(self._least())

    def step(self, damping: float, residuals: np.ndarray | None = None) -> np.ndarray:
        """The damped step p for the residuals of the point, or others, shape (n,)."""
        r = self.residuals if residuals is None else residuals
        factor = self._factor(damping)
        y = factor.solve(-(self.scaled.T @ r))
        y += factor.solve(-(self.scaled.T @ (r + self.scaled @ y)) - damping * y)
        return y / self.scale

    def moved(self, step: np.ndarray) -> np.ndarray:
        """J p, shape (m,)."""
        return self.scaled @ (step * self.scale)

    def inverse_normal(self) -> np.ndarray:
        """(J^T J)^-1, shape (n, n), dense. Cost: n solutions."""
        return self._factor(self._least()).solve(np.eye(self.scale.size)) / self.scale / self.scale[:, None]

    def _least(self) -> float:
        """No damping, or the least that makes a solution unique where the Jacobian is singular."""
        return 0.0 if self.rank() == np.sum(~self._is_empty) else self._tiny()

    def _tiny(self) -> float:
        return 10 * self.scale.size * float(np.finfo(self.scale.dtype).eps)

    def _factor(self, damping: float) -> Any:
        if damping not in self._factors:
            matrix = self._normal + diags_array(np.full_like(self.scale, damping))
            options = {"SymmetricMode": True}
            order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0}
            self._factors[damping] = splu(csc_array(matrix), options=options, **order)
        return self._factors[damping]


# --- no Jacobian ------------------------------------------------------------------------------------------------------

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


def matrix_free_step(
    fun: Callable[[Any], Any], x: Any, columns: Any, rows: Any, residuals: Any, damping: Any
) -> tuple[Any, Any]:
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
    root = jnp.sqrt(damping)
    eps = jnp.finfo(x.dtype).eps
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
