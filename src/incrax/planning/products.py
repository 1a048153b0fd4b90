"""Weighted products of a matrix of clean rows with one dirty vector: d_k (M u)_k, guarded against leaving the range.

A row of M is a sum of terms, each a product of clean scalars and clean arrays.

Law: each result differs from that of the reductions it stands for by rounding of single terms and of their sums, where
no product over- or underflows. Where one might, another form runs:
- |d_k|, |u| or |(M u)_k| may leave the range of normal numbers: the scalars are multiplied in before the sum, in the
  same program (`_is_safe` decides);
- an entry of M or a scalar put into it is out of range: the flag that comes with M is false, and M is not to be used.

In: rows, dirty factors. Out: equations, and the matrix in the table of derived values.
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

_SCALAR_RANGE = 0.2
_RESULT_RANGE = 0.3
_SHARED_RANGE = 0.3
_MATRIX_RANGE = 0.4
"""Exponents of the least normal number `tiny`: tiny**0.3 <= |(M u)_k| <= tiny**-0.3; |u|, |M|, |d| and the scalars put
into M are bounded above. What underflows in one of N terms of M u is then below N tiny**(1 - 0.2 - 0.3), and below
N tiny**0.2 relative to the result."""


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
    def key(self) -> frozenset[tuple[Key, Key, float]]:
        """Equal for pieces of the same row."""
        return frozenset((factor_key(e.scalars), factor_key(e.arrays), e.number) for e in self.row)


def weighted_products(
    pieces: Sequence[Piece], dirty: Sequence[Factor], outputs: Sequence[Var], table: DerivedTable
) -> list[Equation]:
    """Equations that compute M, then write each piece to an output; u is the product of the dirty arrays."""
    rows = {piece.key: piece.row for piece in pieces}
    order = [list(rows).index(piece.key) for piece in pieces]
    matrix = _matrix(list(rows.values()), dirty[0][0].aval, table)
    inputs = list(dict.fromkeys(a for f in (dirty, *(p.scalars for p in pieces)) for a, _ in f))
    new = traced_equations(_products(pieces, dirty, order, inputs), [matrix, *inputs], outputs)[1]
    table.unlikely.update({id(eqn): eqn for eqn in new if eqn.primitive.name == "cond"})
    return [*table.recipes[matrix], *new]


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
        weights: list[Any] = []

        def entry(scalars: Any, arrays: Any, number: float) -> Any:
            weight = _scalar_product(number, [(flat[k], inverse) for k, inverse in scalars], dtype)
            weights.append(weight)
            return weight * _multiply(jnp.ones((size,), dtype), [(flat[k], inverse) for k, inverse in arrays])

        matrix = jnp.stack([_sum(entry(*term) for term in row) for row in spec])
        is_bounded = jnp.all(jnp.abs(jnp.stack(weights)) <= _tiny(dtype) ** -_SCALAR_RANGE)
        return matrix, is_bounded & jnp.all(jnp.abs(matrix) <= _tiny(dtype) ** -_MATRIX_RANGE)

    return table.make_matrix(("rows", spec, size, dtype), inputs, stack)


def _scalar_product(number: float, factors: Iterable[tuple[Any, bool]], dtype: Any) -> Any:
    """A number times scalars, by mantissas and exponents: no product on the way leaves the range."""
    product, exponent = jnp.asarray(number, dtype), jnp.asarray(0, jnp.int32)
    for factor, inverse in factors:
        mantissa, power = jnp.frexp(factor)
        product = product / mantissa if inverse else product * mantissa
        exponent = exponent - power if inverse else exponent + power
    return jnp.ldexp(product, exponent)


def _sum(terms: Iterable[Any]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _multiply(start: Any, factors: Iterable[tuple[Any, bool]]) -> Any:
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

        u = _multiply(jnp.ones((), dtype), read(dirty))
        numbers = jnp.stack([jnp.asarray(piece.number, dtype) for piece in pieces])
        tables = _tables([read(piece.scalars) for piece in pieces], dtype)
        scale, is_scale_safe = _scales(numbers, *tables)
        dots = jnp.matmul(matrix, u, precision=jax.lax.Precision.HIGHEST)
        sums = jnp.stack([_at(dots, k) for k in order])

        def direct() -> Any:
            rows = jnp.stack([jnp.asarray(k, jnp.int32) for k in order])
            return jax.lax.map(lambda k: _direct_sum(matrix[k[0]], u * k[1], *k[2:]), (rows, numbers, *tables))

        results = jax.lax.cond(is_scale_safe & _is_safe(u, sums), lambda: scale * sums, direct)
        return [_at(results, k) for k in range(len(pieces))]

    return products


def _tables(products: Sequence[Sequence[tuple[Any, bool]]], dtype: Any) -> tuple[Any, Any]:
    """Scalar factors of each product as rows of multipliers and divisors, padded with ones: the order is kept."""
    length = max(1, *map(len, products))
    one = jnp.ones((), dtype)

    def table(is_kept: Callable[[bool], bool]) -> Any:
        rows = [[x if is_kept(inverse) else one for x, inverse in p] + [one] * (length - len(p)) for p in products]
        return jnp.array(rows, dtype).reshape(len(products), length)

    return table(lambda inverse: not inverse), table(lambda inverse: inverse)


def _scales(numbers: Any, multipliers: Any, divisors: Any) -> tuple[Any, Any]:
    """The product of each row's scalars; whether all are right: bounded and normal on the way, or zero for a zero."""
    tiny = _tiny(numbers.dtype)
    scale, is_normal = numbers, jnp.ones(numbers.shape, bool)
    for k in range(multipliers.shape[1]):
        scale = scale * multipliers[:, k] / divisors[:, k]
        is_normal &= (jnp.abs(scale) >= tiny) & (jnp.abs(scale) <= tiny**-_SCALAR_RANGE)
    factors = jnp.concatenate([multipliers, 1 / divisors], axis=1)
    is_zero = jnp.any(multipliers == 0, axis=1) & jnp.all(jnp.abs(factors) <= tiny**-_SCALAR_RANGE, axis=1)
    return jnp.where(is_zero, 0, scale), jnp.all(is_normal | is_zero)


def _direct_sum(row: Any, u: Any, multipliers: Any, divisors: Any) -> Any:
    """sum_n row[n] u[n] times the scalars, which are multiplied in one by one before the sum."""
    for k in range(multipliers.shape[0]):
        # An array as divisor: dividing by a scalar may become a product with its inverse, which underflows.
        u = u * multipliers[k] / jax.lax.optimization_barrier(jnp.broadcast_to(divisors[k], u.shape))
    return jnp.sum(u * row)


def _at(array: Any, index: int) -> Any:
    return jax.lax.index_in_dim(array, index, keepdims=False)


def _is_safe(u: Any, sums: Any) -> Any:
    """Whether no term of the sums can leave the range of normal numbers so that it matters."""
    tiny = _tiny(u.dtype)
    least = tiny**_RESULT_RANGE
    is_within = jnp.all((jnp.abs(sums) >= least) & (jnp.abs(sums) <= 1 / least))
    return is_within & (jnp.max(jnp.abs(u)) <= tiny**-_SHARED_RANGE)


def _tiny(dtype: Any) -> float:
    return float(jnp.finfo(dtype).tiny)
