"""The list of mutants is about the source as it is: every piece that one replaces occurs exactly once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import incrax

SCRIPT = Path(__file__).parent.parent / "scripts" / "mutants.py"
PACKAGE = Path(incrax.__file__).parent


TESTS = Path(__file__).parent


def mutants():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_the_piece_that_a_mutant_replaces_is_there_once(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_the_tests_that_should_notice_are_there(mutant):
    for each in mutant.tests.split():
        path, _, name = each.partition("::")
        source = TESTS.parent / path
        assert source.exists(), each
        assert not name or f"def {name}(" in source.read_text(), each
