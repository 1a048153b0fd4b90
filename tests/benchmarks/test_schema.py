"""Results: written and read back unchanged; what is wrong with a file is said with the place of
it.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from benchmarks.suite import schema

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
VALID = {
    "schema": 1,
    "benchmark": "mixture",
    "date": "2026-11-22T10:00:00",
    "machine": {"cpu": "A", "cores": "2"},
    "versions": {"jax": "0.10.2"},
    "options": {"quick": False, "rounds": 60, "arguments": []},
    "tables": [
        {
            "title": "one",
            "lines": [
                {
                    "case": "value",
                    "cells": {"incrax": "1 ms"},
                    "timings": {"incrax": {"median": 2.0, "lower": 1.0, "upper": 3.0}},
                    "ratios": {"jax.jit / incrax": 2},
                    "checks": [
                        {"target": ">=2x jax.jit", "reached": "2.00x jax.jit", "is_met": True}
                    ],
                }
            ],
        }
    ],
}


def changed(*path, value=None, remove=False):
    """The valid result with one place changed."""
    made = copy.deepcopy(VALID)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


LINE = ("tables", 0, "lines", 0)
WRONG = {
    "x: has no field `schema`, so it is no result of this suite": changed("schema", remove=True),
    "x: is of schema 2; this suite reads 1": changed("schema", value=2),
    "x: `benchmark` is missing; every result has one": changed("benchmark", remove=True),
    "x: `colour` is no field of a result; known are schema, benchmark": changed("colour", value=1),
    "x: `date` is 3; expected a text": changed("date", value=3),
    "x: `options.quick` is 1; expected true or false": changed("options", "quick", value=1),
    "x: `options.rounds` is true; expected a whole number": changed(
        "options", "rounds", value=True
    ),
    "x: `tables` is dict; expected a list": changed("tables", value={}),
    "x: `tables[0].lines[0].cells` is list; expected an object": changed(*LINE, "cells", value=[]),
    "x: `tables[0].lines[0].case` is missing; every line has one": changed(
        *LINE, "case", remove=True
    ),
    'x: `tables[0].lines[0].timings.incrax.median` is "fast"; expected a finite number': changed(
        *LINE, "timings", "incrax", "median", value="fast"
    ),
    "x: `tables[0].lines[0].ratios.a` is NaN; expected a finite number": changed(
        *LINE, "ratios", value={"a": float("nan")}
    ),
    "x: the times of 'incrax' in 'one', 'value' are not in order: lower quartile 9": changed(
        *LINE, "timings", "incrax", "lower", value=9
    ),
    "x: `conditions` is 'calm'; it must be one of quiet, busy, unknown": changed(
        "conditions", value="calm"
    ),
    "x: has neither tables nor a reason in `skipped`": changed("tables", value=[]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_named_with_its_place(message):
    with pytest.raises(schema.ResultError) as caught:
        schema.parse(WRONG[message], "x")
    assert str(caught.value).startswith(message)


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = schema.parse(VALID, "x")
    schema.save(result, tmp_path / "deeper" / "one.json")
    assert schema.load(tmp_path / "deeper" / "one.json") == result
    assert schema.load_all(tmp_path / "deeper") == [result]
    assert result.lines[0][1].ratios == {"jax.jit / incrax": 2.0}


def test_files_that_cannot_be_read_say_what_to_do(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(schema.ResultError, match="is no JSON .* was it edited"):
        schema.load(tmp_path / "bad.json")
    with pytest.raises(schema.ResultError, match="cannot be read .* `--run NAME` makes one"):
        schema.load(tmp_path / "none.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(schema.ResultError, match=r"no \.json file in this folder"):
        schema.load_all(tmp_path / "empty")


def test_all_results_that_are_kept_are_valid_and_of_known_benchmarks():
    from benchmarks.suite import catalogue, peers

    known = {*catalogue.by_name(), *(f"peers-{peer.name}" for peer in peers.PEERS)}
    for result in schema.load_all(RESULTS):
        assert result.benchmark in known
        assert not result.options.quick
        json.loads(schema.dumps(result))
