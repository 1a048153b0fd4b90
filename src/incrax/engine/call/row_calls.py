"""Calls in which a few rows of inputs changed.

In: the leaves of a call, the versions. Out: the version of which the fewest rows differ, what serves
such a call, and the version that a program for rows makes of it. It must not count calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from operator import is_not, itemgetter

import numpy as np

from incrax._program import Results, Values
from incrax.engine.call.repeats import Repeat, Repeated, Repeats, feed_of
from incrax.engine.inputs.leaves import LeafValue, LeafValues, is_farther
from incrax.engine.plan.slices import value_at
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.comparison import Comparison
from incrax.engine.store.saved_values import ChangedRows, SavedValues, given_up
from incrax.engine.store.store import Pairs, State, Store


class RowCalls:
    """Those of one engine.

    `dirty` is what changed in the latest one: calls of other rows that repeat one share its record.
    """

    def __init__(
        self, chooser: Chooser, store: Store, comparison: Comparison, repeats: Repeats
    ) -> None:
        self.chooser = chooser
        self.slices = chooser.slices
        self.store = store
        self.comparison = comparison
        self.repeats = repeats
        self.dirty = 0

    # --- the long way -----------------------------------------------------------------------------

    def changed(self, pairs: Pairs, values: LeafValues) -> ChangedRows | None:
        """Which rows changed, of a version whose values were not written over, if there is one, and of
        these the one from which the fewest did, and which has what programs for rows read; None where
        there is no change of a few rows.
        """
        slices = self.slices
        found = []
        for state, dirty in reversed(pairs) if slices.lengths else ():
            leaves = slices.leaves_of(dirty)
            numbers = self.comparison.rows(values, state, leaves) if leaves else None
            kind = None if numbers is None else slices.kind(leaves, numbers)
            if numbers is None or kind is None or state.is_written_over:
                continue
            # Of inputs that changed in turns two values may be the same: then no row differs.
            if numbers.size:
                found.append(ChangedRows(state, dirty, numbers, kind))
        rank = lambda rows: (rows.numbers.size, slices.lacks(rows.base.saved))
        return min(found, key=rank, default=None)

    def chosen(self, saved: SavedValues, rows: ChangedRows) -> tuple[Entry, Candidate] | None:
        """The program for rows that serves a call, with its record; None where there is none."""
        slices = self.slices
        chooser = self.chooser
        length = slices.lengths[rows.kind.leaves[0]]
        entry = slices.entry(
            rows.kind,
            saved.dirty,
            int(rows.numbers.min(initial=length)),
            chooser.ledger.weight,
            chooser.whole_s,
            chooser.expected_s(saved.dirty),
            value_at(chooser.facts, saved.feeds),
        )
        if entry is None or not slices.is_at_hand(entry, saved.feeds):
            return None
        assert entry.program is not None
        self.dirty = saved.dirty
        saved.taken = saved.for_rows(entry.program)
        if saved.taken is None and slices.priming is not None:
            saved.prime(slices.priming)
            saved.taken = saved.for_rows(entry.program)
        is_primed = slices.take_priming(entry, is_complete=saved.taken is not None)
        return entry, "slices" if is_primed else "priming"

    def begun(self, repeat: Repeat, saved: SavedValues, state: State) -> Repeated | None:
        """What a call of rows did, if what would be decided once more for the next has just been."""
        if saved.base is None or not repeat.applies() or self._differ_beside(saved.values, repeat):
            return None
        return Repeated(repeat, saved.base, state, [])

    # --- the short way ----------------------------------------------------------------------------

    def repeated(self, repeat: Repeat, leaves: Values, changed: Sequence[int]) -> Repeated | None:
        """What a call does by what the last one did, if it changes rows of the same inputs: these are
        compared once, with the rows' numbers as the outcome.
        """
        if not repeat.applies():
            return None
        values = self._latest_but(leaves, changed, repeat)
        if values is None or self._differ_beside(values, repeat):
            return None
        try:
            made = self.made(repeat, values, repeat.results)
        except Exception:  # the long way knows what to do
            self.repeats.forget()
            return None
        return None if made is None else Repeated(repeat, *made, [])

    def made(
        self,
        repeat: Repeat,
        values: LeafValues,
        run: Callable[[Values, Values], Results | None],
    ) -> tuple[State, State] | None:
        """The version of which the fewest rows differ, and the one that the program for rows makes of
        it, run so; None where the change is of another kind, or something is missing. All other
        leaves are those of all versions.
        """
        plan = repeat.plan
        slices = self.slices
        found = self._nearest(values, repeat.moving)
        if found is None:
            return None
        base, numbers = found
        if not slices.may_run(plan, numbers):
            return None
        loads = repeat.loads_of(base, None, numbers)
        if loads is None:
            return None
        program = repeat.program
        if program.executable.overwritten:
            loads = given_up(self.store, base, program, loads)
        results = run([*map(feed_of, values)], loads)
        if results is None:
            return None
        slices.take_priming(repeat.entry, is_complete=True)
        # Elements, not whole inputs: saved values may depend on one of them alone.
        dirty = self.comparison.dirty(values, base)
        self.dirty = dirty
        return base, self.store.successor(base, dirty, values, plan, results, {})

    def _latest_but(
        self, leaves: Values, changed: Sequence[int], repeat: Repeat
    ) -> LeafValues | None:
        """The latest version's values, but for new ones of the inputs whose rows change, which are
        compared with nothing; None where others differ from it, or an array was deleted.
        """
        values = list(self.store.states[-1].values)
        for index in changed:
            x = leaves[index]
            if index in repeat.moving:
                values[index] = LeafValue(x)
            elif self.comparison.resolve_leaf(index, x) is not values[index]:
                return None
        return None if any([value.is_deleted() for value in values]) else tuple(values)

    def _differ_beside(self, values: LeafValues, repeat: Repeat) -> bool:
        """Whether some version differs in others than the inputs whose rows change."""
        moving = set(repeat.moving)
        numbers = range(len(values))
        for state in self.store.states:
            if not moving.issuperset(compress(numbers, map(is_not, values, state.values))):
                return True
        return False

    def _nearest(
        self, values: LeafValues, leaves: Sequence[int]
    ) -> tuple[State, np.ndarray] | None:
        """The version of which the fewest rows of some leaves differ, and their numbers, of those whose
        values were not written over; of several one that does not lack saved values that are read,
        and of these the one that was most often a baseline, as the last accepted proposal is.

        None where one differs in none, or it is not known in which rows. Other leaves are equal.
        """
        read = self.slices.primed.keys()
        found: list[tuple[int, bool, int, State, np.ndarray]] = []
        (leaf, *others) = leaves
        for state in reversed(self.store.states):
            if found and not others:
                near, numbers = found[0][3:]
                if is_farther(state.values[leaf], near.values[leaf], numbers):
                    continue
            numbers = self.comparison.rows(values, state, leaves)
            if numbers is None or not numbers.size:
                return None
            if not state.is_written_over:
                lacks = not read <= state.saved.keys()
                found.append((numbers.size, lacks, -state.uses, state, numbers))
        return min(found, key=itemgetter(0, 1, 2))[3:] if found else None
