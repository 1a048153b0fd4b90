"""Every certified problem from both starts, with default settings.

Certified values have eleven digits.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from incrax import fit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

nist = pytest.importorskip(
    "problems.nist", reason="the benchmarks are not part of the source distribution"
)

pytestmark = [
    pytest.mark.shared,
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
