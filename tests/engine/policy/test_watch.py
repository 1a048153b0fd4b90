"""The ledger: rests after a loss, doubts a loss that follows a gain, wakes up when habits
change.
"""

from __future__ import annotations

import math

import pytest

import incrax
from incrax.engine.policy.bypass import (
    FIRST_REST,
    FIRST_WINDOW,
    IDLE,
    LOOK_EVERY,
    MAX_LOOKS,
    MAX_LOSS,
    MAX_REST,
    NUM_LOOKS,
    WINDOW,
    Watch,
)
from incrax.engine.policy.candidates import Entry


def calls(watch, number, spent_s, num_changed=1):
    return [watch.note(spent_s, 1.0, num_changed) for _ in range(number)]


def rest(watch):
    number = 0
    while watch.rest:
        watch.wants_look()
        number += 1
    return number


def test_a_gain_never_rests():
    watch = Watch()
    assert not any(calls(watch, 10 * FIRST_WINDOW, 0.9))
    assert not watch.rest


def test_a_loss_in_the_first_window_rests_and_each_rest_is_twice_as_long():
    watch = Watch()
    calls(watch, FIRST_WINDOW - 1, 1.2)
    assert not watch.rest
    calls(watch, 1, 1.2)
    length = FIRST_REST
    while length < 4 * MAX_REST:
        assert rest(watch) == min(length, MAX_REST)
        calls(watch, WINDOW, 1.2)
        length *= 2


@pytest.mark.parametrize(("hoped_s", "rests"), [(1.9, True), (2.1, False)])
def test_a_loss_is_borne_while_plans_to_come_promise_ten_times_as_much(hoped_s, rests):
    watch = Watch()
    for _ in range(FIRST_WINDOW):
        watch.note(1.2, 1.0, 1, hoped_s)
    assert bool(watch.rest) is rests


def test_a_loss_after_a_gain_asks_for_new_times_before_it_rests():
    watch = Watch()
    calls(watch, FIRST_WINDOW, 0.9)
    assert calls(watch, FIRST_WINDOW, 1.2)[-1] is True
    assert not watch.rest
    assert not any(calls(watch, FIRST_WINDOW, 1.2))
    assert watch.rest == FIRST_REST


def test_a_gain_after_a_doubt_is_a_gain():
    watch = Watch()
    calls(watch, FIRST_WINDOW, 0.9)
    calls(watch, FIRST_WINDOW, 1.2)
    calls(watch, FIRST_WINDOW, 0.9)
    assert not watch.rest
    assert calls(watch, FIRST_WINDOW, 1.2)[-1] is True


@pytest.mark.parametrize(("share", "rests"), [(MAX_LOSS - 0.01, False), (MAX_LOSS + 0.01, True)])
def test_a_small_loss_is_borne(share, rests):
    watch = Watch()
    calls(watch, FIRST_WINDOW, share)
    assert bool(watch.rest) is rests


def test_looks_are_as_frequent_as_announced():
    watch = Watch()
    calls(watch, FIRST_WINDOW, 1.2)
    looks = [watch.wants_look() for _ in range(FIRST_REST)]
    assert sum(looks) == FIRST_REST // LOOK_EVERY


def test_a_long_rest_looks_no_more_often_than_needed():
    watch = Watch()
    while watch.length < MAX_REST or not watch.rest:
        watch.rest = 0
        calls(watch, FIRST_WINDOW, 1.2)
    looks = [watch.wants_look() for _ in range(watch.rest)]
    assert MAX_LOOKS // 2 <= sum(looks) <= MAX_LOOKS


def test_fewer_changes_in_a_row_end_a_rest():
    watch = Watch()
    calls(watch, FIRST_WINDOW, 1.2, num_changed=8)
    for number in range(NUM_LOOKS):
        assert watch.rest
        watch.look(4 if number else 3)
    assert not watch.rest


def test_a_single_call_with_fewer_changes_does_not():
    watch = Watch()
    calls(watch, FIRST_WINDOW, 1.2, num_changed=8)
    for num_changed in (1, 8) * NUM_LOOKS:
        watch.look(num_changed)
    assert watch.rest


def test_calls_that_the_whole_program_serves_by_choice_lead_to_a_rest():
    watch = Watch()
    for is_idle in [*[True] * (IDLE - 1), False, *[True] * (IDLE - 1)]:
        assert watch.note(0.9, 1.0, 3, is_idle=is_idle) is False
    assert not watch.rest
    watch.note(0.9, 1.0, 3, is_idle=True)
    assert watch.rest == FIRST_REST
    assert watch.usual == 3.0


def test_a_function_too_cheap_to_save_anything_rests_soon():
    ours = incrax.incremental(lambda *leaves: sum(leaves))
    ours(-1.0, 2.0, 3.0)
    chooser = ours._traces.latest.engine.chooser
    chooser.race._program_s = lambda program: (
        math.inf
    )  # a plan is as fast as the whole program: either may win
    for number in range(4 * IDLE - 1):
        ours(float(number), 2.0, 3.0)
    assert chooser.watch.rest


@pytest.mark.parametrize("is_final", [True, False])
def test_calls_count_as_idle_where_the_whole_program_was_chosen(is_final):
    ours = incrax.incremental(lambda *leaves: sum(leaves))
    for number in range(IDLE):
        ours(float(number), 2.0, 3.0)
    chooser = ours._traces.latest.engine.chooser
    entry = Entry(1, candidate="whole", is_planned=True, is_final=is_final)
    chooser.watch = Watch()
    for _ in range(IDLE):
        chooser.note_call(entry, "whole", chooser.whole_s)
    assert bool(chooser.watch.rest) is is_final
