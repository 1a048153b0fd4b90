"""Compressed derivatives: the nonzeros of a Jacobian or Hessian from one directional derivative per colour.

In: a function of a flat vector, and a pattern of `sparsity`. Out: the values at the pattern's nonzeros, in its order
(by row, then by column). Pattern and colours are constants; the point may be a tracer of `jit`, `vmap` or `grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from incrax.derivatives.sparsity.coloring import Colored, Coloring, colored
from incrax.derivatives.sparsity.patterns import Matrix

Mode: TypeAlias = Literal["forward", "reverse"]
Way: TypeAlias = Literal["forward", "reverse", "compressed forward", "compressed reverse"]

MAX_BATCH_ELEMENTS = 1 << 24
"""Elements of all seeds, or all results, that are held at once; more colours go in batches."""


# --- which way --------------------------------------------------------------------------------------------------------


def choose(pattern: Matrix | Colored | None, n_in: int, n_out: int) -> Way:
    """The way with the fewest directional derivatives: one per input, output, or colour of columns or rows.

    Compressed only where that at least halves their number, as values are to be spread afterwards; on a tie forward,
    which keeps no intermediate values.
    """
    plain: Way = "forward" if n_in <= n_out else "reverse"
    if pattern is None:
        return plain
    known = colored(pattern)
    forward, reverse = known.columns.num_colors, known.rows.num_colors
    if 2 * min(forward, reverse) > min(n_in, n_out):
        return plain
    return "compressed forward" if forward <= reverse else "compressed reverse"


# --- values at the nonzeros -------------------------------------------------------------------------------------------


class Compression(NamedTuple):
    """Seed `c` is 1 where `colors == c`; nonzero `k` of the pattern is element `element[k]` of product `color[k]`."""

    colors: np.ndarray
    num_colors: int
    color: np.ndarray
    element: np.ndarray


def compress_columns(pattern: Matrix | Colored) -> Compression:
    """Of products of the matrix with seeds, for forward mode."""
    known = colored(pattern)
    rows, columns = coordinates(known.pattern)
    return _compression(known.columns, columns, rows)


def compress_rows(pattern: Matrix | Colored) -> Compression:
    """Of products of seeds with the matrix, for reverse mode."""
    known = colored(pattern)
    rows, columns = coordinates(known.pattern)
    return _compression(known.rows, rows, columns)


def compress_symmetric(pattern: Matrix | Colored) -> Compression:
    """Of products of a symmetric matrix with seeds."""
    known = colored(pattern)
    coloring = known.symmetric
    rows, columns = coordinates(known.pattern)
    is_mirrored = np.isin(rows, coloring.hubs) & ~np.isin(columns, coloring.hubs)
    return _compression(coloring, np.where(is_mirrored, rows, columns), np.where(is_mirrored, columns, rows))


def _compression(coloring: Coloring, seeded: np.ndarray, element: np.ndarray) -> Compression:
    return Compression(coloring.colors, coloring.num_colors, coloring.colors[seeded], element)


def coordinates(pattern: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each nonzero, by row, then by column."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return rows, pattern.indices.astype(int)


def compressed_jacobian(
    fun: Callable[[jax.Array], jax.Array], x: jax.Array, pattern: Matrix | Colored, *, mode: Mode = "forward"
) -> jax.Array:
    """The values of a Jacobian at its pattern's nonzeros.

    Args:
        fun: (n,) -> (m,).
        x: (n,), of floating type.
        pattern: (m, n); where it is False the Jacobian must be zero.
        mode: one pushforward per colour of the columns, or one pullback per colour of the rows.

    Returns:
        (number of nonzeros,), as `dense` and `bcoo` take them. Nothing is evaluated if there are none.
    """
    _check_shape(pattern, jax.eval_shape(fun, x).shape, x.shape)
    if mode == "forward":
        return _values(lambda seed: jax.jvp(fun, (x,), (seed,))[1], compress_columns(pattern), x.dtype)
    outputs, pullback = jax.vjp(fun, x)
    return _values(lambda seed: pullback(seed)[0], compress_rows(pattern), outputs.dtype)


def hessian_values(fun: Callable[[jax.Array], jax.Array], x: jax.Array, pattern: Matrix | Colored) -> jax.Array:
    """The values of a Hessian at its pattern's nonzeros, one pushforward of the gradient per colour.

    Args:
        fun: (n,) -> a scalar.
        x: (n,), of floating type.
        pattern: (n, n), symmetric; where it is False the Hessian must be zero.

    Returns:
        (number of nonzeros,). Of nonzeros in full rows, one of a pair that mirror each other is computed: for a
        `custom_jvp` that is not the derivative of what it says it is, and so has no symmetric Hessian, this differs
        from `jax.hessian`.
    """
    _check_shape(pattern, x.shape, x.shape)
    gradient = jax.grad(fun)
    return _values(lambda seed: jax.jvp(gradient, (x,), (seed,))[1], compress_symmetric(pattern), x.dtype)


def _check_shape(pattern: Matrix | Colored, out: tuple[int, ...], given: tuple[int, ...]) -> None:
    shape = colored(pattern).pattern.shape
    if shape != (*out, *given):
        raise ValueError(f"the pattern has shape {shape}; the derivative has {(*out, *given)}")


def _values(product: Callable[[jax.Array], jax.Array], compression: Compression, dtype: Any) -> jax.Array:
    """The products with all seeds, read at the nonzeros."""
    colors, num_colors, color, element = compression
    if not element.size:
        return jnp.zeros(0, dtype)

    if num_colors == 1:
        return _read(product(jnp.asarray(colors == 0, dtype)), element)

    def one(number: jax.Array) -> jax.Array:
        return product((jnp.asarray(colors) == number).astype(dtype))

    batch = max(1, MAX_BATCH_ELEMENTS // max(colors.size, int(element.max()) + 1))
    numbers = jnp.arange(num_colors)
    products = jax.vmap(one)(numbers) if num_colors <= batch else jax.lax.map(one, numbers, batch_size=batch)
    return _read(products.ravel(), color * products.shape[1] + element)


def _read(flat: jax.Array, numbers: np.ndarray) -> jax.Array:
    if np.array_equal(numbers, np.arange(flat.size)):
        return flat
    return flat.at[numbers].get(mode="promise_in_bounds")


# --- as matrices ------------------------------------------------------------------------------------------------------


def dense(values: jax.Array, pattern: Matrix) -> jax.Array:
    """The matrix with these values at the pattern's nonzeros, and zeros elsewhere."""
    rows, columns = coordinates(pattern)
    zeros = jnp.zeros(pattern.shape, values.dtype)
    return zeros.at[rows, columns].set(values, indices_are_sorted=True, unique_indices=True)


def bcoo(values: jax.Array, places: Sequence[np.ndarray], shape: tuple[int, ...]) -> BCOO:
    """A sparse array of JAX with these values; places are sorted, unique indices along each axis: `coordinates`."""
    indices = np.stack(places, axis=1) if places else np.zeros((values.size, 0), int)
    return BCOO((values, jnp.asarray(indices.astype(np.int32))), shape=shape, indices_sorted=True, unique_indices=True)
