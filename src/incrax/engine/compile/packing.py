"""Many small leaves from the host travel as one vector to a cheap program: as arguments, each costs
a microsecond.

In: the leaves that a program reads, as they are handed to it. Out: vectors on the outside, the
leaves again on the inside. It must not know plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._program import Values
from incrax.engine.inputs.leaves import SMALL_BYTES

MIN_PACKED = 12
"""Leaves of one dtype from which on a vector is faster than an argument for each, where the
processor's caches are cold; from 5 on where they are warm.
"""

TRANSFER_S = 1e-6
"""Seconds to hand over one small leaf as an argument of its own."""

_SCALARS = frozenset(
    {float, complex, np.float64, np.float32, np.float16, np.complex128, np.complex64, np.ndarray}
)
_ARRAYS = frozenset({np.ndarray})


class Pack(NamedTuple):
    """Leaves of one dtype: their positions among those that the program reads, and their types."""

    positions: tuple[int, ...]
    avals: tuple[Any, ...]
    dtype: np.dtype
    are_scalars: bool

    def join(self, feeds: Values) -> np.ndarray | None:
        """One vector of all values; None where one of them is on a device."""
        mine = [feeds[i] for i in self.positions]
        if not {type(x) for x in mine} <= (_SCALARS if self.are_scalars else _ARRAYS):
            return None
        if self.are_scalars:
            return np.array(mine, self.dtype)
        return np.concatenate([x.reshape(-1) for x in mine], dtype=self.dtype, casting="unsafe")

    def split(self, vector: jax.Array) -> list[jax.Array]:
        """The leaves of a vector, with their shapes and weak types."""
        parts = []
        start = 0
        for aval in self.avals:
            end = start + aval.size
            part = jax.lax.reshape(jax.lax.slice(vector, (start,), (end,)), aval.shape)
            parts.append(_jax.as_weak(part) if aval.weak_type else part)
            start = end
        return parts


class Packing:
    """How the leaves that a program reads become its arguments: vectors first, then the leaves left
    over.
    """

    def __init__(self, leaves: Sequence[int], avals: Values, on_host: frozenset[int]) -> None:
        """`leaves` are numbers among all leaves, `avals` their types, `on_host` what `packable`
        said of all leaves.
        """
        self.packs = tuple(_packs(leaves, avals, on_host))
        packed = {position for pack in self.packs for position in pack.positions}
        self.left_over = tuple(k for k in range(len(leaves)) if k not in packed)
        self.num_leaves = len(leaves)

    @property
    def num_arguments(self) -> int:
        """Arguments that take the place of the leaves."""
        return len(self.packs) + len(self.left_over)

    def join(self, feeds: Values) -> list[Any] | None:
        """The arguments for these leaves; None where a leaf came from a device."""
        vectors: list[Any] = []
        for pack in self.packs:
            vector = pack.join(feeds)
            if vector is None:
                return None
            vectors.append(vector)
        return vectors + [feeds[i] for i in self.left_over]

    def split(self, arguments: Values) -> list[Any]:
        """The leaves of these arguments, inside a program."""
        leaves: list[Any] = [None] * self.num_leaves
        for pack, vector in zip(self.packs, arguments, strict=False):
            for position, leaf in zip(pack.positions, pack.split(vector), strict=True):
                leaves[position] = leaf
        for position, leaf in zip(self.left_over, arguments[len(self.packs) :], strict=True):
            leaves[position] = leaf
        return leaves


def small_on_host(leaves: Iterable[Any]) -> frozenset[int]:
    """Numbers of the leaves that are small real or complex values on the host. Integers are none:
    what does not fit their type must raise as it does without incrax.
    """
    return frozenset(i for i, x in enumerate(leaves) if _is_packable(x))


def packable(small: frozenset[int], seconds: Iterable[float]) -> frozenset[int]:
    """Those of the small leaves on the host that are packed: none where the program takes longer.

    `seconds` are those of the program's equations. In a long program a leaf of its own is better:
    what takes it out of the vector is one more step for XLA's scheduler.
    """
    is_longer = any(program_s > TRANSFER_S * len(small) for program_s in accumulate(seconds))
    return frozenset() if is_longer else small


def _is_packable(x: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind in "fc" and x.nbytes <= SMALL_BYTES
    return isinstance(x, (float, complex))


def _packs(leaves: Sequence[int], avals: Values, on_host: frozenset[int]) -> Iterable[Pack]:
    groups: dict[tuple[np.dtype, bool], list[int]] = {}
    for position, (number, aval) in enumerate(zip(leaves, avals, strict=True)):
        if number in on_host:
            groups.setdefault((aval.dtype, not aval.shape), []).append(position)
    for (dtype, are_scalars), positions in groups.items():
        if len(positions) >= MIN_PACKED:
            yield Pack(tuple(positions), tuple(avals[k] for k in positions), dtype, are_scalars)
