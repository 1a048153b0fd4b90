"""Weighted products of a matrix of clean rows with one dirty vector: d_k (M u)_k, guarded against leaving the range.

A row of M is a sum of terms, each a product of clean scalars and clean arrays.

Law: where a guard is true, each result differs from that of the reductions it stands for by rounding of single terms
and of their sums, in whatever order a term's factors are multiplied. Let B be the product, over a term's factors, of
max(1, |factor|): no product of some of them exceeds B, so none overflows where B is bounded; and where one underflows,
what is lost is at most `tiny` times B. Guards bound parts of B:
- of M and the scalars put into it: the flag that comes with M; M is not to be used where it is false;
- of u, and of the scalars d_k: the guard of the equations, which also asks that what N terms may lose is small against
  each result. Where it is false, the results are not to be used.

In: rows, dirty factors. Out: equations with a guard, and the matrix in the table of derived values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.planning.derived import DerivedTable, traced_equations
from incrax.planning.linear import Factor

Key: TypeAlias = tuple[tuple[int, bool], ...]

_MATRIX_RANGE = 0.35
_SHARED_RANGE = 0.25
_SCALAR_RANGE = 0.15
"""Exponents of the least normal number: B is below tiny**-0.35 for M, tiny**-0.25 for u, tiny**-0.15 for d_k, and
tiny**-0.75 leaves room for sums of 1e9 terms in single precision."""

_MAX_LOSSES = 16.0
"""Products in a term, and so losses by underflow, that are reckoned with."""


def factor_key(factors: Iterable[Factor]) -> Key:
    """Equal for products of the same factors."""
    return tuple(sorted((id(atom), inverse) for atom, inverse in factors))


class Entry(NamedTuple):
    """One term of a row: a number times a product of clean scalars and clean arrays."""

    scalars: tuple[Factor, ...]
    arrays: tuple[Factor, ...]
    number: float


class Piece(NamedTuple):
    """A row's product with the shared vector, times scalars and a number: a part of the value of `sink`."""

    sink: Var
    row: tuple[Entry, ...]
    scalars: tuple[Factor, ...]
    number: float

    @property
    def key(self) -> tuple[tuple[Key, Key, float], ...]:
        """Equal for pieces of the same row; a term may occur twice in it."""
        return tuple(sorted((factor_key(e.scalars), factor_key(e.arrays), e.number) for e in self.row))


def weighted_products(
    pieces: Sequence[Piece], dirty: Sequence[Factor], outputs: Sequence[Var], table: DerivedTable
) -> tuple[list[Equation], Var]:
    """Equations that compute M, write each piece to an output, and a guard; u is the product of the dirty arrays."""
    rows = {piece.key: piece.row for piece in pieces}
    order = [list(rows).index(piece.key) for piece in pieces]
    matrix = _matrix(list(rows.values()), dirty[0][0].aval, table)
    inputs = list(dict.fromkeys(a for f in (dirty, *(p.scalars for p in pieces)) for a, _ in f))
    guard = _jax.new_var(_jax.bool_aval())
    new = traced_equations(_products(pieces, dirty, order, inputs), [matrix, *inputs], [*outputs, guard])[1]
    return [*new], guard


# --- the matrix ---------------------------------------------------------------------------------------------------


def _matrix(rows: Sequence[Sequence[Entry]], aval: Any, table: DerivedTable) -> Var:
    """The variable with these rows, and its flag."""
    inputs = list(dict.fromkeys(a for row in rows for e in row for a, _ in (*e.scalars, *e.arrays)))
    size, dtype = _jax.aval_size(aval), aval.dtype

    def numbered(factors: Iterable[Factor]) -> tuple[tuple[int, bool], ...]:
        return tuple((inputs.index(atom), inverse) for atom, inverse in factors)

    spec = tuple(tuple((numbered(e.scalars), numbered(e.arrays), e.number) for e in row) for row in rows)

    def stack(*values: Any) -> tuple[Any, Any]:
        flat = [value.ravel() if value.ndim else value for value in values]
        bounds = []

        def entry(scalars: Any, arrays: Any, number: float) -> Any:
            factors = [(flat[k], inverse) for k, inverse in scalars]
            vectors = [(flat[k], inverse) for k, inverse in arrays]
            bounds.append(_bound([(jnp.asarray(number, dtype), False), *factors, *vectors]))
            return multiply(jnp.asarray(number, dtype), factors) * multiply(jnp.ones((size,), dtype), vectors)

        matrix = jnp.stack([_sum(entry(*term) for term in row) for row in spec])
        return matrix, jnp.all(jnp.stack(bounds) <= _tiny(dtype) ** -_MATRIX_RANGE)

    return table.make_matrix(("rows", spec, size, dtype), inputs, stack)


def _bound(factors: Iterable[tuple[Any, bool]]) -> Any:
    """B, the product of max(1, |factor|) over the factors; of an array, the largest element counts."""
    bound: Any = None
    for factor, inverse in factors:
        size = jnp.abs(factor)
        largest = 1 / jnp.min(size) if inverse else jnp.max(size)
        # Not a number stays one, so that the guard is false.
        part = jnp.where(largest <= 1, jnp.ones_like(largest), largest)
        bound = part if bound is None else bound * part
    return bound


def _sum(terms: Iterable[Any]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def multiply(start: Any, factors: Iterable[tuple[Any, bool]]) -> Any:
    """A value times factors, or divided by them, one by one."""
    value = start
    for factor, inverse in factors:
        value = value / factor if inverse else value * factor
    return value


# --- its product with u -------------------------------------------------------------------------------------------


def _products(
    pieces: Sequence[Piece], dirty: Sequence[Factor], order: Sequence[int], inputs: Sequence[Var]
) -> Callable[..., list[Any]]:
    """A function of M and the inputs that returns each piece."""

    def products(matrix: Any, *values: Any) -> list[Any]:
        dtype = matrix.dtype
        names = {var: value.ravel() if value.ndim else value for var, value in zip(inputs, values, strict=True)}

        def read(factors: Iterable[Factor]) -> list[tuple[Any, bool]]:
            return [(names[atom], inverse) for atom, inverse in factors]

        u = multiply(jnp.ones((), dtype), read(dirty))
        # One bound per array, so that products of other groups share it.
        shared = _bound([(names[atom], inverse) for atom, inverse in dict.fromkeys(dirty)])
        shared = shared ** max(map(dirty.count, dirty))
        dots = jnp.matmul(matrix, u, precision=jax.lax.Precision.HIGHEST)
        numbers = jnp.stack([jnp.asarray(piece.number, dtype) for piece in pieces])
        tables = _tables([read(piece.scalars) for piece in pieces], dtype)
        results = jnp.stack([_at(dots, k) for k in order]) * _scales(numbers, *tables)
        num_terms = u.size * max(len(piece.row) for piece in pieces)
        is_safe = _is_safe(results, shared, numbers, *tables, num_terms)
        return [*(_at(results, k) for k in range(len(pieces))), is_safe]

    return products


def _tables(products: Sequence[Sequence[tuple[Any, bool]]], dtype: Any) -> tuple[Any, Any]:
    """Scalar factors of each product as rows of multipliers and divisors, padded with ones: the order is kept."""
    length = max(1, *map(len, products))
    one = jnp.ones((), dtype)

    def table(is_kept: Callable[[bool], bool]) -> Any:
        rows = [[x if is_kept(inverse) else one for x, inverse in p] + [one] * (length - len(p)) for p in products]
        return jnp.array(rows, dtype).reshape(len(products), length)

    return table(lambda inverse: not inverse), table(lambda inverse: inverse)


def _scales(numbers: Any, multipliers: Any, divisors: Any) -> Any:
    """The product of each row's scalars."""
    scale = numbers
    for k in range(multipliers.shape[1]):
        scale = scale * multipliers[:, k] / divisors[:, k]
    return scale


def _is_safe(results: Any, shared: Any, numbers: Any, multipliers: Any, divisors: Any, num_terms: int) -> Any:
    """Whether B is bounded, and each result is zero for a zero factor or large against what its terms may lose."""
    tiny, eps = _tiny(results.dtype), float(jnp.finfo(results.dtype).eps)
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
