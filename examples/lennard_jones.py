"""A Lennard-Jones fluid: 400 particles in a periodic box, moved one at a time.

    energy = sum over pairs of 4 (r^-12 - r^-6)

The energy is one sum over a list of all pairs. A step reads the 399 pairs of its particle. The same
steps with the whole energy in each move the same particles.

Run: python examples/lennard_jones.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import incrax

jax.config.update("jax_enable_x64", True)

SIDE = 20
NUM = SIDE * SIDE
BOX = 1.25 * SIDE
TEMPERATURE = 1.5
WIDTH = 0.2
NUM_SWEEPS = 20
NUM_WHOLE = 200
"""Steps with the whole energy in each."""

FIRST, SECOND = (jnp.asarray(x, jnp.int32) for x in np.triu_indices(NUM, 1))


def energy(x, first, second):
    """Of positions of shape (n, 2); pairs at their nearest images."""
    apart = x[first] - x[second]
    apart = apart - BOX * jnp.round(apart / BOX)
    inverse = 1.0 / jnp.sum(apart**2, axis=1) ** 3
    return 4.0 * jnp.sum(inverse * (inverse - 1.0))


def turns_of(key, num):
    """Which particle each step moves, where, and what it may cost."""
    number, move, cost = jax.random.split(key, 3)
    moves = WIDTH * jax.random.normal(move, (num, 2))
    costs = -TEMPERATURE * jnp.log(jax.random.uniform(cost, (num,)))
    return jax.random.randint(number, (num,), 0, NUM, jnp.int32), moves, costs


@jax.jit
def sites_steps(sites, carry, turns):
    """Metropolis steps by `look` and `settle`."""

    def step(carry, turn):
        state, value = carry
        i, move, most = turn
        delta, new = sites.look(state, {"x": (i, sites.inputs(state)["x"][i] + move)})
        accept = new - value < most
        return (sites.settle(state, delta, accept), jnp.where(accept, new, value)), accept

    return lax.scan(step, carry, turns)


@jax.jit
def whole_steps(carry, pairs, turns):
    """Steps with the whole energy in each."""

    def step(carry, turn):
        x, value = carry
        i, move, most = turn
        moved = x.at[i].add(move)
        new = energy(moved, *pairs)
        accept = new - value < most
        return (jnp.where(accept, moved, x), jnp.where(accept, new, value)), accept

    return lax.scan(step, carry, turns)


def seconds(fun, *args):
    """The result of a compiled function, and what a second run takes."""
    jax.block_until_ready(fun(*args))
    begin_s = time.perf_counter()
    found = jax.block_until_ready(fun(*args))
    return found, time.perf_counter() - begin_s


def main():
    """Both ways, from a lattice."""
    places = (np.stack(np.meshgrid(*[np.arange(SIDE)] * 2), -1).reshape(-1, 2) + 0.5) * BOX / SIDE
    x = jnp.asarray(places)
    pairs = FIRST, SECOND
    start = energy(x, *pairs)
    state, sites = incrax.incremental(energy).sites(x, *pairs, moves=["x[*]"])
    few = turns_of(jax.random.key(1), NUM_WHOLE)
    ((ours, value), accepted), ours_s = seconds(sites_steps, sites, (state, start), few)
    ((whole, expected), decided), whole_s = seconds(whole_steps, (x, start), pairs, few)
    assert np.array_equal(accepted, decided)
    assert np.allclose(sites.inputs(ours)["x"], whole)
    assert np.isclose(value, expected, rtol=1e-9)
    print(f"the same {NUM_WHOLE} decisions, {np.mean(accepted):.0%} accepted")
    print(
        f"a step: incrax {1e6 * ours_s / NUM_WHOLE:.1f} us, the whole energy by jax.jit "
        f"{1e6 * whole_s / NUM_WHOLE:.0f} us, {whole_s / ours_s:.0f} times"
    )
    carry = state, start
    for key in jax.random.split(jax.random.key(2), NUM_SWEEPS):
        carry, _ = sites_steps(sites, carry, turns_of(key, NUM))
    state, value = carry
    x = sites.inputs(state)["x"]
    print(f"energy of a particle: lattice {start / NUM:.3f}, fluid {value / NUM:.3f}")
    assert np.isclose(value, energy(x, *pairs), rtol=1e-8)


if __name__ == "__main__":
    main()
