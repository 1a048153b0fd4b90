"""Chains of few blocks: moments of normal distributions, and counters of what a step on the host
evaluated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL
from slice_cases import serve_by_rows, shapes_compared

import incrax
from incrax import samplers
from incrax.engine.inputs.row_updates import MIN_FOLLOWED

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 2.0, -0.3], [0.1, -0.3, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)
START = {"a": 1.0, "b": np.array([-2.0, 0.5])}


def normal(p):
    """Three parameters in two leaves."""
    d = jnp.concatenate([jnp.reshape(p["a"], 1), p["b"]]) - MEAN
    return -0.5 * d @ PRECISION @ d


def check_moments(chain, num_effective):
    """Means and covariances within five standard errors of so many independent samples."""
    width = np.sqrt(np.diag(COVARIANCE))
    assert np.all(np.abs(chain.mean - MEAN) < 5 * width / np.sqrt(num_effective))
    scale = np.sqrt(np.outer(width**2, width**2) + COVARIANCE**2)
    assert np.all(np.abs(chain.covariance - COVARIANCE) < 5 * scale / np.sqrt(num_effective))


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        (("a", "b"), ("p['a']", "p['b']")),
        (("a", "b[*]"), ("p['a']", "p['b'][*]")),
        ((("b[0]", "a"), "b[1]"), (("p['b'][0]", "p['a']"), "p['b'][1]")),
    ],
)
def test_blocks_have_short_names_where_these_are_unique(short, whole):
    made = [
        samplers.gibbs(
            normal, START, updates=dict.fromkeys(names, samplers.Walk(0.5)), key=0, num_sweeps=4
        )
        for names in (short, whole)
    ]
    np.testing.assert_array_equal(made[0].samples, made[1].samples)
    assert made[0].acceptance == made[1].acceptance


@pytest.mark.parametrize("chains", [None, 2])
def test_samples_of_a_parameter_by_its_name(chains):
    start = {"mu": 0.0, "theta": np.zeros((2, 2))}
    f = lambda p: -0.5 * (p["mu"] ** 2 + jnp.sum(p["theta"] ** 2))
    moves = {("mu", "theta"): samplers.Walk(0.5)}
    chain = samplers.gibbs(f, start, updates=moves, key=1, num_sweeps=5, chains=chains)
    tree = chain.tree()
    np.testing.assert_array_equal(chain["mu"], tree["mu"])
    np.testing.assert_array_equal(chain["p['theta']"], tree["theta"].reshape(*tree["mu"].shape, 4))
    np.testing.assert_array_equal(chain["theta[1,0]"], tree["theta"][..., 1, 0])


def test_a_short_name_of_labels():
    updates = {"k": samplers.Categorical(2), "x": samplers.Walk(1.0)}
    f = lambda p: -(p["x"] ** 2) - jnp.sum(p["k"])
    start = {"k": np.zeros(2, int), "x": 0.0}
    chain = samplers.gibbs(f, start, updates=updates, key=0, num_sweeps=4)
    assert set(chain.acceptance) == {"p['k']", "p['x']"}


def test_a_short_name_of_two_is_refused():
    both = lambda p, q: -(p["a"] ** 2) - q["a"] ** 2
    with pytest.raises(
        incrax.errors.AmbiguousInputError, match=r"`a` may be `p\['a'\]`, `q\['a'\]`"
    ):
        samplers.gibbs(
            both,
            {"a": 0.0},
            {"a": 0.0},
            wrt=(0, 1),
            updates={"a": samplers.Walk(1.0)},
            key=0,
            num_sweeps=4,
        )


# --- moments --------------------------------------------------------------------------------------


def test_walks_on_the_host_find_the_moments_of_a_normal():
    f = incrax.incremental(normal, tuning=MINIMAL)
    moves = {"p['a']": samplers.Walk(1.6), "p['b']": samplers.Walk([2.0, 1.0], times=4)}
    chain = samplers.gibbs(f, START, updates=moves, key=jax.random.key(1), num_sweeps=1500)
    check_moments(chain, 250)
    assert chain.names == ("p['a']", "p['b'][0]", "p['b'][1]")
    assert chain.num_evaluations == 1500 * 5
    assert set(chain.acceptance) == {"p['a']", "p['b'][0]"}
    assert all(0.1 < share < 0.7 for share in chain.acceptance.values())
    assert chain.why_on_host


@pytest.mark.parametrize(
    ("moves", "num_effective"),
    [
        ({"p['a']": samplers.Walk(1.5, times=3), "p['b']": samplers.Hamiltonian(0.6, 5)}, 200),
        ({"p['a']": samplers.Hamiltonian(0.6, 5), "p['b'][0]": samplers.Walk(2.0, times=3),
          "p['b'][1]": samplers.Walk(1.0, times=3)}, 200),
        ({"p": samplers.Hamiltonian(0.4, 6, width=np.sqrt(np.diag(COVARIANCE)))}, 300),
    ],
    ids=["walk and trajectory", "trajectory and walks", "all at once"],
)  # fmt: skip
def test_gibbs_finds_the_moments_of_a_normal(moves, num_effective):
    chain = samplers.gibbs(normal, START, updates=moves, key=2, num_sweeps=1000)
    check_moments(chain, num_effective)
    assert chain.why_on_host is None


def test_equal_keys_give_equal_chains():
    walks = {"p['a']": samplers.Walk(1.6), "p['b']": samplers.Walk(1.0)}
    run = lambda key: samplers.gibbs(normal, START, updates=walks, key=key, num_sweeps=20)
    first = run(jax.random.key(4))
    np.testing.assert_array_equal(first.samples, run(jax.random.key(4)).samples)
    np.testing.assert_array_equal(first.samples, run(jax.random.PRNGKey(4)).samples)
    assert not np.array_equal(first.samples, run(jax.random.key(5)).samples)
    plain = [float(normal(jax.tree.map(lambda x, k=k: x[k], first.tree()))) for k in range(20)]
    np.testing.assert_allclose(first.log_densities, plain, rtol=1e-12)
    assert repr(first).startswith("<Chain: chain of 20 samples of 3 parameters; accepted: p['a'] ")


def test_what_is_not_selected_stays():
    f = lambda p, y: -0.5 * (p["a"] - y) ** 2 - 0.5 * (p["b"] - p["a"]) ** 2
    moves = {"p['b']": samplers.Walk(1.0)}
    chain = samplers.gibbs(
        f, {"a": 1.0, "b": 0.0}, 3.0, updates=moves, key=1, num_sweeps=5, wrt="p['b']"
    )
    assert chain.names == ("p['b']",)
    assert chain.tree().shape == (5,)


# --- counters -------------------------------------------------------------------------------------


def slow_and_fast(counted):
    """A theory on the host, and parameters of the measurement."""

    def theory(a):
        counted.append(float(a))
        return np.exp(-np.asarray(a) * np.linspace(0, 1, 50))

    def log_density(p, y):
        shape = jax.pure_callback(theory, jax.ShapeDtypeStruct((50,), np.float64), p["a"])
        model = p["scale"] * shape + p["offset"]
        return -0.5 * jnp.sum((y - model) ** 2) / 0.05**2 - 0.5 * p["a"] ** 2

    return log_density


FAST = ("p['offset']", "p['scale']")
TRUTH = {"a": np.array(1.5), "offset": np.array(0.3), "scale": np.array(2.0)}
Y = 2.0 * np.exp(-1.5 * np.linspace(0, 1, 50)) + 0.3


def test_fast_steps_never_run_the_slow_part():
    counted = []
    f = incrax.incremental(slow_and_fast(counted), tuning=MINIMAL)
    moves = {"p['a']": samplers.Walk(0.05), FAST: samplers.Walk(0.02, times=20)}
    f(TRUTH, Y)
    counted.clear()
    chain = samplers.gibbs(f, TRUTH, Y, updates=moves, key=6, num_sweeps=40)
    assert chain.num_evaluations == 40 * (1 + 2 * 10)
    assert len(counted) == len(set(counted)) == 40
    assert (
        0 < chain.acceptance["p['a']"] < 1
    )  # some slow steps were rejected, and the fast ones went on


def test_a_step_runs_the_equations_that_its_block_reaches():
    counted = []
    f = incrax.incremental(slow_and_fast(counted), tuning=MINIMAL)
    f(TRUTH, Y)
    reached = {row.path: row.equations for row in f.deps().rows}
    times = {"p['a']": 1, "p['scale']": 2, "p['offset']": 3}
    moves = {name: samplers.Walk(0.01, times=num) for name, num in times.items()}
    before = f.stats.ran
    samplers.gibbs(f, TRUTH, Y, updates=moves, key=7, num_sweeps=10)
    steps = {"p['a']": 10, "p['scale']": 20, "p['offset']": 30}
    assert reached["p['a']"] > reached["p['scale']"] > reached["p['offset']"]
    wanted = sum(steps[name] * reached[name] for name in steps)
    # The chain's own copy of the data runs what it reaches, once; a version that was dropped makes
    # a step change two.
    assert wanted <= f.stats.ran - before <= wanted + 3 * reached["y"]
    assert 60 * max(reached.values()) > 1.3 * wanted


# --- what blocks cost -----------------------------------------------------------------------------

X = np.linspace(0.1, 2.0, 20_000)


def layered(p, x):
    """Two slow parameters, two that come after them, one prior."""
    slow = jnp.sum(jnp.exp(-jnp.sin(p["slow"][0] + p["slow"][1] * x)) * x)
    return -(p["gain"] ** 2) * slow + p["shift"] * p["gain"] - p["shift"] ** 2 - p["slow"][0] ** 2


POINT = {"slow": np.array([1.0, 2.0]), "gain": 0.5, "shift": 0.1}


def test_seconds_of_inputs_that_change_together():
    f = incrax.incremental(layered, tuning=MINIMAL)
    table = f.deps(POINT, X)
    alone = {row.path: row.seconds for row in table.rows}
    for path, seconds in alone.items():
        assert table.seconds([path]) == pytest.approx(seconds)
    both = table.seconds(["p['gain']", "p['shift']"])
    assert (
        max(alone["p['gain']"], alone["p['shift']"])
        <= both
        <= alone["p['gain']"] + alone["p['shift']"]
    )
    assert table.seconds(["p['slow'][0]"]) <= alone["p['slow']"]
    with pytest.raises(incrax.errors.UnknownInputError):
        table.seconds(["nothing"])


def expected(monkeypatch):
    """What functions are told, from now on."""
    told = []
    monkeypatch.setattr(
        incrax.Incremental, "expect", lambda self, calls: told.append((self, calls))
    )
    return told


def test_a_chain_says_how_many_calls_are_still_to_come(monkeypatch):
    told = expected(monkeypatch)
    f = incrax.incremental(normal)
    walks = {"p['a']": samplers.Walk(1.0), "p['b']": samplers.Walk(0.1)}
    samplers.gibbs(f, START, updates=walks, key=3, num_sweeps=20)
    # Two a sweep.
    assert [calls for each, calls in told if each is f] == [38, 36, 32, 24, 8]


def test_steps_on_the_host_say_which_rows_of_a_large_array_they_change(monkeypatch):
    """Nothing of its size is compared, whether steps are accepted or not, and its row alone runs."""
    serve_by_rows(monkeypatch)
    num = MIN_FOLLOWED
    y = jnp.asarray(np.random.default_rng(0).normal(size=(num, 40)))
    log_density = lambda p, y: -0.5 * jnp.sum((y - p["theta"][:, None]) ** 2) - p["mu"] ** 2
    function = incrax.incremental(log_density, tuning=EAGER)
    rows = [f"p['theta'][{k}]" for k in range(num)]
    moves = {each: samplers.Walk(0.4) for each in rows}
    moves["p['mu']"] = samplers.Walk(0.7)
    start = {"mu": 0.1, "theta": np.zeros(num)}
    moves = dict(reversed(moves.items()))  # in another order than the rows', they are not compiled
    run = lambda key: samplers.gibbs(
        function, start, y, updates=moves, key=key, num_sweeps=1, num_warmup=0
    )
    run(1)
    compared = shapes_compared(monkeypatch)
    uses = lambda: sum(
        entry.uses for entry in function._traces.latest.engine.slices.entries.values()
    )
    num_before = function.stats.calls
    by_rows = uses()
    found = run(2)
    assert found.why_on_host
    assert 0.05 < np.mean([found.acceptance[each] for each in rows]) < 0.95
    assert compared.count((num,)) <= 4  # of the start
    assert uses() - by_rows > 0.9 * (function.stats.calls - num_before)
    mu, *theta = found.samples[-1]
    value = log_density({"mu": mu, "theta": jnp.asarray(theta)}, y)
    np.testing.assert_allclose(found.log_densities[-1], value, rtol=1e-12)
