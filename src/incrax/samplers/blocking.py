"""Fast and slow parameters: which of them the same work depends on, what it costs, in which order
they should move.

In: a log-density and its arguments. Out: `Blocks`. It must not know how a block moves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from incrax._progress import Meter
from incrax._table import Printable, Table, many, seconds_text
from incrax.explanation import DependenceTable
from incrax.samplers.density import Density

SAME_WORK = 1.5
"""Parameters belong together if moving both costs at most this times what moving the cheaper
costs.
"""
MAX_PERMUTED = 6
"""Blocks of which all orders are tried; more are sorted."""
NUM_TIMED = 7
"""Timed calls a block, of which the median counts."""
STEP = 1e-7
"""Relative change of a parameter in a timed call."""


@dataclass(frozen=True, repr=False)
class Blocks(Printable):
    """Blocks of parameters in the order in which they should move, the slow ones first.

    Fields:
        blocks: names of the elements of each block.
        costs_s: seconds of one evaluation after a step of each block, in which the blocks after it
            may move as well.
        oversample: how many times as often as the first one each block moves, per parameter.
        is_measured: whether the seconds were measured, or estimated.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> log_density = lambda p, x: -jnp.sum((x - p["mu"]) ** 2) - p["log_s"] ** 2
        >>> found = samplers.blocks(log_density, {"mu": 0.0, "log_s": 0.0}, jnp.ones(100))
        >>> sorted(name for block in found.blocks for name in block)
        ["p['log_s']", "p['mu']"]
    """

    blocks: tuple[tuple[str, ...], ...]
    costs_s: tuple[float, ...]
    oversample: tuple[int, ...]
    is_measured: bool

    @property
    def speeds(self) -> tuple[float, ...]:
        """Evaluations a second after a step of each block."""
        return tuple(1.0 / cost for cost in self.costs_s)

    @property
    def sweep_s(self) -> float:
        """Seconds of a sweep: each block moves once per parameter, times its `oversample`."""
        rows = zip(self.blocks, self.costs_s, self.oversample, strict=True)
        return sum(len(names) * cost * times for names, cost, times in rows)

    def summary(self) -> str:
        """How many there are, and what a sweep takes."""
        how = "measured" if self.is_measured else "estimated"
        found = many(len(self.blocks), "block")
        return f"{found}, slow first; a sweep takes {seconds_text(self.sweep_s)} ({how})"

    def tables(self) -> list[Table]:
        """The blocks for people."""
        rows = [
            (_shown(names), len(names), f"{1e3 * cost:.3g}", f"{1 / cost:.3g}", times)
            for names, cost, times in zip(self.blocks, self.costs_s, self.oversample, strict=True)
        ]
        header = ("block", "parameters", "ms a step", "steps a second", "steps a parameter")
        return [Table("", header, rows)]


def blocks(
    log_density: Callable[..., Any],
    *args: Any,
    wrt: Any = None,
    oversample: float = 0.4,
    measure: bool = True,
    progress: bool = True,
) -> Blocks:
    """Blocks of parameters that the same work depends on, and the order in which a sampler should
    move them.

    Args:
        log_density: function of pytrees that returns one real number; incremental or not.
        *args: its arguments, at a typical point.
        wrt: what is sampled; see `grad`. None: the first argument. Elements of small arrays count
            one by one.
        oversample: a power: a block moves (cost of the first / cost of this one) ** oversample
            times as often as the first. 0: all equally often; 1: each block takes as long as the
            first.
        measure: whether costs are measured, by evaluations in which one block moves, or estimated
            from the equations that `deps` counts.
        progress: whether measurements of over two seconds show their progress on a terminal.

    Returns:
        The blocks: parameters of which any two cost about as much together as each does alone. They
        are in the order that costs least if a step of a block also moves those after it, along
        their correlations.

    Raises:
        ValueError: `oversample` is not between 0 and 1.
        SelectionError, UnknownInputError: `wrt` names nothing that has a derivative.
        TypeError: the function returns something else than one number.

    Cost: one trace; per block some evaluations in which it moves, on saved values that are thrown
    away.

    Source: A. Lewis, arXiv:1304.4473 (fast and slow parameters); block order and oversampling as in
        Cobaya's documentation of its sampler `mcmc`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p, x: p["a"] * jnp.sum(jnp.exp(-p["k"] * x)) - p["a"] ** 2
        >>> found = samplers.blocks(f, {"a": 1.0, "k": 2.0}, jnp.ones(100_000), measure=False)
        >>> found.blocks, found.oversample[0]
        ((("p['k']",), ("p['a']",)), 1)
    """
    if not 0 <= oversample <= 1:
        raise ValueError(
            f"`blocks(oversample=...)` got {oversample!r}; it must be between 0 (every parameter "
            "moves equally often) and 1 (every block takes as long). Nothing was measured."
        )
    density = Density("blocks", log_density, args, wrt)
    deps = density.function.deps(*density.bare(args))
    groups = _grouped(_units(density, deps), deps)
    seconds = [deps.seconds(keys) for _, keys in groups]
    alone = (
        _measured(density, [names for names, _ in groups], progress=progress)
        if measure
        else seconds
    )
    alone = [max(cost, 1e-9) for cost in alone]

    def cost(tail: Sequence[int]) -> float:
        """Of a step in which these blocks move: what the slowest takes, and what the others add to
        it, at most all.
        """
        slowest = max(tail, key=lambda k: alone[k])
        together = deps.seconds([key for k in tail for key in groups[k][1]])
        share = together / seconds[slowest] if seconds[slowest] else 1.0
        return min(alone[slowest] * max(share, 1.0), sum(alone[k] for k in tail))

    order, costs, times = _ordered([len(names) for names, _ in groups], alone, cost, oversample)
    return Blocks(tuple(groups[k][0] for k in order), tuple(costs), tuple(times), measure)


Unit = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of elements, and the same as inputs of the dependence table."""


def _units(density: Density, deps: DependenceTable) -> list[Unit]:
    """The smallest parts whose changes are told apart: elements of small arrays, other leaves as a
    whole.
    """
    widths = {row.path: row.elements for row in deps.rows}
    names = density.names
    units = []
    for path, (first, last, _) in zip(density.paths, density.ends.parts(), strict=True):
        own = names[first:last]
        if widths.get(path, 1) > 1:
            units += [((name,), (f"{path}[{k}]",)) for k, name in enumerate(own)]
        else:
            units.append((own, (path,)))
    return units


def _grouped(units: Sequence[Unit], deps: DependenceTable) -> list[Unit]:
    """Units joined while the joint work of two groups is hardly more than that of the cheaper."""
    by_reach: dict[frozenset[int], list[Unit]] = {}
    for unit in units:
        by_reach.setdefault(deps.reach(unit[1]), []).append(unit)
    groups = [_joined(same) for same in by_reach.values()]
    while len(groups) > 1:
        pairs = itertools.combinations(range(len(groups)), 2)
        waste, i, j = min((_waste(groups[i], groups[j], deps), i, j) for i, j in pairs)
        if waste > SAME_WORK:
            break
        groups[i] = _joined([groups[i], groups.pop(j)])
    return groups


def _joined(units: Sequence[Unit]) -> Unit:
    names, keys = (tuple(itertools.chain(*each)) for each in zip(*units, strict=True))
    return names, keys


def _waste(a: Unit, b: Unit, deps: DependenceTable) -> float:
    cheaper = min(deps.seconds(a[1]), deps.seconds(b[1]))
    together = deps.seconds((*a[1], *b[1]))
    return together / cheaper if cheaper else (1.0 if not together else np.inf)


def _ordered(
    sizes: Sequence[int],
    alone: Sequence[float],
    cost: Callable[[Sequence[int]], float],
    power: float,
) -> tuple[list[int], list[float], list[int]]:
    """The order of least seconds a sweep, the cost of a step of each block, and how often each
    moves.
    """
    by_cost = sorted(range(len(sizes)), key=lambda k: -alone[k])
    orders: Any = itertools.permutations(by_cost) if len(sizes) <= MAX_PERMUTED else [by_cost]

    def planned(order: Sequence[int]) -> tuple[float, list[int], list[float], list[int]]:
        costs = [cost(order[place:]) for place in range(len(order))]
        times = [max(int((costs[0] / each) ** power), 1) for each in costs]
        sweep_s = sum(sizes[k] * each * n for k, each, n in zip(order, costs, times, strict=True))
        return sweep_s, list(order), costs, times

    return min(map(planned, orders), key=lambda found: found[0])[1:]


def _measured(
    density: Density, groups: Sequence[tuple[str, ...]], *, progress: bool
) -> list[float]:
    """Seconds of a call in which each group moved."""
    function: Any = density.function
    x = density.x0
    places = {name: k for k, name in enumerate(density.names)}
    found = []
    with Meter("blocks", len(groups), is_shown=progress) as meter:
        for names in groups:
            chosen = [places[name] for name in names]
            function(*density.bare(density.arguments(x)))
            seconds = [
                _timed(function, density, _moved(x, chosen, k)) for k in range(1, 3 * NUM_TIMED)
            ]
            found.append(float(np.median(seconds[-NUM_TIMED:])))
            meter.advance()
    return found


def _moved(x: np.ndarray, chosen: Sequence[int], number: int) -> np.ndarray:
    x = x.copy()
    x[chosen] += number * STEP * np.maximum(np.abs(x[chosen]), STEP)
    return x


def _timed(function: Any, density: Density, x: np.ndarray) -> float:
    args = density.bare(density.arguments(x))
    begin = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - begin


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "")
