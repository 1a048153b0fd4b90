"""Least squares with SciPy on NumPy arrays: residuals and their Jacobian by `jax.jacfwd`, both
incremental.

The detector's response is a large matrix that depends on the data and on no fitted parameter.
Written where it belongs, inside the model, `jax.jit` evaluates it at every call; here it is a saved
value. With derivatives by differences, SciPy moves one parameter at a time, and only what that one
reaches runs.

Run: python examples/numpy_residuals.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import incrax

jax.config.update("jax_enable_x64", True)

NAMES = ("height 1", "center 1", "height 2", "center 2", "level", "slope")
TRUTH = np.array([4.0, 3.0, 2.5, 6.0, 1.0, 0.1])
START = np.array([3.0, 3.2, 3.0, 5.7, 0.5, 0.0])
RESOLUTION = 0.15


def response(x, resolution):
    """Smearing of every channel into every other; rows sum to one."""
    kernel = jnp.exp(-0.5 * ((x[:, None] - x[None, :]) / resolution) ** 2)
    return kernel / jnp.sum(kernel, axis=1, keepdims=True)


def residuals(theta, x, y, resolution):
    """(model - data), the model smeared by the response."""
    first = theta[0] / jnp.cosh((x - theta[1]) / 0.2)
    second = theta[2] / jnp.cosh((x - theta[3]) / 0.4)
    return response(x, resolution) @ (first + second + theta[4] + theta[5] * x) - y


def fit(residual, jacobian, arguments):
    """SciPy's result and seconds; `jacobian` None means differences."""
    start = time.perf_counter()
    result = least_squares(
        lambda theta: np.asarray(residual(theta, *arguments)),
        START,
        jac="2-point"
        if jacobian is None
        else lambda theta: np.asarray(jacobian(theta, *arguments)),
        x_scale="jac",
        xtol=1e-12,
        ftol=1e-12,
    )
    return result, time.perf_counter() - start


def main():
    """Fit four ways; all agree."""
    x = np.linspace(0.0, 10.0, 1000)
    noise = 0.02 * np.random.default_rng(5).normal(size=len(x))
    y = np.asarray(residuals(TRUTH, x, -noise, RESOLUTION))
    arguments = x, y, RESOLUTION

    ways = {}
    for name, make in (("jax.jit", jax.jit), ("incrax", incrax.incremental)):
        residual, jacobian = make(residuals), make(jax.jacfwd(residuals))
        ways[f"{name}, jacfwd"] = fit(residual, jacobian, arguments)
        ways[f"{name}, differences"] = fit(residual, None, arguments)

    print(f"{'':22}{'evaluations':>12}{'cost':>12}{'seconds':>9}")
    for name, (result, seconds) in ways.items():
        print(f"{name:22}{result.nfev:12d}{result.cost:12.6f}{seconds:9.2f}")
    best = ways["incrax, jacfwd"][0].x
    for name, value, truth in zip(NAMES, best, TRUTH, strict=True):
        print(f"{name:>10} {value:8.4f}   (true {truth})")
    report = residual.explain().as_dict()
    print(
        f"last call of the residuals: changed {list(report['changed'])}, {report['served_by']}: "
        f"{report['why']}"
    )
    for result, _ in ways.values():
        np.testing.assert_allclose(result.x, best, rtol=1e-5)


if __name__ == "__main__":
    main()
