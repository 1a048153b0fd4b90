"""The Ising model on a square of 512 x 512 spins, one flip at a time.

    energy = - sum over neighbours of s_a s_b

The square is a chessboard: each bond joins a black and a white spin, so that the energy is one sum over
bonds, with a look-up on either side. A step reads the four bonds of its spin. The same steps with
the whole energy in each, and with the formula of four neighbours by hand, flip the same spins.

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
NUM_EACH = SIZE * SIZE // 2
TEMPERATURE = 4.0
NUM_SWEEPS = 5
NUM_WHOLE = 100
"""Steps with the whole energy in each."""


def energy(black, white, a, b):
    """Bonds join the black spins a and the white spins b; spins are +1 or -1, integers."""
    return -jnp.sum(black[a] * white[b])


def board():
    """Of each bond, the number of its black and of its white spin; of each spin of either colour
    its four neighbours.
    """
    row, column = np.indices((SIZE, SIZE))
    number = (row * SIZE + column) // 2  # within its colour
    is_black = (row + column) % 2 == 0
    ends = [], []
    for down, right in ((1, 0), (0, 1)):
        other = np.roll(number, (-down, -right), (0, 1))
        ends[0].append(np.where(is_black, number, other).ravel())
        ends[1].append(np.where(is_black, other, number).ravel())
    a, b = (np.concatenate(each).astype(np.int32) for each in ends)
    neighbours = [
        other[np.argsort(own, kind="stable")].reshape(-1, 4) for own, other in ((a, b), (b, a))
    ]
    return jnp.asarray(a), jnp.asarray(b), [jnp.asarray(x) for x in neighbours]


def turns_of(key, num):
    """Which spin of a colour each step flips, and what it may cost."""
    number, cost = jax.random.split(key)
    sites = jax.random.randint(number, (num,), 0, NUM_EACH, jnp.int32)
    return sites, -TEMPERATURE * jnp.log(jax.random.uniform(cost, (num,)))


def sites_steps(sites, carry, name, turns):
    """Metropolis steps on one colour by `look` and `settle`."""

    def step(carry, turn):
        state, value = carry
        i, most = turn
        delta, new = sites.look(state, {name: (i, -sites.inputs(state)[name][i])})
        accept = new - value < most
        return (sites.settle(state, delta, accept), jnp.where(accept, new, value)), None

    return lax.scan(step, carry, turns)[0]


def whole_steps(black, rest, turns):
    """Steps on black spins with the whole energy in each."""

    def step(carry, turn):
        black, value = carry
        i, most = turn
        flipped = black.at[i].multiply(-1)
        new = energy(flipped, *rest)
        accept = new - value < most
        return (jnp.where(accept, flipped, black), jnp.where(accept, new, value)), None

    return lax.scan(step, (black, energy(black, *rest)), turns)[0]


def hand_steps(own, other, neighbours, turns):
    """Steps on one colour by the sum over four neighbours."""

    def step(own, turn):
        i, most = turn
        gain = 2 * own[i] * jnp.sum(other[neighbours[i]])
        return own.at[i].set(jnp.where(gain < most, -own[i], own[i])), None

    return lax.scan(step, own, turns)[0]


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
    a, b, (of_black, _) = board()
    spins = 1 - 2 * jax.random.bernoulli(jax.random.key(0), 0.5, (2, NUM_EACH)).astype(jnp.int32)
    black, white = spins
    made = incrax.incremental(energy).sites(black, white, a, b, moves=["black[*]", "white[*]"])
    state, sites = made
    carry = state, energy(black, white, a, b)

    turns = turns_of(jax.random.key(1), NUM_EACH)
    few = jax.tree.map(lambda x: x[:NUM_WHOLE], turns)
    on_black = lambda sites, carry, turns: sites_steps(sites, carry, "black", turns)
    (ours, _), ours_s = seconds(on_black, sites, carry, turns)
    hand, hand_s = seconds(hand_steps, black, white, of_black, turns)
    (whole, _), whole_s = seconds(whole_steps, black, (white, a, b), few)
    (short, _), _ = seconds(on_black, sites, carry, few)
    assert np.array_equal(sites.inputs(short)["black"], whole)
    assert np.array_equal(sites.inputs(ours)["black"], hand)
    print(f"the same spins after {NUM_EACH:,} steps as by hand, and after {NUM_WHOLE} by the whole")
    flip, by_hand, by_whole = ours_s / NUM_EACH, hand_s / NUM_EACH, whole_s / NUM_WHOLE
    print(
        f"a step: incrax {1e6 * flip:.2f} us, by hand {1e6 * by_hand:.2f} us, the whole energy by "
        f"jax.jit {1e6 * by_whole:.0f} us, {by_whole / flip:.0f} times incrax"
    )

    @jax.jit
    def sweep(sites, carry, key):
        for name, own in zip(("black", "white"), jax.random.split(key), strict=True):
            carry = sites_steps(sites, carry, name, turns_of(own, NUM_EACH))
        return carry

    for key in jax.random.split(jax.random.key(2), NUM_SWEEPS):
        carry = sweep(sites, carry, key)
    state, value = carry
    assert value == energy(*sites.inputs(state).values(), a, b)  # integers: exactly
    found, exact = float(value) / SIZE**2, onsager(TEMPERATURE)
    print(f"energy per spin after {NUM_SWEEPS} sweeps: {found:.4f}, exactly {exact:.4f}")
    assert abs(found - exact) < 0.01


if __name__ == "__main__":
    main()
