"""Compiled sweeps: closed-form posteriors, log-densities of plain JAX, equal chains however they
are cut, and what they refuse.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers
from incrax.engine.call.sites import Sites
from incrax.samplers import compiled_sweeps, sweep_blocks, sweep_steps


@pytest.fixture(autouse=True, params=["together", "row by row"])
def how(request, monkeypatch):
    """Rows of these functions do not interact; each test runs as if they did, too."""
    if request.param == "row by row":
        monkeypatch.setattr(Sites, "colours", lambda *args: None)
    return request.param


NUM, SIZE = 6, 5
Y = np.random.default_rng(1).normal(size=(NUM, SIZE)) + np.arange(NUM)[:, None]
START = {"mu": 0.0, "theta": jnp.zeros(NUM)}
ROWS = "p['theta'][*]"


def groups(p, y):
    """Effects of groups around a mean: a normal distribution in all of them."""
    spread = jnp.sum((p["theta"] - p["mu"]) ** 2)
    return -0.5 * jnp.sum((y - p["theta"][:, None]) ** 2) - 0.5 * spread - 0.05 * p["mu"] ** 2


def posterior():
    """Mean and covariance in the order (mu, theta), from the density's quadratic form."""
    precision = np.zeros((NUM + 1, NUM + 1))
    precision[0, 0] = NUM + 0.1
    precision[0, 1:] = precision[1:, 0] = -1.0
    precision[1:, 1:] = np.diag(np.full(NUM, SIZE + 1.0))
    covariance = np.linalg.inv(precision)
    return covariance @ np.concatenate([[0.0], Y.sum(axis=1)]), covariance


def chain(num=40, key=1, updates=None, fun=groups, **kwargs):
    moves = {ROWS: samplers.Walk(0.8), "p['mu']": samplers.Walk(0.9)}
    return samplers.gibbs(
        fun, START, Y, updates=updates or moves, key=key, num_sweeps=num, **kwargs
    )


@pytest.mark.parametrize(
    ("updates", "num_effective"),
    [
        ({ROWS: samplers.Walk(0.9, times=3), "p['mu']": samplers.Walk(0.9, times=3)}, 500),
        ({"p['mu']": samplers.Walk(0.9), ROWS: samplers.Walk(np.linspace(0.6, 1.2, NUM))}, 150),
        ({"p['mu']": samplers.Hamiltonian(0.4, 4), ROWS: samplers.Walk(0.9, times=3)}, 300),
        ({"p['mu']": samplers.Walk(0.9), ROWS: samplers.Hamiltonian(0.5, 3, np.ones(NUM))}, 300),
        ({("p['mu']", "p['theta']"): samplers.Hamiltonian(0.3, 8), "p['c']": None}, 1000),
    ],
    ids=[
        "several steps",
        "widths of their own, in another order",
        "HMC of a number",
        "HMC of rows",
        "HMC of all",
    ],
)
def test_the_moments_are_those_of_the_posterior(updates, num_effective):
    if "p['c']" in updates:  # a label beside them makes it compiled
        updates = {**updates, "p['c']": samplers.Categorical(2)}
        start = {"c": jnp.zeros(2, int), **START}
        fun = lambda p, y: groups(p, y) + jnp.sum(p["c"])
        found = samplers.gibbs(fun, start, Y, updates=updates, key=1, num_sweeps=6000)
        labels, found = (
            found,
            dataclasses.replace(found, samples=found.samples[:, 2:], names=found.names[2:]),
        )
        np.testing.assert_allclose(labels.mean[:2], np.e / (1 + np.e), atol=0.04)
        del found.acceptance["p['c']"]
    else:
        found = chain(6000, updates=updates)
    mean, covariance = posterior()
    width = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(found.mean - mean) < 5 * width / np.sqrt(num_effective))
    scale = np.sqrt(np.outer(width**2, width**2) + covariance**2)
    assert np.all(np.abs(found.covariance - covariance) < 5 * scale / np.sqrt(num_effective))
    assert found.names == ("p['mu']", *(f"p['theta'][{k}]" for k in range(NUM)))
    assert all(0.2 < share < 0.995 for share in found.acceptance.values())


def test_log_densities_are_those_of_plain_jax_at_every_sample():
    found = chain()
    at = [jax.tree.map(lambda x, k=k: x[k], found.tree()) for k in range(40)]
    np.testing.assert_allclose(found.log_densities, [groups(p, Y) for p in at], rtol=1e-12)
    assert found.num_evaluations == 40 * (NUM + 1)
    assert set(found.acceptance) == {ROWS, "p['mu']"}


@pytest.mark.parametrize("chunk_s", [0.0, 1e9])
def test_however_it_is_cut_a_chain_is_the_same(monkeypatch, chunk_s):
    expected = chain(7, key=jax.random.key(3))
    monkeypatch.setattr(compiled_sweeps, "CHUNK_S", chunk_s)
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        np.testing.assert_array_equal(chain(7, key=key).samples, expected.samples)
    assert not np.array_equal(chain(7, key=4).samples, expected.samples)


def test_a_block_moves_only_its_own_elements():
    moves = {ROWS: samplers.Walk(0.8)}
    found = samplers.gibbs(groups, START, Y, updates=moves, key=1, num_sweeps=5, wrt="p['theta']")
    assert found.names == tuple(f"p['theta'][{k}]" for k in range(NUM))
    assert np.all(np.ptp(found.samples, axis=0) > 0)
    moves = {"p['mu']": samplers.Walk(0.8), ROWS: samplers.Walk(1e6)}  # never accepted
    found = chain(20, updates=moves)
    assert np.all(found.samples[:, 1:] == 0.0)
    assert np.ptp(found.samples[:, 0]) > 0
    assert found.acceptance[ROWS] == 0.0


def test_elements_of_an_array_may_be_a_block_beside_rows_of_another():
    f = lambda p: -0.5 * jnp.sum(p["a"] ** 2) - 0.5 * jnp.sum(p["b"] ** 2)
    start = {"a": np.zeros(3), "b": np.zeros(2)}
    moves = {
        ("p['a'][0]", "p['a'][2]"): samplers.Walk([1.0, 2.0]),
        "p['b'][*]": samplers.Walk(1.0),
        "p['a'][1]": samplers.Walk(1e9),
    }
    found = samplers.gibbs(f, start, updates=moves, key=1, num_sweeps=50)
    assert np.all(found.samples[:, 1] == 0.0)
    assert np.all(np.ptp(found.samples[:, [0, 2, 3, 4]], axis=0) > 0)
    assert list(found.acceptance)[0] == "p['a'][0], p['a'][2]"


def test_rows_of_several_inputs_move_together():
    def f(p):
        d = p["a"] - jnp.sum(p["b"], axis=1)
        return -0.5 * jnp.sum(d**2) - 0.5 * jnp.sum(p["b"] ** 2)

    start = {"a": np.zeros(4), "b": np.zeros((4, 2))}
    both = {("p['a'][*]", "p['b'][*]"): samplers.Walk(0.9, times=2)}
    found = samplers.gibbs(f, start, updates=both, key=2, num_sweeps=4000)
    assert found.num_evaluations == 4000 * 8
    expected = np.concatenate([np.full(4, 3.0), np.ones(8)])  # var(a) = 1 + 2
    np.testing.assert_allclose(found.samples.var(axis=0), expected, rtol=0.25)
    first = np.corrcoef(found.samples[:, 0], found.samples[:, 4])[0, 1]
    np.testing.assert_allclose(first, 1 / np.sqrt(3), atol=0.1)


def test_an_incremental_function_is_not_called_and_its_data_stay_alive():
    f = incrax.incremental(groups)
    y = jnp.asarray(Y)
    theta = jnp.zeros(NUM)
    samplers.gibbs(
        f, {"mu": 0.0, "theta": theta}, y, updates={"p": samplers.Walk(0.1)}, key=1, num_sweeps=1
    )
    calls = f.stats.calls
    moves = {ROWS: samplers.Walk(0.8), "p['mu']": samplers.Walk(0.9)}
    samplers.gibbs(f, {"mu": 0.0, "theta": theta}, y, updates=moves, key=1, num_sweeps=3)
    assert f.stats.calls == calls
    assert not theta.is_deleted()
    assert not y.is_deleted()


def test_where_the_density_is_no_number_nothing_goes():
    f = lambda p: jnp.sum(jnp.log(p["a"])) - jnp.sum(p["a"])  # NaN below zero
    moves = {"p['a'][*]": samplers.Walk(3.0)}
    found = samplers.gibbs(f, {"a": np.ones(3)}, updates=moves, key=5, num_sweeps=200)
    assert np.all(found.samples > 0)
    assert np.all(np.isfinite(found.log_densities))


def test_a_trajectory_is_that_of_numpy():
    """Leapfrog steps of all rows and of one, by their own gradients and widths."""
    rng = np.random.default_rng(2)
    widths = np.array([0.5, 1.0, 2.0])
    start, velocity = rng.normal(size=3), rng.normal(size=3) * widths
    log_density = lambda x: -jnp.sum(x**4 / 4 + x)
    gradient = lambda x: -(x**3) - 1
    scale, step = np.array([0.2, 0.1, 0.3]), 0.7
    x, v = start, velocity
    for _ in range(5):
        v = v + 0.5 * scale * step * widths**2 * gradient(x)
        x = x + scale * step * v
        v = v + 0.5 * scale * step * widths**2 * gradient(x)
    lost = 0.5 * (velocity**2 - v**2) / widths**2
    block = sweep_blocks.SweepBlock("x", ("x",), 3, num_leaps=9, step_size=step)
    given = lambda at, bounds: (
        block, lambda q: log_density(q["x"]), {"x": jnp.asarray(start[at])},
        sweep_steps.Draws({"x": jnp.asarray(velocity[at])}, bounds, jnp.full(bounds.shape, 5)),
        jnp.asarray(scale[at]), {"x": jnp.asarray(widths[at])},
    )  # fmt: skip
    rows, gained = sweep_steps.proposal_of(*given(slice(None), jnp.zeros(3)))
    np.testing.assert_allclose(rows["x"], x, rtol=1e-12)
    np.testing.assert_allclose(gained, lost, rtol=1e-10)
    for at in range(3):
        rows, gained = sweep_steps.proposal_of(*given(at, jnp.zeros(())))
        np.testing.assert_allclose(rows["x"], x[at], rtol=1e-12)
        np.testing.assert_allclose(gained, lost[at], rtol=1e-10)


@pytest.mark.parametrize("width", [0.02, 50.0])
def test_sizes_of_steps_are_found_in_the_warm_up(width):
    """Widths that are wrong by as much, in both directions, for rows and a number."""
    moves = {
        ROWS: samplers.Hamiltonian(num_steps=5, width=width),
        "p['mu']": samplers.Hamiltonian(num_steps=5, width=width),
    }
    found = chain(600, updates=moves, num_warmup=600)
    assert all(0.65 < share < 0.95 for share in found.acceptance.values())
    mean, covariance = posterior()
    assert np.all(np.abs(found.mean - mean) < 5 * np.sqrt(np.diag(covariance) / 30))
    assert found.num_evaluations == 1200 * (NUM + 1) * 7  # so many at most


def test_elements_that_a_trajectory_has_not_stay():
    f = lambda p: -0.5 * jnp.sum(p["a"] ** 2) - 0.5 * jnp.sum(p["b"] ** 2)
    start = {"a": np.zeros(3), "b": np.zeros(2)}
    moves = {
        ("p['a'][0]", "p['a'][2]"): samplers.Hamiltonian(0.5, 3),
        "p['b'][*]": samplers.Hamiltonian(0.5, 3),
        "p['a'][1]": samplers.Walk(1e9),
    }
    found = samplers.gibbs(f, start, updates=moves, key=1, num_sweeps=50)
    assert np.all(found.samples[:, 1] == 0.0)
    assert np.all(np.ptp(found.samples[:, [0, 2, 3, 4]], axis=0) > 0)


def test_a_trajectory_that_leaves_the_support_is_refused():
    f = lambda p: jnp.sum(jnp.log(p["a"])) - jnp.sum(p["a"])  # NaN below zero
    moves = {"p['a'][*]": samplers.Hamiltonian(2.0, 3)}
    found = samplers.gibbs(f, {"a": np.ones(3)}, updates=moves, key=5, num_sweeps=200)
    assert np.all(found.samples > 0)
    assert np.all(np.isfinite(found.log_densities))
    assert 0 < found.acceptance["p['a'][*]"] < 1


# --- what is refused ------------------------------------------------------------------------------


def refused(error, **kwargs):
    with pytest.raises(error) as caught:
        chain(**kwargs)
    return str(caught.value)


def test_rows_of_different_numbers_do_not_move_together():
    moves = {("p['mu']", ROWS): samplers.Walk(0.8)}
    assert refused(incrax.errors.BlockError, updates=moves) == (
        "Rows of `p['mu'], p['theta'][*]` cannot move together: `p['mu']` has no rows there, "
        "`p['theta']` has 6 rows. Nothing was sampled. Name inputs with as many rows, each with "
        "`[*]`, or make them blocks of their own."
    )


@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ({ROWS: samplers.Walk(0.8)}, incrax.errors.BlockError),
        ({ROWS: samplers.Walk(0.8), "p": samplers.Walk(0.8)}, incrax.errors.BlockError),
        ({ROWS: samplers.Walk([1.0, 2.0]), "p['mu']": samplers.Walk(1.0)}, samplers.ProposalError),
        ({"p['nu'][*]": samplers.Walk(0.8)}, incrax.errors.UnknownInputError),
        ({ROWS: samplers.Walk(1.0), "p['mu'][*]": samplers.Walk(1.0)}, incrax.errors.StepTypeError),
    ],
    ids=["no block", "two blocks", "widths", "no such input", "rows of a number"],
)
def test_blocks_that_do_not_fit(updates, error):
    refused(error, updates=updates)


def test_the_start_is_possible():
    f = lambda p, y: jnp.log(p["mu"]) - jnp.sum(p["theta"] ** 2)
    refused(samplers.StartError, fun=f)
    refused(ValueError, num=0)


def test_rows_that_do_not_interact_move_together_as_they_would_by_turns(how, monkeypatch):
    moves = {ROWS: samplers.Walk(times=3), "p['mu']": samplers.Walk(0.9)}
    found = chain(60, updates=moves)
    steps = []
    monkeypatch.setattr(compiled_sweeps, "step_each", lambda *args: steps.append(1) or walk(*args))
    chain(60, updates=moves)
    assert len(steps) == (1 if how == "together" else 2)  # traced: the mean's, and the rows'
    monkeypatch.setattr(Sites, "colours", lambda *args: None)
    expected = chain(60, updates=moves)
    np.testing.assert_allclose(found.samples, expected.samples, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.log_densities, expected.log_densities, rtol=1e-9)
    assert found.acceptance == expected.acceptance


walk = sweep_steps.step_each
