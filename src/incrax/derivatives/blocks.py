"""Jacobians and Hessians of trees from few directional derivatives, where their pattern allows it.

In: a function of pytrees and a selection. Out: a block for each pair of arrays, or None where
compression does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._program import Program, trace
from incrax.derivatives.flat import Ends, ends, joined
from incrax.derivatives.selection import Selection
from incrax.derivatives.sparsity.compressed import (
    color_columns,
    color_symmetric,
    compressed_jacobian,
    coordinates,
    dense,
    hessian_values,
    pays,
)
from incrax.derivatives.sparsity.search import (
    MAX_WORK,
    Matrix,
    csr,
    hessian_pattern,
    pattern_of,
)
from incrax.engine.inputs.signature import Function

MIN_SIZE = 32
"""Elements of the smaller side of a Jacobian from which on its pattern is looked for unasked."""

MAX_UNASKED_WORK = 1 << 22
"""Nonzeros to make in such a search at most: a fraction of a second."""

Blocks = list[list[Any]]


def jacobian_blocks(fun: Function, selection: Selection, *, is_sparse: bool) -> Blocks | None:
    """For each output array its blocks, one per selected leaf; `fun` takes arguments and returns a
    list of arrays.

    None where fewer passes than inputs and outputs do not do and nothing sparse is asked for.
    """
    of_vector = traced_of_vector(fun, selection, is_sparse=is_sparse)
    rows = None if of_vector is None else _rows(of_vector.program)
    if of_vector is None or rows is None or not (is_sparse or rows.size >= MIN_SIZE):
        return None
    columns = of_vector.columns
    pattern = pattern_of(of_vector.program, max_work=_most_work(is_sparse=is_sparse))
    if pattern is None:
        if not is_sparse:
            return None
        modes = [jax.jacfwd(of_vector), jax.jacrev(of_vector)]
        values = first_that_works(modes, [of_vector.point]).ravel()
        pattern = _full(rows.size, columns.size)
    else:
        coloring = color_columns(pattern)
        if not (is_sparse or pays(coloring.num_colors, columns.size, rows.size)):
            return None
        values = compressed_jacobian(of_vector, of_vector.point, pattern, coloring)
    values = values.astype(of_vector.point.dtype)
    return _blocks(values, pattern, rows, columns, is_sparse=is_sparse)


def hessian_blocks(fun: Function, selection: Selection, *, is_sparse: bool) -> Blocks | None:
    """The blocks of the Hessian of the only output, a scalar; None as in `jacobian_blocks`."""
    of_vector = traced_of_vector(fun, selection, is_sparse=is_sparse)
    if of_vector is None or [x.aval.shape for x in of_vector.program.outvars] != [()]:
        return None
    columns = of_vector.columns
    size = columns.size
    pattern = hessian_pattern(of_vector.program, max_work=_most_work(is_sparse=is_sparse))
    if pattern is None:
        if not is_sparse:
            return None
        pattern = _full(size, size)
    coloring = color_symmetric(pattern)
    if not (is_sparse or pays(coloring.num_colors, size, size)):
        return None
    values = hessian_values(lambda vector: of_vector(vector)[0], of_vector.point, pattern, coloring)
    return _blocks(values, pattern, columns, columns, is_sparse=is_sparse)


class OfVector(NamedTuple):
    """A function of one vector, the selected leaves end to end, traced: all that follows evaluates
    this.
    """

    program: Program
    columns: Ends  # where the leaves lie in the vector
    point: jax.Array  # the vector

    def __call__(self, vector: jax.Array) -> jax.Array:
        """The outputs in one vector."""
        return joined(self.program(vector))


def traced_of_vector(fun: Function, selection: Selection, *, is_sparse: bool) -> OfVector | None:
    """None where the selected leaves are not real numbers of one type.

    Unless something sparse is asked for, also where they are few, or where types say how some value
    is sharded: then those of vectors of several, and of blocks, are not known.
    """
    values = selection.values
    dtypes = {jax.dtypes.result_type(value) for value in values}
    if len(dtypes) > 1 or not jnp.issubdtype(next(iter(dtypes)), jnp.floating):
        return None
    columns = ends([np.shape(value) for value in values])
    if not is_sparse and (columns.size < MIN_SIZE or _is_sharded(selection)):
        return None
    point = joined([jnp.asarray(value) for value in values])
    avals = [jax.typeof(value) for value in values]

    def of_vector(vector):  # a part of weak type is one: it does not widen what it meets
        return selection.called(fun, list(map(_jax.typed_as, columns.split(vector), avals)))

    return OfVector(trace(of_vector, point), columns, point)


def _is_sharded(selection: Selection) -> bool:
    """Whether types say how an argument is."""
    leaves = (*selection.values, *selection.others)
    return any(_jax.explicit_sharding(jax.typeof(x)) is not None for x in leaves)


def _rows(program: Program) -> Ends | None:
    """Where the outputs lie in one vector; None where they are not real numbers of one type."""
    types = [atom.aval for atom in program.outvars]
    if len({x.dtype for x in types}) != 1 or not jnp.issubdtype(types[0].dtype, jnp.floating):
        return None
    return ends([x.shape for x in types])


def _most_work(*, is_sparse: bool) -> int:
    return MAX_WORK if is_sparse else MAX_UNASKED_WORK


def _full(num_rows: int, num_columns: int) -> Matrix:
    return csr(np.ones((num_rows, num_columns), bool))


def _blocks(
    values: jax.Array, pattern: Matrix, rows: Ends, columns: Ends, *, is_sparse: bool
) -> Blocks:
    """For each pair of arrays its block, of shape (*row.shape, *column.shape), from the values at a
    pattern's nonzeros.
    """
    matrix = None if is_sparse else dense(values, pattern)
    places = coordinates(pattern)

    def block(row, column):
        if matrix is None:
            return _sparse_block(values, *places, row, column)
        (a, b, row_shape), (c, d, column_shape) = row, column
        return matrix[a:b, c:d].reshape(*row_shape, *column_shape)

    return [[block(row, column) for column in columns.parts()] for row in rows.parts()]


def _sparse_block(values: jax.Array, i: np.ndarray, j: np.ndarray, row: Any, column: Any) -> Any:
    """A `BCOO` of the nonzeros within bounds, their indices, sorted and unique, those of the two
    arrays.
    """
    from jax.experimental.sparse import BCOO  # here, as it imports SciPy

    (a, b, row_shape), (c, d, column_shape) = row, column
    chosen = np.flatnonzero((a <= i) & (i < b) & (c <= j) & (j < d))
    places = [*_unravelled(i[chosen] - a, row_shape), *_unravelled(j[chosen] - c, column_shape)]
    indices = np.stack(places, axis=1) if places else np.zeros((chosen.size, 0))
    return BCOO(
        (
            values if chosen.size == i.size else values[chosen],
            jnp.asarray(indices.astype(np.int32)),
        ),
        shape=(*row_shape, *column_shape),
        indices_sorted=True,
        unique_indices=True,
    )


def _unravelled(numbers: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    return list(np.unravel_index(numbers, shape)) if shape else []


def first_that_works(functions: Sequence[Function], values: Sequence[Any]) -> Any:
    """The result of the first function that JAX can differentiate as it asks; else the error of the
    first.

    A `custom_vjp` has no forward mode, a `while_loop` no reverse mode; that is known when they are
    traced.
    """
    errors: list[Exception] = []
    for function in functions:
        try:
            return function(*values)
        except (TypeError, ValueError, NotImplementedError) as error:
            errors.append(error)
    raise errors[0]
