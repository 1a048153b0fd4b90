"""The exact text of every error of `cost`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_text

import incrax

X = np.ones(3)
TYPE = jax.ShapeDtypeStruct((3,), np.float32)


def loss(x):
    return jnp.sum(x**2)


def test_errors_are_of_incrax_and_of_a_builtin_class():
    assert issubclass(incrax.errors.CostError, incrax.IncraxError)
    assert issubclass(incrax.errors.CostError, ValueError)


def test_a_cost_of_what_is_no_function():
    check_text(TypeError, "`cost(f)` got 3 of type int; it must be a function.", incrax.cost, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"branches": "most"},
            "`cost(branches=...)` got 'most'; use 'max', 'both', 'taken'. Nothing was evaluated.",
        ),
        (
            {"branches": "take"},
            "`cost(branches=...)` got 'take'; use 'max', 'both', 'taken'. Nothing was evaluated. "
            "Did you mean 'taken'?",
        ),
        (
            {"trips": "measure"},
            "`cost(trips=...)` got 'measure'; use 'measured', a number of turns from 0 on, or "
            "None. Nothing was "
            "evaluated. Did you mean 'measured'?",
        ),
        (
            {"trips": -1},
            "`cost(trips=...)` got -1; use 'measured', a number of turns from 0 on, or None. "
            "Nothing was evaluated.",
        ),
        (
            {"passes": ["forward", "backwards"]},
            "`cost(passes=...)` got 'backwards'; use 'forward', 'backward', 'hvp'. Nothing was "
            "evaluated. Did you mean "
            "'backward'?",
        ),
    ],
)
def test_options_with_values_that_they_do_not_take(options, text):
    check_text(incrax.errors.CostError, text, incrax.cost, loss, X, **options)


def test_a_group_that_sources_are_not_in():
    text = (
        "`cost(group=...)` got 'lines'; use 'line', 'function', 'file'. Nothing was evaluated. Did "
        "you mean 'line'?"
    )
    check_text(incrax.errors.CostError, text, incrax.cost(loss, X).by_source, "lines")


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("measure=True", {"measure": True}),
        ("trips='measured'", {"trips": "measured"}),
        ("branches='taken'", {"branches": "taken"}),
    ],
)
def test_a_run_with_a_type_in_place_of_values(option, given):
    text = (
        f"`cost({option})` runs the function, and `x` is float32[3] without values. Nothing was "
        "evaluated. Pass an "
        f"array, or leave {option} out."
    )
    check_text(incrax.errors.CostError, text, incrax.cost, loss, TYPE, **given)


def test_a_run_of_a_function_with_effects():
    def f(x):
        jax.debug.callback(print, x)
        return loss(x)

    with pytest.raises(incrax.errors.CostError) as caught:
        incrax.cost(f, X, measure=True)
    seen = str(caught.value).split("effects: ")[1].split(". This")[0]
    text = (
        f"`cost(measure=True)` runs the function, and it has effects: {seen}. This is usually a "
        "print or a callback, "
        "which would be repeated with each run. Nothing was evaluated. Take it out, or leave "
        "measure=True out."
    )
    assert str(caught.value) == text
    assert incrax.cost(f, X).forward.total.flops == 5


def test_python_control_flow_on_a_value():
    def f(x):
        return x if x[0] > 0 else -x

    with pytest.raises(incrax.errors.CostError) as caught:
        incrax.cost(f, X)
    place = str(caught.value).split("value: ")[1].split(". What")[0]
    assert place.startswith("test_errors.py:")
    assert "x[0] > 0" in place
    text = (
        f"`cost(f)` found Python control flow on a traced value: {place}. What runs depends on "
        "values, and there is no "
        "one program to count. Nothing was evaluated. Write `jax.lax.cond`, or fix the argument: "
        "`cost(lambda x: f(x, flag=True), x)`."
    )
    assert str(caught.value) == text


def test_an_array_without_jax_type():
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="`x` as an array of dtype object"):
        incrax.cost(loss, np.array([1, "a"], object))


@pytest.mark.parametrize("found", [-1, None, float("inf")])
def test_a_rule_that_gives_no_number(found):
    f = lambda x: jax.pure_callback(np.sin, TYPE, x)
    text = (
        f"The rule for `pure_callback` in `cost(rules=...)` gave {found!r}; it must give a number "
        "of FLOPs, not "
        "negative, from the types of the inputs, those of the results and the parameters of one "
        "equation. Nothing was "
        "counted."
    )
    check_text(
        incrax.errors.CostError,
        text,
        incrax.cost,
        f,
        TYPE,
        rules={"pure_callback": lambda *_: found},
    )


def test_inputs_that_are_not_there():
    with pytest.raises(incrax.errors.UnknownInputError):
        incrax.cost(loss, X, changing="y")
    with pytest.raises(incrax.errors.UnknownInputError):
        incrax.cost(loss, X, wrt="y")
    with pytest.raises(incrax.errors.SelectionError):
        incrax.cost(lambda n: n * 2, 3, wrt=0)


def test_a_value_in_the_hands_of_numpy():
    def f(x):
        return np.sin(x)

    with pytest.raises(incrax.errors.CostError) as caught:
        incrax.cost(f, X)
    place = str(caught.value).split("array: ")[1].split(". This")[0]
    assert place.startswith("test_errors.py:")
    assert "np.sin(x)" in place
    assert str(caught.value) == (
        f"`cost(f)` found a traced value turned into a NumPy array: {place}. This is usually a "
        "function of `numpy` "
        "where that of `jax.numpy` is meant, or one for minimisers on the host, such as "
        "`model.flat().value`. Nothing "
        "was evaluated. Use `jax.numpy`, `jax.pure_callback` around what must run on the host, or "
        "pass the model."
    )


def test_another_error_of_the_function_is_its_own():
    def f(x):
        raise ValueError("the user's own words")

    check_text(ValueError, "the user's own words", incrax.cost, f, X)


# --- bound models ------------------------------------------------------------------------------


def test_a_method_of_a_model_that_does_not_evaluate():
    model = incrax.bind(loss, x=X)
    text = (
        "`cost(model.summary)` got a method of a bound model that does not evaluate its inputs as they "
        "are; `value`, "
        "`grad`, `value_and_grad`, `hessian` do. Nothing was evaluated. Pass the model "
        "itself: "
        "`cost(model)` counts its value, its gradient and its Hessian times a vector."
    )
    check_text(incrax.errors.CostError, text, incrax.cost, model.summary)


@pytest.mark.parametrize(("args", "seen"), [((X,), "1 argument"), ((X, X), "2 arguments")])
def test_inputs_of_a_model_by_position(args, seen):
    text = (
        f"`cost(model)` got {seen} by position; a bound model holds values for its inputs. Nothing "
        "was evaluated. "
        "Name those that are to be other: `cost(model, x=...)`, arrays or types."
    )
    check_text(incrax.errors.CostError, text, incrax.cost, incrax.bind(loss, x=X), *args)


def test_guarded_functions_that_branch():
    f = incrax.guarded(lambda x: x if x[0] > 0 else -x)
    for each in (f, lambda x: f(x) * 2.0):
        with pytest.raises(
            incrax.errors.CostError,
            match=r"Python control flow on a traced value: test_errors.py:\d+: x\[0\] > 0",
        ):
            incrax.cost(each, X)
    assert incrax.cost(incrax.guarded(lambda x: x * 2.0), X).forward.total.flops == 3
