"""A function of which each part has a parameter of its own."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

X = np.linspace(0.1, 2.0, 300)
PARAMS = {"a": np.float64(1), "b": np.float64(2), "c": np.float64(3)}


def model(params, x):
    return jnp.sum(jnp.exp(params["a"] * x)) + jnp.sum(jnp.sin(params["b"] * x)) * params["c"]
