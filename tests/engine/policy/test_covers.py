"""Kinds of change that come in turns and of which no two reach alike: sets of them are served by a plan
each.
"""

from __future__ import annotations

import gc
import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_invariants, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.policy import expectations, planner
from incrax.engine.policy.accounts import effective_number
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.covers import Kinds

NUM_STEPS = 12
X = np.random.default_rng(0).normal(size=400)
UNTIMED = incrax.Tuning(timed=False, compile_s=1e9)
FREE = lambda num_eqns: 0.0
PER_EQUATION = lambda num_eqns: 0.1 * num_eqns


def chain(u, shift):
    """Each step needs the one before."""
    x = X
    total = 0.0
    for k in range(NUM_STEPS):
        x = jnp.tanh(jnp.sin(x) * u[k] + shift)
        total = total + jnp.log1p(x * x)
    return jnp.sum(x + total)


def pairs_of_chains(u, shift):
    """Two halves that meet at the end."""
    ends = []
    for half in (u[: NUM_STEPS // 2], u[NUM_STEPS // 2 :]):
        x = X
        for k in range(NUM_STEPS // 2):
            x = jnp.tanh(jnp.sin(x) * half[k] + shift)
        ends.append(x)
    return jnp.sum(ends[0] * ends[1])


JITTED = jax.jit(chain)
START = np.linspace(0.5, 1.0, NUM_STEPS)


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


def covered(*starts):
    """A function with covers of the steps from these on, the last one of all."""
    ours = called(tuning=UNTIMED)
    engine = engine_of(ours)
    engine.expectations.covers = tuple([bits(ours, range(k, NUM_STEPS)) for k in (*starts, 0)])
    engine.planner.has_paid = True
    return ours


def moved(u, *steps):
    u = u.copy()
    u[list(steps)] += 0.01 * (1 + np.arange(len(steps)))
    return u


def counted(ours, u):
    """What is counted in a call, which is compared with plain JAX."""
    before = ours.stats.as_dict()
    same(ours(u, 0.2), JITTED(u, 0.2), factor=2**12)
    engine = engine_of(ours)
    check_invariants(engine.store, engine.facts.mask)
    after = ours.stats.as_dict()
    return {name: after[name] - before[name] for name in ("ran", "filled", "compiles", "loaded")}


def served_by(ours):
    return ours.explain().as_dict()["served_by"]


@pytest.fixture
def settled():
    """After each of two covers, and the rest, was served."""
    ours = covered(9, 6)
    u = START
    for step in (10, 11, 9, 7, 6, 8, 10, 3, 11, 7):
        u = moved(u, step)
        counted(ours, u)
    return ours, u


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "first"),
    [((9,), 9), ((11,), 9), ((9, 11), 9), ((6,), 6), ((7, 10), 6), ((6, 7, 8, 9, 10, 11), 6)],
)
def test_the_plan_of_a_cover_serves_whatever_changes_in_it(settled, steps, first):
    ours, u = settled
    last = counted(ours, moved(u, *steps))
    per_step = engine_of(ours).num_eqns / NUM_STEPS
    assert served_by(ours) == "plan"
    assert last["filled"] == last["compiles"] == 0
    assert last["loaded"] == 2  # what reaches the next step, and the sum so far
    assert (NUM_STEPS - first - 1) * per_step < last["ran"] < (NUM_STEPS - first + 1) * per_step


def test_what_is_in_no_cover_runs_whole_and_saves_what_the_covers_load(settled):
    ours, u = settled
    last = counted(ours, moved(u, 2, 10))
    assert served_by(ours) == "priming"
    assert last["filled"] == last["compiles"] == 0
    u = moved(u, 2, 10)
    assert counted(ours, moved(u, 10))["filled"] == 0
    assert served_by(ours) == "plan"
    assert counted(ours, moved(u, 7))["filled"] == 0
    assert served_by(ours) == "plan"


def test_other_inputs_are_in_no_cover(settled):
    ours, u = settled
    same(ours(moved(u, 11), 0.3), JITTED(moved(u, 11), 0.3), factor=2**12)
    assert engine_of(ours)._last.dirty not in engine_of(ours).expectations.covers
    same(ours(moved(u, 11), 0.2), JITTED(moved(u, 11), 0.2), factor=2**12)


@examples(0.2)
@given(
    starts=st.lists(st.integers(1, NUM_STEPS - 1), unique=True, min_size=1, max_size=3),
    changes=st.lists(
        st.tuples(st.sets(st.integers(0, NUM_STEPS - 1), min_size=1, max_size=3), st.booleans()),
        min_size=4,
        max_size=12,
    ),
)
def test_results_are_those_of_jax_whatever_the_covers(starts, changes):
    """Proposals, of which some are accepted."""
    ours = covered(*sorted(starts, reverse=True))
    u = START
    for steps, is_accepted in changes:
        proposed = moved(u, *steps)
        counted(ours, proposed)
        u = proposed if is_accepted else u


def test_reports_name_what_changed_not_the_cover(settled):
    ours, u = settled
    for step in (2, 8):  # the whole function saves what the cover's plan loads
        u = moved(u, step)
        counted(ours, u)
    foretold = ours.explain(moved(u, 7), 0.2)
    counted(ours, moved(u, 7))
    for report in (foretold, ours.explain()):
        changed = report.as_dict()["changed"]
        assert "u[7]" in changed
        assert len(changed) <= 2  # of six in the cover; it may start from an older version
        assert report.as_dict()["served_by"] == "plan"
        assert report.as_dict()["num_ran"] < 0.6 * engine_of(ours).num_eqns


def test_what_is_made_ready_is_the_plan_of_the_cover():
    ours = covered(6)
    ours.warm_up(START, 0.2, changing=["u[7]"])
    chooser = engine_of(ours).chooser
    assert chooser.seen(bits(ours, [7])) is None
    assert chooser.seen(bits(ours, range(6, NUM_STEPS))).program is not None


def test_kinds_are_one_from_then_on():
    """Their calls count as those of the cover; those of others stay."""
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    engine = engine_of(ours)
    u = START
    for step in (10, 11, 10, 3, 11, 10):
        u = moved(u, step)
        ours(u, 0.2)
    chooser = engine.chooser
    before = {dirty: entry.count for dirty, entry in chooser.entries.items()}
    num_calls = chooser.accounts.num_calls
    engine.expectations.covers = (bits(ours, range(9, NUM_STEPS)), bits(ours, range(NUM_STEPS)))
    ours(moved(u, 9), 0.2)
    entry, rest = (chooser.seen(cover) for cover in engine.expectations.covers)
    assert entry.count == before[bits(ours, [10])] + before[bits(ours, [11])] + 1
    assert rest.count == before[bits(ours, [3])]
    assert {bits(ours, [k]) for k in (3, 9, 10, 11)}.isdisjoint(chooser.entries)
    assert chooser.accounts.num_calls == num_calls + 1
    assert chooser.accounts.of(entry).num_calls == entry.count
    assert rest.is_decided  # whose plan would leave out nothing
    full = engine.layout.full
    assert chooser.seen(full).count == before[full]


# --- which covers ---------------------------------------------------------------------------------


def kinds_of(function=chain, num_calls=1000, price_s=PER_EQUATION, sizes=None, whole_s=1.0):
    ours = called(function)
    numbers = range(NUM_STEPS) if sizes is None else sizes
    shares = {bits(ours, [k]): 1.0 / len(numbers) for k in numbers}
    return ours, Kinds(engine_of(ours).facts, shares, num_calls, whole_s, price_s)


def test_covers_of_a_chain_are_its_ends():
    ours, kinds = kinds_of(num_calls=100)
    found = kinds.covered()
    assert len(found.covers) > 1
    for cover, larger in zip(found.covers, found.covers[1:], strict=False):
        assert not cover & ~larger
    for cover in found.covers:
        first = NUM_STEPS - cover.bit_count()
        assert cover == bits(ours, range(first, NUM_STEPS))
    assert 0.5 < found.call_s < 0.8
    facts = engine_of(ours).facts
    prices = [PER_EQUATION(facts.reached(cover).num_eqns) for cover in found.covers]
    assert found.price_s == pytest.approx(sum(prices))


def test_the_more_calls_the_more_covers():
    numbers = [len(kinds_of(num_calls=num)[1].covered().covers) for num in (1, 20, 1000)]
    assert numbers[0] == 0
    assert 0 < numbers[1] < numbers[2]


def test_parts_that_are_alike_share_a_program():
    ours, kinds = kinds_of(pairs_of_chains, num_calls=100)
    found = kinds.covered()
    facts = engine_of(ours).facts
    prices = {facts.reached(cover).digest: facts.reached(cover).num_eqns for cover in found.covers}
    assert found.price_s == pytest.approx(sum(map(PER_EQUATION, prices.values())))
    assert len(prices) < len(found.covers)


def test_plans_for_each_are_priced_by_family_and_with_what_they_save():
    _, kinds = kinds_of(num_calls=1000, price_s=FREE)
    at_least = sum(1000 / NUM_STEPS * (k + 1) / NUM_STEPS for k in range(NUM_STEPS))
    assert at_least < kinds.alone_s() < 1.6 * at_least
    _, priced = kinds_of(num_calls=1000, price_s=lambda num_eqns: 1.0)
    assert priced.alone_s() == pytest.approx(kinds.alone_s() + NUM_STEPS)


def test_what_never_changes_is_not_saved_at_each_call():
    """`log(X)` of closed-over data is loaded, and no kind of change makes it stale."""
    _, kinds = kinds_of(lambda u, shift: chain(u, shift) + jnp.sum(jnp.cumsum(X) * u[11]))
    is_still = ~kinds.moves.any(axis=1)
    assert is_still.any()
    assert not kinds.saves_s[is_still].any()
    assert kinds.saves_s[~is_still].all()


def asked(*, price_s, look_s=0.0, num_calls=600, is_due=False):
    """A planner that has seen so many calls of 10 ms, of each step as many, and is asked."""
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    own = engine_of(ours).planner
    accounts = own.accounts
    accounts.families.clear()
    accounts.num_calls = accounts.squares = 0
    entries = {}
    for step in range(NUM_STEPS):
        dirty = bits(ours, [step])
        entry = Entry(dirty, count=0, clean_share=0.5)
        entry.family, entry.num_reached = own.facts.reached(dirty)
        accounts.note_kind(entry)
        accounts.note_calls(entry, num_calls // NUM_STEPS)
        accounts.squares += num_calls // NUM_STEPS - (num_calls // NUM_STEPS) ** 2
        entries[dirty] = entry
    own.entries.clear()
    own.entries.update(entries)
    own.race = SimpleNamespace(whole_s=1e-2, ledger=SimpleNamespace(look_s=look_s))
    own.costs = SimpleNamespace(
        program_s=price_s, plan_s=0.0, calibration_s=0.0, equations_s=lambda num: price_s * num / 80
    )
    return ours, own, own._are_covered(is_due=is_due)


def test_covers_are_kept_once_calls_have_lost_what_their_programs_cost():
    ours, own, is_better = asked(price_s=0.3)
    assert is_better
    assert own.has_paid
    covers = own.expectations.covers
    assert covers[-1] == bits(ours, range(NUM_STEPS))
    assert all(own.is_paid(Entry(cover)) for cover in covers)
    assert not own.is_paid(Entry(bits(ours, [3])))


def test_covers_that_are_not_paid_yet_have_plans_for_each_wait():
    _, own, is_better = asked(price_s=1.5)
    assert is_better
    assert own.expectations.covers == ()
    assert not own.has_paid


def test_what_a_look_takes_is_no_gain():
    _, own, is_better = asked(price_s=0.3, look_s=9e-3)
    assert is_better
    assert own.expectations.covers == ()


def test_no_covers_where_all_calls_take_no_longer_than_a_program():
    _, own, is_better = asked(price_s=7.0)
    assert not is_better
    assert own._num_asked == 0


def test_it_is_asked_again_when_many_more_calls_came_or_a_plan_is_due():
    _, own, _ = asked(price_s=1.5)
    before = own._num_asked
    own.accounts.num_calls = int(1.2 * before)
    own._are_covered(is_due=False)
    assert own._num_asked == before
    own._are_covered(is_due=True)
    assert own._num_asked == own.accounts.num_calls


def test_what_contains_another_kind_is_no_kind_of_its_own():
    ours, own, _ = asked(price_s=1.5)
    several = bits(ours, [2, 7, 9])
    own.entries[several] = Entry(several, count=500)
    kinds = own._single_kinds()
    assert several not in kinds
    assert sum(kinds.values()) == pytest.approx(1.0)
    assert max(kinds.values()) == pytest.approx(1.0 / NUM_STEPS)


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
    """Three looks, each of which stands for 50 calls."""
    accounts = engine_of(called(tuning=incrax.Tuning(compile_s=0.0))).chooser.accounts
    accounts.families.clear()
    accounts.squares = 0
    for number in (1, 2, 3, 4, 1):
        accounts.note_calls(Entry(1 << number, family=number), 50)
    assert accounts.families_in_turns > 5.0


def test_a_result_that_no_input_reaches_is_the_users():
    """What is deleted is no constant of ours."""
    rows = jnp.asarray(np.random.default_rng(8).normal(size=(3, 20_000)))
    function = lambda u, shift: (chain(u, shift), rows[1])
    ours = called(function, tuning=UNTIMED)
    engine = engine_of(ours)
    engine.expectations.covers = (bits(ours, range(6, NUM_STEPS)), bits(ours, range(NUM_STEPS)))
    engine.planner.has_paid = True
    u = START
    for step in (10, 11, 9, 7, 2, 8, 3, 10, 2, 9):
        u = moved(u, step)
        value, row = ours(u, 0.2)
        same(value, JITTED(u, 0.2), factor=2**12)
        same(row, rows[1])
        if step < 6:
            row.delete()
    assert engine.segments.priming is not None


# --- from process to process ----------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch, tmp_path):
    gc.collect()  # functions of other tests have learned as well
    monkeypatch.delenv("INCRAX_REMEMBER")
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(expectations, "_living", {})
    monkeypatch.setattr(expectations, "_pending", {})
    return tmp_path


def left(folder, change=lambda data: None):
    """The file of a process that had covers, changed."""
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    engine = engine_of(ours)
    u = START
    for step in (10, 7, 11, 3, 10):
        u = moved(u, step)
        ours(u, 0.2)
    engine.expectations.covers = (bits(ours, range(6, 12)), bits(ours, range(12)))
    ours(moved(u, 9), 0.2)
    engine.whole.seconds = 10.0
    covers = engine.expectations.covers
    expectations.write()
    (file,) = (path for path in folder.iterdir() if path.name.startswith("function"))
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    return covers


def again():
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    ours(moved(START, 9), 0.2)
    ours(moved(START, 8), 0.2)
    return engine_of(ours)


def test_the_next_process_begins_with_them(folder):
    covers = left(folder)
    engine = again()
    assert engine.expectations.covers == covers
    assert engine.chooser.seen(covers[0]) is not None
    assert not engine.planner.has_paid  # it weighs their programs as those of other kinds


@pytest.mark.parametrize("covers", [["zz"], ["-3"], ["0"], ["f" * 80], 7, None])
def test_covers_that_are_none_are_ignored(folder, covers):
    left(folder, lambda data: data.update(covers=covers))
    assert again().expectations.covers == ()


def test_what_a_program_took_pays_for_what_had_one(folder):
    """In an earlier process only the calls of what was compiled there paid."""
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    accounts = engine_of(ours).chooser.accounts
    accounts.families.clear()
    accounts.clean_calls = 0.0
    known = Entry(1, family=1, clean_share=0.5, was_compiled=True, known_price_s=1.0)
    new = Entry(2, family=2, clean_share=0.5)
    for entry in (known, new):
        accounts.note_kind(entry)
        accounts.note_calls(entry, 100)
    assert accounts.calls(known) == 100
    assert accounts.calls(new) == 200


def test_other_programs_are_priced_by_what_their_kinds_reach():
    ours = called(tuning=incrax.Tuning(compile_s=0.0))
    chooser = engine_of(ours).chooser
    accounts = chooser.accounts
    accounts.families.clear()
    near, far = (Entry(1 << k, family=k, num_reached=40 + 600 * k) for k in (0, 1))
    for entry in (near, far):
        accounts.note_kind(entry)
        accounts.note_calls(entry, 100)
    assert accounts.mean_reached == 340
    costs = chooser.credit.costs
    assert math.isfinite(costs.equations_s(accounts.mean_reached))
    assert costs.equations_s(accounts.mean_reached) > costs.equations_s(near.num_reached)
