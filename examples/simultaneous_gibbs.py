"""Two experiments with one mass: a simultaneous fit, then Gibbs sampling of the same model, one
experiment at a time.

Run: python examples/simultaneous_gibbs.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import incrax
from incrax import fit, samplers

jax.config.update("jax_enable_x64", True)


def nll(mass, width, share, x):
    """A peak over a flat background on [80, 100]."""
    peak = jnp.exp(-0.5 * ((x - mass) / width) ** 2) / (width * jnp.sqrt(2 * jnp.pi))
    return -jnp.sum(jnp.log(share * peak + (1 - share) / 20.0))


def experiment(rng, width, share, num):
    """A bound model of data of its own: resolution and purity are this experiment's."""
    is_peak = rng.uniform(size=num) < share
    x = np.where(is_peak, rng.normal(91.2, width, num), rng.uniform(80.0, 100.0, num))
    bounds = {"width": (0.2, 5.0), "share": (0.01, 0.99)}
    return incrax.bind(
        nll, mass=91.0, width=2.0, share=0.5, x=x, roles={"x": "data"}, bounds=bounds
    )


def main():
    rng = np.random.default_rng(0)
    parts = {
        "electron": experiment(rng, 1.5, 0.6, 40_000),
        "muon": experiment(rng, 2.5, 0.8, 60_000),
    }
    model = fit.simultaneous(
        parts, shared=["mass"], constraints=[fit.gaussian_constraint("mass", 91.19, 0.05)]
    )
    found = fit.minimize(model)
    print(found)

    log_density = fit.negative(model)
    errors = dict(zip(found.names, found.errors, strict=True))
    walks = {name: samplers.Walk(1.5 * error) for name, error in errors.items()}
    chain = samplers.gibbs(
        log_density.function,
        *log_density.args,
        wrt=log_density.trainable_paths,
        updates=walks,
        key=jax.random.key(1),
        num_sweeps=500,
    )
    print(f"{'':24}{'fit':>18}{'chain':>18}")
    for name, value, error in zip(found.names, found.values, found.errors, strict=True):
        samples = chain.samples[100:, chain.names.index(name)]
        print(f"{name:24}{value:9.3f} +- {error:.3f}{samples.mean():10.3f} +- {samples.std():.3f}")


if __name__ == "__main__":
    main()
