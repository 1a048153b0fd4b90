"""What a review of fits found: each was wrong once."""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from incrax import fit


def curved(p):
    """Along b it curves down, so that b stays at its lower bound."""
    return 0.5 * (p["a"] - 1) ** 2 + 0.5 * (p["c"] - p["a"]) ** 2 + 50 * p["b"] - 20 * p["b"] ** 2


START, BOUNDS = {"a": 0.0, "b": 0.05, "c": 0.0}, {"p['b']": (0, 0.2)}


def test_a_profile_moves_the_others_where_a_bound_holds_an_element_that_curves_down():
    found = fit.minimize(curved, START, bounds=BOUNDS)
    profile = fit.profile(found, "p['a']", num_points=9)
    assert profile.is_converged.all()
    np.testing.assert_allclose(profile.rise, 0.5 * (profile.grid - 1) ** 2, atol=1e-4)


def test_the_distance_to_the_minimum_leaves_out_what_a_bound_holds():
    found = fit.minimize(lambda p: curved(p), START, bounds=BOUNDS, method="L-BFGS-B")
    assert found.edm < 1e-4


def test_a_mask_is_no_number_of_an_argument():
    res = lambda p, c: jnp.array([p[0] - 1.0, p[1] - 2.0, c - 3.0, 0.1 * (p[0] + c)])
    assert fit.levenberg_marquardt(res, (0.0, 0.0), 0.0, wrt=(0, 1)).names == ("p[0]", "p[1]", "c")
    assert fit.levenberg_marquardt(res, (0.0, 0.0), 0.0, wrt=(False, True)).names == ("p[1]",)


def test_intervals_and_scans_need_to_be_near_the_minimum():
    h = lambda p: 0.5 * (p["a"] - 1) ** 2 + 0.1 * (p["a"] - 1) ** 4 + 0.5 * (p["b"] - p["a"]) ** 2
    found = fit.minimize(h, {"a": -2.0, "b": 3.0}, max_calls=1)
    for call in (lambda: found.minos("p['a']"), lambda: fit.profile(found, "p['a']")):
        with pytest.raises(fit.MinimumError, match="goes out from a minimum"):
            call()


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_parameters_of_low_precision_are_fitted_to_data_of_high_precision(kind):
    line = lambda p, y: p["a"] - y
    found = fit.levenberg_marquardt(line, {"a": kind(0)}, np.arange(4.0))
    np.testing.assert_allclose(found.values, [1.5], rtol=1e-3)
    assert found.params["a"].dtype == kind


def test_minimising_keeps_no_data_alive():
    class Data:
        x = np.ones(3)

    def fitted():
        data = Data()
        fit.minimize(lambda p: jnp.sum((p["a"] - data.x) ** 2), {"a": 0.0}, method="BFGS")
        return weakref.ref(data)

    alive = [fitted() for _ in range(3)]
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 1


def test_shapes_that_do_not_fit_are_told():
    line = lambda p, y: p["a"] - y
    with pytest.raises(fit.BoundsError, match="its parts cannot be compared"):
        fit.levenberg_marquardt(
            line, {"a": np.zeros(2)}, np.ones(2), bounds={"p['a']": ([0, None], None)}
        )
    with pytest.raises(fit.BoundsError):
        fit.levenberg_marquardt(
            line, {"a": np.zeros(2)}, np.ones(2), bounds={"p['a']": ([-1, -1], [1, 1, 1])}
        )
    with pytest.raises(fit.ParameterTypeError):
        fit.levenberg_marquardt(line, {"a": 0.0}, np.ones(0))
