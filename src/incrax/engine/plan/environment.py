"""What is known of each variable while a plan for rows is traced, and rows of it.

In: equations, `Facts`, what the change made of variables so far. Out: rows, or all, of any of them,
as they are now or were at the baseline; what is to be saved, and what must hold. It must not know
what an equation does with rows that meet.

A variable that is not in `dirty` is clean: rows of it are taken, or made of rows of what it is made of
(`pulled`). One that is dirty in rows has nothing else: what reads all of it gets the baseline's value
with the new rows written in, which is saved again.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars, written_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.resumed import Spans, spans_of
from incrax.engine.plan.row_sets import (
    MAX_HALVINGS,
    DirtyRows,
    LookedUp,
    RowSet,
    RowSets,
    Slabs,
    by_one_thread,
    ids_read,
    masked,
    with_rows,
)
from incrax.engine.rewrites.derived import in_order
from incrax.primitives.on_rows import Aligned, NotByRowsError, run_on_rows

MAX_LOST = 2.0**10
"""By how much what goes into a difference may exceed what comes out, and the new rows."""

MAX_TABLE_SHARE = 0.25
"""Of all rows, those that a look-up, or different sets that meet, may make dirty."""

ANEW_S = 5e-6
"""Estimated seconds up to which all of a value is computed, and not kept to write new rows into,
beside those of its bytes: to return it, look after it and hand it to the next call takes as long.
"""

MAX_INTERVAL_SHARE = 0.5
"""Of all rows, those that an interval that is known when the plan is made may have."""

MIXED = "rows meet along different axes"

T = TypeVar("T")

ValueOf = Callable[[Var], "np.ndarray | None"]
"""The present value of a clean variable; None where it is not to be had."""


class AgainError(Exception):
    """A run found out that it needs what it was not given."""


@dataclass
class Requested:
    """What a trace turns out to read besides clean variables: of these, the baseline's value; of
    those, which are derived and clean, the present one; and whether old rows are needed.
    """

    olds: dict[Var, None] = field(default_factory=dict)
    tables: dict[Var, None] = field(default_factory=dict)
    old_rows: bool = False


class PutOff(NamedTuple):
    """How what changed as a whole is known before it is made, when it is read: the products that it is
    the sum of.
    """

    terms: tuple[Any, ...]  # see `weighted_rows`


class InSpans(NamedTuple):
    """How what was made as a whole changed: in these intervals of an axis alone."""

    axis: int
    spans: Spans


@dataclass(eq=False)
class RowEnvironment(abc.ABC):
    """The variables of one run.

    `adds_changes`: sums get their difference whatever it costs to sum anew, so that nothing but the
    new rows is made: for steps of compiled loops.

    `widths`: of the table of a look-up, how many slots are read; the caller knows that the others
    of these rows are spare. `moving` are the bits of inputs that are known to change.
    """

    facts: Facts
    value_of: ValueOf
    adds_changes: bool = False
    widths: Mapping[Var, int] = field(default_factory=dict)
    moving: int = 0

    def __post_init__(self) -> None:
        self.derived_values = self.facts.derived
        self.writer = {var: eqn for eqn in self.facts.eqns for var in written_vars(eqn)}
        self.asked = Requested()
        self.looked_up: dict[Var, RowSet] = {}  # by table, the rows that were found in it
        self.begin({}, {})

    def begin(self, known: dict[Var, Any], olds: dict[Var, Any]) -> None:
        """Begin a run with these values, and these of the baseline; see `Slicer.run`."""
        # How what the change reaches changed: `DirtyRows`, `Slabs`, `PutOff`, `InSpans`, or (None) as
        # a whole, of which nothing more is known.
        self.dirty: dict[Var, Any] = {}
        self.whole = known  # values as they are now, of all rows
        self.olds = olds  # the same at the baseline
        # What costs little of either, computed anew: with whether it is of the baseline.
        self.anew: dict[tuple[Var, bool], Any] = {}
        self.sets = RowSets()
        self.rows_at: dict[Any, Any] = {}  # rows that were made besides the dirty ones
        self.saves: dict[Var, Any] = {}  # what the next call reads
        self.row_saves: dict[Var, DirtyRows] = {}  # of these, what was written into the baseline's
        self.guards: list[Any] = []  # what must hold
        self.united: set[Var] = set()  # made of a union that is known for each argument
        self.drifting: set[Var] = set()  # what stands on differences
        self.crosses = False  # rows along two axes meet
        self.is_old = False  # rows are made as they were at the baseline
        self.num_changed = 0

    def _how(self, atom: Atom) -> Any:
        return self.dirty.get(atom) if isinstance(atom, Var) else None

    def rows(self, atom: Atom) -> DirtyRows | None:
        """Its dirty rows along one axis, if that is how it changed."""
        how = self._how(atom)
        return how if isinstance(how, DirtyRows) else None

    def sides(self, atom: Atom) -> Sequence[DirtyRows]:
        """Its dirty rows, along each axis that has some."""
        how = self._how(atom)
        if isinstance(how, DirtyRows):
            return (how,)
        return how if isinstance(how, Slabs) else ()

    def spans(self, atom: Atom) -> InSpans | None:
        """The intervals of an axis outside of which it is as it was, if there are any known."""
        how = self._how(atom)
        if isinstance(how, DirtyRows):
            return InSpans(how.axis, spans_of(how.of))
        return how if isinstance(how, InSpans) else None

    def axis_of(self, atom: Atom) -> int | None:
        """The axis of these."""
        rows = self.rows(atom)
        return None if rows is None else rows.axis

    def is_dirty(self, atom: Atom) -> bool:
        """Whether the change reaches it."""
        return isinstance(atom, Var) and atom in self.dirty

    def set_whole(self, var: Var, value: Any) -> None:
        """Note a variable of which all rows changed."""
        self.dirty[var] = None
        self.whole[var] = value

    def note_same(self, var: Var, made: Var) -> None:
        """Note that a variable is what a derived one is."""
        self.dirty[var] = self.dirty[made]
        if made in self.whole:
            self.whole[var] = self.whole[made]
        self.writer[var] = self.writer[made].replace(outvars=[var])

    def put_off_as(self, atom: Atom) -> tuple[Any, ...]:
        """The products that stand for a variable that was put off; none of any other."""
        how = self._how(atom)
        return how.terms if isinstance(how, PutOff) else ()

    def set_rows(self, var: Var, axis: int, of: RowSet, make: Callable[[], Any]) -> None:
        """Note the dirty rows of a variable. It stays as it is where there are none."""
        if not of.size:
            self.whole[var] = self.stays(var)
            return
        new, old = self.now_and_then(make)
        self.dirty[var] = DirtyRows(new, old, axis, of)

    def now_and_then(self, make: Callable[[], T]) -> tuple[T, T | None]:
        """What a function makes of rows, as they are and, where that is asked for, as they were."""
        return make(), self.as_they_were(make) if self.asked.old_rows else None

    def as_they_were(self, make: Callable[[], T]) -> T:
        """What a function makes of rows at the baseline: `at`, `counted`, `rows_of` and `on_rows`
        have these meanwhile.
        """
        self.is_old = True
        try:
            return make()
        finally:
            self.is_old = False

    def at(self, rows: DirtyRows) -> Any:
        """The values of dirty rows."""
        return rows.old if self.is_old else rows.new

    def counted(self, rows: DirtyRows) -> Any:
        """The same, zero where they repeat others."""
        return masked(self.at(rows), rows.axis, rows.of.counts)

    # --- which rows -------------------------------------------------------------------------------

    def union(self, sets: Sequence[RowSet]) -> RowSet:
        """The rows of all sets."""
        found = self.sets.union(sets, self._are_apart)
        if found is None:
            sizes = " and ".join(f"{each.size} of {each.length}" for each in sets)
            raise NotByRowsError(f"different rows meet: {sizes}")
        self.check_size(found, sets)
        return found

    def check_size(self, of: RowSet, sets: Sequence[RowSet] = ()) -> None:
        """Raise where rows are too many to be told apart: not if one of the sets that they are made
        of has as many. Side by side they cost less: as many as changed are never too many.
        """
        if any(of.size <= each.size for each in sets):
            return
        if of.halvings > MAX_HALVINGS and of.ends is None:
            raise NotByRowsError(f"every other row was taken more than {MAX_HALVINGS} times")
        most = 2 * self.num_changed
        if of.ends is None or of.size > max(MAX_INTERVAL_SHARE * of.length, most):
            check_few(of.size, of.length)

    def _are_apart(self, one: RowSet, other: RowSet) -> bool:
        """Whether two look-ups of one row have no row in common: those of pairs of different ones."""
        a, b = one.origin, other.origin
        if not isinstance(a, LookedUp) or not isinstance(b, LookedUp):
            return False
        if a.of is not b.of or a.of.size > 1 or not self.are_fixed(a.ids.indices, b.ids.indices):
            return False
        length = a.of.length
        ids = [self.ids_of(x.indices, length, clips=x.clips) for x in (a.ids, b.ids)]
        return not np.any(ids[0] == ids[1])

    def are_fixed(self, *indices: Var) -> bool:
        """Whether indices are the same for as long as the program lives: constants, or, in compiled
        loops, what does not move there.
        """
        return self.adds_changes or not any(map(self.facts.mask, indices))

    def ids_of(self, indices: Var, length: int, *, clips: bool = False) -> np.ndarray:
        """The present indices of a look-up."""
        with jax.ensure_compile_time_eval():  # else it would be part of what is traced
            value = self.value_of(indices)
        if value is None:
            raise NotByRowsError("its indices are not known before it runs")
        return ids_read(np, value, length, clips=clips)

    # --- rows of values ---------------------------------------------------------------------------

    def on_rows(self, eqn: Equation, aligned: Aligned, of: RowSet) -> list[Any]:
        """What an equation makes of some rows of its operands."""
        values = [
            self._all_of(atom) if axis is None else self.rows_of(atom, axis, of)
            for atom, axis in zip(eqn.invars, aligned.operands, strict=True)
        ]
        found = run_on_rows(eqn, aligned, of.size, values)
        if eqn.primitive.name == "gather":
            found = [by_one_thread(found[0], values[0], of)]
        return found

    def _all_of(self, atom: Atom) -> Any:
        """All of an operand that is not read row by row."""
        if self.rows(atom) is not None and not self.crosses:
            raise NotByRowsError("each row meets all rows of another operand that changed")
        was_other = isinstance(atom, Var) and self.was_other(atom)
        return self.all_old_rows(atom) if was_other else self.result(atom)

    def was_other(self, var: Var) -> bool:
        """Whether rows of a variable are to be the baseline's, which are not the present ones."""
        return self.is_old and var in self.dirty

    def rows_of(self, atom: Atom, axis: int, of: RowSet) -> Any:
        """The rows of an operand in a set: those that were made, or made now."""
        for side in self.sides(atom):
            if side.of is of and side.axis == axis:
                return self.at(side)
        rows = self.rows(atom)
        assert isinstance(atom, Var)
        if rows is not None and of.ends is not None and atom not in self.facts.invars:
            return self._interval_of(atom, rows, axis, of.ends)
        key = (atom, axis, of, self.was_other(atom))
        if key not in self.rows_at:
            self.rows_at[key] = self.pulled(atom, axis, of)
        return self.rows_at[key]

    @abc.abstractmethod
    def derived(self, kind: Any, inputs: Sequence[Var], fun: Callable[..., Any]) -> Var:
        """The variable that a function makes of others, run like an equation of the program."""

    @abc.abstractmethod
    def pulled(self, var: Var, axis: int, of: RowSet) -> Any:
        """Rows of a variable of which there are none yet."""

    def _interval_of(self, var: Var, rows: DirtyRows, axis: int, ends: tuple[int, int]) -> Any:
        """An interval of a variable that is dirty in one: the baseline's beside that."""
        if rows.of.ends is None or rows.axis != axis:
            raise NotByRowsError(MIXED)
        low, high = ends
        first, stop = (min(max(end, low), high) for end in rows.of.ends)
        pieces = []
        if low < first:
            pieces.append(self.piece(var, axis, low, first))
        if first < stop:
            inside = (place - rows.of.ends[0] for place in (first, stop))
            pieces.append(lax.slice_in_dim(self.at(rows), *inside, axis=axis))
        if stop < high:
            pieces.append(self.piece(var, axis, stop, high))
        return lax.concatenate(pieces, axis)

    def piece(self, var: Var, axis: int, low: int, high: int) -> Any:
        """An interval of the baseline's value, which this change does not reach."""
        cut = lambda x: lax.slice_in_dim(x, low, high, axis=axis)
        return self.stays(self.derived_values.make(("rows", low, high, axis), [var], cut))

    def stays(self, var: Var) -> Any:
        """The baseline's value of what this change does not reach, and which stays current."""
        self.saves[var] = self.baseline(var)
        return self.saves[var]

    # --- whole values -----------------------------------------------------------------------------

    def result(self, atom: Atom) -> Any:
        """A value as a whole, new rows written in."""
        if isinstance(atom, Literal):
            return atom.val
        how = self.dirty.get(atom)
        if isinstance(how, DirtyRows):
            return self.all_rows(atom, how)
        if isinstance(how, PutOff) and atom not in self.whole:
            (self.whole[atom],) = self.results(self.writer[atom])
        if isinstance(how, Slabs) and atom not in self.whole:
            value = functools.reduce(with_rows, how, self.baseline(atom))
            self.saves[atom] = self.whole[atom] = value
        return self.whole[atom]

    def results(self, eqn: Equation) -> Sequence[Any]:
        """What an equation makes of all of its operands."""
        return _jax.apply(eqn, list(map(self.result, eqn.invars)))

    def all_rows(self, var: Var, rows: DirtyRows) -> Any:
        """All of a variable of which some rows changed: computed from inputs where that costs little,
        else the baseline's with the new rows, which is saved.
        """
        value = self._anew(var, is_old=False)
        return self.written(var, rows) if value is None else value

    def all_old_rows(self, var: Var) -> Any:
        """All of a dirty variable at the baseline: computed from its inputs, or kept, likewise."""
        value = self._anew(var, is_old=True)
        return self.kept(var) if value is None else value

    def _anew(self, var: Var, *, is_old: bool) -> Any | None:
        """All of a variable, computed, where that costs little; None where it does not."""
        rows = self.rows(var)
        known = self.anew.get((var, is_old))
        if (
            known is not None
            or self.adds_changes
            or (rows is not None and rows.of.ends is not None)
        ):
            return known
        for eqn in self._cheap_equations(var, is_old=is_old):
            values = [self._at_hand(atom, is_old=is_old) for atom in eqn.invars]
            made = _jax.apply(eqn, values)
            self.anew.update(((x, is_old), y) for x, y in zip(eqn.outvars, made, strict=True))
        return self.anew.get((var, is_old))

    def _cheap_equations(self, var: Var, *, is_old: bool) -> Sequence[Equation]:
        """Those that make a variable of what is at hand, in order; none where they cost more than to
        keep it.
        """
        prices = self.facts.calibration
        num_bytes = _jax.aval_bytes(var.aval)
        most = ANEW_S + prices.load_seconds(num_bytes) + prices.save_seconds(num_bytes)
        eqns: list[Equation] = []
        seconds = 0.0
        pending = [var]
        while pending:
            eqn = self.writer.get(pending.pop())
            seconds += math.inf if eqn is None else self.facts.seconds(eqn)
            if eqn is None or seconds > most:
                return ()
            if eqn not in eqns:
                eqns.append(eqn)
                pending += [x for x in read_vars(eqn) if not self._is_at_hand(x, is_old=is_old)]
        return in_order(eqns) or ()

    def _is_at_hand(self, var: Var, *, is_old: bool) -> bool:
        """Whether all of a variable is there without computing it."""
        is_given = var not in self.dirty or var in self.facts.invars or (var, is_old) in self.anew
        return is_given or (not is_old and (self.rows(var) is None or var in self.saves))

    def _at_hand(self, atom: Atom, *, is_old: bool) -> Any:
        if isinstance(atom, Var) and (atom, is_old) in self.anew:
            return self.anew[atom, is_old]
        is_leaf = isinstance(atom, Var) and atom in self.facts.invars and atom in self.dirty
        return self.baseline(atom) if is_old and is_leaf else self.result(atom)

    def baseline(self, var: Var) -> Any:
        """The baseline's value of a variable; nothing of worth where it was not asked for before."""
        self.asked.olds[var] = None
        return self.olds[var] if var in self.olds else zeros_of(var)

    def kept(self, var: Var) -> Any:
        """The baseline's value of a dirty variable, which is saved for the next call."""
        rows = self.rows(var)
        if var in self.facts.invars:
            return self.baseline(var)
        if rows is None:
            self.saves[var] = self.result(var)
        else:
            self.written(var, rows)
        return self.baseline(var)

    def table(self, var: Var) -> Any:
        """A clean derived value, likewise."""
        self.asked.tables[var] = None
        return self.whole[var] if var in self.whole else zeros_of(var)

    def written(self, var: Var, rows: DirtyRows) -> Any:
        """The baseline's value of a variable with its new rows; that of a leaf may be there."""
        if var not in self.saves and not (var in self.facts.invars and var in self.whole):
            self.saves[var] = self.whole[var] = with_rows(self.baseline(var), rows)
            self.row_saves[var] = rows
        return self.whole[var]

    # --- differences ------------------------------------------------------------------------------

    def add_difference(
        self,
        eqn: Equation,
        part: Callable[[], Any],
        finished: Callable[[Any], Any] = lambda after: after,
    ) -> None:
        """S + (sum over the dirty rows now) - (the same at the baseline), `finished`, which is
        saved.
        """
        (total,) = eqn.outvars
        self.want_difference(total)
        new, old = part(), self.as_they_were(part)
        before = self.baseline(total)
        self.set_changed(total, before, finished(before + (new - old)), new, old)

    def set_changed(self, var: Var, before: Any, after: Any, new: Any, old: Any) -> None:
        """Note a value that was changed by a difference, and when it may be used."""
        self.set_whole(var, after)
        self.drifting.add(var)
        self.saves[var] = after
        self.guard_difference(before, after, new, old)

    def guard_difference(self, before: Any, after: Any, new: Any, old: Any) -> None:
        """Require that no more was lost to rounding than what is left may lose: of the largest
        elements. One by one, sums that vanish exactly, as in sparse gradients, would all be refused.
        """
        if jnp.issubdtype(after.dtype, jnp.inexact):
            lost = lax.max(_largest(before), _largest(old))
            left = lax.max(_largest(after), _largest(new))
            self.guards += [lost <= MAX_LOST * left, lax.is_finite(lost)]

    def want_difference(self, total: Var) -> None:
        """The rows as they were are computed again, by the next run.

        Raises:
            NotByRowsError: of such numbers there are no differences, or `MAX_LOST` is all their digits.
        """
        dtype = total.aval.dtype
        is_coarse = jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).eps * MAX_LOST >= 1.0
        if _jax.is_key_dtype(dtype) or dtype == np.bool_ or is_coarse:
            raise NotByRowsError("of its type there are no differences")
        if not self.asked.old_rows:
            self.asked.old_rows = True
            raise AgainError


def is_few(num_rows: int, length: int) -> bool:
    """Whether to run that many rows of an axis, rather than all: one always, as where the levels of
    a tree get short there are long ones behind.
    """
    return num_rows <= max(1, MAX_TABLE_SHARE * length)


def check_few(num_rows: int, length: int) -> None:
    """Raise where it is not so."""
    if not is_few(num_rows, length):
        found = f"{min(num_rows, length)} of {length} rows would run"
        raise NotByRowsError(f"{found}, which is too many to be told apart")


def zeros_of(var: Var) -> Any:
    """Zeros of its type."""
    return jnp.zeros(var.aval.shape, var.aval.dtype)


def size_of(value: Any) -> Any:
    """The absolute value; of complex numbers the larger one of their parts, without a root."""
    if jnp.issubdtype(value.dtype, np.complexfloating):
        return lax.max(lax.abs(lax.real(value)), lax.abs(lax.imag(value)))
    return lax.abs(value)


def _largest(value: Any) -> Any:
    size = size_of(value)
    return lax.reduce_max(size, tuple(range(size.ndim)))
