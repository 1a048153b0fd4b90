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


# --- rows -------------------------------------------------------------------------------------------

NUM = 24
"""Rows of the inputs that change."""
MANY = 60
_RNG = np.random.default_rng(11)
IDS = _RNG.integers(NUM - 1, size=MANY)  # the last row is looked up by nothing
WEIGHTS = _RNG.normal(size=(3, 3))
LINE = jnp.linspace(0.1, 1.0, 3)


def _over_others(reduce):
    """A reduction of all axes but the first."""
    return lambda x: reduce(x, axis=tuple(range(1, x.ndim))) if x.ndim > 1 else x


def _over_rows(reduce):
    return lambda x: reduce(x, axis=0) if x.ndim else x


def _of_rows(fun, least=2):
    """What is for arrays of so many rows."""
    return lambda x: fun(x) if x.ndim and x.shape[0] >= least else x


def _gram(x):
    """The factor of a small matrix for each row."""
    wide = jnp.tanh(x[..., None] * LINE)
    return jnp.linalg.cholesky(wide[..., None] * wide[..., None, :] + jnp.eye(3))


def _filtered(x):
    """A loop from row to row that forgets."""
    return jax.lax.scan(lambda c, y: (jnp.tanh(0.2 * c + y),) * 2, jnp.zeros_like(x[0]), x)[1]


def _walked(x):
    """A loop for each row."""
    step = lambda c, y: (0.5 * c + jnp.sin(y), c * y)
    return jax.vmap(lambda r: jax.lax.scan(step, 0.3, r * LINE)[0])(x.reshape(x.shape[0], -1)[:, 0])


ON_ROWS = {
    "tanh": jnp.tanh,
    "arctan": lambda x: jnp.arctan(x * 1.3),  # the last elements have other bits than the rest
    "square": lambda x: jnp.tanh(x) ** 2,
    "exp": lambda x: jnp.exp(jnp.tanh(x)),
    "phase": lambda x: jnp.abs(jnp.exp(1j * x) + 0.5),
    "where": lambda x: jnp.where(x > 0.123, x, 0.5 * x),
    "columns": lambda x: x[:, None] * LINE if x.ndim == 1 else x,
    "turned": lambda x: x.T,
    "joined": lambda x: x.reshape(-1),
    "parted": lambda x: x.reshape(NUM, -1) if x.size and not x.size % NUM else x,
    "means": _over_others(jnp.mean),
    "largest of each": _over_others(jnp.max),
    "logsumexp": _over_others(jax.nn.logsumexp),
    "mean": jnp.mean,
    "mean of rows": _over_rows(jnp.mean),
    "largest": _over_rows(jnp.max),
    "product": lambda x: jnp.prod(1 + 0.1 * jnp.tanh(x)),
    "soft-max": _of_rows(lambda x: jax.nn.softmax(x, axis=0)),
    "cumulative": _of_rows(lambda x: jnp.cumsum(jnp.tanh(x), axis=0) / NUM),
    "sorted": _of_rows(lambda x: jnp.sort(x, axis=0)),
    "rolled": _of_rows(lambda x: x - 0.5 * jnp.roll(x, 1, axis=0)),
    "reversed": _of_rows(lambda x: x[::-1]),
    "differences": _of_rows(lambda x: x[1:] - x[:-1]),
    "every other": _of_rows(lambda x: x[::2]),
    "padded": _of_rows(lambda x: jnp.concatenate([x[:1] * 0.5, x])[:MANY]),
    "looked up": _of_rows(lambda x: x[IDS % x.shape[0]]),
    "added back": _of_rows(lambda x: jax.ops.segment_sum(x, IDS, NUM) if len(x) == MANY else x),
    "weighted": lambda x: jnp.tanh(x) @ WEIGHTS if x.ndim > 1 and x.shape[-1] == 3 else x,
    "factors": _of_rows(lambda x: _gram(x)[..., 1, 0]),
    "filtered": _of_rows(_filtered),
    "walked": _of_rows(_walked),
    "mapped": _of_rows(lambda x: jax.lax.map(lambda r: jnp.sin(r) + jnp.sum(r), x)),
    "jit": jax.jit(lambda x: jnp.cos(x) + 1),
}


def _together(combine):
    """Two values of any shapes: element by element where that goes, else with the mean of one."""

    def run(x, y):
        x, y = (x, y) if x.ndim >= y.ndim else (y, x)
        if y.ndim and x.shape[: y.ndim] == y.shape:
            y = y.reshape(y.shape + (1,) * (x.ndim - y.ndim))
        elif y.ndim:
            y = jnp.mean(y)
        return combine(x, y)

    return run


WITH_ROWS = {
    "plus": _together(jnp.add),
    "times": _together(lambda x, y: x * jnp.tanh(y)),
    "minus": _together(jnp.subtract),
    "larger": _together(jnp.maximum),
    "pairs": lambda x, y: x.reshape(-1)[:NUM, None] - y.reshape(-1)[None, :3],
    "all pairs": lambda x, y: jnp.tanh(x.reshape(-1)[:NUM, None] - y.reshape(-1)[:NUM]),
    "contracted": lambda x, y: (
        jnp.tensordot(x, y, (0, 0)) / NUM if x.ndim and y.ndim and len(x) == len(y) else x
    ),
}


@dataclass(frozen=True)
class RowProgram:
    """Operations on a pool that starts with a vector of `NUM`, a matrix of as many rows, and a
    scalar; of the values, it returns those of which the bit is set, and a mean of the last.
    """

    operations: tuple[tuple[str, int, int], ...]
    shown: int

    def __call__(self, theta, x, a):
        pool = [theta, x, a]
        for name, left, right in self.operations:
            first, second = (jnp.asarray(pool[-1 - k % len(pool)]) for k in (left, right))
            if name in ON_ROWS:
                pool.append(ON_ROWS[name](first))
            elif first.ndim + second.ndim <= 4:
                pool.append(WITH_ROWS[name](first, second))
        shown = [value for number, value in enumerate(pool) if self.shown >> number & 1]
        return [*shown, jnp.mean(jnp.tanh(pool[-1]))]

    def __str__(self):
        return json.dumps([self.operations, self.shown])


ROW_START = (_RNG.uniform(-1, 1, NUM), _RNG.uniform(-1, 1, (NUM, 3)), 0.75)
_ROW_BY_ROW = """tanh arctan square exp phase columns means logsumexp weighted factors walked mapped
plus times minus""".split()
ROW_NAMES = sorted([*ON_ROWS, *WITH_ROWS, *_ROW_BY_ROW * 3])
"""What treats each row by itself comes more often: else few programs would do so for long."""


@st.composite
def row_programs(draw, max_size=8):
    near = st.integers(0, 3)
    steps = st.tuples(st.sampled_from(ROW_NAMES), near, near)
    operations = draw(st.lists(steps, min_size=2, max_size=max_size))
    return RowProgram(tuple(operations), draw(st.integers(0, 2**8)))
