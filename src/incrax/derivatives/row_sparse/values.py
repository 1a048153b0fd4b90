"""What a variable holds while a program is interpreted: an ordinary array, or one of two structured
forms.

`Uniform`: each row is the same. `TouchedRows`: some rows differ from those of a base. Whatever treats each
row by itself maps `TouchedRows` to `TouchedRows`: base by base, rows by rows. `Context` has the limits, and what
is written down for `explain`. It must not know rules.
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
from incrax.derivatives.row_sparse.rows import distinct, found_at, number_dtype, over_rows, summed

# --- forms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Uniform:
    """An array whose rows are alike: `row` has the shape `(1, *shape[1:])`.

    It is known, if it is a NumPy array: a constant of the program.
    """

    row: Any
    shape: tuple[int, ...]

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be zero."""
        return isinstance(self.row, np.ndarray) and not self.row.any()

    def rows(self, count: int) -> Any:
        """So many of its rows."""
        return jnp.broadcast_to(jnp.asarray(self.row), (count, *self.shape[1:]))


@dataclass(eq=False)
class Whole:
    """An array that is made when it is asked for, and of which rows can be had without it.

    `by` is the equation that computes all of its rows; None where rows are written into an array
    that is there anyway. `loses_rows`: whether rows of an operand become an array then.
    """

    make: Callable[[], Any]
    rows_at: Callable[[Any], Any]
    by: str | None = None
    loses_rows: bool = False
    is_made: bool = False

    @cached_property
    def array(self) -> Any:
        """The array."""
        self.is_made = True
        return self.make()


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """A base of which some rows, those at canonical `numbers`, are touched.

    Of a `Uniform` base they are replaced by `rows`; a `Whole` one has them already. Numbers are
    distinct, ascending, spare ones `shape[0]`; but where `repeats`: there, numbers are in any
    order, and rows are added to a base of zeros.
    """

    base: Uniform | Whole
    numbers: Any
    rows: Any
    shape: tuple[int, ...]
    repeats: bool = False


class BecomesDense(Exception):
    """A rule cannot keep a value as rows; the text says why."""


Value: TypeAlias = Any  # Uniform | TouchedRows | array


def is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return isinstance(value, TouchedRows)


def is_structured(value: Value) -> bool:
    """Whether a value is in one of the structured forms."""
    return isinstance(value, (Uniform, TouchedRows))


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    base = value.base if isinstance(value, TouchedRows) else value
    return isinstance(base, Uniform) and base.is_zero


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    return value.numbers.shape[0] if isinstance(value, TouchedRows) else 0


def zeros(shape: Sequence[int], dtype: Any) -> Uniform:
    """An array of zeros."""
    return Uniform(np.zeros((1, *shape[1:]), dtype), tuple(shape))


def summed_rows(numbers: Any, rows: Any, shape: tuple[int, ...]) -> TouchedRows:
    """Zeros to which rows are added."""
    return TouchedRows(zeros(shape, rows.dtype), numbers, rows, shape, repeats=True)


def no_rows(aval: Any) -> TouchedRows:
    """Zeros to which nothing is added."""
    numbers = jnp.zeros(0, number_dtype(aval.shape[0]))
    return summed_rows(numbers, jnp.zeros((0, *aval.shape[1:]), aval.dtype), aval.shape)


def added(values: Sequence[Value]) -> TouchedRows:
    """The sum of values that are zero but for stored rows, some at least."""
    stored = list(filter(has_rows, values))
    numbers = jnp.concatenate([value.numbers for value in stored])
    return summed_rows(numbers, jnp.concatenate([value.rows for value in stored]), stored[0].shape)


def coalesced(value: Value) -> Value:
    """The value with each stored row once."""
    if not isinstance(value, TouchedRows) or not value.repeats:
        return value
    slots = distinct(value.numbers, value.shape[0])
    return TouchedRows(value.base, slots.numbers, summed(value.rows, slots), value.shape)


# --- rows -----------------------------------------------------------------------------------------


def rows_at(value: Value, numbers: Any, axis: int = 0) -> Any:
    """Rows of a coalesced value at canonical numbers; what stands for "no row" gives some row."""
    if isinstance(value, Uniform):
        return value.rows(numbers.shape[0])
    if not isinstance(value, TouchedRows):
        return jnp.take(value, numbers, axis, mode="clip")
    if value.numbers is numbers:
        return value.rows
    if isinstance(value.base, Whole):
        return value.base.rows_at(numbers)
    below = value.base.rows(numbers.shape[0])
    if not num_stored(value) or not numbers.shape[0]:
        return below
    slots, is_found = found_at(value.numbers, numbers)
    return jnp.where(over_rows(is_found, below.ndim), value.rows[slots], below)


def joined(sets: Sequence[Any], num_rows: int) -> Any:
    """Distinct numbers of all rows of several sets."""
    return sets[0] if len(sets) == 1 else distinct(jnp.concatenate(sets), num_rows).numbers


def written(array: Any, numbers: Any, rows: Any, *, adds: bool = False) -> Any:
    """An array with rows at distinct numbers replaced, or added."""
    places = array.at[numbers]
    return (places.add if adds else places.set)(rows, mode="drop", indices_are_sorted=True)


def dense(value: Value) -> Any:
    """The array itself."""
    if isinstance(value, Uniform):
        return value.rows(value.shape[0])
    if not isinstance(value, TouchedRows):
        return value
    if isinstance(value.base, Whole):
        return value.base.array
    below = dense(value.base)
    if value.repeats:
        return below.at[value.numbers].add(value.rows, mode="drop")
    return written(below, value.numbers, value.rows)


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
    """Options of one interpretation, and what it wrote down: each line with the value it is of.

    Rows pay where at most the share `cut_over` of all is stored, in arrays of at least `min_bytes`.
    """

    cut_over: float
    min_bytes: int
    is_strict: bool
    noted: list[tuple[Event, TouchedRows]] = field(default_factory=list)
    line: str = ""

    @property
    def events(self) -> list[Event]:
        """What was written down, each line once; not what was kept as rows and then made whole."""
        lines = [
            event
            for event, value in self.noted
            if event.what != KEPT
            or isinstance(value.base, Uniform)
            or value.base.by is None
            or not value.base.is_made
        ]
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
        return len(shape) > 0 and shape[0] > 0 and _jax.aval_bytes(aval) >= self.min_bytes

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
        self.noted.append((event, value))

    def dense(self, value: Value, eqn: Equation | None, why: str, name: str = "") -> Any:
        """A value as an array, written down, under another name than the equation's, if it was held
        as rows.
        """
        if not isinstance(value, TouchedRows):
            return dense(value)
        base = value.base
        if isinstance(base, Uniform):
            also = "" if base.is_zero else "; the rows that were not read are no longer zero"
            self.note(DENSE, eqn, value, why + also, name)
        elif base.by is None:
            why = "rows written into an array that is there anyway"
            self.note(IN_PLACE, eqn, value, why, name)
        elif base.loses_rows:
            self.note(DENSE, eqn, value, f"all rows change in {base.by}", name)
        return dense(value)
