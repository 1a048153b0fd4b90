"""Question: does asdex find tighter patterns, or fewer colours, or both faster, than
`incrax.derivatives.sparsity`?

Functions of 200 to 1,000 inputs; for each, by either library: nonzeros of the pattern, seconds to
find it (best of three, tracing included), colours. Both patterns must hold the true one, which is
known by construction. asdex 0.5.2 needs Python 3.12, numba and JAX 0.11, and does not import with
JAX 0.12: run it in an environment of its own, with `PYTHONPATH=src python
benchmarks/peers/asdex_patterns.py`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asdex  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from incrax._program import trace
from incrax.derivatives import sparsity as ours
from incrax.derivatives.sparsity.compressed import color_columns, color_symmetric
from incrax.derivatives.sparsity.search import hessian_pattern, pattern_of

N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 1.5, N)
GROUPS = RNG.integers(0, N // 4, N)
GROUPS[: N // 4] = np.arange(N // 4)
DESIGN = np.where(RNG.random((N, N)) < 4 / N, RNG.normal(size=(N, N)), 0.0)


def banded(x: Any) -> Any:
    """Three neighbours."""
    return x[1:-1] ** 2 - jnp.sin(x[:-2]) * x[2:]


def arrow(x: Any) -> Any:
    """One entry common to all."""
    return jnp.sum((x[1:] - x[0]) ** 3)


def convolution(x: Any) -> Any:
    """A kernel of five."""
    return jnp.tanh(jnp.convolve(x, np.array([1.0, -2.0, 3.0, -2.0, 1.0]), mode="same"))


def recurrence(x: Any) -> Any:
    """A scan whose output remembers one step."""
    return jax.lax.scan(lambda last, y: (y, last * jnp.exp(y)), x[0], x)[1]


def blocks(x: Any) -> Any:
    """Observations that read their group's entry, and a product within blocks of four."""
    return jax.vmap(lambda r: jnp.sin(jnp.outer(r, r) @ r))(x.reshape(-1, 4))


def gathered(x: Any) -> Any:
    """Each observation reads one entry."""
    return x[GROUPS] ** 2 * np.arange(N)


def chain(x: Any) -> Any:
    """Chained Rosenbrock."""
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def least_squares(x: Any) -> Any:
    """Residuals of a design matrix with four nonzeros a row."""
    return jnp.arctan(DESIGN @ x)


def stencil(x: Any) -> Any:
    """Five points of a square, fixed at its border."""
    u = jnp.pad(x[:576].reshape(24, 24), 1)
    return u[1:-1, 1:-1] ** 3 + u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]


JACOBIANS = (banded, convolution, recurrence, blocks, gathered, least_squares, stencil)
HESSIANS = (arrow, chain)


def true_pattern(function: Callable[..., Any], *, is_hessian: bool) -> Any:
    """The nonzeros at three points."""
    derivative = jax.jit(jax.hessian(function) if is_hessian else jax.jacfwd(function))
    points = [X, np.roll(X, 7) + 0.1, 2 * X[::-1]]
    return sum(np.abs(np.asarray(derivative(x)).reshape(-1, N)) for x in points) != 0


def best_s(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the least seconds of three runs."""
    times, result = [], None
    for _ in range(3):
        jax.clear_caches()
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, min(times)


def main() -> None:
    """Print a line per function."""
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    folder = Path(ours.__path__[0])
    lines = sum(
        len(p.read_text().splitlines()) for p in folder.glob("*.py") if p.name != "compressed.py"
    )
    print(f"asdex 0.5.2, jax {jax.__version__}; lines of our patterns and colours: {lines}")
    print(
        "| function | true nonzeros | incrax: nonzeros, s, colours | asdex: nonzeros, s, colours |"
    )
    print("|---|---|---|---|")
    for function in (*JACOBIANS, *HESSIANS):
        is_hessian = function in HESSIANS
        true = true_pattern(function, is_hessian=is_hessian)
        find = hessian_pattern if is_hessian else pattern_of
        mine, mine_s = best_s(lambda function=function, find=find: find(trace(function, X)))
        color = color_symmetric if is_hessian else color_columns
        theirs_of = asdex.hessian_sparsity if is_hessian else asdex.jacobian_sparsity
        theirs, theirs_s = best_s(
            lambda function=function, theirs_of=theirs_of: theirs_of(function, X)
        )
        other = csr_array(
            (np.ones(len(theirs.rows), bool), (theirs.rows, theirs.cols)), shape=theirs.shape
        )
        colored = (
            asdex.hessian_coloring_from_sparsity(theirs)
            if is_hessian
            else asdex.jacobian_coloring_from_sparsity(theirs, mode="fwd")
        )
        missing = [bool(np.any(true & ~found.toarray())) for found in (mine, other)]
        print(
            f"| {function.__name__} | {int(true.sum())} "
            f"| {mine.nnz}, {mine_s:.3f}, {color(mine).num_colors}{' TOO FEW' * missing[0]} "
            f"| {other.nnz}, {theirs_s:.3f}, {colored.num_colors}{' TOO FEW' * missing[1]} |"
        )


if __name__ == "__main__":
    main()
