"""Numbers of rows, and `RowSparse`: an array of which all but a few rows are zero.

In: indices, rows, a shape. Out: the same as a pytree with arithmetic. It must not know about
programs.

Canonical numbers are in [0, num_rows]; num_rows stands for "no row".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._messages import as_int, wrong_option
from incrax.engine.plan.row_sets import ascending, ids_read, masked
from incrax.errors import RowShapeError


def canonical(indices: Any, num_rows: int) -> Any:
    """The rows that indices name: negative ones count from the end, others name no row."""
    return ids_read(jnp, indices, num_rows, clips=False, wraps=True)


def summed(values: Any, slots: Any) -> Any:
    """Sums of the values of each slot, in the order of the values, as a dense scatter adds them."""
    return values if values.shape[0] <= 1 else jnp.zeros_like(values).at[slots].add(values)


# --- an array of few rows -------------------------------------------------------------------------


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class RowSparse:
    """An array of zeros to which a few rows are added.

    Promise: `r.todense()` is `jnp.zeros(shape).at[indices].add(values, mode="drop")`, and every
    operation here equals the same operation on `todense()` up to rounding. A zero that no stored
    row adds to has the sign that it has without the row: 0.0 in the array and in its negative.

    Args:
        indices: shape `(k,)`, integer: the rows; may repeat (values are added), be negative
            (counted from the end) or out of range (dropped).
        values: shape `(k, *shape[1:])`: what is added to each of them.
        shape: of the whole array, at least one axis; static.

    Raises:
        RowShapeError: the parts do not fit together.
        TypeError: indices or values are text or the like, or the shape is no tuple of integers.

    A pytree: `indices` and `values` are its leaves, so that it passes through `jit`, `vmap`, `scan`
    and `cond`. `jax.vmap` makes it a batch of arrays of the same `shape`; apply methods of a batch
    under `jax.vmap`.

    Cost: everything but `todense` and `add_to` depends on `k` only. `add_to` of a donated table is
    in place.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> g = incrax.RowSparse(jnp.array([2, 0, 2]), jnp.ones((3, 2)), (4, 2))
        >>> (0.5 * g).todense().tolist()
        [[0.5, 0.5], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
        >>> g.coalesce().indices.tolist()
        [0, 2, 4]
    """

    indices: Any
    values: Any
    shape: tuple[int, ...]

    __array_ufunc__ = None  # `numpy_number * r` is for `r.__rmul__`

    def __post_init__(self) -> None:
        indices = _as_array("RowSparse(indices=...)", self.indices, "integers")
        values = _as_array("RowSparse(values=...)", self.values, "numbers")
        lengths = [as_int(n) for n in self.shape] if isinstance(self.shape, Sequence) else [None]
        shape = tuple([length for length in lengths if length is not None])
        if len(shape) < len(lengths):
            raise wrong_option("RowSparse(shape=...)", self.shape, "a tuple of integers")
        is_integer = jnp.issubdtype(indices.dtype, jnp.integer)
        if indices.size == 0 and not is_integer:
            indices = indices.astype(np.int32)
            is_integer = True
        is_row_each = indices.ndim == 1 and values.shape == (*indices.shape, *shape[1:])
        if not (shape and is_integer and is_row_each):
            raise RowShapeError(
                "`RowSparse(indices, values, shape)` got indices "
                f"{indices.dtype}{list(indices.shape)}, values {values.dtype}{list(values.shape)} "
                f"and the shape {shape}; it needs k integer indices, values of the shape "
                "(k, *shape[1:]), and at least one axis. This is usually one index without an "
                "axis, or a shape without its first axis. Nothing was made. Give one index and one "
                "whole row for each stored row."
            )
        _fill(self, indices, values, shape)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """For JAX: the leaves with their names, and the shape."""
        key = jax.tree_util.GetAttrKey
        return ((key("indices"), self.indices), (key("values"), self.values)), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], leaves: Any) -> RowSparse:
        """For JAX: leaves may be anything."""
        indices, values = leaves
        return _fill(object.__new__(cls), indices, values, shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """The number of axes of the array."""
        return len(self.shape)

    @property
    def num_rows(self) -> int:
        """How many rows are stored, repeated and dropped ones included; static."""
        return self.indices.shape[0]

    # --- conversions ------------------------------------------------------------------------------

    def coalesce(self) -> RowSparse:
        """The same array with each row stored once: ascending indices, spare slots at the end.

        A spare slot has the index `shape[0]`, which is dropped, and zeros as values. The number of
        slots stays.
        """
        of, slots = ascending(canonical(self.indices, self.shape[0]), self.shape[0])
        values = masked(summed(self.values, slots), 0, of.is_row)
        return RowSparse(of.numbers, values, self.shape)

    def todense(self) -> jax.Array:
        """The array itself."""
        return self.add_to(jnp.zeros(self.shape, self.dtype))

    def add_to(self, table: Any) -> jax.Array:
        """`table + r.todense()`, by a scatter; `table` has the shape of the array."""
        table = jnp.asarray(table)
        if table.shape != self.shape:
            raise _other_shape("add_to", table.shape, self.shape)
        dtype = jnp.promote_types(table.dtype, self.dtype)
        numbers = canonical(self.indices, self.shape[0])
        return table.astype(dtype).at[numbers].add(self.values, mode="drop")

    # --- arithmetic -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> RowSparse:
        if not isinstance(other, RowSparse):
            return NotImplemented
        if other.shape != self.shape:
            raise _other_shape("+", other.shape, self.shape)
        numbers = [canonical(rows.indices, rows.shape[0]) for rows in (self, other)]
        values = jnp.concatenate([self.values, other.values])
        return RowSparse(jnp.concatenate(numbers), values, self.shape)

    def __neg__(self) -> RowSparse:
        return RowSparse(self.indices, -self.values, self.shape)

    def __mul__(self, factor: Any) -> RowSparse:
        if isinstance(factor, RowSparse) or jnp.ndim(factor) != 0:
            # Other rows than the stored ones would matter.
            raise TypeError(
                f"`*` of a `RowSparse` got {type(factor).__name__}; rows are multiplied by scalars, "
                "and other operands would give other rows than the stored ones a value. Use "
                "`todense()`, or apply the operation to `values` after `coalesce()`."
            )
        return RowSparse(self.indices, self.values * factor, self.shape)

    __rmul__ = __mul__


def _as_array(option: str, value: Any, elements: str) -> jax.Array:
    """A part as an array of JAX."""
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise wrong_option(option, value, f"an array of {elements}") from error


def _fill(rows: RowSparse, indices: Any, values: Any, shape: tuple[int, ...]) -> RowSparse:
    for name, value in (("indices", indices), ("values", values), ("shape", shape)):
        object.__setattr__(rows, name, value)
    return rows


def _other_shape(operation: str, seen: tuple[int, ...], expected: tuple[int, ...]) -> RowShapeError:
    """Another array of another shape."""
    return RowShapeError(
        f"`{operation}` of a `RowSparse` of the shape {expected} got an array of the shape {seen}; "
        "nothing is "
        "broadcast, because rows would then stand for others. Use arrays of the same shape."
    )
