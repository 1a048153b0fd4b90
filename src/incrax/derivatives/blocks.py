"""Jacobians and Hessians of trees from few directional derivatives, where their pattern allows it.

In: a function of pytrees and a selection. Out: a block for each pair of arrays, or None where
compression does not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._program import Program, trace
from incrax.derivatives.flat import Ends, ends, joined
from incrax.derivatives.selection import Selection
from incrax.derivatives.sparsity.compressed import (
    Coloring,
    color_columns,
    color_symmetric,
    compressed_jacobian,
    coordinates,
    dense,
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

NO_RULE = (TypeError, ValueError, NotImplementedError)
"""What JAX raises where it cannot differentiate as it is asked."""

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
    pattern = pattern_of(of_vector.program, max_work=of_vector.max_work)
    return of_vector.blocks(of_vector, rows, pattern, color_columns)


def hessian_blocks(fun: Function, selection: Selection, *, is_sparse: bool) -> Blocks | None:
    """The blocks of the Hessian of the only output, a scalar: of the Jacobian of its gradient, which
    is symmetric; None as in `jacobian_blocks`.
    """
    of_vector = traced_of_vector(fun, selection, is_sparse=is_sparse)
    if of_vector is None or [x.aval.shape for x in of_vector.program.outvars] != [()]:
        return None
    pattern = hessian_pattern(of_vector.program, max_work=of_vector.max_work)
    gradient = jax.grad(lambda vector: of_vector(vector)[0])
    return of_vector.blocks(gradient, of_vector.columns, pattern, color_symmetric)


class OfVector(NamedTuple):
    """A function of one vector, the selected leaves end to end, traced: all that follows evaluates
    this.
    """

    program: Program
    columns: Ends  # where the leaves lie in the vector
    point: jax.Array  # the vector
    is_sparse: bool  # whether blocks are to be

    def __call__(self, vector: jax.Array) -> jax.Array:
        """The outputs in one vector."""
        return joined(self.program(vector))

    @property
    def max_work(self) -> int:
        """That of a search for a pattern."""
        return MAX_WORK if self.is_sparse else MAX_UNASKED_WORK

    def blocks(
        self, fun: Function, rows: Ends, pattern: Matrix | None, color: Callable[..., Coloring]
    ) -> Blocks | None:
        """The blocks of the Jacobian of this, or of its gradient; None where no pattern is known or
        it saves too little, and nothing sparse is asked for.
        """
        shape = rows.size, self.columns.size
        if pattern is not None:
            coloring = color(pattern)
            if not (self.is_sparse or pays(coloring.num_colors, *shape)):
                return None
            values = compressed_jacobian(fun, self.point, pattern, coloring)
        elif self.is_sparse:
            modes = [jax.jacfwd(fun), jax.jacrev(fun)]
            values = first_that_works(modes, [self.point]).ravel()
            pattern = csr(np.ones(shape, bool))
        else:
            return None
        values = values.astype(self.point.dtype)
        return _blocks(values, pattern, rows, self.columns, is_sparse=self.is_sparse)


def traced_of_vector(fun: Function, selection: Selection, *, is_sparse: bool) -> OfVector | None:
    """None where the selected leaves are not real numbers of one type.

    Unless something sparse is asked for, also where they are few, or where types say how some value
    is sharded: then those of vectors of several, and of blocks, are not known.
    """
    values = selection.values
    dtypes = set(selection.dtypes)
    if len(dtypes) > 1 or not jnp.issubdtype(next(iter(dtypes)), jnp.floating):
        return None
    columns = ends([np.shape(value) for value in values])
    if not is_sparse and (columns.size < MIN_SIZE or _is_sharded(selection)):
        return None
    point = joined([jnp.asarray(value) for value in values])
    avals = [jax.typeof(value) for value in values]

    def of_vector(vector):  # a part of weak type is one: it does not widen what it meets
        return selection.called(fun, list(map(_jax.typed_as, columns.split(vector), avals)))

    return OfVector(trace(of_vector, point), columns, point, is_sparse)


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
    shape = (*row_shape, *column_shape)
    numbers = (i[chosen] - a) * (d - c) + j[chosen] - c
    places = np.unravel_index(numbers, shape or (1,))[: len(shape)]
    indices = np.reshape(places, (len(shape), chosen.size)).T
    return BCOO(
        (
            values if chosen.size == i.size else values[chosen],
            jnp.asarray(indices.astype(np.int32)),
        ),
        shape=shape,
        indices_sorted=True,
        unique_indices=True,
    )


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
        except NO_RULE as error:
            errors.append(error)
    raise errors[0]
