"""Where an equation is from, as JAX tells it: `file:line:column (function)`."""

from __future__ import annotations

import re
from typing import NamedTuple

_SOURCE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)? \((?P<function>.*)\)$")


class SourceLine(NamedTuple):
    """File, line and function; empty where nobody knows."""

    file: str
    line: str
    function: str

    @property
    def file_name(self) -> str:
        """The file without its folders."""
        return re.split(r"[/\\]", self.file)[-1]


def source_of(text: str) -> SourceLine:
    """The parts of a source line."""
    found = _SOURCE.match(text)
    return SourceLine("", "", "") if found is None else SourceLine(**found.groupdict())
