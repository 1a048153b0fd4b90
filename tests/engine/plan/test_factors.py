"""Reductions merged across scalar factors: equal to the direct form, also where a product leaves
the normal range.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax
from incrax import _jax
from incrax import _program as program
from incrax._program import read_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.program import cost, dependence, simplify
from incrax.engine.program.simplify import needed_equations
from incrax.engine.rewrites.derived import in_order
from incrax.engine.rewrites.factors import factor_reductions
from incrax.engine.rewrites.products import MAX_MATRICES

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
    is_dirty = lambda var: bool(facts.mask(var) & dirty)
    targets = frozenset(facts.program.outvars)
    made = factor_reductions(
        facts.program.eqns,
        facts.derived,
        is_dirty,
        targets,
        facts.listing.equation_of,
        facts.mask,
    )
    if made is None:
        return None
    read = dict.fromkeys(var for eqn in made.eqns for var in read_vars(eqn))
    written = {var for eqn in made.eqns for var in eqn.outvars}
    others = [eqn for eqn in facts.program.eqns if not written & set(eqn.outvars)]
    eqns = in_order([*others, *facts.derived.recipe(read), *made.eqns])
    return made._replace(eqns=tuple(needed_equations(eqns, [*targets, made.guard])))


def check_law(facts, dirty, fun, *args, factor=1024):
    """The factored equations equal the function, or a guard or a flag is false; whether they may be
    used.
    """
    made = factored(facts, dirty)
    results, is_usable = evaluate(facts, made, *args)
    if is_usable:
        same(results, jax.tree.leaves(jax.jit(fun)(*args)), factor=factor)
    return is_usable


def evaluate(facts, made, *args):
    """Outputs, and whether all booleans say that they may be used."""
    env = dict(zip(facts.program.invars, args, strict=True))
    env.update(zip(facts.program.constvars, facts.program.consts, strict=True))
    _jax.evaluate(made.eqns, env)
    is_usable = bool(env[made.guard])
    for matrix, flag in facts.derived.flags.items():
        if matrix in env:
            scratch = dict(env)
            _jax.evaluate(facts.derived.recipes[matrix], scratch)
            is_usable &= bool(scratch[flag])
    return [_jax.read(atom, env) for atom in facts.program.outvars], is_usable


GRADIENT = jax.grad(model, argnums=(0, 1, 2, 3))
START = (3.0, 2.0, 0.7, 1.1)


def sums(eqns):
    return sum(
        eqn.primitive.name == "reduce_sum" and eqn.invars[0].aval.shape == X.shape for eqn in eqns
    )


def products(eqns):
    """The shapes of matrix products."""
    return [eqn.outvars[0].aval.shape for eqn in eqns if eqn.primitive.name == "dot_general"]


def test_kin_trace_nothing_anew(monkeypatch):
    fun = lambda ps: jax.grad(lambda ps: sum(model(*p, X) for p in ps))(ps)
    params = [[3.0, 2.0, 0.8 + 0.1 * k, 1.5] for k in range(3)]
    facts = facts_of(lambda *ps: jax.tree.leaves(fun(ps)), *params)
    traced = []
    trace_body = _jax.trace_body
    monkeypatch.setattr(
        _jax, "trace_body", lambda f, *types: traced.append(types) or trace_body(f, *types)
    )
    counts = []
    for k in range(3):
        assert factored(facts, 1 << facts.layout.offsets[4 * k + 2]) is not None
        counts.append(len(traced))
    assert counts[0] == counts[1] == counts[2] > 0
    results, is_usable = evaluate(
        facts, factored(facts, 1 << facts.layout.offsets[10]), *sum(params, [])
    )
    assert is_usable
    same(results, jax.tree.leaves(fun(params)), factor=1024)


def test_reductions_that_share_a_dirty_array_become_products():
    """One for the rows that depend on `mu` and `sigma`, and one for that of `x` alone."""
    facts = facts_of(GRADIENT, *START, X)
    eqns = factored(facts, 0b10).eqns
    assert sums(facts.program.eqns) >= 5
    assert len(products(eqns)) == 2
    assert sums(eqns) == 0


def terms(theta, x):
    """A sum of terms, each of one parameter."""
    return jnp.sum(jnp.log(2.0 + sum(jnp.exp(-a * x) for a in theta)))


@pytest.mark.parametrize(("num", "expected"), [(MAX_MATRICES + 1, MAX_MATRICES), (18, 1)])
def test_rows_that_depend_on_other_inputs_are_kept_apart_up_to_a_number(num, expected):
    gradient = jax.grad(lambda *theta: terms(theta[:-1], theta[-1]), argnums=tuple(range(num)))
    theta = [0.1 * (1 + k) for k in range(num)]
    facts = facts_of(gradient, *theta, X)
    assert len(products(factored(facts, 0b10).eqns)) == expected
    assert check_law(facts, 0b10, gradient, *theta, X)


@pytest.mark.parametrize("dirty", [0b10, 0b100, 0b1000, 0b10000, 0b110, 0b11110])
def test_results_equal_the_direct_form(dirty):
    facts = facts_of(GRADIENT, *START, X)
    if factored(facts, dirty) is not None:
        for n in (3.0, 1e-3, 1e5):
            assert check_law(facts, dirty, GRADIENT, n, 2.0, 0.7, 1.1, X)


def scaled(n, u, row, other):
    """Two reductions over n * u with clean rows."""
    shared = jnp.sin(u) + u
    return (
        jnp.sum(n * shared * row),
        jnp.sum(shared * n * n * other),
        jnp.sum(shared / n * (row * other)),
    )


SPECIAL = [0.0, -0.0, 1.0, -2.5, 1e-310, 1e-200, 1e200, 1e308, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("n", SPECIAL)
@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300, 0.0, np.inf, np.nan])
def test_extreme_factors_give_what_the_direct_form_gives_or_are_refused(n, size):
    u = np.where(np.arange(2048) % 7 == 0, size, 0.5)
    row, other = np.linspace(0.1, 1.0, 2048), np.linspace(2.0, -1.0, 2048)
    facts = facts_of(scaled, 1.0, u, row, other)
    is_usable = check_law(facts, 0b110, scaled, n, u, row, other)
    assert is_usable == (n in (1.0, -2.5) and size in (1.0, 1e-300, 0.0))


def test_a_factor_that_occurs_twice_counts_twice_in_the_bound():
    """`w * low` underflows in the direct form, and `v` twice with `high` brings the loss back: one
    `v` would not.
    """

    def fun(v, w, low, high, other):
        return jnp.sum(w * low * v * v * high), jnp.sum(w * v * v * other)

    v, w, low, high, other = (np.full(2048, size) for size in (1e38, 1e-200, 1e-112, 1e107, 1.0))
    facts = facts_of(fun, v, w, low, high, other)
    direct, safe = np.array(jax.jit(fun)(v, w, low, high, other))
    results, is_usable = evaluate(facts, factored(facts, 0b110), v, w, low, high, other)
    np.testing.assert_allclose(results[1], safe, rtol=1e-12)
    assert not np.isclose(results[0], direct, rtol=1e-12, atol=0)
    assert not is_usable
    mild = (v / 1e37, w * 1e200, low * 1e112, high / 1e107, other)
    assert check_law(facts, 0b110, fun, *mild)


def fisher(w, mu, x):
    """Observed information of mixture weights, sum_n s_i s_j: rows N_i N_j, shared 1/p**2."""
    shapes = [jnp.exp(-0.5 * (x - m) ** 2) for m in (0.0, 0.1, mu)]
    density = shapes[0] + w * shapes[1] + shapes[2]
    scores = [shape / density for shape in shapes]
    return [jnp.sum(scores[i] * scores[j]) for i in range(3) for j in range(i + 1)]


@pytest.mark.parametrize("far", [5.0, 27.5, 37.0])
def test_outliers_whose_densities_underflow_are_refused(far):
    x = np.concatenate([np.linspace(-3, 3, 4000), [far, -far, 0.98 * far]])
    facts = facts_of(fisher, 0.7, 0.2, x)
    assert check_law(facts, 0b10, fisher, 0.7, 0.2, x) == (far < 10)
    ours, plain = incrax.incremental(fisher, tuning=EAGER), jax.jit(fisher)
    for w in (0.7, 0.8, 0.9, 1.0, 1.1):
        same(ours(w, 0.2, x), plain(w, 0.2, x), factor=1024)


def test_rows_in_which_a_term_occurs_twice_stay_apart_from_those_with_one():
    def twice(a, x, y, z):
        u = jnp.exp(a * x)
        return (
            jnp.sum((u * x) * y) + jnp.sum((u * y) * x),
            jnp.sum((u * x) * y) - 3.0 * a,
            jnp.sum(u * z) * a,
        )

    x, y, z = (np.linspace(0.1, 1.0 + k, 2048) for k in range(3))
    facts = facts_of(twice, 0.5, x, y, z)
    assert check_law(facts, 0b10, twice, 0.7, x, y, z)


OUTER = {
    "divided by zero": (lambda s, a, b: (a + b) / s, 0.0),
    "times infinity": (lambda s, a, b: (a + b) * s, np.inf),
    "times nan": (lambda s, a, b: a * s + b, np.nan),
    "order of coefficients": (lambda s, a, b: b + ((a * 1e-300) * s) * s, 1e160),
    "distributed": (lambda s, a, b: (a + b) * s * s, 1e160),
    "harmless": (lambda s, a, b: (a + b) * s, 2.0),
}


@pytest.mark.parametrize("name", OUTER)
def test_scalars_outside_of_a_sum_keep_their_meaning(name):
    outer, s = OUTER[name]

    def fun(t, s, r, rows):
        u = jnp.exp(t * r)
        alone = jnp.sum(jnp.sin(t * rows[0]))
        return [outer(s, jnp.sum((u * (k + t)) * row), alone) for k, row in enumerate(rows)]

    r = np.linspace(0.9, 1.0, 2048)
    rows = [np.random.default_rng(k).normal(size=2048) + 0.3 for k in range(4)]
    facts = facts_of(fun, 0.5, 1.0, r, rows)
    leaves = lambda t, s, r, *rows: fun(t, s, r, list(rows))
    assert check_law(facts, 0b110, leaves, 0.5, s, r, *rows) == (name == "harmless")
    ours, plain = incrax.incremental(fun, tuning=EAGER), jax.jit(fun)
    for t in (0.5, 0.6, 0.7, 0.8):
        same(ours(t, s, r, rows), plain(t, s, r, rows), factor=1024)


def test_an_overflow_of_the_program_is_not_hidden():
    def fun(t, r, a, lo):
        u = jnp.exp(t * r)
        return [jnp.sum((u * c) * lo) for c in a]

    r, lo = np.linspace(0.9, 1.0, 2048, dtype="f4"), np.full(2048, 1e-30, "f4")
    a = [np.full(2048, k * 1e30, "f4") for k in (1, 2, 3)]
    facts = facts_of(fun, np.float32(1.0), r, a, lo)
    leaves = lambda t, r, a, b, c, lo: fun(t, r, [a, b, c], lo)
    assert not check_law(facts, 0b10, leaves, np.float32(20.0), r, *a, lo)


def test_programs_with_effects_keep_their_order():
    seen = []

    def fun(t, x):
        ref = jax.new_ref(jnp.zeros(()))
        ref[...] = jnp.sum(jnp.exp(t * x))
        jax.debug.callback(lambda v: seen.append("first"), ref[...], ordered=True)
        total = sum(jnp.sum(jnp.sin(t * x) * x**k) for k in range(6))
        jax.debug.callback(lambda v: seen.append("second"), total, ordered=True)
        return ref[...] + total

    x = np.linspace(0.0, 1.0, 2048)
    ours = incrax.incremental(fun, tuning=EAGER)
    for t in (0.5, 0.6, 0.7, 0.8):
        same(ours(t, x), fun(t, x))
    jax.effects_barrier()
    assert seen == ["first", "second"] * 8


def test_a_reduction_that_another_one_scales_is_left_in_order():
    def chained(a, u, row, other):
        shared = jnp.exp(a * u)
        first = jnp.sum(shared * row)
        return jnp.sum(first * shared * other), jnp.sum(shared * row * other)

    u, row, other = (np.linspace(0.1, 1.0 + k, 2048) for k in range(3))
    facts = facts_of(chained, 0.5, u, row, other)
    if factored(facts, 0b10) is not None:
        assert check_law(facts, 0b10, chained, 0.5, u, row, other)


def combined(n, a, b, u, row, other):
    """Sums of the same reductions with other coefficients, as derivatives by several parameters
    are.
    """
    shared = jnp.exp(n * u)
    first, second = jnp.sum(shared * row), jnp.sum(shared * other)
    return (
        a * first - b * second,
        b * first - a * second,
        a * first - b * second + 1.0,
        n * (a * second + first),
    )


@pytest.mark.parametrize("ab", [(1.5, -0.5), (1.5, 1.5), (0.0, 2.0), (1e-300, 1.0)])
def test_sums_of_reductions_share_a_matrix_and_not_a_row(ab):
    u, row, other = (np.linspace(0.1, 1.0 + k, 2048) for k in range(3))
    facts = facts_of(combined, 0.5, *ab, u, row, other)
    eqns = factored(facts, 0b10).eqns
    assert products(eqns) == [(2,), (1,)]  # with `a` and `b`, without
    for n in (0.5, -0.25):
        assert check_law(facts, 0b10, combined, n, *ab, u, row, other)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex128])
def test_other_dtypes_are_right_or_left_alone(dtype):
    def two(a, u, row, other):
        shared = u * a + u
        return jnp.sum(shared * row), jnp.sum(shared * a * other)

    u, row, other = (np.arange(2048).astype(dtype) / (dtype == np.int64 or 2048) for _ in range(3))
    args = (dtype(2), u.astype(dtype), row.astype(dtype), other.astype(dtype))
    ours = incrax.incremental(two, tuning=incrax.Tuning(timed=False, hot_after=1))
    for a in (1, 2, 3):
        same(ours(dtype(a), *args[1:]), jax.jit(two)(dtype(a), *args[1:]), factor=4096)


def test_a_scan_of_one_parameter_equals_jit_and_computes_no_component_again():
    vectors = jax.value_and_grad(model, argnums=(0, 1, 2, 3))
    ours = incrax.incremental(vectors, tuning=EAGER)
    data = np.linspace(0.05, 3.0, 100_000)
    for n in (3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6):
        same(ours(n, *START[1:], data), jax.jit(vectors)(n, *START[1:], data), factor=1024)
    report = ours.explain().as_dict()
    ran = [step["primitive"] for step in report["ran"]]
    assert report["served_by"] == "plan"
    assert "dot_general" in ran
    assert "exp" not in ran
