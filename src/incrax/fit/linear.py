"""Linear least squares with damping: one factorisation of a Jacobian serves every damping.

In: a Jacobian of shape (m, n). Out: steps, covariance. Equations, with k = min(m, n), D the scale of the columns:
J / D = left core right, of orthonormal columns and rows. The step that minimises |r + J p|^2 + damping |D p|^2 is
D p = right^T y, where y minimises |core y + left^T r|^2 + damping |y|^2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


class Reduced(NamedTuple):
    """A Jacobian as J = left core; its columns are not scaled yet, to which QR is blind."""

    left: Any | None
    """Shape (m, n); None for the identity, where m < n."""
    core: Any
    """Shape (min(m, n), n)."""


class Factored(NamedTuple):
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


def factored(found: Reduced, scale: Any, along: Any) -> tuple[Factored, Any]:
    """A Jacobian with scaled columns, and of left^T r the part that it can change.

    Cost: n^3; m^2 n for m < n. Singular values are found only where the rank is in doubt.
    """
    core, right = found.core / scale, None
    if found.left is None:
        basis, triangle = jnp.linalg.qr(core.T)
        core, right = triangle.T, basis.T
    size = scale.size if found.left is None else found.left.shape[0]
    eye = jnp.eye(core.shape[0], dtype=core.dtype)
    guess = _inverse(core, lower=found.left is None)
    is_sure = _norm(core) * _norm(guess) * jnp.finfo(core.dtype).eps * size < 1
    regular = lambda core, guess, along: (guess, eye, along, jnp.asarray(len(eye)))
    singular = lambda core, _, along: _pseudo_inverse(core, along, size)
    inverse, kept, along, rank = lax.cond(is_sure, regular, singular, core, guess, along)
    return Factored(found.left, core, right, scale, inverse, kept, rank), along


def _norm(matrix: Any) -> Any:
    return jnp.sqrt(jnp.sum(matrix**2))


def _pseudo_inverse(core: Any, along: Any, size: int) -> tuple[Any, Any, Any, Any]:
    """Pseudo-inverse, projection on its range, the part of a vector that the matrix reaches, rank."""
    u, s, v = jnp.linalg.svd(core)
    is_kept = s > jnp.finfo(s.dtype).eps * size * s[0]
    v = jnp.where(is_kept[:, None], v, 0)
    u = jnp.where(is_kept, u, 0)
    return (v.T / jnp.where(is_kept, s, 1)) @ u.T, v.T @ v, u @ (along @ u), jnp.sum(is_kept)


def damped(f: Factored, along: Any, damping: Any) -> tuple[Any, Any]:
    """The damped step p for components left^T r, and R^-1, where Q R = (core; sqrt(damping) I). Cost: k^3."""
    k = f.core.shape[0]
    above = jnp.concatenate([f.core, along[:, None]], axis=1)
    below = jnp.sqrt(damping) * jnp.eye(k, k + 1, dtype=f.core.dtype)
    triangle = jnp.linalg.qr(jnp.concatenate([above, below]), mode="r")
    root = _inverse(triangle[:k, :k], lower=False)
    return -_spread(f, root @ triangle[:k, k]), root


def damped_again(f: Factored, along: Any, root: Any) -> Any:
    """The same for other components, as -R^-1 R^-T core^T left^T r.

    Its error grows with epsilon / damping, which is no harm to a correction of a step.
    """
    return -_spread(f, root @ ((along @ f.core) @ root))


def _inverse(triangle: Any, *, lower: bool) -> Any:
    eye = jnp.eye(triangle.shape[0], dtype=triangle.dtype)
    return lax.linalg.triangular_solve(triangle, eye, left_side=True, lower=lower)


def undamped(f: Factored, along: Any) -> Any:
    """The step p of Gauss and Newton, shape (n,); the shortest in scaled units where the Jacobian is singular."""
    return -_spread(f, f.inverse @ along)


def _spread(f: Factored, y: Any) -> Any:
    return (y if f.right is None else y @ f.right) / f.scale


def reduction(f: Factored, along: Any, step: Any) -> Any:
    """By how much 1/2 |r + J p|^2 is below 1/2 |r|^2, without cancellation."""
    scaled = f.scale * step
    moved = f.core @ (scaled if f.right is None else f.right @ scaled)
    return -jnp.sum(moved * along) - 0.5 * jnp.sum(moved**2)


def inverse_normal(f: Factored) -> Any:
    """(J^T J)^-1, shape (n, n); of what the data determine, where that is not all."""
    half = _half(f)
    return half @ half.T


def variances(f: Factored) -> Any:
    """Its diagonal."""
    return jnp.sum(_half(f) ** 2, axis=1)


def _half(f: Factored) -> Any:
    return (f.inverse if f.right is None else f.right.T @ f.inverse) / f.scale[:, None]


def shares(f: Factored) -> Any:
    """Which part of each element the data determine, shape (n,): 1 if all."""
    if f.right is None:
        return jnp.diagonal(f.kept)
    return jnp.sum((f.kept @ f.right) * f.right, axis=0)
