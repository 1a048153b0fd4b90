"""`Rows` in front of the engine: taken out of the arguments of a call, which is then served by the
`RowEngine` of its signature, one of the traces of the function.

In: the arguments of calls. Out: what they give to the trace that serves them. It must not know what
users call it for.
"""

from __future__ import annotations

from typing import Any

import jax

from incrax import _jax
from incrax._messages import nothing_saved
from incrax._program import Values
from incrax.engine.call.signature_table import Traces
from incrax.engine.call.traced import Given
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.rows import Rows, as_plain, has_rows
from incrax.engine.inputs.signature import Args, Kwargs, Signature, make_signature
from incrax.errors import RowsError
from incrax.rows.engine import RowEngine
from incrax.rows.trace import RowTrace


class RowTraces(Traces):
    """The traces of a function, of which some are for calls with `Rows`."""

    def serving_rows(
        self, leaves: Values, treedef: Any, args: Args, kwargs: Kwargs
    ) -> Given | None:
        """What a call with `Rows` gives; with those of one row, what it gives with the array, since
        JAX broadcasts one row in other equations than many.

        Raises:
            RowsError: there are `Rows` in several places.
            MixedRowsError: the function mixes rows.
        """
        rows = self._only_rows(leaves, args, kwargs)
        if len(rows) > 1:
            given = self._given(rows, leaves, treedef)
            self.set_latest(given.traced)
            return given
        args, kwargs = as_plain((args, kwargs))
        leaves, treedef = jax.tree.flatten((args, kwargs))
        return self.serving(leaves, treedef, args, kwargs)

    def looked_up(self, args: Args, kwargs: Kwargs, method: str) -> Given:
        """As for arrays."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        if not has_rows(leaves):
            return super().looked_up(args, kwargs, method)
        rows = self._only_rows(leaves, args, kwargs)
        given = self._given(rows, leaves, treedef)
        given.traced.first_kin(rows)
        return given

    def _only_rows(self, leaves: Values, args: Args, kwargs: Kwargs) -> Rows:
        """The `Rows` among the arguments, whose leaves these are."""
        found = [leaf for leaf in leaves if type(leaf) is Rows]
        if len(found) > 1:
            named = make_signature(self.fun, args, kwargs).named_statics
            places = ", ".join(f"`{path}`" for path, x in named.items() if type(x) is Rows)
            raise RowsError(
                f"`incremental(f)` got `Rows` in {len(found)} places: {places}. They may be cut "
                "into chunks differently. Nothing was evaluated or stored. Put all columns into "
                "one: `Rows({'x': x, 'y': y})`."
            )
        return found[0]

    def _given(self, rows: Rows, leaves: Values, treedef: Any) -> Given:
        """What a call gives: the engine that serves it, the leaves that are no rows, the rows."""
        leaves = [rows._row_type if x is rows else x for x in leaves]
        engine = self.latest
        if not isinstance(engine, RowEngine) or not engine.signature.accepts(leaves, treedef):
            signature = make_signature(self.fun, *jax.tree.unflatten(treedef, leaves))
            engine = self.table.get(signature.key)
            if engine is None:
                engine = self._of_rows(signature, leaves, rows)
                engine.prepare(rows)  # what is refused enters no table
                self._enter(signature, engine)
        engine.prepare(rows)
        return Given(engine, engine.signature.dynamic_leaves(leaves), rows)

    def _of_rows(self, signature: Signature, leaves: Values, rows: Rows) -> RowEngine:
        dynamic = signature.dynamic_leaves(leaves)
        if any(map(_jax.is_mutable_array, dynamic)):
            raise nothing_saved("a call with `Rows`")
        row_type = rows._row_type
        trace = RowTrace(self.fun, signature, row_type, [LeafValue(x).feed for x in dynamic])
        path = next(path for path, x in signature.named_statics.items() if x is row_type)
        paths = [*(f"{path}{name}" for name in row_type.paths), *signature.dynamic_paths]
        return RowEngine(trace, paths, self.options, self.stats, self.calls)
