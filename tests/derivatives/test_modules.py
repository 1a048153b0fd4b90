"""Models of other libraries, which incrax does not depend on: skipped where they are not
installed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

X = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)


def equinox_model():
    eqx = pytest.importorskip("equinox")
    return eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))


def of_equinox(model, x):
    return jnp.sum(jax.vmap(model)(x) ** 2)


def test_a_model_of_equinox_gets_a_gradient_in_its_shape():
    model = equinox_model()
    eqx = pytest.importorskip("equinox")
    found = incrax.grad(of_equinox)(model, X)
    expected = eqx.filter_grad(of_equinox)(model, X)
    for ours, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(eqx.filter(expected, eqx.is_array)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert found.activation is None


def test_a_layer_of_equinox_is_selected_by_its_path():
    eqx, model = pytest.importorskip("equinox"), equinox_model()
    whole = eqx.filter_grad(of_equinox)(model, X)
    for k, layer in enumerate(whole.layers):
        found = incrax.grad(of_equinox, wrt=f"model.layers[{k}]")(model, X)
        assert type(found) is type(layer)
        assert np.abs(found.weight).max() > 0
        np.testing.assert_allclose(found.weight, layer.weight, rtol=1e-6)
        np.testing.assert_allclose(found.bias, layer.bias, rtol=1e-6)


def test_a_model_of_equinox_with_a_part_that_is_cut_trains_with_optax():
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    model = equinox_model()
    selected = lambda m: (m.layers[1].weight, m.layers[1].bias)
    step = incrax.value_and_grad(of_equinox, wrt=("model.layers[1].weight", "model.layers[1].bias"))
    optimiser = optax.sgd(1e-2)
    state, values = optimiser.init(selected(model)), []
    for _ in range(5):
        value, gradients = step(model, X)
        updates, state = optimiser.update(gradients, state)
        model = eqx.tree_at(selected, model, optax.apply_updates(selected(model), updates))
        values.append(float(value))
    assert values == sorted(values, reverse=True)


def nnx_model():
    nnx = pytest.importorskip("flax.nnx")
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def of_nnx(model, x):
    return jnp.sum(model(x) ** 2)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_flax_gets_a_gradient_in_its_shape():
    model = nnx_model()
    found = incrax.grad(of_nnx)(model, X)
    expected = jax.grad(lambda kernel: jnp.sum((X @ kernel + model.bias[...]) ** 2))(
        model.kernel[...]
    )
    np.testing.assert_allclose(found.kernel[...], expected, rtol=1e-5)
    by_path = incrax.grad(of_nnx, wrt="model.kernel")(model, X)
    np.testing.assert_allclose(by_path[...], expected, rtol=1e-5)
