"""Random programs of tables and indices: the same results as the dense program."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_sparse_cases import CHANGES, READS, TABLE, UPDATES, K, N, check, program

indices = st.lists(st.integers(-N - 3, N + 3), min_size=K, max_size=K)
reads = st.lists(st.sampled_from(sorted(READS)), min_size=1, max_size=3)
changes = st.lists(st.sampled_from(sorted(CHANGES)), max_size=3)
cut_overs = st.sampled_from([0.3, 9.0])


@given(reads, changes, st.sampled_from(sorted(UPDATES)), indices, cut_overs)
@pytest.mark.exhaustive
def test_any_step_gives_what_the_dense_program_gives(read, changed, update, ids, cut_over):
    step = program(read, changed, update)
    check(step, TABLE, jnp.asarray(ids), cut_over=cut_over, factor=4096.0)
