"""Tables as text, as the scripts print them."""

from __future__ import annotations

from collections.abc import Sequence


def as_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first row is its header: columns of one width, a rule under the
    header.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [shown[0], "  ".join("-" * width for width in widths), *shown[1:]]
