"""Compressed derivatives: the nonzeros of a Jacobian or Hessian from one directional derivative per
colour.

In: a function of a flat vector, and a pattern. Out: the values at the pattern's nonzeros, in its
order (by row, then by column). Pattern and colours are constants; the point may be a tracer of
`jit`, `vmap` or `grad`.

Two columns of a sparse matrix may share a colour if no row has a nonzero in both (Curtis, Powell,
Reid 1974): the product of the matrix with the sum of their unit vectors then holds each of their
nonzeros by itself. For a symmetric matrix a nonzero may also be read from its mirror image, so that
full rows need not forbid anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax.derivatives.sparsity.search import Matrix, csr

MAX_BATCH_ELEMENTS = 1 << 24
"""Elements of all seeds, or all results, that are held at once; more colours go in batches."""


# --- colours --------------------------------------------------------------------------------------


class Coloring(NamedTuple):
    """A colour for each column, -1 for none, and how many there are; each of the `hubs` has a
    colour of its own.
    """

    colors: np.ndarray
    num_colors: int
    hubs: np.ndarray


NO_HUBS = np.zeros(0, int)


def color_columns(pattern: Matrix) -> Coloring:
    """Colour columns such that no row has two nonzeros of one colour.

    Greedy, columns with most nonzeros first, each with the smallest colour that fits; the number of
    colours is at least the largest number of nonzeros in a row, and often equal to it. Cost:
    nonzeros times colours / 64. Empty columns have no colour, -1.
    """
    columns = pattern.tocsc()
    indices = columns.indices.tolist()
    indptr = columns.indptr.tolist()
    taken = [0] * pattern.shape[0]
    """Per row the colours of its columns so far, as bits."""
    colors = np.zeros(pattern.shape[1], int)
    for column in np.argsort(-np.diff(columns.indptr), kind="stable").tolist():
        rows = indices[indptr[column] : indptr[column + 1]]
        used = 0
        for row in rows:
            used |= taken[row]
        bit = ~used & (used + 1)
        colors[column] = bit.bit_length() - 1 if rows else -1
        for row in rows:
            taken[row] |= bit
    num_colors = max((bits.bit_length() for bits in taken), default=0)
    return Coloring(colors, num_colors, NO_HUBS)


def color_symmetric(pattern: Matrix) -> Coloring:
    """Colour columns of a symmetric matrix such that each nonzero, or its mirror image, is alone in
    its row and colour.

    The columns of the fullest rows, the hubs, get a colour each. A nonzero in a hub's row is read
    from the hub's column, so that the others are coloured without these rows. An arrow takes 2
    colours, where `color_columns` takes as many as there are columns. The number of hubs is a power
    of two, or 0: the one with the fewest colours in all.
    """
    counts = np.diff(pattern.indptr)
    order = np.argsort(-counts, kind="stable")
    best = color_columns(pattern)
    num_hubs = 1
    while num_hubs < min(best.num_colors, len(order)):
        hubs = np.sort(order[:num_hubs])
        rest = _without(pattern, hubs)
        if num_hubs + int(np.diff(rest.indptr).max(initial=0)) < best.num_colors:
            best = min(best, _with_hubs(rest, hubs), key=lambda found: found.num_colors)
        num_hubs *= 2
    return best


def _without(pattern: Matrix, hubs: np.ndarray) -> Matrix:
    """The pattern without the hubs' rows and columns."""
    kept = np.ones(pattern.shape[0], bool)
    kept[hubs] = False
    coo = pattern.tocoo()
    both = kept[coo.row] & kept[coo.col]
    return csr((coo.data[both], (coo.row[both], coo.col[both])), shape=pattern.shape)


def _with_hubs(rest: Matrix, hubs: np.ndarray) -> Coloring:
    colors, num_colors, _ = color_columns(rest)
    colors[hubs] = num_colors + np.arange(hubs.size)
    return Coloring(colors, num_colors + hubs.size, hubs)


def pays(num_colors: int, n_in: int, n_out: int) -> bool:
    """Whether compression at least halves the number of directional derivatives, one per input or
    output: values are to be spread afterwards.
    """
    return 2 * num_colors <= min(n_in, n_out)


# --- values at the nonzeros -----------------------------------------------------------------------


def coordinates(pattern: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each nonzero, by row, then by column."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return rows, pattern.indices.astype(int)


def compressed_jacobian(
    fun: Callable[[jax.Array], jax.Array], x: jax.Array, pattern: Matrix, coloring: Coloring
) -> jax.Array:
    """The values of a Jacobian at its pattern's nonzeros, one pushforward per colour.

    Args:
        fun: (n,) -> (m,).
        x: (n,), of floating type.
        pattern: (m, n); where it is False the Jacobian must be zero.
        coloring: of its columns, as `color_columns` finds it; of a gradient, whose Jacobian is
            symmetric, as `color_symmetric` does.

    Returns:
        (number of nonzeros,), as `dense` takes them. Nothing is evaluated if there are none. Of
        nonzeros in full rows of a symmetric matrix, one of a pair that mirror each other is
        computed: for a `custom_jvp` that is not the derivative of what it says it is, and so has no
        symmetric Hessian, this differs from `jax.hessian`.
    """
    element, seeded = coordinates(pattern)
    colors, num_colors, hubs = coloring
    if not element.size:
        return jnp.zeros(0, x.dtype)
    is_mirrored = np.isin(element, hubs) & ~np.isin(seeded, hubs)
    color = colors[np.where(is_mirrored, element, seeded)]
    element = np.where(is_mirrored, seeded, element)
    product = lambda seed: jax.jvp(fun, (x,), (seed,))[1]
    if num_colors == 1:
        return _read(product(jnp.asarray(colors == 0, x.dtype)), element)
    one = lambda number: product((jnp.asarray(colors) == number).astype(x.dtype))
    batch = max(1, MAX_BATCH_ELEMENTS // max(colors.size, int(element.max()) + 1))
    numbers = jnp.arange(num_colors)
    products = (
        jax.vmap(one)(numbers)
        if num_colors <= batch
        else jax.lax.map(one, numbers, batch_size=batch)
    )
    return _read(products.ravel(), color * products.shape[1] + element)


def _read(flat: jax.Array, numbers: np.ndarray) -> jax.Array:
    if np.array_equal(numbers, np.arange(flat.size)):
        return flat
    return flat.at[numbers].get(mode="promise_in_bounds")


# --- as matrices ----------------------------------------------------------------------------------


def dense(values: jax.Array, pattern: Matrix) -> jax.Array:
    """The matrix with these values at the pattern's nonzeros, and zeros elsewhere."""
    rows, columns = coordinates(pattern)
    zeros = jnp.zeros(pattern.shape, values.dtype)
    return zeros.at[rows, columns].set(values, indices_are_sorted=True, unique_indices=True)
