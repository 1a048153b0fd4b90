"""Sibling reductions as one matrix product, where factors that do not depend on the row hide what
they share.

A reverse pass over k scalar parameters ends in reductions R_t = sum_n s_t u[n] r_t[n]: u is dirty
and shared, r_t is clean, s_t are scalars such as a yield or 1/sigma**2; the operand may be a sum of
such products (`engine.rewrites.operands`). Each derivative is a sum of some of them, sum_t c_t R_t.
With the clean factors of c_t s_t put into the rows and the dirty ones d outside, it is d (M u)_k,
with M saved: one row for each derivative and dirty factor, not one for each place where a parameter
occurs.

In: equations and what is dirty. Out: equations, and matrices in the table of derived values. It
must not know how the product is computed (`engine.rewrites.products`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax.engine.rewrites.linear import Factor, LinearTerm, Terms, linear_sums
from incrax.engine.rewrites.operands import (
    EquationOf,
    IsDirty,
    Product,
    SiblingReduction,
    reductions,
)
from incrax.engine.rewrites.partial_sums import (
    MIN_ROWS,
    DerivedTable,
    in_order,
    live,
    traced_equations,
)
from incrax.engine.rewrites.products import (
    Key,
    Piece,
    ProductEntry,
    factor_key,
    is_in_range,
    multiply,
    weighted_products,
)

MAX_ENTRIES = 1024
"""Terms in the rows of matrices up to which they are made: each has some ten equations to be traced
and compiled.
"""


class Factored(NamedTuple):
    """Equations with merged reductions, and the boolean variable that must be true for the results
    to be used.
    """

    eqns: tuple[Equation, ...]
    guard: Var


def factor_reductions(
    eqns: Sequence[Equation],
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
    equation_of: EquationOf,
) -> Factored | None:
    """The equations with reductions over one dirty product merged; None where there are none.

    They read matrices of the table, to be loaded or computed before; `equation_of` knows what else
    writes what they read.
    """
    if any(eqn.effects for eqn in eqns):
        return None
    sources = {eqns[r.number].outvars[0]: r for r in reductions(eqns, is_dirty, equation_of)}
    merged = _merged(sources.values())
    if not merged:
        return None
    sums = linear_sums(eqns, sources, targets)
    alone = {var: (LinearTerm(var),) for var in sources}
    for sinks in (sums, alone):
        new = _rewritten(eqns, sources, merged, sinks, table, is_dirty, targets)
        if new is not None:
            return new
    return None


def _merged(sources: Iterable[SiblingReduction]) -> dict[Key, list[SiblingReduction]]:
    """Reductions of the same dirty arrays, by these, where the clean ones make several rows."""
    groups: dict[Key, list[SiblingReduction]] = {}
    for reduction in sources:
        groups.setdefault(factor_key(reduction.dirty), []).append(reduction)
    return {
        key: group
        for key, group in groups.items()
        if len({reduction.row for reduction in group}) >= MIN_ROWS
    }


def _rewritten(
    eqns: Sequence[Equation],
    sources: dict[Var, SiblingReduction],
    merged: dict[Key, list[SiblingReduction]],
    sinks: dict[Var, Terms],
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
) -> Factored | None:
    """The equations with each sink as a sum of weighted rows; None where that gains nothing or they
    become cyclic.
    """
    pieces, others = _pieces(sources, sinks, merged, is_dirty)
    if (
        not 0
        < sum(len(piece.row) for of_group in pieces.values() for piece in of_group)
        <= MAX_ENTRIES
    ):
        return None
    new: list[Equation] = []
    guards: list[Var] = []
    parts: dict[Var, list[Var]] = {}
    counts = Counter(piece.sink for of_group in pieces.values() for piece in of_group)
    for key, of_group in pieces.items():
        if of_group:
            aval = eqns[merged[key][0].number].outvars[0].aval
            alone = [
                counts[p.sink] == 1 and p.sink not in others and not p.sink.aval.weak_type
                for p in of_group
            ]
            outputs = [
                p.sink if is_all else _jax.new_var(aval)
                for p, is_all in zip(of_group, alone, strict=True)
            ]
            written, guard = weighted_products(of_group, merged[key][0].dirty, outputs, table)
            new += written
            guards.append(guard)
            for piece, output in zip(of_group, outputs, strict=True):
                parts.setdefault(piece.sink, []).append(output)
    for sink, own in parts.items():
        if own != [sink]:
            rest = others.get(sink, ())
            own_guards = [_jax.new_var(_jax.bool_aval()) for term in rest if _is_product(term)]
            new += _sum_of(sink, own, rest, own_guards)
            guards += own_guards
    (guard,), conjunction = traced_equations(lambda *values: [jnp.all(jnp.stack(values))], guards)
    unchanged = (eqn for eqn in eqns if not any(var in parts for var in eqn.outvars))
    ordered = in_order([*unchanged, *new, *conjunction])
    return None if ordered is None else Factored(tuple(live(ordered, {*targets, guard})), guard)


# --- collecting terms -----------------------------------------------------------------------------


def _pieces(
    sources: dict[Var, SiblingReduction],
    sinks: dict[Var, Terms],
    merged: Collection[Key],
    is_dirty: IsDirty,
) -> tuple[dict[Key, list[Piece]], dict[Var, list[LinearTerm]]]:
    """The weighted rows of each group that is merged, and the other terms of each sink."""
    pieces: dict[Key, list[Piece]] = {key: [] for key in merged}
    others: dict[Var, list[LinearTerm]] = {}
    for sink, terms in sinks.items():
        buckets: dict[tuple[Key, Key], list[tuple[list[Factor], ProductEntry]]] = {}
        for term in terms:
            reduction = None if term.source is None else sources[term.source]
            group = None if reduction is None else factor_key(reduction.dirty)
            weighted = (
                None
                if reduction is None or group not in pieces
                else _weighted(term, reduction, is_dirty)
            )
            if group is None or weighted is None:
                others.setdefault(sink, []).append(term)
                continue
            for moving, entry in weighted:
                buckets.setdefault((group, factor_key(moving)), []).append((moving, entry))
        for (group, _), bucket in buckets.items():
            pieces[group].append(_piece(sink, bucket[0][0], [entry for _, entry in bucket]))
    return pieces, others


def _weighted(
    term: LinearTerm, reduction: SiblingReduction, is_dirty: IsDirty
) -> list[tuple[list[Factor], ProductEntry]] | None:
    """The dirty scalars of each product of a term, with the rest of it; None where a number is zero
    or infinite.
    """
    weighted = []
    for product in reduction.products:
        number = _number(term, product)
        if not number or not math.isfinite(number):
            return None
        scalars = [f for f in (*term.factors, *product.scalars) if isinstance(f[0], Var)]
        moving = [f for f in scalars if is_dirty(f[0])]
        weighted.append(
            (
                moving,
                ProductEntry(tuple(f for f in scalars if f not in moving), product.clean, number),
            )
        )
    return weighted


def _number(term: LinearTerm, product: Product) -> float:
    """The literal factors of a term, with its sign."""
    value = -1.0 if term.is_negative ^ product.is_negative else 1.0
    for atom, inverse in (*term.factors, *product.scalars):
        if isinstance(atom, Literal):
            factor = float(atom.val)
            value = value * factor if not inverse else value / factor if factor else math.inf
    return value


def _piece(sink: Var, moving: Sequence[Factor], entries: Sequence[ProductEntry]) -> Piece:
    """One row of terms with the same dirty factors; what all of them share stays outside of the
    row.
    """
    common = Counter(entries[0].scalars)
    for entry in entries[1:]:
        common &= Counter(entry.scalars)
    number = entries[0].number
    row = [ProductEntry(_without(e.scalars, common), e.arrays, e.number / number) for e in entries]
    return Piece(sink, tuple(row), (*moving, *common.elements()), number)


def _without(factors: Sequence[Factor], common: Counter[Factor]) -> tuple[Factor, ...]:
    left = Counter(common)
    kept = []
    for factor in factors:
        if left[factor] > 0:
            left[factor] -= 1
        else:
            kept.append(factor)
    return tuple(kept)


# --- writing --------------------------------------------------------------------------------------


def _is_product(term: LinearTerm) -> bool:
    return len(term.factors) + (term.source is not None) > 1


def _sum_of(
    sink: Var, parts: Sequence[Var], others: Sequence[LinearTerm], guards: Sequence[Var]
) -> tuple[Equation, ...]:
    """Equations that write a sink as the sum of its parts and of its other terms, and a guard for
    each product.
    """
    atoms = [atom for term in others for atom, _ in term.factors] + [term.source for term in others]
    inputs = list(dict.fromkeys([*parts, *(atom for atom in atoms if isinstance(atom, Var))]))
    dtype = sink.aval.dtype

    def total(*values: Any) -> list[Any]:
        names = dict(zip(inputs, values, strict=True))
        terms = [names[part] for part in parts]
        is_bounded = []
        for term in others:
            # In the program's order: the sum first, then its coefficients from the inside out.
            source = () if term.source is None else ((term.source, False),)
            factors = [
                (names[atom] if isinstance(atom, Var) else jnp.asarray(atom.val, dtype), inverse)
                for atom, inverse in (*source, *term.factors)
            ]
            if _is_product(term):
                is_bounded.append(is_in_range(factors))
            value = multiply(jnp.ones((), dtype), factors)
            terms.append(-value if term.is_negative else value)
        value = functools.reduce(operator.add, terms)
        return [_jax.as_weak(value) if sink.aval.weak_type else value, *is_bounded]

    return traced_equations(total, inputs, [sink, *guards])[1]
