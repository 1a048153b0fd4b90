"""Where inputs are, and where a program must put values that depend on no sharded input.

XLA decides how the values of a program are sharded, from how its inputs are. A program that reads
none of the inputs that the user put somewhere would run on the default device alone, and its
results would travel at every call after it: it returns them whole on each device.

In: shapes and shardings of inputs. Out: shardings for the results of such programs. It must not
know plans.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from incrax import _jax


@functools.lru_cache(maxsize=1024)
def plain_sharding(sharding: Sharding) -> Sharding:
    """A sharding without what says nothing: trailing dimensions that are not sharded."""
    if (
        not isinstance(sharding, NamedSharding)
        or not sharding.spec
        or sharding.spec[-1] is not None
    ):
        return sharding
    entries = list(sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    spec = sharding.spec.update(partitions=tuple(entries))
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


class Placed(NamedTuple):
    """The shape of an input that is bound to devices, and its sharding."""

    shape: tuple[int, ...]
    sharding: Sharding

    @property
    def num_parts(self) -> int:
        """Into how many parts it is divided."""
        return math.prod(self.shape) // max(math.prod(self.sharding.shard_shape(self.shape)), 1)


def placed_array(x: Any) -> Placed | None:
    """A constant of which devices hold parts; others are where what reads them is, as under
    `jax.jit`.
    """
    is_placed = isinstance(x, jax.Array) and not _jax.is_held_whole(x)
    return Placed(x.shape, x.sharding) if is_placed else None


def on_all_devices(inputs: Iterable[Placed]) -> Sharding | None:
    """The sharding of a value that each device of some inputs holds whole; None where none of these
    is bound to devices that are known by a mesh.
    """
    shardings = [placed.sharding for placed in inputs]
    widest = max(shardings, key=lambda sharding: sharding.num_devices, default=None)
    if isinstance(widest, NamedSharding):
        return NamedSharding(widest.mesh, PartitionSpec())
    if widest is None or widest.num_devices > 1:
        return None
    return SingleDeviceSharding(next(iter(widest.device_set)))


def placed_as(aval: Any, sharding: Sharding) -> Sharding:
    """The sharding of a value on the same devices; as its type says, where that says it."""
    if _jax.explicit_sharding(aval) is None or not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, aval.sharding.spec)
