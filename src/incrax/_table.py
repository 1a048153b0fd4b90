"""What prints: one line that says what matters most, then tables. On a terminal it is as wide as that
and has colours, in a notebook it is HTML, in logs and lists the line alone.

In: a line; tables of text and numbers. Out: text, HTML, what rich draws. It must not know what is
printed.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import compress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # where they are used, as most that import incrax print nothing
    from rich.console import Console, ConsoleOptions, RenderableType

Cell = str | float | None

NO_TERMINAL = 100
"""Columns of text where there is no terminal and no variable COLUMNS that says."""
MIN_TEXT = 20
"""Columns, at least, of a text that is folded; where there are fewer, rows become paragraphs."""
GAP = 2
"""Columns between those of a table."""


class Printable:
    """Base of results and reports: a subclass gives `summary` and `tables`.

    `repr` is the summary, `str` has the tables too. Rich and IPython add colours on a terminal; a
    notebook shows `_repr_html_`.
    """

    @property
    def is_alarming(self) -> bool:
        """Whether the summary warns of something, so that it is yellow on a terminal."""
        return False

    def summary(self) -> str:
        """What matters most, in one line."""
        raise NotImplementedError

    def tables(self) -> Sequence[Table]:
        """All else."""
        raise NotImplementedError

    def _filled(self) -> list[Table]:
        """The tables that have rows."""
        return [table for table in self.tables() if table.rows]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __str__(self) -> str:
        """As plain text, as wide as the terminal."""
        return _as_text(self, has_colours=False)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """For rich."""
        from rich.text import Text

        tables = self._filled()  # first, as what they evaluate may be part of the summary
        yield Text(self.summary(), style="bold yellow" if self.is_alarming else "bold")
        for table in tables:
            yield ""
            yield table

    def _repr_html_(self) -> str:
        """For notebooks."""
        tables = [table._repr_html_() for table in self._filled()]
        return "\n".join([f"<p><strong>{escape(self.summary())}</strong></p>", *tables])

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """For IPython: inside of lists and the like the summary alone."""
        is_inside = is_cycle or len(printer.stack) > 1
        # Not by FORCE_COLOR, which notebooks set for the processes that they start.
        is_terminal = sys.stdout.isatty()
        printer.text(repr(self) if is_inside else _as_text(self, has_colours=is_terminal))


@dataclass(frozen=True, repr=False)
class Table(Printable):
    """A title, a header, and rows of text and numbers; None where nobody knows one. The first rows
    are shown, and how many more there are.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    num_shown: int = 30

    def summary(self) -> str:
        """The title, or what the columns are."""
        return self.title or ", ".join(filter(None, self.header))

    def tables(self) -> Sequence[Table]:
        """Itself."""
        return [self]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """For rich: a line for each row, if need be with folded names of columns; where there is no
        room for that, a paragraph for each row.
        """
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="bold")
        header, cells = self._shown()
        least = [_least_width(*each) for each in _columns(header, cells)]
        folded = [*map(_folded, header, least)]
        for names in (header, folded):
            widths = map(max, least, map(_line_width, names))
            if sum(widths) + GAP * (len(least) - 1) <= options.max_width:
                yield _as_rows(names, cells)
                return
        yield from _as_paragraphs(header, cells)

    def _repr_html_(self) -> str:
        """For notebooks."""
        header, cells = self._shown()
        sides = ["right" if is_right else "left" for *_, is_right in _columns(header, cells)]
        starts = [f'style="text-align: {side}; white-space: pre-line"' for side in sides]
        title = f'<caption style="text-align: left">{escape(self.title)}</caption>'
        head = f"<thead>{_html_cells('th', starts, header)}</thead>" if any(header) else ""
        rows = "".join(_html_cells("td", starts, row) for row in cells)
        return f"<table>{title}{head}<tbody>{rows}</tbody></table>"

    def _shown(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The header and the first rows as text, but for columns in which nothing is written."""
        rows = [[*map(_cell_text, row)] for row in self.rows[: self.num_shown]]
        is_written = [any(column) for column in zip(*rows, strict=True)] or [True] * len(
            self.header
        )
        rest = len(self.rows) - len(rows)
        if rest:
            rows.append([f"... {rest:,} more", *[""] * (len(self.header) - 1)])
        header, *cells = [[*compress(row, is_written)] for row in (self.header, *rows)]
        return header, cells


class Counters(Printable):
    """Base of dataclasses that count, each field something."""

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)  # pyright: ignore[reportArgumentType]

    def summary(self) -> str:
        """The first."""
        (name, number), *_ = self.as_dict().items()
        return f"{number:,} {_words(name)}"

    def tables(self) -> Sequence[Table]:
        """Those that are not zero."""
        counted = [(_words(name), number) for name, number in self.as_dict().items() if number]
        return [Table("", ("counter", "number"), counted)]

    def __repr__(self) -> str:
        counted = [f"{name}={number}" for name, number in self.as_dict().items() if number]
        return f"{type(self).__name__}({', '.join(counted)})"

    _repr_pretty_ = Printable._repr_pretty_  # IPython takes `__repr__` where a class has only that


def _words(name: str) -> str:
    return name.replace("_", " ")


# --- text -----------------------------------------------------------------------------------------


def _as_text(printed: Printable, *, has_colours: bool) -> str:
    """As wide as the terminal; without spaces at the ends of lines."""
    from rich.console import Console

    # In a notebook a console displays what it draws, also what is captured, unless told not to.
    console = Console(
        width=shutil.get_terminal_size((NO_TERMINAL, 24)).columns,
        color_system="auto" if has_colours else None,
        force_jupyter=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(printed)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _as_rows(header: Sequence[str], cells: Sequence[Sequence[str]]) -> RenderableType:
    """Numbers in one line each, on the right; all else is folded where there is no room."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box has a space as well
        show_header=any(header),
        header_style="bold",
    )
    for name, (_, is_right) in zip(header, _columns(header, cells), strict=True):
        drawn.add_column(
            name,
            justify="right" if is_right else "left",
            no_wrap=is_right,
            overflow="fold",
            style="" if drawn.columns else "cyan",
        )
    for row in cells:
        drawn.add_row(*map(Text, row))
    return drawn


def _as_paragraphs(
    header: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[RenderableType]:
    """A row as its first cell, and below it the others with their names."""
    from rich.padding import Padding
    from rich.text import Text

    for row in cells:
        named = zip(header[1:], row[1:], strict=True)
        shown = [f"{name}: {cell}" if name else cell for name, cell in named if cell]
        yield Text(row[0], style="cyan")
        yield Padding(Text("; ".join(shown), overflow="fold"), (0, 0, 0, 4))


def _columns(
    header: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], bool]]:
    """The cells of each column, and whether these are numbers and amounts alone; the first has
    names.
    """
    for k in range(len(header)):
        column = [row[k] for row in cells]
        yield column, bool(k and column) and all(map(_is_amount, column))


def _least_width(column: Sequence[str], is_number: bool) -> int:
    """What the cells of a column need: numbers are not folded."""
    widest = max(map(_line_width, column), default=0)
    return widest if is_number else min(widest, MIN_TEXT)


def _folded(name: str, width: int) -> str:
    """A column's name in lines no wider than its cells, as far as words allow."""
    return textwrap.fill(name, max(width, *map(len, name.split()), 1))


def _line_width(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def _html_cells(tag: str, starts: Sequence[str], texts: Sequence[str]) -> str:
    pairs = zip(starts, texts, strict=True)
    return f"<tr>{''.join(f'<{tag} {start}>{escape(text)}</{tag}>' for start, text in pairs)}</tr>"


# --- cells ----------------------------------------------------------------------------------------


def _cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number_text(cell)


def _is_amount(text: str) -> bool:
    """Whether a cell is empty, or begins with a number."""
    unsigned = text.lstrip("+-")
    return not unsigned or unsigned[0].isdigit() or unsigned in ("nan", "inf")


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
    """By the first unit, the largest first, of which there is one; else by the last; none in ones."""
    unit = next((unit for unit, size in units.items() if (x or 1.0) >= size), [*units][-1])
    number = x / units[unit]
    return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"


def many(num: int, word: str) -> str:
    """So many of something, in words."""
    return f"{num:,} {word}{'' if num == 1 else 's'}"
