"""The law of a plan: its equations, on new inputs and saved values, give what `jax.jit` gives at
the new inputs.
"""

from __future__ import annotations

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, check_calls, same_array
from properties.corpus import CORPUS
from properties.timelines import change_all, change_element

from incrax import _jax
from incrax._program import read_vars, trace, written_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan, Prices, plan_dirty, plan_fill, plan_top
from incrax.engine.program.cost import Calibration
from incrax.engine.program.dependence import ALWAYS, depend, make_layout
from incrax.engine.program.simplify import (
    drop_dead,
    fold_constants,
    inline,
    merge_equal,
    run_passes,
)
from incrax.engine.rewrites.loop_invariants import hoist_invariants

PASSES = (inline, hoist_invariants, fold_constants, merge_equal, drop_dead)
X = np.linspace(0.1, 2.0, 400)
ROWS = np.linspace(0.0, 1.0, 2000)
DEAR = Calibration(flop_s=1e-6, transcendental_s=1e-5, argument_s=1e-9, read_s=1e-15, write_s=1e-15)
"""A machine on which it pays to load whatever can be loaded."""


def facts_of(fun, *args, is_minimal=False, calibration=DEAR, max_tracked=64):
    program = run_passes(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args), PASSES)
    layout = make_layout([var.aval for var in program.invars], max_tracked)
    return Facts(program, depend(program, layout), calibration, is_minimal)


def environment(facts, args):
    """Every value of the program, evaluated from scratch."""
    program = facts.program
    env = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, map(jnp.asarray, args), strict=True))
    _jax.evaluate(program.eqns, env)
    return env


def with_derived(facts, env):
    """The same with the values of all derived variables made so far."""
    env = dict(env)
    _jax.evaluate(facts.derived.recipe(facts.derived.recipes), env)
    return env


def dirty_between(facts, old, new):
    """The mask of the elements that differ, by an independent comparison."""
    mask, layout = 0, facts.dependence.layout
    for x, y, offset, width in zip(old, new, layout.offsets, layout.widths, strict=True):
        a, b = (
            np.asarray(jax.random.key_data(v) if hasattr(v, "_base_array") else v).ravel()
            for v in (x, y)
        )
        if width == 1:
            mask |= int(a.tobytes() != b.tobytes()) << offset
        else:
            mask |= sum(1 << (offset + k) for k in range(width) if a[k].tobytes() != b[k].tobytes())
    return mask


def run(plan: Plan, facts, saved, new):
    """The values after a plan on new inputs, with loads from old values."""
    program = facts.program
    env = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, map(jnp.asarray, new), strict=True))
    env.update({var: saved[var] for var in plan.loads})
    _jax.evaluate(plan.eqns, env)
    return env


def check_law(plan: Plan, facts, fun, old, new):
    """Outputs computed and kept are those of jit; saves are current; `old` holds every value at the
    old inputs.
    """
    saved = with_derived(facts, old)
    env = run(plan, facts, saved, new)
    for position, expected in enumerate(jax.tree.leaves(jax.jit(fun)(*new))):
        atom = facts.program.outvars[position]
        actual = _jax.read(atom, env if position in plan.outputs else saved)
        same_array(actual, expected, 256)
    if plan.saves:
        current = with_derived(facts, environment(facts, new))
        for var in plan.saves:
            same_array(env[var], current[var], 256)
    written = [var for eqn in plan.eqns for var in written_vars(eqn)]
    assert len(written) == len(set(written))
    assert not set(written) & set(plan.loads)
    assert not any(facts.mask(var) & plan.dirty for var in plan.loads)


# --- the law --------------------------------------------------------------------------------------

SIMILAR = ("many sums", "gradient of a sum", "scan of length 1", "jit twice", "hessian", "jacfwd")
NOT_FLAT = (
    "tree",
    "callback",
    "raw key",
    "random",
    "complex",
    "linear algebra",
    "indexed by an input",
)
NAMES = [name for name in CORPUS if name not in (*SIMILAR, *NOT_FLAT)]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_gives_what_jit_gives_at_the_new_inputs(name):
    fun, start = CORPUS[name]
    rng = random.Random(len(name))
    dear, minimal = facts_of(fun, *start), facts_of(fun, *start, is_minimal=True)
    for facts, changed, change in [
        (dear, 0, change_all),
        (minimal, len(start) - 1, change_element),
    ]:
        new = [change(x, rng) if k == changed else x for k, x in enumerate(start)]
        plan = plan_dirty(facts, dirty_between(facts, start, new))
        check_law(plan, facts, fun, environment(facts, start), new)


def likelihood(mu, sigma, rate, f, x):
    first = jnp.exp(-0.5 * ((x - mu) / sigma) ** 2) / sigma
    return -jnp.sum(jnp.log(f * first + (1 - f) * rate * jnp.exp(-rate * x)))


def sums(a, b, c, d, e, x):
    return jnp.sum(
        jnp.tanh(a * x + jnp.sin(b * x) + jnp.cos(c * x) + jnp.exp(d * x) + e * x**2 + x)
    )


START = (1.0, 0.3, 0.8, 0.4, X)
FUNCTIONS = {
    "value": (likelihood, START),
    "gradient": (jax.value_and_grad(likelihood, (0, 1, 2, 3)), START),
    "sum of many terms": (jax.value_and_grad(sums, (0, 4)), (0.1, 0.2, 0.3, 0.4, 0.5, ROWS)),
    "rows": (
        jax.grad(
            lambda t, w: jnp.sum(
                jnp.log(sum(jnp.exp(t[k]) * jnp.cos(k * w) ** 2 for k in range(4)))
            )
        ),
        (np.array([0.1, 0.4, -0.2, 0.3]), ROWS),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_dirty_set_of_a_likelihood_keeps_the_law(name):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start)
    old = environment(facts, start)
    num_scalars = len(start) - 1
    for chosen in [(k,) for k in range(num_scalars)] + list(
        itertools.combinations(range(num_scalars), 2)
    )[:2]:
        new = [x * 1.25 if k in chosen else x for k, x in enumerate(start)]
        dirty = dirty_between(facts, start, new)
        plan = plan_dirty(facts, dirty)
        check_law(plan, facts, fun, old, new)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "sum of many terms"])
def test_what_a_plan_saves_is_current(name):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start)
    new = [start[0] * 1.25, *start[1:]]
    dirty = dirty_between(facts, start, new)
    plan = plan_dirty(facts, dirty, saves=facts.cut_set, wanted=plan_dirty(facts, dirty).loads)
    assert plan.saves
    check_law(plan, facts, fun, environment(facts, start), new)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_plan_whose_dirty_inputs_did_not_change_gives_the_same(name):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start)
    check_law(
        plan_dirty(facts, facts.dependence.layout.leaf_mask(0)),
        facts,
        fun,
        environment(facts, start),
        start,
    )


# --- sums that are regrouped: defects -------------------------------------------------------------


def mixture(a, b, c, d, e, f, x):
    components = [jnp.exp(jnp.sin(p * x)) for p in (a, b, c, d, e, f)]
    return jnp.sum(jnp.log(sum(components[1:], components[0])))


LARGE = np.linspace(0.1, 1.0, 20_000)
INNER_SUM = "a save that is an inner sum of a regrouped chain is never computed"
SHARED_SUM = "two sums with the same clean terms: one reads their partial sum before it is written"


def test_an_inner_sum_that_another_plan_loads_is_saved():
    start = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, LARGE)
    facts = facts_of(mixture, *start)
    layout = facts.dependence.layout
    loads = plan_dirty(facts, layout.leaf_mask(3) | layout.leaf_mask(4) | layout.leaf_mask(5)).loads
    new = [1.5, *start[1:]]
    plan = plan_dirty(facts, dirty_between(facts, start, new), saves=loads)
    assert plan.saves
    check_law(plan, facts, mixture, environment(facts, start), new)


def test_two_sums_with_the_same_clean_terms():
    fun = lambda a, b, c, d, p, q: (p + a + b + c + d, q + a + b + c + d)
    start = [X + k for k in range(6)]
    facts = facts_of(fun, *start, calibration=Calibration())
    new = [*start[:4], start[4] * 2, start[5] * 3]
    check_law(
        plan_dirty(facts, dirty_between(facts, start, new)),
        facts,
        fun,
        environment(facts, start),
        new,
    )


def test_two_sums_with_the_same_clean_terms_that_change_together():
    fun = lambda a, b, c, d, p, q, x: (
        p + a + b + c + d,
        q + a + b + c + d,
        p[0] * jnp.sum(jnp.exp(jnp.sin(x))),
    )
    start = [X + k for k in range(4)]
    check_calls(fun, [(*start, X * k, X * 2 * k, LARGE) for k in range(1, 7)], tuning=EAGER)


# --- what is run and loaded -----------------------------------------------------------------------


def reached(facts, dirty):
    """Equations that a dirty set reaches and an output needs, by a walk of its own."""
    program = facts.program
    touched = {v for v in program.invars if facts.mask(v) & dirty}
    forward = []
    for eqn in program.eqns:
        if touched & set(read_vars(eqn)) and facts.dependence.of_equation(eqn) & dirty:
            forward.append(eqn)
            touched.update(eqn.outvars)
    return forward


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_minimal_plan_runs_just_the_equations_that_the_change_reaches(name):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start, is_minimal=True)
    layout = facts.dependence.layout
    for index in range(len(start)):
        plan = plan_dirty(facts, layout.leaf_mask(index))
        assert list(map(id, plan.eqns)) == list(map(id, reached(facts, layout.leaf_mask(index))))


def test_elements_of_a_vector_have_plans_of_their_own():
    fun = lambda t, x: (jnp.sum(jnp.exp(t[0] * x)), jnp.sum(jnp.sin(t[1] * x)))
    facts = facts_of(fun, np.ones(2), X, is_minimal=True)
    first, second = (plan_dirty(facts, 1 << k) for k in (1, 2))
    assert (first.outputs, second.outputs) == ((0,), (1,))
    assert "sin" not in str(first)
    assert "exp" not in str(second)


def test_outputs_that_the_change_does_not_reach_are_not_computed():
    facts = facts_of(lambda a, b: (jnp.sin(a), jnp.cos(b), a + b, 2.0), 1.0, 2.0)
    layout = facts.dependence.layout
    assert plan_dirty(facts, layout.leaf_mask(0)).outputs == (0, 2)
    assert plan_dirty(facts, layout.full).outputs == (0, 1, 2, 3)
    assert plan_dirty(facts, 0).outputs == ()
    assert plan_dirty(facts, 0).eqns == ()


def test_on_a_machine_where_loads_are_dear_nothing_is_loaded():
    facts = facts_of(likelihood, *START, calibration=Calibration(argument_s=1.0))
    plan = plan_dirty(facts, facts.dependence.layout.leaf_mask(3))
    assert plan.loads == ()
    assert len(plan.eqns) == len(facts.program.eqns)


def test_prices_are_factors_on_those_of_the_machine():
    facts = facts_of(likelihood, *START)
    dirty = facts.dependence.layout.leaf_mask(3)
    assert plan_dirty(facts, dirty).loads
    assert plan_dirty(facts, dirty, prices=Prices(load=1e9)).loads == ()
    assert plan_dirty(facts, dirty, prices=Prices(run=1e-9)).loads == ()
    one, ten = (plan_dirty(facts, dirty, prices=Prices(run=p)).seconds for p in (1.0, 10.0))
    assert one < ten


def test_only_wanted_values_are_loaded_where_nothing_else_may_be():
    facts = facts_of(likelihood, *START)
    dirty = facts.dependence.layout.leaf_mask(3)
    free = plan_dirty(facts, dirty)
    assert plan_dirty(facts, dirty, only_wanted=True).loads == ()
    assert set(plan_dirty(facts, dirty, only_wanted=True, wanted=free.loads).loads) == set(
        free.loads
    )


def test_a_value_that_is_kept_anyway_is_loaded_rather_than_a_new_one():
    fun = lambda a, x: a * jnp.sin(jnp.cos(x))
    facts = facts_of(fun, np.float64(1.0), X, calibration=Calibration(transcendental_s=7e-10))
    dirty = facts.dependence.layout.leaf_mask(0)
    cosine, sine = (eqn.outvars[0] for eqn in facts.program.eqns[:2])
    assert plan_dirty(facts, dirty).loads == (sine,)
    assert plan_dirty(facts, dirty, wanted=[cosine]).loads == (cosine,)


def test_saves_are_those_that_the_change_reaches():
    facts = facts_of(likelihood, *START, is_minimal=True)
    layout = facts.dependence.layout
    everything = [var for eqn in facts.program.eqns for var in eqn.outvars]
    plan = plan_dirty(facts, layout.leaf_mask(2), saves=[*everything, *everything])
    assert set(plan.saves) == {var for var in everything if facts.mask(var) & layout.leaf_mask(2)}
    assert len(plan.saves) == len(set(plan.saves))


def test_values_that_effects_touch_are_never_loaded():
    def fun(a, x):
        seen = jax.experimental.io_callback(np.asarray, jax.ShapeDtypeStruct((), np.float64), a)
        return jnp.sum(jnp.sin(x)) * seen, jnp.sum(jnp.cos(x))

    facts = facts_of(fun, 1.0, X)
    assert facts.has_effects
    plan = plan_dirty(facts, facts.dependence.layout.leaf_mask(1) | ALWAYS)
    assert "io_callback" in str(plan)
    assert not any(facts.mask(var) & ALWAYS for var in (*plan.loads, *facts.saveable))


@pytest.mark.parametrize("is_minimal", [True, False], ids=["minimal", "cost"])
def test_effects_run_whatever_changed(is_minimal):
    def fun(a, x):
        jax.debug.print("a is {}", a)
        return a * 2, jnp.sum(jnp.cos(x))

    facts = facts_of(fun, 1.0, X, is_minimal=is_minimal)
    plan = plan_dirty(facts, facts.dependence.layout.leaf_mask(1) | ALWAYS)
    assert "debug_print" in str(plan)
    assert plan.outputs == (1,)


# --- filling and the top --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_minimal", [True, False], ids=["minimal", "cost"])
def test_missing_values_are_filled_from_inputs_and_from_what_is_there(name, is_minimal):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start, is_minimal=is_minimal)
    loads, old = (
        plan_dirty(facts, facts.dependence.layout.leaf_mask(0)).loads,
        environment(facts, start),
    )
    for missing, available in [(loads, ()), (loads[:1], loads), (loads[1:], loads[:1])]:
        plan = plan_fill(facts, [*missing, *missing], available.__contains__)
        assert set(plan.loads) <= set(available) - set(missing)
        assert plan.saves == tuple(dict.fromkeys(missing))
        saved = with_derived(facts, old)
        env = run(plan, facts, saved, start)
        for var in missing:
            same_array(env[var], saved[var], 256)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_top_computes_all_outputs_from_wanted_values(name):
    fun, start = FUNCTIONS[name]
    facts = facts_of(fun, *start)
    for wanted in ((), facts.cut_set):
        plan = plan_top(facts, wanted)
        assert set(plan.base_loads) <= set(wanted)
        assert plan.outputs == tuple(range(len(facts.program.outvars)))
        env = run(plan, facts, with_derived(facts, environment(facts, start)), start)
        for atom, expected in zip(
            facts.program.outvars, jax.tree.leaves(jax.jit(fun)(*start)), strict=True
        ):
            same_array(_jax.read(atom, env), expected, 256)


# --- text -----------------------------------------------------------------------------------------


def test_a_plan_prints_what_it_loads_runs_and_saves():
    fun = lambda a, b, x: a * jnp.sum(jnp.exp(b * x))
    facts = facts_of(fun, np.float64(1.0), np.float64(2.0), X, is_minimal=True)
    layout = facts.dependence.layout
    total = facts.program.eqns[-2].outvars[0]
    assert str(plan_dirty(facts, layout.leaf_mask(0))) == "load  f64[]\nrun   mul -> f64[]"
    assert str(plan_dirty(facts, layout.leaf_mask(1), saves=[total])).splitlines() == [
        "run   mul -> f64[400]",
        "run   exp -> f64[400]",
        "run   reduce_sum -> f64[]",
        "run   mul -> f64[]",
        "save  f64[]",
    ]
    assert str(plan_dirty(facts, 0)) == ""


def test_the_same_facts_give_the_same_text():
    texts = {
        str(plan_dirty(facts_of(*FUNCTIONS["gradient"][:1], *START), 1 << 1)) for _ in range(3)
    }
    assert len(texts) == 1


# --- facts ----------------------------------------------------------------------------------------


def test_the_mask_of_a_derived_value_is_that_of_what_it_is_made_of():
    facts = facts_of(lambda a, b, c: (jnp.sin(a), jnp.cos(b), c), X, X, X)
    sine, cosine = (eqn.outvars[0] for eqn in facts.program.eqns)
    total = facts.derived.make("sum", [sine, cosine], lambda x, y: x + y)
    layout = facts.dependence.layout
    assert facts.mask(total) == layout.leaf_mask(0) | layout.leaf_mask(1)
    assert facts.is_saveable(total)
    twice = facts.derived.make("stack", [sine, sine], lambda x, y: jnp.stack([x, y]) * 2)
    assert facts.mask(twice) == layout.leaf_mask(0)


def test_the_cut_set_is_what_equations_of_other_dependence_read():
    facts = facts_of(
        lambda a, b, x: (jnp.exp(a) * jnp.sum(jnp.sin(b * x)), jnp.cos(a)), *np.ones(2), X
    )
    types = [eqn.primitive.name for eqn in facts.program.eqns if eqn.outvars[0] in facts.cut_set]
    assert types == ["exp", "reduce_sum"]


def test_inputs_and_constants_are_not_saved():
    facts = facts_of(lambda a, x: (a, jnp.sin(a) * jnp.asarray(X), x), 1.0, X)
    assert all(
        var not in facts.saveable for var in (*facts.program.invars, *facts.program.constvars)
    )
