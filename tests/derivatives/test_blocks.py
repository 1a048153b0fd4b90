"""Jacobians and Hessians of trees that the pattern compresses: results of JAX, passes counted,
sparse results.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

import incrax
from incrax.derivatives import blocks

X = jnp.linspace(0.1, 1.0, 40)
P = {
    "a": jnp.linspace(1.0, 2.0, 12).reshape(3, 4),
    "b": jnp.array(0.5),
    "c": jnp.linspace(0.5, 1.0, 24),
}


def chained(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def tree_loss(p, x):
    return jnp.sum(jnp.sin(p["a"]) * p["b"]) + jnp.sum(p["c"] ** 3) * x


def tree_outputs(p, x):
    return {"y": jnp.sin(p["c"]) * x, "z": p["a"][1:] * p["a"][:-1], "s": p["b"] ** 2}


def passes(monkeypatch):
    """Numbers of directional derivatives, per call of `jax.vmap` in the compressed form."""
    from incrax.derivatives.sparsity import compressed

    counts, vmap = [], jax.vmap
    monkeypatch.setattr(
        compressed.jax, "vmap", lambda f: lambda x: counts.append(len(x)) or vmap(f)(x)
    )
    return counts


def near(actual, expected):
    actual, expected = jax.tree.map(jnp.asarray, (actual, expected))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_a_hessian_takes_as_many_passes_as_its_pattern_has_colours(monkeypatch):
    counts = passes(monkeypatch)
    near(incrax.hessian(chained)(X), jax.jit(jax.hessian(chained))(X))
    assert counts == [3]


def test_a_small_hessian_is_not_searched(monkeypatch):
    monkeypatch.setattr(blocks, "hessian_pattern", None)
    near(incrax.hessian(chained)(X[:10]), jax.hessian(chained)(X[:10]))


def test_a_full_hessian_is_that_of_jax(monkeypatch):
    counts = passes(monkeypatch)
    f = lambda x: jnp.sum(x) ** 3
    near(incrax.hessian(f)(X), jax.hessian(f)(X))
    assert counts == []


def test_blocks_of_trees():
    near(incrax.hessian(tree_loss)(P, 2.0), jax.hessian(tree_loss)(P, 2.0))
    near(incrax.jacobian(tree_outputs)(P, 2.0), jax.jacrev(tree_outputs)(P, 2.0))


def test_a_new_point_runs_the_same_program():
    f = incrax.hessian(chained)
    for scale in (1.0, 0.5, 1.0):
        near(f(scale * X), jax.hessian(chained)(scale * X))
    assert f.stats.traces == 1


def dense(tree):
    return jax.tree.map(lambda x: x.todense(), tree, is_leaf=lambda x: isinstance(x, BCOO))


def test_sparse_hessians_hold_what_may_be_nonzero():
    found = incrax.hessian(chained, sparse=True)(X)
    assert isinstance(found, BCOO)
    assert found.nse == 40 + 2 * 39
    near(found.todense(), jax.hessian(chained)(X))
    assert found.indices_sorted
    assert found.unique_indices


def test_sparse_blocks_of_trees():
    near(dense(incrax.hessian(tree_loss, sparse=True)(P, 2.0)), jax.hessian(tree_loss)(P, 2.0))
    near(
        dense(incrax.jacobian(tree_outputs, sparse=True)(P, 2.0)), jax.jacrev(tree_outputs)(P, 2.0)
    )


def test_sparse_results_are_multiplied_as_those_of_jax():
    found = incrax.hessian(chained, sparse=True)(X)
    near(found @ X, jax.hessian(chained)(X) @ X)


def test_sparse_jacobians():
    f = lambda x: x[1:] * x[:-1]
    near(incrax.jacobian(f, sparse=True)(X).todense(), jax.jacfwd(f)(X))


def test_a_jacobian_takes_as_many_passes_as_its_pattern_has_colours(monkeypatch):
    counts = passes(monkeypatch)
    f = lambda x: x[1:] * x[:-1]
    near(incrax.jacobian(f)(X), jax.jacfwd(f)(X))
    assert counts == [2]


def test_values_of_other_arguments_do_not_decide_the_pattern():
    f = lambda x, w: jnp.sum((w @ x) ** 2)
    h = incrax.hessian(f)
    for w in (jnp.eye(40), jnp.ones((40, 40))):
        near(h(X, w), jax.hessian(f)(X, w))


def test_what_is_cut_is_no_part_of_it():
    f = lambda p: jnp.sum(p["x"] ** 2 * p["w"] ** 3)
    found = incrax.hessian(f, sparse=True)({"x": X, "w": incrax.cut(X)})
    near(found["x"]["x"].todense(), jnp.diag(2.0 * X**3))
    assert found["w"] is None


@jax.custom_vjp
def cubed(x):
    return x**3


cubed.defvjp(lambda x: (x**3, x), lambda x, ct: (3.0 * x**2 * ct,))


def test_a_rule_for_reverse_mode_alone_falls_back():
    f = lambda x: jnp.sum(cubed(x))
    near(incrax.hessian(f)(X), jnp.diag(6.0 * X))


def test_mixed_types_and_complex_numbers_are_left_to_jax():
    p = {"x": X, "y": X.astype(jnp.float32)}
    f = lambda p: jnp.sum(p["x"] ** 2) + jnp.sum(p["y"] ** 2)
    found = incrax.hessian(f)(p)
    assert found["y"]["y"].dtype == jnp.float32
    near(found, jax.hessian(f)(p))


def test_compressed_derivatives_by_numbers_of_weak_type_have_it():
    x = 2.0 * jnp.arange(40)
    assert x.weak_type
    assert incrax.jacobian(jnp.sin)(x).weak_type
    assert incrax.hessian(chained)(x).weak_type


def test_the_hessian_of_a_constant_is_zero():
    near(incrax.hessian(lambda x: 2.0)(X), jnp.zeros((X.size, X.size)))


@pytest.mark.parametrize("derivative", ["jacobian", "hessian"])
def test_a_python_number_does_not_widen_what_it_meets(monkeypatch, derivative):
    """Its type is weak, also as an element of the vector that is differentiated by; strict
    promotion refuses anything else.
    """
    line = jnp.resize(jnp.array([0.5, 1.0, 2.0], jnp.float32), 40)  # all that follows is exact
    each = lambda p: (p["a"] * line).astype(float) * p["w"]
    f = each if derivative == "jacobian" else lambda p: jnp.sum(each(p) ** 2)
    point = {"a": 1.5, "w": line.astype(float)}
    counts = passes(monkeypatch)
    with jax.numpy_dtype_promotion("strict"):
        expected = jax.jit(getattr(jax, derivative)(f))(point)
        near(getattr(incrax, derivative)(f)(point), expected)
    assert counts == [2]


def test_keys_among_the_other_arguments():
    f = lambda x, key: x[1:] * x[:-1] * jax.random.normal(key, (39,))
    near(incrax.jacobian(f)(X, jax.random.key(1)), jax.jacfwd(f)(X, jax.random.key(1)))
    g = lambda x, key: jnp.sum(x**2 * jax.random.normal(key, (40,)))
    found = incrax.hessian(g, sparse=True)(X, jax.random.key(1))
    near(found.todense(), jax.hessian(g)(X, jax.random.key(1)))


def test_a_sparse_jacobian_of_a_reverse_rule_is_taken_in_reverse():
    near(incrax.jacobian(cubed, sparse=True)(X).todense(), jnp.diag(3.0 * X**2))
    f = lambda x: jnp.cumsum(cubed(x))
    near(incrax.jacobian(f, sparse=True)(X).todense(), jax.jacrev(f)(X))


def test_a_result_with_one_element_in_an_axis_keeps_the_axis():
    f = lambda x: jnp.sum(x**3, keepdims=True)
    near(incrax.hessian(f)(X), jax.hessian(f)(X))


@pytest.mark.parametrize("derivative", [incrax.hessian, incrax.jacobian])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_python_code_runs_once_where_compression_pays(derivative, is_sparse):
    calls = []

    def f(x):
        calls.append(x)
        return chained(x) if derivative is incrax.hessian else x[1:] * x[:-1]

    derivative(f, sparse=is_sparse)(X)
    assert len(calls) == 1


def test_a_hessian_of_python_code_that_asks_for_values_is_that_of_jax():
    f = lambda x: jnp.sum(x**3) if x[0] > 0 else jnp.sum(x)
    with jax.disable_jit():
        near(incrax.hessian(f)(X), jax.hessian(f)(X))


def test_a_small_jacobian_is_traced_for_its_sizes_and_its_derivative_alone():
    calls = []
    incrax.jacobian(lambda x: calls.append(x) or jnp.sin(x))(X[:10])
    assert len(calls) == 2


def test_a_colouring_is_found_once(monkeypatch):
    from incrax.derivatives.sparsity import compressed

    counts, color = [], compressed.color_columns
    counted = lambda pattern: counts.append(pattern.shape) or color(pattern)
    for module in (blocks, compressed):
        monkeypatch.setattr(module, "color_columns", counted)
    incrax.jacobian(lambda x: x[1:] * x[:-1])(X)
    assert counts == [(39, 40)]
    counts.clear()
    incrax.hessian(lambda x: jnp.sum(x**3))(X)
    assert counts == [(40, 40)]


@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_a_compressed_jacobian_has_the_dtype_of_its_leaves(given):
    other = np.float64 if given == np.float32 else np.float32
    f = lambda x: (x[1:] * x[:-1]).astype(other)
    x = X.astype(given)
    for found in (incrax.jacobian(f)(x), incrax.jacobian(f, sparse=True)(x).todense()):
        assert found.dtype == given
        np.testing.assert_allclose(found, jax.jacrev(f)(x), rtol=1e-6)


AROUND = {
    "vmap of hessian": (lambda h: jax.vmap(h(chained)), jnp.stack([X, 2 * X])),
    "hessian of vmap": (
        lambda h: h(lambda x: jnp.sum(jax.vmap(chained)(x))),
        jnp.stack([X, 2 * X]),
    ),
    "grad of hessian": (lambda h: jax.grad(lambda x: jnp.sum(jnp.tanh(h(chained)(x)))), X),
    "jacfwd of hessian": (lambda h: jax.jacfwd(lambda x: jnp.sum(h(chained)(x), 0)), X),
    "scan of hessian": (
        lambda h: lambda x: jax.lax.scan(lambda c, s: (c, h(chained)(s * c)), x, X[:2])[1],
        X,
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_compressed_hessians_inside_and_around_transformations(name):
    make, x = AROUND[name]
    found, expected = jax.jit(make(incrax.hessian))(x), jax.jit(make(jax.hessian))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-9)
