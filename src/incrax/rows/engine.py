"""A function of rows, pass by pass: evaluate the chunks that are new, combine, go on with what
follows.

In: leaves and `Rows`. Out: outputs. One `RowEngine` serves one signature. Every table is keyed by
content, so that a call that fails in the middle leaves only what is right. It must not know what
users call it for.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Var
from incrax._messages import deleted_input
from incrax._names import name_of
from incrax._program import Env, Program, Results, Values, trace, type_of
from incrax._progress import Meter
from incrax._stats import Stats
from incrax._tables import LruTable, program_bytes
from incrax.engine.call.analysis import facts_of
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import Chunks
from incrax.engine.call.rehearsal import warm_up
from incrax.engine.call.signature_table import Options
from incrax.engine.call.verification import check_outputs, verify
from incrax.engine.compile.executables import Compiler
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.compile.recycling import can_recycle
from incrax.engine.inputs.chunks import LEAST_CAPACITY, Chunk
from incrax.engine.inputs.leaves import LeafValue, resolved
from incrax.engine.inputs.rows import Rows
from incrax.engine.inputs.signature import Function, Signature
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.log import Journal
from incrax.engine.store.budget import Limits
from incrax.engine.store.store import is_any_deleted
from incrax.errors import MixedRowsError, UnknownInputError
from incrax.rows.numbers import scales_at
from incrax.rows.passes import (
    Phase,
    Section,
    chunk_function,
    combine_all,
    filled,
    rest_function,
)
from incrax.rows.trace import RowTrace

RUN = 8
"""Chunks, or runs of them, in a run, whose partial results are combined once: an append reads a few
totals and not one result a chunk. Which ones are in a run depends on nothing else, so that equal
chunks give equal bits.
"""

EXACT_SHARE = 64
"""Chunks among which plans of the exact policy share the budget: they must not depend on how many
there are.
"""


Version: TypeAlias = tuple[LeafValue, ...]
"""What a section reads: one object for all values of the same bits."""


ChunkKind: TypeAlias = tuple[int, bool, int]
"""Chunks whose programs are the same: capacity, whether it is filled up, number of the pass."""


@dataclass(eq=False)
class PassTable:
    """What is known of one pass: by the version of what chunks read, the results of chunks and runs
    by their numbers; by all that it depends on, values that follow; and the compiled rest. Results of some chunks are
    the partial results of the pass; of one chunk also its per-row results.
    """

    phase: Phase
    rest: Function
    results: LruTable[Version, dict[tuple[int, ...], Results]]
    outcomes: LruTable[Any, Env]
    compiled: set[int] = field(default_factory=set)
    # Of a call:
    known: dict[tuple[int, ...], Results] = field(default_factory=dict)
    reads: dict[Var, LeafValue] = field(default_factory=dict)

    def begin(self, version: Version) -> None:
        """A call in which chunks read this."""
        self.known = self.results.setdefault(version, {})
        section = self.phase.chunk
        self.reads = dict(zip(section.reads, version, strict=True))

    def clear(self) -> None:
        """Forget all results."""
        self.results.clear()
        self.outcomes.clear()


@dataclass(eq=False)
class RowEngine:
    """Evaluates one signature of a function of rows; `paths` name the leaves, those of the rows
    first.

    A trace of the function beside others (`Traces`), with what their table and the methods of the
    function ask of one: chunks bypass by themselves, and do not count in the verdict.
    """

    trace: RowTrace
    paths: Sequence[str]
    options: Options
    stats: Stats
    calls: HostCalls
    rows: Any = None  # the analysed function, a `RowProgram`, once it was prepared
    last: Chunks | None = None  # of the last call
    evaluated: Engine | None = None  # of a chunk that the last call evaluated
    bypass = None
    choosers = ()

    def __post_init__(self) -> None:
        self.limits = self.options.limits(1)

    def streak(self) -> None:
        """No call goes by what the last one found."""

    def count_calls(self) -> None:
        """Every call is counted as it is made."""

    catch_up = count_calls

    def prepare(self, rows: Rows) -> None:
        """Analyse the function for these chunks and this number of rows; where that tells new
        things, start anew.

        Raises:
            MixedRowsError: the function mixes rows, or is another one for another number of rows.
        """
        self.trace.prepare(rows._capacities, len(rows))
        self.num_chunks = len(rows._chunks)
        if self.trace.rows is not self.rows:
            self.rows = self.trace.rows
            limit = self.options.versions
            self.passes = [
                PassTable(phase, self._compiled_rest(phase), LruTable(limit), LruTable(limit))
                for phase in self.rows.phases
            ]
            self.recent: dict[Var, list[LeafValue]] = {}
            self.kin: dict[ChunkKind, Engine] = {}
            self.by_chunk: dict[tuple[int, ChunkKind], Engine] = {}
            self.uses: list[dict[int, int]] = []

    def _compiled_rest(self, phase: Phase) -> Function:
        """What follows from the reductions, compiled; functions on the host are remembered, and
        awaited.
        """
        program = self.rows.program
        known = [program.eqns[number] for number in phase.rest.eqns]
        eqns = self.calls.wrap(known)
        run = jax.jit(rest_function(self.rows, phase, eqns))
        calls_host = any(new is not eqn for new, eqn in zip(eqns, known, strict=True))
        return (lambda *args: jax.block_until_ready(run(*args))) if calls_host else run

    def clear(self) -> None:
        """Drop all results and saved values; traces and programs stay."""
        self.by_chunk = {}
        self.uses = []
        self.evaluated = None
        for table in self.passes:
            table.clear()
        for engine in self.kin.values():
            engine.clear()

    def accepts(self, _: Any) -> bool:
        """Not a call as it is: `Rows` are taken out of it first."""
        return False

    def expect(self, calls: int) -> None:
        """Chunks decide by the calls so far."""

    @property
    def num_bytes(self) -> int:
        """Estimated bytes of its programs."""
        eqns = [engine.num_eqns for engine in self.kin.values()]
        return program_bytes(2 * sum(eqns), len(eqns))

    @property
    def engine(self) -> Engine | None:
        """That of one chunk, for reports, one that the last call evaluated if there is any; None
        before there is one.
        """
        return self.evaluated or next(iter((*self.engines(), *self.kin.values())), None)

    @property
    def out_tree(self) -> Any:
        """Of the results."""
        return self.trace.out_tree

    @property
    def signature(self) -> Signature:
        """That which it serves."""
        return self.trace.signature

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values of all chunks."""
        return sum(engine.store.saved_bytes for engine in self.engines())

    def engines(self) -> list[Engine]:
        """The engines of all chunks that were evaluated and kept."""
        return [engine for engine in self.by_chunk.values() if engine.store.states]

    # --- one call ---------------------------------------------------------------------------------

    def check(
        self, name: str, leaves: Values, rows: Rows, outputs: Values, settings: verify
    ) -> None:
        """Compare outputs with those of the function on all rows at once.

        Raises:
            StaleResultError: they differ; the saved values are dropped.
        """
        data = jax.tree.leaves(rows.tree())
        evaluate = lambda: jax.tree.leaves(self.trace.plain(*data, *leaves))
        check_outputs(name, outputs, evaluate, (), self.clear, settings)

    def evaluate(self, leaves: Values, rows: Rows, _: float) -> list[Any]:
        """Outputs at these leaves, the rows left out, and these rows."""
        env = self._env(leaves, rows)
        self._check_fits(rows)
        self.evaluated = None
        before = self._counts()
        num_known = 0
        found: Env = {}
        for table in self.passes:
            outcome, is_known = self._pass(table, env, rows)
            num_known += is_known
            found.update(outcome)
            env.update(outcome)
        self._keep_used(rows)
        self.last = Chunks(*(b - a for a, b in zip(before, self._counts(), strict=True)))
        self.stats.unchanged += num_known == len(self.passes)
        program = self.rows.program
        return [_jax.as_value(atom, found) for atom in program.outvars]

    def _check_fits(self, rows: Rows) -> None:
        """Raise where rows are streamed, and results have an entry for each."""
        per_row = [v for table in self.passes for v in table.phase.per_row]
        if per_row and any(chunk.is_streamed for chunk in rows._chunks):
            types = ", ".join(_jax.short_type(v.aval) for v in per_row)
            raise MixedRowsError(
                f"`incremental(f)` got `Rows` that are read from a file, and f returns {types}, "
                "with an entry for each row: that may be more than memory holds. Nothing was "
                "stored. Reduce over the rows, or evaluate slices: `Rows(tree)` of a part that "
                "fits."
            )

    def _counts(self) -> Chunks:
        stats = self.stats
        return Chunks(stats.chunks_run, stats.chunks_reused, stats.chunks_joined)

    def _pass(self, table: PassTable, env: Env, rows: Rows) -> tuple[Env, bool]:
        """What follows from a pass over the rows, and whether it was known."""
        phase = table.phase
        version = self._version(phase.chunk, env)
        table.begin(version)
        rest = self._version(phase.rest, env)
        key = version, rest, tuple(rows._places)
        outcome = table.outcomes.get(key)
        if outcome is not None and not is_any_deleted(outcome.values()):
            self.stats.chunks_reused += len(rows._chunks)
            return outcome, True
        results = _PassEvaluation(self, table, rows._chunks).results()
        outcome = self._following(table, results, rest, rows)
        pairs = zip(phase.per_row, phase.axes, strict=True)
        for k, (var, axis) in enumerate(pairs, len(phase.kinds)):
            outcome[var] = _assembled(rows, [each[k] for each in results], axis)
        table.outcomes.add(key, outcome)
        return outcome, False

    def _following(
        self, table: PassTable, results: Sequence[Results], rest: Version, rows: Rows
    ) -> Env:
        """What follows from the results of all chunks, and from what the rest reads."""
        phase = table.phase
        count, columns = filled(phase.kinds, results)
        capacity = len(columns[0]) if columns else 0
        self.stats.compiles += capacity not in table.compiled
        table.compiled.add(capacity)
        scales = scales_at(phase.factors, phase.assumed, self._sizes(rows))
        values = table.rest(count, columns, scales, _feeds(rest))
        return dict(zip(phase.rest.targets, values, strict=True))

    def has_extremes(self, chunk: Chunk, table: PassTable) -> list[Any]:
        """Where the extremes with which a pass compares rows are those of a chunk."""
        found = []
        for var in table.phase.extremes:
            earlier = self.passes[self.rows.passes[var] - 1]
            results = _PassEvaluation(self, earlier, [chunk]).of_chunk(chunk)
            partials = earlier.phase.partials
            own = results[partials.index(var)]
            found.append(np.asarray(own) == table.reads[var].bits)
        return found

    def _env(self, leaves: Values, rows: Rows) -> Env:
        """The leaves, and the numbers made from the number of rows, by variable."""
        known = self.rows
        pairs = zip(self.paths, known.program.invars, strict=True)
        named = list(pairs)[known.num_row_inputs :]
        for (path, _), x in zip(named, leaves, strict=True):
            if isinstance(x, jax.Array) and x.is_deleted():
                raise deleted_input(path)
        env = {var: x for (_, var), x in zip(named, leaves, strict=True)}
        return env | self._sizes(rows)

    def _sizes(self, rows: Rows) -> Env:
        """The numbers made from the number of rows."""
        return self.trace.sizes(max(len(rows), LEAST_CAPACITY))

    def _version(self, section: Section, env: Env) -> Version:
        """What a section reads, as one object for all values of the same bits."""
        return tuple([self._known(var, env) for var in section.reads])

    def _known(self, var: Var, env: Env) -> LeafValue:
        """A value, or one of the latest few of the variable that has its bits."""
        x = env[var]
        if isinstance(x, LeafValue):
            return x
        latest = self.recent.get(var, [])
        found = env[var] = resolved(x, reversed(latest))
        if not any(found is value for value in latest):
            # one object for all programs, so that they see by its identity that it is the same
            found.feed = jnp.asarray(found.feed) if type(found.feed) is np.ndarray else found.feed
        latest = [*(value for value in latest if value is not found), found]
        self.recent[var] = latest[-self.options.versions :]
        return found

    def _keep_used(self, rows: Rows) -> None:
        """Forget chunks that were in none of the latest few sets of rows; the others share the
        budget.
        """
        used = rows._places
        if self.uses and self.uses[-1] == used:
            return
        self.uses = [*(u for u in self.uses if u != used), used][-self.limits.versions :]
        kept = dict(ChainMap(*self.uses))
        places = set(kept.values())
        self.by_chunk = {key: engine for key, engine in self.by_chunk.items() if key[0] in places}
        for known in [each for table in self.passes for each in table.results.values()]:
            for key in [key for key in known if not kept.keys() >= set(key)]:
                del known[key]
        for engine in self.by_chunk.values():
            engine.store.budget_bytes = self.limits.budget_bytes // self.num_chunks

    # --- engines ----------------------------------------------------------------------------------

    def kin_of(self, chunk: Chunk, phase: Phase) -> Engine:
        """The engine whose programs serve a pass for all chunks like this one."""
        key = _kind(chunk, phase)
        if key not in self.kin:
            self.kin[key] = self._make_kin(chunk, phase)
        return self.kin[key]

    def engine_of(self, chunk: Chunk, phase: Phase) -> Engine:
        """The engine of a chunk for a pass."""
        key = chunk.place, _kind(chunk, phase)
        if key not in self.by_chunk:
            budget_bytes = self.limits.budget_bytes // self.num_chunks
            self.by_chunk[key] = self.kin_of(chunk, phase).sibling(budget_bytes)
        return self.by_chunk[key]

    def _make_kin(self, chunk: Chunk, phase: Phase) -> Engine:
        is_exact = self.options.is_exact
        tuning = self.options.own_tuning()
        name = name_of(self.trace.fun)
        traced = self._traced(chunk, phase)
        facts = facts_of(traced, tuning, is_exact=is_exact)
        recycles = can_recycle() and not self.signature.placed
        compiler = Compiler(facts, self.calls, name, recycles=recycles)
        share = EXACT_SHARE if is_exact else self.num_chunks
        limits = self.limits
        shared = Limits(
            limits.versions, limits.budget_bytes // share, limits.planned_bytes // share
        )
        journal = Journal(name, self._names(chunk, phase), facts.layout)
        whole = compiler.compile_whole(traced)
        budget_bytes = shared.planned_bytes
        ledger = Ledger()
        chooser = Chooser(
            *(whole, compiler, tuning, self.stats, budget_bytes, journal, ledger),
            is_exact=is_exact,
        )
        return Engine(chooser, shared)

    def _traced(self, chunk: Chunk, phase: Phase) -> Program:
        """The program of a pass for chunks like this one."""
        eqns = self.trace.equations(chunk.capacity)
        run = chunk_function(self.rows, phase, eqns, is_padded=chunk.is_padded)
        row_type = self.trace.row_type
        counts = [jax.ShapeDtypeStruct((), np.int32)] if chunk.is_padded else []
        has = [jax.ShapeDtypeStruct(var.aval.shape, np.bool_) for var in phase.extremes]
        reads = map(type_of, phase.chunk.reads)
        return trace(run, *row_type.avals(chunk.capacity), *counts, *has, *reads)

    def _names(self, chunk: Chunk, phase: Phase) -> list[str]:
        """What the inputs of that program are called."""
        rows = self.rows
        known = dict.fromkeys(rows.sizes, "number of rows")
        known.update(zip(rows.program.invars, self.paths, strict=True))
        numbers = {var: number for number, var in enumerate(rows.passes)}
        read = [known.get(v) or f"reduction {numbers[v]}" for v in phase.chunk.reads]
        counts = ["rows in the chunk"] if chunk.is_padded else []
        has = [f"whether it has reduction {numbers[v]}" for v in phase.extremes]
        return [*self.paths[: rows.num_row_inputs], *counts, *has, *read]

    def first_kin(self, rows: Rows) -> Engine:
        """The engine whose programs serve the first pass for the first chunk."""
        return self.kin_of(rows._chunks[0], self.passes[0].phase)

    # --- without a result -------------------------------------------------------------------------

    def outlook(self, leaves: Values, rows: Rows) -> Chunks:
        """What the first pass of a call would do; nothing is evaluated or kept."""
        table = self.passes[0]
        recent = dict(self.recent)
        version = self._version(table.phase.chunk, self._env(leaves, rows))
        self.recent = recent
        known = table.results.peek(version) or {}
        num_known = sum((number,) in known for number in rows._places)
        return Chunks(len(rows._chunks) - num_known, num_known, 0)

    def warm_up(self, _: Any, changing: Iterable[Sequence[str]]) -> None:
        """Plan, compile and fill every named change for all chunks whose programs read what it
        names.

        Raises:
            UnknownInputError: no program over the rows reads it.
        """
        for names in changing:
            errors = []
            engines = self.engines()
            for engine in engines:
                state = engine.store.states[-1]
                try:
                    warm_up(engine, [value.feed for value in state.values], [names])
                except UnknownInputError as error:
                    errors.append(error)
            if errors and len(errors) == len(engines):
                raise errors[0]


@dataclass
class _PassEvaluation:
    """The results of one pass of a call: known, combined from those of other chunks, or evaluated
    where they are not.
    """

    engine: RowEngine
    table: PassTable
    chunks: Sequence[Chunk]
    _previous: Results = field(default_factory=list)
    _bypasses: dict[Chooser, bool] = field(default_factory=dict)
    """After one chunk was looked at."""

    @property
    def phase(self) -> Phase:
        """Of the pass."""
        return self.table.phase

    def results(self) -> list[Results]:
        """Partial results in order, those of runs of chunks combined; one by one, with per-row
        results, if the pass has any.

        While a streamed chunk is evaluated the next one is read, and no third.
        """
        chunks = self.chunks
        is_split = self.phase.per_row or len(chunks) <= 2 * RUN
        size = 1
        while not is_split and size * RUN <= len(chunks):
            size *= RUN
        found = []
        num_streamed = sum(chunk.is_streamed for chunk in chunks)
        with Meter("incrax: streaming rows", num_streamed) as self.meter:
            start = 0
            while start < len(chunks):
                while start + size > len(chunks):
                    size //= RUN
                found.append(self._of(chunks[start : start + size]))
                start += size
        jax.block_until_ready(self._previous)
        return found

    def of_chunk(self, chunk: Chunk) -> Results:
        """That of its only chunk, which is not counted if it is known."""
        found = self._kept((chunk.number,))
        return self.results()[0] if found is None else found

    def _of(self, chunks: Sequence[Chunk]) -> Results:
        """The result of a chunk or a run."""
        numbers = tuple([chunk.number for chunk in chunks])
        found = self._kept(numbers)
        if found is not None:
            self.engine.stats.chunks_reused += len(chunks)
            return found
        if len(chunks) > 1:
            step = len(chunks) // RUN
            parts = [chunks[start : start + step] for start in range(0, len(chunks), step)]
            found = combine_all(self.phase.kinds, [self._of(part) for part in parts])
        else:
            (chunk,) = chunks
            found = self._joined(chunk.parents) if chunk.parents else None
            found = self._evaluated(chunk) if found is None else found
        self.table.known[numbers] = found
        return found

    def _kept(self, numbers: tuple[int, ...]) -> Results | None:
        """The result of the chunks of these numbers, if it is known."""
        known = self.table.known
        found = known.get(numbers)
        return None if found is None or is_any_deleted(found) else found

    def _joined(self, parents: Sequence[int]) -> Results | None:
        """Results of a chunk from those of the chunks that it was joined from; None where one is
        missing, or they must not be combined.
        """
        parts = [self._kept((number,)) for number in parents]
        found = [part for part in parts if part is not None]
        engine = self.engine
        if engine.options.is_exact or self.phase.per_row or len(found) < len(parts):
            return None
        engine.stats.chunks_joined += 1
        return combine_all(self.phase.kinds, found)

    def _evaluated(self, chunk: Chunk) -> Results:
        """Where saving does not pay, one of the chunks that share programs is looked at for all."""
        stats = self.engine.stats
        stats.chunks_run += 1
        counts = [chunk.count] if chunk.is_padded else []
        table = self.table
        has = self.engine.has_extremes(chunk, table)
        leaves = [*chunk.arrays(), *counts, *has, *_feeds(table.reads.values())]
        if chunk.is_streamed:
            return self._streamed(chunk, leaves)
        engine = self.engine.engine_of(chunk, self.phase)
        if self._bypasses.get(engine.chooser, False):
            return engine.without_saving(leaves)
        self._bypasses.setdefault(engine.chooser, engine.bypasses)
        self.engine.evaluated = engine
        return engine.call(leaves, engine.comparison.changed_leaves(leaves))

    def _streamed(self, chunk: Chunk, leaves: Values) -> Results:
        """Of a chunk of which nothing is saved, when the one before it is done."""
        kin = self.engine.kin_of(chunk, self.phase)
        stats = self.engine.stats
        stats.ran += kin.num_eqns
        stats.compiles += not kin.whole.num_runs
        found = kin.whole([LeafValue(x).feed for x in leaves], ())
        jax.block_until_ready(self._previous)
        self._previous = found
        self.meter.advance()
        return found


def _feeds(values: Iterable[LeafValue]) -> list[Any]:
    return [value.feed for value in values]


def _kind(chunk: Chunk, phase: Phase) -> ChunkKind:
    return chunk.capacity, chunk.is_padded, phase.number


def _assembled(rows: Rows, parts: Sequence[Any], axis: int) -> jax.Array:
    """Per-row results of all chunks without padding, as a copy where `jax.jit` would put them."""
    pairs = zip(rows._chunks, parts, strict=True)
    before = (slice(None),) * axis
    known = [np.asarray(x)[(*before, slice(chunk.num_rows))] for chunk, x in pairs]
    whole = np.concatenate(known, axis)
    sharding = parts[0].sharding
    is_bound = parts[0].committed and len(sharding.device_set) == 1
    return jax.device_put(whole, sharding) if is_bound else jnp.asarray(whole)
