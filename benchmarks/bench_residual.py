"""Question: what is it worth that a sample of an invertible residual network remembers where it came from?

Each call maps noise to a batch of outputs, then asks for the inverse of every output and its
exact log-determinant, as a log-density of own samples does. Remembered: `bijectors.remember`; recomputed: the same with
`set_record_flow_graph(False)`; "jax.jit" is both passes in one program, which an expert writes without memory. Target:
remembered at least 2.4 times as fast as recomputed.

The inverse is exact to rounding only, so that results are compared to 1e-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import harness
import jax
from harness import JIT, OURS, Line, Options, Speed

from incrax import bijectors

FACTOR = 2.4
RECOMPUTED = "recomputed"
DIMS = (2, 8)


def network(dim: int, width: int) -> bijectors.Remembered:
    """A network whose weights are scaled down, as those of a trained one are."""
    b = bijectors.InvertibleResidual(jax.random.key(0), dim=dim, hidden=(width, width), lipschitz=0.9)
    return bijectors.remember(jax.tree.map(lambda w: 2 * w, b))


def remembered(b: bijectors.Remembered, x: Any) -> tuple[Any, Any, Any]:
    """Outputs, their inverse, and the log-determinant of the inverse."""
    y = b.forward(x)
    return y, *b.inverse_and_log_det(y)


def recomputed(b: bijectors.Remembered, x: Any) -> tuple[Any, Any, Any]:
    """The same without memory: the forward pass computes no log-determinant that nobody reads."""
    with bijectors.set_record_flow_graph(False):
        y = b.forward(x, requires_ladj=False)
        return y, *b.inverse_and_log_det(y)


def lines(options: Options) -> Iterator[Line]:
    """Batches of events of two sizes."""
    num_events, width = (8, 8) if options.quick else (1000, 64)
    for dim in DIMS:
        case = f"{dim} dimensions, {num_events} events"
        if options.only in case:
            yield line_of(case, network(dim, width), dim, num_events, options)


def line_of(case: str, b: bijectors.Remembered, dim: int, num_events: int, options: Options) -> Line:
    """One network."""

    @jax.jit
    def both(x: Any) -> tuple[Any, Any, Any]:
        y = b.bijection.transform(x)
        return y, *b.bijection.inverse_and_log_det(y)

    keys = jax.random.split(jax.random.key(1), 8)
    ready = [jax.block_until_ready(jax.random.normal(key, (num_events, dim))) for key in keys]
    forms = {JIT: both, RECOMPUTED: lambda x: recomputed(b, x), OURS: lambda x: remembered(b, x)}
    timings = harness.compare(forms, lambda number: (ready[number % 8],), options.rounds, warm=3)
    targets = [] if options.quick else [Speed(RECOMPUTED, FACTOR), Speed(JIT, 1.0)]
    return harness.timing_line(case, timings, targets)


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=30, quick_rounds=3)
    harness.report("invertible residual network", lines(options), options)
