"""Compile and fill for named changes before they happen, with progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from incrax._errors import UnknownInputError
from incrax._progress import Meter
from incrax.inputs.paths import paths_mask
from incrax.rehearsing.rehearsal import prepare
from incrax.rows.engine import RowEngine
from incrax.running.engine import Engine


def warm_up(engine: Engine, leaves: Sequence[Any], changing: Iterable[str | Sequence[str]]) -> None:
    """Plan, compile and fill every named change at these leaves."""
    changing = [changing] if isinstance(changing, str) else changing
    groups = [(name,) if isinstance(name, str) else tuple(name) for name in changing]
    masks = [paths_mask(engine.paths, engine.layout, group) for group in groups]
    with Meter("incrax: compiling plans", len(masks)) as meter:
        for mask in masks:
            prepare(engine, leaves, mask)
            meter.advance()


def warm_up_rows(engine: RowEngine, changing: Iterable[str | Sequence[str]]) -> None:
    """Plan, compile and fill every named change for all chunks whose programs read what it names.

    Raises:
        UnknownInputError: no program over the rows reads it.
    """
    for name in [changing] if isinstance(changing, str) else changing:
        errors = []
        engines = engine.chunks.engines()
        for chunk_engine in engines:
            state = chunk_engine.store.states[-1]
            try:
                warm_up(chunk_engine, [value.feed for value in state.values], [name])
            except UnknownInputError as error:
                errors.append(error)
        if errors and len(errors) == len(engines):
            raise errors[0]
