"""Kinds of change that come in turns share what is compiled: segments, and the program from what these
save to the outputs.
"""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.policy import expectations

X = np.linspace(0.1, 2.0, 30_000)
NUM_TERMS = 5
START = {name: np.linspace(0.5, 1.5, NUM_TERMS) + 0.1 * k for k, name in enumerate("ab")}


def terms(theta, x):
    """A sum of terms in a loop of Python, each with two parameters of its own."""
    total = 0.0
    for a, b in theta:
        total = total + jnp.exp(-a * x) * jnp.sin(b * x)
    return jnp.sum(jnp.log(jnp.abs(total) + 1.0))


GRADIENT = jax.value_and_grad(terms)
JITTED = jax.jit(GRADIENT)


def in_turns(num, changing=tuple(range(2 * NUM_TERMS))):
    """So many calls, in each of which the next parameter is another."""
    theta = start = [[float(a), float(b)] for a, b in zip(*START.values(), strict=True)]
    yield theta
    for number in range(num):
        term, which = divmod(changing[number % len(changing)], 2)
        changed = list(theta[term])
        changed[which] = start[term][which] + 0.01 * (1 + number % 7)
        theta = [*theta[:term], changed, *theta[term + 1 :]]
        yield theta


def called(calls, **options):
    ours = incrax.incremental(GRADIENT, **options)
    for theta in calls:
        same(ours(theta, X), JITTED(theta, X), factor=2**14)
    return ours


def chooser(ours):
    return ours._traces.latest.engine.chooser


UNTIMED = incrax.Tuning(timed=False, compile_s=1e9)


def test_they_are_served_by_segments_and_get_no_programs_of_their_own():
    ours = called(in_turns(60), tuning=UNTIMED)
    assert chooser(ours).planner.divides
    assert chooser(ours).planner.num_programs == 0
    assert ours.explain().as_dict()["served_by"] == "segments"
    compiled = ours.stats.compiles
    for theta in in_turns(40):
        same(ours(theta, X), JITTED(theta, X), factor=2**14)
    assert ours.stats.compiles == compiled


@pytest.mark.parametrize(("which", "expected"), [(0, ["exp"]), (1, ["cos", "sin"])])
def test_only_the_term_that_changed_is_computed_anew(which, expected):
    engine = called(in_turns(60), tuning=UNTIMED)._traces.latest.engine
    segments = engine.chooser.segments
    route = segments.route(engine.layout.leaf_mask(2 * 3 + which))
    plans = [segments.top_plan(), *map(segments.plan, route.groups)]
    names = [eqn.primitive.name for plan in plans for eqn in plan.eqns]
    assert sorted({"exp", "cos", "sin"} & set(names)) == expected
    assert sum(name in expected for name in names) == len(expected)


def test_one_program_serves_the_segments_of_terms_that_are_alike():
    ours = called(in_turns(60), tuning=UNTIMED)
    segments = chooser(ours).segments
    programs = [*segments._programs.values()]
    families = {id(program.executable.family) for program in programs}
    assert len(programs) >= 2 * NUM_TERMS
    assert len(families) <= len(programs) - 2 * (NUM_TERMS - 2)


@pytest.mark.parametrize("num_companions", [2, 16])
def test_what_the_first_had_saved_serves_the_others(num_companions, monkeypatch):
    """Each is planned for once, and needs no credit where all that it loads is there."""
    monkeypatch.setattr("incrax.engine.policy.learning_costs.MIN_COMPILE_S", 0.05)
    monkeypatch.setattr("incrax.engine.policy.planner.NUM_COMPANIONS", num_companions)
    ours = called(in_turns(200), tuning=incrax.Tuning(timed=False, compile_s=0.8))
    entries = chooser(ours).entries
    masks = map(chooser(ours).facts.layout.leaf_mask, range(2 * NUM_TERMS))
    assert {entries[mask].candidate for mask in masks} == {"segments"}
    assert chooser(ours).planner.num_planned <= 2 * NUM_TERMS + 1


def test_what_segments_would_not_gain_is_not_divided(monkeypatch):
    """Each of them takes some time to be started, which a plan for one kind does not show."""
    monkeypatch.setattr("incrax.engine.policy.planner.SEGMENTS_S", 1.0)
    ours = called(in_turns(60), tuning=UNTIMED)
    assert ours.stats.compiles == 1
    reasons = {entry.reason for entry in chooser(ours).entries.values()}
    assert any(reason.startswith("nothing to win: segments estimated") for reason in reasons)


def test_one_kind_alone_has_a_program_of_its_own():
    ours = called(in_turns(60, changing=(3,)), tuning=UNTIMED)
    assert not chooser(ours).planner.divides
    assert chooser(ours).planner.num_programs == 1


@pytest.fixture(scope="module")
def divided():
    return called(in_turns(60), tuning=UNTIMED)


def long_ways(monkeypatch, ours):
    """The calls that compare with all versions, from now on."""
    seen = []
    baselines = ours._traces.latest.engine.baselines
    ranked = baselines.ranked
    monkeypatch.setattr(baselines, "ranked", lambda pairs: seen.append(1) or ranked(pairs))
    return seen


def counted(ours, calls):
    """What is counted in these calls."""
    before = ours.stats.as_dict()
    for theta in calls:
        same(ours(theta, X), JITTED(theta, X), factor=2**14)
    after = ours.stats.as_dict()
    return {name: after[name] - before[name] for name in ("calls", "ran", "loaded", "filled")}


def test_calls_by_segments_go_the_short_way_and_count_as_the_long_one(divided, monkeypatch):
    calls = list(in_turns(200))[61:]
    for theta in calls[:20]:
        divided(theta, X)
    seen = long_ways(monkeypatch, divided)
    short = counted(divided, calls[20:40])
    assert len(seen) <= 4  # one call in sixteen of each kind
    assert divided.explain().as_dict()["served_by"] == "segments"
    repeats = divided._traces.latest.engine.repeats.by_kind
    with monkeypatch.context() as patch:
        patch.setattr(type(repeats[min(repeats)]), "applies", lambda repeat: False)
        long = counted(divided, calls[40:60])
    assert len(seen) >= 20
    assert short == long


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2 * NUM_TERMS - 1), min_size=1, max_size=2),
        st.sampled_from([0.7, 0.9, 1.1, float("nan")]),
        st.booleans(),
    ),
    max_size=20,
)


@examples(1)
@given(STEPS)
def test_any_calls_by_segments_equal_jit(divided, steps):
    """Single numbers and pairs of them, from the last point or from the one before that again."""
    theta = before = next(in_turns(0))
    for numbers, value, is_from_before in steps:
        theta, before = [list(pair) for pair in (before if is_from_before else theta)], theta
        for number in numbers:
            theta[number // 2][number % 2] = value
        same(divided(theta, X), JITTED(theta, X), factor=2**14)


def test_what_another_version_had_is_not_taken_from_the_one_before_in_a_repeated_call(divided):
    """The third point has two numbers of the first, two of the second: what depends on these alone is
    found there, and was not computed.
    """
    first = next(in_turns(0))
    for k in range(6):
        second = [[a + 0.01 * k + 0.05, b + 0.01 * k + 0.07] for a, b in first[:2]] + first[2:]
        third = [second[0], *first[1:]]
        for theta in (first, second, third):
            same(divided(theta, X), JITTED(theta, X), factor=2**14)
        first = [*first[:3], [first[3][0] + 0.01, first[3][1]], first[4]]


def test_what_was_lost_is_computed_by_the_long_way(divided, monkeypatch):
    theta, after = list(in_turns(100))[-2:]
    for _ in range(3):
        divided(theta, X)
    divided._traces.latest.engine.clear_saved()
    same(divided(after, X), JITTED(after, X), factor=2**14)
    for state in divided._traces.latest.engine.store.states:
        for x in state.saved.values():
            x.delete()
    same(divided(theta, X), JITTED(theta, X), factor=2**14)


def test_what_is_asked_for_has_a_program_of_its_own():
    ours = incrax.incremental(GRADIENT, tuning=UNTIMED)
    (theta,) = in_turns(0)
    ours.warm_up(theta, X, changing=[f"theta[{k}][1]" for k in range(NUM_TERMS)])
    assert chooser(ours).planner.num_programs > 0
    assert not chooser(ours).planner.divides


def test_a_large_function_is_not_divided(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_DIVIDED_EQNS", 10)
    ours = called(in_turns(60), tuning=UNTIMED)
    assert not chooser(ours).planner.divides
    assert chooser(ours).planner.num_programs > 0


def test_the_next_process_divides_at_once(known_prices, monkeypatch, tmp_path):
    gc.collect()
    monkeypatch.delenv("INCRAX_REMEMBER")
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(expectations, "_living", {})
    monkeypatch.setattr(expectations, "_pending", {})
    tuning = incrax.Tuning(compile_s=1e9)
    first = called(in_turns(60), tuning=tuning)
    assert chooser(first).planner.divides
    chooser(first).whole.seconds = 10.0
    for entry in chooser(first).entries.values():
        entry.settle("segments", "")
        entry.seconds = {"segments": 1.0}
    expectations.write()
    again = called(in_turns(4), tuning=tuning)
    assert chooser(again).planner.divides
    assert chooser(again).planner.num_programs == 0


def test_the_last_program_has_products_of_matrices():
    """Of rows that depend on one term's parameters; it sums nothing else over the data but the value."""
    ours = called(in_turns(60), tuning=UNTIMED)
    top = chooser(ours).segments.top_plan()
    names = [eqn.primitive.name for eqn in top.eqns]
    sums = [eqn for eqn in top.eqns if eqn.primitive.name == "reduce_sum"]
    assert names.count("dot_general") == NUM_TERMS
    assert [eqn.invars[0].aval.shape for eqn in sums] == [X.shape]
    assert top.guard is not None


def test_results_out_of_the_range_of_products_are_those_of_the_whole():
    """Where a guard is false."""
    ours = called(in_turns(60), tuning=UNTIMED)
    theta = [[-400.0, 1.0], *list(in_turns(0))[0][1:]]
    same(ours(theta, X), JITTED(theta, X), factor=2**14)


@pytest.mark.parametrize("seed", range(4))
def test_any_changes_in_any_order_are_right(seed):
    """One or several parameters, refused proposals among them."""
    rng = np.random.default_rng(seed)
    ours = incrax.incremental(GRADIENT, tuning=EAGER)
    theta = next(in_turns(0))
    for _ in range(60):
        proposed = [list(pair) for pair in theta]
        for number in rng.choice(2 * NUM_TERMS, rng.integers(1, 4), replace=False):
            proposed[number // 2][number % 2] += 0.05 * rng.normal()
        same(ours(proposed, X), JITTED(proposed, X), factor=2**14)
        theta = proposed if rng.uniform() < 0.5 else theta
