"""What many kinds of change that come in turns would take: by a plan for each, or by segments.

Along a chain of steps no two changes reach alike: each kind needs a program of its own, of half the steps
on average. Segments of one step each are alike, and share a program; they are called one by one.

In: `Facts`, kinds of change with how often each comes, prices. Out: seconds, roughly, of all calls with what
is compiled for them. It must not know entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from incrax._program import read_vars
from incrax.engine.plan.facts import Facts

SEGMENT_S = 2.5e-5
"""Seconds that it takes to call a segment."""


@dataclass(eq=False)
class ManyInTurns:
    """Kinds of change that come in turns, and what each reaches.

    Equations that depend on the same inputs are a segment, and one row of `reaches`, which has a column for
    each kind, as has `moves` for each value that could be loaded, and `asks` for the equations that read it.
    """

    facts: Facts
    shares: Mapping[int, float]  # of all calls, by dirty set
    num_calls: int
    whole_s: float  # of a call by the whole function
    price_s: Callable[[float], float]  # of a program of so many equations

    def __post_init__(self) -> None:
        facts = self.facts
        seconds: dict[int, float] = {}
        sizes: dict[int, int] = {}
        digests: dict[int, int] = {}
        readers = dict.fromkeys(facts.cut_set, 0)
        for eqn, mask, equation_s in zip(
            facts.eqns, facts.equation_masks, facts.rough_seconds, strict=True
        ):
            seconds[mask] = seconds.get(mask, 0.0) + equation_s
            sizes[mask] = sizes.get(mask, 0) + 1
            digests[mask] = digests.get(mask, 0) + facts.digest_of(eqn)
            for var in read_vars(eqn):
                if var in readers and facts.masks[var] != mask:
                    readers[var] |= mask
        # How much slower the function is than its equations add up to.
        run_price = self.whole_s / max(sum(facts.rough_seconds), 1e-12)
        rough = facts.unmeasured
        self._seconds = run_price * np.array([*seconds.values()])
        self._alike = dict(zip(digests.values(), sizes.values(), strict=True))
        self._reaches = self._reached_by(seconds)
        self._moves = self._reached_by([facts.masks[var] for var in readers])
        self._asks = self._reached_by(readers.values())
        self._loads_s = run_price * np.array([rough.load_seconds(var) for var in readers])
        saves_s = run_price * np.array([rough.save_seconds(var) for var in readers])
        self._saves_s = saves_s * self._moves.any(axis=1)  # others are saved once

    def _reached_by(self, masks: Collection[int]) -> np.ndarray:
        """Which of these each kind reaches."""
        found = [[bool(mask & kind) for kind in self.shares] for mask in masks]
        return np.array(found, bool).reshape(len(masks), len(self.shares))

    @cached_property
    def families(self) -> dict[int, int]:
        """Equations that a plan for a kind would run, by family."""
        return dict(map(self.facts.reached, self.shares))

    def alone_s(self) -> float:
        """By a plan for each kind, with a program for each family."""
        return self._calls_s(0.0) + sum(map(self.price_s, self.families.values()))

    def divided_s(self) -> float:
        """By segments, with a program for each that is like no other, and one that fills them all at
        first.
        """
        filling_s = self.price_s(len(self.facts.eqns))
        return self._calls_s(SEGMENT_S) + sum(map(self.price_s, self._alike.values())) + filling_s

    def _calls_s(self, segment_s: float) -> float:
        """Of calls that run and save what they reach, and load the rest; so many more for each segment."""
        run_s = (self._seconds + segment_s) @ self._reaches
        loaded_s = self._loads_s @ (self._asks & ~self._moves)
        call_s = run_s + loaded_s + self._saves_s @ self._moves
        return float(self.num_calls * (call_s @ np.array([*self.shares.values()])))
