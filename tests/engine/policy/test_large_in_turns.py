"""Kinds of change that come in turns in a function that is too large for segments: what one leaves
stale, most others load.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax

NUM_TIPS = 8
NUM_BRANCHES = 2 * NUM_TIPS - 2
TIPS = np.eye(4)[np.random.default_rng(2).integers(4, size=(NUM_TIPS, 600))]
UNTIMED = incrax.Tuning(timed=False, compile_s=1e9)


def pruning(lengths):
    """Felsenstein's likelihood of a tree: the change of one branch reaches those below it, and the
    scale of each of these is a term of one sum over the sites.
    """
    parts = list(TIPS)
    branch = 0
    log_scale = 0.0
    while len(parts) > 1:
        joined = []
        for left, right in zip(parts[::2], parts[1::2], strict=True):
            up = (left @ transition(lengths[branch])) * (right @ transition(lengths[branch + 1]))
            scale = up.sum(axis=1, keepdims=True)
            log_scale = log_scale + jnp.log(scale[:, 0])
            joined.append(up / scale)
            branch += 2
        parts = joined
    return jnp.sum(log_scale + jnp.log(parts[0].mean(axis=1)))


def transition(length):
    decay = jnp.exp(-4.0 / 3.0 * length)
    return 0.25 * (1.0 - decay) + decay * jnp.eye(4)


JITTED = jax.jit(pruning)


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_DIVIDED_EQNS", 10)


def in_turns(num, changing=tuple(range(NUM_BRANCHES))):
    """So many calls, in each of which the next branch is another."""
    lengths = [0.1 + 0.01 * k for k in range(NUM_BRANCHES)]
    yield lengths
    for number in range(num):
        lengths = list(lengths)
        lengths[changing[number % len(changing)]] = 0.1 + 0.02 * (number % 17)
        yield lengths


def checked(ours, calls):
    """What is counted in these calls, which are compared with plain JAX."""
    before = ours.stats.as_dict()
    for lengths in calls:
        same(ours(lengths), JITTED(lengths), factor=2**12)
    after = ours.stats.as_dict()
    return {name: after[name] - before[name] for name in after}


def served(changing=tuple(range(NUM_BRANCHES)), tuning=UNTIMED, function=pruning):
    ours = incrax.incremental(function, tuning=tuning)
    checked(ours, in_turns(6 * len(changing), changing))
    return ours


def planner(ours):
    return ours._traces.latest.engine.planner


@pytest.fixture(scope="module")
def settled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("incrax.engine.policy.planner.MAX_DIVIDED_EQNS", 10)
        yield served()


def test_nothing_is_stale_as_each_saves_what_others_load(settled):
    counted = checked(settled, in_turns(4 * NUM_BRANCHES))
    num_calls = counted["calls"] - 1
    assert counted["filled"] == 0
    assert counted["compiles"] == 0
    assert counted["ran"] < 0.5 * num_calls * len(planner(settled).facts.eqns)
    assert settled.explain().as_dict()["served_by"] == "plan"


def test_no_sum_that_others_leave_stale_is_loaded(settled):
    facts = planner(settled).facts
    entries = [e for e in planner(settled).entries.values() if e.program is not None]
    assert len(entries) >= NUM_BRANCHES
    assert sum(bool(entry.program.plan.saves) for entry in entries) >= NUM_BRANCHES - 2
    for entry in entries:
        assert not any(var in facts.derived.recipes for var in entry.program.plan.loads)


def test_branches_of_one_depth_share_a_program(settled):
    programs = [e.program for e in planner(settled).entries.values() if e.program is not None]
    families = {id(program.executable.family) for program in programs}
    assert len(families) <= NUM_BRANCHES // 2


def test_those_that_have_not_come_yet_are_planned_for():
    """Of the other half nothing more is to be saved, and a program is there."""
    ours = served(changing=tuple(range(0, NUM_BRANCHES, 2)))
    assert len(planner(ours).turns) >= NUM_BRANCHES
    wanted = dict(planner(ours).segments.wanted)
    checked(ours, in_turns(3 * NUM_BRANCHES))
    assert dict(planner(ours).segments.wanted) == wanted
    assert checked(ours, in_turns(NUM_BRANCHES))["filled"] == 0


def test_elements_of_one_array_are_alike_too():
    ours = incrax.incremental(lambda x: pruning(x), tuning=UNTIMED)
    lengths = np.linspace(0.1, 0.3, NUM_BRANCHES)
    for number in range(40):
        lengths = lengths.copy()
        lengths[2 * number % (NUM_BRANCHES - 4)] += 0.01
        same(ours(lengths), JITTED(list(lengths)), factor=2**12)
    assert len([mask for mask in planner(ours).turns if mask.bit_count() == 1]) == NUM_BRANCHES


def test_after_all_changed_the_whole_function_saves_what_plans_load(settled):
    checked(settled, in_turns(NUM_BRANCHES))
    segments = planner(settled).segments
    assert segments.priming is not None
    runs = segments.priming.num_runs
    moved = [0.35 + 0.01 * k for k in range(NUM_BRANCHES)]
    same(settled(moved), JITTED(moved), factor=2**12)
    assert settled.explain().as_dict()["served_by"] == "priming"
    assert segments.priming.num_runs == runs + 1
    one = [*moved[:3], 0.5, *moved[4:]]
    counted = checked(settled, [one])
    assert counted["filled"] == 0
    assert settled.explain().as_dict()["served_by"] == "plan"


def test_it_saves_nothing_while_nobody_reads_it(settled):
    segments = planner(settled).segments
    checked(settled, in_turns(NUM_BRANCHES))
    runs = segments.priming.num_runs
    for k in range(4):
        settled([0.2 + 0.01 * k + 0.001 * j for j in range(NUM_BRANCHES)])
    assert settled.explain().as_dict()["served_by"] == "whole"
    assert segments.priming.num_runs == runs + 1


def test_what_is_stale_after_that_is_computed_by_the_whole_function(settled, monkeypatch):
    segments = planner(settled).segments
    monkeypatch.setattr(segments, "compiling_s", lambda _: 1e9)
    monkeypatch.setattr(settled._traces.latest.engine.chooser, "decide_fill", lambda *_: True)
    programs = dict(segments._programs)
    for k in range(3):  # what the first of them saves is read by none
        lengths = [0.4 + 0.01 * k + 0.001 * j for j in range(NUM_BRANCHES)]
        settled(lengths)
    assert settled.explain().as_dict()["served_by"] == "whole"
    lengths = [*lengths[:-1], 0.7]
    foretold = settled.explain(lengths).as_dict()["served_by"]
    checked(settled, [lengths])
    assert settled.explain().as_dict()["served_by"] == foretold == "priming"
    assert segments._programs == programs
    assert checked(settled, [[*lengths[:5], 0.6, *lengths[6:]]])["filled"] == 0


def test_groups_get_programs_once_it_took_longer_in_their_place(settled):
    segments = planner(settled).segments
    groups = [group for group in segments.groups.values() if group not in segments._programs][:2]
    took_s = segments.compiling_s(groups)
    assert took_s > 0.0
    segments.primed_s = 0.99 * took_s
    assert segments.stand_in(groups) is segments.priming
    segments.primed_s = 1.01 * took_s
    assert segments.stand_in(groups) is None
    segments.program(groups[0])
    assert segments.primed_s == 0.0


def test_what_leaves_each_other_fresh_is_planned_for_one_by_one():
    """Sums by themselves, each with two parameters of its own."""
    x = np.linspace(0.1, 2.0, 20_000)

    def function(theta):
        return [
            jnp.sum(jnp.exp(-a * x) * jnp.sin(b * x))
            for a, b in zip(theta[::2], theta[1::2], strict=True)
        ]

    jitted = jax.jit(function)
    ours = incrax.incremental(function, tuning=UNTIMED)
    for lengths in in_turns(60):
        same(ours(lengths), jitted(lengths), factor=2**12)
    assert planner(ours).are_in_turns
    assert planner(ours).num_programs > 0
    assert planner(ours).turns == ()


def test_what_is_derived_is_not_saved_by_the_whole_function():
    """Whether it may be used is not known before it was looked at; its programs do."""
    x = np.linspace(0.1, 2.0, 20_000)

    def function(theta):
        total = sum(jnp.exp(-t * x) * jnp.sin(t * x) for t in theta)
        return jnp.sum(jnp.log(jnp.abs(total) + 1.0))

    gradient = jax.value_and_grad(function)
    jitted = jax.jit(gradient)
    ours = incrax.incremental(gradient, tuning=UNTIMED)
    for k, lengths in enumerate(in_turns(60)):
        if k % 20 == 10:
            lengths = [-400.0, *lengths[1:]]
        same(ours(lengths), jitted(lengths), factor=2**14)
    segments = planner(ours).segments
    derived = set(planner(ours).facts.derived.recipes)
    assert segments.priming is not None
    assert derived
    assert not set(segments.priming.plan.saves) & derived


def test_no_more_are_planned_for_at_once_than_take_a_second(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_KIN_EQNS", 1)
    ours = served()
    assert len(planner(ours).turns) == 1
    programs = [entry.program for entry in planner(ours).entries.values()]
    assert sum(program is not None for program in programs) >= NUM_BRANCHES


CALLS = st.lists(
    st.tuples(
        st.lists(st.integers(0, NUM_BRANCHES - 1), min_size=1, max_size=3),
        st.floats(0.05, 0.9),
        st.booleans(),
    ),
    max_size=20,
)


@examples(1)
@given(CALLS)
def test_any_calls_equal_jit(settled, calls):
    """Several branches at a time, from the last point or again from the one before it."""
    lengths = before = next(in_turns(0))
    for numbers, value, is_from_before in calls:
        lengths, before = list(before if is_from_before else lengths), lengths
        for number in numbers:
            lengths[number] = value + 0.01 * number
        same(settled(lengths), JITTED(lengths), factor=2**12)


@pytest.mark.parametrize("seed", range(2))
def test_any_learning_is_right(seed):
    rng = np.random.default_rng(seed)
    gradient = jax.value_and_grad(pruning)
    jitted = jax.jit(gradient)
    ours = incrax.incremental(gradient, tuning=EAGER)
    lengths = next(in_turns(0))
    for _ in range(40):
        proposed = list(lengths)
        for number in rng.choice(NUM_BRANCHES, rng.integers(1, 3), replace=False):
            proposed[number] = float(rng.uniform(0.05, 0.5))
        same(ours(proposed), jitted(proposed), factor=2**14)
        lengths = proposed if rng.uniform() < 0.5 else lengths
