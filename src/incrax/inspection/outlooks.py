"""What calls would do, by what they change, and what plans there are, as plain data.

In: an engine. Out: a dictionary per dirty set. It must not evaluate or store anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from incrax import _jax
from incrax._progress import Meter
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import CallRecord
from incrax.engine.call.rehearsal import outlook
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.cost import ZERO
from incrax.explanation.last_call import candidate_times, equations_run, why
from incrax.inspection.equations import Equations, ranges

MAX_OUTLOOKS = 400
MAX_PLANNED = 200_000
"""Equations to be planned in all of the outlooks together, where each needs a plan that is not there."""

MAX_PLANS = 200
MAX_NAMES = 12


def outlooks(equations: Equations) -> list[dict[str, Any]]:
    """What a call would do, for each input alone, each element of small arrays, and each dirty set seen."""
    engine = equations.engine
    if not engine.store.states:
        return []
    masks = list(dict.fromkeys(_masks(engine)))[:MAX_OUTLOOKS]
    if engine.facts.is_minimal:
        masks = masks[: max(MAX_PLANNED // max(len(equations.eqns), 1), 1)]
    found = []
    with Meter("report: what calls would do", len(masks)) as meter:
        for mask in masks:
            record = outlook(engine, mask)
            assert record is not None
            found.append({"mask": hex(mask), **described(equations, record)})
            meter.advance()
    return found


def _masks(engine: Engine) -> Iterable[int]:
    """The sets to look out for, the most useful first."""
    layout = engine.layout
    last = engine.last
    if last is not None:
        yield last.dirty & ~engine.always
    yield from (0, layout.full)
    yield from (entry.dirty & ~engine.always for entry in _seen(engine))
    yield from (layout.leaf_mask(index) for index in range(len(layout.widths)))
    for index, width in enumerate(layout.widths):
        yield from (1 << layout.offsets[index] + k for k in range(width) if width > 1)


def _seen(engine: Engine) -> list[Entry]:
    """The dirty sets that calls had, the most frequent first."""
    return sorted(engine.chooser.entries.values(), key=lambda entry: -entry.count)[:MAX_PLANS]


def described(equations: Equations, record: CallRecord) -> dict[str, Any]:
    """A record as data: the numbers are those of `explain`; what differs from the values that it starts from."""
    return {
        "served_by": record.candidate,
        "differs": hex(record.dirty & ~equations.engine.always),
        "why": why(record),
        "num_loaded": len(record.loads),
        "loaded_bytes": sum(_jax.aval_bytes(var.aval) for var in record.loads),
        "loaded": ranges(number for number in equations.writers(record.loads) if number >= 0),
        "num_filled": len(record.filled),
        "seconds": candidate_times(record.entry),
        "count": 0 if record.entry is None else record.entry.count,
        **_work(equations, record),
    }


def _work(equations: Equations, record: CallRecord) -> dict[str, Any]:
    """What runs and what does not; records that run the same share it."""
    key = record.candidate, id(record.plan), *map(id, record.segments)
    if key not in equations.works:
        ran = equations_run(equations.engine, record)
        ran_ids = {id(eqn) for eqn in ran}
        cost = sum(map(equations.cost, ran), ZERO)
        rest = (c for eqn, c in zip(equations.eqns, equations.costs, strict=True) if id(eqn) not in ran_ids)
        avoided = sum(rest, ZERO)
        numbers = [equations.numbers.get(id(eqn), -1) for eqn in ran]
        work = {
            "num_ran": len(ran),
            "num_derived": equations.num_derived(ran),
            "ran": ranges(number for number in numbers if number >= 0),
            "flops_ran": cost.flops,
            "flops_avoided": avoided.flops,
            "transcendentals_ran": cost.transcendentals,
            "transcendentals_avoided": avoided.transcendentals,
        }
        equations.works[key] = record, work
    return equations.works[key][1]


# --- plans --------------------------------------------------------------------------------------------------------


def plans(equations: Equations) -> list[dict[str, Any]]:
    """The dirty sets seen, the most frequent first, with their candidates and how they were chosen."""
    return [_plan(equations, entry) for entry in _seen(equations.engine)]


def _plan(equations: Equations, entry: Entry) -> dict[str, Any]:
    engine = equations.engine
    plan = engine.plan_of(entry.candidate, entry)
    own = entry.program.plan if entry.program is not None else None
    return {
        "mask": hex(entry.dirty & ~engine.always),
        "changed": names(engine, entry.dirty),
        "count": entry.count,
        "candidate": entry.candidate,
        "why": entry.reason,
        "is_final": entry.is_final,
        "candidates": _candidates(entry),
        "promise_s": entry.promise_s if math.isfinite(entry.promise_s) else None,
        "num_ran": len(equations.eqns if plan is None else plan.eqns),
        "num_derived": 0 if plan is None else equations.num_derived(plan.eqns),
        "num_loaded": 0 if plan is None else len(plan.loads),
        "loaded_bytes": 0 if plan is None else sum(_jax.aval_bytes(var.aval) for var in plan.loads),
        "statistics": [] if own is None or own.statistics is None else list(own.statistics.lines),
    }


def _candidates(entry: Entry) -> list[dict[str, Any]]:
    """Seconds of each candidate; measured where the race between them is decided."""
    is_timed = entry.is_final and len(entry.seconds) > 1
    return [{"name": name, "seconds": s, "is_measured": is_timed} for name, s in entry.seconds.items()]


def names(engine: Engine, dirty: int) -> dict[str, Any]:
    """The inputs that changed: the first names, and how many there are."""
    found = mask_paths(engine.paths, engine.layout, dirty)
    return {"names": found[:MAX_NAMES], "num": len(found)}


def segments(engine: Engine) -> list[dict[str, Any]]:
    """The segments, that of the outputs last, with their seconds."""
    table, price = engine.chooser.segments, engine.chooser.race.run_price
    groups = [*table.groups.items(), *([(engine.layout.full, None)] if table.wanted else [])]
    return [_segment(engine, mask, group, price) for mask, group in groups]


def _segment(engine: Engine, mask: int, group: Any, price: float) -> dict[str, Any]:
    table = engine.chooser.segments
    plan = table.top_plan() if group is None else table.plan(group)
    measured_s = table.measured_s(group)
    return {
        "mask": hex(mask & ~engine.always),
        "depends_on": names(engine, mask),
        "is_top": group is None,
        "num_values": 0 if group is None else len(group),
        "bytes": 0 if group is None else sum(_jax.aval_bytes(var.aval) for var in group),
        "num_equations": len(plan.eqns),
        "seconds": plan.seconds * price if measured_s is None else measured_s,
        "is_measured": measured_s is not None,
    }
