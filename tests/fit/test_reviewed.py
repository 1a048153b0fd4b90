"""What a review of fits found: each was wrong once."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
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


def test_a_model_whose_first_evaluation_failed_can_be_fitted():
    is_broken = True

    def nll(mu, x):
        if is_broken:
            raise RuntimeError("a user's mistake")
        return jnp.sum((x - mu) ** 2)

    m = incrax.bind(nll, mu=0.0, x=np.ones(4), roles={"x": "data"})
    with pytest.raises(RuntimeError, match="a user's mistake"):
        fit.minimize(m)
    is_broken = False
    np.testing.assert_allclose(fit.minimize(m)["mu"], 1.0, rtol=1e-4)


def test_arrays_beside_a_model_are_refused_like_all_else():
    m = incrax.bind(lambda x: jnp.sum(x**2), x=np.ones(2))
    for given in ({"wrt": np.array([True, False])}, {"bounds": np.zeros((2, 2))}):
        with pytest.raises(incrax.errors.BindError, match="beside it"):
            fit.minimize(m, **given)


def test_what_has_no_derivative_is_printed_without_errors():
    def on_host(p):
        shape = jax.ShapeDtypeStruct((), p.dtype)
        return jax.pure_callback(lambda p: np.asarray((p - 1) ** 2), shape, p)

    found = fit.minimize(on_host, 0.0, method="Nelder-Mead")
    ((_, value, error, why),) = found.tables()[0].rows
    assert (float(value), error, why) == (pytest.approx(1.0, abs=1e-3), "nan", "no derivative")


SQUARE = (lambda p: jnp.sum((p["a"] - 1) ** 2), {"a": np.zeros(2)})


@pytest.mark.parametrize(
    "call",
    [
        lambda: fit.minimize(*SQUARE, errordef=-1.0),
        lambda: fit.minimize(*SQUARE, errordef=np.nan),
        lambda: fit.levenberg_marquardt(lambda p: p - 1, 0.0, loss="huber", loss_scale=0),
        lambda: fit.contour(SQUARE, "a[0]", "a[1]", cl=95),
        lambda: fit.minimize(*SQUARE).minos("a[0]", cl=95),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_evaluated(call):
    with pytest.raises(ValueError, match=r"got .*\. Nothing was evaluated\. Pass"):
        call()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"num_points": 0}, "it has none"), ({"width": np.nan}, "it is no vector of finite numbers")],
)
def test_a_grid_of_nothing_is_refused(options, reason):
    with pytest.raises(fit.MinimumError, match=reason):
        fit.profile(SQUARE, "a[0]", **options)


def test_grids_may_be_lists_and_arrays():
    assert fit.scan2d(SQUARE, "a[0]", "a[1]", num_points=[2, 3]).rise.shape == (2, 3)
    grids = np.array([[0.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(
        fit.scan2d(SQUARE, "a[0]", "a[1]", grids=grids).rise, [[1, 2], [0, 1]], atol=1e-6
    )


def test_what_the_data_do_not_determine_is_named():
    flat = lambda p: (p["x"] + p["y"] - 1.0) ** 2 + p["z"] ** 2
    with pytest.raises(fit.MinimumError, match=r"not determine \(here `p\['x'\]`, `p\['y'\]`\)\."):
        fit.profile((flat, {"x": 1.0, "y": 3.0, "z": 0.0}), "z")


def test_toys_of_which_none_converged_have_no_table():
    m = incrax.bind(lambda mu, x: jnp.sum((x - mu) ** 2), mu=0.0, x=np.ones(4), roles={"x": "data"})
    found = fit.toys(m, [{"x": np.full(4, np.nan)}])
    assert found.tables() == []
    m.fix("mu")
    with pytest.raises(incrax.errors.BindError, match="^`toys` needs something trainable"):
        fit.toys(m, [{"x": np.ones(4)}])


def test_joint_models_say_what_they_take():
    square = lambda mu, x: (mu - x) ** 2
    one, two = (incrax.bind(square, mu=0.0, x=x, roles={"x": "data"}) for x in (1.0, 3.0))
    assert fit.simultaneous({"one": one, "two": two}, shared="mu").names == ("mu",)
    with pytest.raises(TypeError, match=r"it must be a `Constraint`"):
        fit.constrained(one, [fit.gaussian_constraint("mu", 0.0, 1.0)])
    with pytest.raises(TypeError, match="it must be a bound model"):
        fit.negative(square)
