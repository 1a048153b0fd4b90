"""Products of a complex vector and a large complex matrix that stays, in real arithmetic.

    v A = (a + b i) (R + I i) = (a R - b I) + (a I + b R) i

The rows of R and I, as many bytes as A, are loaded in its place. XLA on CPU multiplies by real
matrices two to three times as fast: 20 couplings and the amplitudes of 200,000 events take 2.2 in
place of 8 ms. Where a number is infinite or NaN, its products are so in parts that depend on the
kernel that XLA takes: a matrix with such numbers is not used, and a guard asks for vectors.

In: the equations that a change reaches. Out: others, with the same results up to rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import all_read
from incrax.engine.rewrites.derived import DerivedTable, traced_equations
from incrax.primitives.entry import shape_of

MIN_SIZE = 2**12
"""Elements of a matrix below which its products are left alone."""


class _Product(NamedTuple):
    """The axes of the matrix are rows and columns; over one of these is summed, with all axes of the
    vector, in this order.
    """

    vector: Var
    order: tuple[int, ...]
    matrix: Var
    num_row_axes: int
    sums_rows: bool


def in_real_arithmetic(
    eqns: Sequence[Equation],
    table: DerivedTable,
    is_steady: Callable[[Var], bool],
    targets: Iterable[Atom],
) -> tuple[tuple[Equation, ...], list[Var]]:
    """The equations with such products of steady matrices that nothing else reads, and if there are
    any, the boolean that must be true for their results to be used.
    """
    found = {n: product for n, eqn in enumerate(eqns) if (product := _product(eqn, is_steady))}
    if not found:
        return tuple(eqns), []
    others = [eqn for n, eqn in enumerate(eqns) if n not in found]
    read = all_read(others, [*targets, *(product.vector for product in found.values())])
    new: list[Equation] = []
    guarded: list[Var] = []
    for number, eqn in enumerate(eqns):
        product = found.get(number)
        if product is None or product.matrix in read:
            new.append(eqn)
            continue
        # An infinite element, or NaN, makes all results so: what is shorter tells.
        guarded.append(
            min(product.vector, eqn.outvars[0], key=lambda var: _jax.aval_size(var.aval))
        )
        split = functools.partial(_split, num_row_axes=product.num_row_axes)
        parts = table.make_matrix(("parts", product.num_row_axes), [product.matrix], split)
        new += traced_equations(_multiplied(eqn, product), [product.vector, parts], eqn.outvars)[1]
    if not guarded:
        return tuple(eqns), []
    guards, last = traced_equations(lambda *given: _are_finite(given), guarded)
    return (*new, *last), guards


def _product(eqn: Equation, is_steady: Callable[[Var], bool]) -> _Product | None:
    """What an equation multiplies, if that is such a product."""
    if eqn.primitive.name != "dot_general" or not _is_of_one_complex_type(eqn):
        return None
    summed, _ = eqn.params["dimension_numbers"]
    for place, matrix in enumerate(eqn.invars):
        vector = eqn.invars[1 - place]
        if isinstance(matrix, Literal) or isinstance(vector, Literal):
            return None
        own, other = summed[place], summed[1 - place]
        rank = len(shape_of(matrix))
        axes = sorted(own)
        is_first = axes == list(range(len(own)))
        is_last = axes == list(range(rank - len(own), rank))
        is_apart = (is_first or is_last) and 0 < len(own) < rank
        is_vector = len(other) == len(shape_of(vector))  # so that there are no batches
        if is_apart and is_vector:
            if _jax.aval_size(matrix.aval) < MIN_SIZE or not is_steady(matrix):
                return None
            order = tuple(other[own.index(axis)] for axis in axes)
            num_row_axes = len(own) if is_first else rank - len(own)
            return _Product(vector, order, matrix, num_row_axes, is_first)
    return None


def _is_of_one_complex_type(eqn: Equation) -> bool:
    """Whether operands and result are: else numbers would have to be summed in more digits."""
    first, *others = [x.aval.dtype for x in (*eqn.outvars, *eqn.invars)]
    return jnp.issubdtype(first, jnp.complexfloating) and all(each == first for each in others)


def _split(matrix: Any, num_row_axes: int) -> tuple[Any, Any]:
    """The parts of a matrix, of shape (rows, 2, columns), and whether they are finite."""
    rows = math.prod(matrix.shape[:num_row_axes])
    matrix = lax.reshape(matrix, (rows, matrix.size // rows))
    return jnp.stack([jnp.real(matrix), jnp.imag(matrix)], axis=1), _are_finite([matrix])


def _are_finite(arrays: Iterable[Any]) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in arrays]))


def _multiplied(eqn: Equation, product: _Product) -> Callable[[Any, Any], Any]:
    """The result of an equation, of its vector and of the parts of its matrix."""
    (result,) = eqn.outvars
    times = functools.partial(jnp.matmul, precision=eqn.params["precision"])

    def multiplied(vector: Any, parts: Any) -> Any:
        rows, _, columns = parts.shape
        parts = parts.reshape(2 * rows, columns)
        with _jax.at_source_of(eqn):
            vector = jnp.transpose(vector, product.order).ravel()
            a, b = jnp.real(vector), jnp.imag(vector)
            if product.sums_rows:
                real, imag = times(_interleaved(a, b), parts)
            else:
                # As one product with both, it would take a fifth longer.
                by_a, by_b = (times(parts, x).reshape(rows, 2).T for x in (a, b))
                real, imag = by_a[0] - by_b[1], by_a[1] + by_b[0]
            return lax.complex(real, imag).reshape(result.aval.shape)

    return multiplied


def _interleaved(a: Any, b: Any) -> Any:
    """The matrix by which the rows R0, I0, R1, I1, ... are multiplied: both results in one pass."""
    of_real = jnp.stack([a, -b], axis=1).ravel()
    of_imag = jnp.stack([b, a], axis=1).ravel()
    return jnp.stack([of_real, of_imag])
