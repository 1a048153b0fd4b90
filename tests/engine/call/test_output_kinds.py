"""Outputs and inputs that are no plain arrays: each kind through a long timeline, and through every
way to call.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax

NUM_CALLS = 130
"""More than it takes until programs are no longer waited for, and results are looked at later."""

X = np.linspace(0.1, 1.0, 3000, dtype=np.float32)

KINDS = {
    "key": lambda k, x: jax.random.fold_in(k, 3),
    "keys": lambda k, x: jax.random.split(k),
    "other key": lambda k, x: jax.random.key(0, impl="rbg"),
    "own key": lambda k, x: k,
    "float0": lambda k, x: jax.grad(lambda i: jnp.sum(x), allow_int=True)(jnp.arange(3)),
    "empty": lambda k, x: x[:0] * 2,
    "float8": lambda k, x: x.astype(jnp.float8_e4m3fn),
    "int4": lambda k, x: x.astype(jnp.int4),
    "bfloat16": lambda k, x: x.astype(jnp.bfloat16),
    "number": lambda k, x: 3.0,
}


def program_of(kind):
    """A function whose first output is of a kind, and with values that are worth saving."""
    return lambda k, a, x: (
        KINDS[kind](k, x),
        jnp.sum(jnp.exp(x)) * a,
        jax.random.normal(k, (4,)) * a,
    )


def plain(outputs):
    """The outputs, those of no type that can be compared as numbers by their bits."""

    def as_plain(x):
        if getattr(x, "dtype", None) == jax.dtypes.float0:
            return np.zeros(x.shape, bool)
        is_narrow = getattr(x, "dtype", None) in (jnp.float8_e4m3fn, jnp.int4)
        return x.astype(jnp.float32) if is_narrow else x

    return jax.tree.map(as_plain, outputs)


NUMBERS = [float, np.float64, jnp.float64, np.array, np.float32]


def test_numbers_of_each_kind_give_the_bits_and_types_that_jit_gives():
    """Three traces, as many as JAX makes: Python's are of weak type, those of NumPy are not."""

    def fun(a, b, x):
        return a * b, jnp.sum(jnp.exp(x)) * a, jax.grad(lambda a: a**2 * b)(a)

    ours, plain = incrax.incremental(fun, tuning=EAGER), jax.jit(fun)
    for k, number in enumerate(6 * NUMBERS, start=1):
        for mine, known in zip(
            ours(number(float(k)), 2.0, X), plain(number(float(k)), 2.0, X), strict=True
        ):
            assert (mine.dtype, mine.weak_type) == (known.dtype, known.weak_type)
            assert mine.tobytes() == known.tobytes()
    assert ours.stats.traces == 3


def timeline(num_calls):
    """Arguments, of which one changes at each call."""
    rng = np.random.default_rng(0)
    key, scale = jax.random.key(0), 1.0
    for number in range(num_calls):
        if rng.random() < 0.3:
            key = jax.random.fold_in(key, number)
        else:
            scale = float(rng.normal())
        yield key, scale, X


def by_turns(*policies):
    """Each kind with one policy; the two tests have them the other way round."""
    return list(zip(KINDS, itertools.cycle(policies)))  # noqa: B905


@pytest.mark.parametrize(("kind", "policy"), by_turns("fast", "exact"))
def test_every_kind_of_first_output_lasts(kind, policy):
    fun = program_of(kind)
    ours, expected = incrax.incremental(fun, policy=policy), jax.jit(fun)
    for args in timeline(NUM_CALLS):
        same(plain(ours(*args)), plain(expected(*args)))


@pytest.mark.parametrize(("kind", "policy"), by_turns("exact", "fast"))
def test_every_kind_of_output_in_every_way_to_call(kind, policy):
    fun = program_of(kind)
    ours, expected = incrax.incremental(fun, policy=policy, tuning=EAGER), jax.jit(fun)
    first, *others = timeline(6)
    ours.warm_up(*first, changing=["a", "k"])
    with incrax.verify(every=1):
        same(plain(ours(*first)), plain(expected(*first)))
        for args in others:
            ours(*args)
    same(plain(ours.fresh(*others[0])), plain(expected(*others[0])))
    state, step = ours.pure(*first)
    for args in others[:2]:
        state, out = jax.jit(step)(state, *args)
        same(plain(out), plain(expected(*args)))
    assert str(ours.explain())


@pytest.mark.parametrize("policy", ["fast", "exact"])
def test_a_key_that_a_function_closes_over(policy):
    key = jax.random.key(7)
    fun = lambda a, b: (jnp.sum(jnp.exp(a)) * b, a * jax.random.normal(key, a.shape), key)
    ours = incrax.incremental(fun, policy=policy, tuning=incrax.Tuning(planner="minimal"))
    for number in range(4):
        args = np.full(3, 0.5 + number // 2), 1.0 + number
        same(ours(*args), jax.jit(fun)(*args))


def test_only_keys_as_outputs():
    ours = incrax.incremental(
        lambda k, x: jax.random.fold_in(k, jnp.sum(x).astype(int)), policy="exact"
    )
    for number in range(40):
        key = jax.random.key(number)
        same(ours(key, X), jax.random.fold_in(key, jnp.sum(X).astype(int)))


def test_a_late_failure_is_seen_behind_a_first_output_of_numpy():
    """What is looked at for failures is an array that a program wrote."""
    ours = incrax.incremental(program_of("float0"), policy="exact")
    for args in timeline(4):
        ours(*args)
    (traced,) = ours._traces.table.values()
    unproven = traced.engine.chooser.clock.unproven
    assert unproven
    assert all(isinstance(x, jax.Array) and hasattr(x, "is_ready") for x in unproven)
