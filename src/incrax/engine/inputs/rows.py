"""Rows of data: what is appended or replaced makes new chunks, and the others stay the same
objects.

In: pytrees of arrays with a common first axis, or a source. Out: `Rows`. It must not know what is
computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from incrax._messages import as_int, checked_count
from incrax._table import many
from incrax.engine.inputs.chunks import (
    CHUNK_ROWS,
    Chunk,
    RowType,
    Source,
    checked,
    checked_chunk_rows,
    checked_read,
    common_length,
    cut,
    in_memory,
    joined,
)
from incrax.engine.inputs.messages import (
    no_row_number,
    no_rows,
    not_an_array,
    other_rows,
    outside_rows,
)
from incrax.engine.inputs.mutable import never_changes


@never_changes
class Rows:
    """Rows of data, cut into chunks, for an incremental function: only chunks that are new are
    evaluated.

    `incremental(f)(params, rows)` equals `f(params, rows.tree())` up to the rounding of sums, for a
    function that maps over rows and reduces over them. Immutable; `append` and `replace` return new
    `Rows` that share chunks.

    Args:
        tree: pytree of arrays (NumPy or JAX), shapes (n, ...), n at least 1.
        chunk_rows: rows of a full chunk, a power of two.

    Raises:
        RowsError: leaves have different numbers of rows, or none.
        UnsupportedLeafError: a leaf is no array, or of a dtype that JAX has no type for.

    Cost: one copy of the data.

    Example:
        >>> import incrax, jax.numpy as jnp, numpy as np
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(x**2))
        >>> rows = incrax.Rows(np.ones(5000), chunk_rows=2048)
        >>> float(f(2.0, rows)), float(f(2.0, rows.append(np.ones(10))))
        (10000.0, 10020.0)
        >>> f.stats.chunks_run, f.stats.chunks_reused
        (4, 3)
    """

    def __init__(self, tree: Any, *, chunk_rows: int = CHUNK_ROWS) -> None:
        chunk_rows = checked_chunk_rows(chunk_rows)
        leaves, row_type = checked(tree)
        self._set(row_type, chunk_rows, tuple(in_memory(leaves, chunk_rows)))

    def _set(self, row_type: RowType, chunk_rows: int, chunks: tuple[Chunk, ...]) -> None:
        self._row_type: RowType = row_type
        self.chunk_rows: int = chunk_rows
        self._chunks: tuple[Chunk, ...] = chunks
        self._capacities: tuple[int, ...] = tuple(dict.fromkeys(chunk.capacity for chunk in chunks))
        self._starts = np.cumsum([0, *(chunk.num_rows for chunk in chunks)])
        self._places: dict[int, int] = {chunk.number: chunk.place for chunk in chunks}

    @classmethod
    def from_source(cls, source: Source, *, chunk_rows: int = CHUNK_ROWS) -> Rows:
        """Rows that are read when they are evaluated and dropped afterwards, for data larger than
        memory.

        Args:
            source: has `num_rows` and `read(start, stop)`, a pytree of arrays; the same rows at
                each time.
            chunk_rows: rows that are read at once, a power of two; about two chunks are in memory
                at a time.

        Raises:
            RowsError: there are no rows; or, also later when rows are read: a read gave another
                number of rows than it was asked for, or rows of another type than before.

        Cost: reads one row now, and all rows whenever something that they are combined with
        changes.
        """
        chunk_rows = checked_chunk_rows(chunk_rows)
        given = getattr(source, "num_rows", None)
        num_rows = checked_count("Rows.from_source(source).num_rows", given, 0)
        if num_rows < 1:
            raise no_rows()
        _, row_type = checked_read(source, 0, 1, None)

        def read(start: int, stop: int) -> list[np.ndarray]:
            return checked_read(source, start, stop, row_type)[0]

        return cls._of(row_type, chunk_rows, cut(num_rows, chunk_rows, read, is_streamed=True))

    @classmethod
    def _of(cls, row_type: RowType, chunk_rows: int, chunks: Iterable[Chunk]) -> Rows:
        rows = cls.__new__(cls)
        rows._set(row_type, chunk_rows, tuple(chunks))
        return rows

    @classmethod
    def from_memmap(cls, tree: Any, *, chunk_rows: int = CHUNK_ROWS) -> Rows:
        """Rows streamed from a pytree of `np.memmap`s, or of other arrays on disk that are read by
        slicing.

        Args:
            tree: pytree of array-likes, shapes (n, ...); the files must not change.
            chunk_rows: rows that are read at once, a power of two.

        Raises:
            RowsError: leaves have different numbers of rows, or none.
            UnsupportedLeafError: a leaf has no rows.
        """
        leaves = jax.tree.leaves_with_path(tree)
        named = {f"rows{jax.tree_util.keystr(path)}": x for path, x in leaves}
        for path, x in named.items():
            if not getattr(x, "shape", ()):
                raise not_an_array(path, type(x).__name__)
        lengths = {path: x.shape[0] for path, x in named.items()}
        num_rows = common_length("Rows", lengths)
        read = lambda start, stop: jax.tree.map(lambda x: np.asarray(x[start:stop]), tree)
        source: Any = SimpleNamespace(num_rows=num_rows, read=read)
        return cls.from_source(source, chunk_rows=chunk_rows)

    # --- new rows ---------------------------------------------------------------------------------

    def append(self, tree: Any) -> Rows:
        """These rows and, in chunks of their own, the new ones after them.

        Args:
            tree: arrays of the same structure, dtypes and trailing shapes, with any number of rows.

        Raises:
            RowsError: they are of another type.
        """
        leaves = self._leaves_of(tree, "append")
        if not len(leaves[0]):
            return self
        new = in_memory(leaves, self.chunk_rows)
        return self._with(joined([*self._chunks, *new], self.chunk_rows))

    def replace(self, start: int, tree: Any) -> Rows:
        """These rows with new ones in the place of rows `start` and following; chunks that they
        touch become new.

        Args:
            start: number of the first row to replace.
            tree: arrays of the same structure, dtypes and trailing shapes.

        Raises:
            RowsError: they are of another type, or reach beyond the last row.
            TypeError: `start` is no integer.
        """
        first_row = as_int(start)
        if first_row is None:
            raise no_row_number(start)
        start = first_row
        leaves = self._leaves_of(tree, "replace")
        stop = start + len(leaves[0])
        if not 0 <= start <= stop <= len(self):
            raise outside_rows(start, stop, len(self))
        if start == stop:
            return self
        chunks = list(self._chunks)
        for number, chunk in enumerate(chunks):
            first = int(self._starts[number])
            if first < stop and start < first + chunk.num_rows:
                chunks[number] = chunk.replaced(leaves, start - first)
        return self._with(chunks)

    def _with(self, chunks: Iterable[Chunk]) -> Rows:
        return self._of(self._row_type, self.chunk_rows, chunks)

    def _leaves_of(self, tree: Any, method: str) -> list[np.ndarray]:
        leaves, row_type = checked(tree, may_be_empty=True)
        if row_type != self._row_type:
            raise other_rows(method, str(row_type), str(self._row_type))
        return leaves

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._starts[-1])

    def tree(self) -> Any:
        """All rows as a pytree of `jax.Array`s, shapes (n, ...).

        Cost: a copy; reads all rows that are streamed.
        """
        parts = [chunk.rows() for chunk in self._chunks]
        columns = [jax.device_put(np.concatenate(column)) for column in zip(*parts, strict=True)]
        return jax.tree.unflatten(self._row_type.treedef, columns)

    def _captured(self) -> tuple[Any, ...]:
        """What a guarded function that captures rows compares beside the object: nothing, as they
        do not change.
        """
        return ()

    def __reduce__(self) -> Any:
        """Rows that are copied or pickled are other chunks."""
        return _rebuild, (jax.tree.map(np.asarray, self.tree()), self.chunk_rows)

    def __repr__(self) -> str:
        """Number of rows, their type and number of chunks."""
        return f"Rows({len(self)} rows of {self._row_type} in {many(len(self._chunks), 'chunk')})"


def _rebuild(tree: Any, chunk_rows: int) -> Rows:
    return Rows(tree, chunk_rows=chunk_rows)


def has_rows(leaves: Iterable[Any]) -> bool:
    """Whether some leaf is `Rows`."""
    return any(type(leaf) is Rows for leaf in leaves)


def as_plain(tree: Any) -> Any:
    """Arguments with all rows as arrays."""
    if not has_rows(jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda leaf: leaf.tree() if type(leaf) is Rows else leaf, tree)
