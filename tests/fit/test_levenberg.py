"""Least squares beyond the certified problems: bounds, losses, parts, ends, counters;
SciPy is the oracle.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import incrax
from incrax import fit
from incrax.fit import steps
from incrax.fit.steps import SearchSettings, Setup
from incrax.models.bounds import Box

X = np.linspace(0, 3, 40)
Y = 2 * np.exp(-1.3 * X) + 0.5 + 0.01 * np.random.default_rng(0).normal(size=40)
START = {"a": 1.0, "k": np.float64(0.3), "c": np.array(0.0)}


def decay(p, x, y):
    return p["a"] * jnp.exp(-p["k"] * x) + p["c"] - y


def as_vector(v, x=X, y=Y):
    return np.asarray(decay({"a": v[0], "c": v[1], "k": v[2]}, x, y))


def solve(fun=decay, start=START, y=Y, **options):
    return fit.levenberg_marquardt(fun, start, X, y, **options)


def scipy_fit(y=Y, **options):
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    return scipy.optimize.least_squares(
        lambda v: as_vector(v, y=y), [1, 0, 0.3], **exact, **options
    )


def test_params_come_back_in_their_structure_and_types():
    found = solve()
    assert jax.tree.structure(found.params) == jax.tree.structure(START)
    assert all(
        isinstance(leaf, jax.Array) and leaf.dtype == np.float64
        for leaf in jax.tree.leaves(found.params)
    )
    assert found.names == ("p['a']", "p['c']", "p['k']")
    np.testing.assert_allclose(found.values, scipy_fit().x, rtol=1e-7)
    assert found.status is fit.Status.CONVERGED


def test_standard_errors_are_those_of_curve_fit():
    sigma = 0.01 * (1 + X)
    weighed = lambda *args: decay(*args) / sigma
    found = fit.levenberg_marquardt(weighed, START, X, Y, is_absolute=True)
    model = lambda x, a, c, k: a * np.exp(-k * x) + c
    values, covariance = scipy.optimize.curve_fit(
        model, X, Y, [1, 0, 0.3], sigma=sigma, absolute_sigma=True
    )
    np.testing.assert_allclose(found.values, values, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-4)
    np.testing.assert_allclose(np.diagonal(found.correlation), 1)


@pytest.mark.parametrize("loss", ["huber", "soft_l1", "cauchy", "arctan"])
def test_robust_losses_are_those_of_scipy(loss):
    y = Y.copy()
    y[::7] += 1
    found, expected = (
        solve(y=y, loss=loss, loss_scale=0.05),
        scipy_fit(y=y, loss=loss, f_scale=0.05),
    )
    assert found.is_converged
    assert found.cost == pytest.approx(expected.cost, rel=1e-12)
    np.testing.assert_allclose(found.values, expected.x, rtol=1e-6)
    assert (
        np.abs(solve(y=y).values - scipy_fit().x).max()
        > 5 * np.abs(found.values - scipy_fit().x).max()
    )


def test_bounds_hold_at_every_step_and_at_the_end():
    seen = []
    found = solve(
        bounds={"p['k']": (None, 1.0)}, callback=lambda p, cost: seen.append(float(p["k"]))
    )
    expected = scipy_fit(bounds=([-np.inf] * 3, [np.inf, np.inf, 1.0])).x
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    assert max(seen) <= 1.0
    assert found.is_converged
    assert np.isnan(found.errors).tolist() == [False, False, True]
    np.testing.assert_array_equal(solve(bounds={"p['k']": (None, 1.0)}).values, found.values)


def test_a_bound_on_the_way_does_not_hold_for_ever():
    found = solve(bounds={"p['k']": (0.0, 5.0), "p['c']": (0.0, 0.6)})
    np.testing.assert_allclose(found.values, scipy_fit().x, rtol=1e-7)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_many_bounds_are_found_in_one_step_of_a_linear_problem(condition):
    num = 60
    rng = np.random.default_rng(num)
    left, _ = np.linalg.qr(rng.normal(size=(2 * num, num)))
    right, _ = np.linalg.qr(rng.normal(size=(num, num)))
    matrix = left * np.geomspace(1, 1 / condition, num) @ right.T
    y = matrix @ rng.normal(size=num) + 0.001 * rng.normal(size=2 * num)
    expected = scipy.optimize.lsq_linear(matrix, y, (-0.3, 0.3), method="bvls", tol=1e-14)
    found = fit.levenberg_marquardt(
        lambda p, matrix, y: matrix @ p - y, np.zeros(num), matrix, y, bounds=[(-0.3, 0.3)] * num
    )
    assert found.is_converged
    assert found.num_jacobians <= 5
    assert found.cost == pytest.approx(expected.cost, rel=1e-10)
    held = np.isclose(np.abs(expected.x), 0.3, rtol=1e-12)
    assert held.sum() > 40
    np.testing.assert_array_equal(found.values[held], 0.3 * np.sign(expected.x[held]))
    np.testing.assert_allclose(found.values, expected.x, atol=1e-12 * condition)
    np.testing.assert_array_equal(np.isnan(found.errors), held)


@pytest.mark.parametrize(("num", "condition"), [(5, 1e6), (5, 1e10), (20, 1e2), (60, 1e6)])
def test_a_bent_problem_with_many_bounds_takes_no_more_jacobians_than_scipy(num, condition):
    rng = np.random.default_rng(num + 1)
    left, _ = np.linalg.qr(rng.normal(size=(2 * num, num)))
    right, _ = np.linalg.qr(rng.normal(size=(num, num)))
    matrix = left * np.geomspace(1, 1 / condition, num) @ right.T
    y = matrix @ rng.normal(size=num) + 0.001 * rng.normal(size=2 * num)
    bent = lambda p, matrix, y, of=jnp: of.tanh(matrix @ p - y) + 0.1 * (matrix @ p - y)
    slope = lambda p: (1.1 - np.tanh(matrix @ p - y) ** 2)[:, None] * matrix
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "x_scale": "jac"}
    on_host = lambda p: bent(p, matrix, y, np)
    expected = scipy.optimize.least_squares(
        on_host, np.zeros(num), slope, bounds=(-0.3, 0.3), **exact
    )
    found = fit.levenberg_marquardt(bent, np.zeros(num), matrix, y, bounds=[(-0.3, 0.3)] * num)
    assert found.is_converged
    assert found.cost == pytest.approx(expected.cost, rel=1e-9)
    assert found.num_jacobians <= expected.njev


def test_a_step_that_was_not_found_says_nothing_of_an_end(monkeypatch):
    monkeypatch.setattr("incrax.fit.linear.MAX_GUESSES", 0)
    matrix = np.array([[1.0, 0.9], [0.9, 1.0]])
    found = fit.levenberg_marquardt(
        lambda p: jnp.asarray(matrix) @ p - 1, np.zeros(2), bounds=[(0, 0.1)] * 2, max_steps=5
    )
    assert not found.is_converged


def test_what_is_not_selected_stays_as_it_is():
    found = solve(wrt=("p['a']", "p['c']"))
    assert found.params["k"] == 0.3
    assert found.names == ("p['a']", "p['c']")
    design = np.stack([np.exp(-0.3 * X), np.ones(40)], axis=1)
    np.testing.assert_allclose(found.values, np.linalg.lstsq(design, Y)[0], rtol=1e-9)


def test_data_can_be_free_as_well():
    found = fit.levenberg_marquardt(
        lambda p, q: jnp.stack([p - 1.0, q - 2.0]), 0.0, 0.0, wrt=(0, 1)
    )
    assert [float(each) for each in found.free] == [1.0, 2.0]


def test_complex_residuals_count_real_and_imaginary_part():
    found = fit.levenberg_marquardt(
        lambda p: (p[0] + 1j * p[1]) * jnp.ones(3) - (1 + 2j), np.zeros(2)
    )
    np.testing.assert_allclose(found.values, [1, 2], rtol=1e-12)
    assert found.residuals.shape == (6,)


def test_single_precision_stays_single():
    start = {key: np.float32(value) for key, value in START.items()}
    found = fit.levenberg_marquardt(decay, start, X.astype(np.float32), Y.astype(np.float32))
    assert found.is_converged
    assert found.params["a"].dtype == np.float32
    np.testing.assert_allclose(found.values, scipy_fit().x, rtol=1e-4)


# --- ends -----------------------------------------------------------------------------------------


def test_what_the_data_do_not_determine_has_no_finite_error():
    twice = lambda p, x, y: decay({**p, "a": p["a"] * p["b"]}, x, y)
    found = solve(twice, {**START, "b": 1.0})
    assert found.status is fit.Status.SINGULAR
    assert not found.is_converged
    assert np.isinf(found.errors).tolist() == [True, True, False, False]
    np.testing.assert_allclose(found.errors[2:], solve().errors[1:], rtol=1e-5)
    assert found.values[0] * found.values[1] == pytest.approx(solve().values[0], rel=1e-7)


def test_fewer_residuals_than_parameters_are_told():
    found = fit.levenberg_marquardt(lambda p: jnp.array([p[0] + p[1] - 1]), np.zeros(2))
    assert found.status is fit.Status.UNDERDETERMINED
    np.testing.assert_allclose(found.values, [0.5, 0.5])
    assert np.isinf(found.errors).all()


@pytest.mark.parametrize("fun", [jnp.log, lambda p: jnp.sqrt(p) / 0])
def test_a_start_that_is_not_finite_is_told(fun):
    found = fit.levenberg_marquardt(fun, np.array([-1.0]))
    assert found.status is fit.Status.NOT_FINITE
    assert found.num_steps == 0


def test_regions_without_values_are_not_entered():
    found = fit.levenberg_marquardt(
        lambda p: jnp.stack([jnp.log(p) + 3.0, p - 0.1]), np.float64(5.0)
    )
    assert found.is_converged
    assert np.isfinite(found.cost)


def test_a_search_without_end_stops_at_its_limit():
    found = fit.levenberg_marquardt(lambda p: jnp.exp(-p), np.zeros(1), max_steps=20)
    assert found.status is fit.Status.MAX_STEPS
    assert found.num_steps == 20


def test_a_function_that_jumps_ends_and_is_not_said_to_converge():
    found = fit.levenberg_marquardt(
        lambda p: jnp.floor(p * 3) + 0.5 + p * jnp.array([1.0, 2.0]), np.array([1.0])
    )
    assert found.status in (fit.Status.STALLED, fit.Status.CONVERGED)
    assert found.num_steps < 100


def test_a_likelihood_that_is_taken_for_one_residual_is_told():
    likelihood = lambda p, x, y: 1.0 + 0.5 * jnp.sum(decay(p, x, y) ** 2)
    found = solve(likelihood)
    assert found.message == (
        "the function returns one number, of which half the square was minimised; return the "
        "residuals, each divided by its error, or take `fit.minimize` for a likelihood or a cost"
    )
    assert "the function returns one number" in str(found)
    assert not solve().message


@pytest.mark.parametrize("gain_in_turn", [None, 30])
def test_a_search_that_creeps_has_stalled(gain_in_turn):
    # A derivative twice as large as that of x - 5: half of what a damped step promises is gained, so
    # that a damping that is far too large stays, and each step takes off 1e-8 of the undamped one.
    setup = Setup(
        SearchSettings("squares", 1e-10, 1000, is_bounded=False),
        Box(*np.array([[-np.inf], [np.inf]])),
        1.0,
    )
    look = lambda search: steps.looked(search, search.x - 5, jnp.array([[2.0]]), setup)
    search, at = look(steps.unpacked(jnp.asarray(steps.start(np.zeros(1)))))
    num_steps = 0
    while int(search.status) == steps.RUNNING and num_steps < 200:
        search = search._replace(damping=jnp.array(1.0 if num_steps == gain_in_turn else 1e8))
        tried = steps.trial(search, at, steps.velocity(search, at), jnp.zeros(1), setup)
        search, is_taken = steps.answered(search, at, tried, tried.x - 5, setup)
        assert bool(is_taken)
        num_steps += 1
        search, at = look(search)
    assert int(search.status) == steps.STALLED
    assert num_steps == (50 if gain_in_turn is None else 30 + 1 + 50)


# --- counters -------------------------------------------------------------------------------------


def test_a_rejected_step_costs_no_jacobian():
    hard = lambda p: jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])
    found = fit.levenberg_marquardt(hard, np.array([-1.2, 1.0]))
    assert found.is_converged
    assert found.num_residuals > found.num_steps
    assert found.num_jacobians == found.num_steps + 1


def test_an_incremental_function_evaluates_what_is_fixed_once():
    runs = []

    def heavy(x):
        def count(x):
            runs.append(1)
            return np.sin(x)

        return jax.pure_callback(count, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    residuals = lambda p, x, y: p["a"] * heavy(x) + p["c"] - y + jnp.exp(p["a"])
    found = fit.levenberg_marquardt(incrax.incremental(residuals), {"a": 0.5, "c": 0.0}, X, Y)
    assert found.is_converged
    assert found.num_jacobians > 3
    assert len(runs) <= 3


def test_a_callback_sees_each_step_and_may_end_the_search():
    seen = []

    def watch(p, cost):
        seen.append((float(p["a"]), cost))
        return len(seen) == 3

    found = solve(callback=watch)
    assert found.num_steps == 3
    assert found.status is fit.Status.MAX_STEPS
    assert [cost for _, cost in seen] == sorted((cost for _, cost in seen), reverse=True)


def test_a_search_is_compiled_once_for_all_data():
    traces = []

    def residuals(p, x, y):
        traces.append(1)
        return decay(p, x, y)

    solve(residuals)
    num = len(traces)
    solve(residuals, y=Y + 0.1)
    assert len(traces) == num
    solve(residuals, bounds={"p['a']": (0, 10)})
    num = len(traces)
    solve(residuals, start={**START, "a": 3.0}, bounds={"p['k']": (0, np.inf)})
    assert len(traces) == num


@pytest.mark.parametrize(("is_bounded", "num_decomposed"), [(False, 1), (True, 2)])
def test_without_bounds_nothing_is_guessed_and_one_matrix_is_decomposed(is_bounded, num_decomposed):
    settings = SearchSettings("squares", 1e-10, 1000, is_bounded=is_bounded)
    setup = Setup(settings, Box(np.zeros(3), np.ones(3)), 1.0)

    def turned(packed, residuals, matrix):
        search, at = steps.looked(steps.unpacked(packed), residuals, matrix, setup)
        return steps.velocity(search, at).step

    text = str(jax.make_jaxpr(turned)(steps.start(np.zeros(3)), np.ones(9), np.ones((9, 3))))
    assert (text.count(" svd["), " while[" in text) == (num_decomposed, is_bounded)


def test_a_long_search_in_several_rounds_ends_as_in_one(monkeypatch):
    whole = solve()
    monkeypatch.setattr("incrax.fit.levenberg.ROUND", 2)
    found = solve()
    assert (found.num_jacobians, found.num_residuals) == (whole.num_jacobians, whole.num_residuals)
    np.testing.assert_array_equal(found.values, whole.values)


def test_the_result_prints_a_table():
    text = str(solve())
    assert text.startswith("levenberg-marquardt: converged, value 0.0011484138; ")
    assert "p['k']" in text
