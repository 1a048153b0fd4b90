"""A report as one HTML page that needs nothing else: data, styles, scripts and the library that draws, in one file.

In: plain data. Out: text. It must not know engines.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from incrax.inspection.messages import no_file_to_write_to

SCRIPTS = ("model.js", "text.js", "inputs.js", "map.js", "charts.js", "tables.js", "main.js")
NOTEBOOK_HEIGHT = 860
"""Pixels of the frame in a notebook."""


@dataclass(frozen=True, repr=False)
class Report:
    """A page about a function: what its calls saved, ran and cost. Made by `report`.

    In a notebook it shows itself; `save` writes it to a file, which needs no network and may be sent to others. It
    holds names, types, source lines and times, and no values of inputs or results.
    """

    data: Mapping[str, Any]
    """What the page shows, as plain data."""

    @cached_property
    def html(self) -> str:
        """The page as text: one HTML document of about 0.35 MB and 0.1 to 1 kB per equation."""
        library, style = _asset("d3.min.js"), _asset("page.css")
        script = "\n".join(["'use strict';", *map(_asset, SCRIPTS)])
        policy = [
            f"script-src {_hash(_enclosed(library))} {_hash(_enclosed(script))}",
            f"style-src {_hash(_enclosed(style))}",
        ]
        return Template(_asset("page.html")).substitute(
            title=html.escape(f"incrax: {self.data['function']['name']}"),
            policy="; ".join(["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'", *policy]),
            licence=html.escape(_asset("d3-LICENSE.txt")),
            style=_enclosed(style),
            data=as_script_data(self.data),
            library=_enclosed(library),
            script=_enclosed(script),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file.

        Returns:
            Where it is, as an absolute path.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path).expanduser().absolute()
        target.write_text(self.html, encoding="utf-8")
        return target

    def as_dict(self) -> dict[str, Any]:
        """All that the page shows, for programs: numbers, text, lists and dictionaries."""
        return dict(self.data)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        name = html.escape(str(self))
        return (
            f'<iframe title="{name}" sandbox="allow-scripts" width="100%" height="{NOTEBOOK_HEIGHT}" '
            f'style="border: 0" srcdoc="{html.escape(self.html)}">{name}</iframe>'
        )

    def __str__(self) -> str:
        function, calls = self.data["function"], self.data["calls"]
        counts = _many(function["num_equations"], "equation"), _many(calls["num"], "call")
        return f"report of {function['name']}: {', '.join(counts)}"

    def __repr__(self) -> str:
        return f"<{self}>"


def checked_path(path: str | os.PathLike[str] | None) -> Path | None:
    """Where a page is to be written, if anywhere.

    Raises:
        ReportError: it is something else, usually an argument of the function.
    """
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise no_file_to_write_to(type(path).__name__)
    return Path(path)


def _many(num: int, word: str) -> str:
    return f"{num} {word}{'' if num == 1 else 's'}"


@cache
def _asset(name: str) -> str:
    return (resources.files("incrax.inspection") / "assets" / name).read_text(encoding="utf-8")


def _enclosed(text: str) -> str:
    """The content of an element, exactly as the page has it."""
    return f"\n{text.rstrip()}\n"


def _hash(text: str) -> str:
    """What a content security policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script_data(data: Any) -> str:
    """JSON that may stand in a script element: no character in it ends the element or opens another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
