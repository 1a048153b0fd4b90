"""An amplitude analysis: couplings first, with the shapes of all resonances saved, then widths as
well.

Run: python examples/amplitude_fit.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import incrax
from incrax import fit

jax.config.update("jax_enable_x64", True)

NUM_WAVES, NUM_EVENTS, NUM_SIMULATED = 5, 4_000, 12_000
MASSES = np.linspace(0.9, 2.3, NUM_WAVES)
SPINS = np.arange(NUM_WAVES) % 3


def shapes(masses, widths, events):
    """Of each resonance at each event: relativistic Breit-Wigner times an angular part, shape
    (waves, events).
    """
    m, cosine = events["mass"], events["cosine"]
    breit_wigner = (
        masses[:, None]
        * widths[:, None]
        / (masses[:, None] ** 2 - m**2 - 1j * masses[:, None] * widths[:, None])
    )
    angular = jnp.stack([jnp.ones_like(cosine), cosine, 1.5 * cosine**2 - 0.5])[SPINS]
    return breit_wigner * angular


def intensity(couplings, masses, widths, events):
    total = (couplings["re"] + 1j * couplings["im"]) @ shapes(masses, widths, events)
    return jnp.abs(total) ** 2


def nll(couplings, widths, data, simulated):
    """- sum log I(data) + N log mean I(simulated): the integral by simulated events."""
    signal = jnp.sum(jnp.log(intensity(couplings, MASSES, widths, data)))
    return -signal + data["mass"].size * jnp.log(
        jnp.mean(intensity(couplings, MASSES, widths, simulated))
    )


def uniform(rng, num):
    return {"mass": rng.uniform(0.75, 2.5, num), "cosine": rng.uniform(-1.0, 1.0, num)}


def accepted(rng, couplings, widths):
    """Events of the model, by accepting uniform ones."""
    events = uniform(rng, 40 * NUM_EVENTS)
    weights = np.asarray(intensity(couplings, MASSES, widths, events))
    keep = np.flatnonzero(rng.uniform(size=weights.size) < weights / weights.max())[:NUM_EVENTS]
    return {name: values[keep] for name, values in events.items()}


def main():
    rng = np.random.default_rng(1)
    couplings = np.exp(1j * rng.uniform(0.0, 6.0, NUM_WAVES)) * rng.uniform(0.6, 1.4, NUM_WAVES)
    couplings /= couplings[0]
    truth = {"re": couplings.real, "im": couplings.imag}
    widths = np.linspace(0.1, 0.25, NUM_WAVES)
    model = incrax.bind(
        nll,
        couplings=jax.tree.map(lambda c: c + rng.normal(0.0, 0.2, NUM_WAVES), truth),
        widths=np.full(NUM_WAVES, 0.15),
        data=accepted(rng, truth, widths),
        simulated=uniform(rng, NUM_SIMULATED),
        roles={"data": "data", "simulated": "data", "widths": "fixed"},
        bounds={"widths": (0.02, 0.6)},
    )
    # The first coupling fixes scale and phase: constraints hold it, so that the minimum is one
    # point.
    held = fit.Constraint(("re", "im"), lambda re, im: 0.5e6 * ((re[0] - 1.0) ** 2 + im[0] ** 2))
    model = fit.constrained(model, held)

    start_s = time.perf_counter()
    couplings = fit.minimize(model, method="BFGS")
    print(f"couplings: {couplings.value:.1f} after {time.perf_counter() - start_s:.1f} s, "
          f"{100 * couplings.work.avoided:.0f} % of the equations were not run")  # fmt: skip

    model.set_role("widths", "trainable")
    everything = fit.minimize(model, method="L-BFGS-B")
    print(f"couplings and widths: {everything.value:.1f}")
    for name, value, error in zip(
        everything.names, everything.values, everything.errors, strict=True
    ):
        if name.startswith("widths"):
            print(f"{name} = {value:.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
