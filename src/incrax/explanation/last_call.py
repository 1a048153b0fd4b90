"""What a call did and why: changed leaves, equations run, values loaded, the plan and what it won
against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from incrax import _jax
from incrax._messages import not_called
from incrax._table import Printable, Table
from incrax.engine.call.engine import Engine
from incrax.engine.inputs.rows import Rows
from incrax.engine.program.cost import Cost, total_cost
from incrax.explanation.reader import Reader, sized
from incrax.rows.engine import RowEngine

NUM_LISTED = 30
NUM_CONSTANTS = 5
"""Closed-over arrays shown to people: the largest are those that it was a mistake to close over."""


@dataclass(frozen=True)
class Explanation(Printable):
    """Report of one call.

    Fields: whether it is a dry run; changed leaves as (path, why); what served the call ("saved
    outputs", "plan", "segments", "slices", "priming", "whole") and why; equations run as (primitive, source line);
    loaded and filled values as (type, bytes); those that the user marked, as (name, "loaded" or
    "filled"); a line for each reduction over rows that came from statistics, or why none does any
    more; FLOPs run and avoided; uses and times of the dirty set's candidates in seconds; arrays
    that the function closed over when it was traced, or that follow from them, as (type, bytes),
    the largest first; of `Rows`, how many chunks were run, reused and joined (the rest is then
    about one of the chunks); whether saving has been worth its overhead so far; whether all of it
    is printed, or what matters most; equations of the function that ran, and on which rows, if not
    on all.
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
    is_verbose: bool = False
    num_ran: int = 0
    rows: str = ""

    @property
    def verbose(self) -> Explanation:
        """The same, printed with all figures and the equations."""
        return replace(self, is_verbose=True)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "is_dry_run": self.is_dry_run,
            "changed": dict(self.changed),
            "served_by": self.served_by,
            "why": self.why,
            "ran": [{"primitive": name, "source": source} for name, source in self.ran],
            "num_ran": self.num_ran,
            "rows": self.rows,
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
        filled_bytes = sum(size for _, size in self.filled)
        flops = self.cost_avoided.flops + self.cost_ran.flops
        summary = [
            *([("is it worth it", self.worth)] if self.worth else []),
            ("served by", f"{self.served_by}: {self.why}"),
            (f"equations {verb}", f"{self.num_ran} of {self.num_equations}"),
            *([(f"rows {verb}", self.rows)] if self.rows else []),
            ("saved values loaded", f"{len(self.loaded)} ({_bytes(loaded_bytes)})"),
            *(
                [("saved values filled", f"{len(self.filled)} ({_bytes(filled_bytes)})")]
                if self.filled
                else []
            ),
            ("FLOPs avoided", f"{self.cost_avoided.flops:.3g} of {flops:.3g}"),
            ("transcendentals avoided", f"{self.cost_avoided.transcendentals:.3g}"),
            *[(f"chunks {name}", str(number)) for name, number in self.chunks],
            *[(f"kept value {name}", verb) for name, verb in self.kept],
            *[("from statistics", line) for line in self.statistics],
            *[
                ("closed over", f"{name}, {_bytes(size)}")
                for name, size in self.constants[:NUM_CONSTANTS]
            ],
        ]
        unchanged = [("nothing", "all leaves have the bits of the last call")]
        found = [
            Table("dry run" if self.is_dry_run else "last call", ("", ""), summary),
            Table("changed inputs", ("input", "why"), _shortened(self.changed) or unchanged),
        ]
        if self.is_verbose:
            times = [(name, f"{seconds * 1e3:.3g} ms") for name, seconds in self.times.items()]
            ran = _shortened(self.ran)
            found.append(Table("candidates", ("", "seconds"), times))
            found.append(Table(f"equations that {verb}", ("primitive", "source"), ran))
        return found


def explain_call(engine: Engine, leaves: Sequence[Any] | None) -> Explanation:
    """Explain the last call, or a call with these leaves without evaluating it."""
    reader = Reader(engine)
    served = (reader.last() or reader.first()) if leaves is None else reader.dry_run(leaves)
    ran_ids = set(map(id, served.ran))
    marked = reader.facts.kept
    kept = [(marked.get(var), "loaded") for var in served.loads]
    kept += [(marked.get(var), "filled") for var in served.filled]
    return Explanation(
        is_dry_run=leaves is not None,
        changed=tuple(reader.changes(served)),
        served_by=served.by,
        why=served.why,
        ran=tuple((eqn.primitive.name, _jax.source_line(eqn)) for eqn in served.ran),
        num_equations=len(reader.eqns),
        loaded=tuple(map(sized, served.loads)),
        filled=tuple(map(sized, served.filled)),
        kept=tuple((name, verb) for name, verb in kept if name is not None),
        statistics=tuple(served.statistics),
        cost_ran=total_cost(served.ran),
        cost_avoided=total_cost(eqn for eqn in reader.eqns if id(eqn) not in ran_ids),
        times=served.seconds,
        num_ran=served.num_ran,
        rows=served.rows,
        worth=reader.worth,
        constants=tuple(
            sorted(map(sized, reader.facts.program.constvars), key=lambda item: -item[1])
        ),
    )


def explain_rows(engine: RowEngine, leaves: Sequence[Any] | None, rows: Rows | None) -> Explanation:
    """Explain the last call with `Rows`, or the first pass of a call with these."""
    record = engine.last if leaves is None or rows is None else engine.outlook(leaves, rows)
    if record is None or record.engine is None:
        raise not_called("explain()")
    found = replace(explain_call(record.engine, None), is_dry_run=rows is not None)
    num_run, num_reused, num_joined = record.chunks
    if not num_run:
        found = replace(
            found,
            changed=(),
            served_by="saved outputs",
            why="no chunk changed",
            ran=(),
            num_ran=0,
            loaded=(),
            filled=(),
        )
    chunks = ("run", num_run), ("reused", num_reused), ("joined", num_joined)
    return replace(found, chunks=chunks)


def _as_dicts(values: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"type": name, "bytes": size} for name, size in values]


def _bytes(num: int) -> str:
    return f"{num / 1e6:.3g} MB" if num >= 1e5 else f"{num} bytes"


def _shortened(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    rest = len(rows) - NUM_LISTED
    return [*rows[:NUM_LISTED], *([(f"... {rest} more", "")] if rest > 0 else [])]
