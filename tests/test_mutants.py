"""Pieces of the list occur exactly once; what is drawn at random is another program; the checkout
is never modified.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import incrax

SCRIPT = Path(__file__).parent.parent / "scripts" / "mutants.py"
PACKAGE = Path(incrax.__file__).parent
TESTS = Path(__file__).parent


def loaded():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE = loaded()


@pytest.mark.every_case
@pytest.mark.parametrize("mutant", MODULE.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_piece_that_a_mutant_replaces_is_there_once(mutant):
    source = (PACKAGE / mutant.file).read_text()
    assert len(re.findall(MODULE.spelled(mutant.old), source)) == 1
    assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", MODULE.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_should_notice_are_there(mutant):
    for each in mutant.tests.split():
        path, _, name = each.partition("::")
        source = TESTS.parent / path
        assert source.exists(), each
        assert not name or f"def {name}(" in source.read_text(), each


# --- at random ------------------------------------------------------------------------------------

SOURCE = '''\
"""A module."""
TABLE = {"é": 1, "b": 2.5}
NAMES = "é b".split()


def f(x: int, *, flag=True) -> list[int]:
    """A docstring."""
    y = "é" + x if not flag and x <= 3 else min(x, 4, key=abs)
    if y is None:
        raise ValueError(f"{x + 1} is no number")
    g(y, strict=True)
    return y
'''
CHANGES = [
    ("boundary", "(x < 3)"),
    ("comparison", "(x > 3)"),
    ("comparison", "(y is not None)"),
    ("arithmetic", "('é' - x)"),
    ("boolean", "(not flag or x <= 3)"),
    ("negation", "(flag)"),
    ("constant", "2"),
    ("constant", "3.5"),
    ("constant", "False"),
    ("constant", "4"),
    ("constant", "5"),
    ("statement", "pass"),
    ("statement", "pass"),
    ("statement", "pass"),
    ("argument", "(min(x, 4))"),
    ("entry", "({'b': 2.5})"),
    ("entry", "({'é': 1})"),
    ("entry", '"b".split()'),
    ("entry", '"é".split()'),
    ("swapped", "max"),
]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A package of one module, and a test of it."""
    package = tmp_path / "src" / "incrax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def least(a, b):\n    return min(a, b)\n")
    (tmp_path / "test_small.py").write_text(
        "import incrax\n\ndef test_it():\n    assert incrax.least(1, 1) == 1\n"
    )
    monkeypatch.setattr(MODULE, "ROOT", tmp_path)
    monkeypatch.setattr(MODULE, "PACKAGE", package)
    return package


def test_all_places_of_a_module(small):
    """No annotation, no text, nothing of a formatted text, and `strict` stays."""
    (small / "m.py").write_text(SOURCE)
    found = [place for place in MODULE.places("m.py") if "True" not in place.new]
    assert sorted((place.kind, place.new) for place in found if place.new != "False") == sorted(
        change for change in CHANGES if change[1] != "False"
    )
    assert [place.new for place in found].count("False") == 2  # of `flag` and of `strict`


def test_a_place_is_replaced_and_nothing_else(small):
    (small / "m.py").write_text(SOURCE)
    made = {place.new: MODULE.at_place(place) for place in MODULE.places("m.py")}
    assert made["(x < 3)"].new == SOURCE.replace("x <= 3", "(x < 3)")
    assert made["max"].new == SOURCE.replace("min(", "max(")
    assert made["('é' - x)"].name == "m.py:8 arithmetic: `\"é\" + x` -> `('é' - x)`"


def test_mutants_drawn_at_random_are_other_programs():
    made = MODULE.drawn(100, 3, package="s")
    assert len({(mutant.file, mutant.new) for mutant in made}) == 100
    for mutant in made:
        assert mutant.old == (PACKAGE / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.new)) != ast.dump(ast.parse(mutant.old))
        compile(mutant.new, mutant.name, "exec")
    assert {mutant.name.split()[1].rstrip(":") for mutant in made} == set(MODULE.KINDS)


def test_the_seed_decides_and_packages_and_kinds_can_be_chosen():
    names = lambda seed, kind: [
        mutant.name for mutant in MODULE.drawn(5, seed, package="engine/store", kind=kind)
    ]
    assert names(1, "") == names(1, "") != names(2, "")
    assert all(
        name.startswith("engine/store/") and " boundary: " in name for name in names(1, "boundary")
    )
    own = "tests/engine/store/test_store.py tests/test_incremental.py tests/engine/store"
    assert MODULE.tests_of("engine/store/store.py") == own
    assert MODULE.tests_of("fit/steps.py") == "tests/fit"
    for path in PACKAGE.rglob("*.py"):
        for tests in MODULE.tests_of(path.relative_to(PACKAGE).as_posix()).split():
            assert (SCRIPT.parent.parent / tests).exists(), path


@pytest.mark.parametrize(
    ("new", "word", "by"),
    [
        ("max(a, b)", "ALIVE", ""),
        ("min(a, b) + 1", "killed", "test_small.py::test_it"),
        ("1 +", "killed", "test_small.py"),
        ("least(a, b) if __import__('time').sleep(60) else 0", "late", ""),
    ],
)
def test_what_becomes_of_a_mutant(small, new, word, by):
    source = (small / "__init__.py").read_text()
    mutant = MODULE.Mutant("a mutant", "__init__.py", "min(a, b)", new)
    found = MODULE.outcome(mutant, "test_small.py", 20.0 if word != "late" else 3.0)
    assert (found.word, found.by) == (word, by)
    assert (small / "__init__.py").read_text() == source


def test_tests_that_are_not_there_tell_nothing(small):
    mutant = MODULE.Mutant("a mutant", "__init__.py", "min(a, b)", "max(a, b)")
    with pytest.raises(RuntimeError, match="a mutant: the tests did not run"):
        MODULE.outcome(mutant, "test_nothing.py", 20.0)
