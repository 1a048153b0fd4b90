"""Equinox and Flax NNX models, bound whole."""

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


def test_a_module_is_bound_itself():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    net = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    m = incrax.bind(net, x=X[0], roles={"x": "data"})
    np.testing.assert_allclose(m.value(), net(X[0]), rtol=1e-6)
    assert m.trainable_paths == ("model.weight", "model.bias")


def flax_model():
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(2, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.last = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(jnp.tanh(self.norm(self.first(x))))[:, 0]

    return nnx, Net(nnx.Rngs(0))


def test_a_flax_module_brings_its_roles():
    _, net = flax_model()
    m = incrax.bind(lambda net, x, y: jnp.mean((net(x) - y) ** 2), net=net, x=X, y=Y, roles=ROLES)
    assert {path: role for path, role in m.roles.items() if "norm" in path} == {
        "net['norm']['bias']": "trainable",
        "net['norm']['mean']": "state",
        "net['norm']['scale']": "trainable",
        "net['norm']['var']": "state",
    }


def test_steps_of_a_flax_module_are_those_of_flax():
    nnx, net = flax_model()
    loss = lambda net, x, y: jnp.mean((net(x) - y) ** 2)
    m = incrax.bind(loss, net=net, x=X, y=Y, roles=ROLES)
    step = m.training(optax.sgd(0.1))
    expected = nnx.clone(net)
    optimizer = nnx.Optimizer(expected, optax.sgd(0.1), wrt=nnx.Param)
    for _ in range(3):
        value, gradient = nnx.value_and_grad(loss)(expected, X, Y)
        optimizer.update(expected, gradient)
        np.testing.assert_allclose(step(), value, rtol=1e-5)
    np.testing.assert_allclose(
        m["net"].norm.mean[...], expected.norm.mean[...], rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(m["net"].first.kernel[...], expected.first.kernel[...], rtol=1e-5)
    np.testing.assert_array_equal(net.norm.mean[...], np.zeros(3))
