"""What variables hold while a program is interpreted: arrays, sums of rows, or rows of which some
are touched.

What treats each row by itself maps `TouchedRows` to `TouchedRows`: what each row is, and the touched
ones. Which these are is a `RowSet`, and rows are read and written as in programs for slices. Where
all other rows are those of an array, they are written into it. `Context` has the limits, and what is
written down for `explain`. It must not know rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.derivatives.row_sparse.rows import RowSparse, distinct, found_at, over_rows, summed
from incrax.engine.plan.row_sets import DirtyRows, RowSet, taken, with_rows
from incrax.primitives.on_rows import NotByRowsError, aligned_back, run_on_rows
from incrax.primitives.row_axis import Axes

# --- forms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """An array of which each row is `row`, of shape `(1, ...)`, but for the rows of a set, if any.

    `row` is an array of NumPy if it is a constant of the program. Numbers of rows are distinct and
    ascending, spare ones `shape[0]`.
    """

    row: Any
    shape: tuple[int, ...]
    of: RowSet | None = None
    rows: Any = None


class BecomesDense(Exception):
    """A rule cannot keep a value as rows; the text says why."""


Value: TypeAlias = Any  # RowSparse | TouchedRows | array


def is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))


def is_zero(value: Any) -> bool:
    """Whether a value is known to be zero."""
    return is_known(value) and not np.any(value)


def is_structured(value: Value) -> bool:
    """Whether a value is no array."""
    return isinstance(value, (RowSparse, TouchedRows))


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    return isinstance(value, RowSparse) or is_zero(row_of(value))


def row_of(value: Value) -> Any | None:
    """What each row is but for the touched ones; None where they may differ."""
    return value.row if isinstance(value, TouchedRows) else None


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return isinstance(value, RowSparse) or (isinstance(value, TouchedRows) and value.of is not None)


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    if isinstance(value, RowSparse):
        return value.num_rows
    return value.of.size if has_rows(value) else 0


def zero_row(aval: Any) -> np.ndarray:
    """A row of zeros."""
    return np.zeros((1, *aval.shape[1:]), aval.dtype)


def zeros(aval: Any) -> TouchedRows:
    """An array of zeros."""
    return TouchedRows(zero_row(aval), aval.shape)


def named_rows(numbers: Any, num_rows: int) -> RowSet:
    """The rows with these canonical numbers."""
    return RowSet(numbers, numbers.shape[0], num_rows, numbers < num_rows, has_spare=True)


def as_sum(value: Value) -> RowSparse:
    """The rows that a value stores, as what is added to zeros."""
    if isinstance(value, RowSparse):
        return value
    if value.of is not None:
        return RowSparse(value.of.numbers, value.rows, value.shape)
    none = jnp.zeros((0, *value.shape[1:]), value.row.dtype)
    return RowSparse(jnp.zeros(0, np.int32), none, value.shape)


def added(values: Iterable[Value]) -> RowSparse:
    """The sum of values that are zero but for stored rows, some at least."""
    stored = [as_sum(value) for value in values if has_rows(value)]
    numbers = jnp.concatenate([each.indices for each in stored])
    return RowSparse(numbers, jnp.concatenate([each.values for each in stored]), stored[0].shape)


def coalesced(value: Value) -> Value:
    """The value with each stored row once."""
    if not isinstance(value, RowSparse):
        return value
    slots = distinct(value.indices, value.shape[0])
    of = named_rows(slots.numbers, value.shape[0])
    return TouchedRows(zero_row(value), value.shape, of, summed(value.values, slots))


def rows_at(value: TouchedRows, of: RowSet) -> Any:
    """Some rows of a value; what stands for "no row" gives some row."""
    if value.of is of:
        return value.rows
    below = jnp.broadcast_to(value.row, (of.size, *value.shape[1:]))
    if value.of is None or not value.of.size or not of.size:
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


def written(array: Any, of: RowSet, rows: Any) -> Any:
    """An array with other rows."""
    return with_rows(array, DirtyRows(rows, None, 0, of))


def untouched(value: Value) -> Any:
    """The array without the rows that are touched."""
    return jnp.broadcast_to(value.row, value.shape) if isinstance(value, TouchedRows) else value


def dense(value: Value) -> Any:
    """The array itself."""
    if isinstance(value, RowSparse):
        return value.todense()
    array = untouched(value)
    return written(array, value.of, value.rows) if has_rows(value) else array


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
            raise BecomesDense("the array is small")
        if num_rows > self.cut_over * aval.shape[0]:
            raise BecomesDense(
                f"{num_rows:,} rows stored of {aval.shape[0]:,}, more than the share "
                f"{self.cut_over:g}"
            )

    def note(
        self, what: str, eqn: Equation | None, value: Value, why: str = "", name: str = ""
    ) -> None:
        """Write down what became of a value that is held as rows, under another name than the
        equation's if it has one.
        """
        rows = as_sum(value)
        name = name or ("output" if eqn is None else eqn.primitive.name)
        line = "" if eqn is None else _jax.source_line(eqn)
        kind = f"{rows.dtype}{list(rows.shape)}"
        self.events.setdefault(Event(what, name, kind, rows.num_rows, why, line))

    def dense(self, value: Value, eqn: Equation | None, why: str, name: str = "") -> Any:
        """A value as an array, written down if it was held as rows."""
        if has_rows(value):
            also = "" if is_sparse(value) else "; the rows that were not read are no longer zero"
            self.note(DENSE, eqn, value, why + also, name)
        return dense(value)


# --- variables ------------------------------------------------------------------------------------

MAX_MADE = 64
"""Equations in a row by which rows are made of those of an array into which rows were written."""


class ValueTable:
    """What each variable of a program holds.

    Rows of what follows from an array into which rows were written, as the scale of a step from a
    sum of squares, are made of rows of that array, where it is by rows: all of it may never be
    needed, and XLA drops it.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.values: dict[Var, Value] = {}
        self.steps: dict[Var, int] = {}  # from such an array; 0: it is one
        self.writers: dict[Var, Equation] = {}
        self._rows: dict[tuple[Var, int, RowSet], Any] = {}

    def read(self, atom: Atom) -> Value:
        """A value; literals as NumPy scalars, by which rules know constants."""
        if not isinstance(atom, Literal):
            return self.values[atom]
        return np.asarray(atom.val, atom.aval.dtype) if atom.aval.shape == () else atom.val

    def inputs(self, eqn: Equation) -> list[Value]:
        """Those of an equation."""
        return list(map(self.read, eqn.invars))

    def coalesce(self, eqn: Equation) -> None:
        """Have each row of them stored once, for this equation and all that follow."""
        for var in read_vars(eqn):
            self.values[var] = coalesced(self.values[var])

    def arrays(self, eqn: Equation, why: str) -> list[Any]:
        """The same as arrays."""
        return [self.context.dense(self.read(atom), eqn, why) for atom in eqn.invars]

    def write(self, eqn: Equation, results: Sequence[Value]) -> None:
        """Note what an equation makes."""
        self.values.update(zip(eqn.outvars, results, strict=True))
        known = [self.steps[var] for var in read_vars(eqn) if var in self.steps]
        if known and len(eqn.outvars) == 1:
            self.writers[eqn.outvars[0]] = eqn
            self.steps.setdefault(eqn.outvars[0], 1 + max(known))

    def operands(self, eqn: Equation, axes: Axes, of: RowSet) -> list[Any]:
        """Rows of the operands of an equation along these axes; those without are whole."""
        pairs = zip(eqn.invars, axes, strict=True)
        return [dense(self.read(x)) if d is None else self._at(x, d, of) for x, d in pairs]

    def _at(self, atom: Atom, axis: int, of: RowSet) -> Any:
        value = self.read(atom)
        if isinstance(value, TouchedRows):
            return rows_at(value, of)
        if not isinstance(atom, Var) or not 0 < self.steps.get(atom, 0) <= MAX_MADE:
            return taken(value, axis, of)
        key = (atom, axis, of)
        if key not in self._rows:
            self._rows[key] = self._made(self.writers[atom], axis, of, value)
        return self._rows[key]

    def _made(self, eqn: Equation, axis: int, of: RowSet, value: Any) -> Any:
        aligned = aligned_back(eqn, axis)
        if aligned is not None:
            with contextlib.suppress(NotByRowsError):
                operands = self.operands(eqn, aligned.operands, of)
                return run_on_rows(eqn, aligned, of.size, operands)[0]
        return taken(value, axis, of)
