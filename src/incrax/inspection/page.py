"""`report(f)`: one HTML page about a function that needs nothing else: data, styles, scripts and
what draws them.

In: an incremental function. Out: a `Report`, its page as text. `page_data` says what is on it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from incrax._incremental import Incremental
from incrax._table import many
from incrax.errors import ReportError
from incrax.inspection.page_data import Subject, page_data
from incrax.models.bound import Bound, most_called
from incrax.rows.engine import RowEngine

SCRIPTS = ("model.js", "text.js", "inputs.js", "map.js", "tables.js", "main.js")
NOTEBOOK_HEIGHT = 860
"""Pixels of the frame in a notebook."""


def report(f: Any, /, *args: Any, **kwargs: Any) -> Report:
    """A page about an incremental function: what it saves, what its calls ran, and what a change
    would cost.

    One HTML file without network access: the equations as a map, coloured by what a change that one
    chooses makes run, loads or leaves alone; seconds gained and lost; inputs against work.

    Args:
        f: what `incremental`, `grad`, ... returned, also as a method, or a model made by `bind` (then the method that
            was called most); of an incremental function with Python branches
            (`incremental(guarded(f))`), the page is about the path that the arguments take,
            recorded if need be, or the one that most calls took.
        *args: arguments of a call to report on, as for `explain`; without any, the last call's
            signature. Nothing is evaluated.
        **kwargs: keyword arguments of that call.

    Returns:
        A `Report`: `save(path)`, `html`, `as_dict()`; shows itself in a notebook.

    Raises:
        NotCalledError: without arguments before the first call.
        ReportError: `f` is of another kind, or guarded.

    Cost: for 5,000 equations a few seconds; nothing compiles.

    Not handled: measured seconds per equation. Programs are timed, and the time of one is divided
        among its equations as they are estimated; the page says which is which.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
        >>> value = f(2.0, jnp.zeros(3)), f(3.0, jnp.zeros(3))
        >>> incrax.report(f).as_dict()["stats"]["calls"]
        2
    """
    function = most_called(f) if isinstance(f, Bound) else getattr(f, "__func__", f)
    if not isinstance(function, Incremental):
        raise ReportError(
            f"`report(f)` got a {type(f).__name__}. A page shows what an incremental function "
            "saves and runs, and this is none. Usually the plain function was passed instead of "
            "what `incremental` or `grad` returned: calls of it are not tracked. Nothing was "
            "evaluated. Pass `incrax.incremental(f)`, call it a few times, and report on that; of "
            "a guarded function `print(f.explain())`."
        )
    with function._locked():  # no call runs meanwhile
        return Report(page_data(_subject_of(function, args, kwargs)))


def _subject_of(function: Incremental[..., Any], args: Any, kwargs: Any) -> Subject:
    """What a page is about: the signature of some arguments, or the last call's.

    Raises:
        NotCalledError: there are neither arguments nor calls.
    """
    traced = function._asked("report()", args, kwargs).traced
    return Subject(
        function._name,
        traced.engine,
        function.stats.as_dict(),
        len(function._traces.table),
        traced.saved_bytes,
        isinstance(traced, RowEngine),
    )


@dataclass(frozen=True, repr=False)
class Report:
    """A page about a function: what its calls saved, ran and cost. Made by `report`.

    In a notebook it shows itself; `save` writes it to a file, which needs no network and may be
    sent to others. It holds names, types, source lines and times, and no values of inputs or
    results.

    Example:
        >>> import incrax
        >>> f = incrax.incremental(lambda a, b: a * b)
        >>> value = f(2.0, 3.0)
        >>> page = incrax.report(f)
        >>> page.html.startswith("<!"), page.as_dict()["stats"]["calls"]
        (True, 1)
    """

    data: Mapping[str, Any]
    """What the page shows, as plain data."""

    @cached_property
    def html(self) -> str:
        """The page as text: one HTML document of about 0.35 MB and 0.1 to 1 kB per equation."""
        library = _asset("d3.min.js")
        style = _asset("page.css")
        script = "\n".join(["'use strict';", *map(_asset, SCRIPTS)])
        policy = [
            f"script-src {_hash(_enclosed(library))} {_hash(_enclosed(script))}",
            f"style-src {_hash(_enclosed(style))}",
        ]
        return Template(_asset("page.html")).substitute(
            title=html.escape(f"incrax: {self.data['function']['name']}"),
            policy="; ".join(
                [
                    "default-src 'none'",
                    "img-src data:",
                    "base-uri 'none'",
                    "form-action 'none'",
                    *policy,
                ]
            ),
            licence=html.escape(_asset("d3-LICENSE.txt")),
            style=_enclosed(style),
            data=as_script_data(self.data),
            library=_enclosed(library),
            script=_enclosed(script),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file.

        Returns:
            Where it is, as an absolute path.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path).expanduser().absolute()
        target.write_text(self.html, encoding="utf-8")
        return target

    def as_dict(self) -> dict[str, Any]:
        """All that the page shows, for programs: numbers, text, lists and dictionaries."""
        return dict(self.data)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        name = html.escape(str(self))
        return (
            f'<iframe title="{name}" sandbox="allow-scripts" width="100%" '
            f'height="{NOTEBOOK_HEIGHT}" '
            f'style="border: 0" srcdoc="{html.escape(self.html)}">{name}</iframe>'
        )

    def __str__(self) -> str:
        function = self.data["function"]
        equations = many(function["num_equations"], "equation")
        calls = many(self.data["stats"]["calls"], "call")
        return f"report of {function['name']}: {equations}, {calls}"

    def __repr__(self) -> str:
        return f"<{self}>"


@cache
def _asset(name: str) -> str:
    return (resources.files("incrax.inspection") / "assets" / name).read_text(encoding="utf-8")


def _enclosed(text: str) -> str:
    """The content of an element, exactly as the page has it."""
    return f"\n{text.rstrip()}\n"


def _hash(text: str) -> str:
    """What a content security policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_script_data(data: Any) -> str:
    """JSON that may stand in a script element: no character in it ends the element or opens
    another.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
