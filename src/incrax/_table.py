"""Tables that print in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from incrax._console import as_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable


Cell = str | float | None


class Table(NamedTuple):
    """A title, a header, and rows of text and numbers; None where nobody knows one."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Printable:
    """Base of reports: subclasses give `tables()`."""

    def tables(self) -> list[Table]:
        """The report as tables."""
        raise NotImplementedError

    def __rich__(self) -> Group:
        """The report for rich."""
        from rich.console import Group

        return Group(*[_rich_table(table) for table in self.tables()])

    def __str__(self) -> str:
        """The report as plain text."""
        return as_text(self.__rich__(), width=140)

    def _repr_html_(self) -> str:
        """The report for notebooks."""
        return "\n".join(map(_html_table, self.tables()))


def _html_table(table: Table) -> str:
    left = 'style="text-align: left"'
    header = "".join(f'<th scope="col" {left}>{escape(name)}</th>' for name in table.header)
    rows = [
        "".join(f"<td {left}>{escape(_cell_text(cell))}</td>" for cell in row) for row in table.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    title = f"<caption {left}><strong>{escape(table.title)}</strong></caption>"
    return f"<table>{title}<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _rich_table(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    result = RichTable(title=table.title, title_justify="left", title_style="bold")
    for name in table.header:
        result.add_column(name, overflow="fold")
    for row in table.rows:
        result.add_row(*[_cell_text(cell).replace("[", r"\[") for cell in row])
    return result


# --- cells ----------------------------------------------------------------------------------------


def _cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number_text(cell)


def number_text(x: float | None) -> str:
    """Up to nine digits as they are, of small ones the first; never -0."""
    if x is None:
        return "-"
    is_shown_whole = x == round(x) or abs(x) >= 1e4
    return f"{x + 0.0:,.0f}" if is_shown_whole and abs(x) < 1e9 else f"{x:.4g}"


def bytes_text(size: float | None) -> str:
    """Bytes in the unit that fits; "-" where nobody knows."""
    return "-" if size is None else _in_units(size, BYTES)


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that fits."""
    return _in_units(seconds, SECONDS)


BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}


def _in_units(x: float, units: Mapping[str, float]) -> str:
    """By the first unit, the largest first, of which there is one; else by the last."""
    unit = next((unit for unit, size in units.items() if x >= size), [*units][-1])
    return f"{x / units[unit]:.3g} {unit}"


def first_rows(rows: Sequence[Sequence[Cell]], num: int, column: int = 0) -> list[Sequence[Cell]]:
    """The first rows, and in this column how many more there are."""
    rest = len(rows) - num
    if rest <= 0:
        return list(rows)
    last: list[Cell] = ["" for _ in rows[0]]
    last[column] = f"... {rest} more"
    return [*rows[:num], last]
