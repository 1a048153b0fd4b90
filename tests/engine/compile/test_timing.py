"""What programs and the ledger count: seconds as usual, no outliers; waiting for results is no
overhead.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax.engine.compile.recycling import Pool
from incrax.engine.compile.timing import SAMPLE, Clock, TimedProgram


class Late:
    """A result that is there after some seconds."""

    def __init__(self, time, seconds, value):
        self.time, self.seconds, self.value = time, seconds, value

    def block_until_ready(self):
        self.time.now_s += self.seconds
        return self

    def __array__(self, dtype=None, copy=None):
        self.block_until_ready()
        return np.asarray(self.value)


class Time:
    """Seconds that pass only when they are spent."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


class Executable:
    """Takes the given seconds in turn, and the last of them from then on."""

    family = SimpleNamespace(donated=(), num_eqns=1)

    def __init__(self, time, *seconds):
        self.time, self.seconds = time, list(seconds)

    def __call__(self, feeds, loads, donated=()):
        self.time.now_s += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return []


@pytest.fixture
def time():
    return Time()


def test_what_still_runs_is_not_timed_with_a_program(time):
    clock = Clock(4, time)
    program = TimedProgram(None, Executable(time, 9.0, 1.0), clock, Pool(is_active=False))
    program([], [])
    clock.unproven = [Late(time, 5.0, 0.0), Late(time, 5.0, 0.0)]
    program([], [])
    assert clock.passed_s == time.now_s == 20.0
    assert program.seconds == 1.0


def test_waiting_for_results_counts_as_time_in_programs(time):
    clock = Clock(4, time)
    clock.wait([Late(time, 2.0, 0.0), jnp.ones(2)])
    assert clock.passed_s == time.now_s == 2.0
    assert clock.spent_s == 0.0


@pytest.mark.parametrize("value", [True, False])
def test_so_does_reading_a_guard(time, value):
    clock = Clock(4, time)
    assert clock.read(Late(time, 3.0, value)) is value
    assert clock.passed_s == time.now_s == 3.0
    assert clock.read(jnp.asarray(value)) is value


def test_timed_runs_count_as_long_as_they_usually_take(time):
    program = TimedProgram(
        None, Executable(time, 100.0, 1.0, 1.0, 50.0, 1.0), Clock(4, time), Pool(is_active=False)
    )
    for _ in range(5):
        program([], [])
    assert program.is_measured
    assert program.seconds == 1.0
    assert program.clock.spent_s == 4.0
    assert program.clock.passed_s == time.now_s == 153.0


def test_runs_that_are_not_timed_count_what_was_measured(time):
    program = TimedProgram(
        None, Executable(time, 100.0, 2.0), Clock(4, time), Pool(is_active=False)
    )
    for _ in range(SAMPLE):
        program([], [])
    program.executable.seconds = [9.0]
    before = program.clock.spent_s
    for _ in range(SAMPLE):
        program([], [])
    assert program.clock.spent_s == before + 2.0 * SAMPLE


def test_a_measured_program_is_timed_again_when_it_is_due(time):
    """The first runs of a process are slow; what is compared with them later must not be."""
    program = TimedProgram(
        None, Executable(time, 100.0, 2.0), Clock(4, time), Pool(is_active=False)
    )
    for _ in range(5):
        program([], [])
    program.executable.seconds = [1.0]
    program([], [])
    assert program.seconds == 2.0
    for _ in range(4):
        program.is_due = True
        program([], [])
        assert not program.is_due
    assert program.seconds == 1.0


def test_the_first_look_after_a_bypass_times_the_whole_program():
    f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(-a * x)))
    x = jnp.ones(10)
    for a in range(20):
        f(float(a), x)
    engine = f._traces.latest.engine
    engine.ledger.grant(0)
    engine.whole.times.clear()
    f(-1.0, x)
    assert not engine.whole.times
    engine.ledger.grant(2)
    next(engine.ledger.turns)
    f._bypass = None
    f(-2.0, x)
    assert len(engine.whole.times) == 1
