"""Solvers of other libraries on the certified problems, each at the settings at which it does best.

Each maker takes a problem and returns a function from a start to (values, whether success is
claimed, Jacobians or gradients evaluated; 0 where the library takes differences).
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NUM_EVALUATIONS = 5000


def _compiled(problem: Any) -> tuple[Any, Any, list[int]]:
    """Residuals and Jacobian as functions of NumPy vectors, and a list that counts Jacobians."""
    fun, jacobian, calls = jax.jit(problem.residuals), jax.jit(jax.jacfwd(problem.residuals)), []

    def counted(b: Any) -> np.ndarray:
        calls.append(1)
        return np.asarray(jacobian(np.asarray(b)))

    return (lambda b: np.asarray(fun(np.asarray(b)))), counted, calls


def by_jaxopt(problem: Any) -> Any:
    import jaxopt

    fun = lambda b, x, y: y - problem.model(b, x)
    options = {
        "maxiter": NUM_EVALUATIONS,
        "tol": 1e-12,
        "xtol": 1e-12,
        "gtol": 1e-12,
        "implicit_diff": False,
    }
    solver = jaxopt.LevenbergMarquardt(fun, solver="cholesky", materialize_jac=True, **options)
    x, y = jnp.array(problem.x), jnp.array(problem.y)
    run = jax.jit(lambda b, x, y: solver.run(b, x, y))

    def solve(start: np.ndarray) -> Any:
        values, state = jax.device_get(run(jnp.array(start), x, y))
        return values, bool(state.error <= 1e-12), int(state.iter_num)

    return solve


def by_lmfit(problem: Any) -> Any:
    import lmfit

    fun = jax.jit(problem.residuals)

    def solve(start: np.ndarray) -> Any:
        params = lmfit.Parameters()
        for number, value in enumerate(start):
            params.add(f"b{number}", value=value)
        residuals = lambda p: np.asarray(
            fun(np.array([p[f"b{k}"].value for k in range(len(start))]))
        )
        exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                found = lmfit.minimize(
                    residuals, params, max_nfev=NUM_EVALUATIONS, nan_policy="propagate", **exact
                )
            except ValueError:  # residuals that are not finite
                return start, False, 0
        return (
            np.array([found.params[f"b{k}"].value for k in range(len(start))]),
            bool(found.success),
            0,
        )

    return solve


def by_minuit(problem: Any) -> Any:
    import iminuit

    residuals, jacobian, _ = _compiled(problem)

    def solve(start: np.ndarray) -> Any:
        calls: list[int] = []

        def gradient(b: Any) -> np.ndarray:
            calls.append(1)
            return 2 * residuals(b) @ jacobian(b)

        cost = lambda b: float(np.sum(residuals(b) ** 2))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            minuit = iminuit.Minuit(cost, start, grad=gradient)
            minuit.strategy, minuit.tol = 2, 1e-12
            for _ in range(3):
                minuit.migrad(ncall=NUM_EVALUATIONS)
        return np.array(minuit.values), bool(minuit.valid), len(calls)

    return solve


def by_lsqfit(problem: Any) -> Any:
    import lsqfit

    residuals, jacobian, calls = _compiled(problem)

    def solve(start: np.ndarray) -> Any:
        calls.clear()
        m = problem.y.size
        with (
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")

            def function(b: Any) -> Any:
                if np.asarray(b).dtype != object:
                    return residuals(b)
                mean = np.array([each.mean for each in b])
                values, slopes = residuals(mean), jacobian(mean)
                return np.array([_linear(b, mean, values[k], slopes[k]) for k in range(m)])

            try:
                found = lsqfit.scipy_least_squares(
                    np.array(start),
                    m,
                    function,
                    tol=(1e-15, 1e-15, 1e-15),
                    maxit=NUM_EVALUATIONS,
                    x_scale="jac",
                )
            except Exception:  # its own, of several kinds, where values are not finite
                return start, False, len(calls)
        return np.array(found.x), found.error is None, len(calls)

    return solve


def _linear(b: Any, mean: np.ndarray, value: float, slopes: np.ndarray) -> Any:
    """A linear function of the library's differentiable numbers with this value and these
    slopes.
    """
    return value + sum(slope * (each - at) for slope, each, at in zip(slopes, b, mean, strict=True))


SOLVERS = {
    "jaxopt LM cholesky, 1e-12": ("jaxopt", by_jaxopt),
    "lmfit leastsq, differences, 1e-15": ("lmfit", by_lmfit),
    "iminuit migrad, strategy 2, 3 passes": ("iminuit", by_minuit),
    "lsqfit (scipy trf), 1e-15": ("lsqfit", by_lsqfit),
}
"""Names, the library that must be installed, and the maker."""
