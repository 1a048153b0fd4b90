"""Which candidates serve a dirty set, compiled in a bounded table, and which values are worth saving.

In: `Facts`, dirty sets as they come, measured seconds. Out: entries with executables. It must not know values.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable

from incrax import _jax
from incrax._jax import Var
from incrax._tuning import Tuning
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan, Prices, plan_dirty
from incrax.running.choice import MIN_GAIN, Candidate, Entry
from incrax.running.compiled import compile_plan, device_constants
from incrax.running.segments import Segments
from incrax.running.stats import Stats

logger = logging.getLogger("incrax")

MAX_ENTRIES = 1024
"""Dirty sets remembered; their plans are bounded by `Tuning.max_plans`."""

FREE_PLANS = 4
"""Dirty sets that get a plan of their own as soon as they are hot; later ones must earn their compilation."""

NUM_COMPANIONS = 16
"""Other dirty sets, seen before, whose needs are considered when wanted values are first chosen."""

COMPANION_EQNS = 1500
"""Equations above which a program is too large to plan for companions in advance."""

MIN_BLAMED_USES = 3
"""Whole evaluations of a dirty set before their cost to later calls is believed."""

RETRY_USES = 256
"""Uses of segments slower than the whole program after which the whole program is tried again."""

FEW_USES_SHARE = 0.7
"""Share of the whole program's seconds below which compiled segments serve a dirty set that is not hot yet."""

LOAD_PRICES = (1.0, 8.0, 64.0)
"""Factors on the price of loading, tried until the saved values fit the budget."""

MIN_GAIN_S = 2e-6
"""Seconds that a plan must be estimated to save to be considered."""

MAX_RUN_PRICE = 10.0
"""Bound of the measured factor on the estimated seconds of equations, either way."""

RACE_FREE_S = 2.0
RACE_SHARE = 0.1
"""Races may lose this many seconds, and beyond them this share of all time."""


class Chooser:
    """The table of dirty sets of one engine."""

    def __init__(self, facts: Facts, tuning: Tuning, stats: Stats, budget_bytes: int) -> None:
        self.facts = facts
        self.tuning = tuning
        self.stats = stats
        self.budget_bytes = budget_bytes
        self.constants = device_constants(facts.program)
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.segments = Segments(facts, self.constants, stats)
        self.loaded: dict[Var, None] = {}
        self.whole_estimate_s = sum(map(facts.seconds, facts.program.eqns))
        self.whole_s = self.whole_estimate_s
        self.compile_s = 0.1
        self.started_s = time.perf_counter()
        self.race_s = 0.0
        self.regret_s = 0.0
        if facts.is_minimal:
            self.segments.want(facts.cut_set)

    def fork(self, stats: Stats) -> Chooser:
        """An independent table with the same compiled programs."""
        other = Chooser.__new__(Chooser)
        other.__dict__.update(self.__dict__)
        other.stats = stats
        other.entries = OrderedDict((dirty, entry.copy()) for dirty, entry in self.entries.items())
        other.segments = self.segments.fork(stats)
        other.loaded = dict(self.loaded)
        return other

    @property
    def savable(self) -> dict[Var, None]:
        """All values that some candidate loads or saves."""
        return {**self.segments.wanted, **self.loaded}

    # --- entries -------------------------------------------------------------------------------------------------

    def entry(self, dirty: int) -> Entry:
        """The record of a dirty set that is used now; planned once it is hot."""
        entry = self.entries.get(dirty)
        if entry is None:
            entry = self.entries[dirty] = Entry(dirty)
            if len(self.entries) > MAX_ENTRIES:
                self._forget_one()
        entry.count += 1
        if not entry.is_planned and (self.facts.is_minimal or entry.count >= self.tuning.hot_after):
            self.make_plan(entry)
        elif not entry.is_planned and self._segments_serve(entry):
            entry.settle("segments", "few uses so far: compiled segments estimated to be faster")
        elif entry.is_planned and entry.executable is None and not entry.is_racing and self._earned_plan(entry):
            self._add_plan(entry)
        return entry

    def _segments_serve(self, entry: Entry) -> bool:
        """Whether segments that are compiled already are estimated to beat the whole program clearly."""
        segments = self.segments
        if not segments.wanted or not segments.are_compiled(entry.dirty):
            return False
        return self._segments_seconds(entry, "segments") < FEW_USES_SHARE * self.whole_s

    def seen(self, dirty: int) -> Entry | None:
        """The record of a dirty set without using it."""
        return self.entries.get(dirty)

    def _forget_one(self) -> None:
        """Forget the oldest dirty set without a plan."""
        for dirty, entry in self.entries.items():
            if entry.executable is None:
                del self.entries[dirty]
                return

    # --- plans ---------------------------------------------------------------------------------------------------

    def make_plan(self, entry: Entry) -> None:
        """Settle which candidates a dirty set has, and which values they load."""
        if self.facts.is_minimal:
            if self._has_room(entry):
                entry.is_planned = True
                entry.plan = plan_dirty(self.facts, entry.dirty, saves=self.segments.wanted)
                self._compile(entry)
                entry.settle("plan", "minimal planner")
            return
        entry.is_planned = True
        plan = self._affordable(entry.dirty)
        if plan is None:
            entry.settle("whole", f"its saved values do not fit the budget of {self.budget_bytes} bytes")
        elif self.whole_s - plan.seconds < max(MIN_GAIN * self.whole_s, MIN_GAIN_S):
            entry.settle("whole", f"nothing to win: plan estimated {plan.seconds:.2g} s")
        else:
            self._choose_wanted(entry, plan)
            self._enter_race(entry)

    def _choose_wanted(self, entry: Entry, plan: Plan) -> None:
        """Values for this dirty set and, the first time, for those seen before it; so that they share values."""
        wanted = list(plan.base_loads)
        if not self.segments.wanted and len(self.facts.program.eqns) <= COMPANION_EQNS:
            full = self.facts.dependence.layout.full
            others = [d for d in self.entries if d != entry.dirty and d & full != full][-NUM_COMPANIONS:]
            for dirty in others:
                companion = self._affordable(dirty, wanted)
                if companion is not None and companion.seconds < self.whole_s:
                    wanted += companion.base_loads
        self.segments.want(wanted)

    def _affordable(self, dirty: int, wanted: Iterable[Var] = ()) -> Plan | None:
        known = {**self.segments.wanted, **dict.fromkeys(wanted)}
        run = self._run_price()
        for load in LOAD_PRICES:
            plan = plan_dirty(self.facts, dirty, wanted=known, prices=Prices(load, run))
            if self._bytes({*known, *plan.loads}) * 2 <= self.budget_bytes:
                return plan
        return None

    def _enter_race(self, entry: Entry) -> None:
        candidates: list[Candidate] = ["whole", "segments"]
        if self._num_plans() < FREE_PLANS:
            self._plan_for_known(entry)
            self._compile(entry)
            candidates.append("plan")
        entry.candidates = tuple(candidates)
        entry.reason = "being raced against the whole program"
        spent = time.perf_counter() - self.started_s
        if not self.tuning.race or self.race_s > RACE_FREE_S + RACE_SHARE * spent:
            entry.settle(candidates[-1], "estimated to be faster (no time for races)")

    def _plan_for_known(self, entry: Entry) -> None:
        """Plan with the wanted values as they are; save those that the change makes stale."""
        prices = Prices(1.0, self._run_price())
        wanted = self.segments.wanted
        entry.plan = plan_dirty(self.facts, entry.dirty, wanted=wanted, saves=wanted, prices=prices, only_wanted=True)

    def _add_plan(self, entry: Entry) -> None:
        if self._has_room(entry):
            self._plan_for_known(entry)
            self._compile(entry)
            entry.candidates = (entry.candidates[0], "plan")
            entry.reason = "being raced, now with a plan of its own"

    def _earned_plan(self, entry: Entry) -> bool:
        """Whether a plan's estimated gain over all uses so far would have paid its compilation."""
        if entry.candidates[0] != "segments":
            return False
        return entry.count * 0.3 * self._segments_seconds(entry, "segments") > self.compile_s

    def _compile(self, entry: Entry) -> None:
        assert entry.plan is not None
        entry.executable = compile_plan(self.facts, entry.plan, self.constants)
        self.stats.compiles += 1
        self.loaded.update(dict.fromkeys(entry.plan.loads))
        logger.debug("dirty set %x: plan compiled", entry.dirty)

    def _run_price(self) -> float:
        """How much slower this program is than its equations add up to (what XLA does not fuse well), measured."""
        factor = self.whole_s / max(self.whole_estimate_s, 1e-12)
        return min(max(factor, 1.0 / MAX_RUN_PRICE), MAX_RUN_PRICE)

    @staticmethod
    def _bytes(variables: Iterable[Var]) -> int:
        return sum(_jax.aval_bytes(var.aval) for var in variables)

    def _num_plans(self) -> int:
        return sum(entry.executable is not None for entry in self.entries.values())

    def _has_room(self, entry: Entry) -> bool:
        """Whether a plan can be added; one that is used less often than this entry makes room."""
        planned = [e for e in self.entries.values() if e.executable is not None]
        if len(planned) < self.tuning.max_plans:
            return True
        victim = min(planned, key=lambda e: e.count)
        if victim.count >= entry.count:
            entry.reason = f"all {self.tuning.max_plans} plans are taken by dirty sets seen as often"
            return False
        self._drop_plan(victim)
        return True

    def _drop_plan(self, entry: Entry) -> None:
        entry.plan = entry.executable = None
        entry.is_planned, entry.count, entry.times = not self.facts.is_minimal, 0, {}
        entry.settle("whole" if self.facts.is_minimal else "segments", "its plan made room for another")
        self.loaded = {v: None for e in self.entries.values() if e.plan is not None for v in e.plan.loads}

    # --- stale values --------------------------------------------------------------------------------------------

    def pays_to_fill(self, entry: Entry, candidate: Candidate, missing: Iterable[Var], culprit: Entry | None) -> bool:
        """Whether to compute missing values now; the culprit, whose use left them stale, bears the cost either way.

        At once where even with them the candidate beats the whole program; else after as many seconds were lost for
        want of them as they cost (ski rental: never worse than twice the best).
        """
        fill_s = self._run_price() * self.segments.fill_seconds(missing)
        served_s = self._segments_seconds(entry, candidate)
        pays = fill_s + served_s < self.whole_s or self.regret_s >= fill_s
        lost_s = fill_s if pays else max(self.whole_s - served_s, 0.0)
        self.regret_s = 0.0 if pays else self.regret_s + lost_s
        if culprit is not None:
            self._blame(culprit, lost_s)
        return pays

    def _blame(self, entry: Entry, lost_s: float) -> None:
        """Charge what a whole evaluation costs later calls; where segments cost less than both, they take over."""
        entry.blame_s += lost_s
        if entry.candidates != ("whole",) or not entry.is_planned or entry.uses < MIN_BLAMED_USES:
            return
        blame_s = entry.blame_s / entry.uses
        if self._segments_seconds(entry, "segments") < self.whole_s + blame_s:
            entry.settle("segments", f"the whole program would cost later calls {blame_s * 1e3:.2g} ms")

    def note_use(self, entry: Entry, candidate: Candidate) -> None:
        """Count a use; segments that are slower than the whole program must prove again that they help later calls."""
        entry.uses += 1
        is_due = candidate == "segments" and entry.uses >= RETRY_USES and not entry.is_racing
        if is_due and self._segments_seconds(entry, "segments") > self.whole_s:
            entry.settle("whole", "tried again: later calls may not need what segments save")

    def _segments_seconds(self, entry: Entry, candidate: Candidate) -> float:
        return entry.seconds(candidate, self._run_price() * self.segments.seconds(entry.dirty))

    # --- races ---------------------------------------------------------------------------------------------------

    def record(self, entry: Entry, candidate: Candidate, seconds: float) -> None:
        """Note a timed use in a race."""
        if entry.record(candidate, seconds, self.tuning.race_rounds):
            self.stats.races += 1
            best = min(map(min, entry.times.values()))
            self.race_s += sum(t - best for times in entry.times.values() for t in times)
            logger.debug("dirty set %x: %s", entry.dirty, entry.reason)
