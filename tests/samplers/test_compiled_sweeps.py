"""Compiled sweeps: closed-form posteriors, log-densities of plain JAX, equal chains however they
are cut, and what they refuse.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers
from incrax.engine.call.sites import Sites
from incrax.samplers import compiled_sweeps


@pytest.fixture(autouse=True, params=["together", "row by row"])
def how(request, monkeypatch):
    """Rows of these functions do not interact; each test runs as if they did, too."""
    if request.param == "row by row":
        monkeypatch.setattr(Sites, "are_independent", lambda *args: False)
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
    ],
    ids=["several steps", "widths of their own, in another order"],
)
def test_the_moments_are_those_of_the_posterior(updates, num_effective):
    found = chain(6000, updates=updates)
    mean, covariance = posterior()
    width = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(found.mean - mean) < 5 * width / np.sqrt(num_effective))
    scale = np.sqrt(np.outer(width**2, width**2) + covariance**2)
    assert np.all(np.abs(found.covariance - covariance) < 5 * scale / np.sqrt(num_effective))
    assert found.names == ("p['mu']", *(f"p['theta'][{k}]" for k in range(NUM)))
    assert all(0.2 < share < 0.8 for share in found.acceptance.values())


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


# --- what is refused ------------------------------------------------------------------------------


def refused(error, **kwargs):
    with pytest.raises(error) as caught:
        chain(**kwargs)
    return str(caught.value)


def test_only_walks_are_compiled():
    moves = {ROWS: samplers.Walk(0.8), "p['mu']": samplers.Hamiltonian(0.1)}
    assert refused(TypeError, updates=moves) == (
        "`gibbs(updates=...)` got a Hamiltonian for `p['mu']`, beside a block named by `[*]` or a "
        "`Categorical`: sweeps with such a block are one compiled program, in which blocks move by "
        "`Walk` or `Categorical`. Nothing was sampled. Pass one of these for it, or name the rows "
        "of the other block one by one."
    )


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
        ({ROWS: samplers.Walk(1.0, times=0), "p['mu']": samplers.Walk(1.0)}, ValueError),
        ({ROWS: samplers.Walk(1.0), "p['mu'][*]": samplers.Walk(1.0)}, incrax.errors.StepTypeError),
    ],
    ids=["no block", "two blocks", "widths", "no such input", "no steps", "rows of a number"],
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
    monkeypatch.setattr(compiled_sweeps, "_walk_each", lambda *args: steps.append(1) or walk(*args))
    chain(60, updates=moves)
    assert len(steps) == (1 if how == "together" else 2)  # traced: the mean's, and the rows'
    monkeypatch.setattr(Sites, "are_independent", lambda *args: False)
    expected = chain(60, updates=moves)
    np.testing.assert_allclose(found.samples, expected.samples, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.log_densities, expected.log_densities, rtol=1e-9)
    assert found.acceptance == expected.acceptance


walk = compiled_sweeps._walk_each
