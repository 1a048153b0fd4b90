"""Stage 8, change, for a whole call: the leaves as values, and the dirty set against a saved version.

In: leaves and the store's states. Out: values (stored ones where the bits are equal) and masks. It must not know plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax.facts.dependence import Layout
from incrax.running.leaves import LeafValue, changed_elements, same_value
from incrax.running.store import State, Store

RESTLESS = 8
"""New objects in a row with new bits, after which a leaf's new objects count as changed and their bits are not read."""

RECHECK = 16
"""The bits of a restless leaf are read again every so many calls."""


class Comparison:
    """Compares leaves with the states of one store; `skips` allows to skip the bits of restless leaves."""

    def __init__(self, store: Store, layout: Layout, *, skips: bool) -> None:
        self.store = store
        self.layout = layout
        self.skips = skips
        self.restless = [0] * len(layout.offsets)
        self.num_resolved = 0

    def changed_leaves(self, leaves: Sequence[Any]) -> list[int] | None:
        """Numbers of the leaves that are not the very objects of the latest state; None without a state."""
        states = self.store.states
        if not states:
            return None
        return [i for i, (x, anchor) in enumerate(zip(leaves, states[-1].anchors, strict=True)) if x is not anchor]

    def resolve(self, leaves: Sequence[Any], changed: Sequence[int] | None) -> tuple[LeafValue, ...]:
        """Each leaf as the stored value that it equals, or as a new one."""
        states = self.store.states
        if changed is None or not states:
            return tuple([LeafValue(x) for x in leaves])
        if not changed:
            return states[-1].values
        values = list(states[-1].values)
        self.num_resolved += 1
        for index in changed:
            values[index] = self._resolve_leaf(index, leaves[index])
        if self.num_resolved % RECHECK == 0:
            for value in values:
                value.settle(self.num_resolved)
        return tuple(values)

    def _resolve_leaf(self, index: int, x: Any) -> LeafValue:
        """The stored value with these bits, or a new one; a restless leaf's bits are read only now and then."""
        for state in self.store.states:
            if state.anchors[index] is x:
                return state.values[index]
        new = LeafValue(x)
        if self.restless[index] >= RESTLESS and self.num_resolved % RECHECK and self.skips:
            return new
        tried = None
        for state in reversed(self.store.states):
            old = state.values[index]
            if old is not tried and same_value(old, new):
                self.restless[index] = 0
                return old
            tried = old
        self.restless[index] += 1
        return new

    def dirty(self, values: tuple[LeafValue, ...], state: State) -> int:
        """Mask of the inputs whose bits differ from those of a state."""
        dirty = 0
        offsets, widths = self.layout.offsets, self.layout.widths
        for index in [i for i, (v, w) in enumerate(zip(values, state.values, strict=True)) if v is not w]:
            if widths[index] == 1:
                dirty |= 1 << offsets[index]
            else:
                dirty |= changed_elements(values[index], state.values[index], widths[index]) << offsets[index]
        return dirty
