"""What rules may ask of the interpreter: limits, the mode, what is written down for `explain`.

In: options. Out: the same with helpers. It must not know about rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Program
from incrax.derivatives.row_sparse.values import (
    Patched,
    Summed,
    Swept,
    Uniform,
    Value,
    dense,
    has_rows,
    is_structured,
    num_stored,
)


class BecomesDense(Exception):
    """A rule cannot keep a value as rows; the text says why."""


class CarryRead(Exception):
    """A carry of a scan is used for something else than being added to: which, and why if not because it is read."""


class Event(NamedTuple):
    """One line of `explain`: what became of a value, the primitive, the type, how many rows, why, and where."""

    what: str
    primitive: str
    type: str
    num_rows: int
    why: str
    line: str


KEPT, DENSE, IN_PLACE = "kept", "dense", "in place"


@dataclass(frozen=True)
class Limits:
    """When rows pay: at most this share of the rows stored, in arrays of at least so many bytes."""

    share: float
    min_bytes: int


@dataclass(frozen=True)
class Context:
    """Options of one interpretation, what it wrote down, and the interpreter itself, for bodies of loops."""

    run: Callable[[Program, Sequence[Value], Context], list[Value]]
    limits: Limits
    is_strict: bool
    events: list[Event] = field(default_factory=list)
    line: str = ""
    sweeps: set[int] = field(default_factory=set)
    """Equations that compute all rows of something that is needed, by `id`: those take arrays where there are any."""

    def on_trial(self) -> Context:
        """The same, writing elsewhere."""
        return replace(self, events=[])

    def within(self, eqn: Equation) -> Context:
        """The same inside a call or a loop: the line where it was called, for equations without one."""
        return replace(self, line=self.line_of(eqn))

    def line_of(self, eqn: Equation) -> str:
        """Where the user wrote an equation."""
        return _jax.source_line(eqn) or self.line

    def is_large(self, aval: Any) -> bool:
        """Whether an array is worth the trouble."""
        shape = getattr(aval, "shape", ())
        return len(shape) > 0 and shape[0] > 0 and _jax.aval_bytes(aval) >= self.limits.min_bytes

    def check(self, num_rows: int, aval: Any) -> None:
        """Raise where so many rows do not pay, or the array is small."""
        if not self.is_large(aval):
            raise BecomesDense("the array is small")
        if num_rows > self.limits.share * aval.shape[0]:
            raise BecomesDense(
                f"{num_rows:,} rows stored of {aval.shape[0]:,}, more than the share cut_over={self.limits.share:g}"
            )

    def swept(self, eqn: Equation, value: Any, bases: Sequence[Any]) -> Swept:
        """A base that an equation computes from others."""
        chain = frozenset().union(*(base.chain for base in bases if isinstance(base, Swept)))
        return Swept(value, f"`{eqn.primitive.name}` ({self.line_of(eqn)})", chain | {id(eqn)})

    def note(self, what: str, eqn: Equation, value: Value, why: str = "") -> None:
        """Write down what became of a value that is held as rows."""
        kind = f"{_dtype(value)}{list(value.shape)}"
        self.events.append(Event(what, eqn.primitive.name, kind, num_stored(value), why, self.line_of(eqn)))

    def dense(self, value: Value, eqn: Equation | None, why: str) -> Any:
        """A value as an array, written down if it was held as rows."""
        if not is_structured(value):
            return value
        if isinstance(value, Summed) and value.carry is not None:
            raise CarryRead(value.carry)
        if has_rows(value):
            self.events.append(self._densified(value, eqn, why))
        return dense(value)

    def returned(self, value: Value, eqn: Equation | None) -> Any:
        """An output as an array; `eqn` made it."""
        if has_rows(value):
            self.events.append(self._densified(value, eqn, "it is returned")._replace(primitive="output"))
        return dense(value)

    def _densified(self, value: Value, eqn: Equation | None, why: str) -> Event:
        base = value.base if isinstance(value, Patched) else None
        name, line = ("output", self.line) if eqn is None else (eqn.primitive.name, self.line_of(eqn))
        kind, count = f"{_dtype(value)}{list(value.shape)}", num_stored(value)
        if isinstance(base, Swept) and base.by is None:
            return Event(IN_PLACE, name, kind, count, "rows written into an array that is there anyway", line)
        if isinstance(base, Swept):
            self.sweeps.update(base.chain)
            why = f"all rows change in {base.by}"
        if isinstance(base, Uniform) and not base.is_zero:
            why = f"{why}; the rows that were not read are no longer zero"
        return Event(DENSE, name, kind, count, why, line)


def _dtype(value: Value) -> str:
    return str(value.rows.dtype)
