"""Arrays of which only the first rows count, their number being a value.

In: arrays and a number. Out: `Padded`. It must not know what made them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from incrax.control_flow.loops.lengths import check_room, cut, is_traced, num_rows
from incrax.control_flow.loops.messages import unknown_length


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padded:
    """Rows with room for more: a pytree of arrays whose first `length` rows count.

    Args:
        values: pytree of arrays of shape (capacity, ...); what stands past `length` is zero if incrax made it.
        length: number of rows that count, an integer or a traced one.
        is_checked: whether `length` is known to be no more than `capacity`, so that programs do not check it again.
        source: the argument of a `bucketed` function that this is, or is a derivative by.
    """

    values: Any
    length: Any
    is_checked: bool = field(default=False, metadata={"static": True}, repr=False)
    source: Any = field(default=None, metadata={"static": True}, repr=False)

    @property
    def capacity(self) -> int:
        """Number of rows that there is room for."""
        return num_rows("Padded", self.values) or 0

    @property
    def mask(self) -> jax.Array:
        """Which rows count, of shape (capacity,)."""
        return jnp.arange(self.capacity) < self.length

    def filled(self, value: Any = 0) -> Any:
        """The values, with `value` in rows that do not count; derivatives there are zero."""
        return jax.tree.map(lambda x: _filled(x, self.mask, value), self.values)

    def __len__(self) -> int:
        """Number of rows that count; in a function of `guarded`, a guard on it.

        Raises:
            LoopTypeError: inside another traced function, where it is unknown.
        """
        try:
            return operator.index(self.length)
        except jax.errors.TracerIntegerConversionError:
            raise unknown_length(self.capacity) from None

    def __bool__(self) -> bool:
        """True, also without rows."""
        return True

    def exact(self) -> Any:
        """The rows that count and no others, in the shape of `values`; not inside a traced function.

        Raises:
            CapacityError: `length` is more than `capacity`.
        """
        if is_traced(self.length):
            raise TypeError(
                "`Padded.exact()` was called inside a traced function (jit, grad, vmap), where the number of rows is "
                "unknown and a shape must be known. Use `values` with `mask`, `filled(...)` or `incrax.scan`."
            )
        check_room("Padded.exact", self.length, self.capacity)
        return jax.tree.map(lambda x: cut(x, int(self.length)), self.values)


def _filled(x: Any, mask: Any, value: Any) -> Any:
    rows = lax.broadcast_in_dim(mask, x.shape, (0,))
    return lax.select(rows, x, jnp.full(x.shape, value, x.dtype))
