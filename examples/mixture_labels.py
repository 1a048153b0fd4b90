"""Labels of a mixture: Gibbs sampling of 10,000 discrete sites, each with all its candidates.

    z_i ~ Categorical(shares),  y_i ~ Normal(centers[z_i], 1)

A step takes the log-density with each of the eight labels of one point and draws one of them. By
`look` a candidate reads one point. The same with the whole density for each candidate, as samplers
for discrete sites do that know nothing of the model, takes thousands of times as long.

Run: python examples/mixture_labels.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import incrax

jax.config.update("jax_enable_x64", True)

NUM_POINTS = 10_000
NUM_LABELS = 8
NUM_SWEEPS = 200
NUM_WHOLE = 200
"""Steps with the whole density for each candidate."""

CANDIDATES = jnp.arange(NUM_LABELS, dtype=jnp.int32)


def log_density(z, centers, log_shares, y):
    """Of all labels and points, up to a constant."""
    return jnp.sum(log_shares[z] - 0.5 * (y - centers[z]) ** 2)


@jax.jit
def sweep(sites, state, key):
    """One step for each point."""

    def step(state, turn):
        i, key = turn
        value = lambda k: sites.look(state, {"z": (i, k)})[1]
        chosen = jax.random.categorical(key, lax.map(value, CANDIDATES)).astype(jnp.int32)
        delta, value = sites.look(state, {"z": (i, chosen)})
        return sites.settle(state, delta), value

    turns = jnp.arange(NUM_POINTS), jax.random.split(key, NUM_POINTS)
    return lax.scan(step, state, turns)


@jax.jit
def whole_steps(z, key, *rest):
    """The first steps of such a sweep, by the whole density for each candidate."""

    def step(z, turn):
        i, key = turn
        values = jax.vmap(lambda k: log_density(z.at[i].set(k), *rest))(CANDIDATES)
        chosen = jax.random.categorical(key, values).astype(jnp.int32)
        return z.at[i].set(chosen), values[chosen]

    turns = jnp.arange(NUM_WHOLE), jax.random.split(key, NUM_POINTS)[:NUM_WHOLE]
    return lax.scan(step, z, turns)


def main():
    """Both ways, from the same labels with the same random numbers."""
    rng = np.random.default_rng(0)
    centers = np.linspace(-6.0, 6.0, NUM_LABELS)
    shares = rng.dirichlet(np.full(NUM_LABELS, 5.0))
    y = centers[rng.choice(NUM_LABELS, NUM_POINTS, p=shares)] + rng.normal(size=NUM_POINTS)
    rest = jnp.asarray(centers), jnp.asarray(np.log(shares)), jnp.asarray(y)
    z = jnp.zeros(NUM_POINTS, jnp.int32)

    state, sites = incrax.incremental(log_density).sites(z, *rest, moves=["z[*]"])
    key = jax.random.key(0)
    first, values = jax.block_until_ready(sweep(sites, state, key))
    run = whole_steps.lower(z, key, *rest).compile()
    begin_s = time.perf_counter()
    whole, expected = jax.block_until_ready(run(z, key, *rest))
    whole_s = (time.perf_counter() - begin_s) / NUM_WHOLE * NUM_POINTS
    same = np.array_equal(whole[:NUM_WHOLE], sites.inputs(first)["z"][:NUM_WHOLE])
    print(f"the first {NUM_WHOLE} labels are the same: {same}")
    assert same
    assert np.allclose(values[:NUM_WHOLE], expected, rtol=1e-10)

    counts = np.zeros((NUM_POINTS, NUM_LABELS))
    begin_s = time.perf_counter()
    for key in jax.random.split(jax.random.key(1), NUM_SWEEPS):
        state, _ = sweep(sites, state, key)
        counts[np.arange(NUM_POINTS), np.asarray(sites.inputs(state)["z"])] += 1
    ours_s = (time.perf_counter() - begin_s) / NUM_SWEEPS
    print(
        f"a sweep: incrax {1e3 * ours_s:.0f} ms; the whole density by jax.jit {whole_s:.1f} s, "
        f"extrapolated from {NUM_WHOLE} of {NUM_POINTS:,} steps, {whole_s / ours_s:.0f} times"
    )
    exact = shares * np.exp(-0.5 * (y[:, None] - centers) ** 2)
    exact /= exact.sum(axis=1, keepdims=True)
    pulls = (counts / NUM_SWEEPS - exact) / np.sqrt(exact * (1 - exact) / NUM_SWEEPS)
    pulls = pulls[(exact > 0.1) & (exact < 0.9)]
    print(f"frequencies of labels against the exact ones: {pulls.std():.3f} errors, expected 1")
    assert abs(pulls.std() - 1) < 0.05


if __name__ == "__main__":
    main()
