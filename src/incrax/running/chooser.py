"""Which plan serves a dirty set, compiled in a bounded table, and which values are worth saving for others.

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
from incrax.planning.plan import Plan, Prices, plan_dirty, plan_fill
from incrax.running.choice import MIN_GAIN, MIN_GAIN_S, RACE_FREE_S, RACE_SHARE, Entry
from incrax.running.compiled import Executable, compile_plan, device_constants
from incrax.running.stats import Stats

logger = logging.getLogger("incrax")

MAX_ENTRIES = 1024
"""Dirty sets remembered; their plans are bounded by `Tuning.max_plans`."""

MAX_FILL_PROGRAMS = 32
LOAD_PRICES = (1.0, 8.0, 64.0)
"""Factors on the price of loading, tried until a plan's loads fit the budget."""

MAX_RUN_PRICE = 10.0
"""Bound of the measured factor on the estimated seconds of equations, either way."""

REFILL_RATE = 0.3
"""Share of an entry's uses that must be followed by a fill before it saves what others load."""


class Chooser:
    """The table of dirty sets of one engine."""

    def __init__(self, facts: Facts, tuning: Tuning, stats: Stats, budget_bytes: int) -> None:
        self.facts = facts
        self.tuning = tuning
        self.stats = stats
        self.budget_bytes = budget_bytes
        self.constants = device_constants(facts.program)
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.fills: OrderedDict[tuple[Var, ...], tuple[Plan, Executable]] = OrderedDict()
        self.wanted: dict[Var, None] = dict.fromkeys(facts.cut_set) if facts.is_minimal else {}
        self.whole_estimate_s = sum(map(facts.seconds, facts.program.eqns))
        self.whole_s = self.whole_estimate_s
        self.started_s = time.perf_counter()
        self.race_s = 0.0

    def fork(self, stats: Stats) -> Chooser:
        """An independent table with the same compiled programs."""
        other = Chooser.__new__(Chooser)
        other.__dict__.update(self.__dict__)
        other.stats = stats
        other.entries = OrderedDict((dirty, entry.copy()) for dirty, entry in self.entries.items())
        other.fills = OrderedDict(self.fills)
        other.wanted = dict(self.wanted)
        return other

    # --- entries -------------------------------------------------------------------------------------------------

    def entry(self, dirty: int) -> Entry:
        """The record of a dirty set that is used now; plans it once it is hot."""
        entry = self.entries.get(dirty)
        if entry is None:
            entry = self.entries[dirty] = Entry(dirty)
            if len(self.entries) > MAX_ENTRIES:
                self._forget_one()
        entry.count += 1
        if entry.status == "cold" and (self.facts.is_minimal or entry.count >= self.tuning.hot_after):
            self.make_plan(entry)
        elif self._should_save(entry):
            self.make_plan(entry, is_saving=True)
        return entry

    def seen(self, dirty: int) -> Entry | None:
        """The record of a dirty set without using it."""
        return self.entries.get(dirty)

    def _forget_one(self) -> None:
        """Forget the oldest dirty set without a plan."""
        for dirty, entry in self.entries.items():
            if entry.executable is None:
                del self.entries[dirty]
                return

    def _should_save(self, entry: Entry) -> bool:
        is_decided = entry.status in ("plan", "whole")
        return is_decided and not entry.is_saving and entry.refills >= 2 and entry.refill_rate >= REFILL_RATE

    # --- plans ---------------------------------------------------------------------------------------------------

    def make_plan(self, entry: Entry, *, is_saving: bool = False) -> None:
        """Plan and compile a dirty set, or settle that the whole program serves it."""
        entry.is_saving = is_saving or self.facts.is_minimal
        if self._is_full(entry):
            entry.reason = f"all {self.tuning.max_plans} plans are taken by dirty sets seen as often"
            return
        if self.facts.is_minimal:
            plan = plan_dirty(self.facts, entry.dirty, saves=self.wanted)
            self._adopt(entry, plan, "plan", "minimal planner")
            return
        plan = self._affordable(entry)
        gain_s = self.whole_s - (plan.seconds if plan else self.whole_s)
        if plan is None:
            self._settle(entry, "whole", f"its saved values do not fit the budget of {self.budget_bytes} bytes")
        elif not is_saving and gain_s < max(MIN_GAIN * self.whole_s, MIN_GAIN_S):
            self._settle(entry, "whole", f"nothing to win: plan estimated {plan.seconds:.2g} s")
        else:
            self._adopt(entry, plan, *self._first_status())

    def _affordable(self, entry: Entry) -> Plan | None:
        saves = tuple(self._savable_for_others()) if entry.is_saving else ()
        run = self._run_price()
        for load in LOAD_PRICES:
            plan = plan_dirty(self.facts, entry.dirty, wanted=self.wanted, saves=saves, prices=Prices(load, run))
            if self._bytes({*self.wanted, *plan.loads}) <= self.budget_bytes:
                return plan
        return None

    def _run_price(self) -> float:
        """How much slower this program is than its equations add up to (what XLA does not fuse well), measured."""
        factor = self.whole_s / max(self.whole_estimate_s, 1e-12)
        return min(max(factor, 1.0 / MAX_RUN_PRICE), MAX_RUN_PRICE)

    def _savable_for_others(self) -> list[Var]:
        """Wanted values that a plan may save; a matrix of rows is only worth making in a fill."""
        return [var for var in self.wanted if not self.facts.derived.is_stack(var)]

    @staticmethod
    def _bytes(variables: Iterable[Var]) -> int:
        return sum(_jax.aval_bytes(var.aval) for var in variables)

    def _first_status(self) -> tuple[str, str]:
        spent = time.perf_counter() - self.started_s
        if not self.tuning.race:
            return "plan", "estimated to be faster (races are off)"
        if self.race_s > RACE_FREE_S + RACE_SHARE * spent:
            return "plan", "estimated to be faster (races have had their share of time)"
        return "race", "being raced against the whole program"

    def _adopt(self, entry: Entry, plan: Plan, status: str, reason: str) -> None:
        entry.plan = plan
        entry.executable = compile_plan(self.facts, plan, self.constants)
        entry.plan_times, entry.whole_times, entry.is_warm = [], [], False
        self.stats.compiles += 1
        self.wanted.update(dict.fromkeys(plan.loads))
        self._settle(entry, status, reason)

    @staticmethod
    def _settle(entry: Entry, status: str, reason: str) -> None:
        entry.status = status  # type: ignore[assignment]
        entry.reason = reason
        logger.debug("dirty set %x: %s (%s)", entry.dirty, status, reason)

    def _is_full(self, entry: Entry) -> bool:
        """Whether no plan can be added; a plan used less often than this entry makes room."""
        planned = [e for e in self.entries.values() if e.executable is not None]
        if len(planned) < self.tuning.max_plans or entry.executable is not None:
            return False
        victim = min(planned, key=lambda e: e.count)
        if victim.count >= entry.count:
            return True
        self.drop(victim)
        return False

    def drop(self, entry: Entry) -> None:
        """Forget an entry's plan; values that only it loaded are no longer wanted."""
        entry.plan = entry.executable = None
        entry.status, entry.count = "cold", 0
        if not self.facts.is_minimal:
            plans = [e.plan for e in self.entries.values() if e.plan is not None]
            self.wanted = dict.fromkeys(var for plan in plans for var in plan.loads)

    # --- fills ---------------------------------------------------------------------------------------------------

    def fill_program(self, missing: tuple[Var, ...], available: frozenset[Var]) -> tuple[Plan, Executable]:
        """A program that computes missing saved values; one is kept per set of missing values."""
        found = self.fills.get(missing)
        if found is not None and available.issuperset(found[0].loads):
            self.fills.move_to_end(missing)
            return found
        plan = plan_fill(self.facts, missing, available)
        found = self.fills[missing] = (plan, compile_plan(self.facts, plan, self.constants))
        self.stats.compiles += 1
        if len(self.fills) > MAX_FILL_PROGRAMS:
            self.fills.popitem(last=False)
        return found

    def note_refill(self, made_by: int, seconds: float) -> None:
        """A state lacked values that the entry which made it could have saved."""
        maker = self.entries.get(made_by)
        if maker is not None:
            maker.refills += 1
            maker.refill_s += seconds

    def record(self, entry: Entry, candidate: str, seconds: float) -> None:
        """Note a timed use in a race."""
        before = entry.status
        entry.record(candidate, seconds, self.tuning.race_rounds)
        if entry.plan_times and entry.whole_times:
            self.race_s += abs(min(entry.plan_times) - min(entry.whole_times))
        if before == "race" and entry.status != "race":
            self.stats.races += 1
            logger.debug("dirty set %x: %s", entry.dirty, entry.reason)
