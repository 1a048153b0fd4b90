"""A network trained by least squares, one batch a call: handwritten digits, against Adam.

The residuals are the network's ten outputs minus the digit as a unit vector. Each call of `step`
linearises one batch, solves for a step of all weights in the space of the batch's residuals, and
hands the damping on to the next batch. The model is any pytree: here an Equinox module. After each
pass over the data the share of right answers on digits that were not shown is printed for both.

Run: python examples/network_least_squares.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from incrax import fit

NUM_TRAINED, BATCH, PASSES = 1400, 50, 3


def residuals(model: Any, x: Any, y: Any) -> Any:
    return jax.vmap(model)(x) - y


def batches(x: np.ndarray, y: np.ndarray, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng(number).permutation(NUM_TRAINED)
    for rows in order.reshape(-1, BATCH):
        yield x[rows], y[rows]


data = load_digits()
order = np.random.default_rng(0).permutation(len(data.data))
x, digits = (data.data[order] / 16).astype(np.float32), data.target[order]
y = np.eye(10, dtype=np.float32)[digits]
unseen, answers = x[NUM_TRAINED:], digits[NUM_TRAINED:]


@eqx.filter_jit
def num_right(model: Any) -> Any:
    return jnp.mean(jnp.argmax(jax.vmap(model)(unseen), axis=1) == answers)


model = eqx.nn.MLP(64, 10, 16, 1, activation=jnp.tanh, key=jax.random.key(0))
by_adam, adam = model, optax.adam(1e-2)
adam_state = adam.init(eqx.filter(by_adam, eqx.is_inexact_array))


@eqx.filter_jit
def adam_step(model: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
    gradient = eqx.filter_grad(lambda model: jnp.mean(residuals(model, x, y) ** 2))(model)
    updates, state = adam.update(gradient, state)
    return eqx.apply_updates(model, updates), state


lm = fit.LeastSquaresSteps(residuals)
state = lm.init(model)
for number in range(PASSES):
    for batch in batches(x, y, number):
        model, state = lm.step(model, state, *batch)
        by_adam, adam_state = adam_step(by_adam, adam_state, *batch)
    ours, theirs = float(num_right(model)), float(num_right(by_adam))
    print(
        f"pass {number + 1}: right on unseen digits {ours:.1%} by least squares, {theirs:.1%} by "
        "Adam"
    )

count = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
print(
    f"{count} weights, {10 * BATCH} residuals a batch, {int(state.num_taken)} of "
    f"{int(state.num_steps)} steps taken"
)
assert ours > 0.95
assert ours >= theirs - 0.01
