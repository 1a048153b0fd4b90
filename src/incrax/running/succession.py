"""What a new version takes over from its baseline, and who is to blame for what it lacks.

In: the baseline, the dirty set, new values. Out: the saved values of the new version. It must not run programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from incrax._jax import Var
from incrax.planning.plan import Plan
from incrax.running.choice import Candidate, Entry
from incrax.running.store import State


def carried_over(base: State | None, dirty: int, added: dict[Var, Any], mask: Callable[[Var], int]) -> dict[Var, Any]:
    """The saved values of a new state; the very table of its baseline where nothing changes in it."""
    if base is None:
        return added
    if base.harmless != dirty and not any([mask(var) & dirty for var in base.saved]):
        base.harmless = dirty
    if base.harmless != dirty:
        return {**{var: x for var, x in base.saved.items() if not mask(var) & dirty}, **added}
    if all([base.saved.get(var) is x for var, x in added.items()]):
        return base.saved
    return {**base.saved, **added}


def culprit(candidate: Candidate, base: State | None, entry: Entry) -> int | None:
    """The dirty set to blame for stale values: this one if it chose to leave them so, else its baseline's."""
    is_forced = entry.candidate != candidate and base is not None
    if entry.leaves_stale(candidate) and not is_forced:
        return entry.dirty
    return base.culprit if base is not None else None


def results_of(
    plan: Plan | None, base: State | None, results: list[Any], num_outputs: int
) -> tuple[list[Any], dict[Var, Any]]:
    """All outputs, those that a plan does not compute from its baseline, and the values that it saves."""
    if plan is None:
        return results, {}
    outputs = [None] * num_outputs if base is None else list(base.outputs)
    for position, value in zip(plan.outputs, results, strict=False):
        outputs[position] = value
    return outputs, dict(zip(plan.saves, results[len(plan.outputs) :], strict=True))
