"""All batches of an epoch as one program: one forward pass, losses batch by batch, one backward
pass.

In: an encoding and a loss of a batch. Out: the sum of the losses and its gradient. It must not know
one batch from another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._locations import shortened
from incrax._tables import LruTable
from incrax._tuning import is_disabled
from incrax.derivatives.cuts import without_marks
from incrax.derivatives.selection import Selection, select, wrong_wrt
from incrax.engine.inputs.leaves import LeafValue, has_tracer, is_dynamic
from incrax.engine.inputs.signature import argument_names, make_signature, with_names
from incrax.errors import RowsError
from incrax.models.held.encoding import (
    active_leaves,
    checked_rows,
    keys_of,
    taken,
    with_active,
    with_cotangents,
)
from incrax.models.held.kept import Setting, padded, wrong_row_numbers

NAME = "value_and_grad"
MAX_PROGRAMS = 32
"""Signatures whose programs are kept."""


class Batches(NamedTuple):
    """Row numbers of shape (num_batches, *batch), and what else a batch has, one entry each along
    the first axis.
    """

    numbers: Any
    others: tuple[Any, ...]


class EpochGradient:
    """The sum over batches of a loss of representations, and its gradient.

    Made by `Held.value_and_grad`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> gradient = incrax.hold(lambda w, x: x @ w).value_and_grad(lambda z: jnp.sum(z**2))
        >>> value, by_w = gradient(jnp.array([2.0]), jnp.array([[1.0], [3.0]]), [[0], [1]])
        >>> float(value), by_w.tolist()
        (40.0, [40.0])
    """

    def __init__(
        self,
        setting: Setting,
        loss: Callable[..., Any],
        wrt: Any,
        prove: Callable[[Any, Any], None],
    ) -> None:
        self._setting = setting
        self._loss = loss
        self._wrt = wrt
        self._prove = prove
        self._programs = _Programs(self._evaluated)

    def __call__(
        self, params: Any, rows: Any, batches: Any, *args: Any, key: Any = None
    ) -> tuple[Any, Any]:
        """The sum of the losses and its gradient; see `Held.value_and_grad`."""
        own, num_rows = checked_rows(without_marks(rows))
        found = _batches(batches, num_rows)
        data = (own, *keys_of(key, num_rows))
        self._prove(without_marks(params), data)
        if _is_plain(jax.tree.leaves((params, own, batches, args, key))):
            return self._evaluated(params, data, None, found, args)
        chosen, found = _touched(found, num_rows)
        self._count(num_rows if chosen is None else len(chosen), len(found.numbers))
        return self._programs(params, data, chosen, found, args)

    def _count(self, num_rows: int, num_batches: int) -> None:
        stats = self._setting.stats
        stats.rows_encoded += num_rows
        stats.rows_recomputed += num_rows if self._setting.is_recomputed else 0
        stats.rows_pulled_back += num_rows
        stats.batches_read += num_batches
        stats.batches_added += num_batches

    def _evaluated(
        self, params: Any, data: Any, chosen: Any, batches: Batches, args: tuple[Any, ...]
    ) -> Any:
        """The sum of the losses, and the gradient in the shape of the selection."""
        rows, *keys = data
        names = self._names(batches, len(args))
        given = (params, rows, batches, *args)
        selection = select(NAME, with_names(lambda *_: None, names), self._wrt, given, {})
        numbered = jax.tree.unflatten(selection.treedef, range(len(selection.leaves)))[0]
        inner = set(jax.tree.leaves(numbered[2]))
        for number, path in zip(selection.numbers, selection.paths, strict=True):
            if number in inner:
                reason = f"it selects `{path}` among the batches, which belong to one batch each"
                raise wrong_wrt(NAME, path, f"{reason} and are not trained")

        is_whole = chosen is None
        encode = self._setting.encoding if is_whole else self._setting.on_some
        more = keys if is_whole else [chosen, *keys]
        found, pull = jax.vjp(
            lambda values: encode(*selection.merged(values)[0][:2], *more), selection.values
        )
        total, cotangents, by_loss = self._losses(selection, found)
        (by_encoder,) = pull(with_cotangents(found, cotangents))
        # each leaf is the encoder's or the loss's, and has zeros of the other
        return total, selection.tree([x + y for x, y in zip(by_encoder, by_loss, strict=True)])

    def _losses(self, selection: Selection, found: Any) -> tuple[Any, list[Any], list[Any]]:
        """Batch by batch: the sum of the losses, cotangents of all representations, gradients by
        what is selected.
        """
        batches: Batches = selection.merged(selection.values)[0][2]

        def of_batch(active: list[Any], values: list[Any], batch: Batches) -> Any:
            args = selection.merged(values)[0][3:]
            picked = taken(found, batch.numbers)
            return self._loss(with_active(picked, active), *batch.others, *args)

        def step(carry: Any, batch: Batches) -> tuple[Any, Any]:
            own = active_leaves(taken(found, batch.numbers))
            evaluate = jax.value_and_grad(of_batch, argnums=(0, 1))
            value, (parts, moved) = evaluate(own, selection.values, batch)
            sums, by_loss = carry
            sums = [x.at[batch.numbers].add(part) for x, part in zip(sums, parts, strict=True)]
            return (sums, jax.tree.map(jnp.add, by_loss, moved)), value

        start = jax.tree.map(jnp.zeros_like, (active_leaves(found), selection.values))
        is_plain_python = _jax.is_jit_disabled() and len(batches.numbers) > 0
        with jax.disable_jit(is_plain_python):  # where a loop without steps has no types
            (sums, by_loss), values = lax.scan(step, start, batches)
        return jnp.sum(values), sums, by_loss

    def _names(self, batches: Batches, num_args: int) -> list[str]:
        """Names of the arguments: those of the encoder, and of the loss after what a batch has."""
        num_own = 1 + len(batches.others)
        ours = argument_names(self._setting.encoder, 2)
        theirs = argument_names(self._loss, num_own + num_args)[num_own:]
        names = [*ours, "batches", *theirs]
        return [name if names.index(name) == k else f"_{k}" for k, name in enumerate(names)]


# --- batches --------------------------------------------------------------------------------------


def _batches(batches: Any, num_rows: int) -> Batches:
    """Row numbers alone, or a tuple that begins with them."""
    numbers, *others = batches if isinstance(batches, tuple) and batches else (batches,)
    found = Batches(_numbers(numbers, num_rows), tuple(others))
    for path, leaf in jax.tree.leaves_with_path(found.others):
        if not is_dynamic(leaf) or jnp.shape(leaf)[:1] != found.numbers.shape[:1]:
            seen = (
                f"{jnp.asarray(leaf).dtype}{list(jnp.shape(leaf))}"
                if is_dynamic(leaf)
                else type(leaf).__name__
            )
            raise RowsError(
                f"The batches hold {found.numbers.shape[0]} batches of row numbers, and "
                f"`batches[1:]{jax.tree_util.keystr(path)}` is {seen}. This is usually data of all "
                "batches in one. Nothing was evaluated or stored. Every array beside the row "
                "numbers has one entry a batch along its first axis."
            )
    return found


def _numbers(numbers: Any, num_rows: int) -> Any:
    """Row numbers as wide integers, which hold the number of rows; those that have values are
    checked.
    """
    try:
        found = numbers if has_tracer([numbers]) else np.asarray(numbers)
    except (TypeError, ValueError):
        raise wrong_row_numbers(NAME, shortened(repr(numbers)), num_rows) from None
    is_empty = isinstance(found, np.ndarray) and not found.size
    if found.ndim == 0 or not (is_empty or jnp.issubdtype(found.dtype, jnp.integer)):
        raise wrong_row_numbers(NAME, f"{found.dtype}{list(found.shape)}", num_rows)
    if not isinstance(found, np.ndarray):
        return found.astype(int)
    if found.size and not -num_rows <= int(found.min()) <= int(found.max()) < num_rows:
        raise wrong_row_numbers(NAME, f"numbers from {found.min()} to {found.max()}", num_rows)
    return found.astype(np.int64)


def _touched(batches: Batches, num_rows: int) -> tuple[np.ndarray | None, Batches]:
    """The rows that batches read, and their numbers among these; None where those are most of all
    rows.
    """
    is_touched = np.zeros(num_rows, bool)
    is_touched[batches.numbers] = True
    touched = np.flatnonzero(is_touched)
    chosen = padded(touched, num_rows)
    if chosen is None or not len(touched):
        return None, batches
    places = np.zeros(num_rows, np.int64)
    places[touched] = np.arange(len(touched))
    return chosen, batches._replace(numbers=places[batches.numbers])


# --- compiled forms ------------------------------------------------------------------------------


class _Programs:
    """A function, compiled for each signature of its arguments; plain where JAX traces or compiles
    nothing.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self._table: LruTable[Hashable, Any] = LruTable(MAX_PROGRAMS)

    def __call__(self, *args: Any) -> Any:
        """The function at these arguments."""
        leaves = jax.tree.leaves(args)
        if _is_plain(leaves):
            return self.fun(*args)
        signature = make_signature(self.fun, args, {})
        fun = self.fun  # not `self`, which holds the programs
        compiled = lambda: jax.jit(lambda *values: fun(*signature.rebuild(values)[0]))
        program = self._table.made(signature.key, compiled)
        return program(*[LeafValue(x).feed for x in signature.dynamic_leaves(leaves)])


def _is_plain(leaves: Any) -> bool:
    """Whether a call with these leaves is evaluated as it is: under a transformation, or where
    nothing is compiled.
    """
    return not _jax.is_top_level() or has_tracer(leaves) or _jax.is_jit_disabled() or is_disabled()
