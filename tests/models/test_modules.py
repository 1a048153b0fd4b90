"""Models of Equinox, which are pytrees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

optax = pytest.importorskip("optax", reason="optax is not installed")
X = np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)
Y = np.sin(X[:, 0])
ROLES = {"x": "data", "y": "data"}


def test_an_equinox_module_is_a_pytree_with_named_leaves():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    net = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    loss = lambda net, x, y: jnp.mean((jax.vmap(net)(x)[:, 0] - y) ** 2)
    m = incrax.bind(loss, net=net, x=X, y=Y, roles=ROLES)
    assert m.trainable_paths[0] == "net.layers[0].weight"
    gradient = eqx.filter_grad(loss)(net, X, Y)
    np.testing.assert_allclose(
        m.grad()["net"].layers[1].weight, gradient.layers[1].weight, rtol=1e-6
    )
    step = m.training(optax.adam(0.05))
    losses = [float(step()) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert isinstance(m["net"], eqx.nn.MLP)
    np.testing.assert_allclose(loss(m["net"], X, Y), m.value(), rtol=1e-6)
    m.set_role("net.layers[0]", "fixed")
    assert m.grad()["net"].layers[0].weight is None
