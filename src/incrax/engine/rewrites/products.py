"""Weighted products of a matrix of clean rows with one dirty vector: d_k (M u)_k, guarded against
leaving the range.

A row of M is a sum of terms, each a product of clean scalars and clean arrays.

Promise: where a guard is true, each result differs from that of the reductions it stands for by
rounding of single terms and of their sums, in whatever order a term's factors are multiplied. Let B
be the product, over a term's factors, of max(1, |factor|): no product of some of them exceeds B, so
none overflows where B is bounded; and where one underflows, what is lost is at most `tiny` times B.
Guards bound parts of B:
- of M and the scalars put into it: the flag that comes with M; M is not to be used where it is
  false;
- of u, and of the scalars d_k: the guard of the equations, which also asks that what N terms may
  lose is small against each result. Where it is false, the results are not to be used.

In: rows, dirty factors. Out: the matrix in the table of derived values, and its products in a
graph.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Var
from incrax.engine.rewrites.derived import DerivedTable
from incrax.engine.rewrites.sums_of_products import Factor, Product, Sum, factor_key, is_array

Values: TypeAlias = Mapping[Var, Any]
Factors: TypeAlias = Iterable[tuple[Any, bool]]
"""Values, and whether they divide."""

_MATRIX_RANGE = 0.35
_SHARED_RANGE = 0.25
_SCALAR_RANGE = 0.15
"""Exponents of the least normal number: B is below tiny**-0.35 for M, tiny**-0.25 for u,
tiny**-0.15 for d_k, and tiny**-0.75 leaves room for sums of 1e9 terms in single precision.
"""

MAX_MATRICES = 16
"""Matrices of a product up to which rows that depend on other inputs are kept apart: each is one more
argument.
"""

_MAX_LOSSES = 16.0
"""Products in a term, and so losses by underflow, that are reckoned with."""


class Piece(NamedTuple):
    """A row's product with the shared vector, times its weight: a part of the value of `sink`.

    The vector is the product of the dirty arrays `shared`.
    """

    sink: Var
    shared: tuple[Factor, ...]
    row: Sum
    weight: Product


class Stacked(NamedTuple):
    """Pieces with the same shared vector, and the matrices that have their rows, each row once."""

    pieces: tuple[Piece, ...]
    matrices: tuple[Var, ...]
    order: tuple[int, ...]
    """Of each piece, the number of its row among those of all matrices."""


def _named(factors: Iterable[Factor], values: Values) -> list[tuple[Any, bool]]:
    return [(values[var], inverse) for var, inverse in factors]


def multiply(start: Any, factors: Factors) -> Any:
    """A value times factors of its shape, or divided by them, one by one."""
    value = start
    for factor, inverse in factors:
        value = lax.div(value, factor) if inverse else lax.mul(value, factor)
    return value


def _number(value: float, dtype: Any) -> Any:
    """A literal of an equation."""
    with np.errstate(all="ignore"):
        return np.asarray(value, dtype)[()]


# --- bounds ---------------------------------------------------------------------------------------


def _bound_of(factor: Any, inverse: bool) -> Any:
    """max(1, |factor|), of an array for the largest element; not a number stays one, so that guards
    are false.
    """
    size = lax.abs(factor)
    axes = tuple(range(factor.ndim))
    one = lax.full_like(size, 1, shape=())
    largest = lax.div(one, lax.reduce_min(size, axes)) if inverse else lax.reduce_max(size, axes)
    return lax.select(lax.le(largest, one), one, largest)


def _tiny(dtype: Any) -> float:
    return float(jnp.finfo(dtype).tiny)


# --- the matrix -----------------------------------------------------------------------------------


def row_key(row: Sum) -> Any:
    """Equal for rows of the same terms; one may occur twice in it."""
    terms = Counter((factor_key(term.factors), term.number) for term in row)
    return frozenset(terms.items())


def stacked(pieces: Sequence[Piece], table: DerivedTable, mask_of: Callable[[Var], int]) -> Stacked:
    """Pieces with their matrices, as variables of the table that have flags.

    A matrix has the rows that depend on the same inputs: of terms of a sum, each with parameters of
    its own, that of one term stays as it is when another's parameters change, where a matrix of all
    would have to be made anew.
    """
    rows = {row_key(piece.row): piece.row for piece in pieces}
    groups: dict[int, dict[Any, Sum]] = {}
    for key, row in rows.items():
        masks = [mask_of(var) for term in row for var, _ in term.factors]
        groups.setdefault(functools.reduce(operator.or_, masks, 0), {})[key] = row
    if len(groups) > MAX_MATRICES:
        groups = {0: rows}
    ((array, _), *_) = pieces[0].shared
    matrices = tuple(_make_matrix(list(own.values()), array, table) for own in groups.values())
    keys = [key for own in groups.values() for key in own]
    order = tuple(keys.index(row_key(piece.row)) for piece in pieces)
    return Stacked(tuple(pieces), matrices, order)


def _make_matrix(rows: Sequence[Sum], array: Var, table: DerivedTable) -> Var:
    """The variable with these rows, with its flag, for products with an array."""
    terms = [term for row in rows for term in row]
    inputs = list(dict.fromkeys(var for term in terms for var, _ in term.factors))
    dtype = array.aval.dtype
    size = _jax.aval_size(array.aval)

    def stack(*flat: Any) -> tuple[Any, Any]:
        values = dict(zip(inputs, map(_flat, flat), strict=True))
        entries = [[_entry(term, values, size, dtype) for term in row] for row in rows]
        matrix = jnp.stack([functools.reduce(lax.add, row) for row in entries])
        is_bounded = _bounds(terms, values, dtype) <= _tiny(dtype) ** -_MATRIX_RANGE
        return matrix, jnp.all(is_bounded)

    return table.make_matrix(("rows", tuple(rows), size, dtype), inputs, stack)


def _entry(term: Product, values: Values, size: int, dtype: Any) -> Any:
    """One term of a row."""
    scalars = term.chosen(lambda var: not is_array(var))
    scalar = multiply(_number(term.number, dtype), _named(scalars, values))
    return multiply(lax.broadcast(scalar, (size,)), _named(term.chosen(is_array), values))


def _flat(value: Any) -> Any:
    return lax.reshape(value, (value.size,)) if value.ndim > 1 else value


def _bounds(terms: Sequence[Product], values: Values, dtype: Any) -> Any:
    """B of each term; what a factor adds to it is computed once for all of them."""
    used = dict.fromkeys(factor for term in terms for factor in term.factors)
    parts = {(var, inverse): _bound_of(values[var], inverse) for var, inverse in used}
    largest = float(jnp.finfo(dtype).max)
    bounds = []
    for term in terms:
        size = _number(min(max(1.0, abs(term.number)), largest), dtype)
        bounds.append(functools.reduce(lax.mul, [parts[factor] for factor in term.factors], size))
    return jnp.stack(bounds)


# --- its product with u ---------------------------------------------------------------------------


def weighted_products(stack: Stacked, values: Values) -> tuple[list[Any], Any]:
    """The value of each piece, and whether these may be used."""
    pieces, matrices, order = stack
    shared = pieces[0].shared
    factors = [(_flat(x), inverse) for x, inverse in _named(shared, values)]
    u = multiply(lax.full_like(factors[0][0], 1), factors)
    bound = _bounds([Product(shared)], values, u.dtype)
    dots = [jnp.matmul(values[var], u, precision=Precision.HIGHEST) for var in matrices]
    sums = jnp.concatenate(dots)
    weights = [piece.weight for piece in pieces]
    scales = [_scale(weight, values, u.dtype) for weight in weights]
    results = jnp.stack([_at(sums, k) for k in order]) * jnp.stack(scales)
    num_terms = u.size * max(len(piece.row) for piece in pieces)
    is_safe = _is_safe(results, bound, weights, values, num_terms)
    return [_at(results, k) for k in range(len(pieces))], is_safe


def _scale(product: Product, values: Values, dtype: Any) -> Any:
    return multiply(_number(product.number, dtype), _named(product.factors, values))


def _is_safe(
    results: Any, shared: Any, weights: Sequence[Product], values: Values, num_terms: int
) -> Any:
    """Whether B is bounded, and each result is zero for a zero factor or large against what its
    terms may lose.
    """
    tiny = _tiny(results.dtype)
    eps = float(jnp.finfo(results.dtype).eps)
    scalars = _bounds(weights, values, results.dtype)
    loss = _MAX_LOSSES * num_terms * tiny ** (1.0 - _MATRIX_RANGE) / eps * shared * scalars
    is_bounded = (shared <= tiny**-_SHARED_RANGE) & (scalars <= tiny**-_SCALAR_RANGE)
    is_zero = jnp.stack([_has_zero(weight, values) for weight in weights])
    return jnp.all(is_bounded & ((jnp.abs(results) >= loss) | is_zero))


def _has_zero(product: Product, values: Values) -> Any:
    zeros = [values[var] == 0 for var, inverse in product.factors if not inverse]
    return functools.reduce(operator.or_, zeros, np.False_)


def product_of_scalars(product: Product, values: Values, dtype: Any) -> tuple[Any, Any]:
    """A product of scalars alone, and whether no product of some of them comes near the end of the
    range, in any order.
    """
    is_alone = len(product.factors) == 1 and abs(product.number) == 1
    limit = _tiny(dtype) ** -(_SHARED_RANGE + _SCALAR_RANGE)
    is_bounded = is_alone | (_bounds([product], values, dtype)[0] <= limit)
    return _scale(product, values, dtype), is_bounded


def _at(array: Any, index: int) -> Any:
    return lax.index_in_dim(array, index, keepdims=False)
