"""What a variable holds while a program is interpreted: an ordinary array, or one of three
structured forms.

`Uniform`: each row is the same. `Summed`: zeros to which rows are added (the transpose of reading
rows). `Patched`: a base of which some rows, each once, are replaced. Whatever treats each row by
itself maps a `Patched` to a `Patched`: base by base, rows by rows. `Context` has the limits, and
what is written down for `explain`. It must not know rules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.row_sparse.rows import distinct, found_at, number_dtype, over_rows, summed

# --- forms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Uniform:
    """An array whose rows are alike: `value` is one number of shape (), or one row of shape
    `shape[1:]`.

    It is known, if it is a NumPy scalar: a constant of the program.
    """

    value: Any
    shape: tuple[int, ...]

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be zero."""
        return is_known(self.value) and bool(self.value == 0)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("numbers", "rows"),
    meta_fields=("shape", "carry"),
)
@dataclass(frozen=True, eq=False)
class Summed:
    """Zeros of `shape` to which `rows[i]` is added at `numbers[i]`, canonical numbers that may
    repeat.

    `carry` is the number of the carry of the scan around it that the sum starts from, which nothing
    else may read.
    """

    numbers: Any
    rows: Any
    shape: tuple[int, ...]
    carry: int | None = None


@dataclass(frozen=True, eq=False)
class Swept:
    """A dense base; `by` is the equation that changed all of its rows, None where it is a value of
    the program.

    `chain` identifies all equations, one after the other, that did.
    """

    value: Any
    by: str | None = None
    chain: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return np.shape(self.value)


@dataclass(frozen=True, eq=False)
class Patched:
    """The base with row `numbers[i]` replaced by `rows[i]`; numbers are distinct, ascending, spare
    ones `shape[0]`.

    Where `rows` are those of the base plus something, that is `addend`: added to the base, it
    spares reading it.
    """

    base: Uniform | Swept
    numbers: Any
    rows: Any
    shape: tuple[int, ...]
    addend: Any = None


class BecomesDense(Exception):
    """A rule cannot keep a value as rows; the text says why."""


class CarryRead(Exception):
    """A carry of a scan is used for something else than being added to: which, and why if not
    because it is read.
    """


Value: TypeAlias = Any  # Uniform | Summed | Patched | array


def is_known(value: Any) -> bool:
    """A constant of the program: literals are NumPy values or Python scalars."""
    return (
        isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))
        and np.ndim(value) == 0
    )


def is_structured(value: Value) -> bool:
    """Whether a value is in one of the structured forms."""
    return isinstance(value, (Uniform, Summed, Patched))


def has_rows(value: Value) -> bool:
    """Whether a value is held as rows."""
    return isinstance(value, (Summed, Patched))


def is_sparse(value: Value) -> bool:
    """Whether a value is zero but for stored rows, possibly none."""
    base = value.base if isinstance(value, Patched) else value
    return isinstance(base, Summed) or (isinstance(base, Uniform) and base.is_zero)


def num_stored(value: Value) -> int:
    """Rows stored, repeated and spare ones included."""
    return value.numbers.shape[0] if has_rows(value) else 0


def no_rows(aval: Any, carry: int | None = None) -> Summed:
    """Zeros."""
    rows = jnp.zeros((0, *aval.shape[1:]), aval.dtype)
    return Summed(jnp.zeros(0, number_dtype(aval.shape[0])), rows, aval.shape, carry)


def coalesced(value: Value) -> Value:
    """The value with each stored row once; raises `CarryRead` where it is what a loop carries."""
    if not isinstance(value, Summed):
        return value
    if value.carry is not None:
        raise CarryRead(value.carry)
    slots = distinct(value.numbers, value.shape[0])
    zero = Uniform(np.zeros((), value.rows.dtype), value.shape)
    return Patched(zero, slots.numbers, summed(value.rows, slots), value.shape)


def added(values: Sequence[Value]) -> Summed:
    """The sum of values that are zero but for stored rows, some at least."""
    stored = [value for value in values if has_rows(value)]
    numbers = jnp.concatenate([value.numbers for value in stored])
    rows = jnp.concatenate([value.rows for value in stored])
    carries = [
        value.carry for value in stored if isinstance(value, Summed) and value.carry is not None
    ]
    return Summed(numbers, rows, values[0].shape, carries[0] if carries else None)


# --- rows -----------------------------------------------------------------------------------------


def spread(value: Any, shape: tuple[int, ...]) -> Any:
    """A number, or a row, as an array of rows of the given shape."""
    return jnp.broadcast_to(jnp.asarray(value), shape)


def rows_at(value: Value, numbers: Any, axis: int = 0) -> Any:
    """Rows of a value at canonical numbers; what stands for "no row" gives some row."""
    if isinstance(value, Uniform):
        return spread(value.value, (numbers.shape[0], *value.shape[1:]))
    if isinstance(value, Swept):
        return rows_at(value.value, numbers)
    if not isinstance(value, Patched):
        return (
            jnp.take(value, numbers, axis, mode="clip")
            if axis
            else value.at[numbers].get(mode="clip")
        )
    if value.numbers is numbers:
        return value.rows
    below = rows_at(value.base, numbers)
    return overlaid(below, numbers, value.numbers, value.rows)


def overlaid(below: Any, numbers: Any, distinct_numbers: Any, rows: Any) -> Any:
    """The rows `below` of some numbers, replaced where there is a row of this number among
    others.
    """
    if rows.shape[0] == 0 or below.shape[0] == 0:
        return below
    slots, is_found = found_at(distinct_numbers, numbers)
    return jnp.where(over_rows(is_found, below.ndim), rows[slots], below)


def joined(sets: Sequence[Any], num_rows: int) -> Any:
    """Distinct numbers of all rows of several sets."""
    return sets[0] if len(sets) == 1 else distinct(jnp.concatenate(sets), num_rows).numbers


def row_flags(value: Patched) -> Any:
    """Which stored rows are rows, and not spare."""
    return value.numbers < value.shape[0]


def dense(value: Value) -> Any:
    """The array itself."""
    if isinstance(value, Uniform):
        return spread(value.value, value.shape)
    if isinstance(value, Swept):
        return value.value
    if isinstance(value, Summed):
        return (
            jnp.zeros(value.shape, value.rows.dtype).at[value.numbers].add(value.rows, mode="drop")
        )
    if not isinstance(value, Patched):
        return value
    places = dense(value.base).at[value.numbers]
    if value.addend is not None:
        return places.add(value.addend, mode="drop", indices_are_sorted=True)
    return places.set(value.rows, mode="drop", indices_are_sorted=True)


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
    """Options of one interpretation, and what it wrote down.

    Rows pay where at most the share `cut_over` of all is stored, in arrays of at least `min_bytes`.
    `sweeps` are the equations, by `id`, that compute all rows of something that is needed: those
    take arrays where there are any.
    """

    cut_over: float
    min_bytes: int
    is_strict: bool
    events: list[Event] = field(default_factory=list)
    sweeps: set[int] = field(default_factory=set)
    line: str = ""

    def fresh(self) -> Context:
        """The same options."""
        return Context(self.cut_over, self.min_bytes, self.is_strict)

    def on_trial(self) -> Context:
        """The same, writing elsewhere."""
        return replace(self, events=[])

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

    def swept(self, eqn: Equation, value: Any, bases: Sequence[Any]) -> Swept:
        """A base that an equation computes from others."""
        chain = frozenset().union(*(base.chain for base in bases if isinstance(base, Swept)))
        return Swept(value, f"`{eqn.primitive.name}` ({self.line_of(eqn)})", chain | {id(eqn)})

    def note(
        self, what: str, eqn: Equation | None, value: Value, why: str = "", name: str = ""
    ) -> None:
        """Write down what became of a value that is held as rows."""
        name = name or ("output" if eqn is None else eqn.primitive.name)
        kind = f"{value.rows.dtype}{list(value.shape)}"
        self.events.append(Event(what, name, kind, num_stored(value), why, self.line_of(eqn)))

    def dense(self, value: Value, eqn: Equation | None, why: str, name: str = "") -> Any:
        """A value as an array, written down, under another name than the equation's, if it was held
        as rows.
        """
        if has_rows(value):
            if isinstance(value, Summed) and value.carry is not None:
                raise CarryRead(value.carry)
            base = value.base if isinstance(value, Patched) else None
            if isinstance(base, Swept) and base.by is None:
                self.note(
                    IN_PLACE, eqn, value, "rows written into an array that is there anyway", name
                )
                return dense(value)
            if isinstance(base, Swept):
                self.sweeps.update(base.chain)
                why = f"all rows change in {base.by}"
            if isinstance(base, Uniform) and not base.is_zero:
                why = f"{why}; the rows that were not read are no longer zero"
            self.note(DENSE, eqn, value, why, name)
        return dense(value)
