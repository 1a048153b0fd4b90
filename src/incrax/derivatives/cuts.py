"""Marks inside data structures: this part is a constant, that one is not.

In: pytrees. Out: pytrees of the same shape whose marked leaves behave as arrays. It must not know
functions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from incrax import _jax
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.signature import Function

T = TypeVar("T")

_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_COMPARISONS = "lt le gt ge eq ne"
_UNARY = "neg pos abs invert"
_CONVERSIONS: tuple[type, ...] = (bool, int, float, complex)


class Mark:
    """A leaf with a mark; it behaves as the array that it holds."""

    __slots__ = ("value",)
    __array_ufunc__ = None
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, value: Any) -> None:
        self.value = value

    def given(self) -> Any:
        """The value that arithmetic gets."""
        return self.value

    def __jax_array__(self) -> Any:
        return jax.numpy.asarray(self.given())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.value, dtype)
        return array.copy() if copy else array

    def __getattr__(self, name: str) -> Any:
        if name == "value" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.given(), name)

    def __getitem__(self, index: Any) -> Any:
        return self.given()[index]

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given())

    def __index__(self) -> int:
        return operator.index(self.value)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.given()) if digits is None else round(self.given(), digits)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({self.value!r})"


class Cut(Mark):
    """A leaf that is a constant to all derivatives."""

    __slots__ = ()

    def given(self) -> Any:
        """The value, without tangents."""
        return (
            jax.lax.stop_gradient(self.value) if isinstance(self.value, _jax.Tracer) else self.value
        )


class Uncut(Mark):
    """A leaf that an enclosing `cut` leaves as it is."""

    __slots__ = ()


def _plain(x: Any) -> Any:
    return x.given() if isinstance(x, Mark) else x


def _forwarded(function: Function) -> Function:
    return lambda self, *others: function(self.given(), *map(_plain, others))


def _reflected(function: Function) -> Function:
    return lambda self, other: function(_plain(other), self.given())


for _name in f"{_BINARY} {_COMPARISONS} {_UNARY}".split():
    setattr(Mark, f"__{_name}__", _forwarded(getattr(operator, f"__{_name}__")))
for _name in _BINARY.split():
    setattr(Mark, f"__r{_name}__", _reflected(getattr(operator, f"__{_name}__")))
for _type in _CONVERSIONS:
    setattr(Mark, f"__{_type.__name__}__", lambda self, kind=_type: kind(self.value))


@dataclass(frozen=True)
class _SamePlace:
    """The key of a mark's only child: its path is the mark's own."""

    def __str__(self) -> str:
        return ""


for _kind in (Cut, Uncut):
    jax.tree_util.register_pytree_with_keys(
        _kind,
        lambda mark: (((_SamePlace(), mark.value),), None),
        lambda _, children, kind=_kind: kind(*children),
        lambda mark: ((mark.value,), None),
    )


def is_mark(x: Any) -> bool:
    """Whether a node is a mark."""
    return isinstance(x, Mark)


def unmarked(leaf: Any) -> Any:
    """What a mark holds; any other leaf as it is."""
    return leaf.value if isinstance(leaf, Mark) else leaf


def cut(tree: T) -> T:
    """Mark all arrays of a pytree as constants, but those marked by `uncut`.

    Derivatives by incrax leave them out: None stands in their place, and nothing is computed for
    them. Those by JAX (`jax.grad`) have zeros there. The marked tree is an argument like any other:
    functions that incrax differentiates get the arrays themselves; elsewhere a marked leaf behaves
    as its array in `jax.numpy`, operators and methods.

    Args:
        tree: pytree; a subtree, a model, or one array. Inside a function that is differentiated,
            values stop there.

    Returns:
        The same tree with marked leaves. Static values (str, None, functions) stay as they are.

    Not handled: where no incrax function has taken the marks off, functions of `jax.lax` and
        `jax.random`, ufuncs of NumPy and indexing *by* a marked array refuse it; there, write
        `uncut`.

    Cost: none; no copy.

    Source: `cut` and `uncut` of ChainCutters.jl, in the thread Zygote.jl#323.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> p = {"scale": jnp.array(2.0), "table": incrax.cut(jnp.ones(3))}
        >>> f = lambda p: p["scale"] * jnp.sum(p["table"])
        >>> g = incrax.grad(f)(p)
        >>> float(g["scale"]), g["table"]
        (3.0, None)
    """
    return jax.tree.map(_cut_leaf, tree, is_leaf=is_mark)


def _cut_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Uncut):
        return leaf.value
    return Cut(leaf) if not isinstance(leaf, Cut) and is_dynamic(leaf) else leaf


def uncut(tree: T) -> T:
    """Take the marks of `cut` off; arrays without a mark get one that an enclosing `cut` respects.

    Args:
        tree: pytree, often one array: `cut(dataclasses.replace(p, c2=uncut(p.c2)))`.

    Returns:
        The same tree, active.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> x = incrax.cut(jnp.array([1.0, 2.0]))
        >>> incrax.uncut(x).tolist()
        [1.0, 2.0]
    """
    return jax.tree.map(_uncut_leaf, tree, is_leaf=is_mark)


def _uncut_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Mark):
        return leaf.value
    return Uncut(leaf) if is_dynamic(leaf) else leaf


def without_marks(tree: Any) -> Any:
    """The tree with arrays in place of marks; those that are cut have no tangents."""
    return jax.tree.map(_plain, tree, is_leaf=is_mark)
