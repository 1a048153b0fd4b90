"""Segmentation: equations grouped by dependency set, so that few programs serve every dirty set
together.

The wanted values are grouped by what they depend on; a segment computes one group from the inputs
and from groups that depend on less, and the top computes the outputs from the wanted values. Any
change is served by the segments that it reaches, then the top: the number of programs is bounded by
the number of distinct dependency sets.

In: `Facts` and wanted variables. Out: groups with plans, and for a dirty set its route. It must not
know programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from incrax._jax import Var
from incrax.engine.plan.blocks import RowValues, block_plan
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Blocked, Plan, plan_fill, plan_top

Group = tuple[Var, ...]
Kind = tuple[int, int]
"""What the values of a group depend on, and of how many rows their blocks are; 0: it has none."""

MAX_ROUTES = 4096


class Route(NamedTuple):
    """How segments serve a dirty set: groups to compute, and unchanged saved values that are
    read.
    """

    groups: tuple[Group, ...]
    clean: tuple[Var, ...]


class Segmentation:
    """The groups of the wanted values; plans of groups that stay the same survive a change of
    them.
    """

    def __init__(
        self, facts: Facts, row_values: Sequence[RowValues] = (), *, may_factor: bool = False
    ) -> None:
        self.facts = facts
        self.may_factor = may_factor
        self.row_values = {var: values for values in row_values for var in values.divided}
        self.wanted: dict[Var, None] = {}
        self.groups: dict[Kind, Group] = {}
        self._plans: dict[Group, Plan] = {}
        self._routes: dict[int, Route] = {}
        self._top_plan: Plan | None = None

    def want(self, variables: Iterable[Var]) -> bool:
        """Add variables of the program to the wanted ones; whether any was new."""
        new = [var for var in variables if var not in self.wanted and not self._is_derived(var)]
        if not new:
            return False
        wanted = {**self.wanted, **dict.fromkeys(new)}
        by_kind: dict[Kind, list[Var]] = {}
        for var in wanted:
            by_kind.setdefault(self._kind(var), []).append(var)
        groups = {
            kind: tuple(by_kind[kind])
            for kind in sorted(by_kind, key=lambda kind: (kind[0].bit_count(), *kind))
        }
        self.wanted = wanted
        self.groups = groups
        for group in [g for g in self._plans if not self.is_current(g)]:
            del self._plans[group]
        self._routes = {}
        self._top_plan = None
        return True

    def is_current(self, group: Group) -> bool:
        """Whether a group is still one; such groups keep their plans, even where a new value could
        serve them.
        """
        var = group[0]
        return self._is_derived(var) or self.groups.get(self._kind(var)) == group

    def _is_derived(self, var: Var) -> bool:
        derived = self.facts.derived
        return var in derived.recipes

    def _kind(self, var: Var) -> Kind:
        values = self.row_values.get(var)
        return self.facts.mask(var), 0 if values is None else values.length

    def group_of(self, var: Var) -> Group:
        """The variables that one segment computes together; a derived variable is alone with its
        flag.
        """
        derived = self.facts.derived
        if var in derived.recipes:
            return (var, derived.flags[var]) if var in derived.flags else (var,)
        return self.groups.get(self._kind(var), (var,))

    def missing_groups(
        self, variables: Iterable[Var], is_missing: Callable[[Var], bool]
    ) -> list[Group]:
        """The groups of missing variables, and of those that they load and that are missing."""
        groups: dict[Group, None] = {}
        pending = [var for var in variables if is_missing(var)]
        while pending:
            group = self.group_of(pending.pop())
            if group not in groups:
                groups[group] = None
                pending += [var for var in self.plan(group).current_loads if is_missing(var)]
        return list(groups)

    def in_order(self, groups: Iterable[Group]) -> list[Group]:
        """Groups, each after those that it loads: these depend on less, or are what `plan` says."""

        def rank(group: Group) -> tuple[int, int]:
            var = group[0]
            place = 2 if self._is_derived(var) else var not in self.row_values
            return self.facts.mask(var).bit_count(), place

        return sorted(groups, key=rank)

    def plan(self, group: Group) -> Plan:
        """The plan of one group: from the inputs and from wanted values that depend on less."""
        found = self._plans.get(group)
        if found is None:
            facts = self.facts
            mask = facts.mask(group[0])
            is_derived = self._is_derived(group[0])
            values = self.row_values.get(group[0])

            def is_below(var: Var) -> bool:
                if var not in self.wanted or facts.mask(var) & ~mask:
                    return False
                # Of values that depend on the same, those in blocks come first.
                may_equal = is_derived or (values is None and var in self.row_values)
                return may_equal or facts.mask(var) != mask

            if values is None:
                found = plan_fill(facts, group, is_below)
            else:
                found = block_plan(facts, group, values, is_below, self._blocked)
            self._plans[group] = found
        return found

    def _blocked(self, var: Var) -> Blocked | None:
        """How a wanted value is computed, if it is in blocks."""
        return self.plan(self.group_of(var)).blocked if var in self.row_values else None

    def top_plan(self) -> Plan:
        """The plan from the wanted values to the outputs."""
        if self._top_plan is None:
            self._top_plan = plan_top(self.facts, self.wanted, may_factor=self.may_factor)
        return self._top_plan

    def route(self, dirty: int) -> Route:
        """What a change makes run and read, from the outputs backwards."""
        found = self._routes.get(dirty)
        if found is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes = {}
            found = self._routes[dirty] = self._find_route(dirty)
        return found

    def _find_route(self, dirty: int) -> Route:
        groups: dict[Group, None] = {}
        clean: dict[Var, None] = {}
        pending = list(self.top_plan().loads)
        while pending:
            var = pending.pop()
            if not self.facts.mask(var) & dirty:
                clean[var] = None
            elif (group := self.group_of(var)) not in groups:
                groups[group] = None
                pending += self.plan(group).current_loads
        return Route(tuple(groups), tuple(clean))
