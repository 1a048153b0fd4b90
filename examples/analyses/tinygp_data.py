"""A Gaussian process of tinygp, 700 points: new data sets at one kernel, then a scan of the noise.

By tinygp under `jax.jit`, and by incrax: the function is the same. New data leave the factor of the
covariance as it is; a new noise leaves the kernel's matrix.

Run: python examples/analyses/tinygp_data.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("tinygp")

import time

import jax
import jax.numpy as jnp
import numpy as np
from tinygp import GaussianProcess, kernels

import incrax

jax.config.update("jax_enable_x64", True)

NUM_POINTS, NUM_DATA_SETS, NUM_NOISES = 700, 2_000, 120
PARAMETERS = {"amplitude": 1.3, "scale": 2.0, "noise": 0.3}


def log_likelihood(p, x, y):
    kernel = p["amplitude"] ** 2 * kernels.Matern32(p["scale"])
    return GaussianProcess(kernel, x, diag=p["noise"] ** 2).log_probability(y)


def measured():
    """Where, and many data sets."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 40, NUM_POINTS))
    waves = np.sin(rng.uniform(0.2, 1.0, (NUM_DATA_SETS, 1)) * x)
    return jnp.asarray(x), [jnp.asarray(y + 0.3 * rng.normal(size=x.size)) for y in waves]


X, DATA_SETS = measured()


def job(f):
    """The same calls for each form."""
    begin_s = time.perf_counter()
    of_data = [float(f(PARAMETERS, X, y)) for y in DATA_SETS]
    middle_s = time.perf_counter()
    noises = np.linspace(0.2, 0.5, NUM_NOISES)
    of_noise = [float(f({**PARAMETERS, "noise": float(s)}, X, DATA_SETS[0])) for s in noises]
    return {
        "mean": np.mean(of_data),
        "best noise": noises[np.argmax(of_noise)],
        "new data_s": middle_s - begin_s,
        "noise_s": time.perf_counter() - middle_s,
    }


def by_jit():
    return job(jax.jit(log_likelihood))


def by_incrax():
    return job(incrax.incremental(log_likelihood))


if __name__ == "__main__":
    forms = {"jax.jit": by_jit, "incrax": by_incrax}
    wholejob.compare(__file__, forms, {"mean": 1e-6, "best noise": 1e-9})
