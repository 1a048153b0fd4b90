"""Results of plans that must not be used: a guard is false, or algebra over rows disagrees with the direct form.

In: a plan, its results. Out: those of the whole program, if they are to be used instead. It must not commit anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from incrax.engine.plan.plan import Plan
from incrax.engine.policy.agreement import difference
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.chooser import Chooser

logger = logging.getLogger("incrax")


def results_instead(
    plan: Plan, guard: Any, results: list[Any], entry: Entry, chooser: Chooser, run_whole: Callable[[], list[Any]]
) -> list[Any] | None:
    """The whole program's results where the plan's must not be used, else None.

    The first result of a plan with algebra over rows is compared with the direct one.
    """
    if not chooser.clock.read(guard):
        chooser.note_unusable(entry)
        return run_whole()
    if plan.statistics is None or entry.is_compared:
        return None
    direct = run_whole()
    entry.is_compared = True
    errors = [difference(x, direct[position]) for position, x in zip(plan.outputs, results, strict=False)]
    worst = max((error for error in errors if error is not None), default=None)
    if worst is None:
        return None
    reason = f"algebra over rows was given up: it differs from the direct form by {worst:.2g} of the largest element"
    logger.warning("%s (%s)", reason, "; ".join(plan.statistics.lines))
    chooser.give_up_algebra(entry, reason)
    return direct
