"""What users write for what is free: elements, short names, positional bounds, complex
parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import fit

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
)

START = {"w": np.zeros(3), "s": 0.5}
TARGET = np.array([1.0, 2.0, 3.0])
TARGETS = np.array([1.0 + 2.0j, -0.5j])


def loss(p):
    return jnp.sum((p["w"] - TARGET) ** 2) + (p["s"] - 1.0) ** 2


def complex_loss(c):
    return jnp.sum(jnp.abs(c - TARGETS) ** 2)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrt", "free"),
    [
        ("w", {0, 1, 2}),
        ("w[1]", {1}),
        ("p['w'][1]", {1}),
        (("w[0]", "p['w'][2]"), {0, 2}),
    ],
)
def test_elements_named_by_wrt_move_and_others_stay(wrt, free):
    found = fit.minimize(loss, START, wrt=wrt)
    assert found.names == tuple(f"p['w'][{k}]" for k in sorted(free))
    expected = [TARGET[k] if k in free else 0.0 for k in range(3)]
    np.testing.assert_allclose(found.params["w"], expected, atol=1e-4)
    assert found.params["s"] == 0.5
    residuals = lambda p: jnp.append(p["w"] - TARGET, p["s"] - 1.0)
    squares = fit.levenberg_marquardt(residuals, START, wrt=wrt)
    np.testing.assert_allclose(squares.params["w"], expected, atol=1e-9)


@pytest.mark.parametrize("name", ["w[3]", "w.re[0]", "v[0]"])
def test_elements_that_do_not_exist(name):
    with pytest.raises(incrax.errors.UnknownInputError, match="names no input"):
        fit.minimize(loss, START, wrt=("s", name))
    with pytest.raises(incrax.errors.UnknownInputError, match="names no input"):
        fit.minimize(complex_loss, np.zeros(2, complex), wrt="c[2]")


@pytest.mark.parametrize("method", ["migrad", "BFGS", "trust-exact"])
def test_methods_see_the_free_elements_alone(method):
    found = fit.minimize(loss, START, wrt=("w[1]", "s"), method=method)
    np.testing.assert_allclose(sorted(found.values), [1.0, 2.0], atol=1e-4)
    np.testing.assert_allclose(found.errors, 0.5**0.5, rtol=1e-6)


def test_scans_and_intervals_take_the_ends_of_names():
    found = fit.minimize(loss, START)
    line = fit.profile(found, "s", grid=[0.0, 1.0])
    assert line.axes == ("p['s']",)
    np.testing.assert_allclose(line.rise, [1.0, 0.0], atol=1e-4)
    assert fit.scan2d(found, "s", "w[0]", num_points=2).axes == ("p['s']", "p['w'][0]")
    assert fit.contour(found, "s", "w[0]", num_points=8).axes == ("p['s']", "p['w'][0]")
    assert found.minos("s")["s"] == found.intervals["p['s']"]
    with pytest.raises(fit.MinimumError, match="twice"):
        fit.scan2d(found, "s", "p['s']")
    with pytest.raises(fit.MinimumError, match="may be `p\\['w'\\]\\[0\\]`"):
        fit.profile(found, "w")


def test_elements_of_a_matrix_are_named_with_or_without_a_space():
    found = fit.minimize(
        lambda m: jnp.sum((m - jnp.arange(4.0).reshape(2, 2)) ** 2), np.ones((2, 2))
    )
    for name in ("m[1, 0]", "m[1,0]"):
        np.testing.assert_allclose(found[name], 2.0, rtol=1e-6)
    with pytest.raises(fit.MinimumError, match=r"m\[1,2\]"):
        found["m[1,2]"]


def test_a_contour_says_in_which_unit_its_level_was_given():
    found = fit.minimize(loss, START)
    levels = {
        0.68: "the confidence level 0.68",
        1: "1 sigma",
        2: "2 sigma",
    }
    for cl, level in levels.items():
        assert f" at {level}:" in str(fit.contour(found, "s", "w[0]", cl=cl, num_points=5))


def test_confidence_levels_are_those_of_two_elements():
    """chi2 of two degrees of freedom: 68 % at 2.279, one standard deviation at 2.296."""
    found = fit.minimize(loss, START)
    levels = [fit.contour(found, "s", "w[0]", cl=cl, num_points=5).level for cl in (0.68, 1, 2)]
    np.testing.assert_allclose(np.array(levels) / 0.5, [2.2789, 2.2957, 6.1801], rtol=1e-4)


def test_derivatives_take_the_ends_of_names():
    gradient = incrax.grad(loss, wrt=("s", "w"))(START)
    assert float(gradient[0]) == -1.0
    two = lambda a, b: a["mu"] * b["mu"]
    with pytest.raises(incrax.errors.AmbiguousInputError) as caught:
        incrax.grad(two, wrt="mu")({"mu": 1.0}, {"mu": 2.0})
    assert str(caught.value) == (
        "`mu` may be `a['mu']`, `b['mu']`. Nothing was evaluated or stored. Write the whole path of "
        "the one you mean."
    )


# --- bounds ---------------------------------------------------------------------------------------


def test_bounds_of_elements_and_by_short_names():
    bounds = {"w": (None, 2.5), "w[0]": (-1.0, 0.5), "p['w'][1]": (-1.0, 1.5), "s": (0.0, 0.75)}
    found = fit.minimize(loss, START, bounds=bounds)
    np.testing.assert_allclose(found.params["w"], [0.5, 1.5, 2.5], atol=1e-3)
    np.testing.assert_allclose(found.params["s"], 0.75, atol=1e-3)


def test_bounds_of_an_array_are_a_pair_of_arrays():
    square = lambda w: jnp.sum((w - TARGET) ** 2)
    found = fit.minimize(square, np.zeros(3), bounds={"w": ([0, -np.inf, 0], [0.5, np.inf, 1])})
    np.testing.assert_allclose(found.params, [0.5, 2.0, 1.0], atol=0.01)


def test_a_short_name_of_several_bounds():
    two = lambda p: p["a"]["mu"] ** 2 + p["b"]["mu"] ** 2
    start = {"a": {"mu": 0.5}, "b": {"mu": 0.5}}
    with pytest.raises(fit.BoundsError) as caught:
        fit.minimize(two, start, bounds={"mu": (0, 1)})
    assert str(caught.value) == (
        "`minimize(bounds=...)` names `mu`, which may be `p['a']['mu']`, `p['b']['mu']`. Nothing "
        "was evaluated. Write the whole path of the one you mean."
    )


# --- complex --------------------------------------------------------------------------------------


def test_a_complex_parameter_is_fitted_by_its_parts():
    found = fit.minimize(complex_loss, np.zeros(2, complex))
    assert found.names == ("c.re[0]", "c.re[1]", "c.im[0]", "c.im[1]")
    np.testing.assert_allclose(found.params, TARGETS, atol=1e-4)
    np.testing.assert_allclose(found.errors, 0.5**0.5, rtol=1e-6)
    squares = fit.levenberg_marquardt(lambda c: c - TARGETS, np.zeros(2, complex))
    np.testing.assert_allclose(squares.params, TARGETS, atol=1e-9)


def test_a_fit_runs_no_operation_of_jax_by_itself():
    """One program is compiled, and none for each operation that takes vectors apart."""
    start = {"c": np.zeros(2, complex), "s": 1.0, "held": jnp.ones(3)}
    loss = lambda p: complex_loss(p["c"]) + (p["s"] - p["held"].sum()) ** 2
    fun = incrax.incremental(loss, tuning=incrax.Tuning(timed=False))
    seen = []
    note = lambda params, value: seen.append(params)
    first = fit.minimize(fun, start, wrt=("p['c'][0]", "s"), callback=note)
    assert first.errors.shape == (3,)  # what any program needs
    compiled.clear()
    found = fit.minimize(fun, start, wrt=("p['c'][0]", "s"), callback=note)
    assert isinstance(found.params["c"], jax.Array)
    assert isinstance(found.free[1], jax.Array)
    assert found.params["held"] is start["held"]
    assert found.errors.shape == (3,)
    assert seen
    assert len(compiled) <= 1


def test_complex_elements_and_their_parts_by_name():
    start = np.full(2, 0.25 + 0.25j)
    at = lambda wrt: np.asarray(fit.minimize(complex_loss, start, wrt=wrt).params)
    np.testing.assert_allclose(at("c[0]"), [1.0 + 2.0j, start[1]], atol=1e-4)
    np.testing.assert_allclose(at(("c[0]", "c.im[1]")), [1.0 + 2.0j, 0.25 - 0.5j], atol=1e-4)
    bounds = {"c.re": (0.25, None), "c.im[0]": (0, 1)}
    found = fit.minimize(complex_loss, start, bounds=bounds)
    np.testing.assert_allclose(found.params, [1.0 + 1.0j, 0.25 - 0.5j], atol=1e-3)


def test_bounds_by_position_are_those_of_one_array():
    square = lambda w: jnp.sum((w - TARGET) ** 2)
    found = fit.minimize(square, np.zeros(3), bounds=[(0, 0.5), (None, None), [0, 1]])
    np.testing.assert_allclose(found.params, [0.5, 2.0, 1.0], atol=0.01)
    with pytest.raises(fit.BoundsError, match=r"got 2 pairs: `w` has 3 elements"):
        fit.minimize(square, np.zeros(3), bounds=[(0, 1), (0, 1)])
    with pytest.raises(fit.BoundsError, match="no mapping"):  # the order of keys is JAX's
        fit.minimize(loss, START, bounds=[(0, 1)] * 4)


def test_an_element_of_a_complex_array_is_both_of_its_parts():
    found = fit.minimize(complex_loss, np.zeros(2, complex), bounds={"c[0]": (-0.25, 0.25)})
    first = TARGETS[0]
    np.testing.assert_allclose(found["c[0]"], np.clip([first.real, first.imag], -0.25, 0.25))
    np.testing.assert_allclose(found["c.im[1]"], TARGETS[1].imag, atol=1e-3)
    assert found["c"].shape == (4,)
    assert found.error("c[1]").shape == (2,)


def test_an_incremental_function_of_complex_parameters_keeps_its_options():
    f = incrax.incremental(complex_loss, policy="exact")
    found = fit.minimize(f, np.zeros(2, complex))
    np.testing.assert_allclose(found.params, TARGETS, atol=1e-4)


def test_a_callback_has_complex_parameters():
    seen = []
    note = lambda params, value: seen.append(params)
    fit.minimize(complex_loss, np.zeros(2, complex), callback=note)
    assert all(np.iscomplexobj(each) for each in seen)


# --- second derivatives ---------------------------------------------------------------------------


def test_errors_and_scans_compile_no_hessian():
    """They go by differences of gradients, as good as the Hessian that is there on demand."""
    coupled = lambda p: 0.5 * (jnp.sum(p["w"] - 1.0) * p["s"]) ** 2
    mixture = lambda p: jnp.sum(jnp.log1p((p["w"] - TARGET) ** 2)) + coupled(p) + p["s"] ** 2
    start = {"w": np.ones(3), "s": 0.1}
    found = fit.minimize(mixture, start, bounds={"s": (-1.0, 1.0)})
    near = fit.minimize(mixture, start, bounds={"s": (-0.2, 1.0)})  # Minuit knows little there
    for each in (found, near):
        fit.profile(each, "s", num_points=3, width=0.3)
        fit.impacts(each, "s")
        assert "hessian" not in each.task.prepared.methods
    np.testing.assert_allclose(found.second_derivatives, found.hessian, atol=1e-6)
    exact = np.sqrt(np.diagonal(np.linalg.inv(found.hessian)))
    np.testing.assert_allclose(found.errors, exact, rtol=1e-6)


def test_what_differences_do_not_determine_has_the_exact_hessian():
    flat = lambda p: jnp.sum(p["w"]) ** 2 + (p["s"] - 1.0) ** 2
    found = fit.minimize(flat, START)
    np.testing.assert_array_equal(found.second_derivatives, found.hessian)
    assert np.isinf(found.errors).sum() == 3
