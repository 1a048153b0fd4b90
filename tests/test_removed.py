"""Names that went with version 0.2: each says what to use instead."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import incrax
from incrax import _removed

CHANGES = (Path(__file__).parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")


def named(path: str) -> object:
    return functools.reduce(getattr, path.split("."), incrax)


@pytest.mark.parametrize(("old", "new"), _removed.RENAMED.items())
def test_a_name_that_changed_warns_and_is_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"`incrax.{old}` is `incrax.{new}` now") as seen:
        assert named(old) is named(new)
    assert seen[0].filename == __file__


@pytest.mark.parametrize(("old", "advice"), _removed.GONE.items())
def test_a_name_that_went_says_what_to_use(old, advice):
    text = f"no attribute '{old.rpartition('.')[2]}'; it went with version 0.2: {advice}"
    with pytest.raises(AttributeError, match=re.escape(text)):
        named(old)


def test_all_of_them_are_in_the_changelog_and_none_is_public_again():
    for old in [*_removed.RENAMED, *_removed.GONE]:
        module, _, name = old.rpartition(".")
        assert name in CHANGES
        assert name not in (getattr(incrax, module) if module else incrax).__all__


def test_another_name_is_an_error_without_advice():
    with pytest.raises(AttributeError, match="module 'incrax.fit' has no attribute 'nothing'$"):
        _ = incrax.fit.nothing
