"""How often each region runs, and what its equations cost: rows of a report.

In: regions, and counts of a measured run if there was one. Out: `EquationCost` and `LoopCost`. It must not know what
the program is for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.engine.program.cost import ZERO, Cost, leaf_cost
from incrax.engine.program.nested import is_counted
from incrax.inspection.cost.messages import wrong_rule
from incrax.inspection.cost.regions import Node, Region


@dataclass(frozen=True)
class EquationCost:
    """Equations that are alike.

    Fields: primitive; `file:line (function)` of the user's code, "" if unknown; types of inputs and results; loops,
    branches and calls around; what one evaluation costs; how many evaluations there are, equations and turns
    multiplied; whether the turns of all loops around are known; whether the primitive is registered, so that its work
    is counted; whether a change reaches it (None: no change was named).
    """

    primitive: str
    source: str
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    inside: str
    each: Cost
    times: float
    is_known: bool = True
    is_counted: bool = True
    runs_again: bool | None = None

    @property
    def total(self) -> Cost:
        """The cost of all evaluations."""
        return self.each.times(self.times)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for what one row stands for."""
        types = self.inputs, self.results
        return self.primitive, self.source, types, self.inside, self.each, self._flags

    @property
    def _flags(self) -> tuple[bool | None, ...]:
        return self.is_known, self.is_counted, self.runs_again


@dataclass(frozen=True)
class LoopCost:
    """A loop.

    Fields: primitive; source line; loops, branches and calls around; turns of one evaluation; where that number is
    from: "static", "measured", "given" or "unknown" (then one turn is counted); what one turn costs, the condition
    included.
    """

    primitive: str
    source: str
    inside: str
    turns: float
    known_from: str
    turn: Cost


UserRule = Callable[[Sequence[jax.ShapeDtypeStruct], Sequence[jax.ShapeDtypeStruct], Mapping[str, Any]], float]
"""FLOPs of an equation from the types of its inputs and results and its parameters."""


class Choices(NamedTuple):
    """What the structure leaves open.

    Branches "max", "both" or "taken"; turns given; how often regions ran; rules of the user's.
    """

    branches: str = "max"
    turns: float | None = None
    counts: Sequence[int] | None = None
    rules: Mapping[str, UserRule] = MappingProxyType({})

    def leaf(self, eqn: Equation) -> tuple[Cost, bool]:
        """The cost of an equation without what is inside, and whether its work is counted.

        Raises:
            CostError: a rule of the user's gives no number.
        """
        known = leaf_cost(eqn)
        if is_counted(eqn):
            return known, True
        rule = self.rules.get(eqn.primitive.name)
        return (known, False) if rule is None else (known._replace(flops=_by_rule(rule, eqn)), True)

    def is_opened(self, node: Node) -> bool:
        """Whether what is inside an equation counts, and not a rule of the user's."""
        return bool(node.regions) and (is_counted(node.eqn) or node.eqn.primitive.name not in self.rules)


def _by_rule(rule: UserRule, eqn: Equation) -> float:
    typed = lambda atoms: [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]
    found = rule(typed(eqn.invars), typed(eqn.outvars), eqn.params)
    if not isinstance(found, (int, float, np.integer, np.floating)) or not 0 <= found < math.inf:
        raise wrong_rule(eqn.primitive.name, repr(found))
    return float(found)


class Times(NamedTuple):
    """Evaluations of a region for each of the region around it, and where that is from."""

    number: float
    known_from: str = "static"


@dataclass
class Rows:
    """The rows of one program, in the order of its equations."""

    choices: Choices
    equations: list[EquationCost] = field(default_factory=list)
    loops: list[LoopCost] = field(default_factory=list)
    _costs: dict[int, Cost] = field(default_factory=dict)

    def add(self, root: Region, again: Sequence[bool] | None = None) -> None:
        """All rows of a program; `again` says which of its equations a change reaches."""
        for number, node in enumerate(root.nodes):
            self._add(node, root, _Place("", 1.0, True, None if again is None else again[number]))

    def _add(self, node: Node, around: Region, place: _Place) -> None:
        if not self.choices.is_opened(node) or not is_counted(node.eqn):
            self.equations.append(_row(node.eqn, place, *self.choices.leaf(node.eqn)))
        if not self.choices.is_opened(node):
            return
        times = [self.times(node, region, around) for region in node.regions]
        if node.regions[0].kind == "turn":
            self.loops.append(self._loop(node, times, place))
        for region, each in zip(node.regions, times, strict=True):
            if each.number:
                self._enter(region, place.inside(node, region, each))

    def _enter(self, region: Region, place: _Place) -> None:
        for node in region.nodes:
            self._add(node, region, place)

    def _loop(self, node: Node, times: Sequence[Times], place: _Place) -> LoopCost:
        turn = sum((self.cost(region) for region in node.regions), ZERO)
        source, first = place.source_of(node.eqn), times[0]
        return LoopCost(node.eqn.primitive.name, source, place.text, first.number, first.known_from, turn)

    # --- evaluations ----------------------------------------------------------------------------------------------

    def times(self, node: Node, region: Region, around: Region) -> Times:
        """How often a region runs for each time that the one around it does."""
        if region.kind == "branch":
            return self._branch_times(node, region, around)
        if region.kind == "condition":
            turns = self._turns(node, node.regions[0], around)
            return Times(turns.number + (turns.known_from != "unknown"), turns.known_from)
        return self._turns(node, region, around)

    def _turns(self, node: Node, region: Region, around: Region) -> Times:
        if node.turns is not None:
            return Times(float(node.turns))
        measured = self._measured(region, around)
        if measured is not None:
            return Times(measured, "measured")
        if self.choices.turns is not None:
            return Times(float(self.choices.turns), "given")
        return Times(1.0, "unknown")

    def _measured(self, region: Region, around: Region) -> float | None:
        counts = self.choices.counts
        if counts is None or not counts[around.number]:
            return None
        return float(counts[region.number]) / float(counts[around.number])

    def _branch_times(self, node: Node, region: Region, around: Region) -> Times:
        if node.branch is not None:
            return Times(float(node.regions[node.branch] is region))
        if self.choices.branches == "both":
            return Times(1.0)
        measured = self._measured(region, around) if self.choices.branches == "taken" else None
        if measured is not None:
            return Times(measured, "measured")
        dearest = max(node.regions, key=lambda each: self.cost(each).weight)
        return Times(float(dearest is region))

    def cost(self, region: Region) -> Cost:
        """The cost of one evaluation of a region."""
        found = self._costs.get(region.number)
        if found is None:
            found = self._costs[region.number] = self.cost_of(region.nodes, region)
        return found

    def cost_of(self, nodes: Iterable[Node], around: Region) -> Cost:
        """The cost of some equations of a region."""
        return sum((self._node_cost(node, around) for node in nodes), ZERO)

    def _node_cost(self, node: Node, around: Region) -> Cost:
        own = ZERO if node.regions and is_counted(node.eqn) else self.choices.leaf(node.eqn)[0]
        if not self.choices.is_opened(node):
            return own
        parts = (self.cost(region).times(self.times(node, region, around).number) for region in node.regions)
        return sum(parts, own)


class _Place(NamedTuple):
    """Where equations stand; the line of what is around them serves where they have none of their own."""

    text: str
    times: float
    is_known: bool
    runs_again: bool | None
    source: str = ""

    def source_of(self, eqn: Equation) -> str:
        """The line of an equation here."""
        return _jax.source_line(eqn) or self.source

    def inside(self, node: Node, region: Region, times: Times) -> _Place:
        """Inside an equation."""
        around = f"{self.text} > " if self.text else ""
        is_known = self.is_known and times.known_from != "unknown"
        text = around + _name(node, region, times)
        return _Place(text, self.times * times.number, is_known, self.runs_again, self.source_of(node.eqn))


def _name(node: Node, region: Region, times: Times) -> str:
    name = node.eqn.primitive.name
    if region.kind == "branch":
        return f"branch {node.regions.index(region)} of {len(node.regions)}"
    if region.kind == "call":
        return name
    turns = "?" if times.known_from == "unknown" else f"{times.number:g}"
    return f"{name} condition x {turns}" if region.kind == "condition" else f"{name} x {turns}"


def _row(eqn: Equation, place: _Place, cost: Cost, is_known: bool) -> EquationCost:
    return EquationCost(
        eqn.primitive.name,
        place.source_of(eqn),
        tuple(_type(atom.aval) for atom in eqn.invars),
        tuple(_type(var.aval) for var in eqn.outvars),
        place.text,
        cost,
        place.times,
        place.is_known,
        is_known,
        place.runs_again,
    )


def _type(aval: Any) -> str:
    return str(aval) if not isinstance(getattr(aval, "shape", None), tuple) else _array_type(aval.dtype, aval.shape)


@functools.lru_cache(maxsize=4096)
def _array_type(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


# --- sets of rows -------------------------------------------------------------------------------------------------


def together(rows: Iterable[EquationCost]) -> tuple[EquationCost, ...]:
    """One row for all that are alike."""
    return difference(rows, ())


def difference(rows: Iterable[EquationCost], others: Iterable[EquationCost]) -> tuple[EquationCost, ...]:
    """Rows without those of another program; what only the other one has is negative."""
    found: dict[tuple[Any, ...], EquationCost] = {}
    for row, sign in [*((row, 1.0) for row in rows), *((row, -1.0) for row in others)]:
        known = found.get(row.key)
        found[row.key] = replace(row, times=sign * row.times + (0.0 if known is None else known.times))
    return tuple(row for row in found.values() if row.times)


def summed(rows: Iterable[EquationCost], keep: Callable[[EquationCost], bool] = lambda _: True) -> Cost:
    """The cost of rows."""
    return sum((row.total for row in rows if keep(row)), ZERO)
