"""Ends of minimisers: never an error of the method's own, and converged only where the gradient
says so as well.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import incrax
from incrax import fit
from incrax.fit.covariance import left_to_gain
from incrax.fit.methods import METHODS
from incrax.fit.task import Ended, Work
from incrax.models.bounds import Box

NOT_SMOOTH = {
    "NaN at the start": (lambda v: jnp.sqrt(v[0]) + v[0] ** 2, [-1.0]),
    "NaN derivative at the start": (
        lambda v: jnp.sqrt((v[0] - 1) ** 2) + (v[1] - 2) ** 2,
        [1.0, 0.0],
    ),
    "infinite second derivative": (lambda v: jnp.abs(v[0]) ** 1.5, [0.0]),
    "a pole": (lambda v: jnp.log(jnp.abs(v[0])), [1.0]),
}
SECOND = [name for name, takes in METHODS.items() if takes.second]


@pytest.mark.parametrize("case", NOT_SMOOTH)
def test_a_derivative_that_is_not_finite_is_told_by_the_status(case):
    fun, start = NOT_SMOOTH[case]
    task = fit.make_task(fun, (np.array(start),))
    for method in (*SECOND, "BFGS", "Powell", "migrad"):
        found = fit.minimize(task, method=method, max_calls=100, progress=False)
        slope = np.asarray(jax.grad(fun)(jnp.asarray(found.values)))
        is_smooth = np.isfinite(found.value) and np.all(np.isfinite(slope))
        assert found.is_converged <= bool(is_smooth and np.all(np.abs(slope) < 1e-3)), method
        assert np.all(np.isfinite(found.values)), method


def test_strategies_of_minuit_survive_a_hessian_that_is_not_finite():
    found = fit.minimize(
        lambda v: jnp.sum(jnp.sqrt(v) + v**2), np.array([-1.0, 1.0]), strategy=2, progress=False
    )
    assert found.status is fit.Status.NOT_FINITE


def test_an_error_of_the_function_or_the_callback_is_not_taken_for_one_of_the_method():
    def complain(p, value):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit.minimize(lambda v: jnp.sum(v**2), np.ones(2), method="trust-exact", callback=complain)
    with pytest.raises(TypeError):
        fit.minimize(
            lambda v: jnp.sum(v**2), np.ones(2), method="trust-exact", initial_trust_radius="far"
        )


def corner(v):
    return (v[0] - 2) ** 2 + (v[1] - 2) ** 2


def _pair(lower, upper):
    return np.array(lower), np.array(upper)


FALSE_ENDS = {
    "a plane": (lambda v: v[0] + 2 * v[1], [1.0, 1.0], "Newton-CG", {}),
    "absolute values": (lambda v: jnp.abs(v[0] - 0.3) + jnp.abs(v[1]), [1.0, 1.0], "Newton-CG", {}),
    "a corner": (
        corner,
        [0.0, 5.0],
        "trust-constr",
        {"bounds": {"v": _pair([0.0, -5.0], [4.0, 5.0])}},
    ),
    "a narrow peak": (
        lambda v: jnp.log(v[1]) + 0.5 * ((1.3 - v[0]) / v[1]) ** 2,
        [0.0, 1.0],
        # by a tolerance that every version of SciPy reaches on its way; where it gives up else,
        # they differ
        "SLSQP",
        {"bounds": {"v": _pair([-10.0, 1e-3], [10.0, 10.0])}, "tolerance": 1.0},
    ),
    "units": (lambda v: 4e-13 * (v[0] - 1e7) ** 2, [0.0], "BFGS", {}),
    "an offset": (lambda v: 1e9 + jnp.sum((v - 9.0) ** 2), [0.0], "optax", {}),
}


@pytest.mark.parametrize("case", FALSE_ENDS)
def test_an_end_on_a_slope_is_no_convergence_and_the_message_says_why(case):
    fun, start, method, given = FALSE_ENDS[case]
    method = optax.adam(0.1) if method == "optax" else method
    found = fit.minimize(fun, np.array(start), method=method, progress=False, **given)
    assert found.status is fit.Status.STALLED
    assert not found.is_converged
    assert not found.is_minimum
    assert "left to gain, and near enough is 0.005" in found.message
    with pytest.raises(fit.MinimumError, match="goes out from a minimum"):
        fit.profile(found, found.names[0])


@pytest.mark.parametrize(
    "method", ["migrad", *[name for name, takes in METHODS.items() if takes.bounds]]
)
def test_no_method_says_that_it_converged_in_a_corner_that_is_no_minimum(method):
    bounds = {"v": (np.array([0.0, -5.0]), np.array([4.0, 5.0]))}
    found = fit.minimize(corner, np.array([0.0, 5.0]), method=method, bounds=bounds, progress=False)
    assert found.is_converged <= bool(np.abs(found.values - 2).max() < 0.1)


def test_a_bound_model_is_tested_as_well():
    model = incrax.bind(lambda a, b: a + 2 * b, a=1.0, b=1.0)
    assert not fit.minimize(model, method="Newton-CG").is_converged


def test_many_elements_are_judged_by_the_slope():
    n = 300
    task = fit.make_task(lambda v: jnp.sum((v - 2.0) ** 2), (np.zeros(n),))
    assert fit.minimize(task, method="L-BFGS-B").is_converged
    tilted = fit.make_task(lambda v: jnp.sum(v), (np.ones(n),))
    found = fit.minimize(tilted, method="Newton-CG")
    assert found.status is fit.Status.STALLED
    assert "per size of an element" in found.message
    assert "hessian" not in task.prepared.methods


def test_a_function_without_a_gradient_keeps_the_account_of_the_method():
    def outside(v):
        return jax.pure_callback(
            lambda x: np.sum((x - 1.0) ** 2), jax.ShapeDtypeStruct((), v.dtype), v
        )

    found = fit.minimize(outside, np.zeros(2), method="Nelder-Mead")
    assert found.is_converged
    assert "was not tested" in found.message


def test_the_distance_to_a_minimum_is_that_of_a_quadratic_within_bounds():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    hessian, step = root @ root.T + np.eye(4), np.array([0.3, -0.2, 0.1, 0.4])
    wide = Box(np.full(4, -np.inf), np.full(4, np.inf))
    left = left_to_gain(np.zeros(4), hessian @ step, hessian, wide, 0.5)
    assert left == pytest.approx(0.5 * step @ hessian @ step, rel=1e-12)
    units = np.array([1e-6, 1.0, 1e5, 1e3])
    scaled = left_to_gain(
        np.zeros(4), hessian @ step / units, hessian / units / units[:, None], wide, 0.5
    )
    assert scaled == pytest.approx(left, rel=1e-9)
    pressed = Box(np.array([0.0, -1, -1, -1]), np.full(4, np.inf))
    gradient = np.array([5.0, 0.0, 0.0, 0.0])
    assert left_to_gain(np.zeros(4), gradient, hessian, pressed, 0.5) == 0
    assert left_to_gain(np.zeros(4), -gradient, hessian, pressed, 0.5) > 1
    assert np.isnan(left_to_gain(np.zeros(4), gradient, hessian * np.nan, wide, 0.5))


def spread(p, x):
    return jnp.sum(jnp.log(p["sigma"]) + 0.5 * ((x - p["mu"]) / p["sigma"]) ** 2)


def test_errors_of_data_in_float32_are_no_differences_of_rounding_errors():
    """Numbers of Python are float64 here, and the sum over data in float32 is float32."""
    data = np.random.default_rng(0).normal(91.2, 2.0, 10_000)
    start = {"mu": 90.0, "sigma": 1.0}
    found = fit.minimize(spread, start, data.astype(np.float32), progress=False)
    exact = found["sigma"] / np.sqrt(data.size * np.array([1.0, 2.0]))
    np.testing.assert_allclose(found.errors, exact, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_search_that_stalls_says_that_the_function_is_in_float32(dtype):
    kinks = lambda p, x: jnp.sum(jnp.abs(p["a"] - x) + 0.5 * p["a"])
    data = np.array([0.9, 1.0], dtype)
    found = fit.minimize(kinks, {"a": 0.2}, data, method="BFGS", gtol=1e-9, progress=False)
    assert found.status is fit.Status.STALLED
    with pytest.raises(fit.MinimumError) as refused:
        found.minos()
    for text in (found.message, str(found), str(refused.value)):
        assert ("jax_enable_x64" in text) == (dtype is np.float32)


def test_work_that_partial_sums_add_is_no_negative_share():
    assert f"{Work(ran=3234, whole=3231).avoided:.0%}" == "0%"


def test_what_a_method_learned_in_float32_is_no_account_of_its_end(monkeypatch):
    """The likelihood of a Gaussian process gave Minuit rounding errors for second derivatives, and
    it ended where it began, 200 above the minimum.
    """
    steep = lambda counted, _: Ended(counted.task.x, True, "valid minimum", metric=1e9 * np.eye(1))
    monkeypatch.setattr("incrax.fit.minimizing.by_minuit", steep)
    parabola = lambda p, x: jnp.sum((p["a"] - x) ** 2)
    found = fit.minimize(parabola, {"a": 1.0}, np.zeros(1, np.float32), progress=False)
    assert found.status is fit.Status.STALLED
    assert "jax_enable_x64" in found.message
