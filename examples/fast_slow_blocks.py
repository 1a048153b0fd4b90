"""Fast and slow parameters: a chain whose fast steps never run the slow theory.

A spectrum is the prediction of a slow code outside JAX (here an integral over a grid, in NumPy)
times a calibration, plus a background. `f.deps` shows what a change of each parameter runs;
`samplers.gibbs` moves the fast ones many times for each slow step, with widths from a warm-up. The
fast parameters alone are then sampled by NumPyro and emcee, where these are installed.

Run: python examples/fast_slow_blocks.py
"""

from __future__ import annotations

import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import incrax
from incrax import samplers

jax.config.update("jax_enable_x64", True)

NUM_BINS, NUM_WARMUP, NUM_SWEEPS = 200, 100, 150
TRUTH = {"theory": np.array([1.2, 0.4]), "gain": 2.0, "background": np.array([0.5, -0.2])}
SIGMA = 0.05
NUM_CALLS = [0]
ENERGY = np.linspace(0.1, 3.0, NUM_BINS)
GRID = np.linspace(0.0, 5.0, 1000)


def slow_code(theory):
    """A spectrum by an integral; nobody wrote its derivative."""
    NUM_CALLS[0] += 1
    kernel = np.exp(-((ENERGY[:, None] - GRID - theory[0]) ** 2) / (2 * theory[1] ** 2))
    return kernel @ np.exp(-GRID) * (GRID[1] - GRID[0])


def log_posterior(p, y):
    """Normal errors, flat priors."""
    spectrum = jax.pure_callback(
        slow_code, jax.ShapeDtypeStruct((NUM_BINS,), np.float64), p["theory"]
    )
    model = p["gain"] * spectrum + p["background"][0] + p["background"][1] * ENERGY
    return -0.5 * jnp.sum((y - model) ** 2) / SIGMA**2


def fast_samplers(y):
    """What is fast alone, by samplers whose loops are compiled: the slow code ran once, before."""
    chosen = ("p['gain']", "p['background']")
    start = (TRUTH["gain"], TRUTH["background"])
    before = NUM_CALLS[0]
    if importlib.util.find_spec("numpyro"):
        from numpyro.infer import MCMC, NUTS

        potential = samplers.numpyro_potential(log_posterior, TRUTH, y, wrt=chosen)
        mcmc = MCMC(
            NUTS(potential_fn=potential), num_warmup=300, num_samples=500, progress_bar=False
        )
        mcmc.run(jax.random.key(1), init_params=jax.tree.map(jnp.asarray, start))
        yield "NumPyro's NUTS", np.asarray(mcmc.get_samples()[0]), NUM_CALLS[0] - before
    before = NUM_CALLS[0]
    if importlib.util.find_spec("emcee"):
        import emcee

        density = samplers.logdensity(log_posterior, TRUTH, y, wrt=chosen)
        center, unravel = ravel_pytree(start)
        log_probs = jax.jit(jax.vmap(lambda vector: density(unravel(vector))))
        sampler = emcee.EnsembleSampler(16, center.size, log_probs, vectorize=True)
        walkers = center + 0.01 * np.random.default_rng(2).normal(size=(16, center.size))
        sampler.run_mcmc(walkers, 400)
        samples = jax.vmap(unravel)(sampler.get_chain(discard=100, flat=True))
        yield "emcee", np.asarray(samples[0]), NUM_CALLS[0] - before


def main():
    rng = np.random.default_rng(0)
    shape = slow_code(TRUTH["theory"])
    y = TRUTH["gain"] * shape + TRUTH["background"][0] + TRUTH["background"][1] * ENERGY
    y = incrax.frozen(y + SIGMA * rng.normal(size=NUM_BINS))

    f = incrax.incremental(log_posterior)
    print(f.deps(TRUTH, y))
    NUM_CALLS[0], begin = 0, time.perf_counter()
    moves = {"theory": samplers.Walk(), ("gain", "background"): samplers.Walk(times=20)}
    chain = samplers.gibbs(
        f, TRUTH, y, updates=moves, key=1, num_sweeps=NUM_SWEEPS, num_warmup=NUM_WARMUP
    )
    print(f"{chain}, {time.perf_counter() - begin:.1f} s")
    print(f"{chain.num_evaluations} log-densities, and the slow code ran {NUM_CALLS[0]} times")
    for name, mean, width in zip(
        chain.names, chain.mean, np.sqrt(np.diag(chain.covariance)), strict=True
    ):
        print(f"  {name:18} {mean:8.4f} +- {width:.4f}")
    assert NUM_CALLS[0] <= NUM_WARMUP + NUM_SWEEPS + 2
    for name, gains, num_calls in fast_samplers(y):
        print(
            f"{name:15} gain {gains.mean():.4f} +- {gains.std():.4f} at fixed theory; slow code "
            f"ran {num_calls}x"
        )


if __name__ == "__main__":
    main()
