"""What the last call did, kept where the next one may do the same.

Most calls of a fit or a sampler are like the one before. What serves, what it loads and what the new
version takes over need not be found out again.

In: what served a call, and the version that it left. Out: the loads of the next call. It must not
decide what serves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from incrax._jax import Var
from incrax.engine.call.record import CallRecord
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.expectations import RowKind
from incrax.engine.store.store import State


class Repeat:
    """What the last call did, if it may be done again as it is: what serves, what is loaded, what
    is taken over.
    """

    __slots__ = ("entry", "loads", "num_eqns", "plan", "program", "record", "saved", "ticks")

    candidate: Candidate = "plan"

    def __init__(
        self,
        record: CallRecord,
        entry: Entry,
        program: TimedProgram,
        plan: Plan,
        loads: list[Any],
        saved: dict[Var, Any],
    ) -> None:
        self.record = record
        self.entry = entry
        self.program = program
        self.plan = plan
        self.num_eqns = plan.num_eqns
        self.loads = loads
        self.saved = saved
        self.ticks = program.clock.ticks


class RepeatedRows(Repeat):
    """What the last change of a few rows did, if another of its kind may be served in the same way,
    from a version that has the same saved values.

    Fields besides: the kind; where each load is found (in the saved values, the inputs or the
    outputs of the version; None for the numbers of the rows); which saved values the program gives,
    and which outputs are saved.
    """

    __slots__ = ("kind", "saved_outputs", "sources")

    candidate: Candidate = "slices"

    def __init__(
        self,
        record: CallRecord,
        entry: Entry,
        program: TimedProgram,
        plan: Plan,
        state: State,
        kind: RowKind,
        facts: Facts,
    ) -> None:
        super().__init__(record, entry, program, plan, [], state.saved)
        assert plan.sliced is not None
        self.kind = kind
        self.sources: list[tuple[str, Any]] = []
        for load in program.loads:
            var = plan.sliced.olds.get(load, load)
            if load is plan.sliced.numbers:
                self.sources.append(("numbers", None))
            elif var in state.saved:
                self.sources.append(("saved", var))
            elif var in facts.invars:
                self.sources.append(("inputs", facts.invars.index(var)))
            else:
                self.sources.append(("outputs", facts.outvars.index(var)))
        self.saved_outputs = [
            (var, i)
            for i, var in enumerate(facts.outvars)
            if isinstance(var, Var) and var in state.saved
        ]

    def serves(self, state: State) -> bool:
        """Whether a version has the saved values that the last one had."""
        return state.saved.keys() == self.saved.keys()

    def taken(self, state: State, numbers: np.ndarray) -> list[Any]:
        """What the program takes besides inputs."""
        found: list[Any] = []
        for kind, key in self.sources:
            if kind == "saved":
                found.append(state.saved[key])
            elif kind == "inputs":
                found.append(state.values[key].feed)
            elif kind == "outputs":
                found.append(state.outputs[key])
            else:
                found.append(numbers)
        return found

    def saved_after(self, state: State, outputs: list[Any], saves: list[Any]) -> dict[Var, Any]:
        """The saved values of the version that follows: all that the change reaches is new."""
        saved = dict(state.saved)
        saved.update(zip(self.plan.saves, saves, strict=True))
        for var, number in self.saved_outputs:
            saved[var] = outputs[number]
        return saved
