"""Compressed derivatives: equal to those of JAX at the nonzeros, with as many pushforwards as there
are colours.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives.sparsity.numeric import POINTS, N, band
from scipy.sparse import csr_array

from incrax._program import trace
from incrax.derivatives.blocks import _blocks
from incrax.derivatives.flat import ends
from incrax.derivatives.sparsity import compressed
from incrax.derivatives.sparsity.compressed import (
    color_columns,
    color_symmetric,
    compressed_jacobian,
    coordinates,
    dense,
    pays,
)
from incrax.derivatives.sparsity.search import hessian_pattern, pattern_of
from incrax.engine.program.simplify import inline

X = jnp.asarray(POINTS[0])

JACOBIANS = {
    "diagonal": lambda x: jnp.sin(x) * x,
    "differences": lambda x: (x[1:] - x[:-1] ** 2) ** 2,
    "few outputs": lambda x: jnp.exp(x.reshape(3, 4)).sum(1) ** 2,
    "many outputs": lambda x: jnp.concatenate([x**2, x[::-1] * x, jnp.sin(x)]),
    "a full row": lambda x: jnp.append(x**3, x.sum() ** 2),
    "an empty row and column": lambda x: jnp.append(x[2:] ** 2, 1.0),
    "dense": lambda x: jnp.cumsum(x)[::-1] * jnp.sum(x),
}
HESSIANS = {
    "separable": lambda x: jnp.sum(jnp.cosh(x) * x),
    "permuted": lambda x: jnp.sum((x[::2] * x[1::2]) ** 2),
    "chained": lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2),
    "arrow": lambda x: jnp.sum(jnp.cosh((x[2:] - x[0]) * jnp.exp(-x[1]))) + jnp.sum(x**4),
    "blocks": lambda x: jnp.sum(jax.vmap(jnp.prod)(x.reshape(3, 4)) ** 2),
    "dense": lambda x: jnp.sum(x) ** 3 + jnp.prod(x),
}


def close(actual, expected):
    """To rounding; same dtype."""
    assert actual.dtype == expected.dtype
    scale = np.abs(expected).max(initial=0) * np.finfo(expected.dtype).eps
    np.testing.assert_allclose(actual, expected, rtol=0, atol=64 * scale)


def jacobian(fun, x):
    pattern = pattern_of(trace(fun, x))
    return jax.jit(
        lambda x: dense(compressed_jacobian(fun, x, pattern, color_columns(pattern)), pattern)
    )(x)


def hessian(fun, x):
    pattern = hessian_pattern(trace(fun, x))
    return jax.jit(
        lambda x: dense(
            compressed_jacobian(jax.grad(fun), x, pattern, color_symmetric(pattern)), pattern
        )
    )(x)


def counted(fun):
    """The function, and a list that gets an entry for each pushforward of its input."""
    columns = []

    @jax.custom_jvp
    def identity(x):
        return x

    @identity.defjvp
    def _(primals, tangents):
        note = lambda t: (columns.append(1), t)[1]
        shape = jax.ShapeDtypeStruct(tangents[0].shape, tangents[0].dtype)
        seen = jax.pure_callback(note, shape, tangents[0], vmap_method="sequential")
        return primals[0], tangents[0] + 0 * jax.lax.stop_gradient(seen)

    return lambda x: fun(identity(x)), columns


# --- equal to JAX ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JACOBIANS)
def test_a_compressed_jacobian_is_that_of_jax(name):
    close(jacobian(JACOBIANS[name], X), jax.jacfwd(JACOBIANS[name])(X))


@pytest.mark.parametrize("name", HESSIANS)
def test_a_compressed_hessian_is_that_of_jax(name):
    close(hessian(HESSIANS[name], X), jax.jit(jax.hessian(HESSIANS[name]))(X))


def test_a_float32_point_has_a_float32_jacobian():
    x = X.astype(jnp.float32)
    close(jacobian(JACOBIANS["differences"], x), jax.jacfwd(JACOBIANS["differences"])(x))
    close(hessian(HESSIANS["arrow"], x), jax.jit(jax.hessian(HESSIANS["arrow"]))(x))


def test_a_float32_result_of_a_float64_point_is_converted_as_by_jax():
    fun = lambda x: jnp.sin(x).astype(jnp.float32)
    expected = jax.jacfwd(fun)(X)
    np.testing.assert_allclose(jacobian(fun, X), expected, rtol=1e-6)
    assert jacobian(fun, X).dtype == expected.dtype


def test_jit_and_vmap_see_through_a_compressed_jacobian():
    fun = JACOBIANS["differences"]
    batch = jnp.stack([X, 2 * X])
    compiled = jax.jit(jax.vmap(lambda x: jacobian(fun, x)))
    close(compiled(batch), jax.vmap(jax.jacfwd(fun))(batch))


def test_jit_vmap_and_grad_see_through_a_compressed_hessian():
    fun = HESSIANS["arrow"]
    batch = jnp.stack([X, 2 * X])
    close(
        jax.jit(jax.vmap(lambda x: hessian(fun, x)))(batch),
        jax.jit(jax.vmap(jax.hessian(fun)))(batch),
    )
    close(
        jax.grad(lambda x: jnp.sum(hessian(fun, x) ** 2))(X),
        jax.grad(lambda x: jnp.sum(jax.hessian(fun)(x) ** 2))(X),
    )


def test_colors_in_batches_give_the_same_values(monkeypatch):
    fun = JACOBIANS["dense"]
    expected = jax.jacfwd(fun)(X)
    monkeypatch.setattr(compressed, "MAX_BATCH_ELEMENTS", 5 * N)
    close(jacobian(fun, X), expected)
    close(jax.jit(lambda x: jacobian(fun, x))(X), expected)


@pytest.mark.parametrize(("n_in", "n_out"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_empty_and_one_element_vectors_have_jacobians(n_in, n_out):
    fun = lambda x: jnp.ones(n_out) * jnp.sum(x) ** 2
    x = jnp.ones(n_in)
    assert jacobian(fun, x).shape == (n_out, n_in)
    np.testing.assert_array_equal(jacobian(fun, x), np.full((n_out, n_in), 2.0))


def test_an_empty_vector_has_an_empty_hessian():
    assert hessian(lambda x: jnp.sum(x**2), jnp.ones(0)).shape == (0, 0)


# --- what did not run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"), [("diagonal", 1), ("differences", 2), ("many outputs", 2), ("dense", N)]
)
def test_a_jacobian_takes_one_pushforward_per_color(name, expected):
    fun, columns = counted(JACOBIANS[name])
    pattern = pattern_of(trace(JACOBIANS[name], X))
    jax.block_until_ready(compressed_jacobian(fun, X, pattern, color_columns(pattern)))
    assert len(columns) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("separable", 1), ("permuted", 2), ("chained", 3), ("arrow", 3), ("blocks", 4), ("dense", N)],
)
def test_a_hessian_takes_one_pushforward_per_color(name, expected):
    pattern = hessian_pattern(trace(HESSIANS[name], X))
    coloring = color_symmetric(pattern)
    program = inline(
        trace(lambda x: compressed_jacobian(jax.grad(HESSIANS[name]), x, pattern, coloring), X)
    )
    largest = max(var.aval.size for eqn in program.eqns for var in eqn.outvars)
    assert coloring.num_colors == expected
    assert largest <= max(expected * N, 2 * pattern.nnz)


def test_without_nonzeros_nothing_runs():
    fun, columns = counted(lambda x: jnp.floor(x))
    pattern = pattern_of(trace(jnp.floor, X))
    values = compressed_jacobian(fun, X, pattern, color_columns(pattern))
    assert values.shape == (0,)
    assert not columns


# --- matrices -------------------------------------------------------------------------------------


def test_values_are_in_order_of_rows_then_columns():
    fun = JACOBIANS["differences"]
    pattern = pattern_of(trace(fun, X))
    rows, columns = coordinates(pattern)
    np.testing.assert_array_equal(np.lexsort((columns, rows)), np.arange(pattern.nnz))
    close(
        compressed_jacobian(fun, X, pattern, color_columns(pattern)),
        jax.jacfwd(fun)(X)[rows, columns],
    )


def test_a_bcoo_matrix_has_the_values_at_sorted_unique_indices():
    fun = JACOBIANS["differences"]
    pattern = pattern_of(trace(fun, X))
    rows, columns = (ends([(n,)]) for n in pattern.shape)
    values = lambda x: compressed_jacobian(fun, x, pattern, color_columns(pattern))
    ((made,),) = jax.jit(lambda x: _blocks(values(x), pattern, rows, columns, is_sparse=True))(X)
    assert made.indices_sorted
    assert made.unique_indices
    assert made.nse == pattern.nnz
    close(made.todense(), jax.jacfwd(fun)(X))
    close(made @ X, jax.jvp(fun, (X,), (X,))[1])


# --- whether it pays ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "is_worth_it"),
    [
        (np.ones((3, 9)), False),
        (np.ones((9, 9)), False),
        (np.eye(9), True),
        (band(9, 2, 2), False),
        (np.vstack([np.eye(9), np.ones((1, 9))]), False),
        (np.hstack([np.eye(9), np.ones((9, 1))]), True),
        (np.zeros((9, 9)), True),
    ],
)
def test_compression_pays_where_it_halves_the_directional_derivatives(pattern, is_worth_it):
    num_colors = color_columns(csr_array(np.asarray(pattern, bool))).num_colors
    assert pays(num_colors, n_in=pattern.shape[1], n_out=pattern.shape[0]) == is_worth_it
