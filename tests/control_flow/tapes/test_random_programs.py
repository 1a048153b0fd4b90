"""Random programs with Python control flow, on random calls: values and gradients are those of
eager Python.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples, same_array
from hypothesis import given
from hypothesis import strategies as st

import incrax

THRESHOLDS = (-1.0, -0.25, 0.0, 0.5, 1.0)
POINTS = (-2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.75, 1.0, 1.5, 3.0)

UNARY = {
    "sin": jnp.sin,
    "square": lambda v: v * v,
    "negate": lambda v: -v,
    "half": lambda v: 0.5 * v,
    "tanh in jit": jax.jit(jnp.tanh),
}
BINARY = {
    "add": jnp.add,
    "multiply": jnp.multiply,
    "python max": max,
    "where": lambda a, b: jnp.where(a > b, a, b),
}


def steps():
    """A statement: what it does, to which of the values so far, with which numbers."""
    number = st.integers(0, 7)
    threshold = st.sampled_from(THRESHOLDS)
    leaf = st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(list(UNARY)), number),
        st.tuples(st.just("binary"), st.sampled_from(list(BINARY)), number, number),
        st.tuples(st.just("take"), number),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(
                st.just("if"),
                number,
                threshold,
                st.lists(inner, max_size=2),
                st.lists(inner, max_size=2),
            ),
            st.tuples(st.just("while"), number, st.lists(inner, max_size=1)),
            st.tuples(st.just("for"), number, st.lists(inner, max_size=2)),
            st.tuples(st.just("and"), number, number, threshold, st.lists(inner, max_size=1)),
            st.tuples(st.just("match"), number, st.lists(inner, min_size=1, max_size=2)),
        ),
        max_leaves=6,
    )


def run(statements, values):
    """Interpret statements in Python; `values` grows."""
    for kind, *rest in statements:
        KINDS[kind](values, *rest)


def pick(values, number):
    return values[number % len(values)]


def unary(values, name, number):
    values.append(UNARY[name](pick(values, number)))


def binary(values, name, first, second):
    values.append(BINARY[name](pick(values, first), pick(values, second)))


def take(values, number):
    values.append(jnp.stack([pick(values, 0), pick(values, number)])[1])


def if_else(values, number, threshold, yes, no):
    run(yes if pick(values, number) > threshold else no, values)


def while_loop(values, number, body):
    x, turns = pick(values, number), 0
    while abs(x) > 0.3 and turns < 4:
        x, turns = 0.5 * x, turns + 1
        run(body, values)
    values.append(x)


def for_loop(values, number, body):
    for _ in range(min(2, abs(int(pick(values, number))))):
        run(body, values)


def both(values, first, second, threshold, body):
    x, y = pick(values, first), pick(values, second)
    if (x > threshold and not y < 0) or y == threshold:
        run(body, values)


def match(values, number, bodies):
    run([bodies[int(jnp.clip(pick(values, number), 0, 9)) % len(bodies)]], values)


KINDS = {
    **{"unary": unary, "binary": binary, "take": take, "if": if_else, "while": while_loop},
    **{"for": for_loop, "and": both, "match": match},
}


def as_function(statements):
    def fun(x, y):
        values = [x, y]
        run(statements, values)
        return sum(0.1 * (n + 1) * v for n, v in enumerate(values))

    return fun


def close(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        same_array(a, b, 4096.0)


programs = st.lists(steps(), min_size=1, max_size=4)
calls = st.lists(
    st.tuples(st.sampled_from(POINTS), st.sampled_from(POINTS)), min_size=2, max_size=6
)


@given(statements=programs, calls=calls)
def test_values_are_those_of_eager_python(statements, calls):
    fun = as_function(statements)
    f = incrax.guarded(fun, constant="statements")
    for x, y in calls + calls:
        close(f(x, y), jnp.asarray(fun(jnp.asarray(x), jnp.asarray(y))))
    assert f.stats.recordings <= len(set(calls))
    assert f.stats.eager == 0


@given(statements=programs, calls=calls)
@examples(1 / 3)
@pytest.mark.exhaustive
def test_gradients_inside_and_outside_are_those_of_eager_python(statements, calls):
    fun = as_function(statements)
    inside = incrax.guarded(jax.value_and_grad(fun, (0, 1)), constant=("statements",))
    outside = jax.grad(incrax.guarded(fun, constant=("statements",)), (0, 1))
    for x, y in calls:
        args = jnp.asarray(x), jnp.asarray(y)
        expected = jax.value_and_grad(fun, (0, 1))(*args)
        close(inside(*args), expected)
        close(outside(*args), expected[1])
        np.testing.assert_equal(inside.stats.calls, inside.stats.hits + inside.stats.misses)
