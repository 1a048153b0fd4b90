"""What `wrt` stands for, and results in its shape; oracle: JAX's derivatives of the whole first
argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: jax.Array
    b: jax.Array


class Model(NamedTuple):
    mu: jax.Array
    layers: list
    name: str = "model"
    count: int = 3


X = jnp.linspace(0.1, 1.0, 4)


def model(scale=1.0):
    layers = [Layer(scale * jnp.linspace(0.5, 1.0, 4).reshape(2, 2), jnp.ones(2)) for _ in range(2)]
    return Model(jnp.array(0.7 * scale), layers)


def loss(p, x):
    y = x.reshape(2, 2)
    for layer in p.layers:
        y = jnp.tanh(y @ layer.w + layer.b)
    return jnp.sum(y) * p.mu * p.count


def whole(p, x):
    """JAX's gradient, by hand of the leaves that have one."""
    return jax.grad(lambda mu, layers, x: loss(p._replace(mu=mu, layers=layers), x), (0, 1, 2))(
        p.mu, p.layers, x
    )


MU, LAYERS, IN_X = whole(model(), X)
FORMS = {
    "nothing": (None, Model(MU, LAYERS, None, None)),
    "a path": ("p.mu", MU),
    "a path of a subtree": ("p.layers", LAYERS),
    "a path of an element": ("p.layers[1].w", LAYERS[1].w),
    "a path of another argument": ("x", IN_X),
    "paths": (("x", "p.layers[0]"), (IN_X, LAYERS[0])),
    "a list of paths": (["p.mu"], [MU]),
    "a number": (1, IN_X),
    "a negative number": (-1, IN_X),
    "numbers": ((1, 0), (IN_X, Model(MU, LAYERS, None, None))),
    "a path and a number": (("p.mu", 1), (MU, IN_X)),
    "a leaf twice": (["p.mu", "p.mu"], [MU, MU]),
    "a mask": (
        Model(True, [Layer(False, True), Layer(False, False)], False, False),
        Model(MU, [Layer(None, LAYERS[0].b), Layer(None, None)], None, None),
    ),
    "a mask of subtrees": (
        Model(False, [False, True], False, False),
        Model(None, [Layer(None, None), LAYERS[1]], None, None),
    ),
}


@pytest.mark.parametrize("name", ["p.layers[1].w[2]", "w[0, 1]", "x[3]"])
def test_an_element_of_an_array_is_taken_of_the_result(name):
    leaf, _, index = name.rpartition("[")
    whole = "p.layers[0].w" if leaf == "w" else leaf
    text = f"Write `wrt={whole!r}`, and take `[{index}` of the result."
    with pytest.raises(incrax.errors.SelectionError, match=re.escape(text)):
        incrax.grad(loss, wrt=name)(model(), X)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_derivatives_in_its_shape(form):
    wrt, expected = FORMS[form]
    f = incrax.grad(loss, wrt=wrt)
    for _ in range(2):
        found = f(model(), X)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        same(found, expected)


def test_numbers_and_flags_of_numpy_select_as_those_of_python():
    product = lambda a, b: a * b**2
    assert float(incrax.grad(product, wrt=np.int32(1))(3.0, 1.0)) == 6.0
    (found,) = incrax.grad(product, wrt=(np.int64(1),))(3.0, 1.0)
    assert float(found) == 6.0
    mask = {"a": np.bool_(False), "b": np.bool_(True)}
    found = incrax.grad(lambda p: p["a"] * p["b"], wrt=mask)({"a": 3.0, "b": 1.0})
    assert found["a"] is None
    assert float(found["b"]) == 3.0


def test_values_come_with_gradients():
    value, found = incrax.value_and_grad(loss, wrt="p.mu")(model(), X)
    same((value, found), (loss(model(), X), MU))


def test_what_is_passed_on_comes_along():
    f = lambda p, x: (loss(p, x), {"twice": 2.0 * x})
    found, aux = incrax.grad(f, wrt="p.mu", has_aux=True)(model(), X)
    same((found, aux), (MU, {"twice": 2.0 * X}))
    (value, aux), found = incrax.value_and_grad(f, wrt="p.mu", has_aux=True)(model(), X)
    same((value, aux, found), (loss(model(), X), {"twice": 2.0 * X}, MU))


def test_keyword_arguments_have_names():
    found = incrax.grad(lambda a, *, b: a * jnp.sum(b**2), wrt=("b", "a"))(2.0, b=X)
    np.testing.assert_allclose(found[0], 4.0 * X)
    np.testing.assert_allclose(found[1], jnp.sum(X**2))


def test_values_behind_a_star_have_one_name():
    found = incrax.grad(lambda *values: values[0] * values[1], wrt="values")(2.0, 3.0)
    assert [float(part) for part in found] == [3.0, 2.0]
    assert (
        float(incrax.grad(lambda *values: values[0] * values[1], wrt="values[1]")(2.0, 3.0)) == 2.0
    )


def test_a_derivative_that_is_not_asked_for_is_not_computed():
    of_all, of_mu = incrax.grad(loss), incrax.grad(loss, wrt="p.mu")
    of_all(model(), X)
    of_mu(model(), X)
    num_products = lambda f: sum(
        e.primitive.name == "dot_general" for e in f._traces.latest.engine.facts.program.eqns
    )
    assert (num_products(of_all), num_products(of_mu)) == (5, 2)


def test_only_what_changed_runs_again():
    f = incrax.grad(loss, wrt="p.mu", tuning=incrax.Tuning(planner="minimal"))
    f(model(), X)
    ran = f.stats.ran
    same(f(model()._replace(mu=jnp.array(0.2)), X), MU)
    assert f.stats.ran == ran, "the gradient by a factor does not depend on it"


# --- what cannot be selected ----------------------------------------------------------------------

HOW = (
    "`wrt` takes the path of an argument or of a part of it as `explain()` prints it (or a tuple "
    "of paths), the number "
    "of an argument, or a pytree of booleans for the first argument."
)
REFUSED = {
    "an integer": (
        "p.count",
        "`grad(wrt=...)` selects `p.count` of type int64[], and only floating-point and complex "
        "arrays have "
        "derivatives. This is usually an index, a count or a flag. Nothing was evaluated or "
        "stored. Convert it to a "
        "floating-point type, or leave it out.",
    ),
    "a static value": (
        "p.name",
        "`grad(wrt=...)` selects `p.name` of type str, and only floating-point and complex arrays "
        "have "
        "derivatives. This is usually an index, a count or a flag. Nothing was evaluated or "
        "stored. Convert it to a "
        "floating-point type, or leave it out.",
    ),
    "a number too large": (
        2,
        "`grad(wrt=...)` got 2: the call has 2 positional arguments. Nothing was evaluated or "
        f"stored. {HOW}",
    ),
    "a function": (lambda p: p.mu, "it is none of what is understood. Nothing was evaluated or "),
    "another structure": ({"a": True}, "its structure is not that of the first argument: "),
    "an object": (
        3.5,
        "`grad(wrt=...)` got 3.5: it is none of what is understood. Nothing was evaluated or "
        f"stored. {HOW}",
    ),
    "nothing at all": (
        Model(False, False, False, True),
        "`grad` has nothing to differentiate: of `p.count`, none is a floating-point or complex "
        "array without a mark. "
        "This is usually a function whose first argument holds integers only, or where all is "
        "marked by `cut`. Nothing "
        f"was evaluated or stored. Write 1.0 instead of 1, or name others by `wrt`. {HOW}",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_selected_is_an_error_that_says_why(case):
    wrt, text = REFUSED[case]
    f = incrax.grad(loss, wrt=wrt)
    with pytest.raises(incrax.errors.SelectionError) as caught:
        f(model(), X)
    assert text in str(caught.value)
    assert f.stats.compiles == 0


def test_an_unknown_path_lists_the_inputs():
    with pytest.raises(
        incrax.errors.UnknownInputError,
        match=r"`p\.nu` names no input of this function; its inputs are: `p\.mu`",
    ):
        incrax.grad(loss, wrt="p.nu")(model(), X)


def test_no_argument_at_all_is_an_error():
    with pytest.raises(
        incrax.errors.SelectionError, match="the call has no positional arguments: pass"
    ):
        incrax.grad(lambda: 1.0)()


def test_only_functions_are_differentiated():
    with pytest.raises(TypeError, match=r"`grad\(fun\)` got 3"):
        incrax.grad(3)


def test_a_key_has_no_derivative():
    f = incrax.grad(lambda key, x: jnp.sum(x * jax.random.normal(key, (4,))), wrt=("key", "x"))
    key, in_x = f(jax.random.key(0), X)
    assert key is None
    same(in_x, jax.random.normal(jax.random.key(0), (4,)))


def test_numpy_and_python_leaves_are_selected():
    f = incrax.grad(lambda p: p["a"] * np.float64(2.0) * jnp.sum(p["x"]))
    found = f({"a": 2.0, "x": np.ones(3)})
    assert (float(found["a"]), found["x"].tolist()) == (6.0, [4.0] * 3)


def test_a_path_to_nothing_is_an_error_that_says_so():
    with pytest.raises(
        incrax.errors.SelectionError, match="has nothing to differentiate: of no leaves"
    ):
        incrax.grad(lambda p: p["a"], wrt="p['n']")({"a": 1.0, "n": None})
