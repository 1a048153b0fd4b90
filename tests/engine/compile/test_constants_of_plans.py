"""What a plan makes of closed-over constants alone is a constant of its program, made once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same

import incrax
from incrax.engine.compile.executables import _folded

ROWS = np.random.default_rng(1).normal(size=(6, 20_000))
TINY = np.full((6, 20_000), 1e-310)


def by_rows(data):
    """A term for each row of closed-over data, which is read by a number that is known."""
    return lambda a, b: sum(
        jnp.sum(jnp.sin(jnp.asarray(data)[k] * b[k] + a)) for k in range(len(data))
    )


def plans_of(ours):
    programs = [e.program for e in ours._traces.latest.engine.chooser.entries.values()]
    return [program.executable for program in programs if program is not None]


def served(function, num=3):
    """The latest function, and the programs of its plans."""
    ours = incrax.incremental(function, tuning=EAGER)
    b = np.arange(1.0, 7.0)
    for k in range(num):
        for number in range(3):
            b = b.copy()
            b[number] += 0.5
            same(ours(0.3, b), jax.jit(function)(0.3, b), factor=2**12)
            same(ours(0.3 + k, b), jax.jit(function)(0.3 + k, b), factor=2**12)
    return ours, plans_of(ours)


def test_rows_of_closed_over_data_are_constants():
    _, plans = served(by_rows(ROWS))
    shapes = [np.shape(x) for plan in plans for x in plan.constants]
    assert (20_000,) in shapes
    assert (6, 20_000) not in shapes  # which each call would cut
    for plan in plans:
        rows = [x for x in plan.constants if np.shape(x) == (20_000,)]
        assert all(any(np.array_equal(x, row) for row in ROWS) for x in rows)


def test_they_are_made_once():
    """Plans that read the same row have the same array."""
    ours, plans = served(by_rows(ROWS))
    rows = [x for plan in plans for x in plan.constants if np.shape(x) == (20_000,)]
    assert len({id(x) for x in rows}) <= len(ROWS)
    constants = ours._traces.latest.engine.chooser.compiler.compiler.constants
    made = [x for x in constants.values() if np.shape(x) == (20_000,)]
    assert len(made) <= len(ROWS)


def test_what_numpy_may_give_otherwise_stays_in_the_program():
    """Logarithms, subnormal numbers, which XLA may flush, and what is larger than what it is made of."""
    logs = lambda a, b: jnp.sum(jnp.sin(jnp.log(jnp.abs(jnp.asarray(ROWS)[1])) * b[0] + a)) + b[1]
    joined = lambda: jnp.concatenate([jnp.asarray(ROWS)[k] for k in range(3)])
    tiled = lambda a, b: jnp.sum(jnp.sin(joined() * b[0] + a))
    for function in (logs, by_rows(TINY), tiled):
        _, plans = served(function)
        shapes = {np.shape(x) for plan in plans for x in plan.constants}
        assert (60_000,) not in shapes
        made = [x for plan in plans for x in plan.constants if np.shape(x) == (20_000,)]
        assert all(any(np.array_equal(x, row) for row in ROWS) for x in made)


def test_what_is_larger_than_what_it_is_made_of_stays_in_the_program():
    rows = lambda: [jnp.asarray(ROWS)[k] for k in range(3)]
    ours = incrax.incremental(lambda a: jnp.sum(jnp.sin(jnp.concatenate(rows()) * a)))
    for a in (1.0, 2.0):
        ours(a)
    engine = ours._traces.latest.engine
    folded = {}
    for eqn in engine.facts.eqns:
        value = _folded(eqn, {**engine.chooser.compiler.compiler.constants, **folded})
        if value is not None:
            folded[eqn.outvars[0]] = value
    assert {value.shape for value in folded.values()} == {(1, 20_000), (20_000,)}


def test_windows_that_overlap_stay_in_the_program():
    """Of 40 lags of an array each would be as long as that."""
    data = np.random.default_rng(3).normal(size=20_000)
    lagged = lambda a, b: sum(
        jnp.sum(jnp.sin(jnp.asarray(data)[lag : lag + 19_900] * b[lag % 6] + a))
        for lag in range(40)
    )
    _, plans = served(lagged)
    assert plans
    assert any(np.shape(x) == (20_000,) for plan in plans for x in plan.constants)
    assert not any(np.shape(x) == (19_900,) for plan in plans for x in plan.constants)


def test_programs_together_make_no_more_of_them(monkeypatch):
    """Each of six reads one row, which is a sixth of all; two rows are what may be made here."""
    monkeypatch.setattr("incrax.engine.compile.executables.MAX_FOLDED", 0.6)
    ours = incrax.incremental(by_rows(ROWS), tuning=EAGER)
    b = np.arange(1.0, 7.0)
    ours(0.3, b)
    for number in (0, 1, 2, 3, 4, 5) * 3:
        b = b.copy()
        b[number] += 0.5
        same(ours(0.3, b), jax.jit(by_rows(ROWS))(0.3, b), factor=2**12)
    constants = ours._traces.latest.engine.chooser.compiler.compiler.constants
    made = sum(x.nbytes for x in constants.values() if np.shape(x) == (20_000,))
    assert 0 < made <= 0.6 * ROWS.nbytes


def test_keys_are_no_numbers():
    keys = jax.random.split(jax.random.key(3), 6)
    drawn = lambda a, b: sum(
        jnp.sum(jax.random.normal(keys[k], (20_000,)) * b[k] + a) for k in range(6)
    )
    served(drawn)


def test_a_row_that_is_a_result_is_one():
    function = lambda a, b: (jnp.asarray(ROWS)[2], jnp.sum(jnp.asarray(ROWS)[2] * a) + b[0])
    ours, _ = served(function)
    same(ours(9.0, np.ones(6)), jax.jit(function)(9.0, np.ones(6)), factor=2**12)


@pytest.mark.parametrize("width", [1, 2, 4, 20])
def test_rows_of_any_size_leave_programs_shared(width):
    """A small one that the function closes over is written into its program; a row is not."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(500, width)))
    x = jnp.linspace(0.1, 1.0, 2_000)
    model = lambda p: sum(jnp.sum(jnp.exp(p[k] * x[:, None] * table[k])) for k in range(8))
    ours = incrax.incremental(model)
    p = [1.0 + 0.1 * k for k in range(8)]
    ours(p)
    ours.warm_up(p, changing=[f"p[{k}]" for k in range(8)])
    plans = plans_of(ours)
    assert len(plans) > 2
    assert len({id(plan.family) for plan in plans}) <= 3
