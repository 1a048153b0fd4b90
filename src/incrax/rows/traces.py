"""The signatures of one function that was called with `Rows`, each with its engine, in a bounded
table.

In: the arguments of calls. Out: the engine that serves them, the rows and the other leaves. It must
not know what users call it for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._messages import nothing_saved
from incrax._names import name_of
from incrax._stats import Stats
from incrax._tables import LruTable
from incrax.engine.call.signature_table import Args, Kwargs, Options
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.messages import many_rows
from incrax.engine.inputs.rows import Rows
from incrax.engine.inputs.signature import make_signature
from incrax.engine.policy.log import note_forgotten, note_trace
from incrax.rows.engine import RowEngine
from incrax.rows.trace import RowTrace


class RowCall(NamedTuple):
    """A call taken apart: the engine that serves it, the leaves that are no rows, the rows."""

    engine: RowEngine
    leaves: Sequence[Any]
    rows: Rows


class RowTraces:
    """The table; `latest` is the engine that the last call used."""

    def __init__(
        self, fun: Callable[..., Any], options: Options, stats: Stats, calls: HostCalls
    ) -> None:
        self.fun = fun
        self.calls = calls
        self.options = options
        self.stats = stats
        self.table: LruTable[Hashable, RowEngine] = LruTable(options.max_signatures)
        self.latest: RowEngine | None = None

    def engines(self) -> list[RowEngine]:
        """The engines that are kept."""
        return list(self.table.values())

    def fork(self, stats: Stats) -> RowTraces:
        """An independent table with the same traces, values and programs so far."""
        other = RowTraces(self.fun, self.options, stats, self.calls)
        for key, engine in self.table.items():
            copied = engine.fork(stats)
            other.table.add(key, copied)
            if engine is self.latest:
                other.latest = copied
        return other

    def serving(self, args: Args, kwargs: Kwargs) -> RowCall:
        """The engine for these arguments.

        Raises:
            RowsError: there are `Rows` in several places.
        """
        leaves, treedef = jax.tree.flatten((args, kwargs))
        rows = self.only_rows(args, kwargs, leaves)
        leaves = [rows.row_type if x is rows else x for x in leaves]
        engine = self.latest
        if engine is None or not engine.signature.serves(leaves, treedef):
            engine = self.latest = self._looked_up(
                jax.tree.unflatten(treedef, leaves), leaves, rows
            )
        engine.prepare(rows)
        return RowCall(engine, engine.signature.dynamic_leaves(leaves), rows)

    def _looked_up(
        self, arguments: tuple[Args, Kwargs], leaves: Sequence[Any], rows: Rows
    ) -> RowEngine:
        """The engine in the table, or a new one, for arguments with a type for the rows."""
        signature = make_signature(self.fun, *arguments)
        found = self.table.get(signature.key)
        if found is not None:
            return found
        dynamic = signature.dynamic_leaves(leaves)
        if any(map(_jax.is_mutable_array, dynamic)):
            raise nothing_saved("a call with `Rows`")
        row_type = rows.row_type
        trace = RowTrace(self.fun, signature, row_type, [LeafValue(x).feed for x in dynamic])
        path = next(path for path, x in signature.named_statics.items() if x is row_type)
        paths = [*(f"{path}{name}" for name in row_type.paths), *signature.dynamic_paths]
        found = RowEngine(trace, paths, rows, self.options, self.stats, self.calls)
        made_room = self.table.add(signature.key, found)
        self.stats.traces += 1
        name = name_of(self.fun)
        known = [engine.signature for engine in (*made_room, *self.table.values())]
        note_trace(name, signature, known, self.table.max_size)
        if made_room:
            note_forgotten(name, self.table.max_size)
        return found

    def only_rows(self, args: Args, kwargs: Kwargs, leaves: Sequence[Any]) -> Rows:
        """The `Rows` among the arguments, whose leaves these are.

        Raises:
            RowsError: there are `Rows` in several places.
        """
        found = [leaf for leaf in leaves if type(leaf) is Rows]
        if len(found) > 1:
            named = make_signature(self.fun, args, kwargs).named_statics
            raise many_rows([path for path, x in named.items() if type(x) is Rows])
        return found[0]
