"""Segments: the programs of a segmentation.

In: `Facts`, a compiler, wanted variables. Out: programs with their seconds. It must not know
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from incrax._jax import Var
from incrax.engine.compile.timing import TimedCompiler, TimedProgram, usual_s
from incrax.engine.plan.blocks import RowValues
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.families import operation_digest
from incrax.engine.plan.plan import Plan, plan_fill, plan_whole
from incrax.engine.plan.segmentation import Group, Segmentation

MIN_JOINT = 4
"""Groups without a program from which on one program fills them together."""


class Segments(Segmentation):
    """Compiled segments for the wanted values; programs of groups that stay the same survive a
    change of them.
    """

    def __init__(
        self,
        facts: Facts,
        compiler: TimedCompiler,
        row_values: Sequence[RowValues] = (),
        *,
        may_factor: bool = False,
    ) -> None:
        super().__init__(facts, row_values, may_factor=may_factor)
        self.compiler = compiler
        self._programs: dict[Group, TimedProgram] = {}
        self._joint: dict[frozenset[Var], TimedProgram] = {}
        self.primes = False  # what is missing of many groups is all saved by the whole function
        self.priming: TimedProgram | None = None
        self.primed_s = 0.0  # that it took in the place of groups without a program
        self._top: TimedProgram | None = None
        self._is_filled = False
        self._digests: dict[Group, int] = {}
        self._made: set[int] = set()

    def want(self, variables: Iterable[Var]) -> bool:
        """Add variables of the program to the wanted ones; whether any was new."""
        if not super().want(variables):
            return False
        clock = self.compiler.clock
        clock.ticks += 1
        for group in [g for g in self._programs if not self.is_current(g)]:
            del self._programs[group]
        self._joint = {}
        self._digests = {}
        self._top = None
        return True

    # --- programs ---------------------------------------------------------------------------------

    def program(self, group: Group) -> TimedProgram:
        """The program of one group."""
        found = self._programs.get(group)
        if found is None:
            found = self._programs[group] = self.compiler.compile(self.plan(group))
            self._made.add(self._digest(group))
            self._is_filled = True
            self.primed_s = 0.0
        return found

    def compiling_s(self, groups: Iterable[Group]) -> float:
        """Seconds that compiling usually takes before groups can be computed, of which those with the
        same operations share a program; nothing for the first ones: who decided to save them has
        counted that.
        """
        if not self._is_filled:
            return 0.0
        new = [group for group in groups if group not in self._programs]
        num_eqns = {self._digest(group): len(self.plan(group).eqns) for group in new}
        return sum(usual_s(num) for digest, num in num_eqns.items() if digest not in self._made)

    def _digest(self, group: Group) -> int:
        """Equal for groups whose programs are most often the same one."""
        known = self._digests.get(group)
        if known is None:
            known = self._digests[group] = sum(map(operation_digest, self.plan(group).eqns))
        return known

    def joint_plan(
        self, variables: Iterable[Var], dirty: int, is_missing: Callable[[Var], bool]
    ) -> Plan | None:
        """One plan for all that is missing of many groups, the first time for these wanted values:
        it compiles in the time of a few. None: let each group have its own.

        Not for what a change reaches: segments compute that at each call, and are timed.
        """
        clean = [var for var in variables if not self.facts.mask(var) & dirty]
        groups = self.missing_groups(clean, is_missing)
        missing = tuple([var for group in groups for var in group if is_missing(var)])
        known = self.stand_in(groups) or self._joint.get(frozenset(missing))
        if known is not None:
            return known.plan
        num_new = sum(group not in self._programs for group in groups)
        if num_new < MIN_JOINT or self._joint:
            return None
        changing = [var for var in self.wanted if self.facts.mask(var)]  # others are never stale
        if self.primes and self.priming is None and changing:
            return plan_whole(self.facts, changing)
        return plan_fill(self.facts, missing, lambda _: False)

    def joint(self, plan: Plan) -> TimedProgram:
        """The program of that plan."""
        if plan.outputs:
            if self.priming is None:
                self.priming = self.compiler.compile(plan)
                self._is_filled = True
            return self.priming
        found = self._joint.get(frozenset(plan.saves))
        if found is None:
            found = self._joint[frozenset(plan.saves)] = self.compiler.compile(plan)
            self._is_filled = True
        return found

    def stand_in(self, groups: Iterable[Group]) -> TimedProgram | None:
        """The whole function, which saves all of some groups but what is derived, which comes from these,
        as long as it took less in the place of groups without a program than it takes to compile them.
        """
        priming = self.priming
        if priming is None or priming.plan is None:
            return None
        saved = set(priming.plan.saves)
        own = [group for group in groups if not self._is_derived(group[0])]
        new = [group for group in own if group not in self._programs]
        is_saved = new and all(var in saved for group in own for var in group)
        return priming if is_saved and self.primed_s < self.compiling_s(new) else None

    def note_primed(self) -> None:
        """It stood in for groups without a program."""
        assert self.priming is not None
        assert self.priming.plan is not None
        self.primed_s += self.priming.seconds or self.priming.plan.seconds

    def top(self) -> TimedProgram:
        """The program from the wanted values to the outputs."""
        if self._top is None:
            self._top = self.compiler.compile(self.top_plan())
        return self._top

    def is_compiled(self, dirty: int) -> bool:
        """Whether a change is served without compiling anything."""
        return self._top is not None and all(
            group in self._programs for group in self.route(dirty).groups
        )

    def is_measured(self, dirty: int) -> bool:
        """Whether all programs of a route were timed."""
        programs = [self._top, *map(self._programs.get, self.route(dirty).groups)]
        return all(program is not None and program.is_measured for program in programs)

    def retime(self, dirty: int) -> None:
        """Time the programs of a route at their next run."""
        for program in (self.top(), *map(self.program, self.route(dirty).groups)):
            program.retime()

    def retime_all(self) -> None:
        """Time every program at its next run."""
        others = *self._programs.values(), *self._joint.values()
        for program in (self._top, self.priming, *others):
            if program is not None:
                program.retime()

    def seconds(self, dirty: int, price: float) -> float:
        """Seconds of the segments that a change reaches, and of the top; estimates times `price` if
        not measured.
        """
        groups = (None, *self.route(dirty).groups)
        return sum([self.group_seconds(group, price) for group in groups])

    def group_seconds(self, group: Group | None, price: float) -> float:
        """Seconds of one segment, of the top for None; estimates times `price` if not measured."""
        program = self._top if group is None else self._programs.get(group)
        if program is not None and program.seconds is not None:
            return program.seconds
        return price * (self.top_plan() if group is None else self.plan(group)).seconds

    def fill_seconds(self, missing: Iterable[Var], price: float) -> float:
        """Seconds to compute missing values."""
        return sum(
            self.group_seconds(group, price) for group in dict.fromkeys(map(self.group_of, missing))
        )
