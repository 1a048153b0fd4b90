"""What changed, as booleans inside a graph: known while it is traced where possible, computed where not.

In: old and new inputs, or what a caller says of them. Out: `Flags`. It must not know what depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax.facts.dependence import Layout
from incrax.running.paths import path_mask, paths_mask


class Flags:
    """One boolean per bit of a layout; `values` has an array of booleans for each leaf, on the host where known."""

    def __init__(self, layout: Layout, values: Sequence[Any]) -> None:
        self.layout = layout
        self.values = tuple(values)

    def reach(self, mask: int) -> Any:
        """Whether some input of a mask changed: a bool where known, else a boolean scalar of the graph."""
        unknown = []
        for index, elements in self.layout.leaves_of(mask):
            value = self.values[index]
            part = value if elements is None or len(elements) == len(value) else value[np.array(elements)]
            if isinstance(value, np.ndarray):
                if part.any():
                    return True
            else:
                unknown.append(jnp.any(part))
        return jnp.any(jnp.stack(unknown)) if unknown else False

    def of_leaf(self, index: int) -> Any:
        """Whether some element of a leaf changed."""
        return self.reach(self.layout.leaf_mask(index))


def all_set(layout: Layout) -> Flags:
    """Everything changed."""
    return Flags(layout, [np.ones(width, bool) for width in layout.widths])


def compared(layout: Layout, old: Sequence[Any], new: Sequence[Any]) -> Flags:
    """The inputs whose bits differ; those that are the same object do not."""
    pairs = zip(old, new, layout.widths, strict=True)
    return Flags(layout, [np.zeros(n, bool) if a is b else _different(a, b).reshape(n, -1).any(1) for a, b, n in pairs])


def declared(layout: Layout, paths: Sequence[str], changed: Any) -> Flags:
    """The inputs that a caller names: a path, several, or a mapping from paths to booleans or arrays of them.

    Raises:
        UnknownInputError: a path names no input.
        ValueError: an array of booleans has not the shape of its input.
    """
    if not isinstance(changed, Mapping):
        names: Iterable[str] = [changed] if isinstance(changed, str) else changed
        changed = dict.fromkeys(names, True)
    known = paths_mask(paths, layout, [name for name, flag in changed.items() if flag is True])
    values: list[Any] = []
    for offset, width in zip(layout.offsets, layout.widths, strict=True):
        values.append(np.array([bool(known >> offset + k & 1) for k in range(width)]))
    for name, flag in changed.items():
        if not isinstance(flag, bool):
            _set(values, layout, path_mask(paths, layout, name), name, jnp.asarray(flag))
    return Flags(layout, values)


def _set(values: list[Any], layout: Layout, mask: int, name: str, flag: jax.Array) -> None:
    """Set the bits of a mask where a flag of the graph is true."""
    for index, elements in layout.leaves_of(mask):
        width = layout.widths[index]
        chosen = np.isin(np.arange(width), elements) if elements is not None else np.ones(width, bool)
        if flag.ndim and flag.size != chosen.sum():
            raise ValueError(
                f"`changed[{name!r}]` has {flag.size} booleans for {chosen.sum()} tracked elements; give one boolean, "
                "or an array of the input's shape (inputs of more elements than `Tuning.max_tracked` count as one)."
            )
        spread = jnp.zeros(width, bool).at[np.flatnonzero(chosen)].set(flag.reshape(-1) if flag.ndim else flag)
        values[index] = values[index] | spread


def _different(a: Any, b: Any) -> jax.Array:
    """Elementwise, whether the bits of two arrays of one type differ."""
    if _jax.is_key_dtype(a.dtype):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
        return (a != b).any(tuple(range(a.ndim))[-1:])
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        return _different(a.real, b.real) | _different(a.imag, b.imag)
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return a != b
    unsigned = jnp.dtype(f"uint{a.dtype.itemsize * 8}")
    return jax.lax.bitcast_convert_type(a, unsigned) != jax.lax.bitcast_convert_type(b, unsigned)
