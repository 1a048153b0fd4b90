"""Changes of inputs in compiled loops: those that a loop will make, by name, and one as a step gives it.

In: names of inputs, and what is given for them. Out: numbers of inputs; new rows, or a new value, of
an input's type. It must not know what they reach.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._messages import not_by_rows, unknown_input, wrong_site
from incrax.engine.inputs.leaves import as_array, different_bits
from incrax.engine.inputs.paths import is_within
from incrax.engine.plan.row_sets import DirtyRows, RowSet, taken, with_rows

Move = list[tuple[int, bool]]
"""What changes together: numbers of inputs, and whether rows of them."""

Change = Any
"""`NewRows` of a value, or all of it."""
Changes = Mapping[int, Change]
"""Of some inputs, by number; of what a state has, by place."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["numbers", "new"],
    meta_fields=["axis", "length", "has_spare"],
)
@dataclass(frozen=True)
class NewRows:
    """New rows of a value."""

    numbers: Any  # of the rows, a vector
    new: Any  # what they are
    axis: int
    length: int  # of the axis
    has_spare: bool = False  # some slots stand for no row

    def taken(self, value: Any) -> Any:
        """These rows of a value as it is."""
        return taken(value, self.axis, self._set)

    def written(self, value: Any) -> Any:
        """The value with these rows."""
        return with_rows(value, DirtyRows(self.new, None, self.axis, self._set))

    @property
    def _set(self) -> RowSet:
        return RowSet(self.numbers, self.length, None, self.has_spare)


def changed(value: Any, change: Change) -> Any:
    """A value after a change of it."""
    return change.written(value) if isinstance(change, NewRows) else change


def named_move(
    paths: Sequence[str], shapes: Sequence[tuple[int, ...]], names: Sequence[str]
) -> Move:
    """The inputs that paths name; "theta[*]": rows of it.

    Raises:
        UnknownInputError: a path names no input.
        StepTypeError: an input has no rows.
    """
    found: Move = []
    for name in names:
        path = name.removesuffix("[*]")
        leaves = [leaf for leaf, known in enumerate(paths) if is_within(known, path)]
        if not leaves:
            raise unknown_input(name, paths)
        for leaf in leaves:
            if path != name and not sum(shapes[leaf][:1]):
                raise not_by_rows(paths[leaf], shapes[leaf])
            found.append((leaf, path != name))
    return found


def checked_change(method: str, path: str, given: Any, aval: Any) -> Change:
    """What a method was given for an input: its value, or numbers of rows along the first axis, and
    the rows.

    Raises:
        StepTypeError: it is of another type than the input.
    """
    if not isinstance(given, tuple):
        return _of_type(method, path, "a value", given, aval.shape, aval.dtype)
    numbers = as_array(given[0]) if len(given) == 2 and aval.shape else None
    is_integer = numbers is not None and jnp.issubdtype(numbers.dtype, jnp.integer)
    if numbers is None or not is_integer or numbers.ndim > 1 or not numbers.size:
        pair = " and ".join(map(_text, given))
        raise wrong_site(method, path, f"a tuple of {pair}", "integers, and rows of an array")
    num, *row = aval.shape
    rows = _of_type(method, path, "rows", given[1], (*numbers.shape, *row), aval.dtype)
    numbers = lax.clamp(np.int32(0), numbers.reshape(-1).astype(np.int32), np.int32(num - 1))
    return NewRows(numbers, rows.reshape(-1, *row), 0, num)


def _of_type(
    method: str, path: str, what: str, given: Any, shape: tuple[int, ...], dtype: Any
) -> jax.Array:
    """An array of this type, of such an array or a Python number.

    Raises:
        StepTypeError: it is something else.
    """
    array = as_array(given)
    if array is not None and array.shape == shape:
        is_weak = bool(getattr(array, "weak_type", False))
        if array.dtype == dtype:
            return _jax.as_strong(array)
        if is_weak and np.can_cast(array.dtype, dtype, "same_kind"):
            return array.astype(dtype)
    raise wrong_site(method, path, f"{what} of type {_text(given)}", f"{dtype}{list(shape)}")


def _text(given: Any) -> str:
    """The type of what may be an array, as messages show it."""
    array = as_array(given)
    return type(given).__name__ if array is None else f"{array.dtype}{list(array.shape)}"


def found_rows(new: jax.Array, old: jax.Array, max_rows: int) -> tuple[Any, jax.Array | None]:
    """Whether at most so many rows differ, and their numbers; of a value with no more rows than that,
    whether nothing does, and None.
    """
    differ = different_bits(new, old)
    by_row = jnp.any(differ.reshape(len(new) if new.ndim else 1, -1), axis=1)
    if not len(by_row) > max_rows > 0:
        return ~jnp.any(by_row), None
    (numbers,) = jnp.nonzero(by_row, size=max_rows, fill_value=-1)
    # A slot that is left repeats the first one; without any, row 0 is as it was.
    return jnp.sum(by_row) <= max_rows, jnp.where(numbers < 0, jnp.maximum(numbers[0], 0), numbers)
