"""Work grows with the equations, not with their square: calls of functions are counted, no time is
taken.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER
from scipy.sparse import csgraph

import incrax
from incrax._program import evaluated_sparingly, trace
from incrax.engine.call import analysis
from incrax.engine.call.pure import PureFunction
from incrax.engine.compile import timing
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.plan import frontier
from incrax.engine.plan.plan import plan_dirty, plan_fill
from incrax.engine.plan.segmentation import Segmentation
from incrax.engine.policy.materialize import lasting_needs, typical_changes
from incrax.engine.program.cost import Calibration
from incrax.engine.program.dependence import make_layout

pytestmark = pytest.mark.usefixtures("known_prices")

NEAR_LINEAR = 2.2
"""Times the work that twice the equations may need."""

ROWS = np.linspace(0.0, 1.0, 2000)
EAGER_TIMED = incrax.Tuning(compile_s=float("inf"), remember=False)


def chain(params, x, num):
    """Each step reads the one before."""
    y = x
    for k in range(num):
        y = jnp.tanh(y * params[k % len(params)]) + x
    return jnp.sum(y)


def terms(params, x, num):
    """A sum of many terms, all of which are read at its end alone."""
    total = jnp.zeros_like(x)
    for k in range(num):
        total = total + params[k % len(params)] * jnp.exp(-x * (1.0 + k))
    return jnp.sum(jnp.log(total))


def blocks(params, x, num):
    """As many independent chains as there are parameters."""
    total = 0.0
    for p in params:
        y = x
        for _ in range(num // len(params)):
            y = jnp.sin(y * p)
        total = total + jnp.sum(y)
    return total


SHAPES = {"chain": chain, "terms": terms, "blocks": blocks}
FUNCTIONS = {
    **SHAPES,
    **{
        f"gradient of {name}": lambda *args, fun=fun: jax.value_and_grad(fun)(*args)
        for name, fun in SHAPES.items()
    },
}


def traced(fun, num, num_params=8):
    params = [1.0 + 0.01 * k for k in range(num_params)]
    return trace(lambda params, x: jax.tree.leaves(fun(params, x, num)), params, ROWS)


def facts_of(program, prices=None):
    facts = analysis.facts_of(program, incrax.Tuning(), is_exact=True)
    return facts if prices is None else replace(facts, given_prices=prices)


def calls_of(fun, *args):
    """Functions called, in Python and below, while one runs, those of the garbage collector aside;
    and its result.
    """
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        result = fun(*args)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count, result


def plan_changes(facts):
    """Plans for some changes, one after the other, with all segments that they want."""
    full, data = (
        facts.dependence.layout.full,
        facts.dependence.layout.leaf_mask(len(facts.program.invars) - 1),
    )
    segmentation = Segmentation(facts)
    for dirty in (1 << 1, 1 << 2, full & ~data, data):
        segmentation.want(plan_dirty(facts, dirty, wanted=segmentation.wanted).base_loads)
    plan_segments(segmentation)


def plan_segments(segmentation):
    segmentation.top_plan()
    for group in segmentation.groups.values():
        segmentation.plan(group)


def plan_exactly(facts):
    segmentation = Segmentation(facts)
    segmentation.want(lasting_needs(facts, 2 * 10**9))
    plan_segments(segmentation)


# --- twice the equations --------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    """Programs of many windows are small ones."""
    monkeypatch.setattr(frontier, "WINDOW", 100)
    monkeypatch.setattr("incrax.engine.policy.materialize.NUM_TYPICAL", 6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_twice_the_equations_are_twice_the_work_of_analysis(name):
    small, large = (calls_of(facts_of, traced(FUNCTIONS[name], num)) for num in (100, 200))
    assert len(large[1].program.eqns) > 1.7 * len(small[1].program.eqns)
    assert large[0] <= NEAR_LINEAR * small[0]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("plan", [plan_changes, plan_exactly], ids=["fast", "exact"])
def test_twice_the_equations_are_twice_the_work_of_planning(name, plan):
    small, large = (facts_of(traced(FUNCTIONS[name], num)) for num in (200, 400))
    assert calls_of(plan, large)[0] <= NEAR_LINEAR * calls_of(plan, small)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_twice_the_parameters_with_their_equations_are_twice_the_work(name):
    small, large = (facts_of(traced(FUNCTIONS[name], 10 * num, num)) for num in (16, 32))
    assert calls_of(plan_changes, large)[0] <= NEAR_LINEAR * calls_of(plan_changes, small)[0]


def test_segments_of_twice_the_blocks_are_twice_the_work():
    counts = []
    for num in (20, 40):
        segmentation = Segmentation(facts_of(traced(blocks, 10 * num, num)))
        segmentation.want(plan_dirty(segmentation.facts, 1 << 1).base_loads)
        assert len(segmentation.groups) == num - 1
        segmentation.top_plan()
        counts.append(calls_of(plan_segments, segmentation)[0])
    assert counts[1] <= NEAR_LINEAR * counts[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_maximum_flows_are_of_windows(name, monkeypatch):
    sizes = []
    solve = csgraph.maximum_flow
    noted = lambda graph, *ends: sizes.append(graph.shape[0]) or solve(graph, *ends)
    monkeypatch.setattr(csgraph, "maximum_flow", noted)
    totals = []
    for num in (100, 200, 400):
        plan_changes(facts_of(traced(FUNCTIONS[name], num)))
        assert all(size <= 3 * frontier.WINDOW for size in sizes)
        totals.append(sum(sizes))
        sizes.clear()
    assert totals[2] <= NEAR_LINEAR * totals[1] + 3 * frontier.WINDOW


# --- a change of a part ---------------------------------------------------------------------------


class Counted(list):
    """Equations that count how often they are looked at."""

    looks = 0

    def __getitem__(self, index):
        Counted.looks += 1
        return super().__getitem__(index)


def looks_at(facts, plan):
    """Looks at equations of the program while something is planned."""
    listing = facts.listing
    counted = listing._replace(eqns=Counted(listing.eqns), read=Counted(listing.read))
    facts.__dict__["listing"] = counted
    Counted.looks = 0
    plan()
    return Counted.looks


def test_the_segment_of_one_block_looks_at_no_equation_of_the_others():
    looks = []
    for num in (8, 16):
        facts = facts_of(traced(blocks, 50 * num, num))
        sums = [eqn.outvars[0] for eqn in facts.program.eqns if eqn.primitive.name == "reduce_sum"]
        fill = lambda facts=facts, sums=sums: plan_fill(
            facts, sums[:1], frozenset(sums[1:]).__contains__
        )
        looks.append(looks_at(facts, fill))
    assert looks[0] == looks[1] > 50


def test_a_segment_looks_at_two_windows_before_what_it_loads_at_most():
    looks = []
    for num in (200, 400):
        facts = facts_of(traced(chain, num), Calibration(argument_s=1e-5))
        steps = [eqn.outvars[0] for eqn in facts.program.eqns if eqn.primitive.name == "tanh"]
        fill = lambda facts=facts, steps=steps: plan_fill(
            facts, steps[-1:], frozenset(steps[:-1]).__contains__
        )
        looks.append(looks_at(facts, fill))
    assert looks[0] == looks[1] < 10 * frontier.WINDOW


def test_a_change_looks_at_each_equation_a_few_times_at_most():
    facts = facts_of(traced(blocks, 400, 8))
    sums = [eqn.outvars[0] for eqn in facts.program.eqns if eqn.primitive.name == "reduce_sum"]
    for wanted in ([], sums):
        looks = looks_at(facts, lambda wanted=wanted: plan_dirty(facts, 1 << 1, wanted=wanted))
        assert 50 < looks <= 5 * len(facts.program.eqns)


# --- calls ----------------------------------------------------------------------------------------


def calls_of_a_call(num):
    """Functions called by a call with one changed block, by one with none, and equations run;
    samples aside.
    """
    f = incrax.incremental(lambda params, x: blocks(params, x, num), tuning=EAGER)
    arguments = [([1.0 + 1e-3 * k, 2.0, 3.0], ROWS) for k in range(13)]
    for args in arguments[:8]:
        jax.block_until_ready(f(*args))
    changed, unchanged, reports = [], [], []
    for args in arguments[8:]:
        for counts in (changed, unchanged):
            count, result = calls_of(f, *args)
            counts.append(count)
            jax.block_until_ready(result)
            reports.append(f.explain().as_dict())
    assert all(report["served_by"] != "whole" for report in reports)
    # Now and then a call is timed, too, or waits for the one before: the fewest are the cost of a
    # call.
    return min(changed), min(unchanged), reports[0]["num_ran"]


def test_a_call_costs_the_same_whatever_the_number_of_equations():
    small, large = calls_of_a_call(12), calls_of_a_call(120)
    assert large[2] > 5 * small[2]
    assert large[:2] == small[:2]


# --- depth ----------------------------------------------------------------------------------------


def test_a_product_of_more_factors_than_python_nests_calls_is_planned():
    def product(params, x):
        y = x
        for p in params:
            y = y * p
        return [jnp.sum(y)]

    facts = facts_of(trace(product, [1.0] * 1500, ROWS))
    assert len(plan_dirty(facts, facts.dependence.layout.full).eqns) == len(facts.program.eqns)


def test_more_nested_groups_than_python_nests_calls_are_ordered():
    facts = facts_of(traced(chain, 1200, 1200))
    segmentation = Segmentation(facts)
    segmentation.want(eqn.outvars[0] for eqn in facts.program.eqns if eqn.primitive.name == "tanh")
    function = PureFunction(facts, segmentation, HostCalls(0))
    assert len(function.segments) == 1200
    masks = [facts.mask(plan.saves[0]).bit_count() for plan in function.segments]
    assert masks == sorted(masks)


def test_typical_changes_are_few_however_many_large_inputs_there_are():
    avals = [jax.ShapeDtypeStruct((5000,), float)] * 300
    program = trace(lambda *xs: [sum(xs[1:], xs[0])], *avals)
    layout = make_layout([var.aval for var in program.invars], 256)
    changes = typical_changes(layout, program.invars, 20_000)
    assert 2 <= len(changes) <= 6
    assert layout.full & ~layout.leaf_mask(0) in changes
    assert any(change.bit_count() == 1 for change in changes)


# --- what is loaded of a large function -----------------------------------------------------------


def many_blocks(theta, x):
    """A block for each parameter; the others' sum is saved when one moves."""
    return jnp.sum(jnp.log(sum(jnp.sin(t * x) ** 2 for t in theta) + 1.0))


def moved(tuning, num_calls=6, num=40):
    """The function and its program for what the first parameter leaves alone, after that moved."""
    f = incrax.incremental(many_blocks, tuning=tuning)
    theta = [0.5 + 0.02 * k for k in range(num)]
    for step in range(num_calls):
        theta = [0.5 + 0.01 * step, *theta[1:]]
        if step == num_calls // 2:
            theta = [t + 0.1 for t in theta]  # what was saved is stale
        np.testing.assert_allclose(f(theta, ROWS), many_blocks(theta, ROWS), rtol=1e-12)
    segments = f._traces.latest.engine.segments
    fills = [*segments._programs.values(), *segments._joint.values()]
    return f, max(fills, key=lambda program: program.executable.family.num_eqns, default=None)


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(timing, "MIN_LARGE", 20)


@pytest.mark.usefixtures("all_are_large")
def test_what_is_loaded_of_a_large_function_is_not_compiled_at_first():
    f, fill = moved(EAGER_TIMED)
    assert fill.executable.family.num_eqns > 20
    assert fill.num_runs == 0
    assert f._traces.latest.engine.clock.one_by_one_s[fill.executable.family] > 0.0
    assert fill.executable.family.call._cache_size() == 0


@pytest.mark.usefixtures("all_are_large")
def test_it_is_once_that_took_as_long(monkeypatch):
    f, fill = moved(EAGER_TIMED)
    feeds = [value.feed for value in f._traces.latest.engine.store.states[-1].values]
    found = fill(feeds, ())
    assert fill.num_runs == 0
    monkeypatch.setattr(timing, "usual_s", lambda num_eqns: 1e-9)
    for one, other in zip(fill(feeds, ()), found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert fill.num_runs == 1


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("other", [{"timed": False}, {"planner": "minimal"}])
def test_it_is_where_the_clock_must_not_decide(other):
    f, _ = moved(replace(EAGER_TIMED, **other))
    assert not f._traces.latest.engine.clock.one_by_one_s


def test_that_of_a_small_function_is_compiled():
    _, fill = moved(EAGER_TIMED)
    assert fill.num_runs > 0


def test_values_go_after_their_last_use():
    program = trace(lambda x: jnp.sin(jnp.cos(x) * x) + 1.0, ROWS)
    env = dict(zip(program.invars, [ROWS], strict=True))
    (found,) = evaluated_sparingly(program.eqns, program.outvars, env)
    assert set(env) == set(program.outvars)
    np.testing.assert_allclose(found, np.sin(np.cos(ROWS) * ROWS) + 1.0, rtol=1e-14)
