"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one assignment at the
end: an exception leaves the store as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from incrax import _jax
from incrax._errors import deleted_input, large_unchanged
from incrax._jax import Var
from incrax._tuning import Tuning
from incrax.facts.dependence import ALWAYS
from incrax.facts.program import Program
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan
from incrax.running.baselines import Baselines, Pairs
from incrax.running.choice import Candidate, Entry
from incrax.running.chooser import Chooser
from incrax.running.comparison import Comparison
from incrax.running.compiled import Compiler
from incrax.running.leaves import LeafValue, as_value
from incrax.running.limits import Limits
from incrax.running.record import RESTING, UNCHANGED, Record
from incrax.running.recycling import Pool
from incrax.running.saved import SavedValues, UnusableError
from incrax.running.stats import Stats
from incrax.running.store import State, Store, any_deleted

ADVICE_S = 1.0
ADVICE_SHARE = 0.2
"""Seconds that comparing an unchanged array has taken, and their share of all, from which on `frozen` is advised."""


class Engine:
    """Evaluates one traced program incrementally."""

    def __init__(
        self,
        facts: Facts,
        traced: Program,
        paths: Sequence[str],
        compiler: Compiler,
        tuning: Tuning,
        stats: Stats,
        limits: Limits,
        *,
        is_exact: bool,
    ) -> None:
        self.facts = facts
        self.paths = paths
        self.tuning = tuning
        self.stats = stats
        self.layout = facts.dependence.layout
        pool = Pool(is_active=compiler.recycles)
        self.chooser = Chooser(facts, traced, compiler, tuning, stats, limits.planned_bytes, pool, is_exact=is_exact)
        self.always = ALWAYS if facts.has_effects else 0
        self.must_wait, self.calls = facts.calls_host, compiler.calls
        self.out_vars = tuple((i, a) for i, a in enumerate(facts.program.outvars) if isinstance(a, Var))
        self.has_advised = False
        self._last: Record | None = None
        self._rested: Sequence[int] | None = None
        kept_out = frozenset(var for _, var in self.out_vars)
        self.store = Store(limits.versions, limits.budget_bytes, lambda: facts.value_seconds, pool, kept_out)
        self.comparison = Comparison(self.store, self.layout, settles=not compiler.on_host)
        self.baselines = Baselines(self.store, self.comparison, self.chooser, self.always)

    def fork(self, stats: Stats) -> Engine:
        """An independent engine that shares values and programs so far."""
        other = Engine.__new__(Engine)
        other.__dict__.update(self.__dict__)
        other.stats = stats
        other.store = self.store.fork()
        other.chooser = self.chooser.fork(stats, other.store.pool)
        other.comparison = Comparison(other.store, self.layout, settles=self.comparison.settles)
        other.baselines = Baselines(other.store, other.comparison, other.chooser, self.always)
        return other

    # --- one call ------------------------------------------------------------------------------------------------

    def call(self, leaves: Sequence[Any], changed: Sequence[int] | None) -> list[Any]:
        """Outputs at these leaves; `changed` lists the leaves that are not the latest state's objects, if known."""
        if self.comparison.unchanged_s and not self.has_advised:
            self._advise_frozen()
        watch, clock = self.chooser.watch, self.chooser.clock
        resting = changed if watch.rest and self.store.states else None
        if resting is not None and not watch.wants_look():
            return self._rest(leaves, resting)
        if clock.unproven and self.store.prove(clock.unproven):
            changed = resting = None
        start_s = clock.now()
        values = self.comparison.resolve(leaves, changed)
        self.check_alive(values)
        pairs = self.baselines.compare(values)
        base, dirty = pairs[-1] if pairs else (None, self.layout.full)
        dirty |= self.always
        if base is not None and not dirty:
            if not any_deleted(base.outputs):
                return self._unchanged(base)
            dirty = self.layout.full
        if resting is not None:
            watch.look(dirty.bit_count())
            if watch.rest:
                return self._rest(leaves, resting)
        try:
            return self._evaluate(values, pairs, base, dirty, start_s)
        except Exception:
            self.store.drop_broken()
            raise

    def _unchanged(self, state: State) -> list[Any]:
        self.stats.unchanged += 1
        self.store.touch(state)
        self._last, self._rested = UNCHANGED, None
        return state.outputs

    def _rest(self, leaves: Sequence[Any], changed: Sequence[int]) -> list[Any]:
        """The whole program, while nothing is saved: leaves are compared up to the first difference."""
        latest = self.store.states[-1]
        entries = self.comparison.entries(leaves, changed, latest)
        if entries is None and not self.always:
            self.check_alive(latest.values)
            if not any_deleted(latest.outputs) and not self.store.prove(self.chooser.clock.unproven):
                return self._unchanged(latest)
        if entries is None:
            entries = latest.entries
        try:
            outputs = self.chooser.whole([e.feed if type(e) is LeafValue else e for e in entries], ())
            if self.must_wait:
                jax.block_until_ready(outputs)
        except Exception:
            self.check_alive(map(as_value, entries))
            self.store.drop_broken()
            raise
        state = State(entries, outputs, {}, None)
        self.store.replace(state)
        del self.chooser.clock.unproven[:-2]
        self.stats.ran += len(self.facts.program.eqns)
        self._rested = changed
        return outputs

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
        if any_deleted(state.outputs):
            return self.call([value.feed for value in state.values], None)
        self.store.touch(state)
        self._last, self._rested = UNCHANGED, None
        return state.outputs

    def clear(self) -> None:
        """Drop all saved values, and what functions on the host returned."""
        self._last, self._rested = self.last, None
        self.calls.clear()
        self.chooser.clock.unproven = []
        self.store.clear()

    def _advise_frozen(self) -> None:
        """Say once that large data which stay the same take long to compare."""
        index, seconds = max(self.comparison.unchanged_s.items(), key=lambda item: item[1])
        if seconds > ADVICE_S and seconds > ADVICE_SHARE * (seconds + self.chooser.clock.spent_s):
            self.has_advised = True
            nbytes = _jax.aval_bytes(self.facts.program.invars[index].aval)
            warnings.warn(large_unchanged(self.paths[index], nbytes, seconds), UserWarning, stacklevel=4)

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
        candidate = self.choose(entry, saved)
        is_try = candidate != "whole" and not entry.is_final
        run_s = clock.now()
        candidate, results, guard = self.run(candidate, entry, saved)
        if self.must_wait or is_try:
            jax.block_until_ready(results)
        elapsed_s = clock.now() - run_s
        state = self._new_state(values, base, dirty, candidate, entry, saved, results)
        self._account(candidate, entry, saved, is_first=base is None)
        was_prepared = num_prepared == self.stats.compiles + chooser.num_planned
        chooser.note_use(entry, candidate, elapsed_s if is_try and was_prepared else None)
        overhead_s = 0.0
        if was_prepared and not is_try:
            overhead_s = max(clock.now() - start_s - (clock.passed_s - passed_s), 0.0)
        chooser.note_call(entry, candidate, clock.spent_s - spent_s + overhead_s)
        if guard is not None and not guard:
            chooser.note_unusable(entry)
            results = self._run_whole(saved)
            if self.must_wait:
                jax.block_until_ready(results)
            state = self._new_state(values, base, dirty, "whole", entry, saved, results)
            self._account("whole", entry, saved, is_first=base is None)
        self.store.commit(state, base if dirty != self.layout.full | self.always else None)
        return state.outputs

    # --- choosing ------------------------------------------------------------------------------------------------

    def choose(self, entry: Entry, saved: SavedValues) -> Candidate:
        """What serves this call: the entry's candidate, or the whole program where it lacks too much."""
        candidate = entry.candidate
        if candidate == "whole":
            return "whole"
        if candidate == "plan":
            plan = self.plan_of(candidate, entry)
            if plan is None or not saved.has_outputs(plan):
                return "whole"
            missing = saved.missing(plan.loads)
        else:
            missing = saved.missing(self.chooser.segments.route(entry.dirty).clean)
        if not missing or not self.chooser.is_timed:
            return candidate
        culprit = saved.base.culprit if saved.base is not None else None
        culprit_entry = None if culprit is None else self.chooser.seen(culprit)
        return candidate if self.chooser.pays_to_fill(entry, missing, culprit_entry) else "whole"

    # --- running -------------------------------------------------------------------------------------------------

    def run(self, candidate: Candidate, entry: Entry, saved: SavedValues) -> tuple[Candidate, list[Any], Any]:
        """The results of a candidate's program, and a boolean, if any, which must be true for them to be used.

        The whole program's where values derived for another candidate must not be used.
        """
        if candidate != "whole":
            try:
                return candidate, *self._run_from_saved(candidate, entry, saved)
            except UnusableError:
                self.chooser.bar(entry)
        return "whole", self._run_whole(saved), None

    def _run_whole(self, saved: SavedValues) -> list[Any]:
        if not self.chooser.whole.num_runs:
            self.stats.compiles += 1
        return self.chooser.whole(saved.feeds, ())

    def _run_from_saved(self, candidate: Candidate, entry: Entry, saved: SavedValues) -> tuple[list[Any], Any]:
        program = self.chooser.segments.top() if candidate == "segments" else entry.program
        assert program is not None
        loads = program.executable.loads
        if self.facts.is_minimal and not self.chooser.is_exact:
            saved.fill_exactly(saved.missing(loads))
        results = program(saved.feeds, [saved.get(var) for var in loads])
        has_guard = program.plan is not None and program.plan.guard is not None
        guard = results.pop() if has_guard else None
        return results, guard

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
        savable = self.chooser.savable
        self.store.expect(savable)
        added = {**saved.found, **saved.computed}
        outputs = results
        plan = self.plan_of(candidate, entry)
        if candidate == "plan" and plan is not None:
            outputs = [None] * len(self.facts.program.outvars) if base is None else list(base.outputs)
            for position, value in zip(plan.outputs, results, strict=False):
                outputs[position] = value
            added.update(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        if not self.chooser.is_exact:
            saveable = self.facts.saveable
            added.update([(var, outputs[i]) for i, var in self.out_vars if var in savable and var in saveable])
        kept = self._kept(base, dirty, added)
        state = State(values, outputs, kept, self._culprit(candidate, base, entry), are_values=True)
        if base is not None and state.saved is base.saved:
            state.harmless = dirty
        return state

    def _kept(self, base: State | None, dirty: int, added: dict[Var, Any]) -> dict[Var, Any]:
        """The saved values of a new state; the very table of its baseline where nothing changes in it."""
        if base is None:
            return added
        mask = self.facts.mask
        if base.harmless != dirty and not any([mask(var) & dirty for var in base.saved]):
            base.harmless = dirty
        if base.harmless != dirty:
            return {**{var: x for var, x in base.saved.items() if not mask(var) & dirty}, **added}
        if all([base.saved.get(var) is x for var, x in added.items()]):
            return base.saved
        return {**base.saved, **added}

    @staticmethod
    def _culprit(candidate: Candidate, base: State | None, entry: Entry) -> int | None:
        """The dirty set to blame for stale values: this one if it chose to leave them so, else its baseline's."""
        is_forced = entry.candidate != candidate and base is not None
        if entry.leaves_stale(candidate) and not is_forced:
            return entry.dirty
        return base.culprit if base is not None else None

    def _account(self, candidate: Candidate, entry: Entry, saved: SavedValues, *, is_first: bool) -> None:
        stats = self.stats
        plan = self.plan_of(candidate, entry)
        num_ran = len(self.facts.program.eqns) if plan is None else len(plan.eqns)
        stats.ran += num_ran
        stats.loaded += 0 if plan is None else len(plan.loads)
        stats.evicted += self.store.evicted
        self.store.evicted = 0
        loads = plan.loads if plan is not None else ()
        self._rested = None
        self._last = Record(
            entry.dirty, candidate, entry, plan, loads, tuple(saved.computed), tuple(saved.plans), is_first
        )

    def plan_of(self, candidate: Candidate, entry: Entry) -> Plan | None:
        """The plan that a candidate runs last; None for the whole program."""
        if candidate == "segments":
            return self.chooser.segments.top_plan()
        return entry.program.plan if candidate == "plan" and entry.program is not None else None

    # --- without a result ----------------------------------------------------------------------------------------

    def fresh(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs of the whole function; the store is neither read nor written."""
        values = tuple([LeafValue(x) for x in leaves])
        self.check_alive(values)
        run = lambda: self.chooser.whole.executable([value.feed for value in values], ())
        return self.calls.anew(run) if self.must_wait else run()
