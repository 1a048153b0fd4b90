"""One interface for all derivatives: plain JAX is the oracle; types are strict; minimisers take the
flat view.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from helpers import MINIMAL, primitives_run, same

import incrax

DATA = np.linspace(0.5, 1.5, 40)
PARAMS = {"mu": 0.7, "w": np.array([[0.2, 0.4], [0.6, 0.8]])}


def loss(params, data, power=2):
    t = (data - params["mu"]) ** power
    return (
        jnp.mean(t) + jnp.sum(params["w"] ** 4) * jnp.mean(data) + params["mu"] * params["w"][0, 1]
    )


def residuals(params, data):
    return {"main": params["mu"] * data**2 - 1.0, "prior": params["w"] - params["mu"]}


def prepared(fun=loss, args=(PARAMS, DATA), **options):
    return incrax.prepare(fun, *args, tuning=MINIMAL, **options)


# --- as functions of the arguments ----------------------------------------------------------------


def test_value_and_derivatives_are_those_of_jax():
    p = prepared()
    same(p.value(PARAMS, DATA), jax.jit(loss)(PARAMS, DATA))
    same(p.gradient(PARAMS, DATA), jax.grad(loss)(PARAMS, DATA))
    same(p.value_and_gradient(PARAMS, DATA), jax.value_and_grad(loss)(PARAMS, DATA))
    same(p.hessian(PARAMS, DATA), jax.hessian(loss)(PARAMS, DATA), factor=1024)
    of_residuals = prepared(residuals)
    same(of_residuals.jacobian(PARAMS, DATA), jax.jacobian(residuals)(PARAMS, DATA))


def test_products_of_derivatives_are_those_of_jax():
    p = prepared()
    tangent = {"mu": 1.0, "w": np.ones((2, 2))}
    gradient = lambda params: jax.grad(loss)(params, DATA)
    same(
        p.hvp(PARAMS, DATA, tangent=tangent),
        jax.jvp(gradient, (PARAMS,), (tangent,))[1],
        factor=1024,
    )
    value, pull = p.pullback(PARAMS, DATA)
    same(value, jax.jit(loss)(PARAMS, DATA))
    same(pull(1.0), gradient(PARAMS))
    value, push = p.pushforward(PARAMS, DATA)
    same(value, jax.jit(loss)(PARAMS, DATA))
    expected = jax.jvp(lambda params: loss(params, DATA), (PARAMS,), (tangent,))[1]
    assert float(push(tangent)) == pytest.approx(float(expected), rel=1e-14)


def test_the_selection_is_that_of_wrt():
    p = prepared(wrt=("params['w']", "data"))
    assert p.paths == ("params['w']", "data")
    w, data = p.gradient(PARAMS, DATA)
    same(w, jax.grad(loss)(PARAMS, DATA)["w"])
    same(data, jax.grad(loss, 1)(PARAMS, DATA))
    same(p.pullback(PARAMS, DATA)[1](1.0), (w, data))


def test_methods_are_incremental():
    p = prepared()
    for mu in (0.7, 0.8):
        p.gradient({**PARAMS, "mu": mu}, DATA)
    before = p.stats["gradient"].ran
    p.gradient({**PARAMS, "mu": 0.8}, DATA)
    assert p.stats["gradient"].ran == before
    assert p.stats["gradient"].traces == 1
    assert set(p.stats) == {"gradient"}


def test_nothing_is_traced_before_the_first_call():
    traced = []

    def f(x):
        traced.append(1)
        return x**2

    p = incrax.prepare(f, 2.0)
    assert traced == []
    assert float(p.value(3.0)) == 9.0


def test_what_is_cut_is_left_out():
    args = {**PARAMS, "w": incrax.cut(PARAMS["w"])}, DATA
    p = prepared(args=args)
    same(p.value(*args), jax.jit(loss)(PARAMS, DATA))
    gradient = p.gradient(*args)
    same(gradient["mu"], jax.grad(loss)(PARAMS, DATA)["mu"])
    assert gradient["w"] is None
    assert p.flat.names == ("params['mu']",)
    assert p.flat.gradient([0.7]) == pytest.approx([float(gradient["mu"])], rel=1e-14)


def test_marks_are_taken_off_before_the_function_is_called():
    """Functions of `jax.lax` refuse marked leaves."""
    p = prepared(lambda x, t: x * jax.lax.sin(t), (2.0, incrax.cut(jnp.array(0.5))))
    assert float(p.value(2.0, incrax.cut(jnp.array(0.5)))) == pytest.approx(
        2 * np.sin(0.5), rel=1e-14
    )


def test_inside_a_compiled_function_it_is_the_plain_function():
    p = prepared()
    same(jax.jit(p.gradient)(PARAMS, DATA), jax.grad(loss)(PARAMS, DATA))
    same(
        jax.vmap(lambda mu: p.value({**PARAMS, "mu": mu}, DATA))(jnp.ones(2))[0],
        jax.jit(loss)({**PARAMS, "mu": jnp.ones(())}, DATA),
    )


# --- strict about types ---------------------------------------------------------------------------

OTHER_TYPES = {
    "shape": (({**PARAMS, "w": np.ones(3)}, DATA), "`params['w']` as float64[3]", "float64[2, 2]"),
    "dtype": ((PARAMS, DATA.astype(np.float32)), "`data` as float32[40]", "float64[40]"),
    "integer": (({**PARAMS, "mu": 1}, DATA), "`params['mu']` as int64[]", "float64[]"),
    "static": (
        ({**PARAMS, "mu": "high"}, DATA),
        "`params['mu']` as 'high' of type str",
        "float64[]",
    ),
    "structure": (
        ({"mu": 0.7}, DATA),
        "`params` as PyTreeDef({'mu': *})",
        "PyTreeDef({'mu': *, 'w': *})",
    ),
}
METHODS = (
    "value",
    "gradient",
    "value_and_gradient",
    "jacobian",
    "hessian",
    "pullback",
    "pushforward",
)


@pytest.mark.parametrize("case", OTHER_TYPES)
@pytest.mark.parametrize("method", METHODS)
def test_an_argument_of_another_type_is_an_error_that_names_it(method, case):
    args, seen, expected = OTHER_TYPES[case]
    p = prepared()
    with pytest.raises(incrax.errors.PreparedTypeError) as caught:
        getattr(p, method)(*args)
    assert str(caught.value) == (
        f"`prepare(f).{method}` got {seen}; it was prepared for {expected}. Nothing was evaluated "
        "or stored. Convert "
        "it, or prepare the function for this type."
    )
    assert p.stats == {}


def test_another_static_value_is_an_error_that_names_it():
    p = prepared(lambda x, mode: x if mode == "plain" else -x, (1.0, "plain"))
    assert float(p.value(2.0, "plain")) == 2.0
    with pytest.raises(
        incrax.errors.PreparedTypeError,
        match="`mode` as 'other' of type str; .* for 'plain' of type str",
    ):
        p.value(2.0, "other")
    with pytest.raises(
        incrax.errors.PreparedTypeError, match=r"`mode` as float64\[\]; .* for 'plain' of type str"
    ):
        p.value(2.0, 1.0)


def test_another_number_of_arguments_is_an_error():
    with pytest.raises(incrax.errors.PreparedTypeError) as caught:
        prepared().value(PARAMS)
    assert str(caught.value) == (
        "`prepare(f).value` got 1 arguments; it was prepared for 2. Nothing was evaluated or "
        "stored. Pass arguments "
        "like those given to `prepare`, all by position."
    )


def test_arrays_of_numpy_and_jax_and_python_numbers_are_of_one_type():
    p = prepared()
    same(p.value({**PARAMS, "mu": np.float64(0.7)}, jnp.asarray(DATA)), p.value(PARAMS, DATA))


def test_a_masked_array_is_an_error():
    with pytest.raises(incrax.errors.PreparedTypeError, match="`data` as an array that is masked"):
        prepared().value(PARAMS, np.ma.masked_array(DATA))


def test_what_cannot_be_selected_is_an_error_at_once():
    with pytest.raises(
        incrax.errors.SelectionError, match="`prepare` has nothing to differentiate"
    ):
        incrax.prepare(lambda n: n, 3)
    with pytest.raises(incrax.errors.UnknownInputError):
        prepared(wrt="params['x']")
    with pytest.raises(TypeError, match=r"`prepare\(fun\)` got 3"):
        incrax.prepare(3)


# --- as functions of one vector -------------------------------------------------------------------

X0 = np.array([0.7, 0.2, 0.4, 0.6, 0.8])


def of_vector(x):
    return loss({"mu": x[0], "w": x[1:].reshape(2, 2)}, DATA)


def test_the_flat_view_has_the_elements_of_the_selection():
    flat = prepared().flat
    np.testing.assert_array_equal(flat.x0, X0)
    assert flat.x0.dtype == np.float64
    assert flat.names == (
        "params['mu']",
        "params['w'][0, 0]",
        "params['w'][0, 1]",
        "params['w'][1, 0]",
        "params['w'][1, 1]",
    )


def test_flat_derivatives_are_those_of_a_function_of_a_vector():
    flat = prepared().flat
    x = X0 + 0.1
    assert flat.value(x) == pytest.approx(float(of_vector(x)), rel=1e-14)
    assert type(flat.value(x)) is float
    np.testing.assert_allclose(flat.gradient(x), jax.grad(of_vector)(x), rtol=1e-13)
    np.testing.assert_allclose(flat.hessian(x), jax.hessian(of_vector)(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(flat.hvp(x, X0), jax.hessian(of_vector)(x) @ X0, rtol=1e-12)
    value, gradient = flat.value_and_gradient(x)
    assert value == pytest.approx(flat.value(x), rel=1e-14)
    np.testing.assert_allclose(gradient, flat.gradient(x), rtol=1e-13)


def test_flat_residuals_have_rows_and_columns():
    flat = prepared(residuals).flat

    def of_vector(x):
        out = residuals({"mu": x[0], "w": x[1:].reshape(2, 2)}, DATA)
        return jnp.concatenate([out["main"], out["prior"].ravel()])

    np.testing.assert_allclose(flat.value(X0), of_vector(X0), rtol=1e-14)
    np.testing.assert_allclose(flat.jacobian(X0), jax.jacobian(of_vector)(X0), rtol=1e-13)


def test_a_leaf_without_elements_has_no_rows_and_no_columns():
    loss = lambda p: jnp.sum(p["x"] ** 2) + (p["a"] - 2) ** 2
    flat = incrax.prepare(loss, {"x": np.zeros((0, 3)), "a": 1.0}).flat
    np.testing.assert_allclose(flat.gradient(flat.x0), [-2.0])
    np.testing.assert_allclose(flat.hessian(flat.x0), [[2.0]])


def test_flat_vectors_go_back_into_shape():
    flat = prepared(wrt=["params['w']", "data"]).flat
    w, data = flat.unflatten(2 * flat.x0)
    np.testing.assert_array_equal(w, 2 * PARAMS["w"])
    np.testing.assert_array_equal(data, 2 * DATA)
    params, _ = flat.arguments(2 * flat.x0)
    assert params["mu"] == 0.7
    np.testing.assert_array_equal(params["w"], w)


def test_a_leaf_that_is_named_twice_is_one_in_the_vector():
    flat = prepared(wrt=("params['mu']", "params['w']", "params['mu']")).flat
    np.testing.assert_array_equal(flat.x0, X0)
    np.testing.assert_allclose(flat.gradient(X0), jax.grad(of_vector)(X0), rtol=1e-13)
    np.testing.assert_allclose(flat.hessian(X0), jax.hessian(of_vector)(X0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(flat.hvp(X0, X0), jax.hessian(of_vector)(X0) @ X0, rtol=1e-12)


def test_the_flat_view_shares_traces_with_the_methods():
    p = prepared()
    p.gradient(PARAMS, jnp.asarray(DATA))
    p.flat.gradient(X0)
    assert p.stats["gradient"].traces == 1


def test_the_flat_view_runs_only_what_an_element_reaches():
    p = prepared(
        lambda params, data: jnp.sum(jnp.exp(params["w"])) + params["mu"] * jnp.sum(jnp.sin(data))
    )
    p.flat.value(X0)
    p.flat.value(X0 + np.array([0.1, 0, 0, 0, 0]))
    assert p.stats["value"].loaded == 2
    assert not {"exp", "sin", "reduce_sum"} & set(primitives_run(p._made["value"]))


def test_the_flat_view_keeps_its_data():
    data = DATA.copy()
    p = prepared(args=(PARAMS, data))
    value = p.flat.value(X0)
    data[:] = 0.0
    assert p.flat.value(X0) == value


def test_single_precision_leaves_stay_what_they_are():
    flat = prepared(lambda x: jnp.sum(x**2), (np.array([1.0, 2.0], np.float32),)).flat
    assert flat.arguments(flat.x0)[0].dtype == np.float32
    assert flat.gradient(flat.x0).dtype == np.float64
    np.testing.assert_array_equal(flat.gradient(flat.x0), [2.0, 4.0])


@pytest.mark.parametrize(
    ("x", "seen"),
    [(np.ones(3), "float64[3]"), (np.ones((5, 1)), "float64[5, 1]"), (1j * X0, "complex128[5]")],
)
def test_a_vector_of_another_type_is_an_error(x, seen):
    with pytest.raises(incrax.errors.TangentError) as caught:
        prepared().flat.value(x)
    assert str(caught.value) == (
        f"`prepare(f).flat` got a vector of type {seen}, and the selection has 5 elements. Nothing "
        "was evaluated or "
        "stored. Pass a vector like `flat.x0`."
    )


def test_complex_leaves_have_no_flat_view():
    p = prepared(lambda z: jnp.abs(z) ** 2, (1.0 + 2.0j,))
    with pytest.raises(incrax.errors.SelectionError) as caught:
        p.flat  # noqa: B018
    assert str(caught.value) == (
        "`prepare(f).flat` is a vector of real numbers, and `z` is complex128[]. Nothing was "
        "evaluated or stored. Pass "
        "its real and imaginary parts as two arguments, or leave it out of `wrt`."
    )


# --- minimisers -----------------------------------------------------------------------------------


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


START = np.array([-1.2, 1.0])


@pytest.mark.parametrize("method", ["BFGS", "trust-exact", "Newton-CG"])
def test_scipy_minimises_by_the_flat_view(method):
    flat = prepared(rosenbrock, (START,)).flat
    given = (
        {"hessp": flat.hvp}
        if method == "Newton-CG"
        else {}
        if method == "BFGS"
        else {"hess": flat.hessian}
    )
    found = scipy.optimize.minimize(flat.value, flat.x0, jac=flat.gradient, method=method, **given)
    np.testing.assert_allclose(flat.unflatten(found.x), [1.0, 1.0], rtol=1e-4)


def test_scipy_fits_residuals_by_the_flat_view():
    flat = prepared(residuals).flat
    found = scipy.optimize.least_squares(flat.value, flat.x0, jac=flat.jacobian)
    assert found.success
    np.testing.assert_allclose(
        flat.unflatten(found.x)["w"], flat.unflatten(found.x)["mu"], rtol=1e-6
    )


def test_minuit_minimises_by_the_flat_view():
    iminuit = pytest.importorskip("iminuit")
    flat = prepared(rosenbrock, (START,)).flat
    minuit = iminuit.Minuit(flat.value, flat.x0, grad=flat.gradient, name=flat.names)
    minuit.errordef = 1.0
    assert minuit.migrad().valid
    np.testing.assert_allclose(minuit.values, [1.0, 1.0], rtol=1e-2)
    assert minuit.parameters == ("x[0]", "x[1]")


def test_optimistix_minimises_inside_its_own_trace():
    optimistix = pytest.importorskip("optimistix")
    p = prepared(rosenbrock, (START,))
    solver = optimistix.BFGS(rtol=1e-10, atol=1e-10)
    found = optimistix.minimise(lambda x, _: p.value(x), solver, START, max_steps=1000)
    np.testing.assert_allclose(found.value, [1.0, 1.0], rtol=1e-4)
