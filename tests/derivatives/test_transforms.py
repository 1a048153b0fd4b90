"""Jacobians, Hessians, products and tangents: results of JAX, in the mode that is cheaper, any
order of nesting.
"""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from jax.test_util import check_grads

import incrax

X = jnp.linspace(0.2, 1.4, 5)
P = {"a": jnp.array(0.7), "w": jnp.linspace(0.5, 1.5, 5)}


def scalar(p, x):
    return jnp.sum(jnp.sin(p["w"] * x) * p["a"]) + p["a"] ** 3


def outputs(p, x):
    return {"y": p["a"] * jnp.exp(p["w"] * x), "s": jnp.sum(p["w"])}


def near(actual, expected, rtol=1e-12):
    """Same tree, shapes and dtypes; weak types differ between JAX's modes, too."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


# --- Jacobians ------------------------------------------------------------------------------------


def test_jacobians_of_trees_are_those_of_jax():
    f = incrax.jacobian(outputs)
    for p in (P, {**P, "a": jnp.array(0.3)}):
        near(f(p, X), jax.jit(jax.jacrev(outputs))(p, X))


def test_a_derivative_by_a_python_number_has_its_weak_type():
    """It does not widen what it meets, as that of `jax.jacobian`."""
    single = lambda a: a * jnp.ones(2, jnp.float32)
    found = incrax.jacobian(single)(1.5)
    expected = jax.jacobian(single)(1.5)
    assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
    assert (found * np.float32(1)).dtype == np.float32


def test_jacobians_have_the_shape_of_the_selection_inside_that_of_the_outputs():
    found = incrax.jacobian(outputs, wrt=("x", "p['a']"))(P, X)
    expected = jax.jacrev(lambda x, a: outputs({**P, "a": a}, x), (0, 1))(X, P["a"])
    near(found, expected)


@pytest.mark.parametrize(
    ("num_in", "num_out", "mode"), [(3, 7, "jacfwd"), (7, 3, "jacrev"), (4, 4, "jacfwd")]
)
def test_the_mode_follows_the_shapes(monkeypatch, num_in, num_out, mode):
    used = []

    def noted(name):
        transform = getattr(jax, name)
        make = lambda *args, **settings: (
            lambda *x: used.append(name) or transform(*args, **settings)(*x)
        )
        monkeypatch.setattr(jax, name, make)

    matrix = jnp.ones((num_out, num_in))
    expected = jax.jacrev(lambda x: jnp.sin(matrix @ x))(jnp.ones(num_in))
    noted("jacfwd")
    noted("jacrev")
    near(incrax.jacobian(lambda x: jnp.sin(matrix @ x))(jnp.ones(num_in)), expected)
    assert used == [mode]


@jax.custom_vjp
def only_reverse(x):
    return x**2


only_reverse.defvjp(lambda x: (x**2, x), lambda x, ct: (3.0 * x * ct,))


def only_forward(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1]


def test_a_function_with_a_reverse_rule_alone_gets_reverse_mode():
    same(incrax.jacobian(only_reverse)(X), jnp.diag(3.0 * X))


def test_a_loop_of_unknown_length_gets_forward_mode():
    same(
        incrax.jacobian(lambda x: jnp.sum(only_forward(x)))(X),
        jax.jacfwd(lambda x: jnp.sum(only_forward(x)))(X),
    )


# --- second order ---------------------------------------------------------------------------------


def test_hessians_of_trees_are_those_of_jax():
    f = incrax.hessian(scalar)
    for p in (P, {**P, "a": jnp.array(0.3)}):
        same(f(p, X), jax.jit(jax.hessian(scalar))(p, X), factor=256)


def test_hessians_of_several_outputs():
    same(
        incrax.hessian(outputs, wrt="p['w']")(P, X),
        jax.hessian(lambda w: outputs({**P, "w": w}, X))(P["w"]),
    )


def test_mixed_blocks_are_in_the_shape_of_the_selection_twice():
    found = incrax.hessian(scalar, wrt=("x", "p['a']"))(P, X)
    expected = jax.hessian(lambda q: scalar({**P, "a": q[1]}, q[0]))((X, P["a"]))
    same(found, expected, factor=256)


def test_a_hessian_of_a_reverse_rule_is_reverse_over_reverse():
    same(incrax.hessian(lambda x: jnp.sum(only_reverse(x)))(X), jnp.diag(3.0 * jnp.ones(5)))


TANGENT = {"a": jnp.array(0.5), "w": jnp.linspace(-1.0, 1.0, 5)}


def test_products_with_the_hessian():
    f = incrax.hvp(scalar)
    for scale in (1.0, 2.0):
        tangent = {name: scale * t for name, t in TANGENT.items()}
        expected = jax.jvp(lambda p: jax.grad(scalar)(p, X), (P,), (tangent,))[1]
        near(f(P, X, tangent=tangent), expected)


def test_products_of_a_reverse_rule():
    found = incrax.hvp(lambda x: jnp.sum(only_reverse(x)))(X, tangent=jnp.ones(5))
    same(found, 3.0 * jnp.ones(5))


def test_a_new_tangent_alone_leaves_what_depends_on_the_point():
    f = incrax.hvp(lambda x: jnp.sum(jnp.exp(jnp.sin(x))), tuning=incrax.Tuning(planner="minimal"))
    f(X, tangent=jnp.ones(5))
    f(X, tangent=2.0 * jnp.ones(5))
    f(X, tangent=3.0 * jnp.ones(5))
    assert f.explain().as_dict()["num_ran"] < len(f._traces.latest.engine.facts.program.eqns)


def test_tangents():
    f = incrax.jvp(outputs)
    expected = jax.jvp(lambda p: outputs(p, X), (P,), (TANGENT,))
    same(f(P, X, tangent=TANGENT), expected)


WRONG = {
    "structure": (
        {"a": jnp.array(0.5)},
        "`jvp` got a tangent that is of another structure (",
    ),
    "shape": (
        {**TANGENT, "w": jnp.ones(3)},
        "`jvp` got a tangent that is float64[3], and it belongs to `p['w']`, float64[5]. Nothing "
        "was evaluated or "
        "stored. Pass a pytree like what it belongs to, with arrays of the same shapes and dtypes; "
        "None for leaves "
        "that are not selected.",
    ),
    "dtype": (
        {**TANGENT, "w": 1j * jnp.ones(5)},
        "that is complex128[5], and it belongs to `p['w']`, float64[5].",
    ),
    "none": ({**TANGENT, "w": None}, "that is None, and it belongs to `p['w']`, float64[5]."),
}


@pytest.mark.parametrize("case", WRONG)
def test_tangents_that_do_not_fit_are_errors(case):
    tangent, text = WRONG[case]
    with pytest.raises(incrax.errors.TangentError) as caught:
        incrax.jvp(outputs)(P, X, tangent=tangent)
    assert text in str(caught.value)


# --- custom rules, complex numbers, third order ---------------------------------------------------


@jax.custom_jvp
def own_rule(x):
    return jnp.sin(x)


@own_rule.defjvp
def _(primals, tangents):
    return own_rule(primals[0]), 2.0 * jnp.cos(primals[0]) * tangents[0]


@jax.custom_vjp
def with_zeros(x, y):
    return x * y


def _with_zeros_forward(x, y):
    return x.value * y.value, (x.value, y.value, x.perturbed, y.perturbed)


def _with_zeros_backward(saved, ct):
    x, y, in_x, in_y = saved
    return (5.0 * y * ct if in_x else None), (7.0 * x * ct if in_y else None)


with_zeros.defvjp(_with_zeros_forward, _with_zeros_backward, symbolic_zeros=True)
RULES = {
    "custom_jvp": lambda x: jnp.sum(own_rule(x) * x),
    "custom_vjp": lambda x: jnp.sum(only_reverse(x) * x),
    "custom_vjp with symbolic zeros": lambda x: jnp.sum(with_zeros(x, jnp.cos(X))),
    "stop_gradient": lambda x: jnp.sum(x * jax.lax.stop_gradient(jnp.sin(x))),
    "remat": lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.exp(y)))(x)),
    "cond": lambda x: jax.lax.cond(x[0] > 0, lambda y: jnp.sum(y**2), lambda y: jnp.sum(y), x),
    "scan": lambda x: jax.lax.scan(lambda c, y: (jnp.sin(c + y), c), 0.1, x)[0],
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_respected(rule):
    f = incrax.value_and_grad(RULES[rule])
    for scale in (1.0, 1.5, 1.0):
        same(f(scale * X), jax.jit(jax.value_and_grad(RULES[rule]))(scale * X))


@pytest.mark.parametrize("rule", [rule for rule in RULES if "vjp" not in rule])
def test_rules_are_respected_to_third_order(rule):
    third = lambda grad, f: (
        lambda x: jnp.sum(grad(lambda y: jnp.sum(grad(lambda z: jnp.sum(grad(f)(z) ** 2))(y)))(x))
    )
    ours, theirs = third(incrax.grad, RULES[rule]), third(jax.grad, RULES[rule])
    same(incrax.incremental(ours)(X), jax.jit(theirs)(X), factor=1e4)


def test_gradients_through_saved_values_are_right_to_third_order():
    """Against finite differences: derivatives of derivatives, each through values that the others
    saved.
    """
    f = lambda p, x: jnp.sum(jnp.exp(-((x - p["m"]) ** 2) / p["s"]) * p["n"])
    p = {"m": 0.3, "s": 1.2, "n": 2.0}
    first, second = incrax.grad(f), incrax.hessian(f)
    third = incrax.jacobian(lambda p, x: jax.hessian(f)(p, x))
    step = 1e-5
    for name in p:
        up, down = {**p, name: p[name] + step}, {**p, name: p[name] - step}
        difference = lambda g, up=up, down=down: jax.tree.map(
            lambda a, b: (a - b) / (2 * step), g(up, X), g(down, X)
        )
        at = lambda tree, name=name: tree[name]
        np.testing.assert_allclose(difference(f), first(p, X)[name], rtol=1e-7)
        for other in p:
            np.testing.assert_allclose(
                difference(first)[other], at(second(p, X))[other], rtol=1e-6, atol=1e-8
            )
            for last in p:
                found = third(p, X)[other][last][name]
                np.testing.assert_allclose(
                    difference(second)[other][last], found, rtol=1e-5, atol=1e-6
                )


def test_derivatives_pass_the_checks_of_jax():
    check_grads(incrax.incremental(lambda x: jnp.sum(jnp.sin(x) ** 2)), (X,), order=3)


def test_complex_conventions_are_those_of_jax():
    z = X + 1j * X[::-1]
    same(
        incrax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(z),
        jax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(z),
    )
    with pytest.raises(TypeError, match=r"incremental\(jax.grad\(f, holomorphic=True\)\)"):
        incrax.grad(lambda z: jnp.sum(jnp.sin(z)), holomorphic=True)


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_outputs", [1, 9])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_a_derivative_has_the_dtype_of_the_leaf_that_it_is_taken_by(given, num_outputs):
    x = jnp.linspace(0.2, 1.4, 5, dtype=given)
    other = np.float64 if given == np.float32 else np.float32
    f = lambda x: (jnp.sum(jnp.sin(x)) * jnp.arange(1.0, num_outputs + 1)).astype(other)
    near(incrax.jacobian(f)(x), jax.jacrev(f)(x), rtol=1e-6)


def test_second_derivatives_have_the_dtype_of_their_first_leaf_in_either_mode():
    p = {"a": jnp.ones(2, np.float32), "b": jnp.ones(3)}
    in_both = lambda p: jnp.sum(p["a"]) ** 3 * jnp.sum(jnp.sin(p["b"]))
    in_reverse = lambda p: twice_reverse(jnp.sum(p["a"])) * jnp.sum(jnp.sin(p["b"]))
    for f in (in_both, in_reverse):
        found = jax.tree.map(lambda x: x.dtype, incrax.hessian(f)(p))
        assert found == {"a": dict.fromkeys("ab", np.float32), "b": dict.fromkeys("ab", np.float64)}


@jax.custom_vjp
def twice_reverse(x):
    return x**3


twice_reverse.defvjp(lambda x: (x**3, x), lambda x, ct: (3 * cubed_slope(x) * ct,))


@jax.custom_vjp
def cubed_slope(x):
    return x**2


cubed_slope.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * x * ct,))


def test_complex_derivatives_by_real_leaves_stay_complex():
    f = lambda x: x**2 * (1 + 2j)
    near(incrax.jacobian(f)(X), jax.jacfwd(f)(X))


# --- parameters called tangent --------------------------------------------------------------------


@pytest.mark.parametrize("derivative", [incrax.jvp, incrax.hvp])
def test_a_parameter_called_tangent_is_passed_by_position(derivative):
    f, g = (lambda x, tangent: jnp.sum(x**3) * tangent), (lambda x, t: jnp.sum(x**3) * t)
    same(derivative(f)(X, 2.0, tangent=X), derivative(g)(X, 2.0, tangent=X))
    same(
        derivative(f, wrt="tangent")(X, 2.0, tangent=3.0),
        derivative(g, wrt="t")(X, 2.0, tangent=3.0),
    )
    same(
        derivative(lambda x, tangent=2.0: f(x, tangent))(X, tangent=X),
        derivative(g)(X, 2.0, tangent=X),
    )


@pytest.mark.parametrize("derivative", [incrax.jvp, incrax.hvp])
def test_a_parameter_called_tangent_that_is_left_out_is_named(derivative):
    for f in (lambda x, tangent: jnp.sum(x) * tangent, lambda x, *, tangent: jnp.sum(x) * tangent):
        with pytest.raises(incrax.errors.TangentError, match="takes `tangent=` for itself"):
            derivative(f)(X, tangent=X)


# --- nesting --------------------------------------------------------------------------------------

NESTED = {
    "grad of vmap": (lambda d: d(lambda x: jnp.sum(jax.vmap(jnp.sin)(x))), X),
    "vmap of grad": (lambda d: jax.vmap(d(lambda x: x**3)), X),
    "jit of grad": (lambda d: jax.jit(d(lambda x: jnp.sum(x**3))), X),
    "grad of jit": (lambda d: d(jax.jit(lambda x: jnp.sum(x**3))), X),
    "jacfwd of grad": (lambda d: jax.jacfwd(d(lambda x: jnp.sum(x**4))), X),
    "grad of grad": (lambda d: d(lambda x: jnp.sum(d(lambda y: jnp.sum(y**4))(x))), X),
    "grad of a scan with grad": (
        lambda d: d(lambda x: jax.lax.scan(lambda c, y: (c + d(jnp.sin)(y), None), 0.0, x)[0]),
        X,
    ),
    "remat of grad": (lambda d: jax.checkpoint(d(lambda x: jnp.sum(jnp.exp(x)))), X),
}


@pytest.mark.parametrize("order", NESTED)
def test_any_order_of_nesting(order):
    make, x = NESTED[order]
    same(make(incrax.grad)(x), make(jax.grad)(x))
    same(incrax.incremental(make(incrax.grad))(x), jax.jit(make(jax.grad))(x))


PER_EXAMPLE = {
    "grad": (incrax.grad, jax.grad),
    "value_and_grad": (incrax.value_and_grad, jax.value_and_grad),
    "jacobian": (incrax.jacobian, jax.jacrev),
    "hessian": (incrax.hessian, jax.hessian),
    "hvp": (
        lambda f: lambda p, x: incrax.hvp(f)(p, x, tangent=P),
        lambda f: lambda p, x: jax.jvp(jax.grad(lambda p: f(p, x)), (p,), (P,))[1],
    ),
}


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_a_derivative_per_example(name):
    ours, theirs = PER_EXAMPLE[name]
    over = {"in_axes": (None, 0)}
    near(
        jax.jit(jax.vmap(ours(scalar), **over))(P, X),
        jax.jit(jax.vmap(theirs(scalar), **over))(P, X),
    )
    batched = lambda p, x: jnp.sum(jax.vmap(scalar, **over)(p, x))
    near(jax.jit(ours(batched))(P, X), jax.jit(theirs(batched))(P, X))


def test_derivatives_of_incremental_functions_are_derivatives_of_the_function():
    f = incrax.incremental(scalar)
    found = incrax.grad(f)(P, X)
    same(found, jax.grad(scalar)(P, X))
    assert f.stats.calls == f.stats.transparent == 0


def test_options_are_those_of_incremental():
    f = incrax.grad(scalar, policy="exact", versions=3)
    same(f(P, X), jax.jit(jax.grad(scalar))(P, X))
    with pytest.raises(ValueError, match="policy"):
        incrax.grad(scalar, policy="slow")


def square(x):
    return jnp.sum(x**2)


def test_derivatives_are_named_and_pickled():
    f = incrax.grad(square, wrt="x")
    assert "grad of square" in repr(f)
    same(pickle.loads(pickle.dumps(f))(X), 2.0 * X)


def test_what_cannot_depend_on_each_other_has_no_derivative_beside_an_infinite_one():
    root_sum = lambda x: jnp.sum(jnp.sqrt(x))
    x = np.linspace(0.0, 1.0, 40)  # the second derivative at 0 is infinite
    found, of_jax = incrax.hessian(root_sum)(x), jax.hessian(root_sum)(x)
    assert np.isnan(of_jax[0, 1:]).all()
    np.testing.assert_array_equal(found[0, 1:], 0.0)
    np.testing.assert_array_equal(found[1:], of_jax[1:])
    assert np.isneginf(found[0, 0])
