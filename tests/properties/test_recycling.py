"""Recycled buffers: what a user holds, results and arguments alike, never changes afterwards."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, check, same

import incrax
from incrax.engine.compile.recycling import MIN_BYTES, Pool

SIZE = MIN_BYTES // 8 + 64
NUM_CALLS = 22
TUNINGS = {"default": incrax.Tuning(), "eager": EAGER, "minimal": MINIMAL}
PARAMETERS = ("a", "b", "c")

UNARY = (
    lambda x: jnp.exp(jnp.sin(x)),
    lambda x: jnp.tanh(jnp.exp(jnp.cos(x))),
    lambda x: jnp.sort(jnp.sin(3 * x)),
    lambda x: jax.jit(lambda y: jnp.arctan(jnp.exp(jnp.sin(y))))(x),
    lambda x: x[::-1].copy(),
    lambda x: jax.jit(lambda y: y)(x),
    lambda x: jax.lax.optimization_barrier(x),
    lambda x: x.reshape(-1, 8).reshape(-1),
    lambda x: jnp.cumsum(x) / SIZE,
)
BINARY = (
    jnp.add,
    jnp.multiply,
    jnp.arctan2,
    lambda x, y: jnp.where(x > y, x, y),
    lambda x, y: x * jnp.sum(y) / SIZE,
)
CONSTANT = np.linspace(-1.0, 1.0, SIZE)


def random_program(rng):
    """A function of three scalars and two large arrays; it returns intermediates, arguments and a
    value twice.
    """
    steps = [
        (rng.randrange(9), rng.randrange(5), rng.random(), rng.random())
        for _ in range(rng.randint(4, 8))
    ]
    shown = [rng.random() for _ in range(rng.randint(1, 4))]

    def program(a, b, c, x, y):
        pool = [UNARY[0](a * x), UNARY[1](b * y), UNARY[0](c * x + jnp.asarray(CONSTANT))]
        for unary, binary, left, right in steps:
            first, second = pool[int(left * len(pool))], pool[int(right * len(pool))]
            pool.append(UNARY[unary](first))
            pool.append(BINARY[binary](pool[-1], second))
        values = [*pool, x, y]
        outputs = [values[int(number * len(values))] for number in shown]
        return {
            "shown": outputs,
            "again": outputs[0],
            "argument": x,
            "total": jnp.sum(pool[-1] * pool[-3]),
        }

    return program


def random_change(rng, args):
    """Other arguments: a few scalars change, back to old values at times; seldom a whole array."""
    args = dict(args)
    for name in rng.sample(PARAMETERS, rng.choice((0, 1, 1, 1, 1, 2, 3))):
        args[name] = rng.choice((0.25, 0.5, 1.5, rng.random()))
    if rng.random() < 0.15:
        args[rng.choice("xy")] = jnp.linspace(rng.random(), 2.0, SIZE)
    return args


class Held:
    """Everything that a user got or gave, with a copy made at that time.

    The copies are made by JAX: an array that NumPy has a view of cannot be donated, and would hide
    the bug.
    """

    def __init__(self):
        self.arrays = []

    def hold(self, tree):
        copied = jax.tree.map(jnp.copy, tree)
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(copied), strict=True)
        self.arrays += [(x, copy) for x, copy in pairs if isinstance(x, jax.Array)]
        return copied

    def check(self):
        for array, copied in self.arrays:
            assert not array.is_deleted()
            assert np.asarray(array).tobytes() == np.asarray(copied).tobytes()


@pytest.fixture
def recycled(monkeypatch):
    """Buffers that programs were given, and whether each had been used before."""
    seen, take = [], Pool.take

    def counted(pool, avals):
        avals = list(avals)
        free = [x for each in pool._free.values() for x in each]
        taken = take(pool, avals)
        seen.extend(any(x is other for other in free) for x in taken)
        return taken

    monkeypatch.setattr(Pool, "take", counted)
    return seen


@pytest.mark.parametrize("versions", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(TUNINGS))
def test_what_a_user_holds_never_changes(name, versions):
    tuning = TUNINGS[name]
    rng = random.Random(f"{name} {versions}")
    program = random_program(rng)
    plain = jax.jit(program)
    functions = [incrax.incremental(program, tuning=tuning, versions=versions)]
    args = {
        "a": 1.0,
        "b": 0.5,
        "c": 0.25,
        "x": jnp.linspace(0.0, 1.0, SIZE),
        "y": jnp.linspace(-1.0, 1.0, SIZE),
    }
    points, held = [args], Held()
    for number in range(NUM_CALLS):
        function = rng.choice(functions)
        points.append(random_change(rng, rng.choice(points[-3:])))
        held.hold(points[-1])
        result = function(**points[-1])
        same(held.hold(result), plain(**points[-1]), factor=4096.0)
        check(function)
        if number in (7, 14):
            functions.append(incrax.incremental(program, tuning=tuning, versions=versions))
    held.check()


def exponential(a, x):
    """The array is what pays to save: some 0.1 ms, more than a look at the call takes."""
    for _ in range(8):
        x = jnp.sin(jnp.tan(x))
    return jnp.sum(jnp.exp(a * x))


@pytest.mark.cpu
def test_dropped_values_are_written_over_by_the_next(recycled):
    """That recycling is on: of two versions, from the third on every saved array is in the buffer
    of an older one.
    """
    f = incrax.incremental(exponential, tuning=EAGER, versions=2)
    for k in range(8):
        x = jnp.full(SIZE, float(k))
        for a in (1.0, 2.0, 3.0, 4.0):
            same(f(a, x), jax.jit(exponential)(a, x))
    assert recycled.count(False) <= 3
    assert recycled.count(True) >= 4


@pytest.mark.cpu
def test_no_transfer_from_the_host_is_needed(recycled):
    f = incrax.incremental(exponential, tuning=EAGER)
    xs, scalars = [jnp.full(SIZE, float(k)) for k in range(4)], [jnp.float64(k) for k in range(8)]
    with jax.transfer_guard("disallow"):
        for x in xs:
            for a in scalars:
                f(a, x)
    assert set(recycled) == {True, False}  # new buffers and old ones
