"""What a new version takes over from its baseline, and who is to blame for what it lacks.

In: the baseline, the dirty set, new values. Out: the saved values of the new version. It must not run programs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from incrax._jax import Var
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.store.store import State


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


def saveable_outputs(
    out_vars: Iterable[tuple[int, Var]], outputs: Sequence[Any], savable: Container[Var], saveable: Container[Var]
) -> list[tuple[Var, Any]]:
    """The outputs that are values to save as well."""
    return [(var, outputs[i]) for i, var in out_vars if var in savable and var in saveable]


def successor(
    base: State | None,
    dirty: int,
    added: dict[Var, Any],
    values: tuple[LeafValue, ...],
    outputs: list[Any],
    blamed: int | None,
    mask: Callable[[Var], int],
) -> State:
    """The version that follows a baseline."""
    state = State(values, outputs, carried_over(base, dirty, added, mask), blamed, are_values=True)
    if base is not None and state.saved is base.saved:
        state.harmless = dirty
    return state
