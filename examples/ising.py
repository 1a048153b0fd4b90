"""The Ising model on a square of 512 x 512 spins, one flip at a time.

    energy = - sum over neighbours of s_a s_b

The square lies row by row in one line, and neighbours are rolls of it (a row goes on in the next one,
which changes nothing inside). A step reads the four bonds of its spin. The same steps with the whole
energy in each, and with the formula of four neighbours by hand, flip the same spins.

Run: python examples/ising.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.special import ellipk

import incrax

jax.config.update("jax_enable_x64", True)

SIZE = 512
NUM = SIZE * SIZE
TEMPERATURE = 4.0
NUM_SWEEPS = 5
NUM_WHOLE = 100
"""Steps with the whole energy in each."""


def energy(spins):
    """Of spins +1 or -1, integers."""
    return -jnp.sum(spins * (jnp.roll(spins, -1) + jnp.roll(spins, -SIZE)))


def turns_of(key, num):
    """Which spin each step flips, and what it may cost."""
    number, cost = jax.random.split(key)
    sites = jax.random.randint(number, (num,), 0, NUM, jnp.int32)
    return sites, -TEMPERATURE * jnp.log(jax.random.uniform(cost, (num,)))


def sites_steps(sites, carry, turns):
    """Metropolis steps by `look` and `settle`."""

    def step(carry, turn):
        state, value = carry
        i, most = turn
        delta, new = sites.look(state, {"spins": (i, -sites.inputs(state)["spins"][i])})
        accept = new - value < most
        return (sites.settle(state, delta, accept), jnp.where(accept, new, value)), None

    return sites.scan(step, carry, turns)[0]


def whole_steps(spins, turns):
    """Steps with the whole energy in each."""

    def step(carry, turn):
        spins, value = carry
        i, most = turn
        flipped = spins.at[i].multiply(-1)
        new = energy(flipped)
        accept = new - value < most
        return (jnp.where(accept, flipped, spins), jnp.where(accept, new, value)), None

    return lax.scan(step, (spins, energy(spins)), turns)[0]


def hand_steps(spins, turns):
    """Steps by the sum over four neighbours."""
    beside = jnp.array([-1, 1, -SIZE, SIZE], jnp.int32)

    def step(spins, turn):
        i, most = turn
        gain = 2 * spins[i] * jnp.sum(spins[(i + beside) % NUM])
        return spins.at[i].set(jnp.where(gain < most, -spins[i], spins[i])), None

    return lax.scan(step, spins, turns)[0]


def onsager(temperature):
    """The energy per spin of an endless square, exactly (Onsager, 1944)."""
    t = 2.0 / temperature
    kappa = 2 * np.sinh(t) / np.cosh(t) ** 2
    return -(1 + 2 / np.pi * (2 * np.tanh(t) ** 2 - 1) * ellipk(kappa**2)) / np.tanh(t)


def seconds(fun, *args):
    """The result of a compiled function, and what a second run takes."""
    run = jax.jit(fun).lower(*args).compile()
    jax.block_until_ready(run(*args))
    begin_s = time.perf_counter()
    found = jax.block_until_ready(run(*args))
    return found, time.perf_counter() - begin_s


def main():
    """All three ways."""
    spins = 1 - 2 * jax.random.bernoulli(jax.random.key(0), 0.5, (NUM,)).astype(jnp.int32)
    state, sites = incrax.incremental(energy).sites(spins, moves=["spins[*]"])
    carry = state, energy(spins)

    turns = turns_of(jax.random.key(1), NUM // 8)
    few = jax.tree.map(lambda x: x[:NUM_WHOLE], turns)
    (ours, _), ours_s = seconds(sites_steps, sites, carry, turns)
    hand, hand_s = seconds(hand_steps, spins, turns)
    (whole, _), whole_s = seconds(whole_steps, spins, few)
    (short, _), _ = seconds(sites_steps, sites, carry, few)
    assert np.array_equal(sites.inputs(short)["spins"], whole)
    assert np.array_equal(sites.inputs(ours)["spins"], hand)
    num = len(turns[0])
    print(f"the same spins after {num:,} steps as by hand, and after {NUM_WHOLE} by the whole")
    flip, by_hand, by_whole = ours_s / num, hand_s / num, whole_s / NUM_WHOLE
    print(
        f"a step: incrax {1e6 * flip:.2f} us, by hand {1e6 * by_hand:.2f} us, the whole energy by "
        f"jax.jit {1e6 * by_whole:.0f} us, {by_whole / flip:.0f} times incrax"
    )

    sweep = jax.jit(lambda sites, carry, key: sites_steps(sites, carry, turns_of(key, NUM)))
    for key in jax.random.split(jax.random.key(2), NUM_SWEEPS):
        carry = sweep(sites, carry, key)
    state, value = carry
    assert value == energy(sites.inputs(state)["spins"])  # integers: exactly
    found, exact = float(value) / NUM, onsager(TEMPERATURE)
    print(f"energy per spin after {NUM_SWEEPS} sweeps: {found:.4f}, exactly {exact:.4f}")
    assert abs(found - exact) < 0.01


if __name__ == "__main__":
    main()
