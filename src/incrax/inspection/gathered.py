"""All that a page about one function shows, as plain data: equations, what calls would do, what calls did.

In: an engine and its history. Out: a dictionary of lists, numbers and text. It must not evaluate or store anything.
"""

from __future__ import annotations

import functools
import operator
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._messages import not_called
from incrax._version import __version__
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import NO_MEMORY, CallRecord, Chunks, History, PastCall
from incrax.engine.call.signature_table import Traces
from incrax.engine.inputs.rows import has_rows
from incrax.explanation.last_call import equations_run
from incrax.inspection.equations import Equations, Table
from incrax.inspection.outlooks import names, outlooks, plans, segments
from incrax.rows.engine import RowEngine
from incrax.rows.traces import RowTraces

FORMAT = 1
MAX_SAVED = 100
"""Saved values that are listed, the largest first."""


class Subject(NamedTuple):
    """What a report is about: a function's name, its engine, its calls, its counters; engines of chunks, if any."""

    name: str
    engine: Engine
    history: History
    stats: Mapping[str, int]
    num_signatures: int
    rows: RowEngine | None = None


def subject_of(
    name: str, traces: Traces, row_traces: RowTraces, stats: Mapping[str, int], args: Any, kwargs: Any
) -> Subject:
    """What a report is about: the signature of some arguments, or the last call's.

    Raises:
        NotCalledError: there are neither arguments nor calls.
    """
    engine, rows = None, None
    if has_rows(jax.tree.leaves((args, kwargs))):
        rows, _, given = row_traces.serving(args, kwargs)
        engine = rows.first_kin(given)
    elif args or kwargs:
        engine = traces.looked_up(args, kwargs, "report()")[0].engine
    elif traces.latest is not None:
        engine = traces.latest.engine
    elif row_traces.latest is not None and row_traces.latest.last is not None:
        rows, engine = row_traces.latest, row_traces.latest.last.engine
    if engine is None:
        raise not_called("report()")
    history = engine.history if rows is None else rows.history
    return Subject(name, engine, history, stats, len(traces.table) + len(row_traces.table), rows)


def gather(subject: Subject) -> dict[str, Any]:
    """The data of a page; JSON can hold them."""
    engine = subject.engine
    equations = Equations(engine)
    return {
        "format": FORMAT,
        "function": _function(subject),
        "machine": _machine(),
        "leaves": _leaves(engine),
        "equations": equations.columns(),
        "outlooks": outlooks(equations),
        "last": None if engine.last is None else hex(engine.last.dirty & ~engine.always),
        "plans": plans(equations),
        "whole": _whole(engine),
        "worth": engine.chooser.watch.worth.sentence if engine.chooser.is_timed else "",
        "segments": segments(engine),
        "calls": _calls(subject, equations),
        "memory": _memory(subject, equations),
        "stats": dict(subject.stats),
    }


def _function(subject: Subject) -> dict[str, Any]:
    engine = subject.engine
    facts, chooser = engine.facts, engine.chooser
    planner = "exact policy" if chooser.is_exact else "minimal planner" if facts.is_minimal else "cost planner"
    return {
        "name": subject.name,
        "planner": planner,
        "num_equations": len(facts.program.eqns),
        "num_outputs": len(facts.program.outvars),
        "num_signatures": subject.num_signatures,
        "always": hex(engine.always),
        "is_resting": engine.rests,
        "has_rows": subject.rows is not None,
        "hot_after": engine.tuning.hot_after,
    }


def _machine() -> dict[str, str]:
    device = jax.devices()[0]
    kind = (
        f"{jax.default_backend()}, {device.device_kind}" if device.device_kind != device.platform else device.platform
    )
    devices = f"{len(jax.devices())} x {kind}" if len(jax.devices()) > 1 else kind
    return {"incrax": __version__, "jax": jax.__version__, "python": platform.python_version(), "devices": devices}


def _leaves(engine: Engine) -> list[dict[str, Any]]:
    layout, found = engine.layout, []
    for index, (path, var) in enumerate(zip(engine.paths, engine.facts.program.invars, strict=True)):
        kind, size = var.aval.str_short(short_dtypes=True), _jax.aval_bytes(var.aval)
        place = {"offset": layout.offsets[index], "width": layout.widths[index]}
        found.append({"path": path, "type": kind, "bytes": size, **place})
    return found


def _whole(engine: Engine) -> dict[str, Any]:
    chooser = engine.chooser
    return {
        "seconds": chooser.whole_s,
        "is_measured": chooser.whole.seconds is not None,
        "first_s": (chooser.whole.first_s or None) if chooser.clock.is_running else None,
        "lost_s": chooser.race.lost_s,
        "compiling_s": chooser.clock.compiling_s,
    }


# --- calls --------------------------------------------------------------------------------------------------------


def _calls(subject: Subject, equations: Equations) -> dict[str, Any]:
    """The latest calls as columns; what several share, by number."""
    kinds, whys, changes = Table(), Table(), Table()
    calls = list(subject.history.calls())
    did = {id(call.record): _did(equations, call.record) for call in calls}
    return {
        "first": calls[0].number if calls else 0,
        "num": subject.history.num_calls,
        "limit": subject.history.size,
        "at_s": [round(call.start_s - calls[0].start_s, 7) for call in calls],
        "seconds": [round(call.end_s - call.start_s, 7) for call in calls],
        "kind": [kinds.number(did[id(call.record)][0]) for call in calls],
        "changed": [changes.number(_changed(subject.engine, call)) for call in calls],
        "ran": [did[id(call.record)][1] for call in calls],
        "filled": [did[id(call.record)][2] for call in calls],
        "loaded": [did[id(call.record)][3] for call in calls],
        "why": [whys.number(_why(call)) for call in calls],
        "saved_bytes": [call.saved_bytes for call in calls],
        "kinds": kinds.listed(),
        "whys": whys.listed(),
        "changes": changes.listed(lambda mask: _named(subject.engine, mask)),
    }


def _did(equations: Equations, record: CallRecord | Chunks | None) -> tuple[str, int, int, int]:
    """What served a call, equations run (with those that filled), values filled, values loaded."""
    if record is None:
        return "whole (resting)", len(equations.eqns), 0, 0
    if isinstance(record, Chunks):
        return "rows", record.num_run, record.num_joined, record.num_reused
    kind = "first call" if record.is_first else record.candidate
    return kind, len(equations_run(equations.engine, record)), len(record.filled), len(record.loads)


def _changed(engine: Engine, call: PastCall) -> int | None:
    """The inputs that changed, as far as the call found out; None where it counted chunks."""
    if isinstance(call.record, Chunks):
        return None
    if call.record is None:
        return functools.reduce(operator.or_, map(engine.layout.leaf_mask, call.rested or ()), 0)
    return call.record.dirty & ~engine.always


def _named(engine: Engine, mask: int | None) -> dict[str, Any]:
    """What changed, as bits and by name."""
    return {"mask": None, "num": -1, "names": []} if mask is None else {"mask": hex(mask), **names(engine, mask)}


def _why(call: PastCall) -> str:
    record = call.record
    if record is None:
        return "saving did not pay in the last calls; inputs that are other objects are taken for changed"
    if isinstance(record, Chunks):
        return f"chunks: {record.num_run} run, {record.num_reused} reused, {record.num_joined} joined"
    if record.candidate == "saved outputs":
        return "no input changed"
    if record is NO_MEMORY:
        return "the device had no memory left until all saved values were dropped"
    return "first call with this signature" if record.is_first else call.why or ""


# --- memory -------------------------------------------------------------------------------------------------------


def _memory(subject: Subject, equations: Equations) -> dict[str, Any]:
    """The budget, and the saved values now, the largest first."""
    store, engine = subject.engine.store, subject.engine
    sizes = sorted(store.sizes().items(), key=lambda item: -item[1])
    listed = [
        {
            "type": var.aval.str_short(short_dtypes=True),
            "bytes": size,
            "equation": equations.writers([var])[0],
            "depends_on": names(engine, engine.facts.mask(var)),
            "name": engine.facts.kept.get(var),
        }
        for var, size in sizes[:MAX_SAVED]
    ]
    return {
        "budget_bytes": store.budget_bytes,
        "versions": store.versions,
        "saved_bytes": store.saved_bytes if subject.rows is None else subject.rows.saved_bytes,
        "num_saved": len(sizes),
        "saved": listed,
    }
