"""What users see of a cost: totals, equations, loops, what is not counted, measured seconds.

In: rows and measurements. Out: tables, and dictionaries for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from incrax._table import Printable, Table
from incrax.engine.program.cost import Cost
from incrax.inspection.cost.cells import (
    HEADER,
    cost_dict,
    loop_cells,
    loop_dict,
    measured_dict,
    measured_table,
    number,
    quotient,
    ratios,
    row_cells,
    row_dict,
    shortened,
    total_cells,
)
from incrax.inspection.cost.measuring import Measured
from incrax.inspection.cost.messages import wrong_option
from incrax.inspection.cost.places import place_of
from incrax.inspection.cost.rows import EquationCost, LoopCost, summed

PASSES = ("forward", "backward", "hvp")
NUM_ARGUMENTS = 6
TITLES = {"forward": "forward", "backward": "backward", "hvp": "Hessian-vector product"}


@dataclass(frozen=True)
class PassCost:
    """The cost of one pass.

    Fields: `"forward"`, `"backward"` or `"hvp"`; its equations, those that are alike in one row (of a backward pass
    what value and gradient have together and the forward pass has not, so that a row may be negative where a derivative
    rule replaces the forward pass); its loops (of a backward pass those of value and gradient that are not the forward
    pass's).
    """

    name: str
    equations: tuple[EquationCost, ...]
    loops: tuple[LoopCost, ...]

    @property
    def total(self) -> Cost:
        """The cost of the whole pass."""
        return summed(self.equations)

    @property
    def again(self) -> Cost:
        """The cost of what the named change reaches."""
        return summed(self.equations, lambda row: bool(row.runs_again))

    @property
    def avoided(self) -> Cost:
        """The cost of what it leaves alone."""
        return summed(self.equations, lambda row: not row.runs_again)

    @property
    def macs(self) -> float:
        """Multiply-adds of products and convolutions, of real numbers: half their FLOPs; of complex ones an eighth."""
        products = (row for row in self.equations if row.primitive in _PRODUCTS)
        return sum(row.total.flops / (8 if row.results[0].startswith("complex") else 2) for row in products)


_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")


@dataclass(frozen=True)
class SourceCost:
    """What one line or function of the user's costs: where, forward, and backward (None: there is no backward pass)."""

    source: str
    forward: Cost
    backward: Cost | None


@dataclass(frozen=True)
class CostReport(Printable):
    """The cost of a function; made by `incrax.cost`.

    Fields:
        name: the function's name.
        arguments: names and types of its arguments.
        forward: the value.
        backward: the backward pass; None: not asked for, or there is none, see `notes`.
        hvp: the Hessian times a vector; None likewise.
        changing: the inputs that change; None: nothing was said about that.
        branches: `"max"`, `"both"` or `"taken"`.
        measured: measured programs; empty without `measure=True`.
        notes: what one should know about these numbers.
    """

    name: str
    arguments: tuple[str, ...]
    forward: PassCost
    backward: PassCost | None
    hvp: PassCost | None
    changing: tuple[str, ...] | None
    branches: str
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]

    @property
    def passes(self) -> tuple[PassCost, ...]:
        """The passes that there are."""
        return tuple(each for each in (self.forward, self.backward, self.hvp) if each is not None)

    @property
    def per_equation(self) -> tuple[tuple[str, EquationCost], ...]:
        """All rows, each with the name of its pass."""
        return tuple((each.name, row) for each in self.passes for row in each.equations)

    @property
    def ratio(self) -> float | None:
        """FLOPs of the backward pass for one of the forward pass; None without either."""
        return None if self.backward is None else quotient(self.backward.total.flops, self.forward.total.flops)

    @property
    def operations_ratio(self) -> float | None:
        """The same with ten FLOPs for an exponential."""
        if self.backward is None:
            return None
        return quotient(self.backward.total.operations, self.forward.total.operations)

    @property
    def not_counted(self) -> tuple[tuple[str, EquationCost], ...]:
        """Rows whose primitive is not registered: their bytes count, their work does not."""
        return tuple((name, row) for name, row in self.per_equation if not row.is_counted)

    @property
    def unknown_loops(self) -> tuple[tuple[str, LoopCost], ...]:
        """Loops of which one turn is counted, since nobody knows how many there will be."""
        loops = ((each.name, loop) for each in self.passes for loop in each.loops)
        return tuple((name, loop) for name, loop in loops if loop.known_from == "unknown")

    def by_source(self, group: str = "line") -> tuple[SourceCost, ...]:
        """Costs of each line or function of the user's, the dearest first; with a change, of what it reaches.

        Args:
            group: `"line"`, `"function"` or `"file"`.

        Raises:
            CostError: another group.
        """
        if group not in _groups:
            raise wrong_option("group", group, tuple(_groups))
        name = _groups[group]
        rows = {each.name: [row for row in each.equations if self._counts(row)] for each in self.passes}
        places = dict.fromkeys(name(row.source) for part in ("forward", "backward") for row in rows.get(part, ()))
        found = []
        for place in places:
            sums = {part: summed(rows[part], lambda row: name(row.source) == place) for part in rows}  # noqa: B023
            found.append(SourceCost(place, sums["forward"], sums.get("backward")))
        return tuple(sorted(found, key=lambda each: -_operations(each)))

    def _counts(self, row: EquationCost) -> bool:
        return self.changing is None or bool(row.runs_again)

    # --- for programs ---------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The report for programs, with types that JSON has."""
        return {
            "name": self.name,
            "arguments": list(self.arguments),
            "changing": None if self.changing is None else list(self.changing),
            "branches": self.branches,
            "passes": {each.name: self._pass_dict(each) for each in self.passes},
            "backward_over_forward": {"flops": self.ratio, "operations": self.operations_ratio},
            "not_counted": [{"pass": name, **row_dict(row)} for name, row in self.not_counted],
            "unknown_loops": [{"pass": name, **loop_dict(loop)} for name, loop in self.unknown_loops],
            "by_source": [_source_dict(each) for each in self.by_source()],
            "measured": [measured_dict(each) for each in self.measured],
            "notes": list(self.notes),
        }

    def _pass_dict(self, each: PassCost) -> dict[str, Any]:
        change = {} if self.changing is None else {"again": cost_dict(each.again), "avoided": cost_dict(each.avoided)}
        return {
            "total": cost_dict(each.total),
            **change,
            "macs": each.macs,
            "equations": [row_dict(row) for row in each.equations],
            "loops": [loop_dict(loop) for loop in each.loops],
        }

    # --- for people -----------------------------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """The report for people."""
        tables = [self._totals(), self._dearest()]
        loops = [(each.name, loop) for each in self.passes for loop in each.loops]
        if loops:
            header = ("pass", "loop", "turns", "known", "FLOPs a turn", "transcendentals a turn", "inside", "source")
            tables.append(Table("loops", header, shortened([loop_cells(*loop) for loop in loops])))
        if self.not_counted:
            header = ("pass", "primitive", "times", "inputs", "source")
            cells = [
                (name, r.primitive, number(r.times), ", ".join(r.inputs), r.source) for name, r in self.not_counted
            ]
            tables.append(Table("not counted: no rule says what these compute (`rules=`)", header, shortened(cells)))
        tables += [measured_table(each) for each in self.measured]
        if self.notes:
            tables.append(Table("notes", ("what to know of these numbers",), [(note,) for note in self.notes]))
        return tables

    def _totals(self) -> Table:
        rows = [total_cells(TITLES[each.name], each.total) for each in self.passes]
        if self.backward is not None:
            rows.append(("backward / forward", *ratios(self.backward.total, self.forward.total), ""))
        if self.changing is not None:
            for each in self.passes:
                rows.append(total_cells(f"{TITLES[each.name]}, run again", each.again))
                rows.append(total_cells(f"{TITLES[each.name]}, avoided", each.avoided))
        change = "" if self.changing is None else f"; changing: {_shown(self.changing) or 'nothing'}"
        return Table(f"cost of {self.name}({_shown(self.arguments)}){change}", ("", *HEADER), rows)

    def _dearest(self) -> Table:
        rows = [(name, row) for name, row in self.per_equation if name != "hvp"]
        rows.sort(key=lambda item: tuple(map(abs, item[1].total.weight)), reverse=True)
        header = ("pass", "equation", "times", "FLOPs", "transcendentals", "int ops", "bytes", "inside", "source")
        cells = [row_cells(name, row) for name, row in rows]
        return Table("dearest equations", header, shortened(cells))


def _shown(names: Sequence[str]) -> str:
    """The first names, where there are many."""
    rest = len(names) - NUM_ARGUMENTS
    return ", ".join([*names[:NUM_ARGUMENTS], *([f"... {rest} more"] if rest > 0 else [])])


def _operations(each: SourceCost) -> float:
    return each.forward.operations + (0.0 if each.backward is None else each.backward.operations)


_groups: dict[str, Callable[[str], str]] = {
    "line": lambda source: source,
    "function": lambda source: place_of(source).function,
    "file": lambda source: place_of(source).file,
}


def _source_dict(each: SourceCost) -> dict[str, Any]:
    backward = None if each.backward is None else cost_dict(each.backward)
    return {"source": each.source, "forward": cost_dict(each.forward), "backward": backward}
