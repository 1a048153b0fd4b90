"""Rows that do not meet: a number as a sum of parts, each of which depends on one row of an input.

In: `Facts`, values of the inputs, some of which have rows. Out: f(x) = c + sum_i p_i(x_i), the p_i;
or the statement that nothing of the kind is known. It must not know who moves the rows.

The equations behind the inputs map rows to rows, as in `slices`, until a sum over the rows; what
comes after must be linear. A look-up `x[ids]` with clean ids has the rows of its ids, so that the
sum over its rows is one by ids. Everything is computed as a whole: one evaluation gives all parts.

Promise: where only some rows of x change to y, f(y) - f(x) = sum over these of p_i(y_i) - p_i(x_i).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import reached_equations
from incrax.engine.plan.row_sets import ids_read
from incrax.engine.plan.slices import batch_of
from incrax.primitives.on_rows import NotByRowsError, aligned_by

LINEAR_IN_ALL = frozenset(
    """add add_any sub neg convert_element_type reduce_sum reshape squeeze broadcast_in_dim
    transpose copy""".split()
)
"""What is linear in all of its operands together, the constant left aside."""

LINEAR_IN_ONE = frozenset({"mul", "dot_general"})
"""What is linear in any one of its operands, the others given."""


class _ByRows(NamedTuple):
    """A variable whose entries along an axis belong to one row each: the row of that number, or of
    that id, which a look-up by these indices has read.
    """

    value: Any
    axis: int
    indices: Var | None = None
    ids: Any = None


class SumOfRows(NamedTuple):
    """A variable that is a constant and a sum over rows: the summands, along the first axis."""

    parts: Any


def row_parts(facts: Facts, rows: Mapping[Var, Any], known: Mapping[Var, Any]) -> Any:
    """The parts p_i of the function's only output, shape (rows,).

    Args:
        facts: the analysed function.
        rows: inputs of which a row each changes together; all have as many.
        known: values of the other variables that do not depend on them.

    Raises:
        NotByRowsError: rows may meet.
    """
    out = facts.outvars[0]
    if len(facts.outvars) > 1 or out.aval.shape:
        raise NotByRowsError
    (length,) = {x.shape[0] for x in rows.values()}
    states: dict[Var, _ByRows | SumOfRows] = {var: _ByRows(x, 0) for var, x in rows.items()}
    dirty = dirty_of(facts, rows)
    if isinstance(out, Literal) or not facts.mask(out) & dirty:
        return jnp.zeros(length, out.aval.dtype)
    for eqn in reached_equations(facts, dirty, [out]):
        _step(eqn, states, known, length)
    found = states[out]
    if isinstance(found, _ByRows):
        raise NotByRowsError
    return found.parts


def dirty_of(facts: Facts, inputs: Iterable[Var]) -> int:
    """The mask of some inputs."""
    return sum(facts.layout.leaf_mask(facts.invars.index(var)) for var in inputs)


def _step(
    eqn: Equation, states: dict[Var, _ByRows | SumOfRows], known: Mapping[Var, Any], length: int
) -> None:
    read = [states[var] for var in read_vars(eqn) if var in states]
    if eqn.effects:
        raise NotByRowsError
    if all(isinstance(state, SumOfRows) for state in read):
        (var,) = eqn.outvars
        states[var] = SumOfRows(linear_parts(eqn, states, known))
        return
    by_rows = [state for state in read if isinstance(state, _ByRows)]
    first = by_rows[0]
    if len(by_rows) < len(read) or any(x.indices is not first.indices for x in by_rows):
        raise NotByRowsError
    axes = [_axis_of(atom, states) for atom in eqn.invars]
    aligned = aligned_by(eqn, axes)
    if aligned is not None:
        if None in aligned.outputs:  # of a loop that makes something else, too
            raise NotByRowsError
        values = _jax.apply(eqn, [_value(atom, states, known) for atom in eqn.invars])
        for var, axis, value in zip(eqn.outvars, aligned.outputs, values, strict=True):
            assert axis is not None
            states[var] = _ByRows(value, axis, first.indices, first.ids)
        return
    meeting = _MEETINGS.get(eqn.primitive.name)
    if meeting is None:
        raise NotByRowsError
    states[eqn.outvars[0]] = meeting(eqn, axes, states, known, length)


def _axis_of(atom: Atom, states: Mapping[Var, Any]) -> int | None:
    return None if isinstance(atom, Literal) or atom not in states else states[atom].axis


def _value(atom: Atom, states: Mapping[Var, Any], known: Mapping[Var, Any]) -> Any:
    if isinstance(atom, Literal):
        return atom.val
    return states[atom].value if atom in states else known[atom]


# --- after the sum --------------------------------------------------------------------------------


def linear_parts(eqn: Equation, states: Mapping[Var, Any], known: Mapping[Var, Any]) -> Any:
    """An equation of sums: what each row adds to its result."""
    name = eqn.primitive.name
    is_sum = [isinstance(atom, Var) and atom in states for atom in eqn.invars]
    is_scaled = name in LINEAR_IN_ONE and sum(is_sum) == 1
    is_divided = name == "div" and is_sum == [True, False]
    if not (name in LINEAR_IN_ALL or is_scaled or is_divided):
        raise NotByRowsError
    is_real = [jnp.issubdtype(x.aval.dtype, jnp.inexact) for x in (*eqn.outvars, *eqn.invars)]
    if not is_real[0] and (is_divided or any(is_real)):
        raise NotByRowsError  # it rounds to integers
    others = [
        None if own else _clean(eqn, atom, known)
        for atom, own in zip(eqn.invars, is_sum, strict=True)
    ]

    def of_row(parts: list[Any]) -> Any:
        own = iter(parts)
        values = [next(own) if is_own else x for is_own, x in zip(is_sum, others, strict=True)]
        return _jax.apply(eqn, values)[0]

    given = [states[atom].parts for atom, own in zip(eqn.invars, is_sum, strict=True) if own]
    return jax.vmap(of_row)(given)


def _clean(eqn: Equation, atom: Atom, known: Mapping[Var, Any]) -> Any:
    """A clean operand; what is added to a sum is a constant, of which no row has a part."""
    value = atom.val if isinstance(atom, Literal) else known[atom]
    return jnp.zeros_like(value) if eqn.primitive.name in LINEAR_IN_ALL else value


# --- where rows are summed, or looked up ----------------------------------------------------------


def _reduced(eqn: Equation, axes: Any, states: Any, known: Any, length: int) -> SumOfRows:
    """A sum over the rows, and other axes."""
    del known
    state = states[eqn.invars[0]]
    if axes[0] not in eqn.params["axes"]:
        raise NotByRowsError
    others = tuple(d for d in eqn.params["axes"] if d != axes[0])
    value = jnp.moveaxis(state.value, axes[0], 0)
    moved = tuple(d + (d < axes[0]) for d in others)
    return SumOfRows(_by_row(lax.reduce_sum(value, moved) if moved else value, state, length))


def _contracted(eqn: Equation, axes: Any, states: Any, known: Any, length: int) -> SumOfRows:
    """A product of matrices, summed over the rows."""
    contracted, _ = eqn.params["dimension_numbers"]
    place = next(
        (n for n, pair in enumerate(zip(*contracted, strict=True)) if _fits(axes, pair)), None
    )
    if place is None:
        raise NotByRowsError
    pair = [each[place] for each in contracted]
    values = [_value(atom, states, known) for atom in eqn.invars]
    first = next(states[atom] for atom in eqn.invars if isinstance(atom, Var) and atom in states)

    def of_row(rows: list[Any]) -> Any:
        whole = [jnp.expand_dims(x, d) for x, d in zip(rows, pair, strict=True)]
        return _jax.apply(eqn, whole)[0]

    apart = [jnp.moveaxis(x, d, 0) for x, d in zip(values, pair, strict=True)]
    return SumOfRows(_by_row(jax.vmap(of_row)(apart), first, length))


def _fits(axes: Any, pair: tuple[int, int]) -> bool:
    """Whether what has rows has them along these dimensions."""
    return all(axis in (None, d) for axis, d in zip(axes, pair, strict=True))


def _by_row(value: Any, state: _ByRows, length: int) -> Any:
    """Summands along the first axis as one for each row of the input; some may be of no row."""
    if state.indices is None:
        return value
    return jnp.zeros((length + 1, *value.shape[1:]), value.dtype).at[state.ids].add(value)[:length]


def _looked_up(eqn: Equation, axes: Any, states: Any, known: Any, length: int) -> _ByRows:
    """`x[ids]`: entries that belong to the rows that were looked up."""
    operand, indices = eqn.invars
    is_plain = axes[0] is not None and axes[1] is None and isinstance(indices, Var)
    if not is_plain or states[operand].indices is not None:
        raise NotByRowsError
    batch = batch_of(eqn, axes[0])
    clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
    (value,) = _jax.apply(eqn, [states[operand].value, known[indices]])
    return _ByRows(value, batch, indices, ids_read(jnp, known[indices], length, clips=clips))


_MEETINGS = {"reduce_sum": _reduced, "dot_general": _contracted, "gather": _looked_up}
