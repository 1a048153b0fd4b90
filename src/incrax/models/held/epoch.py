"""All batches of an epoch as one program: one forward pass, losses batch by batch, one backward
pass.

In: an encoding and a loss of a batch. Out: the sum of the losses and its gradient. It must not know
one batch from another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax.derivatives.cuts import without_marks
from incrax.derivatives.messages import wrong_wrt
from incrax.derivatives.selection import Selection, select
from incrax.engine.inputs.leaves import has_tracer, is_dynamic
from incrax.models.held.encoding import checked_rows, keys_of, signature_of, split_active, taken
from incrax.models.held.kept import Setting, padded, shown
from incrax.models.held.messages import batches_selected, other_batches, wrong_row_numbers
from incrax.models.held.programs import Programs, is_plain

NAME = "value_and_grad"


class Batches(NamedTuple):
    """Row numbers of shape (num_batches, *batch), and what else a batch has, one entry each along
    the first axis.
    """

    numbers: Any
    others: tuple[Any, ...]


class EpochGradient:
    """The sum over batches of a loss of representations, and its gradient.

    Made by `Held.value_and_grad`.
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
        self._programs = Programs(self._evaluated)

    def __call__(
        self, params: Any, rows: Any, batches: Any, *args: Any, key: Any = None
    ) -> tuple[Any, Any]:
        """The sum of the losses and its gradient; see `Held.value_and_grad`."""
        own, num_rows = checked_rows(without_marks(rows))
        found = _batches(batches, num_rows)
        data = (own, *keys_of(key, num_rows))
        self._prove(without_marks(params), data)
        if is_plain(jax.tree.leaves((params, own, batches, args, key))):
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
        given = (params, data[0], batches, *args)
        selection = select(NAME, _named(self._names(batches, len(args))), self._wrt, given, {})
        return _Epoch(self._setting, self._loss, selection, (data[1:], chosen)).run()

    def _names(self, batches: Batches, num_args: int) -> list[str]:
        """Names of the arguments: those of the encoder, and of the loss after what a batch has."""
        ours = [*signature_of(self._setting.encoder).parameters, "params", "rows"][:2]
        theirs = list(signature_of(self._loss).parameters)[1 + len(batches.others) :]
        return [
            *ours,
            "batches",
            *theirs[:num_args],
            *(f"args[{k}]" for k in range(len(theirs), num_args)),
        ]


class _Epoch:
    """One evaluation: leaves that are differentiated, of the encoder's arguments and of the
    loss's.
    """

    def __init__(
        self, setting: Setting, loss: Any, selection: Selection, extra: tuple[Any, Any]
    ) -> None:
        self.encode = setting.encoding if extra[1] is None else setting.on_some
        self.loss, self.selection, (self.keys, self.chosen) = loss, selection, extra
        params, rows, batches, *_ = jax.tree.unflatten(
            selection.treedef, range(len(selection.leaves))
        )[0]
        self.is_encoded = [
            number in set(jax.tree.leaves((params, rows))) for number in selection.numbers
        ]
        inner = set(jax.tree.leaves(batches))
        for number, path in zip(selection.numbers, selection.paths, strict=True):
            if number in inner:
                raise wrong_wrt(NAME, path, batches_selected(path))

    def run(self) -> tuple[Any, Any]:
        """The sum of the losses, and the gradient in the shape of the selection."""
        values = self.selection.values
        encoded = [x for x, flag in zip(values, self.is_encoded, strict=True) if flag]
        others = [x for x, flag in zip(values, self.is_encoded, strict=True) if not flag]

        def representations(*encoded: Any) -> Any:
            params, rows = self._arguments(encoded, others)[:2]
            chosen = () if self.chosen is None else (self.chosen,)
            return self.encode(params, rows, *chosen, *self.keys)

        found, pull = jax.vjp(representations, *encoded)
        total, cotangents, of_others = self._losses(found, encoded, others)
        of_encoded = iter(pull(self._cotangent(found, cotangents)))
        rest = iter(of_others)
        results = [next(of_encoded) if flag else next(rest) for flag in self.is_encoded]
        return total, self.selection.tree(results)

    def _losses(
        self, found: Any, encoded: Sequence[Any], others: Sequence[Any]
    ) -> tuple[Any, Any, Any]:
        """Batch by batch: the sum of the losses, cotangents of all representations, gradients by
        the others.
        """
        batches: Batches = self._arguments(encoded, others)[2]
        active, _ = split_active(found)

        def of_batch(active: Any, others: Any, inactive: Any, batch: tuple[Any, ...]) -> Any:
            args = self._arguments(encoded, others)[3:]
            return self.loss(split_active(inactive)[1](active), *batch, *args)

        def step(carry: Any, batch: Batches) -> tuple[Any, None]:
            picked = taken(found, batch.numbers)
            own = split_active(picked)[0]
            value, (parts, moved) = jax.value_and_grad(of_batch, argnums=(0, 1))(
                own, others, picked, batch.others
            )
            total, sums, of_others = carry
            sums = [x.at[batch.numbers].add(part) for x, part in zip(sums, parts, strict=True)]
            return (total + value, sums, jax.tree.map(jnp.add, of_others, moved)), None

        def value_of(batch: Batches) -> Any:
            picked = taken(found, batch.numbers)
            return of_batch(split_active(picked)[0], others, picked, batch.others)

        first = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), jax.tree.map(jnp.asarray, batches)
        )
        start = jax.tree.map(
            jnp.zeros_like, (jax.eval_shape(value_of, first), active, list(others))
        )
        return lax.scan(step, start, batches)[0] if batches.numbers.shape[0] else start

    def _arguments(self, encoded: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        first = iter(encoded)
        second = iter(others)
        return self.selection.merged(
            [next(first) if flag else next(second) for flag in self.is_encoded]
        )[0]

    def _cotangent(self, found: Any, active: Sequence[Any]) -> Any:
        rest = iter(active)
        zero = jax.dtypes.float0
        return jax.tree.map(
            lambda x: (
                next(rest) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, zero)
            ),
            found,
        )


def _named(names: Sequence[str]) -> Callable[..., None]:
    """A function that has its parameters' names, for `wrt`."""

    def function(*args: Any) -> None:
        """Stands for the epoch."""

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    unique = [
        name if name.isidentifier() and names.index(name) == k else f"_{k}"
        for k, name in enumerate(names)
    ]
    function.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in unique])  # type: ignore[attr-defined]
    return function


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
            raise other_batches(
                f"batches[1:]{jax.tree_util.keystr(path)}", seen, found.numbers.shape[0]
            )
    return found


def _numbers(numbers: Any, num_rows: int) -> Any:
    """Row numbers as wide integers, which hold the number of rows; those that have values are
    checked.
    """
    try:
        found = numbers if has_tracer([numbers]) else np.asarray(numbers)
    except (TypeError, ValueError):
        raise wrong_row_numbers(NAME, shown(numbers), num_rows) from None
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
