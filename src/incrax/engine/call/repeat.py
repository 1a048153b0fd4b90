"""A call like the one before: the same inputs changed, and all is settled.

Most calls of a fit are. Then what serves, what it loads, and what the new version takes over are those of the call
before, and need not be found out again. Every so many calls the long way is taken all the same, where times are
measured and choices made.

In: leaf values. Out: the next version, uncommitted; or None, and nothing happened. It must not choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax.engine.call.call_record import Record
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.changes import Comparison
from incrax.engine.store.store import State, Store, is_any_deleted

LONG_WAY_EVERY = 16
"""Uses of a dirty set of which one goes the long way; those at which programs are timed again are among them."""


class Repeat:
    """What the last call did: its entry, program and plan, saved values and those loaded, and its record.

    `base` is the version that the last repetition started from.
    """

    __slots__ = ("base", "chooser", "entry", "loads", "plan", "program", "record", "saved", "ticks")

    def __init__(
        self, chooser: Chooser, program: TimedProgram, plan: Plan, loads: list[Any], state: State, record: Record
    ) -> None:
        assert record.entry is not None
        self.chooser = chooser
        self.entry: Entry = record.entry
        self.program = program
        self.plan = plan
        self.loads = loads
        self.base = state
        self.saved = state.saved
        self.ticks = chooser.clock.ticks
        self.record = record

    def next_state(self, values: tuple[LeafValue, ...], store: Store, comparison: Comparison) -> State | None:
        """The version at these leaf values, if only the same inputs changed again and nothing is to be decided."""
        base = self._base(values, store.states, comparison) if self._is_settled() else None
        if base is None or is_any_deleted(base.outputs):
            return None
        results = self.program([value.feed for value in values], self.loads)
        if self.plan.guard is not None and not self.chooser.clock.read(results.pop()):
            return None
        outputs = list(base.outputs)
        for position, result in zip(self.plan.outputs, results, strict=True):
            outputs[position] = result
        state = State(values, outputs, self.saved, base.culprit, are_values=True)
        state.harmless = self.entry.dirty
        self.base = base
        return state

    def _is_settled(self) -> bool:
        """Whether what serves is chosen, and what is loaded is still there."""
        entry = self.entry
        is_chosen = entry.is_final and entry.candidate == "plan" and entry.program is self.program
        if not is_chosen or self.ticks != self.chooser.clock.ticks or entry.uses % LONG_WAY_EVERY == 0:
            return False
        return not is_any_deleted(self.loads)

    def _base(self, values: tuple[LeafValue, ...], states: Sequence[State], comparison: Comparison) -> State | None:
        """The version that the long way would start from: most used of those that differ in just the same inputs.

        None where one differs in others, or in fewer: that is to be weighed.
        """
        best, dirty = None, self.entry.dirty
        for state in states:
            found = comparison.dirty(values, state)
            if found & dirty != dirty:
                return None
            if found == dirty:
                if state.saved is not self.saved:
                    return None
                best = state if best is None or state.uses >= best.uses else best
        return best

    def account(self, spent_s: float) -> None:
        """A version was committed; its call took so long."""
        self.entry.count += 1
        self.entry.note_use("plan")
        self.chooser.note_call(self.entry, "plan", spent_s)


def repeat_of(chooser: Chooser, record: Record, base: State | None, state: State) -> Repeat | None:
    """What the call that ended with this version did, if it may be done again as it is."""
    entry, plan = record.entry, record.plan
    program = entry.program if entry is not None else None
    if entry is None or program is None or plan is None or program.plan is not plan:
        return None
    if record.candidate != "plan" or record.filled or plan.saves or not entry.is_final:
        return None
    if base is None or state.saved is not base.saved or (plan.statistics is not None and not entry.is_compared):
        return None
    loads = [state.saved.get(var) for var in program.executable.loads]
    return None if any([x is None for x in loads]) else Repeat(chooser, program, plan, loads, state, record)
