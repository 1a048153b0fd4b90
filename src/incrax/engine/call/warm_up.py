"""Compile and fill for named changes before they happen, with progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from incrax.engine.call.engine import Engine
from incrax.engine.call.rehearsal import prepare
from incrax.engine.inputs.paths import paths_mask


def warm_up(engine: Engine, leaves: Sequence[Any], changing: Iterable[str | Sequence[str]]) -> None:
    """Plan, compile and fill every named change at these leaves."""
    changing = [changing] if isinstance(changing, str) else changing
    groups = [(name,) if isinstance(name, str) else tuple(name) for name in changing]
    masks = [paths_mask(engine.paths, engine.layout, group) for group in groups]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("incrax: compiling plans", total=len(masks))
        for mask in masks:
            prepare(engine, leaves, mask)
            progress.advance(task)
