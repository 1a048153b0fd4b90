"""Sibling reductions as one matrix product, where factors that do not depend on the row hide what
they share.

A reverse pass over k scalar parameters ends in reductions R_t = sum_n s_t u[n] r_t[n]: u is dirty
and shared, r_t is clean, s_t are scalars such as a yield or 1/sigma**2; the operand may be a sum of
such products. Each derivative is a sum of some of them, sum_t c_t R_t
(`engine.rewrites.sums_of_products`). With the clean factors of c_t s_t put into the rows and the
dirty ones d outside, it is d (M u)_k, with M saved: one row for each derivative and dirty factor,
not one for each place where a parameter occurs.

For example, of L = sum_n log(t_1 a_1[n] + ... + t_k a_k[n]), where the yield t_1 is dirty and the
arrays a are clean,
    dL/dt_j = sum_n u[n] a_j[n],   u[n] = 1 / (t_1 a_1[n] + ... + t_k a_k[n]):
k sums with one dirty array, R_j with s_j = 1 and r_j = a_j; the rows of M are the a_j.

In: equations and what is dirty. Out: equations, and matrices in the table of derived values. It
must not know how the product is computed (`engine.rewrites.products`).
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from incrax._jax import Equation, Var
from incrax._program import Env
from incrax.engine.rewrites.derived import DerivedTable, Recomputed, recomputed
from incrax.engine.rewrites.partial_sums import MIN_ROWS
from incrax.engine.rewrites.products import (
    Piece,
    product_of_scalars,
    row_key,
    stacked,
    weighted_products,
)
from incrax.engine.rewrites.sums_of_products import (
    EquationOf,
    IsDirty,
    Key,
    Product,
    Sum,
    factor_key,
    is_array,
    linear_sums,
    reductions,
)

MAX_ENTRIES = 1024
"""Terms in the rows of matrices up to which they are made: each has some ten equations to be traced
and compiled.
"""

Sums: TypeAlias = Mapping[Var, Sum]


def factor_reductions(
    eqns: Sequence[Equation],
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
    equation_of: EquationOf,
    mask_of: Callable[[Var], int],
) -> Recomputed | None:
    """The equations with reductions over one dirty product merged; None where there are none.

    They read matrices of the table, to be loaded or computed before; `equation_of` knows what else
    writes what they read, `mask_of` which inputs that depends on.
    """
    if any(eqn.effects for eqn in eqns):
        return None
    merged = _siblings(reductions(eqns, is_dirty, equation_of), is_dirty)
    if not merged:
        return None
    for sinks in (linear_sums(eqns, merged, targets), merged):
        new = _rewritten(eqns, sinks, table, is_dirty, targets, mask_of)
        if new is not None:
            return new
    return None


def _siblings(found: Sums, is_dirty: IsDirty) -> Sums:
    """Reductions of the same dirty arrays, where the clean ones make several rows."""
    siblings: dict[Var, Sum] = {}
    for group in _pieces(found, is_dirty)[0]:
        sinks = {piece.sink: found[piece.sink] for piece in group}
        rows = {row_key(piece.row) for piece in group}
        if min(len(sinks), len(rows)) >= MIN_ROWS:
            siblings.update(sinks)
    return siblings


def _rewritten(
    eqns: Sequence[Equation],
    sinks: Sums,
    table: DerivedTable,
    is_dirty: IsDirty,
    targets: Collection[Var],
    mask_of: Callable[[Var], int],
) -> Recomputed | None:
    """The equations with each sink as a sum of weighted rows; None where that gains nothing or they
    become cyclic.
    """
    groups, others = _pieces(sinks, is_dirty)
    pieces = [piece for group in groups for piece in group]
    if not 0 < sum(len(piece.row) for piece in pieces) <= MAX_ENTRIES:
        return None
    stacks = [stacked(group, table, mask_of) for group in groups]
    products = [product for _, product in others]
    for piece in pieces:
        products += [Product(piece.shared), piece.weight]

    def compute(values: Env) -> tuple[Env, list[Any]]:
        parts: dict[Var, list[Any]] = {sink: [] for sink in sinks}
        guards = []
        for stack in stacks:
            results, is_safe = weighted_products(stack, values)
            guards.append(is_safe)
            for piece, result in zip(stack.pieces, results, strict=True):
                parts[piece.sink].append(result)
        for sink, product in others:
            value, is_bounded = product_of_scalars(product, values, sink.aval.dtype)
            guards.append(is_bounded)
            parts[sink].append(value)
        return {sink: functools.reduce(operator.add, own) for sink, own in parts.items()}, guards

    inputs = [var for stack in stacks for var in stack.matrices]
    inputs += [var for product in products for var, _ in product.factors]
    kind = "factored", tuple(stacks), tuple(others), tuple(sinks)
    trace = functools.partial(table.traced, kind)
    return recomputed(eqns, inputs, sinks, compute, targets, trace)


# --- collecting terms -----------------------------------------------------------------------------


def _pieces(sinks: Sums, is_dirty: IsDirty) -> tuple[list[list[Piece]], list[tuple[Var, Product]]]:
    """The weighted rows of each group of reductions, and the products of scalars alone."""
    groups: dict[Key, list[Piece]] = {}
    others: list[tuple[Var, Product]] = []
    for sink, products in sinks.items():
        alike: dict[tuple[Key, Key], list[Product]] = {}
        for product in products:
            dirty = product.chosen(is_dirty)
            shared = factor_key([factor for factor in dirty if is_array(factor[0])])
            if shared:
                alike.setdefault((shared, factor_key(dirty)), []).append(product)
            else:
                others.append((sink, product))
        for (shared, _), own in alike.items():
            groups.setdefault(shared, []).append(_piece(sink, own, is_dirty))
    return list(groups.values()), others


def _piece(sink: Var, products: Sequence[Product], is_dirty: IsDirty) -> Piece:
    """One row of products with the same dirty factors; scalars that all of them share stay outside
    of the row.
    """
    dirty = products[0].chosen(is_dirty)
    number = products[0].number
    clean = [Counter(p.chosen(lambda var: not is_dirty(var))) for p in products]
    common = functools.reduce(operator.and_, clean)
    common = Counter({factor: n for factor, n in common.items() if not is_array(factor[0])})
    row = [
        Product(tuple((own - common).elements()), product.number / number)
        for own, product in zip(clean, products, strict=True)
    ]
    moving = [factor for factor in dirty if not is_array(factor[0])]
    shared = tuple(factor for factor in dirty if is_array(factor[0]))
    return Piece(sink, shared, tuple(row), Product((*moving, *common.elements()), number))
