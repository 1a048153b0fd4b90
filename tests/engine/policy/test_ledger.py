"""The ledger: looks that gain nothing take a small share of the whole program's time, and stand for
the calls that nobody looked at.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax.engine.policy import ledger
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.ledger import (
    CENSUS,
    MAX_BYPASSED,
    MAX_CREDIT,
    MAX_DEFERRED,
    MAX_RISE,
    NEWEST,
    NUM_TELLING,
    Ledger,
    calls_worth,
)
from incrax.engine.policy.verdict import BYPASS_S

SHARE = 0.01
WHOLE_S = 1e-3
LOOK_S = 1e-4


@pytest.fixture(autouse=True)
def _looks_take_a_hundredth(monkeypatch):
    monkeypatch.setattr(ledger, "LOOK_SHARE", SHARE)


def look(ledger, gained_s=-LOOK_S, whole_s=WHOLE_S):
    """A call that is looked at."""
    ledger.begin_look(whole_s)
    overhead_s = LOOK_S
    return ledger.note_call(whole_s - gained_s, whole_s, overhead_s)


def skip(ledger, whole_s=WHOLE_S):
    """A call bypasses, if one may; whether it did."""
    if ledger.left:
        next(ledger.turns)
        return True
    if ledger.is_timing_due:
        ledger.note_turn(whole_s, whole_s)
        return True
    return False


def bypass_all(ledger):
    """The calls that may bypass now."""
    number = 0
    while skip(ledger):
        number += 1
    return number


def run(ledger, num_calls, gained_s=-LOOK_S, whole_s=WHOLE_S):
    """How many of so many calls are looked at."""
    num_looks = 0
    for _ in range(num_calls):
        if not skip(ledger, whole_s):
            look(ledger, gained_s, whole_s)
            num_looks += 1
    return num_looks


@pytest.mark.parametrize("whole_s", [1e-5, 1e-4, 1e-3, 5e-3])
def test_looks_without_a_gain_take_their_share(whole_s):
    num_calls = 200_000
    lost_s = run(Ledger(), num_calls, whole_s=whole_s) * LOOK_S
    assert 0.5 * SHARE <= lost_s / (num_calls * whole_s) <= 1.2 * SHARE


def test_what_looks_lost_is_worth_as_many_calls():
    """A job like this one is not looked at again."""
    own = Ledger()
    for _ in range(2000):
        if not skip(own):
            look(own)
    assert 1900 <= calls_worth(own.lost_s, WHOLE_S) <= 2300
    own.note_learning(SHARE)
    assert calls_worth(own.lost_s, WHOLE_S) >= 2900
    look(own, gained_s=1.0)
    assert own.lost_s == SHARE


def test_a_function_that_takes_long_is_always_looked_at():
    assert run(Ledger(), 1000, whole_s=1.0) == 1000


def test_gains_never_bypass():
    ledger = Ledger()
    assert run(ledger, 1000, gained_s=1e-4) == 1000


@pytest.mark.parametrize(("num_gains", "expected"), [(10, MAX_CREDIT), (1000, 500)])
def test_after_gains_some_losses_are_borne(num_gains, expected):
    """A few, and a twentieth of what was gained: 1 s, of which looks of 0.1 ms take 500."""
    ledger = Ledger()
    run(ledger, num_gains, gained_s=1e-3)
    num_looks = 0
    while not ledger.left:
        look(ledger)
        num_looks += 1
    assert 0.5 * expected <= num_looks <= 2 * expected


def test_one_slow_look_does_not_end_what_gains():
    """A process that waits for others has lost nothing to saving."""
    ledger = Ledger()
    run(ledger, 20, gained_s=1e-4)
    ledger.begin_look(WHOLE_S)
    assert not ledger.note_call(1.0, WHOLE_S, 1.0)
    assert not ledger.left
    assert ledger.verdict.ours_s > 1.0


def test_what_gains_is_looked_at_again_after_looks_that_cost_much():
    ledger = Ledger()
    ledger.credit_s = -100 * LOOK_S
    look(ledger, 1e-5)
    assert ledger.credit_s < 0
    assert not ledger.left
    look(ledger, -LOOK_S)
    assert ledger.left


def test_looks_that_have_become_slow_end():
    ledger = Ledger()
    run(ledger, 20, gained_s=1e-4)
    for _ in range(20):
        if not ledger.left:
            ledger.begin_look(WHOLE_S)
            ledger.note_call(1.0, WHOLE_S, 1.0)
    assert ledger.left


def test_what_pays_in_turns_with_what_does_not_is_looked_at():
    ledger = Ledger()
    for _ in range(1000):
        assert not ledger.left
        look(ledger, 3e-4)
        assert not ledger.left
        look(ledger, -LOOK_S)


def test_compiling_pays_for_the_first_looks():
    ledger, other = Ledger(), Ledger()
    other.note_compiled(100 * LOOK_S / SHARE)
    assert run(ledger, 100) < 20
    assert run(other, 100) > 80


def weights_of_looks(ledger, number, *, is_learning):
    """What so many looks stand for, as long as no call bypasses."""
    weights = []
    while len(weights) < number and not ledger.left:
        ledger.begin_look(WHOLE_S)
        weights.append(ledger.weight)
        ledger.note_call(WHOLE_S + LOOK_S, WHOLE_S, LOOK_S, is_learning=is_learning)
    return weights


def test_looks_after_a_bypass_stand_for_all_that_bypassed():
    """As many for each, so that one look alone makes no kind of change the usual one."""
    ledger = Ledger()
    look(ledger)
    number = bypass_all(ledger)
    assert number > 1
    weights = weights_of_looks(ledger, 40, is_learning=True)
    assert weights[0] == 0  # compared with a version that is long gone
    assert sum(weights) == number + len(weights)
    assert 1 < max(weights) <= 1 + math.ceil((number + 1) / CENSUS)
    assert len(weights) <= CENSUS + 1


def test_where_nothing_can_be_gained_two_calls_are_looked_at():
    """What was not counted then, later looks stand for."""
    ledger = Ledger()
    look(ledger)
    num_calls = 1
    num_counted = 1
    for _ in range(100):
        num_calls += bypass_all(ledger)
        weights = weights_of_looks(ledger, 40, is_learning=False)
        assert len(weights) <= 3
        num_calls += len(weights)
        num_counted += sum(weights)
    assert 0.7 * num_calls < num_counted <= num_calls


def test_a_change_that_may_be_of_two_calls_lets_the_next_stand_for_those_before():
    ledger = Ledger()
    look(ledger)
    number = bypass_all(ledger)
    look(ledger)
    for _ in range(MAX_DEFERRED):
        look(ledger)
        assert ledger.weight > 0
        ledger.defer()
        assert ledger.weight == 0
    look(ledger)
    ledger.defer()  # not for ever
    assert ledger.weight > 0
    assert ledger.weight + ledger._waiting == number + 2 + MAX_DEFERRED


def test_what_was_gained_may_be_spent():
    ledger = Ledger()
    look(ledger, gained_s=3.0)
    ledger.note_learning(1.0)
    assert ledger.net_s == pytest.approx(2.0)


def test_no_bypass_is_longer_than_it_may_be():
    ledger = Ledger()
    look(ledger, gained_s=-1e3)
    assert bypass_all(ledger) == MAX_BYPASSED


def test_the_verdict_counts_calls_that_bypassed():
    ledger = Ledger()
    num_looks = run(ledger, 1000)
    verdict = ledger.verdict
    assert verdict.calls == num_looks
    assert verdict.num_calls == 1000
    lost_s = verdict.bypassed * BYPASS_S
    assert verdict.jit_s == pytest.approx(1000 * WHOLE_S - lost_s)
    assert verdict.ours_s == pytest.approx(1000 * WHOLE_S + num_looks * LOOK_S)


def test_calls_that_bypassed_keep_the_seconds_of_their_time():
    """A machine that has become faster makes no earlier call shorter."""
    ledger = Ledger()
    look(ledger)
    ledger.grant(101)
    for _ in range(100):
        skip(ledger)
    ledger.note_turn(WHOLE_S, WHOLE_S)
    before_s = ledger.verdict.ours_s
    ledger.begin_look(WHOLE_S)
    ledger.grant(101)
    for _ in range(100):
        skip(ledger)
    ledger.note_turn(WHOLE_S / 4, WHOLE_S)
    verdict = ledger.verdict
    assert verdict.ours_s > before_s
    per_call_s = WHOLE_S * (1 - NEWEST * (1 - 1 / 4))
    assert verdict.bypassed == 202
    assert verdict.bypassed_s == pytest.approx(101 * (WHOLE_S + per_call_s - 2 * BYPASS_S))


def test_the_call_since_which_it_has_paid_is_known():
    ledger = Ledger()
    look(ledger)
    look(ledger, 5e-4)
    assert ledger.verdict.ahead_since == 2
    ledger.note_learning(1.0)
    assert ledger.verdict.ahead_since == 0


def look_learning(ledger):
    """A look that gains nothing, while a plan that waits for credit might."""
    ledger.begin_look(WHOLE_S)
    ledger.note_call(WHOLE_S + LOOK_S, WHOLE_S, LOOK_S, is_learning=True)


@pytest.mark.parametrize(("num_calls", "word"), [(10, "learning"), (10_000, "no")])
def test_learning_ends_where_most_of_many_calls_bypassed(num_calls, word):
    ledger = Ledger()
    for _ in range(num_calls):
        if ledger.left:
            skip(ledger)
        else:
            look_learning(ledger)
    assert ledger.is_learning
    sentence = ledger.verdict.sentence
    assert sentence.startswith(f"{word}: {num_calls} calls took ")
    assert "`jax.jit` would have taken " in sentence


def test_a_function_that_is_always_looked_at_goes_on_learning():
    ledger = Ledger()
    for _ in range(2000):
        ledger.begin_look(1.0)
        ledger.note_call(1.0 + LOOK_S, 1.0, LOOK_S, is_learning=True)
    assert ledger.verdict.bypassed == 0
    assert ledger.verdict.sentence.startswith("learning: ")


def test_a_kind_of_change_that_has_its_program_is_not_being_learned():
    """Of rows, no plan decides; what was compiled is not what may yet come."""
    f = incrax.incremental(lambda theta, s: jnp.sum(jnp.tanh(theta)) * s)
    for s in range(4):
        f(np.arange(50.0), float(s))
    chooser = f._traces.latest.engine.chooser
    chooser.ledger.calls = 1
    entry = Entry(1, clean_share=0.5)
    learning = []
    for program in (None, chooser.whole):
        entry.program = program
        chooser.note_call(entry, "whole", 1e-3, 1e-3)
        learning.append(chooser.verdict.is_learning)
    assert learning == [True, False]


def test_what_was_granted_ends_where_nothing_is_granted():
    ledger = Ledger()
    ledger.grant(5)
    next(ledger.turns)
    ledger.end()
    assert (ledger.skipped, ledger.left, ledger.is_timing_due) == (1, 0, False)
    ledger.grant(5)
    next(ledger.turns)
    ledger.grant(0)
    assert (ledger.skipped, ledger.left, ledger.is_timing_due) == (0, 0, False)


def test_more_is_granted_after_what_was_used():
    ledger = Ledger()
    ledger.grant(3)
    assert len(list(ledger.turns)) == 2
    ledger.note_turn(1.0, 1.0)
    ledger.grant_more(4)
    assert (ledger.skipped, ledger.left, ledger.is_timing_due) == (3, 3, True)


def test_one_slow_look_hardly_changes_what_looks_usually_take():
    """Eight times as long, it had put off those of a kind that gains."""
    ledger = Ledger()
    run(ledger, 1)
    ledger.begin_look(WHOLE_S)
    ledger.note_call(WHOLE_S + 8 * LOOK_S, WHOLE_S, 8 * LOOK_S)
    assert ledger.look_s == pytest.approx((1 + NEWEST * (MAX_RISE - 1)) * LOOK_S)


def test_the_first_looks_may_be_alike():
    ledger = Ledger()
    ledger.note_call(WHOLE_S, WHOLE_S, LOOK_S, num_calls=3)
    assert ledger.look_s == LOOK_S


def test_calls_that_nobody_has_looked_at_are_as_those_before():
    """What looks found then stands for so many times as many."""
    ledger = Ledger()
    assert ledger.unseen == 1.0
    for _ in range(NUM_TELLING - 1):
        look(ledger, gained_s=LOOK_S)
    ledger.grant(3 * NUM_TELLING)
    bypass_all(ledger)
    assert ledger.unseen == 1.0  # few looks tell nothing
    look(ledger, gained_s=LOOK_S)
    ledger._waiting = 0
    num_seen = ledger.num_calls
    ledger.grant(3 * num_seen)
    bypass_all(ledger)
    assert ledger.unseen == pytest.approx(4.0, rel=0.05)
    ledger.grant(0)
    ledger._waiting = num_seen // 2
    assert ledger.unseen == pytest.approx(2.0, rel=0.05)
