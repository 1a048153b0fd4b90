"""A likelihood of many rows, and calls of it in the order of a fit: what is run over devices, and
over processes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

NUM_ROWS = 1 << 14
ROWS = np.random.default_rng(1).normal(0.5, 1.5, NUM_ROWS)
PARAMS = {"mu": 0.2, "sigma": 0.9, "wide": 2.5, "share": 0.3, "scale": 1.2}


def likelihood(params, x):
    signal = jnp.exp(-0.5 * ((x - params["mu"]) / params["sigma"]) ** 2) / params["sigma"]
    broad = jnp.exp(-0.5 * (x / params["wide"]) ** 2) / params["wide"]
    tail = jax.scipy.special.ndtr(x) + 0.1
    return -params["scale"] * jnp.sum(
        jnp.log(params["share"] * signal + (1 - params["share"]) * broad * tail)
    )


def scan_points(num_sweeps):
    """One parameter, the same once more, back, the next; then all of them."""
    params = dict(PARAMS)
    for sweep in range(num_sweeps):
        for name in params:
            moved = {**params, name: params[name] * 1.01}
            yield from (moved, {**moved, name: moved[name] * 1.02}, params, moved)
            params = moved
        params = {name: value * (1 - 0.001 * sweep) for name, value in params.items()}
        yield params
