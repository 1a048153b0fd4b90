"""Linear least squares with damping: one factorisation of a Jacobian serves every damping.

In: a Jacobian of shape (m, n), scaled by columns. Out: steps, covariance. Equations: J / D = U diag(s) V; the step that
minimises |r + J p|^2 + damping |D p|^2 is D p = -V^T (s U^T r / (s^2 + damping)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp


class Factored(NamedTuple):
    """A Jacobian as J = U diag(s) V diag(scale), with k = min(m, n)."""

    left: Any
    """U, shape (m, k)."""
    singular: Any
    """s, shape (k,), descending."""
    right: Any
    """V, shape (k, n)."""
    scale: Any
    """D, shape (n,), positive."""
    is_kept: Any
    """Which singular values count as nonzero, shape (k,)."""


def factored(jacobian: Any, scale: Any) -> Factored:
    """By QR, then the singular values of the triangle. Cost: m n^2 and n^3 (m <= n: the other way round)."""
    m, n = jacobian.shape
    scaled = jacobian / scale
    if m >= n:
        basis, triangle = jnp.linalg.qr(scaled)
        u, s, v = jnp.linalg.svd(triangle)
        left, right = basis @ u, v
    else:
        basis, triangle = jnp.linalg.qr(scaled.T)
        u, s, v = jnp.linalg.svd(triangle.T)
        left, right = u, v @ basis.T
    is_kept = s > jnp.finfo(s.dtype).eps * max(m, n) * s[0]
    return Factored(left, s, right, scale, is_kept)


def components(f: Factored, residuals: Any) -> Any:
    """U^T r, shape (k,)."""
    return residuals @ f.left


def damped(f: Factored, along: Any, damping: Any) -> Any:
    """The scaled step D p for components U^T r, shape (n,)."""
    return -(f.singular * along / (f.singular**2 + damping)) @ f.right


def undamped(f: Factored, along: Any) -> Any:
    """The step p of Gauss and Newton, shape (n,); the shortest in scaled units where the Jacobian is singular."""
    safe = jnp.where(f.is_kept, f.singular, 1)
    return -(jnp.where(f.is_kept, along / safe, 0) @ f.right) / f.scale


def reduction(f: Factored, along: Any, scaled_step: Any) -> Any:
    """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
    moved = f.singular * (f.right @ scaled_step)
    return -jnp.sum(moved * along) - 0.5 * jnp.sum(moved**2)


def inverse_normal(f: Factored) -> Any:
    """(J^T J)^-1, shape (n, n); of what the data determine, where that is not all."""
    safe = jnp.where(f.is_kept, f.singular, 1)
    half = jnp.where(f.is_kept, 1 / safe, 0)[:, None] * f.right / f.scale
    return half.T @ half
