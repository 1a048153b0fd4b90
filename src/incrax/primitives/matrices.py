"""Stage 4, cost: multiply-adds of products and convolutions, FLOPs of factorizations and solutions.

In: an equation with matrices. Out: a count for real numbers, of the leading terms. It must not know about time.

Sources: Golub and Van Loan, Matrix Computations (4th edition); Blackford and Dongarra, LAPACK working note 41.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Equation


def multiply_adds(eqn: Equation) -> int:
    """Products of numbers that are added up, of a product of arrays or a convolution."""
    return _counts[eqn.primitive.name](eqn)


def _dot(eqn: Equation) -> int:
    (contract, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in contract) * _jax.aval_size(eqn.outvars[0].aval)


def _ragged_dot(eqn: Equation) -> int:
    """Each row belongs to one group; where rows are summed over, each group has its own result."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contract, _), _ = numbers.dot_dimension_numbers
    lhs, _, sizes = (atom.aval.shape for atom in eqn.invars[:3])
    count = math.prod(lhs[axis] for axis in contract) * _jax.aval_size(eqn.outvars[0].aval)
    is_summed = set(numbers.lhs_ragged_dimensions) & set(contract)
    return count // max(sizes[-1], 1) if is_summed else count


def _convolution(eqn: Equation) -> int:
    """Only where a kernel's element meets one of the input: not in the padding, nor in the holes of a dilation."""
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    image, kernel = (atom.aval.shape for atom in eqn.invars)
    result = eqn.outvars[0].aval.shape
    meetings = 1
    for axis, (low, _) in enumerate(params["padding"]):
        meetings *= _meetings(
            size=image[numbers.lhs_spec[2 + axis]],
            taps=kernel[numbers.rhs_spec[2 + axis]],
            places=result[numbers.out_spec[2 + axis]],
            stride=params["window_strides"][axis],
            low=low,
            holes=params["lhs_dilation"][axis],
            spread=params["rhs_dilation"][axis],
        )
    in_features = kernel[numbers.rhs_spec[1]]  # of one group
    return result[numbers.out_spec[0]] * result[numbers.out_spec[1]] * in_features * meetings


def _meetings(*, size: int, taps: int, places: int, stride: int, low: int, holes: int, spread: int) -> int:
    """Pairs of a place of the result and an element of the kernel, along one axis, that meet an input."""
    where = np.arange(places)[:, None] * stride - low + np.arange(taps)[None, :] * spread
    return int(np.sum((where >= 0) & (where % holes == 0) & (where < size * holes)))


_counts: dict[str, Callable[[Equation], int]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged_dot,
}


# --- factorizations -----------------------------------------------------------------------------------------------


def _shape(eqn: Equation, number: int = 0) -> tuple[int, int, int]:
    """(number of matrices, rows, columns) of an input."""
    shape = eqn.invars[number].aval.shape
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _cubic(factor: float) -> Callable[[Equation], float]:
    """So many n^3 for each square matrix."""

    def flops(eqn: Equation) -> float:
        batch, _, n = _shape(eqn)
        return factor * batch * n**3

    return flops


def _lu(eqn: Equation) -> float:
    """Of a square matrix 2/3 n^3."""
    batch, rows, cols = _shape(eqn)
    long, short = max(rows, cols), min(rows, cols)
    return batch * (long * short**2 - short**3 / 3)


def _householder(eqn: Equation) -> float:
    """The factor R and the reflections: 2 m n^2 - 2/3 n^3."""
    batch, rows, cols = _shape(eqn)
    long, short = max(rows, cols), min(rows, cols)
    return 2 * batch * (long * short**2 - short**3 / 3)


def _qr(eqn: Equation) -> float:
    """The factor R, then Q with as many columns as the result has."""
    batch, rows, cols = _shape(eqn)
    columns = eqn.outvars[0].aval.shape[-1]
    return _householder(eqn) + batch * _formed(rows, columns, min(rows, cols))


def _householder_product(eqn: Equation) -> float:
    batch, rows, cols = _shape(eqn)
    return batch * _formed(rows, cols, eqn.invars[1].aval.shape[-1])


def _formed(m: int, n: int, k: int) -> float:
    """FLOPs of n columns of Q, of m rows, from k reflections."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _times_q(eqn: Equation) -> float:
    """A product with Q from k reflections: 4 m n k - 2 n k^2."""
    batch, m, n = _shape(eqn, 2)
    k = eqn.invars[1].aval.shape[-1]
    m, n = (m, n) if eqn.params.get("left", True) else (n, m)
    return batch * (4 * m * n * k - 2 * n * k**2)


def _svd(eqn: Equation) -> float:
    """Golub and Reinsch, for m >= n: 4 m n^2 - 4/3 n^3 without vectors, 14 m n^2 + 8 n^3 with as many as values."""
    batch, rows, cols = _shape(eqn)
    m, n = max(rows, cols), min(rows, cols)
    if not eqn.params.get("compute_uv", True):
        return batch * (4 * m * n**2 - 4 / 3 * n**3)
    if eqn.params.get("full_matrices", False):
        return batch * (4 * m**2 * n + 8 * m * n**2 + 9 * n**3)
    return batch * (14 * m * n**2 + 8 * n**3)


def _eig(eqn: Equation) -> float:
    """With vectors 25 n^3, without 10 n^3."""
    names = ("compute_left_eigenvectors", "compute_right_eigenvectors", "compute_schur_vectors")
    return _cubic(25.0 if any(eqn.params.get(name) for name in names) else 10.0)(eqn)


def _triangular_solve(eqn: Equation) -> float:
    """For each right side n^2, divisions among them; n less where the diagonal is ones."""
    n, sides = eqn.invars[0].aval.shape[-1], _jax.aval_size(eqn.invars[1].aval)
    return float((n - 1 if eqn.params.get("unit_diagonal") else n) * sides)


def _symmetric_product(eqn: Equation) -> float:
    """One triangle of A A' + C: n (n + 1) k."""
    batch, n, k = _shape(eqn)
    return float(batch * n * (n + 1) * k)


def _tridiagonal_solve(eqn: Equation) -> float:
    """Thomas: 8 for each element of the right sides."""
    return 8.0 * _jax.aval_size(eqn.invars[-1].aval)


def _nothing(_: Any) -> float:
    return 0.0


FLOPS: dict[str, Callable[[Equation], float]] = {
    "cholesky": _cubic(1 / 3),
    "eig": _eig,
    "eigh": _cubic(9.0),
    "geqp3": _householder,
    "geqrf": _householder,
    "hessenberg": _cubic(10 / 3),
    "householder_product": _householder_product,
    "lu": _lu,
    "lu_pivots_to_permutation": _nothing,
    "ormqr": _times_q,
    "qr": _qr,
    "schur": _eig,
    "svd": _svd,
    "symmetric_product": _symmetric_product,
    "triangular_solve": _triangular_solve,
    "tridiagonal": _cubic(4 / 3),
    "tridiagonal_solve": _tridiagonal_solve,
}
"""FLOPs of a factorization or a solution with real numbers."""
