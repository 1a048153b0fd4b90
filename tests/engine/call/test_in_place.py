"""Rows are written into the buffers of the values that are kept: results are right whatever comes
before and after, and no version reads what is gone.
"""

from __future__ import annotations

import pytest
from engine.call import test_slices as rows
from engine.call.test_slices import Job
from helpers import examples, last_repeat
from hypothesis import given
from hypothesis import strategies as st
from slice_cases import NUM, serve_by_rows

from incrax.engine.compile import in_place as written
from incrax.engine.compile import recycling
from incrax.engine.plan import slicer


@pytest.fixture(autouse=True)
def in_place(monkeypatch):
    """Also where values are small."""
    serve_by_rows(monkeypatch)
    monkeypatch.setattr(recycling, "MIN_BYTES", 0)
    monkeypatch.setattr(written, "MIN_WRITTEN_BYTES", 0)
    monkeypatch.setattr(written, "MIN_OVERWRITTEN_BYTES", 0)
    monkeypatch.setattr(slicer, "MIN_OVERLAID_BYTES", 0)


test_any_row_is_served_by_the_same_program = rows.test_any_row_is_served_by_the_same_program
test_threads_get_right_results = rows.test_threads_get_right_results
test_a_false_guard_has_the_whole_function_run = rows.test_a_false_guard_has_the_whole_function_run


@given(
    st.lists(rows.ACTIONS, min_size=4, max_size=24),
    st.sampled_from(
        ["sparse graph", "sparse graph, gradient", "ring, gradient", "groups, gradient"]
    ),
)
@examples(0.5)
def test_any_sequence_of_changes(actions, name):
    rows.test_any_sequence_of_changes.hypothesis.inner_test(actions, name)


def pointers(job):
    """Where the values are that programs for rows write to, in the newest version."""
    (entry,) = job.engine.slices.entries.values()
    saved = job.engine.store.states[-1].saved
    executable = entry.program.executable
    saves = executable.family.in_place.saves
    return [saved[var].unsafe_buffer_pointer() for var in saves]


def test_what_is_read_once_is_written_by_the_program_itself():
    job = Job("groups, gradient").settle()
    executable = last_repeat(job.engine).program.executable
    assert not executable.family.in_place.writing.olds
    num_overwritten = len(executable.family.in_place.overwritten)
    assert num_overwritten >= 2
    call, types = executable.specimen([value.feed for value in job.engine.store.states[-1].values])
    compiled = call.lower(*types).compile()
    assert compiled.as_text().count("may-alias") == num_overwritten


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", ["sparse graph, gradient", "sparse graph", "groups, gradient", "look-up"]
)
def test_rows_are_written_where_the_values_are(name):
    job = Job(name).settle()
    before = pointers(job)
    assert before
    for row in range(5, 15):
        job.change(row)
        assert job.engine.last.candidate == "slices"
    assert pointers(job) == before


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["sparse graph", "groups, gradient"])
def test_a_refused_proposal_is_written_over_by_the_next_one(name):
    """From the version that has the values: it differs in the rows of both."""
    job = Job(name).settle()
    place = job.args
    for row in range(5, 15):
        job.args = place
        job.change(row)
    for row in range(15, NUM):
        job.args = place
        job.change(row)
        assert job.engine.last.candidate == "slices"
        assert job.engine.last.plan.sliced.kind.capacity == 4


def test_after_an_error_the_values_that_are_gone_are_made_again(monkeypatch):
    job = Job("sparse graph").settle()
    run = type(last_repeat(job.engine).program).__call__
    errors = [RuntimeError("lost")]

    def fails_once(program, feeds, loads):
        results = run(program, feeds, loads)
        if errors:
            raise errors.pop()
        return results

    monkeypatch.setattr(type(last_repeat(job.engine).program), "__call__", fails_once)
    job.ours._streak = None
    for row in range(4, 9):
        try:
            job.change(row)
        except RuntimeError:
            job.call()
    assert not errors
    assert job.engine.last.candidate == "slices"
