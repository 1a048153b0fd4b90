"""Rows that meet few others: a number as a sum of terms, each of which depends on some rows of an
input; colours, such that no term depends on two rows of one colour.

In: `Facts`, values of the inputs, some of which have rows. Out: f(x) = c + sum_e t_e(x), of each term
its rows; of each row the terms that have it; colours. It must not know who moves the rows.

As in `parts`, but a row may be moved to other rows, and meet them there: an entry along the axis
has a list of rows. What is linear keeps terms apart, and a product is that of all pairs: in
s * (left + right) left and right do not meet.

Promise: where only some rows of x, of one colour, change to y, f(y) - f(x) is the sum over these of
q_i(y) - q_i(x), q_i = sum of t_e over the terms that have row i.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.parts import (
    LINEAR_IN_ALL,
    LINEAR_IN_ONE,
    SumOfRows,
    dirty_of,
    linear_parts,
)
from incrax.engine.plan.plan import reached_equations
from incrax.engine.plan.row_sets import ids_read
from incrax.engine.plan.slices import batch_of, member_table
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import NotByRowsError, aligned_by
from incrax.primitives.table import entry_of

MAX_TERMS = 16
MAX_MET = 16
"""Terms of an entry; rows of a term."""
MAX_MEMBERS = 256
"""Terms that have one row."""
MAX_COLOURS = 16
MAX_ROWS = 2**20


class _Term(NamedTuple):
    """A summand of a variable: its value, and of each entry along the axis which rows it has, shape
    (entries, k); the number of rows stands for none.
    """

    value: Any
    rows: np.ndarray


class _Entries(NamedTuple):
    """A variable as a sum of terms, whose entries along an axis have some rows each."""

    terms: tuple[_Term, ...]
    axis: int


ValueOf = Callable[[Var], Any]


class ColouredParts:
    """One evaluation of f by terms.

    Fields: q_i of each row, shape (rows,); rows of the terms, an array for each sum.
    """

    def __init__(
        self, facts: Facts, rows: Mapping[Var, Any], known: Mapping[Var, Any], value_of: ValueOf
    ) -> None:
        """See `parts.row_parts`; `value_of`: values of indices, as far as they are known.

        Raises:
            NotByRowsError: nothing of the kind is known.
        """
        out = facts.outvars[0]
        (self._length,) = {x.shape[0] for x in rows.values()}
        if len(facts.outvars) > 1 or out.aval.shape or self._length > MAX_ROWS:
            raise NotByRowsError
        self._known = known
        self._value_of = value_of
        own = np.arange(self._length, dtype=np.int32)[:, None]
        self._states: dict[Var, _Entries | SumOfRows] = {
            var: _Entries((_Term(x, own),), 0) for var, x in rows.items()
        }
        self.met: list[np.ndarray] = []
        dirty = dirty_of(facts, rows)
        if isinstance(out, Literal) or not facts.mask(out) & dirty:
            raise NotByRowsError
        for eqn in reached_equations(facts, dirty, [out]):
            self._step(eqn)
        found = self._states[out]
        if isinstance(found, _Entries):
            raise NotByRowsError
        self.parts = found.parts

    def _step(self, eqn: Equation) -> None:
        read = [self._states[var] for var in read_vars(eqn) if var in self._states]
        sums = [state for state in read if isinstance(state, SumOfRows)]
        if eqn.effects or (sums and len(sums) < len(read)):
            raise NotByRowsError
        if sums:
            self._states[eqn.outvars[0]] = SumOfRows(linear_parts(eqn, self._states, self._known))
            return
        axes = [None if terms is None else terms.axis for terms in self._operands(eqn)]
        aligned = aligned_by(eqn, axes)
        name = eqn.primitive.name
        if aligned is not None:
            if None in aligned.outputs or len(eqn.outvars) > 1:
                raise NotByRowsError
            (axis,) = aligned.outputs
            assert axis is not None
            made = _Entries(self._terms(eqn), axis)
        elif entry_of(eqn).runs is not None:
            made = self._moved(eqn, axes)
        elif name == "gather":
            made = self._looked_up(eqn, axes)
        elif name == "reduce_sum" and axes[0] is not None and axes[0] in eqn.params["axes"]:
            self._states[eqn.outvars[0]] = self._reduced(eqn, axes[0])
            return
        elif name == "dot_general" and not eqn.outvars[0].aval.shape:
            self._states[eqn.outvars[0]] = self._product(eqn)
            return
        else:
            raise NotByRowsError
        self._states[eqn.outvars[0]] = made

    def _operands(self, eqn: Equation) -> list[_Entries | None]:
        found = [self._states.get(x) if isinstance(x, Var) else None for x in eqn.invars]
        return [x if isinstance(x, _Entries) else None for x in found]

    def _clean(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._known[atom]

    def _applied(self, eqn: Equation, given: Mapping[int, Any], *, is_first: bool = True) -> Any:
        """The equation of these operands; other dirty ones are zero, and all where it is not the
        first.
        """
        values = []
        for number, (atom, entries) in enumerate(zip(eqn.invars, self._operands(eqn), strict=True)):
            if number in given:
                values.append(given[number])
            elif entries is None and is_first:
                values.append(self._clean(atom))
            else:
                values.append(jnp.zeros(atom.aval.shape, atom.aval.dtype))
        return _jax.apply(eqn, values)[0]

    def _terms(self, eqn: Equation) -> tuple[_Term, ...]:
        """Of an equation that maps entries to entries."""
        operands = self._operands(eqn)
        given = {number: x.terms for number, x in enumerate(operands) if x is not None}
        dirty = list(given)
        name = eqn.primitive.name
        is_real = [jnp.issubdtype(x.aval.dtype, jnp.inexact) for x in (*eqn.outvars, *eqn.invars)]
        rounds = not is_real[0] and any(is_real)
        is_one = name in LINEAR_IN_ONE or (name == "div" and dirty == [0])
        if name in LINEAR_IN_ALL and not rounds:
            return _bounded(
                _Term(self._applied(eqn, {number: term.value}, is_first=not place), term.rows)
                for place, (number, term) in enumerate(
                    (number, term) for number in dirty for term in given[number]
                )
            )
        if is_one and not rounds:
            choices = [[(number, term) for term in given[number]] for number in dirty]
        else:
            choices = [[(number, _merged(given[number], self._length))] for number in dirty]
        return _bounded(
            _Term(
                self._applied(eqn, {number: term.value for number, term in chosen}),
                _joined([term.rows for _, term in chosen], self._length),
            )
            for chosen in itertools.product(*choices)
        )

    def _moved(self, eqn: Equation, axes: Sequence[int | None]) -> _Entries:
        """Entries go to other places."""
        (axis,) = {axis for axis in axes if axis is not None}
        entry = entry_of(eqn)
        assert entry.runs is not None
        if len(eqn.outvars) > 1:
            raise NotByRowsError
        (runs,) = entry.runs(eqn, axis)
        moved = {run.operand for run in runs}
        operands = self._operands(eqn)
        if any(x is not None and number not in moved for number, x in enumerate(operands)):
            raise NotByRowsError
        terms = []
        for place in range(max(len(x.terms) for x in operands if x is not None)):
            own = {
                number: x.terms[place]
                for number, x in enumerate(operands)
                if x is not None and place < len(x.terms)
            }
            width = max(term.rows.shape[1] for term in own.values())
            rows = np.full((shape_of(eqn.outvars[0])[axis], width), self._length, np.int32)
            for run in runs:
                if run.operand in own:
                    source = own[run.operand].rows
                    to = run.out + run.out_step * np.arange(run.num)
                    rows[to, : source.shape[1]] = source[run.first + run.step * np.arange(run.num)]
            given = {number: term.value for number, term in own.items()}
            terms.append(_Term(self._applied(eqn, given, is_first=not place), rows))
        return _Entries(_bounded(terms), axis)

    def _looked_up(self, eqn: Equation, axes: Sequence[int | None]) -> _Entries:
        """`x[ids]` by ids that are known."""
        operand, indices = eqn.invars
        ids = self._value_of(indices) if isinstance(indices, Var) else indices.val
        if axes[0] is None or axes[1] is not None or ids is None:
            raise NotByRowsError
        batch = batch_of(eqn, axes[0])
        clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
        length = shape_of(operand)[axes[0]]
        read = np.asarray(ids_read(np, np.asarray(ids), length, clips=clips))
        entries = self._operands(eqn)[0]
        assert entries is not None
        terms = []
        for place, term in enumerate(entries.terms):
            none = np.full((1, term.rows.shape[1]), self._length, np.int32)
            given = {0: term.value, 1: self._clean(indices)}
            rows = np.concatenate([term.rows, none])[read]
            terms.append(_Term(self._applied(eqn, given, is_first=not place), rows))
        return _Entries(_bounded(terms), batch)

    def _reduced(self, eqn: Equation, axis: int) -> SumOfRows:
        """A sum over the entries: each row has the terms in which it is."""
        entries = self._operands(eqn)[0]
        assert entries is not None
        others = [d for d in range(len(shape_of(eqn.invars[0]))) if d in eqn.params["axes"]]
        axes = tuple(d + (d < axis) for d in others if d != axis)
        apart = [
            _Term(jnp.sum(jnp.moveaxis(term.value, axis, 0), axes, term.value.dtype), term.rows)
            for term in entries.terms
        ]
        return self._summed(apart)

    def _product(self, eqn: Equation) -> SumOfRows:
        """Of two vectors."""
        none = np.zeros((*shape_of(eqn.invars[0]), 0), np.int32)
        choices = [
            [_Term(self._clean(atom), none)] if entries is None else list(entries.terms)
            for atom, entries in zip(eqn.invars, self._operands(eqn), strict=True)
        ]
        dtype = eqn.outvars[0].aval.dtype
        return self._summed(
            _bounded(
                _Term((a.value * b.value).astype(dtype), _joined([a.rows, b.rows], self._length))
                for a, b in itertools.product(*choices)
            )
        )

    def _summed(self, terms: Sequence[_Term]) -> SumOfRows:
        """Terms along the first axis: each row has the sum of those in which it is."""
        total: Any = 0
        for term in terms:
            self.met.append(term.rows)
            value = term.value
            width = int(np.bincount(term.rows.ravel(), minlength=1)[: self._length].max(initial=1))
            if width > MAX_MEMBERS:
                raise NotByRowsError
            slots = member_table(term.rows.ravel(), self._length, width, clips=False)
            padded = jnp.concatenate([value, jnp.zeros((1, *value.shape[1:]), value.dtype)])
            total = total + jnp.sum(padded[slots // term.rows.shape[1]], axis=1, dtype=value.dtype)
        return SumOfRows(total)


def _bounded(terms: Any) -> tuple[_Term, ...]:
    """All of them.

    Raises:
        NotByRowsError: they are too many.
    """
    found = tuple(itertools.islice(terms, MAX_TERMS + 1))
    if len(found) > MAX_TERMS:
        raise NotByRowsError
    return found


def _merged(terms: Sequence[_Term], length: int) -> _Term:
    """Their sum, which has all rows that any has."""
    if len(terms) == 1:
        return terms[0]
    value = sum((term.value for term in terms[1:]), terms[0].value)
    return _Term(value, _joined([term.rows for term in terms], length))


def _joined(rows: Sequence[np.ndarray], none: int) -> np.ndarray:
    """Rows of each entry, each once.

    Raises:
        NotByRowsError: they are too many.
    """
    if len(rows) == 1:
        return rows[0]
    found = np.sort(np.concatenate(rows, axis=1), axis=1)
    # The greatest number stands for none; a row that repeats the one before it does, too.
    spare = np.int32(none)
    is_same = np.concatenate(
        [np.zeros((len(found), 1), bool), found[:, 1:] == found[:, :-1]], axis=1
    )
    found = np.sort(np.where(is_same, spare, found), axis=1)
    found = found[:, ~np.all(found == spare, axis=0)]
    if found.shape[1] > MAX_MET:
        raise NotByRowsError
    return found


def colours_of(met: Sequence[np.ndarray], length: int) -> np.ndarray | None:
    """A colour for each row, such that no term has two rows of one; None: it takes too many.

    Greedy, in the order of the rows: a chessboard takes two.
    """
    pairs = [
        rows[:, [a, b]] for rows in met for a, b in itertools.combinations(range(rows.shape[1]), 2)
    ]
    found = np.concatenate([*pairs, np.zeros((0, 2), np.int32)])
    found = found[(found < length).all(axis=1)]
    both = np.unique(np.concatenate([found, found[:, ::-1]]), axis=0)
    starts = np.searchsorted(both[:, 0], np.arange(length + 1)).tolist()
    others = both[:, 1].tolist()
    colours = [-1] * length
    for row in range(length):
        taken = {colours[other] for other in others[starts[row] : starts[row + 1]]}
        colour = 0
        while colour in taken:
            colour += 1
        if colour >= MAX_COLOURS:
            return None
        colours[row] = colour
    return np.array(colours, np.int32)
