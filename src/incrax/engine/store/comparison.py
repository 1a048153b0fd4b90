"""Which inputs of a call differ from which version.

In: the leaves of a call, the versions in the store. Out: a value for each leaf, the dirty set of each
version, the rows that differ. It must not know what is saved, nor from which version a call starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_, is_not
from typing import Any

import jax
import numpy as np

from incrax._jax import ArrayImpl
from incrax._program import Values
from incrax.engine.inputs.leaves import (
    LeafValue,
    LeafValues,
    changed_elements,
    changed_rows,
    has_bits_of,
    is_compared_by_identity,
    resolved,
    same_value,
)
from incrax.engine.program.dependence import Layout
from incrax.engine.store.store import Pairs, State, Store


@dataclass(eq=False)
class Comparison:
    """Compares the leaves of calls with the versions of one store."""

    store: Store
    layout: Layout  # which bits of a dirty set are whose

    def changed_leaves(self, leaves: Values) -> list[int] | None:
        """Numbers of the leaves that are not the very objects of the latest state; None without a
        state.
        """
        states = self.store.states
        if not states:
            return None
        return [
            i
            for i, (x, anchor) in enumerate(zip(leaves, states[-1].anchors, strict=True))
            if x is not anchor
        ]

    def wait(
        self, leaves: Values, changed: Sequence[int] | None, now: Callable[[], float]
    ) -> float:
        """Wait for inputs that are still computed; its seconds, which are no overhead."""
        waited_s = 0.0
        for i in changed or ():
            if not _is_at_hand(leaves[i]):
                start_s = now()
                _wait(leaves[i])
                waited_s += now() - start_s
        return waited_s

    def resolve(self, leaves: Values, changed: Sequence[int] | None) -> LeafValues:
        """Each leaf as the stored value that it equals, or as a new one."""
        states = self.store.states
        if changed is None or not states:
            return tuple([LeafValue(x) for x in leaves])
        latest = states[-1].values
        if not changed:
            return latest
        values = list(latest)
        for index in changed:
            values[index] = self.resolve_leaf(index, leaves[index])
        return latest if all(map(is_, values, latest)) else tuple(values)

    def resolve_leaf(self, index: int, x: Any) -> LeafValue:
        """The stored value with these bits, or a new one."""
        is_numpy = type(x) is np.ndarray
        for state in reversed(self.store.states):
            old = state.values[index]
            if old.anchor is x or (is_numpy and has_bits_of(x, old)):
                return old
        return resolved(x, [state.values[index] for state in reversed(self.store.states)])

    def rows(self, values: LeafValues, state: State, leaves: Sequence[int]) -> np.ndarray | None:
        """Numbers of the rows, along the first axis, in which some leaves differ from a state's;
        None where that is not known.
        """
        if len(leaves) == 1:
            (leaf,) = leaves
            return changed_rows(values[leaf], state.values[leaf])
        found = [changed_rows(values[leaf], state.values[leaf]) for leaf in leaves]
        known = [numbers for numbers in found if numbers is not None]
        if len(known) < len(found):
            return None
        return np.unique(np.concatenate(known))

    def pairs(self, values: LeafValues) -> Pairs:
        """Each state with its dirty set; the latest alone where that has these very values."""
        states = self.store.states
        if states and values is states[-1].values:
            return [(states[-1], 0)]
        return [(state, self.dirty(values, state)) for state in states]

    def elements(self, index: int, new: LeafValue, old: LeafValue) -> int:
        """Mask of the elements of a leaf in which two values differ; 1 where it is tracked as a
        whole.
        """
        width = self.layout.widths[index]
        if width == 1:
            return 0 if same_value(old, new) else 1
        return changed_elements(new, old, width)

    def dirty(self, values: LeafValues, state: State) -> int:
        """Mask of the inputs whose bits differ from those of a state."""
        dirty = 0
        offsets = self.layout.offsets
        widths = self.layout.widths
        known = state.values
        for index in compress(range(len(known)), map(is_not, values, known)):
            width = widths[index]
            elements = 1 if width == 1 else changed_elements(values[index], known[index], width)
            dirty |= elements << offsets[index]
        return dirty


def _is_at_hand(x: Any) -> bool:
    """Whether a leaf need not be waited for: it is no array of JAX, or is computed."""
    array: Any = x
    if type(x) is ArrayImpl:
        return array.is_deleted() or array.is_ready()
    return type(x) is float or not isinstance(x, jax.Array) or x.is_deleted()


def _wait(x: jax.Array) -> None:
    """Wait for an array whose bits are to be compared; if what computes it failed, it equals
    nothing.
    """
    if not is_compared_by_identity(x):
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            x.block_until_ready()
