"""What calls did and would do, and what depends on what: the program, the record and the store of one
engine as reports need them.

In: an engine. Out: `Served`, one for each call; of it an `Explanation`, and a `DependenceTable`,
which print. Reports look into engines here and nowhere else, but for the page, which also shows how
plans were chosen and what is saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from incrax._jax import Equation, Var, aval_bytes, short_type, source_line
from incrax._messages import not_called
from incrax._table import Printable, Table, bytes_text, many, seconds_text
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import UNCHANGED, CallRecord
from incrax.engine.call.rehearsal import dry_run
from incrax.engine.call.traced import Given
from incrax.engine.inputs.leaves import is_compared_by_identity
from incrax.engine.inputs.paths import mask_paths, paths_mask
from incrax.engine.plan.plan import Blocked, Made, Plan, Sliced, lines_of
from incrax.engine.program.cost import ZERO, Cost, total_cost
from incrax.engine.program.dependence import Layout
from incrax.rows.engine import RowEngine

FIRST = "first call with this signature"
NEW_CHUNK = "first evaluation of this chunk"
NOT_COMPARED = "nothing was expected of saving, so that this was a call of `jax.jit`"
DELETED = "no input changed, but the result that was saved was donated or deleted"
NOT_READY = "the {} was not ready, lacks saved values, or must not be used for these arguments"


class Served(NamedTuple):
    """What served a call, or would serve one."""

    by: str  # a `Candidate`, or "saved outputs"
    why: str
    changed: int  # the inputs that differ from the values that it starts from
    ran: Sequence[Equation]  # those that fill missing values first
    loads: Sequence[Var] = ()
    filled: Sequence[Var] = ()
    seconds: dict[str, float] = {}  # noqa: RUF012  of the candidates
    uses: int = 0  # of this set of inputs
    statistics: Sequence[str] = ()  # a line for each sum that came from them, or why none can
    num_ran: int = 0  # equations that ran, each as often as it did,
    num_derived: int = 0  # those of them that are not the function's,
    rows: str = ""  # on which rows, if not on all,
    left_out: Cost = ZERO  # and what of their work was not done for other rows
    made: Sequence[Made] = ()  # where rows ran: what became of each equation of the function


def first_served(engine: Engine) -> Served:
    """The first call with this signature."""
    eqns = engine.facts.eqns
    return Served("whole", FIRST, engine.layout.full, eqns, num_ran=len(eqns))


def served_by(engine: Engine, record: CallRecord) -> Served:
    """A call as reports need it."""
    plan = record.plan
    entry = record.entry
    sliced = None if plan is None else plan.sliced
    in_blocks = [each.blocked for each in record.before if each.blocked is not None]
    ran = [eqn for each in record.before for eqn in (each.blocked or each).eqns]
    num_ran = sum(each.num_eqns for each in record.before)
    if plan is not None:
        ran += plan.eqns
        num_ran += plan.num_eqns
    elif record.candidate != "saved outputs":
        ran += engine.facts.eqns
        num_ran += engine.num_eqns
    how = "measured" if entry is not None and entry.is_final else "expected"
    seconds = {} if entry is None else entry.seconds
    rows = _blocks(in_blocks) if sliced is None else _rows(engine.paths, sliced)
    own = set(map(id, engine.facts.eqns))
    return Served(
        by=record.candidate,
        why=_why(engine, record),
        changed=record.dirty & ~engine.always,
        ran=ran,
        loads=record.loads,
        filled=record.filled,
        seconds={f"{name}, {how}": each for name, each in seconds.items()},
        uses=0 if entry is None else entry.count,
        statistics=_statistics(engine, plan),
        num_ran=num_ran,
        num_derived=0 if rows else sum(id(eqn) not in own for eqn in ran),
        rows=rows,
        # The work of the blocks that did not run.
        left_out=sum((total_cost(x.eqns) * (1.0 - x.share) for x in in_blocks), ZERO),
        made=() if sliced is None else sliced.made,
    )


def _statistics(engine: Engine, plan: Plan | None) -> Sequence[str]:
    """What came from statistics, or why nothing can."""
    if plan is not None and plan.statistics is not None:
        return plan.statistics.lines
    algebra = engine.facts.algebra
    return (algebra.reason,) if algebra.reason else ()


def _rows(paths: Sequence[str], sliced: Sliced) -> str:
    leaves, capacity, within = sliced.kind
    names = ", ".join(str(paths[leaf]) for leaf in leaves)
    which = f"at most {capacity}"
    if within:
        which = f"the {'last' if within > 0 else 'first'} {abs(within)}"
    found = f"{which} of {sliced.length} along the first axis of {names}"
    if sliced.resumed:
        found += f"; from the first of these on all steps of {lines_of(sliced.resumed)}"
    if sliced.widened:
        found += f"; all rows from {lines_of(sliced.widened)} on"
    return found


def _blocks(found: Sequence[Blocked]) -> str:
    """Blocks that ran, or would run, once for all programs of which as many did."""
    lines = []
    for each in found:
        number = "" if each.num_run is None else f"{each.num_run} of {each.num} "
        lines.append(f"{number}blocks of {each.size} of {each.length} rows")
    return "; ".join(dict.fromkeys(lines))


def rows_made(each: Made) -> str:
    """On which rows an equation ran; where it was all of them, why."""
    if each.why_all:
        return f"all: {each.why_all}"
    eqn = each.eqn
    if eqn.primitive.name == "scan" and not each.made:
        return "steps from the first changed one on"
    extents = each.made or each.read
    found = " and ".join(f"{num} of {length} along axis {axis}" for num, length, axis in extents)
    if each.is_put_off:
        return f"factors of {found}" if found else "none: it is the same for all rows"
    return found if each.made else f"all of its result, from {found}"


def _why(engine: Engine, record: CallRecord) -> str:
    if record.candidate == "saved outputs":
        return "no input changed"
    if record.is_first:
        return FIRST
    entry = record.entry
    if entry is None:
        return NOT_COMPARED
    if not record.dirty & engine.reach:
        return DELETED
    is_whole = record.candidate in ("whole", "priming")
    if is_whole and entry.candidate not in ("whole", "slices"):
        return f"{entry.reason}; {NOT_READY.format(entry.candidate)}"
    return entry.reason


class TypedSize(NamedTuple):
    """A value: its type, and its bytes."""

    type: str
    bytes: int


class EquationPlace(NamedTuple):
    """An equation: its primitive, and the line of the user's code."""

    primitive: str
    source: str


class ByRows(NamedTuple):
    """An equation that a change of rows reaches: which of its rows ran, or why all of them."""

    primitive: str
    source: str
    rows: str


def sized(var: Var) -> TypedSize:
    """Type and bytes of a variable."""
    return TypedSize(short_type(var.aval), aval_bytes(var.aval))


def _placed(eqn: Equation) -> EquationPlace:
    return EquationPlace(eqn.primitive.name, source_line(eqn))


def _changes(engine: Engine, served: Served) -> Iterator[tuple[str, str]]:
    """Names of inputs that differ, and how that was found out."""
    if served.why == FIRST:
        yield from ((path, FIRST) for path in engine.paths)
        return
    if served.why == NOT_COMPARED:
        yield (
            "not compared",
            "while nothing is expected of saving, a call goes straight to `jax.jit`",
        )
        return
    layout = engine.layout
    states = engine.store.states
    for index, _ in layout.leaves_of(served.changed):
        by_identity = bool(states) and is_compared_by_identity(states[-1].anchors[index])
        how = "it is another array than" if by_identity else "its bits differ from those"
        names = mask_paths(engine.paths, layout, served.changed & layout.leaf_mask(index))
        yield from ((name, f"{how} at the baseline") for name in names)


# --- one call ---------------------------------------------------------------------------------------

NOT_SHARED = "what was saved and learned for the other is not read: pass the same types"
NUM_CONSTANTS = 5
"""Closed-over arrays shown to people: the largest are those that it was a mistake to close over."""
NUM_ELEMENTS = 5
"""Changed elements of one array that are shown to people one by one."""
ELEMENT = re.compile(r"\[\d+(?:, \d+)*\]$")


@dataclass(frozen=True, repr=False)
class Explanation(Printable):
    """Report of one call.

    Fields:
        is_dry_run: whether the call is one that was not made.
        changed: inputs that differ, and how that was found out.
        served_by, why: "saved outputs", "plan", "segments", "slices" (a program for a few rows),
            "priming" (the whole function, which also saves what that, or plans of inputs that change in
            turns, read) or "whole".
        ran: equations that ran, each with its source line.
        num_equations: of the whole function.
        loaded, filled: saved values that were read (of a program for rows: arguments at the
            baseline, too), and those that had to be computed first, each in one of the two, with
            their bytes.
        kept: of these, what the user named: (name, "loaded" or "filled").
        statistics: a line for each sum that came from statistics, or why none does any more.
        cost_ran, cost_avoided: FLOPs, transcendentals and bytes of what ran, and how much less that
            is than the whole function's; below 0 where it is more, as where values were filled.
        times: seconds of the candidates.
        constants: what the function closed over when it was traced, or follows from that, the
            largest first.
        chunks: of `Rows`, how many were run, reused and joined; all else is then about one of them.
        worth: whether saving has been worth it so far; of `Rows` nobody knows.
        is_verbose: whether all of it is printed, or what matters most.
        num_ran, num_derived, rows: how many equations ran, those that fill values among them; how
            many of these are in no line of the function, as of a sum that was divided; and on which
            rows they ran, if not on all.
        by_rows: of each equation that a change of rows reaches, on which rows it ran.
        num_signatures: of the function; all else is about one of them.
        unlike: what its arguments have otherwise than those of the most similar other one.
    """

    is_dry_run: bool
    changed: tuple[tuple[str, str], ...]
    served_by: str
    why: str
    ran: tuple[EquationPlace, ...]
    num_equations: int
    loaded: tuple[TypedSize, ...]
    filled: tuple[TypedSize, ...]
    kept: tuple[tuple[str, str], ...]
    statistics: tuple[str, ...]
    cost_ran: Cost
    cost_avoided: Cost
    times: dict[str, float]
    constants: tuple[TypedSize, ...]
    chunks: tuple[tuple[str, int], ...] = ()
    worth: str = ""
    is_verbose: bool = False
    num_ran: int = 0
    num_derived: int = 0
    rows: str = ""
    by_rows: tuple[ByRows, ...] = ()
    num_signatures: int = 1
    unlike: str = ""

    @property
    def verbose(self) -> Explanation:
        """The same, printed with all figures and the equations."""
        return replace(self, is_verbose=True)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs."""
        same = ("is_dry_run", "served_by", "why", "num_ran", "num_derived", "rows", "num_equations")
        pairs = ("changed", "kept", "chunks")
        lists = ("loaded", "filled", "constants", "ran", "by_rows")
        return {
            **{name: getattr(self, name) for name in (*same, "worth", "num_signatures", "unlike")},
            **{name: dict(getattr(self, name)) for name in pairs},
            **{name: [row._asdict() for row in getattr(self, name)] for name in lists},
            "loaded_bytes": sum(each.bytes for each in self.loaded),
            "statistics": list(self.statistics),
            "flops_ran": self.cost_ran.flops,
            "flops_avoided": self.cost_avoided.flops,
            "transcendentals_avoided": self.cost_avoided.transcendentals,
            "seconds": dict(self.times),
        }

    @property
    def is_alarming(self) -> bool:
        """Whether saving has not been worth it."""
        return self.worth.startswith("no: ")

    def summary(self) -> str:
        """Whether saving has been worth it; where nobody takes times, what served the call; of
        `Rows`, what became of their chunks.
        """
        which = f" (one of {self.num_signatures} signatures)" if self.num_signatures > 1 else ""
        found = f"is it worth it: {self.worth}" if self.worth else f"served by {self._served}"
        if self.chunks:
            found = "chunks: " + ", ".join(f"{number} {name}" for name, number in self.chunks)
        return f"{found}{which}"

    @property
    def _served(self) -> str:
        return f"{self.served_by}: {self.why}"

    @property
    def _num_ran(self) -> str:
        """Of how many, where all of them are the function's, each once."""
        is_part = self.num_ran <= self.num_equations
        if is_part and not self.filled and not self.num_derived:
            return f"{self.num_ran} of {self.num_equations}"
        fills = ", fills included" if self.filled else ""
        derived = f", {self.num_derived} of them derived" if self.num_derived else ""
        return f"{self.num_ran}{fills}{derived}; the function has {self.num_equations}"

    def tables(self) -> list[Table]:
        """The report for people."""
        verb = "would run" if self.is_dry_run else "ran"
        avoided = self.cost_avoided
        in_all = avoided.flops + self.cost_ran.flops
        summary = [
            ("served by", self._served),
            (f"equations {verb}", self._num_ran),
            (f"rows {verb}", self.rows),
            ("saved values loaded", _in_all(self.loaded)),
            ("saved values filled", _in_all(self.filled) if self.filled else ""),
            ("FLOPs avoided", f"{avoided.flops:.3g} of {in_all:.3g}"),
            ("transcendentals avoided", avoided.transcendentals),
            *((f"kept value {name}", done) for name, done in self.kept),
            *(("from statistics", line) for line in self.statistics),
            ("constants", _constants_text(self.constants) if self.constants else ""),
            ("another signature", f"{self.unlike}; {NOT_SHARED}" if self.unlike else ""),
        ]
        changed = self.changed or [("nothing", "all leaves have the bits of the last call")]
        shown = changed if self.is_verbose else _shortened(changed)
        title = "dry run" if self.is_dry_run else "last call"
        title += ", one of its chunks" if self.chunks else ""
        found = [
            Table(title, ("", ""), [row for row in summary if row[1] != ""]),
            Table("changed inputs", ("input", "why"), shown),
        ]
        if self.is_verbose:
            times = [(name, seconds_text(seconds)) for name, seconds in self.times.items()]
            found.append(Table("candidates", ("", "seconds"), times))
            found.append(Table(f"equations that {verb}", ("primitive", "source"), self.ran))
            header = ("primitive", "source", "rows at most")
            found.append(Table(f"rows that {verb}", header, self.by_rows))
        return found


def _shortened(changed: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Many elements of one array, or leaves of one list, in one row."""
    found: list[tuple[str, str]] = []
    for (_, why), group in groupby(changed, lambda row: (ELEMENT.sub("", row[0]), row[1])):
        rows = list(group)
        if len(rows) > NUM_ELEMENTS:
            rows = [(f"{rows[0][0]}, ..., {rows[-1][0]}", f"{len(rows)} in all; {why}")]
        found += rows
    return found


def _constants_text(values: Sequence[TypedSize]) -> str:
    names = [each.type for each in values[:NUM_CONSTANTS]]
    shown = ", ".join([*names, "..."] if len(values) > NUM_CONSTANTS else names)
    return f"{_in_all(values)}: {shown}; closed over, or made of constants alone"


def _in_all(values: Sequence[TypedSize]) -> str:
    return f"{len(values)} ({bytes_text(sum(each.bytes for each in values))})"


def explained(engine: Engine, record: CallRecord | None, *, is_dry_run: bool) -> Explanation:
    """A call as its record says; None: the first one with this signature."""
    served = first_served(engine) if record is None else served_by(engine, record)
    facts = engine.facts
    verdict = engine.chooser.verdict
    cost_ran = total_cost(served.ran) + served.left_out * -1.0
    constants = map(sized, facts.program.constvars)
    return Explanation(
        is_dry_run=is_dry_run,
        changed=tuple(_changes(engine, served)),
        served_by=served.by,
        why=served.why,
        ran=tuple(map(_placed, served.ran)),
        num_equations=len(facts.eqns),
        loaded=tuple(map(sized, served.loads)),
        filled=tuple(map(sized, served.filled)),
        kept=tuple(_kept(facts.kept, served)),
        statistics=tuple(served.statistics),
        cost_ran=cost_ran,
        cost_avoided=total_cost(facts.eqns) + cost_ran * -1.0,
        times=served.seconds,
        num_ran=served.num_ran,
        num_derived=served.num_derived,
        rows=served.rows,
        by_rows=tuple(ByRows(*_placed(each.eqn), rows_made(each)) for each in served.made),
        worth="" if verdict is None else verdict.sentence,
        constants=tuple(sorted(constants, key=lambda each: -each.bytes)),
    )


def _kept(names: Mapping[Var, str | None], served: Served) -> Iterator[tuple[str, str]]:
    """What became of values that the user named."""
    for done, variables in (("loaded", served.loads), ("filled", served.filled)):
        yield from ((name, done) for var in variables if (name := names.get(var)) is not None)


def explain_given(traced: Any, given: Given | None) -> Explanation:
    """Explain the last call that a trace served, or the one that gives this."""
    is_dry_run = given is not None
    if not isinstance(traced, RowEngine):
        engine = traced.engine
        record = engine.last if given is None else dry_run(engine, given.leaves)
        return explained(engine, record, is_dry_run=is_dry_run)
    chunks = traced.last if given is None else traced.outlook(given.leaves, given.changed)
    engine = traced.engine
    if chunks is None or engine is None:
        raise not_called("explain()")
    record = engine.last if chunks.num_run else UNCHANGED
    found = explained(engine, record, is_dry_run=is_dry_run)
    why = found.why if chunks.num_run else "no chunk changed"
    if why == FIRST:
        why = NEW_CHUNK
        found = replace(found, changed=tuple((name, why) for name, _ in found.changed))
    counts = tuple(zip(("run", "reused", "joined"), chunks, strict=True))
    # What `jax.jit` would take for one chunk says nothing about all rows.
    return replace(found, why=why, chunks=counts, worth="")


# --- what depends on what ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LeafDependence:
    """Work that must run again when one input leaf changes."""

    path: str
    elements: int  # tracked one by one; 1: it is tracked as a whole
    equations: int  # that it reaches
    flops: float
    transcendentals: float
    seconds: float  # estimated, in one fused program
    share: float  # of the whole function's seconds


@dataclass(frozen=True, repr=False)
class DependenceTable(Printable):
    """The dependence of a function's work on its inputs, one row a leaf; seconds by the inputs that
    work depends on.
    """

    rows: tuple[LeafDependence, ...]
    num_equations: int
    layout: Layout = field(repr=False, compare=False)
    seconds_by_inputs: Mapping[int, float] = field(repr=False, compare=False)

    def seconds(self, names: Iterable[str]) -> float:
        """Estimated seconds of what runs again when these inputs, or elements of small arrays,
        change together.

        Raises:
            UnknownInputError: one names no input.
        """
        return sum(self.seconds_by_inputs[part] for part in self.reach(names))

    def reach(self, names: Iterable[str]) -> frozenset[int]:
        """The parts of the work, by number, that run again when these inputs, or elements of small
        arrays, change.

        Raises:
            UnknownInputError: one names no input.
        """
        mask = paths_mask([row.path for row in self.rows], self.layout, names)
        return frozenset(part for part in self.seconds_by_inputs if part & mask)

    def as_dict(self) -> dict[str, Any]:
        """The table for programs."""
        return {"num_equations": self.num_equations, "leaves": [asdict(row) for row in self.rows]}

    def summary(self) -> str:
        """How many equations there are, and the input of which most depend."""
        found = many(self.num_equations, "equation")
        most = max(self.rows, key=lambda row: row.share, default=None)
        return found if most is None else f"{found}, {most.share:.0%} of the work by {most.path}"

    def tables(self) -> list[Table]:
        """The table for people."""
        rows = [
            (r.path, r.elements, r.equations, r.flops, r.transcendentals, f"{r.share:.0%}")
            for r in self.rows
        ]
        header = ("input", "elements", "equations", "FLOPs", "transcendentals", "share of work")
        return [Table("", header, rows)]


def dependence_table(engine: Engine) -> DependenceTable:
    """The dependence table of a traced function."""
    facts = engine.facts
    layout = engine.layout
    by_inputs: dict[int, list[Equation]] = {}
    for eqn, mask in zip(facts.eqns, facts.equation_masks, strict=True):
        by_inputs.setdefault(mask, []).append(eqn)
    costs = {mask: total_cost(eqns) for mask, eqns in by_inputs.items()}
    seconds = {mask: sum(map(facts.seconds, eqns)) for mask, eqns in by_inputs.items()}
    rows = []
    for index, path in enumerate(engine.paths):
        reached = [mask for mask in by_inputs if mask & layout.leaf_mask(index)]
        cost = sum((costs[mask] for mask in reached), ZERO)
        spent_s = sum(seconds[mask] for mask in reached)
        num = sum(len(by_inputs[mask]) for mask in reached)
        # Added up in another order, all of the work may differ in the last digit.
        share = min(spent_s / (facts.work_seconds or 1.0), 1.0)
        width = layout.widths[index]
        rows.append(
            LeafDependence(path, width, num, cost.flops, cost.transcendentals, spent_s, share)
        )
    return DependenceTable(tuple(rows), len(facts.eqns), layout, seconds)
