"""Tests that count what is remembered start from an empty table, whatever ran before them in the
process.
"""

from __future__ import annotations

import gc

import pytest

from incrax.bijectors import memory


@pytest.fixture(autouse=True)
def _nothing_is_remembered_yet():
    if memory._table:
        gc.collect()
        memory._table.clear()


@pytest.fixture
def nothing_outlives_a_test():
    yield
    gc.collect()
    assert not memory._table
