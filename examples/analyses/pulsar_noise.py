"""Noise of 30 pulsars by one likelihood under `vmap`: white noise, and red noise on a Fourier basis
(Woodbury), 1,000 times of arrival each. A chain moves one pulsar at a time.

By `jax.jit`, and by incrax: the same calls of the same function. Of the 30 factorisations a step
runs one.

Run: python examples/analyses/pulsar_noise.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import wholejob

import incrax

jax.config.update("jax_enable_x64", True)

NUM_PULSARS, NUM_TIMES, NUM_MODES, NUM_STEPS = 30, 1_000, 30, 1_200
WIDTHS = np.array([0.02, 0.05, 0.1, 0.1])


def one_pulsar(theta, residuals, errors, basis, frequencies):
    """Log-likelihood of one pulsar: factor on the errors, white noise, amplitude and index of the
    red noise.
    """
    factor, white, amplitude, index = theta
    variances = (factor * errors) ** 2 + jnp.exp(2 * white)
    powers = jnp.exp(2 * amplitude) * frequencies ** (-index)
    scaled = basis / variances[:, None]
    inner = basis.T @ scaled + jnp.diag(1 / powers)
    factored = jnp.linalg.cholesky(inner)
    half = jax.scipy.linalg.solve_triangular(factored, scaled.T @ residuals, lower=True)
    chi2 = jnp.sum(residuals**2 / variances) - jnp.sum(half**2)
    log_det = 2 * jnp.sum(jnp.log(jnp.diag(factored))) + jnp.sum(jnp.log(powers))
    return -0.5 * (chi2 + log_det + jnp.sum(jnp.log(variances)))


def log_density(thetas, data):
    prior = -0.5 * jnp.sum((thetas - jnp.array([1.0, -1.0, 0.0, 3.0])) ** 2)
    return jnp.sum(jax.vmap(one_pulsar)(thetas, *data)) + prior


def observed():
    """Residuals in microseconds, their errors, and the basis of each pulsar."""
    rng = np.random.default_rng(6)
    times = np.sort(rng.uniform(0, 1, (NUM_PULSARS, NUM_TIMES)), axis=1)
    modes = np.arange(1, NUM_MODES + 1)
    phases = 2 * np.pi * times[:, :, None] * modes
    basis = np.concatenate([np.sin(phases), np.cos(phases)], axis=2)
    frequencies = np.tile(np.tile(modes, 2).astype(float), (NUM_PULSARS, 1))
    errors = rng.uniform(0.3, 1.0, (NUM_PULSARS, NUM_TIMES))
    weights = rng.normal(size=(NUM_PULSARS, 2 * NUM_MODES)) * frequencies**-1.5
    red = np.einsum("pij,pj->pi", basis, weights)
    residuals = red + 1.1 * errors * rng.normal(size=errors.shape)
    return tuple(map(jnp.asarray, (residuals, errors, basis, frequencies)))


DATA = observed()


def job(f):
    """Metropolis: the pulsars in turns."""
    rng = np.random.default_rng(7)
    thetas = jnp.tile(jnp.array([1.0, -1.0, 0.0, 3.0]), (NUM_PULSARS, 1))
    value = float(f(thetas, DATA))
    taken = 0
    for step in range(NUM_STEPS):
        move = WIDTHS * rng.normal(size=4)
        moved = thetas.at[step % NUM_PULSARS].add(move)
        new = float(f(moved, DATA))
        if np.log(rng.uniform()) < new - value:
            thetas, value = moved, new
            taken += 1
    return {"log-density": value, "taken": taken}


def by_jit():
    return job(jax.jit(log_density))


def by_incrax():
    return job(incrax.incremental(log_density))


if __name__ == "__main__":
    forms = {"jax.jit": by_jit, "incrax": by_incrax}
    wholejob.compare(__file__, forms, {"log-density": 1e-5, "taken": 0.5})
