"""Sibling reductions as one matrix product, where factors that do not depend on the row hide what they share.

A reverse pass over k scalar parameters ends in reductions R_t = sum_n s_t u[n] r_t[n]: u is dirty and shared, r_t is
clean, s_t are scalars such as a yield or 1/sigma**2. Each derivative is a sum of some of them, sum_t c_t R_t. With the
clean factors of c_t s_t put into the rows and the dirty ones d outside, it is d (M u)_k, with M saved: one row for each
derivative and dirty factor, not one for each place where a parameter occurs.

In: equations and what is dirty. Out: equations, and matrices in the table of derived values. It must not know how the
product is computed (`planning.products`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax.facts.program import written_vars
from incrax.planning.derived import MIN_ROW_SIZE, MIN_ROWS, DerivedTable, in_order, live, traced_equations
from incrax.planning.linear import Factor, Term, Terms, linear_sums
from incrax.planning.products import Entry, Key, Piece, factor_key, is_in_range, multiply, weighted_products

IsDirty: TypeAlias = Callable[[Var], bool]

MAX_FACTORS = 64

MAX_ENTRIES = 1024
"""Terms in the rows of matrices up to which they are made: each has some ten equations to be traced and compiled."""


@dataclass
class _Product:
    """The factors of one reduction's operand, and the number of the reduction."""

    number: int
    scalars: list[Factor] = field(default_factory=list)
    clean: list[Factor] = field(default_factory=list)
    dirty: list[Factor] = field(default_factory=list)
    is_negative: bool = False

    @property
    def size(self) -> int:
        return len(self.scalars) + len(self.clean) + len(self.dirty)


class Factored(NamedTuple):
    """Equations with merged reductions, and the boolean variable that must be true for the results to be used."""

    eqns: tuple[Equation, ...]
    guard: Var


def factor_reductions(
    eqns: Sequence[Equation],
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
    equation_of: Callable[[Var], Equation | None],
) -> Factored | None:
    """The equations with reductions over one dirty product merged; None where there are none.

    They read matrices of the table, to be loaded or computed before; `equation_of` knows what else writes what they
    read.
    """
    if any(eqn.effects for eqn in eqns):
        return None
    products = {eqns[p.number].outvars[0]: p for p in _products(eqns, is_dirty, equation_of)}
    merged = _merged(products.values())
    if not merged:
        return None
    sums = linear_sums(eqns, products, targets)
    alone = {var: (Term(var),) for var in products}
    for sinks in (sums, alone):
        new = _rewritten(eqns, products, merged, sinks, table, is_dirty, targets)
        if new is not None:
            return new
    return None


def _merged(products: Iterable[_Product]) -> dict[Key, list[_Product]]:
    """Products of the same dirty arrays, by these, where the clean ones make several rows."""
    groups: dict[Key, list[_Product]] = {}
    for product in products:
        groups.setdefault(factor_key(product.dirty), []).append(product)
    return {key: group for key, group in groups.items() if len({factor_key(p.clean) for p in group}) >= MIN_ROWS}


def _rewritten(
    eqns: Sequence[Equation],
    products: dict[Var, _Product],
    merged: dict[Key, list[_Product]],
    sinks: dict[Var, Terms],
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
) -> Factored | None:
    """The equations with each sink as a sum of weighted rows; None where that gains nothing or they become cyclic."""
    pieces, others = _pieces(products, sinks, merged, is_dirty)
    if not 0 < sum(len(piece.row) for of_group in pieces.values() for piece in of_group) <= MAX_ENTRIES:
        return None
    new: list[Equation] = []
    guards: list[Var] = []
    parts: dict[Var, list[Var]] = {}
    counts = Counter(piece.sink for of_group in pieces.values() for piece in of_group)
    for key, of_group in pieces.items():
        if of_group:
            aval = eqns[merged[key][0].number].outvars[0].aval
            alone = [counts[p.sink] == 1 and p.sink not in others and not p.sink.aval.weak_type for p in of_group]
            outputs = [p.sink if is_all else _jax.new_var(aval) for p, is_all in zip(of_group, alone, strict=True)]
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


# --- collecting terms ---------------------------------------------------------------------------------------------


def _pieces(
    products: dict[Var, _Product], sinks: dict[Var, Terms], merged: Collection[Key], is_dirty: IsDirty
) -> tuple[dict[Key, list[Piece]], dict[Var, list[Term]]]:
    """The weighted rows of each group that is merged, and the other terms of each sink."""
    pieces: dict[Key, list[Piece]] = {key: [] for key in merged}
    others: dict[Var, list[Term]] = {}
    for sink, terms in sinks.items():
        buckets: dict[tuple[Key, Key], list[tuple[list[Factor], Entry]]] = {}
        for term in terms:
            product = None if term.source is None else products[term.source]
            number = 0.0 if product is None else _number(term, product)
            if product is None or factor_key(product.dirty) not in pieces or not number or not math.isfinite(number):
                others.setdefault(sink, []).append(term)
                continue
            scalars = [f for f in (*term.factors, *product.scalars) if isinstance(f[0], Var)]
            moving = [f for f in scalars if is_dirty(f[0])]
            entry = Entry(tuple(f for f in scalars if f not in moving), tuple(product.clean), number)
            buckets.setdefault((factor_key(product.dirty), factor_key(moving)), []).append((moving, entry))
        for (group, _), bucket in buckets.items():
            pieces[group].append(_piece(sink, bucket[0][0], [entry for _, entry in bucket]))
    return pieces, others


def _number(term: Term, product: _Product) -> float:
    """The literal factors of a term, with its sign."""
    value = -1.0 if term.is_negative ^ product.is_negative else 1.0
    for atom, inverse in (*term.factors, *product.scalars):
        if isinstance(atom, Literal):
            factor = float(atom.val)
            value = value * factor if not inverse else value / factor if factor else math.inf
    return value


def _piece(sink: Var, moving: Sequence[Factor], entries: Sequence[Entry]) -> Piece:
    """One row of terms with the same dirty factors; what all of them share stays outside of the row."""
    common = Counter(entries[0].scalars)
    for entry in entries[1:]:
        common &= Counter(entry.scalars)
    number = entries[0].number
    row = [Entry(_without(e.scalars, common), e.arrays, e.number / number) for e in entries]
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


# --- reading products ---------------------------------------------------------------------------------------------


def _products(
    eqns: Sequence[Equation], is_dirty: IsDirty, equation_of: Callable[[Var], Equation | None]
) -> list[_Product]:
    written = {var: eqn for eqn in eqns for var in written_vars(eqn)}
    found = []
    for number, eqn in enumerate(eqns):
        if _is_wide_sum(eqn) and is_dirty(eqn.outvars[0]):
            product = _Product(number)
            _expand(eqn.invars[0], product, lambda var: written.get(var) or equation_of(var), is_dirty)
            shape = eqn.invars[0].aval.shape
            vectors = [atom for atom, _ in (*product.clean, *product.dirty)]
            if product.dirty and product.size < MAX_FACTORS and all(atom.aval.shape == shape for atom in vectors):
                found.append(product)
    return found


def _is_wide_sum(eqn: Equation) -> bool:
    """Whether an equation sums all of a large array of real numbers."""
    if eqn.primitive.name != "reduce_sum" or not isinstance(eqn.invars[0], Var) or eqn.outvars[0].aval.weak_type:
        return False
    aval = eqn.invars[0].aval
    is_real = aval.dtype in (np.dtype(np.float32), np.dtype(np.float64))
    return is_real and len(eqn.params["axes"]) == len(aval.shape) and _jax.aval_size(aval) >= MIN_ROW_SIZE


def _expand(atom: Atom, product: _Product, equation_of: Callable[[Var], Equation | None], is_dirty: IsDirty) -> None:
    """Add the factors of an atom to a product; clean arrays stay whole, so that they are saved as they are.

    Of a product that has too many, as many are added as show this.
    """
    pending: list[Factor] = [(atom, False)]
    num_factors = 1
    while pending:
        if num_factors >= MAX_FACTORS:
            product.dirty += pending
            return
        atom, inverse = pending.pop()
        if isinstance(atom, Literal) or atom.aval.shape == ():
            product.scalars.append((atom, inverse))
            continue
        eqn = equation_of(atom)
        name = "" if eqn is None else eqn.primitive.name
        if eqn is not None and name == "broadcast_in_dim" and eqn.invars[0].aval.shape == ():
            product.scalars.append((eqn.invars[0], inverse))
        elif not is_dirty(atom):
            product.clean.append((atom, inverse))
        elif eqn is not None and name in ("mul", "div", "neg"):
            product.is_negative ^= name == "neg"
            parts = [(part, inverse ^ (name == "div" and k == 1)) for k, part in enumerate(eqn.invars)]
            pending += reversed(parts)
            num_factors += len(parts) - 1
        else:
            product.dirty.append((atom, inverse))


# --- writing ------------------------------------------------------------------------------------------------------


def _is_product(term: Term) -> bool:
    return len(term.factors) + (term.source is not None) > 1


def _sum_of(sink: Var, parts: Sequence[Var], others: Sequence[Term], guards: Sequence[Var]) -> tuple[Equation, ...]:
    """Equations that write a sink as the sum of its parts and of its other terms, and a guard for each product."""
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
