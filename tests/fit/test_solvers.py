"""Sparse and matrix-free solvers: the dense one, and SciPy, are the oracles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax import fit
from incrax.fit import levenberg
from incrax.fit.linear import SparseModel

RNG = np.random.default_rng(3)
T = np.linspace(0, 2, 12)
NUM_CURVES = 30
TRUTH = {
    "amplitude": 1 + RNG.random(NUM_CURVES),
    "offset": RNG.normal(size=NUM_CURVES),
    "rate": np.float64(1.3),
}
NOISE = 0.01 * RNG.normal(size=(NUM_CURVES, T.size))
START = {"amplitude": np.ones(NUM_CURVES), "offset": np.zeros(NUM_CURVES), "rate": np.float64(0.5)}


def curves(p, t):
    """Curves with a rate in common: a Jacobian of groups and one full column."""
    return p["amplitude"][:, None] * jnp.exp(-p["rate"] * t) + p["offset"][:, None]


DATA = np.asarray(curves(TRUTH, T)) + NOISE


def residuals(p, t, y):
    return curves(p, t) - y


def solve(solver, start=START, **options):
    return fit.levenberg_marquardt(residuals, start, T, DATA, solver=solver, **options)


@pytest.mark.parametrize("solver", ["sparse", "matrix-free"])
def test_it_finds_what_the_dense_solver_finds(solver):
    found, expected = solve(solver), solve("dense")
    assert found.is_converged
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-5, atol=1e-12)
    assert found.num_dof == expected.num_dof
    assert jax.tree.structure(found.params) == jax.tree.structure(START)


@pytest.mark.parametrize("solver", ["sparse", "matrix-free"])
def test_bounds_losses_and_weights_are_those_of_the_dense_solver(solver):
    y = DATA.copy()
    y[::5, 3] += 2
    options = {
        "bounds": {"p['rate']": (None, 1.2), "p['amplitude']": (0, None)},
        "loss": "soft_l1",
        "loss_scale": 0.05,
        "weights": 1 + T,
    }
    found = fit.levenberg_marquardt(residuals, START, T, y, solver=solver, **options)
    expected = fit.levenberg_marquardt(residuals, START, T, y, **options)
    assert found.is_converged
    assert float(found.params["rate"]) == 1.2
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(np.isnan(found.errors), np.isnan(expected.errors))


def test_a_sparse_step_is_the_damped_least_squares_step():
    from scipy.sparse import csr_array

    dense = RNG.normal(size=(40, 12)) * (RNG.random((40, 12)) < 0.3) * np.logspace(-4, 4, 12)
    r = RNG.normal(size=40)
    model = SparseModel(csr_array(dense), r, np.zeros(12))
    scale = np.linalg.norm(dense, axis=0)
    stacked = np.concatenate([dense / scale, np.eye(12) * 0.1])
    expected = -np.linalg.lstsq(stacked, np.r_[r, np.zeros(12)])[0] / scale
    np.testing.assert_allclose(model.step(0.01), expected, rtol=1e-11)
    np.testing.assert_allclose(np.array(model) / np.linalg.inv(dense.T @ dense), 1, rtol=1e-9)
    assert model.rank == 12


def test_what_the_data_do_not_determine_is_told_by_the_sparse_solver():
    fun = lambda p, x: p["a"] * p["b"] * x - 1.5 * x
    start = {"a": np.ones(3), "b": np.ones(3)}
    found = fit.levenberg_marquardt(fun, start, np.ones(3), solver="sparse")
    assert found.status is fit.Status.UNDERDETERMINED
    assert np.isinf(found.errors).all()
    np.testing.assert_allclose(found.params["a"] * found.params["b"], 1.5)


@pytest.mark.parametrize("solver", ["sparse", "matrix-free"])
def test_ends_are_told(solver):
    bad = fit.levenberg_marquardt(lambda p: jnp.log(p), -np.ones(3), solver=solver)
    assert bad.status is fit.Status.NOT_FINITE
    endless = fit.levenberg_marquardt(
        lambda p: jnp.exp(-p), np.zeros(2), max_steps=8, solver=solver
    )
    assert endless.status is fit.Status.MAX_STEPS
    seen = []
    solve(solver, callback=lambda p, cost: seen.append(cost) or len(seen) == 2)
    assert len(seen) == 2
    assert seen[1] <= seen[0]


def test_thousands_of_parameters_form_no_dense_jacobian(monkeypatch):
    """3,000 groups of two: 6,000 columns; every size is that of the nonzeros."""
    num = 3000
    truth = {"a": 1 + RNG.random(num), "k": 0.5 + RNG.random(num)}
    t = np.linspace(0, 2, 5)
    model = lambda p: p["a"][:, None] * jnp.exp(-p["k"][:, None] * t)
    y = np.asarray(model(truth))
    start = {"a": np.ones(num), "k": np.ones(num)}
    largest = []
    fun = lambda p, y: model(p) - y
    found = fit.levenberg_marquardt(
        fun, start, y, solver="auto", callback=lambda p, cost: largest.append(cost)
    )
    assert found.is_converged
    np.testing.assert_allclose(found.params["k"], truth["k"], rtol=1e-8)
    with pytest.raises(fit.CovarianceError) as caught:
        _ = found.covariance
    assert str(caught.value) == (
        'A covariance of 6,000 parameters was asked for after a fit with `solver="sparse"`. It is '
        "a dense matrix of "
        "6,000 x 6,000, found on demand for up to 4,096 parameters. The fit itself is whole. Name "
        "the parameters of "
        'interest by `wrt` and fit these again from here, or use `solver="dense"`.'
    )


def test_a_smooth_field_is_fitted_by_products_alone(monkeypatch):
    """Every residual depends on all of 1,100 elements: what `auto` takes is matrix-free, and J is
    never asked for.
    """
    refused = lambda *given: pytest.fail("J was asked for")
    monkeypatch.setattr(levenberg, "COMPILED", levenberg.COMPILED._replace(looked=refused))
    n = 1100
    places = np.linspace(0, 1, n)
    kernel = np.exp(-0.5 * ((places[:, None] - places) / 0.1) ** 2) / n + 0.3 * np.eye(n)
    y = np.tanh(kernel @ np.sin(6 * places)) + 0.001 * RNG.normal(size=n)
    found = fit.levenberg_marquardt(
        lambda p, y: jnp.tanh(kernel @ p) - y, np.zeros(n), y, solver="auto"
    )
    assert found.is_converged
    np.testing.assert_allclose(
        found.values, np.linalg.solve(kernel, np.arctanh(y)), rtol=1e-6, atol=1e-9
    )


def test_a_second_search_compiles_nothing():
    traces = []

    def counted(p, t, y):
        traces.append(1)
        return residuals(p, t, y)

    for solver in ("sparse", "matrix-free"):
        fit.levenberg_marquardt(counted, START, T, DATA, solver=solver)
        num = len(traces)
        fit.levenberg_marquardt(counted, START, T, DATA + 0.1, solver=solver)
        assert len(traces) == num


def test_a_solver_that_does_not_exist():
    with pytest.raises(ValueError, match="solver") as caught:
        solve("cg")
    assert str(caught.value) == (
        "`levenberg_marquardt(solver=...)` got 'cg'. Nothing was evaluated. Use one of \"dense\", "
        '"sparse", '
        '"matrix-free", "auto".'
    )
