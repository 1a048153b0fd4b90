"""Where an equation is from, as JAX tells it: `file:line:column (function)`.

In: that text. Out: its parts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SOURCE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)? \((?P<function>.*)\)$")


class Place(NamedTuple):
    """File, line and function; empty where nobody knows."""

    file: str
    line: str
    function: str

    @property
    def file_name(self) -> str:
        """The file without its folders."""
        return re.split(r"[/\\]", self.file)[-1]


def place_of(source: str) -> Place:
    """The parts of a source line."""
    found = _SOURCE.match(source)
    return Place("", "", "") if found is None else Place(**found.groupdict())
