"""A function of rows, chunk by chunk: evaluate what is new, combine, go on to the next pass.

One `RowEngine` serves one signature. For each pass over the rows a chunk has an `Engine` of its own, which shares its
programs with those of all chunks of the same capacity; the results of a chunk are kept per version of all else that they
depend on. Every table is keyed by content, so that a call that fails in the middle leaves only what is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._errors import deleted_input, per_row_of_stream
from incrax._jax import Literal
from incrax.facts.program import trace
from incrax.planning.phases import Part
from incrax.running.analysis import program_facts
from incrax.running.chunks import Chunk, Lineage, Rows
from incrax.running.combining import FAN_IN, chunk_function, combine_partials, rest_function
from incrax.running.compiled import Compiler
from incrax.running.engine import Engine
from incrax.running.leaves import LeafValue
from incrax.running.limits import Limits
from incrax.running.progress import Meter
from incrax.running.recycling import can_recycle
from incrax.running.row_trace import Cut, RowTrace, type_of
from incrax.running.stats import Stats
from incrax.running.traces import Options
from incrax.running.versions import Version, Versions, is_lost

EXACT_SHARE = 64
"""Chunks among which plans of the exact policy share the budget: they must not depend on how many there are."""


class RowRecord(NamedTuple):
    """What a call did with chunks, over all passes, and the engine of one that was evaluated."""

    num_run: int
    num_reused: int
    num_joined: int
    engine: Engine | None


class Entry:
    """What is kept of a chunk: its rows, and for each pass an engine and results by version."""

    __slots__ = ("engines", "num_rows", "results")

    def __init__(self, num_rows: int, num_passes: int) -> None:
        self.num_rows = num_rows
        self.engines: list[Engine | None] = [None] * num_passes
        self.results: list[dict[int, list[Any]]] = [{} for _ in range(num_passes)]


class Outcome(NamedTuple):
    """All of a pass: what its results depend on, values that follow from them, per-row results."""

    key: Any
    values: dict[int, Any]
    per_row: dict[int, Any]


class RowEngine:
    """Evaluates one signature of a function of rows."""

    def __init__(self, trace: RowTrace, path: str, paths: Sequence[str], options: Options, stats: Stats) -> None:
        self.trace = trace
        self.path = path
        self.paths = paths
        self.options = options
        self.stats = stats
        self.reference: int | None = None
        self.table: dict[int, Entry] = {}
        self.uses: list[frozenset[int]] = []
        self.kin: dict[tuple[int, bool, int], Engine] = {}
        self.versions: list[Versions] = []
        self.rest_versions: list[Versions] = []
        self.outcomes: list[list[Outcome]] = []
        self.rests: list[Any] = []
        self.last: RowRecord | None = None
        self._combine_groups = jax.jit(self._combine_kinds, static_argnums=0)
        self._shapes: set[tuple[int, int]] = set()

    def fork(self, stats: Stats) -> RowEngine:
        """An independent engine that shares results, values and programs so far."""
        other = RowEngine(self.trace, self.path, self.paths, self.options, stats)
        other.reference, other.rests, other._combine_groups = self.reference, self.rests, self._combine_groups
        other.uses, other._shapes, other.last = list(self.uses), set(self._shapes), self.last
        other.versions = [v.copy() for v in self.versions]
        other.rest_versions = [v.copy() for v in self.rest_versions]
        other.outcomes = [list(outcomes) for outcomes in self.outcomes]
        other.kin = {key: engine.fork(stats) for key, engine in self.kin.items()}
        by_chooser = {id(engine.chooser): other.kin[key] for key, engine in self.kin.items()}
        for number, entry in self.table.items():
            copy = other.table[number] = Entry(entry.num_rows, len(entry.engines))
            copy.results = [dict(found) for found in entry.results]
            copy.engines = [e and e.fork(stats, by_chooser[id(e.chooser)]) for e in entry.engines]
        return other

    def clear(self) -> None:
        """Drop all results and saved values; traces and programs stay."""
        self.table, self.uses = {}, []
        self.outcomes = [[] for _ in self.outcomes]
        for engine in self.kin.values():
            engine.clear()

    def engines(self) -> list[Engine]:
        """The engines of all chunks that were evaluated and kept."""
        found = [e for entry in self.table.values() for e in entry.engines if e is not None]
        return [engine for engine in found if engine.store.states]

    def kin_of(self, rows: Rows) -> Engine:
        """The engine whose programs serve the first pass for the first chunk."""
        self._cut(rows)
        chunk = rows.chunks[0]
        return self._kin(chunk, 0, self.trace.cut(chunk.capacity, len(rows)), rows)

    def outlook(self, leaves: Sequence[Any], rows: Rows) -> RowRecord:
        """What the first pass of a call would do; nothing is evaluated or kept."""
        cut = self._cut(rows)
        env = {cut.rows.num_row_inputs + n: LeafValue(x) for n, x in enumerate(leaves)}
        number = self._version(self.versions[0].copy(), cut.phases[0].chunk, cut, env, rows).number
        entries = [self.table.get(chunk.lineage.number) for chunk in rows.chunks]
        num_known = sum(entry is not None and number in entry.results[0] for entry in entries)
        return RowRecord(len(entries) - num_known, num_known, 0, self.kin_of(rows))

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values of all chunks."""
        return sum(e.store.saved_bytes for entry in self.table.values() for e in entry.engines if e is not None)

    # --- one call ------------------------------------------------------------------------------------------------

    def call(self, leaves: Sequence[Any], rows: Rows) -> list[Any]:
        """Outputs at these leaves, the rows left out, and these rows."""
        inputs = [LeafValue(x) for x in leaves]
        for path, value in zip(self.paths, inputs, strict=True):
            if value.is_deleted():
                raise deleted_input(path)
        cut = self._cut(rows)
        env: dict[int, LeafValue] = {cut.rows.num_row_inputs + n: value for n, value in enumerate(inputs)}
        before = self.stats.chunks_run, self.stats.chunks_reused, self.stats.chunks_joined
        self._used: Engine | None = None
        per_row: dict[int, Any] = {}
        num_ran = self.stats.chunks_run + self.stats.chunks_joined
        is_known = True
        for number in range(len(cut.phases)):
            outcome, was_known = self._pass(number, cut, env, rows)
            is_known = is_known and was_known
            env.update({name: LeafValue(x) for name, x in outcome.values.items()})
            per_row.update(outcome.per_row)
        self._keep_used(rows)
        after = self.stats.chunks_run, self.stats.chunks_reused, self.stats.chunks_joined
        self.last = RowRecord(*(b - a for a, b in zip(before, after, strict=True)), self._used or self._any_engine())
        self.stats.unchanged += is_known and num_ran == self.stats.chunks_run + self.stats.chunks_joined
        found = {**{name: value.feed for name, value in env.items()}, **per_row}
        return [self._output(atom, cut, found, len(rows)) for atom in cut.rows.program.outvars]

    def _output(self, atom: Any, cut: Cut, found: dict[int, Any], num_rows: int) -> Any:
        if not isinstance(atom, Literal) and atom in cut.rows.names:
            return found[cut.rows.names[atom]]
        assert self.reference is not None
        value = atom.val if isinstance(atom, Literal) else self.trace.sizes(self.reference, num_rows)[atom]
        array = jnp.asarray(value, atom.aval.dtype)
        return _jax.as_weak(array) if getattr(atom.aval, "weak_type", False) else array

    def _cut(self, rows: Rows) -> Cut:
        """The analysis that names values; per-row results of streamed rows are refused."""
        if self.reference is None:
            cut = self.trace.cut(rows.chunks[0].capacity, len(rows))
            self.reference = rows.chunks[0].capacity
            limit = self.options.limits.versions
            self.versions = [Versions(limit) for _ in cut.phases]
            self.rest_versions = [Versions(limit) for _ in cut.phases]
            self.outcomes = [[] for _ in cut.phases]
            self.rests = [jax.jit(rest_function(cut.rows, phase)) for phase in cut.phases]
        cut = self.trace.cut(self.reference, len(rows))
        if any(chunk.is_streamed for chunk in rows.chunks):
            found = [v.aval.str_short(short_dtypes=True) for phase in cut.phases for v in phase.per_row]
            if found:
                raise per_row_of_stream(", ".join(found))
        return cut

    # --- one pass ------------------------------------------------------------------------------------------------

    def _pass(self, number: int, cut: Cut, env: dict[int, LeafValue], rows: Rows) -> tuple[Outcome, bool]:
        """The outcome of a pass over the rows, and whether it was known."""
        phase = cut.phases[number]
        version = self._version(self.versions[number], phase.chunk, cut, env, rows)
        rest = self._version(self.rest_versions[number], phase.rest, cut, env, rows)
        key = version.number, rest.number, tuple([chunk.lineage.number for chunk in rows.chunks])
        known = self.outcomes[number]
        found = next(
            (o for o in known if o.key == key and not is_lost([*o.values.values(), *o.per_row.values()])), None
        )
        if found is not None:
            self.stats.chunks_reused += len(rows.chunks)
            self.outcomes[number] = [*(o for o in known if o is not found), found]
            return found, True
        results = self._chunk_results(number, version, rows)
        values = self._rest(number, cut, rest, results, rows)
        names = cut.rows.names
        per_row = {
            names[var]: self._assembled(rows, [r[phase.num_partials + k] for r in results], cut.rows.axes[var])
            for k, var in enumerate(phase.per_row)
        }
        outcome = Outcome(key, values, per_row)
        self.outcomes[number] = [*known, outcome][-self.options.limits.versions :]
        return outcome, False

    def _version(self, versions: Versions, part: Part, cut: Cut, env: dict[int, LeafValue], rows: Rows) -> Version:
        """The version of what a part reads: values by name, and the number of rows if it matters."""
        names = cut.rows.names
        values = [env[names[var]] for var in part.reads if var in names]
        return versions.find(values, len(rows) if len(values) < len(part.reads) else None)

    def _feeds(self, part: Part, cut: Cut, version: Version, rows: Rows, capacity: int) -> list[Any]:
        """What a part of the program for a capacity reads, in order."""
        names, feeds = cut.rows.names, iter(version.feeds)
        if all(var in names for var in part.reads):
            return list(version.feeds)
        sizes = self.trace.sizes(capacity, len(rows))
        return [next(feeds) if var in names else sizes[var] for var in part.reads]

    def _rest(self, number: int, cut: Cut, rest: Version, results: list[list[Any]], rows: Rows) -> dict[int, Any]:
        """Combine the partial results of all chunks and compute what follows."""
        assert self.reference is not None
        phase = cut.phases[number]
        partials = [[r[k] for r in results] for k in range(phase.num_partials)]
        kinds = tuple(cut.rows.reductions[var] for var in phase.partials)
        count = len(results)
        while count > FAN_IN:
            groups = [[column[i : i + FAN_IN] for column in partials] for i in range(0, count, FAN_IN)]
            combined = [self._combine_groups(kinds, *_filled(group)) for group in groups]
            partials = [[c[k] for c in combined] for k in range(phase.num_partials)]
            count = len(combined)
        feeds = self._feeds(phase.rest, cut, rest, rows, self.reference)
        total, filled = _filled(partials) if partials else (np.int32(0), [])
        shape = number, len(filled[0]) if filled else 0
        self.stats.compiles += shape not in self._shapes
        self._shapes.add(shape)
        values = self.rests[number](total, filled, feeds)
        targets = zip(phase.rest.targets, values, strict=True)
        return {cut.rows.names[v]: x for v, x in targets if v in cut.rows.names}

    @staticmethod
    def _combine_kinds(kinds: Any, count: Any, partials: Any) -> list[Any]:
        return combine_partials(kinds, count, partials)

    @staticmethod
    def _assembled(rows: Rows, parts: Sequence[Any], axis: int) -> jax.Array:
        """Per-row results of all chunks without padding."""
        trimmed = [
            np.take(np.asarray(x), range(chunk.num_rows), axis) if chunk.is_padded else np.asarray(x)
            for chunk, x in zip(rows.chunks, parts, strict=True)
        ]
        return jnp.asarray(np.concatenate(trimmed, axis))

    # --- chunks --------------------------------------------------------------------------------------------------

    def _chunk_results(self, number: int, version: Version, rows: Rows) -> list[list[Any]]:
        results, previous = [], None
        num_streamed = sum(chunk.is_streamed for chunk in rows.chunks)
        with Meter("incrax: streaming rows", num_streamed) as meter:
            for chunk in rows.chunks:
                results.append(self._chunk_result(chunk, number, version, rows))
                if chunk.is_streamed:
                    jax.block_until_ready(previous)
                    previous = results[-1]
                    meter.advance()
        jax.block_until_ready(previous)
        return results

    def _chunk_result(self, chunk: Chunk, number: int, version: Version, rows: Rows) -> list[Any]:
        """Partial and per-row results of a chunk: saved, combined from those that it was joined from, or evaluated."""
        entry = self.table.get(chunk.lineage.number)
        if entry is None:
            entry = self.table[chunk.lineage.number] = Entry(chunk.num_rows, len(self.versions))
        known = entry.results[number]
        found = known.get(version.number)
        if found is not None and not is_lost(found):
            self.stats.chunks_reused += 1
            return found
        found = None if self.options.is_exact else self._joined(chunk.lineage, number, version, rows)
        if found is not None:
            self.stats.chunks_joined += 1
            found = self._repadded(found, chunk, number)
        else:
            self.stats.chunks_run += 1
            found = self._evaluated(chunk, entry, number, version, rows)
        current = self.versions[number].numbers
        entry.results[number] = {n: x for n, x in known.items() if n in current} | {version.number: found}
        return found

    def _evaluated(self, chunk: Chunk, entry: Entry, number: int, version: Version, rows: Rows) -> list[Any]:
        cut = self.trace.cut(chunk.capacity, len(rows))
        kin = self._kin(chunk, number, cut, rows)
        count = (chunk.count,) if chunk.is_padded else ()
        others = [*count, *self._feeds(cut.phases[number].chunk, cut, version, rows, chunk.capacity)]
        if chunk.is_streamed:
            return kin.pass_by([*chunk.arrays(), *others])
        engine = entry.engines[number]
        if engine is None:
            engine = entry.engines[number] = kin.sibling(self._share(rows))
        leaves = [*chunk.arrays(), *others]
        self._used = engine
        return engine.call(leaves, engine.comparison.changed_leaves(leaves))

    def _share(self, rows: Rows) -> int:
        return self.options.limits.budget_bytes // len(rows.chunks)

    def _kin(self, chunk: Chunk, number: int, cut: Cut, rows: Rows) -> Engine:
        """The engine whose programs serve a pass for all chunks like this one."""
        key = chunk.capacity, chunk.is_padded, number
        if key not in self.kin:
            self.kin[key] = self._make_kin(chunk, number, cut, rows)
        return self.kin[key]

    def _make_kin(self, chunk: Chunk, number: int, cut: Cut, rows: Rows) -> Engine:
        is_exact, limits, tuning = self.options
        phase = cut.phases[number]
        counts = [jax.ShapeDtypeStruct((), np.int32)] if chunk.is_padded else []
        types = [*self.trace.row_type.avals(chunk.capacity), *counts, *(type_of(v) for v in phase.chunk.reads)]
        traced = trace(chunk_function(cut.rows, phase, is_padded=chunk.is_padded), *types)
        facts = program_facts(traced, tuning, is_exact=is_exact)
        share = EXACT_SHARE if is_exact else len(rows.chunks)
        shared = Limits(limits.versions, limits.budget_bytes // share, limits.planned_bytes // share)
        recycles = can_recycle() and not self.trace.signature.has_committed_leaves
        compiler = Compiler(facts, on_host=frozenset(), recycles=recycles)
        paths = [*self._row_paths(), *(["number of rows"] if counts else []), *self._read_paths(cut, phase.chunk)]
        return Engine(facts, traced, paths, compiler, tuning, self.stats, shared, is_exact=is_exact)

    def _row_paths(self) -> list[str]:
        tree = jax.tree.unflatten(self.trace.row_type.treedef, self.trace.row_type.shapes)
        paths = jax.tree.leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple) and all(map(_is_int, x)))
        return [f"{self.path}{jax.tree_util.keystr(path)}" for path, _ in paths]

    def _read_paths(self, cut: Cut, part: Part) -> list[str]:
        first = cut.rows.num_row_inputs
        named = dict(zip(cut.rows.program.invars[first:], self.paths, strict=True))
        sizes = dict.fromkeys(cut.rows.sizes, "number of all rows")
        return [named.get(v) or sizes.get(v) or f"reduction {cut.rows.names[v]}" for v in part.reads]

    # --- joined chunks -------------------------------------------------------------------------------------------

    def _joined(self, lineage: Lineage, number: int, version: Version, rows: Rows) -> list[Any] | None:
        """Results of a chunk from those of the chunks that it was joined from; None where one is missing."""
        parts = []
        for parent in lineage.parents:
            entry = self.table.get(parent.number)
            found = entry.results[number].get(version.number) if entry is not None else None
            if entry is None or found is None or is_lost(found):
                found = self._joined(parent, number, version, rows)
            elif self._phase(number).per_row:
                found = self._trimmed(found, entry.num_rows, number)
            if found is None:
                return None
            parts.append(found)
        return self._combined_parts(parts, number) if parts else None

    def _phase(self, number: int) -> Any:
        assert self.reference is not None
        return self.trace.cuts[self.reference].phases[number]

    def _combined_parts(self, parts: list[list[Any]], number: int) -> list[Any]:
        phase, rows = self._phase(number), self.trace.cuts[self.reference or 0].rows
        kinds = tuple(rows.reductions[var] for var in phase.partials)
        columns = [[part[k] for part in parts] for k in range(phase.num_partials)]
        while columns and len(columns[0]) > FAN_IN:
            groups = [[c[i : i + FAN_IN] for c in columns] for i in range(0, len(columns[0]), FAN_IN)]
            combined = [self._combine_groups(kinds, *_filled(group)) for group in groups]
            columns = [[c[k] for c in combined] for k in range(phase.num_partials)]
        partials = self._combine_groups(kinds, *_filled(columns)) if columns else []
        per_row = [
            np.concatenate([part[phase.num_partials + k] for part in parts], rows.axes[var])
            for k, var in enumerate(phase.per_row)
        ]
        return [*partials, *per_row]

    def _trimmed(self, found: list[Any], num_rows: int, number: int) -> list[Any]:
        phase, axes = self._phase(number), self.trace.cuts[self.reference or 0].rows.axes
        cut = [
            np.take(np.asarray(x), range(num_rows), axes[v])
            for v, x in zip(phase.per_row, found[phase.num_partials :], strict=True)
        ]
        return [*found[: phase.num_partials], *cut]

    def _repadded(self, found: list[Any], chunk: Chunk, number: int) -> list[Any]:
        """Per-row results as a program of the chunk's capacity would have returned them, padded with anything."""
        phase, axes = self._phase(number), self.trace.cuts[self.reference or 0].rows.axes
        padded = []
        for var, x in zip(phase.per_row, found[phase.num_partials :], strict=True):
            widths = [(0, 0)] * x.ndim
            widths[axes[var]] = (0, chunk.capacity - x.shape[axes[var]])
            padded.append(jnp.asarray(np.pad(x, widths)))
        return [*found[: phase.num_partials], *padded]

    # --- what is kept --------------------------------------------------------------------------------------------

    def _keep_used(self, rows: Rows) -> None:
        """Forget chunks that were in none of the latest few sets of rows."""
        used = frozenset(chunk.lineage.number for chunk in rows.chunks)
        if self.uses and self.uses[-1] == used:
            return
        self.uses = [*(u for u in self.uses if u != used), used][-self.options.limits.versions :]
        kept = frozenset(itertools.chain.from_iterable(self.uses))
        self.table = {number: entry for number, entry in self.table.items() if number in kept}
        for entry in self.table.values():
            for engine in entry.engines:
                if engine is not None:
                    engine.store.budget_bytes = self._share(rows)

    def _any_engine(self) -> Engine | None:
        engines = (e for entry in self.table.values() for e in entry.engines if e is not None)
        return next(engines, next(iter(self.kin.values()), None))


def _is_int(x: Any) -> bool:
    return isinstance(x, int)


def _filled(columns: Sequence[Sequence[Any]]) -> tuple[np.int32, list[list[Any]]]:
    """How many partial results there are, and as many as the next power of two, the first one repeated."""
    count = len(columns[0])
    capacity = 1 << (count - 1).bit_length()
    return np.int32(count), [[*column, *[column[0]] * (capacity - count)] for column in columns]
