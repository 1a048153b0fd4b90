"""One program of a call, counted: its regions, how often they run, its rows.

In: a traced program and what was asked. Out: `Counted`. It must not know which derivative the program is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from incrax._jax import Equation
from incrax._tuning import Tuning
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.program.cost import Cost
from incrax.engine.program.dependence import ALWAYS, depend, make_layout
from incrax.inspection.cost.counting import counts_of_run, has_open_regions
from incrax.inspection.cost.messages import has_effects, needs_values
from incrax.inspection.cost.plain import value_type
from incrax.inspection.cost.programs import Call, Traced
from incrax.inspection.cost.regions import AS_RUN, AS_WRITTEN, Region, regions_of
from incrax.inspection.cost.report import PassCost
from incrax.inspection.cost.rows import Choices, Rows, UserRule, together


class Options(NamedTuple):
    """What was asked: inputs that change, turns of loops, branches, whether to measure, rules of the user's."""

    changing: tuple[str, ...] | None
    trips: int | str | None
    branches: str
    measure: bool
    rules: Mapping[str, UserRule]

    @property
    def running(self) -> str:
        """The option that asks for a run; empty without one."""
        asked = {
            "measure=True": self.measure,
            "trips='measured'": self.trips == "measured",
            "branches='taken'": self.branches == "taken",
        }
        return next((name for name, is_asked in asked.items() if is_asked), "")

    def is_as_run(self, call: Call) -> bool:
        """Whether the equations are those that the engine runs."""
        return call.plain.is_incremental or self.changing is not None


@dataclass(frozen=True)
class Counted:
    """A program with its regions and rows."""

    traced: Traced
    root: Region
    rows: Rows

    def cost_of(self, eqns: Sequence[Equation]) -> Cost:
        """The cost of some of its equations."""
        chosen = {id(eqn) for eqn in eqns}
        return self.rows.cost_of([node for node in self.root.nodes if id(node.eqn) in chosen], self.root)

    @property
    def is_derivative_missing(self) -> bool:
        """Whether the program takes a tangent through a rule for cotangents, which JAX cannot run."""
        return any(row.primitive == "custom_lin" for row in self.rows.equations)

    def as_pass(self, name: str) -> PassCost:
        """The rows as a pass."""
        return PassCost(name, together(self.rows.equations), tuple(self.rows.loops))


def count(call: Call, traced: Traced, options: Options) -> Counted:
    """Count a program; runs it only where how often something runs is to be measured."""
    root = regions_of(traced.program, AS_RUN if options.is_as_run(call) else AS_WRITTEN)
    counts = None
    if (options.trips == "measured" or options.branches == "taken") and has_open_regions(root):
        counts = counts_of_run(root, traced.inputs(call.values))
    turns = None if isinstance(options.trips, str) else options.trips
    rows = Rows(Choices(options.branches, turns, counts, options.rules))
    rows.add(root, None if options.changing is None else _reached(call, traced, root, options.changing))
    return Counted(traced, root, rows)


def _reached(call: Call, traced: Traced, root: Region, changing: Sequence[str]) -> list[bool]:
    """Whether a change reaches each equation; what is no argument changes always."""
    layout = make_layout([var.aval for var in root.program.invars], Tuning().max_tracked)
    num_values = len(call.values)
    mask = ALWAYS | paths_mask(call.value_paths, layout, changing)
    for number in range(num_values, num_values + len(traced.further)):
        mask |= layout.leaf_mask(number)
    dependence = depend(root.program, layout)
    return [bool(dependence.of_equation(node.eqn) & mask) for node in root.nodes]


def check_run(call: Call, traced: Traced, options: Options) -> None:
    """Check that the function can be run, if that is asked for.

    Raises:
        CostError: an argument has no values, or the function has effects.
    """
    if not options.running:
        return
    for path, value in zip(call.value_paths, call.values, strict=True):
        if isinstance(value, jax.ShapeDtypeStruct):
            raise needs_values(options.running, path, value_type(value))
    effects = sorted({str(effect) for eqn in traced.program.eqns for effect in eqn.effects})
    if effects:
        raise has_effects(options.running, effects)
