"""Results of fits: tables, plots."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from scipy.optimize import least_squares

import incrax
from incrax import fit
from incrax.fit import result as result_module
from incrax.fit.result import error_sides

mpl.use("Agg")
START = {"a": np.array([0.5, 0.1]), "b": 2.0}


def loss(p, scale):
    return scale * (jnp.sum((p["a"] - 1.0) ** 2) + (p["b"] - p["a"][0]) ** 2)


@pytest.fixture(scope="module")
def found():
    result = fit.minimize(loss, START, 3.0, bounds={"p['b']": (1.5, None)})
    result.minos("p['a'][1]")
    return result


def test_a_result_prints_its_method_counters_and_table(found):
    text = str(found)
    assert text.startswith(f"migrad: converged, value {found.value:.8g}, edm")
    assert f" {found.counts.gradients} gradients" in text
    for cell in (
        "p['a'][0]",
        "p['a'][1]",
        "p['b']",
        "value",
        "error",
        "MINOS",
        "nan",
        "at a bound",
        f"{found.errors[0]:.3g}",
    ):
        assert cell in text
    assert "p['a'][0]" in found._repr_html_().replace("&#x27;", "'")
    assert len(found.tables()[0].rows) == 3


def test_a_row_says_why_an_error_is_none():
    lines = lambda result: {str(row[0]): row[3] for row in result.tables()[0].rows}
    slopes = np.array([1.0, 1.0, 0.0])
    exact = fit.levenberg_marquardt(lambda x: x - 1.0, np.zeros(2))
    assert lines(exact) == dict.fromkeys(("x[0]", "x[1]"), "no degrees of freedom")
    loose = fit.levenberg_marquardt(lambda x: jnp.tile(slopes * x - 1.0, 2), np.zeros(3))
    assert lines(loose) == {"x[0]": "", "x[1]": "", "x[2]": "not determined"}
    saddle = fit.minimize(lambda x: x[0] ** 2 - x[1] ** 2, np.zeros(2), method="BFGS")
    assert lines(saddle)["x[1]"] == "Hessian not positive"
    assert saddle.is_saddle
    assert "at a saddle by second derivatives: minimise again from here with strat" in repr(saddle)
    assert not exact.is_saddle


def test_a_result_says_what_second_derivatives_leave_to_gain():
    at_minimum = fit.minimize(lambda x: (x - 1.0) ** 2, 0.5)
    early = dataclasses.replace(at_minimum, values=np.array([0.5]), _edm=1e-6)
    assert "edm 1e-06;" in early.summary()
    assert ", edm 0.25 by second derivatives: minimise again from here;" in str(early)
    assert "by second derivatives" not in str(at_minimum)


@pytest.mark.parametrize("name", result_module.ELSEWHERE)
def test_names_of_scipy_and_iminuit_say_what_has_their_place(found, name):
    text = f"has no attribute '{name}'; write {result_module.ELSEWHERE[name]}"
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(found, name)
    for ours in re.findall(r"result\.(\w+)", text):
        assert hasattr(found, ours)
    with pytest.raises(AttributeError, match="no attribute 'chi2'$"):
        found.chi2  # noqa: B018


def test_values_are_read_by_name(found):
    np.testing.assert_array_equal(found["p['a']"], found.values[:2])
    np.testing.assert_array_equal(found["a"], found.values[:2])
    np.testing.assert_array_equal(found["p"], found.values)
    assert found["a[1]"] == found.values[1]
    assert found["b"] == found.values[2]
    assert found.error("a[1]") == found.errors[1]
    np.testing.assert_array_equal(found.error("a"), found.errors[:2])
    with pytest.raises(fit.MinimumError, match="'c' names no free element"):
        found.error("c")
    with pytest.raises(fit.MinimumError):
        found["c"]


def test_least_squares_share_tables_and_plots():
    x = np.arange(5.0)
    found = fit.levenberg_marquardt(
        lambda p, x: p["a"] * x + p["b"] - x**2, {"a": 0.0, "b": 0.0}, x
    )
    assert len(found.plot().axes) == 3  # the third is the scale of the colours
    assert "p['a']" in found._repr_html_().replace("&#x27;", "'")


@pytest.mark.parametrize("is_absolute", [False, True])
def test_intervals_of_least_squares_end_where_refits_by_scipy_have_risen_by_the_variance(
    is_absolute,
):
    x = np.linspace(0.0, 10.0, 60)
    y = 2.0 * np.exp(-0.7 * x) + 0.5 + np.random.default_rng(0).normal(0.0, 0.05, x.size)
    weights = np.linspace(300.0, 500.0, x.size)
    decay = lambda p, x, y: np.sqrt(weights) * (p["a"] * jnp.exp(-p["k"] * x) + p["c"] - y)
    start = {"a": 1.0, "k": 0.3, "c": 0.0}
    found = fit.levenberg_marquardt(decay, start, x, y, is_absolute=is_absolute)
    variance = 1.0 if is_absolute else 2 * found.cost / (x.size - 3)

    def refitted(k):
        residuals = lambda v: np.sqrt(weights) * (v[0] * np.exp(-k * x) + v[1] - y)
        return least_squares(residuals, [2.0, 0.5], xtol=1e-15, ftol=1e-15).cost

    for end, interval in [
        ("lower", found.minos("k")["k"].lower),
        ("upper", found.minos("k")["k"].upper),
    ]:
        risen = refitted(found["k"] + interval) - found.cost
        np.testing.assert_allclose(risen, variance / 2, rtol=5e-3, err_msg=end)
    line = fit.profile(found, "k", num_points=4)
    expected = [refitted(k) - found.cost for k in line.grid]
    np.testing.assert_allclose(line.rise, expected, rtol=1e-4, atol=1e-4 * variance)


def test_scans_of_a_robust_fit_are_of_the_robust_cost():
    y = np.array([0.1, -0.2, 0.3, 5.0])
    found = fit.levenberg_marquardt(lambda p, y: y - p, 0.0, y, loss="huber", is_absolute=True)
    line = fit.profile(found, "p", num_points=3)
    r = np.abs(y - line.grid[:, None])
    costs = 0.5 * np.sum(np.where(r <= 1, r**2, 2 * r - 1), axis=1)
    np.testing.assert_allclose(line.rise, costs - found.cost, rtol=1e-6, atol=1e-9)


def test_least_squares_of_a_bound_model_have_the_profiles_and_intervals_of_its_function():
    x = np.linspace(0.0, 4.0, 30)
    y = 2.0 * np.exp(-0.7 * x) + np.random.default_rng(0).normal(0.0, 0.05, x.size)
    decay = lambda a, k, c, x, y: a * jnp.exp(-k * x) + c - y
    start = {"a": 1.0, "k": 0.3, "c": 0.0}
    model = incrax.bind(decay, **start, x=x, y=y, roles={"x": "data", "y": "data"})
    fit.levenberg_marquardt(model)
    model.fix("c")  # a mask in front of derivatives by all three
    model.set(start)
    found = fit.levenberg_marquardt(model)
    model.set(k=5.0)  # what was found stays
    expected = fit.levenberg_marquardt(decay, 1.0, 0.3, 0.0, x, y, wrt=("a", "k"))
    np.testing.assert_allclose(found.gradient, 0, atol=1e-7)
    np.testing.assert_allclose(found.hessian, expected.hessian, rtol=1e-6)
    line = fit.profile(found, "k", grid=[0.6, 0.7, 0.8])
    again = fit.profile(expected, "k", grid=[0.6, 0.7, 0.8])
    np.testing.assert_allclose(line.values, again.values, rtol=1e-9)
    np.testing.assert_allclose(found.minos("k")["k"][:2], expected.minos("k")["k"][:2], rtol=1e-3)


def test_plots_show_every_element(found):
    left, right, _ = found.plot().axes  # the third is the scale of the colours
    assert [label.get_text() for label in left.get_yticklabels()] == [
        f"{name} = {value:.5g}" for name, value in zip(found.names, found.values, strict=True)
    ]
    assert right.images[0].get_array().shape == (3, 3)
    line = fit.profile(found, "p['a'][0]", num_points=4)
    drawn = line.plot().axes[0].lines[0]
    np.testing.assert_allclose(drawn.get_ydata(), line.rise)
    mpl.pyplot.close("all")


def test_errors_are_those_of_minos_where_these_are_of_one_sigma():
    result = fit.minimize(lambda x: jnp.cosh(x[0]) - jnp.exp(0.1 * x[0]) + x[1] ** 2, jnp.ones(2))
    wider = result.minos("x[0]", cl=0.95)["x[0]"]
    assert error_sides(result, 0) == (result.errors[0], result.errors[0])
    assert error_sides(result, 0)[1] < wider.upper
    one = result.minos("x[0]")["x[0]"]
    assert error_sides(result, 0) == (-one.lower, one.upper)
    drawn = result.plot().axes[0].collections[0].get_segments()[0]
    scale = abs(result.values[0]) / 100
    np.testing.assert_allclose(drawn[:, 0], [one.lower / scale, one.upper / scale])
    mpl.pyplot.close("all")


def test_an_end_that_minos_did_not_find_is_no_error():
    """Minuit gives the standard error in its place."""
    walled = lambda p: jnp.where(p[0] > 0.3, jnp.nan, 0.5 * p[0] ** 2) + 0.5 * p[1] ** 2
    result = fit.minimize(walled, np.array([0.1, 1.0]))
    found = result.minos()["p[0]"]
    assert not found.is_valid
    assert found.lower == pytest.approx(-1.0, rel=1e-3)
    assert np.isnan(found.upper)
    assert "-1 not found" in str(result)


@pytest.mark.parametrize("method", ["migrad", "Nelder-Mead"])
def test_where_the_value_is_not_finite_there_are_no_errors(method):
    """Also where derivatives are: log(-1) is NaN, and its derivatives are numbers."""
    fun = lambda p: jnp.log(p[0]) + p[1] ** 2
    result = fit.minimize(fun, np.array([-1.0, 2.0]), method=method)
    text = str(result)
    assert "not finite" in text
    assert "saddle" not in text
    assert np.isnan(result.errors).all()
    assert not result.is_minimum
    assert not result.is_saddle


def test_a_start_without_a_value_is_told_by_one_evaluation():
    result = fit.minimize(lambda p, x: jnp.sum((p - x) ** 2), 1.0, np.array([1.0, np.nan]))
    assert result.counts == fit.Counts(gradients=1)
    assert result.message.startswith("not finite at the start")
    assert result.status is fit.Status.NOT_FINITE


def test_a_start_within_bounds_is_evaluated_once():
    """Minuit asks for it in other last bits, after its way to inner coordinates and back."""
    bounds = {"a": (-3.1, 7.3), "b": (-0.1, 5.7)}
    fun = lambda p: (p["a"] - 1.0) ** 2 + jnp.cosh(p["b"] - 2.0)
    task = fit.make_task(fun, ({"a": 0.333, "b": 1.777},), bounds=bounds)
    seen = []

    def value_and_gradient(x):
        seen.append(x)
        return task.flat.value_and_gradient(x)

    fit.minimize(task._replace(flat=SimpleNamespace(value_and_gradient=value_and_gradient)))
    assert np.abs(seen[1] - seen[0]).max() > 1e-6


def test_a_scan_is_no_method_of_a_result(found):
    with pytest.raises(AttributeError, match=re.escape("write `fit.profile(result, name)`")):
        found.profile("b")
