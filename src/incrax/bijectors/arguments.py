"""Arguments of a compiled function: arrays, and what it is compiled for.

In: the arguments of a call. Out: its `Call`, arrays and everything else apart. Numbers are arrays, as under `jax.jit`,
except those inside a bijection or a module of Equinox, where they are settings.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax.bijectors.messages import no_tree, unhashable_argument
from incrax.bijectors.remembered import Remembered

_NUMBERS = (bool, int, float, complex)
_ARRAY = object()


class Frame(NamedTuple):
    """A tree without its arrays. Compared by value."""

    treedef: Any
    statics: tuple[Any, ...]
    key: Hashable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self.treedef == other.treedef and self.key == other.key

    def __hash__(self) -> int:
        return hash((self.treedef, self.key))

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The tree with arrays in their places."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.treedef, [next(rest) if x is _ARRAY else x for x in self.statics])


def taken_apart(tree: Any) -> tuple[Frame, list[Any]]:
    """A tree without its arrays, and these."""
    leaves, treedef = jax.tree.flatten(tree)
    is_setting = _are_settings(tree, len(leaves)) if any(isinstance(x, _NUMBERS) for x in leaves) else None
    flags = [_is_array(x) and not (is_setting and is_setting[k]) for k, x in enumerate(leaves)]
    statics = tuple(_ARRAY if flag else x for x, flag in zip(leaves, flags, strict=True))
    key = tuple(_key(x) for x in statics if x is not _ARRAY), tuple(flags)
    return Frame(treedef, statics, key), [x for x, flag in zip(leaves, flags, strict=True) if flag]


def check_hashable(frame: Frame, tree: tuple[Any, Any]) -> None:
    """Look at all arguments, positional and by name, that are no arrays.

    Raises:
        UnsupportedLeafError: one has no hash, or is a bijection whose parameters cannot be seen.
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    for (path, _), x in zip(paths, frame.statics, strict=True):
        names = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if x is not _ARRAY and not isinstance(x, type) and _is_bijection(type(x)):
            raise no_tree(names, type(x).__name__)
        try:
            hash(_key(x))
        except TypeError:
            raise unhashable_argument(names, type(x).__name__) from None


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) or hasattr(x, "__jax_array__")


def _key(x: Any) -> Hashable:
    """What tells static values apart; 1, 1.0 and True differ, and so do 0.0 and -0.0; not hashable if nothing does."""
    if not isinstance(x, type) and _is_bijection(type(x)):
        return [x]  # type: ignore[return-value]
    return (type(x), np.asarray(x).tobytes()) if isinstance(x, (float, complex)) else (type(x), x)


def _are_settings(tree: Any, num: int) -> list[bool]:
    """Which leaves are numbers inside a bijection or module."""
    flags: list[bool] = []
    for node in jax.tree.leaves(tree, is_leaf=lambda x: _holds_settings(type(x))):
        if _holds_settings(type(node)):
            flags.extend(isinstance(x, _NUMBERS) for x in jax.tree.leaves(node))
        else:
            flags.append(False)
    return flags if len(flags) == num else [False] * num


@functools.lru_cache(maxsize=4096)
def _holds_settings(kind: type) -> bool:
    equinox = sys.modules.get("equinox")
    if issubclass(kind, Remembered) or (equinox is not None and issubclass(kind, equinox.Module)):
        return True
    return _is_bijection(kind)


def _is_bijection(kind: type) -> bool:
    return any(hasattr(kind, name) for name in ("inverse_and_log_det", "call_with_intermediates"))


def bijections_in(tree: Any) -> list[Remembered]:
    """The bijections with memory in a tree, in order."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Remembered))
    return [x for x in found if isinstance(x, Remembered)]
