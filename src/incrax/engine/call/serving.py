"""What serves one call: the candidate chosen for its dirty set, run from the saved values that it loads.

In: an entry, the call's saved values. Out: results, and a boolean, if any, which must be true for them to be used. It
must not commit anything.
"""

from __future__ import annotations

from typing import Any

from incrax._stats import Stats
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.saved_values import SavedValues, UnusableError


class Serving:
    """Runs the candidates of one engine."""

    __slots__ = ("chooser", "facts", "stats")

    def __init__(self, chooser: Chooser, facts: Facts, stats: Stats) -> None:
        self.chooser = chooser
        self.facts = facts
        self.stats = stats

    def choose(self, entry: Entry, saved: SavedValues) -> Candidate:
        """What serves this call: the entry's candidate, or the whole program where it lacks too much."""
        candidate = entry.candidate
        if candidate == "whole":
            return "whole"
        if candidate == "plan":
            plan = self.plan_of(candidate, entry)
            if plan is None or not saved.has_outputs(plan):
                return "whole"
            missing = saved.missing(plan.loads)
        else:
            missing = saved.missing(self.chooser.segments.route(entry.dirty).clean)
        if not missing or not self.chooser.is_timed:
            return candidate
        dirty = saved.base.culprit if saved.base is not None else None
        to_blame = None if dirty is None else self.chooser.seen(dirty)
        return candidate if self.chooser.pays_to_fill(entry, missing, to_blame) else "whole"

    def run(self, candidate: Candidate, entry: Entry, saved: SavedValues) -> tuple[Candidate, list[Any], Any]:
        """The results of a candidate's program, and a boolean, if any, which must be true for them to be used.

        The whole program's where values derived for another candidate must not be used.
        """
        if candidate != "whole":
            try:
                return candidate, *self._run_from_saved(candidate, entry, saved)
            except UnusableError:
                self.chooser.bar(entry)
        return "whole", self.run_whole(saved), None

    def run_whole(self, saved: SavedValues) -> list[Any]:
        """The whole program's results."""
        self.stats.compiles += not self.chooser.whole.num_runs
        return self.chooser.whole(saved.feeds, ())

    def _run_from_saved(self, candidate: Candidate, entry: Entry, saved: SavedValues) -> tuple[list[Any], Any]:
        program = self.chooser.segments.top() if candidate == "segments" else entry.program
        assert program is not None
        loads = program.executable.loads
        if self.facts.is_minimal and not self.chooser.is_exact:
            saved.fill_exactly(saved.missing(loads))
        results = program(saved.feeds, [saved.get(var) for var in loads])
        has_guard = program.plan is not None and program.plan.guard is not None
        guard = results.pop() if has_guard else None
        return results, guard

    def plan_of(self, candidate: Candidate, entry: Entry) -> Plan | None:
        """The plan that a candidate runs last; None for the whole program."""
        if candidate == "segments":
            return self.chooser.segments.top_plan()
        return entry.program.plan if candidate == "plan" and entry.program is not None else None
