"""The page "Get started" as a notebook: its text and its blocks of Python, cell by cell, without
outputs.

    python scripts/notebook.py            # writes docs/get_started.ipynb
    python scripts/notebook.py --check    # exit code 1 if it is out of date

Links lead to pages beside the notebook, which it has not with it once it is downloaded: they become
text. What a block prints is left out; running the notebook shows it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "get_started.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
OF_PAGE = re.compile(r" This page is a notebook.*$", re.MULTILINE)
INSTALL = re.compile(r"## Install\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
NEXT = re.compile(r"## Where next\n.*", re.DOTALL)


def cells(page: str) -> Iterator[tuple[str, str]]:
    """(kind, source) of each cell, in order."""
    for pattern in (OF_PAGE, INSTALL, NEXT):
        page = pattern.sub("", page)
    end = 0
    for block in BLOCK.finditer(page):
        yield "markdown", page[end : block.start()]
        yield "code", block["code"]
        end = block.end()
    yield "markdown", page[end:]


def notebook(page: str) -> str:
    """The file: the same bytes for the same page."""
    found = [(kind, source.strip("\n")) for kind, source in cells(page)]
    made = [_cell(kind, source, n) for n, (kind, source) in enumerate(found) if source]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _cell(kind: str, source: str, number: int) -> dict[str, Any]:
    source = LINK.sub(r"\1", source) if kind == "markdown" else source
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    outputs = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {**cell, **outputs, "source": source.splitlines(keepends=True)}


def main(words: list[str]) -> int:
    """Write it, or check it."""
    made = notebook(PAGE.read_text(encoding="utf-8"))
    if words == ["--check"]:
        return int(not NOTEBOOK.is_file() or NOTEBOOK.read_text(encoding="utf-8") != made)
    NOTEBOOK.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
