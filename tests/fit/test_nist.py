"""Every certified problem from both starts, with default settings.

Certified values have eleven digits.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.optimize

from incrax import fit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

nist = pytest.importorskip(
    "problems.nist", reason="the benchmarks are not part of the source distribution"
)

pytestmark = [
    pytest.mark.shared,
    pytest.mark.optimized,  # bits decide how long a search goes on among rounding errors
    pytest.mark.skipif(not nist.names(), reason="the shared data of NIST are not here"),
]
RUNS = [(name, start) for name in nist.names() for start in (0, 1)]
NOISY_ERRORS = {"Lanczos1"}
"""Its residuals, 1e-13 of values of order 1, have three digits in float64; so has their
variance.
"""


@cache
def solved(name, start):
    problem = nist.problem(name)
    residuals = lambda b, x, y: y - problem.model(b, x)
    return fit.levenberg_marquardt(residuals, problem.starts[start], problem.x, problem.y)


@pytest.mark.parametrize(("name", "start"), RUNS)
def test_a_fit_converges_to_eight_certified_digits(name, start):
    problem, found = nist.problem(name), solved(name, start)
    assert found.is_converged
    assert nist.digits(found.values, problem.params) >= 8
    if name not in NOISY_ERRORS:
        assert nist.digits(found.errors, problem.standard_errors) >= 5
        assert 2 * found.cost == pytest.approx(problem.sum_of_squares, rel=1e-9)


@pytest.mark.exhaustive
def test_all_fits_together_stay_within_their_budget_of_jacobians():
    found = [solved(name, start) for name, start in RUNS]
    digits = [
        nist.digits(each.values, nist.problem(name).params)
        for each, (name, _) in zip(found, RUNS, strict=True)
    ]
    assert sum(each.num_jacobians for each in found) <= 2_200
    assert sum(np.array(digits) >= 10) >= 50


@pytest.mark.parametrize("name", ["Misra1a", "Chwirut2", "MGH17", "Thurber"])
def test_step_by_step_a_fit_ends_where_one_program_does(name):
    problem, whole = nist.problem(name), solved(name, 1)
    seen = []
    residuals = lambda b, x, y: y - problem.model(b, x)
    watch = lambda b, cost: seen.append(cost)
    found = fit.levenberg_marquardt(
        residuals, problem.starts[1], problem.x, problem.y, callback=watch
    )
    assert found.is_converged
    assert nist.digits(found.values, problem.params) >= 8
    assert abs(found.num_jacobians - whole.num_jacobians) <= 3
    assert len(seen) == found.num_steps


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("held", [slice(0, None, 2), slice(1, None, 2)])
def test_with_bounds_in_the_way_a_search_is_no_longer(start, held):
    """Half of the parameters may not come nearer to what is certified than a fifth of the way."""
    problem = nist.problem("Hahn1")
    first = problem.starts[start]
    stop = problem.params + 0.2 * (first - problem.params)
    lower, upper = np.full((2, first.size), [[-np.inf], [np.inf]])
    lower[held] = np.where(first > problem.params, stop, -np.inf)[held]
    upper[held] = np.where(first < problem.params, stop, np.inf)[held]
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "x_scale": "jac"}
    on_host = lambda b: np.asarray(problem.residuals(b))
    derivative = jax.jit(jax.jacfwd(problem.residuals))
    expected = scipy.optimize.least_squares(on_host, first, derivative, (lower, upper), **exact)
    residuals = lambda b, x, y: y - problem.model(b, x)
    found = fit.levenberg_marquardt(
        residuals, first, problem.x, problem.y, bounds=[*zip(lower, upper, strict=True)]
    )
    assert found.is_converged
    assert found.cost <= expected.cost * (1 + 1e-9)
    assert np.isnan(found.errors).any()
    assert found.num_jacobians <= 30
