"""What a call did and why: changed leaves, equations run, values loaded, the plan and what it won against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._messages import not_called
from incrax._table import Printable, Table
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import NO_MEMORY, CallRecord
from incrax.engine.call.rehearsal import dry_run
from incrax.engine.inputs.leaves import is_compared_by_identity
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.inputs.rows import Rows
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.cost import Cost, total_cost
from incrax.rows.engine import RowEngine

NUM_LISTED = 30
NUM_CONSTANTS = 5
"""Closed-over arrays shown to people: the largest are those that it was a mistake to close over."""


@dataclass(frozen=True)
class Explanation(Printable):
    """Report of one call.

    Fields: whether it is a dry run; changed leaves as (path, why); what served the call ("saved outputs", "plan",
    "segments", "whole") and why; equations run as (primitive, source line); loaded and filled values as (type, bytes);
    those that the user marked, as (name, "loaded" or "filled"); a line for each reduction over rows that came from
    statistics, or why none does any more; FLOPs run and avoided; uses and times of the dirty set's candidates in
    seconds; arrays that the function closed over when it was traced, or that follow from them, as (type, bytes), the
    largest first; of `Rows`, how many chunks were run, reused and joined (the rest is then about one of the chunks);
    whether saving has been worth its overhead so far.
    """

    is_dry_run: bool
    changed: tuple[tuple[str, str], ...]
    served_by: str
    why: str
    ran: tuple[tuple[str, str], ...]
    num_equations: int
    loaded: tuple[tuple[str, int], ...]
    filled: tuple[tuple[str, int], ...]
    kept: tuple[tuple[str, str], ...]
    statistics: tuple[str, ...]
    cost_ran: Cost
    cost_avoided: Cost
    times: dict[str, float]
    constants: tuple[tuple[str, int], ...]
    chunks: tuple[tuple[str, int], ...] = ()
    worth: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "is_dry_run": self.is_dry_run,
            "changed": dict(self.changed),
            "served_by": self.served_by,
            "why": self.why,
            "ran": [{"primitive": name, "source": source} for name, source in self.ran],
            "num_ran": len(self.ran),
            "num_equations": self.num_equations,
            "loaded": _as_dicts(self.loaded),
            "loaded_bytes": sum(size for _, size in self.loaded),
            "filled": _as_dicts(self.filled),
            "kept": dict(self.kept),
            "statistics": list(self.statistics),
            "flops_ran": self.cost_ran.flops,
            "flops_avoided": self.cost_avoided.flops,
            "transcendentals_avoided": self.cost_avoided.transcendentals,
            "seconds": dict(self.times),
            "chunks": dict(self.chunks),
            "constants": _as_dicts(self.constants),
            "worth": self.worth,
        }

    def tables(self) -> list[Table]:
        """The report for people."""
        verb = "would run" if self.is_dry_run else "ran"
        loaded_bytes = sum(size for _, size in self.loaded)
        summary = [
            ("served by", f"{self.served_by}: {self.why}"),
            (f"equations {verb}", f"{len(self.ran)} of {self.num_equations}"),
            ("saved values loaded", f"{len(self.loaded)} ({_bytes(loaded_bytes)})"),
            ("saved values filled", f"{len(self.filled)} ({_bytes(sum(size for _, size in self.filled))})"),
            ("FLOPs avoided", f"{self.cost_avoided.flops:.3g} of {self.cost_avoided.flops + self.cost_ran.flops:.3g}"),
            ("transcendentals avoided", f"{self.cost_avoided.transcendentals:.3g}"),
            *([("is it worth it", self.worth)] if self.worth else []),
            *[(f"chunks {name}", str(number)) for name, number in self.chunks],
            *[(f"kept value {name}", verb) for name, verb in self.kept],
            *[("from statistics", line) for line in self.statistics],
            *[(name, f"{seconds * 1e3:.3g} ms") for name, seconds in self.times.items()],
            *[("closed over", f"{name}, {_bytes(size)}") for name, size in self.constants[:NUM_CONSTANTS]],
        ]
        changed = list(self.changed[:NUM_LISTED]) or [("nothing", "all leaves have the bits of the last call")]
        if len(self.changed) > NUM_LISTED:
            changed.append((f"... {len(self.changed) - NUM_LISTED} more", ""))
        equations = [(name, source) for name, source in self.ran[:NUM_LISTED]]
        if len(self.ran) > NUM_LISTED:
            equations.append((f"... {len(self.ran) - NUM_LISTED} more", ""))
        return [
            Table("dry run" if self.is_dry_run else "last call", ("", ""), summary),
            Table("changed inputs", ("input", "why"), changed),
            Table(f"equations that {verb}", ("primitive", "source"), equations),
        ]


def explain_call(engine: Engine, leaves: Sequence[Any] | None) -> Explanation:
    """Explain the last call, or a call with these leaves without evaluating it."""
    record = engine.last if leaves is None else dry_run(engine, leaves)
    if record is None:
        record = CallRecord(engine.layout.full, "whole", None, None, (), (), (), is_first=True)
    facts = engine.facts
    eqns = facts.program.eqns
    ran = equations_run(engine, record)
    ran_ids = {id(eqn) for eqn in ran}
    rest = [eqn for eqn in eqns if id(eqn) not in ran_ids]
    return Explanation(
        is_dry_run=leaves is not None,
        changed=tuple(_changed(engine, record)),
        served_by=record.candidate,
        why=why(record),
        ran=tuple((eqn.primitive.name, _jax.source_line(eqn)) for eqn in ran),
        num_equations=len(eqns),
        loaded=tuple(map(_sized, record.loads)),
        filled=tuple(map(_sized, record.filled)),
        kept=tuple(_kept(facts.kept, record)),
        statistics=_statistics(engine, record),
        cost_ran=total_cost(ran),
        cost_avoided=total_cost(rest),
        times=candidate_times(record.entry),
        worth=engine.chooser.watch.worth.sentence if engine.chooser.is_timed else "",
        constants=tuple(sorted(map(_sized, facts.program.constvars), key=lambda item: -item[1])),
    )


def _statistics(engine: Engine, record: CallRecord) -> tuple[str, ...]:
    """What came from statistics instead of from rows."""
    reason = engine.facts.algebra.reason
    statistics = None if record.plan is None else record.plan.statistics
    return statistics.lines if statistics is not None else (reason,) if reason else ()


def explain_rows(engine: RowEngine, leaves: Sequence[Any] | None, rows: Rows | None) -> Explanation:
    """Explain the last call with `Rows`, or the first pass of a call with these."""
    record = engine.last if leaves is None or rows is None else engine.outlook(leaves, rows)
    if record is None or record.engine is None:
        raise not_called("explain()")
    found = replace(explain_call(record.engine, None), is_dry_run=rows is not None)
    if not record.num_run:
        found = replace(
            found, changed=(), served_by="saved outputs", why="no chunk changed", ran=(), loaded=(), filled=()
        )
    chunks = ("run", record.num_run), ("reused", record.num_reused), ("joined", record.num_joined)
    return replace(found, chunks=chunks)


def _kept(names: Mapping[Var, str | None], record: CallRecord) -> Iterator[tuple[str, str]]:
    """What became of the values that the user marked and named."""
    for verb, variables in (("loaded", record.loads), ("filled", record.filled)):
        yield from [(name, verb) for var in variables if (name := names.get(var)) is not None]


def equations_run(engine: Engine, record: CallRecord) -> Sequence[Equation]:
    """What a call ran, those that filled missing values first."""
    if record.candidate == "saved outputs":
        return ()
    eqns = engine.facts.program.eqns if record.plan is None else record.plan.eqns
    return [*(eqn for plan in record.segments for eqn in plan.eqns), *eqns]


def _changed(engine: Engine, record: CallRecord) -> list[tuple[str, str]]:
    if record.is_first:
        return [(path, "first call with this signature") for path in engine.paths]
    anchors = engine.store.states[-1].anchors if engine.store.states else [None] * len(engine.paths)
    changed = []
    for index, _ in engine.layout.leaves_of(record.dirty):
        is_read = not is_compared_by_identity(anchors[index])
        why = "its bits differ from those at the baseline" if is_read else "it is another array than at the baseline"
        names = mask_paths(engine.paths, engine.layout, record.dirty & engine.layout.leaf_mask(index))
        changed += [(name, why) for name in names]
    return changed


def why(record: CallRecord) -> str:
    """Why what served a call did."""
    if record.candidate == "saved outputs":
        return "no input changed"
    if record is NO_MEMORY:
        return "the device had no memory left until all saved values were dropped"
    if record.is_first:
        return "first call with this signature"
    return record.entry.reason if record.entry is not None else "saving did not pay in the last calls"


def candidate_times(entry: Entry | None) -> dict[str, float]:
    """Seconds of the candidates of a dirty set, and how they are known."""
    if entry is None:
        return {}
    how = "measured" if entry.is_final else "expected"
    return {f"{name}, {how}": seconds for name, seconds in entry.seconds.items()}


def _sized(var: Any) -> tuple[str, int]:
    """Type and bytes of a variable."""
    return var.aval.str_short(short_dtypes=True), _jax.aval_bytes(var.aval)


def _as_dicts(values: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"type": name, "bytes": size} for name, size in values]


def _bytes(num: int) -> str:
    return f"{num / 1e6:.3g} MB" if num >= 1e5 else f"{num} bytes"
