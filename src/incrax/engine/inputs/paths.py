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


def each_mask(paths: Sequence[str], layout: Layout, name: str) -> list[int]:
    """The bits of each input that a name stands for; `*` in it stands for any key or number:
    "theta[*]" is each element of a small array, or each item of a list.

    Raises:
        UnknownInputError: it names no input.
    """
    if "*" not in name:
        return [path_mask(paths, layout, name)]
    pattern = re.compile(re.escape(name).replace(r"\*", r"[^][.]+"))
    parts = [path[:end] for path in paths for end in _ends(path)]
    elements = [
        f"{path}[{number}]"
        for path, width in zip(paths, layout.widths, strict=True)
        for number in range(width if width > 1 else 0)
    ]
    found = [part for part in dict.fromkeys([*parts, *elements]) if pattern.fullmatch(part)]
    if not found:
        raise unknown_input(name, paths)
    return [path_mask(paths, layout, part) for part in found]


def _ends(path: str) -> list[int]:
    """Where a path, or what it is a part of, ends."""
    return [*(at for at, character in enumerate(path) if at and character in "[."), len(path)]


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
