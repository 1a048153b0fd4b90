"""Invertible residual networks: contraction, convergence, exact and estimated log-determinants, what does not run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import KEY, pop_counts
from bijectors.own_cases import counted_tanh, moved, residual
from incrax import bijectors as ib
from incrax.bijectors.residual import lipswish, norm_bound

X = jnp.array([0.7, -0.4, 1.2])


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (40, 7), (5, 64), (64, 64)])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_bound_of_a_norm_is_above_it_and_close(shape, scale):
    weight = scale * jax.random.normal(KEY, shape)
    exact = jnp.linalg.norm(weight, 2)
    assert exact * (1 - 1e-6) <= norm_bound(weight) <= exact * min(shape) ** (1 / 128) * (1 + 1e-6)


def test_the_bound_of_a_matrix_of_zeros_has_a_derivative():
    assert np.isfinite(jax.grad(lambda w: norm_bound(w))(jnp.zeros((3, 3)))).all()


def test_the_default_activation_is_nowhere_steeper_than_one():
    slopes = jax.vmap(jax.grad(lipswish))(jnp.linspace(-20, 20, 40_001))
    assert jnp.abs(slopes).max() <= 1


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_whatever_the_weights_the_network_contracts_and_the_inverse_converges(scale):
    b = moved(ib.InvertibleResidual(KEY, dim=3, hidden=(8, 8), lipschitz=0.7), scale)
    x = jax.random.normal(KEY, (64, 3))
    y = jax.jit(b.transform)(x)
    pairs = jnp.linalg.norm((y - x)[:, None] - (y - x), axis=-1) <= 0.7 * jnp.linalg.norm(x[:, None] - x, axis=-1)
    assert pairs.all()
    np.testing.assert_allclose(jax.jit(lambda y: b.inverse(y).output)(y), x, rtol=1e-10, atol=1e-14 * jnp.abs(y).max())


@pytest.mark.parametrize("lipschitz", [0.05, 0.99])
def test_the_inverse_converges_near_the_ends_of_the_range(lipschitz):
    b = moved(ib.InvertibleResidual(KEY, dim=3, hidden=(8,), lipschitz=lipschitz, max_num_steps=5000), 10.0)
    x = jax.random.normal(KEY, (64, 3))
    np.testing.assert_allclose(jax.jit(lambda x: b.inverse(b.transform(x)).output)(x), x, rtol=1e-8, atol=1e-10)


def test_an_event_that_has_not_converged_is_nan_and_the_others_are_not():
    b = ib.InvertibleResidual(KEY, dim=2, hidden=(4,), max_num_steps=8, activation=jnp.tanh)
    far, near = moved(b, 3.0).inverse(jnp.array([[1e9, 1e9], [0.1, 0.2]])).output
    assert np.isfinite(far).all()  # where g is constant
    assert np.isnan(near).all()


def test_nan_ends_the_iteration():
    assert np.isnan(residual().inverse(jnp.full(3, jnp.nan)).output).all()


@pytest.mark.parametrize("options", [{}, {"num_terms": 4}], ids=["exact", "series"])
def test_the_inverse_has_the_derivatives_of_the_implicit_function_theorem(options):
    b = residual(**options)
    y = b.transform(X)
    forward = jax.jit(jax.jacfwd(b.transform))(X)
    for jacobian in (jax.jacfwd, jax.jacrev):
        found = jax.jit(jacobian(lambda y: b.inverse(y, requires_ladj=False).output))(y)
        np.testing.assert_allclose(found, jnp.linalg.inv(forward), rtol=1e-8, atol=1e-10)


def test_the_inverse_has_derivatives_with_respect_to_the_weights():
    b = residual()
    loss = lambda scale: jnp.sum(jnp.sin(jax.tree.map(lambda w: scale * w, b).inverse(X).output))
    found = jax.jit(jax.grad(loss))(1.1)
    np.testing.assert_allclose(found, (loss(1.1 + 1e-5) - loss(1.1 - 1e-5)) / 2e-5, rtol=1e-5)


def test_what_a_series_cuts_off_is_within_its_bound():
    """In one dimension v^T J^k v = J^k for a sign v, so that nothing but the terms cut off is in error."""
    for num_terms in (1, 3, 8):
        b = moved(ib.InvertibleResidual(KEY, dim=1, hidden=(4,), lipschitz=0.8, num_terms=num_terms), 3.0)
        x = jnp.linspace(-2, 2, 41)[:, None]
        exact = jnp.log(jax.vmap(jax.jacfwd(b.transform))(x))[:, 0, 0]
        error = jnp.abs(b.transform_and_log_det(x)[1] - exact)
        assert error.max() <= b.series_error
        assert error.max() > 0
    assert residual().series_error == 0


def test_a_series_is_right_in_the_mean_over_keys():
    b, exact = residual(num_terms=12), residual()
    keys = jax.random.key_data(jax.random.split(KEY, 2000))
    found = jax.jit(jax.vmap(lambda key: b.ladj(X, None, key)))(keys)
    assert found.std() > 0
    error = abs(found.mean() - exact.ladj(X, None))
    assert error <= b.series_error + 5 * found.std() / np.sqrt(len(keys))


def test_a_key_as_context_is_remembered_and_typed_keys_give_the_same():
    b = ib.remember(residual(num_terms=3))
    key = jax.random.key_data(KEY)
    y, ladj = b.transform_and_log_det(X, key)
    assert b.inverse(y, key) is X
    np.testing.assert_allclose(b.bijection.ladj(X, y, KEY), ladj, rtol=1e-10)
    other = b.log_abs_det_jacobian(X, y, jax.random.key_data(jax.random.key(7)))
    assert other != ladj


def test_probes_are_averaged():
    many = residual(num_terms=3, num_probes=500)
    keys = jax.random.key_data(jax.random.split(KEY, 20))
    spread = lambda b: jnp.std(jax.vmap(lambda key: b.ladj(X, None, key))(keys))
    assert spread(many) < spread(residual(num_terms=3)) / 5


@pytest.mark.parametrize("options", [{}, {"num_terms": 3}], ids=["exact", "series"])
def test_a_log_determinant_that_is_not_required_is_not_computed(options):
    b = ib.remember(residual(activation=counted_tanh, **options))
    pop_counts()
    y = b.forward(X, requires_ladj=False)
    assert pop_counts() == {"value": 1}
    assert b.inverse(y, requires_ladj=False) is X
    assert pop_counts() == {}
    b.log_abs_det_jacobian(X, y)
    counts = pop_counts()
    assert counts.get("slope", 0) >= 1
    assert "value" not in counts
    b.inverse_and_log_det(y)
    assert pop_counts() == {}
    b.inverse(jnp.array(y), requires_ladj=False)
    assert "slope" not in pop_counts()
