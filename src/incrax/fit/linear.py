"""Linear least squares with damping, by a Jacobian of shape (m, n).

With k = min(m, n) singular values s and D the scale of the columns, J / D = left diag(s)
right. The step that minimises |r + J p|^2 + damping |D p|^2 is D p = -right^T y, where y = s / (s^2
+ damping) left^T r.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp


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
