"""Errors about `Rows`, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from incrax._messages import NUM_SHOWN
from incrax.errors import MixedRowsError, NotCalledError, RowsError, UnsupportedLeafError

_ROWS_CURE = (
    "Nothing was evaluated or stored. A function of `Rows` may map over rows and reduce over them "
    "(sum, mean, max, min, prod, all, any, matrix products), in any number of rounds. Write it so, "
    "or pass plain arrays: `rows.tree()`."
)


def mixed_rows(primitive: str, line: str, what: str, types: str) -> MixedRowsError:
    """An equation that neither maps over rows nor reduces over them."""
    where = f" at {line}" if line else ""
    return MixedRowsError(
        "`incremental(f)` got `Rows`, which are evaluated chunk by chunk, and f mixes rows: "
        f"`{primitive}`{where}, of {types or 'no inputs'}, {what}. {_ROWS_CURE}"
    )


def branches_on_rows(difference: str) -> MixedRowsError:
    """Traces for two numbers of rows that are not alike."""
    return MixedRowsError(
        "`incremental(f)` got `Rows`, and f is another function for another number of rows: two "
        f"traces differ by {difference}. This is usually a Python branch on the number of rows, or "
        f"a loop over them. {_ROWS_CURE}"
    )


def untraceable_rows(num_rows: int, error: Exception) -> MixedRowsError:
    """A function that cannot be traced for another number of rows."""
    return MixedRowsError(
        f"`incremental(f)` got `Rows`, and f cannot be traced for {num_rows} rows: "
        f"{type(error).__name__}: {error} This is usually an array with one entry a row that f "
        "takes from elsewhere: a closed-over constant or another argument. Put it into the same "
        f"`Rows`. {_ROWS_CURE}"
    )


def per_row_of_stream(types: str) -> MixedRowsError:
    """Per-row results of data that are streamed."""
    return MixedRowsError(
        f"`incremental(f)` got `Rows` that are read from a file, and f returns {types}, with an "
        "entry for each row: that may be more than memory holds. Nothing was stored. Reduce over "
        "the rows, or evaluate slices: `Rows(tree)` of a part that fits."
    )


def many_rows(paths: Sequence[str]) -> RowsError:
    """Several `Rows` in one call."""
    return RowsError(
        f"`incremental(f)` got `Rows` in {len(paths)} places: "
        f"{', '.join(f'`{p}`' for p in paths)}. They may be cut into chunks differently. Nothing "
        "was evaluated or stored. Put all columns into one: `Rows({'x': x, 'y': y})`."
    )


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


def no_checkpoint_of_rows() -> NotCalledError:
    """A checkpoint after a call with rows."""
    return NotCalledError(
        "`checkpoint()` keeps the version of a call without `Rows`, and the last call was one with "
        "`Rows`. Nothing was kept. Keep the `Rows` and the parameters to go back to: `append` and "
        "`replace` leave them as they are, and results at the latest few versions are saved."
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


def no_pyarrow() -> ImportError:
    """Parquet without its library."""
    return ImportError(
        "`Rows.from_parquet` needs pyarrow, which is not installed. Nothing was read. Install "
        "`incrax[parquet]`."
    )


def missing_entries(column: str, num: int) -> RowsError:
    """Nulls in a column."""
    return RowsError(
        f"`Rows.from_parquet` found {num} missing entries in `{column}`; an array has no such "
        "thing. Nothing was kept. Fill them in the file, or leave the column out: `columns=[...]`."
    )
