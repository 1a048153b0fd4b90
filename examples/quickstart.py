"""A first look: a likelihood whose parameters change a few at a time, with gradient, beside plain
`jax.jit`.

Run: python examples/quickstart.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

import incrax

jax.config.update("jax_enable_x64", True)

NUM_EVENTS = 100_000
NUM_ROUNDS = 30


def peak(x, mu, sigma, tau):
    """A normal convolved with an exponential: expensive, and three parameters alone decide it."""
    z = (x - mu) / sigma
    return jnp.exp(0.5 * (sigma / tau) ** 2 - z * sigma / tau) * ndtr(z - sigma / tau) / tau


def negative_log_likelihood(params, x):
    """Two peaks with fractions of the whole; parameters are a pytree."""
    first = peak(x, **params["first"])
    second = peak(x, **params["second"])
    return -jnp.sum(jnp.log(params["share"] * first + (1 - params["share"]) * second))


def sequence_of_changes(params):
    """One input after the other moves a little, as in a scan or a Gibbs sampler."""
    for step in range(NUM_ROUNDS):
        for name in ("first", "second"):
            params = {**params, name: {**params[name], "mu": params[name]["mu"] + 0.01}}
            yield params
        params = {**params, "share": 0.3 + 0.01 * step}
        yield params


def evaluate(function, params, x):
    """All gradients along the sequence, and the seconds of its second half (the first half
    compiles).
    """
    gradients, start = [], time.perf_counter()
    changes = list(sequence_of_changes(params))
    for number, changed in enumerate(changes):
        if number == len(changes) // 2:
            start = time.perf_counter()
        value, gradient = function(changed, x)
        gradients.append(np.array([float(value), *map(float, jax.tree.leaves(gradient))]))
    return np.array(gradients), time.perf_counter() - start


def main():
    """Evaluate both ways, compare, and say what the last call did."""
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.normal(3, 0.4, NUM_EVENTS // 3), rng.normal(6, 0.8, 2 * NUM_EVENTS // 3)]
    )
    x = incrax.frozen(x + rng.exponential(0.5, len(x)))
    shape = {"sigma": 0.5, "tau": 0.6}
    params = {"first": {"mu": 3.0, **shape}, "second": {"mu": 6.0, **shape}, "share": 0.3}

    ours = incrax.incremental(jax.value_and_grad(negative_log_likelihood))
    plain = jax.jit(jax.value_and_grad(negative_log_likelihood))
    ours_results, ours_s = evaluate(ours, params, x)
    plain_results, plain_s = evaluate(plain, params, x)

    scale = np.abs(plain_results).max(axis=0)
    difference = float((np.abs(ours_results - plain_results) / scale).max())
    report = ours.explain().as_dict()
    print(
        f"{3 * NUM_ROUNDS} gradients of {len(x):,} events; largest relative difference "
        f"{difference:.1e}"
    )
    print(
        f"second half: jax.jit {plain_s:.3f} s, incrax {ours_s:.3f} s, ratio {plain_s / ours_s:.2f}"
    )
    print(
        f"last call: changed {list(report['changed'])}, served by {report['served_by']} "
        f"({report['why']})"
    )
    print(f"           ran {report['num_ran']} of {report['num_equations']} equations")
    print(ours.deps())
    assert difference < 1e-10


if __name__ == "__main__":
    main()
