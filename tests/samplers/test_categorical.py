"""Draws of discrete rows from all their values: exact transition probabilities on spaces that can
be enumerated, joint distributions with walks.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers
from incrax.engine.call.sites import Sites
from incrax.samplers.sweep_blocks import SweepBlock
from incrax.samplers.sweep_draws import drawn_rows
from incrax.samplers.sweep_steps import Draws, step_each

GRID = (np.arange(2000) + 0.5) / 2000
"""Uniform numbers; shares of them are probabilities up to 1 / 2000."""

FIELD = np.array([0.3, -0.8, 0.5, 0.1])
LEFT = np.array([3, 0, 1, 2])


def ising(s, field=FIELD):
    """Spins on a ring, each in a field of its own."""
    return 0.6 * jnp.sum(s * s[LEFT]) + jnp.sum(field * s)


def excluded(s):
    """Labels of which neighbours differ; of others the density is zero, or no number."""
    same = s[:-1] == s[1:]
    return jnp.sum(jnp.where(same, jnp.where(s[0] == 2, jnp.nan, -jnp.inf), 0.3 * s[:-1]))


def probabilities(fun, values, num):
    """All states, and the probability of each."""
    states = np.array(list(itertools.product(values, repeat=num)))
    log_weights = np.nan_to_num(np.array([float(fun(s)) for s in states]), nan=-np.inf)
    weights = np.exp(log_weights - log_weights.max())
    return states, weights / weights.sum()


CASES = {
    "spins": (ising, [-1, 1], 4),
    "spins in another field": (lambda s: ising(s, 2 * FIELD[::-1]), [-1, 1], 4),
    "labels": (excluded, [0, 1, 2], 3),
}


HOW = {
    "drawn": {},
    "walk": {"random_walk": True},
    "modified": {"modified": True},
    "modified walk": {"random_walk": True, "modified": True},
}


def transition(p, own, random_walk=False, modified=False):
    """Probabilities of the next value of a row, of which each value has these now."""
    if not (random_walk or modified):
        return p
    others = np.arange(len(p)) != own
    if random_walk:
        moves = np.minimum(1, p / p[own]) / (len(p) - modified)
    else:
        with np.errstate(invalid="ignore"):
            accepted = np.minimum(1, np.nan_to_num((1 - p[own]) / (1 - p), nan=0.0))
        moves = p / max(1 - p[own], 1e-300) * accepted
    moves = np.where(others, moves, 0)
    return np.where(others, moves, 1 - moves.sum())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", CASES)
def test_a_draw_of_one_row_is_in_detailed_balance(case, how):
    fun, values, num = CASES[case]
    states, weights = probabilities(fun, values, num)
    state, sites = incrax.incremental(fun).sites(states[0], moves=["s[*]"])
    # Of its rows only the first moves.
    block = SweepBlock("s", ("s",), 1, num_values=len(values), **HOW[how])

    @jax.jit
    @jax.vmap
    def drawn(start):
        at = sites.start({"s": start}, state)

        def one(uniform):
            position = at, sites.look(at, {})[1]
            (at_end, value), moved = drawn_rows(
                sites, position, block, uniform[None], jnp.asarray(values)
            )
            return sites.inputs(at_end)["s"], value, moved

        return jax.vmap(one)(jnp.asarray(GRID))

    possible = np.flatnonzero(weights)
    ends, found, moved = map(np.asarray, drawn(states[possible]))
    numbers = {tuple(s): k for k, s in enumerate(states)}
    matrix = np.zeros((len(states), len(states)))
    for place, start in enumerate(possible):
        for end in ends[place]:
            matrix[start, numbers[tuple(end)]] += 1 / len(GRID)
    flow = weights[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=2 / len(GRID))
    np.testing.assert_allclose(weights @ matrix, weights, atol=2 / len(GRID))
    # By the conditional itself: of the states that agree in the other rows.
    for start in possible:
        same = np.flatnonzero(np.all(states[:, 1:] == states[start, 1:], axis=1))
        expected = np.zeros(len(states))
        own = np.flatnonzero(same == start)[0]
        expected[same] = transition(weights[same] / weights[same].sum(), own, **HOW[how])
        np.testing.assert_allclose(matrix[start], expected, atol=1.5 / len(GRID))
    expected = np.array([fun(s) for s in ends.reshape(-1, num)]).reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(moved, np.any(ends != states[possible][:, None], axis=2))


def test_a_step_of_a_walk_is_in_detailed_balance():
    """On a line of five places, one of them of probability zero, one where the density is NaN."""
    table = jnp.array([0.0, 1.2, -0.7, 0.4, -jnp.inf, jnp.nan])
    fun = lambda x: jnp.sum(table[x.astype(int)]) + 0.1 * jnp.sum(x)
    state, sites = incrax.incremental(fun).sites(jnp.zeros(1), moves=["x[*]"])
    block = SweepBlock("x", ("x",), 1)

    @jax.jit
    @jax.vmap
    def accepted(start, move):
        at = sites.start({"x": start[None]}, state)

        def one(bound):
            draws = Draws({"x": move[None]}, bound[None])
            position = at, sites.look(at, {})[1]
            return step_each(sites, position, block, draws, jnp.zeros(1), {})[1]

        return jnp.mean(jax.vmap(one)(jnp.log(GRID)))

    starts, moves = np.array([(x, d) for x in range(4) for d in (-1, 1)], float).T
    shares = np.asarray(accepted(jnp.asarray(starts), jnp.asarray(moves)))
    matrix = np.zeros((4, 4))
    for start, move, share in zip(starts.astype(int), moves.astype(int), shares, strict=True):
        if 0 <= start + move < 4:
            matrix[start, start + move] = share / 2
        elif start + move == 4:
            assert share == 0
    weights = np.exp(np.asarray(table[:4]) + 0.1 * np.arange(4))
    flow = (weights / weights.sum())[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=1 / len(GRID))
    assert np.all(flow[np.arange(3), np.arange(1, 4)] > 0)


@pytest.mark.parametrize("dtype", [int, float])
def test_spins_have_the_distribution_of_their_energy(dtype):
    states, weights = probabilities(ising, [-1, 1], 4)
    start = np.ones(4, dtype)
    spins = {"s": samplers.Categorical([-1, 1])}
    found = samplers.gibbs(ising, start, updates=spins, key=4, num_sweeps=8000)
    assert found.tree().dtype == np.dtype(dtype)
    seen = np.array([np.mean(np.all(found.samples == s, axis=1)) for s in states])
    assert np.abs(seen - weights).sum() < 0.06
    np.testing.assert_allclose(
        found.log_densities, [ising(s) for s in found.samples], rtol=1e-9, atol=1e-9
    )
    assert found.num_evaluations == 8000 * 4 * 2


@pytest.mark.parametrize("how", [how for how in HOW if how != "drawn"])
def test_a_weight_of_nearly_all_leaves_the_others_their_shares(how):
    """In single precision 1 - p is nothing here; and rows that do not interact move the same way."""
    log_weights = jnp.array([0.0, -18.0, -19.0], jnp.float32)
    fun = lambda s: jnp.sum(log_weights[s])
    state, sites = incrax.incremental(fun).sites(np.array([1, 0, 2]), moves=["s[*]"])
    block = SweepBlock("s", ("s",), 3, num_values=3, **HOW[how])
    values = jnp.arange(3)
    position = state, sites.look(state, {})[1]
    uniforms = jnp.asarray(np.tile(GRID[:, None], (1, 3)), jnp.float32)
    for num_colours in (0, 1):
        own = block._replace(num_colours=num_colours)
        move = lambda u, own=own: drawn_rows(sites, position, own, u, values)[0][0]
        drawn = sites.inputs(jax.vmap(move)(uniforms))["s"]
        p = np.exp(np.float64(log_weights)) / np.exp(np.float64(log_weights)).sum()
        for row, start in enumerate([1, 0, 2]):
            shares = np.bincount(drawn[:, row], minlength=3) / len(GRID)
            np.testing.assert_allclose(shares, transition(p, start, **HOW[how]), atol=2 / len(GRID))


@pytest.mark.parametrize("how", ["together", "row by row"])
def test_labels_of_a_mixture_and_its_means(how, monkeypatch):
    if how == "row by row":
        monkeypatch.setattr(Sites, "colours", lambda *args: None)
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 120)
    x = np.array([-5.0, 0.0, 5.0])[truth] + rng.normal(size=120)

    def mixture(p, x):
        return -0.5 * jnp.sum((x - p["mu"][p["z"]]) ** 2) - 0.5 * jnp.sum(p["mu"] ** 2) / 100

    start = {"mu": np.array([-1.0, 0.0, 1.0]), "z": np.zeros(120, np.int32), "flag": np.array(True)}
    updates = {"p['z']": samplers.Categorical(3), "p['mu'][*]": samplers.Walk()}
    found = samplers.gibbs(mixture, start, x, updates=updates, key=1, num_sweeps=400, chains=2)
    tree = found.tree()
    assert tree["z"].dtype == np.int32
    assert tree["flag"] is None
    assert np.mean(tree["z"] == truth) > 0.97
    # The mean of a group is normal given its labels, which hardly vary.
    for k in range(3):
        own = x[truth == k]
        np.testing.assert_allclose(
            tree["mu"][..., k].mean(), own.sum() / (len(own) + 0.01), atol=0.1
        )
        np.testing.assert_allclose(tree["mu"][..., k].std(), len(own) ** -0.5, rtol=0.3)
    assert found.acceptance["p['z']"] < 0.1
    assert found.num_evaluations == 2 * 600 * (120 * 3 + 3)


def test_labels_are_drawn_together_as_they_would_be_by_turns(monkeypatch):
    x = jnp.asarray(np.random.default_rng(3).normal(size=40))
    fun = lambda z: -jnp.sum((x - jnp.array([-1.0, 0.0, 1.0])[z]) ** 2) + 0.1 * jnp.sum(z == 1)
    run = lambda: samplers.gibbs(
        fun, np.zeros(40, int), updates={"z": samplers.Categorical(3)}, key=2, num_sweeps=30
    )
    found = run()
    monkeypatch.setattr(Sites, "colours", lambda *args: None)
    expected = run()
    np.testing.assert_array_equal(found.samples, expected.samples)
    np.testing.assert_allclose(found.log_densities, expected.log_densities, rtol=1e-9)
    assert found.acceptance == expected.acceptance


def test_a_chessboard_of_spins_moves_by_its_colours():
    """Black sites interact with white ones alone: given these all of them are drawn at once."""
    size = 4
    number = np.arange(size * size).reshape(size, size)
    is_black = (np.add.outer(np.arange(size), np.arange(size)) % 2 == 0).ravel()
    place = np.cumsum(np.where(is_black, 1, 0)) - 1, np.cumsum(np.where(is_black, 0, 1)) - 1
    turns = [(shift, axis) for shift in (1, -1) for axis in (0, 1)]
    near = [place[1][np.roll(number, *turn).ravel()[is_black]] for turn in turns]

    def energy(p):
        bonds = [jnp.sum(p["black"] * p["white"][white]) for white in near]
        return 0.3 * sum(bonds) + 0.05 * (jnp.sum(p["black"]) + jnp.sum(p["white"]))

    start = {"black": np.ones(8, int), "white": np.ones(8, int)}
    state, sites = incrax.incremental(energy).sites(start, moves=["p['black'][*]", "p['white'][*]"])
    assert not sites.colours(state, ["p['black']"]).any()
    assert not sites.colours(state, ["p['white']"]).any()
    updates = {f"p['{name}']": samplers.Categorical([-1, 1]) for name in start}
    found = samplers.gibbs(energy, start, updates=updates, key=1, num_sweeps=8000)
    spins = 1 - 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)
    lattice = spins.reshape(-1, size, size)
    bonds = sum(np.sum(lattice * np.roll(lattice, 1, axis), (1, 2)) for axis in (1, 2))
    weights = np.exp(0.3 * bonds + 0.05 * lattice.sum((1, 2)))
    weights /= weights.sum()
    for of in (lambda x: x.sum(-1), lambda x: np.abs(x.sum(-1))):
        expected = weights @ of(spins)
        spread = np.sqrt(weights @ (of(spins) - expected) ** 2)
        assert abs(of(found.samples).mean() - expected) < 5 * spread / np.sqrt(400)


def test_a_number_and_rows_of_several_elements():
    corners = np.array([[0, 0], [0, 1], [2, 2]])
    fun = lambda p: jnp.sum(p["v"] @ jnp.array([0.5, -1.0])) + 0.7 * p["k"]
    start = {"k": np.int32(0), "v": np.zeros((2, 2), int)}
    updates = {"p['k']": samplers.Categorical(2), "p['v']": samplers.Categorical(corners)}
    found = samplers.gibbs(fun, start, updates=updates, key=1, num_sweeps=6000).tree()
    np.testing.assert_allclose(found["k"].mean(), 1 / (1 + np.exp(-0.7)), atol=0.03)
    weights = np.exp(corners @ [0.5, -1.0])
    for row in (0, 1):
        seen = [np.mean(np.all(found["v"][:, row] == c, axis=1)) for c in corners]
        np.testing.assert_allclose(seen, weights / weights.sum(), atol=0.03)


def test_where_no_value_is_possible_nothing_moves():
    fun = lambda p: jnp.where(p["z"][0] == 5, 0.0, -jnp.inf) - 0.5 * p["a"] ** 2
    start = {"a": 0.0, "z": np.array([5, 0])}
    updates = {"p['z']": samplers.Categorical(2), "p['a']": samplers.Walk(1.0)}
    found = samplers.gibbs(fun, start, updates=updates, key=1, num_sweeps=50).tree()
    assert np.all(found["z"][:, 0] == 5)
    assert set(found["z"][:, 1]) == {0, 1}


def test_a_chessboard_of_spins_moves_by_two_colours():
    """Small enough to be enumerated in columns: a ring of 12 spins, walks of a ring of numbers."""
    num = 12
    ring = lambda s: 0.5 * jnp.sum(s * jnp.roll(s, 1)) + 0.2 * jnp.sum(s)
    transfer = np.exp([[0.5 + 0.2, -0.5], [-0.5, 0.5 - 0.2]])
    whole = np.linalg.matrix_power(transfer, num)
    spin = np.diag([1.0, -1.0])
    mean = np.trace(spin @ whole) / np.trace(whole)
    pair = np.trace(spin @ transfer @ spin @ np.linalg.matrix_power(transfer, num - 1))
    many = 16
    rings = lambda s: (
        jnp.sum(jnp.asarray([0.0])) + sum(ring(s[k * num : (k + 1) * num]) for k in range(many))
    )
    spins = {"s": samplers.Categorical([-1, 1])}
    state, sites = incrax.incremental(rings).sites(np.ones(many * num, int), moves=["s[*]"])
    assert set(sites.colours(state, ["s"]).tolist()) == {0, 1}
    found = samplers.gibbs(rings, np.ones(many * num, int), updates=spins, key=4, num_sweeps=3000)
    s = found.samples[100:].reshape(-1, many, num)
    np.testing.assert_allclose(s.mean(), mean, atol=0.02)
    np.testing.assert_allclose(np.mean(s * np.roll(s, 1, 2)), pair / np.trace(whole), atol=0.02)
    np.testing.assert_allclose(found.log_densities[:3], [rings(x) for x in found.samples[:3]])


@pytest.mark.parametrize(
    "move", [samplers.Walk(0.8, times=2), samplers.Hamiltonian(0.4, 4)], ids=["walk", "trajectory"]
)
def test_numbers_on_a_ring_have_the_covariance_of_their_density(move):
    num = 128
    ring = lambda x: -0.5 * jnp.sum((x - jnp.roll(x, 1)) ** 2) - 0.5 * jnp.sum(x**2)
    found = samplers.gibbs(ring, np.zeros(num), updates={"x[*]": move}, key=4, num_sweeps=3000)
    first = np.zeros(num)
    first[[0, 1, -1]] = 3.0, -1.0, -1.0
    covariance = np.fft.ifft(1 / np.fft.fft(first)).real
    x = found.samples[100:]
    np.testing.assert_allclose(np.mean(x * x), covariance[0], rtol=0.05)
    np.testing.assert_allclose(np.mean(x * np.roll(x, 1, 1)), covariance[1], rtol=0.1)
    np.testing.assert_allclose(found.log_densities[:3], [ring(x) for x in found.samples[:3]])
