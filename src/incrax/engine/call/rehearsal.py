"""What a call would do, and what it needs made ready in advance: the stages of a call without its
commit.

In: an engine and leaves. Out: a record; compiled programs and filled values. It must not know how
reports look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import jax

from incrax._program import Values
from incrax._progress import Meter
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import UNCHANGED, CallRecord
from incrax.engine.inputs.leaves import LeafValues
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.plan.plan import Plan, plan_dirty
from incrax.engine.policy.candidates import Candidate, Entry
from incrax.engine.store.store import Pairs, is_any_deleted

MAX_TRIES = 16
"""Evaluations for which `prepare` waits until the choice among candidates is final."""

BYPASSES = "nothing is expected of saving, so that the next call is one of `jax.jit`"


def dry_run(engine: Engine, leaves: Values) -> CallRecord | None:
    """What a call would do, without running anything or touching the store; None before the first
    call.
    """
    values = engine.comparison.resolve(leaves, engine.comparison.changed_leaves(leaves))
    engine.check_alive(values)
    is_bypassed = engine.bypasses and bool(engine.store.states)
    pairs = engine.comparison.pairs(values)
    pairs = pairs[-1:] if is_bypassed else engine.baselines.ranked(pairs)
    found = None if is_bypassed else _by_rows(engine, pairs, values)
    if found is not None:
        return found
    return _record(engine, pairs, is_bypassed=is_bypassed) if pairs else None


def _by_rows(engine: Engine, pairs: Pairs, values: LeafValues) -> CallRecord | None:
    """What a call would do that a program for rows serves."""
    rows = engine.rows.changed(pairs, values)
    entry = None if rows is None else engine.slices.serving(rows.kind)
    if rows is None or entry is None or entry.program is None or entry.candidate != "slices":
        return None
    saved = engine.saved([*pairs, (rows.base, rows.dirty)], rows.dirty, values, rows)
    candidate = "priming" if saved.for_rows(entry.program) is None else "slices"
    plan = engine.plan_of(candidate, entry)
    assert plan is not None
    return CallRecord(rows.dirty, candidate, entry, plan)


def row_outlooks(engine: Engine) -> Iterator[CallRecord]:
    """What calls would do that change rows of inputs, for each kind of change that a program for
    rows serves.
    """
    slices = engine.slices
    for entry in slices.entries.values():
        plan = engine.plan_of(entry.candidate, entry)
        if plan is not None and plan.sliced is not None:
            yield CallRecord(entry.dirty, entry.candidate, entry, plan)


def outlook(engine: Engine, dirty: int) -> CallRecord | None:
    """What a call would do that changes these inputs of the latest one to new values; None before
    the first call.
    """
    if not engine.store.states:
        return None
    *others, latest = engine.store.states
    changed = lambda state: dirty | engine.comparison.dirty(latest.values, state)
    pairs = [] if engine.bypasses else [(state, changed(state)) for state in others]
    pairs = engine.baselines.ranked([*pairs, (latest, dirty)])
    return _record(engine, pairs, is_bypassed=engine.bypasses)


def _record(engine: Engine, pairs: Pairs, *, is_bypassed: bool) -> CallRecord:
    """What a call with these baselines would do."""
    base, changed = pairs[-1]
    changed |= engine.always
    dirty = changed
    if not dirty & engine.reach:
        if not is_any_deleted(base.outputs):
            return UNCHANGED._replace(dirty=dirty)
        dirty = engine.layout.full
    entry = engine.chooser.seen(dirty)
    if entry is not None and is_bypassed:
        entry = replace(entry, candidate="whole", reason=BYPASSES)
    candidate: Candidate = "whole" if entry is None else entry.candidate
    plan = None if entry is None else engine.plan_of(candidate, entry)
    if entry is None:
        entry, plan = _first_use(engine, dirty)
    if plan is None:
        return CallRecord(changed, "whole", entry)
    saved = engine.saved(pairs, dirty, ())
    lacking = engine.segments.missing_groups(plan.loads, lambda var: saved.find(var) is None)
    if engine.is_primed_for(entry, lacking):
        return CallRecord(changed, "priming", entry, engine.plan_of("priming", entry))
    joint, groups = saved.to_fill(plan.loads)
    together = [] if joint is None else [joint]
    filled = [*(plan.saves for plan in together), *groups]
    plans = *together, *map(engine.segments.plan, groups)
    return CallRecord(changed, entry.candidate, entry, plan, tuple(chain(*filled)), plans)


def _first_use(engine: Engine, dirty: int) -> tuple[Entry, Plan | None]:
    """What would serve a dirty set that no call had yet."""
    entry = Entry(dirty)
    chooser = engine.chooser
    if chooser.only_whole or not (chooser.is_exact or engine.facts.is_minimal):
        return entry, None
    if chooser.is_exact:
        entry.settle("segments", "exact policy: the same programs always")
        return entry, chooser.segments.top_plan()
    entry.settle("plan", "minimal planner")
    return entry, plan_dirty(engine.facts, dirty, saves=chooser.segments.wanted)


def warm_up(engine: Engine, leaves: Values, changing: Iterable[Sequence[str]]) -> None:
    """Plan, compile and fill every named change at these leaves, with progress on a terminal."""
    masks = [paths_mask(engine.paths, engine.layout, group) for group in changing]
    with Meter("incrax: compiling plans", len(masks)) as meter:
        for mask in masks:
            prepare(engine, leaves, mask)
            meter.advance()


def prepare(engine: Engine, leaves: Values, dirty: int) -> None:
    """Plan, compile and compute saved values for a dirty set, with the state at these leaves as
    baseline.
    """
    dirty |= engine.always
    values = engine.comparison.resolve(leaves, engine.comparison.changed_leaves(leaves))
    pairs = engine.baselines.ranked(engine.comparison.pairs(values))
    entry = engine.chooser.entry(dirty, is_call=False)
    entry.count = max(entry.count, engine.chooser.hot_after)
    if not entry.is_decided:
        engine.planner.plan(entry, is_asked=True)
    engine.store.expect(engine.chooser.savable)
    pairs = [(state, changed | dirty) for state, changed in pairs[-1:]]
    saved = engine.saved(pairs, dirty, values)
    for _ in range(MAX_TRIES):
        entry = engine.chooser.entry(dirty, is_call=False)
        candidate = engine.choose(entry, saved)
        if candidate == "priming":  # what that saves would be lost with its results
            candidate = entry.candidate
        jax.block_until_ready(engine.run(candidate, entry, saved)[1])
        saved.forget(dirty)
        if entry.is_final:
            return
