"""Segments: programs that serve every dirty set together, whatever it is.

The wanted values are grouped by what they depend on; a segment computes one group from the inputs and from groups that
depend on less, and the top computes the outputs from the wanted values. Any change is served by the segments that it
reaches, then the top: the number of programs is bounded by the number of distinct dependency sets.

In: `Facts` and wanted variables. Out: programs, and for a dirty set its route. It must not know values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from incrax._jax import Var
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan, plan_fill, plan_top
from incrax.running.compiled import Compiler
from incrax.running.recycling import Pool
from incrax.running.stats import Stats
from incrax.running.timing import Clock, TimedProgram

Group = tuple[Var, ...]

MAX_ROUTES = 4096


class Route(NamedTuple):
    """How segments serve a dirty set: groups to compute, and unchanged saved values that are read."""

    groups: tuple[Group, ...]
    clean: tuple[Var, ...]


class Segments:
    """Compiled segments for the wanted values; programs of groups that stay the same survive a change of them."""

    def __init__(self, facts: Facts, compiler: Compiler, stats: Stats, clock: Clock, pool: Pool) -> None:
        self.facts = facts
        self.compiler = compiler
        self.stats = stats
        self.clock = clock
        self.pool = pool
        self.wanted: dict[Var, None] = {}
        self.groups: dict[int, Group] = {}
        self._plans: dict[Group, Plan] = {}
        self._programs: dict[Group, TimedProgram] = {}
        self._routes: dict[int, Route] = {}
        self._top_plan: Plan | None = None
        self._top: TimedProgram | None = None

    def fork(self, stats: Stats, clock: Clock, pool: Pool) -> Segments:
        """An independent table with the same compiled programs."""
        other = Segments(self.facts, self.compiler, stats, clock, pool)
        other.wanted, other.groups = dict(self.wanted), dict(self.groups)
        other._plans, other._routes = dict(self._plans), dict(self._routes)
        other._programs = {group: program.copy(clock, pool) for group, program in self._programs.items()}
        other._top_plan, other._top = self._top_plan, None if self._top is None else self._top.copy(clock, pool)
        return other

    def want(self, variables: Iterable[Var]) -> None:
        """Add variables of the program to the wanted ones."""
        new = [var for var in variables if var not in self.wanted and var not in self.facts.derived.recipes]
        if not new:
            return
        self.clock.ticks += 1
        self.wanted.update(dict.fromkeys(new))
        masks = sorted({self.facts.mask(var) for var in self.wanted}, key=lambda mask: (mask.bit_count(), mask))
        self.groups = {mask: tuple(v for v in self.wanted if self.facts.mask(v) == mask) for mask in masks}
        self._forget_changed_groups()
        self._routes, self._top_plan, self._top = {}, None, None

    def _forget_changed_groups(self) -> None:
        """Groups that stay as they are keep their programs, even where a new value could serve them."""
        groups = set(self.groups.values())
        for table in (self._plans, self._programs):
            for group in [g for g in table if g not in groups and g[0] not in self.facts.derived.recipes]:
                del table[group]

    # --- plans and programs --------------------------------------------------------------------------------------

    def group_of(self, var: Var) -> Group:
        """The variables that one segment computes together; a derived variable is alone with its flag."""
        derived = self.facts.derived
        if var in derived.recipes:
            return (var, derived.flags[var]) if var in derived.flags else (var,)
        return self.groups.get(self.facts.mask(var), (var,))

    def plan(self, group: Group) -> Plan:
        """The plan of one group: from the inputs and from wanted values that depend on less."""
        found = self._plans.get(group)
        if found is None:
            mask = self.facts.mask(group[0])
            is_derived = group[0] in self.facts.derived.recipes
            smaller = [v for v in self.wanted if self._is_below(self.facts.mask(v), mask, is_derived)]
            found = self._plans[group] = plan_fill(self.facts, group, smaller)
        return found

    @staticmethod
    def _is_below(mask: int, other: int, is_derived: bool) -> bool:
        return not mask & ~other and (mask != other or is_derived)

    def program(self, group: Group) -> TimedProgram:
        """The program of one group."""
        found = self._programs.get(group)
        if found is None:
            found = self._programs[group] = self._compile(self.plan(group))
        return found

    def top_plan(self) -> Plan:
        """The plan from the wanted values to the outputs."""
        if self._top_plan is None:
            self._top_plan = plan_top(self.facts, self.wanted)
        return self._top_plan

    def top(self) -> TimedProgram:
        """The program from the wanted values to the outputs."""
        if self._top is None:
            self._top = self._compile(self.top_plan())
        return self._top

    def _compile(self, plan: Plan) -> TimedProgram:
        self.stats.compiles += 1
        return TimedProgram(plan, self.compiler.compile_plan(plan), self.clock, self.pool)

    # --- dirty sets ----------------------------------------------------------------------------------------------

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
                pending += self.plan(group).loads
        return Route(tuple(groups), tuple(clean))

    def is_compiled(self, dirty: int) -> bool:
        """Whether a change is served without compiling anything."""
        return self._top is not None and all(group in self._programs for group in self.route(dirty).groups)

    def is_settled(self, dirty: int) -> bool:
        """Whether all programs of a route were timed."""
        programs = [self._top, *map(self._programs.get, self.route(dirty).groups)]
        return all(program is not None and program.is_settled for program in programs)

    def retime(self, dirty: int) -> None:
        """Time the programs of a route at their next run."""
        for program in (self.top(), *map(self.program, self.route(dirty).groups)):
            program.retime()

    def retime_all(self) -> None:
        """Time every program at its next run."""
        for program in (self._top, *self._programs.values()):
            if program is not None:
                program.retime()

    def seconds(self, dirty: int, price: float) -> float:
        """Seconds of the segments that a change reaches, and of the top; estimates times `price` if not measured."""
        top = self._top.seconds if self._top is not None else None
        top_s = self.top_plan().seconds * price if top is None else top
        return top_s + sum(self.group_seconds(group, price) for group in self.route(dirty).groups)

    def group_seconds(self, group: Group, price: float) -> float:
        """Seconds of one segment."""
        program = self._programs.get(group)
        measured = None if program is None else program.seconds
        return self.plan(group).seconds * price if measured is None else measured

    def fill_seconds(self, missing: Iterable[Var], price: float) -> float:
        """Seconds to compute missing values."""
        return sum(self.group_seconds(group, price) for group in dict.fromkeys(map(self.group_of, missing)))
