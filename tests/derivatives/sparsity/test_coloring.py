"""Colourings: no row has two nonzeros of one colour, and known matrices take known numbers of
colours.
"""

from __future__ import annotations

import numpy as np
import pytest
from derivatives.sparsity.numeric import band, blocks
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from incrax.derivatives.sparsity.compressed import color_columns, color_symmetric

matrices = st.tuples(st.integers(0, 9), st.integers(0, 9)).flatmap(
    lambda shape: arrays(bool, shape)
)


def arrow(size, hubs=1):
    result = np.eye(size, dtype=bool)
    result[:hubs] = result[:, :hubs] = True
    return result


def count(color, dense):
    return color(csr_array(np.asarray(dense, bool))).num_colors


@given(matrices)
def test_no_row_has_two_nonzeros_of_one_color(dense):
    colors, num_colors, _ = color_columns(csr_array(dense))
    seeds = colors[:, None] == np.arange(num_colors)
    assert (dense.astype(int) @ seeds <= 1).all()
    assert num_colors >= dense.sum(1).max(initial=0)
    assert set(colors[dense.any(0)]) == set(range(num_colors))


@given(matrices)
def test_each_nonzero_or_its_mirror_image_is_alone_in_its_row_and_color(dense):
    dense = dense[: min(dense.shape), : min(dense.shape)]
    symmetric = dense | dense.T
    colors, num_colors, hubs = color_symmetric(csr_array(symmetric))
    in_row = symmetric.astype(int) @ (colors[:, None] == np.arange(len(colors)))
    is_alone = in_row[:, colors] == 1
    is_hub = np.isin(np.arange(len(symmetric)), hubs)
    read = np.where(is_hub[:, None] & ~is_hub, is_alone.T, is_alone)
    assert read[symmetric].all()
    assert num_colors <= color_columns(csr_array(symmetric)).num_colors


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        (np.eye(50), 1),
        (band(50, 1, 1), 3),
        (band(50, 2, 2), 5),
        (band(50, 0, 3, rows=47), 4),
        (blocks(5, 4), 4),
        (np.ones((6, 6)), 6),
        (arrow(50), 50),
        (np.ones((1, 7)), 7),
        (np.ones((7, 1)), 1),
        (np.zeros((3, 3)), 0),
        (np.zeros((0, 3)), 0),
        (np.zeros((3, 0)), 0),
    ],
)
def test_columns_take_as_many_colors_as_the_fullest_row_has_nonzeros(dense, expected):
    assert count(color_columns, dense) == expected


@pytest.mark.parametrize(
    ("dense", "expected", "num_hubs"),
    [
        (np.eye(50), 1, 0),
        (band(50, 1, 1), 3, 0),
        (blocks(5, 4), 4, 0),
        (np.ones((6, 6)), 6, 0),
        (arrow(50), 2, 1),
        (arrow(50, 2), 3, 2),
        (arrow(50, 3), 5, 4),
        (arrow(50) | band(50, 1, 1), 4, 1),
        (arrow(50) & (np.arange(50) == 0) | arrow(50) & (np.arange(50)[:, None] == 0), 1, 1),
    ],
)
def test_full_rows_of_a_symmetric_matrix_take_one_color_each(dense, expected, num_hubs):
    found = color_symmetric(csr_array(np.asarray(dense, bool)))
    assert (found.num_colors, found.hubs.size) == (expected, num_hubs)
