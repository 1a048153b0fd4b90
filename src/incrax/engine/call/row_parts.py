"""What each row of some inputs adds to a number: the sum of the terms that it is in; and colours of rows,
such that no term has two rows of one colour.

In: `Facts` of a function of which the result is a number, values of its inputs, some of which have
rows. Out: the part of each row, and colours. It must not know who moves the rows.

Of a ring of spins, f(x) = J sum_i x_i x_i+1, equation by equation:

    x                 entry i has row i
    y = roll(x, -1)   entry i has row i + 1: entries go to other places, or are looked up
    z = x * y         entry i has rows i and i + 1: each is made of the entries of its place
    s = sum(z)        row i is in entries i - 1 and i of z, and its part is their sum
    f = J * s         the part of row i is J times as much: what follows the sum must be linear

Rows i and i + 1 are in one entry together, rows i and i + 2 are not: of an even number of them two
colours are enough. What is linear keeps terms apart, each with entries of its own, and a product is that
of all pairs: in s * (left + right) no term has both left and right. All is computed as a whole: one
evaluation gives all parts.

Promise: where only some rows of x, of one colour, change to y, f(y) - f(x) is the sum over these of
q_i(y) - q_i(x), q_i the part of row i. Where no term has two rows, all rows are of one colour.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import Values, read_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.looked_up_rows import batch_of, member_table
from incrax.engine.plan.plan import reached_equations
from incrax.engine.plan.row_sets import ids_read
from incrax.engine.plan.slicer import way_of
from incrax.primitives.entry import Run, shape_of
from incrax.primitives.indexing import windows_of
from incrax.primitives.on_rows import Aligned, NotByRowsError

LINEAR_IN_ALL = frozenset(
    """add add_any sub neg convert_element_type reduce_sum reshape squeeze broadcast_in_dim
    transpose copy""".split()
)
"""What is linear in all of its operands together, the constant left aside."""

LINEAR_IN_ONE = frozenset({"mul", "dot_general"})
"""What is linear in any one of its operands, the others given."""

MAX_TERMS = 16
"""Of a variable."""

MAX_ROWS_TOGETHER = 16
"""Of an entry."""

MAX_MEMBERS = 256
"""Entries that a row is in, of a term whose entries have several."""

MAX_COLOURS = 16

MAX_COLOURED = 2**20
"""Rows, which are coloured one by one."""


class _Rows(NamedTuple):
    """Which rows the entries of a term have."""

    # Shape (entries, k), the number of rows standing for none; None: not known while JAX traces.
    numbers: np.ndarray | None
    ids: Any = None  # as a program has them, of one row each

    @property
    def width(self) -> int:
        """How many rows an entry has at most."""
        return 1 if self.numbers is None else self.numbers.shape[1]

    @property
    def known(self) -> np.ndarray:
        """The numbers.

        Raises:
            NotByRowsError: they are not known.
        """
        if self.numbers is None:
            raise NotByRowsError
        return self.numbers


class _Term(NamedTuple):
    """A summand of a variable."""

    value: Any  # of the variable's shape
    rows: _Rows  # of its entries


class _Entries(NamedTuple):
    """A variable as a sum of terms, before the sum over the entries."""

    terms: tuple[_Term, ...]
    axis: int  # of the entries


class _SumOfRows(NamedTuple):
    """A variable behind the sum over the entries: a constant, and a part of each row."""

    parts: Any  # along the first axis


ValueOf = Callable[[Var], Any]


class RowParts:
    """One evaluation of f by terms."""

    parts: Any  # of the rows, shape (rows,)

    def __init__(
        self, facts: Facts, rows: Mapping[Var, Any], known: Mapping[Var, Any], value_of: ValueOf
    ) -> None:
        """Evaluate.

        Args:
            facts: the analysed function.
            rows: inputs of which a row each changes together; all have as many.
            known: values of the other variables that do not depend on them.
            value_of: values of indices, as far as they are known while JAX traces.

        Raises:
            NotByRowsError: nothing of the kind is known.
        """
        lengths = {x.shape[:1] for x in rows.values()}
        if [var.aval.shape for var in facts.outvars] != [()] or len(lengths) != 1 or () in lengths:
            raise NotByRowsError
        ((self._length,),) = lengths
        out = facts.outvars[0]
        self._known = known
        self._value_of = value_of
        # Of x itself; of a look-up of x, by its indices and whether these clip.
        self._own = _Rows(np.arange(self._length, dtype=np.int32)[:, None])
        self._ids: dict[tuple[int, bool], _Rows] = {}
        self._states: dict[Var, _Entries | _SumOfRows] = {
            var: _Entries((_Term(x, self._own),), 0) for var, x in rows.items()
        }
        self._summed_rows: list[_Rows] = []  # of each term that was summed over its entries
        dirty = sum(map(facts.mask, rows))
        if isinstance(out, Literal) or not facts.mask(out) & dirty:
            self.parts = jnp.zeros(self._length, out.aval.dtype)
            return
        for eqn in reached_equations(facts, dirty, [out]):
            self._step(eqn)
        found = self._states[out]
        if isinstance(found, _Entries):
            raise NotByRowsError
        self.parts = found.parts

    def colours(self) -> np.ndarray | None:
        """A colour for each row; see `colours_of`.

        Raises:
            NotByRowsError: it is not known which rows are in one entry together.
        """
        if all(rows.width == 1 for rows in self._summed_rows):
            return np.zeros(self._length, np.int32)
        return colours_of([rows.known for rows in self._summed_rows], self._length)

    def _step(self, eqn: Equation) -> None:
        read = [self._states[var] for var in read_vars(eqn) if var in self._states]
        sums = [state for state in read if isinstance(state, _SumOfRows)]
        if eqn.effects or (sums and len(sums) < len(read)):
            raise NotByRowsError
        if sums:
            self._states[eqn.outvars[0]] = _SumOfRows(self._linear_parts(eqn))
            return
        operands = {n: x for n, x in enumerate(map(self._entries, eqn.invars)) if x is not None}
        axes = [operands[n].axis if n in operands else None for n in range(len(eqn.invars))]
        way, found = way_of(eqn, axes)
        if way == "maps":
            self._map_rows(eqn, operands, found)
            return
        rules: dict[str, Callable[..., _Entries | _SumOfRows]] = {
            "reduce_sum": self._reduced,
            "dot_general": self._contracted,
            "gather": self._looked_up,
        }
        rule = rules.get(eqn.primitive.name)
        if way == "moves":
            rule = functools.partial(self._moved, runs=found[0])
        if rule is None or len(eqn.outvars) > 1:
            raise NotByRowsError
        self._states[eqn.outvars[0]] = rule(eqn, operands, axes)

    def _entries(self, atom: Atom) -> _Entries | None:
        found = self._states.get(atom) if isinstance(atom, Var) else None
        return found if isinstance(found, _Entries) else None

    def _clean(self, atom: Atom) -> Any:
        return atom.val if isinstance(atom, Literal) else self._known[atom]

    def _applied(
        self, eqn: Equation, given: Mapping[int, _Term], *, is_first: bool = True
    ) -> Values:
        """The equation of these operands; other dirty ones are zero, and all where it is not the
        first.
        """
        values = []
        for number, atom in enumerate(eqn.invars):
            if number in given:
                values.append(given[number].value)
            elif is_first and self._entries(atom) is None:
                values.append(self._clean(atom))
            else:
                values.append(jnp.zeros(atom.aval.shape, atom.aval.dtype))
        return _jax.apply(eqn, values)

    # --- entries to entries -----------------------------------------------------------------------

    def _map_rows(self, eqn: Equation, operands: Mapping[int, _Entries], aligned: Aligned) -> None:
        """Each entry is made of the entries of its place."""
        is_linear = eqn.primitive.name in LINEAR_IN_ALL and not _rounds(eqn)
        groups = self._groups(eqn, operands, is_linear=is_linear)
        rows = [self._together([term.rows for term in own.values()]) for own in groups]
        values = [
            self._applied(eqn, own, is_first=not (is_linear and place))
            for place, own in enumerate(groups)
        ]
        for number, (var, axis) in enumerate(zip(eqn.outvars, aligned.outputs, strict=True)):
            if axis is None:  # of a loop that makes something else, too
                raise NotByRowsError
            terms = [_Term(made[number], own) for made, own in zip(values, rows, strict=True)]
            self._states[var] = _Entries(tuple(terms), axis)

    def _groups(
        self, eqn: Equation, operands: Mapping[int, _Entries], *, is_linear: bool
    ) -> Sequence[Mapping[int, _Term]]:
        """The terms of the operands that make one of the result, for each one."""
        terms = {number: entries.terms for number, entries in operands.items()}
        if is_linear:
            by_rows: dict[int, dict[int, _Term]] = {}
            for number, own in terms.items():
                for term in own:
                    by_rows.setdefault(id(term.rows), {})[number] = term
            return _bounded(by_rows.values())
        name = eqn.primitive.name
        is_one = name in LINEAR_IN_ONE or (name == "div" and list(terms) == [0])
        if not is_one or _rounds(eqn):
            terms = {number: (self._merged(own),) for number, own in terms.items()}
        return _bounded(
            dict(zip(terms, chosen, strict=True)) for chosen in itertools.product(*terms.values())
        )

    def _merged(self, terms: Sequence[_Term]) -> _Term:
        """Their sum, which has all rows that any has."""
        value = sum((term.value for term in terms[1:]), terms[0].value)
        return _Term(value, self._together([term.rows for term in terms]))

    def _together(self, rows: Sequence[_Rows]) -> _Rows:
        """Rows of each entry, each once.

        Raises:
            NotByRowsError: they are too many, or not known.
        """
        if all(each is rows[0] for each in rows):
            return rows[0]
        found = np.sort(np.concatenate([each.known for each in rows], axis=1), axis=1)
        # The greatest number stands for none; a row that repeats the one before it does, too.
        spare = np.int32(self._length)
        is_same = np.diff(found, axis=1, prepend=-1) == 0
        found = np.sort(np.where(is_same, spare, found), axis=1)
        found = found[:, ~np.all(found == spare, axis=0)]
        if found.shape[1] > MAX_ROWS_TOGETHER:
            raise NotByRowsError
        return _Rows(found)

    def _moved(
        self, eqn: Equation, operands: Mapping[int, _Entries], axes: Any, runs: Sequence[Run]
    ) -> _Entries:
        """Entries go to other places."""
        axis, *others = {axis for axis in axes if axis is not None}
        if others or not operands.keys() <= {run.operand for run in runs}:
            raise NotByRowsError
        terms = []
        for place in range(max(len(x.terms) for x in operands.values())):
            own = {n: x.terms[place] for n, x in operands.items() if place < len(x.terms)}
            width = max(term.rows.width for term in own.values())
            rows = np.full((shape_of(eqn.outvars[0])[axis], width), self._length, np.int32)
            for run in runs:
                if run.operand in own:
                    source = own[run.operand].rows.known
                    to = run.out + run.out_step * np.arange(run.num)
                    rows[to, : source.shape[1]] = source[run.first + run.step * np.arange(run.num)]
            (value,) = self._applied(eqn, own, is_first=not place)
            terms.append(_Term(value, _Rows(rows)))
        return _Entries(_bounded(terms), axis)

    def _looked_up(self, eqn: Equation, operands: Mapping[int, _Entries], axes: Any) -> _Entries:
        """`x[ids]`: entries that have the rows of those that were looked up."""
        if 0 not in operands or 1 in operands:
            raise NotByRowsError
        batch = batch_of(eqn, axes[0])
        terms = []
        for term in operands[0].terms:
            (value,) = self._applied(eqn, {0: term})
            terms.append(_Term(value, self._read(eqn, axes, term)))
            eqn = eqn.replace(params={**eqn.params, "fill_value": 0})  # in one term alone
        return _Entries(_bounded(terms), batch)

    def _read(self, eqn: Equation, axes: Any, term: _Term) -> _Rows:
        """Which rows look-ups read; by the same indices, the same."""
        operand, indices = eqn.invars
        is_first = term.rows is self._own
        clips = not windows_of(eqn).is_dropping
        key = (id(indices), clips)
        if is_first and key in self._ids:
            return self._ids[key]
        length = shape_of(operand)[axes[0]]
        known = self._value_of(indices) if isinstance(indices, Var) else indices.val
        numbers = None
        if known is not None:
            none = np.full((1, term.rows.width), self._length, np.int32)
            read = ids_read(np, np.asarray(known), length, clips=clips)
            numbers = np.concatenate([term.rows.known, none])[read]
        elif not is_first:
            raise NotByRowsError
        if not is_first:
            return _Rows(numbers)
        ids = ids_read(jnp, jnp.asarray(self._clean(indices)), length, clips=clips)
        return self._ids.setdefault(key, _Rows(numbers, ids))

    # --- sums over the entries --------------------------------------------------------------------

    def _reduced(self, eqn: Equation, operands: Mapping[int, _Entries], axes: Any) -> _SumOfRows:
        """A sum over the entries, and other axes."""
        (axis,) = axes
        summed = eqn.params["axes"]
        if axis not in summed:
            raise NotByRowsError
        others = tuple(d + (d < axis) for d in summed if d != axis)
        return self._summed(
            _Term(jnp.sum(jnp.moveaxis(x, axis, 0), others, x.dtype), rows)
            for x, rows in operands[0].terms
        )

    def _contracted(self, eqn: Equation, operands: Mapping[int, _Entries], axes: Any) -> _SumOfRows:
        """A product of matrices, summed over the entries."""
        contracted, _ = eqn.params["dimension_numbers"]
        fits = lambda pair: all(axis in (None, d) for axis, d in zip(axes, pair, strict=True))
        pair = next(filter(fits, zip(*contracted, strict=True)), None)
        if pair is None:
            raise NotByRowsError

        def of_entry(factors: Values) -> Any:
            whole = [jnp.expand_dims(x, d) for x, d in zip(factors, pair, strict=True)]
            return _jax.apply(eqn, whole)[0]

        def product(chosen: Mapping[int, _Term]) -> _Term:
            factors = [
                chosen[n].value if n in chosen else self._clean(atom)
                for n, atom in enumerate(eqn.invars)
            ]
            apart = [jnp.moveaxis(x, d, 0) for x, d in zip(factors, pair, strict=True)]
            rows = self._together([term.rows for term in chosen.values()])
            return _Term(jax.vmap(of_entry)(apart), rows)

        return self._summed(map(product, self._groups(eqn, operands, is_linear=False)))

    def _summed(self, terms: Iterable[_Term]) -> _SumOfRows:
        """Terms along the first axis: each row has the sum of those in which it is."""
        total: Any = 0
        for term in terms:
            self._summed_rows.append(term.rows)
            total = total + self._by_row(*term)
        return _SumOfRows(total)

    def _by_row(self, value: Any, rows: _Rows) -> Any:
        length = self._length
        if rows is self._own:
            return value
        if rows.width == 1:
            ids = rows.known[:, 0] if rows.ids is None else rows.ids
            room = jnp.zeros((length + 1, *value.shape[1:]), value.dtype)
            return room.at[ids].add(value)[:length]
        flat = rows.known.ravel()
        width = int(np.bincount(flat, minlength=1)[:length].max(initial=1))
        if width > MAX_MEMBERS:
            raise NotByRowsError
        slots = member_table(flat, length, width, clips=False)
        padded = jnp.concatenate([value, jnp.zeros((1, *value.shape[1:]), value.dtype)])
        return jnp.sum(padded[slots // rows.width], axis=1, dtype=value.dtype)

    # --- after the sum ----------------------------------------------------------------------------

    def _linear_parts(self, eqn: Equation) -> Any:
        """An equation of sums: what each row adds to its result."""
        name = eqn.primitive.name
        states = [self._states.get(x) if isinstance(x, Var) else None for x in eqn.invars]
        is_sum = [state is not None for state in states]
        is_scaled = name in LINEAR_IN_ONE and sum(is_sum) == 1
        is_divided = name == "div" and is_sum == [True, False]
        if not (name in LINEAR_IN_ALL or is_scaled or is_divided):
            raise NotByRowsError
        if _rounds(eqn):
            raise NotByRowsError
        clean = [None if own else self._clean(x) for x, own in zip(eqn.invars, is_sum, strict=True)]
        if name in LINEAR_IN_ALL:  # what is added is a constant, of which no row has a part
            clean = [None if x is None else jnp.zeros_like(x) for x in clean]

        def of_row(parts: list[Any]) -> Any:
            own = iter(parts)
            values = [next(own) if is_own else x for is_own, x in zip(is_sum, clean, strict=True)]
            return _jax.apply(eqn, values)[0]

        return jax.vmap(of_row)([x.parts for x in states if isinstance(x, _SumOfRows)])


def _is_real(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def _rounds(eqn: Equation) -> bool:
    """Whether an equation is not linear, for all that the tables say: it makes integers of other numbers,
    truth values, quotients of integers, or other numbers of integers that wrap.

    Sums modulo 2^k are linear, and no longer what comes of them in another type. Integers of 32 bits
    or more are taken to have room, but for what is subtracted from numbers without a sign.
    """
    name = eqn.primitive.name
    dtype = eqn.outvars[0].aval.dtype
    source = eqn.invars[0].aval.dtype
    if name == "convert_element_type" and source.kind in "iu" and source.itemsize < 4:
        return dtype != source
    is_below_zero = name in ("neg", "sub") and dtype.kind == "u"
    is_cut = name == "div" or dtype == np.bool_ or is_below_zero
    return not _is_real(eqn.outvars[0]) and (is_cut or any(map(_is_real, eqn.invars)))


def _bounded(terms: Any) -> tuple[Any, ...]:
    """All of them.

    Raises:
        NotByRowsError: they are too many.
    """
    found = tuple(itertools.islice(terms, MAX_TERMS + 1))
    if len(found) > MAX_TERMS:
        raise NotByRowsError
    return found


def colours_of(met: Sequence[np.ndarray], length: int) -> np.ndarray | None:
    """A colour for each row, such that no term has two rows of one; None: it takes too many.

    Greedy, in the order of the rows: a chessboard takes two.
    """
    if length > MAX_COLOURED:
        return None
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
