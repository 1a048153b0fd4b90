"""MINOS, profiles, scans and contours: algebra and iminuit are the oracles; counters say what did
not run.
"""

from __future__ import annotations

import iminuit
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL
from scipy.stats import chi2
from slice_cases import serve_by_rows, shapes_compared

import incrax
from incrax import fit
from incrax.engine.inputs.row_updates import MIN_FOLLOWED

MATRIX = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.7], [0.5, -0.7, 2.0]])
CENTER = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.linalg.inv(MATRIX)
NAMES = ("p['x'][0]", "p['x'][1]", "p['y']")


def quadratic(p):
    d = jnp.concatenate([p["x"], p["y"][None]]) - CENTER
    return 0.5 * d @ MATRIX @ d + 7.0


def bent(p):
    """Not symmetric about its minimum: a Poisson likelihood with a bent valley."""
    mean = jnp.exp(p["a"]) * (1 + p["b"] ** 2)
    return (
        mean
        - 9 * jnp.log(mean)
        + 2 * (p["b"] - 0.4 * p["a"]) ** 2
        + 0.1 * p["c"] ** 4
        + 0.3 * (p["c"] - p["a"]) ** 2
    )


BENT = {"a": 1.0, "b": 0.1, "c": 0.2}
BENT_NAMES = ("p['a']", "p['b']", "p['c']")


def of_vector(v):
    return float(bent(dict(zip("abc", v, strict=True))))


def by_iminuit():
    minuit = iminuit.Minuit(of_vector, np.array([1.0, 0.1, 0.2]), name=BENT_NAMES)
    minuit.errordef, minuit.strategy, minuit.tol = 0.5, 2, 1e-4
    return minuit.migrad()


@pytest.fixture(scope="module")
def straight():
    return fit.minimize(quadratic, {"x": np.zeros(2), "y": np.array(0.0)}, method="trust-exact")


@pytest.fixture(scope="module")
def curved():
    return fit.minimize(bent, BENT, method="BFGS", gtol=1e-9)


# --- MINOS ----------------------------------------------------------------------------------------


def test_minos_of_a_quadratic_is_the_error(straight):
    found = straight.minos()
    for name, error in zip(NAMES, np.sqrt(np.diagonal(COVARIANCE)), strict=True):
        assert found[name].is_valid
        np.testing.assert_allclose([-found[name].lower, found[name].upper], error, rtol=1e-3)
    wide = straight.minos(NAMES[0], cl=2)[NAMES[0]]
    assert wide.upper == pytest.approx(2 * np.sqrt(COVARIANCE[0, 0]), rel=1e-3)
    assert wide.cl == 2


@pytest.mark.parametrize("method", ["migrad", "BFGS", "Nelder-Mead"])
def test_minos_after_any_method_is_that_of_iminuit(method):
    found = fit.minimize(bent, BENT, method=method)
    expected = by_iminuit().minos().merrors
    intervals = found.minos(*BENT_NAMES[:2])
    assert list(intervals) == list(BENT_NAMES[:2])
    for name in BENT_NAMES[:2]:
        ends = expected[name]
        assert intervals[name].lower == pytest.approx(ends.lower, rel=1e-2)
        assert intervals[name].upper == pytest.approx(ends.upper, rel=1e-2)
    assert found.intervals == intervals


def test_minos_leaves_out_what_a_bound_holds():
    found = fit.minimize(bent, BENT, bounds={"p['c']": (None, 0.3)}, method="L-BFGS-B")
    assert set(found.minos()) == {"p['a']", "p['b']"}


# --- profiles -------------------------------------------------------------------------------------


def test_the_profile_of_a_quadratic_is_a_parabola(straight):
    found = fit.profile(straight, NAMES[1], width=3, num_points=11)
    expected = 0.5 * (found.grid - CENTER[1]) ** 2 / COVARIANCE[1, 1]
    np.testing.assert_allclose(found.rise, expected, atol=1e-9)
    shift = COVARIANCE[:, 1] / COVARIANCE[1, 1]
    np.testing.assert_allclose(
        found.free, CENTER + np.outer(found.grid - CENTER[1], shift), atol=1e-6
    )
    assert found.is_converged.all()
    assert found.counts == fit.Counts(gradients=11)


@pytest.mark.parametrize("name", BENT_NAMES)
def test_a_profile_is_that_of_iminuit(curved, name):
    found = fit.profile(curved, name, num_points=15, width=3)
    minuit = by_iminuit()
    _, values, _ = minuit.mnprofile(name, grid=found.grid)
    np.testing.assert_allclose(found.values, values, atol=1e-4)
    assert found.values.min() >= curved.value - 1e-9
    assert found.is_converged.all()
    assert found.counts.gradients <= 3 * 15
    assert found.counts.hessians == 0


def test_a_grid_is_taken_in_any_order_and_far_away(curved):
    grid = np.array([2.5, -1.0, 1.9, 2.1, 5.0])
    found = fit.profile(curved, "p['a']", grid=grid)
    np.testing.assert_array_equal(found.grid, grid)
    np.testing.assert_array_equal(found.free[:, 0], grid)
    np.testing.assert_allclose(
        found.values, by_iminuit().mnprofile("p['a']", grid=grid)[1], rtol=1e-5
    )


def test_a_scan_says_how_many_calls_are_still_to_come(monkeypatch, straight):
    told = []
    monkeypatch.setattr(incrax.Incremental, "expect", lambda self, calls: told.append(calls))
    fit.profile(straight, straight.names[0], num_points=9, progress=False)
    assert max(told) >= 8
    told.clear()
    names = straight.names[:2]
    fit.scan2d(straight, *names, num_points=4, progress=False)
    assert [calls for calls in told if calls][:4] == [15, 14, 12, 8]


def test_bounds_hold_in_a_profile():
    found = fit.minimize(
        bent, BENT, bounds={"p['b']": (0, 0.9), "p['a']": (None, 2.2)}, method="L-BFGS-B"
    )
    line = fit.profile(found, "p['a']", num_points=9, width=4)
    assert line.grid.max() == 2.2
    assert line.free[:, 1].max() <= 0.9
    assert line.is_converged.all()
    minuit = iminuit.Minuit(of_vector, np.array([1.0, 0.1, 0.2]), name=BENT_NAMES)
    minuit.errordef, minuit.limits["p['b']"], minuit.tol = 0.5, (0, 0.9), 1e-4
    minuit.migrad()
    np.testing.assert_allclose(
        line.values, minuit.mnprofile("p['a']", grid=line.grid)[1], atol=1e-3
    )


def test_the_function_and_its_arguments_will_do_for_a_minimum():
    found = fit.profile((bent, BENT), "p['a']", num_points=3)
    assert found.values[1] == pytest.approx(found.minimum, abs=1e-4)


def test_a_point_without_a_finite_value_is_told():
    fun = lambda p: jnp.where(p["a"] > 2.5, jnp.nan, 1.0) * bent(p)
    found = fit.profile(fit.minimize(fun, BENT), "p['a']", grid=[2.0, 2.4, 2.6])
    assert found.is_converged.tolist() == [True, True, False]
    assert np.isnan(found.values[2])


@pytest.mark.parametrize("scanned", [lambda *a: fit.profile(*a[:2]), fit.scan2d])
def test_a_scan_rises_from_the_minimum_also_where_the_fit_ended_short_of_it(scanned):
    loose = fit.minimize(bent, BENT, method="BFGS", gtol=0.05)
    assert loose.is_converged
    assert loose.value > by_iminuit().fval + 1e-5
    found = scanned(loose, *BENT_NAMES[:2])
    assert found.minimum < loose.value
    assert found.rise.min() > -fit.scans.TOLERANCE * found.errordef


def test_a_better_minimum_on_the_way_shows_as_a_negative_rise():
    double = lambda p: (p["a"] ** 2 - 1) ** 2 + 0.3 * p["a"] + p["b"] ** 2
    found = fit.minimize(double, {"a": 0.9, "b": 0.3}, method="BFGS")
    line = fit.profile(found, "p['a']", grid=np.linspace(0.9, -1.1, 9))
    assert line.rise.min() < -0.5


def test_a_profile_prints_its_points():
    line = fit.profile((bent, BENT), "p['a']", grid=[0.0, 1.0])
    assert [row[0] for row in line.tables()[0].rows] == ["0", "1"]
    assert f"{line.rise[1]:.4g}" in str(line).splitlines()[-1]


def test_inner_searches_never_run_what_only_the_fixed_element_reaches():
    """Every call of a minimum over the others at one value of `a`, the first aside, loads what `a`
    reaches.
    """

    def fun(p, x):
        return jnp.sum(jnp.sinh(p["a"] * x)) ** 2 + jnp.sum(
            (p["b"] - p["a"] ** 2) ** 4 + jnp.exp(p["b"] * x)
        )

    x = np.linspace(0, 1, 5)
    made = incrax.incremental(fun, tuning=MINIMAL)
    found = fit.minimize(made, {"a": 0.5, "b": 0.5}, x, method="BFGS")
    method = found.task.prepared.methods["value_and_gradient"]
    ran = []

    class Watched:
        value, hessian, hvp = (
            found.task.flat.value,
            found.task.flat.hessian,
            found.task.flat.hvp,
        )

        @staticmethod
        def value_and_gradient(v):
            before = method.stats.ran
            result = found.task.flat.value_and_gradient(v)
            names = [each["primitive"] for each in method.explain().as_dict()["ran"]]
            ran.append((float(v[0]), "sinh" in names, method.stats.ran - before))
            return result

    task = found.task._replace(flat=Watched())
    watched = fit.minimize(task, method="BFGS")
    ran.clear()
    line = fit.profile(watched, "p['a']", grid=[0.2, 1.0, 1.8], tolerance=1e-9)
    assert line.is_converged.all()
    assert line.counts.gradients > 3
    for before, after in zip(ran, ran[1:], strict=False):
        if before[0] == after[0]:
            assert not after[1]
            assert after[2] < line.work.whole / line.counts.gradients


def test_elements_that_would_gain_nothing_stay_where_they_are():
    """In a sum of functions of single elements the others never move, and nothing that they reach
    runs.
    """
    fun = lambda p: jnp.cosh(p["a"]) + jnp.exp(p["b"]) - p["b"] + jnp.sin(p["c"]) ** 2
    made = incrax.incremental(fun, tuning=MINIMAL)
    found = fit.minimize(made, {"a": 0.3, "b": 0.3, "c": 0.3}, method="trust-exact")
    line = fit.profile(found, "p['a']", num_points=5)
    assert np.ptp(line.free[:, 1:], axis=0).tolist() == [0.0, 0.0]
    assert line.counts == fit.Counts(gradients=5)
    method = found.task.prepared.methods["value_and_gradient"]
    names = {each["primitive"] for each in method.explain().as_dict()["ran"]}
    assert names & {"cosh", "sinh"}
    assert not names & {"exp", "sin", "cos"}


# --- two elements ---------------------------------------------------------------------------------


def test_a_scan_of_two_elements_of_a_quadratic(straight):
    found = fit.scan2d(straight, NAMES[0], NAMES[2], num_points=(4, 5))
    assert found.values.shape == (4, 5)
    inverse = np.linalg.inv(COVARIANCE[np.ix_([0, 2], [0, 2])])
    d = np.stack(
        np.meshgrid(found.grids[0] - CENTER[0], found.grids[1] - CENTER[2], indexing="ij"), axis=-1
    )
    np.testing.assert_allclose(
        found.rise, 0.5 * np.einsum("ijk,kl,ijl->ij", d, inverse, d), atol=1e-8
    )
    assert found.counts.gradients == 20


@pytest.mark.parametrize("cl", [0.68, 2])
def test_the_contour_of_a_quadratic_is_an_ellipse(straight, cl):
    found = fit.contour(straight, NAMES[0], NAMES[1], cl=cl, num_points=24)
    level = chi2.ppf(cl if cl < 1 else chi2.cdf(cl**2, 1), 2)
    d = found.points - CENTER[:2]
    inverse = np.linalg.inv(COVARIANCE[:2, :2])
    np.testing.assert_allclose(np.einsum("ij,jk,ik->i", d, inverse, d), level, rtol=0.02)
    assert found.level == pytest.approx(0.5 * level)
    assert found.points[0].tolist() == pytest.approx(found.points[-1].tolist())


def test_a_contour_is_that_of_iminuit(curved):
    by_minuit = fit.contour(curved, "p['a']", "p['b']", num_points=30).points
    reference = by_iminuit().mncontour("p['a']", "p['b']", cl=0.68, size=30)
    np.testing.assert_allclose(by_minuit.max(axis=0), reference.max(axis=0), rtol=2e-2)


def test_the_metric_learns_what_it_was_told():
    step, change = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    np.testing.assert_allclose(fit.following.learned(np.eye(2), step, change) @ step, change)
    np.testing.assert_array_equal(fit.following.learned(np.eye(2), step, -change), np.eye(2))


def test_a_profile_of_an_element_says_which_rows_of_a_large_array_change(monkeypatch):
    """Two of its elements are free: nothing of its size is compared."""
    serve_by_rows(monkeypatch)
    num = MIN_FOLLOWED
    y = np.random.default_rng(0).normal(size=(num, 40))
    cost = lambda theta, y: jnp.sum(jnp.cosh(y - theta[:, None])) + theta[3] * theta[900]
    function = incrax.incremental(cost, tuning=EAGER)
    names = "theta[3]", "theta[900]"
    result = fit.minimize(function, np.zeros(num), y, wrt=names)
    fit.profile(result, "theta[3]", num_points=9)
    compared = shapes_compared(monkeypatch)
    scan = fit.profile(result, "theta[3]", num_points=21)
    assert scan.is_converged.all()
    assert (num,) not in compared
