"""What variables hold while a program is interpreted: arrays, or rows beside what all others are.

What treats each row by itself maps `TouchedRows` to `TouchedRows`: what each row is, and the touched
ones. Which these are is a `RowSet`, and rows are read and written as in programs for slices. Where
all other rows are those of an array, they are written into it. `Context` has the limits, and what is
written down for `explain`. It must not know rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.row_sparse.rows import RowSparse, summed
from incrax.engine.plan.row_sets import (
    DirtyRows,
    RowSet,
    ascending,
    named_rows,
    overlaid,
    taken,
    with_rows,
)
from incrax.primitives.on_rows import NotByRowsError

# --- forms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """An array of which each row is `row`, of shape `(1, ...)`, but for the rows of a set, if any.

    `row` is an array of NumPy if it is a constant of the program. Numbers of rows are distinct and
    ascending, spare ones `shape[0]`; those of a sum (`is_sum`), zero but for its terms, repeat until
    something reads it.
    """

    row: Any
    shape: tuple[int, ...]
    of: RowSet | None = None
    rows: Any = None
    is_sum: bool = False

    @property
    def dtype(self) -> Any:
        """That of the array."""
        return self.row.dtype

    @cached_property
    def each_once(self) -> TouchedRows:
        """Of a sum, each stored row once."""
        assert self.of is not None
        of, slots = ascending(self.of.numbers, self.shape[0])
        return replace(self, of=of, rows=summed(self.rows, slots), is_sum=False)


@dataclass(frozen=True, eq=False)
class WrittenRows:
    """An array, and those of its rows that were written, or follow from such rows.

    What reads these alone, as the scale of a step is read in the rows of a gradient, does not read
    the array: XLA drops it if nothing does. Rows of another set follow likewise: `make` makes them,
    by `depth` equations in a row; None: they are read.
    """

    array: Any
    of: RowSet
    rows: Any
    make: Callable[[RowSet], Any] | None = None
    depth: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        return self.array.shape


Value: TypeAlias = Any  # TouchedRows | WrittenRows | array


def is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))


def is_zero(value: Any) -> bool:
    """Whether a value is known to be zero."""
    return is_known(value) and not np.any(value)


def is_structured(value: Value) -> bool:
    """Whether all rows of a value but some are alike."""
    return isinstance(value, TouchedRows)


def is_written(value: Value) -> bool:
    """Whether a value is an array of which some rows are known by themselves."""
    return isinstance(value, WrittenRows)


def is_by_rows(value: Value) -> bool:
    """Whether some rows of a value are known by themselves, or all are alike."""
    return is_structured(value) or is_written(value)


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    return is_structured(value) and is_zero(value.row)


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return is_structured(value) and value.of is not None


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    return value.of.size if has_rows(value) else 0


def row_sparse(value: TouchedRows) -> RowSparse:
    """A value that is zero but for stored rows."""
    assert value.of is not None
    return RowSparse(value.of.numbers, value.rows, value.shape)


def added(values: Sequence[Value]) -> TouchedRows:
    """The sum of such values: their rows one after the other."""
    held = list(filter(has_rows, values))
    numbers = jnp.concatenate([value.of.numbers for value in held])
    rows = jnp.concatenate([value.rows for value in held])
    first = held[0]
    return replace(first, of=named_rows(numbers, first.shape[0]), rows=rows, is_sum=True)


def coalesced(value: Value) -> Value:
    """The value with each stored row once: one for all that reads it, since what is made of the
    same rows has the same set.
    """
    return value.each_once if is_structured(value) and value.is_sum else value


def rows_at(value: Value, axis: int, of: RowSet) -> Any:
    """Some rows of a value along an axis, the first of what is no array; for what stands for "no
    row", those of some row.
    """
    if is_by_rows(value) and value.of is of:
        return value.rows
    if is_written(value) and value.make is not None:
        return value.make(of)
    if not is_structured(value):
        return taken(dense(value), axis, of)
    below = jnp.broadcast_to(value.row, (of.size, *value.shape[1:]))
    if not num_stored(value) or not of.size:
        return below
    return overlaid(below, 0, of, DirtyRows(value.rows, None, 0, value.of))


def union(sets: Sequence[RowSet]) -> RowSet:
    """All rows of several sets of distinct ones."""
    numbers = jnp.concatenate([each.numbers for each in sets])
    return sets[0] if len(sets) == 1 else ascending(numbers, sets[0].length)[0]


def written(array: Any, of: RowSet, rows: Any) -> Any:
    """An array with other rows."""
    return with_rows(array, DirtyRows(rows, None, 0, of))


def untouched(value: Value) -> Any:
    """The array without the rows that are touched."""
    if is_structured(value):
        return jnp.broadcast_to(value.row, value.shape)
    return value.array if is_written(value) else value


def dense(value: Value) -> Any:
    """The array itself."""
    if not has_rows(value):
        return untouched(value)
    if value.is_sum:
        return row_sparse(value).todense()
    return written(untouched(value), value.of, value.rows)


# --- what is written down -------------------------------------------------------------------------


class Event(NamedTuple):
    """One line of `explain`: what became of a value, the primitive, the type, how many rows, why,
    and where.
    """

    what: str
    primitive: str
    type: str
    num_rows: int
    why: str
    line: str


KEPT = "kept"
DENSE = "dense"
IN_PLACE = "in place"


@dataclass(frozen=True)
class Context:
    """Limits of one interpretation, and what it wrote down, each line once.

    Rows pay where at most the share `cut_over` of all is stored, in arrays of at least `min_bytes`:
    the dense programs of smaller ones run in microseconds.
    """

    min_bytes: int = 2**20
    cut_over: float = 0.25
    events: dict[Event, None] = field(default_factory=dict)

    def fresh(self) -> Context:
        """The same limits."""
        return replace(self, events={})

    def is_large(self, aval: Any) -> bool:
        """Whether an array is worth the trouble."""
        shape = getattr(aval, "shape", ())
        is_numbered = len(shape) > 0 and 0 < shape[0] < np.iinfo(np.int32).max
        return is_numbered and _jax.aval_bytes(aval) >= self.min_bytes

    def check(self, num_rows: int, aval: Any) -> None:
        """Raise where so many rows do not pay, or the array is small."""
        if not self.is_large(aval):
            raise NotByRowsError("the array is small")
        if num_rows > self.cut_over * aval.shape[0]:
            raise NotByRowsError(
                f"{num_rows:,} rows stored of {aval.shape[0]:,}, more than the share "
                f"{self.cut_over:g}"
            )

    def note(
        self, what: str, eqn: Equation | None, value: Value, why: str = "", name: str = ""
    ) -> None:
        """Write down what became of a value, or of a type that could have been rows, under another
        name than the equation's if it has one.
        """
        name = name or ("output" if eqn is None else eqn.primitive.name)
        line = "" if eqn is None else _jax.source_line(eqn)
        kind = f"{value.dtype}{list(value.shape)}"
        self.events.setdefault(Event(what, name, kind, num_stored(value), why, line))

    def dense(self, value: Value, eqn: Equation | None, why: str, name: str = "") -> Any:
        """A value as an array, written down if it was held as rows."""
        if has_rows(value):
            also = "" if is_sparse(value) else "; the rows that were not read are no longer zero"
            self.note(DENSE, eqn, value, why + also, name)
        return dense(value)
