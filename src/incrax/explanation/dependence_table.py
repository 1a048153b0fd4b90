"""Which work depends on which input: a table of leaves with equations, FLOPs and estimated
seconds.
"""

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

    Fields: path; number of elements tracked one by one (1: as a whole); equations reached; their
    FLOPs and transcendentals; estimated seconds in one fused program, and the share of the whole
    function's.
    """

    path: str
    elements: int
    equations: int
    flops: float
    transcendentals: float
    seconds: float
    share: float


@dataclass(frozen=True)
class DependenceTable(Printable):
    """The dependence of a function's work on its inputs, one row a leaf; seconds by the inputs that
    work depends on.
    """

    rows: tuple[LeafDependence, ...]
    num_equations: int
    layout: Layout = field(repr=False, compare=False)
    seconds_by_inputs: Mapping[int, float] = field(repr=False, compare=False)

    def seconds(self, names: Iterable[str]) -> float:
        """Estimated seconds of what runs again when these inputs, or elements of small arrays,
        change together.

        Raises:
            UnknownInputError: one names no input.
        """
        return sum(self.seconds_by_inputs[part] for part in self.reach(names))

    def reach(self, names: Iterable[str]) -> frozenset[int]:
        """The parts of the work, by number, that run again when these inputs, or elements of small
        arrays, change.

        Raises:
            UnknownInputError: one names no input.
        """
        mask = paths_mask([row.path for row in self.rows], self.layout, names)
        return frozenset(part for part in self.seconds_by_inputs if part & mask)

    def as_dict(self) -> dict[str, Any]:
        """The table for programs."""
        return {"num_equations": self.num_equations, "leaves": [asdict(row) for row in self.rows]}

    def tables(self) -> list[Table]:
        """The table for people."""
        rows = [
            (
                r.path,
                str(r.elements),
                str(r.equations),
                f"{r.flops:.3g}",
                f"{r.transcendentals:.3g}",
                f"{r.share:.0%}",
            )
            for r in self.rows
        ]
        header = ("input", "elements", "equations", "FLOPs", "transcendentals", "share of work")
        return [Table(f"equations: {self.num_equations}", header, rows)]


def dependence_table(engine: Engine) -> DependenceTable:
    """The dependence table of a traced function."""
    facts = engine.facts
    layout = engine.layout
    by_inputs: dict[int, list[Equation]] = {}
    for eqn, mask in zip(facts.eqns, facts.equation_masks, strict=True):
        by_inputs.setdefault(mask, []).append(eqn)
    costs = {mask: total_cost(eqns) for mask, eqns in by_inputs.items()}
    seconds = {mask: sum(map(facts.seconds, eqns)) for mask, eqns in by_inputs.items()}
    rows = []
    for index, path in enumerate(engine.paths):
        reached = [mask for mask in by_inputs if mask & layout.leaf_mask(index)]
        cost = sum((costs[mask] for mask in reached), ZERO)
        spent_s = sum(seconds[mask] for mask in reached)
        num = sum(len(by_inputs[mask]) for mask in reached)
        share = spent_s / (facts.total_seconds or 1.0)
        width = layout.widths[index]
        rows.append(
            LeafDependence(path, width, num, cost.flops, cost.transcendentals, spent_s, share)
        )
    return DependenceTable(tuple(rows), len(facts.eqns), layout, seconds)
