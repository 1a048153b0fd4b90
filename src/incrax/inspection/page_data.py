"""What a page about one function shows, as plain data: equations, and what calls would do.

In: an engine. Out: a dictionary of lists, numbers and text, which JSON can hold. It
must not evaluate or store anything, nor know how the data are drawn.
"""

from __future__ import annotations

import linecache
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
from incrax.engine.call.rehearsal import outlook, row_outlooks
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.cost import equation_cost
from incrax.explanation import Served, rows_made, served_by, sized

FORMAT = 1
MAX_OUTLOOKS = 400
MAX_PLANNED = 200_000
"""Equations to be planned in all of the outlooks together, where each needs a plan that is not
there.
"""

WORK = ("flops", "transcendentals")
NUM_CODE = 160
"""Characters of a source line that are kept."""


Data: TypeAlias = dict[str, Any]
"""What JSON can hold, by name."""

OF_ROWS = "not known of `Rows`: their chunks are counted"


class Subject(NamedTuple):
    """What a page is about."""

    name: str  # of the function
    engine: Engine  # of one of its signatures
    stats: Mapping[str, int]
    num_signatures: int
    saved_bytes: int = 0
    has_rows: bool = False  # whether the engine is that of one chunk of `Rows`


def page_data(subject: Subject) -> Data:
    """The data of a page."""
    data = _Data(subject)
    return {
        "format": FORMAT,
        "function": data.function(),
        "machine": _machine(),
        "leaves": data.leaves(),
        "equations": data.equations(),
        "outlooks": data.outlooks(),
        "slices": data.slices(),
        "last": data.last(),
        "verdict": data.verdict(),
        "memory": {
            "budget_bytes": data.store.budget_bytes,
            "saved_bytes": subject.saved_bytes,
        },
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
        whole = subject.engine.whole
        self.measured_s = whole.seconds

    def _mask(self, dirty: int) -> str:
        """Inputs as bits, but for what runs always."""
        return hex(dirty & ~self.engine.always)

    def writers(self, variables: Iterable[Var]) -> list[int]:
        """Numbers of the equations that write some variables; -1 for one that only plans have, each
        number once.
        """
        listing = self.facts.listing
        return list(dict.fromkeys(listing.writer.get(var, -1) for var in variables))

    def function(self) -> Data:
        """What it is called, and how large it is."""
        planner = "minimal planner" if self.facts.is_minimal else "cost planner"
        return {
            "name": self.subject.name,
            "planner": "exact policy" if self.chooser.is_exact else planner,
            "num_equations": len(self.eqns),
            "num_outputs": len(self.program.outvars),
            "num_signatures": self.subject.num_signatures,
            "always": hex(self.engine.always),
            "bypasses": self.engine.bypasses,
            "has_rows": self.subject.has_rows,
        }

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
        states = dict.fromkeys(self.writers(self.chooser.savable), 1)  # worth saving to some plan
        for state in self.store.states:
            states.update(dict.fromkeys(self.writers(state.saved), 2))  # saved now
        return {
            **coded("set", "sets", self.facts.equation_masks, hex),
            **coded("primitive", "primitives", (eqn.primitive.name for eqn in self.eqns)),
            **coded("place", "places", map(_jax.source_line, self.eqns), place),
            **coded("type", "types", (", ".join(x.type for x in each) for each in written)),
            **dict(zip(WORK, np.transpose(self.work).tolist(), strict=True)),
            "bytes": [sum(x.bytes for x in each) for each in written],
            "seconds": [float(f"{s:.4g}") for s in self.seconds()],
            "how": "estimated" if self.measured_s is None else "measured as a whole",
            "state": [states.get(number, 0) for number in range(len(self.eqns))],
            "reads": [[n for n in self.writers(read_vars(eqn)) if n >= 0] for eqn in self.eqns],
        }

    def seconds(self) -> list[float]:
        """Estimated seconds of each equation, scaled to those of the whole function where that was
        timed.
        """
        estimated = [self.facts.seconds(eqn) for eqn in self.eqns]
        measured_s = self.measured_s
        factor = 1.0 if measured_s is None else measured_s / max(sum(estimated), 1e-12)
        return [factor * seconds for seconds in estimated]

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
        if self.subject.has_rows:
            return {"sentence": OF_ROWS, "ours": {}, "jit": {}}
        found = self.chooser.verdict
        seconds = (
            {"ours": {}, "jit": {}}
            if found is None or found.gain is None
            else {"ours": found.ours, "jit": found.jit}
        )
        return {"sentence": "" if found is None else found.sentence, **seconds}

    def _asked(self) -> Iterator[int]:
        """The sets to look out for, the most useful first."""
        layout = self.layout
        engine = self.engine
        entries = [entry for of in (self.chooser, engine.slices) for entry in of.entries.values()]
        entries.sort(key=lambda entry: -entry.count)
        if engine.last is not None:
            yield engine.last.dirty & ~engine.always
        yield from (0, layout.full, *(entry.dirty & ~engine.always for entry in entries))
        yield from map(layout.leaf_mask, range(len(layout.widths)))
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
        avoided = self.work.sum(axis=0) - ran
        made = {self.numbers[id(each.eqn)]: each for each in served.made}
        return {
            "served_by": served.by,
            "differs": hex(served.changed),
            "why": served.why,
            "num_loaded": len(served.loads),
            "loaded_bytes": sum(each.bytes for each in map(sized, served.loads)),
            "loaded": ranges(number for number in self.writers(served.loads) if number >= 0),
            "num_filled": len(served.filled),
            "seconds": served.seconds,
            "count": served.uses,
            "num_ran": served.num_ran,
            "num_derived": served.num_derived,
            "rows": served.rows,
            "by_rows": ranges(number for number, each in made.items() if not each.why_all),
            "rows_made": {number: rows_made(each) for number, each in made.items()},
            "ran": ranges([*known.tolist(), *made]),
            **dict(zip([f"{name}_ran" for name in WORK], ran.tolist(), strict=True)),
            **dict(zip([f"{name}_avoided" for name in WORK], avoided.tolist(), strict=True)),
        }


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
