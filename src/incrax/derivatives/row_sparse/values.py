"""What a variable holds while a program is interpreted: an ordinary array, or one of three structured forms.

`Uniform`: each row is the same. `Summed`: zeros to which rows are added (the transpose of reading rows). `Patched`: a
base of which some rows, each once, are replaced. Whatever is elementwise maps a `Patched` to a `Patched`: base by base,
rows by rows. It must not know about equations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax.derivatives.row_sparse.indices import distinct, found_at, over_rows, summed


@dataclass(frozen=True, eq=False)
class Uniform:
    """An array whose rows are alike: `value` is one number of shape (), or one row of shape `shape[1:]`.

    It is known, if it is a NumPy scalar: a constant of the program.
    """

    value: Any
    shape: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        """Whether it is one constant."""
        return isinstance(self.value, np.ndarray) and self.value.shape == ()

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be zero."""
        return self.is_known and bool(self.value == 0)


@dataclass(frozen=True, eq=False)
class Summed:
    """Zeros of `shape` to which `rows[i]` is added at `numbers[i]`, canonical numbers that may repeat.

    `carry` is the number of the carry of the scan around it that the sum starts from, which nothing else may read.
    """

    numbers: Any
    rows: Any
    shape: tuple[int, ...]
    carry: int | None = None


@dataclass(frozen=True, eq=False)
class Swept:
    """A dense base; `by` is the equation that changed all of its rows, None where it is a value of the program.

    `chain` identifies all equations, one after the other, that did.
    """

    value: Any
    by: str | None = None
    chain: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Patched:
    """The base with row `numbers[i]` replaced by `rows[i]`; numbers are distinct, ascending, spare ones `shape[0]`.

    Where `rows` are those of the base plus something, that is `addend`: added to the base, it spares reading it.
    """

    base: Uniform | Swept
    numbers: Any
    rows: Any
    shape: tuple[int, ...]
    addend: Any = None

    @property
    def is_sparse(self) -> bool:
        """Whether all other rows are known to be zero."""
        return isinstance(self.base, Uniform) and self.base.is_zero


Structured: TypeAlias = Uniform | Summed | Patched
Value: TypeAlias = Any  # Structured | array


def is_structured(value: Value) -> bool:
    """Whether a value is in one of the structured forms."""
    return isinstance(value, (Uniform, Summed, Patched))


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return isinstance(value, (Summed, Patched))


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    return isinstance(value, Summed) or (isinstance(value, Patched | Uniform) and _is_zero_elsewhere(value))


def _is_zero_elsewhere(value: Patched | Uniform) -> bool:
    return value.is_sparse if isinstance(value, Patched) else value.is_zero


def without_addend(value: Value) -> Value:
    """The value to be stored by its rows: where they are read anyway, XLA then needs no copy of the base."""
    return replace(value, addend=None) if isinstance(value, Patched) and value.addend is not None else value


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    return value.numbers.shape[0] if has_rows(value) else 0


def coalesced(value: Value) -> Value:
    """The value with each stored row once."""
    if not isinstance(value, Summed):
        return value
    slots = distinct(value.numbers, value.shape[0])
    zero = Uniform(np.zeros((), value.rows.dtype), value.shape)
    return Patched(zero, slots.numbers, summed(value.rows, slots), value.shape)


def added(values: list[Value]) -> Summed:
    """The sum of values that are zero but for stored rows."""
    stored = [value for value in values if has_rows(value)]
    carries = [value.carry for value in values if isinstance(value, Summed) and value.carry is not None]
    numbers = jnp.concatenate([value.numbers for value in stored])
    rows = jnp.concatenate([value.rows for value in stored])
    return Summed(numbers, rows, values[0].shape, carries[0] if carries else None)


# --- rows ---------------------------------------------------------------------------------------------------------


def spread(value: Any, shape: tuple[int, ...]) -> Any:
    """A number, or a row, as an array of rows of the given shape."""
    return jnp.broadcast_to(jnp.asarray(value), shape)


def rows_at(value: Value, numbers: Any) -> Any:
    """Rows of a value at canonical numbers; what stands for "no row" gives some row."""
    if isinstance(value, Uniform):
        return spread(value.value, (numbers.shape[0], *value.shape[1:]))
    if isinstance(value, Swept):
        return rows_at(value.value, numbers)
    if not isinstance(value, Patched):
        return value.at[numbers].get(mode="clip")
    if value.numbers is numbers:
        return value.rows
    return overlaid(rows_at(value.base, numbers), numbers, value.numbers, value.rows)


def overlaid(below: Any, numbers: Any, distinct_numbers: Any, rows: Any) -> Any:
    """The rows `below` of some numbers, replaced where there is a row of this number among others."""
    if rows.shape[0] == 0 or below.shape[0] == 0:
        return below
    slots, is_found = found_at(distinct_numbers, numbers)
    return jnp.where(over_rows(is_found, below.ndim), rows[slots], below)


def joined(sets: list[Any], num_rows: int) -> Any:
    """Distinct numbers of all rows of several sets."""
    return sets[0] if len(sets) == 1 else distinct(jnp.concatenate(sets), num_rows).numbers


def dense_base(base: Uniform | Swept) -> Any:
    """A base as an array."""
    return spread(base.value, base.shape) if isinstance(base, Uniform) else base.value


def dense(value: Value) -> Any:
    """The array itself."""
    if isinstance(value, Uniform):
        return spread(value.value, value.shape)
    if isinstance(value, Summed):
        return jnp.zeros(value.shape, value.rows.dtype).at[value.numbers].add(value.rows, mode="drop")
    if isinstance(value, Patched):
        base = dense_base(value.base)
        if value.addend is not None:
            return base.at[value.numbers].add(value.addend, mode="drop", indices_are_sorted=True)
        return base.at[value.numbers].set(value.rows, mode="drop", indices_are_sorted=True)
    return value


def is_row_flag(value: Patched) -> Any:
    """Which stored rows are rows, shaped to select them."""
    return over_rows(value.numbers < value.shape[0], value.rows.ndim)


def all_equal(values: list[Any]) -> bool:
    """Whether some values are one object, or constants with the same bits."""
    first = values[0]
    if all(value is first for value in values):
        return True
    is_known = all(isinstance(value, np.ndarray) and value.shape == () for value in values)
    return is_known and len({(value.dtype, value.tobytes()) for value in values}) == 1
