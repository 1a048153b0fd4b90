"""`while_loop` against `lax.while_loop` forward and against Python's loop in derivatives."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from loop_cases import DERIVATIVES, close

import incrax
from incrax.errors import CapacityError

X = np.array([0.9, 0.5])
ARGS = (0, 1, 2)


def turn(a, b, carry):
    number, x, total = carry
    return number + 1, jnp.sin(x) * a + 0.1 * b, total + jnp.sum(x) ** 2


def goes_on(carry, most=9):
    return (carry[1][0] > 0.2) & (carry[0] < most)


def loss(a, b, x, *, most=9, **options):
    _, x, total = incrax.while_loop(
        partial(goes_on, most=most), partial(turn, a, b), (0, x, 0.0), **options
    )
    return total + jnp.sum(x)


def unrolled(num):
    def loss(a, b, x):
        carry = (0, x, 0.0)
        for _ in range(num):
            carry = turn(a, b, carry)
        return carry[2] + jnp.sum(carry[1])

    return loss


def num_turns(a, b, x, most=9):
    carry = (0, x, 0.0)
    while goes_on(carry, most):
        carry = turn(a, b, carry)
    return carry[0]


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [X, X * 0.1], ids=["some turns", "none"])
def test_values_are_those_of_jax(x):
    loop = lambda run: run(goes_on, partial(turn, 0.9, 0.1), (0, x, 0.0))
    for run in (incrax.while_loop, partial(incrax.while_loop, max_steps=20)):
        close(loop(run), loop(jax.lax.while_loop))
        close(jax.jit(lambda run=run: loop(run))(), loop(jax.lax.while_loop))


@given(start=st.floats(0.5, 50.0), factor=st.floats(0.3, 0.9))
@examples(2 / 5)
def test_any_number_of_turns(start, factor):
    loop = lambda run: run(
        lambda x: x[0] > 1.0, lambda x: (x[0] * factor, x[1] + x[0]), (start, 0.0)
    )
    close(loop(partial(incrax.while_loop, max_steps=50)), loop(jax.lax.while_loop))


def test_more_turns_than_the_bound_are_an_error():
    f = lambda x: incrax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x, max_steps=4)
    assert float(f(16.0)) == 1.0
    with pytest.raises(
        CapacityError, match="was asked for 5 rows or turns, and there is room for 4"
    ):
        f(17.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="there is room for 4"):
        jax.jit(f)(17.0).block_until_ready()


def test_without_a_bound_it_has_derivatives_in_forward_mode_alone():
    f = lambda x: incrax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
    assert float(jax.jvp(f, (8.0,), (1.0,))[1]) == 0.125
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(f)(8.0)


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_of_the_turns_that_are_taken(kind):
    derivative = DERIVATIVES[kind]
    num = num_turns(0.9, 0.1, X)
    assert 2 < num
    actual = jax.jit(derivative(partial(loss, max_steps=16), ARGS))(0.9, 0.1, X)
    close(actual, derivative(unrolled(num), ARGS)(0.9, 0.1, X))


def test_the_gradient_is_that_of_finite_differences():
    f = partial(loss, max_steps=16)
    slope = (f(0.9 + 1e-6, 0.1, X) - f(0.9 - 1e-6, 0.1, X)) / 2e-6
    np.testing.assert_allclose(jax.grad(f)(0.9, 0.1, X), slope, rtol=1e-6)


def test_the_gradient_of_no_turns_is_that_of_the_first_carry():
    close(
        jax.grad(partial(loss, max_steps=16), ARGS)(0.9, 0.1, X * 0.1),
        (jnp.zeros(()), jnp.zeros(()), jnp.ones(2)),
    )


def test_what_only_the_condition_reads_has_no_derivative():
    f = lambda limit: incrax.while_loop(lambda x: x < limit, lambda x: x * 2.0, 1.0, max_steps=8)
    assert float(jax.grad(f)(9.0)) == 0.0


def test_a_batch_with_other_numbers_of_turns_each():
    xs = jnp.stack([X, X * 0.5, X * 0.1])
    nums = [num_turns(0.6, 0.1, x) for x in xs]
    assert len(set(nums)) == 3
    expected = [jax.grad(unrolled(num), ARGS)(0.6, 0.1, x) for num, x in zip(nums, xs, strict=True)]
    f = partial(loss, max_steps=16)
    actual = jax.jit(jax.vmap(jax.grad(f, ARGS), (None, None, 0)))(0.6, 0.1, xs)
    close(actual, jax.tree.map(lambda *parts: jnp.stack(parts), *expected))
    total = jax.jit(jax.grad(lambda a: jnp.sum(jax.vmap(f, (None, None, 0))(a, 0.1, xs))))(0.6)
    close(total, sum(part[0] for part in expected))


def test_a_loop_of_many_turns_stores_the_carries_of_few():
    """The last 60 of 10,000 turns matter."""
    wide = jnp.linspace(0.1, 1.0, 20)
    turn = lambda a, c: (c[0] + 1, jnp.cos(c[1] * a))

    def f(a, most):  # an argument, or XLA would know how many turns there are
        goes_on = lambda c: c[0] < most
        return jnp.sum(incrax.while_loop(goes_on, partial(turn, a), (0, wide), max_steps=10_000)[1])

    program = jax.jit(jax.grad(f)).lower(0.9, 10_000).compile()
    assert program.memory_analysis().temp_size_in_bytes < 10_000 * wide.nbytes / 8
    fixed = lambda a: jnp.sum(jax.lax.fori_loop(0, 100, lambda _, x: jnp.cos(x * a), wide))
    np.testing.assert_allclose(program(0.9, 10_000), jax.grad(fixed)(0.9), rtol=1e-9)
