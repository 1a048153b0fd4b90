"""Random programs over rows, random sets of rows that change, random lives of a function: under both
policies the results are those of plain JAX, and under the exact one they have the bits of a call that
starts from nothing.
"""

from __future__ import annotations

import contextlib
import random
import threading

import jax
import numpy as np
import pytest
from helpers import EAGER, check, end_together, examples, identical, same
from hypothesis import example, given
from hypothesis import strategies as st
from slice_cases import coherent, divide_into_blocks, serve_by_rows

import incrax
from incrax.engine.compile.timing import TimedProgram
from properties.programs import NUM, ROW_NAMES, ROW_START, RowProgram, row_programs
from properties.timelines import ROW_ACTIONS, arguments

pytestmark = pytest.mark.optimized

FACTOR = 2048.0
POLICIES = ("fast", "exact")
SIZES = (1, 5)
"""Rows of a block under the exact policy: the last block is alike, or is not."""

EVENTS = (
    *("nothing",) * 8,
    "clear",
    "evict",
    "interrupted before",
    "interrupted after",
)

seeds = st.integers(0, 10_000)
lives = st.lists(st.sampled_from(EVENTS), min_size=20, max_size=20)


class Life:
    """One function, what it is compared with, and what happens to it between calls."""

    def __init__(self, fun, policy, **options):
        tuning = EAGER if policy == "fast" else None
        self.ours = incrax.incremental(fun, policy=policy, tuning=tuning, **options)
        self.anew = incrax.incremental(fun, policy="exact") if policy == "exact" else None
        self.plain = jax.jit(fun)
        self.budget = None

    @property
    def engine(self):
        return self.ours._traces.latest.engine

    def check(self, found, args):
        # A sum that starts from a saved total ends in another zero than one that starts from none.
        same(found, self.plain(*args), factor=FACTOR, terms=4.0, is_zero_signed=False)
        if self.anew is not None:
            identical(found, self.anew.fresh(*args))

    def call(self, args):
        self.check(self.ours(*args), args)
        check(self.ours)

    def meets(self, event, args):  # noqa: C901  one branch per event
        """What happens before the call with these arguments."""
        if event == "clear":
            self.ours.clear()
        elif event == "evict":
            store = self.engine.store
            self.budget = self.budget or store.budget_bytes
            store.budget_bytes = store.saved_bytes // 2
            store.bound_bytes = store.budget_bytes + 1
            store.expected = ()
            store._fit()  # the next call may find that nothing changed
        elif self.budget is not None:
            self.engine.store.budget_bytes = self.budget
            self.budget = None
        if event.startswith("interrupted"):
            with (
                interrupted(is_late=event.endswith("after")),
                contextlib.suppress(KeyboardInterrupt),
            ):
                self.ours(*args)
            check(self.ours)


@contextlib.contextmanager
def interrupted(*, is_late):
    """The first program that runs is interrupted, before it begins or after its end."""
    run = TimedProgram.__call__

    def raises(program, feeds, loads):
        if is_late:
            run(program, feeds, loads)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedProgram, "__call__", raises)
        yield


def live(program, policy, size, seed, events, **options):
    """A life in which rows change; the function, and the candidates that served."""
    served = []
    with pytest.MonkeyPatch.context() as patch:
        serve_by_rows(patch)
        divide_into_blocks(patch, size)
        life = Life(program, policy, **options)
        calls = arguments(ROW_START, seed, len(events), ROW_ACTIONS)
        life.call(calls[0])
        for args, event in zip(calls[1:], events, strict=True):
            life.meets(event, args)
            life.call(args)
            served.append(life.engine.last)
    return served


PITFALL = RowProgram((("plus", 1, 2), ("arctan", 0, 0), ("columns", 0, 0), ("largest", 0, 0)), 255)


@pytest.mark.parametrize("policy", POLICIES)
@examples(3 / 5)
@given(row_programs(), st.sampled_from(SIZES), seeds, lives, st.integers(1, 3))
@example(PITFALL, 5, 3, ["nothing"] * 20, 2)
def test_any_life_of_a_function_of_which_rows_change(policy, program, size, seed, events, versions):
    live(program, policy, size, seed, events, versions=versions)


@pytest.mark.parametrize("policy", POLICIES)
@examples(1 / 5)
@given(row_programs(max_size=5), st.sampled_from(SIZES), seeds, lives)
def test_gradients_of_which_rows_change(policy, program, size, seed, events):
    total = lambda *args: sum(jax.numpy.sum(jax.numpy.tanh(x)) for x in program(*args))
    live(jax.value_and_grad(total, (0, 1, 2)), policy, size, seed, events)


@examples(1 / 10)
@given(seeds, lives, st.integers(1, 3))
def test_gradients_of_a_coherent_sum_of_which_rows_change(seed, events, versions):
    live(jax.value_and_grad(coherent, (0, 1, 2)), "fast", 1, seed, events, versions=versions)


@pytest.mark.parametrize("policy", POLICIES)
@examples(1 / 5)
@given(row_programs(), seeds)
def test_threads_whose_rows_change_get_their_own_results(policy, program, seed):
    lists = [arguments(ROW_START, seed + number, 8, ROW_ACTIONS) for number in range(3)]
    wrong = []

    def work(life, calls):
        try:
            for args in calls:
                life.check(life.ours(*args), args)
        except BaseException as error:
            wrong.append(error)

    with pytest.MonkeyPatch.context() as patch:
        serve_by_rows(patch)
        divide_into_blocks(patch, 5)
        life = Life(program, policy)
        threads = [
            threading.Thread(target=work, args=(life, calls), daemon=True) for calls in lists
        ]
        end_together(threads)
        assert not wrong
        check(life.ours)


def drawn(seed):
    """A random program, without Hypothesis."""
    rng = random.Random(seed)
    steps = [(rng.choice(ROW_NAMES), rng.randrange(4), rng.randrange(4)) for _ in range(5)]
    return RowProgram(tuple(steps), rng.randrange(2**8))


@pytest.mark.parametrize("policy", POLICIES)
def test_many_of_these_calls_run_some_rows_alone(policy):
    """That the tests above are about something."""
    counts = []
    for seed in range(8):
        calls = live(drawn(seed), policy, 1, seed, ["nothing"] * 20)
        blocked = [[plan.blocked for plan in call.before if plan.blocked] for call in calls]
        in_part = [any(each.num_run < each.num for each in found) for found in blocked]
        by_rows = [call.candidate == "slices" for call in calls]
        counts.append(sum(by_rows if policy == "fast" else in_part))
    assert sum(count > 0 for count in counts) >= 5, counts
    assert sum(counts) >= 30, counts


@pytest.mark.parametrize("name", sorted({*ROW_NAMES}))
def test_every_operation_is_defined_for_every_shape_and_bounded(name):
    for other in ("joined", "columns", "mean", "turned", "looked up", "differences"):
        program = RowProgram(((other, 1, 1), (name, 0, 1), (name, 0, 2), (name, 1, 0)), 2**8 - 1)
        found = jax.eval_shape(program, *ROW_START)
        assert all(np.issubdtype(x.dtype, np.floating) for x in found)
    assert len(jax.jit(program)(*ROW_START)) == 1 + min(len(program.operations) + 3, NUM)
