"""What code may read, by its instructions: globals, attributes, modules, names in text.

In: code. Out: names. It must not know values.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_BY_TEXT = frozenset("getattr hasattr vars attrgetter __dict__ __import__ import_module modules".split())
"""Functions and attributes by which code reads modules, or attributes of them, that it names in text."""

_ANY_MODULE = frozenset("__import__ import_module modules".split())
"""Those by which it reads modules."""


class Names(NamedTuple):
    """What code, and functions inside it, may read: globals, attributes, modules that it imports, names in text."""

    names: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def reads_by_text(self) -> bool:
        """Whether attributes or modules are read by names that are values."""
        return not _BY_TEXT.isdisjoint(self.names + self.attributes)

    @property
    def reads_any_module(self) -> bool:
        """Whether modules are read by names that are values."""
        return not _ANY_MODULE.isdisjoint(self.names + self.attributes)


_READING = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), 1),
    "IMPORT_NAME": 2,
}


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> Names:
    """What the instructions of code name."""
    found: tuple[dict[str, None], ...] = ({}, {}, {}, {})
    for part in all_codes(code):
        for instruction in dis.get_instructions(part):
            kind = _READING.get(instruction.opname)
            if kind is not None:
                found[kind][instruction.argval] = None
    if not _BY_TEXT.isdisjoint({**found[0], **found[1]}):
        found[3].update(dict.fromkeys(text for part in all_codes(code) for text in _texts(part.co_consts)))
    return Names(*map(tuple, found))


def _texts(consts: Iterable[Any]) -> Iterator[str]:
    """Names of attributes and modules among constants."""
    for const in consts:
        if isinstance(const, str) and const.replace(".", "_").isidentifier():
            yield const
        elif isinstance(const, tuple):
            yield from _texts(const)


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and the code of functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_codes(const)
