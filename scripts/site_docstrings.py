"""Docstrings of the house on API pages: `Promise:`, `Cost:` as paragraphs, `Fields:` as attributes,
`Example:` as code.

An extension of griffe, which takes a title and an indented block below it for a call-out.
"""

from __future__ import annotations

import re
import textwrap

import griffe

TITLE = re.compile(
    r"^(Promise|Cost|Source|Not handled|Refused|Shapes|Units): *(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE
)


def paragraph(match: re.Match[str]) -> str:
    """A titled block as a paragraph that begins with its title."""
    first, _, rest = match[2].partition("\n")
    gap = " " if first else "\n\n"
    return f"**{match[1]}:**{gap}{first}\n{textwrap.dedent(rest)}".rstrip()


def shown(docstring: str) -> str:
    """The text that is parsed instead."""
    for title, known in (("Fields", "Attributes"), ("Example", "Examples")):
        docstring = docstring.replace(f"\n{title}:\n", f"\n{known}:\n")
    return TITLE.sub(paragraph, docstring)


class Paragraphs(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Called by griffe for each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
