"""The example of a mixture of delays: its densities against independent formulas."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FAST
from scipy.integrate import quad
from scipy.stats import exponnorm, norm

import incrax

EXAMPLE = Path(__file__).parents[1] / "examples" / "delay_mixture.py"
spec = importlib.util.spec_from_file_location("delay_mixture", EXAMPLE)
assert spec is not None
assert spec.loader is not None
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
LOW, HIGH = model.LOW, model.HIGH

START = model.start(1000)
POINTS = {
    "start": START,
    "narrow": np.array([700.0, 10, 200, 90, -20, 4, -5, 6, 3, 2.5, 12, 30]),
    "wide": np.array([5.0, 400, 30, 700, 30, 50, -50, 70, 60, 55, 140, 390]),
    "short tail": np.array([300.0, 300, 300, 100, -10, 20, 10, 10, -30, 50, 6, 25]),
    "far left": np.array([300.0, 300, 300, 100, -58, 15, -55, 30, -58, 12, 60, 150]),
    "no yield": np.array([0.0, 0, 500, 500, -10, 20, 10, 10, -20, 40, 30, 80]),
}
GRID = np.concatenate([np.linspace(LOW, HIGH, 60), np.linspace(-40, 60, 60)])
every_point = pytest.mark.parametrize("name", POINTS)


def truncated(distribution, x):
    return distribution.pdf(x) / (distribution.cdf(HIGH) - distribution.cdf(LOW))


def reference_densities(theta, x):
    mu_e, sigma_e, mu_p, sigma_p, mu_l, sigma_l, tau_l, tau_v = theta[4:]
    return [
        truncated(norm(mu_e, sigma_e), x),
        truncated(norm(mu_p, sigma_p), x),
        truncated(exponnorm(tau_l / sigma_l, mu_l, sigma_l), x),
        truncated(exponnorm(tau_v / sigma_l, mu_l, sigma_l), x),
    ]


def reference_likelihood(theta, x):
    rate = sum(
        n * density for n, density in zip(theta, reference_densities(theta, x), strict=False)
    )
    return theta[:4].sum() - np.log(rate).sum()


def integral(density):
    edges = [LOW, -60.0, -40.0, -20.0, 0.0, 20.0, 40.0, 80.0, 160.0, 320.0, HIGH]
    pieces = [
        quad(density, a, b, epsabs=1e-12, epsrel=1e-12)[0]
        for a, b in zip(edges, edges[1:], strict=False)
    ]
    return sum(pieces)


def test_names_starts_and_limits_belong_together():
    assert len(model.NAMES) == len(model.LOWER) == len(model.UPPER) == len(START) == 12
    assert START[:4].sum() == pytest.approx(1000)
    for theta in (START, *POINTS.values()):
        assert ((theta >= model.LOWER) & (theta <= model.UPPER)).all()


@every_point
@pytest.mark.parametrize("component", range(4), ids=model.COMPONENTS)
def test_components_are_normalised_on_the_range(name, component):
    theta = jnp.asarray(POINTS[name])
    density = jax.jit(lambda x: model.densities(theta, x)[component])
    assert integral(lambda x: float(density(x))) == pytest.approx(1, abs=1e-9)


@every_point
def test_the_mixture_integrates_to_the_sum_of_the_yields(name):
    theta = jnp.asarray(POINTS[name])
    rate = jax.jit(lambda x: jnp.dot(theta[:4], jnp.stack(model.densities(theta, x))))
    assert integral(lambda x: float(rate(x))) == pytest.approx(POINTS[name][:4].sum(), rel=1e-9)


@every_point
def test_densities_equal_independent_formulas(name):
    densities = model.densities(jnp.asarray(POINTS[name]), jnp.asarray(GRID))
    for density, expected in zip(densities, reference_densities(POINTS[name], GRID), strict=True):
        assert density.shape == GRID.shape
        np.testing.assert_allclose(density, expected, rtol=1e-9, atol=1e-300)


@every_point
def test_the_likelihood_equals_independent_formulas(name):
    value = model.negative_log_likelihood(jnp.asarray(POINTS[name]), jnp.asarray(GRID))
    assert float(value) == pytest.approx(reference_likelihood(POINTS[name], GRID), rel=1e-12)


@every_point
def test_the_gradient_equals_central_differences_of_independent_formulas(name):
    theta = POINTS[name]
    gradient = jax.grad(model.negative_log_likelihood)(jnp.asarray(theta), jnp.asarray(GRID))
    for k in range(12):
        assert float(gradient[k]) == pytest.approx(slope(theta, k), rel=1e-5, abs=1e-6), (
            model.NAMES[k]
        )


def slope(theta, k):
    """By central differences of second order; to the right where the parameter is at its lower
    limit.
    """
    step = 1e-5 * max(abs(theta[k]), 1.0)
    places, weights = (
        ((0, 1, 2), (-1.5, 2, -0.5)) if theta[k] == model.LOWER[k] else ((-1, 1), (-0.5, 0.5))
    )
    values = [reference_likelihood(theta + place * step * np.eye(12)[k], GRID) for place in places]
    return np.dot(weights, values) / step


def test_incremental_gradients_of_one_parameter_after_the_other():
    fun = jax.value_and_grad(model.negative_log_likelihood)
    f, plain = incrax.incremental(fun, tuning=FAST), jax.jit(fun)
    x = jnp.asarray(GRID)
    for point in POINTS.values():
        for k in (0, 0, 7, 7, 11, 11):
            theta = point + 0.5 * np.eye(12)[k]
            (value, gradient), (expected, slopes) = f(theta, x), plain(theta, x)
            np.testing.assert_allclose(value, expected, rtol=1e-13)
            np.testing.assert_allclose(
                gradient, slopes, rtol=1e-9, atol=1e-12 * np.abs(slopes).max()
            )
