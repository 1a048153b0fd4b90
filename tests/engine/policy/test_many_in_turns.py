"""Many kinds of change in turns, of which no two reach alike: segments serve them, though the function is
large, or nothing does.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_invariants, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.policy import planner
from incrax.engine.policy.accounts import effective_number
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.many_in_turns import ManyInTurns

NUM_STEPS = 12
X = np.random.default_rng(0).normal(size=400)
UNTIMED = incrax.Tuning(timed=False, compile_s=1e9)
NOTHING = incrax.Tuning(compile_s=0.0)
FREE = lambda num_eqns: 0.0
START = np.linspace(0.5, 1.0, NUM_STEPS)


def chain(u, shift, x=X):
    """Each step needs the one before."""
    total = 0.0
    for k in range(NUM_STEPS):
        x = jnp.tanh(jnp.sin(x) * u[k] + shift)
        total = total + jnp.log1p(x * x)
    return jnp.sum(x + total)


JITTED = jax.jit(chain)
MANY = np.random.default_rng(1).normal(size=20_000)
SLOW = jax.jit(lambda u, shift: chain(u, shift, MANY))


def alike(u, shift):
    """A term for each number."""
    return sum(jnp.sum(jnp.tanh(jnp.sin(X) * u[k] + shift)) for k in range(NUM_STEPS))


def three_chains(u, shift):
    """Chains of four steps each, which are alike."""
    return jnp.sum(jnp.stack([_end(u[4 * k : 4 * k + 4], shift) for k in range(3)]))


def _end(u, shift):
    x = X
    for k in range(4):
        x = jnp.tanh(jnp.sin(x) * u[k] + shift)
    return x


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch):
    monkeypatch.setattr(planner, "MAX_DIVIDED_EQNS", 10)


def called(function=chain, **options):
    ours = incrax.incremental(function, **options)
    for shift in (0.1, 0.2):
        ours(START, shift)
    return ours


def engine_of(ours):
    return ours._traces.latest.engine


def bits(ours, steps):
    """Which inputs these elements of the first argument are."""
    offset = engine_of(ours).layout.offsets[0]
    return sum(1 << (offset + k) for k in steps)


def moved(u, *steps):
    u = u.copy()
    u[list(steps)] += 0.01 * (1 + np.arange(len(steps)))
    return u


# --- what they take -------------------------------------------------------------------------------


def weighed(function=chain, num_calls=1000, price_s=FREE, whole_s=1.0):
    ours = called(function)
    shares = {bits(ours, [k]): 1.0 / NUM_STEPS for k in range(NUM_STEPS)}
    return ours, ManyInTurns(engine_of(ours).facts, shares, num_calls, whole_s, price_s)


def test_plans_run_what_is_reached_and_save_what_others_load():
    _, found = weighed()
    at_least = sum(1000 / NUM_STEPS * (k + 1) / NUM_STEPS for k in range(NUM_STEPS))
    assert at_least < found.alone_s() < 1.6 * at_least
    assert weighed(num_calls=500)[1].alone_s() == pytest.approx(found.alone_s() / 2)
    assert weighed(whole_s=2.0)[1].alone_s() == pytest.approx(2 * found.alone_s())


def test_segments_are_called_one_by_one(monkeypatch):
    _, found = weighed()
    monkeypatch.setattr("incrax.engine.policy.many_in_turns.SEGMENT_S", 0.1)
    called_s = found.divided_s() - found.alone_s()
    assert called_s > 0.1 * 1000 * NUM_STEPS / 2
    assert called_s < 0.1 * 1000 * (2 * NUM_STEPS + 1)


def test_each_step_of_a_chain_is_a_family_and_its_segments_are_alike():
    each = lambda num_eqns: 100.0
    _, free = weighed()
    _, priced = weighed(price_s=each)
    assert len(free.families) == NUM_STEPS
    assert priced.alone_s() - free.alone_s() == pytest.approx(100.0 * NUM_STEPS)
    num_programs = (priced.divided_s() - free.divided_s()) / 100.0
    assert num_programs < 8.5  # among them the one that fills all
    assert len(weighed(alike)[1].families) <= 2


def test_what_never_changes_is_not_saved_at_each_call():
    _, found = weighed(lambda u, shift: chain(u, shift) + jnp.sum(jnp.cumsum(X) * u[11]))
    is_still = ~found._moves.any(axis=1)
    assert is_still.any()
    assert not found._saves_s[is_still].any()
    assert found._saves_s[~is_still].all()


# --- which serve ----------------------------------------------------------------------------------


def asked(*, price_s=0.01, whole_s=1e-2, look_s=0.0, num_calls=600, function=chain):
    """A planner that has seen so many calls, of each step as many, each looked at, and weighs."""
    ours = called(function, tuning=NOTHING)
    own = engine_of(ours).planner
    accounts = own.accounts
    accounts.families.clear()
    accounts.num_calls = 0
    own.entries.clear()
    for step in range(NUM_STEPS):
        dirty = bits(ours, [step])
        entry = Entry(dirty, clean_share=0.5)
        entry.family, entry.num_reached = own.facts.reached(dirty)
        accounts.note_kind(entry)
        each = num_calls // NUM_STEPS
        accounts.note_calls(entry, each)
        accounts.of(entry).squares += each - each**2
        own.entries[dirty] = entry
    own.race = SimpleNamespace(whole_s=whole_s, ledger=SimpleNamespace(look_s=look_s))
    own.costs = SimpleNamespace(program_s=price_s, equations_s=lambda num: price_s * num / 80)
    own._weigh_segments()
    return ours, own


def test_segments_serve_a_chain():
    _, own = asked()
    assert own.expectations.is_divided


def test_what_does_not_pay_is_put_off():
    """By neither, as many calls as came so far: no plan for one of them is begun with."""
    _, own = asked(price_s=5.0)
    assert not own.expectations.is_divided
    assert not own.may_plan_each


def test_what_a_look_takes_is_no_gain():
    _, own = asked(look_s=8e-3)
    assert not own.expectations.is_divided
    assert not own.may_plan_each


def test_calls_that_segments_take_longer_than_have_plans(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.many_in_turns.SEGMENT_S", 1e-2)
    monkeypatch.setattr(planner, "CROWDED", 1.0)
    _, own = asked()
    assert not own.expectations.is_divided
    assert own.may_plan_each


def test_plans_that_load_and_save_much_take_longer_than_estimated(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.many_in_turns.SEGMENT_S", 1e-2)
    assert not asked()[1].may_plan_each


@pytest.mark.parametrize("function", [alike, three_chains])
def test_kinds_that_are_alike_share_programs_as_it_is(function):
    _, own = asked(function=function)
    assert not own.expectations.is_divided
    assert own.may_plan_each


def test_it_is_asked_again_when_many_more_calls_came():
    _, own = asked()
    before = own._asked_at
    assert before == 600
    for factor, is_asked in ((1.4, False), (1.6, True)):
        own.accounts.num_calls = int(factor * before)
        own._weigh_segments()
        assert (own._asked_at == own.accounts.num_calls) is is_asked


def test_it_is_not_asked_before_all_calls_take_as_long_as_a_program():
    assert asked(price_s=7.0)[1]._asked_at == 0


def test_what_contains_another_kind_is_no_kind_of_its_own():
    ours, own = asked()
    several = bits(ours, [2, 7, 9])
    own.entries[several] = Entry(several, count=500)
    kinds = own._shares_of_kinds()
    assert several not in kinds
    assert sum(kinds.values()) == pytest.approx(1.0)
    assert max(kinds.values()) == pytest.approx(1.0 / NUM_STEPS)


@pytest.mark.parametrize(("compile_s", "is_made"), [(0.0, False), (1e9, True)])
def test_no_plan_is_made_where_none_would_pay(monkeypatch, compile_s, is_made):
    """But for who lets it compile."""
    ours = called(tuning=incrax.Tuning(timed=False, compile_s=compile_s))
    own = engine_of(ours).planner
    monkeypatch.setattr(own.credit, "allows_planning", lambda *_, **__: True)
    monkeypatch.setattr(own.credit, "allows", lambda *_, **__: True)
    own.may_plan_each = False
    u = START
    for step in range(3 * NUM_STEPS):
        u = moved(u, 5 * step % NUM_STEPS)
        same(ours(u, 0.2), JITTED(u, 0.2), factor=2**12)
    assert own.are_in_turns
    assert bool(own.num_programs) is bool(engine_of(ours).segments.wanted) is is_made


# --- calls ----------------------------------------------------------------------------------------


def divided():
    ours = called(lambda u, shift: chain(u, shift, MANY), tuning=UNTIMED)
    engine_of(ours).chooser.expectations.is_divided = True
    u = START
    for step in range(3 * NUM_STEPS):
        u = moved(u, 5 * step % NUM_STEPS)
        same(ours(u, 0.2), SLOW(u, 0.2), factor=2**12)
    return ours, u


@pytest.fixture(scope="module")
def settled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MAX_DIVIDED_EQNS", 10)
        return divided()


def test_what_a_step_reaches_runs_by_programs_that_all_share(settled):
    ours, u = settled
    engine = engine_of(ours)
    compiles = ours.stats.compiles
    assert engine.planner.divides
    assert compiles < NUM_STEPS
    for step in (11, 6, 1):
        before = ours.stats.as_dict()
        u = moved(u, step)
        same(ours(u, 0.2), SLOW(u, 0.2), factor=2**12)
        after = ours.stats.as_dict()
        num_run = sum(after[name] - before[name] for name in ("ran", "filled"))
        assert num_run < (NUM_STEPS - step + 2) * engine.num_eqns / NUM_STEPS
        assert ours.explain().as_dict()["served_by"] == "segments"
    assert ours.stats.compiles == compiles


@examples(0.3)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, NUM_STEPS - 1), min_size=1, max_size=3), st.booleans()),
        min_size=2,
        max_size=12,
    )
)
def test_results_are_those_of_jax(settled, changes):
    """Proposals, of which some are accepted."""
    ours, u = settled
    for steps, is_accepted in changes:
        proposed = moved(u, *steps)
        same(ours(proposed, 0.2), SLOW(proposed, 0.2), factor=2**12)
        engine = engine_of(ours)
        check_invariants(engine.store, engine.facts.mask)
        u = proposed if is_accepted else u


# --- what looks tell ------------------------------------------------------------------------------


def test_kinds_of_few_looks_are_more_than_they_seem():
    """60 looks at 46 kinds, each of which stands for 50 calls."""
    numbers = np.random.default_rng(3).integers(46, size=60)
    calls = [50.0 * count for count in np.bincount(numbers) if count]
    assert effective_number(calls) < 30
    assert 35 < effective_number(calls, 60 * 50**2) < 60
    assert effective_number([7.0] * 5) == 5.0
    assert effective_number([7.0] * 5, 5 * 7) == pytest.approx(5.6, rel=0.02)
    assert effective_number([100.0], 100) == 1.0
    assert effective_number([]) == 0.0


def test_families_are_counted_as_looks_tell():
    """Five looks, each of which stands for 50 calls."""
    accounts = engine_of(called(tuning=NOTHING)).chooser.accounts
    accounts.families.clear()
    for number in (1, 2, 3, 4, 1):
        accounts.note_calls(Entry(1 << number, family=number), 50)
    assert accounts.families_in_turns > 5.0


def test_what_a_program_took_pays_for_what_had_one():
    """In an earlier process only the calls of what was compiled there paid."""
    accounts = engine_of(called(tuning=NOTHING)).chooser.accounts
    accounts.families.clear()
    accounts.clean_calls = 0.0
    known = Entry(1, family=1, clean_share=0.5, was_compiled=True, known_price_s=1.0)
    new = Entry(2, family=2, clean_share=0.5)
    for entry in (known, new):
        accounts.note_kind(entry)
        accounts.note_calls(entry, 100)
    assert accounts.calls(known) == 100
    assert accounts.calls(new) == 200
