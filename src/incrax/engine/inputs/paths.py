"""Names of inputs, as `explain()` prints them and users write them, and the bits that they stand
for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from incrax._messages import unknown_input
from incrax.engine.program.dependence import Layout

_ELEMENT = re.compile(r"^(?P<path>.*)\[(?P<index>\d+)\]$")


def paths_mask(paths: Sequence[str], layout: Layout, names: Iterable[str]) -> int:
    """The bits that some names stand for.

    Raises:
        UnknownInputError: one names no input.
    """
    mask = 0
    for name in names:
        mask |= path_mask(paths, layout, name)
    return mask


def mask_paths(paths: Sequence[str], layout: Layout, mask: int) -> list[str]:
    """The names of the inputs, and of the elements of small arrays, that bits stand for."""
    found = []
    for index, elements in layout.leaves_of(mask):
        found += [paths[index]] if elements is None else [f"{paths[index]}[{k}]" for k in elements]
    return found


def is_within(path: str, name: str) -> bool:
    """Whether a path is a name or a part of what has this name."""
    return path == name or (path.startswith(name) and path[len(name)] in "[.")


def path_mask(paths: Sequence[str], layout: Layout, name: str) -> int:
    """The bits that a path, a prefix of paths, or an element of a small array names.

    Raises:
        UnknownInputError: it names no input.
    """
    mask = 0
    for index, path in enumerate(paths):
        if is_within(path, name):
            mask |= layout.leaf_mask(index)
    element = _ELEMENT.match(name)
    if not mask and element is not None and element["path"] in paths:
        index = list(paths).index(element["path"])
        number = int(element["index"])
        if 1 < layout.widths[index] > number:
            mask = 1 << (layout.offsets[index] + number)
    if not mask:
        raise unknown_input(name, paths)
    return mask
