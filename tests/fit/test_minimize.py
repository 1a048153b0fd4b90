"""Minimisers: every method, pytrees, what is fixed, bounds, ends, counters; the oracles are iminuit
and SciPy.
"""

from __future__ import annotations

from types import SimpleNamespace

import iminuit
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from helpers import MINIMAL

import incrax
from incrax import fit
from incrax.fit.methods import METHODS

X = np.linspace(0, 3, 40)
Y = 2 * np.exp(-1.3 * X) + 0.5 + 0.02 * np.random.default_rng(0).normal(size=40)
START = {"a": 1.5, "k": np.float64(1.0), "c": np.array([0.3])}
NAMES = ("p['a']", "p['c'][0]", "p['k']")
FLAT_START = np.array([1.5, 0.3, 1.0])


def loss(p, x, y):
    return 0.5 * jnp.sum(((p["a"] * jnp.exp(-p["k"] * x) + p["c"][0] - y) / 0.02) ** 2)


def of_vector(v):
    return float(0.5 * np.sum(((v[0] * np.exp(-v[2] * X) + v[1] - Y) / 0.02) ** 2))


TASK = fit.make_task(loss, (START, X, Y))
"""Compiled once for the tests that share it."""


def solve(**options):
    return fit.minimize(TASK, progress=False, **options)


def oracle(**options):
    return scipy.optimize.minimize(
        of_vector, FLAT_START, method="trust-constr", tol=1e-12, **options
    )


BOUNDED = fit.make_task(loss, (START, X, Y), bounds={"p['k']": (0.5, 1.1), "p['c']": (0, None)})


def by_iminuit():
    minuit = iminuit.Minuit(of_vector, FLAT_START, name=NAMES)
    minuit.errordef, minuit.strategy, minuit.tol = 0.5, 2, 1e-3
    return minuit.migrad()


BEST = by_iminuit()
OBJECTS = {
    "optax.lbfgs": lambda: optax.lbfgs(),
}
PRECISE = {
    "Nelder-Mead": 1e-10,
    "Powell": 1e-12,
    "COBYLA": 1e-8,
    "COBYQA": 1e-8,
    "TNC": 1e-14,
    "SLSQP": 1e-12,
}


def made(name):
    return OBJECTS[name]() if name in OBJECTS else name


@pytest.mark.parametrize("method", ["migrad", *METHODS, *OBJECTS])
def test_every_method_finds_the_minimum_that_iminuit_finds(method):
    near = {"a": 1.99, "k": np.float64(1.29), "c": np.array([0.501])}
    options = {"maxiter": 20_000} if method == "COBYLA" else {}
    options |= {"method": made(method), "tolerance": PRECISE.get(method)}
    found = (
        fit.minimize(loss, near, X, Y, **options)
        if method == "dogleg"
        else solve(max_calls=20_000, **options)
    )
    assert found.is_converged, found.message
    assert found.names == NAMES
    errors = np.array(BEST.errors)
    np.testing.assert_allclose(found.values / errors, np.array(BEST.values) / errors, atol=0.02)
    assert found.value == pytest.approx(BEST.fval, abs=1e-3)
    np.testing.assert_allclose(found.errors, errors, rtol=2e-3)


def test_errors_and_correlation_are_those_of_iminuit():
    found = solve()
    BEST.hesse()
    np.testing.assert_allclose(found.covariance, np.array(BEST.covariance), rtol=1e-3)
    np.testing.assert_allclose(
        found.correlation, np.array(BEST.covariance.correlation()), rtol=1e-3
    )
    assert found.edm < 1e-4


def test_params_come_back_in_their_structure():
    found = solve(method="BFGS")
    assert jax.tree.structure(found.params) == jax.tree.structure(START)
    assert found.params["c"].shape == (1,)
    assert float(found.params["k"]) == found.values[2]
    part = fit.minimize(loss, START, X, Y, method="BFGS", wrt=("p['a']", "p['c']"))
    assert part.names == NAMES[:2]
    assert part.params["k"] == 1.0
    assert float(part.free[0]) == part.values[0]
    design = np.stack([np.exp(-X), np.ones(40)], axis=1)
    np.testing.assert_allclose(part.values, np.linalg.lstsq(design, Y)[0], rtol=1e-6)


def test_errordef_scales_errors_alone():
    likelihood, squares = solve(method="BFGS"), solve(method="BFGS", errordef=1.0)
    np.testing.assert_array_equal(likelihood.values, squares.values)
    np.testing.assert_allclose(squares.covariance, 2 * likelihood.covariance)


@pytest.mark.parametrize(
    "method", ["migrad", *[name for name, takes in METHODS.items() if takes.bounds], "optax.adam"]
)
def test_bounds_hold_and_what_they_hold_has_no_error(method):
    seen = []
    options: dict = {"method": method}
    if method == "optax.adam":
        options = {"method": optax.adam(optax.exponential_decay(0.02, 100, 0.8)), "max_steps": 1500}
    options |= {"maxiter": 20_000} if method == "COBYLA" else {}
    watch = lambda p, value: seen.append(float(p["k"]))
    found = fit.minimize(BOUNDED, callback=watch, tolerance=PRECISE.get(method), **options)
    expected = oracle(bounds=scipy.optimize.Bounds([-np.inf, 0, 0.5], [np.inf, np.inf, 1.1]))
    assert found.value == pytest.approx(expected.fun, rel=2e-3)
    np.testing.assert_allclose(found.values, expected.x, atol=2e-3)
    assert max(seen) <= 1.1 or method == "COBYLA"
    assert found.bounds[1].tolist() == [np.inf, np.inf, 1.1]
    if method != "trust-constr":  # stays inside
        assert np.isnan(found.errors).tolist() == [False, False, True]


# --- functions ------------------------------------------------------------------------------------


def test_an_incremental_function_keeps_its_options():
    made = incrax.incremental(loss, tuning=MINIMAL, versions=3)
    found = fit.minimize(made, START, X, Y, method="BFGS")
    assert found.is_converged
    method = found.task.prepared.methods["value_and_gradient"]
    assert method._traces.options.tuning is MINIMAL
    assert method._traces.options.versions == 3


def with_fixed_input(p, q, x, y):
    return loss({**p, "c": p["c"] + jnp.sum(jnp.sinh(q * x)) * 1e-9}, x, y)


def test_work_counts_what_was_computed_to_be_saved():
    fun = incrax.incremental(with_fixed_input, policy="exact")
    many = np.linspace(0.0, 1.0, 20_000)
    found = fit.minimize(fun, START, 0.5, many, 2.0 * many, method="BFGS", max_calls=3)
    stats = found.task.prepared.methods["value_and_gradient"].stats
    assert stats.filled > 0
    assert found.work.ran == stats.ran + stats.filled


def test_what_is_fixed_is_evaluated_once():
    fun = incrax.incremental(with_fixed_input, tuning=MINIMAL)
    found = fit.minimize(fun, START, 0.5, X, Y, method="BFGS")
    assert 0 < found.work.ran < found.work.whole
    method = found.task.prepared.methods["value_and_gradient"]
    assert "sinh" not in [each["primitive"] for each in method.explain().as_dict()["ran"]]
    # The test of the end takes two gradients for each element, at most four times.
    assert 0 <= method.stats.calls - found.counts.gradients <= 8 * len(found.names)
    assert found.counts.values == 0


def test_without_gradients_minuit_moves_single_elements():
    """Central differences by element: what the others reach is loaded."""

    def two(p):
        return (jnp.cosh(p["a"] - 1) + jnp.exp(p["b"]) - p["b"]) * 3

    found = fit.minimize(
        incrax.incremental(two, tuning=MINIMAL), {"a": 0.0, "b": 0.5}, with_gradient=False
    )
    np.testing.assert_allclose(found.values, [1, 0], atol=1e-2)
    assert found.counts.gradients == 0
    assert found.work.avoided > 0.1


def test_value_and_gradient_of_a_point_are_one_evaluation():
    calls = []

    def counted(p):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.sum((p - 1.0) ** 4)

    task = fit.make_task(counted, (np.zeros(2),))
    one = fit.task.CountedTask(task)
    value, gradient = one.value_and_gradient(np.zeros(2))
    assert one.value(np.zeros(2)) == value
    assert one.gradient(np.zeros(2)).tolist() == gradient.tolist()
    jax.effects_barrier()
    assert len(calls) == 1
    assert one.counts == fit.Counts(gradients=1)


def programs_of(found):
    return set(found.task.prepared.methods)


def test_minuit_needs_one_program_for_values_and_gradients():
    fun = incrax.incremental(loss, tuning=incrax.Tuning(timed=False))
    found = fit.minimize(fun, START, X, Y)
    minos = found.minos()
    fit.contour(found, "p['a']", "p['k']")
    assert programs_of(found) == {"value_and_gradient"}
    assert found.counts == fit.Counts(gradients=found.counts.gradients)
    np.testing.assert_allclose(found.values, np.array(BEST.values), atol=1e-3)
    known = BEST.minos().merrors
    for name, interval in minos.items():
        np.testing.assert_allclose(interval[:2], (known[name].lower, known[name].upper), rtol=1e-2)


@pytest.mark.parametrize(
    ("timed", "num_values", "num_asked_alone", "num_alone"),
    [(True, 0, 0, 5), (True, 5, 6, 7), (False, 0, 0, 0), (False, 5, 0, 0)],
)
def test_values_get_a_program_where_gradients_for_nobody_take_as_long(
    monkeypatch, timed, num_values, num_asked_alone, num_alone
):
    """By a clock on which an evaluation takes a second, the first one four, and the second one, as
    it plans, sixty: by a guess of how many values are needed, which six points with gradients
    refute, or after three.
    """
    roles = {"x": "data", "y": "data"}
    fun = incrax.incremental(loss, tuning=incrax.Tuning(timed=timed))
    model = incrax.bind(fun, p=START, x=X, y=Y, roles=roles)
    seconds = iter(np.cumsum([0, 4, 0, 60] + [0, 1] * 500).tolist())
    monkeypatch.setattr(fit.task, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    one = fit.task.CountedTask(fit.make_task(model, ()))
    if num_values:
        one.expect_values(num_values)
    for k in range(4):
        one.value_of_step(np.array([1.4, 0.3, 1 + 0.01 * k]))
        one.gradient(np.array([1.4, 0.3, 1 + 0.01 * k]))
    points = [np.array([1.5, 0.3, 1 + 0.01 * k]) for k in range(8)]
    for point in points:
        assert one.value_of_step(point) == pytest.approx(of_vector(point))
        one.gradient(point)
    assert one.counts == fit.Counts(values=num_asked_alone, gradients=12)
    for point in points:
        assert one.value_of_step(point + 0.5) == pytest.approx(of_vector(point + 0.5))
    assert one.counts.values == num_asked_alone + num_alone
    assert one.counts.gradients == 12 + 8 - num_alone
    # The next search of the model knows that values have a program.
    other = fit.task.CountedTask(fit.make_task(model, ()))
    other.expect_values(1)
    other.value_of_step(points[0])
    assert other.counts.values == timed


def test_the_strategy_of_minuit_brings_our_hessian():
    found = solve(strategy=1)
    assert (
        found.counts.hessians > solve(strategy=0).counts.hessians
    )  # that of the errors at the minimum, both have
    np.testing.assert_allclose(found.values, np.array(BEST.values), rtol=1e-3)
    saddle = fit.minimize(lambda p: jnp.sum(p**4 - p**2), np.array([0.1, 0.2]), strategy=1)
    np.testing.assert_allclose(np.abs(saddle.values), np.sqrt(0.5), rtol=1e-3)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["migrad", "BFGS", "Nelder-Mead", "trust-exact", "optax.lbfgs"])
def test_a_limit_of_calls_ends_any_method_at_its_best_point(method):
    found = solve(method=made(method), max_calls=7)
    assert found.status is fit.Status.MAX_STEPS
    assert not found.is_converged
    assert sum(found.counts) <= 8
    assert found.value <= of_vector(FLAT_START)
    assert found.value == pytest.approx(of_vector(found.values))
    assert found.message == "limit of calls reached"


def test_a_limit_of_steps_of_the_method():
    for options in ({"method": "BFGS", "maxiter": 2}, {"method": optax.sgd(1e-9), "max_steps": 3}):
        assert solve(**options).status is fit.Status.MAX_STEPS


@pytest.mark.parametrize("method", ["migrad", "L-BFGS-B", "Powell"])
def test_a_callback_sees_better_points_and_ends_the_search(method):
    seen = []

    def watch(p, value):
        seen.append(value)
        return len(seen) == 3

    found = solve(method=method, callback=watch)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 3
    assert found.value == seen[-1]
    assert found.status is fit.Status.MAX_STEPS
    assert found.message == "stopped by the callback"


@pytest.mark.parametrize("method", ["migrad", "BFGS", "Nelder-Mead", "optax.lbfgs"])
def test_a_function_that_is_not_finite_is_told_by_the_status(method):
    found = fit.minimize(lambda p: jnp.sum(jnp.log(p)), np.array([-1.0, 2.0]), method=made(method))
    assert found.status is fit.Status.NOT_FINITE


def test_a_search_that_walks_off_ends_at_its_best_finite_point():
    fun = lambda p: jnp.sum(jnp.log(p) ** 2) + 50 * p[0]
    found = fit.minimize(fun, np.array([0.5, 2.0]), method=optax.sgd(0.02))
    assert found.status is fit.Status.NOT_FINITE
    assert np.isfinite(found.value)
    assert found.value == pytest.approx(float(fun(found.values)))


def test_rounding_errors_are_no_stall():
    """BFGS gives up where its line search finds nothing lower than rounding errors."""
    found = fit.minimize(
        lambda p: 1e9 + jnp.sum((p - 1.0) ** 2), np.zeros(3), method="BFGS", gtol=1e-12
    )
    assert found.status in (fit.Status.AT_PRECISION, fit.Status.CONVERGED)
    np.testing.assert_allclose(found.values, 1, atol=1e-3)


def test_a_search_that_ends_on_a_slope_has_stalled():
    found = fit.minimize(
        lambda p: jnp.sum(jnp.abs(p - 1.0) + 0.5 * p),
        np.array([0.2, 0.3]),
        method="BFGS",
        gtol=1e-9,
    )
    assert found.status is fit.Status.STALLED


def test_what_is_no_minimum_has_no_errors():
    saddle = fit.minimize(
        lambda p: p[0] ** 2 - p[1] ** 2 + p[1] ** 4, np.array([1.0, 0.0]), method="BFGS"
    )
    assert saddle.values[1] == 0
    assert not saddle.is_minimum
    assert np.isnan(saddle.errors[1])
    assert np.isfinite(saddle.errors[0])


def test_what_the_function_does_not_determine_has_infinite_errors():
    found = fit.minimize(
        lambda p: (p["a"] + p["b"] - 1.0) ** 2 + p["c"] ** 2,
        {"a": 0.0, "b": 0.0, "c": 1.0},
        method="BFGS",
    )
    assert np.isinf(found.errors).tolist() == [True, True, False]
    assert found.errors[2] == pytest.approx(np.sqrt(0.5))
    assert not found.is_minimum


def test_counting_the_work_of_a_fit_measures_nothing_of_the_machine(monkeypatch):
    """It took a third of a second of the first fit of a process."""

    def measured():
        raise AssertionError("the machine was measured")

    monkeypatch.setattr("incrax.engine.plan.facts.calibrate", measured)
    tuning = incrax.Tuning(hot_after=10**9)  # on a busy machine a plan may seem worth it
    quartic = incrax.incremental(lambda p: (p["a"] - 1.0) ** 2 + p["a"] ** 4, tuning=tuning)
    found = fit.minimize(quartic, {"a": 0.0})
    assert found.work.whole > 0
