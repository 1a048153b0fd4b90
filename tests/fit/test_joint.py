"""Sums of models with shared parameters, and constraints."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax
from incrax import fit

RNG = np.random.default_rng(0)
A, B = RNG.normal(1.0, 0.5, 400), RNG.normal(1.0, 2.0, 300)


def nll(params, x):
    z = (x - params["mu"]) / params["sigma"]
    return 0.5 * jnp.sum(z**2) + x.size * jnp.log(params["sigma"])


def other(mu, scale, x):
    """Of another form: its own parameter lies outside."""
    return jnp.sum(jnp.abs(jnp.tanh(x - mu))) * scale


def model(data=A, sigma=0.5, **options):
    fun = incrax.incremental(nll, tuning=MINIMAL)
    params = {"mu": 0.75, "sigma": sigma}
    return incrax.bind(fun, params=params, x=data, **{"roles": {"x": "data"}, **options})


def joint(**options):
    one = model(bounds={"sigma": (0.1, None), "mu": (-1.0, 3.0)})
    fun = incrax.incremental(other, tuning=MINIMAL)
    two = incrax.bind(fun, mu=0.75, scale=2.0, x=B, roles={"x": "data", "scale": "fixed"})
    return fit.simultaneous({"one": one, "two": two}, shared=["mu"], **options)


def test_the_sum_has_the_values_and_gradients_of_plain_jax():
    m = joint()
    expected = lambda mu, sigma, scale: nll({"mu": mu, "sigma": sigma}, A) + other(mu, scale, B)
    np.testing.assert_allclose(m.value(), expected(0.75, 0.5, 2.0), rtol=1e-12)
    m.set({"mu": 1.1, "one['params']['sigma']": 0.7, "two['scale']": 1.5})
    np.testing.assert_allclose(m.value(), expected(1.1, 0.7, 1.5), rtol=1e-12)
    step = (expected(1.1 + 1e-6, 0.7, 1.5) - expected(1.1 - 1e-6, 0.7, 1.5)) / 2e-6
    np.testing.assert_allclose(m.grad()["mu"], step, rtol=1e-6)


def test_names_roles_and_bounds_are_those_of_the_models():
    m = joint()
    assert m.roles == {
        "mu": "trainable",
        "one['params']['sigma']": "trainable",
        "one['x']": "data",
        "two['scale']": "fixed",
        "two['x']": "data",
    }
    assert {path: (float(low), float(high)) for path, (low, high) in m.bounds.items()} == {
        "mu": (-1.0, 3.0),
        "one['params']['sigma']": (0.1, np.inf),
    }
    m.set(sigma=0.2)
    assert m["one['params']['sigma']"] == 0.2


@pytest.mark.parametrize("name", ["value", "grad", "hessian"])
def test_a_parameter_of_one_model_never_touches_the_others(name):
    parts = {"one": model(A), "two": model(B, sigma=2.0)}
    m = fit.simultaneous(parts, shared=["mu"])
    whole = num_run(m, name)
    of_one = num_run(m, name, {"one['params']['sigma']": 0.6})
    of_two = num_run(m, name, {"two['params']['sigma']": 1.9})
    assert 0 < of_one < 0.6 * whole
    assert 0 < of_two < 0.6 * whole
    assert (
        num_run(m, name, {"one['params']['sigma']": 0.65, "two['params']['sigma']": 1.8, "mu": 0.8})
        > of_one + of_two - 10
    )


def num_run(m, name, values=None):
    m.set(values or {})
    getattr(m, name)()
    return len(m.explain(name).as_dict()["ran"])


def test_models_are_left_as_they_are():
    one, two = model(A), model(B, sigma=2.0)
    m = fit.simultaneous({"one": one, "two": two}, shared=["mu"])
    m.set({"mu": 2.0, "one['x']": A[:10]})
    assert one["mu"] == two["mu"] == 0.75
    np.testing.assert_allclose(one.value(), nll({"mu": 0.75, "sigma": 0.5}, A), rtol=1e-12)


def test_a_whole_input_may_be_shared():
    one, two = model(A), model(B)
    m = fit.simultaneous({"one": one, "two": two}, shared=["params"])
    assert m.trainable_paths == ("params['mu']", "params['sigma']")
    np.testing.assert_allclose(m.value(), one.value() + two.value(), rtol=1e-12)


def weighed(mu, weights, x):
    return jnp.sum((x - mu) ** 2 * (1.0 if weights is None else weights))


def test_data_of_another_structure_reach_their_own_part():
    one, two = (
        incrax.bind(weighed, mu=1.0, weights=None, x=A, roles={"x": "data"}) for _ in range(2)
    )
    m = fit.simultaneous({"one": one, "two": two}, shared=["mu"])
    m.set({"one['weights']": np.full(A.size, 10.0)})
    one.set(weights=np.full(A.size, 10.0))
    np.testing.assert_allclose(m.value(), one.value() + two.value(), rtol=1e-12)
    m = fit.simultaneous(
        {"one": incrax.bind(lambda mu, d: mu * sum(d), mu=2.0, d=[1, 2], roles={"d": "data"})},
        shared=["mu"],
    )
    m.set({"one['d']": [1, 2, 3]})
    assert m.value() == 12.0


def test_names_of_parts_and_shared_paths_are_free():
    bounded = model(bounds={"sigma": (0.1, None)})
    m = fit.simultaneous({"bounds": bounded, "roles": model(B)}, shared=["params['mu']"])
    assert m["mu"] == 0.75
    assert set(m.bounds) == {"bounds['params']['sigma']"}


def test_the_negative_of_a_model_has_its_inputs():
    base = model(bounds={"sigma": (0.1, None)})
    m = fit.negative(base)
    assert m.value() == -base.value()
    assert m.roles == base.roles
    assert set(m.bounds) == set(base.bounds)


def test_sigma_and_value_have_one_shape():
    m = incrax.bind(lambda w: 0.0 * jnp.sum(w), w=np.ones((2, 2)))
    constraint = fit.gaussian_constraint("w", np.zeros((2, 2)), [[1.0], [0.5]])
    np.testing.assert_allclose(fit.constrained(m, constraint).value(), 0.5 * (2 * 1 + 2 * 4))
    single = fit.constrained(m, fit.Constraint("w", jnp.sum))
    assert single.value() == 4.0


# --- constraints ----------------------------------------------------------------------------------


def test_a_gaussian_constraint_is_half_the_squared_distance_in_errors():
    m = fit.constrained(model(), fit.gaussian_constraint("mu", 1.0, 0.1))
    np.testing.assert_allclose(m.value() - model().value(), 0.5 * 2.5**2, rtol=1e-9)
    assert m.trainable_paths == model().trainable_paths


def test_a_constraint_of_one_parameter_runs_no_likelihood():
    base = model()
    m = fit.constrained(
        base,
        fit.Constraint(("mu",), lambda mu: 0.0 * mu),
        fit.gaussian_constraint("sigma", 0.5, 0.1),
    )
    assert fit.constrained(base).value() == base.value()
    np.testing.assert_allclose(m.value(), base.value(), rtol=1e-12)


def test_constraints_of_a_sum_are_added_once():
    m = joint(
        constraints=[
            fit.gaussian_constraint("mu", 1.0, 0.1),
            fit.gaussian_constraint("sigma", 0.6, 0.1),
        ]
    )
    np.testing.assert_allclose(m.value() - joint().value(), 0.5 * (2.5**2 + 1.0), rtol=1e-9)


# --- messages -------------------------------------------------------------------------------------

MADE = "No model was made."
PASS = "Pass `gaussian_constraint(name, value, sigma)`, with one error or one for each element."
ERRORS = {
    "other shape": (
        lambda: fit.gaussian_constraint("mu", [1.0, 2.0], sigma=[1.0, 2.0, 3.0]),
        f"The constraint of `mu` has errors that do not fit values of shape [2]. {MADE} {PASS}",
    ),
    "other number": (
        lambda: fit.constrained(model(), fit.gaussian_constraint("mu", [1.0, 2.0], 1.0)),
        f"The constraint of `mu` has 2 values for 1 elements. {MADE} {PASS}",
    ),
    "negative": (
        lambda: fit.gaussian_constraint("mu", 1.0, -0.1),
        f"The constraint of `mu` has errors that are not above zero. {MADE} {PASS}",
    ),
    "no numbers": (
        lambda: fit.gaussian_constraint("mu", "one", 0.1),
        f"The constraint of `mu` got 'one', which is no numbers. {MADE} {PASS}",
    ),
    "not finite": (
        lambda: fit.gaussian_constraint("mu", None, 0.1),
        f"The constraint of `mu` has values that are not finite. {MADE} {PASS}",
    ),
    "no model": (
        lambda: fit.simultaneous({}),
        f"`simultaneous(models)` got no models by name. {MADE} Pass a mapping of names to bound models.",
    ),
    "name of a part": (
        lambda: fit.simultaneous({"a b": model()}),
        f"`simultaneous` got 'a b' as the name of a part. {MADE} Names of parts are names of "
        "inputs: letters, digits "
        "and "
        "underscores.",
    ),
    "shared twice": (
        lambda: fit.simultaneous({"one": model()}, shared=["mu", "params"]),
        "`simultaneous(shared=...)` names `mu` and `params`, and in `one` one is part of the "
        "other. "
        f"{MADE} Share one of them.",
    ),
    "state": (
        lambda: fit.constrained(model(roles={"x": "data", "mu": "state"})),
        'The model `model` has inputs with the role "state", and a sum of models has no updates. '
        f'{MADE} Give them the role "fixed" first: `model.set_role("moments", "fixed")`.',
    ),
    "taken": (
        lambda: fit.simultaneous({"mu": model()}, shared=["mu"]),
        f"`simultaneous` got `mu` both as a model and as shared. {MADE} Rename the model.",
    ),
    "not there": (
        lambda: fit.simultaneous({"one": model(), "two": model()}, shared=["nu"]),
        "`simultaneous(shared=...)` names `nu`, and none of the models `one`, `two` has one input "
        "of this name. "
        f"{MADE} Use an input's name, a path as `print(model)` shows it, or its end where that is "
        "unique.",
    ),
    "other type": (
        lambda: fit.simultaneous(
            {"one": model(), "two": model(sigma=np.ones(2))}, shared=["sigma"]
        ),
        "`sigma` is to be shared, and is of type ['float64[2]'] in `two` but ['float64[]'] in "
        "`one`. "
        f"{MADE} Give it the same structure, shape and dtype in all models.",
    ),
}


@pytest.mark.parametrize(("call", "expected"), ERRORS.values(), ids=ERRORS)
def test_errors(call, expected):
    with pytest.raises(incrax.errors.BindError) as caught:
        call()
    assert str(caught.value) == expected


def test_a_shared_name_that_fits_twice_in_one_model():
    twice = incrax.bind(lambda a, b: a["mu"] * b["mu"], a={"mu": 1.0}, b={"mu": 2.0})
    with pytest.raises(incrax.errors.UnknownInputError, match="may be"):
        fit.simultaneous({"one": model(), "two": twice}, shared=["mu"])
