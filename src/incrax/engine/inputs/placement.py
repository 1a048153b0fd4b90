"""Where inputs are, and where a program must put values that depend on no sharded input.

XLA decides how the values of a program are sharded, from how its inputs are. A program that reads
none of the inputs that the user put somewhere would run on the default device alone, and its
results would travel at every call after it.

In: shapes and shardings of inputs. Out: shardings for the results of such programs. It must not
know plans.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from incrax import _jax

MIN_SPREAD_BYTES = 1 << 16
"""Values below this size are kept whole on each device."""


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
    """A constant that is bound to devices."""
    is_placed = isinstance(x, jax.Array) and getattr(x, "committed", False)
    return Placed(x.shape, x.sharding) if is_placed else None


class Placement(NamedTuple):
    """Where the values of a program belong.

    Fields: the sharding of a value that each device holds whole; the mesh of the devices, if there
    are several; which of its axes a dimension is sharded over, by position and size.
    """

    whole: Sharding
    mesh: Mesh | None
    axes: dict[tuple[int, int], Any]

    def sharding(self, aval: Any) -> Sharding:
        """Where to put a value: as its type says, or a large one as inputs of its size are, or
        whole on each device.
        """
        if self.mesh is not None and self.is_typed(aval):
            return NamedSharding(self.mesh, aval.sharding.spec)
        if self.mesh is not None and self.spreads(aval):
            return NamedSharding(self.mesh, self._matching_spec(aval.shape))
        return self.whole

    def is_typed(self, aval: Any) -> bool:
        """Whether a type says how its values are divided over the devices."""
        sharding = _jax.explicit_sharding(aval)
        return (
            sharding is not None
            and self.mesh is not None
            and sharding.mesh == self.mesh.abstract_mesh
        )

    def spreads(self, aval: Any) -> bool:
        """Whether a value is too large to be kept whole on each device, where types leave it open
        how to divide it.
        """
        is_large = _jax.aval_bytes(aval) >= MIN_SPREAD_BYTES
        return is_large and self.mesh is not None and not self.mesh.explicit_axes

    def _matching_spec(self, shape: Sequence[int]) -> PartitionSpec:
        """Each dimension over the axes that an input's is sharded over in its place; no axis
        twice.
        """
        entries: list[Any] = []
        used: set[str] = set()
        for place in enumerate(shape):
            entry = self.axes.get(place)
            names = {entry} if isinstance(entry, str) else set(entry or ())
            entries.append(None if names & used else entry)
            used |= names
        return PartitionSpec(*entries)


def find_placement(inputs: Iterable[Placed]) -> Placement | None:
    """The placement that inputs have in common; None where none is bound to devices that are known
    by a mesh.
    """
    inputs = list(inputs)
    if not inputs:
        return None
    widest = max(inputs, key=lambda placed: placed.sharding.num_devices).sharding
    if isinstance(widest, NamedSharding):
        mesh: Any = widest.mesh
        return Placement(NamedSharding(mesh, PartitionSpec()), mesh, _axes(inputs, mesh))
    device = next(iter(widest.device_set))
    return Placement(SingleDeviceSharding(device), None, {}) if widest.num_devices == 1 else None


def _axes(inputs: Iterable[Placed], mesh: Mesh) -> dict[tuple[int, int], Any]:
    """How the inputs on a mesh are sharded, by position and size of the dimension."""
    found: dict[tuple[int, int], Any] = {}
    for shape, sharding in inputs:
        if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
            pairs = zip(enumerate(shape), sharding.spec, strict=False)
            found.update({place: axes for place, axes in pairs if axes is not None})
    return found
