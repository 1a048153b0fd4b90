"""Which functions of rows keep their bits where they run on some rows alone, on this machine.

Each is compiled by `jax.jit` for 512 rows, for single rows, and for batches of 8 and 13. Printed is the
share of rows that have the bits of the whole, in float32 and float64. The exact policy rests on this:
what is below 100 % anywhere makes it compute in blocks of one shape (docs/design/exact.md).

Usage: python scripts/row_bits.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NUM_ROWS = 512
NUM_COLUMNS = 37
BATCHES = (1, 8, 13)

rng = np.random.default_rng(0)
MATRIX = rng.normal(size=(NUM_COLUMNS, 29))
VECTOR = rng.normal(size=NUM_COLUMNS)


def factors(x: Any) -> Any:
    """The Cholesky factor of a matrix for each row."""
    distance = x[:, :12, None] - x[:, None, :12]
    return jnp.linalg.cholesky(jnp.exp(-(distance**2)) + 0.5 * jnp.eye(12, dtype=x.dtype))


def loops(x: Any) -> Any:
    """A scan for each row."""
    step = lambda c, y: (0.9 * c + jnp.sin(y), c)
    return jax.vmap(lambda row: lax.scan(step, jnp.zeros((), x.dtype), row)[0])(x)


def solved(x: Any) -> Any:
    """A triangular solve for each row."""
    return jax.scipy.linalg.solve_triangular(factors(x), x[:, :12, None], lower=True)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(jnp, name)
        for name in ("exp", "log", "sin", "tanh", "sqrt", "log1p", "arctan")
    },
    "erf": jax.scipy.special.erf,
    "gammaln": jax.scipy.special.gammaln,
    "exp(x) sin(x) + x / 3": lambda x: jnp.exp(x) * jnp.sin(x) + x / 3,
    "sum of each row": lambda x: x.sum(axis=1),
    "max of each row": lambda x: x.max(axis=1),
    "cumsum of each row": lambda x: jnp.cumsum(x, axis=1),
    "sort of each row": lambda x: jnp.sort(x, axis=1),
    "logsumexp of each row": lambda x: jax.nn.logsumexp(x, axis=1),
    "Student t, summed": lambda x: jnp.log1p(((x - 0.3) / 1.1) ** 2 / 4).sum(axis=1),
    "rows times a matrix": lambda x: x @ jnp.asarray(MATRIX, x.dtype),
    "rows times a vector": lambda x: x @ jnp.asarray(VECTOR, x.dtype),
    "cholesky of each row": factors,
    "solve of each row": solved,
    "fft of each row": lambda x: jnp.abs(jnp.fft.fft(x, axis=1)),
    "scan of each row": loops,
    "gather of each row": lambda x: jnp.sin(x[:, np.array([3, 1, 1, 9])]),
}


def share_kept(fun: Callable[[Any], Any], x: np.ndarray, batch: int) -> float:
    """The share of rows that have the bits of the whole, in batches of so many."""
    run = jax.jit(fun)
    whole = np.asarray(jax.jit(fun)(x))
    starts = range(0, len(x) - batch + 1, max(batch, 7))
    kept = [
        found.tobytes() == expected.tobytes()
        for start in starts
        for found, expected in zip(
            np.asarray(run(x[start : start + batch])), whole[start : start + batch], strict=True
        )
    ]
    return sum(kept) / len(kept)


def main() -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    print(f"jax {jax.__version__}; rows with the bits of the whole, in batches of {BATCHES}")
    for name, fun in FUNCTIONS.items():
        line = []
        for dtype in (np.float32, np.float64):
            x = np.abs(rng.normal(size=(NUM_ROWS, NUM_COLUMNS))).astype(dtype) + dtype(0.01)
            line += [f"{share_kept(fun, x, batch):5.0%}" for batch in BATCHES]
        print(f"{name:24} {' '.join(line[:3])}   {' '.join(line[3:])}", flush=True)


if __name__ == "__main__":
    main()
