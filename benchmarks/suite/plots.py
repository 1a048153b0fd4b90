"""Plots as SVG: the same bytes for the same figures, legible on light and dark pages.

Each plot is a card with a background of its own. A style inside the file turns its few colours
where the reader's system is dark; where that is not known, the light card stays, which reads on a
dark page as well. Text is text, so that it can be searched and read aloud.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

BACKGROUND, TEXT, GRID = "#fdfdfe", "#1f2329", "#d3d8df"
CREATOR = f"matplotlib {matplotlib.__version__}"
"""Another version may draw the same figures in other bytes."""
DARK = {BACKGROUND: "#1b1e26", TEXT: "#e7e9ee", GRID: "#424958"}
FORMS = {"incrax": "#0b6fc2", "jax.jit": "#c0501a", "hand": "#4c8a2b", "by hand": "#4c8a2b"}
"""Colours with a contrast of at least 3 against both backgrounds."""
OTHER = ("#8a5fb8", "#b8487a", "#2f8a86")
MARKS = {"incrax": "o", "jax.jit": "s", "hand": "^", "by hand": "^"}
MET, MISSED, OPEN = "#0b6fc2", "#c0501a", "#7d8694"
FEW_DECADES = 30.0
"""Below this range, numbers between the decades are marked as well."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "incrax",
    "font.size": 10.0,
    "font.family": "sans-serif",
    "axes.edgecolor": GRID,
    "axes.labelcolor": TEXT,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlecolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "text.color": TEXT,
    "figure.facecolor": BACKGROUND,
    "axes.facecolor": BACKGROUND,
    "savefig.facecolor": BACKGROUND,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
}


@dataclass(frozen=True)
class Curve:
    """One panel of growth: seconds by form over sizes, in the order of the sizes."""

    title: str
    axis: str
    sizes: Sequence[float]
    seconds: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Bar:
    """One line of a chart of gains; `is_met` is None where there is no target."""

    label: str
    ratio: float
    is_met: bool | None


def curves(panels: Sequence[Curve], title: str) -> str:
    """Above the time of a call by form, below the gain over the form that starts anew, one column
    per panel.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(panels) + 0.6, 5.6), layout="constrained")
        axes: Any = figure.subplots(2, len(panels), squeeze=False, sharex="col")
        for column, panel in enumerate(panels):
            _times(axes[0][column], panel)
            _gains(axes[1][column], panel)
            axes[1][column].set_xlabel(panel.axis)
            if max(panel.sizes) / min(panel.sizes) < 10 * FEW_DECADES:
                axes[1][column].xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes[0][0].set_ylabel("time of a call")
        axes[1][0].set_ylabel("jax.jit / incrax")
        axes[0][0].legend(loc="upper left", fontsize=9)
        return _text(figure, title)


def _times(axes: Any, panel: Curve) -> None:
    axes.set_title(panel.title)
    for name, seconds in panel.seconds.items():
        axes.plot(
            panel.sizes,
            seconds,
            color=FORMS.get(name, OTHER[0]),
            marker=MARKS.get(name, "D"),
            ms=4,
            label=name,
        )
    _logarithmic(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def _gains(axes: Any, panel: Curve) -> None:
    ours, plain = panel.seconds["incrax"], panel.seconds["jax.jit"]
    gains = [b / a for a, b in zip(ours, plain, strict=True)]
    axes.axhline(1.0, color=TEXT, lw=0.8, ls=(0, (4, 3)))
    axes.plot(panel.sizes, gains, color=FORMS["incrax"], marker="o", ms=4)
    _logarithmic(axes)
    low, high = min(*gains, 0.8), max(*gains, 1.5)
    axes.set_ylim(low * 0.8, high * 1.4)
    if high / low < FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _logarithmic(axes: Any) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", color=GRID, lw=0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())


def lines(
    seconds: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, axis: str, what: str
) -> str:
    """One panel with a curve per name, given as sizes and values."""
    colours = (*FORMS.values(), *OTHER)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes: Any = figure.subplots()
        for number, (name, (sizes, values)) in enumerate(seconds.items()):
            axes.plot(
                sizes,
                values,
                color=colours[number % len(colours)],
                marker="osD^v"[number % 5],
                ms=4,
                label=name,
            )
        _logarithmic(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
        axes.set_xlabel(axis)
        axes.set_ylabel(what)
        axes.legend(loc="upper left", fontsize=9)
        return _text(figure, title)


def bars(found: Sequence[Bar], title: str, axis: str) -> str:
    """One bar for each line, on a logarithmic scale from 1."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 0.9 + 0.27 * len(found)), layout="constrained")
        axes: Any = figure.subplots()
        colours = [
            OPEN if each.is_met is None else MET if each.is_met else MISSED for each in found
        ]
        places = range(len(found))
        widths = [each.ratio - 1.0 for each in found]
        axes.barh(places, widths, left=1.0, color=colours, height=0.66)
        axes.set_xscale("log")
        axes.set_yticks(places, [each.label for each in found], fontsize=9)
        axes.set_xlabel(axis)
        low, high = (
            min(*(each.ratio for each in found), 0.9),
            max(*(each.ratio for each in found), 1.5),
        )
        axes.set_xlim(low / 1.3, high * 3.0)
        axes.set_ylim(len(found) - 0.4, -0.6)
        for place, each in zip(places, found, strict=True):
            at = (max(each.ratio, 1.0), place)
            axes.annotate(
                factor(each.ratio),
                at,
                (4, 0),
                textcoords="offset points",
                va="center",
                ha="left",
                fontsize=8.5,
            )
        axes.axvline(1.0, color=TEXT, lw=0.8)
        axes.grid(visible=True, axis="x", which="major", color=GRID, lw=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        return _text(figure, title)


def duration(seconds: float) -> str:
    """Seconds with a unit that suits them."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def factor(ratio: float) -> str:
    """A ratio as one reads it."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def count(value: float) -> str:
    """A size, with thousands marked."""
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:g} M"


def _text(figure: Figure, title: str) -> str:
    """The file: without a date, with a title, and with the style for dark systems."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Title": title, "Creator": CREATOR}
    )
    text = re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)
    style = "".join(_rules(light, dark) for light, dark in DARK.items())
    head, mark, rest = text.partition("<defs>")
    return f"{head}<style>@media (prefers-color-scheme: dark) {{{style}}}</style>\n {mark}{rest}"


def _rules(light: str, dark: str) -> str:
    """Rules stronger than the styles of the elements; strokes and fills are told apart."""
    return "".join(
        f'[style*="{name}: {light}"] {{ {name}: {dark} !important; }} '
        for name in ("fill", "stroke")
    )
