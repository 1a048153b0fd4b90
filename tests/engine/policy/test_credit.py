"""Compiling is bounded: on trust while it is short, else when it would have paid."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.engine.compile import timing
from incrax.engine.plan import facts
from incrax.engine.policy import compile_budget, learning_costs, ledger
from incrax.engine.policy.accounts import LEAST_CLEAN_SHARE, NUM_GRANTED, SELDOM
from incrax.engine.policy.candidates import RECENT, Entry, Known
from incrax.engine.policy.chooser import MIN_BYPASSED
from incrax.engine.policy.compile_budget import (
    COMPILE_SHARE,
    DOUBT,
    FORESEEN_FACTOR,
    KNOWN_FACTOR,
    LASTING,
    Offer,
)
from incrax.engine.policy.learning_costs import (
    CALIBRATION_S,
    CAUTION,
    DIVIDED,
    FIRST_PLAN,
    PRIMING,
    ROW_EQUATION_S,
    ROW_PROGRAM_S,
)
from incrax.engine.policy.ledger import MAX_BYPASSED
from incrax.engine.program.nested import num_in_all

pytestmark = pytest.mark.usefixtures("known_prices")

X = np.linspace(0.1, 2.0, 5_000)
LONG = np.linspace(0.1, 2.0, 30_000)
NUM_CALLS = 12


@pytest.fixture(autouse=True)
def no_slow_call_earns_a_program(monkeypatch):
    """A call of a busy machine may take as long as compiling does, and a thread bears some of that."""
    monkeypatch.setenv("INCRAX_BACKGROUND", "0")
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 5.0)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x) * jnp.arctan2(x, b))


def called(compile_s):
    f = incrax.incremental(model, tuning=incrax.Tuning(compile_s=compile_s))
    for a in range(NUM_CALLS):
        same(f(float(a), 1.5, X), model(float(a), 1.5, X))
    return f


def test_nothing_is_compiled_without_credit():
    assert called(0.0).stats.compiles == 1


def test_plans_are_compiled_on_trust():
    assert called(math.inf).stats.compiles > 1


def test_a_compilation_is_earned_by_what_was_lost_for_want_of_it():
    f = called(0.0)
    chooser = f._traces.latest.engine.chooser
    entry = max(chooser.entries.values(), key=lambda e: e.count)
    entry.count = 10**9
    same(f(-1.0, 1.5, X), model(-1.0, 1.5, X))
    assert f.stats.compiles > 1


def test_what_is_asked_for_is_compiled_without_credit():
    f = incrax.incremental(model, tuning=incrax.Tuning(compile_s=0.0))
    f.warm_up(1.0, 1.5, X, changing=["a"])
    num_compiles = f.stats.compiles
    assert num_compiles > 1
    same(f(2.0, 1.5, X), model(2.0, 1.5, X))
    assert f.stats.compiles == num_compiles


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_credit_grows_with_the_time_spent(seconds):
    f = called(0.0)
    clock, whole = f._traces.latest.engine.chooser.clock, f._traces.latest.engine.chooser.whole
    clock.spent_s = 1.001 * whole.first_s * seconds / COMPILE_SHARE
    assert f._traces.latest.engine.chooser.credit._has_left(whole.first_s) == (seconds >= 1.0)


def test_half_of_what_was_gained_may_be_risked():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.ledger.whole_s = 12.0 + credit.ledger.learning_s
    credit.ledger.spent_s = 2.0
    assert credit._has_left(4.99)
    assert not credit._has_left(5.01)


def test_what_promises_nothing_compiles_nothing():
    f = incrax.incremental(lambda *leaves: sum(leaves), tuning=incrax.Tuning(compile_s=0.0))
    for number in range(256):
        f(float(number), 2.0, 3.0)
    assert f.stats.compiles == 1


def test_what_a_plan_promises_a_kind_without_a_family_is_known():
    chooser = called(0.0)._traces.latest.engine.chooser
    entry = Entry(chooser.facts.layout.leaf_mask(0), count=1)
    chooser.whole.seconds = 1e6
    chooser.planner.plan(entry)
    assert entry.family is None
    assert entry.promise_s < 1e6


def test_a_plan_that_loads_nothing_is_not_compiled():
    """It runs what the whole program runs; its estimate may say less than that was measured."""
    f = incrax.incremental(lambda a, b, x: jnp.sum(jnp.exp(-a * x) * jnp.sin(b * x)))
    f(1.0, 2.0, X)
    chooser = f._traces.latest.engine.chooser
    mask = chooser.facts.layout.leaf_mask
    chooser.whole.seconds = 1e6
    chooser.planner.plan(Entry(mask(0) | mask(1), count=10**9))
    assert f.stats.compiles == 1


@pytest.mark.parametrize(
    ("each_s", "expected_s"), [(0.0, 2.5e-4), (1e-3, 1e-3), (2e-3, 2e-3), (1.0, 3e-3)]
)
def test_equations_take_as_long_to_compile_as_in_the_whole_program_within_limits(
    each_s, expected_s
):
    """A first run reads its constants, and runs, too."""
    chooser = called(0.0)._traces.latest.engine.chooser
    chooser.whole.first_s = timing.PROGRAM_S + each_s * len(chooser.facts.eqns)
    costs = chooser.credit.costs
    assert costs.equations_s(10) == pytest.approx(timing.PROGRAM_S + 10 * expected_s)
    # Of a program that JAX had kept, as an earlier process knows.
    costs.expectations.compile_s = chooser.whole.first_s
    chooser.whole.first_s = 0.01
    assert costs.equations_s(10) == pytest.approx(timing.PROGRAM_S + 10 * expected_s)


def test_what_constants_take_to_compile_is_not_a_plans():
    """8 MB take 0.08 s."""
    x = np.linspace(0.1, 2.0, 1_000_000)
    f = incrax.incremental(lambda a, b: model(a, b, x))
    f(1.0, 2.0)
    credit = f._traces.latest.engine.chooser.credit
    num_eqns = len(credit.costs.facts.eqns)
    usual_s = timing.usual_s(num_eqns)
    assert credit.costs._constants_s == pytest.approx(0.08)
    credit.costs.whole.first_s = usual_s + 0.08
    assert credit.costs.equations_s(num_eqns) == pytest.approx(usual_s)
    credit.costs.whole.first_s = 100.0
    assert credit.costs.program_s == pytest.approx(100.0 * usual_s / (usual_s + 0.08))


def test_equations_inside_a_loop_are_compiled_as_well():
    def filtered(a, x):
        return jax.lax.scan(lambda c, y: (jnp.sin(jnp.cos(a * c) * y) + y, c), 0.0, x)[0]

    f = incrax.incremental(filtered)
    f(0.5, X)
    credit = f._traces.latest.engine.chooser.credit
    eqns = credit.costs.facts.eqns
    assert num_in_all(eqns) >= len(eqns) + 5
    rows_s = ROW_PROGRAM_S + ROW_EQUATION_S * num_in_all(eqns)
    price_s = credit.costs.rows_price_s(Entry(1), num_in_all(eqns), with_priming=False)
    assert price_s == pytest.approx(CAUTION * rows_s)
    price_s = credit.costs.rows_price_s(Entry(1), num_in_all(eqns), with_priming=True)
    assert price_s == pytest.approx(CAUTION * (rows_s + PRIMING * credit.costs.program_s))


def test_as_much_as_two_programs_must_be_earned_twice():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    whole_s = 0.15 * credit.costs.program_s
    entry = Entry(1, count=10, promise_s=whole_s / DOUBT)
    whole_s += entry.promise_s
    price_s = credit.costs.plan_price_s(entry)
    assert credit.allows(entry, whole_s, price_s, on_trust=True)
    assert not credit.allows(entry, whole_s, 2.0 * price_s, on_trust=True)


def test_a_short_job_neither_measures_the_machine_nor_plans(monkeypatch):
    def never():
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(facts, "calibrate", never)
    monkeypatch.setattr(facts, "is_calibrated", lambda: False)
    f = incrax.incremental(model)
    for a in range(40):
        same(f(float(a), 1.5, X), model(float(a), 1.5, X))
    assert f._traces.latest.engine.planner.num_planned == 0
    assert f.stats.compiles == 1


@pytest.mark.parametrize(("count", "is_allowed"), [(4, False), (6, True)])
@pytest.mark.parametrize("share", [1.0 - 1.0 / DOUBT, 0.1, 0.0])
def test_planning_is_earned_by_the_work_that_a_change_does_not_reach(
    count, is_allowed, share, monkeypatch
):
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.costs.planning_s = 0.0  # slow calls may have earned a plan
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 0.5)
    monkeypatch.setattr(type(credit.costs.facts), "is_calibrated", property(lambda _: False))
    entry = Entry(1, count=count, clean_share=share)
    plan_s = CALIBRATION_S + credit.costs.program_s
    whole_s = 0.2 * plan_s / max(share, LEAST_CLEAN_SHARE)
    program_s = credit.costs.program_s
    assert credit.allows_planning(entry, whole_s, program_s) is is_allowed
    slow = replace(entry, fixed_s=whole_s)
    assert not credit.allows_planning(slow, whole_s, program_s)
    monkeypatch.setattr(type(credit.costs.facts), "is_calibrated", property(lambda _: True))
    assert credit.allows_planning(entry, whole_s, program_s)


def test_the_clean_share_is_that_of_the_equations_a_change_does_not_reach():
    found = called(0.0)._traces.latest.engine.facts
    mask = found.dependence.layout.leaf_mask
    assert found.clean_share(0) == 1.0
    assert found.clean_share(found.dependence.layout.full) == 0.0
    assert 0.9 < found.clean_share(mask(0)) < 1.0
    assert found.clean_share(mask(1)) < 0.1


def noted(credit, entries, counts):
    """Entries that were called so often, each call looked at."""
    for entry, count in zip(entries, counts, strict=True):
        credit.accounts.note_kind(entry)
        credit.accounts.note_calls(entry, count)
        credit.accounts.of(entry).squares += count - count**2
    return entries


def of_family(credit, *counts):
    """Entries of one family, called so often."""
    entries = [Entry(1 << k, family=7, is_decided=True) for k in range(len(counts))]
    return noted(credit, entries, counts)


def test_a_program_is_as_dear_as_plans_of_the_family_needed_one_of_their_own():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.accounts.families.clear()
    (entry,) = of_family(credit, 1)
    alone_s = credit.costs.plan_price_s(entry)
    assert alone_s == credit.costs.program_s
    credit.note_program(entry, is_new=True)
    assert credit.costs.plan_price_s(entry) == pytest.approx(SELDOM * alone_s)
    for _ in range(9):
        credit.note_program(entry, is_new=False)
    assert credit.costs.plan_price_s(entry) == pytest.approx(SELDOM * alone_s / 10)
    credit.note_program(entry, is_new=True)
    assert credit.costs.plan_price_s(entry) == pytest.approx((1 + SELDOM) * alone_s / 11)
    assert credit.costs.plan_price_s(Entry(1, family=8)) == alone_s


def test_that_the_second_of_a_family_needs_a_program_is_a_risk_of_all():
    """Twenty parts of a loop: whether the second needs a program of its own is found out once. With
    each bearing the whole of it, a kind that came six times in 400 calls waited for 800 more.
    """
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entries = of_family(credit, *[1] * 20)
    alone_s = credit.costs.plan_price_s(entries[0])
    credit.note_program(entries[0], is_new=True)
    assert credit.costs.plan_price_s(entries[1]) == pytest.approx(SELDOM * alone_s / 20)


def test_a_family_whose_first_program_was_there_has_a_price():
    """Another family, whose plans are the same, had it compiled."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, _ = of_family(credit, 1, 1)
    credit.note_program(entry, is_new=False)
    assert credit.costs.plan_price_s(entry) > 0.0


@pytest.mark.parametrize(
    ("candidate", "is_measured", "served_s"),
    [("plan", False, math.inf), ("plan", True, 3e-3), ("whole", False, 2e-3)],
)
def test_a_program_that_ran_once_says_nothing_of_its_family(candidate, is_measured, served_s):
    """The first run takes several times as long as the next: others were refused a plan for it. One
    that is not taken is no reason for more plans, though.
    """
    accounts = called(0.0)._traces.latest.engine.chooser.accounts
    program = SimpleNamespace(is_measured=is_measured)
    seconds = {"whole": 4e-3 if candidate == "plan" else 2e-3, "plan": 3e-3}
    entry = Entry(1, family=7, program=program, candidate=candidate, seconds=seconds)
    accounts.note_choice(entry)
    assert accounts.of(entry).served_s == served_s


def test_kin_of_what_has_a_program_is_worth_its_own_calls():
    """What the first program took is spent; one kind's 20 calls, which gain 1 ms each, are not."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, other = of_family(credit, 20, 20)
    credit.note_learning(entry, 10.0)
    is_paid = lambda price_s: credit.is_worth(other, Offer(2e-3, 1e-3, price_s, math.inf, math.inf))
    assert not is_paid(0.019)
    credit.note_program(entry, is_new=True)
    assert is_paid(0.019)
    assert not is_paid(0.021)


def test_all_of_a_family_earn_for_each():
    """A price of 1 s and a gain of 1 ms: 1,001 calls are needed, of whichever kind."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    enough, too_few = ([500, 501], [500, 499])
    for counts, is_paid in ((enough, True), (too_few, False)):
        credit.accounts.families.clear()
        entry, _ = of_family(credit, *counts)
        credit.accounts.clean_calls = 0.0
        assert credit.is_worth(entry, Offer(2e-3, 1e-3, 1.0, math.inf, math.inf)) is is_paid
        assert not credit.is_worth(Entry(1, count=501), Offer(2e-3, 1e-3, 1.0, math.inf, math.inf))


def test_calls_expected_of_a_family_count_together():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entries = [Entry(1 << k, family=7, num_expected=500) for k in range(3)]
    for entry in entries:
        credit.accounts.note_kind(entry)
    assert credit.is_worth(entries[0], Offer(2e-3, 1e-3, math.inf, 1.0, 1.0))
    assert not credit.is_worth(Entry(1, num_expected=500), Offer(2e-3, 1e-3, math.inf, 1.0, 1.0))


def test_calls_to_come_take_what_they_took_before():
    """A busy machine made the first runs of this process twice as long."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.ledger.turn_s = 2e-3
    entry = Entry(1, num_expected=1001)
    offer = Offer(2e-3, 1e-3, math.inf, 1.0, 1.0)
    for known_s, is_worth in ((None, True), (3e-3, True), (1.9e-3, False)):
        credit.accounts.expectations.whole_s = known_s
        assert credit.is_worth(entry, offer) is is_worth


def test_looks_may_take_the_whole_program_for_slower_than_it_is(monkeypatch):
    """With `calls=`, rows were compiled at the second call, which took twice as long as all later ones."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry = Entry(1, num_expected=1001)
    for is_running, turn_s, price_s, is_worth in (
        (True, 2e-3, 1.4, True),
        (True, 0.0, 1.4, False),
        (True, 0.0, 1.1, True),
        (False, 0.0, 1.4, True),
    ):
        monkeypatch.setattr(credit.clock, "is_running", is_running)
        monkeypatch.setattr(credit.ledger, "turn_s", turn_s)
        offer = Offer(2e-3, 5e-4, math.inf, price_s, price_s)
        assert credit.is_worth(entry, offer) is is_worth


def test_calls_that_are_known_need_repay_less_of_a_program_for_rows():
    """As many as came are only guessed to come again."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.ledger.calls = 100
    expectations = credit.accounts.expectations
    offer = Offer(2e-3, 1e-3, math.inf, 0.2, 0.1)
    is_worth = lambda **of: credit.is_worth(Entry(1, count=150, **of), offer)
    assert not is_worth()
    assert is_worth(num_expected=301)  # a user said so
    expectations.num_calls = 1000
    assert is_worth(num_expected=300)  # an earlier process knew
    assert not credit.is_worth(Entry(1, count=250, num_expected=300), offer)


def test_a_price_of_rows_has_what_they_load():
    """So that it need not be repaid twice, as that of a plan, where calls to come are known."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.ledger.turn_s = 2e-3
    for fixed_s, factor in ((0.0, FORESEEN_FACTOR), (1e-9, KNOWN_FACTOR)):
        entry = Entry(1, count=1, promise_s=1e-3, fixed_s=fixed_s)
        for num, pays in ((1000 * factor, False), (1000 * factor + 2, True)):
            entry.num_expected = int(num)
            assert credit.allows(entry, 2e-3, 1.0, on_trust=True) is pays


def test_what_would_pay_is_noted_for_a_process_that_knows_the_calls():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry = Entry(1, count=1)
    assert not credit.is_worth(entry, Offer(2e-3, 1e-3, math.inf, 2.0, 0.5))
    assert entry.num_paying == pytest.approx(500)


def test_a_price_is_what_it_took_in_an_earlier_process():
    """The first run of the whole function may tell nothing of it: JAX writes large ones to its cache,
    or reads them. No more than twice the estimate, since the machine may have stood still.
    """
    costs = called(0.0)._traces.latest.engine.chooser.credit.costs
    of_rows = lambda entry: costs.rows_price_s(entry, 100, with_priming=True)
    for price_s in (costs.plan_price_s, of_rows):
        estimate_s = price_s(Entry(1))
        prices = [price_s(Entry(1, known_price_s=x * estimate_s)) for x in (0.1, 1.5, 9.0)]
        assert prices == pytest.approx([x * estimate_s for x in (0.1, 1.5, 2.0)])


def test_a_job_like_the_last_one_is_not_taken_to_go_on():
    """Of a job of 1,000 calls, 600 of one kind, those that are left count, not those that were."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    expectations = credit.accounts.expectations
    expectations.whole_s = 2e-3
    offer = Offer(2e-3, 1e-3, 0.5, 0.45, 0.45)

    def is_paid(count, num_before, num_expected=600, num_calls=1000):
        credit.ledger.calls = num_before
        credit.ledger.bypassed = credit.ledger.unchanged = 0
        expectations.num_calls = num_calls
        return credit.is_worth(Entry(1, count=count, num_expected=num_expected), offer)

    assert [is_paid(count, count) for count in (1, 149, 151, 599)] == [True, True, False, False]
    assert [is_paid(700, num) for num in (700, 549, 551)] == [False, True, False]
    assert is_paid(599, 1000)  # the job is longer
    assert is_paid(599, 599, num_expected=0)  # the kind is new
    assert is_paid(599, 599, num_calls=0)  # no process knew the function


def test_what_a_family_has_spent_is_spent():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, other = of_family(credit, 600, 401)
    credit.note_plan(other, 0.5, 1.0)
    assert credit.is_worth(entry, Offer(2e-3, 1e-3, 0.5, math.inf, math.inf))
    assert not credit.is_worth(entry, Offer(2e-3, 1e-3, 0.6, math.inf, math.inf))
    credit.note_program(other, is_new=True)
    assert credit.accounts.of(entry).spent_s == pytest.approx(0.5 + credit.costs.program_s)


def test_what_took_longer_than_it_was_priced_is_dearer_next_time(monkeypatch):
    """Also for another family; where no clock may decide, it is what it was priced at."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.accounts.families.clear()
    (entry,) = of_family(credit, 1)
    other = Entry(1, family=8)
    price_s = credit.costs.plan_price_s(other)
    credit.note_program(entry, is_new=True)
    credit.note_learning(entry, 3.0 * credit.costs.program_s)
    assert credit.costs.plan_price_s(other) == pytest.approx(3.0 * price_s)
    assert credit.accounts.of(entry).spent_s == pytest.approx(3.0 * price_s)
    monkeypatch.setattr(credit.clock, "is_running", False)
    credit.note_learning(entry, 1e9)
    assert credit.accounts.of(entry).spent_s == pytest.approx(3.0 * price_s)
    assert credit.costs.plan_price_s(Entry(1)) == price_s


def families(credit, *counts):
    """A kind of change of each of so many families, with these calls."""
    entries = [Entry(1 << k, family=k, clean_share=0.5) for k in range(len(counts))]
    return noted(credit, entries, counts)


def test_families_in_turns_earn_programs_for_all_of_them():
    """Served as a whole, one would leave stale what the plan of another loads."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.accounts.families.clear()
    entry, *others = families(credit, 100, 100, 100, 100, 1)
    assert 4.0 < credit.accounts.families_in_turns < 4.2
    for number, other in enumerate(others):
        credit.accounts.of(other).num_reached = 100 * number
    assert credit.accounts.mean_reached > 70
    others_s = (credit.accounts.families_in_turns - 1.0) * credit.costs.equations_s(
        credit.accounts.mean_reached
    )
    assert credit.costs.plan_price_s(entry) == pytest.approx(credit.costs.program_s + others_s)
    segments_s = credit.costs.plan_price_s(entry, divides=True)
    assert segments_s == pytest.approx(DIVIDED * credit.costs.program_s)  # they serve all
    credit.accounts.has_learned = True
    assert credit.accounts.families_in_turns == 1.0


def test_a_family_that_is_rare_is_not_the_one_to_begin_with():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.accounts.families.clear()
    often, _, seldom = families(credit, 500, 500, 20)
    pays = lambda entry: credit.is_worth(entry, Offer(2e-3, 1e-3, 0.9, math.inf, math.inf))
    assert pays(often)
    assert not pays(seldom)


def test_what_is_promised_counts_as_often_as_it_came_true():
    """Of a gain of 1 ms, 0.5 ms: others left stale in half of the calls what is loaded."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry = Entry(1, count=1000)
    is_paid = lambda price_s: credit.is_worth(entry, Offer(2e-3, 1e-3, price_s, math.inf, math.inf))
    assert credit.accounts.hit_rate == 1.0
    assert is_paid(0.9)
    credit.accounts.note_uses(entry, 100 - NUM_GRANTED)
    credit.accounts.note_missed(entry, 50.0)
    assert credit.accounts.hit_rate == pytest.approx(0.5)
    assert is_paid(0.49)
    assert not is_paid(0.51)


def test_what_left_stale_what_others_load_is_not_counted_less_for_that():
    """A program of its own saves anew what its changes make stale: then no call misses it."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    served, to_blame = families(credit, 1000, 1000)
    credit.accounts.has_learned = True
    credit.accounts.note_uses(served, 100 - NUM_GRANTED)
    credit.accounts.note_missed(served, 50.0, to_blame)
    pays = lambda entry: credit.is_worth(entry, Offer(2e-3, 1e-3, 0.9, math.inf, math.inf))
    assert pays(to_blame)
    assert not pays(served)


def test_programs_for_what_was_left_stale_must_be_worth_it():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, _ = of_family(credit, 500, 500)
    credit.accounts.clean_calls = 0.0
    pays = lambda compiling_s: credit.pays_for_fill(entry, 2e-3, 1e-3, compiling_s)
    assert pays(0.0)
    assert pays(0.9)
    credit.note_plan(entry, 0.5, 1.0)
    assert not pays(0.9)  # beside what was spent


def test_all_of_a_family_pay_for_what_its_plans_find_stale():
    """Its programs are there, and what they took is spent: a program that fills what one left stale
    serves all of them, but no more is spent on such than calls would have gained.
    """
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, _ = of_family(credit, *[10] * 100)[:2]
    credit.accounts.clean_calls = 0.0
    credit.note_learning(entry, 10.0)
    pays = lambda compiling_s: credit.pays_for_fill(entry, 2e-3, 1e-3, compiling_s)
    assert not pays(0.6)
    credit.note_program(entry, is_new=True)
    assert pays(0.6)
    credit.accounts.note_fill(entry, 0.6)
    assert pays(0.3)
    assert not pays(0.6)


@pytest.mark.parametrize("is_paid", [False, True])
def test_programs_that_fill_what_is_stale_are_entered_where_they_are_made(is_paid, monkeypatch):
    chooser = called(0.0)._traces.latest.engine.chooser
    monkeypatch.setattr(chooser.segments, "fill_seconds", lambda *_: 0.0)
    monkeypatch.setattr(chooser.segments, "compiling_s", lambda _: 0.3)
    monkeypatch.setattr(chooser.credit, "pays_for_fill", lambda *_: is_paid)
    missing = chooser.facts.eqns[0].outvars
    entry = Entry(1, family=7, is_final=True)
    assert chooser.decide_fill(entry, missing, [], None) is is_paid
    assert chooser.accounts.of(entry).filled_s == 0.3 * is_paid


def test_once_something_is_saved_a_program_is_priced_by_the_equations_that_it_runs(monkeypatch):
    """What it loads is there; the first one has most of the function computed to be saved."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    few = Entry(1, family=8, num_reached=2)
    before_s = credit.costs.plan_price_s(few)
    credit.accounts.has_learned = True
    assert credit.costs.plan_price_s(few) == pytest.approx(credit.costs.equations_s(2))
    assert credit.costs.plan_price_s(few) < before_s


def test_rows_are_traced_only_where_their_program_would_be_compiled_too(monkeypatch):
    """A tenth of the seconds so far covers a plan in a call or two; tracing rows takes far longer."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    monkeypatch.setattr(compile_budget, "COMPILE_SHARE", 1.0)
    credit.clock.spent_s = 1.0
    entry = Entry(1, count=1, clean_share=0.5)
    assert credit.allows_planning(entry, 1e-3, 2.0)
    of_rows = replace(entry, fixed_s=1e-4)
    assert not credit.allows_planning(of_rows, 1e-3, 2.0)
    credit.clock.spent_s = 3.0
    assert credit.allows_planning(of_rows, 1e-3, 2.0)


def test_the_first_of_all_must_be_worth_plans_of_all_kinds(monkeypatch):
    credit = called(0.0)._traces.latest.engine.chooser.credit
    monkeypatch.setattr(type(credit.costs.facts), "is_calibrated", property(lambda _: True))
    monkeypatch.setattr(credit.clock, "is_running", True)
    credit.costs.planning_s = 1.0
    entry = of_family(credit, *[10] * 10)[0]
    once = Entry(1 << 40, family=8)
    credit.accounts.note_kind(once)
    credit.accounts.note_calls(once, 1)
    num_kinds = credit.accounts.num_kinds_with(entry)
    assert num_kinds == 11  # with what was called before, without what came once
    price_s = num_kinds + credit.costs.program_s
    entry.clean_share = 0.5
    credit.accounts.clean_calls = 0.0
    allows = lambda whole_s, price_s: credit.allows_planning(entry, whole_s, price_s)
    assert allows(1.01 * price_s / 50, credit.costs.program_s)
    assert not allows(0.99 * price_s / 50, credit.costs.program_s)
    credit.note_program(entry, is_new=False)
    assert allows(1.01 / 50, 0.0)


def test_what_gains_nothing_once_is_not_planned_again_for_its_kin():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    entry, other = of_family(credit, 10**9, 10**9)
    assert credit.allows_planning(entry, 1.0, 0.0)
    assert credit.may_gain(entry, 1.0)
    credit.accounts.of(other).served_s = 1.0
    assert not credit.allows_planning(entry, 1.0, 0.0)
    assert not credit.may_gain(entry, 1.0)
    assert credit.allows_planning(Entry(1, count=10**9, family=8), 1.0, 0.0)


def test_a_gain_that_no_doubt_can_spoil_is_relied_on_sooner():
    """A plan that would gain if it took ten times as long: by Lotka's law, 2.3 times as many calls
    are still to come.
    """
    credit = called(0.0)._traces.latest.engine.chooser.credit
    count = math.ceil(1000 / LASTING)
    is_paid = lambda count, promise_s: credit.is_worth(
        Entry(1, count=count), Offer(1e-3, promise_s, 1.0, math.inf, math.inf)
    )
    assert is_paid(count, 0.0)
    assert not is_paid(count - 1, 0.0)
    assert not is_paid(999, 1e-3 / DOUBT)
    assert not is_paid(1000, 1e-3 / DOUBT)
    assert is_paid(1112, 1e-3 / DOUBT)


def test_what_is_known_of_a_promise_is_doubted_less():
    """Of 0.6 ms 0.5 are known: at most 2.5 * 0.5 + 2 * 0.1 = 1.45 of the 10 ms that calls take now."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    count = math.ceil(1.0 / (LASTING * 8.55e-3))
    is_paid = lambda count, fixed_s: credit.is_worth(
        Entry(1, count=count, fixed_s=fixed_s), Offer(1e-2, 6e-4, 1.0, math.inf, math.inf)
    )
    assert is_paid(count, 5e-4)
    assert not is_paid(count - 1, 5e-4)
    assert not is_paid(count, 0.0)


def test_rows_that_may_take_as_long_must_pay_twice():
    """1 ms for 2 ms, of which 0.5 are known: 2.25 ms at most."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    is_paid = lambda count: credit.is_worth(
        Entry(1, count=count, fixed_s=5e-4), Offer(2e-3, 1e-3, 1.0, math.inf, math.inf)
    )
    assert is_paid(2001)
    assert not is_paid(1999)


def test_a_short_job_compiles_nothing(monkeypatch):
    """None is made before 0.3 s were spent in programs, whatever was earned."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    monkeypatch.setattr(compile_budget, "SHORT_S", 0.3)
    monkeypatch.setattr(credit.clock, "is_running", True)
    entry = Entry(1, count=10**6)
    is_paid = lambda price_s: credit.is_worth(entry, Offer(1e-3, 0.0, price_s, math.inf, math.inf))
    monkeypatch.setattr(credit.clock, "spent_s", 0.27)
    assert not is_paid(1.0)
    assert entry.due_at - credit.ledger.num_calls == pytest.approx(30.0)
    assert not is_paid(0.1)
    monkeypatch.setattr(credit.clock, "spent_s", 0.3)
    assert is_paid(1.0)
    assert entry.due_at == math.inf


@pytest.mark.parametrize("is_decided", [False, True])
def test_what_a_plan_promised_is_not_hoped_to_be_more(is_decided, monkeypatch):
    """Else a plan that saves 3 % would be refused, and made again, at each look."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    monkeypatch.setattr(credit.clock, "spent_s", 100.0)
    entry = Entry(1, count=30_000, is_decided=is_decided, promise_s=0.97e-3)
    allows = lambda entry: credit.allows(entry, 1e-3, 1.0, on_trust=True)
    monkeypatch.setattr(credit, "_has_left", lambda _: False)
    assert not allows(entry)
    assert allows(replace(entry, count=40_000))


def test_planning_takes_what_it_took(monkeypatch):
    credit = called(0.0)._traces.latest.engine.chooser.credit
    credit.costs.planning_s = 0.0
    costs = credit.costs
    usual_s = costs.later_plan_s
    # Twice as long as expected, with 0.3 s that went into measuring the machine.
    credit.note_plan(Entry(1), 0.3 + 2 * FIRST_PLAN * usual_s, 0.15 + FIRST_PLAN * usual_s)
    assert costs.plan_s == pytest.approx(2 * usual_s)
    for _ in range(20):
        credit.note_plan(Entry(1), 0.004, 1.0)
    assert credit.costs.plan_s == pytest.approx(0.004, rel=1e-3)
    monkeypatch.setattr(credit.clock, "is_running", False)
    assert credit.costs.plan_s != pytest.approx(0.004, rel=1e-3)


@pytest.mark.parametrize(
    ("num_calls", "num_before", "due_in"), [(400, 0, 600.0), (800, 0, 1200.0), (800, 400, 600.0)]
)
def test_what_was_refused_says_when_to_look_again(num_calls, num_before, due_in, monkeypatch):
    """A program takes 1 s and saves 1 ms a call: after 1,000 calls like it, of which 400 came, alone
    or every other time; what was called before the first of them tells nothing.
    """
    credit = called(0.0)._traces.latest.engine.chooser.credit
    monkeypatch.setattr(credit.accounts, "num_calls", num_calls)
    entry = Entry(1, count=400, num_before=num_before)
    assert not credit.is_worth(entry, Offer(2e-3, 1e-3, 1.0, 2.0, 2.0))
    assert entry.due_at - credit.ledger.num_calls == pytest.approx(due_in)


def test_a_family_is_asked_again_together():
    """The last of it that was refused says when: the others would be looked out for in vain."""
    credit = called(0.0)._traces.latest.engine.chooser.credit
    kinds = [Entry(dirty, count=1, family=7) for dirty in (1, 2)]
    for entry in kinds:
        credit.accounts.note_calls(entry, 100)
        assert not credit.is_worth(entry, Offer(2e-3, 1e-3, 1.0, 2.0, 2.0))
    assert [entry.due_at for entry in kinds] == [math.inf] * 2
    due_in = credit.accounts.families[7].due_at - credit.ledger.num_calls
    assert due_in == pytest.approx((1000 - 200) * 202 / 200, rel=0.02)


def test_what_is_prepared_is_no_call():
    f = incrax.incremental(lambda a, b, x: a * jnp.sum(jnp.exp(-b * x)))
    for a in (1.0, 2.0):
        f(a, 1.5, X)
    chooser = f._traces.latest.engine.chooser
    num_calls, num_clean = chooser.accounts.num_calls, chooser.accounts.clean_calls
    f.warm_up(2.0, 1.5, X, changing=["a", "b", "x"])
    assert chooser.accounts.num_calls == num_calls
    assert chooser.accounts.clean_calls == num_clean
    assert {entry.count for entry in chooser.entries.values()} <= {1, chooser.hot_after}


def test_calls_that_rows_serve_earn_no_plan():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    accounts = credit.accounts
    before = accounts.clean_calls, accounts.squares
    num_calls = accounts.num_calls
    accounts.note_calls(Entry(1, clean_share=0.9, was_compiled=True), 500)
    assert (accounts.clean_calls, accounts.squares) == before
    assert accounts.num_calls == num_calls + 500
    assert accounts.known_calls == 0.0


def test_families_are_forgotten_with_their_last_kind():
    """Random subsets of the inputs are as many families."""
    ours = called(0.0)._traces.latest.engine.chooser
    for dirty in range(100, 150):
        entry = Entry(dirty, family=dirty)
        ours.entries[dirty] = entry
        ours.accounts.note_kind(entry)
        ours.accounts.note_calls(entry, 3)
        if len(ours.entries) > 8:
            ours._forget_one()
    accounts = ours.accounts
    assert len(accounts.families) <= 8
    assert accounts.squares == 9 * sum(account.num_kinds for account in accounts.families.values())
    last = ours.entries[149]
    accounts.of(last).num_programs = 1
    accounts.forget_kind(last)
    assert accounts.families[149].num_kinds == 0  # it has a program, whose price is paid


def weighed(monkeypatch):
    """What decides, in debt for looks, by a clock that runs, and an entry of it."""
    chooser = called(0.0)._traces.latest.engine.chooser
    monkeypatch.setattr(ledger, "LOOK_SHARE", 0.01)
    monkeypatch.setattr(chooser.clock, "is_running", True)
    monkeypatch.setattr(chooser.whole, "is_measured", True)
    monkeypatch.setattr(chooser.whole, "seconds", 1e-3)
    chooser.ledger.grant(0)
    chooser.ledger.credit_s = -1000.0
    chooser.ledger.weight = 1
    chooser.ledger._waiting = 0
    # What its calls found, and hope for, depends on the machine.
    for each in (*chooser.entries.values(), *chooser.accounts.families.values()):
        each.due_at = math.inf
    for each in chooser._all_entries():
        each.recent = 0.0
    return chooser, max(chooser.entries.values(), key=lambda e: e.count)


def test_calls_count_while_the_whole_program_is_timed_anew_and_none_bypasses(monkeypatch):
    """What is fast is not run as a whole for long: its calls would never be counted again."""
    chooser, entry = weighed(monkeypatch)
    monkeypatch.setattr(chooser.whole, "is_measured", False)
    num_calls = chooser.ledger.calls
    chooser.note_call(entry, "segments", 1e-3, 1e-4)
    assert chooser.ledger.calls == num_calls + 1 > 1
    assert chooser.ledger.granted == 0


@pytest.mark.parametrize("is_of_the_call", [True, False])
@pytest.mark.parametrize(("due_in", "expected"), [(40.0, 40), (3.0, MIN_BYPASSED), (1e9, None)])
def test_a_bypass_ends_where_a_decision_is_due(due_in, expected, is_of_the_call, monkeypatch):
    """On the change that was looked at last, or on another one: a rare one may come then."""
    chooser, entry = weighed(monkeypatch)
    other = chooser.entries[-1] = Entry(-1)
    due_at = chooser.ledger.num_calls + 1 + due_in
    (entry if is_of_the_call else other).due_at = due_at
    chooser.note_call(entry, "whole", 1e-3, 1e-4)
    assert chooser.ledger.granted + 1 == (expected or MAX_BYPASSED)


def test_a_decision_that_is_due_makes_no_bypass_longer(monkeypatch):
    chooser, entry = weighed(monkeypatch)
    for due_in in (-5, 1, 40):
        entry.due_at = chooser.ledger.num_calls + due_in
        chooser.ledger.grant(3)
        chooser._begin_bypass("whole")
        assert chooser.ledger.granted + 1 == 3


def test_what_does_not_come_when_it_is_due_is_looked_out_for_once(monkeypatch):
    chooser, entry = weighed(monkeypatch)
    chooser.entries[-1] = Entry(-1, due_at=1.0)
    granted = []
    for _ in range(2):
        chooser.ledger.grant(0)
        chooser.note_call(entry, "whole", 1e-3, 1e-4)
        granted.append(chooser.ledger.granted + 1)
    assert granted == [MIN_BYPASSED, MAX_BYPASSED]


@pytest.mark.parametrize("candidate", ["plan", "segments"])
@pytest.mark.parametrize(
    ("recent", "bypasses"), [(RECENT, False), (0.3 * RECENT, False), (5.0, True)]
)
def test_calls_are_looked_at_while_a_program_is_likely_to_serve_the_next(
    recent, bypasses, candidate, monkeypatch
):
    """A look takes 0.1 ms; the program of another kind of change saves 0.5 ms of those that it was,
    however much was spent before.
    """
    chooser, entry = weighed(monkeypatch)
    monkeypatch.setattr(chooser.accounts, "num_calls", 10**6)
    chooser.ledger.look_s = 1e-4
    served = Entry(2, candidate=candidate, recent=recent, seen_at=10**6)
    served.program = SimpleNamespace(seconds=5e-4) if candidate == "plan" else None
    served.seconds = {"whole": 1e-3, candidate: 5e-4}
    monkeypatch.setitem(chooser.entries, 2, served)
    chooser.note_call(entry, "whole", 1e-3, 1e-4)
    assert (chooser.ledger.granted > 0) is bypasses


@pytest.mark.parametrize(
    ("num_asked", "recent", "candidate", "bypasses"),
    [
        (3, 0.2, "plan", False),
        (3, 0.05, "plan", True),
        (3, 0.2, "whole", True),
        (16, 0.2, "plan", True),
    ],
)
def test_calls_are_looked_at_until_a_new_program_has_served_some(
    num_asked, recent, candidate, bypasses, monkeypatch
):
    """Where the first looks after it was made met rare kinds, it seems to serve none."""
    chooser, entry = weighed(monkeypatch)
    monkeypatch.setattr(chooser.accounts, "num_calls", 10**6)
    chooser.ledger.look_s = 1.0
    untried = Entry(2, candidate=candidate, recent=recent * RECENT, seen_at=10**6)
    untried.num_asked = num_asked
    untried.program = SimpleNamespace(seconds=5e-4)
    monkeypatch.setitem(chooser.entries, 2, untried)
    chooser.note_call(entry, "whole", 1e-3, 1e-4)
    assert (chooser.ledger.granted > 0) is bypasses


@pytest.mark.parametrize(("known", "bypasses"), [("compiled", False), ("refused", True)])
@pytest.mark.parametrize("look_s", [1e-4, 0.1])
def test_calls_are_looked_at_while_the_job_is_no_longer_than_one_that_gained(
    known, look_s, bypasses, monkeypatch
):
    """Whatever the first looks took, which load what later ones need; and not beyond it."""
    chooser, entry = weighed(monkeypatch)
    num_calls = chooser.accounts.num_calls
    seen = Entry(2, was_compiled=True, recent=0.9 * num_calls, seen_at=num_calls)
    monkeypatch.setitem(chooser.entries, 2, seen)
    expected = chooser.expectations
    was_compiled = known == "compiled"
    kinds = {2: Known(500, plan_s=2e-2, was_compiled=was_compiled)}
    monkeypatch.setattr(expected, "_known", kinds)
    monkeypatch.setattr(chooser.whole, "seconds", 4e-2)
    monkeypatch.setattr(expected, "num_calls", chooser.ledger.num_calls + 1000)
    chooser.ledger.look_s = look_s
    chooser.note_call(entry, "whole", 4e-2, 1e-4)
    assert (chooser.ledger.granted > 0) is bypasses
    chooser.ledger.grant(0)
    seen.recent = 1e-6 * num_calls  # that kind does not come this time
    chooser.note_call(entry, "whole", 4e-2, 1e-4)
    assert chooser.ledger.granted > 0
    chooser.ledger.grant(0)
    seen.recent = 0.9 * num_calls
    monkeypatch.setattr(expected, "num_calls", chooser.ledger.num_calls)
    chooser.note_call(entry, "whole", 4e-2, 1e-4)
    assert chooser.ledger.granted > 0


@pytest.mark.parametrize(("count", "has_program", "bypasses"), [(1, 1, 0), (1, 0, 1), (9, 1, 1)])
def test_the_first_use_of_a_program_puts_nothing_off(count, has_program, bypasses, monkeypatch):
    chooser, entry = weighed(monkeypatch)
    monkeypatch.setattr(chooser, "hot_after", 2)
    monkeypatch.setattr(entry, "count", count)
    monkeypatch.setattr(entry, "program", SimpleNamespace(seconds=1e-3) if has_program else None)
    chooser.note_call(entry, "whole", 1e-3, 1e-4)
    assert bool(chooser.ledger.granted) is bool(bypasses)


def test_many_kinds_that_are_due_have_the_whole_program_timed_again_once(monkeypatch):
    """What the whole program serves leaves stale what the others load."""
    chooser, _ = weighed(monkeypatch)
    again = []
    note = lambda program: again.append(1) if program is chooser.whole else None
    monkeypatch.setattr(type(chooser.whole), "retime", note)
    chooser.ledger.calls += 100
    for dirty in range(30):
        entry = Entry(1 << dirty, uses=64, seconds={"whole": 1e-3, "segments": 1e-3})
        chooser.race.retry(entry)
        chooser.ledger.calls += 1
    assert len(again) == 1
    chooser.ledger.calls += 2
    chooser.race.retry(Entry(1, uses=64, seconds={"whole": 1e-3, "segments": 1e-3}))
    assert len(again) == 2


def test_what_a_kind_makes_others_lose_is_a_gain_of_its_program():
    credit = called(0.0)._traces.latest.engine.chooser.credit
    served, to_blame = families(credit, 1000, 1000)
    credit.accounts.has_learned = True
    pays = lambda: credit.is_worth(to_blame, Offer(2e-3, 1e-3, 1.9, math.inf, math.inf))
    credit.accounts.note_uses(served, 100_000)
    assert not pays()
    credit.accounts.note_missed(served, 1000.0, to_blame)  # one for each of its calls
    assert pays()


@pytest.mark.parametrize(("is_decided", "num_programs"), [(False, 1), (True, 1), (False, 0)])
def test_calls_are_looked_at_while_kin_of_what_has_a_program_comes(
    is_decided, num_programs, monkeypatch
):
    """A plan is all that these need; what was found to gain nothing has none to come."""
    chooser, entry = weighed(monkeypatch)
    monkeypatch.setattr(chooser.accounts, "num_calls", 10**6)
    chooser.ledger.look_s = 1e-4
    kin = Entry(2, family=7, recent=0.9 * RECENT, seen_at=10**6, is_decided=is_decided)
    monkeypatch.setitem(chooser.entries, 2, kin)
    account = chooser.accounts.of(kin)
    account.num_programs = num_programs
    account.served_s = 3e-4
    chooser.note_call(entry, "whole", 1e-3, 1e-4)
    assert (chooser.ledger.granted > 0) is (is_decided or not num_programs)


def test_a_kind_that_comes_no_more_has_no_share_of_the_latest_calls():
    entry = Entry(1)
    entry.note_seen(100, 100)
    assert entry.recent_share(100) == pytest.approx(1.0)
    assert entry.recent_share(100 + 2 * RECENT) < 0.05
    entry.note_seen(300, 500)
    assert 0.6 < entry.recent_share(500) < 0.9
    assert entry.count == 400


def test_a_decision_does_not_count_the_program_again(monkeypatch):
    """Each call that is looked at may ask, and a function has thousands of equations."""
    chooser, entry = weighed(monkeypatch)
    credit = chooser.credit
    before = credit.allows_planning(entry, 1e-3, credit.costs.plan_price_s(entry))
    monkeypatch.setattr(facts, "num_in_all", None)
    assert credit.allows_planning(entry, 1e-3, credit.costs.plan_price_s(entry)) == before


@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_new_is_looked_at_again(is_new, monkeypatch):
    chooser, entry = weighed(monkeypatch)
    chooser.note_call(entry, "whole", 1e-3, 1e-4, is_new=is_new)
    assert bool(chooser.ledger.granted) is not is_new


def test_the_account_takes_the_whole_program_for_what_it_takes_in_a_row(monkeypatch):
    chooser, entry = weighed(monkeypatch)
    before_s = chooser.ledger.whole_s
    chooser.ledger.turn_s = 4e-4
    chooser.note_call(entry, "plan", 1e-4, 1e-4)
    assert chooser.ledger.whole_s - before_s == pytest.approx(4e-4)


# --- families -------------------------------------------------------------------------------------


def branches(num, is_alike=True):
    """A product of factors that each read one parameter, all alike or not."""

    def function(theta, x):
        values = [jnp.exp(-theta[k] * x) for k in range(num)]
        if not is_alike:
            values = [value + k for k, value in enumerate(values)]
        return jnp.sum(jnp.log(sum(jnp.sin(value) for value in values) ** 2 + 1.0))

    return function


def turns_until_learned(function, num, changing, rounds):
    """How often each parameter changed until values were to be saved, by seconds that are estimated."""
    f = incrax.incremental(function, tuning=incrax.Tuning(timed=False))
    theta = [0.5 + 0.05 * k for k in range(num)]
    for turn in range(rounds):
        for k in changing:
            theta = [*theta[:k], theta[k] + 0.01, *theta[k + 1 :]]
            f(theta, LONG)
            if f._traces.latest.engine.chooser.segments.wanted:
                return turn
    return rounds


@pytest.mark.parametrize("is_alike", [True, False])
def test_all_kinds_earn_what_is_learned_first_together(is_alike, monkeypatch):
    """None of them alone has, by then."""
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 0.05)
    function = branches(20, is_alike)
    assert turns_until_learned(function, 20, range(20), 40) < 40
    assert turns_until_learned(function, 20, [7], 40) == 40
