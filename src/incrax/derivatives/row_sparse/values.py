"""What a variable holds while a program is interpreted: an ordinary array, or a base of which some
rows are touched.

Whatever treats each row by itself maps `TouchedRows` to `TouchedRows`: base by base, rows by rows.
Which rows these are is a `RowSet`, and rows are read and written as in programs for slices.
`Context` has the limits, and what is written down for `explain`. It must not know rules.
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
from incrax._program import Values
from incrax.derivatives.row_sparse.rows import distinct, found_at, over_rows, summed
from incrax.engine.plan.row_sets import DirtyRows, RowSet, taken, with_rows

# --- forms ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Base:
    """An array that is made when it is asked for, and of which rows can be had without it.

    `row`, of shape `(1, ...)`, is what each row is, a NumPy array if it is a constant of the
    program; None: they differ. `by` is the equation that computes all of its rows; None where rows are written into an
    array that is there anyway. `loses_rows`: whether rows of an operand become an array then.
    """

    make: Callable[[], Any]
    rows_at: Callable[[RowSet], Any]
    row: Any = None
    by: str | None = None
    loses_rows: bool = False
    is_made: bool = False

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be zero."""
        return isinstance(self.row, np.ndarray) and not self.row.any()

    @cached_property
    def array(self) -> Any:
        """The array."""
        self.is_made = True
        return self.make()


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """A base of which some rows are touched; without `of`, equal rows of which none is.

    Of equal rows they are replaced by `rows`; another base has them already. Numbers are
    distinct, ascending, spare ones `shape[0]`; but where `repeats`: there, numbers are in any
    order, and rows are added to a base of zeros.
    """

    base: Base
    shape: tuple[int, ...]
    of: RowSet | None = None
    rows: Any = None
    repeats: bool = False


class BecomesDense(Exception):
    """A rule cannot keep a value as rows; the text says why."""


Value: TypeAlias = Any  # TouchedRows | array


def is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))


def is_structured(value: Value) -> bool:
    """Whether a value is no array."""
    return isinstance(value, TouchedRows)


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return isinstance(value, TouchedRows) and value.of is not None


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    return isinstance(value, TouchedRows) and value.base.is_zero


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    return value.of.size if has_rows(value) else 0


def named_rows(numbers: Any, num_rows: int) -> RowSet:
    """The rows with these canonical numbers."""
    return RowSet(numbers, numbers.shape[0], num_rows, numbers < num_rows, has_spare=True)


def equal_rows(row: Any, shape: Sequence[int]) -> TouchedRows:
    """An array of which each row is this one."""
    rows = lambda count: jnp.broadcast_to(jnp.asarray(row), (count, *shape[1:]))
    return TouchedRows(Base(lambda: rows(shape[0]), lambda of: rows(of.size), row), tuple(shape))


def zeros(aval: Any) -> TouchedRows:
    """An array of zeros."""
    return equal_rows(np.zeros((1, *aval.shape[1:]), aval.dtype), aval.shape)


def summed_rows(numbers: Any, rows: Any, aval: Any) -> TouchedRows:
    """Zeros to which rows are added."""
    of = named_rows(numbers, aval.shape[0])
    return replace(zeros(aval), of=of, rows=rows, repeats=True)


def no_rows(aval: Any) -> TouchedRows:
    """Zeros to which nothing is added."""
    numbers = jnp.zeros(0, np.int32)
    return summed_rows(numbers, jnp.zeros((0, *aval.shape[1:]), aval.dtype), aval)


def added(values: Values, aval: Any) -> TouchedRows:
    """The sum of values that are zero but for stored rows, some at least."""
    stored = list(filter(has_rows, values))
    numbers = jnp.concatenate([value.of.numbers for value in stored])
    return summed_rows(numbers, jnp.concatenate([value.rows for value in stored]), aval)


def coalesced(value: Value) -> Value:
    """The value with each stored row once."""
    if not has_rows(value) or not value.repeats:
        return value
    slots = distinct(value.of.numbers, value.shape[0])
    of = named_rows(slots.numbers, value.shape[0])
    return TouchedRows(value.base, value.shape, of, summed(value.rows, slots))


# --- rows -----------------------------------------------------------------------------------------


def rows_at(value: Value, of: RowSet, axis: int = 0) -> Any:
    """Some rows of a coalesced value; what stands for "no row" gives some row."""
    if not isinstance(value, TouchedRows):
        return taken(value, axis, of)
    if value.of is of:
        return value.rows
    below = value.base.rows_at(of)
    if value.base.row is None or value.of is None or not value.of.size or not of.size:
        return below
    slots, is_found = found_at(value.of.numbers, of.numbers)
    return jnp.where(over_rows(is_found, below.ndim), value.rows[slots], below)


def joined(sets: Sequence[RowSet]) -> RowSet:
    """All rows of several sets of distinct ones."""
    if len(sets) == 1:
        return sets[0]
    num_rows = sets[0].length
    numbers = jnp.concatenate([each.numbers for each in sets])
    return named_rows(distinct(numbers, num_rows).numbers, num_rows)


def written(array: Any, of: RowSet, rows: Any, *, adds: bool = False) -> Any:
    """An array with distinct rows replaced, or added."""
    if adds:
        return array.at[of.numbers].add(rows, mode="drop", indices_are_sorted=True)
    return with_rows(array, DirtyRows(rows, None, 0, of))


def dense(value: Value) -> Any:
    """The array itself."""
    if not isinstance(value, TouchedRows):
        return value
    if value.base.row is None:
        return value.base.array
    below = value.base.make()
    if value.of is None:
        return below
    if value.repeats:
        return below.at[value.of.numbers].add(value.rows, mode="drop")
    return written(below, value.of, value.rows)


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
    """Options of one interpretation, and what it wrote down: each line with the base that it is of.

    Rows pay where at most the share `cut_over` of all is stored, in arrays of at least `min_bytes`.
    """

    cut_over: float
    min_bytes: int
    is_strict: bool
    noted: list[tuple[Event, Base]] = field(default_factory=list)
    line: str = ""

    @property
    def events(self) -> list[Event]:
        """What was written down, each line once; not what was kept as rows and then made whole."""
        is_lost = lambda base: base.by is not None and base.is_made
        lines = [event for event, base in self.noted if event.what != KEPT or not is_lost(base)]
        return list(dict.fromkeys(lines))

    def fresh(self) -> Context:
        """The same options."""
        return replace(self, noted=[])

    def within(self, eqn: Equation) -> Context:
        """The same inside a call or a loop: the line where it was called, for equations without
        one.
        """
        return replace(self, line=self.line_of(eqn))

    def line_of(self, eqn: Equation | None) -> str:
        """Where the user wrote an equation."""
        return (None if eqn is None else _jax.source_line(eqn)) or self.line

    def is_large(self, aval: Any) -> bool:
        """Whether an array is worth the trouble."""
        shape = getattr(aval, "shape", ())
        is_numbered = len(shape) > 0 and 0 < shape[0] < np.iinfo(np.int32).max
        return is_numbered and _jax.aval_bytes(aval) >= self.min_bytes

    def check(self, num_rows: int, aval: Any) -> None:
        """Raise where so many rows do not pay, or the array is small."""
        if not self.is_large(aval):
            raise BecomesDense("the array is small")
        if num_rows > self.cut_over * aval.shape[0]:
            raise BecomesDense(
                f"{num_rows:,} rows stored of {aval.shape[0]:,}, more than the share "
                f"cut_over={self.cut_over:g}"
            )

    def note(
        self, what: str, eqn: Equation | None, value: TouchedRows, why: str = "", name: str = ""
    ) -> None:
        """Write down what became of a value that is held as rows."""
        name = name or ("output" if eqn is None else eqn.primitive.name)
        kind = f"{value.rows.dtype}{list(value.shape)}"
        event = Event(what, name, kind, num_stored(value), why, self.line_of(eqn))
        self.noted.append((event, value.base))

    def dense(self, value: Value, eqn: Equation | None, why: str, name: str = "") -> Any:
        """A value as an array, written down, under another name than the equation's, if it was held
        as rows.
        """
        if has_rows(value):
            base = value.base
            if base.row is not None:
                also = "" if base.is_zero else "; the rows that were not read are no longer zero"
                self.note(DENSE, eqn, value, why + also, name)
            elif base.by is None:
                why = "rows written into an array that is there anyway"
                self.note(IN_PLACE, eqn, value, why, name)
            elif base.loses_rows:
                self.note(DENSE, eqn, value, f"all rows change in {base.by}", name)
        return dense(value)
