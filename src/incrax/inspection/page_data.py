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
from incrax._progress import Meter
from incrax._version import __version__
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import Chunks, History, PastCall
from incrax.engine.call.rehearsal import row_outlooks
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.cost import equation_cost, total_cost
from incrax.explanation import Reader, Served, rows_made, sized

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
    devices = jax.devices()
    first = devices[0]
    kind = first.platform
    if first.device_kind != first.platform:
        kind = f"{jax.default_backend()}, {first.device_kind}"
    shown = f"{len(devices)} x {kind}" if len(devices) > 1 else kind
    return {
        "incrax": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": shown,
    }


def coded(
    values: Iterable[Hashable], form: Callable[[Any], Any] = lambda value: value
) -> tuple[list[int], list[Any]]:
    """Values by number; and the distinct ones, in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values]
    return codes, [form(value) for value in numbers]


class _Data:
    """The parts of a page; equations have numbers, but for those that only plans have."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.engine = subject.engine
        self.reader = Reader(subject.engine)
        self.facts = subject.engine.facts
        self.program = self.facts.program
        self.layout = subject.engine.layout
        self.chooser = subject.engine.chooser
        self.store = subject.engine.store
        self.row_records = [*row_outlooks(self.engine)]
        self.eqns: Sequence[Equation] = self.program.eqns
        self.numbers = {id(eqn): number for number, eqn in enumerate(self.eqns)}
        costs = list(map(equation_cost, self.eqns))
        self.work = {name: np.array([getattr(cost, name) for cost in costs]) for name in WORK}
        entries = [e for of in (self.chooser, self.engine.slices) for e in of.entries.values()]
        self.entries: list[Entry] = sorted(entries, key=lambda entry: -entry.count)[:MAX_PLANS]

    def _mask(self, dirty: int) -> str:
        """Inputs as bits, but for what runs always."""
        return hex(dirty & ~self.engine.always)

    def _names(self, dirty: int) -> Data:
        """Inputs by their first names, and how many there are."""
        found = self.reader.names(dirty)
        return {"names": found[:MAX_NAMES], "num": len(found)}

    def writers(self, variables: Iterable[Var]) -> list[int]:
        """Numbers of the equations that write some variables; -1 for one that only plans have, each
        number once.
        """
        listing = self.facts.listing
        return list(dict.fromkeys(listing.writer.get(var, -1) for var in variables))

    def leaves(self) -> list[Data]:
        """The inputs, with their bits."""
        layout = self.layout
        names = ("path", "type", "bytes", "offset", "width")
        parts = zip(
            self.engine.paths, self.program.invars, layout.offsets, layout.widths, strict=True
        )
        return [
            dict(zip(names, (path, *sized(var), *place), strict=True))
            for path, var, *place in parts
        ]

    # --- equations --------------------------------------------------------------------------------

    def equations(self) -> Data:
        """One list per property, one element per equation; what several share by number, in tables
        of their own.
        """
        shared = {
            "set": coded(self.facts.equation_masks, hex),
            "primitive": coded(eqn.primitive.name for eqn in self.eqns),
            "place": coded(map(_jax.source_line, self.eqns), place),
        }
        written = [list(map(sized, written_vars(eqn))) for eqn in self.eqns]
        shared["type"] = coded(", ".join(kind for kind, _ in each) for each in written)
        states = dict.fromkeys(self.writers(self.chooser.savable), 1)  # worth saving to some plan
        for state in self.store.states:
            states.update(dict.fromkeys(self.writers(state.saved), 2))  # saved now
        seconds, how = self.seconds()
        return {
            **{name: codes for name, (codes, _) in shared.items()},
            **{f"{name}s": table for name, (_, table) in shared.items()},
            **{name: work.tolist() for name, work in self.work.items()},
            "bytes": [sum(size for _, size in each) for each in written],
            "seconds": [float(f"{s:.4g}") for s in seconds],
            "how": how,
            "hows": list(HOW),
            "state": [states.get(number, 0) for number in range(len(self.eqns))],
            "reads": [
                [number for number in self.writers(read_vars(eqn)) if number >= 0]
                for eqn in self.eqns
            ],
        }

    def seconds(self) -> tuple[list[float], list[int]]:
        """Seconds of each equation, estimated, then scaled to the smallest timed program that holds
        it; and how.

        Of two programs of one size the whole function counts, so that the sum is the time that is
        shown for it.
        """
        estimated = self.facts.seconds
        table = self.engine.segments
        groups = [*table.groups.values(), *[None] * bool(table.wanted)]  # the last: of the outputs
        plans = [table.top_plan() if group is None else table.plan(group) for group in groups]
        measured = zip(plans, map(table.measured_s, groups), strict=True)
        timed: list[tuple[Sequence[Equation], float, int]] = [
            (plan.eqns, s, 2) for plan, s in measured if s is not None
        ]
        whole = self.engine.whole
        if whole.seconds is not None:
            timed.append((self.eqns, whole.seconds, 1))
        seconds = list(map(estimated, self.eqns))
        how = [0] * len(self.eqns)
        for eqns, measured_s, kind in sorted(timed, key=lambda item: -len(item[0])):
            factor = measured_s / max(sum(map(estimated, eqns)), 1e-12)
            for number in [self.numbers[id(eqn)] for eqn in eqns if id(eqn) in self.numbers]:
                seconds[number] = factor * estimated(self.eqns[number])
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
        found = []
        with Meter("report: what calls would do", len(masks)) as meter:
            for mask in masks:
                served = self.reader.outlook(mask)
                assert served is not None
                found.append({"mask": hex(mask), **self.described(served)})
                meter.advance()
        return found

    def slices(self) -> list[Data]:
        """What a call would do that changes few rows of inputs, for each kind of such a change that
        a program serves.
        """
        return [
            {"mask": self._mask(record.dirty), **self.described(self.reader.served(record))}
            for record in self.row_records
        ]

    def slice_of(self, candidate: str, entry: Entry | None) -> int:
        """The place among `slices` of what served a call, or would; -1: it is none of them."""
        entries = [record.entry for record in self.row_records if candidate == "slices"]
        return next((number for number, each in enumerate(entries) if each is entry), -1)

    def last(self) -> Data | None:
        """What changed in the last call, None before the first, and its place among `slices`."""
        record = self.engine.last
        if record is None:
            return None
        changed = self.reader.served(record).changed
        return {"mask": hex(changed), "slice": self.slice_of(record.candidate, record.entry)}

    def verdict(self) -> Data:
        """Whether saving has been worth it: the sentence, and seconds by what for."""
        if not self.chooser.is_timed:
            return {"sentence": "", "ours": {}, "jit": {}}
        found = self.chooser.verdict
        if found.gain is None:
            return {"sentence": found.sentence, "ours": {}, "jit": {}}
        return {"sentence": found.sentence, "ours": found.ours, "jit": found.jit}

    def _asked(self) -> Iterator[int]:
        """The sets to look out for, the most useful first."""
        layout = self.layout
        last = self.reader.last()
        if last is not None:
            yield last.changed
        yield from (0, layout.full)
        yield from (entry.dirty & ~self.engine.always for entry in self.entries)
        yield from (layout.leaf_mask(index) for index in range(len(layout.widths)))
        for offset, width in zip(layout.offsets, layout.widths, strict=True):
            yield from (1 << offset + k for k in range(width) if width > 1)

    def described(self, served: Served) -> Data:
        """A call as data: the numbers are those of `explain`; what differs from the values that it
        starts from.
        """
        numbers = [self.numbers.get(id(eqn), -1) for eqn in served.ran]
        known = np.array([number for number in numbers if number >= 0], int)
        is_avoided = np.ones(len(self.eqns), bool)
        is_avoided[known] = False
        others = [eqn for n, eqn in zip(numbers, served.ran, strict=True) if n < 0]
        derived = total_cost(others)
        work_ran = {n: float(w[known].sum()) + getattr(derived, n) for n, w in self.work.items()}
        work_avoided = {name: float(work[is_avoided].sum()) for name, work in self.work.items()}
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
            "by_rows": ranges(self.numbers[id(x.eqn)] for x in served.made if not x.why_all),
            "rows_made": {self.numbers[id(x.eqn)]: rows_made(x) for x in served.made},
            "ran": ranges([*known.tolist(), *(self.numbers[id(x.eqn)] for x in served.made)]),
            **{f"{name}_ran": number for name, number in work_ran.items()},
            **{f"{name}_avoided": number for name, number in work_avoided.items()},
        }

    def _loaded(self, loads: Sequence[Var]) -> dict[str, int]:
        return {
            "num_loaded": len(loads),
            "loaded_bytes": sum(size for _, size in map(sized, loads)),
        }

    def _ran(self, plan: Plan | None) -> dict[str, int]:
        """How many equations run, and how many of these the program does not have; of rows those
        that they stand for.
        """
        if plan is None:
            return {"num_ran": len(self.eqns), "num_derived": 0}
        derived = [eqn for eqn in plan.eqns if id(eqn) not in self.numbers]
        num_derived = len(derived) if plan.sliced is None else 0
        return {"num_ran": plan.num_eqns, "num_derived": num_derived}

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, entry: Entry) -> Data:
        """A dirty set that was seen, with its candidates and how they were chosen."""
        plan = self.engine.plan_of(entry.candidate, entry)
        own = None if entry.program is None else entry.program.plan
        statistics = None if own is None else own.statistics
        is_timed = entry.is_final and len(entry.seconds) > 1
        candidates = [
            {"name": name, "seconds": s, "is_measured": is_timed}
            for name, s in entry.seconds.items()
        ]
        return {
            "mask": self._mask(entry.dirty),
            "slice": self.slice_of(entry.candidate, entry),
            "changed": self._names(entry.dirty),
            "count": entry.count,
            "candidate": entry.candidate,
            "why": entry.reason,
            "is_final": entry.is_final,
            "candidates": candidates,
            "promise_s": entry.promise_s if math.isfinite(entry.promise_s) else None,
            **self._ran(plan),
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
        shared = {
            "kind": coded(row.kind for row in rows),
            "why": coded(row.why for row in rows),
            "change": coded((row.changed for row in rows), self._named),
        }
        return {
            "first": calls[0].number if calls else 0,
            "num": history.num_calls,
            "limit": history.size,
            "seconds": [round(call.end_s - call.start_s, 7) for call in calls],
            "kind": shared["kind"][0],
            "why": shared["why"][0],
            "changed": shared["change"][0],
            **{f"{name}s": table for name, (_, table) in shared.items()},
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
        if isinstance(record, Chunks):
            why = (
                f"chunks: {record.num_run} run, {record.num_reused} reused, {record.num_joined} "
                "joined"
            )
            return _Did("rows", why, None, record.num_run, record.num_joined, record.num_reused)
        assert record is not None
        if id(record) not in known:
            known[id(record)] = self.reader.served(record)
        served = known[id(record)]
        kind = "first call" if served.is_first else served.by
        why = served.why if served.is_first else call.why or served.why
        return _Did(
            kind,
            why,
            served.changed,
            served.num_ran,
            len(served.filled),
            len(served.loads),
            self.slice_of(record.candidate, record.entry),
        )

    def _named(self, mask: int | None) -> Data:
        """What changed, as bits and by name."""
        return (
            {"mask": None, "num": -1, "names": []}
            if mask is None
            else {"mask": hex(mask), **self._names(mask)}
        )

    def memory(self) -> Data:
        """The budget, and the saved values now, the largest first."""
        sizes = sorted(self.store.sizes().items(), key=lambda item: -item[1])
        names = self.facts.kept
        saved = [
            {
                "type": sized(var)[0],
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
