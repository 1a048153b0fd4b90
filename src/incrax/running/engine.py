"""Stage 11, run: compare the leaves, choose a program, load, execute, commit.

One `Engine` serves one traced signature. Each call reads the store, computes, and commits by one assignment at the
end: an exception leaves the store as it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax

from incrax._errors import deleted_input
from incrax._jax import Var
from incrax._tuning import Tuning
from incrax.facts.dependence import ALWAYS
from incrax.facts.program import Program
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan
from incrax.running.choice import Entry
from incrax.running.chooser import Chooser
from incrax.running.comparison import Comparison
from incrax.running.compiled import Executable, compile_whole
from incrax.running.leaves import LeafValue
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
    num_ran: int
    loads: tuple[Var, ...]
    filled: tuple[Var, ...]
    is_first: bool


_UNCHANGED = Record(0, "saved outputs", None, 0, (), (), is_first=False)


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
        self.num_whole_timed = 0 if tuning.race and not facts.is_minimal else tuning.race_rounds
        self.last: Record | None = None
        seconds = {var: facts.seconds(eqn) for eqn in facts.program.eqns for var in eqn.outvars}
        self.store = Store(limits.versions, limits.budget_bytes, seconds)
        self.store.expect(self.chooser.wanted)
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
        return pairs

    def _rank(self, pair: tuple[State, int]) -> tuple[float, int, int]:
        """Expected seconds, then the number of changed inputs, then how seldom the state was a baseline before."""
        state, dirty = pair
        if not dirty:
            return (-1.0, 0, 0)
        entry = self.chooser.seen(dirty | self.always)
        expected_s = self.chooser.whole_s
        if entry is not None and entry.plan is not None and entry.status in ("plan", "race"):
            if all(var in state.saved for var in entry.plan.loads):
                expected_s = min(entry.expected_s, self.chooser.whole_s)
        return (expected_s, dirty.bit_count(), -state.uses)

    def _evaluate(self, values: tuple[LeafValue, ...], pairs: Pairs, base: State | None, dirty: int) -> list[Any]:
        entry = self.chooser.entry(dirty)
        feeds = [value.feed for value in values]
        loads, filled = self._choose(entry, pairs, base, feeds)
        if loads is None:
            results = self._run_whole(entry, feeds)
        else:
            results = self._run_plan(entry, feeds, loads)
        if self.must_wait:
            jax.block_until_ready(results)
        plan = None if loads is None else entry.plan
        state = self._new_state(values, base, dirty, results, plan, filled)
        self.store.expect(self.chooser.wanted)
        self.store.commit(state, base if dirty != self.layout.full | self.always else None)
        self._account(entry, dirty, plan, filled, is_first=base is None)
        return state.outputs

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
        plan = entry.plan if entry is not None and entry.next_candidate() == "plan" else None
        if plan is None:
            return Record(dirty, "whole", entry, len(self.facts.program.eqns), (), (), is_first=False)
        missing = tuple(v for v in plan.loads if available_in(pairs, v, self.facts.mask(v)) is None)
        return Record(dirty, "plan", entry, len(plan.eqns), plan.loads, missing, is_first=False)

    def prepare(self, leaves: Sequence[Any], dirty: int) -> None:
        """Plan, compile and fill for a dirty set, with the state at these leaves as baseline."""
        dirty |= self.always
        pairs = self._compare(self.comparison.resolve(leaves, self.comparison.changed_leaves(leaves)))
        entry = self.chooser.entry(dirty)
        if entry.status == "cold":
            entry.count = max(entry.count, self.tuning.hot_after)
            self.chooser.make_plan(entry)
        if entry.plan is None or entry.executable is None or not pairs:
            return
        feeds = [LeafValue(x).feed for x in leaves]
        loads, _ = self._choose(entry, pairs, pairs[-1][0], feeds)
        if loads is not None:
            jax.block_until_ready(entry.executable(feeds, loads))
            entry.is_warm = True

    # --- choosing and loading ------------------------------------------------------------------------------------

    def _choose(
        self, entry: Entry, pairs: Pairs, base: State | None, feeds: list[Any]
    ) -> tuple[list[Any] | None, dict[Var, Any]]:
        """Loaded values if the plan runs, None if the whole program does; and what was filled for it."""
        plan = entry.plan
        if plan is None or entry.executable is None or entry.next_candidate() == "whole":
            return None, {}
        if len(plan.outputs) < len(self.facts.program.outvars) and (base is None or _any_deleted(base.outputs)):
            return None, {}
        found = [available_in(pairs, var, self.facts.mask(var)) for var in plan.loads]
        missing = tuple([var for var, value in zip(plan.loads, found, strict=True) if value is None])
        if not missing:
            return found, {}
        if not self.facts.is_minimal and not entry.may_fill():
            return None, {}
        filled = self._fill(entry, missing, base, feeds)
        return [
            filled.get(var) if value is None else value for var, value in zip(plan.loads, found, strict=True)
        ], filled

    def _fill(self, entry: Entry, missing: tuple[Var, ...], base: State | None, feeds: list[Any]) -> dict[Var, Any]:
        """Compute missing values: at the baseline with all that plans want there, else only what is missing."""
        at_base = base is not None and not any(value.is_deleted() for value in base.values)
        saved = base.saved if base is not None else {}
        if at_base and base is not None and not self.facts.is_minimal:
            feeds = [value.feed for value in base.values]
            missing = tuple(var for var in self.chooser.wanted if var not in saved)
        mask, dirty = self.facts.mask, entry.dirty
        usable = {v: x for v, x in saved.items() if (at_base and not self.facts.is_minimal) or not mask(v) & dirty}
        usable = {v: x for v, x in usable.items() if not x.is_deleted()}
        plan, executable = self.chooser.fill_program(missing, frozenset(usable))
        start = time.perf_counter()
        results = executable(feeds, [usable[var] for var in plan.loads])
        jax.block_until_ready(results)
        seconds = time.perf_counter() - start
        filled = dict(zip(plan.saves, results, strict=True))
        if base is not None:
            self.store.expect(self.chooser.wanted)
            self.store.add(base, filled)
            if any(var in filled for var in islice(self.chooser.wanted, base.num_wanted)):
                self.chooser.note_refill(base.made_by, seconds)
            base.num_wanted = 0
        entry.fills += 1
        entry.won_s -= seconds
        self.stats.filled += executable.num_eqns
        return filled

    # --- running -------------------------------------------------------------------------------------------------

    def _run_whole(self, entry: Entry, feeds: list[Any]) -> list[Any]:
        if not self.is_whole_warm:
            self.stats.compiles += 1
            results = self.whole(feeds, ())
            self.is_whole_warm = True
            return results
        if entry.status == "race" or self.num_whole_timed < self.tuning.race_rounds:
            return self._time("whole", entry, self.whole, feeds, [])
        return self.whole(feeds, ())

    def _run_plan(self, entry: Entry, feeds: list[Any], loads: list[Any]) -> list[Any]:
        executable = entry.executable
        assert executable is not None
        if entry.status != "race" or not entry.is_warm:
            results = executable(feeds, loads)
            entry.is_warm = True
            entry.won_s += entry.gain_s
            return results
        return self._time("plan", entry, executable, feeds, loads)

    def _time(
        self, candidate: str, entry: Entry, executable: Executable, feeds: list[Any], loads: list[Any]
    ) -> list[Any]:
        start = time.perf_counter()
        results = executable(feeds, loads)
        jax.block_until_ready(results)
        seconds = time.perf_counter() - start
        if candidate == "whole":
            is_first = self.num_whole_timed == 0
            self.num_whole_timed += 1
            self.chooser.whole_s = seconds if is_first else min(self.chooser.whole_s, seconds)
        if entry.status == "race":
            self.chooser.record(entry, candidate, seconds)
        return results

    def _new_state(
        self,
        values: tuple[LeafValue, ...],
        base: State | None,
        dirty: int,
        results: list[Any],
        plan: Plan | None,
        filled: dict[Var, Any],
    ) -> State:
        mask, wanted = self.facts.mask, self.chooser.wanted
        kept = filled if base is None else base.saved
        saved = {var: x for var, x in kept.items() if not mask(var) & dirty}
        if plan is None:
            outputs = results
        else:
            outputs = [None] * len(self.facts.program.outvars) if base is None else list(base.outputs)
            for position, value in zip(plan.outputs, results, strict=False):
                outputs[position] = value
            saved.update(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        saved.update((var, outputs[i]) for i, var in self.out_vars if var in wanted and var in self.facts.saveable)
        return State(values, outputs, saved, dirty, len(wanted))

    def _account(self, entry: Entry, dirty: int, plan: Plan | None, filled: dict[Var, Any], *, is_first: bool) -> None:
        stats = self.stats
        num_ran = len(self.facts.program.eqns) if plan is None else len(plan.eqns)
        stats.ran += num_ran
        stats.loaded += 0 if plan is None else len(plan.loads)
        stats.evicted += self.store.evicted
        self.store.evicted = 0
        candidate = "whole" if plan is None else "plan"
        self.last = Record(dirty, candidate, entry, num_ran, plan.loads if plan else (), tuple(filled), is_first)


def _any_deleted(outputs: list[Any]) -> bool:
    return any([isinstance(x, jax.Array) and x.is_deleted() for x in outputs])
