"""`bucketed`: one program for many lengths, exact results."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop_cases import cell, close, counted_compiles

import incrax

RNG = np.random.default_rng(4)
W, XS = RNG.normal(size=(3, 3)), RNG.normal(size=(1000, 3))


def loss(w, xs, scan=incrax.scan):
    h, _ = scan(partial(cell, w), jnp.zeros(3), xs)
    return jnp.sum(h**2)


def test_fifty_lengths_take_few_compilations_in_value_and_gradient():
    f = incrax.bucketed(jax.value_and_grad(loss), ragged="xs")
    lengths = np.random.default_rng(0).integers(1, 1001, 50)
    with counted_compiles() as count:
        results = [f(W, XS[:n]) for n in lengths]
    assert 1 <= count.num <= 8
    assert f.num_traces == count.num
    for n, result in zip(lengths[:4], results, strict=False):
        close(result, jax.value_and_grad(partial(loss, scan=jax.lax.scan))(W, XS[:n]))


def test_capacities_double_and_a_shorter_argument_takes_the_least_that_is_compiled():
    f = incrax.bucketed(lambda xs: jnp.sum(xs.values) + xs.capacity, ragged=0)
    seen = [round(float(f(np.zeros(n)))) for n in (200, 70, 256, 257, 3)]
    assert seen == [256, 256, 256, 512, 256]
    assert f.num_traces == 2


def test_results_have_the_rows_that_count():
    f = incrax.bucketed(lambda w, xs: incrax.scan(partial(cell, w), jnp.zeros(3), xs), ragged="xs")
    for n in (0, 5, 64):
        close(f(W, XS[:n]), jax.lax.scan(partial(cell, W), jnp.zeros(3), XS[:n]))
        close(f(w=W, xs=XS[:n]), jax.lax.scan(partial(cell, W), jnp.zeros(3), XS[:n]))


def test_a_derivative_by_ragged_rows_has_their_length():
    f = incrax.bucketed(jax.grad(loss, 1, allow_int=True), ragged="xs")
    expected = jax.grad(partial(loss, scan=jax.lax.scan), 1)(W, XS[:5])
    close(f(W, XS[:5]), expected)
    ours = incrax.bucketed(incrax.grad(loss, wrt="xs"), ragged="xs")
    close(ours(W, XS[:5]), expected)


def test_numpy_rows_are_filled_without_a_warning_of_digits():
    with jax.enable_x64(False):
        filled = incrax.Padded(np.arange(3.0), 2).filled(7.0)
    assert filled.dtype == np.float32
    assert filled.tolist() == [0.0, 1.0, 7.0]


def test_two_ragged_pytrees_of_different_lengths():
    f = incrax.bucketed(lambda a, b: (jnp.sum(a.values["x"]) / a.length, b), ragged=("a", "b"))
    mean, b = f({"x": np.arange(4.0)}, np.arange(70))
    close((mean, b), (jnp.asarray(1.5), jnp.arange(70)))


def test_under_a_transformation_it_is_the_plain_function():
    f = incrax.bucketed(loss, ragged="xs")
    expected = jax.grad(partial(loss, scan=jax.lax.scan))(W, XS[:5])
    close(jax.grad(f)(W, XS[:5]), expected)
    close(jax.jit(jax.grad(f))(W, XS[:5]), expected)
    assert f.num_traces == 0


def test_derivatives_by_two_ragged_arguments_of_one_capacity_have_their_lengths():
    f = lambda a, b: jnp.sum(a.values**2) * jnp.sum(b.values)
    a, b = incrax.bucketed(jax.grad(f, (0, 1), allow_int=True), ragged=("a", "b"))(
        np.ones(5), np.ones(7)
    )
    close((a, b), (jnp.full(5, 14.0), jnp.full(7, 5.0)))


# --- what can be bucketed -------------------------------------------------------------------------


def mean_of_rows(xs):
    return jnp.sum(xs.values) / xs.length


@incrax.bucketed
def positive(x):
    rows = jnp.flatnonzero(x > 0, size=9, fill_value=x.size)
    return incrax.Padded(x.at[rows].get(mode="fill", fill_value=0), jnp.sum(x > 0))


def test_functions_are_pickled_by_name_or_as_new_ones():
    assert pickle.loads(pickle.dumps(positive)) is positive
    made = pickle.loads(pickle.dumps(incrax.bucketed(mean_of_rows, ragged="xs")))
    assert float(made(np.arange(3.0))) == 1.0
    assert copy.deepcopy(positive)(np.array([1.0, -1.0])).tolist() == [1.0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scale:
    """Not hashable."""

    factor: float

    @partial(incrax.bucketed, ragged="xs")
    def method(self, xs):
        return self.factor * jnp.sum(xs.values)

    def __call__(self, xs):
        return self.factor * jnp.sum(xs.values)


def test_methods_and_callables_without_a_hash():
    scale = Scale(2.0)
    assert (
        float(scale.method(np.ones(3)))
        == float(incrax.bucketed(scale, ragged="xs")(np.ones(3)))
        == 6.0
    )


# --- sizes ----------------------------------------------------------------------------------------


def test_a_ragged_argument_that_is_known_inside_a_compiled_function():
    inner = incrax.bucketed(
        lambda xs: incrax.scan(lambda c, x: (c + x, c), 0.0, xs)[1], ragged="xs"
    )
    close(jax.jit(lambda y: inner(np.ones(3)) + y)(1.0), jnp.array([1.0, 2.0, 3.0]))


def test_batches_of_rows_are_as_they_are():
    x = np.where(np.arange(100) < 70, 1.0, -1.0)
    rows = incrax.bucketed(jax.vmap(lambda x: incrax.Padded(jnp.abs(x), jnp.sum(x > 0))))(
        np.stack([x, -x])
    )
    assert rows.length.tolist() == [70, 30]
    assert rows.values.shape == (2, 100)


def test_threads_get_their_own_results():
    f = incrax.bucketed(lambda xs: xs, ragged="xs")
    results = {}

    def run(n):
        results[n] = f(np.arange(1.0, n))

    threads = [threading.Thread(target=run, args=(n,)) for n in (20, 90, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, found in results.items():
        np.testing.assert_array_equal(found, np.arange(1.0, n))


def test_exact_rows_of_more_than_there_are_are_an_error():
    with pytest.raises(
        incrax.errors.CapacityError, match="asked for 9 rows or turns, and there is room for 5"
    ):
        incrax.Padded(np.ones(5), 9).exact()
