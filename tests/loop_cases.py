"""Loops compared with those of JAX and with Python's, and counts of what was compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

_compiles: list[str] = []


def _note(name: str, *_: object, **__: object) -> None:
    if "backend_compile" in name:
        _compiles.append(name)


jax.monitoring.register_event_duration_secs_listener(_note)


class Count:
    """Programs compiled inside the block."""

    num = 0


@contextmanager
def counted_compiles() -> Iterator[Count]:
    count, before = Count(), len(_compiles)
    try:
        yield count
    finally:
        count.num = len(_compiles) - before


def cell(w, h, x):
    h = jnp.tanh(w @ h + x)
    return h, h[0]


def close(actual, expected, rtol=1e-9, atol=1e-11) -> None:
    """Same tree, shapes and dtypes; nearly the same values."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (jnp.shape(x), jnp.asarray(x).dtype) == (jnp.shape(y), jnp.asarray(y).dtype)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=atol)


def jacrev2(fun, argnums):
    return jax.jacrev(jax.jacrev(fun, argnums), argnums)


def reverse_over_forward(fun, argnums):
    return jax.jacrev(jax.jacfwd(fun, argnums), argnums)


def forward2(fun, argnums):
    return jax.jacfwd(jax.jacfwd(fun, argnums), argnums)


DERIVATIVES = {
    "gradient": jax.grad,
    "forward": jax.jacfwd,
    "Hessian": jax.hessian,
    "reverse twice": jacrev2,
    "reverse over forward": reverse_over_forward,
    "forward twice": forward2,
}
