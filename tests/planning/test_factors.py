"""Reductions merged across scalar factors: equal to the direct form, also where a product leaves the normal range."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.facts import cost, dependence, program, simplify
from incrax.planning.factors import factor_reductions
from incrax.planning.facts import Facts

X = np.linspace(0.05, 3.0, 4096)


def model(n, m, s, t, x):
    """Two components; the gradient ends in reductions of products with the shared 1/d."""
    first, second = jnp.exp(-((x / s) ** 2)) / s, jnp.exp(-x * t) * t
    return n + m - jnp.sum(jnp.log(n * first + m * second))


def facts_of(fun, *args):
    passes = [simplify.inline, simplify.fold_constants, simplify.merge_equal, simplify.drop_dead]
    traced = simplify.run_passes(program.trace(lambda *a: jax.tree.leaves(fun(*a)), *args), passes)
    layout = dependence.make_layout([v.aval for v in traced.invars], 256)
    return Facts(traced, dependence.depend(traced, layout), cost.Calibration(), is_minimal=False)


def factored(facts, dirty):
    return factor_reductions(
        facts.program.eqns, facts.derived, lambda var: bool(facts.mask(var) & dirty), frozenset(facts.program.outvars)
    )


def evaluate(facts, eqns, *args):
    from incrax import _jax

    env = dict(zip(facts.program.invars, args, strict=True))
    env.update(zip(facts.program.constvars, facts.program.consts, strict=True))
    _jax.evaluate(eqns, env)
    return [_jax.read(atom, env) for atom in facts.program.outvars]


GRADIENT = jax.grad(model, argnums=(0, 1, 2, 3))
START = (3.0, 2.0, 0.7, 1.1)


def sums(eqns):
    return sum(eqn.primitive.name == "reduce_sum" and eqn.invars[0].aval.shape == X.shape for eqn in eqns)


def test_reductions_that_share_a_dirty_array_become_one_product():
    facts = facts_of(GRADIENT, *START, X)
    eqns = factored(facts, 0b10)
    assert sums(facts.program.eqns) >= 5
    assert sum(eqn.primitive.name == "dot_general" for eqn in eqns) == 1
    assert sums(eqns) == 0


@pytest.mark.parametrize("dirty", [0b10, 0b100, 0b1000, 0b10000, 0b110, 0b11110])
def test_results_equal_the_direct_form(dirty):
    facts = facts_of(GRADIENT, *START, X)
    eqns = factored(facts, dirty) or facts.program.eqns
    for n in (3.0, -3.0, 1e-3, 1e5):
        args = (n if n > 0 else 3.0, 2.0, 0.7, 1.1, X)
        same(evaluate(facts, eqns, *args), list(GRADIENT(*args)), factor=1024)


def scaled(n, u, row, other):
    """Two reductions over n * u with clean rows."""
    shared = jnp.sin(u) + u
    return jnp.sum(n * shared * row), jnp.sum(shared * n * n * other), jnp.sum(shared / n * (row * other))


SPECIAL = [0.0, -0.0, 1.0, -2.5, 1e-310, 1e-200, 1e200, 1e308, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("n", SPECIAL)
@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300, 0.0, np.inf, np.nan])
def test_extreme_factors_give_what_the_direct_form_gives(n, size):
    u = np.where(np.arange(2048) % 7 == 0, size, 0.5)
    row, other = np.linspace(0.1, 1.0, 2048), np.linspace(2.0, -1.0, 2048)
    facts = facts_of(scaled, 1.0, u, row, other)
    eqns = factored(facts, 0b110)
    assert any(eqn.primitive.name == "cond" for eqn in eqns)
    same(evaluate(facts, eqns, n, u, row, other), list(jax.jit(scaled)(n, u, row, other)), factor=1024)


def test_rows_that_underflow_in_the_product_take_the_direct_form():
    u = np.full(2048, 1e-200)
    row = other = np.full(2048, 1e-200)
    facts = facts_of(scaled, 1.0, u, row, other)
    args = (1e150, u, row, other)
    same(evaluate(facts, factored(facts, 0b110), *args), list(jax.jit(scaled)(*args)), factor=1024)


def test_a_reduction_that_another_one_scales_is_left_in_order():
    def chained(a, u, row, other):
        shared = jnp.exp(a * u)
        first = jnp.sum(shared * row)
        return jnp.sum(first * shared * other), jnp.sum(shared * row * other)

    u, row, other = (np.linspace(0.1, 1.0 + k, 2048) for k in range(3))
    facts = facts_of(chained, 0.5, u, row, other)
    eqns = factored(facts, 0b10) or facts.program.eqns
    same(evaluate(facts, eqns, 0.5, u, row, other), list(jax.jit(chained)(0.5, u, row, other)), factor=1024)


def combined(n, a, b, u, row, other):
    """Sums of the same reductions with other coefficients, as derivatives by several parameters are."""
    shared = jnp.exp(n * u)
    first, second = jnp.sum(shared * row), jnp.sum(shared * other)
    return a * first - b * second, b * first - a * second, a * first - b * second + 1.0, n * (a * second + first)


@pytest.mark.parametrize("ab", [(1.5, -0.5), (1.5, 1.5), (0.0, 2.0), (1e-300, 1.0)])
def test_sums_of_reductions_share_a_matrix_and_not_a_row(ab):
    u, row, other = (np.linspace(0.1, 1.0 + k, 2048) for k in range(3))
    facts = facts_of(combined, 0.5, *ab, u, row, other)
    eqns = factored(facts, 0b10)
    assert [eqn.outvars[0].aval.shape for eqn in eqns if eqn.primitive.name == "dot_general"] == [(3,)]
    for n in (0.5, -0.25):
        args = (n, *ab, u, row, other)
        same(evaluate(facts, eqns, *args), list(jax.jit(combined)(*args)), factor=1024)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex128])
def test_other_dtypes_are_right_or_left_alone(dtype):
    def two(a, u, row, other):
        shared = u * a + u
        return jnp.sum(shared * row), jnp.sum(shared * a * other)

    u, row, other = (np.arange(2048).astype(dtype) / (dtype == np.int64 or 2048) for _ in range(3))
    args = (dtype(2), u.astype(dtype), row.astype(dtype), other.astype(dtype))
    ours = incrax.incremental(two, tuning=incrax.Tuning(race=False, hot_after=1))
    for a in (1, 2, 3):
        same(ours(dtype(a), *args[1:]), jax.jit(two)(dtype(a), *args[1:]), factor=4096)


def test_a_scan_of_one_parameter_equals_jit_and_computes_no_component_again():
    vectors = jax.value_and_grad(model, argnums=(0, 1, 2, 3))
    ours = incrax.incremental(vectors, tuning=incrax.Tuning(race=False, calibrate=False, hot_after=1))
    data = np.linspace(0.05, 3.0, 100_000)
    for n in (3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6):
        same(ours(n, *START[1:], data), jax.jit(vectors)(n, *START[1:], data), factor=1024)
    report = ours.explain().as_dict()
    ran = [step["primitive"] for step in report["ran"]]
    assert report["served_by"] == "plan"
    assert "dot_general" in ran
    assert "exp" not in ran
