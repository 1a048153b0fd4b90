"""Representations of all rows at some parameters, and the cotangents that batches add to them.

In: an encoding at parameters and rows. Out: a `Kept`. It must not know losses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax._locations import shortened
from incrax._messages import listed
from incrax._table import Counters
from incrax.derivatives.differentiated import fitting, wrong_tangent
from incrax.derivatives.pullback import Pullback, vjp
from incrax.engine.inputs.leaves import LeafValue, descriptor, has_tracer, is_dynamic, same_value
from incrax.engine.inputs.signature import same_static, same_type
from incrax.errors import RowsError, StaleRepresentationsError
from incrax.models.held.encoding import (
    Encoding,
    active_leaves,
    is_active,
    taken,
    with_active,
)

DENSE_SHARE = 0.75
"""A pass over some rows is worth a program of its own up to this share of all rows."""


@dataclass(repr=False)
class HoldStats(Counters):
    """Counts since `hold`.

    Fields:
        rows_encoded: rows encoded, to be read.
        rows_recomputed: rows encoded once more by backward passes.
        rows_pulled_back: rows of backward passes.
        batches_read: reads of batches.
        batches_added: additions of cotangents.
        stale_uses: uses of representations of older parameters, which `stale="allow"` lets pass.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> held = incrax.hold(lambda w, x: x @ w)
        >>> batch = held(jnp.ones(1), jnp.ones((3, 1))).rows([0, 1])
        >>> held.stats.rows_encoded, held.stats.batches_read
        (3, 1)
    """

    rows_encoded: int = 0
    rows_recomputed: int = 0
    rows_pulled_back: int = 0
    batches_read: int = 0
    batches_added: int = 0
    stale_uses: int = 0


class Setting(NamedTuple):
    """What all representations of one `hold` share: two functions, what is differentiated by,
    staleness, counters.
    """

    encoding: Encoding
    on_some: Encoding
    wrt: Any
    may_be_stale: bool
    stats: HoldStats

    @property
    def encoder(self) -> Any:
        """What the user gave."""
        return self.encoding.encoder

    @property
    def is_recomputed(self) -> bool:
        """Whether backward passes encode once more."""
        return self.encoding.is_recomputed


class Kept:
    """Representations of rows, to be read batch by batch, and their cotangents so far.

    Made by calling a `Held`.

    Promise: after `add(i, cotangent_i)` for some batches, `pullback()` equals the gradient of the
    sum over batches of `vdot(cotangent_i, representations[i])`, that is of any loss that has these
    cotangents.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> kept = incrax.hold(lambda w, x: x @ w)(jnp.array([2.0]), jnp.arange(3.0)[:, None])
        >>> kept.rows([1, 2]).tolist()
        [2.0, 4.0]
        >>> kept.add([1, 2], jnp.array([1.0, 10.0]))
        >>> kept.pullback().tolist()
        [21.0]
    """

    def __init__(self, setting: Setting, params: Any, data: tuple[Any, ...]) -> None:
        params = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, params)
        self._setting = setting
        self._stats = setting.stats
        self._params = params
        self._data = data
        self._pullback: Pullback
        found = vjp(setting.encoding, params, *data, wrt=setting.wrt)
        self._representations, self._pullback = found
        self._numbers = np.arange(jax.tree.leaves(data)[0].shape[0])
        self._known = [LeafValue(x) if is_dynamic(x) else x for x in jax.tree.leaves(params)]
        self._stats.rows_encoded += self.num_rows
        self.reset()

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: counters do not."""
        return self._setting.encoding, self._params, self._data, self._cotangents, self._is_touched

    @property
    def representations(self) -> Any:
        """The representations of all rows: what the encoder returns for them."""
        return self._representations

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self._numbers)

    @property
    def num_touched(self) -> int:
        """How many of them have got cotangents, each counted once."""
        return int(self._is_touched.sum())

    @property
    def cotangents(self) -> Any:
        """The cotangents so far, like the representations; None where those are integers."""
        return self._filled(map(jnp.copy, self._cotangents))

    def reset(self) -> None:
        """Forget the cotangents so far."""
        active = active_leaves(self._representations)
        self._cotangents = [jnp.zeros(x.shape, x.dtype) for x in active]
        self._is_touched = np.zeros(self.num_rows, bool)

    def rows(self, numbers: Any, *, params: Any = None) -> Any:
        """The representations of a batch.

        Args:
            numbers: which rows: integers of any shape (repeated ones and negative ones as in
                NumPy), a boolean mask over the rows, or a slice.
            params: the parameters of this batch, if they are to be checked against those of the
                representations.

        Returns:
            A pytree like the encoder's result; each array of shape (*numbers.shape, *trailing).

        Raises:
            RowsError: there are no such rows.
            StaleRepresentationsError: the parameters are others, and `hold` has not
                `stale="allow"`.
        """
        self._check_params("rows", params)
        found = _taken(self._representations, self._checked("rows", numbers))
        self._stats.batches_read += 1
        return found

    def add(self, numbers: Any, cotangents: Any, *, params: Any = None) -> None:
        """Add a batch's cotangents: the gradient of its loss by what `rows(numbers)` returned.

        Args:
            numbers: those given to `rows`; cotangents of a row that occurs several times are added
                up.
            cotangents: pytree like what `rows(numbers)` returned; None for integers.
            params: as in `rows`.

        Raises:
            RowsError: there are no such rows.
            TangentError: the cotangents are of another structure, shape or dtype.
            StaleRepresentationsError: as in `rows`.
        """
        self._check_params("add", params)
        found = self._checked("add", numbers)
        parts = self._parts(cotangents, found.shape)
        self._cotangents = _added(self._cotangents, found, parts)
        self._is_touched[found.ravel()] = True
        self._stats.batches_added += 1

    def pullback(self, *, params: Any = None) -> Any:
        """The gradient by what `hold(wrt=...)` selects, by one backward pass over the rows that
        have cotangents.

        Args:
            params: None: those of the representations; the gradient is exact. With `stale="allow"`
                any others: the rows are encoded anew with them, and the cotangents of the older
                representations are pulled back.

        Returns:
            A pytree in the shape of the selection, as from `vjp`; zeros where no batch added
            anything.

        Raises:
            StaleRepresentationsError: as in `rows`.

        Cost: a backward pass, of all rows or of those that were touched, whichever is less; the
            latter, and chunks that are recomputed, with their forward pass. Nothing is forgotten:
            see `reset`.
        """
        is_current = self._check_params("pullback", params)
        touched = np.flatnonzero(self._is_touched)
        is_kept = is_current and not self._setting.is_recomputed
        whole = self.num_rows * (2 if is_kept else 3)
        chosen = padded(touched, self.num_rows)
        if is_current and (chosen is None or 3 * len(chosen) >= whole):
            self._count(self.num_rows, is_encoded=not is_kept)
            return self._pullback(self._filled(self._cotangents))
        count = self.num_rows if chosen is None else len(touched)
        chosen = self._numbers if chosen is None else chosen
        self._count(len(chosen), is_encoded=True)
        given = (self._params if is_current else params, self._data[0], chosen, *self._data[1:])
        _, pullback = vjp(self._setting.on_some, *given, wrt=self._setting.wrt)
        return pullback(self._filled(_picked(self._cotangents, chosen, count)))

    def _count(self, num_rows: int, *, is_encoded: bool) -> None:
        self._stats.rows_recomputed += num_rows if is_encoded else 0
        self._stats.rows_pulled_back += num_rows

    def __repr__(self) -> str:
        """How many rows, and how many of them have cotangents."""
        return f"kept representations of {self.num_rows} rows, {self.num_touched} with cotangents"

    # --- inner ------------------------------------------------------------------------------------

    def _checked(self, method: str, numbers: Any) -> np.ndarray:
        """Numbers from 0, as an array."""
        if has_tracer(jax.tree.leaves(numbers)):
            raise _without_values(method, "row numbers")
        try:
            if isinstance(numbers, slice):
                return self._numbers[numbers]
            asked = np.asarray(numbers)
            if asked.dtype == bool and asked.shape != self._numbers.shape:
                raise IndexError
            return self._numbers[asked if asked.size else asked.astype(np.int64)]
        except (IndexError, TypeError, ValueError):
            raise wrong_row_numbers(
                f"kept.{method}", shortened(repr(numbers)), self.num_rows
            ) from None

    def _parts(self, cotangents: Any, shape: tuple[int, ...]) -> list[Any]:
        """Cotangents of the leaves that have any, of the right types."""
        if has_tracer(jax.tree.leaves(cotangents)):
            raise _without_values("add", "cotangents")
        expected, treedef = jax.tree.flatten(self._representations)
        what = "what `rows` returned, "
        name = "kept.add", "cotangent"
        try:
            leaves = treedef.flatten_up_to(cotangents)
        except ValueError as error:
            seen = f"of another structure ({error})"
            raise wrong_tangent(*name, seen, f"{what}{treedef}") from error
        found = []
        for leaf, x in zip(leaves, expected, strict=True):
            if is_active(x):
                wanted = *shape, *x.shape[1:]
                type_text = f"{what}{x.dtype}{list(wanted)}"
                found.append(fitting(*name, leaf, wanted, x.dtype, type_text))
        return found

    def _filled(self, active: Iterable[Any]) -> Any:
        return with_active(self._representations, active, lambda _: None)

    def _check_params(self, method: str, params: Any) -> bool:
        """Whether these are the parameters of the representations; None stands for them."""
        if params is None:
            return True
        with_paths, treedef = jax.tree.flatten_with_path(params)
        pairs = list(zip(self._known, with_paths, strict=False))
        is_alike = treedef == jax.tree.structure(self._params)
        if not is_alike or not all(_is_like(old, new) for old, (_, new) in pairs):
            raise StaleRepresentationsError(
                f"`kept.{method}` got parameters of another structure, other shapes or types than "
                "those of the kept representations. This is usually another encoder's parameters. "
                "Nothing was evaluated or accumulated. Encode with them: `held(params, rows)`."
            )
        changed = [
            f"params{jax.tree_util.keystr(path)}"
            for old, (path, new) in pairs
            if isinstance(old, LeafValue) and not same_value(old, LeafValue(new))
        ]
        if changed and not self._setting.may_be_stale:
            raise StaleRepresentationsError(
                f"`kept.{method}` got parameters of which {listed(changed)} are not those of the "
                "kept representations. This is usually an update after each batch: then the other "
                "batches of the epoch see the representations of an older encoder, and the "
                "gradient is an approximation, that of delayed representations. Nothing was "
                "evaluated or accumulated. Update once per epoch, or encode anew by `held(params, "
                'rows)`, or accept the approximation by `hold(encoder, stale="allow")`.'
            )
        self._stats.stale_uses += bool(changed)
        return not changed


def padded(touched: np.ndarray, num_rows: int) -> np.ndarray | None:
    """Numbers of rows, the last one repeated up to a power of two; None where that is most of all
    rows.

    Few lengths, so that few programs serve all batches.
    """
    capacity = 1 << max(len(touched) - 1, 0).bit_length()
    if capacity > DENSE_SHARE * num_rows:
        return None
    numbers = np.zeros(capacity, np.int64)
    numbers[: len(touched)] = touched
    numbers[len(touched) :] = touched[-1] if len(touched) else 0
    return numbers


def _is_like(old: Any, new: Any) -> bool:
    is_value = isinstance(old, LeafValue)
    return same_type(new, descriptor(old.feed)) if is_value else same_static(old, new)


_taken = jax.jit(taken)


@functools.partial(jax.jit, donate_argnums=0)
def _added(cotangents: list[Any], numbers: Any, parts: list[Any]) -> list[Any]:
    """Cotangents, in place, with those of a batch."""
    return [x.at[numbers].add(part) for x, part in zip(cotangents, parts, strict=True)]


@jax.jit
def _picked(cotangents: list[Any], chosen: Any, count: Any) -> list[Any]:
    """Cotangents of some rows, of which the first `count` count."""
    is_one = jnp.arange(chosen.shape[0]) < count
    return [jnp.where(is_one.reshape(-1, *[1] * (x.ndim - 1)), x[chosen], 0) for x in cotangents]


def wrong_row_numbers(method: str, seen: str, num_rows: int) -> RowsError:
    """Numbers of rows that are not there."""
    return RowsError(
        f"`{method}` got {seen} as numbers of rows; there are rows 0 to {num_rows - 1}. This is "
        "usually a batch of another data set, or a mask that is no boolean array. Nothing was "
        "evaluated or accumulated. Pass integers from 0, or a boolean mask or a slice of the rows."
    )


def _without_values(method: str, what: str) -> RowsError:
    """A batch of `Kept` inside a transformation."""
    return RowsError(
        f"`kept.{method}` got {what} without values: it is called inside a function that JAX "
        "traces, and what is kept is no part of that function. This is usually a training step "
        "under `jax.jit`. Nothing was evaluated or accumulated. Call `kept.rows` and `kept.add` "
        "outside, or use `held.value_and_grad(loss)`, which takes all batches and can be compiled."
    )
