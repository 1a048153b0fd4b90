"""Operands of reductions as sums of products: what is taken apart, what stays whole, and that
results stay the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax
from incrax.engine.rewrites.sums_of_products import (
    MAX_FACTORS,
    MAX_PRODUCTS,
    is_array,
    reductions,
)

from .test_factors import check_law, factored, facts_of, sums

X = np.linspace(0.05, 3.0, 4096)
ROWS = [np.random.default_rng(k).normal(size=4096) + 0.3 for k in range(3)]


def read(fun, *args, dirty=0b10):
    """The products of each reduction: how many clean and dirty arrays, and whether it is
    negative.
    """
    facts = facts_of(fun, *args)
    is_dirty = lambda var: bool(facts.mask(var) & dirty)
    found = reductions(facts.program.eqns, is_dirty, facts.listing.equation_of)

    def counts(product):
        flags = [is_dirty(var) for var, _ in product.chosen(is_array)]
        return flags.count(False), flags.count(True), product.number < 0

    return [[counts(product) for product in products] for products in found.values()]


def test_only_what_sums_are_made_of_is_looked_at():
    def fun(x, t):
        for _ in range(100):
            x = jnp.tanh(t * x) + X
        return jnp.sum(x * ROWS[0]), x

    facts = facts_of(fun, X, 0.3)
    looked_at = []
    is_dirty = lambda var: looked_at.append(var) or bool(facts.mask(var) & 0b10)
    reductions(facts.program.eqns, is_dirty, facts.listing.equation_of)
    assert len(facts.program.eqns) > 300
    assert len(set(looked_at)) < 10


def shared(t):
    return jnp.exp(t * X)


OPERANDS = {
    "product": (lambda t, a, b: shared(t) * a, [(1, 1, False)]),
    "sum of "
    "products": (lambda t, a, b: shared(t) * a + shared(t) * b, [(1, 1, False), (1, 1, False)]),
    "difference": (lambda t, a, b: shared(t) * a - b * shared(t), [(1, 1, False), (1, 1, True)]),
    "negated sum": (lambda t, a, b: -(shared(t) * a + b * shared(t)), [(1, 1, True), (1, 1, True)]),
    "times a "
    "sum": (lambda t, a, b: (shared(t) * a + shared(t)) * b, [(2, 1, False), (1, 1, False)]),
    "sum over a "
    "product": (lambda t, a, b: (shared(t) * a + shared(t)) / (a * b), [(2, 1, False), (1, 1, False)]),
    "sum of "
    "sums": (lambda t, a, b: shared(t) * a + (shared(t) + shared(t) * b), [(0, 1, False), *2 * [(1, 1, False)]]),
    "divided by a sum": (lambda t, a, b: a / (shared(t) * a + shared(t) * b), [(1, 1, False)]),
    "sum of other dirty "
    "arrays": (lambda t, a, b: shared(t) * a + jnp.sin(t * X) * b, [(0, 1, False)]),
    "sum with a clean array": (lambda t, a, b: (shared(t) * a + b) * a, [(1, 1, False)]),
    "sum of dirty scalars": (lambda t, a, b: (a * t + b * (t * t)) * b, [(1, 1, False)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERANDS)
def test_sums_of_the_same_dirty_arrays_are_taken_apart_and_others_are_whole(name):
    operand, products = OPERANDS[name]
    (found,) = read(lambda t, a, b: jnp.sum(operand(t, a, b)), 0.5, *ROWS[:2])
    assert sorted(found) == sorted(products)


def test_operands_of_too_many_factors_or_products_are_whole_from_there_on():
    def powers(num):
        def fun(t, a):
            y = shared(t)
            for _ in range(num):
                y = y * a
            return jnp.sum(y)

        return fun

    def squares(num):
        def fun(t, a, b):
            y = shared(t)
            for _ in range(num):
                y = y * a + y * b
            return jnp.sum(y * y)

        return fun

    assert read(powers(MAX_FACTORS - 2), 0.5, ROWS[0]) == [[(MAX_FACTORS - 2, 1, False)]]
    assert read(powers(MAX_FACTORS - 1), 0.5, ROWS[0]) == [[(0, 1, False)]]
    assert [len(found) for found in read(squares(2), 0.5, *ROWS[:2])] == [MAX_PRODUCTS]
    assert read(squares(3), 0.5, *ROWS[:2]) == [[(0, 2, False)]]


def normals(sizes, means, widths, x):
    """A mixture whose normals are exp(-z z / 2): the derivative adds two terms before it is
    reduced.
    """
    density = 0.1
    for size, mean, width in zip(sizes, means, widths, strict=True):
        z = (x - mean) / width
        density = density + size * (jnp.exp(-0.5 * z * z) / width)
    return -jnp.sum(jnp.log(density))


START = ([1.0, 1.5, 0.7, 1.2], [0.3, 1.0, 2.0, 2.5], [0.4, 0.5, 0.3, 0.6])


def test_all_derivatives_of_a_clean_normal_are_one_product():
    facts = facts_of(jax.grad(normals, argnums=(0, 1, 2)), *START, X)
    of_first_mean = 1 << 5
    eqns = factored(facts, of_first_mean).eqns
    products = [eqn.outvars[0].aval.shape for eqn in eqns if eqn.primitive.name == "dot_general"]
    # Three normals stay, with three derivatives each; of the first one, the value and the
    # derivatives are new.
    assert products == [(3,)] * 3
    assert sums(eqns) == 4


@pytest.mark.parametrize("mean", [0.3, 0.31, -5.0, 40.0])
def test_the_gradient_of_normals_equals_the_direct_form(mean):
    gradient = jax.grad(normals, argnums=(0, 1, 2))
    leaves = lambda *args: gradient(args[:4], args[4:8], args[8:12], args[12])
    facts = facts_of(gradient, *START, X)
    sizes, (_, *means), widths = START
    assert check_law(facts, 1 << 5, leaves, *sizes, mean, *means, *widths, X)


def test_a_scan_of_one_mean_equals_jit_and_computes_one_normal_again():
    vectors = jax.value_and_grad(normals, argnums=(0, 1, 2))
    ours, x = incrax.incremental(vectors, tuning=EAGER), np.linspace(0.05, 3.0, 100_000)
    sizes, (_, *means), widths = START
    for mean in (0.3, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36):
        same(
            ours(sizes, [mean, *means], widths, x),
            jax.jit(vectors)(sizes, [mean, *means], widths, x),
            factor=1024,
        )
    report = ours.explain().as_dict()
    ran = [step["primitive"] for step in report["ran"]]
    assert report["served_by"] == "plan"
    assert ran.count("exp") == 1


@pytest.mark.parametrize("distance", [1.0, 1e-6, 1e-12, 0.0])
def test_terms_that_cancel_in_a_row_cancel_before_they_are_weighted(distance):
    def fun(t, a, b, c):
        u = jnp.exp(t * X)
        return (
            jnp.sum((u * a - u * b) * c),
            jnp.sum(u * c),
            jnp.sum((u * a + u * b) * a),
            jnp.sum(u * a),
        )

    a, _, c = ROWS
    b = a * (1.0 + distance)
    facts = facts_of(fun, 0.5, a, b, c)
    # The direct form rounds u a and u b alone: the error of either is that of its own size.
    made = check_law(facts, 0b10, fun, 0.7, a, b, c, factor=1e4 / max(distance, 1e-12))
    assert made or distance == 0.0
    ours, plain = incrax.incremental(fun, tuning=EAGER), jax.jit(fun)
    for t in (0.5, 0.6, 0.7, 0.8):
        own, direct = ours(t, a, b, c), plain(t, a, b, c)
        same(own[1:], direct[1:], factor=1024)
        size = np.sum(np.abs(np.exp(t * X) * a * c))
        assert abs(own[0] - direct[0]) <= 64 * np.finfo("f8").eps * size


@pytest.mark.parametrize("n", [0.0, 1.0, -2.5, 1e-310, 1e200, np.inf, np.nan])
@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300, 0.0, np.inf, np.nan])
def test_extreme_factors_of_a_sum_give_what_the_direct_form_gives_or_are_refused(n, size):
    def fun(n, u, row, other):
        ct = n * (jnp.sin(u) + u)
        z = ct * row + (ct * other) * -0.5
        return jnp.sum(z * row), jnp.sum(z / n), jnp.sum(ct * other)

    u = np.where(np.arange(2048) % 7 == 0, size, 0.5)
    row, other = np.linspace(0.1, 1.0, 2048), np.linspace(2.0, -1.0, 2048)
    facts = facts_of(fun, 1.0, u, row, other)
    is_usable = check_law(facts, 0b110, fun, n, u, row, other)
    assert is_usable == (n in (1.0, -2.5) and size in (1.0, 1e-300, 0.0))
