"""Derivatives of trees as matrices: arrays laid end to end, and blocks of a matrix as arrays.

In: arrays, or a matrix. Out: a vector, or a block per pair of arrays, dense or sparse. It must not
know functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from incrax.derivatives.sparsity.compressed import coordinates
from incrax.derivatives.sparsity.search import Matrix

Shapes = Sequence[tuple[int, ...]]


class Ends(NamedTuple):
    """Where arrays lie in a vector: their shapes, and the ends of each."""

    shapes: tuple[tuple[int, ...], ...]
    bounds: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.bounds[-1]

    @property
    def sizes(self) -> list[int]:
        """Elements of each array."""
        return [math.prod(shape) for shape in self.shapes]

    def parts(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Of each array: where it begins, where it ends, its shape."""
        return list(zip(self.bounds[:-1], self.bounds[1:], self.shapes, strict=True))

    def split(self, vector: Any) -> list[Any]:
        """The arrays."""
        return [vector[first:last].reshape(shape) for first, last, shape in self.parts()]


def ends(shapes: Shapes) -> Ends:
    """Arrays of these shapes, end to end."""
    sizes = [math.prod(shape) for shape in shapes]
    return Ends(tuple(map(tuple, shapes)), (0, *np.cumsum(sizes).tolist()) if sizes else (0,))


def element_names(paths: Sequence[str], shapes: Shapes) -> tuple[str, ...]:
    """A name for each element of arrays: `params['mu']`, `x[0, 1]`."""
    indices = [
        (path, index)
        for path, shape in zip(paths, shapes, strict=True)
        for index in np.ndindex(shape)
    ]
    return tuple(f"{path}{list(index)}" if index else path for path, index in indices)


class FreeElements(NamedTuple):
    """The elements of a vector of n that may move; the others keep their values.

    A mask in front of a program of all n elements: another mask needs no other program.
    """

    numbers: np.ndarray
    """Of the k elements that may move, in order."""
    values: np.ndarray
    """Of all elements, shape (n,)."""

    def whole(self, x: Any) -> Any:
        """All n elements, from those k that may move; traced where `x` is."""
        if isinstance(x, jax.Array):
            return jnp.asarray(self.values, x.dtype).at[self.numbers].set(x)
        found = self.values.astype(np.result_type(self.values, x))
        found[self.numbers] = x
        return found


def joined(arrays: Sequence[Any]) -> jax.Array:
    """Arrays of one dtype as a vector."""
    return jnp.concatenate([jnp.ravel(x) for x in arrays])


def dense_blocks(matrix: jax.Array, rows: Ends, columns: Ends) -> list[list[jax.Array]]:
    """For each pair of arrays its block, of shape (*row.shape, *column.shape)."""
    return [
        [matrix[a:b, c:d].reshape(*row, *column) for c, d, column in columns.parts()]
        for a, b, row in rows.parts()
    ]


def sparse_blocks(
    values: jax.Array, pattern: Matrix, rows: Ends, columns: Ends
) -> list[list[BCOO]]:
    """The same from the values at a pattern's nonzeros, as sparse arrays with sorted, unique
    indices.
    """
    i, j = coordinates(pattern)
    return [
        [_sparse_block(values, i, j, row, column) for column in columns.parts()]
        for row in rows.parts()
    ]


def _sparse_block(values: jax.Array, i: np.ndarray, j: np.ndarray, row: Any, column: Any) -> BCOO:
    """The nonzeros within bounds, their indices those of the two arrays."""
    (a, b, row_shape), (c, d, column_shape) = row, column
    chosen = np.flatnonzero((a <= i) & (i < b) & (c <= j) & (j < d))
    places = [*_unravelled(i[chosen] - a, row_shape), *_unravelled(j[chosen] - c, column_shape)]
    indices = np.stack(places, axis=1) if places else np.zeros((chosen.size, 0))
    return BCOO(
        (
            values if chosen.size == i.size else values[chosen],
            jnp.asarray(indices.astype(np.int32)),
        ),
        shape=(*row_shape, *column_shape),
        indices_sorted=True,
        unique_indices=True,
    )


def _unravelled(numbers: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    return list(np.unravel_index(numbers, shape)) if shape else []
