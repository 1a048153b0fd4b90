"""What a page about one function shows, as plain data: equations, what calls did and would do,
plans, memory.

In: an engine and its history. Out: a dictionary of lists, numbers and text, which JSON can hold. It
must not evaluate or store anything, nor know how the data are drawn.
"""

from __future__ import annotations

import linecache
import math
import platform
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._locations import source_of
from incrax._program import read_vars, written_vars
from incrax._version import __version__
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import Chunks, History, PastCall
from incrax.engine.call.rehearsal import outlook, row_outlooks
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.cost import equation_cost
from incrax.explanation import Served, rows_made, served_by, sized

FORMAT = 1
MAX_OUTLOOKS = 400
MAX_PLANNED = 200_000
"""Equations to be planned in all of the outlooks together, where each needs a plan that is not
there.
"""

MAX_PLANS = 200
MAX_NAMES = 12
MAX_SAVED = 100
"""Saved values that are listed, the largest first."""

WORK = ("flops", "transcendentals")
NUM_CODE = 160
"""Characters of a source line that are kept."""

HOW = ("estimated", "measured as a whole", "measured as a segment")


Data: TypeAlias = dict[str, Any]
"""What JSON can hold, by name."""


class Subject(NamedTuple):
    """What a page is about: a function's name, its engine, its calls, its counters; bytes that it
    saves; whether the engine is that of one chunk of `Rows`.
    """

    name: str
    engine: Engine
    history: History
    stats: Mapping[str, int]
    num_signatures: int
    saved_bytes: int = 0
    has_rows: bool = False


def page_data(subject: Subject) -> Data:
    """The data of a page."""
    engine = subject.engine
    chooser = engine.chooser
    data = _Data(subject)
    planner = "minimal planner" if data.facts.is_minimal else "cost planner"
    return {
        "format": FORMAT,
        "function": {
            "name": subject.name,
            "planner": "exact policy" if chooser.is_exact else planner,
            "num_equations": len(data.eqns),
            "num_outputs": len(data.program.outvars),
            "num_signatures": subject.num_signatures,
            "always": hex(engine.always),
            "bypasses": engine.bypasses,
            "has_rows": subject.has_rows,
        },
        "machine": _machine(),
        "leaves": data.leaves(),
        "equations": data.equations(),
        "outlooks": data.outlooks(),
        "slices": data.slices(),
        "last": data.last(),
        "plans": [data.plan(entry) for entry in data.entries],
        "whole": {
            "seconds": chooser.whole_s,
            "is_measured": chooser.whole.seconds is not None,
            "first_s": (chooser.whole.first_s or None) if chooser.clock.is_running else None,
            "lost_s": chooser.race.lost_s,
        },
        "verdict": data.verdict(),
        "calls": data.calls(),
        "memory": data.memory(),
        "stats": dict(subject.stats),
    }


def _machine() -> dict[str, str]:
    first, *others = jax.devices()
    kind = first.platform
    if first.device_kind != kind:
        kind = f"{jax.default_backend()}, {first.device_kind}"
    shown = f"{1 + len(others)} x {kind}" if others else kind
    return {
        "incrax": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": shown,
    }


def coded(
    name: str,
    table: str,
    values: Iterable[Hashable],
    form: Callable[[Any], Any] = lambda value: value,
) -> Data:
    """A column of numbers, and the table of the distinct values that these stand for, in the order
    of their first appearance.
    """
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values]
    return {name: codes, table: [form(value) for value in numbers]}


class _Data:
    """The parts of a page; equations have numbers, but for those that only plans have."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.engine = subject.engine
        self.facts = subject.engine.facts
        self.program = self.facts.program
        self.layout = subject.engine.layout
        self.chooser = subject.engine.chooser
        self.store = subject.engine.store
        self.row_records = [*row_outlooks(self.engine)]
        self.eqns: Sequence[Equation] = self.program.eqns
        self.numbers = {id(eqn): number for number, eqn in enumerate(self.eqns)}
        self.work = _work(self.eqns)
        entries = [e for of in (self.chooser, self.engine.slices) for e in of.entries.values()]
        self.entries: list[Entry] = sorted(entries, key=lambda entry: -entry.count)[:MAX_PLANS]

    def _mask(self, dirty: int) -> str:
        """Inputs as bits, but for what runs always."""
        return hex(dirty & ~self.engine.always)

    def _names(self, dirty: int) -> Data:
        """Inputs by their first names, and how many there are."""
        found = mask_paths(self.engine.paths, self.layout, dirty)
        return {"names": found[:MAX_NAMES], "num": len(found)}

    def writers(self, variables: Iterable[Var]) -> list[int]:
        """Numbers of the equations that write some variables; -1 for one that only plans have, each
        number once.
        """
        listing = self.facts.listing
        return list(dict.fromkeys(listing.writer.get(var, -1) for var in variables))

    def leaves(self) -> list[Data]:
        """The inputs, with their bits."""
        engine = self.engine
        offsets = zip(self.layout.offsets, self.layout.widths, strict=True)
        parts = zip(engine.paths, map(sized, self.program.invars), offsets, strict=True)
        return [
            {"path": path, **each._asdict(), "offset": offset, "width": width}
            for path, each, (offset, width) in parts
        ]

    # --- equations --------------------------------------------------------------------------------

    def equations(self) -> Data:
        """One list per property, one element per equation; what several share by number, in tables
        of their own.
        """
        written = [list(map(sized, written_vars(eqn))) for eqn in self.eqns]
        seconds, how = self.seconds()
        states = dict.fromkeys(self.writers(self.chooser.savable), 1)  # worth saving to some plan
        for state in self.store.states:
            states.update(dict.fromkeys(self.writers(state.saved), 2))  # saved now
        return {
            **coded("set", "sets", self.facts.equation_masks, hex),
            **coded("primitive", "primitives", (eqn.primitive.name for eqn in self.eqns)),
            **coded("place", "places", map(_jax.source_line, self.eqns), place),
            **coded("type", "types", (", ".join(x.type for x in each) for each in written)),
            **dict(zip(WORK, self.work.T.tolist(), strict=True)),
            "bytes": [sum(x.bytes for x in each) for each in written],
            "seconds": [float(f"{s:.4g}") for s in seconds],
            "how": how,
            "hows": list(HOW),
            "state": [states.get(number, 0) for number in range(len(self.eqns))],
            "reads": [[n for n in self.writers(read_vars(eqn)) if n >= 0] for eqn in self.eqns],
        }

    def seconds(self) -> tuple[list[float], list[int]]:
        """Seconds of each equation, estimated, then scaled to the smallest timed program that holds
        it; and how.

        Of two programs of one size the whole function counts, so that the sum is the time that is
        shown for it.
        """
        estimated = list(map(self.facts.seconds, self.eqns))
        table = self.engine.segments
        timed: list[tuple[Sequence[Equation], float | None, int]] = [
            (table.plan(group).eqns, table.measured_s(group), 2) for group in table.groups.values()
        ]
        if table.wanted:
            timed.append((table.top_plan().eqns, table.measured_s(None), 2))
        whole = self.engine.whole
        timed.append((self.eqns, whole.seconds, 1))
        seconds = list(estimated)
        how = [0] * len(self.eqns)
        for eqns, measured_s, kind in sorted(timed, key=lambda item: -len(item[0])):
            if measured_s is None:
                continue
            factor = measured_s / max(sum(map(self.facts.seconds, eqns)), 1e-12)
            for number in [self.numbers[id(eqn)] for eqn in eqns if id(eqn) in self.numbers]:
                seconds[number] = factor * estimated[number]
                how[number] = kind
        return seconds, how

    # --- what calls would do ----------------------------------------------------------------------

    def outlooks(self) -> list[Data]:
        """What a call would do, for each input alone, each element of small arrays, and each dirty
        set seen.
        """
        if not self.store.states:
            return []
        limit = MAX_OUTLOOKS
        if self.facts.is_minimal:
            limit = min(limit, max(MAX_PLANNED // max(len(self.eqns), 1), 1))
        masks = list(dict.fromkeys(self._asked()))[:limit]
        records = [(mask, outlook(self.engine, mask)) for mask in masks]
        return [
            {"mask": hex(mask), **self.described(served_by(self.engine, record))}
            for mask, record in records
            if record is not None
        ]

    def slices(self) -> list[Data]:
        """What a call would do that changes few rows of inputs, for each kind of such a change that
        a program serves.
        """
        return [
            {"mask": self._mask(record.dirty), **self.described(served_by(self.engine, record))}
            for record in self.row_records
        ]

    def slice_of(self, candidate: str, entry: Entry | None) -> int:
        """The place among `slices` of what served a call, or would; -1: it is none of them."""
        is_it = [candidate == "slices" and each.entry is entry for each in self.row_records]
        return is_it.index(True) if any(is_it) else -1

    def last(self) -> Data | None:
        """What changed in the last call, None before the first, and its place among `slices`."""
        record = self.engine.last
        if record is None:
            return None
        return {
            "mask": self._mask(record.dirty),
            "slice": self.slice_of(record.candidate, record.entry),
        }

    def verdict(self) -> Data:
        """Whether saving has been worth it: the sentence, and seconds by what for."""
        found = self.chooser.verdict if self.chooser.is_timed else None
        seconds = (
            {"ours": {}, "jit": {}}
            if found is None or found.gain is None
            else {"ours": found.ours, "jit": found.jit}
        )
        return {"sentence": "" if found is None else found.sentence, **seconds}

    def _asked(self) -> Iterator[int]:
        """The sets to look out for, the most useful first."""
        layout = self.layout
        always = self.engine.always
        entries = [entry.dirty for entry in self.entries]
        last = [] if self.engine.last is None else [self.engine.last.dirty]
        leaves = [layout.leaf_mask(index) for index in range(len(layout.widths))]
        seen = [dirty & ~always for dirty in entries]
        yield from (*(dirty & ~always for dirty in last), 0, layout.full, *seen, *leaves)
        for offset, width in zip(layout.offsets, layout.widths, strict=True):
            yield from (1 << offset + k for k in range(width) if width > 1)

    def described(self, served: Served) -> Data:
        """A call as data: the numbers are those of `explain`; what differs from the values that it
        starts from.
        """
        numbers = np.array([self.numbers.get(id(eqn), -1) for eqn in served.ran], int)
        known = numbers[numbers >= 0]
        others = [eqn for eqn in served.ran if id(eqn) not in self.numbers]
        ran = self.work[known].sum(axis=0) + _work(others).sum(axis=0)
        avoided = np.delete(self.work, known, axis=0).sum(axis=0)
        made = {self.numbers[id(each.eqn)]: each for each in served.made}
        return {
            "served_by": served.by,
            "differs": hex(served.changed),
            "why": served.why,
            **self._loaded(served.loads),
            "loaded": ranges(number for number in self.writers(served.loads) if number >= 0),
            "num_filled": len(served.filled),
            "seconds": served.seconds,
            "count": served.uses,
            "num_ran": served.num_ran,
            "num_derived": 0 if served.rows else len(others),
            "rows": served.rows,
            "by_rows": ranges(number for number, each in made.items() if not each.why_all),
            "rows_made": {number: rows_made(each) for number, each in made.items()},
            "ran": ranges([*known.tolist(), *made]),
            **dict(zip([f"{name}_ran" for name in WORK], ran.tolist(), strict=True)),
            **dict(zip([f"{name}_avoided" for name in WORK], avoided.tolist(), strict=True)),
        }

    def _loaded(self, loads: Sequence[Var]) -> dict[str, int]:
        return {
            "num_loaded": len(loads),
            "loaded_bytes": sum(each.bytes for each in map(sized, loads)),
        }

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, entry: Entry) -> Data:
        """A dirty set that was seen, with its candidates and how they were chosen."""
        plan = self.engine.plan_of(entry.candidate, entry)
        own = None if entry.program is None else entry.program.plan
        statistics = None if own is None else own.statistics
        is_timed = entry.is_final and len(entry.seconds) > 1
        is_derived = [id(eqn) not in self.numbers for eqn in (() if plan is None else plan.eqns)]
        return {
            "mask": self._mask(entry.dirty),
            "slice": self.slice_of(entry.candidate, entry),
            "changed": self._names(entry.dirty),
            "count": entry.count,
            "candidate": entry.candidate,
            "why": entry.reason,
            "is_final": entry.is_final,
            "candidates": [
                {"name": name, "seconds": s, "is_measured": is_timed}
                for name, s in entry.seconds.items()
            ],
            "promise_s": entry.promise_s if math.isfinite(entry.promise_s) else None,
            "num_ran": len(self.eqns) if plan is None else plan.num_eqns,
            "num_derived": 0 if plan is None or plan.sliced else sum(is_derived),
            **self._loaded(() if plan is None else plan.loads),
            "statistics": [] if statistics is None else list(statistics.lines),
        }

    # --- calls and memory -------------------------------------------------------------------------

    def calls(self) -> Data:
        """The latest calls as columns; what several share, by number."""
        history = self.subject.history
        calls = list(history.calls())
        served: dict[int, Served] = {}
        rows = [self._did(call, served) for call in calls]
        return {
            "first": calls[0].number if calls else 0,
            "num": history.num_calls,
            "seconds": [round(call.end_s - call.start_s, 7) for call in calls],
            **coded("kind", "kinds", (row.kind for row in rows)),
            **coded("why", "whys", (row.why for row in rows)),
            **coded("changed", "changes", (row.changed for row in rows), self._named),
            "slice": [row.slice for row in rows],
            "ran": [row.num_ran for row in rows],
            "filled": [row.num_filled for row in rows],
            "loaded": [row.num_loaded for row in rows],
            "saved_bytes": [call.saved_bytes for call in calls],
        }

    def _did(self, call: PastCall, known: dict[int, Served]) -> _Did:
        """What a call did; calls that are alike share a record, and the inputs that changed are
        None where it counted chunks.
        """
        record = call.record
        assert record is not None
        if isinstance(record, Chunks):
            num_run, num_reused, num_joined = record
            why = f"chunks: {num_run} run, {num_reused} reused, {num_joined} joined"
            return _Did("rows", why, None, num_run, num_joined, num_reused)
        served = known.get(id(record)) or served_by(self.engine, record)
        known[id(record)] = served
        return _Did(
            "first call" if served.is_first else served.by,
            served.why if served.is_first else call.why or served.why,
            served.changed,
            served.num_ran,
            len(served.filled),
            len(served.loads),
            self.slice_of(record.candidate, record.entry),
        )

    def _named(self, mask: int | None) -> Data:
        """What changed, as bits and by name."""
        if mask is None:
            return {"mask": None, "num": -1, "names": []}
        return {"mask": hex(mask), **self._names(mask)}

    def memory(self) -> Data:
        """The budget, and the saved values now, the largest first."""
        sizes = sorted(self.store.sizes().items(), key=lambda item: -item[1])
        names = self.facts.kept
        saved = [
            {
                "type": sized(var).type,
                "bytes": size,
                "equation": self.writers([var])[0],
                "depends_on": self._names(self.facts.mask(var)),
                "name": names.get(var),
            }
            for var, size in sizes[:MAX_SAVED]
        ]
        return {
            "budget_bytes": self.store.budget_bytes,
            "versions": self.store.versions,
            "saved_bytes": self.subject.saved_bytes,
            "num_saved": len(sizes),
            "saved": saved,
        }


class _Did(NamedTuple):
    """A row of the table of calls: what served it, why, inputs changed, equations run, values
    filled and loaded, its place among `slices`.
    """

    kind: str
    why: str
    changed: int | None
    num_ran: int
    num_filled: int = 0
    num_loaded: int = 0
    slice: int = -1


def _work(eqns: Sequence[Equation]) -> np.ndarray:
    """What equations compute: a row each, the columns of `WORK`."""
    costs = map(equation_cost, eqns)
    return np.array([(each.flops, each.transcendentals) for each in costs]).reshape(-1, len(WORK))


def place(text: str) -> Data:
    """A place in the user's source, as JAX prints it, with the text of the line; without the
    folders above.
    """
    source = source_of(text)
    if not source.file:
        return {"file": "", "line": 0, "function": text or "unknown", "code": ""}
    code = linecache.getline(source.file, int(source.line)).strip()[:NUM_CODE]
    name = "/".join(PurePath(source.file).parts[-2:])
    return {
        "file": name,
        "line": int(source.line),
        "function": source.function or "unknown",
        "code": code,
    }


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as runs of (first, last), each once, in order."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
