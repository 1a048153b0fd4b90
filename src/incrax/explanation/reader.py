"""What reports know of a traced function: its program, what calls did, and what others would do.

In: an engine. Out: `Served`, one for each call, as reports need it. Reports look into engines here
and nowhere else, but for the page, which also shows how plans were chosen and what is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from incrax._jax import Equation, Var, aval_bytes, source_line
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import NO_MEMORY, CallRecord
from incrax.engine.call.rehearsal import dry_run, outlook
from incrax.engine.inputs.leaves import is_compared_by_identity
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.plan.plan import Plan

FIRST = "first call with this signature"
NOT_COMPARED = "saving did not pay in the last calls: it is that of `jax.jit`"

MAX_WIDENED = 3
"""Equations, at most, of which a report says that from there on all rows ran."""


class Served(NamedTuple):
    """What served a call, or would serve one.

    Fields: "saved outputs", "plan", "segments", "slices", "priming" or "whole", and why; bits of
    the inputs that differ from the values that it starts from; equations run, those that fill
    missing values first; values loaded and filled; seconds of the candidates; uses of this set of
    inputs; a line for each sum that came from statistics, or why none does any more; how many
    equations of the function ran, and on which rows, if not on all.
    """

    by: str
    why: str
    changed: int
    ran: Sequence[Equation]
    loads: Sequence[Var] = ()
    filled: Sequence[Var] = ()
    seconds: dict[str, float] = {}  # noqa: RUF012
    uses: int = 0
    statistics: Sequence[str] = ()
    num_ran: int = 0
    rows: str = ""

    @property
    def is_first(self) -> bool:
        """Whether it is the first call with its signature."""
        return self.why == FIRST


class Reader:
    """Reads one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.facts = engine.facts
        self.eqns: Sequence[Equation] = self.facts.eqns
        self.paths = engine.paths
        self.layout = engine.layout

    def last(self) -> Served | None:
        """The last call."""
        record = self.engine.last
        return None if record is None else self.served(record)

    def dry_run(self, leaves: Sequence[Any]) -> Served:
        """A call with these leaves, without evaluating it."""
        record = dry_run(self.engine, leaves)
        return self.first() if record is None else self.served(record)

    def outlook(self, mask: int) -> Served | None:
        """A call that changes these inputs of the latest one to new values; None before the first
        call.
        """
        record = outlook(self.engine, mask)
        return None if record is None else self.served(record)

    def first(self) -> Served:
        """The first call with this signature."""
        return Served("whole", FIRST, self.layout.full, self.eqns, num_ran=len(self.eqns))

    def served(self, record: CallRecord) -> Served:
        """A call as reports need it."""
        plan = record.plan
        entry = record.entry
        filling = [eqn for segment in record.segments for eqn in segment.eqns]
        ran = (
            []
            if record.candidate == "saved outputs"
            else [*filling, *(self.eqns if plan is None else plan.eqns)]
        )
        how = "measured" if entry is not None and entry.is_final else "expected"
        reason = self.facts.algebra.reason
        statistics = None if plan is None else plan.statistics
        return Served(
            by=record.candidate,
            why=_why(record),
            changed=record.dirty & ~self.engine.always,
            ran=ran,
            loads=record.loads,
            filled=record.filled,
            seconds={}
            if entry is None
            else {f"{name}, {how}": s for name, s in entry.seconds.items()},
            uses=0 if entry is None else entry.count,
            statistics=statistics.lines if statistics is not None else (reason,) if reason else (),
            num_ran=len(ran) if plan is None else len(ran) - len(plan.eqns) + plan.num_eqns,
            rows=self._rows(plan),
        )

    def _rows(self, plan: Plan | None) -> str:
        if plan is None or plan.sliced is None:
            return ""
        sliced = plan.sliced
        names = ", ".join(str(self.paths[leaf]) for leaf in sliced.leaves)
        lines = [
            f"{eqn.primitive.name} {source_line(eqn)}".strip()
            for eqn in sliced.widened[:MAX_WIDENED]
        ]
        lines += ["..."] * (len(sliced.widened) > MAX_WIDENED)
        wide = f"; all rows from {', '.join(lines)} on" if lines else ""
        return f"at most {sliced.capacity} of {sliced.length} along the first axis of {names}{wide}"

    def names(self, mask: int) -> list[str]:
        """Names of inputs, and of elements of small arrays."""
        return mask_paths(self.paths, self.layout, mask)

    def changes(self, served: Served) -> Iterator[tuple[str, str]]:
        """Names of inputs that differ, and how that was found out."""
        if served.is_first:
            yield from ((path, FIRST) for path in self.paths)
            return
        if served.why == NOT_COMPARED:
            yield "not compared", "nobody looked at this call, since saving does not pay"
            return
        states = self.engine.store.states
        for index, _ in self.layout.leaves_of(served.changed):
            by_identity = is_compared_by_identity(states[-1].anchors[index] if states else None)
            how = "it is another array than" if by_identity else "its bits differ from those"
            for name in self.names(served.changed & self.layout.leaf_mask(index)):
                yield name, f"{how} at the baseline"

    @property
    def worth(self) -> str:
        """Whether saving has been worth its overhead so far."""
        chooser = self.engine.chooser
        return chooser.verdict.sentence if chooser.is_timed else ""


def _why(record: CallRecord) -> str:
    if record.candidate == "saved outputs":
        return "no input changed"
    if record is NO_MEMORY:
        return "the device had no memory left until all saved values were dropped"
    if record.is_first:
        return FIRST
    return NOT_COMPARED if record.entry is None else record.entry.reason


def sized(var: Var) -> tuple[str, int]:
    """Type and bytes of a variable."""
    return var.aval.str_short(short_dtypes=True), aval_bytes(var.aval)
