"""Which changes of a few rows get a program of their own, whichever rows these are.

In: `Facts`, how many rows of which inputs changed, measured seconds. Out: entries with programs. It
must not know values.

One entry serves all rows: its uses and its seconds are those of every row. A program reads values of
the baseline, so that the whole function, while such programs serve, saves them as it runs: the
priming program takes its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np

from incrax._jax import Var
from incrax._table import seconds_text
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.plan.environment import ValueOf
from incrax.engine.plan.plan import Plan, RowKind, lines_of, plan_whole
from incrax.engine.plan.row_share import accumulates, rough_share
from incrax.engine.plan.slices import priming_saves, slice_plan
from incrax.engine.policy.candidates import MIN_GAIN, Entry
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.materialize import copied_bytes
from incrax.engine.policy.planner import Learner
from incrax.engine.rewrites.row_reductions import MIN_LENGTH

CAPACITIES = (1, 4, 16, 64)
"""Rows that programs are made for at most; fewer are filled up by repeating one."""

MAX_SHARE = 0.25
"""The share of the rows up to which a change is one of rows."""

ROWS_S = 8e-5
"""Seconds per call that it costs to find the rows and to look after what is saved for them."""

START_S = 6e-5
"""Seconds that a program for rows takes beyond its work: it has many short steps."""

ACCELERATED_START_S = 4e-4
"""The same on a GPU: on an H200 even updates by hand took 0.42 to 0.46 ms where the whole function
took 0.48.
"""

ROWS_GROWTH = 2
"""Equations of a program for rows for one of the function: from 1.2 in pointwise functions of rows
to 20 in graphs and stencils, in `benchmarks/bench_slices.py`.
"""

LEAST_SHARE = 0.2
"""Of the work, roughly, that must be by rows, or left out, for a plan to be tried."""

COPY_PRICE = 4.0
"""By how much copies of saved values may take longer than estimated: the pages are new."""

AGREEING_SHARE = 0.25
"""Of the steps of a scan that is resumed, those that are expected to run where its carry may be the
same again.
"""

PARTS = (64, 16, 4)
"""Shares of an axis, one in so many, of which all rows may run, where its rows depend on those before
or after them.
"""

LEAST_GAIN = 0.1
"""How much more of the work must be left out so than with the changed rows alone."""

MAX_TRIED = 10.0
"""Times what else serves a change that a program may take in its first runs to be timed again."""

OFTEN = 8
"""Kinds of change of rows share a program if each is one in so many of all such looks at least; a
look stands for many calls, so that counts of these say less.
"""

MAX_DIFFERENCES = 512
"""Differences added to a sum before it is summed anew."""


@dataclass
class RowChanges:
    """What is known of changes of a number of rows of some inputs, whatever serves them."""

    num_calls: int = 0
    num_looks: int = 0
    plan: Plan | None = None
    # The dirty set, if there was one only (0: several): a plan for these elements may be better.
    element: int | None = None
    is_deferred: bool = False  # it is: a plan for rows waits


@dataclass(eq=False)
class Slices(Learner):
    """The kinds of change of rows of one engine.

    A *kind* is a number of rows of some inputs; what is counted of one stands in `changes`. Its
    program serves any kind that it covers, with fewer rows or inputs: the *serving* kind of a change
    is that whose program does, or is to. Where several kinds come as often and none has a program,
    that is their *joint* kind, which covers all of them. `entries` has the serving ones.
    """

    ledger: Ledger
    entries: dict[RowKind, Entry]
    is_on: bool
    saved: dict[Var, None] = field(default_factory=dict)
    primed: dict[Var, None] = field(default_factory=dict)
    tables: dict[Var, None] = field(default_factory=dict)
    priming: TimedProgram | None = None
    is_priming_used: bool = False
    num_differences: int = 0
    num_planned: int = 0

    def __post_init__(self) -> None:
        self.changes: defaultdict[RowKind, RowChanges] = defaultdict(RowChanges)
        self.start_s = START_S if jax.default_backend() == "cpu" else ACCELERATED_START_S
        facts = self.facts
        shapes = [getattr(var.aval, "shape", ()) for var in facts.invars]
        self.lengths: dict[int, int] = {
            leaf: shape[0]
            for leaf, shape in enumerate(shapes)
            if self.is_on and shape and shape[0] >= MIN_LENGTH
        }
        self._masks = list(map(facts.layout.leaf_mask, range(len(shapes))))

    @cached_property
    def accumulates(self) -> bool:
        """Whether rows may depend on all before or after them."""
        return bool(self.lengths) and accumulates(self.facts)

    def leaves_of(self, dirty: int) -> tuple[int, ...]:
        """The inputs of a dirty set if it may be one of rows: all have one number of rows."""
        leaves = []
        length = None
        for leaf, mask in enumerate(self._masks):
            if dirty & mask:
                own = self.lengths.get(leaf)
                if own is None or length not in (None, own):
                    return ()
                length = own
                leaves.append(leaf)
        return tuple(leaves)

    def kind(self, leaves: tuple[int, ...], numbers: np.ndarray) -> RowKind | None:
        """The kind of a change of these rows; None where they are too many."""
        length = self.lengths[leaves[0]]
        if self.accumulates and numbers.size:
            within = self._within(leaves, length - int(numbers.min()), int(numbers.max()) + 1)
            if within:
                return RowKind(leaves, 1, within)
        room = MAX_SHARE * length
        capacity = next((size for size in CAPACITIES if numbers.size <= size <= room), None)
        return None if capacity is None else RowKind(leaves, capacity)

    def _within(self, leaves: tuple[int, ...], num_last: int, num_first: int) -> int:
        """Of how many rows at the end, or, below 0, at the beginning, all are to run; 0: of none."""
        length = self.lengths[leaves[0]]
        for part in PARTS:
            size = -(-length // part)
            for within, reached in ((size, num_last), (-size, num_first)):
                if reached <= size and self._gain(leaves, within) > LEAST_GAIN:
                    return within
        return 0

    def _gain(self, leaves: tuple[int, ...], within: int) -> float:
        """Share of the work that is left out, roughly, beyond what changed rows alone would."""
        return self._share(leaves, within) - self._share(leaves, 0)

    @cached_property
    def _share(self) -> Callable[[tuple[int, ...], int], float]:
        return cache(lambda leaves, within: rough_share(self.facts, leaves, within).share)

    def entry(
        self,
        kind: RowKind,
        dirty: int,
        first: int,
        other_s: float,
        value_of: ValueOf,
    ) -> Entry | None:
        """The record of what serves a change of rows, which has it counted; None where the dirty set is to
        be served.

        Args:
            kind: that of the change.
            dirty: its dirty set.
            first: the first row that changed.
            other_s: seconds of what serves the dirty set, if this does not.
            value_of: the inputs' values, of which a program may need indices.
        """
        weight = self.ledger.weight
        changes = self.changes[kind]
        changes.num_calls += weight
        changes.num_looks += 1
        serving = self._serving(kind)
        entry = self._entry(serving)
        self._note(entry, serving, dirty, first, weight)
        if not self.clock.behind.num_waiting:
            if self._may_be_made(serving):
                self._plan_if_due(entry, serving, dirty, self.race.whole_s, value_of)
            elif entry.program is not None and serving != kind:
                self._plan_beside(kind, entry.program, value_of)
        if entry.program is None:
            return None
        if entry.ticks != self.clock.ticks or not entry.is_final:
            entry.ticks = self.clock.ticks
            self._choose(entry, entry.program, other_s)
        return entry if entry.candidate == "slices" else None

    def _note(self, entry: Entry, kind: RowKind, dirty: int, first: int, weight: int) -> None:
        """So many calls came for which an entry stands, the last one from this row on."""
        num_calls = self._calls_of(kind)
        share = 1.0 - first / self.lengths[kind.leaves[0]]
        entry.dirty_share += (share - entry.dirty_share) * weight / max(num_calls, 1)
        entry.note_seen(weight, self.accounts.num_calls + weight)
        entry.count = max(entry.count, num_calls)  # of all kinds that it covers
        changes = self.changes[kind]
        if changes.element is None:
            changes.element = dirty
        elif changes.element != dirty:
            changes.element = 0
            changes.is_deferred = False

    def _calls_of(self, kind: RowKind) -> int:
        """Calls so far that a program for a kind would have served."""
        return sum([known.num_calls for other, known in self.changes.items() if kind.covers(other)])

    def _serving(self, kind: RowKind) -> RowKind:
        """The kind whose program serves a change, or will if one is made: one for more rows, and of
        more inputs, does. The fastest there is; else one of an earlier process; else one for all
        that changes as often and has none: it is compiled once.
        """
        served_s = {
            other: entry.served_s
            for other, entry in self.entries.items()
            if entry.program is not None and other.covers(kind)
        }
        if served_s:
            return min(served_s, key=lambda other: served_s[other])
        known = [other for other in self.expectations.compiled_row_kinds() if other.covers(kind)]
        if known:
            return min(known, key=lambda other: (other.capacity, len(other.leaves)))
        return self._joint(kind)

    def _joint(self, kind: RowKind) -> RowKind:
        """What covers a kind and others of its axis that come as often and have no program."""
        length = self.lengths[kind.leaves[0]]
        made = [other for other, entry in self.entries.items() if entry.program is not None]
        alike = {
            other: known.num_looks
            for other, known in self.changes.items()
            if known.num_calls
            and not (other.within or kind.within)
            and self.lengths[other.leaves[0]] == length
            and self._may_be_made(other)
            and not any(each.covers(other) for each in made)
        }
        total = sum(alike.values())
        often = [other for other, num in alike.items() if OFTEN * num >= total]
        if kind not in often:
            return kind
        leaves = {leaf for other in often for leaf in other.leaves}
        joint = RowKind(tuple(sorted(leaves)), max(other.capacity for other in often))
        entry = self.entries.get(joint)
        return kind if entry is not None and entry.is_barred else joint

    def _plan_beside(self, kind: RowKind, program: TimedProgram, value_of: ValueOf) -> None:
        """Make a program for a kind alone, where one that covers it takes too long."""
        seconds = program.seconds
        if seconds is None or not (program.is_measured and self._may_be_made(kind)):
            return
        entry = self._entry(kind)
        entry.count = self._calls_of(kind)
        self._plan_if_due(entry, kind, 0, min(seconds, self.race.whole_s), value_of)

    def _choose(self, entry: Entry, program: TimedProgram, other_s: float) -> None:
        entry.is_final = program.is_measured
        seconds = program.seconds
        # One run tells little: what else the machine did in it would bar the program for good.
        is_tried = not program.is_measured and (seconds or 0.0) < MAX_TRIED * other_s
        if seconds is None or is_tried:
            entry.settle("slices", "rows alone, being timed")
        else:
            entry.choose({"whole": other_s, "slices": seconds + ROWS_S})

    def take_priming(self, entry: Entry, *, is_complete: bool) -> bool:
        """Count a change of rows; whether its program may serve it: the baseline has all that it
        reads, and is not the end of too long a row of differences.
        """
        plan = None if entry.program is None else entry.program.plan
        has_differences = plan is not None and plan.guard is not None
        self.num_differences += has_differences
        self.is_priming_used = self.is_priming_used or is_complete
        if is_complete and self.num_differences <= MAX_DIFFERENCES:
            return True
        self.num_differences = 0
        return False

    def is_at_hand(self, entry: Entry, feeds: Sequence[Any]) -> bool:
        """Whether no thread compiles a kind's program, or the one that saves what it reads."""
        programs = (entry.program, self.priming)
        return all([p is None or p.is_at_hand(feeds) for p in programs])

    def may_run(self, plan: Plan, numbers: np.ndarray) -> bool:
        """Whether a plan is for a change of these rows, and may add one more difference to a sum, if
        it does.
        """
        sliced = plan.sliced
        assert sliced is not None
        if plan.guard is not None and self.num_differences >= MAX_DIFFERENCES:
            return False
        if not self.accumulates:
            return numbers.size <= sliced.kind.capacity
        kind = self.kind(sliced.kind.leaves, numbers)
        return kind is not None and sliced.kind.covers(kind)

    def note_unusable(self, entry: Entry) -> None:
        """A guard was false: the whole function served a change instead."""
        if entry.note_unusable(is_spared=True):
            entry.bar("rows alone: too much was lost to rounding too often")

    def decide_priming(self) -> bool:
        """Whether the whole function is to save what programs for rows read: not if nobody has read
        what was saved last.
        """
        pays = self.priming is not None and self.is_priming_used
        self.is_priming_used = False
        return pays

    def serving(self, kind: RowKind) -> Entry | None:
        """The record of what serves a change of rows, or will."""
        return self.entries.get(self._serving(kind))

    def is_undecided(self, kind: RowKind) -> bool:
        """Whether a change of rows came too seldom for a decision on its program."""
        entry = self.serving(kind)
        return entry is None or (entry.program is None and entry.count < self.hot_after)

    def is_open(self, kind: RowKind) -> bool:
        """Whether a change of rows may get a program yet."""
        return self._may_be_made(self._serving(kind))

    def _may_be_made(self, kind: RowKind) -> bool:
        entry = self.entries.get(kind)
        is_closed = entry is not None and (entry.is_barred or entry.program is not None)
        return not is_closed and not self.changes[kind].is_deferred

    def _entry(self, kind: RowKind) -> Entry:
        entry = self.entries.get(kind)
        if entry is None:
            dirty = sum(self._masks[leaf] for leaf in kind.leaves)
            num_rows = abs(kind.within) or kind.capacity
            share = 1.0 - num_rows / self.lengths[kind.leaves[0]]
            known = self.expectations.of(kind)
            entry = Entry(dirty, num_before=self.accounts.num_calls, clean_share=share)
            entry.fixed_s = self.start_s + ROWS_S
            entry.expect(known)
            self.entries[kind] = entry
            if self.expectations.is_lost(known):
                entry.bar("rows alone: nothing to win in an earlier process")
        return entry

    def _plan_if_due(
        self,
        entry: Entry,
        kind: RowKind,
        dirty: int,
        served_s: float,
        value_of: ValueOf,
    ) -> None:
        """Find out what a program would save of the seconds that calls take now, and compile it, each
        when that is paid for.
        """
        plan = self.changes[kind].plan
        if entry.count < self.hot_after or not self.credit.allows_planning(
            entry, served_s, self._price_s(entry, plan)
        ):
            return
        plan = plan or self._new_plan(entry, kind, dirty, value_of)
        if plan is None:
            return
        whole_s = self.race.whole_s
        entry.promise_s = self._promised_s(plan, whole_s, entry.dirty_share) + entry.fixed_s
        num_bytes = copied_bytes((*plan.saves, *plan.base_loads))
        if served_s - entry.promise_s < MIN_GAIN * whole_s or num_bytes > self.budget_bytes:
            entry.bar(f"rows alone: nothing to win, estimated {seconds_text(entry.promise_s)}")
            return
        if self.credit.allows(entry, served_s, self._price_s(entry, plan), on_trust=True):
            self._compile(entry, plan)

    def _new_plan(self, entry: Entry, kind: RowKind, dirty: int, value_of: ValueOf) -> Plan | None:
        """The plan for a kind, where it may leave out enough of the work; else why not, in the entry."""
        share, widened = rough_share(self.facts, kind.leaves, kind.within)
        if share < LEAST_SHARE:
            where = f", from {lines_of(widened)} on" if widened else ""
            entry.bar(f"rows alone: most of the function needs all rows{where}")
            return None
        changes = self.changes[kind]
        if changes.element and share <= self.facts.clean_share(dirty):
            entry.settle("whole", "rows alone: a plan for these elements leaves out as much")
            changes.is_deferred = True
            return None
        self.num_planned += 1
        facts = self.facts.unmeasured
        changes.plan = slice_plan(facts, kind, value_of, moving=self.expectations.moving())
        return changes.plan

    def _price_s(self, entry: Entry, plan: Plan | None) -> float:
        """What a plan's program takes to compile; before there is a plan, what most take."""
        if plan is None:
            num_eqns = ROWS_GROWTH * self.facts.num_compiled
            with_priming = self.priming is None
        else:
            num_eqns = plan.num_compiled
            with_priming = self._needs_priming(plan)
        return self.costs.rows_price_s(entry, num_eqns, with_priming=with_priming)

    def _promised_s(self, plan: Plan, whole_s: float, dirty_share: float) -> float:
        """Estimated seconds of a plan, where the whole function takes so many."""
        sliced = plan.sliced
        assert sliced is not None
        run_price = max(whole_s / max(self.facts.unmeasured.total_seconds, 1e-12), 1.0)
        loops_s = AGREEING_SHARE * sliced.agreeing_s + dirty_share * sliced.endless_s
        # Turns of a loop cost more than their work, as do windows; copies hardly do.
        beside_s = (plan.seconds - sliced.moved_s) * (1.0 if sliced.resumed else run_price)
        moved_s = sliced.moved_s * (1.0 if sliced.resumed else min(run_price, COPY_PRICE))
        return loops_s * run_price + beside_s + moved_s

    def _compile(self, entry: Entry, plan: Plan) -> None:
        assert plan.sliced is not None
        entry.program = self.compiler.compile(plan)
        if self._needs_priming(plan):
            self.primed |= dict.fromkeys(priming_saves(self.facts, plan))
            self.priming = self.compiler.compile(plan_whole(self.facts.unmeasured, self.primed))
        self.tables |= dict.fromkeys(plan.sliced.tables)
        self.saved |= {**self.primed, **self.tables, **dict.fromkeys(plan.saves)}

    def lacks(self, saved: Mapping[Var, Any]) -> bool:
        """Whether a version has not all that programs for rows read of the baseline."""
        return not self.primed.keys() <= saved.keys()

    def _needs_priming(self, plan: Plan) -> bool:
        """Whether the whole function does not save all that a plan reads, yet."""
        return self.priming is None or not self.primed.keys() >= set(
            priming_saves(self.facts, plan)
        )
