"""A recurrent network on sequences of many lengths, and an adaptive integrator: neither is compiled
again.

Run: python examples/loops_of_any_length.py
"""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import incrax

jax.config.update("jax_enable_x64", True)

UNITS, LONGEST = 16, 400


def cell(p, h, x):
    return jnp.tanh(p["w"] @ h + p["u"] * x + p["b"]), None


def loss(p, xs, goal):
    """The last state should tell the mean of a sequence."""
    h, _ = incrax.scan(partial(cell, p), jnp.zeros(UNITS), xs)
    return (p["out"] @ h - goal) ** 2


def train(rng):
    """300 steps, each on a sequence of another length."""
    p = {
        "w": 0.9 * np.eye(UNITS),
        "u": rng.normal(size=UNITS) / 10,
        "b": np.zeros(UNITS),
        "out": np.ones(UNITS) / UNITS,
    }
    step = incrax.bucketed(jax.value_and_grad(loss), ragged="xs")
    start, losses = time.perf_counter(), []
    for _ in range(300):
        mean = rng.uniform(-1, 1)
        xs = mean + rng.normal(size=rng.integers(1, LONGEST))
        value, gradient = step(p, xs, mean)
        p = jax.tree.map(lambda w, g: w - 0.03 * g, p, gradient)
        losses.append(float(value))
    seconds = time.perf_counter() - start
    first, last = np.mean(losses[:50]), np.mean(losses[-50:])
    print(
        f"lengths 1 to {LONGEST}: {step.num_traces} programs, {seconds:.1f} s; loss {first:.3f}, "
        f"then {last:.3f}"
    )
    assert last < first


def integrate(rate, tolerance=1e-6):
    """dy/dt = -rate * y**2 from y(0) = 1 to t = 1, with steps as long as the error of a midpoint
    step allows.
    """
    slope = lambda y: -rate * y**2

    def turn(state):
        t, y, step = state
        step = jnp.minimum(step, 1.0 - t)
        euler, midpoint = y + step * slope(y), y + step * slope(y + 0.5 * step * slope(y))
        error = jnp.abs(midpoint - euler)
        is_good = error <= jnp.sqrt(tolerance)
        factor = jnp.clip(0.9 * jnp.sqrt(jnp.sqrt(tolerance) / (error + 1e-12)), 0.2, 2.0)
        t, y = jnp.where(is_good, t + step, t), jnp.where(is_good, midpoint, y)
        return t, y, jnp.maximum(step * factor, 1e-6)

    return incrax.while_loop(lambda state: state[0] < 1.0, turn, (0.0, 1.0, 0.1), max_steps=10_000)[
        1
    ]


def main():
    train(np.random.default_rng(0))
    gradient = jax.jit(jax.grad(integrate))
    for rate in (0.5, 2.0, 8.0):
        exact = 1 / (1 + rate), -1 / (1 + rate) ** 2
        value, slope = float(integrate(rate)), float(gradient(rate))
        print(
            f"rate {rate}: y(1) {value:.4f} (exact {exact[0]:.4f}), d/d rate {slope:.4f} (exact "
            f"{exact[1]:.4f})"
        )
        assert abs(value - exact[0]) < 1e-2
        assert abs(slope - exact[1]) < 1e-2


if __name__ == "__main__":
    main()
