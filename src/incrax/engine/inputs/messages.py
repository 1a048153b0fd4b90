"""Errors about `Rows`, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Mapping

from incrax._messages import NUM_SHOWN
from incrax.errors import RowsError, UnsupportedLeafError


def no_rows() -> RowsError:
    """Data without rows."""
    return RowsError(
        "`Rows` got no rows. This is usually an empty selection or file. Nothing was made. Pass at "
        "least one row."
    )


def not_an_array(path: str, kind: str) -> UnsupportedLeafError:
    """A leaf that is no array of rows."""
    return UnsupportedLeafError(
        f"`Rows` got `{path}` of type {kind}; every leaf must be a NumPy or JAX array with rows "
        "along its first axis. This is usually a list, a number, or an array inside a function "
        "that is being compiled. Nothing was made. Convert it: `np.asarray(...)`."
    )


def other_lengths(name: str, lengths: Mapping[str, int]) -> RowsError:
    """Leaves with different numbers of rows."""
    first = list(lengths.items())[:NUM_SHOWN]
    shown = ", ".join(f"`{path}` has {length}" for path, length in first)
    return RowsError(
        f"`{name}` got arrays with different numbers of rows: {shown}. This is usually a "
        "transposed array, or a selection of some columns only. Nothing was made. Rows are the "
        "first axis of every array."
    )


def other_rows(method: str, seen: str, expected: str) -> RowsError:
    """Rows of another type than those there are."""
    return RowsError(
        f"`rows.{method}` got {seen}; the rows there are have {expected}. Nothing was changed. "
        "Give arrays of the same structure, dtypes and trailing shapes, or make new `Rows`."
    )


def other_read(start: int, stop: int, seen: str, expected: str) -> RowsError:
    """Rows of a source that are not those that were asked for."""
    return RowsError(
        f"`Rows` asked its source for rows {start} to {stop} and got {seen}; it needs "
        f"{stop - start} rows of {expected}. This is usually a file that is shorter than "
        "`num_rows` says, or whose types differ from part to part. Nothing of these rows was kept. "
        "`read(start, stop)` must return all of the rows, of the type of the first one."
    )


def no_row_number(start: object) -> TypeError:
    """A place that is no number of a row."""
    return TypeError(
        f"`rows.replace` got {start!r} as the first row to replace; rows are counted by integers "
        "from 0. Nothing was changed. Write `rows.replace(start, tree)`."
    )


def outside_rows(start: int, stop: int, num_rows: int) -> RowsError:
    """Rows to replace that are not there."""
    return RowsError(
        f"`rows.replace` got rows {start} to {stop}; there are rows 0 to {num_rows}. Nothing was "
        "changed. Use `append` for rows after the last."
    )


def wrong_chunk_rows(value: object) -> RowsError:
    """A number of rows per chunk that is no power of two."""
    return RowsError(
        f"`Rows(chunk_rows=...)` got {value!r}; it must be a power of two, so that few programs "
        "serve all numbers of rows. Nothing was made. Leave it out, or give 65536, 131072, ..."
    )
