"""How results print: a line and tables, at any width, with colours on a terminal, inside of lists."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

import incrax
from incrax._table import Counters, Printable, Table, number_text

NAMES = ("input", "number of equations", "transcendentals", "bytes written", "why", "source")
ROWS = [
    (
        "p['mu']",
        400_000_000,
        1.5,
        20,
        "it is another array than at the baseline",
        "model.py:12 (f)",
    ),
    ("p['a_long_name'][12, 3]", 12, None, 2e12, "its bits differ", "a_file_of_mine.py:1234 (loss)"),
    ("x", 0, 3e-9, 0, "", ""),
]


class Report(Printable):
    def __init__(self, *tables, is_alarming=False):
        self.found = tables
        self.warns = is_alarming

    @property
    def is_alarming(self):
        return self.warns

    def summary(self):
        return "a line [bold] that says what matters"

    def tables(self):
        return list(self.found)


WIDE = Report(Table("a title", NAMES, ROWS), Table("", ("", ""), [("served by", "plan")]))


@pytest.fixture
def at_width(monkeypatch):
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard output a terminal with colours; pytest gives each test its own output."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def make():
        out = io.StringIO()
        out.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", out)

    return make


def letters(text):
    """What is written, wherever lines end."""
    return re.sub(r"[\s─;:]", "", text)


# --- widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 300])
def test_nothing_is_cut_and_no_line_is_longer_than_the_terminal(at_width, width):
    at_width(width)
    text = str(WIDE)
    assert max(map(len, text.splitlines())) <= width
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    for row in ROWS:
        for cell in row:
            shown = cell if isinstance(cell, str) else number_text(cell)
            assert letters(shown) in letters(text) or width < 160 and len(shown) > 20


def test_numbers_are_never_folded(at_width):
    header = ("name", "value", "interval", "a long name", "what", "loaded", "size")
    row = (
        "p['a']",
        0.12345,
        "-0.0886 +0.0886",
        "3,000,000,000 (1.234 GB)",
        "some words " * 5,
        1e8,
        1,
    )
    report = Report(Table("", header, [row] * 2))
    for width in range(40, 170, 3):
        at_width(width)
        lines = str(report).splitlines()
        assert max(map(len, lines)) <= width
        if lines[2].split()[0] == "name" or "────" in str(report):
            for cell in ("0.1235", row[2], row[3], "100,000,000"):
                assert sum(cell in line for line in lines) == 2, width


def test_a_wide_terminal_has_a_line_for_each_row(at_width):
    at_width(160)
    lines = str(WIDE).splitlines()
    assert lines[0] == "a line [bold] that says what matters"
    assert lines[2] == "a title"
    assert lines[3].split("  ")[0] == "input"
    assert [line.split()[0] for line in lines[5:8]] == ["p['mu']", "p['a_long_name'][12,", "x"]
    assert lines[9:] == ["served by  plan"]


def test_a_narrow_one_folds_names_of_columns_first_then_text_and_never_numbers(at_width):
    at_width(110)
    text = str(WIDE)
    assert "number of" in text
    assert "number of equations" not in text
    assert "400,000,000" in text
    assert "number of equations" not in str(WIDE)


def test_where_a_table_has_no_room_rows_are_paragraphs(at_width):
    at_width(60)
    lines = str(WIDE).splitlines()
    assert lines[3:6] == [
        "p['mu']",
        "    number of equations: 400,000,000; transcendentals: 1.5;",
        "    bytes written: 20; why: it is another array than at the",
    ]


def test_numbers_stand_on_the_right_and_names_on_the_left(at_width):
    at_width(160)
    text = str(Report(Table("", ("x", "value", "kind"), [("1", -1.5, "a"), ("22", 30, "bb")])))
    assert text.splitlines()[2:] == [
        "x   value  kind",
        "───────────────",
        "1    -1.5  a",
        "22     30  bb",
    ]


def test_columns_without_anything_are_left_out(at_width):
    at_width(160)
    table = Table("", ("name", "pull", "width"), [("a", "", 1), ("b", "", 2)])
    assert "pull" not in str(table)
    assert "pull" not in table._repr_html_()
    assert "pull" in str(Table("", ("name", "pull"), []))


def test_tables_without_rows_are_left_out():
    report = Report(Table("candidates", ("", "seconds"), []), Table("", ("a", "b"), [("c", 1)]))
    for text in (str(report), report._repr_html_()):
        assert "candidates" not in text
        assert "c" in text


def test_without_a_terminal_text_has_a_hundred_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    assert (
        90
        < max(map(len, str(Report(Table("", ("", ""), [("a", "word " * 60)]))).splitlines()))
        <= 100
    )


def test_long_tables_say_how_much_more_there_is():
    rows = [(f"p[{k}]", k) for k in range(1_234)]
    lines = str(Table("", ("name", "value"), rows)).splitlines()
    assert lines[-2:] == ["p[29]              29", "... 1,204 more"]
    assert "more" not in str(Table("", ("name", "value"), rows[:30]))
    assert "... 1,229 more" in Table("", ("name", "value"), rows, 5)._repr_html_()


# --- colours --------------------------------------------------------------------------------------


class Printer:
    """What IPython gives to `_repr_pretty_`: the objects that are being printed, and where to."""

    def __init__(self, *outer):
        self.stack = [*outer, 1]
        self.written = ""

    def text(self, text):
        self.written += text


def pretty(report, *outer):
    printer = Printer(*outer)
    report._repr_pretty_(printer, False)
    return printer.written


def test_a_terminal_has_colours_and_text_for_files_has_none(terminal, at_width):
    at_width(160)
    terminal()
    written = pretty(WIDE)
    assert "\x1b[36mx" in written  # names are cyan
    assert re.sub(r"\x1b\[[\d;]*m", "", written).split() == str(WIDE).split()
    assert "\x1b" not in str(WIDE)


def test_what_warns_is_yellow(terminal):
    terminal()
    assert pretty(Report(is_alarming=True)).startswith("\x1b[1;33ma line")
    assert pretty(Report()).startswith("\x1b[1ma line")


def test_without_a_terminal_or_if_nobody_wants_any_there_are_no_colours(terminal, monkeypatch):
    terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in pretty(WIDE)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook does
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert pretty(WIDE) == str(WIDE)


# --- short forms ----------------------------------------------------------------------------------


def test_inside_of_lists_and_in_logs_a_result_is_one_line():
    assert repr(WIDE) == "<Report: a line [bold] that says what matters>"
    assert pretty(WIDE, 2) == repr(WIDE)
    assert f"{[WIDE]}" == f"[{WIDE!r}]"
    assert repr(Table("", ("a", "", "b"), [])) == "<Table: a, b>"


def test_ipython_asks_for_these():
    lib = pytest.importorskip("IPython.lib.pretty", reason="IPython is not installed")
    assert lib.pretty(WIDE) == str(WIDE)
    assert lib.pretty({"a": WIDE}) == f"{{'a': {WIDE!r}}}"
    assert lib.pretty(incrax.Stats(calls=2)) == str(incrax.Stats(calls=2))


def test_no_dataclass_puts_its_own_form_in_the_place_of_the_line():
    def below(kind):
        return [kind, *(each for sub in kind.__subclasses__() for each in below(sub))]

    for name in [*incrax.__all__, "fit", "samplers"]:  # all of it is imported
        getattr(incrax, name)
    ours = [kind for kind in below(Printable) if kind.__module__.startswith("incrax")]
    assert len(ours) > 15
    assert {kind.__repr__ for kind in ours} == {Printable.__repr__, Counters.__repr__}
    assert {kind.__str__ for kind in ours} == {Printable.__str__}


def test_counters_show_what_was_counted():
    stats = incrax.Stats(calls=1200, ran=3)
    assert repr(stats) == "Stats(calls=1200, ran=3)"
    assert (
        str(stats).split()
        == "1,200 calls counter number calls 1,200 ran 3".split()[:4]
        + ["─" * 15]
        + "calls 1,200 ran 3".split()
    )


# --- a notebook -----------------------------------------------------------------------------------


def test_html_has_the_line_and_each_table_once_and_no_markup_of_others():
    text = Report(Table("<title>", ("a", "b"), [("<i>", 1), ("y", 2)]))._repr_html_()
    assert text.count("<table>") == text.count("</table>") == 1
    assert text.count("what matters") == 1
    assert "&lt;i&gt;" in text
    assert "&lt;title&gt;" in text
    assert "<i>" not in text
    assert text.count("text-align: right") == 3


# --- pictures -------------------------------------------------------------------------------------


@pytest.fixture
def found():
    pytest.importorskip("matplotlib").use("Agg")
    from incrax import fit

    return fit.minimize(
        lambda p: (p["a"] - 1.0) ** 2 + (p["b"] - p["a"]) ** 2, {"a": 0.0, "b": 0.0}
    )


def plots(found):
    """Each result that draws, and on how many axes."""
    from incrax import fit

    model = incrax.bind(
        lambda a, x: 0.5 * ((x - a) ** 2).sum(), a=0.0, x=np.zeros(3), roles={"x": "data"}
    )
    return [
        (found, 2),
        (fit.profile(found, "a", num_points=3), 1),
        (fit.scan2d(found, "a", "b", num_points=3), 1),
        (fit.impacts(found, "a"), 2),
        (fit.toys(model, [{"x": np.ones(3)}, {"x": -np.ones(3)}]), 1),
    ]


def test_plots_make_a_figure_or_take_axes(found):
    from matplotlib import pyplot

    for result, num in plots(found):
        assert pyplot.fignum_exists(result.plot().number)  # `pyplot.show` shows it
        figure, ax = pyplot.subplots(1, num)
        assert result.plot(ax=ax) is figure
        assert all(each.has_data() for each in np.ravel(ax))
        _, axes = pyplot.subplots(1, 3)
        with pytest.raises(ValueError, match="axes") as caught:
            result.plot(ax=axes)
        assert str(caught.value) == (
            f"`{type(result).__name__}.plot(ax=...)` got 3 axes, and draws on {num}. Nothing was "
            f"drawn. Pass those of `figure, ax = matplotlib.pyplot.subplots(1, {num})`, or none."
        )
        assert not any(each.has_data() for each in axes)
    pyplot.close("all")
