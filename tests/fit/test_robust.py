"""Robust losses from far starts, against SciPy; and results that belong to the point that is
returned.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import incrax
from incrax import fit
from incrax.fit.steps import LOSSES
from incrax.models.bounds import Box

ROBUST = [name for name in LOSSES if name != "squares"]
CONVEX = ["huber", "soft_l1"]
STARTS = [-1e3, 1.0, 1.5, 2.5, 3.0, 5.0, 10.0, 100.0]
X = np.linspace(0, 1, 40)
Y = 2 * X + 1 + 0.05 * np.random.default_rng(0).normal(size=40)
Y[5] += 30
Y[20] -= 8
GRID = [(a, b) for a in (-100.0, 0.0, 50.0) for b in (-40.0, 9.0, 300.0)]


def constant(p):
    return jnp.ones(2) * (p[0] - 3.0)


def line(p):
    return p[0] * X + p[1] - Y


def scipy_fit(fun, start, loss, scale):
    options = {
        "loss": loss,
        "f_scale": scale,
        "xtol": 1e-15,
        "ftol": 1e-15,
        "gtol": 1e-15,
        "max_nfev": 5000,
    }
    return scipy.optimize.least_squares(lambda p: np.asarray(fun(p)), start, **options)


def half_rho(fun, x, loss, scale):
    return 0.5 * scale**2 * float(jnp.sum(LOSSES[loss]((fun(jnp.asarray(x)) / scale) ** 2)))


@pytest.mark.parametrize("loss", ROBUST)
def test_one_parameter_is_found_from_any_start(loss):
    """Where all residuals are large, the loss does not curve, and no damping may be learned from
    that.
    """
    for start in STARTS:
        found = fit.levenberg_marquardt(constant, np.array([start]), loss=loss, progress=False)
        assert found.is_converged, (start, found.status)
        assert found.values[0] == pytest.approx(3.0, abs=1e-9)
        assert found.num_steps <= 30


@pytest.mark.parametrize("scale", [1.0, 0.05])
@pytest.mark.parametrize("loss", ROBUST)
def test_a_line_with_outliers_is_found_from_a_grid_of_starts(loss, scale):
    """Convex losses have one minimum, SciPy's; of the others each has several, and an end must be
    one of them.
    """
    slope = jax.jit(jax.grad(lambda p: half_rho_of(p, loss, scale)))
    for start in GRID:
        found = fit.levenberg_marquardt(
            line, np.array(start), loss=loss, loss_scale=scale, progress=False
        )
        assert found.is_converged, (start, found.status)
        assert np.abs(slope(found.values)).max() <= 1e-7 * scale
        if loss in CONVEX:
            expected = scipy_fit(line, start, loss, scale)
            assert found.cost <= expected.cost * (1 + 1e-9)


def half_rho_of(p, loss, scale):
    return 0.5 * scale**2 * jnp.sum(LOSSES[loss]((line(p) / scale) ** 2))


@pytest.mark.parametrize("loss", ["squares", "huber"])
@pytest.mark.parametrize("way", ["program", "callback", "incremental"])
def test_cost_and_residuals_are_those_of_the_returned_point(way, loss):
    """Up to the rounding of terms of size 18, so that a step below the tolerance shows: the fit is
    perfect.
    """
    curved = lambda p: jnp.array([p[0] - 3.0, 2 * (p[1] + p[0] ** 2 - 9.0), 0.5 * (p[1] - 0.0)])
    options: dict = {"loss": loss, "progress": False}
    options |= {"callback": lambda p, cost: None} if way == "callback" else {}
    fun = incrax.incremental(curved) if way == "incremental" else curved
    found = fit.levenberg_marquardt(fun, np.array([5.0, 1.0]), **options)
    assert found.is_converged
    np.testing.assert_allclose(
        found.residuals, curved(jnp.asarray(found.values)), rtol=0, atol=2e-14
    )
    assert found.cost == pytest.approx(
        half_rho(curved, found.values, loss, 1.0), rel=1e-12, abs=1e-26
    )


def test_the_last_step_never_leaves_the_region_with_values():
    """The undamped step that ends a search is not taken where the residuals have no value."""
    from incrax.fit import steps

    search = steps.unpacked(jnp.asarray(steps.start(np.ones(1))))
    settings = steps.SearchSettings("squares", 1e-9, 10, is_bounded=False)
    setup = steps.Setup(settings, Box(-np.inf, np.inf), 1.0)
    _, at = steps.looked(search, jnp.array([0.5]), jnp.ones((1, 1)), setup)
    end = steps.found(search, at, jnp.array([2.0]), jnp.array([jnp.nan]), setup, True)
    assert (end.x[0], end.residuals[0], end.summary.cost) == (1.0, 0.5, 0.125)
