"""Question: how exact, how frugal and how fast are fits of least squares, on the problems that NIST
certifies?

27 problems from two starts, 54 fits, float64, exact Jacobians; ours with default settings, the
others with the tolerances at which they do best. Digits are those of the worst parameter; "wrong"
are fits that claim success with fewer than four. Targets: 54 fits to 6 digits, 50 to 8, standard
errors of 52 to 5 (the residuals of Lanczos1 have three digits in float64), none wrong, at most
3,000 Jacobians, median time of a fit below optimistix's in the same process. SciPy is called with
compiled functions. The files of NIST are read where NIST_STRD says they are. With --peers every
other solver that is installed takes part (`problems/least_squares_peers.py`); the others are named.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import OURS, Check, Line, Options, limit
from problems import least_squares_peers, nist

from incrax import fit


class Fit(NamedTuple):
    """One fit by one solver."""

    values: Any
    has_claimed: bool
    num_jacobians: int
    ours: fit.FitResult | None = None


Solver = Callable[[np.ndarray], Fit]


def ours(problem: nist.Problem) -> Solver:
    """With default settings."""
    fun = lambda b, x, y: y - problem.model(b, x)
    x, y = jnp.array(problem.x), jnp.array(problem.y)

    def solve(start: np.ndarray) -> Fit:
        found = fit.levenberg_marquardt(fun, start, x, y)
        return Fit(found.values, found.is_converged, found.num_jacobians, found)

    return solve


def by_optimistix(problem: nist.Problem) -> Solver:
    """Levenberg-Marquardt at the tolerance at which it does best, compiled with the problem as
    data.
    """
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-10)
    fun = lambda b, data: data[1] - problem.model(b, data[0])
    data = jnp.array(problem.x), jnp.array(problem.y)

    @jax.jit
    def run(start: Any, data: Any) -> Any:
        found = optimistix.least_squares(fun, solver, start, args=data, max_steps=5000, throw=False)
        return found.value, found.result == optimistix.RESULTS.successful, found.stats["num_steps"]

    def solve(start: np.ndarray) -> Fit:
        values, has_claimed, num = jax.device_get(run(start, data))
        return Fit(values, bool(has_claimed), int(num))

    return solve


def by_scipy(method: str) -> Callable[[nist.Problem], Solver]:
    """`scipy.optimize.least_squares`."""
    import scipy.optimize

    scaled = {"lm": {}, "trf": {"x_scale": "jac"}}[method]
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 5000}

    def made(problem: nist.Problem) -> Solver:
        fun, jacobian = jax.jit(problem.residuals), jax.jit(jax.jacfwd(problem.residuals))

        def solve(start: np.ndarray) -> Fit:
            calls = []

            def counted(b: np.ndarray) -> np.ndarray:
                calls.append(b)
                return np.asarray(jacobian(b))

            value = lambda b: np.asarray(fun(b))
            with np.errstate(all="ignore"):
                found = scipy.optimize.least_squares(
                    value, start, counted, method=method, **scaled, **exact
                )
            return Fit(found.x, bool(found.success), len(calls))

        return solve

    return made


def solvers(*, peers: bool) -> dict[str, Callable[[nist.Problem], Solver]]:
    """What is installed; with `peers` all of them."""
    found = {OURS: ours, "scipy lm, 1e-15": by_scipy("lm"), "scipy trf, 1e-15": by_scipy("trf")}
    if importlib.util.find_spec("optimistix"):
        found["optimistix LM, 1e-10"] = by_optimistix
    for name, (library, make) in least_squares_peers.SOLVERS.items() if peers else ():
        if importlib.util.find_spec(library):
            found[name] = functools.partial(_by_peer, make)
        else:
            print(f"skipped: {name}, {library} is not installed", file=sys.stderr)
    return found


def _by_peer(make: Any, problem: nist.Problem) -> Solver:
    solve = make(problem)
    return lambda start: Fit(*solve(start))


class Row(NamedTuple):
    """One fit by one solver, judged."""

    digits: float
    is_wrong: bool
    num_jacobians: int
    seconds: float
    error_digits: float


def rows(names: list[str], rounds: int, *, peers: bool) -> dict[str, list[Row]]:
    """Every fit by every solver; the solvers take turns."""
    known = solvers(peers=peers)
    found: dict[str, list[Row]] = {name: [] for name in known}
    for name in names:
        problem = nist.problem(name)
        made = {solver: make(problem) for solver, make in known.items()}
        for start in problem.starts:
            seconds: dict[str, list[float]] = {solver: [] for solver in made}
            fits = {solver: solve(start) for solver, solve in made.items()}
            for turn in range(rounds):
                for solver, solve in list(made.items())[:: -1 if turn % 2 else 1]:
                    begin = time.perf_counter()
                    solve(start)
                    seconds[solver].append(time.perf_counter() - begin)
            for solver, each in fits.items():
                digits = nist.digits(each.values, problem.params)
                errors = (
                    nist.digits(each.ours.errors, problem.standard_errors) if each.ours else np.nan
                )
                is_wrong = each.has_claimed and digits < 4
                median = float(np.median(seconds[solver]))
                found[solver].append(Row(digits, is_wrong, each.num_jacobians, median, errors))
    return found


def lines(options: Options) -> Iterator[Line]:
    """A line per solver."""
    names = nist.names()[::9] if options.quick else nist.names()
    if not names:
        print(
            f"skipped: the problems of NIST are not in {nist.FOLDER}; set NIST_STRD to the folder "
            "with their files"
        )
        return
    found = rows(names, options.rounds, peers=options.extra.peers)
    medians = {
        solver: float(np.median([row.seconds for row in each])) for solver, each in found.items()
    }
    for solver, each in found.items():
        digits, errors = (
            np.array([row.digits for row in each]),
            np.array([row.error_digits for row in each]),
        )
        num_jacobians = sum(row.num_jacobians for row in each)
        num_wrong = sum(row.is_wrong for row in each)
        counts = {f">= {least} digits": int(sum(digits >= least)) for least in (6, 8, 10)}
        numbers = {
            **counts,
            "Jacobians": num_jacobians,
            "wrong": num_wrong,
            "ms a fit": 1e3 * medians[solver],
        }
        cells = {
            name: f"{value:.3g}" if isinstance(value, float) else str(value)
            for name, value in numbers.items()
        }
        checks = []
        if solver == OURS:
            share = len(each) / 54
            checks = [
                _at_least("6 digits", counts[">= 6 digits"], len(each)),
                _at_least("8 digits", counts[">= 8 digits"], int(50 * share)),
                _at_least("errors to 5 digits", int(sum(errors >= 5)), int(52 * share)),
                limit("wrong", num_wrong, 0),
                limit("Jacobians", num_jacobians, 3000),
            ]
            if "optimistix LM, 1e-10" in medians:
                checks.append(
                    limit("t / optimistix", medians[solver] / medians["optimistix LM, 1e-10"], 1.0)
                )
        yield Line(solver, cells, {name: float(value) for name, value in numbers.items()}, checks)


def _at_least(name: str, value: int, least: int) -> Check:
    return Check(f"{name} >= {least}", f"{name} {value}", value >= least)


if __name__ == "__main__":
    extend = lambda parser: parser.add_argument(
        "--peers", action="store_true", help="every solver that is installed"
    )
    given = harness.start(__doc__, rounds=11, extend=extend)
    harness.report("least squares, 54 certified fits", lines(given), given)
