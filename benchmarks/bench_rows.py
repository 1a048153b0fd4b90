"""Question: what does it cost to evaluate again when rows come in, and what when parameters move?

The mixture of `problems/mixture.py`, value and gradient, 1e6 rows. Targets: 1 % of the rows
appended at least 20x faster than `jax.jit` on all rows; one chunk replaced, and parameters that
change, no slower than 1.05x of `jax.jit`. The number of rows that `jax.jit` gets stays the same, or
it would compile each time. Streaming from a file is shown in rows per second beside `jax.jit` on
the same rows in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Line, Options, Speed, never_slower
from problems import mixture

import incrax

RUN = 4
"""Calls in a row of each form."""

FUNCTIONS = {"value": mixture.nll, "value and gradient": jax.value_and_grad(mixture.nll)}


def lines(options: Options) -> Iterator[Line]:
    """Append, replace, other parameters, stream; value and gradient."""
    num_rows, chunk_rows = (20_000, 4096) if options.quick else (1_000_000, 131072)
    p, x = mixture.truth(num_rows), np.asarray(mixture.make_data(num_rows))
    for case, make in (
        ("append", _append),
        ("replace", _replace),
        ("move", _move),
        ("stream", _stream),
    ):
        for what, function in FUNCTIONS.items():
            name = f"{case}, {num_rows:,} rows, {what}"
            if options.only in name:
                yield make(name, function, p, x, chunk_rows, options)


def _append(
    name: str, function: Any, p: Any, x: np.ndarray, chunk_rows: int, options: Options
) -> Line:
    """Ours gets 1 % more rows at each call; `jax.jit` always the same number, so that it never
    compiles.
    """
    f, plain = incrax.incremental(function, tuning=harness.SETTLED), jax.jit(function)
    state = [incrax.Rows(x, chunk_rows=chunk_rows)]
    all_rows, new = jnp.asarray(x), x[: len(x) // 100]

    def ours(p: Any) -> Any:
        state[0] = state[0].append(new)
        return f(p, state[0])

    forms = {OURS: ours, JIT: lambda p: plain(p, all_rows)}
    timings = harness.compare(forms, lambda _: (p,), options.rounds, warm=6, rtol=None, run=RUN)
    line = harness.timing_line(name, timings, [Speed(JIT, 20.0)])
    pairs = zip(
        jax.tree.leaves(f(p, state[0])), jax.tree.leaves(plain(p, state[0].tree())), strict=True
    )
    assert max(harness.relative_error(a, b) for a, b in pairs) <= 1e-8
    return line


def _replace(
    name: str, function: Any, p: Any, x: np.ndarray, chunk_rows: int, options: Options
) -> Line:
    f, plain = incrax.incremental(function, tuning=harness.SETTLED), jax.jit(function)
    rows = incrax.Rows(x, chunk_rows=chunk_rows)
    versions = [rows.replace(0, x[:100] * factor) for factor in (1.01, 1.02, 1.03)]
    arrays = [jnp.asarray(version.tree()) for version in versions]
    forms = {OURS: lambda p, k: f(p, versions[k]), JIT: lambda p, k: plain(p, arrays[k])}
    timings = harness.compare(
        forms, lambda number: (p, number % 3), options.rounds, warm=6, run=RUN
    )
    return harness.timing_line(name, timings, [never_slower()])


def _move(
    name: str, function: Any, p: Any, x: np.ndarray, chunk_rows: int, options: Options
) -> Line:
    f, plain = incrax.incremental(function, tuning=harness.SETTLED), jax.jit(function)
    rows, array = incrax.Rows(x, chunk_rows=chunk_rows), jnp.asarray(x)
    forms = {OURS: lambda p: f(p, rows), JIT: lambda p: plain(p, array)}

    def moved(number: int) -> tuple[Any]:
        return ({key: value * (1 + 1e-4 * number) for key, value in p.items()},)

    return harness.timing_line(
        name, harness.compare(forms, moved, options.rounds, warm=20, run=RUN), [never_slower()]
    )


def _stream(
    name: str, function: Any, p: Any, x: np.ndarray, chunk_rows: int, options: Options
) -> Line:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        x.tofile(path)
        rows = incrax.Rows.from_memmap(np.memmap(path, x.dtype, "r"), chunk_rows=chunk_rows)
        f, plain, array = (
            incrax.incremental(function, tuning=harness.SETTLED),
            jax.jit(function),
            jnp.asarray(x),
        )
        forms = {OURS: lambda p: f(p, rows), JIT: lambda p: plain(p, array)}

        def moved(number: int) -> tuple[Any]:
            return ({key: value * (1 + 1e-4 * number) for key, value in p.items()},)

        timings = harness.compare(forms, moved, options.rounds, warm=6, run=RUN)
    line = harness.timing_line(name, timings, [])
    line.cells["rows per second, millions"] = f"{len(x) / timings[OURS].median / 1e6:.1f}"
    return line


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=30, quick_rounds=3)
    harness.report("rows appended, replaced, streamed", lines(options), options)
