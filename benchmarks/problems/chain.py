"""Problem G: Metropolis within Gibbs over the lines of a spectrum, wholly inside `lax.scan`.

Ten lines, each a block of three parameters (height, center, width), theta of shape (10, 3); a step
proposes one block. `sample` is the chain; its forms differ in how a proposal is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NUM_LINES = 10
NUM_CHANNELS = 50_000
WIDTHS = np.array([0.02, 0.001, 0.001])

Evaluate = Callable[[Any, jax.Array], tuple[Any, jax.Array]]


class Chain(NamedTuple):
    """Parameters and log-posterior after each step, shapes (steps, 10, 3) and (steps,)."""

    theta: jax.Array
    value: jax.Array


def make_data(num_channels: int = NUM_CHANNELS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True parameters, channels and counts with unit noise."""
    rng = np.random.default_rng(5)
    centers = np.linspace(0.5, 9.5, NUM_LINES)
    theta = np.stack(
        [rng.uniform(2, 6, NUM_LINES), centers, rng.uniform(0.2, 0.6, NUM_LINES)], axis=1
    )
    x = np.linspace(0.0, 10.0, num_channels)
    return (
        theta,
        x,
        sum(np.asarray(line(shape, x)) for shape in theta) + rng.normal(size=num_channels),
    )


def line(shape: Any, x: Any) -> jax.Array:
    """A generalised Lorentzian, height / (1 + |(x - center) / width|^2.5)."""
    height, center, width = shape
    return height / (1 + jnp.abs((x - center) / width) ** 2.5)


def log_posterior(theta: Any, x: Any, y: Any) -> jax.Array:
    """Unit normal noise, flat priors."""
    return -0.5 * jnp.sum((y - sum(line(theta[k], x) for k in range(NUM_LINES))) ** 2)


def sample(evaluate: Evaluate, state: Any, theta: Any, num_steps: int, seed: int = 0) -> Chain:
    """The chain: every step proposes one line and accepts it with probability min(1, p'/p)."""

    def step(carry: Any, inputs: Any) -> Any:
        theta, value, state = carry
        number, key = inputs
        move, accept = jax.random.split(key)
        k = number % NUM_LINES
        proposal = theta.at[k].add(WIDTHS * jax.random.normal(move, 3))
        state, new = evaluate(state, proposal)
        is_accepted = jnp.log(jax.random.uniform(accept)) < new - value
        theta, value = jnp.where(is_accepted, proposal, theta), jnp.where(is_accepted, new, value)
        return (theta, value, state), Chain(theta, value)

    keys = jax.random.split(jax.random.key(seed), num_steps)
    state, value = evaluate(state, jnp.asarray(theta))
    return jax.lax.scan(step, (jnp.asarray(theta), value, state), (jnp.arange(num_steps), keys))[1]


def hoisted(theta: Any, x: Any, y: Any) -> tuple[Any, Evaluate]:
    """By hand: the ten lines as a carried tuple; those whose parameters differ are computed
    anew.
    """

    def evaluate(state: Any, theta: jax.Array) -> Any:
        old_theta, old = state
        lines = []
        for k in range(NUM_LINES):
            same = jnp.all(theta[k] == old_theta[k])
            lines.append(jax.lax.cond(same, lambda k=k: old[k], lambda k=k: line(theta[k], x)))
        return (theta, tuple(lines)), -0.5 * jnp.sum((y - sum(lines)) ** 2)

    theta = jnp.asarray(theta)
    return (theta, tuple(line(theta[k], x) for k in range(NUM_LINES))), evaluate
