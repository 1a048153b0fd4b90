"""Two towers, contrastive: which upper half of a digit belongs to which lower half?

Two networks, one for the upper and one for the lower halves of scikit-learn's images of digits, are
trained so that halves of one image have similar representations. Each epoch reads 64 random batches
of pairs; all rows are encoded once for all of them, forward and backward, with the exact gradient
of the epoch's sum, its temperature included. The same gradient by plain JAX, which encodes the rows
of each batch, is compared.

Run: python examples/two_towers.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import incrax

NUM_BATCHES, BATCH = 64, 128
NUM_EPOCHS = 60
NUM_TEST = 300


def tower(layers, x):
    """A network with representations of length one."""
    (w1, b1), (w2, b2) = layers
    z = jnp.tanh(x @ w1 + b1) @ w2 + b2
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def encode(params, halves):
    """Both towers: a row is an image."""
    return {name: tower(params[name], halves[name]) for name in ("upper", "lower")}


def loss(z, log_temperature):
    """Each half must find its other half among those of the batch."""
    scores = z["upper"] @ z["lower"].T * jnp.exp(log_temperature)
    by_row, by_column = (jnp.diagonal(jax.nn.log_softmax(scores, axis=axis)) for axis in (0, 1))
    return -jnp.mean(by_row + by_column) / (2 * NUM_BATCHES)


def plain(params, halves, batches, log_temperature):
    """The same sum, each batch encoded by itself."""

    def add(value, i):
        return value + loss(
            encode(params, jax.tree.map(lambda x: x[i], halves)), log_temperature
        ), None

    return jax.lax.scan(add, 0.0, batches)[0]


def start(rng, width=32, hidden=128, size=32):
    """Random layers of both towers."""

    def layer(m, n):
        return rng.normal(size=(m, n)).astype(np.float32) / np.sqrt(m), np.zeros(n, np.float32)

    return {name: [layer(width, hidden), layer(hidden, size)] for name in ("upper", "lower")}


def adam(gradient, state, rate=4e-3):
    """A step of Adam: the change, and the state after it."""
    count, first, second = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    scale = rate * np.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
    return jax.tree.map(lambda m, v: -scale * m / (jnp.sqrt(v) + 1e-8), first, second), (
        count + 1,
        first,
        second,
    )


def accuracy(params, halves):
    """How often the most similar lower half, among all, is the right one."""
    z = encode(params, halves)
    return float(
        jnp.mean(jnp.argmax(z["upper"] @ z["lower"].T, axis=1) == jnp.arange(len(z["upper"])))
    )


def main():
    rng = np.random.default_rng(0)
    images = load_digits().data.astype(np.float32)[rng.permutation(1797)] / 16
    halves = jax.tree.map(jnp.asarray, {"upper": images[:, :32], "lower": images[:, 32:]})
    train, test = (
        jax.tree.map(lambda x, p=p: x[p], halves) for p in (slice(NUM_TEST, None), slice(NUM_TEST))
    )
    num_rows = len(train["upper"])

    held = incrax.hold(encode)
    epoch = held.value_and_grad(loss, wrt=("params", "log_temperature"))
    by_batch = jax.jit(jax.value_and_grad(plain, argnums=(0, 3)))
    params, log_temperature = start(rng), np.float32(1.0)
    state = (0, *(jax.tree.map(jnp.zeros_like, (params, log_temperature)) for _ in range(2)))
    print(
        f"before: {accuracy(params, test):.1%} of {NUM_TEST} lower halves found, by chance "
        f"{1 / NUM_TEST:.1%}"
    )
    seconds = {"incrax": 0.0, "jax.jit": 0.0}
    for number in range(NUM_EPOCHS):
        batches = np.stack([rng.permutation(num_rows)[:BATCH] for _ in range(NUM_BATCHES)])
        given = (params, train, batches, log_temperature)
        begin = time.perf_counter()
        value, gradient = jax.block_until_ready(epoch(*given))
        middle = time.perf_counter()
        if number % 10 == 1:
            expected = jax.block_until_ready(by_batch(*given))
            if number > 1:  # at first `jax.jit` compiles
                seconds["incrax"] += middle - begin
                seconds["jax.jit"] += time.perf_counter() - middle
            pairs = zip(jax.tree.leaves((value, gradient)), jax.tree.leaves(expected), strict=True)
            error = max(float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in pairs)
            assert error < 1e-3, error
            print(f"epoch {number:2}: loss {value:.3f}, gradient within {error:.0e} of plain JAX")
        step, state = adam(gradient, state)
        params, log_temperature = jax.tree.map(jnp.add, (params, log_temperature), step)
    found, num_encoded = accuracy(params, test), held.stats.rows_encoded / NUM_EPOCHS
    print(f"after: {found:.1%} found; {num_encoded:.0f} rows encoded an epoch")
    print(
        f"batches read {NUM_BATCHES * BATCH} rows; gradient "
        f"{seconds['jax.jit'] / seconds['incrax']:.1f}x jax.jit"
    )
    assert found > 0.1


if __name__ == "__main__":
    main()
