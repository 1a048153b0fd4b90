"""The problems of the growth curves: what is hoisted by hand equals `jax.jit` of what the user
writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_curves  # noqa: E402
import harness  # noqa: E402

MAKERS = {"rows": (bench_curves.of_rows, 500), "inputs": (bench_curves.of_components, 3)}
MAKERS |= {
    "one component": (bench_curves.of_components, 1),
    "operations": (bench_curves.of_operations, 16),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_forms_hoisted_by_hand_are_the_users(name, monkeypatch):
    monkeypatch.setattr(bench_curves, "NUM_ROWS", 500)
    make, size = MAKERS[name]
    made = make(size)
    for number in (0, 500):
        args = made.arguments(number)
        for ours, expected in zip(
            jax.tree.leaves(made.hand(*args)),
            jax.tree.leaves(jax.jit(made.function)(*args)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_every_size_has_a_line_and_the_largest_one_the_target(monkeypatch):
    monkeypatch.setattr(bench_curves, "NUM_ROWS", 500)
    options = harness.Options(quick=False, rounds=1, only="", json=None, extra=None)
    lines = list(
        bench_curves.lines(options, (16, 32), "chain, {}".format, bench_curves.of_operations, 5.0)
    )
    assert [line.numbers["size"] for line in lines] == [16, 32]
    assert [[check.target for check in line.checks] for line in lines] == [
        ["<=1.05 t(jax.jit)"],
        ["<=1.05 t(jax.jit)", ">=5x jax.jit"],
    ]
