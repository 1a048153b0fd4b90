"""A function of rows, pass by pass: evaluate the chunks that are new, combine, go on with what
follows.

In: leaves and `Rows`. Out: outputs. One `RowEngine` serves one signature. It must not know what
users call it for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Literal
from incrax._messages import deleted_input
from incrax._program import Program
from incrax._stats import Stats
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import Chunks, History
from incrax.engine.call.signature_table import Options
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.messages import per_row_of_stream
from incrax.engine.inputs.rows import Rows
from incrax.engine.inputs.signature import Signature
from incrax.engine.store.store import is_any_deleted
from incrax.rows.chunk_engine import ChunkTable, feeds_of, without_padding
from incrax.rows.combining import combine_in_groups, filled, rest_function
from incrax.rows.phases import Part, Phase
from incrax.rows.trace import RowTrace
from incrax.rows.versions import Version, Versions

Env = dict[int, LeafValue]


class RowRecord(NamedTuple):
    """What a call did with chunks, over all passes, and the engine of one that was evaluated."""

    num_run: int
    num_reused: int
    num_joined: int
    engine: Engine | None


class Outcome(NamedTuple):
    """All of a pass: what its results depend on, values that follow from them by name, per-row
    results by name.
    """

    key: Any
    values: dict[int, Any]
    per_row: dict[int, Any]


class RowEngine:
    """Evaluates one signature of a function of rows; `paths` name the leaves, those of the rows
    first.
    """

    def __init__(
        self,
        trace: RowTrace,
        paths: Sequence[str],
        rows: Rows,
        options: Options,
        stats: Stats,
        calls: HostCalls,
    ) -> None:
        self.trace = trace
        self.calls = calls
        self.paths = paths
        self.options = options
        self.stats = stats
        self.generation = -1
        self.last: RowRecord | None = None
        self.history = History(options.tuning.history)
        self.prepare(rows)

    def prepare(self, rows: Rows) -> None:
        """Analyse the function for these chunks and this number of rows; where that tells new
        things, start anew.

        Raises:
            MixedRowsError: the function mixes rows, or is another one for another number of rows.
        """
        generation = self.trace.prepare(rows.capacities, len(rows))
        if generation != self.generation:
            self._start(rows.chunks[0].capacity)
            self.generation = generation

    def _start(self, capacity: int) -> None:
        """Nothing known yet."""
        self.cut = self.trace.cut(capacity)
        rows = self.cut.rows
        self.names = rows.names
        limit = self.options.versions
        self.versions = [Versions(limit) for _ in self.cut.phases]
        self.rest_versions = [Versions(limit) for _ in self.cut.phases]
        self.outcomes: list[list[Outcome]] = [[] for _ in self.cut.phases]
        self.rests = [self._compiled_rest(phase) for phase in self.cut.phases]
        self.chunks = ChunkTable(
            self.trace, self.cut, self.versions, self.paths, self.options, self.calls
        )
        self._shapes: set[tuple[int, int]] = set()

    def _compiled_rest(self, phase: Phase) -> Callable[..., Any]:
        """What follows from the reductions, compiled; functions on the host are remembered, and
        awaited.
        """
        eqns = self.calls.wrap(phase.rest.eqns)
        run = jax.jit(rest_function(self.cut.rows, phase, eqns))
        calls_host = any(new is not eqn for new, eqn in zip(eqns, phase.rest.eqns, strict=True))
        return (lambda *args: jax.block_until_ready(run(*args))) if calls_host else run

    def fork(self, stats: Stats) -> RowEngine:
        """An independent engine that shares results, values and programs so far."""
        other = RowEngine.__new__(RowEngine)
        other.__dict__.update(self.__dict__)
        other.stats = stats
        other._shapes = set(self._shapes)
        other.trace = self.trace.fork()
        other.history = History(self.history.size)
        other.versions = [versions.copy() for versions in self.versions]
        other.rest_versions = [versions.copy() for versions in self.rest_versions]
        other.outcomes = [list(outcomes) for outcomes in self.outcomes]
        other.chunks = self.chunks.fork(other.trace, other.versions, stats)
        return other

    def clear(self) -> None:
        """Drop all results and saved values; traces and programs stay."""
        self.chunks.clear()
        self.outcomes = [[] for _ in self.outcomes]

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values of all chunks."""
        return sum(engine.store.saved_bytes for engine in self.chunks.engines())

    # --- one call ---------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """That which it serves."""
        return self.trace.signature

    def call(self, leaves: Sequence[Any], rows: Rows) -> list[Any]:
        """Outputs at these leaves, the rows left out, and these rows."""
        env = self._env(leaves)
        self._check_streams(rows)
        self.chunks.evaluated = None
        before = self._counts()
        per_row = {}
        is_known = True
        for number in range(len(self.cut.phases)):
            outcome, was_known = self._pass(number, env, rows)
            is_known = is_known and was_known
            env.update({name: LeafValue(x) for name, x in outcome.values.items()})
            per_row.update(outcome.per_row)
        self.chunks.keep_used(rows)
        num_run, num_reused, num_joined = (
            b - a for a, b in zip(before, self._counts(), strict=True)
        )
        self.last = RowRecord(
            num_run, num_reused, num_joined, self.chunks.evaluated or self._any_engine(rows)
        )
        self.stats.unchanged += is_known
        found = {**{name: value.feed for name, value in env.items()}, **per_row}
        return self._outputs(found, len(rows))

    def note(self, start_s: float) -> None:
        """Enter the call that ended now in the history."""
        if self.last is not None:
            self.history.note_rows(start_s, Chunks(*self.last[:3]), lambda: self.saved_bytes)

    def _env(self, leaves: Sequence[Any]) -> Env:
        """The leaves by name."""
        first = self.cut.rows.num_row_inputs
        env = {first + number: LeafValue(x) for number, x in enumerate(leaves)}
        for name, value in env.items():
            if value.is_deleted():
                raise deleted_input(self.paths[name])
        return env

    def _check_streams(self, rows: Rows) -> None:
        """Refuse per-row results of rows that are streamed."""
        found = [
            v.aval.str_short(short_dtypes=True) for phase in self.cut.phases for v in phase.per_row
        ]
        if found and any(chunk.is_streamed for chunk in rows.chunks):
            raise per_row_of_stream(", ".join(found))

    def _counts(self) -> tuple[int, int, int]:
        stats = self.stats
        return stats.chunks_run, stats.chunks_reused, stats.chunks_joined

    def _outputs(self, found: dict[int, Any], num_rows: int) -> list[Any]:
        rows = self.cut.rows
        program = rows.program
        return [self._output(program, atom, found, num_rows) for atom in program.outvars]

    def _output(self, program: Program, atom: Any, found: dict[int, Any], num_rows: int) -> Any:
        if not isinstance(atom, Literal) and atom in self.names:
            return found[self.names[atom]]
        if atom in program.constvars:
            return jnp.array(program.consts[program.constvars.index(atom)])
        value = (
            atom.val if isinstance(atom, Literal) else self.trace.sizes(self.cut, num_rows)[atom]
        )
        array = jnp.asarray(value, atom.aval.dtype)
        return _jax.as_weak(array) if getattr(atom.aval, "weak_type", False) else array

    # --- one pass ---------------------------------------------------------------------------------

    def _pass(self, number: int, env: Env, rows: Rows) -> tuple[Outcome, bool]:
        """The outcome of a pass over the rows, and whether it was known."""
        phase = self.cut.phases[number]
        version = self._version(self.versions[number], phase.chunk, env, rows)
        rest = self._version(self.rest_versions[number], phase.rest, env, rows)
        key = version.number, rest.number, tuple([chunk.lineage.number for chunk in rows.chunks])
        known = self.outcomes[number]
        found = next(
            (outcome for outcome in known if outcome.key == key and _is_whole(outcome)), None
        )
        if found is not None:
            self.stats.chunks_reused += len(rows.chunks)
            self.outcomes[number] = [*(outcome for outcome in known if outcome is not found), found]
            return found, True
        results = self.chunks.results(number, version, rows, self.stats)
        per_row = {
            self.names[v]: _assembled(rows, [each[k] for each in results], axis)
            for k, (v, axis) in enumerate(
                zip(phase.per_row, phase.axes, strict=True), len(phase.kinds)
            )
        }
        outcome = Outcome(key, self._rest(number, rest, results, rows), per_row)
        self.outcomes[number] = [*known, outcome][-self.options.versions :]
        return outcome, False

    def _version(self, versions: Versions, part: Part, env: Env, rows: Rows) -> Version:
        """The version of what a part reads: values by name, and the number of rows if it
        matters.
        """
        values = [env[self.names[var]] for var in part.reads if var in self.names]
        return versions.find(values, len(rows) if len(values) < len(part.reads) else None)

    def _rest(
        self, number: int, rest: Version, results: list[list[Any]], rows: Rows
    ) -> dict[int, Any]:
        """Combine the partial results of all chunks and compute what follows."""
        phase = self.cut.phases[number]
        count, columns = filled(combine_in_groups(phase.kinds, results))
        shape = number, len(columns[0]) if columns else 0
        self.stats.compiles += shape not in self._shapes
        self._shapes.add(shape)
        feeds = feeds_of(self.trace, self.cut, phase.rest, rest, rows)
        values = self.rests[number](count, columns, feeds)
        return {
            self.names[v]: x
            for v, x in zip(phase.rest.targets, values, strict=True)
            if v in self.names
        }

    # --- without a result -------------------------------------------------------------------------

    def outlook(self, leaves: Sequence[Any], rows: Rows) -> RowRecord:
        """What the first pass of a call would do; nothing is evaluated or kept."""
        part = self.cut.phases[0].chunk
        number = self._version(self.versions[0].copy(), part, self._env(leaves), rows).number
        num_known = self.chunks.num_known(rows, number)
        return RowRecord(len(rows.chunks) - num_known, num_known, 0, self._any_engine(rows))

    def first_kin(self, rows: Rows) -> Engine:
        """The engine whose programs serve the first pass for the first chunk."""
        return self.chunks.kin_of(rows.chunks[0], 0, rows, self.stats)

    def _any_engine(self, rows: Rows) -> Engine:
        return next(iter(self.chunks.engines()), None) or self.first_kin(rows)


def _is_whole(outcome: Outcome) -> bool:
    return not is_any_deleted([*outcome.values.values(), *outcome.per_row.values()])


def _assembled(rows: Rows, parts: Sequence[Any], axis: int) -> jax.Array:
    """Per-row results of all chunks without padding, as a copy where `jax.jit` would put them."""
    pairs = zip(rows.chunks, parts, strict=True)
    whole = np.concatenate([without_padding(x, chunk.num_rows, axis) for chunk, x in pairs], axis)
    bound = next((x.sharding for x in parts if _is_bound(x)), None)
    return jnp.asarray(whole) if bound is None else jax.device_put(whole, bound)


def _is_bound(x: Any) -> bool:
    """Whether an array is on one device that its inputs chose."""
    return isinstance(x, jax.Array) and bool(x.committed) and len(x.sharding.device_set) == 1
