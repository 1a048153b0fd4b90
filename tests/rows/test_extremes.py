"""The largest and the least of rows that a later pass computes anew: by programs that users have, in
which the same row has other last bits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax

pytestmark = pytest.mark.optimized

KINDS = {
    "in memory": (incrax.Rows, {"tuning": MINIMAL}),
    "streamed": (incrax.Rows.from_memmap, {"tuning": MINIMAL}),
    "exact": (incrax.Rows, {"policy": "exact"}),
}


def of_extremes(a, x):
    z = x @ a * 0.3
    return jnp.max(z / (1.0 + jnp.max(z)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_row_is_found_again_in_a_later_pass(kind):
    """Else no row would be the largest, and its gradient be missing."""
    make, options = KINDS[kind]
    fun = jax.grad(of_extremes)
    f, plain = incrax.incremental(fun, **options), jax.jit(fun)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        a, x = rng.normal(size=3), rng.normal(size=(21, 3))
        same(f(a, make(x, chunk_rows=8)), plain(a, x), factor=1024)
