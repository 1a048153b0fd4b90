"""What a first plan loads is computed by one program where it would take many."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.engine.call import rehearsal
from incrax.engine.compile.timing import usual_s
from incrax.engine.policy.segments import MIN_JOINT
from incrax.engine.store.saved_values import SavedValues

X = np.linspace(0.1, 2.0, 5000)


def terms(a, b, x):
    """As many values to be saved as `b` has elements; each depends on its own."""
    found = [jnp.tanh(jnp.exp(-b[k] * x)) for k in range(b.shape[0])]
    return sum(jnp.sum(jnp.abs(y - a)) for y in found)


def segments(ours):
    return ours._traces.latest.engine.segments


def filled(num_terms):
    """A function, and its arguments, after calls that change `a` until values were filled."""
    ours = incrax.incremental(terms, tuning=incrax.Tuning(compile_s=math.inf))
    b = np.linspace(0.5, 1.5, num_terms)
    for number in range(200):  # one slow look puts off the next ones
        same(ours(float(number), b, X), jax.jit(terms)(float(number), b, X))
        if ours.explain().as_dict()["filled"]:
            return ours, b
    raise AssertionError("no values were filled")


@pytest.mark.parametrize(("num_terms", "num_joint"), [(2, 0), (3 * MIN_JOINT, 1)])
def test_many_are_filled_by_one_program(num_terms, num_joint):
    ours, b = filled(num_terms)
    assert len(segments(ours).groups) == num_terms
    assert len(segments(ours)._joint) == num_joint
    assert (ours.stats.compiles < num_terms) is bool(num_joint)
    for k in range(num_terms):
        b[k] += 0.25
        same(ours(3.0, b, X), jax.jit(terms)(3.0, b, X))
    assert len(segments(ours)._joint) == num_joint


def test_what_was_foretold_is_what_is_filled():
    ours, b = filled(3 * MIN_JOINT)
    engine = ours._traces.latest.engine
    did = engine.last
    assert len(did.filled) == 3 * MIN_JOINT
    assert len(did.before) == 1
    engine.clear_saved()
    for number in range(2):
        ours(30.0 + number, b, X)  # where saved values are gone, the same program has them again
    again = engine.last
    for state in engine.store.states:
        state.saved = {}
    values = engine.comparison.resolve([40.0, b, X], [0])
    pairs = engine.baselines.ranked(engine.comparison.pairs(values))
    foretold = rehearsal._record(engine, pairs, is_bypassed=False)
    assert again.entry.candidate == foretold.candidate == "plan"
    assert set(foretold.filled) == set(did.filled)
    assert foretold.before == did.before
    assert len(segments(ours)._joint) == 1


def test_what_a_change_reaches_is_left_to_the_segments():
    ours, b = filled(3 * MIN_JOINT)
    engine = ours._traces.latest.engine
    engine.clear_saved()
    ours(30.0, b, X)
    segments(ours)._joint.clear()
    leaves = [30.0, b + 1.0, X]
    values = engine.comparison.resolve(leaves, [1])
    pairs = engine.baselines.ranked(engine.comparison.pairs(values))
    dirty = pairs[-1][1]
    SavedValues(engine.chooser, engine.comparison, pairs, dirty, values).fill(
        segments(ours).top_plan().loads
    )
    assert segments(ours)._joint == {}


def test_the_exact_policy_computes_each_by_its_own():
    ours = incrax.incremental(terms, policy="exact")
    b = np.linspace(0.5, 1.5, 3 * MIN_JOINT)
    for a in (1.0, 2.0):
        ours(a, b, X)
    assert segments(ours)._joint == {}


# --- who left values stale ------------------------------------------------------------------------


def test_a_version_knows_which_change_left_its_saved_values_stale():
    """`b` reaches all that is saved, and the whole function ran; then `a`, which reaches nothing."""
    x = np.linspace(0.1, 2.0, 300)
    ours = incrax.incremental(lambda a, b: a * jnp.sum(jnp.exp(-b * x)))
    for args in ((1.0, 0.5), (1.0, 0.6), (2.0, 0.6)):
        ours(*args)
    engine = ours._traces.latest.engine
    first, of_b, of_a = (engine.facts.layout.full, *map(engine.facts.layout.leaf_mask, (1, 0)))
    assert [state.culprit for state in engine.store.states][-2:] == [of_b, of_a]
    assert first not in (of_a, of_b)


def test_who_left_values_stale_bears_what_they_cost_later_calls():
    x = np.linspace(0.1, 2.0, 300)
    ours = incrax.incremental(lambda a, b: a * jnp.sum(jnp.exp(-b * x)))
    for args in ((1.0, 0.5), (1.0, 0.6), (2.0, 0.6)):
        ours(*args)
    chooser = ours._traces.latest.engine.chooser
    of_a, of_b = (chooser.entries[chooser.facts.layout.leaf_mask(leaf)] for leaf in (0, 1))
    saved = chooser.facts.eqns[-2].outvars[0]
    chooser.segments.want([saved])
    of_a.is_final = of_b.is_final = True
    chooser.regret_s = math.inf
    assert chooser.decide_fill(of_a, [saved], [], of_b)
    assert of_b.blame_s > 0
    assert not of_b.is_final
    assert (of_a.blame_s, of_a.is_final) == (0.0, True)


def test_groups_with_the_same_operations_are_compiled_for_once():
    """The first ones are a part of what was decided to save."""
    x = np.linspace(0.1, 2.0, 300)

    def sums(a):
        total = sum(jnp.sum(jnp.exp(-b * x)) for b in a[:3])
        return total + sum(jnp.sum(jnp.sin(b * x)) for b in a[3:])

    ours = incrax.incremental(sums)
    for number in range(3):
        ours([1.0 + number, 2.0, 3.0, 4.0, 5.0])
    chooser = ours._traces.latest.engine.chooser
    segments = chooser.segments
    curves = [e.outvars[0] for e in chooser.facts.eqns if e.primitive.name in ("exp", "sin")]
    segments.want(curves)
    groups = [segments.group_of(var) for var in curves]
    assert len(set(groups)) == 5
    assert segments.compiling_s(groups) == 0.0
    segments.program(groups[0])
    assert segments.compiling_s(groups[:3]) == 0.0  # its program serves them all
    one_s = usual_s(len(segments.plan(groups[3]).eqns))
    assert segments.compiling_s(groups) == one_s
