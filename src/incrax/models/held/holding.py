"""`hold`: an encoder whose representations are computed once, read by many batches, and
differentiated once.

In: an encoder. Out: a `Held`. Called, it encodes all rows: a `Kept` has their representations, and
adds up the cotangents that batches give. Or it makes a gradient through all batches of an epoch,
as one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax_options import spelled_here
from incrax._locations import shortened
from incrax._messages import checked_count, wrong_option
from incrax._names import name_of
from incrax._table import Counters
from incrax._tables import LruTable
from incrax.derivatives.cuts import without_marks
from incrax.derivatives.linear_maps import is_evaluated
from incrax.derivatives.pullback import vjp
from incrax.derivatives.selection import Selection, select, wrong_wrt
from incrax.derivatives.transforms import fitting, leaves_as, plain
from incrax.engine.inputs.leaves import LeafValue, has_tracer, is_dynamic
from incrax.engine.inputs.signature import (
    argument_names,
    make_signature,
    with_names,
)
from incrax.engine.store.saved_values import padded
from incrax.errors import RowsError
from incrax.models.held.encoding import (
    Encoding,
    active_leaves,
    checked_rows,
    is_active,
    keys_of,
    taken,
    with_active,
    with_cotangents,
)
from incrax.models.held.row_by_row import check_row_by_row

DENSE_SHARE = 0.75
"""A pass over some rows is worth a program of its own up to this share of all rows."""

NAME = "value_and_grad"
MAX_PROGRAMS = 32
"""Signatures whose programs are kept."""


@spelled_here
def hold(
    encoder: Callable[..., Any],
    *,
    wrt: Any = None,
    chunk_rows: int | None = None,
) -> Held:
    """An encoder whose representations are computed once, read by many batches, and differentiated
    once.

    Promise: with `kept = hold(encoder)(params, rows)`, losses of `kept.rows(i)` and their
    cotangents given to `kept.add(i, ...)`, `kept.pullback()` equals `jax.grad` of the sum over
    batches of `loss(encoder(params, rows)[i])`.

    Args:
        encoder: function (params, rows) -> representations, each a pytree of arrays; `rows` and the
            representations have one entry a row along the first axis, and each row is treated by
            itself. If it draws random numbers: (params, rows, keys), with one key a row, so that
            the same key gives a row the same numbers in every pass.
        wrt: what to differentiate by, of the encoder's arguments; see `vjp`. None: the parameters.
            Names are the encoder's.
        chunk_rows: rows that are encoded at once; None: all. Bounds the memory of a pass: of chunks,
            the backward pass computes again what lies between rows and representations.

    Returns:
        A `Held`: call it with parameters and rows, or make a gradient over all batches of an epoch
        of it.

    Raises:
        TypeError, ValueError: an option cannot be understood.

    Cost: nothing yet. A `Held` compiles once per types of its arguments.

    Not handled: arrays that the encoder closes over must not change. They are read when a program
        is first traced, and a pass over all rows and one over some rows are two programs, traced at
        different times. What may change belongs into the parameters. A Python branch on the number
        of rows is not noticed.

    Source: the question "Caching Computations in TensorFlow"; gradient caching, L. Gao et al.,
    arXiv:2101.06983.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> x = jnp.arange(6.0).reshape(3, 2)
        >>> kept = incrax.hold(lambda w, x: x @ w)(jnp.ones(2), x)
        >>> loss = lambda z: (z[0] - z[1]) ** 2
        >>> for i in ([0, 1], [1, 2]):
        ...     kept.add(i, jax.grad(loss)(kept.rows(i)))
        >>> kept.pullback().tolist()
        [32.0, 32.0]
    """
    if not callable(encoder):
        raise wrong_option("hold(encoder)", encoder, "a function")
    if chunk_rows is not None:
        chunk_rows = checked_count("hold(chunk_rows)", chunk_rows)
    return Held(Encoding(plain(encoder), chunk_rows), 0 if wrt is None else wrt)


class Held:
    """An encoder that is held. Made by `hold`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> held = incrax.hold(lambda w, x: x @ w)
        >>> kept = held(jnp.array([2.0]), jnp.arange(3.0)[:, None])
        >>> kept.rows([0, 2]).tolist(), held.stats.rows_encoded
        ([0.0, 4.0], 3)
    """

    def __init__(self, encoding: Encoding, wrt: Any) -> None:
        self._encoding = encoding
        self._wrt = wrt
        self.stats: HoldStats = HoldStats()
        """Counters of all passes so far."""
        self._proven: set[Any] = set()

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: counters do not."""
        return self._encoding, self._wrt

    def __call__(self, params: Any, rows: Any, *, key: Any = None) -> Kept:
        """Encode all rows: one forward pass.

        Args:
            params: the encoder's parameters, a pytree; static values may be among them.
            rows: pytree of arrays with rows along the first axis.
            key: a key of `jax.random`, if the encoder takes keys; it gets one a row, split from
                this one.

        Returns:
            The representations, and what reads them; see `Kept`.

        Raises:
            RowsError: leaves have different numbers of rows, there are none, or the encoder returns
                no rows.
            UnsupportedLeafError: a leaf of the rows is no array.
            MixedRowsError: the representation of a row depends on other rows, as far as is checked:
                by the rules of the encoder's primitives, and where one has no rule by encoding six
                rows in two orders and each alone, once per types.
            SelectionError, UnknownInputError: `wrt` of `hold` names nothing that has a derivative.

        Cost: one forward pass, compiled once per types of the arguments; with what the backward
            pass needs, unless that is recomputed.
        """
        return Kept(self, params, self._data_of(params, rows, key))

    def value_and_grad(self, loss: Callable[..., Any], *, wrt: Any = None) -> EpochGradient:
        """The sum of a loss over all batches of an epoch, and its exact gradient, as one compiled
        program.

        Args:
            loss: function (representations of a batch, *what else the batch has, *args) -> scalar.
                Not differentiated by what else the batch has.
            wrt: what to differentiate by, of `(params, rows, batches, *args)`; names are those of
                the encoder's parameters, then of the loss's: `("params", "temperature")`. None:
                that of `hold`.

        Returns:
            A function (params, rows, batches, *args, key=None) -> (sum, gradient). `batches` are
            the numbers of rows that each batch reads, integers of shape (num_batches, *batch), or a
            tuple of these and of pytrees with one entry a batch: labels, weights, keys. The
            gradient is in the shape of the selection.

        Raises:
            MixedRowsError: at a call, and all else that calling a `Held` raises.
            RowsError: at a call; a batch reads rows that are not there, or data of batches are of
                another number.

        Cost: rows that some batch reads are encoded once, forward and backward; batches run one
            after the other. Can be called under JAX's transformations: then all rows are encoded.

        Not handled: under transformations arrays have no values. Then nothing is tried out, so that
            an encoder that mixes rows by a primitive without a rule, a loop over rows or a slice of
            some passes; and row numbers that have no values are not checked: those that are too
            large are treated as JAX does. Where JAX compiles nothing (`jax.disable_jit`), all is
            checked.

        Example:
            >>> import incrax, jax.numpy as jnp
            >>> held = incrax.hold(lambda w, x: x @ w)
            >>> epoch = held.value_and_grad(lambda z, scale: scale * (z[0] - z[1]) ** 2, wrt=("w", "scale"))
            >>> value, (by_w, by_scale) = epoch(jnp.ones(1), jnp.arange(3.0)[:, None], [[0, 1], [0, 2]], 0.5)
            >>> float(value), by_w.tolist(), float(by_scale)
            (2.5, [5.0], 5.0)
        """
        if not callable(loss):
            raise wrong_option("value_and_grad(loss)", loss, "a function")
        return EpochGradient(self, plain(loss), self._wrt if wrt is None else wrt)

    def __repr__(self) -> str:
        """What is held."""
        return f"hold({name_of(self._encoding.encoder)}): {self.stats.rows_encoded} rows encoded"

    def _data_of(self, params: Any, rows: Any, key: Any) -> tuple[Any, ...]:
        """Rows, and a key for each if the encoder takes keys; once per types it is proven that each
        row is treated by itself.
        """
        own, num_rows = checked_rows(without_marks(rows))
        data = (own, *keys_of(key, num_rows))
        params = without_marks(params)
        has_values = _jax.is_top_level() and not has_tracer(jax.tree.leaves((params, data)))
        types = make_signature(self._encoding, (params, *data), {}).key
        if self._proven.isdisjoint({(types, True), (types, has_values)}):
            check_row_by_row(self._encoding.encoder, params, data, has_values=has_values)
            self._proven.add((types, has_values))
        return data


# --- representations, batch by batch --------------------------------------------------------------


@dataclass(repr=False)
class HoldStats(Counters):
    """Counts since `hold`.

    Fields:
        rows_encoded: rows encoded, to be read.
        rows_pulled_back: rows of backward passes.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> held = incrax.hold(lambda w, x: x @ w)
        >>> batch = held(jnp.ones(1), jnp.ones((3, 1))).rows([0, 1])
        >>> held.stats.rows_encoded
        3
    """

    rows_encoded: int = 0
    rows_pulled_back: int = 0


class Kept:
    """Representations of rows, to be read batch by batch, and their cotangents so far.

    Made by calling a `Held`.

    Promise: after `add(i, cotangent_i)` for some batches, `pullback()` equals the gradient of the
    sum over batches of `vdot(cotangent_i, representations[i])`, that is of any loss that has these
    cotangents.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> kept = incrax.hold(lambda w, x: x @ w)(jnp.array([2.0]), jnp.arange(3.0)[:, None])
        >>> kept.representations.tolist(), kept.rows([1, 2]).tolist()
        ([0.0, 2.0, 4.0], [2.0, 4.0])
        >>> kept.add([1, 2], jnp.array([1.0, 10.0]))
        >>> kept.pullback().tolist()
        [21.0]
    """

    def __init__(self, held: Held, params: Any, data: tuple[Any, ...]) -> None:
        params = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, params)
        self._encoding = held._encoding
        self._stats = held.stats
        self._params = params
        self._data = data
        rows, *keys = data
        found, self._pullback = vjp(self._encoding, params, rows, None, *keys, wrt=held._wrt)
        self.representations: Any = found
        """The representations of all rows: what the encoder returns for them."""
        self._num_rows: int = jax.tree.leaves(data)[0].shape[0]
        self._stats.rows_encoded += self._num_rows
        self._cotangents = [jnp.zeros(x.shape, x.dtype) for x in active_leaves(found)]

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: counters do not."""
        return self._encoding, self._params, self._data, self._cotangents

    def rows(self, numbers: Any) -> Any:
        """The representations of a batch.

        Args:
            numbers: which rows: an array of integers of any shape, repeated ones and negative ones
                as in NumPy; of a mask `np.flatnonzero(mask)`.

        Returns:
            A pytree like the encoder's result; each array of shape (*numbers.shape, *trailing).

        Raises:
            RowsError: there are no such rows.
        """
        return _taken(self.representations, self._checked("rows", numbers))

    def add(self, numbers: Any, cotangents: Any) -> None:
        """Add a batch's cotangents: the gradient of its loss by what `rows(numbers)` returned.

        Args:
            numbers: those given to `rows`; cotangents of a row that occurs several times are added
                up.
            cotangents: pytree like what `rows(numbers)` returned; None for integers.

        Raises:
            RowsError: there are no such rows.
            TangentError: the cotangents are of another structure, shape or dtype.
        """
        found = self._checked("add", numbers)
        parts = self._parts(cotangents, found.shape)
        self._cotangents = _added(self._cotangents, found, parts)

    def pullback(self) -> Any:
        """The gradient by what `hold(wrt=...)` selects, by one backward pass.

        Returns:
            A pytree in the shape of the selection, as from `vjp`; zeros where no batch added
            anything.

        Cost: a backward pass of all rows; of chunks with their forward pass.
        """
        self._stats.rows_pulled_back += self._num_rows
        active = iter(self._cotangents)
        return self._pullback(with_active(self.representations, active, lambda _: None))

    def __repr__(self) -> str:
        """How many rows."""
        return f"kept representations of {self._num_rows} rows"

    # --- inner ------------------------------------------------------------------------------------

    def _checked(self, method: str, numbers: Any) -> np.ndarray:
        if has_tracer(jax.tree.leaves(numbers)):
            raise _without_values(method, "row numbers")
        return _numbers(f"kept.{method}", numbers, self._num_rows)

    def _parts(self, cotangents: Any, shape: tuple[int, ...]) -> list[Any]:
        """Cotangents of the leaves that have any, of the right types."""
        if has_tracer(jax.tree.leaves(cotangents)):
            raise _without_values("add", "cotangents")
        expected, treedef = jax.tree.flatten(self.representations)
        what = "what `rows` returned, "
        name = "kept.add", "cotangent"
        leaves = leaves_as(*name, cotangents, treedef, lambda: f"{what}{treedef}")
        found = []
        for leaf, x in zip(leaves, expected, strict=True):
            if is_active(x):
                wanted = *shape, *x.shape[1:]
                type_text = f"{what}{x.dtype}{list(wanted)}"
                found.append(fitting(*name, leaf, wanted, x.dtype, type_text))
        return found


_taken = jax.jit(taken)


@functools.partial(jax.jit, donate_argnums=0)
def _added(cotangents: list[Any], numbers: Any, parts: list[Any]) -> list[Any]:
    """Cotangents, in place, with those of a batch."""
    return [x.at[numbers].add(part) for x, part in zip(cotangents, parts, strict=True)]


def wrong_row_numbers(method: str, seen: str, num_rows: int) -> RowsError:
    """Numbers of rows that are not there."""
    return RowsError(
        f"`{method}` got {seen} as numbers of rows; there are rows 0 to {num_rows - 1}. This is "
        "usually a batch of another data set, a mask, or a list of arrays of different shapes. "
        "Nothing was evaluated or accumulated. Pass an array of integers from 0, of a mask "
        "`np.flatnonzero(mask)`."
    )


def _without_values(method: str, what: str) -> RowsError:
    """A batch of `Kept` inside a transformation."""
    return RowsError(
        f"`kept.{method}` got {what} without values: it is called inside a function that JAX "
        "traces, and what is kept is no part of that function. This is usually a training step "
        "under `jax.jit`. Nothing was evaluated or accumulated. Call `kept.rows` and `kept.add` "
        "outside, or use `held.value_and_grad(loss)`, which takes all batches and can be compiled."
    )


# --- all batches of an epoch as one program -------------------------------------------------------


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

    def __init__(self, held: Held, loss: Callable[..., Any], wrt: Any) -> None:
        self._held = held
        self._encoding = held._encoding
        self._loss = loss
        self._wrt = wrt
        self._programs: LruTable[Hashable, Any] = LruTable(MAX_PROGRAMS)

    def __call__(
        self, params: Any, rows: Any, batches: Any, *args: Any, key: Any = None
    ) -> tuple[Any, Any]:
        """The sum of the losses and its gradient; see `Held.value_and_grad`."""
        data = self._held._data_of(params, rows, key)
        num_rows = jax.tree.leaves(data)[0].shape[0]
        found = _batches(batches, num_rows)
        if is_evaluated(jax.tree.leaves((params, data[0], batches, args, key))):
            return self._evaluated(params, data, None, found, args)
        chosen, found = _touched(found, num_rows)
        stats = self._held.stats
        num_encoded = num_rows if chosen is None else len(chosen)
        stats.rows_encoded += num_encoded
        stats.rows_pulled_back += num_encoded
        return self._by_program(params, data, chosen, found, args)

    def _by_program(self, *args: Any) -> Any:
        """What `_evaluated` gives, compiled for each signature of its arguments."""
        signature = make_signature(self._evaluated, args, {})
        evaluate = lambda *values: self._evaluated(*signature.rebuild(values)[0])
        program = self._programs.made(signature.key, lambda: jax.jit(evaluate))
        dynamic = signature.dynamic_leaves(jax.tree.leaves(args))
        return program(*[LeafValue(x).feed for x in dynamic])

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

        def encode(values):
            params, rows, *_ = selection.merged(values)[0]
            return self._encoding(params, rows, chosen, *keys)

        found, pull = jax.vjp(encode, selection.values)
        total, cotangents, by_loss = self._losses(selection, found)
        (by_encoder,) = pull(with_cotangents(found, cotangents))
        # each leaf is the encoder's or the loss's, and has zeros of the other
        return total, selection.tree([x + y for x, y in zip(by_encoder, by_loss, strict=True)])

    def _losses(self, selection: Selection, found: Any) -> tuple[Any, list[Any], list[Any]]:
        """Batch by batch: the sum of the losses, cotangents of all representations, gradients by
        what is selected.
        """
        batches: Batches = selection.merged(selection.values)[0][2]

        def of_batch(active: list[Any], values: list[Any], batch: Batches):
            args = selection.merged(values)[0][3:]
            picked = taken(found, batch.numbers)
            return self._loss(with_active(picked, active), *batch.others, *args)

        def step(carry, batch: Batches):
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
        ours = argument_names(self._encoding.encoder, 2)
        theirs = argument_names(self._loss, num_own + num_args)[num_own:]
        names = [*ours, "batches", *theirs]
        return [name if names.index(name) == k else f"_{k}" for k, name in enumerate(names)]


# --- batches --------------------------------------------------------------------------------------


def _batches(batches: Any, num_rows: int) -> Batches:
    """Row numbers alone, or a tuple that begins with them."""
    numbers, *others = batches if isinstance(batches, tuple) and batches else (batches,)
    found = Batches(_numbers(NAME, numbers, num_rows), tuple(others))
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


def _numbers(method: str, numbers: Any, num_rows: int) -> Any:
    """Row numbers as wide integers, which hold the number of rows; those that have values are
    checked.
    """
    try:
        found = numbers if has_tracer([numbers]) else np.asarray(numbers)
    except (TypeError, ValueError):
        raise wrong_row_numbers(method, shortened(repr(numbers)), num_rows) from None
    is_empty = isinstance(found, np.ndarray) and not found.size
    if found.ndim == 0 or not (is_empty or jnp.issubdtype(found.dtype, jnp.integer)):
        raise wrong_row_numbers(method, f"{found.dtype}{list(found.shape)}", num_rows)
    if not isinstance(found, np.ndarray):
        return found.astype(int)
    if found.size and not -num_rows <= int(found.min()) <= int(found.max()) < num_rows:
        raise wrong_row_numbers(method, f"numbers from {found.min()} to {found.max()}", num_rows)
    return found.astype(np.int64)


def _touched(batches: Batches, num_rows: int) -> tuple[np.ndarray | None, Batches]:
    """The rows that batches read, and their numbers among these; None where those are most of all
    rows.
    """
    is_touched = np.zeros(num_rows, bool)
    is_touched[batches.numbers] = True
    touched = np.flatnonzero(is_touched)
    # Few lengths, so that few programs serve all batches.
    capacity = 1 << max(len(touched) - 1, 0).bit_length()
    if capacity > DENSE_SHARE * num_rows or not len(touched):
        return None, batches
    places = np.zeros(num_rows, np.int64)
    places[touched] = np.arange(len(touched))
    return padded(touched, capacity), batches._replace(numbers=places[batches.numbers])
