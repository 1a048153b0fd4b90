"""Which work depends on which input: a table of leaves with equations, FLOPs and estimated seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from incrax._jax import Equation
from incrax._table import Printable, Table
from incrax.engine.call.engine import Engine
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.program.cost import ZERO, total_cost
from incrax.engine.program.dependence import Layout


@dataclass(frozen=True)
class LeafDependence:
    """Work that must run again when one input leaf changes.

    Fields: path; number of elements tracked one by one (1: as a whole); equations reached; their FLOPs and
    transcendentals; estimated seconds in one fused program, and the share of the whole function's.
    """

    path: str
    elements: int
    equations: int
    flops: float
    transcendentals: float
    seconds: float
    share: float


@dataclass(frozen=True)
class Work:
    """Seconds of all equations by the bits of the inputs that they depend on."""

    layout: Layout
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class DependenceTable(Printable):
    """The dependence of a function's work on its inputs, one row a leaf."""

    rows: tuple[LeafDependence, ...]
    num_equations: int
    work: Work = field(repr=False, compare=False)

    def seconds(self, names: Iterable[str]) -> float:
        """Estimated seconds of what runs again when these inputs, or elements of small arrays, change together.

        Raises:
            UnknownInputError: one names no input.
        """
        mask = paths_mask([row.path for row in self.rows], self.work.layout, names)
        return sum(seconds for reached, seconds in self.work.seconds.items() if reached & mask)

    def reach(self, names: Iterable[str]) -> frozenset[int]:
        """The parts of the work, by number, that run again when these inputs, or elements of small arrays, change.

        Raises:
            UnknownInputError: one names no input.
        """
        mask = paths_mask([row.path for row in self.rows], self.work.layout, names)
        return frozenset(reached for reached in self.work.seconds if reached & mask)

    def as_dict(self) -> dict[str, Any]:
        """The table for programs."""
        return {"num_equations": self.num_equations, "leaves": [asdict(row) for row in self.rows]}

    def tables(self) -> list[Table]:
        """The table for people."""
        rows = [
            (r.path, str(r.elements), str(r.equations), f"{r.flops:.3g}", f"{r.transcendentals:.3g}", f"{r.share:.0%}")
            for r in self.rows
        ]
        header = ("input", "elements", "equations", "FLOPs", "transcendentals", "share of work")
        return [Table(f"equations: {self.num_equations}", header, rows)]


def dependence_table(engine: Engine) -> DependenceTable:
    """The dependence table of a traced function."""
    facts, layout = engine.facts, engine.layout
    eqns = facts.program.eqns
    whole_s = facts.total_seconds or 1.0
    by_mask: dict[int, list[Equation]] = {}
    for eqn, mask in zip(eqns, facts.equation_masks, strict=True):
        by_mask.setdefault(mask, []).append(eqn)
    work = {mask: (len(part), total_cost(part), sum(map(facts.seconds, part))) for mask, part in by_mask.items()}
    rows = []
    for index, path in enumerate(engine.paths):
        leaf = layout.leaf_mask(index)
        reached = [part for mask, part in work.items() if mask & leaf]
        cost = sum((part for _, part, _ in reached), ZERO)
        seconds = sum(part for *_, part in reached)
        num = sum(num for num, *_ in reached)
        share = seconds / whole_s
        width = layout.widths[index]
        rows.append(LeafDependence(path, width, num, cost.flops, cost.transcendentals, seconds, share))
    in_seconds = Work(layout, {mask: seconds for mask, (*_, seconds) in work.items()})
    return DependenceTable(tuple(rows), len(eqns), in_seconds)
