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
            "`cost(branches=...)` got 'most'; use 'max' or 'taken'. Nothing was evaluated.",
        ),
        (
            {"branches": "both"},
            "`cost(branches=...)` got 'both'; use 'max' or 'taken'. Nothing was evaluated. That "
            "went with version 0.2: count each side by itself, or those that run by 'taken'.",
        ),
        (
            {"trips": 30},
            "`cost(trips=...)` got 30; use 'measured' or None. Nothing was evaluated. That went "
            "with version 0.2: `report.forward.loops` has what one turn costs, to be multiplied.",
        ),
        (
            {"passes": ["forward", "hvp"]},
            "`cost(passes=...)` got 'hvp'; use 'forward' or 'backward'. Nothing was evaluated. "
            "That went with version 0.2: count the product itself, "
            "`cost(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1], x, v)`.",
        ),
    ],
)
def test_options_with_values_that_they_do_not_take(options, text):
    check_text(incrax.errors.CostError, text, incrax.cost, loss, X, **options)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("trips='measured'", {"trips": "measured"}),
        ("branches='taken'", {"branches": "taken"}),
    ],
)
def test_a_run_with_a_type_in_place_of_values(option, given):
    text = (
        f"`cost({option})` runs the function, and `x` is a type without values. Nothing was "
        f"evaluated. Pass an array, or leave {option} out."
    )
    check_text(incrax.errors.CostError, text, incrax.cost, loss, TYPE, **given)


def test_a_run_of_a_function_with_effects():
    def f(x):
        jax.debug.callback(print, x)
        return loss(x)

    with pytest.raises(incrax.errors.CostError) as caught:
        incrax.cost(f, X, trips="measured")
    seen = str(caught.value).split("effects: ")[1].split(". This")[0]
    text = (
        f"`cost(trips='measured')` runs the function, and it has effects: {seen}. This is usually a "
        "print or a callback, "
        "which would be repeated with each run. Nothing was evaluated. Take it out, or leave "
        "trips='measured' out."
    )
    assert str(caught.value) == text
    assert incrax.cost(f, X).forward.total.flops == 5


@pytest.mark.parametrize(
    ("f", "expression"),
    [
        (lambda x: x if x[0] > 0 else -x, "x[0] > 0"),
        (lambda x: np.sin(x), "np.sin(x)"),
        (incrax.guarded(lambda x: x if x[0] > 1 else -x), "x[0] > 1"),
    ],
    ids=["branch", "numpy", "guarded"],
)
def test_a_traced_value_that_python_needs(f, expression):
    with pytest.raises(incrax.errors.CostError) as caught:
        incrax.cost(f, X)
    place = str(caught.value).split("value: ")[1].split(". This")[0]
    assert place.startswith("test_errors.py:")
    assert expression in place
    assert str(caught.value) == (
        f"`cost(<lambda>)` found that Python needs a traced value: {place}. This is usually an "
        "`if` on it, or a function of `numpy` where that of `jax.numpy` is meant. What runs "
        "depends on values, and there is no one program to count. Nothing was evaluated. Write "
        "`jax.lax.cond`, or fix the argument: `cost(lambda x: <lambda>(x, flag=True), x)`."
    )


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


def test_another_error_of_the_function_is_its_own():
    def f(x):
        raise ValueError("the user's own words")

    check_text(ValueError, "the user's own words", incrax.cost, f, X)


@pytest.mark.parametrize("of", [lambda m: m, lambda m: m.value_and_grad])
def test_bound_models(of):
    text = (
        "`cost(f)` got a bound model; it must be a function with its arguments. Nothing was "
        'evaluated. Pass what was bound: `cost(f, model["params"], model["x"])`.'
    )
    model = incrax.bind(loss, x=X)
    check_text(TypeError, text, incrax.cost, of(model))
    assert incrax.cost(loss, model["x"]).forward.total.flops == 5


def test_guarded_functions_without_a_branch():
    assert incrax.cost(incrax.guarded(lambda x: x * 2.0), X).forward.total.flops == 3
