"""The page about bijectors: its code prints what it shows, and its names exist."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest

from incrax import bijectors

PAGE = (Path(__file__).parent.parent.parent / "docs" / "bijectors.md").read_text(encoding="utf-8")


def test_the_page_prints_what_it_shows():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("flowjax", reason="flowjax is not installed")
    namespace, printed, shown = {}, io.StringIO(), ""
    for language, text in re.findall(
        r"^```(python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "bijectors.md", "exec"), namespace)
        else:
            shown += text
    assert printed.getvalue() == shown != ""


def test_every_name_on_the_page_exists():
    named = set(re.findall(r"`bijectors\.(\w+)", PAGE)) | set(re.findall(r"`(set_\w+)\(", PAGE))
    assert len(named) >= 5
    assert named <= set(bijectors.__all__)
