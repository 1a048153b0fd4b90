"""Names of inputs, as `explain()` prints them and users write them, and the bits that they stand
for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from incrax._messages import ambiguous_input, unknown_input
from incrax.engine.program.dependence import Layout


def named_masks(paths: Sequence[str], layout: Layout) -> dict[str, int]:
    """The bits that each path, prefix of paths, and element of a small array stands for."""
    found: dict[str, int] = {}
    for index, path in enumerate(paths):
        ends = [at for at, character in enumerate(path) if at and character in "[."]
        for name in [*(path[:end] for end in ends), path]:
            found[name] = found.get(name, 0) | layout.leaf_mask(index)
    for path, shape, width, offset in zip(
        paths, layout.shapes, layout.widths, layout.offsets, strict=False
    ):
        for number, name in enumerate(element_names([path], [shape]) if width > 1 else ()):
            found.setdefault(name, 1 << (offset + number))
    return found


def element_names(paths: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> tuple[str, ...]:
    """A name for each element of arrays: `params['mu']`, `x[0, 1]`."""
    indices = [
        (path, index)
        for path, shape in zip(paths, shapes, strict=True)
        for index in np.ndindex(shape)
    ]
    return tuple(f"{path}{list(index)}" if index else path for path, index in indices)


def paths_mask(paths: Sequence[str], layout: Layout, names: Iterable[str]) -> int:
    """The bits that some names, or the only ones that end so, stand for.

    Raises:
        UnknownInputError: one names no input, or several.
    """
    known = named_masks(paths, layout)
    mask = 0
    for name in names:
        found = [name] if known.get(name) else completed([*known], name)
        if len(found) > 1:
            raise ambiguous_input(name, found)
        if not found or not known.get(found[0]):
            raise unknown_input(name, paths)
        mask |= known[found[0]]
    return mask


def each_mask(paths: Sequence[str], layout: Layout, name: str) -> list[int]:
    """The bits of each input that a name stands for; `*` in it stands for any key or number:
    "theta[*]" is each element of a small array, or each item of a list.

    Raises:
        UnknownInputError: it names no input.
    """
    if "*" not in name:
        return [paths_mask(paths, layout, [name])]
    pattern = re.compile(re.escape(name).replace(r"\*", r"[^][.]+"))
    known = named_masks(paths, layout)
    found = [mask for part, mask in known.items() if pattern.fullmatch(part)]
    if not found:
        raise unknown_input(name, paths)
    return found


def mask_paths(paths: Sequence[str], layout: Layout, mask: int) -> list[str]:
    """The names of the inputs, and of the elements of small arrays, that bits stand for."""
    found = []
    for index, elements in layout.leaves_of(mask):
        path = paths[index]
        if elements is None:
            found.append(path)
        else:
            names = element_names([path], [layout.shapes[index]])
            found += [names[k] for k in elements]
    return found


def completed(paths: Sequence[str], name: str) -> list[str]:
    """The paths, and the parts of paths, that a name stands for: itself, or those that end with it
    (`w[0]` for `p['w'][0]`, `w[0,1]` for `p['w'][0, 1]`).
    """
    name = _COMMA.sub(", ", name)
    if any(is_within(path, name) for path in paths):
        return [name]
    end = "." + _dotted(name)
    parts = [path[: at.start()] for path in paths for at in _END.finditer(path)]
    return list(dict.fromkeys(part for part in parts if _dotted(part).endswith(end)))


_END = re.compile(r"(?<=.)(?=[\[.]|$)")
_COMMA = re.compile(r",(?=[-\d,]*\])")
_KEY = re.compile(r"""\[(['"])(.+?)\1\]""")


def _dotted(path: str) -> str:
    """A path in which keys look as attributes do: `p.w[0]`."""
    return _KEY.sub(r".\2", path)


def is_within(path: str, name: str) -> bool:
    """Whether a path is a name or a part of what has this name."""
    return path == name or (path.startswith(name) and path[len(name)] in "[.")
