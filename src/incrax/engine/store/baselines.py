"""From which version a call starts: its baseline.

In: versions with their dirty sets. Out: these, the best one last. It must not compare values.
"""

from __future__ import annotations

from dataclasses import dataclass

from incrax.engine.policy.chooser import Chooser
from incrax.engine.store.store import Pairs, State


@dataclass(eq=False)
class Baselines:
    """Ranks versions by what a call is expected to take that starts from them."""

    chooser: Chooser
    always: int  # the bits of what runs at every call

    def ranked(self, pairs: Pairs) -> Pairs:
        """The best baseline last."""
        if len(pairs) == 2 and pairs[0][1] == pairs[1][1]:
            if self._is_better(pairs[0], pairs[1]):
                pairs.reverse()
        elif len(pairs) > 1:
            pairs.sort(key=self._rank, reverse=True)
            self._prefer_fewer_changes(pairs)
        return pairs

    def _is_better(self, pair: tuple[State, int], other: tuple[State, int]) -> bool:
        """Whether the first of two baselines with one dirty set has more of its values, or was used
        more often.
        """
        has, other_has = (
            (True, True)
            if pair[0].saved is other[0].saved
            else (self._has_values(*pair), self._has_values(*other))
        )
        return (has, pair[0].uses) > (other_has, other[0].uses)

    def _prefer_fewer_changes(self, pairs: Pairs) -> None:
        """Move a baseline to the end whose dirty set is part of the best one's, unless values are
        missing there.

        Estimates of the two need not agree on which is cheaper; a new dirty set must be tried to be
        known.
        """
        for number, (state, dirty) in enumerate(pairs[:-1]):
            best = pairs[-1][1]
            if dirty == best or dirty & ~best:
                continue
            entry = self.chooser.seen(dirty | self.always)
            if entry is None or not entry.is_decided or self._has_values(state, dirty):
                pairs.append(pairs.pop(number))
                return

    def _rank(self, pair: tuple[State, int]) -> tuple[float, int, int]:
        """Expected seconds, then the number of changed inputs, then how seldom the state was a
        baseline before.
        """
        state, dirty = pair
        if not dirty:
            return (-1.0, 0, 0)
        expected_s = self.chooser.expected_s(dirty | self.always)
        if not self._has_values(state, dirty):
            expected_s = self.chooser.whole_s
        return (expected_s, dirty.bit_count(), -state.uses)

    def _has_values(self, state: State, dirty: int) -> bool:
        """Whether a state holds what serves a change of it."""
        return all([var in state.saved for var in self.chooser.loads(dirty | self.always)])
