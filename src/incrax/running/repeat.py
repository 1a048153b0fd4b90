"""A call like the one before: the same inputs changed, and all is settled.

Most calls of a fit are. Then what serves, what it loads, and what the new version takes over are those of the call
before, and need not be found out again. Every so many calls the long way is taken all the same, where times are
measured and choices made.

In: leaf values. Out: outputs, and the version that holds them; or None, and nothing happened.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from incrax._jax import Var
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan
from incrax.running.choice import Entry
from incrax.running.chooser import Chooser
from incrax.running.comparison import Comparison
from incrax.running.leaves import LeafValue
from incrax.running.record import Record
from incrax.running.stats import Stats
from incrax.running.store import State, Store, is_any_deleted
from incrax.running.timing import TimedProgram

LONG_WAY_EVERY = 16
"""Uses of a dirty set of which one goes the long way; those at which programs are timed again are among them."""


class Owner(Protocol):
    """What an engine offers here."""

    facts: Facts
    chooser: Chooser
    store: Store
    stats: Stats
    comparison: Comparison
    must_wait: bool
    always: int
    repeat: Any
    _last: Record | None
    _rested: Any


class Repeat(NamedTuple):
    """What the last call did: its dirty set, program and plan, the values loaded, its version, and its record."""

    entry: Entry
    program: TimedProgram
    plan: Plan
    loads: list[Any]
    state: State
    saved: dict[Var, Any]
    ticks: int
    record: Record

    def run(self, engine: Owner, values: tuple[LeafValue, ...], start_s: float) -> list[Any] | None:
        """Outputs at these leaf values, if only the same inputs changed again; None: the long way is to be taken."""
        entry, store, latest = self.entry, engine.store, self.state
        if not store.states or store.states[-1] is not latest or not self._holds(engine):
            return None
        if engine.comparison.dirty(values, latest) != entry.dirty or self._is_older(values, store):
            return None
        clock = engine.chooser.clock
        spent_s, passed_s = clock.spent_s, clock.passed_s
        results = self.program([value.feed for value in values], self.loads)
        if self.plan.guard is not None and not results.pop():
            return None
        entry.count += 1
        outputs = list(latest.outputs)
        for position, result in zip(self.plan.outputs, results, strict=True):
            outputs[position] = result
        self._commit(engine, State(values, outputs, latest.saved, latest.culprit, are_values=True))
        entry.note_use("plan")
        overhead_s = max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0)
        engine.chooser.note_call(entry, "plan", clock.spent_s - spent_s + overhead_s)
        return outputs

    def _holds(self, engine: Owner) -> bool:
        """Whether nothing is to be decided in this call, and what is loaded is still there."""
        entry = self.entry
        is_settled = entry.is_final and entry.candidate == "plan" and entry.program is self.program
        is_same = self.ticks == engine.chooser.clock.ticks and self.state.saved is self.saved
        if not is_settled or not is_same or entry.uses % LONG_WAY_EVERY == 0:
            return False
        return not is_any_deleted(self.loads) and not is_any_deleted(self.state.outputs)

    @staticmethod
    def _is_older(values: tuple[LeafValue, ...], store: Store) -> bool:
        """Whether these are the values of an older version."""
        return any([all([v is w for v, w in zip(values, s.values, strict=True)]) for s in store.states[:-1]])

    def _commit(self, engine: Owner, state: State) -> None:
        state.harmless = self.entry.dirty
        engine.store.commit(state, self.state)
        engine.stats.ran += len(self.plan.eqns)
        engine.stats.loaded += len(self.plan.loads)
        engine._last, engine._rested = self.record, None
        engine.repeat = self._replace(state=state)


def repeat_of(engine: Owner, entry: Entry, base: State | None, state: State) -> Repeat | None:
    """What the call that ended with this version did, if it may be done again as it is."""
    program, record = entry.program, engine._last
    plan = program.plan if program is not None else None
    if program is None or plan is None or record is None or record.plan is not plan or record.filled or plan.saves:
        return None
    is_open = engine.must_wait or engine.always or not entry.is_final
    if (
        is_open
        or base is None
        or state.saved is not base.saved
        or (plan.statistics is not None and not entry.is_compared)
    ):
        return None
    loads = [state.saved.get(var) for var in program.executable.loads]
    if any(x is None for x in loads):
        return None
    return Repeat(entry, program, plan, loads, state, state.saved, engine.chooser.clock.ticks, record)
