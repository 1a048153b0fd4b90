"""Tables and lines as text, on a console of rich that draws nowhere else.

In: what rich can draw. Out: text. It must not know what is drawn.
"""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def as_text(*parts: RenderableType, width: int = 100) -> str:
    """The parts below each other, without colours, and without spaces at the ends of lines."""
    from rich.console import Console  # here, as most that import incrax print nothing

    file = io.StringIO()
    # In a notebook a console displays what it draws, also what goes to a file or is captured,
    # unless told not to.
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, force_jupyter=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).rstrip()


class ShownAsText:
    """Base of what prints as text with tables: a notebook shows the same."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
