"""Trees as vectors: arrays laid end to end, and which of their elements may move.

In: arrays. Out: a vector. It must not know functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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

    def split(self, vectors: Any) -> list[Any]:
        """The arrays, of a vector, or of vectors of shape (*batch, n)."""
        batch = vectors.shape[:-1]
        parts = self.parts()
        return [vectors[..., first:last].reshape((*batch, *shape)) for first, last, shape in parts]


def ends(shapes: Shapes) -> Ends:
    """Arrays of these shapes, end to end."""
    sizes = [math.prod(shape) for shape in shapes]
    return Ends(tuple(map(tuple, shapes)), (0, *np.cumsum(sizes).tolist()) if sizes else (0,))


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
