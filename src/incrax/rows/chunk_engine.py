"""Chunks of one signature: for each pass an engine of its own, and results per version of all else
that they depend on.

In: chunks, versions. Out: partial and per-row results, saved, joined from those of other chunks, or
evaluated. Every table is keyed by content, so that a call that fails in the middle leaves only what
is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._names import name_of
from incrax._program import trace, type_of
from incrax._progress import Meter
from incrax._stats import Stats
from incrax.engine.call.analysis import facts_of
from incrax.engine.call.engine import Engine
from incrax.engine.call.signature_table import Options
from incrax.engine.compile.executables import Compiler
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.compile.recycling import can_recycle
from incrax.engine.inputs.chunks import Chunk, Lineage
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.rows import Rows
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.log import Journal
from incrax.engine.store.budget import Limits
from incrax.engine.store.store import is_any_deleted
from incrax.rows.combining import chunk_function, combine_all
from incrax.rows.phases import Part
from incrax.rows.totals import Totals, in_runs
from incrax.rows.trace import RowCut, RowTrace
from incrax.rows.versions import Version, Versions

EXACT_SHARE = 64
"""Chunks among which plans of the exact policy share the budget: they must not depend on how many
there are.
"""


class ChunkEntry:
    """What is kept of a chunk: its rows, and for each pass an engine and results by version."""

    __slots__ = ("engines", "num_rows", "results")

    def __init__(self, num_rows: int, num_passes: int) -> None:
        self.num_rows = num_rows
        self.engines: list[Engine | None] = [None] * num_passes
        self.results: list[dict[int, list[Any]]] = [{} for _ in range(num_passes)]


class ChunkTable:
    """The chunks of the latest few sets of rows; `cut` names values, `versions` are those of each
    pass.
    """

    def __init__(
        self,
        trace: RowTrace,
        cut: RowCut,
        versions: Sequence[Versions],
        paths: Sequence[str],
        options: Options,
        calls: HostCalls,
    ) -> None:
        self.trace = trace
        self.cut = cut
        self.versions = versions
        self.paths = paths
        self.options = options
        self.limits = options.limits(1)
        self.calls = calls
        self.table: dict[int, ChunkEntry] = {}
        self.totals = [Totals(phase.kinds) for phase in cut.phases]
        self.uses: list[frozenset[int]] = []
        self.kin: dict[tuple[int, bool, int], Engine] = {}
        self.evaluated: Engine | None = None
        self._passes_by: dict[Chooser, bool] = {}  # in this call, after one chunk was looked at

    def fork(self, trace: RowTrace, versions: Sequence[Versions], stats: Stats) -> ChunkTable:
        """An independent table that shares results, values and programs so far."""
        other = ChunkTable(trace, self.cut, versions, self.paths, self.options, self.calls)
        other.uses = list(self.uses)
        other.totals = [totals.copy() for totals in self.totals]
        other.kin = {key: engine.fork(stats) for key, engine in self.kin.items()}
        by_chooser = {id(engine.chooser): other.kin[key] for key, engine in self.kin.items()}
        for number, entry in self.table.items():
            copy = other.table[number] = ChunkEntry(entry.num_rows, len(entry.engines))
            copy.results = [dict(found) for found in entry.results]
            copy.engines = [e and e.fork(stats, by_chooser[id(e.chooser)]) for e in entry.engines]
        return other

    def clear(self) -> None:
        """Drop all results and saved values; programs stay."""
        self.table = {}
        self.uses = []
        self.totals = [Totals(totals.kinds) for totals in self.totals]
        for engine in self.kin.values():
            engine.clear()

    def engines(self) -> list[Engine]:
        """The engines of all chunks that were evaluated and kept."""
        found = [e for entry in self.table.values() for e in entry.engines if e is not None]
        return [engine for engine in found if engine.store.states]

    def num_known(self, rows: Rows, version: int) -> int:
        """Chunks whose results of the first pass are kept for a version."""
        entries = [self.table.get(chunk.lineage.number) for chunk in rows.chunks]
        return sum(entry is not None and version in entry.results[0] for entry in entries)

    def keep_used(self, rows: Rows) -> None:
        """Forget chunks that were in none of the latest few sets of rows; the others share the
        budget.
        """
        used = frozenset(chunk.lineage.number for chunk in rows.chunks)
        if self.uses and self.uses[-1] == used:
            return
        self.uses = [*(u for u in self.uses if u != used), used][-self.limits.versions :]
        kept = frozenset(itertools.chain.from_iterable(self.uses))
        self.table = {number: entry for number, entry in self.table.items() if number in kept}
        for versions, totals in zip(self.versions, self.totals, strict=True):
            totals.keep(versions.numbers, kept)
        for engine in self.engines():
            engine.store.budget_bytes = self._share(rows)

    def _share(self, rows: Rows) -> int:
        return self.limits.budget_bytes // len(rows.chunks)

    # --- results ----------------------------------------------------------------------------------

    def results(self, number: int, version: Version, rows: Rows, stats: Stats) -> list[list[Any]]:
        """Partial results of a pass, those of runs of chunks combined; one by one, with per-row
        results, if it has any.

        While a streamed chunk is evaluated the next one is read, and no third. Where saving does
        not pay, one of the chunks that share programs is looked at for all of them.
        """
        previous: list[Any] = []
        self._passes_by.clear()

        def result(chunk: Chunk) -> list[Any]:
            found = self._result(chunk, number, version, rows, stats)
            if chunk.is_streamed:
                jax.block_until_ready(previous)
                previous[:] = found
                meter.advance()
            return found

        with Meter(
            "incrax: streaming rows", sum(chunk.is_streamed for chunk in rows.chunks)
        ) as meter:
            if self.cut.phases[number].per_row:
                results = [result(chunk) for chunk in rows.chunks]
            else:
                results = in_runs(self.totals[number], version.number, rows.chunks, result)
                stats.chunks_reused += self.totals[number].take_reused()
        jax.block_until_ready(previous)
        return results

    def _result(
        self, chunk: Chunk, number: int, version: Version, rows: Rows, stats: Stats
    ) -> list[Any]:
        entry = self.table.get(chunk.lineage.number)
        if entry is None:
            entry = self.table[chunk.lineage.number] = ChunkEntry(
                chunk.num_rows, len(self.versions)
            )
        known = entry.results[number]
        found = known.get(version.number)
        if found is not None and not is_any_deleted(found):
            stats.chunks_reused += 1
            return found
        found = None if self.options.is_exact else self._joined(chunk.lineage, number, version)
        if found is not None:
            stats.chunks_joined += 1
            found = self._repadded(found, chunk, number)
        else:
            stats.chunks_run += 1
            found = self._evaluated(chunk, entry, number, version, rows, stats)
        current = self.versions[number].numbers
        entry.results[number] = {n: x for n, x in known.items() if n in current} | {
            version.number: found
        }
        return found

    def _evaluated(
        self,
        chunk: Chunk,
        entry: ChunkEntry,
        number: int,
        version: Version,
        rows: Rows,
        stats: Stats,
    ) -> list[Any]:
        cut = self.trace.cut(chunk.capacity)
        kin = self.kin_of(chunk, number, rows, stats)
        counts = [chunk.count] if chunk.is_padded else []
        others = [*counts, *feeds_of(self.trace, cut, cut.phases[number].chunk, version, rows)]
        if chunk.is_streamed:
            whole = kin.whole
            stats.ran += kin.num_eqns
            stats.compiles += not whole.num_runs
            return whole([LeafValue(x).feed for x in (*chunk.arrays(), *others)], ())
        engine = entry.engines[number]
        if engine is None:
            engine = entry.engines[number] = kin.sibling(self._share(rows))
        leaves = [*chunk.arrays(), *others]
        if self._passes_by.get(kin.chooser, False):
            return engine.without_saving(leaves)
        self._passes_by.setdefault(kin.chooser, engine.bypasses)
        self.evaluated = engine
        return engine.call(leaves, engine.comparison.changed_leaves(leaves))

    # --- engines ----------------------------------------------------------------------------------

    def kin_of(self, chunk: Chunk, number: int, rows: Rows, stats: Stats) -> Engine:
        """The engine whose programs serve a pass for all chunks like this one."""
        key = chunk.capacity, chunk.is_padded, number
        if key not in self.kin:
            self.kin[key] = self._make_kin(chunk, number, rows, stats)
        return self.kin[key]

    def _make_kin(self, chunk: Chunk, number: int, rows: Rows, stats: Stats) -> Engine:
        is_exact = self.options.is_exact
        limits = self.limits
        tuning = self.options.own_tuning()
        cut = self.trace.cut(chunk.capacity)
        part = cut.phases[number].chunk
        counts = [jax.ShapeDtypeStruct((), np.int32)] if chunk.is_padded else []
        row_types = self.trace.row_type
        types = [*row_types.avals(chunk.capacity), *counts, *map(type_of, part.reads)]
        traced = trace(
            chunk_function(cut.rows, cut.phases[number], is_padded=chunk.is_padded), *types
        )
        facts = facts_of(traced, tuning, is_exact=is_exact)
        share = EXACT_SHARE if is_exact else len(rows.chunks)
        shared = Limits(
            limits.versions, limits.budget_bytes // share, limits.planned_bytes // share
        )
        signature = self.trace.signature
        recycles = can_recycle() and not signature.placed
        compiler = Compiler(
            facts, self.calls, name_of(self.trace.fun), on_host=frozenset(), recycles=recycles
        )
        num_rows = cut.rows.num_row_inputs
        paths = [
            *self.paths[:num_rows],
            *["rows in the chunk" for _ in counts],
            *self._read_paths(cut, part),
        ]
        journal = Journal(name_of(self.trace.fun), paths, facts.layout)
        whole = compiler.compile_whole(traced)
        return Engine(facts, whole, journal, compiler, tuning, stats, shared, is_exact=is_exact)

    def _read_paths(self, cut: RowCut, part: Part) -> list[str]:
        rows = cut.rows
        program = rows.program
        known = dict.fromkeys(rows.sizes, "number of rows")
        known.update(zip(program.invars, self.paths, strict=True))
        return [known.get(v) or f"reduction {rows.names[v]}" for v in part.reads]

    # --- joined chunks ----------------------------------------------------------------------------

    def _joined(self, lineage: Lineage, number: int, version: Version) -> list[Any] | None:
        """Results of a chunk from those of the chunks that it was joined from; None where one is
        missing.
        """
        parts = []
        for parent in lineage.parents:
            entry = self.table.get(parent.number)
            found = entry.results[number].get(version.number) if entry is not None else None
            if entry is None or found is None or is_any_deleted(found):
                found = self._joined(parent, number, version)
            else:
                found = self._trimmed(found, entry.num_rows, number)
            if found is None:
                return None
            parts.append(found)
        return self._combined(parts, number) if parts else None

    def _combined(self, parts: list[list[Any]], number: int) -> list[Any]:
        phase = self.cut.phases[number]
        per_row = [
            np.concatenate([part[k] for part in parts], axis)
            for k, axis in enumerate(phase.axes, len(phase.kinds))
        ]
        return [*combine_all(phase.kinds, parts), *per_row]

    def _trimmed(self, found: list[Any], num_rows: int, number: int) -> list[Any]:
        """Results with per-row results on the host, without padding."""
        return self._with_per_row(found, number, lambda x, axis: without_padding(x, num_rows, axis))

    def _repadded(self, found: list[Any], chunk: Chunk, number: int) -> list[Any]:
        """Results with per-row results as a program of the chunk's capacity returns them, padded
        with anything.
        """

        def padded(x: np.ndarray, axis: int) -> Any:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, chunk.capacity - x.shape[axis])
            return jnp.asarray(np.pad(x, widths))

        return self._with_per_row(found, number, padded)

    def _with_per_row(
        self, found: list[Any], number: int, change: Callable[[Any, int], Any]
    ) -> list[Any]:
        """Results with other per-row results: `change` of each and its row axis."""
        phase = self.cut.phases[number]
        count = len(phase.kinds)
        return [*found[:count], *map(change, found[count:], phase.axes)]


def without_padding(x: Any, num_rows: int, axis: int) -> np.ndarray:
    """The first rows of a per-row result, on the host."""
    array = np.asarray(x)
    return array if array.shape[axis] == num_rows else np.take(array, range(num_rows), axis)


def feeds_of(trace: RowTrace, cut: RowCut, part: Part, version: Version, rows: Rows) -> list[Any]:
    """What a part of a program reads, in order."""
    names = cut.rows.names
    feeds = iter(version.feeds)
    if all(var in names for var in part.reads):
        return list(version.feeds)
    sizes = trace.sizes(cut, len(rows))
    return [next(feeds) if var in names else sizes[var] for var in part.reads]
