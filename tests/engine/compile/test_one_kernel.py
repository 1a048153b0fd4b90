"""Small parts of a program as one kernel: the values of plain JAX, marked where XLA can, and out of
the way of `vmap` and derivatives.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import incrax
from incrax.engine.compile.one_kernel import MAX_ELEMENTS, in_one_kernel

pytestmark = pytest.mark.cpu

MARK = 'xla_cpu_small_call = "true"'
X = np.linspace(0.1, 2.0, 12)
TABLE = np.arange(1000.0) ** 0.5


def rows(x, table, k):
    """Reads a few numbers of many, and what elementwise functions and sums make of them."""
    at = jnp.clip(jnp.arange(12) * k, 0, 999)
    y = table[at] * x + lax.dynamic_slice(table, (k,), (12,))
    best = jnp.argmax(y)
    z = jnp.where(y > y.mean(), jnp.log1p(y), jax.nn.softplus(-y)).reshape(3, 4).T
    return z.sum(0), y[best], jnp.concatenate([x[::-1], jnp.pad(y, 1)])


SPECIAL = {
    "erf_inv": lambda x: lax.erf_inv(x / 3),
    "lgamma": lax.lgamma,
    "digamma": lax.digamma,
    "igamma": lambda x: lax.igamma(x, x + 1),
    "bessel": lax.bessel_i1e,
    "power": lambda x: x**x,
    "complex": lambda x: jnp.abs(lax.complex(x, -x)),
    "integers": lambda x: (jnp.floor(x * 100).astype(int) // 7) % 5,
    "round": lambda x: jnp.nextafter(jnp.round(x, 1), 9.0),
    "nan": lambda x: jnp.where(x > 1, jnp.nan, x).sum(),
    "jit inside": jax.jit(lambda x: jnp.tanh(x) * 2),
}


def marked(fun, *args):
    """Whether a part of the compiled program is so marked."""
    return MARK in jax.jit(lambda *args: in_one_kernel(fun, *args)).lower(*args).as_text()


@pytest.mark.parametrize("k", [0, 7, 988])
def test_values_are_those_of_plain_jax(k):
    assert marked(rows, X, TABLE, k)
    found = jax.jit(lambda *args: in_one_kernel(rows, *args))(X, TABLE, k)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-13), found, rows(X, TABLE, k))


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_and_types_are_those_of_plain_jax(name):
    fun = SPECIAL[name]
    assert marked(fun, X)
    found, expected = jax.jit(lambda x: in_one_kernel(fun, x))(X), fun(jnp.asarray(X))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, 1e-13)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.asarray(x).at[np.array([3, 1])].set(0.0),
        lambda x: jnp.sort(x) + 1.0,
        lambda x: jnp.dot(x, x) + 1.0,
        lambda x: jnp.cumsum(x) + 1.0,
        lambda x: lax.while_loop(lambda x: x[0] < 3, lambda x: x + 1.0, jnp.asarray(x)),
        lambda x: jnp.broadcast_to(jnp.asarray(x)[:, None], (12, MAX_ELEMENTS)) + 1.0,
        lambda x: jax.pure_callback(np.negative, jax.ShapeDtypeStruct((12,), float), x) + 1.0,
    ],
    ids=["scatter", "sort", "product", "running sum", "while", "many numbers", "host"],
)
def test_what_the_kernel_cannot_or_gains_nothing_stays_as_it_is(fun):
    assert not marked(fun, X)
    found = jax.jit(lambda x: in_one_kernel(fun, x))(X)
    np.testing.assert_allclose(found, fun(X), 1e-13)


def test_what_xla_folds_leaves_no_argument_that_nothing_reads():
    """It would end the process: of a constant, and of a choice between the same."""
    choose = lambda x, y, limit: jnp.where(limit > 0, x[:1], y[:1]) * 2
    found = jax.jit(lambda x, y: in_one_kernel(choose, x, y, np.ones(1)))(X, -X)
    np.testing.assert_array_equal(found, 2 * X[:1])
    same = jax.jit(lambda x, y: in_one_kernel(lambda x, y: jnp.where(y > 0, x, x) * 2, x, y))
    np.testing.assert_array_equal(same(X, -X), 2 * X)


def test_what_no_result_reads_does_not_count():
    def fun(x):
        jnp.sort(x)  # dropped
        return x + 1.0

    assert marked(fun, X)


def test_batches_and_derivatives_are_as_if_it_were_not_there():
    fun = lambda x: jnp.sum(jnp.log1p(x[:12] ** 2)) + x[jnp.argmax(x)]
    kept = lambda x: in_one_kernel(fun, x)
    batch = jnp.stack([X, 2 * X, -X])
    for transform, at in (
        (jax.vmap, batch),
        (jax.grad, X),
        (jax.hessian, X),
        (lambda f: jax.vmap(jax.grad(f)), batch),
        (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), batch),
        (lambda f: lambda x: jax.jvp(f, (x,), (x,))[1], X),
    ):
        found = jax.jit(transform(kept))
        assert MARK not in found.lower(at).as_text()
        np.testing.assert_allclose(found(at), transform(fun)(at), 1e-12)


def ising(s):
    return -jnp.sum(s * (jnp.roll(s, -1) + jnp.roll(s, -8)))


def groups(theta, y):
    return -jnp.sum(jnp.log1p((y - theta[:, None]) ** 2))


@pytest.mark.parametrize(
    ("fun", "args", "is_marked"),
    [
        (ising, (np.ones(64),), True),
        (groups, (np.zeros(50), np.ones((50, 20))), True),
        (groups, (np.zeros(50), np.ones((50, 2 * MAX_ELEMENTS))), False),
    ],
    ids=["neighbours", "few numbers of a row", "many numbers of a row"],
)
def test_looks_of_few_numbers_are_one_kernel(fun, args, is_marked):
    state, sites = incrax.incremental(fun).sites(
        *args, moves=[f"{'s' if fun is ising else 'theta'}[*]"]
    )
    (path,) = sites.inputs(state)

    @jax.jit
    def steps(sites, state, numbers):
        def step(state, k):
            delta, out = sites.look(state, {path: (k, -0.5)})
            return sites.settle(state, delta, k % 3 > 0), out

        return lax.scan(step, state, numbers)

    numbers = np.array([3, 1, 49, 3, 20, 8])
    assert (MARK in steps.lower(sites, state, numbers).as_text()) == is_marked
    state, outs = steps(sites, state, numbers)
    expected = np.array(args[0])
    for k, out in zip(numbers, outs, strict=True):
        looked = expected.copy()
        looked[k] = -0.5
        np.testing.assert_allclose(out, fun(looked, *args[1:]), 1e-12)
        expected = looked if k % 3 else expected
    np.testing.assert_array_equal(sites.inputs(state)[path], expected)


@pytest.mark.parametrize("dtype", [int, float])
def test_a_loop_is_one_kernel_where_nothing_is_summed_anew(dtype):
    spins = np.where(np.arange(64) % 3, 1, -1).astype(dtype)
    f = incrax.incremental(ising)
    state, sites = f.sites(spins, moves=["s[*]"])
    rng = np.random.default_rng(0)
    turns = jnp.asarray(rng.integers(0, 64, 700)), jnp.asarray(rng.normal(size=700))

    def loop(sites, state, value, turns, scan):
        def step(carry, turn):
            state, value = carry
            i, bound = turn
            delta, out = sites.look(state, {"s": (i, -sites.inputs(state)["s"][i])})
            accept = out - value < bound
            return (sites.settle(state, delta, accept), jnp.where(accept, out, value)), out

        (state, value), outs = scan(step, (state, value), turns)
        return sites.inputs(state)["s"], value, outs

    as_one = jax.jit(lambda *args: loop(*args, args[0].scan))
    plain = jax.jit(lambda *args: loop(*args, lax.scan))
    args = sites, state, ising(jnp.asarray(spins)), turns
    is_one = MARK in as_one.lower(*args).as_text().split("stablehlo.while")[0]
    assert is_one == (dtype is int)
    found = as_one(*args)
    jax.tree.map(np.testing.assert_array_equal, found, plain(*args))
    assert found[1] == ising(found[0])
    both = jax.vmap(as_one, (None, 0, 0, 0))(
        sites, *jax.tree.map(lambda x: jnp.stack([x, x]), args[1:])
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, 1e-12), both, found)


def test_a_loop_that_writes_many_at_once_stays_as_it_is():
    def fun(x, numbers):
        return lax.scan(lambda x, k: (x * k, x[0]), x, numbers)

    many = np.ones(2 * MAX_ELEMENTS)
    assert marked(fun, many[:9], np.arange(3.0))
    assert not marked(fun, many, np.arange(3.0))
