"""Compile and fill for named changes of what programs over rows read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from incrax.engine.call.warm_up import warm_up
from incrax.errors import UnknownInputError
from incrax.rows.engine import RowEngine


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
