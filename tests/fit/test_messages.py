"""The exact text of the errors of fits; nothing is evaluated where one is raised."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import fit

START = {"a": 1.0, "b": np.zeros(2)}
USE = (
    " Nothing was evaluated. Pass a mapping of paths to pairs, with None for no bound: "
    "`bounds={\"params['sigma']\": (0, None)}`; of one array also a pair for each element."
)


def never(p):
    raise AssertionError("evaluated")


def ones(p):
    return jnp.stack([p["a"], *p["b"]])


def text_of(kind, fun, start=START, **options):
    with pytest.raises(kind) as caught:
        fit.levenberg_marquardt(fun, start, **options)
    return str(caught.value)


def test_a_loss_that_does_not_exist():
    assert text_of(ValueError, never, loss="hubert") == (
        "`levenberg_marquardt(loss=...)` got 'hubert'. Nothing was evaluated. Use one of "
        '"squares", "huber", '
        '"soft_l1", "cauchy", "arctan".'
    )


def test_a_complex_parameter_of_a_model():
    with pytest.raises(fit.ParameterTypeError) as caught:
        fit.levenberg_marquardt(incrax.bind(never, p={"a": 1j}))
    assert str(caught.value) == (
        "`levenberg_marquardt` was asked to fit `p['a']` of type complex128[], and only `minimize` "
        "and `levenberg_marquardt` of a function itself fit complex parameters, by their parts. "
        "Nothing was evaluated. Pass real and imaginary part as two parameters, or leave it out of "
        "`wrt`."
    )


def test_a_bound_of_what_is_not_free():
    assert text_of(fit.BoundsError, never, bounds={"p['c']": (0, 1)}) == (
        "`levenberg_marquardt(bounds=...)` names `p['c']`, and no free parameter has this path. "
        "This is "
        "usually a typing "
        "error, or a parameter that `wrt` leaves out. Nothing was evaluated. Free are `p['a']`, "
        "`p['b']`. Did you mean `p['b']`?"
    )


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ([(0, 1)], "[(0, 1)]: it is no mapping of paths to pairs."),
        ({"p['a']": 3}, "3 for `p['a']`: it is no pair (lower, upper)."),
        ({"p['a']": (2, 1)}, "(2, 1) for `p['a']`: the lower bound is not below the upper one."),
        (
            {"p['b']": (0, np.ones(3))},
            "(0, array([1., 1., 1.])) for `p['b']`: it does not fit the shape [2].",
        ),
    ],
)
def test_bounds_that_cannot_be_understood(bounds, reason):
    assert (
        text_of(fit.BoundsError, never, bounds=bounds)
        == f"`levenberg_marquardt(bounds=...)` got {reason}{USE}"
    )


def test_a_start_outside_of_its_bounds():
    assert text_of(fit.BoundsError, never, bounds={"p['b']": (0.5, None)}) == (
        "`levenberg_marquardt` starts with `p['b'][0]` = 0, outside of its bounds (0.5, inf). "
        "Nothing was "
        "evaluated. Start "
        "inside, or widen the bounds."
    )


def test_a_function_without_residuals():
    assert text_of(fit.ParameterTypeError, lambda p: None) == (
        "`levenberg_marquardt` needs a function that returns residuals, and got None from it. "
        "Nothing was "
        "evaluated. Return "
        "an array, or a pytree of arrays, whose squares are to be summed; for a scalar cost pass "
        "`prepare(cost, ...).flat` to a minimiser."
    )


def test_what_is_no_function():
    assert "`levenberg_marquardt(residuals)`" in text_of(TypeError, 3)


def square(a):
    return (a - 1.0) ** 2


CONSTRAINT = fit.gaussian_constraint("a", 0.0, 1.0)
NO_MODEL = {
    "toys(model)": lambda: fit.toys(square, [{}]),
    "constrained(model)": lambda: fit.constrained(square, CONSTRAINT),
    "simultaneous(models)": lambda: fit.simultaneous({"a": square}),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_a_function_where_a_bound_model_is_needed(name):
    with pytest.raises(TypeError, match=r"`incrax.bind\(f, ...\)`\.$") as caught:
        NO_MODEL[name]()
    assert str(caught.value).startswith(f"`{name}` got <function square")


def test_a_data_set_that_is_no_mapping():
    model = incrax.bind(
        lambda a, x: jnp.sum((x - a) ** 2), a=1.0, x=np.zeros(900), roles={"x": "data"}
    )
    with pytest.raises(TypeError) as caught:
        fit.toys(model, [np.zeros(900)])
    text = str(caught.value)
    assert text.startswith("`toys(data_sets)` got array([0., 0.,")
    assert text.endswith('... of type ndarray; it must be a mapping, `{"x": x}`, for each fit.')
    assert len(text) < 300


@pytest.mark.parametrize("scan", [fit.profile, fit.impacts])
def test_a_function_where_a_fit_is_needed(scan):
    with pytest.raises(TypeError, match="it must be a fit, a bound model, or a tuple of what"):
        scan(square, "a")
