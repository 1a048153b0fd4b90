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
from loop_cases import DERIVATIVES, close, counted_compiles

import incrax

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
    close(loop(incrax.while_loop), loop(jax.lax.while_loop))
    close(jax.jit(lambda: loop(incrax.while_loop))(), loop(jax.lax.while_loop))


@given(start=st.floats(0.5, 50.0), factor=st.floats(0.3, 0.9))
@examples(2 / 5)
def test_any_number_of_turns(start, factor):
    loop = lambda run: run(
        lambda x: x[0] > 1.0, lambda x: (x[0] * factor, x[1] + x[0]), (start, 0.0)
    )
    close(loop(incrax.while_loop), loop(jax.lax.while_loop))


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_of_the_turns_that_are_taken(kind):
    derivative = DERIVATIVES[kind]
    num = num_turns(0.9, 0.1, X)
    assert 2 < num
    actual = jax.jit(derivative(partial(loss, max_steps=16), ARGS))(0.9, 0.1, X)
    close(actual, derivative(unrolled(num), ARGS)(0.9, 0.1, X))


def test_the_gradient_of_a_loop_without_a_bound():
    num = num_turns(0.98, 0.1, X, 30)
    assert num > 20
    close(
        jax.grad(partial(loss, most=30), ARGS)(0.98, 0.1, X),
        jax.grad(unrolled(num), ARGS)(0.98, 0.1, X),
    )


@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_of_a_loop_without_a_bound(kind):
    """Traced, the number of turns is found by the loop itself."""
    derivative = DERIVATIVES[kind]
    expected = derivative(unrolled(num_turns(0.9, 0.1, X)), ARGS)(0.9, 0.1, X)
    close(derivative(loss, ARGS)(0.9, 0.1, X), expected)
    close(jax.jit(derivative(loss, ARGS))(0.9, 0.1, X), expected)


@pytest.mark.parametrize("memory", [700, 420])
def test_levels_give_the_same_gradient(memory):
    f = partial(loss, most=30, max_steps=32, memory=memory)
    close(jax.jit(jax.grad(f, ARGS))(0.98, 0.1, X), jax.grad(unrolled(30), ARGS)(0.98, 0.1, X))


def test_the_gradient_is_that_of_finite_differences():
    f = partial(loss, max_steps=16)
    slope = (f(0.9 + 1e-6, 0.1, X) - f(0.9 - 1e-6, 0.1, X)) / 2e-6
    np.testing.assert_allclose(jax.grad(f)(0.9, 0.1, X), slope, rtol=1e-6)


def test_the_gradient_of_no_turns_is_that_of_the_first_carry():
    close(jax.grad(loss, ARGS)(0.9, 0.1, X * 0.1), (jnp.zeros(()), jnp.zeros(()), jnp.ones(2)))


def test_what_only_the_condition_reads_has_no_derivative():
    f = lambda limit: incrax.while_loop(lambda x: x < limit, lambda x: x * 2.0, 1.0, max_steps=8)
    assert float(jax.grad(f)(9.0)) == 0.0


@pytest.mark.parametrize("max_steps", [16, None])
def test_a_batch_with_other_numbers_of_turns_each(max_steps):
    xs = jnp.stack([X, X * 0.5, X * 0.1])
    nums = [num_turns(0.6, 0.1, x) for x in xs]
    assert len(set(nums)) == 3
    expected = [jax.grad(unrolled(num), ARGS)(0.6, 0.1, x) for num, x in zip(nums, xs, strict=True)]
    f = partial(loss, max_steps=max_steps)
    actual = jax.jit(jax.vmap(jax.grad(f, ARGS), (None, None, 0)))(0.6, 0.1, xs)
    close(actual, jax.tree.map(lambda *parts: jnp.stack(parts), *expected))
    total = jax.jit(jax.grad(lambda a: jnp.sum(jax.vmap(f, (None, None, 0))(a, 0.1, xs))))(0.6)
    close(total, sum(part[0] for part in expected))


def test_a_loop_of_many_turns_within_a_budget():
    """The last 60 of 10,000 turns matter; a budget of 64 kB holds no residuals of all."""
    memory, wide = 2**16, jnp.linspace(0.1, 1.0, 20)
    turn = lambda a, c: (c[0] + 1, jnp.cos(c[1] * a))

    def f(a, most):  # an argument, or XLA would know how many turns there are
        return jnp.sum(
            incrax.while_loop(lambda c: c[0] < most, partial(turn, a), (0, wide), memory=memory)[1]
        )

    program = jax.jit(jax.grad(f)).lower(0.9, 10_000).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2 * memory
    fixed = lambda a: jnp.sum(jax.lax.fori_loop(0, 100, lambda _, x: jnp.cos(x * a), wide))
    np.testing.assert_allclose(program(0.9, 10_000), jax.grad(fixed)(0.9), rtol=1e-9)


# --- compilations ---------------------------------------------------------------------------------


def test_closures_made_anew_and_any_number_of_turns_are_compiled_once():
    f = lambda limit: incrax.while_loop(
        lambda c: c[1] < limit, lambda c: (c[0] + 1, c[1] * 1.5), (0, 1.0)
    )
    f(jnp.asarray(9.0))
    with counted_compiles() as count:
        taken = [int(f(jnp.asarray(limit))[0]) for limit in (2.0, 70.0, 1e6)]
    assert count.num == 0
    assert taken == [2, 11, 35]
