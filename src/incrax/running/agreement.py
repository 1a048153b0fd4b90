"""Whether two results agree: types, positions of NaN and infinity, and values up to rounding.

In: two arrays. Out: by how much they differ, if that is too much. It must not know where they come from.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from incrax import _jax


def difference(x: Any, y: Any, *, rtol: float | None = None, atol: float = 0.0) -> float | None:
    """Largest difference relative to the largest element, if it is too large; None where the two agree.

    By default the square root of the spacing of numbers at one is allowed.
    """
    if _jax.is_key_dtype(getattr(y, "dtype", np.dtype(float))):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    a, b = np.asarray(x), np.asarray(y)
    if not jax.numpy.issubdtype(b.dtype, jax.numpy.inexact):
        return None if np.array_equal(a, b) else 1.0
    wide = np.complex128 if np.iscomplexobj(b) else np.float64
    eps = float(jax.numpy.finfo(b.dtype).eps)
    a, b = a.astype(wide), b.astype(wide)
    is_finite = np.isfinite(b)
    if not (np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(np.isfinite(a), is_finite)):
        return float("inf")
    error = float(np.abs(a[is_finite] - b[is_finite]).max(initial=0.0))
    scale = float(np.abs(b[is_finite]).max(initial=0.0))
    allowed = (eps**0.5 if rtol is None else rtol) * scale + atol
    return None if error <= allowed else error / max(scale, np.finfo(float).tiny)
