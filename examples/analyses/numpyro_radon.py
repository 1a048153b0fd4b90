"""A hierarchical model of NumPyro, unchanged: radon in the homes of 85 counties.

By NumPyro's NUTS, by NUTS on the potential that incrax makes of the model, and by sweeps of incrax,
which move one county at a time and read its homes alone. All go on until each parameter has some
hundred independent draws; what counts is seconds for a thousand of the worst.

Run: python examples/analyses/numpyro_radon.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("numpyro")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from incrax import samplers

jax.config.update("jax_enable_x64", True)

NUM_COUNTIES, NUM_HOMES = 85, 20_000
SCALARS = ("mean", "effect", "spread", "slope", "noise")


def model(county, basement, uranium, y):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    effect = numpyro.sample("effect", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("counties", NUM_COUNTIES):
        level = numpyro.sample("level", dist.Normal(mean + effect * uranium, spread))
    with numpyro.plate("homes", NUM_HOMES):
        numpyro.sample("y", dist.Normal(level[county] + slope * basement, noise), obs=y)


def survey():
    """Synthetic homes; a few counties have most of them."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(0, 1.2, NUM_COUNTIES)
    county = rng.choice(NUM_COUNTIES, NUM_HOMES, p=share / share.sum())
    uranium = rng.normal(0, 0.4, NUM_COUNTIES)
    level = 1.4 + 0.7 * uranium + 0.15 * rng.normal(size=NUM_COUNTIES)
    basement = rng.integers(0, 2, NUM_HOMES).astype(float)
    y = level[county] - 0.6 * basement + 0.75 * rng.normal(size=NUM_HOMES)
    return tuple(map(jnp.asarray, (county, basement, uranium, y)))


DATA = survey()


def numbers(draws):
    """Of draws by name with axes (draws, ...): what the forms are compared by."""
    sizes = [effective_sample_size(np.asarray(draws[name])[None]) for name in (*SCALARS, "level")]
    found = {f"{name}": np.mean(draws[name]) for name in SCALARS}
    found["level of county 0"] = np.mean(np.asarray(draws["level"])[:, 0])
    return {**found, "effective draws": min(np.min(size) for size in sizes)}


def by_numpyro():
    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1_000, progress_bar=False)
    mcmc.run(jax.random.key(1), *DATA)
    return numbers(mcmc.get_samples())


def by_potential():
    m = samplers.from_numpyro(model, *DATA)
    potential = samplers.numpyro_potential(m.log_density, *m.args)
    kernel = NUTS(potential_fn=potential)
    mcmc = MCMC(kernel, num_warmup=500, num_samples=1_000, progress_bar=False)
    mcmc.run(jax.random.key(1), init_params=m.args[0])
    return numbers(m.constrained(mcmc.get_samples()))


def by_sweeps():
    m = samplers.from_numpyro(model, *DATA)
    chain = samplers.gibbs(m.log_density, *m.args, updates=m.updates, key=1, num_sweeps=6_000)
    draws = m.constrained(chain.tree())
    return numbers({name: x[1_000:] for name, x in draws.items()})


if __name__ == "__main__":
    wholejob.compare(
        __file__,
        {"NumPyro's NUTS": by_numpyro, "NUTS on our potential": by_potential, "incrax": by_sweeps},
        {"slope": 0.02, "noise": 0.01, "level of county 0": 0.05, "effect": 0.1},
    )
