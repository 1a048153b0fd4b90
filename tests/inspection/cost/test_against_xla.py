"""XLA's own analysis, where it is right; and where it is not, that ours does not follow it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

pytestmark = pytest.mark.optimized

lax = jax.lax
V, A, B = np.ones(64), np.ones((8, 16)), np.ones((16, 4))
IMAGE, KERNEL = np.ones((2, 3, 9, 8)), np.ones((4, 3, 3, 2))


def by_xla(fun, *args):
    found = jax.jit(fun).lower(*args).compile().cost_analysis()
    return found.get("flops", 0.0), found.get("transcendentals", 0.0), found.get("bytes accessed")


def by_us(fun, *args):
    total = incrax.cost(fun, *args, passes=["forward"]).forward.total
    return total.flops + total.int_ops, total.transcendentals, total.bytes


SAME_FLOPS = {
    "product": (lambda a, b: a @ b, (A, B)),
    "batch of products": (
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (np.ones((3, 4, 5)), np.ones((3, 5, 6))),
    ),
    "polynomial": (lambda x: (x * 0.3 + 0.1) * x - 2.0, (V,)),
    "quotient": (lambda x: 1 / x, (V,)),
    "exponential": (jnp.exp, (V,)),
    "sum": (jnp.sum, (V,)),
    "sum of rows": (lambda a: a.sum(1), (A,)),
    "largest": (lambda x: lax.reduce_max(x, [0]), (V,)),
    "comparison": (lambda x: x > 0, (V,)),
    "choice": (lambda x: jnp.where(x > 0, x, 0.0), (V,)),
    "softmax": (jax.nn.softmax, (V,)),
    "sort": (jnp.sort, (V,)),
    "convolution": (lambda x, k: lax.conv(x, k, (1, 1), "VALID"), (IMAGE, KERNEL)),
    "convolution of strides": (
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME", rhs_dilation=(1, 2)),
        (IMAGE, KERNEL),
    ),
    "convolution with holes": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((2, 1), (0, 3)), lhs_dilation=(2, 3)),
        (IMAGE, KERNEL),
    ),
    "gradient of products": (jax.grad(lambda w, x: jnp.sum(((x @ w) * 2.0) @ w.T)), (B, A)),
}


@pytest.mark.parametrize("name", SAME_FLOPS)
def test_operations_are_those_that_xla_counts(name):
    fun, args = SAME_FLOPS[name]
    ours, theirs = by_us(fun, *args), by_xla(fun, *args)
    assert ours[0] == pytest.approx(
        theirs[0], rel=0.01
    )  # its simplifier saves some element by element


@pytest.mark.parametrize("name", ["exponential", "softmax", "product"])
def test_exponentials_are_those_that_xla_counts(name):
    fun, args = SAME_FLOPS[name]
    assert by_us(fun, *args)[1] == by_xla(fun, *args)[1]


@pytest.mark.parametrize("fun", [jnp.exp, lambda x: x + 1.0, lambda x: x * x, jnp.sort])
def test_bytes_of_one_equation_are_those_of_xla(fun):
    assert by_us(fun, V)[2] == by_xla(fun, V)[2]


def test_bytes_of_a_product_are_those_of_xla():
    assert by_us(lambda a, b: a @ b, A, B)[2] == by_xla(lambda a, b: a @ b, A, B)[2]


def test_xla_counts_one_turn_of_a_loop_and_we_all():
    loop = lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, None, length=100)[0]
    square = np.ones((8, 8))
    assert by_us(loop, square, square)[0] == 100 * 2 * 8**3
    assert by_xla(loop, square, square)[0] < 2 * 2 * 8**3


def test_xla_knows_no_flops_of_a_call_to_the_host_and_neither_do_we_but_we_say_so():
    call = lambda x: jax.pure_callback(np.linalg.inv, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    report = incrax.cost(call, np.eye(8), passes=["forward"])
    assert by_xla(call, np.eye(8))[0] <= 0
    assert [row.primitive for _, row in report.not_counted] == ["pure_callback"]
