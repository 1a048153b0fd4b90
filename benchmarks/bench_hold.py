"""Question: what does one gradient of an encoder cost, if many batches read representations of the
same inputs?

An encoder over 4096 inputs and 64 batches of 128 pairs, the gradient of the sum of the batches'
losses by the encoder's parameters; a small and a larger encoder. Forms: ours as one program, and
batch by batch from Python (`kept.rows`, `kept.add`, `kept.pullback`); plain JAX that encodes all
inputs for each batch (naive) or the batch's rows only; the whole sum as one function under
`jax.jit`, its batches unrolled by a scan. Targets: >= 20x naive, >= 2.4x the batch's rows only.
Also the largest value that exists for all rows, in chunks and not, and few rows touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Line, Options, Speed, limit
from jax import lax

import incrax

NUM_ROWS, WIDTH, NUM_BATCHES, BATCH = 4096, 64, 64, 128
ENCODERS = {"small": (64, 64, 32), "larger": (256, 256, 64)}
EPOCH, HOSTED, CHUNKED = harness.OURS, "incrax, batch by batch", "incrax, chunks of 512"
NAIVE, GATHERED, WHOLE = "all rows per batch", "the batch's rows", "one jax.jit of the sum"


def encoder(params: list[Any], x: Any) -> Any:
    """Layers of tanh."""
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x


def loss(z: Any) -> Any:
    """Each pair against all others of its batch."""
    scores = z[:, 0] @ z[:, 1].T
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores, axis=1)))


def problem(
    sizes: tuple[int, ...], num_rows: int, num_batches: int, num_read: int
) -> tuple[Any, Any, Any]:
    """Parameters, inputs, and batches of pairs among the first `num_read` rows."""
    rng = np.random.default_rng(0)
    widths = list(zip((WIDTH, *sizes[:-1]), sizes, strict=True))
    params = [(jnp.array(rng.normal(size=(m, n)) / np.sqrt(m)), jnp.zeros(n)) for m, n in widths]
    batches = rng.integers(0, num_read, (num_batches, BATCH, 2))
    return params, jnp.array(rng.normal(size=(num_rows, WIDTH))), jnp.array(batches)


def naive() -> Any:
    """All rows are encoded, forward and backward, for each batch."""
    gradient = jax.jit(jax.value_and_grad(lambda params, x, i: loss(encoder(params, x)[i])))
    return lambda params, x, batches: summed(gradient(params, x, i) for i in batches)


def gathered() -> Any:
    """The rows of the batch are encoded."""
    gradient = jax.jit(jax.value_and_grad(lambda params, x, i: loss(encoder(params, x[i]))))
    return lambda params, x, batches: summed(gradient(params, x, i) for i in batches)


_add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))


def summed(parts: Any) -> Any:
    """The sum of trees."""
    total = next(parts)
    for part in parts:
        total = _add(total, part)
    return total


def whole() -> Any:
    """What a user writes who knows JAX: the sum as one function."""

    def total(params: Any, x: Any, batches: Any) -> Any:
        z = encoder(params, x)
        return lax.scan(lambda value, i: (value + loss(z[i]), None), 0.0, batches)[0]

    return jax.jit(jax.value_and_grad(total))


def hosted() -> Any:
    """Ours, batch by batch."""
    held = incrax.hold(encoder)
    gradient = jax.jit(jax.value_and_grad(loss))

    def run(params: Any, x: Any, batches: Any) -> Any:
        kept, value = held(params, x), 0.0
        for i in np.asarray(batches):
            part, cotangents = gradient(kept.rows(i))
            kept.add(i, cotangents)
            value = value + part
        return value, kept.pullback()

    return run


def lines(options: Options) -> Iterator[Line]:
    """Each encoder, all rows read; then few."""
    num_rows, num_batches = (256, 4) if options.quick else (NUM_ROWS, NUM_BATCHES)
    for name, sizes in ENCODERS.items():
        for label, num_read in (("all rows", num_rows), ("an eighth of the rows", num_rows // 8)):
            case = f"{name} encoder, {label}"
            if options.only in case and (name == "small" or num_read == num_rows):
                yield line(case, problem(sizes, num_rows, num_batches, num_read), options)


def line(case: str, given: tuple[Any, Any, Any], options: Options) -> Line:
    """One case; the parameters move from call to call."""
    params, x, batches = given
    one, chunks = incrax.hold(encoder), incrax.hold(encoder, chunk_rows=512)
    epoch, chunked = one.value_and_grad(loss), chunks.value_and_grad(loss)
    forms = {
        EPOCH: epoch,
        CHUNKED: chunked,
        HOSTED: hosted(),
        NAIVE: naive(),
        GATHERED: gathered(),
        WHOLE: whole(),
    }

    def at(number: int) -> tuple[Any, ...]:
        return (
            jax.block_until_ready(jax.tree.map(lambda w: w * (1 + 1e-3 * number), params)),
            x,
            batches,
        )

    timings = harness.compare(forms, at, options.rounds, warm=2)
    found = harness.timing_line(case, timings, [Speed(NAIVE, 20.0), Speed(GATHERED, 2.4)])
    calls = options.rounds + 2
    numbers = np.unique(np.asarray(batches))
    encoded = one.stats.rows_encoded / calls
    found.cells["rows encoded, ours"] = f"{encoded:.0f}"
    found.cells["rows that batches read"] = f"{batches.size} ({len(numbers)} distinct)"
    found.checks.append(limit("rows encoded", encoded, min(len(x), 2 * len(numbers))))
    return found


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=20, quick_rounds=2)
    harness.report("representations that are kept", lines(options), options)
