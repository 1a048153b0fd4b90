"""What results of fits have in common: they are JSON, every float to the last bit, and draw on a
user's axes or those of a new figure.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from enum import Enum
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np

import incrax
from incrax._extras import needed
from incrax.errors import MinimumError

FORMAT = 1
"""Of the records; greater where older readers would misunderstand."""


class Record:
    """Base of dataclasses that go to and from JSON, whose fields have the types that `revived`
    knows.
    """

    def to_json(self) -> str:
        """Everything, as JSON."""
        return written(type(self).__name__, contents(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote.

        Raises:
            MinimumError: the text is something else.
        """
        return cls(**fields_of(cls, read(cls.__name__, text)))


def contents(record: Any) -> dict[str, Any]:
    """The public fields of a dataclass."""
    names = [each.name for each in dataclasses.fields(record) if not each.name.startswith("_")]
    return {name: getattr(record, name) for name in names}


def written(kind: str, content: Mapping[str, Any]) -> str:
    """A record of numbers, texts and arrays as JSON; floats come back to the last bit."""
    head = {"kind": kind, "format": FORMAT, "incrax": incrax.__version__}
    return json.dumps({**head, **_plain(content)}, allow_nan=False)


def read(kind: str, text: str) -> dict[str, Any]:
    """What `written` wrote.

    Raises:
        MinimumError: it is something else.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _other_record(f"text that is no JSON ({error})", kind) from error
    found = content.get("kind") if isinstance(content, dict) else None
    if found != kind:
        raise _other_record(f"a record of kind {found!r}", kind)
    if content.get("format", np.inf) > FORMAT:
        raise _other_record(f"format {content.get('format')}", kind)
    return content


def fields_of(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass or a named tuple that a record has, in their types."""
    hints = get_type_hints(kind)
    return {name: revived(hints[name], content[name]) for name in hints if name in content}


def revived(hint: Any, x: Any) -> Any:
    """What was written of a value of this type; a list of unknown type is an array."""
    kinds = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    origin = get_origin(hint) or hint
    if x is None:
        return x
    if origin is tuple:
        return tuple(revived(kinds[0], each) for each in x)
    if origin is dict:
        return {key: revived(kinds[1], each) for key, each in x.items()}
    if kinds:  # one of these, or None
        return revived(kinds[0], x)
    if hasattr(hint, "_fields"):
        given = x if isinstance(x, Mapping) else dict(zip(hint._fields, x, strict=False))
        return hint(**fields_of(hint, given))
    if isinstance(x, Mapping):
        return np.zeros(x["shape"])
    if isinstance(x, list):
        return _array(x)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint[x]
    return float(x) if hint is float else x


def _array(x: list[Any]) -> np.ndarray:
    found = np.array(x)
    return found if found.dtype == bool else np.array(x, np.float64)


def _plain(x: Any) -> Any:
    """As JSON knows it; numbers that it has no word for as text."""
    if isinstance(x, Enum):
        return x.name
    if isinstance(x, (np.ndarray, np.generic)):
        x = x.tolist() if x.size or x.ndim < 2 else {"shape": x.shape}
    if hasattr(x, "_asdict"):
        x = x._asdict()
    if isinstance(x, Mapping):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(each) for each in x]
    return str(x) if isinstance(x, float) and not np.isfinite(x) else x


def _other_record(seen: str, expected: str) -> MinimumError:
    """JSON of something else."""
    return MinimumError(
        f"`from_json` got {seen}; it reads what `{expected}.to_json` wrote. Nothing was evaluated."
    )


# --- axes -----------------------------------------------------------------------------------------


def axes_for(
    what: str, ax: Any, num: int, size: tuple[float, float], **options: Any
) -> tuple[Any, np.ndarray]:
    """The figure that `plot` returns, and its axes, shape (num,).

    Args:
        what: the method, for errors.
        ax: axes of matplotlib, or a sequence of as many as are drawn on; None: new ones.
        num: how many are drawn on.
        size: width and height of a new figure, inches.
        **options: of `Figure.subplots`.

    Raises:
        ValueError: another number of axes was given.
        MissingExtraError: matplotlib is not installed.
    """
    if ax is not None:
        axes = np.array(ax, object).ravel()
        if len(axes) != num:
            raise ValueError(
                f"`{what}(ax=...)` got {len(axes)} axes, and draws on {num}. Nothing was drawn. "
                f"Pass those of `figure, ax = matplotlib.pyplot.subplots(1, {num})`, or none."
            )
        return axes[0].figure, axes
    pyplot = needed("matplotlib.pyplot", what, "fit")
    figure = pyplot.figure(figsize=size, layout="constrained")
    if "inline" in pyplot.get_backend():
        # A notebook shows the value of a cell's last line, and at the end of the cell all figures
        # that are open: it would show this one twice.
        figure._repr_mimebundle_ = functools.partial(_closed, pyplot.close, figure)
    return figure, np.array(figure.subplots(1, num, **options), object).ravel()


def _closed(close: Any, figure: Any, **formats: Any) -> dict[str, Any]:
    """Asked by a notebook for what it shows of a figure, beside the picture."""
    close(figure)
    return {}
