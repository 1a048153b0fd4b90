"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one
assignment at the end: an exception leaves the store as it was, but for values that a program
overwrote. A call goes one of three ways, the first that applies:

- `Repeats.repeated`: what the last call of its kind did, where nothing is to be decided;
- `_unchanged`: outputs of a saved version that no changed input reaches;
- `_evaluate`: the candidate chosen for the dirty set, from the best version.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple, Self, TypeAlias

import jax

from incrax import _jax
from incrax._messages import deleted_input
from incrax._program import Results, Values
from incrax.engine.call.agreement import difference
from incrax.engine.call.bypass import Bypass
from incrax.engine.call.record import BYPASSED, UNCHANGED, CallRecord
from incrax.engine.call.repeats import Repeat, Repeated, Repeats
from incrax.engine.call.row_calls import RowCalls
from incrax.engine.compile.timing import SAMPLE, TimedProgram
from incrax.engine.inputs.leaves import LeafValue, LeafValues
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.plan.plan import Plan
from incrax.engine.plan.segmentation import Group
from incrax.engine.plan.slices import value_at
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.baselines import Baselines
from incrax.engine.store.budget import Limits
from incrax.engine.store.comparison import Comparison
from incrax.engine.store.eviction import cheapest_first
from incrax.engine.store.saved_values import (
    ChangedRows,
    SavedValues,
    UnusableError,
    given_up,
)
from incrax.engine.store.store import (
    Pairs,
    State,
    Store,
    is_any_deleted,
)

logger = logging.getLogger("incrax")

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
    """Evaluates one traced program incrementally."""

    def __init__(self, chooser: Chooser, limits: Limits) -> None:
        facts = chooser.facts
        self.facts = facts
        self.chooser = chooser
        self.journal = chooser.journal
        self.paths = chooser.journal.paths
        self.layout = facts.layout
        self.num_eqns = len(facts.eqns)
        self.always = facts.always
        self.reach = reduce(or_, map(facts.mask, facts.returned), self.always)  # of the outputs
        self.must_wait = facts.calls_host
        self.calls = chooser.calls
        self.stats = chooser.compiler.stats
        self.clock = chooser.clock
        self.ledger = chooser.ledger
        self.whole = chooser.whole
        self.segments = chooser.segments
        self.planner = chooser.planner
        self.slices = chooser.slices
        self.baselines = Baselines(chooser, self.always)
        store = Store(
            limits.versions,
            limits.budget_bytes,
            partial(cheapest_first, facts, chooser.segments),
            chooser.compiler.pool,
            facts,
            saves_outputs=not chooser.is_exact,
        )
        self._begin(store)

    def _begin(self, store: Store) -> Self:
        """Have these versions from now on, whatever was done before."""
        self._last: CallRecord | None = None
        self.store = store
        self.comparison = Comparison(store, self.layout)
        self.repeats = Repeats(self.chooser, store)
        self.rows = RowCalls(self.chooser, self.comparison)
        self.repeated: Repeated | None = None  # what the last call did, if it went a short way
        self.streak: Any = None  # what serves calls like that one
        self.bypass: Bypass | None = None  # what serves calls that are not looked at
        return self

    def sibling(self, budget_bytes: int) -> Engine:
        """An engine for other data of the same types: programs and what is known of their times are
        shared.
        """
        other = copy.copy(self)
        return other._begin(self.store.emptied(budget_bytes))

    # --- a call -----------------------------------------------------------------------------------

    def call(
        self, leaves: Values, changed: Sequence[int] | None, begin_s: float | None = None
    ) -> Results:
        """Outputs at these leaves; `changed`: those that are other objects than before, if known;
        `begin_s`: when the call began, of `perf_counter`, None for now.
        """
        clock = self.clock
        ledger = self.ledger
        self.repeated = None
        if self.streak is not None:
            self.streak.count()
            self.streak = None
        if ledger.granted or ledger.weight != 1:
            self.begin_look()
        if clock.unproven and self.store.prove(clock.unproven):
            changed = None
        start_s = clock.began(begin_s) + self.comparison.wait(leaves, changed, clock.now)
        values = self.comparison.resolve(leaves, changed)
        self.check_alive(values)
        try:
            return self._compared(values, start_s)
        except Exception as error:
            self.repeats.forget()
            self.store.drop_broken()
            if self.always or not _jax.is_out_of_memory(error):
                raise
            dropped_mb = self.store.saved_bytes / 1e6
            logger.warning("the device has no memory left: %.3g MB were dropped", dropped_mb)
            self.store.clear()
            traceback.clear_frames(error.__traceback__)  # they hold saved values
            self._last = BYPASSED
            return self.fresh(leaves)

    def check_alive(self, values: Iterable[LeafValue]) -> None:
        """Raise DeletedInputError for the first array that was donated or deleted."""
        deleted = [v.array is not None and v.array.is_deleted() for v in values]
        if any(deleted):
            raise deleted_input(self.paths[deleted.index(True)])

    def _compared(self, values: LeafValues, start_s: float) -> Results:
        """Outputs by what the last call of this kind did, or from the version that is best to start
        from.
        """
        pairs = self.comparison.pairs(values)
        if self.repeats.by_kind:
            begun = start_s, self.clock.spent_s, self.clock.passed_s
            repeated = self.repeats.repeated(pairs, values)
            if repeated is not None:
                return self._commit_repeated(repeated, begun)
        pairs = self.baselines.ranked(pairs)
        base, dirty = pairs[-1] if pairs else (None, self.layout.full)
        dirty |= self.always
        if base is not None and not dirty & self.reach:
            if not is_any_deleted(base.outputs):
                return self._unchanged(base, dirty)
            dirty = self.layout.full
        rows = self.rows.changed(pairs, values)
        if rows is not None:
            pairs = [*(pair for pair in pairs if pair[0] is not rows.base), (rows.base, rows.dirty)]
            dirty = rows.dirty
        saved = self.saved(pairs, dirty, values, rows)
        return self._evaluate(saved, start_s)

    def saved(
        self, pairs: Pairs, dirty: int, values: LeafValues, rows: ChangedRows | None = None
    ) -> SavedValues:
        """What the versions hold for a call: see `SavedValues`."""
        return SavedValues(self.chooser, self.comparison, pairs, dirty, values, rows)

    def _unchanged(self, state: State, dirty: int) -> Results:
        self.stats.unchanged += 1
        self.ledger.unchanged += 1
        self.store.touch(state)
        self._last = UNCHANGED._replace(dirty=dirty) if dirty else UNCHANGED
        return state.outputs

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
        state = self._new_version(candidate, entry, saved, results)
        self._count_last()
        was_prepared = num_prepared == self._num_prepared()
        self.chooser.note_use(entry, candidate, elapsed_s if is_try and was_prepared else None)
        self._note_seconds(entry, candidate, saved, begun, is_new=is_try or not was_prepared)
        if guard is not None:
            instead = self._results_instead(candidate, entry, saved, results, guard)
            if instead is not None:
                candidate = "whole"
                self.stats.ran += self.num_eqns
                state = self._new_version(candidate, entry, saved, instead)
        self.store.commit(state, base if saved.dirty != self.facts.everything else None)
        if not self.must_wait and not self.always:
            self._note_repeat(candidate, entry, saved, state)
        return state.outputs

    # --- choose -----------------------------------------------------------------------------------

    def _chosen(self, saved: SavedValues) -> tuple[Entry, Candidate]:
        """What serves this call, with its record."""
        chooser = self.chooser
        slices = self.slices
        rows = saved.rows
        if rows is not None and self.whole.is_measured:
            found = self.rows.chosen(saved, rows)
            if found is not None:
                return found
        # A plan for just these rows serves no others: it waits until it is known that none does.
        is_open = rows is not None and slices.is_open(rows.kind)
        entry = chooser.entry(saved.dirty, may_wait=is_open)
        is_at_hand = self._is_at_hand(entry, saved)
        candidate = self.choose(entry, saved) if is_at_hand else self._meanwhile(entry, saved)
        saves = slices if slices.priming is not None else chooser
        is_primed = candidate == "whole" and saves.decide_priming()
        return entry, "priming" if is_primed else candidate

    def _is_at_hand(self, entry: Entry, saved: SavedValues) -> bool:
        """Whether no thread compiles what is to serve, or what computes the values that this
        lacks.
        """
        program = self._program(entry.candidate, entry) if self.clock.behind.is_on else None
        if program is None or program.plan is None:
            return True
        joint, groups = saved.to_fill(program.plan.loads)
        programs = [program, *map(self.segments.program, groups)]
        if joint is not None:
            programs.append(self.segments.joint(joint))
        return all([each.is_at_hand(saved.feeds) for each in programs])

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
        culprit = None if saved.base is None else saved.base.culprit
        to_blame = None if culprit is None else self.chooser.seen(culprit)
        groups = segments.missing_groups(missing, lambda var: saved.find(var) is None)
        pays = self.chooser.decide_fill(entry, missing, groups, to_blame)
        if not pays:
            return "whole"
        if not self.is_primed_for(entry, groups):
            return candidate
        segments.note_primed()
        return "priming"

    def is_primed_for(self, entry: Entry, groups: Sequence[Group]) -> bool:
        """Whether the whole function, which saves these groups, is to serve an entry that lacks them."""
        is_free = entry.is_final and self.slices.priming is None
        return is_free and self.segments.stand_in(groups) is not None

    def plan_of(self, candidate: Candidate, entry: Entry) -> Plan | None:
        """The plan that a candidate runs last; None for the whole program."""
        program = self._program(candidate, entry)
        return None if program is None else program.plan

    def _program(self, candidate: Candidate, entry: Entry) -> TimedProgram | None:
        """The program that a candidate runs last; None for the whole one."""
        if candidate == "whole":
            return None
        if candidate == "segments":
            return self.segments.top()
        if candidate == "priming":
            return self.slices.priming or self.segments.priming
        return entry.program

    # --- run --------------------------------------------------------------------------------------

    def run(
        self, candidate: Candidate, entry: Entry, saved: SavedValues
    ) -> tuple[Candidate, Results, Any]:
        """What ran, its results, and a boolean, if any, which must be true for them to be used.

        That is the whole program where a value that the candidate derives must not be used.
        """
        if candidate != "whole":
            try:
                program = self._program(candidate, entry)
                assert program is not None
                results = program(saved.feeds, self._loads(candidate, program, saved))
                has_guard = program.plan is not None and program.plan.guard is not None
                return candidate, results, results.pop() if has_guard else None
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

    def _loads(self, candidate: Candidate, program: TimedProgram, saved: SavedValues) -> Values:
        """What a program takes of saved values, computed where it is missing."""
        if candidate == "priming":
            saved.fill_tables(self.slices.tables, value_at(self.facts, saved.feeds))
            return ()
        if candidate == "slices":
            assert saved.base is not None
            return given_up(self.store, saved.base, program, saved.taken or ())
        if not self.chooser.is_exact:
            saved.fill(program.loads)
        return [saved.get(var) for var in program.loads]

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
        saved.plans.append(plan)  # it ran as well
        centred = statistics.centred if statistics is not None else ()
        saved.drop(centred)
        self.store.forget(centred)
        jax.block_until_ready(instead if self.must_wait else ())
        return instead

    # --- commit -----------------------------------------------------------------------------------

    def _new_version(
        self, candidate: Candidate, entry: Entry, saved: SavedValues, results: Results
    ) -> State:
        """The version that follows the baseline, after values may have been found or computed, with
        the record of the call.
        """
        self.store.expect(self.chooser.savable)
        plan = self.plan_of(candidate, entry)
        base = saved.base
        # Where nothing changed and the outputs were deleted, all of it runs.
        dirty = saved.dirty if base is None else saved.pairs[-1][1] | self.always
        known = {**saved.found, **saved.computed}
        state = self.store.successor(base, saved.dirty, saved.values, plan, results, known)
        is_forced = entry.candidate != candidate and base is not None
        if entry.leaves_stale(candidate) and not is_forced:
            state.culprit = entry.dirty
        evicted = self.store.take_evicted()
        self.stats.evicted += self.journal.evicted(evicted, self.store.budget_bytes)
        self._last = CallRecord(
            dirty,
            candidate,
            entry,
            plan,
            (*saved.computed, *saved.primed),
            tuple(saved.plans),
            is_first=base is None,
        )
        return state

    def _commit_repeated(self, repeated: Repeated, begun: Begun) -> Results:
        """The outputs of a call that did what one before it did, after it was stored and counted."""
        repeat, base, state = repeated[:3]
        self.store.commit(state, base)
        self._count(repeat.plan, repeat.num_loaded)
        self.stats.filled += repeat.num_filled
        self._last = repeat.record
        self.repeated = repeated
        self.chooser.note_repeated(repeat.entry, *self._passed(begun))
        return state.outputs

    def count_repeats(self, repeat: Repeat, num: int, overhead_s: float) -> None:
        """So many calls did what the one before did, the last of which made the latest version."""
        self.stats.calls += num
        self._count(repeat.plan, repeat.num_loaded, num)
        self._last = repeat.record
        program = repeat.program
        program.num_runs += num
        program.is_due |= program.num_runs % SAMPLE < num  # the run to be timed was one of these
        program_s = program.seconds or 0.0
        self.clock.spent_s += num * program_s
        self.clock.unproven += _jax.first_buffer(self.store.states[-1].outputs)
        self.chooser.note_repeated(repeat.entry, program_s, overhead_s, num)

    def _count_last(self) -> None:
        """The last call did what its record says."""
        assert self._last is not None
        self._count(self._last.plan, len(self._last.loads))

    def _count(self, plan: Plan | None, num_loaded: int, num: int = 1) -> None:
        """So many calls ran a plan last, None: the whole program, and loaded so many values each."""
        self.stats.ran += num * (self.num_eqns if plan is None else plan.num_eqns)
        self.stats.loaded += num * num_loaded

    def _passed(self, begun: Begun) -> tuple[float, float]:
        """Seconds since a call began: of programs, as long as they usually take, and beyond these."""
        clock = self.clock
        start_s, spent_s, passed_s = begun
        beyond_s = clock.now() - start_s - (clock.passed_s - passed_s)
        return clock.spent_s - spent_s, max(beyond_s, 0.0)

    def _note_seconds(
        self, entry: Entry, candidate: Candidate, saved: SavedValues, begun: Begun, *, is_new: bool
    ) -> None:
        """Enter what a call took, beside its programs as overhead, or as learning where something
        was compiled, planned or tried in it.
        """
        program_s, overhead_s = self._passed(begun)
        is_undecided = saved.rows is not None and self.slices.is_undecided(saved.rows.kind)
        self.chooser.note_call(
            entry,
            candidate,
            program_s,
            0.0 if is_new else overhead_s,
            is_new=is_new or is_undecided,
        )
        if saved.base is not None and is_new:
            learning_s = max(self.clock.now() - begun[0] - program_s, 0.0)
            self.chooser.note_learning(entry, learning_s)

    def _num_prepared(self) -> int:
        """How often something was compiled or planned so far."""
        return self.stats.compiles + self.planner.num_planned + self.slices.num_planned

    def _note_repeat(
        self, candidate: Candidate, entry: Entry, saved: SavedValues, state: State
    ) -> None:
        """The next calls of this kind may do what this one did."""
        assert self._last is not None
        repeat = self.repeats.note(self._last, self._program(candidate, entry), saved)
        if repeat is not None and repeat.moving:
            self.repeated = self.rows.begun(repeat, saved, state)

    # --- calls that are not looked at -------------------------------------------------------------

    def enter(self, first: FirstCall) -> None:
        """Do all that the first call would have done, but for running the program."""
        self.whole.note(first.program_s)
        self._note_compiled()
        full = self.layout.full
        entry = self.chooser.entry(full)
        saved = self.saved([], full, first.values)
        state = self._new_version("whole", entry, saved, first.outputs)
        self._count_last()
        self.chooser.note_use(entry, "whole", None)
        self.store.commit(state, None)

    def begin_look(self) -> None:
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
            self.streak.count()

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

    # --- what the last call was -------------------------------------------------------------------

    @property
    def last(self) -> CallRecord | None:
        """The last call."""
        if self.bypass is not None and self.bypass.was_held:
            return UNCHANGED
        last = BYPASSED if self.ledger.skipped else self._last
        if last is None or last.plan is None or last.plan.sliced is None:
            return last
        return last._replace(dirty=self.rows.dirty)  # calls of other rows share a record

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

    def clear(self) -> None:
        """Drop all saved values, and what functions on the host returned."""
        self.catch_up()  # calls of a streak are counted by its latest version
        self.clear_saved()
        self.calls.clear()
        self.clock.unproven = []

    def clear_saved(self) -> None:
        """Drop all saved values."""
        self.repeats.forget()
        self.repeated = self.streak = None  # they hold a version
        self.store.clear()

    def fresh_by_segments(self, leaves: Values) -> Results:
        """Outputs with the bits of a call under the exact policy; nothing saved is read or
        written.
        """
        if self.chooser.only_whole:
            return self.fresh(leaves)
        full = self.layout.full
        entry = Entry(full)

        def run(values: LeafValues) -> Results:
            filled = self.stats.filled
            try:
                candidate, results, _ = self.run("segments", entry, self.saved([], full, values))
            finally:
                self.stats.filled = filled  # counters are those of calls
            plan = self.plan_of(candidate, entry)
            return results if plan is None else plan.outputs_with(results, results)

        return self._apart(leaves, run)

    def fresh(self, leaves: Values) -> Results:
        """Outputs of the whole function; the store is neither read nor written."""
        return self._apart(
            leaves, lambda values: self.whole.executable([v.feed for v in values], ())
        )

    def _apart(self, leaves: Values, run: Callable[[LeafValues], Results]) -> Results:
        """Outputs at these leaves, for which all functions on the host run."""
        values = tuple([LeafValue(x) for x in leaves])
        self.check_alive(values)
        return self.calls.unremembered(lambda: run(values)) if self.must_wait else run(values)
