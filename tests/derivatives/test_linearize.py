"""Pushforwards at fixed arguments: `jax.linearize` is the oracle; what is computed and held is
counted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax

P = {"a": jnp.array(1.5, float), "b": jnp.arange(3.0), "n": 2}
X = jnp.array([0.3, 0.7, 1.1])
TANGENT = {"a": jnp.array(0.5, float), "b": jnp.ones(3), "n": None}, 2 * X


def model(p, x):
    y = jnp.exp(p["a"] * x) * p["b"]
    return {"y": y**2, "sum": jnp.sum(jnp.sin(y))}


def by_jax(p, x):
    f = lambda a, b, x: model({"a": a, "b": b, "n": 2}, x)
    return jax.linearize(f, p["a"], p["b"], x)


def test_a_push_is_that_of_jax():
    value, push = incrax.linearize(model, P, X)
    expected, linear = by_jax(P, X)
    same(value, expected)
    of_p, of_x = TANGENT
    same(push(TANGENT), linear(of_p["a"], of_p["b"], of_x))
    same(
        push(jax.tree.map(lambda t: 2 * t, TANGENT)), linear(2 * of_p["a"], 2 * of_p["b"], 2 * of_x)
    )


def test_only_the_selection_moves():
    value, push = incrax.linearize(model, P, X, wrt="p['a']")
    same(value, model(P, X))
    same(push(jnp.ones(())), by_jax(P, X)[1](jnp.ones(()), jnp.zeros(3), jnp.zeros(3)))


def test_what_depends_on_the_arguments_alone_is_computed_once():
    _, push = incrax.linearize(lambda x, y: jnp.sin(jnp.exp(x)) * jnp.tanh(y), X, X, wrt="x")
    primitives = [eqn.primitive.name for eqn in push._part.program.eqns]
    assert not {"exp", "sin", "cos", "tanh"} & set(primitives)
    assert push.num_operations == len(primitives) == 3


def test_a_function_that_is_linear_holds_one_array():
    a = jnp.ones((100, 3))
    _, push = incrax.linearize(lambda a, x: a @ x, a, X, wrt="x")
    assert push.residual_bytes == a.nbytes
    (held,) = [x for x in push._residuals if isinstance(x, jax.Array)]
    assert held is a
    same(push(X), a @ X)


def test_another_call_at_other_values_traces_nothing():
    traced = []

    def f(x):
        traced.append(1)
        return jnp.sin(x)

    for factor in (1.0, 2.0):
        value, push = incrax.linearize(f, factor * X)
        same(value, jnp.sin(factor * X))
        same(push((X,)), jnp.cos(factor * X) * X)
    assert len(traced) == 1


def test_integers_move_nothing():
    f = lambda x, i: {"x": x[i] ** 2, "i": i}
    value, push = incrax.linearize(f, X, 1)
    out = push((jnp.ones(3), None))
    same(out["x"], 2 * X[1])
    assert out["i"].dtype == jax.dtypes.float0
    assert int(value["i"]) == 1


@jax.custom_jvp
def rounded(x):
    return jnp.round(x)


rounded.defjvp(lambda primals, tangents: (jnp.round(primals[0]), 3 * tangents[0]))

CASES = {
    "custom_jvp": rounded,
    "stop_gradient": lambda x: jax.lax.stop_gradient(x) * x,
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=4),
    "while": lambda x: jax.lax.while_loop(lambda c: jnp.sum(c) < 50, lambda c: c * 2, x),
    "complex": lambda x: jnp.abs(jnp.exp(1j * x)) + jnp.real(x * 1j * x),
    "constant": lambda x: (jnp.ones(2), x),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_rules_and_control_flow_are_those_of_jax(name, is_compiled):
    expected, linear = jax.linearize(CASES[name], X)
    with jax.disable_jit(not is_compiled):
        value, push = incrax.linearize(CASES[name], X, wrt="x")
        pushed = push(X)
    same(value, expected)
    same(pushed, linear(X))


def test_under_transformations_it_is_the_same_push():
    ours = lambda x: incrax.linearize(jnp.sin, x, wrt=0)[1](jnp.ones(()))
    same(jax.vmap(ours)(X), jnp.cos(X))
    same(jax.jit(jax.vmap(jax.grad(ours)))(X), -jnp.sin(X))
    _, push = incrax.linearize(model, P, X, wrt="x")
    same(jax.vmap(push, out_axes=-1)(jnp.eye(3)), jax.jacobian(model, 1)(P, X))


@pytest.mark.parametrize(
    ("tangent", "seen"),
    [(jnp.ones(2), "float64[2]"), (1j * np.ones(3), "complex128[3]"), (None, "None")],
)
def test_a_tangent_that_does_not_fit_is_an_error(tangent, seen):
    _, push = incrax.linearize(model, P, X, wrt="x")
    with pytest.raises(incrax.errors.TangentError, match="`push` got a tangent that is ") as caught:
        push(tangent)
    assert f"is {seen}, and it belongs to `x`, float64[3]" in str(caught.value)


def test_nothing_to_differentiate_is_an_error():
    with pytest.raises(
        incrax.errors.SelectionError, match="`linearize` has nothing to differentiate"
    ):
        incrax.linearize(lambda n: n, 3)
    with pytest.raises(TypeError, match=r"`linearize\(fun\)` got 3"):
        incrax.linearize(3, 1.0)
