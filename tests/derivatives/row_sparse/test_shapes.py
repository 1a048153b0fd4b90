"""Operands of one rank whose axes of one element are spread: JAX keeps such equations as they are
written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_sparse_cases import structured

NARROW, WIDE = jnp.ones((60, 1)), jnp.asarray(np.random.default_rng(0).normal(size=(60, 4)))
IDS = jnp.array([3, 3, 7])


def of(table, ids):
    return jax.grad(lambda t: jnp.sum(t[ids] ** 3))(table)


STEPS = {
    "rows and wider zeros": lambda b, w, i: (of(b, i) + jnp.zeros((60, 4))).sum(1),
    "rows of two widths": lambda b, w, i: of(b, i) + of(w, i),
    "rows less their mean": lambda b, w, i: of(w, i) - of(w, i).mean(1, keepdims=True),
    "rows less a column": lambda b, w, i: of(w, i) - of(w, i)[:, :1],
    "a narrower array less rows": lambda b, w, i: (b - of(w, i)).sum(1),
    "a wider array less rows": lambda b, w, i: w - 0.1 * of(b, i),
    "one row for all": lambda b, w, i: w[:1] - 0.1 * of(w, i),
    "a narrower product": lambda b, w, i: (b * of(w, i)).max(1),
    "outer shapes": lambda b, w, i: w[:, :, None] + of(w, i)[:, None, :],
}


@pytest.mark.parametrize("step", STEPS)
def test_operands_that_are_spread_give_the_dense_result(step):
    ours = structured(STEPS[step])
    np.testing.assert_allclose(
        ours(NARROW, WIDE, IDS), jax.jit(STEPS[step])(NARROW, WIDE, IDS), rtol=1e-12, atol=1e-14
    )
