"""Errors about representations that are kept, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Sequence

from incrax._messages import listed
from incrax.errors import (
    MixedRowsError,
    RowsError,
    StaleRepresentationsError,
    UnsupportedLeafError,
)

_UNTOUCHED = "Nothing was evaluated or stored."


def stale_representations(method: str, paths: Sequence[str]) -> StaleRepresentationsError:
    """Parameters that moved on since the representations were computed."""
    return StaleRepresentationsError(
        f"`kept.{method}` got parameters of which {listed(paths)} are not those of the kept "
        "representations. This is "
        "usually an update after each batch: then the other batches of the epoch see the "
        "representations of an older "
        "encoder, and the gradient is an approximation, that of delayed representations. Nothing "
        "was evaluated or "
        "accumulated. Update once per epoch, or encode anew by `held(params, rows)`, or accept the "
        "approximation by "
        '`hold(encoder, stale="allow")`.'
    )


def other_parameters(method: str) -> StaleRepresentationsError:
    """Parameters of another structure."""
    return StaleRepresentationsError(
        f"`kept.{method}` got parameters of another structure, other shapes or types than those of "
        "the kept representations. This is usually another encoder's parameters. Nothing was "
        "evaluated or accumulated. Encode with them: `held(params, rows)`."
    )


def not_rows(path: str, kind: str) -> UnsupportedLeafError:
    """A leaf of the rows that has no rows."""
    return UnsupportedLeafError(
        f"`held(params, rows)` got `{path}` of type {kind}; every leaf must be an array with rows "
        "along its first axis. This is usually a number or a text that all rows share. "
        f"{_UNTOUCHED} Put it into the parameters."
    )


def no_rows_to_hold() -> RowsError:
    """Rows without a row, or no arrays."""
    return RowsError(
        "`held(params, rows)` got no rows. This is usually an empty selection, or the arguments in "
        f"another order. {_UNTOUCHED} Pass a pytree of arrays with at least one row each."
    )


def wrong_representations(seen: str, num_rows: int) -> RowsError:
    """An encoder whose results are no rows."""
    return RowsError(
        f"The encoder returned {seen} for {num_rows} rows; every array that it returns must have a "
        "row for each of them along its first axis. This is usually a mean over rows, or a missing "
        f"`jax.vmap`. {_UNTOUCHED} Return one representation a row; what is common to all rows "
        "belongs into the loss."
    )


def mixing_encoder(reason: str) -> MixedRowsError:
    """An encoder for which a row's representation depends on other rows."""
    return MixedRowsError(
        "`hold(encoder)` evaluates the encoder on chunks and on some rows only, and the "
        f"representation of a row depends on other rows: {reason}. This is usually a normalisation "
        f"over the batch, or a closed-over array with one entry a row. {_UNTOUCHED} Compute what "
        "rows have in common before, and pass it with the parameters; pass what is of one row "
        "among the rows; or normalise within a row."
    )


def wrong_row_numbers(method: str, seen: str, num_rows: int) -> RowsError:
    """Numbers of rows that are not there."""
    return RowsError(
        f"`{method}` got {seen} as numbers of rows; there are rows 0 to {num_rows - 1}. This is "
        "usually a batch of another data set, or a mask that is no boolean array. Nothing was "
        "evaluated or accumulated. Pass integers from 0, or a boolean mask or a slice of the rows."
    )


def without_values(method: str, what: str) -> RowsError:
    """A batch of `Kept` inside a transformation."""
    return RowsError(
        f"`kept.{method}` got {what} without values: it is called inside a function that JAX "
        "traces, and what is kept is no part of that function. This is usually a training step "
        "under `jax.jit`. Nothing was evaluated or accumulated. Call `kept.rows` and `kept.add` "
        "outside, or use `held.value_and_grad(loss)`, which takes all batches and can be compiled."
    )


def batches_selected(path: str) -> str:
    """Why batches cannot be differentiated, as the reason of a `SelectionError`."""
    return (
        f"it selects `{path}` among the batches, which belong to one batch each and are not trained"
    )


def other_batches(path: str, seen: str, expected: int) -> RowsError:
    """Data of batches that are not as many as the batches."""
    return RowsError(
        f"The batches hold {expected} batches of row numbers, and `{path}` is {seen}. This is "
        f"usually data of all batches in one. {_UNTOUCHED} Every array beside the row numbers has "
        "one entry a batch along its first axis."
    )
