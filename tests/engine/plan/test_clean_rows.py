"""Of arrays put together of clean and dirty pieces, only dirty rows run: the same values within
rounding, by fewer elements.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, check_calls, examples
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax import _jax
from incrax._program import trace, written_vars
from incrax.engine.call.analysis import facts_of
from incrax.engine.plan.plan import plan_dirty, reached_equations
from incrax.engine.rewrites import clean_rows
from incrax.engine.rewrites.clean_rows import with_clean_rows_apart

RNG = np.random.default_rng(3)
NUM, SIZE = 7, 12
MATRIX = RNG.normal(size=(NUM, SIZE))
POSITIVE = np.exp(MATRIX)

STACKS = {
    "array": lambda p: jnp.array(p)[:, None] * MATRIX,
    "pieces": lambda p: jnp.concatenate(
        [
            p[0] * MATRIX[:2],
            p[1] * MATRIX[2:3],
            p[2] * MATRIX[:1],
            *[x * MATRIX[3:4] for x in p[3:]],
        ]
    ),
    "nested": lambda p: jnp.concatenate([jnp.stack(p[:4]), jnp.stack(p[4:])])[:, None] + MATRIX,
    "two rows": lambda p: (jnp.array(p) - 2.0 * jnp.array(p[::-1]))[:, None] * MATRIX,
    "with constants": lambda p: jnp.array([*p[:4], 1.5, 2.5, 3.5])[:, None] * MATRIX,
    "columns": lambda p: jnp.stack([x * MATRIX[0] for x in p], axis=1).T,
}

STEPS = {
    "sine": jnp.sin,
    "product": lambda y: y * POSITIVE,
    "per row": lambda y: y - POSITIVE[:, :1],
    "other axis": lambda y: jnp.cumsum(y, axis=1),
    "turned": lambda y: y[:, ::-1],
    "matrix": lambda y: y @ jnp.cos(jnp.arange(1.0 * SIZE**2)).reshape(SIZE, SIZE),
    "twice": lambda y: y.T.T + y**2,
    "complex": lambda y: jnp.real(y / (1.0 + 1j * POSITIVE)),
}

ENDS = {
    "sum": lambda y: y.sum(0),
    "all": jnp.sum,
    "product": lambda y: (1.0 + 0.1 * jnp.tanh(y)).prod(0),
    "largest": lambda y: y.max(0),
    "least": lambda y: y.min(0),
    "any": lambda y: (y > 0.3).any(0),
    "each": lambda y: (y > -2.0).all(0),
    "weighted": lambda y: jnp.arange(1.0 * NUM) @ y,
    "with itself": lambda y: jnp.einsum("kn,kn->n", y, jnp.tanh(y)),
    "dirty row": lambda y: y[2:3, 1:],
    "clean row": lambda y: y[:1],
    "rows": lambda y: y[1:4],
    "running": lambda y: jnp.cumsum(y, axis=0),
    "value": lambda y: y,
}


def facts_at(fun, args):
    program = trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)
    return facts_of(program, incrax.Tuning(), is_exact=False)


def values_at(facts, args):
    """All values of a program, those of derived variables too."""
    env = dict(zip(facts.invars, args, strict=True))
    env.update(zip(facts.program.constvars, facts.program.consts, strict=True))
    _jax.evaluate([*facts.eqns, *facts.derived.recipe(facts.derived.recipes)], env)
    return env


def apart(facts, dirty):
    is_dirty = lambda var: bool(facts.mask(var) & dirty)
    eqns = reached_equations(facts, dirty, facts.returned)
    return with_clean_rows_apart(eqns, facts.derived, is_dirty, facts.returned)


def check(fun, args, moved):
    """What is apart gives the new results from values of before that do not depend on what moved."""
    facts = facts_at(fun, args)
    dirty = sum(facts.layout.leaf_mask(leaf) for leaf in moved)
    eqns = apart(facts, dirty)
    if eqns is None:
        return None
    before = values_at(facts, args)
    known = [var for var in before if facts.is_known(var)]
    env = {var: before[var] for var in known if not facts.mask(var) & dirty}
    new = [1.5 * x - 0.3 if leaf in moved else x for leaf, x in enumerate(args)]
    env.update({facts.invars[leaf]: new[leaf] for leaf in moved})
    _jax.evaluate(eqns, env)
    expected = values_at(facts, new)
    for var in facts.returned:
        assert env[var].dtype == var.aval.dtype
        np.testing.assert_allclose(env[var], expected[var], rtol=1e-12, atol=1e-12)
    return eqns


@given(
    st.sampled_from(sorted(STACKS)),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=3, unique=True),
    st.sets(st.sampled_from([1, 2, 4]), min_size=1, max_size=2),
)
@examples(3)
def test_results_are_the_same(stack, steps, ends, moved):
    def fun(*numbers):
        y = STACKS[stack](list(numbers))
        for step in steps:
            y = STEPS[step](y)
        return [ENDS[end](y) for end in ends]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_rows, "MIN_SIZE", 1)
        check(fun, list(np.linspace(0.4, 1.3, 6 if stack == "pieces" else NUM)), sorted(moved))


@pytest.mark.every_case
@pytest.mark.parametrize("stack", sorted(STACKS))
def test_rows_are_apart_however_the_array_was_put_together(stack):
    def fun(*numbers):
        y = STACKS[stack](list(numbers))
        return jnp.arange(1.0, NUM + 1.0) @ y, jnp.sin(y)[:3], jnp.tanh(y).max(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_rows, "MIN_SIZE", 1)
        args = list(np.linspace(0.4, 1.3, 6 if stack == "pieces" else NUM))
        made = check(fun, args, [2])
    assert (made is None) == (stack == "two rows")  # where different rows meet, all do


LENGTH = 5_000


def waves(*widths):
    """The modulus of a sum of waves, each with a width."""
    x = np.linspace(0.0, 1.0, LENGTH)
    total = jnp.sum(jnp.exp(1j * x * jnp.array(widths)[:, None]), 0)
    return jnp.sum(jnp.abs(total) ** 2)


WIDTHS = list(np.linspace(1.0, 2.0, 20))


def num_made(eqns):
    return sum(math.prod(var.aval.shape) for eqn in eqns for var in written_vars(eqn))


def test_one_of_twenty_numbers_runs_one_row():
    facts = facts_at(waves, WIDTHS)
    dirty = facts.layout.leaf_mask(3)
    assert check(waves, WIDTHS, [3]) is not None
    plan = plan_dirty(facts, dirty)
    assert max(math.prod(var.aval.shape) for eqn in plan.eqns for var in eqn.outvars) == LENGTH
    assert num_made(plan.eqns) < num_made(facts.eqns) / 4
    assert [var.aval.shape for var in plan.loads if var in facts.derived.recipes] == [(LENGTH,)]


@pytest.mark.parametrize("num", [7, 20])
def test_of_the_gradient_by_one_of_many_numbers_one_row_is_made(num):
    """JAX takes the derivative to pieces by `unstack`; of more than 16 numbers by `split`."""
    facts = facts_at(jax.value_and_grad(waves, argnums=3), WIDTHS[:num])
    plan = plan_dirty(facts, facts.layout.leaf_mask(3))
    assert max(math.prod(var.aval.shape) for eqn in plan.eqns for var in eqn.outvars) == LENGTH


@pytest.mark.parametrize(
    ("fun", "moved"),
    [
        (waves, range(20)),  # no clean row
        (waves, [0, 19]),  # most rows are between the two
        (lambda *widths: jnp.sum(jnp.sin(jnp.array(widths))), [3]),  # little to save
        (
            lambda *widths: jnp.cumsum(jnp.array(widths)[:, None] * np.ones(LENGTH), 0),
            [3],
        ),  # no sum
    ],
)
def test_what_wins_nothing_stays_as_it_is(fun, moved):
    facts = facts_at(fun, WIDTHS)
    assert apart(facts, sum(map(facts.layout.leaf_mask, moved))) is None


def test_a_change_of_one_number_reads_the_saved_sum_of_the_others():
    f = incrax.incremental(jax.value_and_grad(waves, argnums=3), tuning=EAGER)
    plain = jax.value_and_grad(waves, argnums=3)
    for step in range(6):
        widths = [*WIDTHS[:3], 1.2 + 0.1 * step, *WIDTHS[4:]]
        for ours, expected in zip(f(*widths), plain(*widths), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-11)
    assert "saved values loaded      1 (80 kB)" in str(f.explain())


def test_rows_are_apart_beside_a_sum_of_which_two_terms_move():
    """The sum of its clean terms is a value of its own, and the moved ones are added to it."""
    x = np.linspace(0.0, 1.0, LENGTH)

    def fun(a, b):
        clean = [jnp.sin(b * x), jnp.cos(b * x), jnp.tanh(b * x), jnp.exp(b * x)]
        rows = jnp.stack([a * x, b * x, b * x**2])
        return sum([*clean, jnp.sin(a * x), jnp.cos(a * x)]), jnp.sum(jnp.sin(rows), 0)

    facts = facts_at(fun, (1.0, 2.0))
    plan = plan_dirty(facts, facts.layout.leaf_mask(0))
    loads = [var.aval.shape for var in plan.loads if var in facts.derived.recipes]
    assert loads == [(LENGTH,), (LENGTH,)]
    check_calls(fun, [(1.0 + 0.1 * step, 2.0) for step in range(5)], tuning=EAGER)
