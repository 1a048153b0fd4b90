"""Question: how much faster than JAX is a sum over rows that is a polynomial of few numbers, with
`algebra=True`?

Targets: value and gradient (by all ten coefficients) of a polynomial of ninth order while one
changes, 1e6 points: >= 50x jax.jit, and a call that takes the same time from 1e4 to 1e7 points;
least squares and a Gaussian likelihood: a cost independent of the number of rows; couplings of an
amplitude analysis (problem B), value and gradient, whose normalisation integral is found to be a
quadratic form: >= 22x the best form without hoisting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Line, Options, Speed
from problems import amplitude

import incrax

SIZES = (10**4, 10**5, 10**6, 10**7)
QUICK_SIZES = (10**3, 10**4)
RUN = 8
"""Calls in a row of each form."""
BEST = "best uncached"
HAND = "hand"


class Problem(NamedTuple):
    """A function of parameters and data, its parameters, its data of a number of rows, and what
    changes.
    """

    fun: Callable[..., Any]
    parameters: np.ndarray
    data: Callable[[int], tuple[Any, ...]]
    changes: slice


def polynomial(c: Any, x: Any) -> Any:
    """Sum of the polynomial of ninth order of Zygote.jl#323 over points, by Horner's rule."""
    total = c[9]
    for k in range(8, -1, -1):
        total = c[k] + x * total
    return jnp.sum(total)


def parabola(c: Any, x: Any, y: Any) -> Any:
    """Mean squared distance of a parabola from points."""
    return jnp.mean((c[0] + c[1] * x + c[2] * x**2 - y) ** 2)


def squares(c: Any, matrix: Any, y: Any) -> Any:
    """Linear least squares."""
    residual = matrix @ c - y
    return residual @ residual


def gaussian(p: Any, x: Any) -> Any:
    """Negative log-likelihood of a normal distribution."""
    return 0.5 * jnp.sum(((x - p[0]) / p[1]) ** 2) + x.size * jnp.log(p[1])


def points(num_rows: int) -> tuple[Any, ...]:
    """Two columns."""
    rng = np.random.default_rng(1)
    return incrax.frozen(rng.normal(size=num_rows)), incrax.frozen(1.0 + rng.normal(size=num_rows))


def matrix(num_rows: int) -> tuple[Any, ...]:
    """Eight columns and a target."""
    rng = np.random.default_rng(2)
    return incrax.frozen(rng.normal(size=(num_rows, 8))), incrax.frozen(rng.normal(size=num_rows))


PROBLEMS = {
    "polynomial, c2": Problem(
        polynomial, 1.0 / np.arange(1.0, 11.0), lambda n: points(n)[:1], slice(2, 3)
    ),
    "parabola fitted, one coefficient": Problem(
        parabola, np.array([0.1, 0.2, 0.3]), points, slice(2, 3)
    ),
    "least squares, 8 parameters": Problem(squares, np.linspace(-1.0, 1.0, 8), matrix, slice(None)),
    "gaussian, both parameters": Problem(
        gaussian, np.array([0.2, 1.5]), lambda n: points(n)[:1], slice(None)
    ),
}
TARGETS = {("polynomial, c2", 10**6): [Speed(JIT, 50.0)]}


def case_lines(options: Options) -> Iterator[Line]:
    """Each problem at each size, then the amplitude analysis."""
    for name, problem in PROBLEMS.items():
        for size in QUICK_SIZES if options.quick else SIZES:
            case = f"{name}, value+grad, {size:.0e} rows"
            if options.only in case:
                yield row_line(case, problem, size, options, TARGETS.get((name, size), []))
    if options.only in "amplitude":
        yield amplitude_line(options)


def row_line(
    case: str, problem: Problem, size: int, options: Options, targets: list[Speed]
) -> Line:
    """One problem at one size."""
    data = problem.data(size)

    def at(number: int) -> tuple[Any, ...]:
        parameters = problem.parameters.copy()
        parameters[problem.changes] *= 1.0 + 1e-3 * (number + 1)
        return (parameters, *data)

    f = jax.value_and_grad(problem.fun)
    timings = harness.compare(
        {JIT: jax.jit(f), OURS: incrax.incremental(f, algebra=True, tuning=harness.SETTLED)},
        at,
        options.rounds,
        run=RUN,
    )
    return harness.timing_line(case, timings, [] if options.quick else targets)


def amplitude_line(options: Options) -> Line:
    """Couplings of the amplitude analysis in its vectorised form."""
    num_amplitudes, num_events = (
        (4, 1_000) if options.quick else (amplitude.NUM_AMPLITUDES, amplitude.NUM_EVENTS)
    )
    inputs = amplitude.make_inputs(num_amplitudes, num_events)

    def at(number: int) -> tuple[Any, ...]:
        factor = 1.0 + 1e-4 * (number + 1)
        return ({name: values * factor for name, values in inputs.couplings.items()}, *inputs[1:])

    f = jax.value_and_grad(amplitude.nll_vectorised)
    forms = {
        JIT: jax.jit(f),
        BEST: amplitude.in_two_programs(jax.value_and_grad),
        OURS: incrax.incremental(f, algebra=True, tuning=harness.SETTLED),
        HAND: amplitude.hoisted_couplings(inputs, jax.value_and_grad),
    }
    timings = harness.compare(forms, at, min(options.rounds, 12), run=2)
    targets = [] if options.quick else [Speed(BEST, 22.0)]
    return harness.timing_line("amplitude, couplings, value+grad", timings, targets)


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=40, quick_rounds=3)
    harness.report("Algebra over rows", case_lines(options), options)


if __name__ == "__main__":
    main()
