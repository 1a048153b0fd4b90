"""Equations on some rows, for every case of an index rule: run the whole, run some rows, compare."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from incrax import _jax
from incrax._jax import Literal
from incrax._program import trace
from incrax.engine.program.simplify import inline
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import (
    Aligned,
    NotByRowsError,
    aligned_back,
    aligned_by,
    run_on_rows,
)
from incrax.primitives.row_axis import row_verdict
from primitives.cases import BATCHED, CLIP, EXACT, SOUND, numbers
from primitives.test_index_rules import choices

ALL = EXACT | SOUND
PLAIN = lax.GatherDimensionNumbers((1,), (0,), (0,))
ROWS = np.array([1, 0])


def ran(name, cases=ALL):
    """The equations of a case with the values of all variables."""
    fun, *args = cases[name]
    program = inline(trace(fun, *args))
    env = dict(zip(program.invars, map(jnp.asarray, args), strict=True))
    env.update(zip(program.constvars, program.consts, strict=True))
    _jax.evaluate(program.eqns, env)
    return program.eqns, env


def compared(eqn, env, aligned):
    """Whether an equation on two rows gave two rows of what it gives; false where it cannot."""
    operands = zip(eqn.invars, aligned.operands, strict=True)
    values = [(_jax.read(atom, env), axis) for atom, axis in operands]
    some = [x if axis is None else jnp.take(x, ROWS, axis) for x, axis in values]
    try:
        found = run_on_rows(eqn, aligned, len(ROWS), some)
    except NotByRowsError:
        return False
    for var, axis, value in zip(eqn.outvars, aligned.outputs, found, strict=True):
        expected = np.take(numbers(env[var]), ROWS, axis)
        np.testing.assert_allclose(numbers(value), expected, rtol=1e-13, atol=1e-14)
    return True


def axes_of(eqn):
    for number, atom in enumerate(eqn.invars):
        for axis, size in enumerate(() if isinstance(atom, Literal) else shape_of(atom)):
            if size > 1:
                yield [axis if n == number else None for n in range(len(eqn.invars))]


def num_by_rows(name):
    eqns, env = ran(name)
    count = 0
    for eqn in eqns:
        found = [aligned_by(eqn, rows) for rows in axes_of(eqn)]
        shape = shape_of(eqn.outvars[0])
        found += [aligned_back(eqn, axis) for axis, size in enumerate(shape) if size > 1]
        count += sum(compared(eqn, env, each) for each in found if each is not None)
    return count


NONE_BY_ROWS = {
    "pad",
    "dynamic_slice",
    "dynamic_update_slice",
    "reshape",
    "reshape in Fortran order",
    "scatter",
    "scatter that drops",
    "scatter-add",
    "scatter-mul",
    "optimization_barrier",
    "scatter at inputs",
    "scatter-add at inputs",
    "scatter-min",
    "scatter-max",
    "conv of groups",
    "conv of batch groups",
    "rng_bit_generator",
    "jit",
}
"""Cases whose every axis of more than one element is mixed, or cut."""


@pytest.mark.parametrize("name", ALL)
def test_some_rows_of_the_operands_give_those_rows_of_the_results(name):
    assert bool(num_by_rows(name)) is (name not in NONE_BY_ROWS)


TRUE_BY_THE_DATA = {
    ("scatter that drops", "scatter"),  # all is dropped
    ("scatter-min", "scatter-min"),  # what is there is smaller
    ("cholesky", "ge"),  # of the mask of a triangle, which is the same from both sides
    ("cholesky", "select_n"),
    ("select_and_scatter_add", "select_and_scatter_add"),  # all rows of cotangents are ones
}
"""Cases and primitives of which more is true than the rule says."""


@pytest.mark.parametrize("name", ALL)
def test_a_rule_that_said_that_rows_are_apart_where_they_are_not_would_be_noticed(name):
    """Mutants of every rule: each claim about row axes that it does not make, tried out."""
    eqns, env = ran(name)
    for eqn in eqns if name != "jit" else ():
        for ins, outs in choices(eqn):
            if None in outs or row_verdict(eqn, ins, outs) is None:
                continue
            try:
                is_true = compared(eqn, env, Aligned(tuple(outs), tuple(ins)))
            except AssertionError:
                continue
            assert not is_true or (name, eqn.primitive.name) in TRUE_BY_THE_DATA, (
                f"`{eqn.primitive.name}` treats each row by itself along axes {ins} of operands "
                f"and {outs} of results, and its rule does not say so"
            )


def test_rows_of_a_batch_of_look_ups_are_by_rows():
    """Of each row of the batch a window has one, however many rows there are."""
    table = np.arange(12.0).reshape(4, 3)
    places = np.array([[[0], [2]], [[1], [1]], [[2], [0]], [[0], [1]]])
    look_up = lambda x, i: lax.gather(x, i, BATCHED, (1, 1), mode=CLIP)
    (eqn,), env = ran("batch", {"batch": (look_up, table, places)})
    aligned = aligned_by(eqn, [0, None])
    assert aligned == Aligned((0,), (0, 0))
    assert compared(eqn, env, aligned)


def test_of_some_indices_nothing_is_promised_that_is_true_of_all():
    """They are in any order, and may repeat."""
    promises = {"indices_are_sorted": True, "unique_indices": True}
    look_up = lambda x, ids: lax.gather(x, ids, PLAIN, (1, 3), mode=CLIP, **promises)
    x, ids = np.ones((4, 3)), np.array([[0], [1], [3]])
    (eqn,) = trace(look_up, x, ids).eqns
    aligned = aligned_by(eqn, [None, 0])
    (made,) = trace(lambda *values: run_on_rows(eqn, aligned, 2, values), x, ids[[2, 2]]).eqns
    assert not any(made.params[name] for name in promises)


# --- loops ----------------------------------------------------------------------------------------

TURNS = np.random.default_rng(5).normal(size=(4, 3))
START = np.array([1.0, -2.0, 3.0])
LOOPS = {
    "rows are carried": lambda s, x: lax.scan(lambda c, y: (0.5 * c + y, c * y), s, x),
    "a carry is set to zero": lambda s, x: lax.scan(lambda c, y: (jnp.zeros(3), c + y), s, x),
    "a carry is handed on": lambda s, x: lax.scan(lambda c, y: ((c[1], y), c[0] * y), (s, s), x),
    "from the last turn": lambda s, x: lax.scan(
        lambda c, y: (c * y, jnp.sin(c)), s, x, reverse=True
    ),
    # JAX leaves such calls behind, as of `jnp.roll` in a linear solve that it batches.
    "a call that returns nothing": lambda s, x: lax.scan(
        lambda c, y: (jax.jit(lambda _: ())(c), (c * y, c))[1], s, x
    ),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("of", ["start", "turns"])
def test_rows_are_followed_through_a_loop(name, of):
    """Rows of either operand: what is carried and read with them has them too."""
    eqns, env = ran(name, {name: (LOOPS[name], START, TURNS)})
    (eqn,) = [each for each in eqns if each.primitive.name == "scan"]
    *starts, turns = eqn.invars
    rows = [0 if of == "start" else None for _ in starts] + [1 if of == "turns" else None]
    aligned = aligned_by(eqn, rows)
    assert aligned is not None
    assert aligned.outputs == (0,) * len(starts) + (1,)
    assert aligned.operands == (0,) * len(starts) + (1,)
    assert compared(eqn, env, aligned)


@pytest.mark.parametrize(
    "turn",
    [
        lambda c, y: (c + y.sum(), c),
        lambda c, y: (c[::-1] + y, c),
        lambda c, y: (c + y * jnp.arange(3), c),
    ],
    ids=["added up", "reversed", "numbered"],
)
def test_rows_that_meet_inside_a_loop_are_refused(turn):
    eqns, _ = ran("meet", {"meet": (lambda s, x: lax.scan(turn, s, x), START, TURNS)})
    (eqn,) = [each for each in eqns if each.primitive.name == "scan"]
    assert aligned_by(eqn, [None, 1]) is None
