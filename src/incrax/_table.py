"""Tables that print in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from rich.console import Console, Group
from rich.table import Table as RichTable


class Table(NamedTuple):
    """A title, a header and rows of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Printable:
    """Base of reports: subclasses give `tables()`."""

    def tables(self) -> list[Table]:
        """The report as tables."""
        raise NotImplementedError

    def __rich__(self) -> Group:
        """The report for rich."""
        return Group(*[_rich_table(table) for table in self.tables()])

    def __str__(self) -> str:
        """The report as plain text."""
        console = Console(width=140, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.__rich__())
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip()

    def _repr_html_(self) -> str:
        """The report for notebooks."""
        return "\n".join(map(_html_table, self.tables()))


def _html_table(table: Table) -> str:
    left = 'style="text-align: left"'
    header = "".join(f'<th scope="col" {left}>{escape(name)}</th>' for name in table.header)
    rows = ["".join(f"<td {left}>{escape(str(cell))}</td>" for cell in row) for row in table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    title = f"<caption {left}><strong>{escape(table.title)}</strong></caption>"
    return f"<table>{title}<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _rich_table(table: Table) -> RichTable:
    result = RichTable(title=table.title, title_justify="left", title_style="bold")
    for name in table.header:
        result.add_column(name, overflow="fold")
    for row in table.rows:
        result.add_row(*[str(cell).replace("[", r"\[") for cell in row])
    return result
