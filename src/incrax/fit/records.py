"""Results of fits as JSON, every float to the last bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import incrax
from incrax.errors import MinimumError

FORMAT = 1
"""Of the records; greater where older readers would misunderstand."""


def to_json(kind: str, content: Mapping[str, Any]) -> str:
    """A record of numbers, texts and arrays as JSON; floats come back to the last bit."""
    head = {"kind": kind, "format": FORMAT, "incrax": incrax.__version__}
    return json.dumps(
        {**head, **{name: _plain(value) for name, value in content.items()}}, allow_nan=False
    )


def from_json(kind: str, text: str) -> dict[str, Any]:
    """What `to_json` wrote.

    Raises:
        MinimumError: it is something else.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _other_record(f"text that is no JSON ({error})", kind) from error
    found = content.get("kind") if isinstance(content, dict) else None
    if found != kind or content.get("format", np.inf) > FORMAT:
        seen = f"a record of kind {found!r}" if found != kind else f"format {content.get('format')}"
        raise _other_record(seen, kind)
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


def _other_record(seen: str, expected: str) -> MinimumError:
    """JSON of something else."""
    return MinimumError(
        f"`from_json` got {seen}; it reads what `{expected}.to_json` wrote. Nothing was evaluated."
    )
