"""A whole chain inside `lax.scan`: the state carries saved values, and a step computes the block
that it proposes.

Ten lines of a spectrum, Metropolis within Gibbs. A proposal changes one line; the other nine are
kept. After a rejected proposal nothing is put back: the next step finds by itself which lines are
not the ones in the state. The same chain with the whole posterior in each step takes the same
decisions.

Run: python examples/gibbs_scan.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import incrax

jax.config.update("jax_enable_x64", True)

NUM_CHANNELS = 50_000
NUM_STEPS = 1_000
SCALE = jnp.array([0.02, 0.001, 0.001])


def line(shape, x):
    """A generalised Lorentzian."""
    height, center, width = shape
    return height / (1 + jnp.abs((x - center) / width) ** 2.5)


def log_posterior(theta, x, y):
    """Unit normal noise, flat priors; theta has one row per line."""
    return -0.5 * jnp.sum((y - sum(line(shape, x) for shape in theta)) ** 2)


def chain(evaluate, state, theta, keys):
    """`evaluate(state, theta)` gives the new state and the log-posterior."""

    def step(carry, inputs):
        theta, value, state = carry
        number, key = inputs
        move, accept = jax.random.split(key)
        proposal = theta.at[number % len(theta)].add(SCALE * jax.random.normal(move, 3))
        state, new = evaluate(state, proposal)
        accepted = jnp.log(jax.random.uniform(accept)) < new - value
        theta, value = jnp.where(accepted, proposal, theta), jnp.where(accepted, new, value)
        return (theta, value, state), (theta, accepted)

    state, value = evaluate(state, theta)
    return jax.lax.scan(step, (theta, value, state), (jnp.arange(len(keys)), keys))[1]


def main():
    """Sample both ways and compare."""
    rng = np.random.default_rng(5)
    truth = np.stack(
        [rng.uniform(2, 6, 10), np.linspace(0.5, 9.5, 10), rng.uniform(0.2, 0.6, 10)], axis=1
    )
    x = np.linspace(0.0, 10.0, NUM_CHANNELS)
    y = sum(np.asarray(line(shape, x)) for shape in truth) + rng.normal(size=NUM_CHANNELS)
    x, y = incrax.frozen((x, y))
    theta, keys = jnp.array(truth), jax.random.split(jax.random.key(0), NUM_STEPS)

    start, step = incrax.incremental(log_posterior).pure(theta, x, y)
    evaluators = {
        "whole posterior": ((), lambda state, theta: (state, log_posterior(theta, x, y))),
        "pure form": (start, lambda state, theta: step(state, theta, x, y)),
    }
    chains = {}
    for name, (state, evaluate) in evaluators.items():
        run = jax.jit(
            lambda state, theta, keys, evaluate=evaluate: chain(evaluate, state, theta, keys)
        )
        jax.block_until_ready(run(state, theta, keys))
        begin = time.perf_counter()
        chains[name], accepted = jax.block_until_ready(run(state, theta, keys))
        print(f"{name:16} {time.perf_counter() - begin:.2f} s, acceptance {accepted.mean():.0%}")
    same = bool((chains["pure form"] == chains["whole posterior"]).all())
    print(
        f"{NUM_STEPS} steps of one of 10 lines over {NUM_CHANNELS:,} channels; chains identical: "
        f"{same}"
    )
    assert same


if __name__ == "__main__":
    main()
