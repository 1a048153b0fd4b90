"""The algorithm in one file: it keeps its own laws, and the engine agrees with it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, examples, same
from hypothesis import example, given
from hypothesis import strategies as st
from properties.programs import START, Program, programs
from properties.timelines import arguments

import incrax
from incrax._program import read_vars, trace, written_vars
from incrax.engine.algorithm import ALWAYS, Incrementally, cut, depend, differing
from incrax.engine.program.simplify import inline

seeds = st.integers(0, 10_000)


def bits(results):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(results)]


@examples(1 / 4)
@given(programs(), seeds)
@example(Program((("inverse", 0, 0), ("atan2", 0, 1), ("sign", 0, 0))), 7)
def test_a_call_has_the_bits_of_a_new_object(program, seed):
    ours = Incrementally(program)
    for args in arguments(START, seed, 5):
        assert bits(ours(*args)) == bits(Incrementally(program)(*args))


@examples(1 / 6)
@given(programs(), seeds)
def test_the_engine_agrees_and_leaves_alone_what_the_algorithm_leaves_alone(program, seed):
    reference, ours, before = (
        Incrementally(program),
        incrax.incremental(program, tuning=MINIMAL),
        None,
    )
    for args in arguments(START, seed, 5):
        expected, got = jax.tree.map(jnp.asarray, reference(*args)), ours(*args)
        same(got, expected)
        ran = {var for eqn in reference.ran for var in written_vars(eqn)}
        for number, atom in enumerate(reference.program.outvars):
            if before is not None and atom not in {*ran, *reference.program.invars}:
                assert bits(got[number]) == bits(before[number])
        before = got


@examples(4 / 5)
@given(programs(), st.sets(st.integers(0, 3)))
def test_a_plan_reads_only_what_is_at_hand(program, changed):
    traced = inline(trace(program, *START))
    plan = cut(traced, depend(traced), {ALWAYS, *changed})
    known = {*traced.invars, *traced.constvars, *plan.loads}
    for eqn in plan.eqns:
        assert known.issuperset(read_vars(eqn))
        known.update(written_vars(eqn))
    assert known.issuperset(plan.saves)


def test_what_a_change_does_not_reach_does_not_run():
    ours = Incrementally(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
    x = jnp.arange(3.0)
    scales = [np.float64(scale) for scale in (2.0, 3.0, 3.0)]
    ours(scales[0], x)
    assert [eqn.primitive.name for eqn in ours.ran] == ["exp", "reduce_sum", "mul"]
    ours(scales[1], x)
    assert [eqn.primitive.name for eqn in ours.ran] == ["mul"]
    ours(scales[2], x)
    assert not ours.ran


def test_effects_run_every_time():
    seen = []

    def noted(x):
        jax.debug.callback(lambda y: seen.append(float(y)), x)
        return x + 1.0

    ours = Incrementally(noted)
    for _ in range(3):
        ours(1.0)
    jax.effects_barrier()
    assert seen == [1.0, 1.0, 1.0]


@pytest.mark.cpu
def test_a_call_that_fails_changes_nothing():
    def host(x):
        if x < 0:
            raise ValueError("negative")
        return np.sqrt(x)

    ours = Incrementally(
        lambda a, b: jax.pure_callback(host, jax.ShapeDtypeStruct((), float), a) + b
    )
    before, saved = ours(4.0, 1.0), dict(ours.saved)
    with pytest.raises(Exception, match="negative"):
        ours(-1.0, 2.0)
    assert ours.saved == saved
    assert float(ours(4.0, 1.0)) == float(before) == 3.0
    assert not ours.ran


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (0.0, -0.0, True),
        (np.nan, np.nan, False),
        (1, 1.0, True),
        (np.float32(1), np.float64(1), True),
        (np.zeros(2), np.zeros((2, 1)), True),
        (jax.random.key(1), jax.random.key(1), False),
        (jax.random.key(1), jax.random.key(2), True),
    ],
)
def test_inputs_are_compared_by_type_and_bits(old, new, differs):
    assert differing([old], [new]) == ({0} if differs else set())


def test_an_array_of_numpy_may_be_written_to():
    ours, x = Incrementally(jnp.sum), np.ones(3)
    ours(x)
    x[0] = 5.0
    assert float(ours(x)) == 7.0
