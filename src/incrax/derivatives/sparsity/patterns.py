"""Patterns: which elements of a value depend on which elements of the inputs, as boolean sparse matrices.

A `Pattern` has one row per element of a value (in C order) and one column per input element; None says "nothing". All
operations are moves and unions of rows. `TooMuch` is raised before a matrix beyond `MAX_NONZEROS` is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array, vstack

Matrix: TypeAlias = Any  # csr_array, boolean, with sorted indices
Pattern: TypeAlias = Any  # Matrix | None

MAX_NONZEROS = 1 << 23
"""Nonzeros of one pattern beyond which the search is given up; numbers of elements stay exact in float32, too."""


class TooMuch(Exception):
    """The pattern takes more memory or time than it can save."""


def check_size(number: int) -> None:
    """Raise `TooMuch` beyond the largest number of elements or nonzeros."""
    if number > MAX_NONZEROS:
        raise TooMuch


def unit(first: int, size: int, num_columns: int) -> Matrix:
    """The pattern of an input: element k depends on column `first + k`."""
    check_size(size)
    return _csr(np.arange(first, first + size), np.arange(size + 1), num_columns)


def empty(num_rows: int, num_columns: int) -> Matrix:
    """The pattern of a value that depends on nothing, as a matrix."""
    return csr_array((num_rows, num_columns), dtype=bool)


def take(pattern: Pattern, numbers: Any) -> Pattern:
    """Row k of the result is row `numbers[k]`; an empty one where that is -1."""
    numbers = np.ravel(np.asarray(numbers))
    if pattern is None or not (numbers >= 0).any():
        return None
    if numbers.size == pattern.shape[0] and np.array_equal(numbers, np.arange(numbers.size)):
        return pattern
    rows = np.append(pattern.indptr, pattern.indptr[-1])
    check_size(numbers.size + int((rows[numbers + 1] - rows[numbers])[numbers >= 0].sum()))
    padded = _csr(pattern.indices, rows, pattern.shape[1])
    return padded[np.where(numbers < 0, pattern.shape[0], numbers)]


def gathered(pattern: Pattern, targets: Any, sources: Any, num_rows: int) -> Pattern:
    """Row `targets[k]` of the result is the union of rows `sources[k]`, over all k with that target."""
    if pattern is None:
        return None
    targets, sources = np.ravel(targets), np.ravel(sources)
    check_size(int(np.diff(pattern.indptr)[sources].sum()) + num_rows)
    ones = np.ones(targets.size, bool)
    result = csr_array((ones, (targets, sources)), shape=(num_rows, pattern.shape[0])) @ pattern
    result.sort_indices()
    return result if result.nnz else None


def grouped(pattern: Pattern, targets: Any, num_rows: int) -> Pattern:
    """Row `targets[k]` of the result is the union of rows k with that target."""
    return gathered(pattern, targets, np.arange(np.size(targets)), num_rows)


def union(patterns: Iterable[Pattern]) -> Pattern:
    """Each row the union of the patterns' rows of that number."""
    result: Pattern = None
    for pattern in patterns:
        if result is None or pattern is None or pattern is result:
            result = pattern if result is None else result
        else:
            check_size(result.nnz + pattern.nnz)
            result = result + pattern
    return result


def joined(pattern: Pattern) -> Pattern:
    """One row: the union of all."""
    if pattern is None or not pattern.nnz:
        return None
    return _csr(np.unique(pattern.indices), np.array([0, np.unique(pattern.indices).size]), pattern.shape[1])


def everywhere(patterns: Iterable[Pattern], num_rows: int) -> Pattern:
    """Every row the union of all rows of all patterns."""
    return take(union(map(joined, patterns)), np.zeros(num_rows, int))


def stacked(patterns: Iterable[tuple[Pattern, int]]) -> Pattern:
    """Patterns, each with its number of rows, on top of each other."""
    parts = list(patterns)
    found = [pattern for pattern, _ in parts if pattern is not None]
    if not found:
        return None
    check_size(sum(pattern.nnz for pattern in found) + sum(size for _, size in parts))
    blocks = [empty(size, found[0].shape[1]) if pattern is None else pattern for pattern, size in parts]
    return csr_array(vstack(blocks, format="csr"))


def _csr(indices: Any, indptr: Any, num_columns: int) -> Matrix:
    parts = (np.ones(len(indices), bool), np.asarray(indices, np.int32), np.asarray(indptr, np.int32))
    return csr_array(parts, shape=(len(indptr) - 1, num_columns))
