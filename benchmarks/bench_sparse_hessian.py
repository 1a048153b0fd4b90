"""Question: what does a sparse Hessian cost, where its pattern is found from the program?

Values at the nonzeros of the Hessian of functions of 1,000 parameters, against
`jax.jit(jax.hessian)`. Targets: at least 50x faster, for separable functions and chained ones;
finding the pattern within 1 s. Reported besides: the time of a dense matrix made from the values,
and that of a compiled function that adds 1 to the parameters, below which no call can be. Of the
two functions without data, the dense Hessian is little more than a million zeros written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import OURS, Line, Options, Speed

from incrax._program import trace
from incrax.derivatives.sparsity.compressed import (
    color_symmetric,
    compressed_jacobian,
    coordinates,
    dense,
)
from incrax.derivatives.sparsity.search import hessian_pattern

DENSE = "jax.jit(jax.hessian)"
EMPTY = "empty call"

RUN = 4
"""Calls in a row of each form."""


def observed(size: int) -> Any:
    """What was measured, 20 times for each parameter."""
    return np.random.default_rng(1).normal(size=(size, 20))


def separable(x: Any) -> Any:
    """A sum of functions of one parameter each; a diagonal Hessian."""
    return jnp.sum(jnp.cosh(x) + x**4 * jnp.exp(-(x**2)))


def separable_likelihood(x: Any) -> Any:
    """Measurements with heavy tails, 20 around each parameter; a diagonal Hessian."""
    return jnp.sum(jnp.log1p((observed(x.size) - x[:, None]) ** 2))


def chained_likelihood(x: Any) -> Any:
    """The same around a smooth line; a tridiagonal Hessian."""
    return separable_likelihood(x) + jnp.sum((x[1:] - x[:-1]) ** 2)


def chained(x: Any) -> Any:
    """The chained Rosenbrock function; a tridiagonal Hessian."""
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def hierarchical(x: Any) -> Any:
    """Two parameters common to all others; an arrow."""
    return jnp.sum(jnp.cosh((x[2:] - x[0]) * jnp.exp(-x[1]))) + jnp.sum(x**2)


FUNCTIONS = {
    "separable, with data": separable_likelihood,
    "chained, with data": chained_likelihood,
    "hierarchical": hierarchical,
    "separable": separable,
    "chained": chained,
}


def lines(options: Options) -> Iterator[Line]:
    """Each function."""
    size = 50 if options.quick else 1_000
    for name, function in FUNCTIONS.items():
        case = f"{name}, {size:,} parameters"
        if options.only in case:
            yield _line(case, function, size, options)


def _line(case: str, function: Callable[[Any], Any], size: int, options: Options) -> Line:
    x = jnp.asarray(np.random.default_rng(0).normal(size=size))
    begin = time.perf_counter()
    pattern = hessian_pattern(trace(function, x))
    seconds = time.perf_counter() - begin
    assert pattern is not None
    rows, columns = coordinates(pattern)
    coloring = color_symmetric(pattern)
    whole = jax.jit(jax.hessian(function))
    forms = {
        OURS: jax.jit(lambda x: compressed_jacobian(jax.grad(function), x, pattern, coloring)),
        EMPTY: jax.jit(lambda x: x + 1.0),
        "made dense": jax.jit(
            lambda x: dense(compressed_jacobian(jax.grad(function), x, pattern, coloring), pattern)
        ),
        DENSE: whole,
    }
    points = [(x * (1.0 + 1e-3 * k),) for k in range(3)]
    timings = harness.compare(
        forms, lambda number: points[number % 3], options.rounds, warm=5, rtol=None, run=RUN
    )
    _check(forms[OURS](x), forms["made dense"](x), whole(x), rows, columns)
    line = harness.timing_line(case, timings, [Speed(DENSE, 50.0)])
    line.cells["pattern"] = f"{seconds:.2f} s"
    line.checks.append(harness.limit("pattern", seconds, 1.0, "s"))
    return line


def _check(values: Any, made: Any, whole: Any, rows: Any, columns: Any) -> None:
    assert harness.relative_error(values, np.asarray(whole)[rows, columns]) <= 1e-10
    assert harness.relative_error(made, whole) <= 1e-10


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=30, quick_rounds=3)
    harness.report("sparse Hessians", lines(options), options)
