"""Segments: programs that serve every dirty set together, whatever it is.

The wanted values are grouped by what they depend on; a segment computes one group from the inputs and from groups that
depend on less, and the top computes the outputs from the wanted values. Any change is served by the segments that it
reaches, then the top: the number of programs is bounded by the number of distinct dependency sets.

In: `Facts` and wanted variables. Out: plans with executables. It must not know values.
"""

from __future__ import annotations

from collections.abc import Iterable

from incrax._jax import Var
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan, plan_fill, plan_top
from incrax.running.compiled import Constants, Executable, compile_plan
from incrax.running.stats import Stats

Segment = tuple[Plan, Executable]


class Segments:
    """Compiled segments for the wanted values; programs of groups that stay the same survive a change of them."""

    def __init__(self, facts: Facts, constants: Constants, stats: Stats) -> None:
        self.facts = facts
        self.constants = constants
        self.stats = stats
        self.wanted: dict[Var, None] = {}
        self.groups: dict[int, tuple[Var, ...]] = {}
        self._programs: dict[tuple[Var, ...], Segment] = {}
        self._plans: dict[tuple[Var, ...], Plan] = {}
        self._top_plan: Plan | None = None
        self._top: Segment | None = None

    def fork(self, stats: Stats) -> Segments:
        """An independent table with the same compiled programs."""
        other = Segments(self.facts, self.constants, stats)
        other.wanted, other.groups = dict(self.wanted), dict(self.groups)
        other._plans, other._programs = dict(self._plans), dict(self._programs)
        other._top_plan, other._top = self._top_plan, self._top
        return other

    def want(self, variables: Iterable[Var]) -> None:
        """Add variables of the program to the wanted ones."""
        new = [var for var in variables if var not in self.wanted and var not in self.facts.derived.recipes]
        if not new:
            return
        self.wanted.update(dict.fromkeys(new))
        masks = sorted({self.facts.mask(var) for var in self.wanted}, key=lambda mask: (mask.bit_count(), mask))
        self.groups = {mask: tuple(v for v in self.wanted if self.facts.mask(v) == mask) for mask in masks}
        self._plans, self._top_plan, self._top = self._unchanged_plans(), None, None

    def _unchanged_plans(self) -> dict[tuple[Var, ...], Plan]:
        """Plans of groups that stay as they are keep their programs, even where a new value could serve them."""
        groups = set(self.groups.values())
        return {group: plan for group, plan in self._plans.items() if group in groups or len(group) == 1}

    def group_of(self, var: Var) -> tuple[Var, ...]:
        """The variables that one segment computes together; a derived variable is alone."""
        return (var,) if var in self.facts.derived.recipes else self.groups.get(self.facts.mask(var), (var,))

    def plan(self, group: tuple[Var, ...]) -> Plan:
        """The plan of one group: from the inputs and from wanted values that depend on less."""
        found = self._plans.get(group)
        if found is None:
            mask = self.facts.mask(group[0])
            is_derived = group[0] in self.facts.derived.recipes
            smaller = [v for v in self.wanted if self._is_below(self.facts.mask(v), mask, is_derived)]
            found = self._plans[group] = plan_fill(self.facts, group, smaller)
        return found

    def program(self, group: tuple[Var, ...]) -> Segment:
        """The plan of one group, compiled."""
        plan = self.plan(group)
        found = self._programs.get(plan.saves)
        if found is None or found[0] is not plan:
            found = self._programs[plan.saves] = (plan, compile_plan(self.facts, plan, self.constants))
            self.stats.compiles += 1
        return found

    @staticmethod
    def _is_below(mask: int, other: int, is_derived: bool) -> bool:
        return not mask & ~other and (mask != other or is_derived)

    def top_plan(self) -> Plan:
        """The plan from the wanted values to the outputs."""
        if self._top_plan is None:
            self._top_plan = plan_top(self.facts, self.wanted)
        return self._top_plan

    def top(self) -> Segment:
        """The program from the wanted values to the outputs."""
        plan = self.top_plan()
        if self._top is None:
            self._top = (plan, compile_plan(self.facts, plan, self.constants))
            self.stats.compiles += 1
        return self._top

    def seconds(self, dirty: int) -> float:
        """Estimated seconds of the segments that a change reaches, and of the top."""
        groups = [group for mask, group in self.groups.items() if mask & dirty]
        return sum(self.plan(group).seconds for group in groups) + self.top_plan().seconds

    def are_compiled(self, dirty: int) -> bool:
        """Whether a change is served without compiling anything."""
        groups = [group for mask, group in self.groups.items() if mask & dirty]
        return self._top is not None and all(group in self._programs for group in groups)

    def fill_seconds(self, missing: Iterable[Var]) -> float:
        """Estimated seconds to compute missing values."""
        groups = dict.fromkeys(self.group_of(var) for var in missing)
        return sum(self.plan(group).seconds for group in groups)
