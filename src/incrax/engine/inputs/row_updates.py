"""Arrays that remember from which array they were made, and in which rows they may differ.

In: an array, rows of its first axis, new values. Out: a plain `jax.Array`; for two arrays of one
family, the rows in which they may differ. It must not read values.

A family is a tree: each array knows its origin, the one it was made from, and how many updates it is
below the first. Two of them can differ only in the rows that were written on the way up to their
nearest common origin and down again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax

MAX_STEPS = 8
"""Updates that are traced back at most."""

FEW = 64
"""Numbers that are put together in Python: of so few, NumPy would take most of the time of a call."""

MAX_ROWS = 4096
"""Rows of one update that are remembered; more are found by comparison."""

MIN_FOLLOWED = 2**11
MAX_FOLLOWED = 64
"""Elements of an array of a driver from which on it is worth telling which rows changed since the one
before: of fewer, the bits are compared faster; rows up to which they are written into that.
"""


class _Origin:
    """An array's place in its family: what it was made from, in which rows it was written."""

    __slots__ = ("array", "depth", "numbers", "parent")

    def __init__(self, x: jax.Array, parent: _Origin | None, numbers: np.ndarray) -> None:
        # Of a dict that lacks the number, `pop` returns what it is called with besides: the reference.
        self.array = weakref.ref(x, functools.partial(known.pop, id(x)))
        self.parent = parent
        self.depth = 0 if parent is None else parent.depth + 1
        self.numbers = numbers
        known[id(x)] = self

    def trail(self) -> list[_Origin]:
        """This one and what it was made from, as far as that is looked at."""
        found: list[_Origin] = [self]
        while len(found) < MAX_STEPS and (parent := found[-1].parent) is not None:
            found.append(parent)
        return found


known: dict[int, _Origin] = {}
"""Of the arrays that belong to a family, by `id`; empty where none was made. An array leaves it as it
goes, before another one can have its `id`.
"""


def made_from(new: jax.Array, old: jax.Array, numbers: np.ndarray) -> jax.Array:
    """The new array, of which it is known from now on that it has the old one's rows but for
    these.
    """
    parent = known.get(id(old)) or _Origin(old, None, np.zeros(0, np.int64))
    last = parent.trail()[-1]
    if last.array() is None:
        last.parent = None  # else all of a chain of a million updates would be kept
    _Origin(new, parent, numbers)
    return new


def rows_between(new: Any, old: Any) -> np.ndarray | None:
    """Numbers of the rows in which two arrays may differ; None where they are not known to be of
    one family.
    """
    ours = known.get(id(new))
    theirs = known.get(id(old))
    if ours is None or theirs is None:
        return None
    written: list[np.ndarray] = []
    while ours is not theirs:
        if ours.depth < theirs.depth:  # the other one is further below what both were made from
            ours, theirs = theirs, ours
        written.append(ours.numbers)
        if ours.parent is None or len(written) > MAX_STEPS:
            return None
        ours = ours.parent
    return written[0] if len(written) == 1 else together(written)


def together(lists: Sequence[np.ndarray]) -> np.ndarray:
    """All numbers of some lists, each once, in order."""
    if sum(map(len, lists)) > FEW:
        return np.unique(np.concatenate(lists))
    return np.array(sorted(set().union(*map(np.ndarray.tolist, lists))), np.int64)


def at(x: Any) -> RowUpdates:
    """Rows of an array to be written, which the result remembers: `at(x)[i].set(v)`.

    An incremental function that gets the result need not compare all of it to learn which rows
    changed: that takes as long as reading them.

    Args:
        x: an array of one or more axes. Of a `jax.Array` the result knows that it was made from it;
            arrays of NumPy, which change in place, and traced values are updated, no more.

    Returns:
        What takes an index, and then one of the methods `set`, `add` and `multiply` of
        `jax.numpy.ndarray.at`, with the result that this has: a new `jax.Array` of the same shape
        and dtype. Of the index the first part says which rows change. `became(y)` takes an array
        that was made in another way.

    Raises:
        TypeError: x is no array with axes.

    Cost: one copy of the array, as `x.at[i].set(v)`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> x = jnp.zeros(4)
        >>> incrax.at(x)[2].set(1.5).tolist()
        [0.0, 0.0, 1.5, 0.0]
    """
    if not isinstance(x, (jax.Array, np.ndarray)) or not x.shape:
        raise TypeError(
            f"`incrax.at` got {x!r}, of type {type(x).__name__}. It takes an array with one or "
            "more axes, of which rows are written: `incrax.at(x)[i].set(v)`."
        )
    return RowUpdates(x)


class RowUpdates:
    """An array whose rows are to be written; see `at`."""

    __slots__ = ("_array",)

    def __init__(self, x: jax.Array | np.ndarray) -> None:
        self._array = x

    def __getitem__(self, index: Any) -> RowUpdate:
        return RowUpdate(self._array, index)


class RowUpdate:
    """Some rows of an array, to be written by one of these methods; see `at`."""

    __slots__ = ("_array", "_index")

    def __init__(self, x: jax.Array | np.ndarray, index: Any) -> None:
        self._array = x
        self._index = index

    def set(self, values: Any) -> jax.Array:
        """With these values there."""
        return self._written("set", values)

    def add(self, values: Any) -> jax.Array:
        """With these added."""
        return self._written("add", values)

    def multiply(self, values: Any) -> jax.Array:
        """Multiplied by these."""
        return self._written("multiply", values)

    def became(self, y: Any) -> jax.Array:
        """The array y, which has x's values in all other rows: the caller says so.

        A wrong claim makes results stale; `incrax.verify` finds that out.

        Raises:
            ValueError: it has another shape or dtype.
        """
        new = jnp.asarray(y)
        old = self._array
        if new.shape != old.shape or new.dtype != old.dtype:
            raise ValueError(
                f"`incrax.at(x)[i].became(y)` got y of type {new.dtype}{list(new.shape)} for x of "
                f"type {old.dtype}{list(old.shape)}. It says that y is x but for the rows i, so "
                "that both have one shape and one dtype."
            )
        return self._known(new if new is not old else jnp.array(new, copy=True))

    def _written(self, method: str, values: Any) -> jax.Array:
        index = self._index
        is_number = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
        is_plain = is_number or (isinstance(index, np.ndarray) and index.dtype.kind in "iu")
        if is_plain and not isinstance(self._array, _jax.Tracer):
            where = np.asarray(int(index) if is_number else index)
            return self._known(_write_rows(self._array, where, values, method))
        return self._known(getattr(jnp.asarray(self._array).at[index], method)(values))

    def _known(self, new: jax.Array) -> jax.Array:
        old = self._array
        if isinstance(old, (np.ndarray, _jax.Tracer)) or isinstance(new, _jax.Tracer):
            return new
        numbers = _rows_of(self._index, old.shape[0])
        return new if numbers is None else made_from(new, old, numbers)


@functools.partial(jax.jit, static_argnums=3)
def _write_rows(x: Any, index: Any, values: Any, method: str) -> jax.Array:
    """Compiled: an index that JAX takes apart at each call costs more than most updates."""
    return getattr(x.at[index], method)(values)


class Followed:
    """An array of JAX for each value that a driver gives an array of NumPy, one after the other.

    One of which a few rows changed is made from an array before, and remembers it: an incremental
    function compares nothing of its size. Two are kept to start from, the last one and the one that
    it was made from: after a proposal that was refused the next one is made from the place where the
    chain is.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: tuple[tuple[np.ndarray, jax.Array], ...] = ()

    def array(self, x: np.ndarray) -> jax.Array:
        """The array of a value, which must not change afterwards."""
        found = [
            (_different_rows(x, before), (before, array))
            for before, array in self._latest
            if not array.is_deleted()
        ]
        numbers, base = min(found, key=lambda each: each[0].size, default=(np.zeros(0, int), None))
        if base is None or numbers.size > min(MAX_FOLLOWED, len(x) // 4):
            self._latest = ((x, jnp.asarray(x)),)
        elif not numbers.size:
            return base[1]
        else:  # few programs: of 1, 4, 16 or 64 rows
            size = next(4**k for k in range(4) if numbers.size <= 4**k)
            numbers = np.pad(numbers, (0, size - numbers.size), mode="edge")
            self._latest = (base, (x, at(base[1])[numbers].set(x[numbers])))
        return self._latest[-1][1]


def _different_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows of which some bits differ."""
    words = f"u{a.dtype.itemsize}"
    different = a.view(words) != b.view(words)
    return np.flatnonzero(different.reshape(len(a), -1).any(axis=1))


def _rows_of(index: Any, length: int) -> np.ndarray | None:
    """The rows that an index may write; None where that is not plain, or they are many."""
    first = index[0] if isinstance(index, tuple) and index else index
    if type(first) is int:  # of one number, NumPy takes most of the time of an update
        return np.array([first % length]) if -length <= first < length else None
    if isinstance(first, slice):
        numbers = np.sort(np.arange(length)[first])
    else:
        numbers = np.zeros(()) if isinstance(first, _jax.Tracer) else np.asarray(first)
        if not np.issubdtype(numbers.dtype, np.integer):
            return None
        # As JAX reads them, then in a type that has room for the length.
        numbers = numbers.astype(jax.dtypes.canonicalize_dtype(numbers.dtype)).astype(np.int64)
        numbers = np.unique(np.where(numbers < 0, numbers + length, numbers))
        numbers = numbers[(numbers >= 0) & (numbers < length)]
    return numbers if 0 < numbers.size <= MAX_ROWS else None
