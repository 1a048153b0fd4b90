"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one assignment at the
end: an exception leaves the store as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import jax

from incrax import _jax
from incrax._jax import Var
from incrax._messages import deleted_input
from incrax._program import Program
from incrax._stats import Stats
from incrax._tuning import Tuning
from incrax.engine.call.advice import advise_frozen
from incrax.engine.call.call_record import NO_MEMORY, RESTING, UNCHANGED, Record
from incrax.engine.call.fallback import results_instead
from incrax.engine.call.history import History
from incrax.engine.call.repeat import Repeat, repeat_of
from incrax.engine.call.serving import Serving
from incrax.engine.compile.executables import Compiler
from incrax.engine.compile.recycling import Pool
from incrax.engine.inputs.leaves import LeafValue, as_value
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.log import Journal
from incrax.engine.program.dependence import ALWAYS
from incrax.engine.store.baselines import Baselines, Pairs
from incrax.engine.store.budget import Limits
from incrax.engine.store.changes import Comparison
from incrax.engine.store.eviction import cheapest_first, results_without_saved
from incrax.engine.store.saved_values import SavedValues
from incrax.engine.store.store import State, Store, is_any_deleted
from incrax.engine.store.succession import culprit, results_of, saveable_outputs, successor


class Engine:
    """Evaluates one traced program incrementally."""

    def __init__(
        self,
        facts: Facts,
        traced: Program,
        journal: Journal,
        compiler: Compiler,
        tuning: Tuning,
        stats: Stats,
        limits: Limits,
        *,
        is_exact: bool,
    ) -> None:
        self.facts, self.paths, self.tuning, self.stats = facts, journal.paths, tuning, stats
        self.history = History(tuning.history)
        self.layout = facts.dependence.layout
        planned, pool = limits.planned_bytes, Pool(is_active=compiler.recycles)
        self.chooser = Chooser(facts, traced, compiler, tuning, stats, planned, pool, journal, is_exact=is_exact)
        self.always = ALWAYS if facts.has_effects else 0
        self.must_wait, self.calls = facts.calls_host, compiler.calls
        self.out_vars = tuple((i, a) for i, a in enumerate(facts.program.outvars) if isinstance(a, Var))
        self.reach, self.has_advised = reduce(or_, (facts.mask(var) for _, var in self.out_vars), self.always), False
        self._last: Record | None = None
        self.repeat: Repeat | None = None
        self._rested: Sequence[int] | None = None
        outputs = frozenset(var for _, var in self.out_vars)
        self.store = Store(limits.versions, limits.budget_bytes, self._eviction_order, pool, outputs)
        self.comparison = Comparison(self.store, self.layout, settles=not compiler.on_host)
        self._attached()

    def fork(self, stats: Stats, kin: Engine | None = None) -> Engine:
        """An independent engine that shares values and programs so far; a sibling of `kin`, if any."""
        other = self._copy(stats)
        other.store = self.store.fork(other._eviction_order)
        other.store.pool = other.store.pool if kin is None else kin.store.pool
        other.chooser = self.chooser.fork(stats, other.store.pool) if kin is None else kin.chooser
        return other._attached()

    def sibling(self, budget_bytes: int) -> Engine:
        """An engine for other data of the same types: programs and what is known of their times are shared."""
        other, own = self._copy(self.stats), self.store
        other.store = Store(own.versions, budget_bytes, other._eviction_order, own.pool, own.outputs)
        other._last = other._rested = None
        return other._attached()

    def _copy(self, stats: Stats) -> Engine:
        other = Engine.__new__(Engine)
        other.__dict__.update({**self.__dict__, "stats": stats, "repeat": None})
        other.history = History(self.tuning.history)
        return other

    def _attached(self) -> Engine:
        self.comparison = Comparison(self.store, self.layout, settles=self.comparison.settles)
        self.baselines = Baselines(self.store, self.comparison, self.chooser, self.always)
        self.serving = Serving(self.chooser, self.facts, self.stats)
        return self

    def _eviction_order(self, state: State) -> list[Var]:
        return cheapest_first(self.facts, self.chooser.segments, state.values, state.saved)

    def call(self, leaves: Sequence[Any], changed: Sequence[int] | None, begin_s: float | None = None) -> list[Any]:
        """Outputs at these leaves; `changed`: those that are other objects than before, if known (since `begin_s`)."""
        if self.comparison.unchanged_s and not self.has_advised:
            self.has_advised = advise_frozen(self.comparison.unchanged_s, self.chooser.clock, self.paths, self.facts)
        watch, clock = self.chooser.watch, self.chooser.clock
        resting = changed if watch.rest and self.store.states else None
        if resting is not None and not watch.wants_look():
            return self._rest(leaves, resting)
        if clock.unproven and self.store.prove(clock.unproven):
            changed = resting = None
        values = self.comparison.resolve(leaves, changed)
        start_s = clock.began(begin_s) + self.comparison.waited_s(values, changed, clock.now)
        self.check_alive(values)
        try:
            if self.repeat is not None and resting is None:
                again = self._again(self.repeat, values, start_s)
                if again is not None:
                    return again
            return self._compared(values, resting, start_s, leaves)
        except Exception as error:
            self.repeat = None
            self.store.drop_broken()
            if not _jax.is_out_of_memory(error):
                raise
            return self._without_saved(values, error)

    def _again(self, repeat: Repeat, values: tuple[LeafValue, ...], start_s: float) -> list[Any] | None:
        """Outputs the short way: what the last call did, with other values of the same inputs."""
        clock = self.chooser.clock
        spent_s, passed_s = clock.spent_s, clock.passed_s
        state = repeat.next_state(values, self.store, self.comparison)
        if state is None:
            return None
        self.store.commit(state, repeat.base)
        self.stats.ran += len(repeat.plan.eqns)
        self.stats.loaded += len(repeat.plan.loads)
        self._last, self._rested = repeat.record, None
        repeat.account(clock.spent_s - spent_s + max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0))
        return state.outputs

    def _compared(
        self, values: tuple[LeafValue, ...], resting: Sequence[int] | None, start_s: float, leaves: Sequence[Any]
    ) -> list[Any]:
        """Outputs from the version that is best to start from."""
        watch, pairs = self.chooser.watch, self.baselines.compare(values)
        base, dirty = pairs[-1] if pairs else (None, self.layout.full)
        dirty |= self.always
        if base is not None and not dirty & self.reach:
            if not is_any_deleted(base.outputs):
                return self._unchanged(base, dirty)
            dirty = self.layout.full
        if resting is not None:
            watch.look(dirty.bit_count())
            if watch.rest:
                return self._rest(leaves, resting)
        return self._evaluate(values, pairs, base, dirty, start_s)

    def _without_saved(self, values: tuple[LeafValue, ...], error: Exception) -> list[Any]:
        """The device has no memory left: try the whole program once more after all saved values were dropped."""
        self._last, self._rested = NO_MEMORY, None
        self.stats.evicted += len(self.store.sizes())
        run = None if self.always else lambda: self.chooser.whole([value.feed for value in values], ())
        outputs = results_without_saved(self.store, run, error)
        self.store.commit(State(values, outputs, {}, None, are_values=True), None)
        self.stats.ran += len(self.facts.program.eqns)
        return outputs

    def _unchanged(self, state: State, dirty: int = 0) -> list[Any]:
        self.stats.unchanged += 1
        self.chooser.watch.unchanged += 1
        self.store.touch(state)
        self._last, self._rested = UNCHANGED._replace(dirty=dirty) if dirty else UNCHANGED, None
        return state.outputs

    def _rest(self, leaves: Sequence[Any], changed: Sequence[int]) -> list[Any]:
        """The whole program, while nothing is saved: leaves are compared up to the first difference."""
        latest, self.repeat = self.store.states[-1], None
        entries = self.comparison.entries(leaves, changed, latest)
        if entries is None and not self.always:
            self.check_alive(latest.values)
            if not is_any_deleted(latest.outputs) and not self.store.prove(self.chooser.clock.unproven):
                return self._unchanged(latest)
        entries = latest.entries if entries is None else entries
        try:
            outputs = self.chooser.whole([e.feed if type(e) is LeafValue else e for e in entries], ())
            if self.must_wait:
                jax.block_until_ready(outputs)
        except Exception as error:
            self.check_alive(map(as_value, entries))
            self.store.drop_broken()
            if not _jax.is_out_of_memory(error):
                raise
            return self._without_saved(tuple(map(as_value, entries)), error)
        state = State(entries, outputs, {}, None)
        self.store.replace(state)
        del self.chooser.clock.unproven[:-2]
        self.stats.ran += len(self.facts.program.eqns)
        self._rested = changed
        return outputs

    @property
    def rests(self) -> bool:
        """Whether the whole program serves all calls for now."""
        return self.chooser.watch.rest > 0

    def without_saving(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs of the whole program at values that stay as they are; nothing is compared, counted or kept."""
        if self.store.states:
            self.clear_saved()
        try:
            outputs = self.chooser.whole(leaves, ())
            if self.must_wait:
                jax.block_until_ready(outputs)
        except Exception as error:
            if not _jax.is_out_of_memory(error):
                raise
            return self.call(leaves, None)
        self.stats.ran += len(self.facts.program.eqns)
        return outputs

    def note(self, start_s: float) -> None:
        """Enter the call that ended now in the history."""
        self.history.note(start_s, self._last, self._rested, self.store)

    @property
    def last(self) -> Record | None:
        """The last call; what changed in one that was not compared in full is found out now."""
        if self._rested is not None:
            dirty = self.comparison.dirty_after_rest(self._rested) | self.always
            self._last, self._rested = RESTING._replace(dirty=dirty), None
        return self._last

    def checkpoint(self) -> None:
        """Keep the latest version until the next checkpoint."""
        self.store.pin(self.store.states[-1])

    def rollback(self) -> list[Any]:
        """The outputs at the checkpoint, whose version is the latest again."""
        state = self.store.pinned
        assert state is not None
        if is_any_deleted(state.outputs):
            return self.call([value.feed for value in state.values], None)
        self.store.touch(state)
        self._last, self._rested = UNCHANGED, None
        return state.outputs

    def clear(self) -> None:
        """Drop all saved values, and what functions on the host returned."""
        self.clear_saved()
        self.calls.clear()
        self.chooser.clock.unproven = []

    def clear_saved(self) -> None:
        """Drop all saved values."""
        self._last, self._rested, self.repeat = self.last, None, None
        self.store.clear()

    def check_alive(self, values: Iterable[LeafValue]) -> None:
        """Raise DeletedInputError for the first array that was donated or deleted."""
        for index in [i for i, v in enumerate(values) if v.array is not None and v.is_deleted()]:
            raise deleted_input(self.paths[index])

    def _evaluate(
        self, values: tuple[LeafValue, ...], pairs: Pairs, base: State | None, dirty: int, start_s: float
    ) -> list[Any]:
        clock, chooser = self.chooser.clock, self.chooser
        spent_s, passed_s, num_prepared = clock.spent_s, clock.passed_s, self.stats.compiles + chooser.num_planned
        entry = self.chooser.entry(dirty)
        saved = SavedValues(self, pairs, base, dirty, [value.feed for value in values])
        candidate = self.serving.choose(entry, saved)
        is_try = candidate != "whole" and not entry.is_final
        run_s = clock.now()
        candidate, results, guard = self.serving.run(candidate, entry, saved)
        if self.must_wait or is_try:
            clock.wait(results)
        elapsed_s = clock.now() - run_s
        state = self._new_state(values, base, dirty, candidate, entry, saved, results)
        self._account(candidate, entry, saved, is_first=base is None)
        was_prepared = num_prepared == self.stats.compiles + chooser.num_planned
        chooser.note_use(entry, candidate, elapsed_s if is_try and was_prepared else None)
        overhead_s = 0.0
        if was_prepared and not is_try:
            overhead_s = max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0)
        chooser.note_call(entry, candidate, clock.spent_s - spent_s + overhead_s)
        if guard is not None:
            state = self._doubted(state, candidate, entry, saved, results, guard)
        self.store.commit(state, base if dirty != self.layout.full | self.always else None)
        record = None if self.must_wait or self.always else self._last
        self.repeat = None if record is None else repeat_of(chooser, record, base, state)
        return state.outputs

    def _doubted(
        self, state: State, candidate: Candidate, entry: Entry, saved: SavedValues, results: list[Any], guard: Any
    ) -> State:
        """The state, or one with the results of the whole program where those of a plan must not be used."""
        plan = self.serving.plan_of(candidate, entry)
        assert plan is not None
        instead = results_instead(plan, guard, results, entry, self.chooser, lambda: self.serving.run_whole(saved))
        if instead is None:
            return state
        centred = plan.statistics.centred if plan.statistics is not None else ()
        saved.drop(centred)
        self.store.forget(centred)
        jax.block_until_ready(instead if self.must_wait else ())
        self._account("whole", entry, saved, is_first=saved.base is None)
        return self._new_state(state.values, saved.base, entry.dirty, "whole", entry, saved, instead)

    def _new_state(
        self,
        values: tuple[LeafValue, ...],
        base: State | None,
        dirty: int,
        candidate: Candidate,
        entry: Entry,
        saved: SavedValues,
        results: list[Any],
    ) -> State:
        self.store.expect(self.chooser.savable)
        added = {**saved.found, **saved.computed}
        plan = self.serving.plan_of(candidate, entry) if candidate == "plan" else None
        outputs, computed = results_of(plan, base, results, len(self.facts.program.outvars))
        added.update(computed)
        if not self.chooser.is_exact:
            added.update(saveable_outputs(self.out_vars, outputs, self.chooser.savable, self.facts.saveable))
        return successor(base, dirty, added, values, outputs, culprit(candidate, base, entry), self.facts.mask)

    def _account(self, candidate: Candidate, entry: Entry, saved: SavedValues, *, is_first: bool) -> None:
        stats = self.stats
        plan = self.serving.plan_of(candidate, entry)
        num_ran = len(self.facts.program.eqns) if plan is None else len(plan.eqns)
        stats.ran += num_ran
        stats.loaded += 0 if plan is None else len(plan.loads)
        stats.evicted += self.chooser.journal.evicted(self.store.take_evicted(), self.store.budget_bytes)
        loads = plan.loads if plan is not None else ()
        self._rested = None
        self._last = Record(
            entry.dirty, candidate, entry, plan, loads, tuple(saved.computed), tuple(saved.plans), is_first
        )

    def fresh(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs of the whole function; the store is neither read nor written."""
        self.check_alive(values := tuple([LeafValue(x) for x in leaves]))
        run = lambda: self.chooser.whole.executable([value.feed for value in values], ())
        return self.calls.anew(run) if self.must_wait else run()
