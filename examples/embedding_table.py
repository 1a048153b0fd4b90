"""A table of 1e6 x 64 numbers of which each step reads 64 rows: what a step holds in memory, dense
and structured.

Run: python examples/embedding_table.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import incrax

NUM_ROWS, WIDTH, BATCH, STEPS = 1_000_000, 64, 64, 200


def loss(table: jax.Array, ids: jax.Array, targets: jax.Array) -> jax.Array:
    """Logistic loss of a score per row."""
    scores = jnp.sum(table[ids], axis=1)
    return jnp.mean(jnp.logaddexp(0.0, -targets * scores))


def step(table: jax.Array, ids: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent, written as for a dense gradient."""
    value, gradient = jax.value_and_grad(loss)(table, ids, targets)
    norm = jnp.sqrt(jnp.sum(gradient**2))
    return table - 0.5 * gradient / jnp.maximum(1.0, norm), value


def main() -> None:
    rng = np.random.default_rng(0)
    truth = rng.choice([-1.0, 1.0], size=NUM_ROWS).astype(np.float32)
    hot = rng.integers(0, NUM_ROWS, 500)  # the rows that the data are about

    train = incrax.structured(step, donate_argnums=0)
    dense = jax.jit(step, donate_argnums=0)
    types = [
        jax.ShapeDtypeStruct(s, d)
        for s, d in (((NUM_ROWS, WIDTH), "f4"), ((BATCH,), "i4"), ((BATCH,), "f4"))
    ]
    for name, function in (("jax.jit", dense), ("structured", train)):
        memory = function.lower(*types).compile().memory_analysis()
        print(
            f"{name:>10}: {memory.temp_size_in_bytes / 1e6:8.2f} MB beside the table in each step"
        )
    assert not train.explain(*types).became_dense

    table, values = jnp.zeros((NUM_ROWS, WIDTH), jnp.float32), []
    for _ in range(STEPS):
        ids = hot[rng.integers(0, len(hot), BATCH)]
        table, value = train(table, ids, truth[ids])
        values.append(float(value))
    changed = int(jnp.sum(jnp.any(table != 0, axis=1)))
    print(
        f"loss {values[0]:.3f} -> {values[-1]:.3f} in {STEPS} steps; {changed} of {NUM_ROWS:,} "
        "rows changed"
    )


if __name__ == "__main__":
    main()
