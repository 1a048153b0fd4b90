"""Whether two results agree: types, positions of NaN and infinity, and values up to rounding.

In: two arrays. Out: by how much they differ, if that is too much. It must not know where they come
from.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from incrax import _jax


def difference(x: Any, y: Any, *, rtol: float | None = None, atol: float = 0.0) -> float | None:
    """Largest difference relative to the largest element, if it is too large; None where the two
    agree.

    By default the square root of the spacing of numbers at one is allowed.
    """
    if _jax.is_key_dtype(getattr(y, "dtype", np.dtype(float))):
        x = jax.random.key_data(x)
        y = jax.random.key_data(y)
    if y.dtype == jax.dtypes.float0:
        return None if x.dtype == y.dtype and x.shape == y.shape else 1.0
    is_inexact = jax.numpy.issubdtype(y.dtype, jax.numpy.inexact)
    if isinstance(y, jax.Array) and not _jax.is_held_whole(y):
        is_alike, error, scale = map(float, _compared_in_place(x, y))
    else:
        a = np.asarray(x)
        b = np.asarray(y)
        wide = b.dtype if not is_inexact else np.complex128 if np.iscomplexobj(b) else np.float64
        is_alike, error, scale = map(float, _compared(a.astype(wide), b.astype(wide), np))
    if not is_inexact:
        return None if is_alike and not error else 1.0
    if not is_alike:
        return float("inf")
    relative = float(jax.numpy.finfo(y.dtype).eps) ** 0.5 if rtol is None else rtol
    return None if error <= relative * scale + atol else error / max(scale, np.finfo(float).tiny)


def _compared(a: Any, b: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Whether NaNs and infinities are in the same places; the largest difference and element where
    all is finite.
    """
    is_finite = xp.isfinite(b)
    is_alike = (xp.isnan(a) == xp.isnan(b)).all() & (xp.isfinite(a) == is_finite).all()
    with np.errstate(invalid="ignore", over="ignore"):
        difference = xp.where(is_finite, a != b if b.dtype.kind in "biu" else abs(a - b), 0)
    return is_alike, difference.max(initial=0), abs(xp.where(is_finite, b, 0)).max(initial=0)


@jax.jit
def _compared_in_place(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same where several devices hold the values: nothing is gathered, and all processes find
    the same.
    """
    if not jax.numpy.issubdtype(y.dtype, jax.numpy.inexact):
        return _compared(x, y, jax.numpy)
    wide = jax.numpy.promote_types(y.dtype, jax.numpy.float32)
    return _compared(x.astype(wide), y.astype(wide), jax.numpy)
