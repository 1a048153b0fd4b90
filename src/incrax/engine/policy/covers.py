"""Covers: sets of inputs that change in turns, each of which one plan serves, whichever of them changed.

A plan for a set of inputs runs what any of them reaches and loads what none does, so that it is right for
a change of some. Along a chain of 23 steps no two changes reach alike: each needs a program of its own,
and all of them leave out half of the work. Three programs, for the last quarter of the steps, half, and
three quarters, leave out 3/8 of it, for an eighth of the compiling, and three values are saved, not 23.

In: `Facts`, kinds of change with how often each comes, prices. Out: sets of inputs. It must not know
entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple, TypeAlias

import numpy as np

from incrax._program import read_vars
from incrax.engine.plan.facts import Facts

MAX_COVERS = 8
"""Sets of inputs that have plans."""

NUM_SEEDS = 4
"""Kinds of change that a set is begun with, of which the best one is taken."""

Array: TypeAlias = np.ndarray


class Covered(NamedTuple):
    """The covers, those that reach least first; seconds of a call, a mean over all kinds; the price of their
    programs.
    """

    covers: tuple[int, ...]
    call_s: float
    price_s: float


class Cover(NamedTuple):
    """One of them: what it gains, its price paid; the kinds in it, and its seconds of a call."""

    gain_s: float
    mask: int
    members: list[int]
    call_s: float


@dataclass(eq=False)
class Kinds:
    """Kinds of change that come in turns, and what each reaches.

    Equations that depend on the same inputs are one row of `reaches`, which has a column for each kind, as
    has `moves` for each value that could be loaded, and `asks` for the equations that read it.
    """

    facts: Facts
    shares: Mapping[int, float]  # of all calls, by dirty set
    num_calls: int  # to serve
    whole_s: float  # of a call by the whole function
    price_s: Callable[[float], float]  # of a program of so many equations

    def __post_init__(self) -> None:
        facts = self.facts
        self.masks = [*self.shares]
        self.calls = self.num_calls * np.array([*self.shares.values()])
        seconds: dict[int, float] = {}
        sizes: dict[int, int] = {}
        readers = dict.fromkeys(facts.cut_set, 0)
        for eqn, mask, equation_s in zip(
            facts.eqns, facts.equation_masks, facts.rough_seconds, strict=True
        ):
            seconds[mask] = seconds.get(mask, 0.0) + equation_s
            sizes[mask] = sizes.get(mask, 0) + 1
            for var in read_vars(eqn):
                if var in readers and facts.masks[var] != mask:
                    readers[var] |= mask
        # How much slower the function is than its equations add up to.
        run_price = self.whole_s / max(sum(facts.rough_seconds), 1e-12)
        rough = facts.unmeasured
        self.seconds = run_price * np.array([*seconds.values()])
        self.sizes = np.array([*sizes.values()])
        self.loads_s = run_price * np.array([rough.load_seconds(var) for var in readers])
        self.reaches = self._reached_by(seconds)
        self.moves = self._reached_by([facts.masks[var] for var in readers])
        saves_s = run_price * np.array([rough.save_seconds(var) for var in readers])
        self.saves_s = saves_s * self.moves.any(axis=1)  # others are saved once
        self.asks = self._reached_by(readers.values())

    def _reached_by(self, masks: Collection[int]) -> Array:
        """Which of these each kind reaches."""
        found = [[bool(mask & kind) for kind in self.masks] for mask in masks]
        return np.array(found, bool).reshape(len(masks), len(self.masks))

    def alone_s(self) -> float:
        """Seconds of all calls by a plan for each kind, with what a program for each family costs. Each
        plan saves what it makes stale that others load.
        """
        loaded_s = self.loads_s @ (self.asks & ~self.moves)
        call_s = self.seconds @ self.reaches + loaded_s + self.saves_s @ self.moves
        sizes = dict(map(self.facts.reached, self.masks))
        return float(call_s @ self.calls) + sum(map(self.price_s, sizes.values()))

    def covered(self) -> Covered:
        """The covers that make all calls end soonest, with what their programs cost."""
        served_s = np.full(len(self.masks), self.whole_s)
        saved = np.zeros(len(self.saves_s), bool)
        made: list[Cover] = []
        prices: dict[int, float] = {}  # of programs, by family
        while len(made) < MAX_COVERS:
            best = self._best(served_s, saved, prices)
            if best.gain_s <= 0.0:
                break
            made.append(best)
            served_s[best.members] = np.minimum(served_s[best.members], best.call_s)
            saved |= self._is_loaded(best.members)
            reached = self.facts.reached(best.mask)
            prices.setdefault(reached.digest, self.price_s(reached.num_eqns))
        made.sort(key=lambda cover: cover.call_s)
        return Covered(tuple([c.mask for c in made]), self._mean_s(made), sum(prices.values()))

    def _mean_s(self, covers: Collection[Cover]) -> float:
        """Seconds of a call, where each plan, and the whole function, saves what it makes stale that others
        load.
        """
        loaded = np.zeros(len(self.loads_s), bool)
        for cover in covers:
            loaded |= self._is_loaded(cover.members)
        saves_s = self.saves_s * loaded
        served_s = np.full(len(self.masks), self.whole_s + float(saves_s.sum()))
        for cover in covers:
            moved = self.moves[:, cover.members].any(axis=1)
            asked = self._is_loaded(cover.members)
            call_s = self._run_s(cover.members) + float(self.loads_s @ asked + saves_s @ moved)
            served_s[cover.members] = np.minimum(served_s[cover.members], call_s)
        return float(self.calls @ served_s) / self.num_calls

    def _run_s(self, members: list[int]) -> float:
        return float(self.seconds @ self.reaches[:, members].any(axis=1))

    def _is_loaded(self, members: list[int]) -> Array:
        asked = self.asks[:, members].any(axis=1)
        return np.asarray(asked & ~self.moves[:, members].any(axis=1))

    def _best(self, served_s: Array, saved: Array, families: Collection[int]) -> Cover:
        """The cover that gains most where calls of kinds take so long, and some values are saved."""
        hopes_s = self.calls * (served_s - self.seconds @ self.reaches)
        seeds = np.argsort(-hopes_s, kind="stable")[:NUM_SEEDS]
        found = [self._grown(int(seed), served_s, saved, families) for seed in seeds]
        return max(found, key=lambda cover: cover.gain_s)

    def _grown(self, seed: int, served_s: Array, saved: Array, families: Collection[int]) -> Cover:
        """The best of the sets that begin with a kind, and grow by that which adds least to its calls, of
        what they run and load, and to others, which save what is loaded.
        """
        run = np.zeros(len(self.seconds), bool)
        moved = asked = np.zeros(len(self.loads_s), bool)
        saves_s = self.saves_s * ~saved
        left = np.ones(len(self.masks), bool)
        order: list[int] = []
        calls_s: list[float] = []
        nets_s: list[float] = []
        kind = seed
        while True:
            order.append(kind)
            left[kind] = False
            run = run | self.reaches[:, kind]
            moved = moved | self.moves[:, kind]
            asked = asked | self.asks[:, kind]
            loaded = asked & ~moved
            call_s = float(self.seconds @ run + self.loads_s @ loaded)
            gains_s = np.maximum(served_s[order] - call_s, 0.0) @ self.calls[order]
            others = float(self.calls[left].sum())
            cost_s = others * float(saves_s @ loaded) + self.price_s(float(self.sizes @ run))
            calls_s.append(call_s)
            nets_s.append(float(gains_s) - cost_s)
            if not left.any():
                break
            keep_s = self.loads_s + others / (self.num_calls - others) * saves_s
            then = (asked[:, None] | self.asks) & ~(moved[:, None] | self.moves)
            then_s = (self.seconds * ~run) @ self.reaches + keep_s @ then
            kind = int(np.argmin(np.where(left, then_s, np.inf)))
        best = int(np.argmax(nets_s))
        while best + 1 < len(order) and calls_s[best + 1] <= calls_s[best]:
            best += 1  # what takes no longer with the others is of the set, too
        members = order[: best + 1]
        mask = reduce(or_, [self.masks[k] for k in members])
        reached = self.facts.reached(mask)
        spared_s = self.price_s(reached.num_eqns) if reached.digest in families else 0.0
        return Cover(nets_s[best] + spared_s, mask, members, calls_s[best])
