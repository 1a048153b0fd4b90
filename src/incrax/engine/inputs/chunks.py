"""Chunks of rows: cut, padded to few capacities, joined.

In: arrays on the host, or a source that is read chunk by chunk. Out: `Chunk`s, which never change.
It must not know what is computed from them.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from incrax import _jax
from incrax._messages import as_int
from incrax.engine.inputs.leaves import check_dynamic
from incrax.engine.inputs.messages import (
    no_rows,
    not_an_array,
    other_lengths,
    other_read,
    wrong_chunk_rows,
)
from incrax.engine.inputs.row_updates import at

CHUNK_ROWS = 131072
"""Rows of a full chunk, unless the user says otherwise."""

MIN_CAPACITY = 1024
"""Rows of the smallest chunk: its program takes little more than one call of a program takes
anyway.
"""

MAX_CHUNKS = 64
"""Chunks that are not full, above which small neighbours are joined."""

LEAST_CAPACITY = 2
"""JAX broadcasts one row in other equations than many."""

_numbers = itertools.count()


class Source(Protocol):
    """Rows that can be read again at any time, and are always the same."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        ...

    def read(self, start: int, stop: int) -> Any:
        """A pytree of arrays with the rows of this range along their first axis."""
        ...


class Chunk:
    """Some consecutive rows, padded to a capacity by repeating the last one. Never changes.

    Fields: its number, unique in the process, and those of the chunks that it was joined from; its
    place, the number of the first of the chunks of which each is the one before with rows replaced;
    rows without padding; capacity; the number of rows as programs take it; the arrays (None where
    they are read from a source at each use).
    """

    def __init__(
        self,
        num_rows: int,
        capacity: int,
        read: Callable[[], Sequence[np.ndarray]],
        *,
        is_streamed: bool,
    ) -> None:
        self.number = self.place = next(_numbers)
        self.parents: tuple[int, ...] = ()
        self.num_rows = num_rows
        self.capacity = capacity
        self.count = np.int32(num_rows)
        self._read: Any = read if is_streamed else None
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
        return _to_device(self._read(), self.capacity) if self._arrays is None else self._arrays

    def rows(self) -> list[np.ndarray]:
        """The leaves on the host, without padding; they must not be written to."""
        arrays = self._read() if self._arrays is None else self._arrays
        return [np.asarray(x)[: self.num_rows] for x in arrays]

    def replaced(self, leaves: Sequence[np.ndarray], offset: int) -> Chunk:
        """The chunk with new rows from `offset` on, as far as it reaches, in memory; its arrays know
        which rows these are (`incrax.at`).
        """
        arrays = self.arrays()
        first = max(offset, 0)
        stop = min(offset + len(leaves[0]), self.num_rows)
        last = stop if stop < self.num_rows else self.capacity
        chunk = copy.copy(self)
        chunk.number = next(_numbers)
        chunk.parents = ()
        new = [y[first - offset : stop - offset] for y in leaves]
        pairs = zip(arrays, new, strict=True)
        chunk._arrays = tuple(
            [at(x)[first:last].became(_overwritten(x, y, first, last)) for x, y in pairs]
        )
        return chunk


def _to_device(leaves: Iterable[np.ndarray], capacity: int) -> tuple[jax.Array, ...]:
    """Private copies, padded; the copy may be shared by the device array, since nobody else can
    write to it.
    """
    return tuple([jax.device_put(_padded(x, capacity)) for x in leaves])


def _overwritten(x: jax.Array, new: np.ndarray, first: int, last: int) -> jax.Array:
    """A copy with new rows from `first` on, the last one repeated up to `last`, as in padding."""
    result = np.array(x)
    stop = first + len(new)
    result[first:stop] = new
    result[stop:last] = result[stop - 1]
    return jax.device_put(result)


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
        types = [
            f"{dtype}[n{''.join(f',{k}' for k in s)}]"
            for s, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        return str(jax.tree.unflatten(self.treedef, types))

    @property
    def paths(self) -> list[str]:
        """Key paths of the leaves below the rows."""
        tree = jax.tree.unflatten(self.treedef, list(range(len(self.shapes))))
        return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]

    def avals(self, num_rows: int) -> list[jax.ShapeDtypeStruct]:
        """Types of the leaves for a number of rows."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [jax.ShapeDtypeStruct((num_rows, *shape), dtype) for shape, dtype in pairs]


# --- checks ---------------------------------------------------------------------------------------


def checked_chunk_rows(chunk_rows: Any) -> int:
    """The number as `int`; refuse what is no power of two."""
    number = as_int(chunk_rows)
    if number is None or number < 1 or number & (number - 1):
        raise wrong_chunk_rows(chunk_rows)
    return number


def common_length(name: str, lengths: Mapping[str, int]) -> int:
    """The number of rows that all leaves of an argument of `name` have; 0 without leaves."""
    if len(set(lengths.values())) > 1:
        raise other_lengths(name, lengths)
    return next(iter(lengths.values()), 0)


def checked(tree: Any, *, may_be_empty: bool = False) -> tuple[list[np.ndarray], RowType]:
    """The leaves on the host, and their type."""
    with_paths, treedef = jax.tree.flatten_with_path(tree)
    lengths: dict[str, int] = {}
    for path, leaf in with_paths:
        name = f"rows{jax.tree_util.keystr(path)}"
        if not _is_array(leaf):
            raise not_an_array(name, type(leaf).__name__)
        check_dynamic(leaf, name)
        lengths[name] = leaf.shape[0]
    num_rows = common_length("Rows", lengths)
    if not lengths or not (num_rows or may_be_empty):
        raise no_rows()
    leaves = [np.asarray(leaf) for _, leaf in with_paths]
    shapes = tuple(x.shape[1:] for x in leaves)
    return leaves, RowType(treedef, shapes, tuple(map(_own_dtype, leaves)))


def _is_array(leaf: Any) -> bool:
    is_array = isinstance(leaf, (np.ndarray, jax.Array)) and not isinstance(leaf, _jax.Tracer)
    return is_array and leaf.ndim > 0 and isinstance(leaf.dtype, np.dtype)


# --- cutting and joining --------------------------------------------------------------------------


def _capacity(num_rows: int, chunk_rows: int) -> int:
    """The next power of two, within bounds."""
    return max(min(max(1 << (num_rows - 1).bit_length(), MIN_CAPACITY), chunk_rows), LEAST_CAPACITY)


def cut(
    num_rows: int,
    chunk_rows: int,
    read: Callable[[int, int], Sequence[np.ndarray]],
    *,
    is_streamed: bool,
) -> Iterator[Chunk]:
    """Chunks of rows, which `read(start, stop)` gives."""
    for start in range(0, num_rows, chunk_rows):
        stop = min(start + chunk_rows, num_rows)
        own = functools.partial(read, start, stop)
        capacity = _capacity(stop - start, chunk_rows)
        yield Chunk(stop - start, capacity, own, is_streamed=is_streamed)


def in_memory(leaves: Sequence[np.ndarray], chunk_rows: int) -> Iterator[Chunk]:
    """Chunks of rows in memory."""

    def read(start: int, stop: int) -> list[np.ndarray]:
        return [x[start:stop] for x in leaves]

    return cut(len(leaves[0]), chunk_rows, read, is_streamed=False)


def checked_read(
    source: Source, start: int, stop: int, expected: RowType | None
) -> tuple[list[np.ndarray], RowType]:
    """The leaves of these rows and their type, which must be the expected one if there is any."""
    leaves, row_type = checked(source.read(start, stop), may_be_empty=True)
    expected = expected or row_type
    if len(leaves[0]) != stop - start or row_type != expected:
        seen = f"{len(leaves[0])} rows of {row_type}"
        raise other_read(start, stop, seen, str(expected))
    return leaves, row_type


def joined(chunks: list[Chunk], chunk_rows: int) -> list[Chunk]:
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
    columns = zip(*[chunk.rows() for chunk in run], strict=True)
    (joined,) = in_memory([np.concatenate(column) for column in columns], chunk_rows)
    joined.parents = tuple(chunk.number for chunk in run)
    return joined
