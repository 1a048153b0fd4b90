"""What serves a call: the table of kinds of change, and what their calls are entered in.

In: `Facts`, dirty sets as they come, measured seconds. Out: entries, and how many calls may bypass.
It must not know values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from incrax import _jax
from incrax._jax import Var
from incrax._program import writes_of
from incrax._stats import Stats
from incrax._tuning import Tuning
from incrax.engine.compile.background import Background, is_wanted
from incrax.engine.compile.executables import Compiler, Executable
from incrax.engine.compile.recycling import Pool
from incrax.engine.compile.timing import Clock, TimedCompiler, TimedProgram
from incrax.engine.plan.plan import RowKind
from incrax.engine.plan.segmentation import Group
from incrax.engine.plan.slices import can_slice
from incrax.engine.policy.accounts import Accounts
from incrax.engine.policy.autotune import Race
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.compile_budget import Credit
from incrax.engine.policy.expectations import Expectations
from incrax.engine.policy.learning_costs import LearningCosts
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.log import Journal
from incrax.engine.policy.materialize import first_wanted, lasting_needs, lasting_row_values
from incrax.engine.policy.planner import Planner
from incrax.engine.policy.segments import Segments
from incrax.engine.policy.slices import Slices
from incrax.engine.policy.verdict import Verdict

MAX_ENTRIES = 1024
"""Dirty sets remembered; their plans are bounded by `MAX_PLANS`."""

ROUNDS = 4
"""First runs of each program that are timed."""

LOOK_AGAIN_S = 0.05
"""Seconds after which a call is looked at while a thread compiles: what it has made may serve."""

UNTRIED_SHARE = 0.1
"""Of the latest calls, those that new programs would serve, from which on all are looked at."""

FIRST_LOOKS = 16
MAX_LOOK_S = 1e-3
"""Seconds that so many looks are taken to need at most, where it is known what calls gain."""

MIN_BYPASSED = 16
"""Calls that bypass at least, before a decision that is due is looked at."""


class Chooser:
    """The table of dirty sets of one engine."""

    def __init__(
        self,
        whole: Executable,
        compiler: Compiler,
        tuning: Tuning,
        stats: Stats,
        budget_bytes: int,
        journal: Journal,
        ledger: Ledger,
        *,
        is_exact: bool,
    ) -> None:
        self.facts = facts = compiler.facts
        self.journal = journal
        self.is_exact = is_exact
        self.hot_after = tuning.hot_after
        self.calls = compiler.calls
        self.ledger = ledger
        # Whether programs are weighed: by seconds measured, or estimated where `tuning.timed` is off.
        self.is_timed = not facts.is_minimal and not is_exact
        num_rounds = ROUNDS if tuning.timed and self.is_timed else 0
        self.clock = Clock(num_rounds, compiler.now, is_running=tuning.timed)
        may_wait = self.is_timed and tuning.timed and not facts.calls_host
        if may_wait and compiler.placement is None:
            self.clock.behind = Background(is_on=is_wanted(tuning.background))
        pool = Pool(is_active=compiler.recycles)
        self.compiler = TimedCompiler(compiler, self.clock, pool, stats)
        self.entries: dict[int, Entry] = {}
        row_entries: dict[RowKind, Entry] = {}
        is_divided = is_exact and compiler.placement is None
        row_values = lasting_row_values(facts, budget_bytes) if is_divided else []
        may_factor = self.is_timed and not facts.is_explicit
        self.segments = Segments(facts, self.compiler, row_values, may_factor=may_factor)
        self.whole = TimedProgram(None, whole, self.clock, pool)
        self.expectations = Expectations(
            facts,
            tuning,
            journal,
            self.entries,
            row_entries,
            self.whole,
            ledger,
            is_kept=self.is_timed,
        )
        spared = writes_of(compiler.calls.spared(facts.calling))
        self.accounts = Accounts(self.expectations)
        self.race = Race(
            facts,
            self.clock,
            self.whole,
            self.segments,
            self.expectations,
            ledger,
            stats,
            len(spared),
        )
        costs = LearningCosts(facts, self.clock, self.whole, self.expectations, self.accounts)
        self.credit = Credit(
            costs, self.accounts, ledger, self.clock, tuning.compile_s, tuning.calls or 0
        )
        learner = (
            facts,
            self.clock,
            self.compiler,
            self.expectations,
            self.accounts,
            self.race,
            costs,
            self.credit,
            self.hot_after,
            budget_bytes,
        )
        self.planner = Planner(*learner, self.segments, journal, self.entries)
        # A saved NaN is an output to JAX, which raises on it where a value inside a program may be
        # NaN.
        self.only_whole = _jax.checks_values()
        is_on = self.is_timed and not self.only_whole and can_slice(facts)
        self.slices = Slices(*learner, ledger, row_entries, is_on)
        self._savable: dict[Var, None] = {}
        self._num_savable = 0
        self._loaded = self.planner.loaded
        self.regret_s = 0.0
        self._num_served = 0.0  # calls that saved values had served when they were all saved last
        self.segments.want(
            lasting_needs(facts, budget_bytes, row_values)
            if is_exact
            else first_wanted(facts, spared)
        )

    @property
    def savable(self) -> dict[Var, None]:
        """All values that some candidate loads or saves; the same object while nothing was
        added.
        """
        loaded = self.planner.loaded
        num_savable = len(self.segments.wanted) + len(self.slices.saved)
        if self._num_savable != num_savable or self._loaded is not loaded:
            self._num_savable = num_savable
            self._loaded = loaded
            top = dict.fromkeys(self.segments.top_plan().loads) if self.segments.wanted else {}
            self._savable = {**self.segments.wanted, **top, **loaded, **self.slices.saved}
        return self._savable

    @property
    def whole_s(self) -> float:
        """Seconds of a call that the whole program serves."""
        return self.race.whole_s

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

    def entry(self, dirty: int, *, may_wait: bool = False, is_call: bool = True) -> Entry:
        """The record of a dirty set that is used now, by a call or to prepare for some, with its candidate
        chosen; if it may wait, it is planned for only where it came back in earlier processes.
        """
        entry = self.entries.get(dirty) or self._new_entry(dirty)
        self.accounts.note_calls(entry, self.ledger.weight if is_call else 0)
        if self.is_exact:
            entry.is_decided = entry.is_final = True
            entry.settle(
                "whole" if self.only_whole else "segments", "exact policy: the same programs always"
            )
            return entry
        may_plan = entry.program is None and not self.only_whole
        if may_plan and (entry.num_expected > 1 or not may_wait):
            self.planner.plan_if_due(entry)
        if self.is_timed:
            if not entry.is_final or entry.ticks != self.clock.ticks:
                self._choose(entry)
            if entry.is_retry_due:
                self.race.retry(entry)
        return entry

    def _new_entry(self, dirty: int) -> Entry:
        """The record of a dirty set that comes for the first time, with what is known of it."""
        if dirty.bit_count() > 1 and dirty != self.facts.everything:
            self.ledger.defer()
        cost_s = self.race.callback_s
        share = self.facts.clean_share(dirty)
        known = self.expectations.of(dirty)
        entry = Entry(dirty, blame_s=cost_s, prior_s=cost_s, clean_share=share)
        entry.num_before = self.accounts.num_calls
        entry.expect(known)
        if self.expectations.is_lost(known):
            entry.promise_s = math.inf
            entry.is_decided = True
            entry.settle("whole", "nothing to win in an earlier process")
        if self.is_timed and share:
            entry.family, entry.num_reached = self.facts.reached(dirty)
        self.entries[dirty] = entry
        self.accounts.note_kind(entry)
        if len(self.entries) > MAX_ENTRIES:
            self._forget_one()
        return entry

    def _choose(self, entry: Entry) -> None:
        was_final = entry.is_final
        self.race.choose(entry)
        if entry.is_final and not was_final:
            self.accounts.note_choice(entry)
            self.journal.chosen(entry)

    def seen(self, dirty: int) -> Entry | None:
        """The record of a dirty set without using it."""
        return self.entries.get(dirty)

    def _forget_one(self) -> None:
        """Forget the oldest dirty set without a program; the oldest of all, where each has one."""
        without = (dirty for dirty, entry in self.entries.items() if entry.program is None)
        oldest = next(without, next(iter(self.entries)))
        self.accounts.forget_kind(self.entries.pop(oldest))

    # --- stale values -----------------------------------------------------------------------------

    def decide_fill(
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
        segments = self.segments
        stand_in = segments.stand_in(groups)
        if stand_in is not None:
            fill_s, compiling_s = stand_in.seconds or self.whole_s, 0.0
        else:
            fill_s = segments.fill_seconds(missing, self.race.run_price)
            compiling_s = segments.compiling_s(groups)
        served_s = entry.seconds.get(entry.candidate, self.whole_s)
        is_tried = not entry.is_final and self.race.is_exploring
        is_marked = all(var in self.facts.kept for var in missing)
        is_paid = self.credit.pays_for_fill(entry, self.whole_s, served_s, compiling_s)
        is_due = is_tried or fill_s + served_s < self.whole_s or self.regret_s >= fill_s
        pays = is_marked or (is_due and is_paid)
        if pays:
            self.accounts.note_fill(entry, compiling_s)
        lost_s = fill_s if pays else max(self.whole_s - served_s, 0.0)
        self.regret_s = 0.0 if pays else self.regret_s + lost_s
        share = min(lost_s / max(self.whole_s - served_s, 1e-9), 1.0)
        self.accounts.note_missed(entry, share, culprit)
        if culprit is not None:
            culprit.blame_s += lost_s
            culprit.is_final = False
        return pays

    def decide_priming(self) -> bool:
        """Whether the whole function is to save what plans of kinds in turns load: not if none of these
        has served a call since it last did.
        """
        priming = self.segments.priming
        if priming is None or not priming.num_runs or not self.whole.is_measured:
            return False
        num_served = self.accounts.num_asked - self.accounts.num_missed
        pays = num_served > self._num_served
        self._num_served = num_served
        return pays

    def note_use(self, entry: Entry, candidate: Candidate, elapsed_s: float | None) -> None:
        """Count a use; what a try of another candidate lost against the whole program counts
        against more tries.
        """
        if entry.candidate != "whole":
            self.accounts.note_uses(entry, 1)
        entry.note_use(candidate)
        if elapsed_s is not None and candidate != "whole":
            self.race.lost_s += max(elapsed_s - self.whole_s, 0.0)

    def note_learning(self, entry: Entry, seconds: float) -> None:
        """A call took so many seconds longer than usual for what was learned in it."""
        self.ledger.note_learning(seconds)
        self.credit.note_learning(entry, seconds)

    def note_repeated(
        self, entry: Entry, spent_s: float, overhead_s: float, num_calls: int = 1
    ) -> None:
        """Calls did what the one before did, which was not served by the whole program."""
        candidate = entry.candidate
        self.accounts.note_calls(entry, num_calls)
        self.accounts.note_uses(entry, num_calls)
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
        """Enter calls in the ledger: seconds in programs and of the overhead, of each; if calls may
        bypass then, decide how many.
        """
        is_weighed = self.is_timed and self.clock.is_running and not self.race.callback_s
        ledger = self.ledger
        is_measured = self.whole.is_measured  # no longer, where it is timed anew
        if not is_weighed or not (is_measured or ledger.calls):
            return
        whole_s = self.whole_s
        has_none = entry.program is None and not entry.is_decided
        may_gain = has_none and self.credit.may_gain(entry, whole_s)
        may_learn = self.clock.behind.num_waiting > 0 or may_gain
        spent_s = program_s + overhead_s
        bypasses = ledger.note_call(
            spent_s, whole_s, overhead_s, is_learning=may_learn, num_calls=num_calls
        )
        # Of a job that is said to be long, or a kind that has its program, one slow look puts nothing
        # off.
        is_paid = self.credit.expected_calls > 0 or entry.program is not None
        is_awaited = is_paid and entry.count < self.hot_after
        is_open = not is_measured or is_new or is_awaited
        # The first looks load and find out what later ones need as well.
        most_s = MAX_LOOK_S if ledger.calls <= FIRST_LOOKS else math.inf
        if not bypasses:
            return
        if is_open or self._has_untried or self._hoped_s() > min(ledger.look_s, most_s):
            ledger.grant(0)
        else:
            self._begin_bypass(candidate)

    def _begin_bypass(self, candidate: Candidate) -> None:
        """Calls bypass from now on, until something is compiled, or a decision on any kind is due, which
        is worth a look.

        What did not come when it was due is looked out for once more: the look may have met a rare
        kind. Then it is left to the looks that are due anyway.
        """
        ledger = self.ledger
        if candidate != "whole":  # the machine may have changed since programs were timed
            self.race.retime(entry.program for entry in self._all_entries())
        if self.clock.behind.num_waiting:
            ledger.grant(min(ledger.granted, int(LOOK_AGAIN_S / self.whole_s)))
        else:
            now = ledger.num_calls
            asked = (*self._all_entries(), *self.accounts.families.values())
            due = [each for each in asked if each.due_at < now + ledger.granted]
            if due:
                due_in = min(each.due_at for each in due) - now
                ledger.grant(min(max(math.ceil(due_in), MIN_BYPASSED), ledger.granted + 1))
            for each in due:
                if each.due_at <= now:
                    each.due_at = math.inf
        verdict = self.verdict
        assert verdict is not None
        self.journal.bypassed(ledger.left, verdict.sentence)

    @property
    def _has_untried(self) -> bool:
        """Whether programs that are new may serve one of the next calls: looks may have met rare kinds
        since, which then seem to be the usual ones.
        """
        num_calls = self.accounts.num_calls
        untried = [e for e in self._all_entries() if e.program and e.num_asked < FIRST_LOOKS]
        chosen = [entry for entry in untried if entry.candidate != "whole"]
        return sum([entry.recent_share(num_calls) for entry in chosen]) > UNTRIED_SHARE

    def _hoped_s(self) -> float:
        """Seconds that a look is expected to gain, if the next call is like the latest ones, or like those
        of an earlier process.

        Looks that hope for more than they cost go on whatever was spent before: on learning, above
        all, which would be lost. A kind that comes no more has soon lost its share of the latest.
        """
        whole_s = self.whole_s
        num_calls = self.accounts.num_calls
        entries = self._all_entries()
        served = [(e, self._gain_s(e, whole_s)) for e in entries]
        hoped_s = sum([gain_s * e.recent_share(num_calls) for e, gain_s in served if gain_s])
        known = [e.recent_share(num_calls) for e in entries if e.was_compiled]
        foretold_s = self.expectations.gain_s(whole_s) * min(sum(known), 1.0)
        return max(self.accounts.hit_rate * hoped_s, foretold_s)

    def _gain_s(self, entry: Entry, whole_s: float) -> float:
        """Seconds that a call of a kind saves, or will as the next one of its family is planned for, where
        the whole program takes so many.
        """
        account = self.accounts.of(entry)
        is_next = account.num_programs > 0 and not entry.is_decided
        served_s = account.served_s if is_next else math.inf
        return max(entry.gain_s(whole_s), whole_s - served_s, 0.0)

    def _all_entries(self) -> list[Entry]:
        return [*self.entries.values(), *self.slices.entries.values()]

    @property
    def verdict(self) -> Verdict | None:
        """What saving has been worth so far; None where nobody takes times."""
        if not self.is_timed or not self.clock.is_running:
            return None
        behind = self.clock.behind
        return replace(
            self.ledger.verdict,
            compile_s=self.whole.first_s,
            behind_s=behind.seconds,
            num_behind=behind.num_waiting,
            num_outside=self.facts.num_outside,
        )
