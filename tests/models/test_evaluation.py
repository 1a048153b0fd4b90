"""Values and derivatives of bound models, and what does not run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, primitives_run

import incrax

X = np.linspace(0.1, 2.0, 30)


def loss(b, a, x):
    """In this order: the names of inputs are not sorted."""
    return jnp.sum(jnp.sin(a["first"] * x) * jnp.exp(-b * x)) + jnp.sum(a["second"] ** 3) * b


def bound(**options):
    a = {"first": 1.25, "second": np.array([0.5, 1.5])}
    return incrax.bind(loss, b=0.75, a=a, x=X, **{"roles": {"x": "data"}, **options})


def plain(m):
    """The function of the trainable dictionary, for JAX."""
    fixed = m.inputs

    def fun(trainable):
        merged = {name: fixed[name] for name in ("b", "a", "x")}
        for name, tree in trainable.items():
            is_none = lambda leaf: leaf is None
            merged[name] = jax.tree.map(
                lambda t, f: f if t is None else t, tree, fixed[name], is_leaf=is_none
            )
        return loss(**merged)

    return fun


def alike(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), found, expected
    )


@pytest.mark.parametrize("fixed", [(), ("b",), ("first",), ("second",)])
def test_derivatives_are_those_of_plain_jax_by_what_is_trainable(fixed):
    m = bound()
    for name in fixed:
        m.set_role(name, "fixed")
    fun, at = plain(m), m.trainable
    alike(m.value(), loss(**m.inputs))
    alike(m.grad(), jax.grad(fun)(at))
    alike(m.value_and_grad(), jax.value_and_grad(fun)(at))
    alike(m.hessian(), jax.hessian(fun)(at))


def test_nothing_runs_where_nothing_was_set():
    m = bound()
    m.value(), m.grad()
    m.set(b=0.75)
    m.value(), m.grad()
    assert [stats.unchanged for stats in m.stats.values()] == [1, 1]


def test_only_what_a_change_reaches_runs():
    m = incrax.bind(
        incrax.incremental(loss, tuning=MINIMAL), b=0.75, a={"first": 1.0, "second": X[:2]}, x=X
    )
    m.value()
    m.set(b=0.5)
    m.value()
    assert "sin" not in primitives_run(m.function)
    assert "exp" in primitives_run(m.function)


def test_no_derivative_by_what_is_fixed_is_computed():
    fun = incrax.incremental(lambda w, v, x: jnp.sum((jnp.tanh(x * w) @ v) ** 2), tuning=MINIMAL)
    m = incrax.bind(
        fun, w=X[:3], v=np.ones(3), x=np.ones((4, 3)), roles={"w": "fixed", "x": "data"}
    )
    assert set(m.grad()) == {"v"}
    ran = [step["primitive"] for step in m.explain("grad").as_dict()["ran"]]
    assert ran.count("dot_general") == 2  # the value's, and that by v


def test_options_of_an_incremental_function_are_kept():
    m = incrax.bind(
        incrax.incremental(loss, policy="exact", memory=10_000),
        b=0.75,
        a={"first": 1.0, "second": X[:2]},
        x=X,
    )
    options = m.function._traces.options
    assert options.is_exact
    assert options.memory == 10_000


def test_a_flat_view_is_a_function_of_the_trainable_elements():
    m = bound(roles={"x": "data", "b": "fixed"})
    flat = m.flat()
    assert flat.names == m.names == ("a['first']", "a['second'][0]", "a['second'][1]")
    np.testing.assert_allclose(flat.x0, [1.25, 0.5, 1.5])
    value, gradient = flat.value_and_gradient(flat.x0)
    np.testing.assert_allclose(value, m.value())
    np.testing.assert_allclose(
        gradient, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(m.grad())])
    )


def test_a_gradient_and_a_value_with_it_are_one_program():
    m = bound()
    _, gradient = m.value_and_grad()
    alike(m.grad(), gradient)
    stats = m.stats["value_and_grad"]
    assert set(m.stats) == {"value_and_grad"}
    assert (stats.calls, stats.unchanged, stats.traces) == (2, 1, 1)
