"""Compile and fill for named changes before they happen, with progress on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from incrax._errors import unknown_input
from incrax.facts.dependence import Layout
from incrax.running.engine import Engine
from incrax.running.rehearsal import prepare

_ELEMENT = re.compile(r"^(?P<path>.*)\[(?P<index>\d+)\]$")


def warm_up(engine: Engine, leaves: Sequence[Any], changing: Iterable[str | Sequence[str]]) -> None:
    """Plan, compile and fill every named change at these leaves."""
    changing = [changing] if isinstance(changing, str) else changing
    groups = [(name,) if isinstance(name, str) else tuple(name) for name in changing]
    masks = [_mask(engine, group) for group in groups]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("incrax: compiling plans", total=len(masks))
        for mask in masks:
            prepare(engine, leaves, mask)
            progress.advance(task)


def _mask(engine: Engine, names: Sequence[str]) -> int:
    mask = 0
    for name in names:
        mask |= path_mask(engine.paths, engine.layout, name)
    return mask


def path_mask(paths: Sequence[str], layout: Layout, name: str) -> int:
    """The bits that a path, a prefix of paths, or an element of a small array names.

    Raises:
        UnknownInputError: it names no input.
    """
    mask = 0
    for index, path in enumerate(paths):
        if path == name or (path.startswith(name) and path[len(name) : len(name) + 1] in ("[", ".")):
            mask |= layout.leaf_mask(index)
    element = _ELEMENT.match(name)
    if not mask and element is not None and element["path"] in paths:
        index, number = list(paths).index(element["path"]), int(element["index"])
        if 1 < layout.widths[index] > number:
            mask = 1 << (layout.offsets[index] + number)
    if not mask:
        raise unknown_input(name, paths)
    return mask
