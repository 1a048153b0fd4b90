"""Where streamed rows are read from: arrays on disk, or what a user writes.

In: paths and array-likes. Out: a `Source`, which reads a range of rows into host arrays. It must
not know chunks.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np


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
