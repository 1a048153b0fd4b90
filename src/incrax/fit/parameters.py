"""What users ask to be free, as a selection of real leaves and of elements of them.

In: a function, its arguments, `wrt`. Out: `Parameters`. Integers of Python are floats from here on,
and complex leaves are their real and imaginary parts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Incremental, incremental
from incrax._messages import ambiguous_input, unknown_input
from incrax.derivatives.cuts import Mark, is_mark
from incrax.derivatives.flat import element_names
from incrax.derivatives.selection import as_parameters, select
from incrax.derivatives.transforms import options_of, plain
from incrax.engine.inputs.paths import completed, is_within
from incrax.engine.inputs.signature import argument_names, leaf_path

Limits = Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]]
"""Bounds as users give them: by name, or one pair for each element of an array."""


class Parameters(NamedTuple):
    """A function of real leaves, and what of them is free."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    wrt: Any
    """As in `grad`: whole leaves."""
    elements: tuple[str, ...] | None = None
    """Which of their elements, by names that users write; None: all."""

    def is_free(self, names: Sequence[str]) -> np.ndarray | None:
        """Of the elements of the selected leaves, by their names; None: all are.

        Raises:
            UnknownInputError: a name stands for none, or for several things.
        """
        if self.elements is None:
            return None
        known = set(names)
        found = {each for name in self.elements for each in _elements(name, names, known)}
        return np.array([name in found for name in names])


def parameters(caller: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any) -> Parameters:
    """What `minimize(fun, *args, wrt=)` was given.

    Raises:
        SelectionError: `wrt` cannot be understood, or selects an array of integers or nothing that
            has a derivative.
        UnknownInputError: a path names nothing.
    """
    wrt, elements = _of_leaves(plain(fun), args, wrt)
    args = as_parameters(caller, plain(fun), wrt, args)
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_mark)
    if not any(map(_is_complex, leaves)):
        return Parameters(fun, args, wrt, elements)
    chosen = select(caller, plain(fun), wrt, args, {}).numbers
    numbers = [number for number in chosen if _is_complex(leaves[number])]
    for number in numbers:
        leaves[number] = Parts(jnp.real(leaves[number]), jnp.imag(leaves[number]))
    by_parts = _by_parts(fun) if numbers else fun
    return Parameters(by_parts, jax.tree.unflatten(treedef, leaves), wrt, elements)


# --- complex leaves -------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A complex leaf that is free, as two real ones: `c.re`, `c.im`."""

    re: Any
    im: Any


def joined(tree: Any) -> Any:
    """The tree with complex leaves again."""
    return jax.tree.map(
        lambda x: jax.lax.complex(*x) if _is_parts(x) else x, tree, is_leaf=_is_parts
    )


def _is_parts(x: Any) -> bool:
    return isinstance(x, Parts)


def _is_complex(leaf: Any) -> bool:
    return not isinstance(leaf, Mark) and jnp.iscomplexobj(leaf)


class _ByParts:
    """A function of complex leaves as one of their parts; equal to another one of the same, so
    that programs are found again.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun

    def __call__(self, *args: Any) -> Any:
        return self.fun(*joined(args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByParts) and self.fun == other.fun

    def __hash__(self) -> int:
        return hash((_ByParts, self.fun))


def _by_parts(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function of parts; an incremental one keeps its options."""
    found = _ByParts(plain(fun))
    return incremental(found, **options_of(fun)) if isinstance(fun, Incremental) else found


# --- elements -------------------------------------------------------------------------------------

_ELEMENT = re.compile(r"^(?P<path>.+?)(?P<part>\.re|\.im)?(?P<index>\[-?\d+(, *-?\d+)*\])?$")
"""A leaf, or a part of it if it is complex, or an element."""


def _of_leaves(
    fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any
) -> tuple[Any, tuple[str, ...] | None]:
    """`wrt` of whole leaves, and the elements that it named, if it did."""
    names = (wrt,) if isinstance(wrt, str) else wrt
    if isinstance(names, (tuple, list)) and names and all(isinstance(x, str) for x in names):
        return _of_named_leaves(wrt, names, _paths(fun, args))
    masks, treedef = jax.tree.flatten(wrt)
    if not any(isinstance(mask, np.ndarray) and mask.dtype == bool for mask in masks) or not args:
        return wrt, None
    leaves = jax.tree.unflatten(treedef, [bool(np.any(mask)) for mask in masks])
    return leaves, tuple(_masked(fun, args, wrt))


def _of_named_leaves(
    wrt: Any, names: Sequence[str], paths: Sequence[str]
) -> tuple[Any, tuple[str, ...] | None]:
    leaves = [_leaf(name, paths) for name in names]
    if leaves == list(names):
        return wrt, None
    return tuple(dict.fromkeys(leaves)), tuple(names)


def _leaf(name: str, paths: Sequence[str]) -> str:
    """The leaf in which a name lies; the name itself if it is one, or none."""
    parts = _ELEMENT.match(name)
    if parts is None or completed(paths, name):
        return name
    without_index = parts["path"] + (parts["part"] or "")
    return next((x for x in (without_index, parts["path"]) if completed(paths, x)), name)


def _paths(fun: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    names = argument_names(fun, len(args))
    with_paths, _ = jax.tree.flatten_with_path((args, {}), is_leaf=is_mark)
    return [leaf_path(names, path) for path, _ in with_paths]


def _masked(fun: Callable[..., Any], args: tuple[Any, ...], mask: Any) -> Iterator[str]:
    """Names of the elements under True."""

    def spread(flags: Any, part: Any) -> Any:
        return jax.tree.map(lambda leaf: np.broadcast_to(flags, np.shape(leaf)), part)

    flags = jax.tree.leaves(jax.tree.map(spread, mask, args[0]))
    for path, each in zip(_paths(fun, args[:1]), flags, strict=True):
        names = element_names([path], [each.shape])
        yield from (name for name, is_free in zip(names, each.ravel(), strict=True) if is_free)


def _elements(name: str, names: Sequence[str], known: set[str]) -> list[str]:
    """The elements that a name stands for; both parts of a complex one."""
    if name in known:
        return [name]
    found = completed(names, name)
    parts = _ELEMENT.match(name)
    if not found and parts is not None and parts["index"] and not parts["part"]:
        both = [f"{parts['path']}{part}{parts['index']}" for part in (".re", ".im")]
        return [each for part in both for each in _elements(part, names, known)]
    if not found:
        raise unknown_input(name, names)
    if len(found) > 1:
        raise ambiguous_input(name, found)
    return [each for each in names if is_within(each, found[0])]
