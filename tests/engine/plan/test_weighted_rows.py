"""Sums over products of rows and a vector that changed as a whole: the law of the plan, what did not
run, and numbers near the ends of the range.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.test_slices import Sliced, nothing_is_cheap
from slice_cases import CASES, NUM, waves

from incrax.engine.plan import weighted_rows

pytestmark = pytest.mark.usefixtures(nothing_is_cheap.__name__)

LINE = np.linspace(0.5, 2.0, 40)


def weighted(one, other):
    """sum_n (u_n p_kn) q_kn, of which u reads all rows."""

    def fun(x, scale):
        u = scale * jnp.sum(x[:, None] * LINE, axis=0)
        return jnp.sum(u[None] * one(x[:, None]) * other(x[:, None]), axis=1)

    return fun


def of_widths(widths, couplings):
    """A coherent sum of which a width changes, not a coupling."""
    return waves(couplings, widths)


CHANGED = {
    "waves": (jax.value_and_grad(of_widths, (0, 1)), CASES["waves, gradient"].args[::-1]),
    "resonances": CASES["resonances, gradient"][:2],
    "coherent": CASES["coherent, gradient"][:2],
    "mixture": CASES["mixture, gradient"][:2],
}


def made(plan):
    """What is made of all rows and all places, but for rows that are written into what is kept."""
    return [
        eqn.primitive.name
        for eqn in plan.eqns
        for var in eqn.outvars
        if var.aval.shape in ((NUM, 40), (NUM, 11)) and eqn.primitive.name != "dynamic_update_slice"
    ]


@pytest.mark.parametrize(
    ("name", "num_kept"),
    # A complex matrix is kept as two, and behind a real part each product is two; others are summed
    # over the rows.
    [("waves", 5), ("resonances", 7), ("coherent", 0), ("mixture", 4)],
)
def test_of_all_rows_nothing_is_made(name, num_kept, monkeypatch):
    plan = Sliced(CHANGED[name], 1).plan
    assert made(plan) == []
    kept = [var for var in plan.saves if var.aval.shape == (NUM, 40)]
    assert len(kept) <= num_kept
    monkeypatch.setattr(weighted_rows, "MIN_SIZE", NUM * 40 + 1)
    assert len(made(Sliced(CHANGED[name], 1).plan)) >= 4


def test_a_factor_alone_is_kept_as_it_is():
    """Its product with u is the function's; nothing has to be asked of it."""
    fun = lambda x, scale: jnp.sum(
        jnp.sum(x[:, None] * LINE, axis=0)[None] * jnp.sin(x[:, None] * LINE) * scale, axis=1
    )
    sliced = Sliced((jax.jit(fun), (np.linspace(0.1, 1.0, NUM), 1.5)), 1)
    sliced.change(np.array([3]), 0.7)
    sliced.check(terms=30.0)
    assert made(sliced.plan) == []


def test_a_product_of_what_stays_is_made_as_the_function_says():
    """It would be looked at in each call; a factor alone is a matrix as it is."""
    table = np.linspace(0.1, 2.0, 9 * 40).reshape(9, 40)

    def fun(x, scale):
        u = jnp.sum(jnp.exp(x[:, None] * LINE), axis=0)
        alone = jnp.sum(u[None] * jnp.sin(scale * table), axis=1)
        return alone, jnp.sum(u[None] * jnp.sin(scale * table) * jnp.cos(scale * table), axis=1)

    sliced = Sliced((fun, (np.linspace(0.1, 1.0, NUM), 1.5)), 1)
    assert sum(eqn.primitive.name == "dot_general" for eqn in sliced.plan.eqns) == 1
    for row, value in ((3, 0.9), (7, 0.75)):
        assert sliced.change(np.array([row]), value)
        sliced.check(terms=30.0)


TAIL = np.linspace(1.0, 60.0, 40)


@pytest.mark.parametrize(
    ("one", "other", "scale", "is_usable"),
    [
        (lambda x: x * LINE, lambda x: jnp.cos(x * LINE), 1.0, True),
        # Lost: 1e-400 times 1e300; and once more, after what was lost became large.
        (lambda x: 1e-200 * x * LINE, lambda x: 1e-200 * x * LINE, 1e300, False),
        (lambda x: 1e-200 * x * LINE, lambda x: 1e200 / (x * 1e-200 * LINE), 1e-300, False),
        # Too large where u makes it small.
        (lambda x: 1e200 * x * LINE, lambda x: 1e200 * x * LINE, 1e-300, False),
        # Tails are too small to be seen.
        (lambda x: jnp.exp(-x * TAIL**2 / 4), lambda x: x * jnp.exp(-x * TAIL**2 / 4), 1.0, True),
        # Nothing is lost where a factor is zero.
        (lambda x: 0.0 * x * LINE, lambda x: x * LINE, 1e300, True),
        (lambda x: x * LINE, lambda x: 1e-200 * (x * LINE > 1.0), 1.0, True),
    ],
    ids=["alike", "small", "divided", "large", "tails", "zero", "zeros"],
)
def test_what_would_be_lost_to_the_order_is_refused(one, other, scale, is_usable):
    sliced = Sliced((weighted(one, other), (np.linspace(0.7, 1.0, NUM), scale)), 1)
    assert made(sliced.plan) == []
    for row, value in ((3, 0.9), (7, 0.75)):
        assert sliced.change(np.array([row]), value) is is_usable
    if is_usable:
        sliced.check(terms=30.0)


@pytest.mark.parametrize(
    ("last", "is_usable"),
    [
        # 1e-400 is lost, whatever comes after it.
        (lambda product, x: product * (1e100 * x), False),
        # Of one place alone, which is what matters in the end.
        (lambda product, x: product / jnp.where(LINE > 0.51, 1.0, 1e-300 * x), False),
        (lambda product, x: product / jnp.where(LINE > 0.51, 1.0, 1e300 * x), True),
    ],
    ids=["multiplied", "divided", "divided away"],
)
def test_what_was_lost_is_multiplied_by_what_comes_after(last, is_usable):
    faint = lambda x, other: jnp.where(LINE > 0.51, other, 1e-200) * x

    def fun(x, scale):
        u = scale * jnp.sum(x[:, None] * LINE, axis=0)
        rows = x[:, None]
        other = 1e-145 if np.shape(last(1.0, 1.0)) else 1e-200
        return jnp.sum(last(u[None] * faint(rows, other) * faint(rows, other), rows), axis=1)

    sliced = Sliced((fun, (np.linspace(0.7, 1.0, NUM), 1e200)), 1)
    assert made(sliced.plan) == []
    assert sliced.change(np.array([3]), 0.9) is is_usable
    if is_usable:
        sliced.check(terms=30.0)


def test_rows_of_the_places_that_are_summed_over():
    """Of u all, of what it multiplies a column."""
    table = np.linspace(0.1, 2.0, 7)[:, None]

    def fun(x, scale):
        return jnp.sum(jax.nn.softmax(scale * x)[None] * jnp.sin(x * table), axis=1)

    sliced = Sliced((fun, (np.linspace(0.1, 1.0, NUM), 1.5)), 1)
    shapes = [eqn.outvars[0].aval.shape for eqn in sliced.plan.eqns]
    assert shapes.count((7, NUM)) == 1  # a column is written
    for row, value in ((3, 0.9), (7, 0.75)):
        sliced.change(np.array([row]), value)
        sliced.check(terms=30.0)


def test_what_a_row_has_lost_is_kept_for_it():
    """Row 3 loses all, until it is written anew; the others nothing."""
    faint = lambda x: jnp.where(x < 0.5, 1e-200, 1.0) * LINE
    sliced = Sliced((weighted(faint, faint), (np.linspace(0.7, 1.0, NUM), 1e200)), 1)
    assert sliced.change(np.array([3]), 0.1) is False
    assert sliced.change(np.array([5]), 0.8) is False
    assert sliced.change(np.array([3]), 0.6) is True
    sliced.check(terms=30.0)


def test_what_was_put_off_is_made_for_whoever_reads_all_of_it():
    def fun(x, scale):
        u = jnp.sum(jnp.exp(x[:, None] * LINE), axis=0)
        product = (u[None] * jnp.sin(x[:, None] * LINE)) * (x[:, None] * scale)
        return jnp.sum(product, axis=1), jnp.max(product), product

    sliced = Sliced((fun, (np.linspace(0.1, 1.0, NUM), 1.5)), 1)
    for row, value in ((3, 0.9), (7, 0.75)):
        assert sliced.change(np.array([row]), value)
        sliced.check(terms=30.0)


@pytest.mark.parametrize("name", CHANGED)
def test_single_precision_too(name):
    fun, args = CHANGED[name]
    small = jax.tree.map(lambda x: np.asarray(x, np.float32), args)
    with jax.enable_x64(False):
        sliced = Sliced((lambda *args: fun(*args), small), 1)
        assert made(sliced.plan) == []
        for row, value in ((3, small[0][4]), (7, small[0][5])):
            assert sliced.change(np.array([row]), value)
            sliced.check(terms=300.0)
