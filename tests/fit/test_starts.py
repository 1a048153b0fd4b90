"""Where a fit starts: integers of Python are parameters, arrays of integers are data, and nothing
is no parameter.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import incrax
from incrax import fit, samplers

X = np.random.default_rng(0).normal(1.0, 2.0, 50)
BEST = (X.mean(), X.std())


def nll(p, x):
    return jnp.sum(jnp.log(p["sigma"]) + 0.5 * ((x - p["mu"]) / p["sigma"]) ** 2)


def residuals(p, x):
    return jnp.stack([x - p["mu"], p["sigma"] * jnp.ones_like(x) - 1.0])


@pytest.mark.parametrize("wrt", [None, ("p['mu']", "p['sigma']"), {"mu": True, "sigma": True}])
def test_an_integer_of_python_is_fitted(wrt):
    found = fit.minimize(nll, {"mu": 2, "sigma": 1.0}, X, wrt=wrt, progress=False)
    assert found.names == ("p['mu']", "p['sigma']")
    np.testing.assert_allclose(found.values, BEST, atol=1e-2)
    assert float(found.params["mu"]) == found.values[0]


@pytest.mark.parametrize("method", ["BFGS", "Nelder-Mead", "trust-exact", "optax"])
def test_whatever_the_method(method):
    made = optax.lbfgs() if method == "optax" else method
    found = fit.minimize(nll, {"mu": 2, "sigma": 1}, X, method=made, wrt="p['mu']", progress=False)
    assert found.values == pytest.approx([BEST[0]], abs=1e-3)
    assert int(found.params["sigma"]) == 1


def test_least_squares_fit_it_as_well():
    found = fit.levenberg_marquardt(residuals, {"mu": 2, "sigma": 3}, X, progress=False)
    assert found.is_converged
    np.testing.assert_allclose(found.values, [BEST[0], 1.0], atol=1e-9)


def test_steps_move_it_and_leave_counters_of_a_network_alone():
    steps = fit.LeastSquaresSteps(lambda p, x: (x - p["mu"]) * jnp.sign(p["count"]))
    params: dict = {"mu": 2, "count": np.array(3)}
    state = steps.init(params)
    for _ in range(5):
        params, state = steps.step(params, state, X)
    assert float(params["mu"]) == pytest.approx(BEST[0], abs=1e-4)
    assert int(params["count"]) == 3


def test_samplers_sample_it():
    density = samplers.density.Density(
        "test", lambda p: -(p["mu"] ** 2) - p["s"] ** 2, ({"mu": 2, "s": 1.0},), None
    )
    assert density.names == ("p['mu']", "p['s']")


CALLS = {
    "minimize": lambda p: fit.minimize(nll, p, X),
    "levenberg_marquardt": lambda p: fit.levenberg_marquardt(residuals, p, X),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "integer", [np.array(2), np.int32(2), jnp.array([2]), np.array([1, 2], np.uint8)]
)
def test_an_array_of_integers_is_refused(name, integer):
    with pytest.raises(incrax.errors.SelectionError) as caught:
        CALLS[name]({"mu": integer, "sigma": 1.0})
    seen = f"{jnp.asarray(integer).dtype}[{','.join(map(str, np.shape(integer)))}]"
    assert str(caught.value) == (
        f"`{name}` was asked to move `p['mu']` of type {seen}, and integers have no derivative: it "
        "would stay "
        "where it is. This is usually a number without a decimal point. Nothing was evaluated or "
        "stored. Write 1.0 "
        "instead of 1, "
        "`np.array([1.0, 2.0])`; if it is no parameter, pass it as another argument or leave it "
        "out of `wrt`."
    )


def test_integers_of_numpy_stay_data_and_flags_stay_flags():
    counts, seen = np.array([1, 2, 3]), []

    def fun(p, n, k):
        seen.append(tuple(jnp.asarray(each).dtype for each in (n, k, p["flag"])))
        return jnp.sum((p["mu"] - n[k]) ** 2) + 0.0 * p["flag"]

    found = fit.minimize(fun, {"mu": 1, "flag": True}, counts, 2, progress=False)
    assert found.names == ("p['mu']",)
    assert found.values == pytest.approx([3.0], abs=1e-2)
    assert {tuple(dtype.kind for dtype in each) for each in seen} == {("i", "i", "b")}
    part = fit.minimize(
        lambda p: (p["a"] - p["n"][1]) ** 2, {"a": 0, "n": counts}, wrt="p['a']", progress=False
    )
    assert part.values == pytest.approx([2.0], abs=1e-2)


@pytest.mark.parametrize("name", ["minimize", "levenberg_marquardt"])
def test_no_parameters_are_refused(name):
    with pytest.raises(fit.ParameterTypeError) as caught:
        getattr(fit, name)(lambda p: jnp.sum(p), np.zeros((0, 2)))
    assert str(caught.value) == (
        f"`{name}` has no parameter to fit: `p` without any element. This is usually an array that "
        "was cut or filtered "
        "to nothing. Nothing was evaluated. Pass at least one number, or name what is free by "
        "`wrt`."
    )
    with pytest.raises(incrax.errors.SelectionError, match="the call has no positional arguments"):
        getattr(fit, name)(lambda: jnp.zeros(()))
    with pytest.raises(fit.ParameterTypeError, match="has no parameter to fit: `w`"):
        getattr(fit, name)(incrax.bind(lambda w: jnp.sum(w), w=np.zeros(0)))


# --- bound models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fitted", [fit.minimize, fit.levenberg_marquardt])
def test_a_bound_integer_of_python_is_trainable(fitted):
    fun = nll if fitted is fit.minimize else residuals
    model = incrax.bind(
        fun, p={"mu": 2, "sigma": 1}, x=X, roles={"x": "data"}, bounds={"sigma": (0.1, None)}
    )
    assert model.names == ("p['mu']", "p['sigma']")
    assert model["mu"] == 2.0
    assert fitted(model, progress=False).is_converged
    assert model["mu"] == pytest.approx(BEST[0], abs=1e-2)


def test_a_fixed_integer_is_a_parameter_and_data_stay_integers():
    model = incrax.bind(
        lambda mu, n, x: (mu - x[n]) ** 2,
        mu=2,
        n=1,
        x=np.array([3, 4]),
        roles={"mu": "fixed", "n": "data"},
    )
    assert isinstance(model["mu"], float)
    assert type(model["n"]) is int
    assert model["x"].dtype.kind == "i"
    model.set(mu=2.5)
    model.set_role("mu", "trainable")
    fit.minimize(model, progress=False)
    assert model["mu"] == pytest.approx(4.0, abs=1e-2)
    with pytest.raises(incrax.errors.BindError, match=r"Write 1\.0 instead of 1"):
        model.set_role("x", "trainable")
    model.set_role("n", "trainable")
    assert isinstance(model["n"], float)
