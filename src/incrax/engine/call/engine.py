"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one
assignment at the end: an exception leaves the store as it was, but for values that a program
overwrote. A call goes one of four ways, the first that applies:

- `_again_by_rows`: what the last call did, if that changed rows of the same inputs;
- `_again`: what the last call of its kind did, where nothing is to be decided;
- `_unchanged`: outputs of a saved version that no changed input reaches;
- `_evaluate`: the candidate chosen for the dirty set, from the best version.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import and_, attrgetter, or_
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._messages import deleted_input
from incrax._program import Env, Results, Values
from incrax._stats import Stats
from incrax._tuning import Tuning
from incrax.engine.call.agreement import difference
from incrax.engine.call.record import BYPASSED, UNCHANGED, CallRecord
from incrax.engine.compile.executables import Compiler, Executable
from incrax.engine.compile.recycling import Pool
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.inputs.leaves import LeafValue, LeafValues
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan
from incrax.engine.plan.slices import value_at
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.log import Journal
from incrax.engine.program.dependence import ALWAYS
from incrax.engine.store.baselines import Baselines
from incrax.engine.store.budget import Limits
from incrax.engine.store.comparison import Comparison
from incrax.engine.store.eviction import cheapest_first
from incrax.engine.store.saved_values import (
    ChangedRows,
    SavedValues,
    Sources,
    UnusableError,
    given_up,
)
from incrax.engine.store.store import (
    Pairs,
    State,
    Store,
    are_at_hand,
    is_any_deleted,
)

logger = logging.getLogger("incrax")

LONG_WAY_EVERY = 16
"""Of so many uses of a dirty set one goes the long way, which ranks the versions. It divides each of
`RETRY_USES`, since nothing else asks there whether to time programs again.
"""

feed_of = attrgetter("feed")

MAX_REPEATS = 64
"""Kinds of change whose calls may go the short way."""


class Repeat(NamedTuple):
    """What a call did, if another of its kind may do the same. It holds no values: what is loaded is
    found anew in the version that such a call starts from.
    """

    record: CallRecord  # of that call
    entry: Entry  # what serves its kind
    program: TimedProgram  # that ran last
    plan: Plan  # its plan
    ticks: int  # of the clock then
    sources: Sources  # where the program finds what it loads
    fills: tuple[TimedProgram, ...] = ()  # segments that ran before it, in order
    num_filled: int = 0  # equations of these

    def is_settled(self) -> bool:
        """Whether what serves is chosen, and not to be looked at again."""
        entry = self.entry
        is_chosen = entry.candidate == self.record.candidate
        is_served = is_chosen and entry.is_final and entry.uses % LONG_WAY_EVERY != 0
        # Segments serve many kinds: whenever one of them is timed, all of these would be looked at.
        is_same = entry.program is self.program and self.ticks == self.program.clock.ticks
        return is_served and (is_same or entry.candidate == "segments")

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


class Again(NamedTuple):
    """A call that went the short way: what was done, from which version, with what loaded."""

    repeat: Repeat
    base: State
    loads: list[Any]


Begun: TypeAlias = tuple[float, float, float]
"""When a call began, and the seconds spent in programs, and passed in them, until then."""


class FirstCall(NamedTuple):
    """A call that the whole program served before there was an engine: values and outputs, and
    seconds of the program, compilation included.
    """

    values: LeafValues
    outputs: Results
    program_s: float


class Engine:
    """Evaluates one traced program incrementally.

    Fields, of the program: `reach`, the inputs that its outputs depend on; `always`, the bit of what
    runs at every call, 0 where nothing does; `must_wait`, whether it calls the host. Of the last
    call: `_last`, its record; `_dirty`, what changed, since calls of other rows share a record;
    `again`, what it did, if it went the short way. For the next ones: `repeats`, what the last call
    of each kind did; `repeat`, what the last one did that went the long way, be it one of rows;
    `streak`, what serves calls like the last one.
    """

    def __init__(
        self,
        facts: Facts,
        whole: Executable,
        journal: Journal,
        compiler: Compiler,
        tuning: Tuning,
        stats: Stats,
        limits: Limits,
        ledger: Ledger,
        *,
        is_exact: bool,
    ) -> None:
        self.facts = facts
        self.paths = journal.paths
        self.journal = journal
        self.tuning = tuning
        self.layout = facts.layout
        pool = Pool(is_active=compiler.recycles)
        planned = limits.planned_bytes
        chooser = Chooser(
            facts, whole, compiler, tuning, stats, planned, pool, journal, ledger, is_exact=is_exact
        )
        self.num_eqns = len(facts.eqns)
        self.always = ALWAYS if facts.has_effects else 0
        self.must_wait = facts.calls_host
        self.calls = compiler.calls
        self.reach = reduce(or_, map(facts.mask, facts.returned), self.always)
        self._last: CallRecord | None = None
        self._dirty = 0
        store = Store(
            limits.versions,
            limits.budget_bytes,
            partial(cheapest_first, facts, chooser.segments),
            pool,
            facts,
            saves_outputs=not is_exact,
        )
        self._begin(store, chooser, stats)

    def _begin(self, store: Store, chooser: Chooser, stats: Stats) -> Self:
        """Serve from now on with these, whatever was done before."""
        self.chooser = chooser
        self.clock = chooser.clock
        self.ledger = chooser.ledger
        self.whole = chooser.whole
        self.segments = chooser.segments
        self.planner = chooser.planner
        self.slices = chooser.slices
        self.store = store
        self.comparison = Comparison(store, self.layout)
        self.baselines = Baselines(chooser, self.always)
        self.stats = stats
        self.repeat: Repeat | None = None
        self.repeats: dict[int, Repeat] = {}
        self.again: Again | None = None
        self.streak: Any = None
        return self

    def sibling(self, budget_bytes: int) -> Engine:
        """An engine for other data of the same types: programs and what is known of their times are
        shared.
        """
        other = copy.copy(self)
        other._last = None
        return other._begin(self.store.emptied(budget_bytes), self.chooser, self.stats)

    # --- a call -----------------------------------------------------------------------------------

    def enter(self, first: FirstCall) -> None:
        """Do all that the first call would have done, but for running the program."""
        self.whole.note(first.program_s)
        self._note_compiled()
        full = self.layout.full
        entry = self.chooser.entry(full)
        saved = SavedValues(self, [], full, first.values)
        state = self._new_state("whole", entry, saved, first.outputs)
        self._account("whole", entry, saved, is_first=True)
        self.chooser.note_use(entry, "whole", None)
        self.store.commit(state, None)

    def call(
        self, leaves: Values, changed: Sequence[int] | None, begin_s: float | None = None
    ) -> Results:
        """Outputs at these leaves; `changed`: those that are other objects than before, if known;
        `begin_s`: when the call began, of `perf_counter`, None for now.
        """
        clock = self.clock
        ledger = self.ledger
        self.again = None
        if self.streak is not None:
            self.streak.settle()
            self.streak = None
        if ledger.granted or ledger.weight != 1:
            self._begin_look()
        if clock.unproven and self.store.prove(clock.unproven):
            changed = None
        start_s = clock.began(begin_s) + self.comparison.wait(leaves, changed, clock.now)
        if changed is not None and self.repeat is not None:
            outputs = self._again_by_rows(leaves, changed, start_s)
            if outputs is not None:
                return outputs
        values = self.comparison.resolve(leaves, changed)
        self.check_alive(values)
        try:
            pairs = self.comparison.pairs(values)
            outputs = self._again(pairs, values, start_s) if self.repeats else None
            return self._compared(pairs, values, start_s) if outputs is None else outputs
        except Exception as error:
            self._forget_repeats()
            self.store.drop_broken()
            if self.always or not _jax.is_out_of_memory(error):
                raise
            dropped_mb = self.saved_bytes / 1e6
            logger.warning("the device has no memory left: %.3g MB were dropped", dropped_mb)
            self.store.clear()
            traceback.clear_frames(error.__traceback__)  # they hold saved values, as do the pairs
            pairs = []
            self._last = BYPASSED
            return self.fresh(leaves)

    def _begin_look(self) -> None:
        """Count the calls that bypassed since the last look."""
        ledger = self.ledger
        whole_s = self.whole.seconds or 0.0
        if ledger.granted:  # early runs are slow: a job's first memory is new to the process
            self.whole.is_due = True
        self.catch_up()
        self.clock.spent_s += ledger.skipped * (ledger.turn_s or whole_s)
        ledger.begin_look(whole_s)

    def catch_up(self) -> None:
        """Enter calls that count nothing themselves in the counters: those that bypassed, and those
        of a streak.
        """
        number = self.ledger.uncounted()
        self.stats.calls += number
        self.stats.ran += number * self.num_eqns
        if self.streak is not None:
            self.streak.settle()

    def count_repeats(self, repeat: Repeat, num: int, overhead_s: float) -> None:
        """So many calls did what the one before did, the last of which made the latest version."""
        self.stats.calls += num
        self.stats.ran += num * repeat.plan.num_eqns
        self.stats.loaded += num * len(repeat.plan.loads)
        program = repeat.program
        program.num_runs += num
        program_s = program.seconds or 0.0
        self.clock.spent_s += num * program_s
        self.clock.unproven += _jax.first_buffer(self.store.states[-1].outputs)
        entry = repeat.entry
        self.chooser.note_repeated(entry, entry.candidate, program_s, overhead_s, num)

    def _compared(self, pairs: Pairs, values: LeafValues, start_s: float) -> Results:
        """Outputs from the version that is best to start from."""
        pairs = self.baselines.ranked(pairs)
        base, dirty = pairs[-1] if pairs else (None, self.layout.full)
        dirty |= self.always
        if base is not None and not dirty & self.reach:
            if not is_any_deleted(base.outputs):
                return self._unchanged(base, dirty)
            dirty = self.layout.full
        rows = self.changed_rows(pairs, values)
        if rows is not None:
            pairs = [*(pair for pair in pairs if pair[0] is not rows.base), (rows.base, rows.dirty)]
            base, dirty = pairs[-1]
        return self._evaluate(SavedValues(self, pairs, dirty, values, rows), start_s)

    def changed_rows(self, pairs: Pairs, values: LeafValues) -> ChangedRows | None:
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

    def _unchanged(self, state: State, dirty: int) -> Results:
        self.stats.unchanged += 1
        self.ledger.unchanged += 1
        self.store.touch(state)
        self._last = UNCHANGED._replace(dirty=dirty) if dirty else UNCHANGED
        return state.outputs

    def without_saving(self, leaves: Values) -> Results:
        """Outputs of the whole program at values that stay as they are; nothing is compared or
        kept.
        """
        self.ledger.pass_by(self.whole.seconds or 0.0)
        if self.store.states:
            self.clear_saved()
        outputs = self.whole(leaves, ())
        if self.must_wait:
            jax.block_until_ready(outputs)
        self.stats.ran += self.num_eqns
        return outputs

    def check_alive(self, values: Iterable[LeafValue]) -> None:
        """Raise DeletedInputError for the first array that was donated or deleted."""
        deleted = [v.array is not None and v.array.is_deleted() for v in values]
        if any(deleted):
            raise deleted_input(self.paths[deleted.index(True)])

    # --- a call like one before -------------------------------------------------------------------

    def _again(self, pairs: Pairs, values: LeafValues, start_s: float) -> Results | None:
        """Outputs the short way: what the last call of its kind did.

        None where something is to be decided, or results must not be used: nothing is committed.
        """
        begun = start_s, self.clock.spent_s, self.clock.passed_s
        kind = self._common(pairs)
        repeat = self.repeats.get(kind)
        if repeat is None or not repeat.is_settled():
            return None
        dirty = repeat.entry.dirty
        # The long way starts from the one most used of those that differ in just these inputs.
        bases = [state for state, found in reversed(pairs) if found == dirty]
        base = max(bases, key=lambda state: state.uses, default=None)
        feeds = [*map(feed_of, values)]
        filled = None if base is None else repeat.filled(base, feeds)
        loads = None if base is None or filled is None else repeat.loads_of(base, filled)
        if base is None or filled is None or loads is None:
            return None
        results = repeat.program(feeds, loads)
        # Read after all programs were started: each is waited for no longer than the last one is.
        flags = self.facts.derived.flags
        are_usable = [self.clock.read(filled.pop(flags[v])) for v in [*filled] if v in flags]
        if not all(are_usable) or not self._holds(repeat, results):
            return None
        state = self.store.successor(base, dirty, values, repeat.plan, results, filled)
        self._blame(state, base, repeat.entry.candidate, repeat.entry)
        if kind == dirty:  # else the next call differs from this one in other inputs
            self.again = Again(repeat, base, loads)
        return self._commit_again(repeat, base, state, begun)

    def _common(self, pairs: Pairs) -> int:
        """The inputs in which a call differs from all versions: its kind, as far as choices go.

        The version that it then starts from may differ in more, as where inputs change in turns.
        """
        return reduce(and_, [found for _, found in pairs], self.layout.full)

    def _again_by_rows(
        self, leaves: Values, changed: Sequence[int], start_s: float
    ) -> Results | None:
        """The same if the last call was one of rows, and this changes rows of the same inputs: what
        differs is compared once, with the rows' numbers as the outcome.
        """
        repeat = self.repeat
        sliced = None if repeat is None else repeat.plan.sliced
        if repeat is None or sliced is None or not repeat.is_settled():
            return None
        begun = start_s, self.clock.spent_s, self.clock.passed_s
        values = self.comparison.anew(leaves, changed, sliced.kind.leaves)
        if values is None or self.comparison.differ_beside(values, sliced.kind.leaves):
            return None

        def run(feeds: Values, loads: Values) -> Results | None:
            try:
                results = repeat.program(feeds, loads)
                return results if self._holds(repeat, results) else None
            except Exception:  # the long way knows what to do
                self._forget_repeats()
                return None

        made = self.made_by_rows(repeat, values, run)
        if made is None:
            return None
        base, state = made
        self.again = Again(repeat, base, [])
        return self._commit_again(repeat, base, state, begun)

    def made_by_rows(
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
        sliced = plan.sliced
        assert sliced is not None
        found = self.comparison.nearest(values, sliced.kind.leaves, slices.primed.keys())
        if found is None:
            return None
        base, numbers = found
        if not slices.serves(plan, numbers):
            return None
        loads = repeat.loads_of(base, None, numbers)
        if loads is None:
            return None
        program = repeat.program
        if program.executable.given_up:
            loads = given_up(self.store, base, program, loads)
        results = run([*map(feed_of, values)], loads)
        if results is None:
            return None
        slices.take_priming(repeat.entry, is_complete=True)
        # Elements, not whole inputs: saved values may depend on one of them alone.
        dirty = self.comparison.dirty(values, base)
        self._dirty = dirty
        return base, self.store.successor(base, dirty, values, plan, results, {})

    def _holds(self, repeat: Repeat, results: Results) -> bool:
        """Whether results may be used; the guard, if there is one, is taken from them."""
        return repeat.plan.guard is None or self.clock.read(results.pop())

    def _commit_again(self, repeat: Repeat, base: State, state: State, begun: Begun) -> Results:
        """Its outputs, after it was stored and counted."""
        clock = self.clock
        start_s, spent_s, passed_s = begun
        self.store.commit(state, base)
        self.stats.ran += repeat.plan.num_eqns
        self.stats.filled += repeat.num_filled
        self.stats.loaded += len(repeat.plan.loads)
        self._last = repeat.record
        overhead_s = max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0)
        entry = repeat.entry
        program_s = clock.spent_s - spent_s
        self.chooser.note_repeated(entry, entry.candidate, program_s, overhead_s)
        return state.outputs

    def _note_repeat(self, record: CallRecord, candidate: Candidate, saved: SavedValues) -> None:
        """The next calls of this kind may do what this one did, if nothing was tried in it, and nothing
        was filled, or only by segments that the change reaches.
        """
        kind = self._common(saved.pairs)
        self.repeat = None
        self.repeats.pop(kind, None)
        entry = record.entry
        plan = record.plan
        program = None if entry is None else self._program(candidate, entry)
        if entry is None or program is None or plan is None or program.plan is not plan:
            return
        is_checked = plan.statistics is None or entry.is_compared
        is_known = entry.is_final and saved.base is not None and is_checked
        is_alike = is_known and self._fills_what_changed(candidate, saved)
        if candidate != "slices" and not is_alike:
            return
        fills = tuple(saved.filled_by)
        self.repeat = repeat = Repeat(
            record,
            entry,
            program,
            plan,
            self.clock.ticks,
            saved.sources or Sources(self.facts, program),
            fills,
            sum([len(each.eqns) for each in saved.plans]) if fills else 0,
        )
        if candidate != "slices":
            if len(self.repeats) >= MAX_REPEATS:
                self.repeats.clear()
            self.repeats[kind] = repeat
        elif plan.sliced is not None and saved.base is not None and repeat.is_settled():
            # What would be decided once more for the next call has just been.
            if not self.comparison.differ_beside(saved.values, plan.sliced.kind.leaves):
                self.again = Again(repeat, saved.base, [])

    def _fills_what_changed(self, candidate: Candidate, saved: SavedValues) -> bool:
        """Whether the same change can be served alike from any version that has what this call read:
        by a plan that filled nothing, or by segments that computed all that the change reaches, and
        nothing else.
        """
        if candidate == "plan":
            return not saved.computed
        is_by_segments = candidate == "segments" and not self.chooser.is_exact
        reached = {
            var for var in (*saved.computed, *saved.found) if self.facts.mask(var) & saved.dirty
        }
        is_same = len(saved.plans) == len(saved.filled_by)
        return is_by_segments and is_same and reached == saved.computed.keys()

    def _forget_repeats(self) -> None:
        """Look at the next calls in full."""
        self.repeat = None
        self.repeats.clear()

    # --- a call that is evaluated from a version --------------------------------------------------

    def _evaluate(self, saved: SavedValues, start_s: float) -> Results:
        """Outputs by the candidate for the dirty set; its seconds are entered where they tell
        something.
        """
        clock = self.clock
        base = saved.base
        begun = start_s, clock.spent_s, clock.passed_s
        num_prepared = self._num_prepared()
        entry, candidate = self._chosen(saved)
        is_try = candidate not in ("whole", "priming") and not entry.is_final
        run_s = clock.now()
        candidate, results, guard = self.run(candidate, entry, saved)
        if self.must_wait or is_try:
            clock.wait(results)
        elapsed_s = clock.now() - run_s
        state = self._new_state(candidate, entry, saved, results)
        record = self._account(candidate, entry, saved, is_first=base is None)
        was_prepared = num_prepared == self._num_prepared()
        self.chooser.note_use(entry, candidate, elapsed_s if is_try and was_prepared else None)
        self._note_seconds(entry, candidate, saved, begun, is_new=is_try or not was_prepared)
        instead = None
        if guard is not None:
            instead = self._results_instead(candidate, entry, saved, results, guard)
        if instead is not None:
            candidate = "whole"
            state = self._new_state(candidate, entry, saved, instead)
            record = self._account(candidate, entry, saved, is_first=base is None)
        self.store.commit(state, base if saved.dirty != self.layout.full | self.always else None)
        if not self.must_wait and not self.always:
            self._note_repeat(record, candidate, saved)
        return state.outputs

    def _note_seconds(
        self, entry: Entry, candidate: Candidate, saved: SavedValues, begun: Begun, *, is_new: bool
    ) -> None:
        """Enter what a call took, beside its programs as overhead, or as learning where something
        was compiled, planned or tried in it.
        """
        clock = self.clock
        start_s, spent_s, passed_s = begun
        usual_s = clock.spent_s - spent_s
        overhead_s = 0.0
        if not is_new:
            overhead_s = max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0)
        is_undecided = saved.rows is not None and self.slices.is_undecided(saved.rows.kind)
        is_looked_at = is_new or is_undecided
        self.chooser.note_call(entry, candidate, usual_s, overhead_s, is_new=is_looked_at)
        if saved.base is not None and is_new:
            learning_s = max(clock.now() - start_s - usual_s, 0.0)
            self.chooser.note_learning(entry, learning_s)

    def _num_prepared(self) -> int:
        """How often something was compiled or planned so far."""
        return self.stats.compiles + self.planner.num_planned + self.slices.num_planned

    def _chosen(self, saved: SavedValues) -> tuple[Entry, Candidate]:
        """What serves this call, with its record."""
        chooser = self.chooser
        slices = self.slices
        rows = saved.rows
        found = None
        if rows is not None and self.whole.is_settled:
            found = self._chosen_for_rows(saved, rows)
        if found is not None:
            return found
        # A plan for just these rows serves no others: it waits until it is known that none does.
        is_open = rows is not None and slices.is_open(rows.kind)
        entry = chooser.entry(saved.dirty, may_wait=is_open)
        is_at_hand = self._is_at_hand(entry, saved)
        candidate = self.choose(entry, saved) if is_at_hand else self._meanwhile(entry, saved)
        is_primed = candidate == "whole" and slices.decide_priming()
        return entry, "priming" if is_primed else candidate

    def _chosen_for_rows(
        self, saved: SavedValues, rows: ChangedRows
    ) -> tuple[Entry, Candidate] | None:
        """The program for rows that serves this call, with its record; None where there is none."""
        slices = self.slices
        length = slices.lengths[rows.kind.leaves[0]]
        entry = slices.entry(
            rows.kind,
            saved.dirty,
            int(rows.numbers.min(initial=length)),
            self.ledger.weight,
            self.chooser.whole_s,
            self.chooser.expected_s(saved.dirty),
            value_at(self.facts, saved.feeds),
        )
        if entry is None or not slices.is_at_hand(entry, saved.feeds):
            return None
        assert entry.program is not None
        saved.taken = saved.for_rows(entry.program)
        if saved.taken is None and slices.priming is not None:
            saved.prime(slices.priming)
            saved.taken = saved.for_rows(entry.program)
        is_primed = slices.take_priming(entry, is_complete=saved.taken is not None)
        return entry, "slices" if is_primed else "priming"

    def _is_at_hand(self, entry: Entry, saved: SavedValues) -> bool:
        """Whether no thread compiles what is to serve, or what computes the values that this
        lacks.
        """
        behind = self.clock.behind
        if not behind.is_on:
            return True
        plan = self.plan_of(entry.candidate, entry)
        if plan is None:
            return True
        segments = self.segments
        joint, groups = saved.to_fill(plan.loads)
        programs = [
            self._program(entry.candidate, entry),
            None if joint is None else segments.joint(joint),
            *map(segments.program, groups),
        ]
        return all([p is None or p.is_at_hand(saved.feeds) for p in programs])

    def _meanwhile(self, entry: Entry, saved: SavedValues) -> Candidate:
        """What serves while a thread compiles the choice: the plan, if it has run and lacks nothing,
        or the whole program.
        """
        program = entry.program
        if program is None or program.plan is None or not program.num_runs:
            return "whole"
        can_run = saved.has_outputs(program.plan) and not saved.missing(program.loads)
        return "plan" if can_run else "whole"

    def choose(self, entry: Entry, saved: SavedValues) -> Candidate:
        """What serves this call: the entry's candidate, or the whole program where it lacks too
        much.
        """
        candidate = entry.candidate
        segments = self.segments
        if candidate == "whole":
            return "whole"
        if candidate == "plan":
            plan = self.plan_of(candidate, entry)
            if plan is None or not saved.has_outputs(plan):
                return "whole"
            missing = saved.missing(plan.loads)
        else:
            missing = saved.missing(segments.route(entry.dirty).clean)
        if not missing or not self.chooser.is_timed:
            return candidate
        dirty = None if saved.base is None else saved.base.culprit
        to_blame = None if dirty is None else self.chooser.seen(dirty)
        groups = segments.missing_groups(missing, lambda var: saved.find(var) is None)
        pays = self.chooser.decide_fill(entry, missing, groups, to_blame)
        return candidate if pays else "whole"

    def plan_of(self, candidate: Candidate, entry: Entry) -> Plan | None:
        """The plan that a candidate runs last; None for the whole program."""
        program = self._program(candidate, entry)
        return None if candidate == "whole" or program is None else program.plan

    def _program(self, candidate: Candidate, entry: Entry) -> TimedProgram | None:
        """The program that a candidate, but for the whole one, runs last."""
        if candidate == "segments":
            return self.segments.top()
        return self.slices.priming if candidate == "priming" else entry.program

    def run(
        self, candidate: Candidate, entry: Entry, saved: SavedValues
    ) -> tuple[Candidate, Results, Any]:
        """What ran, its results, and a boolean, if any, which must be true for them to be used.

        That is the whole program where a value that the candidate derives must not be used.
        """
        if candidate != "whole":
            try:
                return candidate, *self._run_from_saved(candidate, entry, saved)
            except UnusableError:
                self.planner.bar(entry)
        return "whole", self._run_whole(saved), None

    def _run_whole(self, saved: SavedValues) -> Results:
        is_first = not self.whole.num_runs
        results = self.whole(saved.feeds, ())
        if is_first:
            self._note_compiled()
        return results

    def _note_compiled(self) -> None:
        """The whole program ran for the first time."""
        self.stats.compiles += 1
        self.ledger.note_compiled(self.whole.first_s)

    def _run_from_saved(
        self, candidate: Candidate, entry: Entry, saved: SavedValues
    ) -> tuple[Results, Any]:
        program = self._program(candidate, entry)
        assert program is not None
        loads = program.loads
        if candidate == "priming":
            saved.fill_tables(self.slices.tables, value_at(self.facts, saved.feeds))
            results = program(saved.feeds, ())
        elif candidate == "slices":
            assert saved.base is not None
            loads = given_up(self.store, saved.base, program, saved.taken or ())
            results = program(saved.feeds, loads)
        else:
            if not self.chooser.is_exact:
                saved.fill(loads)
            results = program(saved.feeds, [saved.get(var) for var in loads])
        has_guard = program.plan is not None and program.plan.guard is not None
        guard = results.pop() if has_guard else None
        return results, guard

    def _results_instead(
        self, candidate: Candidate, entry: Entry, saved: SavedValues, results: Results, guard: Any
    ) -> Results | None:
        """The whole program's results where the plan's must not be used, else None; what they rest
        on is dropped.

        A plan must not be used where its guard is false. The first result of one with algebra over
        rows is compared with the direct form.
        """
        plan = self.plan_of(candidate, entry)
        assert plan is not None
        statistics = plan.statistics
        if not self.clock.read(guard):
            (self.slices if candidate == "slices" else self.planner).note_unusable(entry)
            instead = self._run_whole(saved)
        elif statistics is None or entry.is_compared:
            return None
        else:
            instead = self._run_whole(saved)
            entry.is_compared = True
            pairs = zip(plan.outputs, results, strict=False)
            errors = [difference(x, instead[position]) for position, x in pairs]
            worst = max((error for error in errors if error is not None), default=None)
            if worst is None:
                return None
            reason = (
                f"algebra over rows was given up: it differs from the direct form by {worst:.2g} "
                "of the largest element"
            )
            logger.warning("%s (%s)", reason, "; ".join(statistics.lines))
            self.planner.give_up_algebra(entry, reason)
        centred = statistics.centred if statistics is not None else ()
        saved.drop(centred)
        self.store.forget(centred)
        jax.block_until_ready(instead if self.must_wait else ())
        return instead

    # --- commit -----------------------------------------------------------------------------------

    def _new_state(
        self, candidate: Candidate, entry: Entry, saved: SavedValues, results: Results
    ) -> State:
        """The version that follows the baseline, after values may have been found or computed."""
        self.store.expect(self.chooser.savable)
        plan = self.plan_of(candidate, entry)
        known = {**saved.found, **saved.computed}
        base = saved.base
        self._dirty = saved.dirty
        state = self.store.successor(base, saved.dirty, saved.values, plan, results, known)
        self._blame(state, base, candidate, entry)
        return state

    def _blame(self, state: State, base: State | None, candidate: Candidate, entry: Entry) -> None:
        """Note whose choice left saved values of a new version stale, if it was this change's."""
        is_forced = entry.candidate != candidate and base is not None
        if entry.leaves_stale(candidate) and not is_forced:
            state.culprit = entry.dirty

    def _account(
        self, candidate: Candidate, entry: Entry, saved: SavedValues, *, is_first: bool
    ) -> CallRecord:
        """Count what ran, and note what the call was."""
        stats = self.stats
        plan = self.plan_of(candidate, entry)
        loads = () if plan is None else plan.loads
        stats.ran += self.num_eqns if plan is None else plan.num_eqns
        stats.loaded += len(loads)
        evicted = self.store.take_evicted()
        stats.evicted += self.journal.evicted(evicted, self.store.budget_bytes)
        record = CallRecord(
            saved.dirty,
            candidate,
            entry,
            plan,
            loads,
            tuple(saved.computed),
            tuple(saved.plans),
            is_first,
        )
        self._last = record
        return record

    # --- what the last call was -------------------------------------------------------------------

    @property
    def last(self) -> CallRecord | None:
        """The last call."""
        last = BYPASSED if self.ledger.skipped else self._last
        if last is None or last.plan is None or last.plan.sliced is None:
            return last
        return last._replace(dirty=self._dirty)  # calls of other rows share a record

    @property
    def changed_paths(self) -> list[str]:
        """The inputs that changed in it."""
        last = self.last
        return [] if last is None else mask_paths(self.paths, self.layout, last.dirty)

    @property
    def bypasses(self) -> bool:
        """Whether the next call is that of `jax.jit`."""
        return self.ledger.left > 0

    # --- control ----------------------------------------------------------------------------------

    def expect(self, calls: int) -> None:
        """So many more calls will come."""
        self.chooser.credit.expect(calls)

    def plans(self) -> list[Plan]:
        """The plans that have programs."""
        programs = [entry.program for entry in list(self.chooser.entries.values())]
        return [x.plan for x in programs if x is not None and x.plan is not None]

    @property
    def saved_bytes(self) -> int:
        """Bytes of the saved values."""
        return self.store.saved_bytes

    def clear(self) -> None:
        """Drop all saved values, and what functions on the host returned."""
        self.catch_up()  # calls of a streak are counted by its latest version
        self.clear_saved()
        self.calls.clear()
        self.clock.unproven = []

    def clear_saved(self) -> None:
        """Drop all saved values."""
        self._forget_repeats()
        self.again = self.streak = None  # they hold a version
        self.store.clear()

    def anew(self, leaves: Values) -> Results:
        """Outputs with the bits of a call under the exact policy; nothing saved is read or
        written.
        """
        if self.chooser.only_whole:
            return self.fresh(leaves)
        other = copy.copy(self)
        other.stats = Stats()
        full = self.layout.full
        entry = Entry(full)

        def run(values: LeafValues) -> Results:
            candidate, results, _ = self.run(
                "segments", entry, SavedValues(other, [], full, values)
            )
            plan = self.plan_of(candidate, entry)
            return results if plan is None else plan.outputs_with(results, results)

        return self._apart(leaves, run)

    def fresh(self, leaves: Values) -> Results:
        """Outputs of the whole function; the store is neither read nor written."""
        return self._apart(
            leaves, lambda values: self.whole.executable([v.feed for v in values], ())
        )

    def _apart(self, leaves: Values, run: Callable[[LeafValues], Results]) -> Results:
        """Outputs at these leaves, for which functions on the host run anew."""
        values = tuple([LeafValue(x) for x in leaves])
        self.check_alive(values)
        return self.calls.anew(lambda: run(values)) if self.must_wait else run(values)
