"""Random numbers on the host from a key of JAX.

In: a key, or an integer. Out: a generator of NumPy.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def generator(key: Any) -> np.random.Generator:
    """A generator that equal keys start equally: a key of `jax.random`, old or new, or an integer."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return np.random.default_rng(np.asarray(key).ravel().tolist())
