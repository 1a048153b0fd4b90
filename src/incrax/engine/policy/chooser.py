"""Which candidates serve a dirty set, in a bounded table.

In: `Facts`, dirty sets as they come, measured seconds. Out: entries with programs. It must not know
values.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from incrax import _jax
from incrax._jax import Var
from incrax._stats import Stats
from incrax._tables import make_room
from incrax._tuning import Tuning
from incrax.engine.compile.background import Background, is_wanted
from incrax.engine.compile.executables import Compiler, Executable
from incrax.engine.compile.recycling import Pool
from incrax.engine.compile.timing import Clock, TimedProgram, compiled
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan, Prices, plan_dirty
from incrax.engine.plan.segmentation import Group, Segmentation
from incrax.engine.plan.slices import can_slice
from incrax.engine.policy.autotune import Race
from incrax.engine.policy.candidates import BARRED, MIN_GAIN, SEGMENTS_S, UPKEEP_S, Candidate, Entry
from incrax.engine.policy.compile_budget import Credit, num_in_turns
from incrax.engine.policy.expectations import Expectations
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.log import Journal
from incrax.engine.policy.materialize import (
    affordable_plan,
    first_wanted,
    lasting_needs,
    lasting_row_values,
    needs_of_companions,
)
from incrax.engine.policy.segments import Segments
from incrax.engine.policy.slices import Slices
from incrax.engine.policy.verdict import Verdict

MAX_ENTRIES = 1024
"""Dirty sets remembered; their plans are bounded by `MAX_PLANS`."""

MAX_PLANS = 64
"""Compiled programs of plans; other sets of changed inputs run the whole program."""

ROUNDS = 4
"""First runs of each program that are timed."""

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

MAX_DIVIDED_EQNS = 500
"""Equations up to which a function is divided for kinds in turns: 20 Gaussian processes in a loop have
1,300, and segments of their own values promise nothing where plans take a twentieth.
"""

DIVIDED = 3.0
"""What all segments take to compile together, the one that fills them at first and that from them to
the outputs, in whole programs.
"""

LOOK_AGAIN_S = 0.05
"""Seconds after which a call is looked at while a thread compiles: what it has made may serve."""

MIN_BYPASSED = 16
"""Calls that bypass at least, before a decision that is due is looked at."""

MAX_UNUSABLE = 4
"""Calls whose results left the range of numbers before a dirty set gets no plan any more."""

USES_PER_CENTRE = 16
"""Uses of a plan that statistics about another point must serve on the average."""


class Chooser:
    """The table of dirty sets of one engine."""

    def __init__(
        self,
        facts: Facts,
        whole: Executable,
        compiler: Compiler,
        tuning: Tuning,
        stats: Stats,
        budget_bytes: int,
        pool: Pool,
        journal: Journal,
        ledger: Ledger,
        *,
        is_exact: bool,
    ) -> None:
        self.facts = facts
        self.journal = journal
        self.is_exact = is_exact
        self.tuning = tuning
        self.stats = stats
        self.budget_bytes = budget_bytes
        self.pool = pool
        self.ledger = ledger
        self.is_timed = not facts.is_minimal and not is_exact
        num_rounds = ROUNDS if tuning.timed and self.is_timed else 0
        self.clock = Clock(num_rounds, compiler.now, is_running=tuning.timed)
        may_wait = self.is_timed and tuning.timed and not facts.calls_host
        if may_wait and compiler.placement is None:
            self.clock.behind = Background(is_on=is_wanted(tuning.background))
        self.compiler = compiler
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        is_divided = is_exact and compiler.placement is None
        row_values = lasting_row_values(facts, budget_bytes) if is_divided else []
        may_factor = self.is_timed and not facts.is_explicit
        self.segments = Segments(
            facts, compiler, stats, self.clock, pool, row_values, may_factor=may_factor
        )
        self.divides = False
        self.trial = Segmentation(facts, may_factor=may_factor)
        self.whole = TimedProgram(None, whole, self.clock, pool)
        is_kept = self.is_timed
        self.expectations = Expectations(
            facts,
            tuning,
            journal.name,
            journal.paths,
            self.entries,
            self.whole,
            ledger,
            is_kept=is_kept,
        )
        self.race = Race(facts, self.whole, self.segments, self.expectations, stats)
        self.credit = Credit(facts, self.clock, self.whole, tuning, self.expectations, ledger)
        # A saved NaN is an output to JAX, which raises on it where a value inside a program may be
        # NaN.
        self.only_whole = _jax.checks_values()
        self.slices = Slices(
            facts,
            compiler,
            self.clock,
            pool,
            stats,
            self.credit,
            tuning,
            budget_bytes,
            is_on=self.is_timed and not self.only_whole and can_slice(facts),
        )
        self.loaded: dict[Var, None] = {}
        self._savable: dict[Var, None] = {}
        self._num_savable = 0
        self.num_planned = 0
        self.num_tried = 0
        self.regret_s = 0.0
        self.segments.want(
            lasting_needs(facts, budget_bytes, row_values) if is_exact else first_wanted(facts)
        )

    @property
    def savable(self) -> dict[Var, None]:
        """All values that some candidate loads or saves; the same object while nothing was
        added.
        """
        num_savable = len(self.segments.wanted) + len(self.slices.saved)
        if self._num_savable != num_savable:
            self._num_savable = num_savable
            top = dict.fromkeys(self.segments.top_plan().loads) if self.segments.wanted else {}
            self._savable = {**self.segments.wanted, **top, **self.loaded, **self.slices.saved}
        return self._savable

    @property
    def num_programs(self) -> int:
        """Compiled programs of plans; a family has one."""
        programs = [entry.program for entry in self.entries.values()]
        return len({id(program.executable.family) for program in programs if program is not None})

    @property
    def whole_s(self) -> float:
        """Seconds of the whole program, measured if it was timed; in calls in a row, if one of
        those was: timed runs find colder caches. What was measured a few times may be far too long:
        what earlier processes know bounds it.
        """
        known_s = None if self.whole.is_settled else self.expectations.whole_s
        return min(self.race.whole_s, self.ledger.turn_s or math.inf, known_s or math.inf)

    def expected_s(self, dirty: int) -> float:
        """Seconds that a call with this dirty set is expected to take."""
        entry = self.entries.get(dirty)
        if entry is not None and entry.seconds:
            return min(entry.seconds.values())
        if self.segments.wanted and self.segments.is_compiled(dirty):
            return min(self.whole_s, self.segments.seconds(dirty, self.race.run_price))
        return self.whole_s

    def loads(self, dirty: int) -> Sequence[Var]:
        """The saved values that serve a change, as far as is known."""
        entry = self.entries.get(dirty)
        if entry is not None and entry.candidate == "plan" and entry.program is not None:
            return entry.program.loads
        segments = self.segments
        return segments.route(dirty).clean if segments.wanted else ()

    # --- entries ----------------------------------------------------------------------------------

    def entry(self, dirty: int, *, may_wait: bool = False) -> Entry:
        """The record of a dirty set that is used now, with its candidate chosen; if it may wait, it
        is planned for only where it came back in earlier processes.
        """
        entry = self.entries.get(dirty) or self._new_entry(dirty)
        self.credit.note_calls(entry, self.ledger.weight)
        if self.is_exact:
            entry.is_planned = entry.is_final = True
            entry.settle(
                "whole" if self.only_whole else "segments", "exact policy: the same programs always"
            )
            return entry
        if entry.program is None and (entry.num_expected > 1 or not may_wait):
            self._plan_if_due(entry)
        if self.is_timed:
            if not entry.is_final or entry.ticks != self.clock.ticks:
                self._choose(entry)
            if entry.is_retry_due:
                self.race.retry(entry)
        return entry

    def _new_entry(self, dirty: int) -> Entry:
        """The record of a dirty set that comes for the first time, with what is known of it."""
        if dirty.bit_count() > 1 and dirty != self.facts.layout.full:
            self.ledger.defer()
        cost_s = self.race.callback_s
        share = self.facts.clean_share(dirty)
        known = self.expectations.of(dirty)
        entry = Entry(dirty, blame_s=cost_s, prior_s=cost_s, clean_share=share)
        entry.num_before = self.credit.num_calls
        entry.num_expected = known.calls
        entry.num_kin_expected = known.kin_calls
        entry.was_compiled = known.was_compiled
        if self.expectations.is_lost(known):
            entry.is_planned = True
            entry.settle("whole", "nothing to win in an earlier process")
        else:
            entry.promise_s = known.plan_s
        if self.is_timed and share:
            entry.family, entry.num_reached = self.facts.reached(dirty)
        self.entries[dirty] = entry
        self.credit.note_kind(entry)
        if len(self.entries) > MAX_ENTRIES:
            self._forget_one()
        return entry

    def _choose(self, entry: Entry) -> None:
        was_final = entry.is_final
        self.race.choose(entry)
        if entry.is_final and not was_final:
            self.credit.note_choice(entry)
            self.journal.chosen(entry)

    def seen(self, dirty: int) -> Entry | None:
        """The record of a dirty set without using it."""
        return self.entries.get(dirty)

    def _forget_one(self) -> None:
        """Forget the oldest dirty set without a program; the oldest of all, where each has one."""
        without = (dirty for dirty, entry in self.entries.items() if entry.program is None)
        oldest = next(without, next(iter(self.entries)))
        del self.entries[oldest]
        self._num_savable = -1

    # --- plans ------------------------------------------------------------------------------------

    def _plan_if_due(self, entry: Entry) -> None:
        """Plan what a hot dirty set needs, then compile a program of its own, each when free or
        earned.
        """
        # One decision at a time: what the last one costs is known when its programs are compiled.
        if self.only_whole or entry.is_barred or self.clock.behind.num_waiting:
            return
        if self.facts.is_minimal:
            if not entry.is_planned and self._has_room(entry):
                entry.is_planned = True
                self._compile(
                    entry, plan_dirty(self.facts, entry.dirty, saves=self.segments.wanted)
                )
                entry.settle("plan", "minimal planner")
        elif not entry.is_planned:
            count = max(entry.count, self.credit.account(entry).mean_calls)
            is_hot = count >= self.tuning.hot_after or entry.num_expected
            if is_hot and self.divides and self.segments.wanted:
                entry.is_planned = entry.may_divide = True  # what serves others serves it
                entry.is_final = False
            elif is_hot and self._may_plan(entry):
                self.plan(entry)
        elif entry.program is None:
            has_room = self.num_programs < FREE_PROGRAMS and not self.divides
            is_early = entry.candidate == "segments" and has_room
            if self.credit.allows(entry, self.whole_s, is_early=is_early) and self._has_room(entry):
                self._compile_for_wanted(entry)

    def plan(self, entry: Entry, *, is_asked: bool = False) -> None:
        """Add what a dirty set needs to the wanted values, and a program, if that promises a gain
        and there is credit.

        Kinds that come in turns are served by segments, which all of them share: each would leave
        stale what another's program loads, and have one of its own compiled. What they load is not
        derived for one of them.

        Without credit the dirty set stays unplanned, with the seconds that a plan promises.
        """
        divides = self.divides and not is_asked
        is_foretold = entry.is_foretold
        is_kin = self.credit.account(entry).num_programs > 0
        self.num_planned += 1
        self.num_tried += is_foretold or (entry.promise_s == math.inf and not is_kin)
        entry.is_planned = True
        entry.is_final = False
        start_s = self.clock.now()
        plan = self._promising_plan(entry, divides=divides)
        took_s = self.clock.now() - start_s
        if plan is not None:
            entry.promise_s = entry.promise_s if is_foretold else plan.seconds
            entry.num_reached = len(plan.eqns)
            entry.is_planned = is_asked or self.credit.allows(
                entry, self.whole_s, is_early=True, work=self._work
            )
            entry.may_divide = entry.is_planned
        # After the decision: what was spent on this plan must not stand against it.
        self.credit.note_plan(entry, took_s)
        if plan is not None and entry.is_planned:
            self._want(entry, plan, divides=divides)
            is_early = self.num_programs < FREE_PROGRAMS and not divides
            if (is_asked or is_early) and self._has_room(entry):
                self._compile_for_wanted(entry)

    def _promising_plan(self, entry: Entry, *, divides: bool) -> Plan | None:
        """The plan for a dirty set, with the seconds of what is to serve it; None where it wins
        nothing, or cannot be afforded.
        """
        budget_bytes = self.budget_bytes
        plan = affordable_plan(
            self.facts,
            entry.dirty,
            self.segments.wanted,
            run_price=self.race.run_price,
            budget_bytes=budget_bytes,
            may_derive=not divides,
        )
        if plan is None:
            entry.settle("whole", f"its saved values do not fit the budget of {budget_bytes} bytes")
            return None
        if divides and plan.loads:
            plan = replace(plan, seconds=self._divided_s(entry, plan))
        self.credit.note_promise(entry, plan.seconds if plan.loads else self.whole_s)
        if not plan.loads:
            entry.settle("whole", "nothing to win: a plan would load no saved value")
            return None
        if self.whole_s - plan.seconds < MIN_GAIN * self.whole_s + UPKEEP_S:
            what = "segments" if divides else "plan"
            entry.settle("whole", f"nothing to win: {what} estimated {plan.seconds * 1e3:.3g} ms")
            return None
        return plan

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
        self.credit.has_learned = True

    def _with_companions(
        self, entry: Entry, needs: Sequence[Var], *, may_derive: bool
    ) -> list[Var]:
        """What other kinds of change would load besides."""
        seen = (*self.expectations.kinds, *self.entries)
        return needs_of_companions(
            self.facts,
            [dirty for dirty in dict.fromkeys(seen) if dirty != entry.dirty],
            needs,
            run_price=self.race.run_price,
            budget_bytes=self.budget_bytes,
            may_derive=may_derive,
        )

    def _are_in_turns(self) -> bool:
        """Whether several kinds of change, which leave something as it is, share the calls that were
        looked at, or those of earlier processes.
        """
        shares = [entry.uses for entry in self.entries.values() if entry.clean_share]
        known = [self.expectations.of(dirty).calls for dirty in self.expectations.kinds]
        return max(num_in_turns(shares), num_in_turns(known)) >= MIN_IN_TURNS

    def _may_plan(self, entry: Entry) -> bool:
        """Whether to plan for a dirty set; once more, if it was found promising, only when it may
        be compiled for.
        """
        credit = self.credit
        if not self.segments.wanted:
            is_small = len(self.facts.eqns) <= MAX_DIVIDED_EQNS
            self.divides = is_small and self._are_in_turns()
        if entry.promise_s < math.inf:
            return credit.allows(entry, self.whole_s, is_early=True, work=self._work)
        is_early = self.num_tried < FREE_PLANS
        return credit.allows_planning(entry, self.whole_s, is_early=is_early, work=self._work)

    @property
    def _work(self) -> float:
        """What is compiled for a plan, in whole programs."""
        return DIVIDED if self.divides else 1.0

    def _compile_for_wanted(self, entry: Entry) -> None:
        """A program for the wanted values as they are; it saves those that become stale where that
        was missed.
        """
        prices = Prices(1.0, self.race.run_price)
        wanted = self.segments.wanted
        saves = wanted if entry.blame_s else ()
        plan = plan_dirty(
            self.facts, entry.dirty, wanted=wanted, saves=saves, prices=prices, only_wanted=True
        )
        self._compile(entry, plan)

    def compile_plan(self, plan: Plan) -> TimedProgram:
        """The program of a plan."""
        return compiled(plan, self.compiler, self.stats, self.clock, self.pool)

    def _compile(self, entry: Entry, plan: Plan) -> None:
        entry.program = program = self.compile_plan(plan)
        self.credit.note_program(entry, is_new=not program.executable.is_shared)
        entry.is_final = entry.is_compared = False
        self.loaded.update(dict.fromkeys(plan.loads))
        self._num_savable = -1
        self.journal.planned(entry, plan, len(self.facts.eqns), self.whole.seconds)
        make_room()

    def _has_room(self, entry: Entry) -> bool:
        """Whether a program can be added; one that is used less often than this entry makes
        room.
        """
        if self.num_programs < MAX_PLANS:
            return True
        programs = [e for e in self.entries.values() if e.program is not None]
        victim = min(programs, key=lambda e: e.count)
        if victim.count >= entry.count:
            return False
        self._drop_program(victim)
        self.journal.dropped_program(victim, MAX_PLANS)
        return True

    def note_unusable(self, entry: Entry) -> None:
        """Results of a dirty set's plan could not be used; after several times it gets none any
        more.

        Statistics are made anew about the present point, so that now and then one may be too far
        from it.
        """
        entry.num_unusable += 1
        plan = entry.program.plan if entry.program is not None else None
        is_centred = plan is not None and plan.statistics is not None
        if entry.num_unusable >= MAX_UNUSABLE + (
            entry.uses // USES_PER_CENTRE if is_centred else 0
        ):
            self.bar(entry)

    def give_up_algebra(self, entry: Entry, reason: str) -> None:
        """Plan without algebra over rows from now on."""
        self.facts.algebra.give_up(reason)
        for other in self.entries.values():
            plan = other.program.plan if other.program is not None else None
            if plan is not None and plan.statistics is not None:
                self._drop_program(other)
                other.is_planned = False
        entry.settle("whole", reason)

    def bar(self, entry: Entry) -> None:
        """Give a dirty set no plan any more."""
        if entry.program is not None:
            self._drop_program(entry)
        entry.is_barred = True
        entry.settle("whole", BARRED)

    def _drop_program(self, entry: Entry) -> None:
        entry.program = None
        entry.is_final = False
        entry.count = 0
        entry.is_planned = not self.facts.is_minimal
        entry.settle("whole", "its program made room for another")
        plans = [e.program.plan for e in self.entries.values() if e.program is not None]
        self.loaded = {var: None for plan in plans if plan is not None for var in plan.loads}
        self._num_savable = -1

    # --- stale values -----------------------------------------------------------------------------

    def pays_to_fill(
        self,
        entry: Entry,
        missing: Sequence[Var],
        groups: Iterable[Group],
        culprit: Entry | None,
    ) -> bool:
        """Whether to compute missing values now; the culprit, whose use left them stale, bears the
        cost either way.

        At once where the user marked them all, where even with them the candidate beats the whole
        program, or to time it; else after as many seconds were lost for want of them as they cost
        (ski rental: never worse than twice the best).
        """
        fill_s = self.segments.fill_seconds(missing, self.race.run_price)
        served_s = entry.seconds.get(entry.candidate, self.whole_s)
        is_tried = not entry.is_final and self.race.is_exploring
        is_marked = all(var in self.facts.kept for var in missing)
        compiling_s = self.segments.compiling_s(groups)
        is_paid = self.credit.pays_for_fill(entry, self.whole_s, served_s, compiling_s)
        is_due = is_tried or fill_s + served_s < self.whole_s or self.regret_s >= fill_s
        pays = is_marked or (is_due and is_paid)
        lost_s = fill_s if pays else max(self.whole_s - served_s, 0.0)
        self.regret_s = 0.0 if pays else self.regret_s + lost_s
        self.credit.note_missed(entry, min(lost_s / max(self.whole_s - served_s, 1e-9), 1.0))
        if culprit is not None:
            culprit.blame_s += lost_s
            culprit.is_final = False
        return pays

    def note_use(self, entry: Entry, candidate: Candidate, elapsed_s: float | None) -> None:
        """Count a use; what a try of another candidate lost against the whole program counts
        against more tries.
        """
        if entry.candidate != "whole":
            self.credit.note_uses(entry, 1)
        entry.note_use(candidate)
        if elapsed_s is not None and candidate != "whole":
            self.race.lost_s += max(elapsed_s - self.whole_s, 0.0)

    def note_learning(self, entry: Entry, seconds: float) -> None:
        """A call took so many seconds longer than usual for what was learned in it."""
        self.ledger.note_learning(seconds)
        self.credit.note_learning(entry, seconds)

    def note_repeated(
        self,
        entry: Entry,
        candidate: Candidate,
        spent_s: float,
        overhead_s: float,
        num_calls: int = 1,
    ) -> None:
        """Calls were served as the one before was."""
        self.credit.note_calls(entry, num_calls)
        if candidate != "whole":
            self.credit.note_uses(entry, num_calls)
        entry.note_use(candidate, num_calls)
        self.note_call(entry, candidate, spent_s, overhead_s, num_calls)

    def note_call(
        self,
        entry: Entry,
        candidate: Candidate,
        program_s: float,
        overhead_s: float,
        num_calls: int = 1,
        *,
        is_new: bool = False,
    ) -> None:
        """Enter calls in the ledger: seconds in programs and of the overhead, of each. The next one
        is looked at where these were served by what is new, or had it made.
        """
        is_weighed = self.is_timed and self.clock.is_running and not self.race.callback_s
        whole_s = self.whole.seconds
        if not is_weighed or whole_s is None or not self.whole.is_settled:
            return
        ledger = self.ledger
        whole_s = self.whole_s
        behind = self.clock.behind
        num_behind = behind.num_waiting if behind.is_on else 0
        due_in = self.credit.take_due_in()
        may_gain = not entry.is_planned and self.credit.may_gain(entry, self.whole_s)
        may_learn = num_behind > 0 or may_gain
        spent_s = program_s + overhead_s
        bypasses = ledger.note_call(
            spent_s, whole_s, overhead_s, is_learning=may_learn, num_calls=num_calls
        )
        # Of a job that is said to be long, one slow look puts nothing off.
        is_awaited = self.credit.expected_calls > 0 and entry.count < self.tuning.hot_after
        if bypasses and (is_new or is_awaited or self._hoped_s() > ledger.look_s):
            ledger.grant(0)
        elif bypasses:
            if candidate != "whole":  # the machine may have changed since programs were timed
                self.race.retime(entry.program for entry in self._all_entries())
            if num_behind:
                ledger.grant(min(ledger.granted, int(LOOK_AGAIN_S / whole_s)))
            elif due_in < ledger.granted:  # a decision is worth a look
                ledger.grant(max(math.ceil(due_in), MIN_BYPASSED))
            self.journal.bypassed(ledger.left, self.verdict.sentence)

    def _hoped_s(self) -> float:
        """Seconds that a look is expected to gain, if the next call is like the latest ones.

        Looks that hope for more than they cost go on whatever was spent before: on learning, above
        all, which would be lost. A kind that comes no more has soon lost its share of the latest.
        """
        whole_s = self.whole_s
        num_calls = self.credit.num_calls
        served = [(e, e.gain_s(whole_s)) for e in self._all_entries()]
        hoped_s = sum([gain_s * e.recent_share(num_calls) for e, gain_s in served if gain_s])
        return self.credit.hit_rate * hoped_s

    def _all_entries(self) -> list[Entry]:
        return [*self.entries.values(), *self.slices.entries.values()]

    @property
    def verdict(self) -> Verdict:
        """What saving has been worth so far."""
        behind = self.clock.behind
        return self.ledger.verdict._replace(
            compile_s=self.whole.first_s, behind_s=behind.seconds, num_behind=behind.num_waiting
        )
