"""Random programs as data: a list of operations on a typed pool, built into a function that returns
every value.

Every intermediate is an output: a test that looked at one final number alone let a wrong change
test live.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

UNARY = {
    "sin": jnp.sin,
    "exp": lambda x: jnp.exp(jnp.clip(x, -5, 5)),
    "inverse": lambda x: 1 / x,
    "sqrt": lambda x: jnp.sqrt(x),
    "log": lambda x: jnp.log(x),
    "sign": lambda x: jnp.copysign(1.0, x),
    "square": jnp.square,
    "tanh": jnp.tanh,
    "sum": jnp.sum,
    "first": lambda x: x.ravel()[0],
    "last": lambda x: x.ravel()[-1],
    "reverse": lambda x: x[::-1] if x.ndim else x,
    "sort": lambda x: jnp.sort(x) if x.ndim else x,
    "cumsum": lambda x: jnp.cumsum(x) if x.ndim else x,
    "float32": lambda x: x.astype(jnp.float32).astype(jnp.float64),
    "round": lambda x: jnp.round(x * 8) / 8,
    "jit": jax.jit(lambda x: jnp.cos(x) + 1),
    "remat": jax.checkpoint(lambda x: jnp.sin(x) * x),
    "stop": jax.lax.stop_gradient,
    "scan": lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, c), 0.0, jnp.atleast_1d(x))[1],
    "while": lambda x: jax.lax.while_loop(
        lambda c: jnp.sum(jnp.abs(c)) > 1.0, lambda c: c * 0.5, jnp.where(jnp.isfinite(x), x, 0.0)
    ),
}
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "atan2": jnp.arctan2,
    "max": jnp.maximum,
    "where": lambda x, y: jnp.where(x > y, x, y * 2),
    "dot": lambda x, y: jnp.sum(x * y),
    "index": lambda x, y: jnp.atleast_1d(x)[
        jnp.abs(jnp.nan_to_num(jnp.sum(y))).astype(int) % jnp.atleast_1d(x).size
    ],
    "concatenate": lambda x, y: jnp.concatenate([jnp.atleast_1d(x), jnp.atleast_1d(y)])[:6],
    "cond": lambda x, y: jax.lax.cond(jnp.sum(x) > 0, lambda: x + jnp.sum(y), lambda: x * 1.0),
    "set": lambda x, y: jnp.atleast_1d(x).at[0].set(jnp.sum(y)),
    "vmap": lambda x, y: jax.vmap(lambda a: a * jnp.sum(y))(jnp.atleast_1d(x)),
}


@dataclass(frozen=True)
class Program:
    """Operations (name, operand numbers) on a pool that starts with two scalars, a vector of 5 and
    one of 4.
    """

    operations: tuple[tuple[str, int, int], ...]

    def __call__(self, a, b, v, w):
        pool = [a, b, v, w]
        for name, left, right in self.operations:
            x, y = pool[left % len(pool)], pool[right % len(pool)]
            if name in UNARY:
                pool.append(UNARY[name](jnp.asarray(x)))
            else:
                x, y = jnp.asarray(x), jnp.asarray(y)
                if (
                    name in ("add", "sub", "mul", "atan2", "max", "where", "dot")
                    and x.ndim
                    and y.ndim
                ):
                    size = min(x.size, y.size)
                    x, y = x[:size], y[:size]
                pool.append(BINARY[name](x, y))
        return pool

    def __str__(self):
        return json.dumps(self.operations)


START = (0.75, 2.0, np.linspace(-1.0, 2.0, 5), np.linspace(0.5, 1.5, 4))


@st.composite
def programs(draw, max_size=9):
    names = st.sampled_from(sorted([*UNARY, *BINARY]))
    number = st.integers(0, 11)
    return Program(
        tuple(draw(st.lists(st.tuples(names, number, number), min_size=2, max_size=max_size)))
    )
