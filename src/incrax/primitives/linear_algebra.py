"""Factorizations and solutions.

FLOPs: the leading terms for real numbers, by Golub and Van Loan, Matrix Computations (4th edition),
and Blackford and Dongarra, LAPACK working note 41.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import (
    COMPLEX_FACTOR,
    Axis,
    EquationWork,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    along,
    dtype_kind,
    each,
    of_all,
    rank_of,
    shape_of,
)

MATRIX = Kind("takes the rows for a matrix", is_final=True)
SOLVED = Kind("solves for all rows at once", is_final=True)

# --- index rules ----------------------------------------------------------------------------------


def _of_matrices(rank: int, batch: int, kind: Kind) -> Read:
    """A batch of matrices, of which all is read."""
    return Read(tuple(Axis(d) if d < batch else Axis(-1 - d, kind) for d in range(rank)))


def _factorized(batch: Callable[[Equation], int]) -> Callable[[Equation, View], list[Reads]]:
    """All of each matrix; `batch` is the number of axes in front of it."""
    return lambda eqn, _: of_all(
        eqn, [_of_matrices(rank_of(atom), batch(eqn), MATRIX) for atom in eqn.invars]
    )


def _before(count: int) -> Callable[[Equation], int]:
    """The axes of the first operand before its last ones."""
    return lambda eqn: rank_of(eqn.invars[0]) - count


def _triangular_solve(eqn: Equation, _: View) -> list[Reads]:
    """A right-hand side per row: a batch of systems, or the free axis of one."""
    rank = rank_of(eqn.invars[1])
    free = rank - 1 if eqn.params["left_side"] else rank - 2
    sides = along(rank, {rank - 2, rank - 1} - {free}, SOLVED)
    return [Reads([_of_matrices(rank, rank - 2, SOLVED), sides])]


def _tridiagonal_solve(eqn: Equation, _: View) -> list[Reads]:
    """Likewise: diagonals of a batch of systems, and right-hand sides as columns."""
    rank = rank_of(eqn.invars[-1])
    diagonal = _of_matrices(rank - 1, rank - 2, SOLVED)
    return [Reads([diagonal, diagonal, diagonal, along(rank, {rank - 2}, SOLVED)])]


# --- work -----------------------------------------------------------------------------------------


def _matrix(flops: Callable[[Equation], float]) -> Callable[[Equation], EquationWork]:
    """By the kind of the matrix: the eigenvalues of a real one may be complex."""

    def work(eqn: Equation) -> EquationWork:
        factor = COMPLEX_FACTOR if dtype_kind(eqn.invars[0].aval) == "c" else 1.0
        return EquationWork(flops(eqn) * factor)

    return work


def _sizes(eqn: Equation, number: int = 0) -> tuple[int, int, int]:
    """(number of matrices, rows, columns) of an input."""
    shape = shape_of(eqn.invars[number])
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _cubic(factor: float) -> Callable[[Equation], float]:
    """So many n^3 for each square matrix."""

    def flops(eqn: Equation) -> float:
        batch, _, n = _sizes(eqn)
        return factor * batch * n**3

    return flops


def _lu(eqn: Equation) -> float:
    """Of a square matrix 2/3 n^3."""
    batch, rows, cols = _sizes(eqn)
    long = max(rows, cols)
    short = min(rows, cols)
    return batch * (long * short**2 - short**3 / 3)


def _householder(eqn: Equation) -> float:
    """The factor R and the reflections: 2 m n^2 - 2/3 n^3."""
    return 2 * _lu(eqn)


def _qr(eqn: Equation) -> float:
    """The factor R, then Q with as many columns as the result has."""
    batch, rows, cols = _sizes(eqn)
    columns = shape_of(eqn.outvars[0])[-1]
    return _householder(eqn) + batch * _formed(rows, columns, min(rows, cols))


def _householder_product(eqn: Equation) -> float:
    batch, rows, cols = _sizes(eqn)
    return batch * _formed(rows, cols, shape_of(eqn.invars[1])[-1])


def _formed(m: int, n: int, k: int) -> float:
    """FLOPs of n columns of Q, of m rows, from k reflections."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _times_q(eqn: Equation) -> float:
    """A product with Q from k reflections: 4 m n k - 2 n k^2."""
    batch, m, n = _sizes(eqn, 2)
    k = shape_of(eqn.invars[1])[-1]
    m, n = (m, n) if eqn.params.get("left", True) else (n, m)
    return batch * (4 * m * n * k - 2 * n * k**2)


def _svd(eqn: Equation) -> float:
    """Golub and Reinsch, for m >= n: 4 m n^2 - 4/3 n^3 without vectors, 14 m n^2 + 8 n^3 with as
    many as values.
    """
    batch, rows, cols = _sizes(eqn)
    m = max(rows, cols)
    n = min(rows, cols)
    if not eqn.params.get("compute_uv", True):
        return batch * (4 * m * n**2 - 4 / 3 * n**3)
    if eqn.params.get("full_matrices", False):
        return batch * (4 * m**2 * n + 8 * m * n**2 + 9 * n**3)
    return batch * (14 * m * n**2 + 8 * n**3)


def _eig(eqn: Equation) -> float:
    """With vectors 25 n^3, without 10 n^3."""
    names = ("compute_left_eigenvectors", "compute_right_eigenvectors", "compute_schur_vectors")
    return _cubic(25.0 if any(eqn.params.get(name) for name in names) else 10.0)(eqn)


def _triangular_flops(eqn: Equation) -> float:
    """For each right side n^2, divisions among them; n less where the diagonal is ones."""
    n = shape_of(eqn.invars[0])[-1]
    sides = _jax.aval_size(eqn.invars[1].aval)
    return float((n - 1 if eqn.params.get("unit_diagonal") else n) * sides)


def _symmetric_product(eqn: Equation) -> float:
    """One triangle of A A' + C: n (n + 1) k."""
    batch, n, k = _sizes(eqn)
    return float(batch * n * (n + 1) * k)


# --- entries --------------------------------------------------------------------------------------


def _of_matrix(flops: Callable[[Equation], float], **known: Any) -> Primitive:
    return Primitive(index=_factorized(_before(2)), work=_matrix(flops), **known)


def _counted_only(flops: Callable[[Equation], float]) -> Primitive:
    return Primitive(work=_matrix(flops))


FAMILY: Family = {
    "triangular_solve": Primitive(
        index=_triangular_solve, work=_matrix(_triangular_flops), is_unfused=True, additions=2.0
    ),
    "cholesky": _of_matrix(_cubic(1 / 3), is_unfused=True, additions=1.5),
    "eigh": _of_matrix(_cubic(9.0)),
    "householder_product": _of_matrix(_householder_product),
    "lu": _of_matrix(_lu),
    "lu_pivots_to_permutation": Primitive(
        index=_factorized(_before(1)), work=_matrix(lambda _: 0.0)
    ),
    "qr": _of_matrix(_qr),
    "svd": _of_matrix(_svd),
    **each("eig schur", _of_matrix(_eig)),
    **each("geqp3 geqrf", _counted_only(_householder)),
    "hessenberg": _counted_only(_cubic(10 / 3)),
    "ormqr": _counted_only(_times_q),
    "symmetric_product": _counted_only(_symmetric_product),
    "tridiagonal": _counted_only(_cubic(4 / 3)),
    # Thomas: 8 for each element of the right sides
    "tridiagonal_solve": Primitive(
        index=_tridiagonal_solve,
        work=_matrix(lambda eqn: 8.0 * _jax.aval_size(eqn.invars[-1].aval)),
    ),
}
