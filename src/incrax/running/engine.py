"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one assignment at the
end: an exception leaves the store as it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from incrax._errors import deleted_input
from incrax._jax import Var
from incrax._tuning import Tuning
from incrax.facts.dependence import ALWAYS
from incrax.facts.program import Program
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan
from incrax.running.choice import Candidate, Entry
from incrax.running.chooser import Chooser
from incrax.running.comparison import Comparison
from incrax.running.compiled import compile_whole
from incrax.running.leaves import LeafValue
from incrax.running.saved import SavedValues
from incrax.running.stats import Stats
from incrax.running.store import State, Store, available_in

Pairs = list[tuple[State, int]]


class Limits(NamedTuple):
    """What the store may keep: versions, and bytes of saved values."""

    versions: int
    budget_bytes: int


class Record(NamedTuple):
    """The last call, for `explain`."""

    dirty: int
    candidate: str
    entry: Entry | None
    plan: Plan | None
    loads: tuple[Var, ...]
    filled: tuple[Var, ...]
    is_first: bool


_UNCHANGED = Record(0, "saved outputs", None, None, (), (), is_first=False)


class Engine:
    """Evaluates one traced program incrementally."""

    def __init__(
        self, facts: Facts, traced: Program, paths: Sequence[str], tuning: Tuning, stats: Stats, limits: Limits
    ) -> None:
        self.facts = facts
        self.paths = paths
        self.tuning = tuning
        self.stats = stats
        self.layout = facts.dependence.layout
        self.chooser = Chooser(facts, tuning, stats, limits.budget_bytes)
        self.whole = compile_whole(traced, len(facts.program.eqns))
        self.always = ALWAYS if facts.has_effects else 0
        self.must_wait = any("callback" in eqn.primitive.name for eqn in facts.program.eqns)
        self.out_vars = tuple((i, a) for i, a in enumerate(facts.program.outvars) if isinstance(a, Var))
        self.is_whole_warm = False
        self.num_whole_runs = 0
        self.num_whole_timed = 0 if tuning.race and not facts.is_minimal else tuning.race_rounds
        self.last: Record | None = None
        seconds = {var: facts.seconds(eqn) for eqn in facts.program.eqns for var in eqn.outvars}
        self.store = Store(limits.versions, limits.budget_bytes, seconds)
        self.store.expect(self.chooser.savable)
        self.comparison = Comparison(self.store, self.layout, skips=not facts.is_minimal)

    def fork(self, stats: Stats) -> Engine:
        """An independent engine that shares values and programs so far."""
        other = Engine.__new__(Engine)
        other.__dict__.update(self.__dict__)
        other.stats = stats
        other.chooser = self.chooser.fork(stats)
        store = self.store
        other.store = Store(store.versions, store.budget_bytes, store.seconds)
        other.store.bound_bytes = store.bound_bytes
        other.store.states = [state.copy() for state in store.states]
        other.comparison = Comparison(other.store, self.layout, skips=not self.facts.is_minimal)
        return other

    # --- one call ------------------------------------------------------------------------------------------------

    def call(self, leaves: Sequence[Any], changed: Sequence[int] | None) -> list[Any]:
        """Outputs at these leaves; `changed` lists the leaves that are not the latest state's objects, if known."""
        values = self.comparison.resolve(leaves, changed)
        self._check_alive(values)
        pairs = self._compare(values)
        base, dirty = pairs[-1] if pairs else (None, self.layout.full)
        dirty |= self.always
        if base is not None and not dirty:
            if not _any_deleted(base.outputs):
                self.stats.unchanged += 1
                self.store.touch(base)
                self.last = _UNCHANGED
                return base.outputs
            dirty = self.layout.full
        try:
            return self._evaluate(values, pairs, base, dirty)
        except Exception:
            self.store.drop_broken()
            raise

    def _check_alive(self, values: tuple[LeafValue, ...]) -> None:
        for index in [i for i, v in enumerate(values) if v.array is not None and v.array.is_deleted()]:
            raise deleted_input(self.paths[index])

    def _compare(self, values: tuple[LeafValue, ...]) -> Pairs:
        """Each state with its dirty set, the best baseline last."""
        states = self.store.states
        if states and values is states[-1].values:
            return [(states[-1], 0)]
        pairs = [(state, self.comparison.dirty(values, state)) for state in states]
        if len(pairs) > 1:
            pairs.sort(key=self._rank, reverse=True)
            self._prefer_fewer_changes(pairs)
        return pairs

    def _prefer_fewer_changes(self, pairs: Pairs) -> None:
        """Move a baseline to the end whose dirty set is part of the best one's and that has no record to rank it by."""
        for number, (_, dirty) in enumerate(pairs[:-1]):
            best = pairs[-1][1]
            entry = self.chooser.seen(dirty | self.always)
            if dirty != best and not dirty & ~best and (entry is None or not entry.is_planned):
                pairs.append(pairs.pop(number))
                return

    def _rank(self, pair: tuple[State, int]) -> tuple[float, int, int]:
        """Expected seconds, then the number of changed inputs, then how seldom the state was a baseline before."""
        state, dirty = pair
        if not dirty:
            return (-1.0, 0, 0)
        entry = self.chooser.seen(dirty | self.always)
        expected_s = whole_s = self.chooser.whole_s
        if entry is not None and entry.candidates != ("whole",):
            loads = self.chooser.segments.wanted if entry.plan is None else entry.plan.loads
            if all([var in state.saved for var in loads if not self.facts.mask(var) & dirty]):
                expected_s = min(entry.seconds(entry.candidates[-1], 0.5 * whole_s), whole_s)
        return (expected_s, dirty.bit_count(), -state.uses)

    def _evaluate(self, values: tuple[LeafValue, ...], pairs: Pairs, base: State | None, dirty: int) -> list[Any]:
        entry = self.chooser.entry(dirty)
        saved = SavedValues(self, pairs, base, dirty, [value.feed for value in values])
        candidate = self._candidate(entry, saved)
        is_timed = entry.is_racing or (candidate == "whole" and not self._knows_whole())
        start = time.perf_counter()
        results = self._run(candidate, entry, saved)
        if self.must_wait or is_timed:
            jax.block_until_ready(results)
        if is_timed:
            self._note_time(candidate, entry, time.perf_counter() - start)
        entry.warm.add(candidate)
        state = self._new_state(values, base, dirty, candidate, entry, saved, results)
        self.store.expect(self.chooser.savable)
        self.store.commit(state, base if dirty != self.layout.full | self.always else None)
        self._account(candidate, entry, saved, is_first=base is None)
        return state.outputs

    def _knows_whole(self) -> bool:
        return self.num_whole_timed >= self.tuning.race_rounds

    def _note_time(self, candidate: Candidate, entry: Entry, seconds: float) -> None:
        """Record a timed use; first uses compile and are left out."""
        if candidate == "whole":
            if not self.is_whole_warm:
                self.is_whole_warm = True
                self.chooser.compile_s = max(seconds / 2, 0.05)
                return
            is_first = self.num_whole_timed == 0
            self.num_whole_timed += 1
            self.chooser.whole_s = seconds if is_first else min(self.chooser.whole_s, seconds)
        elif candidate not in entry.warm:
            return
        if entry.is_racing:
            self.chooser.record(entry, candidate, seconds)

    # --- choosing ------------------------------------------------------------------------------------------------

    def _candidate(self, entry: Entry, saved: SavedValues) -> Candidate:
        """What serves this call: the entry's next candidate, or the whole program where it lacks too much."""
        candidate = entry.next_candidate()
        if candidate == "whole":
            return "whole"
        if candidate == "plan":
            plan = entry.plan
            if plan is None or entry.executable is None or not saved.has_outputs(plan):
                return "whole"
            missing = saved.missing(plan.loads)
        else:
            missing = saved.missing(self.chooser.segments.wanted, clean_only=True)
        if not missing or self.facts.is_minimal:
            return candidate
        culprit = saved.base.culprit if saved.base is not None else None
        culprit_entry = None if culprit is None else self.chooser.seen(culprit)
        return candidate if self.chooser.pays_to_fill(entry, candidate, missing, culprit_entry) else "whole"

    # --- running -------------------------------------------------------------------------------------------------

    def _run(self, candidate: Candidate, entry: Entry, saved: SavedValues) -> list[Any]:
        if candidate == "whole":
            if not self.num_whole_runs:
                self.stats.compiles += 1
            self.num_whole_runs += 1
            return self.whole(saved.feeds, ())
        if candidate == "segments":
            plan, executable = self.chooser.segments.top()
            return executable(saved.feeds, [saved.get(var) for var in plan.loads])
        assert entry.plan is not None
        assert entry.executable is not None
        if self.facts.is_minimal:
            saved.fill_exactly(saved.missing(entry.plan.loads))
        return entry.executable(saved.feeds, [saved.get(var) for var in entry.plan.loads])

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
        mask, savable = self.facts.mask, self.chooser.savable
        kept = {} if base is None else {var: x for var, x in base.saved.items() if not mask(var) & dirty}
        kept.update(saved.computed)
        outputs = results
        if candidate == "plan" and entry.plan is not None:
            plan = entry.plan
            outputs = [None] * len(self.facts.program.outvars) if base is None else list(base.outputs)
            for position, value in zip(plan.outputs, results, strict=False):
                outputs[position] = value
            kept.update(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        kept.update((var, outputs[i]) for i, var in self.out_vars if var in savable and var in self.facts.saveable)
        return State(values, outputs, kept, self._culprit(candidate, base, entry))

    @staticmethod
    def _culprit(candidate: Candidate, base: State | None, entry: Entry) -> int | None:
        """The dirty set to blame for stale values: this one if it chose the whole program, else its baseline's."""
        is_forced = entry.candidates[0] != "whole" and base is not None
        return entry.dirty if candidate == "whole" and not is_forced else base.culprit if base is not None else None

    def _account(self, candidate: Candidate, entry: Entry, saved: SavedValues, *, is_first: bool) -> None:
        stats = self.stats
        self.chooser.note_use(entry, candidate)
        plan = self._plan_of(candidate, entry)
        num_ran = len(self.facts.program.eqns) if plan is None else len(plan.eqns)
        stats.ran += num_ran
        stats.loaded += 0 if plan is None else len(plan.loads)
        stats.evicted += self.store.evicted
        self.store.evicted = 0
        loads = plan.loads if plan is not None else ()
        self.last = Record(entry.dirty, candidate, entry, plan, loads, tuple(saved.computed), is_first)

    def _plan_of(self, candidate: Candidate, entry: Entry) -> Plan | None:
        if candidate == "segments":
            return self.chooser.segments.top()[0]
        return entry.plan if candidate == "plan" else None

    # --- without a result ----------------------------------------------------------------------------------------

    def fresh(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs of the whole function; the store is neither read nor written."""
        return self.whole([LeafValue(x).feed for x in leaves], ())

    def dry_run(self, leaves: Sequence[Any]) -> Record | None:
        """What a call would do, without running anything or touching the store; None before the first call."""
        pairs = self._compare(self.comparison.resolve(leaves, self.comparison.changed_leaves(leaves)))
        if not pairs:
            return None
        base, dirty = pairs[-1]
        dirty |= self.always
        if not dirty:
            return _UNCHANGED
        entry = self.chooser.seen(dirty)
        candidate: Candidate = "whole" if entry is None else entry.next_candidate()
        plan = None if entry is None else self._plan_of(candidate, entry)
        if plan is None:
            return Record(dirty, "whole", entry, None, (), (), is_first=False)
        missing = tuple(v for v in plan.loads if available_in(pairs, v, self.facts.mask(v)) is None)
        return Record(dirty, candidate, entry, plan, plan.loads, missing, is_first=False)

    def prepare(self, leaves: Sequence[Any], dirty: int) -> None:
        """Plan, compile and compute saved values for a dirty set, with the state at these leaves as baseline."""
        dirty |= self.always
        values = self.comparison.resolve(leaves, self.comparison.changed_leaves(leaves))
        pairs = self._compare(values)
        entry = self.chooser.entry(dirty)
        if not entry.is_planned:
            entry.count = max(entry.count, self.tuning.hot_after)
            self.chooser.make_plan(entry)
        base = pairs[-1][0] if pairs else None
        saved = SavedValues(self, [(state, dirty) for state, _ in pairs[-1:]], base, dirty, [v.feed for v in values])
        for candidate in entry.candidates:
            if candidate != "plan" or (entry.plan is not None and saved.has_outputs(entry.plan)):
                jax.block_until_ready(self._run(candidate, entry, saved))
                entry.warm.add(candidate)
        self.is_whole_warm = self.num_whole_runs > 0


def _any_deleted(outputs: list[Any]) -> bool:
    return any([isinstance(x, jax.Array) and x.is_deleted() for x in outputs])
