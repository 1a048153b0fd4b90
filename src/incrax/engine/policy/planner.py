"""Which dirty sets get a plan, and a program of their own: where that pays.

In: `Facts`, entries, seconds. Out: entries with programs, and wanted values. It must not know which
candidate serves.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import product
from operator import or_

from incrax._jax import Var
from incrax._table import seconds_text
from incrax._tables import make_room
from incrax.engine.compile.timing import Clock, TimedCompiler, is_large
from incrax.engine.inputs.paths import each_mask, named_masks
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan, Prices, plan_dirty
from incrax.engine.plan.segmentation import Segmentation
from incrax.engine.policy.accounts import Accounts, effective_number
from incrax.engine.policy.autotune import Race
from incrax.engine.policy.candidates import BARRED, MIN_GAIN, SEGMENTS_S, UPKEEP_S, Entry
from incrax.engine.policy.compile_budget import Credit
from incrax.engine.policy.expectations import Expectations
from incrax.engine.policy.learning_costs import LearningCosts
from incrax.engine.policy.log import Journal
from incrax.engine.policy.many_in_turns import ManyInTurns
from incrax.engine.policy.materialize import copied_bytes
from incrax.engine.policy.segments import Segments

NUM_COMPANIONS = 16
"""Other dirty sets, seen before, whose needs are considered when wanted values are first chosen."""

COMPANION_EQNS = 1500
"""Equations above which a program is too large to plan for companions in advance."""

MAX_KIN_EQNS = 100_000
"""Equations times kinds of change, those that have not come yet among them, that are planned for
together where they come in turns: a second at most.
"""

LOAD_PRICES = (1.0, 8.0, 64.0)
"""Factors on the price of loading, tried until the saved values fit the budget."""

MAX_PLANS = 64
"""Compiled programs of plans; other sets of changed inputs run the whole program."""

FREE_PLANS = 12
"""Dirty sets that are planned for as soon as they are hot and there is credit, beside the kin of
those that have a program; later ones must earn it.
"""

FREE_PROGRAMS = 12
"""Programs that are compiled as soon as a dirty set is hot and there is credit; later ones must be
earned.
"""

MIN_IN_TURNS = 2.5
"""Kinds of change from which on they are said to come in turns: three, one of them a little rarer."""

MIN_FAMILIES = 4
"""Of kinds in turns of a large function, from which on it is asked whether segments serve them better."""

ASK_AGAIN = 1.5
"""Times the calls after which that is asked again."""

CROWDED = 1.5
"""Times what is estimated that calls take by a plan for each of many kinds: these load and save many values
between them, 90 along a chain of 23 steps, where the whole function keeps them in caches.
"""

MAX_DIVIDED_EQNS = 500
"""Equations up to which a function is divided for kinds in turns: 20 Gaussian processes in a loop have
1,300, and segments of their own values promise nothing where plans take a twentieth.
"""


_NUMBER = re.compile(r"\[\d+(, \d+)*\]")


@dataclass(eq=False)
class Learner:
    """What one engine plans and compiles with: programs, seconds, accounts, and what may be spent."""

    facts: Facts
    clock: Clock
    compiler: TimedCompiler
    expectations: Expectations
    accounts: Accounts
    race: Race
    costs: LearningCosts
    credit: Credit
    hot_after: int
    budget_bytes: int


@dataclass(eq=False)
class Planner(Learner):
    """The plans of one engine's dirty sets.

    Kinds of change that come in turns are served by segments, which all of them share (`divides`):
    each would leave stale what another's program loads, and have one of its own compiled.
    """

    segments: Segments
    journal: Journal
    entries: Mapping[int, Entry]
    divides: bool = False
    are_in_turns: bool = False
    turns: tuple[int, ...] = ()  # where no segments serve these: they, and others of their lists
    # By programs; another object if it changes.
    loaded: dict[Var, None] = field(default_factory=dict)
    may_plan_each: bool = True  # of kinds in turns of a large function
    _asked_at: int = 0  # calls when that was asked last
    num_planned: int = 0
    num_tried: int = 0

    @property
    def turning(self) -> int:
        """The inputs of kinds in turns that no segments serve."""
        return reduce(or_, self.turns, 0)

    @cached_property
    def trial(self) -> Segmentation:
        """What segments would be if all kinds were served by them: nothing of it is compiled."""
        return Segmentation(self.facts, may_factor=self.segments.may_factor)

    @property
    def num_programs(self) -> int:
        """Compiled programs of plans; a family has one."""
        return len(self._users())

    def _users(self) -> dict[int, list[Entry]]:
        """The entries that have a program, by the one that they share."""
        users = defaultdict[int, list[Entry]](list)
        for entry in self.entries.values():
            if entry.program is not None:
                users[id(entry.program.executable.family)].append(entry)
        return users

    def plan_if_due(self, entry: Entry) -> None:
        """Plan what a hot dirty set needs, then compile a program of its own, each on trust, or when
        earned.
        """
        # One decision at a time: what the last one costs is known when its programs are compiled.
        if entry.is_barred or self.clock.behind.num_waiting:
            return
        if self.facts.is_minimal:
            if not entry.is_decided and self._has_room(entry):
                entry.is_decided = True
                self._compile(
                    entry, plan_dirty(self.facts, entry.dirty, saves=self.segments.wanted)
                )
                entry.settle("plan", "minimal planner")
        elif not entry.is_decided:
            count = max(entry.count, self.accounts.of(entry).mean_calls)
            is_hot = count >= self.hot_after or entry.num_expected
            if is_hot and self.divides and self.segments.wanted:
                entry.is_decided = entry.may_divide = True  # what serves others serves it
                entry.is_final = False
            elif is_hot and self._may_plan(entry):
                self.plan(entry)
        elif entry.program is None:
            has_room = self.num_programs < FREE_PROGRAMS and not self.divides
            on_trust = entry.candidate == "segments" and has_room
            price_s = self.costs.plan_price_s(entry)
            is_allowed = self.credit.allows(entry, self.race.whole_s, price_s, on_trust=on_trust)
            if is_allowed and self._has_room(entry):
                self._compile(entry, self._plan_for_wanted(entry))

    def plan(self, entry: Entry, *, is_asked: bool = False) -> None:
        """Add what a dirty set needs to the wanted values, and a program, if that promises a gain
        and there is credit. Where segments are to serve, no
        value is derived for one kind alone.

        Without credit the dirty set stays unplanned, with the seconds that a plan promises.
        """
        divides = self.divides and not is_asked
        is_foretold = entry.is_foretold
        is_kin = self.accounts.of(entry).num_programs > 0
        self.num_planned += 1
        self.num_tried += is_foretold or (entry.promise_s == math.inf and not is_kin)
        entry.is_decided = True
        entry.is_final = False
        expected_s = self.costs.plan_s + self.costs.calibration_s
        start_s = self.clock.now()
        plan = self._promising_plan(entry, divides=divides)
        took_s = self.clock.now() - start_s
        if plan is not None:
            entry.promise_s = entry.promise_s if is_foretold else plan.seconds
            entry.num_reached = len(plan.eqns)
            price_s = self.costs.plan_price_s(entry, divides=self.divides)
            entry.is_decided = is_asked or self.credit.allows(
                entry, self.race.whole_s, price_s, on_trust=True
            )
            entry.may_divide = entry.is_decided and not self.turns
        # After the decision: what was spent on this plan must not stand against it.
        self.credit.note_plan(entry, took_s, expected_s)
        if plan is not None and entry.is_decided:
            is_for_wanted = self._was_planned_for(entry)
            self._want(entry, plan, divides=divides)
            on_trust = self.num_programs < FREE_PROGRAMS and not divides
            if (is_asked or on_trust) and self._has_room(entry):
                self._compile(entry, plan if is_for_wanted else self._plan_for_wanted(entry))

    def _was_planned_for(self, entry: Entry) -> bool:
        """Whether what a kind in turns needs is among the wanted values already."""
        return bool(self.segments.wanted) and entry.dirty in self.turns

    def _promising_plan(self, entry: Entry, *, divides: bool) -> Plan | None:
        """The plan for a dirty set, with the seconds of what is to serve it; None where it wins
        nothing, or cannot be afforded.
        """
        wanted = self.segments.wanted
        moving = self.expectations.moving(entry.dirty)
        if self._was_planned_for(entry):
            plan = self._plan_for_wanted(entry)
        else:
            plan = self._affordable_plan(entry.dirty, wanted, moving, may_derive=not divides)
        if plan is not None and self._is_stale_in_turns(entry, plan):
            self.turns = self._in_turns()
            is_pure = not self.facts.has_effects  # the plan would have them once more
            self.segments.primes = is_pure and not is_large(len(self.facts.eqns))
            plan = self._affordable_plan(entry.dirty, wanted, moving, may_derive=True)
        if plan is None:
            budget = f"the budget of {self.budget_bytes} bytes"
            entry.settle("whole", f"its saved values do not fit {budget}")
            return None
        if divides and plan.loads:
            plan = replace(plan, seconds=self._divided_s(entry, plan))
        self.accounts.of(entry).served_s = plan.seconds if plan.loads else self.race.whole_s
        if not plan.loads:
            entry.settle("whole", "nothing to win: a plan would load no saved value")
            return None
        if self.race.whole_s - plan.seconds < MIN_GAIN * self.race.whole_s + UPKEEP_S:
            what = "segments" if divides else "plan"
            entry.settle("whole", f"nothing to win: {what} estimated {seconds_text(plan.seconds)}")
            return None
        return plan

    def _affordable_plan(
        self, dirty: int, wanted: Iterable[Var], moving: int, *, may_derive: bool
    ) -> Plan | None:
        """A plan for a dirty set whose loads, with the wanted values and in all their copies, fit the
        budget; of values that the program has, unless others may be derived.
        """
        known = tuple(wanted)
        for may_factor, load_price in product((True, False), LOAD_PRICES):
            plan = plan_dirty(
                self.facts,
                dirty,
                wanted=known,
                prices=Prices(load_price, self.race.run_price),
                may_factor=may_factor,
                may_derive=may_derive,
                moving=moving,
                turning=self.turning,
            )
            if copied_bytes({*known, *plan.loads}) <= self.budget_bytes:
                return plan
        return None

    def _divided_s(self, entry: Entry, plan: Plan) -> float:
        """Estimated seconds of segments for a change, if what its plan and those of other kinds load
        were saved; nothing is compiled for that.
        """
        trial = self.trial
        if not trial.wanted:
            trial.want(self._with_companions(entry, [], may_derive=False))
        trial.want(plan.base_loads)
        plans = [trial.top_plan(), *map(trial.plan, trial.route(entry.dirty).groups)]
        return SEGMENTS_S + self.race.run_price * sum(each.seconds for each in plans)

    def _want(self, entry: Entry, plan: Plan, *, divides: bool) -> None:
        """Add what a plan loads to the wanted values; to the first ones, what other changes need."""
        needs = list(plan.base_loads)
        if divides:
            needs = list(self.trial.wanted)
        elif not self.segments.wanted:
            needs = self._with_companions(entry, needs, may_derive=True)
        self.segments.want(needs)
        self.accounts.has_learned = True

    def _with_companions(
        self, entry: Entry, needs: Sequence[Var], *, may_derive: bool
    ) -> list[Var]:
        """What a dirty set needs, and what others, planned one after the other, would load besides; so
        that all share values from the start.
        """
        wanted = dict.fromkeys(needs)
        is_small = len(self.facts.eqns) <= COMPANION_EQNS
        others = [dirty for dirty in self.turns or self._known if dirty != entry.dirty]
        if not self.turns:
            others = others[-NUM_COMPANIONS:] if is_small else []
        for dirty in others:
            # As if all moved: a matrix serves others as it is.
            plan = self._affordable_plan(dirty, wanted, -1, may_derive=may_derive)
            wanted.update(dict.fromkeys(() if plan is None else plan.base_loads))
        return list(wanted)

    @property
    def _known(self) -> list[int]:
        """The kinds of change that were seen or are expected, and leave something as it is."""
        full = self.facts.layout.full
        seen = dict.fromkeys((*self.expectations.kinds, *self.entries))
        return [dirty for dirty in seen if 0 < dirty & full < full]

    def _is_stale_in_turns(self, entry: Entry, plan: Plan) -> bool:
        """Whether most kinds that come in turns, and are served by no segments, each leave stale what the
        first plan of all loads.
        """
        if not self.are_in_turns or self.divides or self.segments.wanted:
            return False
        read = reduce(or_, map(self.facts.mask, plan.loads), 0)
        calls = {k: self.expectations.calls_of(k) for k in self._known if k != entry.dirty}
        return 2 * sum(num for kind, num in calls.items() if kind & read) > sum(calls.values())

    def _in_turns(self) -> tuple[int, ...]:
        """The kinds that come in turns, and those like them that have not come yet: of single inputs,
        others of the same list; of single elements, others of the same array.
        """
        inputs = self.journal.paths, self.facts.layout
        names = {mask: name for name, mask in named_masks(*inputs).items()}
        found = dict.fromkeys(self._known)
        alike = dict.fromkeys(_NUMBER.sub("[*]", names[d]) for d in found if d in names)
        for name in alike:
            found.update(dict.fromkeys(each_mask(*inputs, name)))
        return tuple(found)[: max(MAX_KIN_EQNS // max(len(self.facts.eqns), 1), 1)]

    def _are_in_turns(self) -> bool:
        """Whether several kinds of change, which leave something as it is, share the calls that were
        looked at, or those of earlier processes.
        """
        shares = [entry.uses for entry in self.entries.values() if entry.clean_share]
        known = [self.expectations.of(dirty).calls for dirty in self.expectations.kinds]
        return max(effective_number(shares), effective_number(known)) >= MIN_IN_TURNS

    def _may_plan(self, entry: Entry) -> bool:
        """Whether to plan for a dirty set; once more, if it was found promising, only when it may
        be compiled for.
        """
        credit = self.credit
        if not self.segments.wanted:
            is_small = len(self.facts.eqns) <= MAX_DIVIDED_EQNS
            self.are_in_turns = self._are_in_turns()
            self.turns = ()
            if self.are_in_turns and not is_small and not self.expectations.is_divided:
                self._weigh_segments()
            may_divide = is_small or self.expectations.is_divided
            self.divides = may_divide and self.are_in_turns
            is_put_off = not (self.divides or self.may_plan_each or credit.compile_s)
            if self.are_in_turns and is_put_off:
                return False
        price_s = self.costs.plan_price_s(entry, divides=self.divides)
        if entry.promise_s < math.inf:
            return credit.allows(entry, self.race.whole_s, price_s, on_trust=True)
        on_trust = self.num_tried < FREE_PLANS
        return credit.allows_planning(entry, self.race.whole_s, price_s, on_trust=on_trust)

    def _weigh_segments(self) -> None:
        """Find out now and then whether segments are to serve kinds in turns, of which few are alike, though
        the function is large, and whether a plan for each would pay over as many calls as came so far.
        """
        costs = self.costs
        whole_s = self.race.whole_s
        num_calls = max(self.accounts.num_calls, self.credit.expected_calls)
        if num_calls < ASK_AGAIN * self._asked_at or num_calls * whole_s < costs.program_s:
            return
        self._asked_at = num_calls
        if self.accounts.families_in_turns < MIN_FAMILIES:
            return
        kinds = self._shares_of_kinds()
        asked = ManyInTurns(self.facts, kinds, num_calls, whole_s, costs.equations_s)
        if 2 * len(asked.families) <= len(kinds):
            self.may_plan_each = True
            return
        # A look is a part of each call, either way.
        left_s = num_calls * (whole_s - self.race.ledger.look_s)
        alone_s = CROWDED * asked.alone_s()
        self.may_plan_each = alone_s < left_s
        self.expectations.is_divided = asked.divided_s() < min(alone_s, left_s)

    def _shares_of_kinds(self) -> dict[int, float]:
        """The kinds in turns with their shares of all calls, of those that have not come yet of one look. What
        contains another kind is what several calls changed, those between two looks.
        """
        turning = self._in_turns()
        single = [k for k in turning if not any(other != k and not other & ~k for other in turning)]
        one_look = self.accounts.squares / max(self.accounts.num_calls, 1)
        counts = {kind: self.expectations.calls_of(kind) + one_look for kind in single}
        total = sum(counts.values())
        return {kind: count / total for kind, count in counts.items()}

    def _plan_for_wanted(self, entry: Entry) -> Plan:
        """A plan for the wanted values as they are; it saves those that become stale where that was
        missed, or kinds come in turns: each would leave stale what the next one loads.
        """
        wanted = self.segments.wanted
        return plan_dirty(
            self.facts,
            entry.dirty,
            wanted=wanted,
            saves=wanted if entry.blame_s or self.turns else (),
            prices=Prices(1.0, self.race.run_price),
            only_wanted=True,
            moving=self.expectations.moving(entry.dirty),
            turning=self.turning,
        )

    def _compile(self, entry: Entry, plan: Plan) -> None:
        entry.program = program = self.compiler.compile(plan)
        self.credit.note_program(entry, is_new=not program.executable.is_shared)
        entry.is_final = entry.is_compared = False
        self.loaded = self.loaded | dict.fromkeys(plan.loads)
        self.journal.planned(entry, plan, len(self.facts.eqns), self.race.whole.seconds)
        make_room()

    def _has_room(self, entry: Entry) -> bool:
        """Whether a program can be added; one that all who share it use less often than this entry makes
        room.
        """
        if self.num_programs < MAX_PLANS:
            return True
        num_uses = lambda users: sum(each.count for each in users)
        victims = min(self._users().values(), key=num_uses)
        if num_uses(victims) >= entry.count:
            return False
        for victim in victims:
            self._drop_program(victim, "its program made room for another")
            self.journal.dropped_program(victim, MAX_PLANS)
        return True

    def note_unusable(self, entry: Entry) -> None:
        """Results of a dirty set's plan could not be used; after several times it gets none any
        more.

        Statistics are made anew about the present point, so that now and then one may be too far
        from it.
        """
        plan = entry.program.plan if entry.program is not None else None
        is_centred = plan is not None and plan.statistics is not None
        if entry.note_unusable(is_spared=is_centred):
            self.bar(entry)

    def give_up_algebra(self, entry: Entry, reason: str) -> None:
        """Plan without algebra over rows from now on."""
        self.facts.algebra.give_up(reason)
        for other in self.entries.values():
            plan = other.program.plan if other.program is not None else None
            if plan is not None and plan.statistics is not None:
                self._drop_program(other, reason)
                other.is_decided = False
        entry.settle("whole", reason)

    def bar(self, entry: Entry) -> None:
        """Give a dirty set no plan any more."""
        if entry.program is not None:
            self._drop_program(entry, BARRED)
        entry.is_barred = True
        entry.settle("whole", BARRED)

    def _drop_program(self, entry: Entry, reason: str) -> None:
        entry.program = None
        entry.is_final = False
        entry.count = 0
        entry.is_decided = not self.facts.is_minimal
        entry.settle("whole", reason)
        plans = [e.program.plan for e in self.entries.values() if e.program is not None]
        self.loaded = {var: None for plan in plans if plan is not None for var in plan.loads}
