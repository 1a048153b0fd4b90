"""Calls in which a few rows of inputs changed.

In: the leaves of a call, the versions. Out: the version of which the fewest rows differ, and what
serves such a call. It must not count calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from operator import is_not

from incrax.engine.call.repeats import Repeat, Repeated
from incrax.engine.inputs.leaves import LeafValues
from incrax.engine.plan.slices import value_at
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.comparison import Comparison
from incrax.engine.store.saved_values import ChangedRows, SavedValues
from incrax.engine.store.store import Pairs, State


@dataclass(eq=False)
class RowCalls:
    """Those of one engine."""

    chooser: Chooser
    comparison: Comparison
    dirty: int = (
        0  # what changed in the latest: calls of other rows that repeat one share its record
    )

    def changed(self, pairs: Pairs, values: LeafValues) -> ChangedRows | None:
        """Which rows changed, of a version whose values were not written over, if there is one, and of
        these the one from which the fewest did, and which has what programs for rows read; None where
        there is no change of a few rows.
        """
        slices = self.chooser.slices
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
        chooser = self.chooser
        slices = chooser.slices
        length = slices.lengths[rows.kind.leaves[0]]
        entry = slices.entry(
            rows.kind,
            saved.dirty,
            int(rows.numbers.min(initial=length)),
            chooser.expected_s(saved.dirty),
            value_at(chooser.facts, saved.feeds),
        )
        if entry is None or not slices.is_at_hand(entry, saved.feeds):
            return None  # the dirty set's record has the call counted
        chooser.accounts.num_calls += chooser.ledger.weight
        assert entry.program is not None
        self.dirty = saved.dirty
        saved.taken = saved.for_rows(entry.program)
        if saved.taken is None and slices.priming is not None:
            saved.prime(slices.priming)
            saved.taken = saved.for_rows(entry.program)
        is_primed = slices.take_priming(entry, is_complete=saved.taken is not None)
        return entry, "slices" if is_primed else "priming"

    def begun(self, repeat: Repeat, saved: SavedValues, state: State) -> Repeated | None:
        """What a call of rows did, if what would be decided once more for the next has just been, and
        all versions differ in no others than the inputs whose rows change.
        """
        if saved.base is None or not repeat.applies():
            return None
        moving = set(repeat.moving)
        numbers = range(len(saved.values))
        store = self.comparison.store
        for other in store.states:
            if not moving.issuperset(compress(numbers, map(is_not, saved.values, other.values))):
                return None
        return Repeated(repeat, saved.base, state, [])
