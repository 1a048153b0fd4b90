"""What a call would do, and what it needs made ready in advance: the stages of a call without its commit.

In: an engine and leaves. Out: a record; compiled programs and filled values. It must not know how reports look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from incrax._jax import Var
from incrax.planning.plan import Plan
from incrax.running.baselines import Pairs
from incrax.running.choice import Candidate
from incrax.running.engine import Engine
from incrax.running.record import UNCHANGED, Record
from incrax.running.saved import SavedValues
from incrax.running.store import available_in, is_any_deleted

MAX_TRIES = 16
"""Evaluations for which `prepare` waits until the choice among candidates is final."""


def dry_run(engine: Engine, leaves: Sequence[Any]) -> Record | None:
    """What a call would do, without running anything or touching the store; None before the first call."""
    values = engine.comparison.resolve(leaves, engine.comparison.changed_leaves(leaves))
    engine.check_alive(values)
    is_resting = bool(engine.chooser.watch.rest and engine.store.states)
    pairs = engine.baselines.compare_latest(values) if is_resting else engine.baselines.compare(values)
    if not pairs:
        return None
    base, dirty = pairs[-1]
    dirty |= engine.always
    if not dirty:
        if not is_any_deleted(base.outputs):
            return UNCHANGED
        dirty = engine.layout.full
    entry = engine.chooser.seen(dirty)
    candidate: Candidate = "whole" if entry is None or is_resting else entry.candidate
    plan = None if entry is None else engine.serving.plan_of(candidate, entry)
    if plan is None:
        return Record(dirty, "whole", entry, None, (), (), (), is_first=False)
    missing, plans = _would_fill(engine, pairs, plan)
    return Record(dirty, candidate, entry, plan, plan.loads, missing, plans, is_first=False)


def _would_fill(engine: Engine, pairs: Pairs, plan: Plan) -> tuple[tuple[Var, ...], tuple[Plan, ...]]:
    """The values that a plan would find missing, those that they need included, and the plans that compute them."""
    segments, mask = engine.chooser.segments, engine.facts.mask
    groups: dict[tuple[Var, ...], None] = {}
    pending = list(plan.loads)
    while pending:
        var = pending.pop()
        if available_in(pairs, var, mask(var)) is None and segments.group_of(var) not in groups:
            groups[segments.group_of(var)] = None
            pending += segments.plan(segments.group_of(var)).loads
    return tuple(var for group in groups for var in group), tuple(map(segments.plan, groups))


def prepare(engine: Engine, leaves: Sequence[Any], dirty: int) -> None:
    """Plan, compile and compute saved values for a dirty set, with the state at these leaves as baseline."""
    dirty |= engine.always
    values = engine.comparison.resolve(leaves, engine.comparison.changed_leaves(leaves))
    pairs = engine.baselines.compare(values)
    entry = engine.chooser.entry(dirty)
    entry.count = max(entry.count, engine.tuning.hot_after)
    if not entry.is_planned:
        engine.chooser.plan(entry, is_asked=True)
    pairs = [(state, changed | dirty) for state, changed in pairs[-1:]]
    base = pairs[-1][0] if pairs else None
    saved = SavedValues(engine, pairs, base, dirty, [v.feed for v in values])
    for _ in range(MAX_TRIES):
        entry = engine.chooser.entry(dirty)
        jax.block_until_ready(engine.serving.run(engine.serving.choose(entry, saved), entry, saved)[1])
        saved.forget(dirty)
        if entry.is_final:
            return
