"""Which saved version a call starts from: the one from which the work left is expected to take least time.

In: leaf values, the store's versions. Out: versions with their dirty sets, the best last. It must not know how a dirty
set is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from incrax._jax import Var
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.changes import Comparison
from incrax.engine.store.store import State, Store

Pairs: TypeAlias = list[tuple[State, int]]


class Baselines:
    """Ranks the versions of one store; `always` are the bits of what runs at every call."""

    def __init__(self, store: Store, comparison: Comparison, chooser: Chooser, always: int) -> None:
        self.store = store
        self.comparison = comparison
        self.chooser = chooser
        self.always = always

    def compare(self, values: tuple[LeafValue, ...]) -> Pairs:
        """Each state with its dirty set, the best baseline last."""
        states = self.store.states
        if states and values is states[-1].values:
            return [(states[-1], 0)]
        return self._ranked([(state, self.comparison.dirty(values, state)) for state in states])

    def after(self, dirty: int) -> Pairs:
        """The same for values that differ in these inputs from the latest version's, and from those of all others."""
        *others, latest = self.store.states
        pairs = [(state, dirty | self.comparison.dirty(latest.values, state)) for state in others]
        return self._ranked([*pairs, (latest, dirty)])

    def _ranked(self, pairs: Pairs) -> Pairs:
        """The best baseline last."""
        if len(pairs) == 2 and pairs[0][1] == pairs[1][1]:
            if self._is_better(pairs[0], pairs[1]):
                pairs.reverse()
        elif len(pairs) > 1:
            pairs.sort(key=self._rank, reverse=True)
            self._prefer_fewer_changes(pairs)
        return pairs

    def compare_latest(self, values: tuple[LeafValue, ...]) -> Pairs:
        """The latest state with its dirty set."""
        latest = self.store.states[-1]
        return [(latest, self.comparison.dirty(values, latest))]

    def _is_better(self, pair: tuple[State, int], other: tuple[State, int]) -> bool:
        """Whether the first of two baselines with one dirty set has more of its values, or was used more often."""
        state, dirty = pair
        if state.saved is not other[0].saved:
            has, other_has = self._has_values(state, dirty), self._has_values(*other)
            if has != other_has:
                return has
        return state.uses > other[0].uses

    def _prefer_fewer_changes(self, pairs: Pairs) -> None:
        """Move a baseline to the end whose dirty set is part of the best one's, unless values are missing there.

        Estimates of the two need not agree on which is cheaper; a new dirty set must be tried to be known.
        """
        for number, (state, dirty) in enumerate(pairs[:-1]):
            best = pairs[-1][1]
            if dirty == best or dirty & ~best:
                continue
            entry = self.chooser.seen(dirty | self.always)
            if entry is None or not entry.is_planned or self._has_values(state, dirty):
                pairs.append(pairs.pop(number))
                return

    def _rank(self, pair: tuple[State, int]) -> tuple[float, int, int]:
        """Expected seconds, then the number of changed inputs, then how seldom the state was a baseline before."""
        state, dirty = pair
        if not dirty:
            return (-1.0, 0, 0)
        expected_s = self.chooser.expected_s(dirty | self.always)
        if not self._has_values(state, dirty):
            expected_s = self.chooser.whole_s
        return (expected_s, dirty.bit_count(), -state.uses)

    def _has_values(self, state: State, dirty: int) -> bool:
        """Whether a state holds what serves a change of it."""
        entry = self.chooser.seen(dirty | self.always)
        if entry is not None and entry.candidate == "plan" and entry.program is not None:
            loads: Iterable[Var] = entry.program.executable.loads
        else:
            loads = self.chooser.segments.route(dirty | self.always).clean if self.chooser.segments.wanted else ()
        return all([var in state.saved for var in loads])
