"""Kernels of BlackJAX inside compiled sweeps: the chains of plain JAX, and closed forms."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax import samplers
from incrax.engine.call.sites import Sites
from incrax.samplers.chain import generator

NUM = 6
Y = np.random.default_rng(1).normal(size=(NUM, 4)) + np.arange(NUM)[:, None]
START = {"mu": np.array(0.5), "theta": np.linspace(-1.0, 1.0, 2 * NUM).reshape(NUM, 2)}
ROWS = "p['theta'][*]"


def groups(p, y):
    """Two effects of each group, and their mean."""
    theta = p["theta"]
    spread = jnp.sum((theta[:, 0] - p["mu"]) ** 2) + jnp.sum((theta[:, 1] - theta[:, 0]) ** 2)
    return -0.5 * jnp.sum((y - theta[:, 1:]) ** 2) - 0.5 * spread - 0.05 * p["mu"] ** 2


def hmc(log_density, step_size):
    return blackjax.hmc(log_density, step_size, jnp.ones(2), 3)


KERNELS = {
    "random walk": (blackjax.normal_random_walk, 0.7),
    "MALA": (blackjax.mala, 0.2),
    "HMC": (hmc, 0.3),
}


@pytest.fixture(autouse=True, params=["together", "row by row"])
def how(request, monkeypatch):
    if request.param == "row by row":
        monkeypatch.setattr(Sites, "colours", lambda *args: None)


def by_blackjax(make, step_size, num_sweeps, key, times):
    """Sweeps over rows, each step with the whole log-density of plain JAX."""

    @jax.jit
    def moved(theta, i, words):
        density = lambda row: groups({**START, "theta": theta.at[i].set(row)}, Y)
        algorithm = make(density, step_size)
        key = jax.random.wrap_key_data(words)
        state, _ = algorithm.step(key, algorithm.init(theta[i]))
        return theta.at[i].set(state.position)

    rng = generator(key)
    theta = jnp.asarray(START["theta"])
    samples = []
    for _ in range(num_sweeps):
        words = rng.integers(2**32, size=(NUM, times, 2), dtype=np.uint32)
        for i, turn in np.ndindex(NUM, times):
            theta = moved(theta, i, words[i, turn])
        samples.append(theta)
    return np.stack(samples)


@pytest.mark.parametrize("name", KERNELS)
def test_a_chain_is_that_of_blackjax_with_the_whole_log_density(name):
    make, step_size = KERNELS[name]
    updates = {ROWS: samplers.Kernel(make, step_size, times=2)}
    found = samplers.gibbs(groups, START, Y, updates=updates, key=3, num_sweeps=4, wrt="p['theta']")
    expected = by_blackjax(make, step_size, 4, 3, 2)
    np.testing.assert_allclose(found.tree(), expected, rtol=1e-9)
    share = found.acceptance[ROWS]
    assert 0.2 < share <= 1.0
    at = [{"theta": theta, "mu": START["mu"]} for theta in expected]
    np.testing.assert_allclose(found.log_densities, [groups(p, Y) for p in at], rtol=1e-9)


def neighbours(p, y):
    """Each row meets the next one, so that colours move."""
    theta = p["theta"][:, 0]
    pairs = jnp.sum((theta - jnp.roll(theta, -1)) ** 2)
    return -0.5 * pairs - 0.5 * jnp.sum(p["theta"] ** 2) - 0.5 * jnp.sum((p["theta"] - 1.0) ** 4)


def test_rows_that_meet_neighbours_have_the_moments_of_walks():
    num = 512
    start = {"mu": np.array(0.0), "theta": np.zeros((num, 1))}
    one = lambda updates, key: samplers.gibbs(
        neighbours, start, Y, updates=updates, key=key, num_sweeps=300, num_warmup=50,
        wrt="p['theta']",
    )  # fmt: skip
    found = one({ROWS: samplers.Kernel(blackjax.mala, 0.15)}, 1)
    walks = one({ROWS: samplers.Walk(0.7, times=2)}, 2)
    assert abs(found.samples.mean() - walks.samples.mean()) < 0.01
    assert abs(found.samples.std() - walks.samples.std()) < 0.01


def test_moments_of_rows_and_of_a_block_of_some_elements():
    """A normal distribution: the mean is the mode, the covariance the inverse of the Hessian."""
    flat = lambda x: {"mu": x[0], "theta": x[1:].reshape(NUM, 2)}
    hessian = jax.hessian(lambda x: groups(flat(x), Y))(jnp.zeros(1 + 2 * NUM))
    gradient = jax.grad(lambda x: groups(flat(x), Y))(jnp.zeros(1 + 2 * NUM))
    covariance = np.linalg.inv(-hessian)
    mean = covariance @ gradient
    part = ("p['theta'][0, 0]", "p['mu']", "p['theta'][2, 1]")
    rest = tuple(
        name
        for name in samplers.gibbs(groups, START, Y, key=0, num_sweeps=1).names
        if name not in part
    )
    sizes = {len(part): 0.4, len(rest): 0.35}
    updates = {
        names: samplers.Kernel(
            lambda f, step, size=len(names): blackjax.hmc(f, step, jnp.ones(size), 5),
            sizes[len(names)], times=2,
        )
        for names in (part, rest)
    }  # fmt: skip
    for moves in (
        updates,
        {ROWS: samplers.Kernel(hmc, 0.5, times=2), "p['mu']": samplers.Walk(0.9, times=2)},
    ):
        chain = samplers.gibbs(groups, START, Y, updates=moves, key=1, num_sweeps=4000)
        error = np.sqrt(np.diag(covariance) / np.minimum(chain.ess_bulk, 4000))
        assert np.all(chain.ess_bulk > 150)
        assert np.all(np.abs(chain.mean - mean) < 5 * error)
        np.testing.assert_allclose(np.diag(chain.covariance), np.diag(covariance), rtol=0.3)


@pytest.mark.parametrize(
    ("make", "target"), [(blackjax.mala, 0.57), (blackjax.normal_random_walk, 0.3), (hmc, 0.8)],
    ids=["MALA", "random walk", "HMC"],
)  # fmt: skip
def test_the_warm_up_finds_a_step_size_for_each_row(make, target):
    """Rows whose widths differ by a hundred."""
    widths = 10.0 ** np.linspace(-1, 1, 8)
    fun = lambda p, widths: -0.5 * jnp.sum((p / widths[:, None]) ** 2)
    chain = samplers.gibbs(
        fun, np.zeros((8, 2)), widths, updates={"p[*]": samplers.Kernel(make, target=target)},
        key=1, num_sweeps=600, num_warmup=600,
    )  # fmt: skip
    assert abs(chain.acceptance["p[*]"] - target) < 0.06
    np.testing.assert_allclose(chain.samples.std(axis=0), np.repeat(widths, 2), rtol=0.5)
    moved = np.mean(np.any(np.diff(chain.tree(), axis=0) != 0, axis=2), axis=0)
    assert np.all(np.abs(moved - target) < 0.25)


def test_a_chain_of_kernels_is_taken_up_from_a_file(tmp_path):
    updates = {ROWS: samplers.Kernel(blackjax.mala), "p['mu']": samplers.Walk()}
    run = lambda num, file: samplers.gibbs(
        groups, START, Y, updates=updates, key=3, num_sweeps=num, num_warmup=10, checkpoint=file,
    )  # fmt: skip
    run(5, tmp_path / "chain.npz")
    found = run(9, tmp_path / "chain.npz")
    np.testing.assert_array_equal(found.samples, run(9, None).samples)
    other = {**updates, ROWS: samplers.Kernel(blackjax.normal_random_walk)}
    with pytest.raises(samplers.StartError):
        samplers.gibbs(
            groups, START, Y, updates=other, key=3, num_sweeps=9, num_warmup=10,
            checkpoint=tmp_path / "chain.npz",
        )  # fmt: skip


def test_kernels_are_checked():
    for kernel in (
        samplers.Kernel(blackjax.mala, -1.0),
        samplers.Kernel(blackjax.mala, [1.0, 2.0]),
    ):
        with pytest.raises(samplers.ProposalError, match="`Kernel` got"):
            samplers.gibbs(groups, START, Y, updates={"p": kernel}, key=0, num_sweeps=1)
    with pytest.raises(ValueError, match=r"`Kernel\(times=...\)` got 0"):
        samplers.Kernel(blackjax.mala, times=0)
