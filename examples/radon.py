"""Radon in the homes of 85 counties: a hierarchical model, sampled county by county.

    log radon_i = county[c_i] + slope x basement_i + noise
    county_c ~ Normal(mean + uranium_effect x uranium_c, spread)

Synthetic data of the structure of the survey of Minnesota (Gelman and Hill, 2007, chapter 12), with
more homes: a few counties have most of them. Each of the 85 levels is a site of its own; a step reads
the homes of its county. The same steps with the whole density in each give the same posterior.

Run: python examples/radon.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from incrax import samplers

jax.config.update("jax_enable_x64", True)

NUM_COUNTIES = 85
NUM_HOMES = 40_000
NUM_SWEEPS = 1_000
NUM_WHOLE = 100
"""Sweeps with the whole density in each step: they take longer."""

WIDTHS = {"slope": 0.015, "noise": 0.01, "mean": 0.1, "uranium": 0.2, "spread": 0.2}


def log_density(p, county, basement, uranium, y):
    """Noise and spread are logarithms; flat priors but for the counties."""
    z = (y - p["county"][county] - p["slope"] * basement) * jnp.exp(-p["noise"])
    u = (p["county"] - p["mean"] - p["uranium"] * uranium) * jnp.exp(-p["spread"])
    sizes = y.size * p["noise"] + u.size * p["spread"]
    return -0.5 * jnp.sum(z**2) - 0.5 * jnp.sum(u**2) - sizes - p["spread"] ** 2


def survey():
    """Data, the true levels of the counties, and a start."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(0, 1.2, NUM_COUNTIES)
    county = rng.choice(NUM_COUNTIES, NUM_HOMES, p=share / share.sum())
    uranium = rng.normal(0, 0.4, NUM_COUNTIES)
    level = 1.4 + 0.7 * uranium + 0.15 * rng.normal(size=NUM_COUNTIES)
    basement = rng.integers(0, 2, NUM_HOMES).astype(float)
    y = level[county] - 0.6 * basement + 0.75 * rng.normal(size=NUM_HOMES)
    start = {"county": np.full(NUM_COUNTIES, y.mean()), **dict.fromkeys(WIDTHS, 0.0)}
    return (county, basement, uranium, y), level, start


def whole_sweeps(start, data, width, key):
    """The same chain with the whole density in each step."""
    at, unravel = ravel_pytree(start)
    widths, _ = ravel_pytree({"county": width, **WIDTHS})
    fun = lambda x: log_density(unravel(x), *data)

    def step(carry, turn):
        x, value = carry
        k, key = turn
        move, accept = jax.random.split(key)
        moved = x.at[k].add(widths[k] * jax.random.normal(move))
        new = fun(moved)
        taken = jnp.log(jax.random.uniform(accept)) < new - value
        return (jnp.where(taken, moved, x), jnp.where(taken, new, value)), None

    def sweep(carry, key):
        turns = jnp.arange(at.size), jax.random.split(key, at.size)
        carry, _ = jax.lax.scan(step, carry, turns)
        return carry, carry[1]

    return jax.lax.scan(sweep, (at, fun(at)), jax.random.split(key, NUM_WHOLE))[1]


def main():
    """Both ways."""
    data, level, start = survey()
    width = 2.4 * 0.75 / np.sqrt(np.bincount(data[0], minlength=NUM_COUNTIES) + 10)
    updates = {"p['county'][*]": samplers.Walk(width)}
    updates |= {f"p['{name}']": samplers.Walk(width) for name, width in WIDTHS.items()}

    begin_s = time.perf_counter()
    chain = samplers.gibbs(log_density, start, *data, updates=updates, key=1, num_sweeps=NUM_SWEEPS)
    ours_s = (time.perf_counter() - begin_s) / NUM_SWEEPS
    print(chain)

    end = jax.tree.map(lambda x: jnp.asarray(x[-1]), chain.tree())
    at = end, data, width, jax.random.key(2)
    run = jax.jit(whole_sweeps).lower(*at).compile()
    begin_s = time.perf_counter()
    whole = np.asarray(run(*at))
    whole_s = (time.perf_counter() - begin_s) / NUM_WHOLE
    print(
        f"a sweep: incrax {1e3 * ours_s:.2f} ms with its compilation, whole density by jax.jit "
        f"{1e3 * whole_s:.1f} ms without, {whole_s / ours_s:.1f} times"
    )

    counties = chain.tree()["county"][NUM_SWEEPS // 5 :]
    mean, error = counties.mean(axis=0), counties.std(axis=0)
    pulls = (level - mean) / error
    print(f"true levels: {np.mean(np.abs(pulls) < 2):.0%} within two errors")
    ours = chain.log_densities[NUM_SWEEPS // 2 :]
    for name, values in (("incrax", ours), ("jax.jit", whole)):
        print(f"log-density by {name}: {values.mean():.1f} on average, spread {values.std():.1f}")
    value = float(jax.jit(log_density)(end, *data))
    print(f"log-density at the end: {abs(chain.log_densities[-1] / value - 1):.1e} relative")
    assert np.isclose(chain.log_densities[-1], value, rtol=1e-10)
    assert np.mean(np.abs(pulls) < 3) > 0.9


if __name__ == "__main__":
    main()
