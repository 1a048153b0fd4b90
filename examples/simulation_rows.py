"""A simulation: parameters stay, data arrive in batches; then a file larger than one would like to
hold in memory.

Run: python examples/simulation_rows.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import incrax

jax.config.update("jax_enable_x64", True)

NUM_ROWS, BATCH = 400_000, 4_000
PARAMS = {"mu": 1.0, "sigma": 0.3, "rate": 0.5, "share": 0.1}


def mean_nll(params, x):
    signal = jnp.exp(-0.5 * ((x - params["mu"]) / params["sigma"]) ** 2) / (
        params["sigma"] * jnp.sqrt(2 * jnp.pi)
    )
    background = params["rate"] * jnp.exp(-params["rate"] * x)
    return -jnp.mean(jnp.log(params["share"] * signal + (1 - params["share"]) * background))


def simulate(rng, num):
    return np.where(rng.random(num) < 0.1, rng.normal(1.0, 0.3, num), rng.exponential(2.0, num))


def milliseconds(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - start)


def batches(f, rows, rng):
    """Each batch is evaluated by itself; value and gradient are those of all rows so far."""
    first_ms = milliseconds(lambda: f(PARAMS, rows))
    times = []
    for _ in range(12):
        rows = rows.append(simulate(rng, BATCH))
        times.append(milliseconds(lambda rows=rows: f(PARAMS, rows)))
    value, gradient = f(PARAMS, rows)
    expected, _ = jax.jit(jax.value_and_grad(mean_nll))(PARAMS, rows.tree())
    assert abs(value - expected) < 1e-10
    print(f"{len(rows):,} rows: {value:.6f}, d/d mu {gradient['mu']:.6f}")
    print(
        f"first call {first_ms:.0f} ms, compilation included; a batch of {BATCH:,} then "
        f"{sorted(times)[6]:.2f} ms"
    )
    print(f"chunks run {f.stats.chunks_run}, reused {f.stats.chunks_reused}")


def stream(f, rng, folder):
    """A chunk is read, evaluated and dropped; going back to parameters that were seen reads
    nothing.
    """
    path = Path(folder) / "x.bin"
    simulate(rng, NUM_ROWS).tofile(path)
    rows = incrax.Rows.from_memmap(np.memmap(path, np.float64, "r"))
    first, _ = f(PARAMS, rows)
    moved, _ = f({**PARAMS, "share": 0.12}, rows)
    run = f.stats.chunks_run
    again, _ = f(PARAMS, rows)
    assert again == first
    assert f.stats.chunks_run == run
    print(f"streamed: {first:.6f}, with another share {moved:.6f}")


def main():
    rng = np.random.default_rng(1)
    f = incrax.incremental(jax.value_and_grad(mean_nll))
    batches(f, incrax.Rows(simulate(rng, NUM_ROWS)), rng)
    with tempfile.TemporaryDirectory() as folder:
        stream(f, rng, folder)


if __name__ == "__main__":
    main()
