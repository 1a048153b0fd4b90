"""`hold`: what users call.

In: an encoder. Out: a `Held`, which encodes rows once and gives gradients through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax

from incrax import _jax
from incrax._jax_options import spelled_here
from incrax._messages import wrong_option
from incrax._names import name_of
from incrax.derivatives.cuts import without_marks
from incrax.derivatives.transforms import plain
from incrax.engine.inputs.leaves import has_tracer
from incrax.engine.inputs.signature import make_signature
from incrax.models.held.encoding import Encoding, checked_rows, keys_of
from incrax.models.held.epoch import EpochGradient
from incrax.models.held.kept import HoldStats, Kept, Setting
from incrax.models.held.row_by_row import check_row_by_row


@spelled_here
def hold(
    encoder: Callable[..., Any],
    *,
    wrt: Any = None,
    chunk_rows: int | None = None,
    recompute: bool | None = None,
    stale: Literal["refuse", "allow"] = "refuse",
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
        chunk_rows: rows that are encoded at once; None: all. Bounds the memory of a pass.
        recompute: whether the backward pass computes anew what lies between rows and
            representations, chunk by chunk, instead of keeping it. None: if there are chunks.
        stale: what to do with parameters that are not those of the representations: `"refuse"`, or
            `"allow"` the approximation.

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
    is_number = isinstance(chunk_rows, int) and not isinstance(chunk_rows, bool) and chunk_rows > 0
    if chunk_rows is not None and not is_number:
        raise wrong_option("hold(chunk_rows)", chunk_rows, "a positive integer or None")
    if stale not in ("refuse", "allow"):
        raise wrong_option("hold(stale)", stale, '"refuse" or "allow"')
    is_recomputed = chunk_rows is not None if recompute is None else bool(recompute)
    whole, some = (
        Encoding(plain(encoder), chunk_rows, is_recomputed=is_recomputed, is_of_some=flag)
        for flag in (False, True)
    )
    return Held(Setting(whole, some, 0 if wrt is None else wrt, stale == "allow", HoldStats()))


class Held:
    """An encoder that is held. Made by `hold`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> held = incrax.hold(lambda w, x: x @ w)
        >>> kept = held(jnp.array([2.0]), jnp.arange(3.0)[:, None])
        >>> kept.rows([0, 2]).tolist(), held.stats.rows_encoded
        ([0.0, 4.0], 3)
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._proven: set[Any] = set()

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: counters do not."""
        return self._setting.encoding, self._setting.wrt

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
        own, num_rows = checked_rows(without_marks(rows))
        data = (own, *keys_of(key, num_rows))
        self._prove(without_marks(params), data)
        return Kept(self._setting, params, data)

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
        wrt = self._setting.wrt if wrt is None else wrt
        return EpochGradient(self._setting, plain(loss), wrt, self._prove)

    @property
    def stats(self) -> HoldStats:
        """Counters of all passes so far."""
        return self._setting.stats

    def __repr__(self) -> str:
        """What is held."""
        return f"hold({name_of(self._setting.encoder)}): {self.stats.rows_encoded} rows encoded"

    def _prove(self, params: Any, data: tuple[Any, ...]) -> None:
        """Once per types: that each row is treated by itself."""
        has_values = _jax.is_top_level() and not has_tracer(jax.tree.leaves((params, data)))
        types = make_signature(self._setting.encoding, (params, *data), {}).key
        if self._proven.isdisjoint({(types, True), (types, has_values)}):
            check_row_by_row(self._setting.encoder, params, data, has_values=has_values)
            self._proven.add((types, has_values))
