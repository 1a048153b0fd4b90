"""Chains on the host: moments of normal distributions, and counters of what a step evaluated."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL
from slice_cases import serve_by_rows, shapes_compared

import incrax
from incrax import samplers
from incrax.engine.inputs.row_updates import MIN_FOLLOWED
from incrax.samplers import updates

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


def by_hand(names, times):
    return samplers.Blocks(names, tuple(1.0 / n for n in times), times, is_measured=False)


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


@pytest.mark.parametrize(
    "covariance", [COVARIANCE, np.diag(COVARIANCE)], ids=["the posterior's", "its diagonal"]
)
def test_metropolis_finds_the_moments_of_a_normal(covariance):
    f = incrax.incremental(normal, tuning=MINIMAL)
    blocks = by_hand((("p['a']",), ("p['b'][0]", "p['b'][1]")), (1, 2))
    chain = samplers.metropolis(
        f, START, blocks=blocks, covariance=covariance, key=jax.random.key(1), num_sweeps=1500
    )
    check_moments(chain, 250)
    assert chain.names == ("p['a']", "p['b'][0]", "p['b'][1]")
    assert chain.num_evaluations == 1500 * 5
    assert set(chain.acceptance) == {"p['a']", "p['b'][0]"}
    assert all(0.1 < share < 0.7 for share in chain.acceptance.values())


def conditional(rng, p):
    """The last parameter given the others."""
    d = np.array([p["a"], p["b"][0]]) - MEAN[:2]
    return (
        MEAN[2] - PRECISION[2, :2] @ d / PRECISION[2, 2] + rng.normal() / np.sqrt(PRECISION[2, 2])
    )


@pytest.mark.parametrize(
    ("moves", "num_effective"),
    [
        ({"p['a']": samplers.Walk(1.5, times=3), "p['b']": samplers.Hamiltonian(0.6, 5)}, 200),
        ({"p['a']": samplers.Hamiltonian(0.6, 5), "p['b'][0]": samplers.Walk(2.0, times=3),
          "p['b'][1]": samplers.Conditional(conditional)}, 200),
        ({"p": samplers.Hamiltonian(0.4, 6, width=np.sqrt(np.diag(COVARIANCE)))}, 300),
    ],
    ids=["walk and trajectory", "trajectory, walk and draw", "all at once"],
)  # fmt: skip
def test_gibbs_finds_the_moments_of_a_normal(moves, num_effective):
    chain = samplers.gibbs(normal, START, updates=moves, key=2, num_sweeps=1000)
    check_moments(chain, num_effective)


class Draws:
    """Random numbers that are known beforehand."""

    def __init__(self, momentum, uniform):
        self.momentum, self.probability = momentum, uniform

    def normal(self, size):
        return np.full(size, self.momentum)

    def integers(self, low, high):
        assert low <= high - 1
        return high - 1

    def uniform(self):
        return self.probability


@pytest.mark.parametrize("factor", [1 - 1e-9, 1 + 1e-9])
def test_a_trajectory_is_accepted_by_what_its_energy_changed(factor):
    """Leapfrog in its other form, half a kick, a drift, half a kick, on an oscillator with spring
    4.
    """
    size, width, start, momentum, num_steps = 0.3, 0.7, 0.4, 1.5, 4
    x, p = start, momentum
    for _ in range(num_steps):
        p -= 0.5 * size * width * 4 * x
        x += size * width * p
        p -= 0.5 * size * width * 4 * x
    change = (2 * start**2 + momentum**2 / 2) - (2 * x**2 + p**2 / 2)
    assert change < 0
    gradient = lambda x: (float(-2 * x[0] ** 2), -4 * x)
    block = updates.Block(("x",), np.array([0]), lambda x: gradient(x)[0], gradient, lambda x: (x,))
    place = updates.Position(np.array([start]), -2 * start**2)
    move = samplers.Hamiltonian(size, num_steps, width).move
    found = move(place, block, Draws(momentum, np.exp(change) * factor))
    np.testing.assert_allclose(found.x, [x] if factor < 1 else [start], rtol=1e-12)
    assert (block.tried, block.accepted, block.evaluations) == (1, int(factor < 1), num_steps + 1)


def test_equal_keys_give_equal_chains():
    blocks = by_hand((("p['a']",), ("p['b']",)), (1, 1))
    run = lambda key: samplers.metropolis(
        normal, START, blocks=blocks, covariance=COVARIANCE, key=key, num_sweeps=20
    )
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
    blocks = by_hand((("p['a']",), FAST), (1, 10))
    f(TRUTH, Y)
    counted.clear()
    variances = [0.05**2, 0.02**2, 0.02**2]
    chain = samplers.metropolis(
        f, TRUTH, Y, blocks=blocks, covariance=variances, key=6, num_sweeps=40
    )
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
    blocks = by_hand((("p['a']",), ("p['scale']",), ("p['offset']",)), (1, 2, 3))
    before = f.stats.ran
    samplers.metropolis(
        f, TRUTH, Y, blocks=blocks, covariance=[1e-4, 1e-4, 1e-4], key=7, num_sweeps=10
    )
    steps = {"p['a']": 10, "p['scale']": 20, "p['offset']": 30}
    assert reached["p['a']"] > reached["p['scale']"] > reached["p['offset']"]
    wanted = sum(steps[name] * reached[name] for name in steps)
    # The chain's own copy of the data runs what it reaches, once; a version that was dropped makes
    # a step change two.
    assert wanted <= f.stats.ran - before <= wanted + 3 * reached["y"]
    assert 60 * max(reached.values()) > 1.3 * wanted


def test_a_trajectory_of_a_fast_block_never_runs_the_slow_part():
    """Which has no derivative at all."""
    counted = []
    moves = {"p['a']": samplers.Walk(0.02), FAST: samplers.Hamiltonian(0.2, 6, width=0.02)}
    chain = samplers.gibbs(slow_and_fast(counted), TRUTH, Y, updates=moves, key=8, num_sweeps=15)
    # The log-density and the gradient evaluate the theory once each for each value of its
    # parameter.
    assert len(counted) <= 2 * 16 + 2
    assert chain.acceptance["p['offset']"] > 0.5


# --- blocks ---------------------------------------------------------------------------------------

X = np.linspace(0.1, 2.0, 20_000)


def layered(p, x):
    """Two slow parameters, two that come after them, one prior."""
    slow = jnp.sum(jnp.exp(-jnp.sin(p["slow"][0] + p["slow"][1] * x)) * x)
    return -(p["gain"] ** 2) * slow + p["shift"] * p["gain"] - p["shift"] ** 2 - p["slow"][0] ** 2


POINT = {"slow": np.array([1.0, 2.0]), "gain": 0.5, "shift": 0.1}


def test_blocks_share_their_work_and_the_slow_ones_come_first():
    found = samplers.blocks(layered, POINT, X, measure=False)
    assert set(found.blocks[0]) == {"p['slow'][0]", "p['slow'][1]"}
    assert {name for block in found.blocks[1:] for name in block} == {"p['gain']", "p['shift']"}
    assert list(found.costs_s) == sorted(found.costs_s, reverse=True)
    assert found.oversample[0] == 1
    assert found.oversample[-1] > 1
    np.testing.assert_allclose(found.speeds, 1 / np.array(found.costs_s))
    assert samplers.blocks(layered, POINT, X, measure=False, oversample=0).oversample == (1,) * len(
        found.blocks
    )
    full = samplers.blocks(layered, POINT, X, measure=False, oversample=1)
    for cost, times in zip(full.costs_s, full.oversample, strict=True):
        assert times == int(full.costs_s[0] / cost)


def test_parts_of_the_data_that_have_parameters_of_their_own_are_blocks():
    def of_sets(p, x):
        own = [jnp.sum(jnp.exp(-p["rates"][k] * x[k])) for k in range(3)]
        return sum(own) * p["scale"]

    found = samplers.blocks(
        of_sets, {"rates": np.ones(3), "scale": 1.0}, X[:6000].reshape(3, -1), measure=False
    )
    assert sorted(found.blocks[:3]) == [(f"p['rates'][{k}]",) for k in range(3)]
    assert found.blocks[3] == ("p['scale']",)


def test_measured_costs_decide_the_order(monkeypatch):
    """The clock is replaced: seconds by which parameters moved."""
    module = sys.modules["incrax.samplers.blocking"]

    def seconds(function, density, x):
        function(*density.flat.arguments(x))
        moved = [
            name
            for name, new, old in zip(density.names, x, density.flat.x0, strict=True)
            if new != old
        ]
        return 2.0 if "p['scale']" in moved else 0.5

    counted = []
    f = incrax.incremental(slow_and_fast(counted), tuning=MINIMAL)
    f(TRUTH, Y)
    before = f.stats.as_dict()
    monkeypatch.setattr(module, "_timed", seconds)
    found = samplers.blocks(f, TRUTH, Y, oversample=0)
    assert found.is_measured
    assert "p['scale']" in found.blocks[0]
    assert found.blocks[-1] == ("p['a']",)
    assert found.costs_s[-1] == 0.5
    assert f.stats.as_dict() == before


def test_a_cheaper_block_of_few_parameters_may_come_first():
    """Ten parameters at 1 s and one at 0.9 s that share nothing: 10 * 1.9 + 0.9 against 1.9 + 10 *
    1.
    """
    module = sys.modules["incrax.samplers.blocking"]
    alone = [1.0, 0.9]
    order, costs, times = module._ordered(
        [10, 1], alone, lambda tail: sum(alone[k] for k in tail), 0.0
    )
    assert (order, times) == ([1, 0], [1, 1])
    np.testing.assert_allclose(costs, [1.9, 1.0])


def test_parameters_that_nothing_depends_on_are_a_block_of_their_own():
    """Joining what costs nothing with what costs something is infinite waste, joining two such is
    none.
    """
    f = lambda p, x: jnp.sum(jnp.exp(-p["rate"] * x))
    found = samplers.blocks(f, {"rate": 1.0, "idle": 1.0, "rest": 2.0}, X, measure=False)
    assert found.blocks == (("p['rate']",), ("p['idle']", "p['rest']"))


def test_blocks_that_cost_nothing_are_joined():
    """Two groups that reach other equations, none of which takes time, and one that does."""

    class Reach:
        rows = ()
        reach = staticmethod(frozenset)
        seconds = staticmethod(lambda keys: 1.0 * ("slow" in keys))

    module = sys.modules["incrax.samplers.blocking"]
    units = [((name,), (name,)) for name in ("slow", "free", "idle")]
    assert module._grouped(units, Reach) == [units[0], (("free", "idle"), ("free", "idle"))]


def test_a_step_takes_the_blocks_after_it_along():
    """A slow step moves what is correlated with it by as much; a fast step leaves the slow block
    alone.
    """
    points = []

    def record(x):
        points.append(np.asarray(x))
        return np.zeros(())

    def flat(p):
        return jax.pure_callback(
            record, jax.ShapeDtypeStruct((), np.float64), jnp.stack([p["a"], p["b"]])
        )

    blocks = by_hand((("p['a']",), ("p['b']",)), (1, 1))
    start = {"a": np.array(0.0), "b": np.array(0.0)}
    covariance = [[1.0, 0.5], [0.5, 1.0]]
    samplers.metropolis(flat, start, blocks=blocks, covariance=covariance, key=1, num_sweeps=3)
    steps = np.diff(points, axis=0)  # every step is accepted
    np.testing.assert_allclose(steps[0::2, 1], 0.5 * steps[0::2, 0])
    assert np.all(steps[1::2, 0] == 0)
    assert np.all(steps[:, 1] != 0)


def test_a_table_of_blocks():
    found = by_hand((("p['a']",), FAST), (1, 4))
    text = str(found)
    assert "2 blocks, slow first; a sweep takes 3 s (estimated)" in text
    assert "p['offset'], p['scale']" in text
    assert found.sweep_s == pytest.approx(1 + 2 * 4 * 0.25)


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
    walks = {"p['a']": samplers.Walk(1.0), "p['b']": samplers.Hamiltonian(0.1, num_steps=4)}
    samplers.gibbs(f, START, updates=walks, key=3, num_sweeps=20)
    of_values = [calls for each, calls in told if each is f]
    assert of_values == [19, 18, 16, 12, 4]  # one a sweep
    gradients = [calls for each, calls in told if each is not f and calls]
    assert len(gradients) == 5
    assert gradients[0] > gradients[-1]


def test_steps_on_the_host_say_which_rows_of_a_large_array_they_change(monkeypatch):
    """Nothing of its size is compared, whether steps are accepted or not, and its row alone runs."""
    serve_by_rows(monkeypatch)
    num = MIN_FOLLOWED
    y = jnp.asarray(np.random.default_rng(0).normal(size=(num, 40)))
    log_density = lambda p, y: -0.5 * jnp.sum((y - p["theta"][:, None]) ** 2) - p["mu"] ** 2
    function = incrax.incremental(log_density, tuning=EAGER)
    rows = [f"p['theta'][{k}]" for k in range(num)]
    moves = {each: samplers.Walk(0.4) for each in rows}
    moves["p['mu']"] = samplers.Conditional(lambda rng, p, y: [rng.normal(0.0, 0.7)])
    start = {"mu": 0.1, "theta": np.zeros(num)}
    run = lambda key: samplers.gibbs(
        function, start, y, updates=moves, key=key, num_sweeps=1, num_warmup=0
    )
    run(1)
    compared = shapes_compared(monkeypatch)
    found = run(2)
    assert found.why_on_host
    assert 0.05 < np.mean([found.acceptance[each] for each in rows]) < 0.95
    assert compared.count((num,)) <= 4  # of the start
    calls = list(function._traces.latest.engine.history.calls())
    assert sum(call.record.candidate == "slices" for call in calls) > 0.9 * len(calls)
    mu, *theta = found.samples[-1]
    value = log_density({"mu": mu, "theta": jnp.asarray(theta)}, y)
    np.testing.assert_allclose(found.log_densities[-1], value, rtol=1e-12)
