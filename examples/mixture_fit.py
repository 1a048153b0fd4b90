"""A likelihood fit as physicists do it: bind parameters and data, fit, errors, a profile, and toys.

Run: python examples/mixture_fit.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

import incrax
from incrax import fit

jax.config.update("jax_enable_x64", True)

LOW, HIGH = 0.0, 10.0
TRUTH = {
    "n1": 5e3,
    "mu1": 3.0,
    "s1": 0.3,
    "n2": 3e3,
    "mu2": 6.0,
    "s2": 0.5,
    "nb": 1.2e4,
    "lam": -0.25,
}
BOUNDS = {name: (0.0, None) for name in ("n1", "n2", "nb", "s1", "s2")} | {"lam": (-2.0, -1e-3)}


def normal(x, mean, width):
    """Density of a normal on the range."""
    scale = width * jnp.sqrt(2.0)
    inside = 0.5 * (erf((HIGH - mean) / scale) - erf((LOW - mean) / scale))
    return jnp.exp(-0.5 * ((x - mean) / width) ** 2) / (width * jnp.sqrt(2.0 * jnp.pi)) / inside


def exponential(x, slope):
    """Density of an exponential on the range."""
    return jnp.exp(slope * x) * slope / (jnp.exp(slope * HIGH) - jnp.exp(slope * LOW))


def nll(n1, mu1, s1, n2, mu2, s2, nb, lam, x):
    """Negative extended log-likelihood: two peaks on a falling background."""
    density = n1 * normal(x, mu1, s1) + n2 * normal(x, mu2, s2) + nb * exponential(x, lam)
    return n1 + n2 + nb - jnp.sum(jnp.log(density))


def sample(rng, num_rows=None):
    """Events of the truth; as many as a Poisson number says, or just so many, shares as they
    are.
    """
    sizes = [TRUTH[name] for name in ("n1", "n2", "nb")]
    if num_rows is None:
        counts = rng.poisson(sizes)
    else:
        counts = rng.multinomial(num_rows, np.array(sizes) / sum(sizes))
    uniform = rng.uniform(size=counts[2])
    background = np.log1p(uniform * np.expm1(TRUTH["lam"] * (HIGH - LOW))) / TRUTH["lam"] + LOW
    peaks = (
        rng.normal(TRUTH["mu1"], TRUTH["s1"], counts[0]),
        rng.normal(TRUTH["mu2"], TRUTH["s2"], counts[1]),
    )
    return np.clip(np.concatenate([*peaks, background]), LOW, HIGH)


def main():
    rng = np.random.default_rng(0)
    data = sample(rng)
    start = {**TRUTH, "mu1": 2.8, "mu2": 6.2, "n1": 4e3, "n2": 4e3}
    model = incrax.bind(nll, **start, x=data, roles={"x": "data"}, bounds=BOUNDS)

    found = fit.minimize(model)
    print(found)
    interval = found.minos("n1")["n1"]
    print(f"n1 = {model['n1']:.0f} {interval.lower:+.0f} {interval.upper:+.0f}")

    profile = fit.profile(found, "mu1", num_points=15)
    print("profile of mu1, rise at its ends:", profile.rise[[0, -1]].round(2))

    with model.at(s1=0.4):
        print(f"the same with s1 = 0.4: {model.value() - found.value:+.1f}")

    small = sample(rng, 2_000)
    shares = {name: TRUTH[name] / 10 for name in ("n1", "n2", "nb")}
    model.set({**TRUTH, **shares, "x": small})
    study = fit.toys(model, ({"x": sample(rng, 2_000)} for _ in range(20)))
    print(study)


if __name__ == "__main__":
    main()
