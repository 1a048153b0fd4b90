"""State beside what is trained: updated by what the function returns, outside of the gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax

optax = pytest.importorskip("optax", reason="optax is not installed")
RNG = np.random.default_rng(0)
BATCHES = [RNG.normal(size=(16, 3)) + k for k in range(4)]
MOMENTS = {"mean": np.zeros(3), "var": np.ones(3)}
ROLES = {"moments": "state", "x": "data"}


def normalised(scale, moments, x):
    """A batch norm: the batch's own moments here, running moments for later."""
    mean, var = jnp.mean(x, axis=0), jnp.var(x, axis=0)
    y = scale * (x - mean) / jnp.sqrt(var + 1e-5) + 0.1 * moments["mean"]
    new = {"mean": 0.9 * moments["mean"] + 0.1 * mean, "var": 0.9 * moments["var"] + 0.1 * var}
    return jnp.sum(jnp.cos(y)), {"moments": new}


def model():
    return incrax.bind(normalised, scale=np.ones(3), moments=MOMENTS, x=BATCHES[0], roles=ROLES)


def by_hand(updates, rate=0.1):
    scale, moments = jnp.ones(3), {"mean": jnp.zeros(3), "var": jnp.ones(3)}
    losses = []
    for x in BATCHES:
        if updates == "before":
            moments = normalised(scale, moments, x)[1]["moments"]
        (loss, new), gradient = jax.value_and_grad(normalised, has_aux=True)(scale, moments, x)
        scale = scale - rate * gradient
        moments = new["moments"] if updates == "after" else moments
        losses.append(loss)
    return losses, scale, moments


@pytest.mark.parametrize("updates", ["before", "after", "never"])
def test_steps_update_state_before_or_after(updates):
    m = model()
    step = m.training(optax.sgd(0.1), updates=updates)
    losses, scale, moments = by_hand(updates)
    np.testing.assert_allclose([step(x=x) for x in BATCHES], losses, rtol=1e-12)
    np.testing.assert_allclose(m["scale"], scale, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), m["moments"], moments)
    assert step.num_steps == 4


def test_state_has_no_gradient_and_evaluation_leaves_it_alone():
    m = model()
    m.value(), m.grad()
    assert set(m.grad()) == {"scale"}
    np.testing.assert_array_equal(m["mean"], np.zeros(3))
    m.update()
    np.testing.assert_allclose(m["mean"], 0.1 * BATCHES[0].mean(axis=0))
    m.update()
    np.testing.assert_allclose(m["mean"], 0.19 * BATCHES[0].mean(axis=0))


def test_an_update_runs_nothing_that_only_the_value_needs():
    fun = incrax.incremental(normalised, tuning=MINIMAL)
    m = incrax.bind(fun, scale=np.ones(3), moments=MOMENTS, x=BATCHES[0], roles=ROLES)
    m.update()
    assert "cos" not in ran(m, "updates")
    m.value()
    assert "cos" in ran(m, "value")


def ran(m, method):
    return [step["primitive"] for step in m.explain(method).as_dict()["ran"]]


def test_state_inside_an_input_is_named_by_its_path():
    def fun(net, x):
        return net["w"] * x, {"net['count']": net["count"] + 1}

    m = incrax.bind(fun, net={"w": 2.0, "count": 0}, x=3.0, roles={"count": "state", "x": "data"})
    m.update()
    m.update()
    assert (m["count"], m.value(), m.roles["net['w']"]) == (2, 6.0, "trainable")


def test_a_step_ends_within_bounds_and_numbers_stay_numbers():
    m = incrax.bind(lambda a: (a + 3.0) ** 2, a=1.0, bounds={"a": (0.5, None)})
    step = m.training(optax.sgd(0.4))
    assert step() == 16.0
    assert m["a"] == 0.5
    assert type(m["a"]) is float


def test_a_step_is_compiled_once():
    traced = []

    def loss(w, x):
        traced.append(1)
        return jnp.sum((w * x) ** 2)

    m = incrax.bind(loss, w=np.ones(3), x=BATCHES[0], roles={"x": "data"})
    step = m.training(optax.adam(0.1))
    for x in BATCHES:
        step(x=x)
    assert len(traced) == 1
