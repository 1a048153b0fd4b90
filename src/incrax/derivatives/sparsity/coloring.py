"""Colouring: columns of a sparse matrix that one product can find together.

Two columns may share a colour if no row has a nonzero in both (Curtis, Powell, Reid 1974): the product of the matrix
with the sum of their unit vectors then holds each of their nonzeros by itself. For a symmetric matrix a nonzero may
also be read from its mirror image, so that full rows need not forbid anything.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from incrax.derivatives.sparsity.patterns import Matrix


class Coloring(NamedTuple):
    """A colour for each column, -1 for none, and how many there are; each of the `hubs` has a colour of its own."""

    colors: np.ndarray
    num_colors: int
    hubs: np.ndarray


NO_HUBS = np.zeros(0, int)


class Colored:
    """A pattern with its colourings, each found when it is first asked for."""

    def __init__(self, pattern: Matrix) -> None:
        self.pattern = pattern

    @cached_property
    def columns(self) -> Coloring:
        """Of its columns."""
        return color_columns(self.pattern)

    @cached_property
    def rows(self) -> Coloring:
        """Of its rows."""
        return color_rows(self.pattern)

    @cached_property
    def symmetric(self) -> Coloring:
        """Of its columns, if it is symmetric."""
        return color_symmetric(self.pattern)


def colored(pattern: Matrix | Colored) -> Colored:
    """The pattern with colourings, those that are known among them."""
    return pattern if isinstance(pattern, Colored) else Colored(pattern)


def color_columns(pattern: Matrix) -> Coloring:
    """Colour columns such that no row has two nonzeros of one colour.

    Greedy, columns with most nonzeros first, each with the smallest colour that fits; the number of colours is at least
    the largest number of nonzeros in a row, and often equal to it. Cost: nonzeros times colours / 64. Empty columns
    have no colour, -1.
    """
    columns = pattern.tocsc()
    indices, indptr = columns.indices.tolist(), columns.indptr.tolist()
    taken = [0] * pattern.shape[0]
    """Per row the colours of its columns so far, as bits."""
    colors = np.zeros(pattern.shape[1], int)
    for column in np.argsort(-np.diff(columns.indptr), kind="stable").tolist():
        rows = indices[indptr[column] : indptr[column + 1]]
        used = 0
        for row in rows:
            used |= taken[row]
        bit = ~used & (used + 1)
        colors[column] = bit.bit_length() - 1 if rows else -1
        for row in rows:
            taken[row] |= bit
    num_colors = max((bits.bit_length() for bits in taken), default=0)
    return Coloring(colors, num_colors, NO_HUBS)


def color_rows(pattern: Matrix) -> Coloring:
    """Colour rows such that no column has two nonzeros of one colour."""
    return color_columns(pattern.T.tocsr())


def color_symmetric(pattern: Matrix) -> Coloring:
    """Colour columns of a symmetric matrix such that each nonzero, or its mirror image, is alone in its row and colour.

    The columns of the fullest rows, the hubs, get a colour each. A nonzero in a hub's row is read from the hub's
    column, so that the others are coloured without these rows. An arrow takes 2 colours, where `color_columns` takes as
    many as there are columns. The number of hubs is a power of two, or 0: the one with the fewest colours in all.
    """
    counts = np.diff(pattern.indptr)
    order = np.argsort(-counts, kind="stable")
    best = color_columns(pattern)
    num_hubs = 1
    while num_hubs < min(best.num_colors, len(order)):
        hubs = np.sort(order[:num_hubs])
        rest = _without(pattern, hubs)
        if num_hubs + int(np.diff(rest.indptr).max(initial=0)) < best.num_colors:
            best = min(best, _with_hubs(rest, hubs), key=lambda found: found.num_colors)
        num_hubs *= 2
    return best


def _without(pattern: Matrix, hubs: np.ndarray) -> Matrix:
    """The pattern without the hubs' rows and columns."""
    kept = np.ones(pattern.shape[0], bool)
    kept[hubs] = False
    coo = pattern.tocoo()
    both = kept[coo.row] & kept[coo.col]
    return csr_array((coo.data[both], (coo.row[both], coo.col[both])), shape=pattern.shape)


def _with_hubs(rest: Matrix, hubs: np.ndarray) -> Coloring:
    colors, num_colors, _ = color_columns(rest)
    colors[hubs] = num_colors + np.arange(hubs.size)
    return Coloring(colors, num_colors + hubs.size, hubs)
