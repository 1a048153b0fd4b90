"""Stage 8, change, for a whole call: the leaves as values, and the dirty set against a saved version.

In: leaves and the store's states. Out: values (stored ones where the bits are equal) and masks. It must not know plans.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from incrax._profiling import annotated
from incrax.engine.inputs.leaves import (
    LeafValue,
    as_entry,
    as_value,
    changed_elements,
    has_bits_of,
    is_compared_by_identity,
    same_floats,
    same_value,
)
from incrax.engine.program.dependence import Layout
from incrax.engine.store.store import State, Store

SETTLE_EVERY = 16
"""Calls between looks at which host values stayed in use."""

LARGE_BYTES = 2**20
"""NumPy arrays from which on the seconds are counted that it takes to find them unchanged."""


class Comparison:
    """Compares leaves with the states of one store; `settles` says whether host values that stay go to the device."""

    def __init__(self, store: Store, layout: Layout, *, settles: bool) -> None:
        self.store = store
        self.layout = layout
        self.settles = settles
        self.num_resolved = 0
        self.unchanged_s: dict[int, float] = {}

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
        for index in changed:
            values[index] = self._resolve_leaf(index, leaves[index])
        self.num_resolved += 1
        if self.settles and self.num_resolved % SETTLE_EVERY == 0:
            for value in values:
                value.settle(self.num_resolved)
        return tuple(values)

    def waited_s(self, values: Sequence[LeafValue], changed: Sequence[int] | None, now: Callable[[], float]) -> float:
        """Wait for inputs that are still computed, before they are compared: the seconds are no overhead."""
        start_s = now()
        for index in changed or ():
            _wait(values[index])
        return now() - start_s

    def entries(self, leaves: Sequence[Any], changed: Sequence[int], state: State) -> tuple[Any, ...] | None:
        """The leaves as entries of a new state; None if they have the bits of a state, all but `changed` its objects.

        Comparing stops at the first difference.
        """
        entries = list(state.entries)
        is_same = True
        for index in changed:
            old, x = entries[index], leaves[index]
            if type(old) is LeafValue and self._has_bits_of(index, x, old):
                continue
            new = as_entry(x)
            is_same = is_same and _same_entry(old, new)
            entries[index] = new
        return None if is_same else tuple(entries)

    @annotated("compare")
    def _resolve_leaf(self, index: int, x: Any) -> LeafValue:
        """The stored value with these bits, or a new one."""
        for state in self.store.states:
            if state.anchors[index] is x or self._has_bits_of(index, x, state.values[index]):
                return state.values[index]
        return _known_value(index, LeafValue(x), self.store.states)

    def _has_bits_of(self, index: int, x: Any, old: LeafValue) -> bool:
        """Whether a NumPy array has the bits of a value; seconds are counted for a large one that has."""
        if type(x) is not np.ndarray or x.nbytes < LARGE_BYTES:
            return has_bits_of(x, old)
        start_s = time.perf_counter()
        is_same = has_bits_of(x, old)
        if is_same:
            self.unchanged_s[index] = self.unchanged_s.get(index, 0.0) + time.perf_counter() - start_s
        return is_same

    def dirty_after_rest(self, changed: Sequence[int]) -> int:
        """The dirty set of the latest state against the one before it, with which it was not compared in full.

        If that one is gone, all of the leaves that were other objects.
        """
        if len(self.store.states) < 2:
            return sum([self.layout.leaf_mask(index) for index in changed])
        before, state = self.store.states[-2:]
        return self.dirty(tuple([_known_value(i, value, [before]) for i, value in enumerate(state.values)]), before)

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


def _known_value(index: int, new: LeafValue, states: Sequence[State]) -> LeafValue:
    """The value of a leaf in a state, the latest first, if its bits are the same."""
    tried = None
    for state in () if new.is_deleted() else reversed(states):
        old = state.values[index]
        if old is not tried and not old.is_deleted() and same_value(old, new):
            return old
        tried = old
    return new


def _same_entry(old: Any, new: Any) -> bool:
    known = same_floats(old, new)
    if known is not None:
        return known
    value = as_value(old)
    return not value.is_deleted() and same_value(value, as_value(new))


def _wait(value: LeafValue) -> None:
    """Wait for an array whose bits are to be compared; if what computes it failed, it equals nothing."""
    x = value.array
    if x is None or x.is_deleted() or is_compared_by_identity(x):
        return
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        x.block_until_ready()
