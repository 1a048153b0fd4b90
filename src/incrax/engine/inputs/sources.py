"""Where streamed rows are read from: arrays on disk, Parquet files, or what a user writes.

In: paths and array-likes. Out: a `Source`, which reads a range of rows into host arrays. It must
not know chunks.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from incrax.engine.inputs.messages import missing_entries, no_pyarrow


class Source(Protocol):
    """Rows that can be read again at any time, and are always the same."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        ...

    def read(self, start: int, stop: int) -> Any:
        """A pytree of arrays with the rows of this range along their first axis."""
        ...


class ArraySource:
    """Arrays that read what is sliced: `np.memmap`, HDF5 and Zarr data sets, or a pytree of
    them.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.num_rows = len(jax.tree.leaves(tree)[0]) if jax.tree.leaves(tree) else 0

    def read(self, start: int, stop: int) -> Any:
        """Slices of the arrays."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[start:stop]), self.tree)


class ParquetSource:
    """Columns of a Parquet file as a dict of arrays; one row group is held at a time."""

    def __init__(self, path: Any, columns: Sequence[str] | None) -> None:
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise no_pyarrow() from None
        self.file = parquet.ParquetFile(path)
        schema = self.file.schema_arrow
        self.columns = list(schema.names if columns is None else columns)
        metadata = self.file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.num_rows = int(self.starts[-1])
        self._held: tuple[int, dict[str, np.ndarray]] | None = None

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The rows of all row groups that the range touches, cut to it."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        parts = [self._cut(number, start, stop) for number in range(first, last)]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.columns}

    def _cut(self, number: int, start: int, stop: int) -> dict[str, np.ndarray]:
        origin = int(self.starts[number])
        return {
            name: x[max(start - origin, 0) : stop - origin]
            for name, x in self._group(number).items()
        }

    def _group(self, number: int) -> dict[str, np.ndarray]:
        if self._held is None or self._held[0] != number:
            self._held = None
            table = self.file.read_row_group(number, columns=self.columns)
            self._held = number, {name: _column(table.column(name), name) for name in self.columns}
        return self._held[1]


def _column(column: Any, name: str) -> np.ndarray:
    if column.null_count:
        raise missing_entries(name, column.null_count)
    return column.to_numpy()
