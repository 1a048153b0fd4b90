"""Steps of least squares batch by batch; NumPy and the whole search are the oracles."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from incrax import fit

KEY = jax.random.PRNGKey(0)
X = np.random.default_rng(0).normal(size=(64, 5))
Y = np.sin(X @ np.arange(5.0)) + X[:, 0] ** 2


class Network(eqx.Module):
    layers: list
    activation: object = jnp.tanh

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)[0]


def network():
    first, last = jax.random.split(KEY)
    return Network([eqx.nn.Linear(5, 12, key=first), eqx.nn.Linear(12, 1, key=last)])


def errors(model, x, y):
    return jax.vmap(model)(x) - y


def cost(model):
    return 0.5 * float(jnp.mean(errors(model, X, Y) ** 2))


@pytest.mark.parametrize("m", [8, 64])
def test_a_step_is_the_damped_least_squares_step(m):
    """85 parameters: solved in the space of 8 residuals, or of 64."""
    model = network()
    x, y = X[:m], Y[:m]
    free, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(free)
    jacobian = np.asarray(jax.jacrev(lambda v: errors(eqx.combine(unravel(v), rest), x, y))(flat))
    damping = 0.3 * np.trace(jacobian @ jacobian.T) / m
    stacked = np.concatenate([jacobian, np.sqrt(damping) * np.eye(flat.size)])
    expected = -np.linalg.lstsq(
        stacked, np.concatenate([errors(model, x, y), np.zeros(flat.size)])
    )[0]
    steps = fit.LeastSquaresSteps(errors, damping=0.3)
    after, state = steps.step(model, steps.init(model), x, y)
    found = jax.flatten_util.ravel_pytree(eqx.filter(after, eqx.is_inexact_array))[0] - flat
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert bool(state.is_taken)
    assert float(state.cost) == pytest.approx(0.5 * float(jnp.mean(errors(after, x, y) ** 2)))


def test_more_residuals_than_parameters_are_solved_among_the_parameters():
    fun = lambda p, x, y: x @ p - y
    steps = fit.LeastSquaresSteps(fun, least_damping=1e-12)
    p, state = np.zeros(5), steps.init(np.zeros(5))
    for _ in range(30):
        p, state = steps.step(p, state, X, Y)
    np.testing.assert_allclose(p, np.linalg.lstsq(X, Y)[0], rtol=1e-8)


def test_one_batch_each_time_reaches_what_the_whole_search_does():
    fun = lambda p, x, y: p["a"] * jnp.exp(-p["k"] * x) - y
    x = np.linspace(0, 3, 30)
    y = 2 * np.exp(-0.7 * x) + 0.01 * np.random.default_rng(1).normal(size=30)
    p = {"a": jnp.array(1.0), "k": jnp.array(0.1)}
    steps = fit.LeastSquaresSteps(fun, least_damping=1e-10)
    state = steps.init(p)
    for _ in range(40):
        p, state = steps.step(p, state, x, y)
    expected = fit.levenberg_marquardt(fun, {"a": 1.0, "k": 0.1}, x, y).params
    assert float(p["a"]) == pytest.approx(float(expected["a"]), rel=1e-7)
    assert float(p["k"]) == pytest.approx(float(expected["k"]), rel=1e-7)


def test_batches_train_an_equinox_module_and_are_compiled_once():
    traces = []

    def residuals(model, x, y):
        traces.append(1)
        return errors(model, x, y)

    model = network()
    steps, first = fit.LeastSquaresSteps(residuals), cost(model)
    state = steps.init(model)
    for number in range(100):
        rows = np.arange(16) + 16 * (number % 4)
        model, state = steps.step(model, state, X[rows], Y[rows])
        if number == 0:
            num = len(traces)
    assert isinstance(model, Network)
    assert model.activation is jnp.tanh
    assert len(traces) == num
    assert int(state.num_steps) == 100
    assert int(state.num_taken) > 90
    assert cost(model) < 0.2 * first


def test_a_state_of_flax_is_a_pytree_like_any():
    graph, params = nnx.split(nnx.Linear(5, 1, param_dtype=jnp.float64, rngs=nnx.Rngs(0)))
    residuals = lambda params, x, y: nnx.merge(graph, params)(x)[:, 0] - y
    steps = fit.LeastSquaresSteps(residuals, least_damping=1e-12)
    state = steps.init(params)
    for _ in range(25):
        params, state = steps.step(params, state, X, Y)
    design = np.concatenate([X, np.ones((64, 1))], axis=1)
    model = nnx.merge(graph, params)
    expected = np.linalg.lstsq(design, Y)[0]
    np.testing.assert_allclose(np.r_[model.kernel[...][:, 0], model.bias[...]], expected, rtol=1e-6)


def test_a_step_that_raises_the_cost_is_refused_and_the_next_is_shorter():
    fun = lambda p: jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])
    steps = fit.LeastSquaresSteps(fun, damping=1e-9, least_damping=1e-12)
    p = np.array([-1.2, 1.0])
    after, state = steps.step(p, steps.init(p))
    assert not bool(state.is_taken)
    np.testing.assert_array_equal(after, p)
    assert float(state.damping) == pytest.approx(2e-9)
    for _ in range(200):
        after, state = steps.step(after, state)
    np.testing.assert_allclose(after, [1, 1], rtol=1e-6)


def test_residuals_that_are_not_finite_move_nothing():
    steps = fit.LeastSquaresSteps(lambda p, x: p * x)
    p, state = steps.step(np.ones(2), steps.init(np.ones(2)), np.array([1.0, np.nan]))
    np.testing.assert_array_equal(p, np.ones(2))
    p, state = steps.step(p, state, np.ones(2))
    assert bool(state.is_taken)


def test_single_precision_stays_single():
    p = np.ones(3, np.float32)
    steps = fit.LeastSquaresSteps(lambda p, x: p * x)
    after, state = steps.step(p, steps.init(p), np.ones(3, np.float32))
    assert after.dtype == state.damping.dtype == np.float32


@pytest.mark.parametrize("option", ["damping", "least_damping"])
def test_a_damping_below_zero_is_refused(option):
    with pytest.raises(ValueError, match="least_damping|damping") as caught:
        fit.LeastSquaresSteps(errors, **{option: -1.0})
    assert str(caught.value) == (
        f"`LeastSquaresSteps({option}=...)` got -1.0. Nothing was evaluated. Pass a number above "
        "zero."
    )


def test_complex_parameters_are_refused():
    with pytest.raises(
        fit.ParameterTypeError, match="`LeastSquaresSteps` was asked to fit `p` of type complex128"
    ):
        fit.LeastSquaresSteps(lambda p: p).init(1j)
