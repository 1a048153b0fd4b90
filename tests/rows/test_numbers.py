"""Numbers that a function makes from the number of rows: those of plain JAX at every number, or it
is refused.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax

CHUNK = 8


def data(num, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, num)


NUMBERS = {
    "n": lambda n: n,
    "1 / n": lambda n: 1 / n,
    "n - 1": lambda n: n - 1,
    "its square": lambda n: n**2,
    "its root": math.sqrt,
    "its logarithm": math.log,
    "a whole part": lambda n: n // 20 + 1,
    "half": lambda n: n // 2,
    "a percentage": lambda n: max(1, int(0.04 * n)),
    "at most": lambda n: min(n, 30),
    "at most, far away": lambda n: min(n, 200),
    "at least": lambda n: max(n, 40),
    "a warm-up": lambda n: min(1.0, n / 50),
    "a threshold": lambda n: 1.0 if n < 45 else 0.5,
    "digits": lambda n: len(str(n)),
}


def check_growing(fun, start=21, sizes=(9, 3, 40), chunk_rows=CHUNK):
    f, plain = incrax.incremental(fun, tuning=MINIMAL), jax.jit(fun)
    rows = incrax.Rows(data(start), chunk_rows=chunk_rows)
    same(f(0.7, rows), plain(0.7, rows.tree()), factor=1024)
    for seed, size in enumerate(sizes, 1):
        rows = rows.append(data(size, seed))
        same(f(0.7, rows), plain(0.7, rows.tree()), factor=1024)
    return f


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_made_from_the_number_of_rows_are_those_of_every_call(name):
    check_growing(jax.value_and_grad(lambda a, x: jnp.sum(jnp.sin(x * a)) / NUMBERS[name](len(x))))


@pytest.mark.parametrize("name", ["a whole part", "at most", "a threshold"])
def test_rows_may_depend_on_a_number_that_is_the_same_for_a_while(name):
    check_growing(
        lambda a, x: (jnp.sum(jnp.sin(x * a / NUMBERS[name](len(x)))), NUMBERS[name](len(x)))
    )


def test_two_numbers_that_are_equal_for_a_while_are_not_one():
    check_growing(
        lambda a, x: jnp.sum(x * a) / (len(x) // 20 + 1) + jnp.sum(x) / (len(x) // 23 + 1)
    )


@pytest.mark.parametrize("steps", [2, 20])
def test_chunks_of_all_capacities_agree_about_numbers_that_are_equal_in_one_of_them(steps):
    """At 1024 and 2048 rows n // 1000 is 1 and 2; for a while it is 2 at all numbers of rows."""
    fun = jax.value_and_grad(lambda a, x: jnp.sum(jnp.sin(x * a)) / (len(x) // 1000))
    check_growing(fun, start=2128, sizes=(80, 900) if steps == 2 else (80,) * 3, chunk_rows=2048)


LOOPS = {
    "for": lambda a, x: jax.lax.fori_loop(0, len(x), lambda i, c: c * 0.99, a) * jnp.sum(x),
    "scan": lambda a, x: (
        jax.lax.scan(lambda c, _: (c * 0.99, None), a, None, length=len(x))[0] * jnp.sum(x)
    ),
    "over rows": lambda a, x: jnp.sum(jax.lax.fori_loop(0, len(x), lambda i, c: c * 0.99, x * a)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_as_many_steps_as_rows_are_refused_with_their_line(name):
    f = incrax.incremental(LOOPS[name])
    with pytest.raises(
        incrax.errors.MixedRowsError, match=r"another `length` of `scan` at .*test_numbers\.py:\d+"
    ):
        f(0.7, incrax.Rows(data(21), chunk_rows=CHUNK))
    assert f.stats.chunks_run == 0


def test_a_loop_until_a_number_of_rows_runs_so_often():
    def fun(a, x):
        steps = jnp.asarray(len(x))
        return jax.lax.while_loop(
            lambda c: c[0] < steps, lambda c: (c[0] + 1, c[1] * 0.99), (0, a)
        )[1] * jnp.sum(x)

    check_growing(fun)


def test_an_array_of_a_length_made_from_the_number_of_rows_is_refused():
    f = incrax.incremental(lambda a, x: jnp.zeros(len(x) // 20) + jnp.sum(x * a))
    with pytest.raises(
        incrax.errors.MixedRowsError, match="another number of entries than there are rows"
    ):
        f(0.7, incrax.Rows(data(21), chunk_rows=CHUNK))


# --- traces ---------------------------------------------------------------------------------------


def traces_of(f):
    """Numbers of rows that are traced from now on."""
    trace, found = f._traces.latest.trace, []
    whole = trace._trace
    trace._trace = lambda num_rows: found.append(num_rows) or whole(num_rows)
    return found


@pytest.mark.parametrize(
    "fun", [lambda a, x: jnp.sum(x * a), lambda a, x: jnp.mean(x * a)], ids=["sum", "mean"]
)
def test_functions_with_usual_numbers_are_traced_once_per_doubling(fun):
    f, rows = incrax.incremental(fun, tuning=MINIMAL), incrax.Rows(data(33), chunk_rows=CHUNK)
    f(0.7, rows)
    found = traces_of(f)
    for _ in range(6):
        rows = rows.append(data(5))
        f(0.7, rows)
    assert len(rows) == 63
    assert found == []
    f(0.7, rows.append(data(5)))
    assert sorted(found) == [64, 127]


def test_other_numbers_are_traced_once_for_each_number_of_rows():
    f = incrax.incremental(lambda a, x: jnp.sum(x * a) * (len(x) // 2), tuning=MINIMAL)
    rows = incrax.Rows(data(33), chunk_rows=CHUNK)
    f(0.7, rows)
    found = traces_of(f)
    more = rows.append(data(5))
    for _ in range(3):
        f(0.7, more)
        f(0.8, rows)
    assert found in ([38], [38, 33])


def test_a_function_that_is_another_one_far_away_is_refused_at_once():
    f = incrax.incremental(lambda a, x: jnp.sum(x * a) if len(x) < 60 else jnp.sum(jnp.exp(x * a)))
    with pytest.raises(
        incrax.errors.MixedRowsError, match="another function for another number of rows"
    ):
        f(0.7, incrax.Rows(data(33), chunk_rows=CHUNK))


def test_results_from_before_a_number_was_seen_are_not_combined_with_new_ones():
    """2 // 1000 rows and so on: the number shows only when there are more than 1000 rows."""
    fun = lambda a, x: jnp.sum(jnp.sin(x * a) * (1 + len(x) // 1000))
    f, rows = incrax.incremental(fun, tuning=MINIMAL), incrax.Rows(data(20), chunk_rows=512)
    same(f(0.7, rows), jax.jit(fun)(0.7, rows.tree()))
    rows_before = f._traces.latest.rows
    rows = rows.append(data(1500))
    same(f(0.7, rows), jax.jit(fun)(0.7, rows.tree()))
    assert f._traces.latest.rows is not rows_before


# --- the range of sums ----------------------------------------------------------------------------


MEANS = {
    "mean": jnp.mean,
    "over n": lambda y: jnp.sum(y / len(y)),
    "times 1/n": lambda y: jnp.sum(y * (1 / len(y))),
    "times n": lambda y: jnp.sum(y * len(y)),
    "over its root": lambda y: jnp.sum(y / np.float32(math.sqrt(len(y)))),
    "product": lambda y: jnp.dot(y, jnp.full(len(y), 1 / len(y), y.dtype)),
    "two means": lambda y: jnp.mean(y) - jnp.mean(y * y.dtype.type(0.25)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, np.float32) for name in MEANS),
        *zip(MEANS, itertools.cycle([np.float64, jnp.bfloat16, np.float16])),  # noqa: B905
    ],
)
def test_sums_have_the_range_of_plain_jax(name, dtype):
    """The sum of these rows overflows in single precision, their mean does not."""
    fun = jax.value_and_grad(lambda a, x: MEANS[name](a * x))
    size = 1e36 / (3000 if name == "times n" else 1)
    x = (data(3000) * (1e3 if dtype is np.float16 else size)).astype(dtype)
    f, a = incrax.incremental(fun, tuning=MINIMAL), dtype(0.5)
    rows = incrax.Rows(x, chunk_rows=1024)
    same(f(a, rows), jax.jit(fun)(a, x), factor=4096)


MOVED = {
    "a mean": lambda a, x: jnp.mean(jnp.sin(a * x)),
    "rows of which some are zero": lambda a, x: jnp.mean(jnp.where(x > 1, a * x, 0)),
    "two means": lambda a, x: jnp.mean(a * x) - jnp.mean(jnp.cos(a * x)),
    "n - 1": lambda a, x: jnp.sum((a * x) ** 2) / (len(x) - 1),
    "a weight made of it": lambda a, x: jnp.sum(jnp.sin(a * x) * (a / len(x))),
    "a table": lambda a, x: jnp.mean((a * jnp.arange(1, 3, dtype=x.dtype))[(x > 1).astype(int)]),
}


@pytest.mark.parametrize("name", MOVED)
def test_in_single_precision_too_derivatives_of_means_run_only_appended_chunks(name):
    fun = jax.value_and_grad(MOVED[name])
    f, rows = (
        incrax.incremental(fun, tuning=MINIMAL),
        incrax.Rows(data(40).astype(np.float32), chunk_rows=CHUNK),
    )
    f(np.float32(0.5), rows)
    run = f.stats.chunks_run
    rows = rows.append(data(3).astype(np.float32))
    same(f(np.float32(0.5), rows), jax.jit(fun)(np.float32(0.5), rows.tree()), factor=64)
    assert f.stats.chunks_run == run + 1


def test_programs_are_scaled_anew_when_there_are_many_times_as_many_rows():
    fun = jax.value_and_grad(lambda a, x: jnp.mean(a * x))
    f, a = incrax.incremental(fun, tuning=MINIMAL), np.float32(0.5)
    rows = incrax.Rows(np.full(20, 1e36, np.float32), chunk_rows=1024)
    f(a, rows)
    rows = rows.append(np.full(20_000, 1e36, np.float32))
    same(f(a, rows), jax.jit(fun)(a, rows.tree()), factor=4096)
