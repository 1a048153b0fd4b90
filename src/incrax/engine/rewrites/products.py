"""Weighted products of a matrix of clean rows with one dirty vector: d_k (M u)_k, guarded against
leaving the range.

A row of M is a sum of terms, each a product of clean scalars and clean arrays.

Law: where a guard is true, each result differs from that of the reductions it stands for by
rounding of single terms and of their sums, in whatever order a term's factors are multiplied. Let B
be the product, over a term's factors, of max(1, |factor|): no product of some of them exceeds B, so
none overflows where B is bounded; and where one underflows, what is lost is at most `tiny` times B.
Guards bound parts of B:
- of M and the scalars put into it: the flag that comes with M; M is not to be used where it is
  false;
- of u, and of the scalars d_k: the guard of the equations, which also asks that what N terms may
  lose is small against each result. Where it is false, the results are not to be used.

In: rows, dirty factors. Out: equations with a guard, and the matrix in the table of derived values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.engine.rewrites.linear import Factor
from incrax.engine.rewrites.partial_sums import DerivedTable, traced_equations

Key: TypeAlias = tuple[tuple[int, bool], ...]

_MATRIX_RANGE = 0.35
_SHARED_RANGE = 0.25
_SCALAR_RANGE = 0.15
"""Exponents of the least normal number: B is below tiny**-0.35 for M, tiny**-0.25 for u,
tiny**-0.15 for d_k, and tiny**-0.75 leaves room for sums of 1e9 terms in single precision.
"""

_MAX_LOSSES = 16.0
"""Products in a term, and so losses by underflow, that are reckoned with."""


def factor_key(factors: Iterable[Factor]) -> Key:
    """Equal for products of the same factors."""
    return tuple(sorted((id(atom), inverse) for atom, inverse in factors))


class ProductEntry(NamedTuple):
    """One term of a row: a number times a product of clean scalars and clean arrays."""

    scalars: tuple[Factor, ...]
    arrays: tuple[Factor, ...]
    number: float


class Piece(NamedTuple):
    """A row's product with the shared vector, times scalars and a number: a part of the value of
    `sink`.
    """

    sink: Var
    row: tuple[ProductEntry, ...]
    scalars: tuple[Factor, ...]
    number: float

    @property
    def key(self) -> tuple[tuple[Key, Key, float], ...]:
        """Equal for pieces of the same row; a term may occur twice in it."""
        return tuple(
            sorted((factor_key(e.scalars), factor_key(e.arrays), e.number) for e in self.row)
        )


def weighted_products(
    pieces: Sequence[Piece], dirty: Sequence[Factor], outputs: Sequence[Var], table: DerivedTable
) -> tuple[tuple[Equation, ...], Var]:
    """Equations that read M, write each piece to an output, and a guard; u is the product of the
    dirty arrays.
    """
    keys = [piece.key for piece in pieces]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    rows = {key: piece.row for key, piece in zip(keys, pieces, strict=True)}
    matrix = _matrix([rows[key] for key in numbers], dirty[0][0].aval, table)
    inputs = list(dict.fromkeys(a for f in (dirty, *(p.scalars for p in pieces)) for a, _ in f))
    guard = _jax.new_var(_jax.bool_aval())
    order = [numbers[key] for key in keys]
    return traced_equations(
        _products(pieces, dirty, order, inputs), [matrix, *inputs], [*outputs, guard]
    )[1], guard


# --- the matrix -----------------------------------------------------------------------------------


class _Term(NamedTuple):
    """A term of a row with its factors by number among the inputs, so that equal matrices are
    recognised.
    """

    scalars: tuple[tuple[int, bool], ...]
    arrays: tuple[tuple[int, bool], ...]
    number: float


def _matrix(rows: Sequence[Sequence[ProductEntry]], aval: Any, table: DerivedTable) -> Var:
    """The variable with these rows, and its flag."""
    inputs = list(dict.fromkeys(a for row in rows for e in row for a, _ in (*e.scalars, *e.arrays)))
    numbers = {atom: number for number, atom in enumerate(inputs)}
    size = _jax.aval_size(aval)
    dtype = aval.dtype

    def numbered(factors: Iterable[Factor]) -> tuple[tuple[int, bool], ...]:
        return tuple((numbers[atom], inverse) for atom, inverse in factors)

    spec = tuple(
        tuple(_Term(numbered(e.scalars), numbered(e.arrays), e.number) for e in row) for row in rows
    )

    def stack(*values: Any) -> tuple[Any, Any]:
        flat = [lax.reshape(value, (value.size,)) if value.ndim > 1 else value for value in values]

        def entry(term: _Term) -> Any:
            scalar = multiply(
                _number(term.number, dtype), [(flat[k], inverse) for k, inverse in term.scalars]
            )
            arrays = [(flat[k], inverse) for k, inverse in term.arrays]
            return multiply(lax.broadcast(scalar, (size,)), arrays)

        matrix = jnp.stack([_sum(map(entry, row)) for row in spec])
        terms = [term for row in spec for term in row]
        return matrix, jnp.all(_bounds(terms, flat, dtype) <= _tiny(dtype) ** -_MATRIX_RANGE)

    return table.make_matrix(("rows", spec, size, dtype), inputs, stack)


def _bounds(terms: Sequence[_Term], values: Sequence[Any], dtype: Any) -> Any:
    """B of each term; what a factor adds to it is computed once for all of them."""
    used = dict.fromkeys(factor for term in terms for factor in (*term.scalars, *term.arrays))
    parts = {(k, inverse): _bound_of(values[k], inverse) for k, inverse in used}
    largest = float(jnp.finfo(dtype).max)
    bounds = []
    for term in terms:
        size = _number(min(max(1.0, abs(term.number)), largest), dtype)
        bounds.append(
            functools.reduce(
                lax.mul, [parts[factor] for factor in (*term.scalars, *term.arrays)], size
            )
        )
    return jnp.stack(bounds)


def _number(value: float, dtype: Any) -> Any:
    """A literal of an equation."""
    with np.errstate(all="ignore"):
        return np.asarray(value, dtype)[()]


def _bound(factors: Iterable[tuple[Any, bool]]) -> Any:
    """B, the product of max(1, |factor|) over the factors."""
    return functools.reduce(
        operator.mul, [_bound_of(factor, inverse) for factor, inverse in factors]
    )


def _bound_of(factor: Any, inverse: bool) -> Any:
    """max(1, |factor|), of an array for the largest element; not a number stays one, so that guards
    are false.
    """
    size = lax.abs(factor)
    axes = tuple(range(factor.ndim))
    one = lax.full_like(size, 1, shape=())
    largest = lax.div(one, lax.reduce_min(size, axes)) if inverse else lax.reduce_max(size, axes)
    return lax.select(lax.le(largest, one), one, largest)


def _sum(terms: Iterable[Any]) -> Any:
    return functools.reduce(lax.add, terms)


def multiply(start: Any, factors: Iterable[tuple[Any, bool]]) -> Any:
    """A value times factors of its shape, or divided by them, one by one."""
    value = start
    for factor, inverse in factors:
        value = lax.div(value, factor) if inverse else lax.mul(value, factor)
    return value


# --- its product with u ---------------------------------------------------------------------------


def _products(
    pieces: Sequence[Piece], dirty: Sequence[Factor], order: Sequence[int], inputs: Sequence[Var]
) -> Callable[..., list[Any]]:
    """A function of M and the inputs that returns each piece."""

    def products(matrix: Any, *values: Any) -> list[Any]:
        dtype = matrix.dtype
        names = {
            var: value.ravel() if value.ndim else value
            for var, value in zip(inputs, values, strict=True)
        }

        def read(factors: Iterable[Factor]) -> list[tuple[Any, bool]]:
            return [(names[atom], inverse) for atom, inverse in factors]

        factors = read(dirty)
        u = multiply(lax.full_like(factors[0][0], 1), factors)
        # One bound per array, so that products of other groups share it.
        shared = _bound([(names[atom], inverse) for atom, inverse in dict.fromkeys(dirty)])
        shared = shared ** max(map(dirty.count, dirty))
        dots = jnp.matmul(matrix, u, precision=Precision.HIGHEST)
        numbers = jnp.stack([_number(piece.number, dtype) for piece in pieces])
        tables = _tables([read(piece.scalars) for piece in pieces], dtype)
        results = jnp.stack([_at(dots, k) for k in order]) * _scales(numbers, *tables)
        num_terms = u.size * max(len(piece.row) for piece in pieces)
        is_safe = _is_safe(results, shared, numbers, *tables, num_terms)
        return [*(_at(results, k) for k in range(len(pieces))), is_safe]

    return products


def _tables(products: Sequence[Sequence[tuple[Any, bool]]], dtype: Any) -> tuple[Any, Any]:
    """Scalar factors of each product as rows of multipliers and divisors, padded with ones: the
    order is kept.
    """
    length = max(1, *map(len, products))
    one = jnp.ones((), dtype)

    def table(is_kept: Callable[[bool], bool]) -> Any:
        rows = [
            [x if is_kept(inverse) else one for x, inverse in p] + [one] * (length - len(p))
            for p in products
        ]
        return jnp.array(rows, dtype).reshape(len(products), length)

    return table(lambda inverse: not inverse), table(lambda inverse: inverse)


def _scales(numbers: Any, multipliers: Any, divisors: Any) -> Any:
    """The product of each row's scalars."""
    scale = numbers
    for k in range(multipliers.shape[1]):
        scale = scale * multipliers[:, k] / divisors[:, k]
    return scale


def _is_safe(
    results: Any, shared: Any, numbers: Any, multipliers: Any, divisors: Any, num_terms: int
) -> Any:
    """Whether B is bounded, and each result is zero for a zero factor or large against what its
    terms may lose.
    """
    tiny = _tiny(results.dtype)
    eps = float(jnp.finfo(results.dtype).eps)
    sizes = jnp.abs(jnp.concatenate([numbers[:, None], multipliers, 1 / divisors], axis=1))
    scalars = jnp.prod(jnp.where(sizes <= 1, jnp.ones_like(sizes), sizes), axis=1)
    loss = _MAX_LOSSES * num_terms * tiny ** (1.0 - _MATRIX_RANGE) / eps * shared * scalars
    is_bounded = (shared <= tiny**-_SHARED_RANGE) & (scalars <= tiny**-_SCALAR_RANGE)
    return jnp.all(is_bounded & ((jnp.abs(results) >= loss) | jnp.any(multipliers == 0, axis=1)))


def is_in_range(factors: Sequence[tuple[Any, bool]]) -> Any:
    """Whether no product of some scalars comes near the end of the range, in any order."""
    return _bound(factors) <= _tiny(factors[0][0].dtype) ** -(_SHARED_RANGE + _SCALAR_RANGE)


def _at(array: Any, index: int) -> Any:
    return jax.lax.index_in_dim(array, index, keepdims=False)


def _tiny(dtype: Any) -> float:
    return float(jnp.finfo(dtype).tiny)
