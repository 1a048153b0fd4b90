"""`assert_ran` fails when, and only when, something else ran."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax

X = np.linspace(0.1, 2.0, 20)


def resolution(x, width):
    return jnp.exp(-x * width)


def model(params, x):
    shape = incrax.keep(jnp.sin(resolution(x, params["width"])), name="shape")
    return jnp.sum(shape) * params["yield"] + jnp.sum(jnp.cos(params["phase"] * x))


PARAMS = {"width": 1.0, "yield": 2.0, "phase": np.float64(0.5)}


def after(*changes):
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, X)
    for change in changes:
        f({**PARAMS, **change}, X)
    return f


# --- assert_ran -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "only", "never"),
    [
        ({"yield": 3.0}, ["params['yield']"], ["exp", "sin", "cos"]),
        ({"phase": np.float64(1.0)}, ["params['phase']"], ["exp", "sin", "x"]),
        ({"width": 3.0}, ["params['width']", "params['yield']"], ["cos"]),
        ({"width": 3.0}, ["params"], ["cos"]),
        ({}, (), ["params", "x"]),
    ],
)
def test_what_ran_is_what_the_change_reaches(change, only, never):
    f = after(change)
    if "x" in never and change:
        with pytest.raises(AssertionError):
            incrax.assert_ran(f, never=["x"])
        never = [name for name in never if name != "x"]
    incrax.assert_ran(f, only=only, never=never)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"width": 3.0}, {"only": ["params['yield']"]}),
        ({"width": 3.0}, {"never": ["exp"]}),
        ({"phase": np.float64(1.0)}, {"only": ["cos"]}),
        ({"yield": 3.0}, {"only": ()}),
    ],
)
def test_it_fails_where_something_else_ran(change, options):
    with pytest.raises(AssertionError):
        incrax.assert_ran(after(change), **options)


def test_the_message_says_what_ran_what_changed_and_what_served():
    with pytest.raises(AssertionError) as caught:
        incrax.assert_ran(after({"width": 3.0}), only=["params['phase']"], never=["exp"])
    lines = str(caught.value).splitlines()
    assert re.match(
        r"\d+ equations ran that belong to none of what may run \(`params\['phase'\]`\):", lines[0]
    )
    assert "1 equations of `exp` ran, and none may:" in lines
    assert any(
        re.match(r"  exp at .*test_assertions\.py:\d+.*\(resolution\)", line) for line in lines
    )
    assert lines[-1] == "Changed: `params['width']`. Served by: plan (minimal planner)."


def test_the_whole_function_comes_with_a_hint():
    f = incrax.incremental(model)
    f(PARAMS, X)
    with pytest.raises(
        AssertionError, match=r'make the function with `tuning=Tuning\(planner="minimal"\)`\.$'
    ):
        incrax.assert_ran(f, only=())


def test_equations_that_only_a_plan_has_are_told_by_what_they_read():
    def loss(a, b, c, x):
        return jnp.sum(a * x) + jnp.sum(b * x) + jnp.sum(jnp.exp(c * x))

    f = incrax.incremental(incrax.value_and_grad(loss, wrt=("a", "b")), tuning=MINIMAL)
    args = (1.0, 2.0, 3.0)
    f(*args, X)
    f(1.5, 2.0, 3.0, X)
    incrax.assert_ran(f, only=["a"], never=["exp"])


def test_rows():
    f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(a * x)), tuning=MINIMAL)
    f(1.0, incrax.Rows(X, chunk_rows=8))
    incrax.assert_ran(f, only=["a", "x", "rows in the chunk"])


def test_rows_of_which_no_chunk_ran():
    f = incrax.incremental(lambda a, b, x: jnp.sum(jnp.exp(a * x)) * b, tuning=MINIMAL)
    rows = incrax.Rows(X, chunk_rows=8)
    f(1.0, 1.0, rows)
    f(1.0, 2.0, rows)
    incrax.assert_ran(f, only=["b"], never=["exp", "a"])


def test_loops_and_branches_are_looked_into():
    def turn(carry, _):
        return jnp.tanh(carry), None

    def fun(a, b):
        return jnp.sum(jax.lax.scan(turn, a, None, length=3)[0]) + jnp.sum(jnp.tanh(b))

    f = incrax.incremental(fun, tuning=MINIMAL)
    f(X, X)
    f(X + 1, X)
    for name in ("tanh", "scan"):
        with pytest.raises(AssertionError, match=f"equations of `{name}` ran"):
            incrax.assert_ran(f, never=[name])


def test_equations_of_no_input_belong_to_all():
    f = incrax.incremental(lambda a: jnp.sum(a * jnp.sin(jnp.arange(5000.0))), tuning=MINIMAL)
    f(2.0)
    incrax.assert_ran(f, only="a")


def test_names_may_be_a_generator():
    with pytest.raises(AssertionError, match=r"may run \(`params\['phase'\]`\)"):
        incrax.assert_ran(after({"width": 3.0}), only=(name for name in ["params['phase']"]))


def test_many_changed_inputs_are_shortened():
    f = incrax.incremental(lambda theta: jnp.sum(theta**2), tuning=MINIMAL)
    f(np.zeros(50))
    with pytest.raises(AssertionError, match="theta") as caught:
        incrax.assert_ran(f, only=())
    assert len(str(caught.value).splitlines()[-1]) < 400


def test_a_name_that_stands_for_nothing_is_an_error():
    with pytest.raises(incrax.errors.UnknownInputError) as caught:
        incrax.assert_ran(after(), never=["expp"])
    assert str(caught.value) == (
        "`assert_ran(f)` got `expp`, which is no input of the function and no primitive in it, so "
        "that the test could never fail. Its inputs: `params['phase']`, `params['width']`, "
        "`params['yield']`, `x`. Use one of these, or the name of a primitive as `explain()` prints it."
    )


def test_what_keeps_no_record_is_an_error():
    with pytest.raises(TypeError) as caught:
        incrax.assert_ran(model, only=())
    assert str(caught.value) == (
        "`assert_ran(f)` got a value of type function, which keeps no record of what it ran. Pass "
        "what "
        "`incremental(f)`, `grad(f)` and the like return, not the function that was given to them."
    )


def test_before_a_call():
    with pytest.raises(incrax.NotCalledError) as caught:
        incrax.assert_ran(incrax.incremental(model))
    assert str(caught.value) == (
        "`assert_ran()` needs a call to report on, and this function has not been called yet. Call "
        "it once, or give "
        "`assert_ran()` example arguments."
    )
