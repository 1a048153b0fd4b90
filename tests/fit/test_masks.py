"""Fits of models in which parameters, and elements of them, are fixed at run time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import fit

pytest.importorskip("iminuit", reason="iminuit is not installed")
NOT_TIMED = incrax.Tuning(timed=False)
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
)
traced = []
COUNTS = np.random.default_rng(0).poisson(100.0 + 10.0 * np.arange(12))
SHAPES = np.random.default_rng(1).normal(size=(3, 12))


def nll(mu, theta, counts):
    traced.append(1)
    expected = 10.0 * jnp.arange(12) * mu + 100.0 * jnp.exp(0.05 * theta @ SHAPES)
    return jnp.sum(expected - counts * jnp.log(expected)) + 0.5 * jnp.sum(theta**2)


def model(fun=nll, wrap=True, **options):
    fun = incrax.incremental(fun, tuning=NOT_TIMED) if wrap else fun
    roles = {"counts": "data", **options.pop("roles", {})}
    return incrax.bind(fun, mu=0.5, theta=np.zeros(3), counts=COUNTS, roles=roles, **options)


NAMES = ("mu", "theta[0]", "theta[1]", "theta[2]")
METHODS = ["migrad", "L-BFGS-B", "trust-exact", "Newton-CG"]


def alone(free, start):
    """The same fit by a function of the free elements alone."""
    numbers = np.array([NAMES.index(name) for name in free])

    def of_free(v):
        x = jnp.asarray(start).at[numbers].set(v)
        return nll(x[0], x[1:], COUNTS)

    return fit.minimize(of_free, start[numbers], method="trust-exact", tolerance=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fixed", [["mu"], ["theta[1]"], ["theta[0]", "theta[2]"], ["theta"]])
def test_a_fit_is_that_of_what_is_free_alone(method, fixed):
    m = model()
    fit.minimize(m)  # by all of them, and from now on a mask
    m.set(mu=0.75, theta=np.array([0.1, -0.2, 0.3]))
    m.fix(*fixed)
    free = m.names
    start = np.array([0.75, 0.1, -0.2, 0.3])
    found = fit.minimize(m, method=method)
    expected = alone(free, start)
    assert found.is_converged
    assert found.names == free
    np.testing.assert_allclose(found.values, expected.values, atol=0.02 * expected.errors.min())
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-3)
    np.testing.assert_allclose(found.hessian, expected.hessian, rtol=1e-2)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-4)
    held = [k for k, name in enumerate(NAMES) if name not in free]
    now = np.concatenate([[m["mu"]], m["theta"]])
    np.testing.assert_array_equal(now[held], start[held])


def test_parameters_of_a_result_are_those_that_are_free():
    m = model()
    fit.minimize(m)
    m.fix("theta[1]")
    found = fit.minimize(m)
    assert found.params["theta"][1] == m["theta"][1]
    m.fix("mu")
    assert set(fit.minimize(m).params) == {"theta"}


def test_no_fit_and_no_error_is_traced_or_compiled_again():
    m = model()
    fit.minimize(m).errors  # noqa: B018
    traced.clear()
    compiled.clear()
    for name in NAMES:
        m.fix(name)
        found = fit.minimize(m)
        found.errors  # noqa: B018
        fit.profile(found, found.names[0], num_points=3)
        m.free(name)
    m.fix("theta")
    fit.minimize(m).minos()
    assert not traced
    assert not compiled


def test_profiles_contours_and_intervals_hold_what_is_fixed():
    m = model()
    fit.minimize(m)
    m.fix("theta[1]")
    found = fit.minimize(m)
    expected = alone(found.names, np.array([m["mu"], *m["theta"]]))
    line = fit.profile(found, "mu", num_points=5)
    other = fit.profile(expected, expected.names[0], grid=line.grid)
    np.testing.assert_allclose(line.values, other.values, atol=1e-4)
    assert line.free.shape == (5, 3)
    assert fit.scan2d(found, "mu", "theta[0]", num_points=3).values.shape == (3, 3)
    ring = fit.contour(found, "mu", "theta[0]", num_points=8)
    assert ring.points.shape == (9, 2)
    wide = expected.minos(expected.names[0])[expected.names[0]]
    assert found.minos("mu")["mu"].upper == pytest.approx(wide.upper, rel=1e-2)
    with pytest.raises(fit.MinimumError, match="names no free element"):
        fit.profile(found, "theta[1]")


def test_sums_and_constraints_take_what_is_fixed():
    one = model()
    fit.minimize(one)
    one.fix("theta[1]")
    both = fit.simultaneous({"one": one, "two": model()}, shared=["mu"])
    assert both.names == (
        "mu",
        "one['theta'][0]",
        "one['theta'][2]",
        "two['theta'][0]",
        "two['theta'][1]",
        "two['theta'][2]",
    )
    assert fit.constrained(one, fit.gaussian_constraint("mu", 1.0, 0.1)).names == one.names
    assert fit.negative(one).names == one.names
    assert fit.simultaneous({"one": one}, shared=["theta"]).roles["theta[1]"] == "fixed"


def test_toys_hold_what_is_fixed():
    m = model()
    m.fix("theta[1]", "theta[2]")
    found = fit.toys(m, ({"counts": COUNTS + k} for k in range(2)))
    assert found.names == ("mu", "theta[0]")
    assert found.values.shape == (2, 2)


# --- least squares --------------------------------------------------------------------------------


def residuals(mu, theta, counts):
    traced.append(1)
    expected = 10.0 * jnp.arange(12) * mu + 100.0 * jnp.exp(0.05 * theta @ SHAPES)
    return jnp.concatenate([(counts - expected) / jnp.sqrt(expected), theta])


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "incremental"])
def test_least_squares_hold_what_is_fixed_and_compile_once(wrap):
    m = model(residuals, wrap=wrap)
    for _ in range(2):
        fit.levenberg_marquardt(m, is_absolute=True).errors  # noqa: B018
        m.set(mu=0.75, theta=np.array([0.1, -0.2, 0.3]))
    traced.clear()
    compiled.clear()
    m.fix("theta[1]")
    found = fit.levenberg_marquardt(m, is_absolute=True)
    assert not traced
    assert not compiled
    errors = found.errors
    assert found.names == ("mu", "theta[0]", "theta[2]")
    assert m["theta"][1] == -0.2
    parts = lambda v, counts: residuals(v[0], jnp.stack([v[1], jnp.asarray(-0.2), v[2]]), counts)
    start = np.array([0.75, 0.1, 0.3])
    expected = fit.levenberg_marquardt(parts, start, COUNTS, is_absolute=True)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6)
    np.testing.assert_allclose(errors, expected.errors, rtol=1e-6)
    assert found.num_dof == expected.num_dof == 12
    assert found.is_converged
    np.testing.assert_allclose(found.params["theta"], m["theta"])
    assert found.covariance.shape == (3, 3)


def test_least_squares_with_bounds_hold_what_is_fixed():
    m = model(residuals, bounds={"theta": (-0.5, 0.5)})
    fit.levenberg_marquardt(m)
    m.set(theta=np.array([0.0, 0.5, 0.0]))
    m.fix("theta[1]")
    found = fit.levenberg_marquardt(m)
    assert m["theta"][1] == 0.5
    assert found.bounds.lower.tolist() == [-np.inf, -0.5, -0.5]
    assert np.all(np.isfinite(found.errors))


def test_what_is_fixed_where_its_derivative_is_zero_is_no_part_of_errors():
    m = incrax.bind(lambda a, b: jnp.stack([a - b - 1.0, b]), a=0.5, b=0.5)
    assert fit.levenberg_marquardt(m, is_absolute=True).errors[0] == pytest.approx(np.sqrt(2.0))
    m.set(a=1.0, b=0.0)
    m.fix("b")
    assert fit.levenberg_marquardt(m, is_absolute=True).errors.tolist() == pytest.approx([1.0])
