"""What changed, as booleans inside a graph: known while it is traced where possible, computed where
not.

In: old and new inputs, or what a caller says of them. Out: `Flags`. It must not know what depends
on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax._messages import wrong_option
from incrax._names import names_in
from incrax._program import Values
from incrax.engine.inputs.leaves import as_array, different_bits
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.program.dependence import Layout


class Flags(NamedTuple):
    """One boolean per bit of a layout; `values` has an array of booleans for each leaf, on the host
    where known.
    """

    layout: Layout
    values: Values

    def reach(self, mask: int) -> Any:
        """Whether some input of a mask changed: a bool where known, else a boolean scalar of the
        graph.
        """
        unknown = []
        for index, elements in self.layout.leaves_of(mask):
            value = self.values[index]
            part = (
                value
                if elements is None or len(elements) == len(value)
                else value[np.array(elements)]
            )
            if isinstance(value, np.ndarray):
                if part.any():
                    return True
            else:
                unknown.append(jnp.any(part))
        return jnp.any(jnp.stack(unknown)) if unknown else False

    def of_leaf(self, index: int) -> Any:
        """Whether some element of a leaf changed."""
        return self.reach(self.layout.leaf_mask(index))


def leaves_set(layout: Layout, indices: Iterable[int]) -> Flags:
    """Some leaves changed, and no others."""
    chosen = frozenset(indices)
    return Flags(
        layout, [np.full(width, index in chosen) for index, width in enumerate(layout.widths)]
    )


def all_set(layout: Layout) -> Flags:
    """Everything changed."""
    return leaves_set(layout, range(len(layout.widths)))


def compared(layout: Layout, old: Values, new: Values) -> Flags:
    """The inputs whose bits differ; those that are the same object do not."""
    rows = zip(old, new, layout.widths, strict=True)
    differ = lambda a, b, width: different_bits(a, b).reshape(width, -1).any(1)
    values = [np.zeros(width, bool) if a is b else differ(a, b, width) for a, b, width in rows]
    return Flags(layout, values)


def declared(layout: Layout, paths: Sequence[str], changed: Any) -> Flags:
    """The inputs that a caller names: a path, several, or a mapping from paths to booleans or
    arrays of them.

    Raises:
        UnknownInputError: a path names no input.
        TypeError: what should be paths, or booleans, is something else.
        ValueError: an array of booleans has not the shape of its input.
    """
    names = names_in("step(changed=...)", changed)
    flags = changed if isinstance(changed, Mapping) else dict.fromkeys(names, True)
    values: list[Any] = list(leaves_set(layout, ()).values)
    for name, flag in flags.items():
        for index, elements in layout.leaves_of(paths_mask(paths, layout, [name])):
            numbers = np.arange(layout.widths[index])
            chosen = np.isin(numbers, numbers if elements is None else elements)
            is_known = isinstance(flag, bool)
            is_set = chosen & (flag if is_known else _spread(name, flag, chosen))
            values[index] = values[index] | is_set
    return Flags(layout, values)


def boolean(option: str, given: Any, *, may_be_array: bool = False) -> jax.Array:
    """A boolean of the graph, or an array of them where there may be one.

    Raises:
        TypeError: it is something else, as a probability or the number of a row.
    """
    array = as_array(given)
    if array is None or array.dtype != bool or (array.ndim and not may_be_array):
        more = ", or an array of them" * may_be_array
        raise wrong_option(option, given, f"a boolean{more}")
    return array


def _spread(name: str, flag: Any, chosen: np.ndarray) -> jax.Array:
    """A flag of the graph, or one at each of the chosen elements."""
    flag = boolean(f"step(changed={{{name!r}: ...}})", flag, may_be_array=True)
    if flag.ndim and flag.size != chosen.sum():
        raise ValueError(
            f"`changed[{name!r}]` has {flag.size} booleans for {chosen.sum()} tracked elements; "
            "give one boolean, "
            "or an array of the input's shape (inputs of more than 256 elements "
            "count as one)."
        )
    at_chosen = jnp.zeros(chosen.size, bool).at[np.flatnonzero(chosen)]
    return at_chosen.set(flag.reshape(-1)) if flag.ndim else flag
