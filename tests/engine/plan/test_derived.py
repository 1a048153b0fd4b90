"""Regrouped sums and stacked rows: the same values within rounding, and left alone where they would
not be.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same_array

from incrax import _jax
from incrax._program import read_vars, trace, written_vars
from incrax.engine.program.chains import find_chains
from incrax.engine.program.simplify import inline
from incrax.engine.rewrites import derived
from incrax.engine.rewrites.derived import DerivedTable, in_order, nameless
from incrax.engine.rewrites.partial_sums import (
    MIN_CLEAN_TERMS,
    MIN_LARGE,
    MIN_ROW_SIZE,
    regroup,
    stack_rows,
)

RNG = np.random.default_rng(2)
N = MIN_ROW_SIZE
TERMS = [RNG.normal(size=300) for _ in range(7)]


def program_of(fun, *args):
    return inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args))


def values_of(eqns, known):
    env = dict(known)
    _jax.evaluate(eqns, env)
    return env


def names(eqns):
    return [eqn.primitive.name for eqn in eqns]


def check_order(eqns, known):
    """Each variable is written once, before it is read."""
    written = set(known)
    for eqn in eqns:
        assert all(var in written for var in read_vars(eqn))
        assert not any(var in written for var in written_vars(eqn))
        written.update(written_vars(eqn))


def test_what_hands_on_an_input_is_that_input():
    (x,) = program_of(jnp.sin, TERMS[0]).invars
    table = DerivedTable()
    assert table.make("same", [x], lambda value: value) is x
    assert x not in table.recipes


# --- partial sums ---------------------------------------------------------------------------------


def regrouped(fun, args, dirty, table=None):
    """A program, its equations with clean terms added up first, and the table."""
    program, table = program_of(fun, *args), table or DerivedTable()
    chains = find_chains(program.eqns, program.outvars)
    changed = {program.invars[i] for i in dirty}
    for eqn in program.eqns:
        changed.update(eqn.outvars if changed & set(read_vars(eqn)) else ())
    replaced = regroup(program.eqns, chains, table, lambda var: var not in changed)
    eqns = [new for n, eqn in enumerate(program.eqns) for new in replaced.get(n, (eqn,))]
    read = {var for eqn in eqns for var in read_vars(eqn)}
    return (
        program,
        in_order([*eqns, *table.recipe(var for var in table.recipes if var in read)]),
        table,
    )


def check_same_sums(program, eqns, args):
    known = dict(zip(program.invars, args, strict=True))
    before, after = values_of(program.eqns, known), values_of(eqns, known)
    check_order(eqns, known)
    scale = sum(np.abs(x[np.isfinite(x)]).max() for x in args)
    for var in program.outvars:
        np.testing.assert_allclose(
            after[var], before[var], atol=8 * np.finfo(args[0].dtype).eps * scale
        )


SUMS = {
    "one dirty": (lambda a, b, c, d, e: a + b + c + d + e, [4]),
    "first dirty": (lambda a, b, c, d, e: a + b + c + d + e, [0]),
    "from the right": (lambda a, b, c, d, e: a + (b + (c + (d + e))), [2]),
    "two dirty": (lambda a, b, c, d, e, f: ((a + b) + (c + d)) + (e + f), [1, 4]),
    "a clean term twice": (lambda a, b, c, d: a + b + c + a + d, [3]),
    "a dirty term twice": (lambda a, b, c, d, e: a + e + b + c + d + e, [4]),
    "computed terms": (lambda a, b, c, d, e: jnp.sin(a) + b * c + d + jnp.exp(b) + e, [4]),
    "a sum used on": (lambda a, b, c, d, e: jnp.tanh(a + b + c + d + e) * e, [4]),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_clean_terms_are_added_up_first(name, dtype):
    fun, dirty = SUMS[name]
    args = [x.astype(dtype) for x in TERMS[: fun.__code__.co_argcount]]
    program, eqns, table = regrouped(fun, args, dirty)
    check_same_sums(program, eqns, args)
    (partial,) = table.recipes
    dirty_vars = {program.invars[i] for i in dirty}
    assert not any(set(read_vars(eqn)) & dirty_vars for eqn in table.recipes[partial])
    assert sum(partial in set(read_vars(eqn)) for eqn in eqns) == 1
    assert names(eqns).count("add") == names(program.eqns).count("add")


LEFT = {
    "no term is dirty": (lambda a, b, c, d, e: a + b + c + d + e, []),
    "every term is dirty": (lambda a, b, c: a + b + c, [0, 1, 2]),
    "too few are clean": (lambda a, b, c, d: a + b + c + d, [0]),
    "two terms": (lambda a, b: a + b, [0]),
}


@pytest.mark.parametrize("name", LEFT)
def test_sums_that_gain_nothing_are_left(name):
    fun, dirty = LEFT[name]
    args = TERMS[: fun.__code__.co_argcount]
    program, eqns, table = regrouped(fun, args, dirty)
    assert eqns == program.eqns
    assert not table.recipes


def test_the_least_number_of_clean_terms_is_enough():
    fun = lambda *terms: sum(terms[1:], terms[0])
    _, eqns, table = regrouped(fun, TERMS[: MIN_CLEAN_TERMS + 1], [0])
    assert len(table.recipes) == 1


@pytest.mark.parametrize("size", [MIN_LARGE - 1, MIN_LARGE])
@pytest.mark.parametrize(("dirty", "num_loaded"), [(0, 2), (1, 2), (2, 1)])
def test_of_a_large_sum_two_values_are_not_loaded_where_one_will_do(size, dirty, num_loaded):
    """`a + b` is a value of the program."""
    terms = [RNG.normal(size=size) for _ in range(3)]
    program, eqns, table = regrouped(lambda a, b, c: a + b + c, terms, [dirty])
    assert len(table.recipes) == (size >= MIN_LARGE and num_loaded == 2)
    check_same_sums(program, eqns, terms)


def test_partial_sums_are_written_down_and_not_traced(monkeypatch):
    monkeypatch.setattr(derived, "traced_equations", None)
    fun = lambda *terms: sum(terms[1:], terms[0])
    _, _, table = regrouped(fun, TERMS[:6], [0])
    ((partial, recipe),) = table.recipes.items()
    assert names(recipe) == 4 * ["add"]
    assert recipe[-1].outvars == [partial]


def test_partial_sums_of_weak_terms_have_a_strong_type():
    fun = lambda x: functools.reduce(operator.add, [x * k for k in range(1, 5)] + [x * 1.0])
    program = program_of(lambda x: fun(jnp.broadcast_to(x, 300)), 2.0)
    chains = find_chains(program.eqns, program.outvars)
    (chain,) = chains
    table = DerivedTable()
    regroup(program.eqns, chains, table, lambda var: var is not chain.terms[-1])
    (partial,) = table.recipes
    assert program.outvars[0].aval.weak_type
    assert not partial.aval.weak_type


def test_complex_sums_are_regrouped():
    args = [x + 1j * x[::-1] for x in TERMS[:5]]
    program, eqns, table = regrouped(lambda a, b, c, d, e: a + b + c + d + e, args, [4])
    check_same_sums(program, eqns, args)
    assert len(table.recipes) == 1


def test_not_a_number_and_infinity_stay_where_they_are():
    args = [x.copy() for x in TERMS[:5]]
    args[0][0], args[1][1], args[2][2], args[4][2] = np.nan, np.inf, np.inf, -np.inf
    program, eqns, _ = regrouped(lambda a, b, c, d, e: a + b + c + d + e, args, [4])
    check_same_sums(program, eqns, args)


def test_two_dirty_sets_share_a_partial_sum_of_the_same_terms():
    fun = lambda a, b, c, d, e, f: (a + b + c + d + e, jnp.sin(f))
    program = program_of(fun, *TERMS[:6])
    chains, table = find_chains(program.eqns, program.outvars), DerivedTable()
    for dirty in ([4], [4, 5]):
        changed = {program.invars[i] for i in dirty}
        regroup(program.eqns, chains, table, lambda var, changed=changed: var not in changed)
    assert len(table.recipes) == 1
    regroup(program.eqns, chains, table, lambda var: var is not program.invars[0])
    assert len(table.recipes) == 2


def test_two_sums_of_different_terms_have_partial_sums_of_their_own():
    fun = lambda a, b, c, d, e, f: (a + b + c + d + e, b + c + d + f + e)
    program, eqns, table = regrouped(fun, TERMS[:6], [4])
    check_same_sums(program, eqns, TERMS[:6])
    assert len(table.recipes) == 2


def test_two_sums_with_the_same_clean_terms_compute_them_once():
    program, eqns, _ = regrouped(
        lambda a, b, c, d, p, q: (p + a + b + c + d, q + a + b + c + d), TERMS[:6], [4, 5]
    )
    check_same_sums(program, eqns, TERMS[:6])


def test_variables_are_told_apart_by_where_they_stand_and_by_their_types():
    a, b, c = program_of(lambda *xs: xs, 1.0, 2.0, np.ones(3)).invars
    assert nameless(("row", (a, 2.0), (b, a))) == nameless(("row", (b, 2.0), (a, b)))
    others = [(a, a), (a, c), (c, a), (a, b, 0.0), (a, b, -0.0), (a, b, 0), (a, b, False)]
    assert len({nameless(other) for other in [(a, b), *others]}) == 1 + len(others)


# --- stacked rows ---------------------------------------------------------------------------------

ROWS = [RNG.normal(size=N) for _ in range(4)]
U = RNG.normal(size=N)


def stacked(fun, args, num_loads, kept=()):
    """A program whose last arguments are loaded rows: new equations and loads."""
    program, table = program_of(fun, *args), DerivedTable()
    loads = program.invars[len(args) - num_loads :]
    wanted = [*program.outvars, *(program.invars[i] for i in kept)]
    eqns, new_loads = stack_rows(program.eqns, loads, wanted, table)
    return program, loads, eqns, new_loads, table


def check_stacked(program, loads, eqns, new_loads, table, args):
    """Running the new equations from the new loads gives the values of the old ones."""
    known = dict(zip(program.invars, [jnp.asarray(x) for x in args], strict=True))
    before = values_of(program.eqns, known)
    recipes = values_of(table.recipe(new_loads), known)
    inputs = {var: known[var] for var in program.invars if var not in loads}
    inputs.update({var: recipes[var] for var in new_loads})
    check_order(eqns, inputs)
    after = values_of(eqns, inputs)
    for var in program.outvars:
        same_array(after[var], before[var], 4 * N)


def weighted_sums(u, *rows):
    shared = jnp.sin(u)
    return [jnp.sum(shared * row) for row in rows]


def test_sums_over_loaded_rows_become_one_product():
    args = [U, *ROWS]
    parts = stacked(weighted_sums, args, 4)
    check_stacked(*parts, args)
    _, loads, eqns, new_loads, table = parts
    assert names(eqns).count("dot_general") == 1
    assert "reduce_sum" not in names(eqns)
    (matrix,) = new_loads
    assert matrix.aval.shape == (4, N)
    assert matrix in table.recipes


CASES = {
    "either factor first": (
        lambda u, r, s: (lambda v: [jnp.sum(v * r), jnp.sum(s * v)])(jnp.sin(u)),
        2,
    ),
    "a row twice": (
        lambda u, r, s: (lambda v: [jnp.sum(v * r), jnp.sum(v * s), jnp.sum(r * v)])(jnp.sin(u)),
        2,
    ),
    "a row that something else reads": (
        lambda u, r, s: (lambda v: [jnp.sum(v * r), jnp.sum(v * s), jnp.exp(r) + v])(jnp.sin(u)),
        2,
    ),
    "two shared factors": (
        lambda u, r, s, t: (
            lambda v, w: [
                jnp.sum(v * r),
                jnp.sum(v * s),
                jnp.sum(w * s),
                jnp.sum(w * t),
                jnp.sum(w * r),
            ]
        )(jnp.sin(u), jnp.cos(u)),
        3,
    ),
    "sums used on": (
        lambda u, r, s: (lambda v: (lambda a, b: [a * b, v * a])(jnp.sum(v * r), jnp.sum(v * s)))(
            jnp.sin(u)
        ),
        2,
    ),
    "a sum that is read before the next": (
        lambda u, r, s: (
            lambda v: (lambda a: [a, jnp.sum((v * a) * s), jnp.sum(v * s)])(jnp.sum(v * r))
        )(jnp.sin(u)),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_stacking_keeps_every_value(name):
    fun, num_loads = CASES[name]
    args = [U, *ROWS[:num_loads]]
    parts = stacked(fun, args, num_loads)
    check_stacked(*parts, args)
    assert "dot_general" in names(parts[2])


@pytest.mark.parametrize("shape", [(N,), (32, N // 32), (4, 8, N // 32)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_rows_of_any_shape_and_type_are_stacked(shape, dtype):
    args = [x.reshape(shape).astype(dtype) for x in (U, *ROWS[:2])]
    if dtype == np.complex128:
        args = [x * (1 + 0.5j) for x in args]
    parts = stacked(weighted_sums, args, 2)
    check_stacked(*parts, args)
    assert "dot_general" in names(parts[2])


def test_a_row_that_is_wanted_itself_is_still_loaded():
    args = [U, *ROWS[:2]]
    parts = stacked(weighted_sums, args, 2, kept=(1,))
    check_stacked(*parts, args)
    assert parts[0].invars[1] in parts[3] or parts[0].invars[1] in {
        v for eqn in parts[2] for v in eqn.outvars
    }


def test_not_a_number_in_one_row_stays_in_its_sum():
    rows = [row.copy() for row in ROWS[:3]]
    rows[1][5], rows[2][7] = np.nan, np.inf
    args = [U, *rows]
    check_stacked(*stacked(weighted_sums, args, 3), args)


def half_sums(u, *rows):
    """Sums in half precision; `jnp.sum` would convert first."""
    shared = jnp.sin(u)
    return [jax.lax.reduce_sum(shared * row, (0,)) for row in rows]


UNSTACKED = {
    "one row": (weighted_sums, [U, ROWS[0]], 1),
    "one row twice": (
        lambda u, r: (lambda v: [jnp.sum(v * r), jnp.sum(r * v)])(jnp.sin(u)),
        [U, ROWS[0]],
        1,
    ),
    "short rows": (weighted_sums, [x[: N - 1] for x in (U, *ROWS[:2])], 2),
    "rows of half precision": (half_sums, [x.astype(np.float16) for x in (U, *ROWS[:2])], 2),
    "rows of bfloat16": (weighted_sums, [jnp.asarray(x, jnp.bfloat16) for x in (U, *ROWS[:2])], 2),
    "integers": (
        lambda u, r, s: [jnp.sum((u + 1) * r), jnp.sum((u + 1) * s)],
        [np.arange(N)] * 3,
        2,
    ),
    "partial sums": (
        lambda u, r, s: (lambda v: [jnp.sum(v * r, 0), jnp.sum(v * s, 0)])(jnp.sin(u)),
        [x.reshape(2, -1) for x in (U, *ROWS[:2])],
        2,
    ),
    "products with what is computed": (
        lambda u, r, s: (lambda v, w: [jnp.sum(v * w), jnp.sum(v * v), jnp.sum(v * r)])(
            jnp.sin(u), jnp.cos(u)
        ),
        [U, *ROWS[:2]],
        2,
    ),
    "rows that are not loaded": (weighted_sums, [U, *ROWS[:2]], 0),
    "an input as shared factor": (
        lambda u, r, s: [jnp.sum(u * r), jnp.sum(u * s)],
        [U, *ROWS[:2]],
        2,
    ),
    "quotients": (
        lambda u, r, s: (lambda v: [jnp.sum(v / r), jnp.sum(v / s)])(jnp.sin(u)),
        [U, *ROWS[:2]],
        2,
    ),
    "maxima": (
        lambda u, r, s: (lambda v: [jnp.max(v * r), jnp.max(v * s)])(jnp.sin(u)),
        [U, *ROWS[:2]],
        2,
    ),
    "products of two rows": (
        lambda u, r, s: [jnp.sum(r * s), jnp.sum(r * s * jnp.sin(u))],
        [U, *ROWS[:2]],
        2,
    ),
}


@pytest.mark.parametrize("name", UNSTACKED)
def test_what_is_not_stacked_is_left(name):
    program, loads, eqns, new_loads, table = stacked(*UNSTACKED[name])
    assert eqns == program.eqns
    assert new_loads == loads
    assert not table.recipes


# --- the table ------------------------------------------------------------------------------------


def test_a_derived_variable_is_made_once_per_kind_and_inputs():
    program, table = program_of(lambda a, b: a, *ROWS[:2]), DerivedTable()
    a, b = program.invars
    total = table.make("sum", [a, b], lambda x, y: x + y)
    assert table.make("sum", [a, b], lambda x, y: x + y) is total
    assert table.make("sum", [b, a], lambda x, y: x + y) is not total
    assert table.make("stack", [a, b], lambda x, y: jnp.stack([x, y])) is not total
    assert len(table.recipes) == 3


def test_recipes_compute_their_variables():
    program, table = program_of(lambda a, b: a, *ROWS[:2]), DerivedTable()
    a, b = program.invars
    total = table.make("sum", [a, b], lambda x, y: x + y)
    env = values_of(table.recipe([a, total]), {a: ROWS[0], b: ROWS[1]})
    np.testing.assert_array_equal(env[total], ROWS[0] + ROWS[1])
    assert table.recipe([a, b]) == []
