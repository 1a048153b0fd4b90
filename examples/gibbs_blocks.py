"""Metropolis within Gibbs: one block of parameters is proposed at a time, and only its part of the
model runs.

A spectrum of four lines and noise. A proposal moves one line; the other three are saved values. A
rejected proposal goes back to a version that is still there. The same chain on `jax.jit` takes the
same decisions.

Run: python examples/gibbs_blocks.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import incrax

jax.config.update("jax_enable_x64", True)

NUM_CHANNELS = 50_000
NUM_SWEEPS = 200
TRUTH = {
    "lines": [
        {"height": 5.0, "center": 2.0, "width": 0.3},
        {"height": 3.0, "center": 4.5, "width": 0.5},
        {"height": 4.0, "center": 6.0, "width": 0.2},
        {"height": 2.0, "center": 8.0, "width": 0.6},
    ],
    "log_noise": 0.0,
}
STEPS = {"height": 0.02, "center": 0.001, "width": 0.001}
NOISE_STEP = 0.002


def line(x, height, center, width):
    """A generalised Lorentzian."""
    return height / (1 + jnp.abs((x - center) / width) ** 2.5)


def log_posterior(params, x, y):
    """Normal noise of unknown width, flat priors."""
    model = sum(line(x, **shape) for shape in params["lines"])
    chi_square = jnp.sum((y - model) ** 2) * jnp.exp(-2 * params["log_noise"])
    return -0.5 * chi_square - len(x) * params["log_noise"]


def proposals(params, rng):
    """One proposal per block: each line, then the noise; takes back the accepted parameters."""
    for k in range(len(params["lines"])):
        moved = {
            name: value + STEPS[name] * rng.normal() for name, value in params["lines"][k].items()
        }
        lines = [*params["lines"][:k], moved, *params["lines"][k + 1 :]]
        params = yield {**params, "lines": lines}
    yield {**params, "log_noise": params["log_noise"] + NOISE_STEP * rng.normal()}


def sample(function, x, y, seed):
    """A chain of shape (sweeps, 13), the acceptance rate, and seconds of its first tenth and of the
    rest.
    """
    rng = np.random.default_rng(seed)
    params, value = TRUTH, float(function(TRUTH, x, y))
    chain, accepted, tried = [], 0, 0
    ticks = [time.perf_counter()]
    for _ in range(NUM_SWEEPS):
        blocks = proposals(params, rng)
        proposal = next(blocks)
        try:
            while True:
                new = float(function(proposal, x, y))
                tried += 1
                if np.log(rng.uniform()) < new - value:
                    params, value = proposal, new
                    accepted += 1
                proposal = blocks.send(params)
        except StopIteration:
            chain.append(jax.tree.leaves(params))
            ticks.append(time.perf_counter())
    middle = NUM_SWEEPS // 10
    return np.array(chain), accepted / tried, (ticks[middle] - ticks[0], ticks[-1] - ticks[middle])


def main():
    """Sample both ways, compare, and look at what the engine did."""
    rng = np.random.default_rng(3)
    x = np.linspace(0.0, 10.0, NUM_CHANNELS)
    y = sum(np.asarray(line(x, **shape)) for shape in TRUTH["lines"]) + rng.normal(
        size=NUM_CHANNELS
    )
    x, y = incrax.frozen((x, y))

    ours, plain = incrax.incremental(log_posterior), jax.jit(log_posterior)
    chain, acceptance, ours_s = sample(ours, x, y, seed=4)
    plain_chain, _, plain_s = sample(plain, x, y, seed=4)

    centers = chain[:, 0 : 3 * len(TRUTH["lines"]) : 3]
    print(
        f"{NUM_SWEEPS} sweeps of 5 blocks over {NUM_CHANNELS:,} channels, acceptance "
        f"{acceptance:.0%}"
    )
    print(
        "centers: "
        + ", ".join(
            f"{m:.4f} +- {s:.4f}" for m, s in zip(centers.mean(0), centers.std(0), strict=True)
        )
    )
    print(f"largest difference between the chains: {np.abs(chain - plain_chain).max():.1e}")
    for name, (first_s, rest_s) in (("jax.jit", plain_s), ("incrax", ours_s)):
        print(
            f"{name:8} first {NUM_SWEEPS // 10} sweeps {first_s:.2f} s, the other "
            f"{NUM_SWEEPS * 9 // 10} {rest_s:.2f} s"
        )
    print(f"\n{ours.explain()}\n{ours.stats}")
    assert np.array_equal(chain, plain_chain)


if __name__ == "__main__":
    main()
