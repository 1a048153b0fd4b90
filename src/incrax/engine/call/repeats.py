"""Calls that do what the last one of their kind did: the short way.

In: the versions with their dirty sets, what a call did. Out: the version that a call makes, or None
where something is to be decided: then nothing happened. It must not choose what serves, nor count.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from incrax._program import Env, Results, Values
from incrax.engine.call.record import CallRecord
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.inputs.leaves import LeafValues
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.saved_values import SavedValues, Sources
from incrax.engine.store.store import Pairs, State, Store, are_at_hand

LONG_WAY_EVERY = 16
"""Of so many uses of a dirty set one goes the long way, which ranks the versions. It divides each of
`RETRY_USES`, since nothing else asks there whether to time programs again.
"""

MAX_REPEATS = 64
"""Kinds of change whose calls may go the short way."""

feed_of = attrgetter("feed")
uses_of = attrgetter("uses")
dirty_of = itemgetter(1)


class Repeat(NamedTuple):
    """What a call did, if another of its kind may do the same. It holds no values: what is loaded is
    found in the version that such a call starts from.
    """

    record: CallRecord  # of that call
    entry: Entry  # what serves its kind
    program: TimedProgram  # that ran last
    plan: Plan  # its plan
    ticks: int  # of the clock then
    sources: Sources  # where the program finds what it loads
    fills: tuple[TimedProgram, ...] = ()  # segments that ran before it, in order
    num_filled: int = 0  # equations of these
    num_loaded: int = 0  # saved values that all of them read
    moving: tuple[int, ...] = ()  # inputs whose rows change, if it was a call of rows

    def applies(self) -> bool:
        """Whether the next call may do the same: what serves is chosen, and not to be weighed again."""
        entry = self.entry
        is_chosen = entry.candidate == self.record.candidate and entry.is_final
        # Segments serve many kinds: whenever one of them is timed, all of these would be weighed.
        is_same = entry.program is self.program and self.ticks == self.program.clock.ticks
        is_weighed = is_same or entry.candidate == "segments"
        return is_chosen and is_weighed and entry.uses % LONG_WAY_EVERY != 0

    def loads_of(
        self, base: State, filled: Env | None = None, rows: np.ndarray | None = None
    ) -> Results | None:
        """What the program loads, of a version and of what was computed before it, as rows of these
        numbers change; None where something is lacking.
        """
        saved = {**base.saved, **filled} if filled else base.saved
        loads = self.sources.loads(base, saved, rows)
        return loads if self.sources.are_at_hand(base, loads) else None

    def filled(self, base: State, feeds: Values) -> Env | None:
        """What the segments compute of what a version has; None where that lacks something."""
        known = base.saved
        made: Env = {}
        for program in self.fills:
            loads = list(map(known.get, program.loads))
            if not are_at_hand(loads):
                return None
            assert program.plan is not None
            results = program(feeds, loads)
            made.update(zip(program.plan.saves, results, strict=True))
            known = {**base.saved, **made}
        return made

    def results(self, feeds: Values, loads: Values) -> Results | None:
        """What the program returns; None where its guard says that it must not be used."""
        results = self.program(feeds, loads)
        guard = None if self.plan.guard is None else results.pop()
        return results if guard is None or self.program.clock.read(guard) else None


class Repeated(NamedTuple):
    """A call that did what one before it did."""

    repeat: Repeat
    base: State  # the version that it started from
    state: State  # the one that it made
    loads: Results  # what its program loaded; none of a program for rows, which may overwrite some
    is_in_turn: bool = False  # the next call will differ from these versions in other inputs


class Repeats:
    """What the last call of each kind did.

    A *kind* are the inputs in which a call differs from all versions: as far as choices go, it is
    that. The version that it starts from may differ in more, as where inputs change in turns.
    """

    def __init__(self, chooser: Chooser, store: Store) -> None:
        self.chooser = chooser
        self.facts = chooser.facts
        self.clock = chooser.clock
        self.store = store
        self.by_kind: dict[int, Repeat] = {}

    def forget(self) -> None:
        """Look at the next calls in full."""
        self.by_kind.clear()

    def _kind_of(self, pairs: Pairs) -> int:
        return reduce(and_, map(dirty_of, pairs), self.facts.layout.full)

    def repeated(self, pairs: Pairs, values: LeafValues) -> Repeated | None:
        """What a call with these values does by what the last one of its kind did."""
        kind = self._kind_of(pairs)
        repeat = self.by_kind.get(kind)
        if repeat is None or not repeat.applies():
            return None
        dirty = repeat.entry.dirty
        # The long way starts from the one most used of those that differ in just these inputs.
        bases = [state for state, found in reversed(pairs) if found == dirty]
        base = max(bases, key=uses_of, default=None)
        if base is None:
            return None
        feeds = [*map(feed_of, values)]
        filled = repeat.filled(base, feeds)
        loads = None if filled is None else repeat.loads_of(base, filled)
        if filled is None or loads is None:
            return None
        results = repeat.results(feeds, loads)
        # Read after all programs were started: each is waited for no longer than the last one is.
        flags = self.facts.derived.flags
        read = self.clock.read
        are_usable = [read(filled.pop(flags[var])) for var in [*filled] if var in flags]
        if results is None or not all(are_usable):
            return None
        state = self.store.successor(base, dirty, values, repeat.plan, results, filled)
        if repeat.entry.leaves_stale(repeat.entry.candidate):
            state.culprit = dirty
        return Repeated(repeat, base, state, loads, is_in_turn=kind != dirty)

    def note(
        self, record: CallRecord, program: TimedProgram | None, saved: SavedValues
    ) -> Repeat | None:
        """What the next calls of a kind may do: what this one did, if nothing was tried in it, and
        nothing was filled, or only by segments that the change reaches.
        """
        kind = self._kind_of(saved.pairs)
        self.by_kind.pop(kind, None)
        entry = record.entry
        plan = record.plan
        if entry is None or program is None or plan is None or program.plan is not plan:
            return None
        is_for_rows = record.candidate == "slices"
        is_checked = plan.statistics is None or entry.is_compared
        is_known = entry.is_final and saved.base is not None and is_checked
        if not is_for_rows and not (is_known and self._fills_what_changed(record, saved)):
            return None
        fills = tuple(saved.filled_by)
        if not fills:  # what was lacking is there now
            record = record._replace(filled=(), before=())
        repeat = Repeat(
            record,
            entry,
            program,
            plan,
            self.clock.ticks,
            saved.sources or Sources(self.facts, program),
            fills,
            sum([each.num_eqns for each in record.before]),
            len(record.loads),
            () if plan.sliced is None else plan.sliced.kind.leaves,
        )
        if not is_for_rows:
            if len(self.by_kind) >= MAX_REPEATS:
                self.by_kind.clear()
            self.by_kind[kind] = repeat
        return repeat

    def _fills_what_changed(self, record: CallRecord, saved: SavedValues) -> bool:
        """Whether the same change can be served alike from any version that has what this call read:
        by a plan that filled nothing, or by segments that computed all that the change reaches, and
        nothing else.
        """
        if record.candidate == "plan":
            return not saved.computed
        is_by_segments = record.candidate == "segments" and not self.chooser.is_exact
        mask = self.facts.mask
        reached = {var for var in (*saved.computed, *saved.found) if mask(var) & saved.dirty}
        is_same = len(saved.plans) == len(saved.filled_by)
        return is_by_segments and is_same and reached == saved.computed.keys()
