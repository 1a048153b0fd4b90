"""The whole program is `jax.jit` of the function: traced once, compiled once, and the one trace even
after JAX has forgotten it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, aligned, same
from loop_cases import counted_compiles

import incrax

X = np.linspace(0.1, 2.0, 50)


def whole(ours):
    """`jax.jit` of the function that serves where nothing is saved."""
    return ours._traces.latest.analysis.jitted


def test_a_function_runs_once_in_python_and_compiles_once():
    traced = []

    def fun(params, x, *, power):
        traced.append(1)
        return {"sum": jnp.sum(params["a"] * x**power), "b": (params["b"], x)}

    params = {"a": 2.0, "b": np.ones(3)}
    ours = incrax.incremental(fun)
    with counted_compiles() as compiles:
        ours(params, X, power=3)
    assert (len(traced), compiles.num) == (1, 1)
    same(ours(params, X, power=3), jax.jit(fun, static_argnames="power")(params, X, power=3))


def test_large_arrays_of_numpy_compile_nothing_on_their_way():
    """`jnp.asarray` would compile a program for each shape."""
    ours = incrax.incremental(lambda x, y: jnp.sum(x) + jnp.sum(y))
    with counted_compiles() as compiles:
        ours(np.ones(1234), incrax.frozen(np.ones((617, 2))))
    assert compiles.num == 1


def test_it_is_the_program_of_jit():
    """Text and embedded constants, but for the names of functions and arguments."""
    fun = lambda a, b: jnp.sum(jnp.exp(a * jnp.asarray(X)) * b)
    ours = incrax.incremental(fun)
    ours(1.0, 2.0)
    bodies = []
    for jitted in (whole(ours), jax.jit(fun)):
        lines = jitted.lower(1.0, 2.0).as_text().splitlines()
        bodies.append([line for line in lines if "stablehlo" in line or "func" in line][1:])
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("tuning", [MINIMAL, EAGER, incrax.Tuning()])
def test_after_clear_caches_it_is_still_the_program_that_was_traced(tuning):
    """Else plans and the whole program would answer for different values of what is captured."""
    setting = {"offset": 2.0}
    x = jnp.asarray(X)
    fun = lambda a, b: a * setting["offset"] + jnp.sum(jnp.exp(b * x))
    known = jax.jit(fun)
    same(known(1.0, 1.0), fun(1.0, 1.0))
    ours = incrax.incremental(fun, tuning=tuning)
    ours(1.0, 1.0)
    setting["offset"] = 3.0
    jax.clear_caches()
    for a, b in [(2.0, 1.0), (2.0, 2.0), (3.0, 2.0), (4.0, 3.0)]:
        same(ours(a, b), jnp.asarray(a * 2.0 + np.sum(np.exp(b * X))))


def test_numbers_that_stay_are_handed_over_as_those_that_change():
    """Each mixture of numbers and arrays would be a signature of its own to JAX, found in Python in
    a millisecond.
    """
    ours = incrax.incremental(lambda *values: jnp.sum(jnp.exp(jnp.stack(values))))
    values = [1.0] * 6
    for number in range(200):
        values[number % 6] += 0.5
        ours(*values)
    assert whole(ours)._cache_size() == 1


def closing_over(array, number):
    """Functions of two numbers that close over an array and one without axes, in different ways."""
    inner = jax.jit(lambda b: jnp.sum(array * b) * number)
    step = lambda x, _: (x * number + jnp.sum(array), None)
    either = lambda a, b: jax.lax.cond(a > 0, lambda: jnp.sum(array * b) * number, lambda: b)
    scaled = lambda x: x * (number + 1.0)
    solved = lambda b: jax.lax.custom_linear_solve(scaled, b, lambda _, b: b / (number + 1.0), None)
    return {
        "itself": lambda a, b: a * number + jnp.sum(jnp.exp(array * b)),
        "a call": lambda a, b: a + inner(b),
        "a loop": lambda a, b: b * jax.lax.scan(step, a, None, length=3)[0],
        "a branch": lambda a, b: either(a, b) + a,
        "a linear solve": lambda a, b: a + solved(b),
        "results": lambda a, b: (a * b, number, array),
    }


@pytest.mark.every_case
@pytest.mark.parametrize("where", closing_over(0, 0))
@pytest.mark.parametrize("tuning", [MINIMAL, EAGER, incrax.Tuning()])
def test_what_the_owner_of_a_closed_over_array_writes_later_is_never_seen(where, tuning):
    arrays = aligned(50, 1.5), np.array(2.0)
    known = closing_over(*map(np.copy, arrays))[where]
    ours = incrax.incremental(closing_over(*arrays)[where], tuning=tuning)
    same(ours(1.0, 1.0), jax.jit(known)(1.0, 1.0))
    for array in arrays:
        array[...] = 7.0
    for forget in (lambda: None, jax.clear_caches):
        forget()
        for args in [(1.0, 0.25), (1.5, 0.25), (1.5, 0.5)]:
            same(ours(*args), jax.jit(known)(*args))
        same(ours.fresh(2.0, 0.75), jax.jit(known)(2.0, 0.75))


def test_other_programs_of_jax_still_see_it():
    """What is inside a trace is shared with them."""
    number = np.array(2.0)
    inner = jax.jit(lambda b: b * number)
    incrax.incremental(lambda a: a + inner(a))(1.0)
    number[...] = 7.0
    assert float(jax.jit(lambda a: a - inner(a))(1.0)) == -6.0
