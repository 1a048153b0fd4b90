"""The saved values that one call reads: found in the store, or computed by their segments on the
way.

In: the store's states with their dirty sets. Out: values, and what had to be computed, also stored
with every state for which it is current. It must not know which candidate asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax._jax import Var
from incrax._program import Env, Results, Values
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.inputs.leaves import LeafValues
from incrax.engine.plan.environment import ValueOf
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Blocked, Plan, RowKind, plan_fill
from incrax.engine.plan.segmentation import Group
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.comparison import Comparison
from incrax.engine.store.store import (
    Pairs,
    State,
    Store,
    are_at_hand,
    available_in,
    is_any_deleted,
)


class ChangedRows(NamedTuple):
    """A change of a few rows: from which version, its dirty set, the rows' numbers, and its kind."""

    base: State
    dirty: int
    numbers: np.ndarray
    kind: RowKind


def padded(numbers: np.ndarray, capacity: int) -> np.ndarray:
    """Numbers of rows, the first one repeated up to a capacity; int32. All rows of a part of the axis
    run, whichever changed.
    """
    if numbers.size == capacity:
        return numbers.astype(np.int32)
    rows = np.empty(capacity, np.int32)
    rows[: numbers.size] = numbers[:capacity]
    rows[numbers.size :] = numbers[0]
    return rows


class Sources:
    """Where a program finds in a version what it takes besides leaves: found out once, for all calls
    that it serves.

    Fields: for each of these the variable that it is saved as; which of them are inputs or outputs of
    the function, with their numbers; which are the numbers of changed rows, and how many there may
    be; outputs of the function that the program does not compute: the version must have them still.
    """

    def __init__(self, facts: Facts, program: TimedProgram) -> None:
        plan = program.plan
        assert plan is not None
        sliced = plan.sliced
        olds = {} if sliced is None else sliced.olds
        inputs = {var: leaf for leaf, var in enumerate(facts.invars)}
        outputs = {var: i for i, var in enumerate(facts.outvars) if isinstance(var, Var)}
        self._saved = [olds.get(var, var) for var in program.loads]
        places = list(enumerate(self._saved))
        self._inputs = [(place, inputs[var]) for place, var in places if var in inputs]
        self._outputs = [(place, outputs[var]) for place, var in places if var in outputs]
        self._capacity = 0 if sliced is None else sliced.kind.capacity
        self._numbers = [place for place, var in places if sliced and var is sliced.numbers]
        self._held = [i for i in range(len(facts.outvars)) if i not in plan.outputs]

    def loads(self, base: State, saved: Env, rows: np.ndarray | None = None) -> list[Any]:
        """What the program takes of a version with these saved values, as rows of these numbers
        change; None in the place of what is lacking.
        """
        found = list(map(saved.get, self._saved))
        for place, leaf in self._inputs:
            found[place] = base.values[leaf].feed
        for place, number in self._outputs:
            if found[place] is None:
                found[place] = base.outputs[number]
        for place in self._numbers:
            found[place] = None if rows is None else padded(rows, self._capacity)
        return found

    def are_at_hand(self, base: State, loads: Values) -> bool:
        """Whether all of that is there, and what the version hands on, with their buffers."""
        return are_at_hand([*loads, *map(base.outputs.__getitem__, self._held)])


def given_up(store: Store, base: State, program: TimedProgram, loads: Values) -> Results:
    """What a program for rows takes, of which it overwrites some: the baseline has these no more, and
    of those that others hold there are copies.
    """
    overwritten = program.executable.overwritten
    if not overwritten:
        return list(loads)
    plan = program.plan
    assert plan is not None
    assert plan.sliced is not None
    olds = plan.sliced.olds
    taken = store.take(base, [olds[var] for var in overwritten])
    given = dict(zip(overwritten, taken, strict=True))
    return [given.get(var, x) for var, x in zip(program.loads, loads, strict=True)]


class BlockStart(NamedTuple):
    """From where values are computed in blocks: their values (None: from nothing), and the numbers
    of the blocks that differ.
    """

    olds: list[Any]
    numbers: np.ndarray

    def given(self, blocked: Blocked) -> Env:
        """What their program takes."""
        numbers = np.zeros(blocked.num, np.int32)
        numbers[: self.numbers.size] = self.numbers
        names = zip(blocked.olds, self.olds, strict=True)
        olds = {name: _zeros(name) if x is None else x for name, x in names}
        return {blocked.numbers: numbers, blocked.count: np.int32(self.numbers.size), **olds}


def _zeros(var: Var) -> Any:
    return jax.device_put(np.zeros(var.aval.shape, var.aval.dtype))  # compiles nothing


class Fill(NamedTuple):
    """What computes missing values: a plan for many at once, if there is one, and the segments of
    the others.
    """

    joint: Plan | None
    groups: Sequence[Group]


class UnusableError(Exception):
    """A derived value left the range in which it may stand for what it was derived from."""


class SavedValues:
    """Values for one call with these leaf values: `pairs` are states with their dirty sets, the
    best one last, from which it starts: then these inputs are `dirty`.

    `rows` are those that changed, `sources` where a program for these finds what it takes, and `taken`
    that; `computed` and `found` is what it read, `primed` what was computed for the version that it
    starts from, `plans` what it ran for these, `filled_by` the programs of segments among them that
    are the same for all values.
    """

    def __init__(
        self,
        chooser: Chooser,
        comparison: Comparison,
        pairs: Pairs,
        dirty: int,
        values: LeafValues,
        rows: ChangedRows | None = None,
    ) -> None:
        self.rows = rows
        self.taken: list[Any] | None = None
        self.sources: Sources | None = None
        self.chooser = chooser
        self.comparison = comparison
        self.facts = chooser.facts
        self.derived = chooser.facts.derived
        self.store = comparison.store
        self.stats = chooser.compiler.stats
        self.segments = chooser.segments
        self.pairs = pairs
        self.base = pairs[-1][0] if pairs else None
        self.dirty = dirty
        self.values = values
        self.feeds = [value.feed for value in values]
        self.computed: Env = {}
        self.found: Env = {}
        self.primed: tuple[Var, ...] = ()
        self.plans: list[Plan] = []
        self.filled_by: list[TimedProgram] = []

    def has_outputs(self, plan: Plan) -> bool:
        """Whether the outputs that a plan does not compute are at hand."""
        if len(plan.outputs) == len(self.facts.outvars):
            return True
        return self.base is not None and not is_any_deleted(self.base.outputs)

    def for_rows(self, program: TimedProgram) -> Results | None:
        """What a program for rows takes besides leaves; None where the baseline lacks some of it, or
        an output that the program does not compute.
        """
        base = self.base
        rows = self.rows
        assert base is not None
        assert rows is not None
        self.sources = sources = Sources(self.facts, program)
        loads = sources.loads(base, base.saved, rows.numbers)
        pairs = zip(program.loads, loads, strict=True)
        loads = [
            self.find(var) if x is None and self.facts.is_known(var) else x for var, x in pairs
        ]
        return loads if sources.are_at_hand(base, loads) else None

    def prime(self, priming: TimedProgram) -> None:
        """Have the whole function save at the baseline what programs for rows read, unless what it
        takes was deleted.

        This pays where changes of few rows start from one version again and again, as proposals
        that are rejected do. Where each starts from another, the one before it, it would never be
        read: there, what serves the change saves, and not twice.
        """
        base = self.base
        assert base is not None
        feeds = [value.feed for value in base.values]
        if not base.has_lacked or is_any_deleted(feeds):
            base.has_lacked = True
            return
        plan = priming.plan
        assert plan is not None
        results = priming(feeds, ())
        self._count(plan)
        self.primed = plan.saves
        saved = dict(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        self.store.add(base, saved)

    def find(self, var: Var) -> Any | None:
        """A value that is current for this call, or None."""
        value = self.computed.get(var)
        if value is None:
            value = self.found.get(var)
        if value is None:
            value = available_in(self.pairs, var, self.facts.mask(var))
            if value is not None:
                self.found[var] = value
        return value

    def missing(self, variables: Iterable[Var]) -> tuple[Var, ...]:
        """The variables without a current value."""
        return tuple([v for v in variables if self.find(v) is None])

    def forget(self, dirty: int) -> None:
        """Drop computed values that a dirty set reaches, as if it had changed again."""
        self.computed = {
            var: x for var, x in self.computed.items() if not self.facts.mask(var) & dirty
        }

    def drop(self, variables: Iterable[Var]) -> None:
        """Drop some values, as if they had not been read."""
        for var in variables:
            self.computed.pop(var, None)
            self.found.pop(var, None)

    def get(self, var: Var) -> Any:
        """A current value; computes its segment where there is none."""
        value = self.find(var)
        if value is None:
            is_missing = lambda var: self.find(var) is None
            groups = self.segments.missing_groups([var], is_missing)
            for group in self.segments.in_order(groups):
                self._compute(group)
            value = self.computed[var]
        return value

    def _joint_plan(self, variables: Sequence[Var]) -> Plan | None:
        """One plan for what is missing of some variables, where that is better than segments."""
        facts = self.facts
        is_missing = lambda var: self.find(var) is None
        if not facts.is_minimal:
            return self.segments.joint_plan(variables, self.dirty, is_missing)
        missing = self.missing(variables)
        is_there = lambda var: var in facts.cut_set and not is_missing(var)
        return plan_fill(facts, missing, is_there) if missing else None

    def to_fill(self, variables: Sequence[Var]) -> Fill:
        """What computes those of some variables that are missing, and what that needs."""
        joint = None if self.chooser.is_exact else self._joint_plan(variables)
        together = () if joint is None else joint.saves
        is_left = lambda var: var not in together and self.find(var) is None
        return Fill(joint, self.segments.missing_groups(variables, is_left))

    def fill(self, variables: Sequence[Var]) -> None:
        """Compute what is missing by one program, where that is better; `get` has segments compute
        the rest.
        """
        plan = self._joint_plan(variables)
        if plan is not None:
            is_minimal = self.facts.is_minimal
            program = (
                self.chooser.compiler.compile(plan) if is_minimal else self.segments.joint(plan)
            )
            assert program.plan is not None
            loads = [self.find(var) for var in program.loads]
            run = program.executable if is_minimal else program  # the minimal planner times nothing
            self._note_run(program.plan, run(self.feeds, loads))
            if program is self.segments.priming:
                self.segments.note_primed()

    def fill_tables(self, tables: Iterable[Var], value_of: ValueOf) -> None:
        """Make tables of indices, and what is arranged by them, where they are missing, on the host."""
        on_host = self.derived.on_host
        for var in self.missing(tables):
            sources, make = on_host[var]
            values = [np.asarray(self.find(x)) if x in on_host else value_of(x) for x in sources]
            self._note({var: jax.device_put(make(*values))})

    def _compute(self, group: tuple[Var, ...]) -> None:
        program = self.segments.program(group)
        plan = program.plan
        assert plan is not None
        given: Env = {}
        if plan.blocked is not None:
            start = self._start_of_blocks(plan.blocked, self.facts.mask(group[0]))
            given = start.given(plan.blocked)
            plan = replace(plan, blocked=replace(plan.blocked, num_run=start.numbers.size))
        else:
            self.filled_by.append(program)
        loads = [given[var] if var in given else self.get(var) for var in program.loads]
        self._note_run(plan, program(self.feeds, loads))

    def _start_of_blocks(self, blocked: Blocked, mask: int) -> BlockStart:
        """The version of which the fewest blocks differ; from nothing, all of them do."""
        layout = self.facts.layout
        kept = list(blocked.olds.values())
        best = BlockStart([None] * len(kept), np.arange(blocked.num))
        for state, dirty in self.pairs:
            olds = [state.saved.get(var) for var in kept]
            if dirty & mask & ~blocked.by_rows or any([x is None for x in olds]):
                continue
            if is_any_deleted(olds):
                continue
            leaves = [leaf for leaf, _ in layout.leaves_of(dirty & mask)]
            rows = self.comparison.rows(self.values, state, leaves)
            numbers = None if rows is None else np.unique(rows // blocked.size)
            if numbers is not None and numbers.size < best.numbers.size:
                best = BlockStart(olds, numbers)
        return best

    def _note_run(self, plan: Plan, results: Results) -> None:
        """Note computed values, for this call and for every state for which they are current
        too.
        """
        self._count(plan)
        filled = dict(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        flags = self.derived.flags
        for var in [var for var in filled if var in flags]:
            if not filled.pop(flags[var]):
                raise UnusableError
        self._note(filled)

    def _count(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.stats.filled += plan.num_eqns

    def _note(self, filled: Env) -> None:
        self.computed.update(filled)
        mask = self.facts.mask
        for state, dirty in self.pairs:
            clean = {var: x for var, x in filled.items() if not mask(var) & dirty}
            if clean:
                self.store.add(state, clean)
