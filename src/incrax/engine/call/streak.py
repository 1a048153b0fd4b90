"""Calls like the one before, in a row: the same leaves changed, from the same version, by the same
plan.

What such a call finds is what the last one found, so that it compares the leaves that change, runs
the plan and puts the results together. Its version takes the place of the last one's; `count`
enters them all at once. After a few the next call is looked at as others are (`Engine.call`), which
times programs and weighs versions.

In: the arguments of calls. Out: results, or `NOT_ALIKE`, in which case nothing happened. It must
not choose what serves.

Promise: results, versions and counters are those of calls that were looked at.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from itertools import compress
from operator import is_not, itemgetter
from time import perf_counter
from typing import Any

import jax
import numpy as np

from incrax._context import context_key
from incrax._program import Args, Kwargs, Results, Values
from incrax.engine.call.engine import Engine
from incrax.engine.call.repeats import LONG_WAY_EVERY, Repeat, Repeated, feed_of
from incrax.engine.inputs.leaves import NO_ANCHOR, LeafValue, LeafValues, is_farther
from incrax.engine.inputs.signature import Signature
from incrax.engine.store.saved_values import given_up
from incrax.engine.store.store import State, is_array_deleted

NOT_ALIKE: Any = object()
"""Stands for a result."""


class Streak(abc.ABC):
    """Calls that repeat the last one, each made under the lock of the function.

    Fields: what is repeated, and with what leaves; the versions in the store, which are others as
    soon as something else wrote there; numbers of all leaves, of those that change, and of those of
    these that may still be computed; leaves of the same types; the objects that all others were; arrays
    that must not have been deleted; how many calls there were and may be, the seconds that they took beyond their
    program, and those of its newest run.
    """

    def __init__(
        self, signature: Signature, out_tree: Any, engine: Engine, repeated: Repeated
    ) -> None:
        repeat, base = repeated[:2]
        plan = repeat.plan
        entry = repeat.entry
        self._signature = signature
        self._out_tree = out_tree
        self._engine = engine
        self._store = engine.store
        self._comparison = engine.comparison
        self._repeat = repeat
        self._plan = plan
        self._values = base.values
        self._states = engine.store.states
        self._typed = self._states[-1].anchors
        elements = engine.layout.elements(entry.dirty)
        self._moving = [i for i, mask in enumerate(elements) if mask]
        self._numbers = range(len(elements))
        anchors = [NO_ANCHOR if mask else x for x, mask in zip(base.anchors, elements, strict=True)]
        self._anchors = anchors
        handed_on = [x for i, x in enumerate(base.outputs) if i not in plan.outputs]
        self._arrays = [x for x in (*anchors, *handed_on) if isinstance(x, jax.Array)]
        self._running = [i for i in self._moving if base.values[i].array is not None]
        self._num = 0
        self._overhead_s = 0.0
        self._run_s = 0.0
        self._limit = num_alike(repeat)

    def call(self, args: Args, kwargs: Kwargs) -> Any:
        """The result of a call like the last one; `NOT_ALIKE` where it is to be looked at."""
        if self._num >= self._limit or self._store.states is not self._states:
            return NOT_ALIKE
        start_s = perf_counter()
        leaves = self._leaves(args, kwargs)
        if leaves is None:
            return NOT_ALIKE
        running = self._running
        waited_s = self._comparison.wait(leaves, running, perf_counter) if running else 0.0
        outputs = self._evaluated(leaves)
        if outputs is None:
            return NOT_ALIKE
        self._states = self._store.states
        self._num += 1
        self._overhead_s += perf_counter() - start_s - self._run_s - waited_s
        return self._out_tree.unflatten(outputs)

    @abc.abstractmethod
    def _evaluated(self, leaves: Values) -> Results | None:
        """The outputs, whose version is in the store then; None where nothing is."""

    def _results(self, run: Callable[..., Results], *given: Any) -> Results | None:
        """What the program returns; None where that must not be used, or it failed: the long way
        knows what to do.
        """
        start_s = perf_counter()
        try:
            results = run(*given)
            if self._plan.guard is not None and not bool(np.asarray(results.pop())):
                return None
        except Exception:  # noqa: BLE001
            return None
        self._run_s = perf_counter() - start_s
        return results

    def _leaves(self, args: Args, kwargs: Kwargs) -> Values | None:
        """The leaves that are values, if all but those that change are what they were."""
        signature = self._signature
        leaves = signature.leaves_of(args, kwargs)
        if leaves is None or context_key() != signature.config:
            return None
        if signature.statics:
            if not signature.same_statics(leaves):
                return None
            leaves = signature.dynamic_leaves(leaves)
        if any(map(is_array_deleted, self._arrays)):
            return None
        others = list(compress(self._numbers, map(is_not, leaves, self._anchors)))
        return leaves if others == self._moving or self._are_equal(leaves, others) else None

    def _are_equal(self, leaves: Values, others: Sequence[int]) -> bool:
        """Whether leaves that are other objects, or arrays of NumPy, have the bits that they had,
        but for those that change.
        """
        values = self._values
        numbers = [i for i in others if i not in self._moving]
        if not self._signature.same_types(leaves, numbers, self._typed):
            return False
        resolve = self._comparison.resolve_leaf
        return all([resolve(i, leaves[i]) is values[i] for i in numbers])

    def count(self) -> None:
        """Enter the calls so far in all that counts."""
        num = self._num
        if not num:
            return
        overhead_s = self._overhead_s / num
        self._limit -= num
        self._num = 0
        self._overhead_s = 0.0
        self._engine.count_repeats(self._repeat, num, overhead_s)


class PlanStreak(Streak):
    """By the plan of one set of changed inputs, from one version, of which all saved values stay.

    Fields: that version; all but the latest; the program, which saves nothing, and so is given no
    buffers; the leaves that it reads, and what else it is given; the leaves that change, with the
    elements that do; what a program may be fed with, by leaf.
    """

    def __init__(
        self, signature: Signature, out_tree: Any, engine: Engine, repeated: Repeated
    ) -> None:
        super().__init__(signature, out_tree, engine, repeated)
        repeat = repeated.repeat
        executable = repeat.program.executable
        self._base = repeated.base
        self._older = self._states[:-1]
        self._run = executable.family.call
        self._read = executable.leaves
        self._given = (*executable.constants, *repeated.loads)
        elements = engine.layout.elements(repeat.entry.dirty)
        self._changed = [(i, elements[i]) for i in self._moving]
        self._feeds = [value.feed for value in self._values]

    def _evaluated(self, leaves: Values) -> Results | None:
        values = list(self._values)
        feeds = self._feeds
        for i, elements in self._changed:
            value = self._new_value(leaves, i, elements)
            if value is None:
                return None
            values[i] = value
            feeds[i] = value.feed
        read = map(feeds.__getitem__, self._read)
        results = self._results(self._run, *read, *self._given)
        if results is None:
            return None
        base = self._base
        latest = self._states[-1]
        outputs = self._plan.outputs_with(base.outputs, results)
        state = State(tuple(values), outputs, base.saved, latest.harmless, latest.culprit)
        base.uses += 1
        self._store.states = [*self._older, state]
        return outputs

    def _new_value(self, leaves: Values, i: int, elements: int) -> LeafValue | None:
        """A leaf's value, if it differs in just these elements from that of the baseline, and from
        that of the last call, too.
        """
        x = leaves[i]
        base = self._values[i]
        latest = self._states[-1].values[i]
        if type(x) is float:
            first = base.anchor
            last = latest.anchor
            # Zeros of two signs are equal here and NaNs are not: their bits are looked at.
            is_new = type(first) is float and type(last) is float and x != first and x != last
            return LeafValue(x) if is_new and x == x else None
        if not self._signature.same_types(leaves, (i,), self._typed):
            return None
        value = LeafValue(x)
        if value.is_deleted():
            return None
        compare = self._comparison.elements
        is_new = compare(i, value, base) == compare(i, value, latest) == elements
        return value if is_new else None


class RowStreak(Streak):
    """By the program for a few rows, from the version of which the fewest differ."""

    def _evaluated(self, leaves: Values) -> Results | None:
        if not self._signature.same_types(leaves, self._moving, self._typed):
            return None
        values = list(self._values)
        for i in self._moving:
            value = values[i] = LeafValue(leaves[i])
            if value.array is not None and is_array_deleted(value.array):
                return None
        return self._from_nearest(tuple(values))

    def _from_nearest(self, values: LeafValues) -> Results | None:
        """The outputs from the version of which the fewest rows differ; None where the change is of
        another kind, or something is missing.
        """
        engine = self._engine
        slices = engine.slices
        plan = self._plan
        found = self._nearest(values)
        if found is None:
            return None
        base, numbers = found
        if not slices.may_run(plan, numbers):
            return None
        store = self._store
        repeat = self._repeat
        loads = repeat.loads_of(base, None, numbers)
        if loads is None:
            return None
        program = repeat.program
        executable = program.executable
        if executable.overwritten:
            loads = given_up(store, base, program, loads)
        types = executable.family.donated
        donated = program.pool.take(types) if types else ()
        results = self._results(executable, [*map(feed_of, values)], loads, donated)
        if results is None:
            return None
        slices.take_priming(repeat.entry, is_complete=True)
        # Elements, not whole inputs: saved values may depend on one of them alone.
        dirty = self._comparison.dirty(values, base)
        engine.rows.dirty = dirty
        state = store.successor(base, dirty, values, plan, results, {})
        store.commit(state, base)
        return state.outputs

    def _nearest(self, values: LeafValues) -> tuple[State, np.ndarray] | None:
        """The version of which the fewest rows differ, and their numbers, of those whose values were
        not written over; of several one that does not lack saved values that are read, and of these
        the one that was most often a baseline, as the last accepted proposal is.

        None where one differs in none, or it is not known in which rows. Other leaves are equal.
        """
        leaves = self._moving
        slices = self._engine.slices
        read = slices.primed.keys()
        found: list[tuple[int, bool, int, State, np.ndarray]] = []
        (leaf, *others) = leaves
        for state in reversed(self._store.states):
            if found and not others:
                near, numbers = found[0][3:]
                if is_farther(state.values[leaf], near.values[leaf], numbers):
                    continue
            numbers = self._comparison.rows(values, state, leaves)
            if numbers is None or not numbers.size:
                return None
            if not state.is_written_over:
                lacks = not read <= state.saved.keys()
                found.append((numbers.size, lacks, -state.uses, state, numbers))
        return min(found, key=itemgetter(0, 1, 2))[3:] if found else None


def num_alike(repeat: Repeat) -> int:
    """How many calls may repeat the last one before versions are ranked again."""
    return -repeat.entry.uses % LONG_WAY_EVERY


def streak_of(
    signature: Signature, out_tree: Any, engine: Engine, repeated: Repeated
) -> Streak | None:
    """What serves calls like one that went the short way; None where the next one bypasses or goes
    the long way, where a thread compiles, and where that one saved values: inputs that change in
    turns, each from where the last one was, have no one version to start from.
    """
    repeat = repeated.repeat
    behind = engine.clock.behind
    if engine.ledger.granted or behind.num_waiting:
        return None
    if repeated.is_in_turn or not num_alike(repeat):
        return None
    if repeat.moving:
        return RowStreak(signature, out_tree, engine, repeated)
    is_plan = repeated.state.saved is repeated.base.saved
    return PlanStreak(signature, out_tree, engine, repeated) if is_plan else None
