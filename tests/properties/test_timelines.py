"""The sequences of calls themselves: what they are said to change changes, and nothing else."""

from __future__ import annotations

import pytest

from properties import timelines
from properties.corpus import CORPUS
from properties.programs import START

STARTS = {"programs": START, **{name: start for name, (_, start) in CORPUS.items()}}


def changes(start):
    """Whether each call changes a bit, over many sequences."""
    calls = [timelines.arguments(start, seed, 14) for seed in range(10)]
    return [
        not timelines.same_bits(x, y)
        for each in calls
        for x, y in zip(each, each[1:], strict=False)
    ]


@pytest.mark.parametrize("name", STARTS)
def test_every_change_changes_a_bit(name, monkeypatch):
    monkeypatch.setattr(
        timelines, "ACTIONS", [x for x in timelines.ACTIONS if x not in timelines.NO_CHANGES]
    )
    assert all(changes(STARTS[name]))


def test_the_share_of_calls_that_change_nothing_is_that_of_their_actions():
    found = [is_change for start in STARTS.values() for is_change in changes(start)]
    share = len(timelines.NO_CHANGES) / len(timelines.ACTIONS)
    assert found.count(False) / len(found) == pytest.approx(share, abs=0.03)
