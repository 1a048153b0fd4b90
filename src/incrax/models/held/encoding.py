"""An encoder over all rows, chunk by chunk, as one function that JAX can differentiate.

In: an encoder of rows. Out: the same in chunks, and on some rows only. It must not know who reads
representations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax.engine.inputs.chunks import common_length
from incrax.engine.inputs.leaves import check_dynamic
from incrax.errors import RowsError, UnsupportedLeafError

Encoder = Callable[..., Any]


class Encoding:
    """(params, rows, numbers) -> representations of the rows with these numbers, None for all; with
    keys, one a row, as last argument. The pullback is that of all rows.

    Fields: the encoder; rows that are encoded at once, None for all: of chunks a backward pass
    computes anew what lies between rows and representations.
    """

    def __init__(self, encoder: Encoder, chunk_rows: int | None) -> None:
        self.encoder: Encoder = encoder
        self.chunk_rows: int | None = chunk_rows
        functools.update_wrapper(self, encoder, updated=())  # arguments keep their names

    def __call__(self, params: Any, rows: Any, numbers: Any, *keys: Any) -> Any:
        """Representations in order: each array has one a row along its first axis."""
        data = (rows, *keys) if numbers is None else taken((rows, *keys), numbers)

        def encode(chunk):
            return self.encoder(params, *chunk)

        return self._chunked(encode if self.chunk_rows is None else jax.checkpoint(encode), data)

    def _chunked(self, step: Callable[[Any], Any], data: Any) -> Any:
        num_rows = jax.tree.leaves(data)[0].shape[0]
        size = self.chunk_rows
        if size is None or num_rows <= size:
            return _checked(step(data), num_rows)
        num_chunks = num_rows // size
        last = num_chunks * size
        chunks = jax.tree.map(lambda x: x[:last].reshape(num_chunks, size, *x.shape[1:]), data)
        found = lax.map(lambda chunk: _checked(step(chunk), size), chunks)
        found = jax.tree.map(lambda x: x.reshape(last, *x.shape[2:]), found)
        if last == num_rows:
            return found
        rest = _checked(step(jax.tree.map(lambda x: x[last:], data)), num_rows - last)
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), found, rest)


def taken(tree: Any, numbers: Any) -> Any:
    """Rows by their numbers; those of an array of numbers are in its shape."""
    return jax.tree.map(lambda x: x[numbers], tree)


def keys_of(key: Any, num_rows: int) -> tuple[Any, ...]:
    """One key a row, as the encoder's last argument; nothing without a key."""
    return () if key is None else (jax.random.split(key, num_rows),)


# --- checks ---------------------------------------------------------------------------------------


def checked_rows(rows: Any) -> tuple[Any, int]:
    """The rows as arrays of JAX, which nobody can change, and how many there are."""
    lengths: dict[str, int] = {}
    for path, leaf in jax.tree.leaves_with_path(rows):
        name = f"rows{jax.tree_util.keystr(path)}"
        if not isinstance(leaf, (np.ndarray, jax.Array)) or leaf.ndim == 0:
            raise UnsupportedLeafError(
                f"`held(params, rows)` got `{name}` of type {type(leaf).__name__}; every leaf must "
                "be an array with rows along its first axis. This is usually a number or a text "
                "that all rows share. Nothing was evaluated or stored. Put it into the parameters."
            )
        check_dynamic(leaf, name)
        lengths[name] = leaf.shape[0]
    num_rows = common_length("held(params, rows)", lengths)
    if not num_rows:
        raise RowsError(
            "`held(params, rows)` got no rows. This is usually an empty selection, or the arguments "
            "in another order. Nothing was evaluated or stored. Pass a pytree of arrays with at "
            "least one row each."
        )
    own = jax.tree.map(lambda x: jnp.array(x, copy=True) if isinstance(x, np.ndarray) else x, rows)
    return own, num_rows


def _checked(found: Any, num_rows: int) -> Any:
    leaves = jax.tree.leaves(found)
    if not leaves or any(jnp.shape(x)[:1] != (num_rows,) for x in leaves):
        seen = ", ".join(str(jax.typeof(x)) for x in leaves) or "nothing"
        raise RowsError(
            f"The encoder returned {seen} for {num_rows} rows; every array that it returns must "
            "have a row for each of them along its first axis. This is usually a mean over rows, "
            "or a missing `jax.vmap`. Nothing was evaluated or stored. Return one representation a "
            "row; what is common to all rows belongs into the loss."
        )
    return found


# --- which leaves have cotangents -----------------------------------------------------------------


def is_active(x: Any) -> bool:
    """Whether a leaf of the representations has cotangents."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def active_leaves(tree: Any) -> list[Any]:
    """The leaves that have cotangents."""
    return [x for x in jax.tree.leaves(tree) if is_active(x)]


def with_active(tree: Any, values: Iterable[Any], other: Callable[[Any], Any] = lambda x: x) -> Any:
    """The tree with others in the places of the leaves that have cotangents; `other` of the rest."""
    rest = iter(values)
    return jax.tree.map(lambda x: next(rest) if is_active(x) else other(x), tree)


def with_cotangents(tree: Any, values: Iterable[Any]) -> Any:
    """The cotangents of all leaves, as JAX takes them."""
    return with_active(tree, values, lambda x: np.zeros(x.shape, jax.dtypes.float0))
