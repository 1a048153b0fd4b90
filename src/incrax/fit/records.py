"""What all results of fits share: tables of elements, JSON, drawing of errors.

In: names and numbers. Out: tables, text, axes. It must not know where numbers come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

import incrax
from incrax._console import as_text
from incrax._extras import needed
from incrax.fit.messages import other_record

FORMAT = 1
"""Of the records; greater where older readers would misunderstand."""


def element_table(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> Table:
    """A row per element: its name, and one cell of each column."""
    table = Table()
    table.add_column("parameter")
    for name in columns:
        table.add_column(name, justify="right")
    for row in zip(names, *columns.values(), strict=True):
        table.add_row(*[str(cell).replace("[", r"\[") for cell in row])
    return table


def printed(head: str, table: Table) -> str:
    """A line and a table as plain text."""
    return f"{head}\n{as_text(table)}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(kind: str, content: Mapping[str, Any]) -> str:
    """A record of numbers, texts and arrays as JSON; floats come back to the last bit."""
    head = {"kind": kind, "format": FORMAT, "incrax": incrax.__version__}
    return json.dumps({**head, **{name: _plain(value) for name, value in content.items()}}, allow_nan=False)


def from_json(kind: str, text: str) -> dict[str, Any]:
    """What `to_json` wrote.

    Raises:
        MinimumError: it is something else.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise other_record(f"text that is no JSON ({error})", kind) from error
    found = content.get("kind") if isinstance(content, dict) else None
    if found != kind or content.get("format", np.inf) > FORMAT:
        seen = f"a record of kind {found!r}" if found != kind else f"format {content.get('format')}"
        raise other_record(seen, kind)
    return content


def _plain(x: Any) -> Any:
    """As JSON knows it; numbers that it has no word for as text."""
    if isinstance(x, (np.ndarray, np.generic)):
        x = x.tolist()
    if isinstance(x, Mapping):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(each) for each in x]
    return str(x) if isinstance(x, float) and not np.isfinite(x) else x


def array(x: Any) -> np.ndarray:
    """An array from JSON."""
    return np.array(x, dtype=np.float64)


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_fit(names: Sequence[str], values: Any, errors: Any, correlation: Any, axes: Any) -> Any:
    """Relative errors of each element, named with its value, and the matrix of correlations, in two axes."""
    if axes is None:
        height = 1.5 + 0.3 * len(names)
        axes = (
            needed("matplotlib.pyplot", "plot", "fit").figure(figsize=(10, height), layout="constrained").subplots(1, 2)
        )
    below, above = errors
    scale = np.where(values == 0, 1.0, np.abs(values)) / 100
    places = np.arange(len(names))[::-1]
    left, right = axes
    left.errorbar(
        0 * places, places, xerr=[np.nan_to_num(below / scale), np.nan_to_num(above / scale)], fmt="o", color="C0"
    )
    labels = [f"{name} = {value:.5g}" for name, value in zip(names, values, strict=True)]
    left.set_yticks(places, labels)
    left.set_xlabel("error, % of the value")
    image = right.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu")
    right.set_xticks(range(len(names)), names, rotation=90)
    right.set_yticks(range(len(names)), names)
    right.figure.colorbar(image, ax=right, label="correlation")
    return axes
