"""Rows of data in chunks: what is appended or replaced makes new chunks, and the others stay the same objects.

In: pytrees of arrays with a common first axis, or a source that is read chunk by chunk. Out: `Rows`. It must not know
what is computed from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._errors import no_rows, not_an_array, other_lengths, other_rows, outside_rows, wrong_chunk_rows
from incrax.running.leaves import check_dynamic
from incrax.running.sources import ArraySource, ParquetSource, Source

CHUNK_ROWS = 131072
"""Rows of a full chunk, unless the user says otherwise."""

MIN_CAPACITY = 1024
"""Rows of the smallest chunk: its program takes little more than one call of a program takes anyway."""

MAX_CHUNKS = 64
"""Chunks that are not full, above which small neighbours are joined."""

_numbers = itertools.count()


class Lineage(NamedTuple):
    """The number of a chunk, unique in the process, and of those that it was joined from."""

    number: int
    parents: tuple[Lineage, ...] = ()


class Chunk:
    """Some consecutive rows, padded to a capacity by repeating the last one. Never changes.

    Fields: its number and those of the chunks that it was joined from; rows without padding; capacity; the number of
    rows as programs take it; the arrays (None where they are read from a source at each use).
    """

    __slots__ = ("_arrays", "_read", "capacity", "count", "lineage", "num_rows")

    def __init__(
        self, num_rows: int, capacity: int, read: Callable[[], Sequence[np.ndarray]], *, is_streamed: bool
    ) -> None:
        self.lineage = Lineage(next(_numbers))
        self.num_rows = num_rows
        self.capacity = capacity
        self.count = np.int32(num_rows)
        self._read = read if is_streamed else None
        self._arrays = None if is_streamed else _to_device(read(), capacity)

    @property
    def is_streamed(self) -> bool:
        """Whether the rows are read at each use."""
        return self._arrays is None

    @property
    def is_padded(self) -> bool:
        """Whether the capacity is larger than the number of rows."""
        return self.num_rows < self.capacity

    def arrays(self) -> tuple[jax.Array, ...]:
        """The leaves, padded: shape (capacity, ...)."""
        if self._arrays is not None:
            return self._arrays
        assert self._read is not None
        return _to_device(self._read(), self.capacity)

    def rows(self) -> list[np.ndarray]:
        """The leaves on the host, without padding; they must not be written to."""
        if self._read is not None:
            return [np.asarray(x) for x in self._read()]
        return [np.asarray(x)[: self.num_rows] for x in self._arrays or ()]


def _to_device(leaves: Iterable[np.ndarray], capacity: int) -> tuple[jax.Array, ...]:
    """Private copies, padded; the copy may be shared by the device array, since nobody else can write to it."""
    return tuple([jnp.asarray(_padded(x, capacity)) for x in leaves])


def _padded(x: np.ndarray, capacity: int) -> np.ndarray:
    result = np.empty((capacity, *x.shape[1:]), _own_dtype(x))
    result[: len(x)] = x
    result[len(x) :] = x[-1]
    return result


def _own_dtype(x: np.ndarray) -> np.dtype:
    """What JAX makes of a dtype, in the machine's byte order."""
    return np.dtype(jax.dtypes.canonicalize_dtype(x.dtype.newbyteorder("=")))


@dataclass(frozen=True)
class RowType:
    """What all rows have in common: the tree, and the trailing shape and dtype of each leaf."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    def __str__(self) -> str:
        types = [f"{dtype}[n{''.join(f',{k}' for k in s)}]" for s, dtype in zip(self.shapes, self.dtypes, strict=True)]
        return str(jax.tree.unflatten(self.treedef, types))

    def avals(self, num_rows: int) -> list[jax.ShapeDtypeStruct]:
        """Types of the leaves for a number of rows."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [jax.ShapeDtypeStruct((num_rows, *shape), dtype) for shape, dtype in pairs]


class Rows:
    """Rows of data, cut into chunks, for an incremental function: only chunks that are new are evaluated.

    `incremental(f)(params, rows)` equals `f(params, rows.tree())` up to the rounding of sums, for a function that maps
    over rows and reduces over them. Immutable; `append` and `replace` return new `Rows` that share chunks.

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

    __slots__ = ("_chunks", "_num_rows", "_starts", "_type", "chunk_rows")

    def __init__(self, tree: Any, *, chunk_rows: int = CHUNK_ROWS) -> None:
        _check_chunk_rows(chunk_rows)
        leaves, row_type = _checked(tree)
        self._set(row_type, chunk_rows, tuple(_cut(leaves, chunk_rows)))

    def _set(self, row_type: RowType, chunk_rows: int, chunks: tuple[Chunk, ...]) -> None:
        self._type = row_type
        self.chunk_rows = chunk_rows
        self._chunks = chunks
        self._starts = np.cumsum([0, *(chunk.num_rows for chunk in chunks)])
        self._num_rows = int(self._starts[-1])

    @classmethod
    def from_source(cls, source: Source, *, chunk_rows: int = CHUNK_ROWS) -> Rows:
        """Rows that are read when they are evaluated and dropped afterwards, for data larger than memory.

        Args:
            source: has `num_rows` and `read(start, stop)`, a pytree of arrays; the same rows at each time.
            chunk_rows: rows that are read at once, a power of two; about two chunks are in memory at a time.

        Raises:
            RowsError: there are no rows.

        Cost: reads one row now, and all rows whenever something that they are combined with changes.
        """
        _check_chunk_rows(chunk_rows)
        if not source.num_rows:
            raise no_rows()
        _, row_type = _checked(source.read(0, 1))
        rows = cls.__new__(cls)
        rows._set(row_type, chunk_rows, tuple(_streamed(source, chunk_rows)))
        return rows

    @classmethod
    def from_memmap(cls, tree: Any, *, chunk_rows: int = CHUNK_ROWS) -> Rows:
        """Rows streamed from a pytree of `np.memmap`s, or of other arrays on disk that are read by slicing.

        Args:
            tree: pytree of array-likes, shapes (n, ...); the files must not change.
            chunk_rows: rows that are read at once, a power of two.

        Raises:
            RowsError: leaves have different numbers of rows, or none.
        """
        lengths = [(f"rows{jax.tree_util.keystr(p)}", len(x)) for p, x in jax.tree.leaves_with_path(tree)]
        if len({length for _, length in lengths}) > 1:
            raise other_lengths(lengths)
        return cls.from_source(ArraySource(tree), chunk_rows=chunk_rows)

    @classmethod
    def from_parquet(cls, path: Any, *, columns: Sequence[str] | None = None, chunk_rows: int = CHUNK_ROWS) -> Rows:
        """Rows streamed from a Parquet file: a dict with one array per column.

        Args:
            path: file with columns of numbers, without missing entries; it must not change.
            columns: names of the columns to read; None: all.
            chunk_rows: rows that are evaluated at once, a power of two; row groups of the file are read one by one.

        Raises:
            ImportError: pyarrow is not installed.
            RowsError: the file has no rows, or, when it is read, a column has missing entries.
        """
        return cls.from_source(ParquetSource(path, columns), chunk_rows=chunk_rows)

    # --- new rows ------------------------------------------------------------------------------------------------

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
        return self._with(_joined([*self._chunks, *_cut(leaves, self.chunk_rows)], self.chunk_rows))

    def replace(self, start: int, tree: Any) -> Rows:
        """These rows with new ones in the place of rows `start` and following; chunks that they touch become new.

        Args:
            start: number of the first row to replace.
            tree: arrays of the same structure, dtypes and trailing shapes.

        Raises:
            RowsError: they are of another type, or reach beyond the last row.
        """
        leaves = self._leaves_of(tree, "replace")
        stop = start + len(leaves[0])
        if not 0 <= start <= stop <= len(self):
            raise outside_rows(start, stop, len(self))
        chunks = list(self._chunks)
        for number, chunk in enumerate(chunks):
            first, last = int(self._starts[number]), int(self._starts[number + 1])
            if first < stop and start < last:
                new = [_overwritten(x, y, start - first) for x, y in zip(chunk.rows(), leaves, strict=True)]
                chunks[number] = _chunk(new, chunk.capacity)
        return self._with(chunks)

    def _with(self, chunks: Iterable[Chunk]) -> Rows:
        rows = Rows.__new__(Rows)
        rows._set(self._type, self.chunk_rows, tuple(chunks))
        return rows

    def _leaves_of(self, tree: Any, method: str) -> list[np.ndarray]:
        leaves, row_type = _checked(tree, may_be_empty=True)
        if row_type != self._type:
            raise other_rows(method, str(row_type), str(self._type))
        return leaves

    # --- reading -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._num_rows

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks in order."""
        return self._chunks

    @property
    def row_type(self) -> RowType:
        """Tree, trailing shapes and dtypes."""
        return self._type

    def tree(self) -> Any:
        """All rows as a pytree of `jax.Array`s, shapes (n, ...). Cost: a copy; reads all rows that are streamed."""
        parts = [chunk.rows() for chunk in self._chunks]
        columns = [jnp.asarray(np.concatenate(column)) for column in zip(*parts, strict=True)]
        return jax.tree.unflatten(self._type.treedef, columns)

    def __reduce__(self) -> Any:
        """Rows that are copied or pickled are other chunks."""
        return _rebuild, (jax.tree.map(np.asarray, self.tree()), self.chunk_rows)

    def __repr__(self) -> str:
        """Number of rows, their type and number of chunks."""
        return f"Rows({len(self)} rows of {self._type} in {len(self._chunks)} chunks)"


def _rebuild(tree: Any, chunk_rows: int) -> Rows:
    return Rows(tree, chunk_rows=chunk_rows)


def _check_chunk_rows(chunk_rows: Any) -> None:
    if isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1:
        raise wrong_chunk_rows(chunk_rows)
    if chunk_rows & (chunk_rows - 1):
        raise wrong_chunk_rows(chunk_rows)


def _checked(tree: Any, *, may_be_empty: bool = False) -> tuple[list[np.ndarray], RowType]:
    """The leaves on the host, and their type."""
    with_paths, treedef = jax.tree.flatten_with_path(tree)
    named = [(f"rows{jax.tree_util.keystr(path)}", leaf) for path, leaf in with_paths]
    for path, leaf in named:
        if not _is_array(leaf):
            raise not_an_array(path, type(leaf).__name__)
        check_dynamic(leaf, path)
    lengths = [(path, leaf.shape[0]) for path, leaf in named]
    if len({length for _, length in lengths}) > 1:
        raise other_lengths(lengths)
    if not lengths or not (lengths[0][1] or may_be_empty):
        raise no_rows()
    leaves = [np.asarray(leaf) for _, leaf in named]
    return leaves, RowType(treedef, tuple(x.shape[1:] for x in leaves), tuple(map(_own_dtype, leaves)))


def _is_array(leaf: Any) -> bool:
    is_array = isinstance(leaf, (np.ndarray, jax.Array)) and not isinstance(leaf, _jax.Tracer)
    return is_array and leaf.ndim > 0 and isinstance(leaf.dtype, np.dtype)


# --- cutting and joining ------------------------------------------------------------------------------------------


def _capacity(num_rows: int, chunk_rows: int) -> int:
    """The next power of two, within bounds."""
    return min(max(1 << (num_rows - 1).bit_length(), MIN_CAPACITY), chunk_rows)


def _cut(leaves: Sequence[np.ndarray], chunk_rows: int) -> Iterator[Chunk]:
    for start in range(0, len(leaves[0]), chunk_rows):
        part = [x[start : start + chunk_rows] for x in leaves]
        yield _chunk(part, _capacity(len(part[0]), chunk_rows))


def _chunk(leaves: Sequence[np.ndarray], capacity: int) -> Chunk:
    return Chunk(len(leaves[0]), capacity, lambda: leaves, is_streamed=False)


def _streamed(source: Source, chunk_rows: int) -> Iterator[Chunk]:
    for start in range(0, source.num_rows, chunk_rows):
        stop = min(start + chunk_rows, source.num_rows)

        def read(start: int = start, stop: int = stop) -> list[np.ndarray]:
            return jax.tree.leaves(source.read(start, stop))

        yield Chunk(stop - start, _capacity(stop - start, chunk_rows), read, is_streamed=True)


def _overwritten(x: np.ndarray, new: np.ndarray, offset: int) -> np.ndarray:
    """A copy of `x` with `new` from `offset` on, as far as it reaches."""
    result = np.array(x)
    first, last = max(offset, 0), min(offset + len(new), len(x))
    result[first:last] = new[first - offset : last - offset]
    return result


def _joined(chunks: list[Chunk], chunk_rows: int) -> list[Chunk]:
    """Chunks with runs of small neighbours joined, where there are too many small ones."""
    if sum(chunk.num_rows < chunk_rows for chunk in chunks) <= MAX_CHUNKS:
        return chunks
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        total = sum(c.num_rows for c in runs[-1]) + chunk.num_rows if runs else chunk_rows + 1
        if total <= chunk_rows and not chunk.is_streamed and not runs[-1][0].is_streamed:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [run[0] if len(run) == 1 else _join(run, chunk_rows) for run in runs]


def _join(run: Sequence[Chunk], chunk_rows: int) -> Chunk:
    leaves = [np.concatenate(column) for column in zip(*[chunk.rows() for chunk in run], strict=True)]
    joined = _chunk(leaves, _capacity(len(leaves[0]), chunk_rows))
    joined.lineage = Lineage(joined.lineage.number, tuple(chunk.lineage for chunk in run))
    return joined


def has_rows(leaves: Iterable[Any]) -> bool:
    """Whether some leaf is `Rows`."""
    return any(type(leaf) is Rows for leaf in leaves)


def as_plain(tree: Any) -> Any:
    """Arguments with all rows as arrays."""
    return jax.tree.map(lambda leaf: leaf.tree() if type(leaf) is Rows else leaf, tree)
