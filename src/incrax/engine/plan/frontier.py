"""Stage 5, frontier: which values a program loads and which equations it runs.

In: a program, the variables wanted, and the price of loading each. Out: the cheapest choice, by a
minimum cut. It must not know why a variable may be loaded.

A[v] = 1 if variable v is available in the program, R[e] = 1 if equation e runs. With prices load(v)
and run(e),
    minimise    sum_e run(e) R[e] + sum_v load(v) A[v] (1 - R[equation of v])
    subject to  A[wanted] = 1  and  R[e] <= A[u] for each input u of e.
All terms are submodular, so a minimum cut between a source (0) and a sink (1) finds the optimum:
    source -> R[e]       of capacity run(e)
    R[e] -> A[v]         of capacity load(v)
    A[u] -> R[e]         infinite, for each input u
    A[wanted] -> sink    infinite
    source -> A[input]   of capacity load(input)

What the wanted variables need through variables that cannot be loaded runs whatever the prices are;
only what can be loaded in its place, and what that is computed from, is to be decided. A maximum
flow takes a time that grows with the square of the length of a chain, so this is done in windows of
`WINDOW` equations, from the end of the program to its start: a window may load what lies before it,
and what it loads is wanted of the next one. There are as many windows as are needed for what runs
to be available, and one more. In a program of one window the choice is optimal; each equation is in
one window, so that the time grows with their number.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from incrax._jax import Var
from incrax._program import Listing, written_vars

WINDOW = 2000
"""Equations that are decided on together."""

MAX_EDGES = 100
"""Of a graph whose cut is found faster without SciPy."""

SOLVER = "scipy.sparse.csgraph"
MAX_VISITS = 300_000
"""Looks at edges of a graph whose cut is found without SciPy where that was not imported: 40 ms, a
quarter of what the import takes. A graph of 3,120 edges took 156,000.
"""

INFINITE = 1 << 30
_SCALE = 1 << 28
_SOURCE = 0
_SINK = 1

LoadSeconds = Callable[[Var], float | None]
RunSeconds = Callable[[int], float]


class Frontier(NamedTuple):
    """Equation numbers to run, in program order, and variables to load, in program order."""

    run: tuple[int, ...]
    load: tuple[Var, ...]


def choose_frontier(
    listing: Listing,
    targets: Iterable[Var],
    must_run: Iterable[int],
    load_seconds: LoadSeconds,
    run_seconds: RunSeconds,
) -> Frontier:
    """The cheapest set of equations to run and values to load that makes all targets available.

    Args:
        listing: the equations of a program, in order.
        targets: variables that must be available.
        must_run: numbers of equations that must run (effects).
        load_seconds: price of loading a variable; None where it cannot be loaded.
        run_seconds: price of running an equation, by its number.

    Returns:
        The frontier. Variables that no equation writes (inputs, constants) are always loaded and
        not listed.

    Cost: proportional to the equations that run, and those from which a loaded value is computed,
        up to a window of them for each place where many values meet.
    """
    targets = frozenset(targets)
    must_run = frozenset(must_run)
    price = cache(load_seconds)
    run_seconds = cache(run_seconds)
    ran, found = _forced(listing, targets, must_run, price)
    is_cheap = cache(lambda var: _is_cheap(var, listing, targets, price, run_seconds))
    loads = {var for var in found if is_cheap(var)}
    wanted = set(found) - loads
    writer = listing.writer
    is_had = lambda var: var not in writer or writer[var] in ran or var in loads or var in wanted
    unseen = set(wanted)  # of which no window has had the equation
    is_last = False
    while wanted and not is_last:
        is_last = not unseen
        window = _window(listing, {writer[var] for var in wanted}, ran, is_cheap)
        here = {var for var in wanted if writer[var] in window}
        wanted -= here
        unseen -= here
        chosen, available = _minimum_cut(listing, window, here, is_had, price, run_seconds)
        ran.update(chosen)
        for var in available:
            is_loaded = writer[var] in window or is_cheap(var)
            (loads if is_loaded else wanted).add(var)
    # What the last window left wanted can be loaded.
    return _trimmed(listing, ran, loads | wanted, targets, must_run)


def _forced(
    listing: Listing, targets: Iterable[Var], must_run: Iterable[int], price: LoadSeconds
) -> tuple[set[int], list[Var]]:
    """Equations that run at any price, and the variables that can be loaded among those that they
    and targets need.
    """
    ran: set[int] = set()
    loadable: dict[Var, None] = {}
    numbers: list[int] = list(must_run)

    def need(variables: Iterable[Var]) -> None:
        for var in variables:
            number = listing.writer.get(var)
            if number is not None and number not in ran:
                if price(var) is None:
                    numbers.append(number)
                else:
                    loadable[var] = None

    need(targets)
    while numbers:
        number = numbers.pop()
        if number not in ran:
            ran.add(number)
            need(listing.read[number])
    return ran, [var for var in loadable if listing.writer[var] not in ran]


def _is_cheap(
    var: Var,
    listing: Listing,
    targets: Collection[Var],
    price: LoadSeconds,
    run_seconds: RunSeconds,
) -> bool:
    """Whether to load a variable costs no more than the equations that compute only this: then they
    never run, and need not be looked at.

    Of seconds that nothing but it needs, up to what is enough: those of the equation that computes it
    alone and, for what it alone reads, of the like or of loading, if that is less.
    """
    enough = price(var)
    if enough is None:
        return False
    is_own = lambda x: listing.num_readers[x] == 1 and x in listing.writer and x not in targets
    total = 0.0
    pending = [var]
    while pending and total < enough:
        number = listing.writer[pending.pop()]
        eqn = listing.eqns[number]
        if not eqn.effects and len(written_vars(eqn)) == 1:
            total += run_seconds(number)
            for read in filter(is_own, listing.read[number]):
                load_s = price(read)
                if load_s is None or load_s >= enough - total:
                    pending.append(read)
    return total >= enough


def _window(
    listing: Listing,
    wanted: Collection[int],
    ran: Collection[int],
    is_cheap: Callable[[Var], bool],
) -> set[int]:
    """The last equations, up to `WINDOW`, of those that are wanted and those that make what these read."""
    seen = set(wanted)
    heap = [-number for number in wanted]
    heapq.heapify(heap)
    window: set[int] = set()
    while heap and len(window) < WINDOW:
        number = -heapq.heappop(heap)
        window.add(number)
        for var in listing.read[number]:
            other = listing.writer.get(var)
            if other is not None and other not in ran and other not in seen and not is_cheap(var):
                seen.add(other)
                heapq.heappush(heap, -other)
    return window


def _minimum_cut(
    listing: Listing,
    window: Collection[int],
    targets: Collection[Var],
    is_had: Callable[[Var], bool],
    price: LoadSeconds,
    run_seconds: RunSeconds,
) -> tuple[set[int], set[Var]]:
    """The equations of a window that run, and the variables that are available, computed or loaded.

    What is written before the window, and is not had anyway, can be loaded, or else cannot be had
    in it. A variable that one equation alone reads shares its node.
    """
    nodes = {number: index for index, number in enumerate(sorted(window), 2)}
    edges = [(_SOURCE, node, run_seconds(number)) for number, node in nodes.items()]
    places: dict[Var, int] = {}
    num_nodes = len(nodes) + 2
    for var, read_by in _readers(listing, nodes, targets, is_had).items():
        if not read_by:
            places[var] = _SINK
        elif len(read_by) == 1:
            (places[var],) = read_by
        else:
            places[var] = num_nodes
            edges.extend((num_nodes, reader, np.inf) for reader in read_by)
            num_nodes += 1
        load_s = price(var)
        writer = nodes.get(listing.writer[var], _SOURCE)
        edges.append((writer, places[var], np.inf if load_s is None else load_s))
    on_source_side = _source_side(edges, num_nodes)
    chosen = {number for number, node in nodes.items() if not on_source_side[node]}
    return chosen, {var for var, place in places.items() if not on_source_side[place]}


def _readers(
    listing: Listing,
    nodes: Mapping[int, int],
    targets: Collection[Var],
    is_had: Callable[[Var], bool],
) -> dict[Var, list[int]]:
    """The variables that are not had, with the nodes of the equations that read them; of targets
    with none, as they are wanted anyway.
    """
    found: dict[Var, list[int]] = {var: [] for var in targets}
    for number, node in nodes.items():
        for var in listing.read[number]:
            if var not in targets and not is_had(var):
                found.setdefault(var, []).append(node)
    return found


def _source_side(edges: Sequence[tuple[int, int, float]], num_nodes: int) -> np.ndarray:
    """Whether the residual graph of a maximum flow still reaches each node from the source."""
    rows, cols, capacities = (np.array(column) for column in zip(*edges, strict=True))
    total = float(capacities[np.isfinite(capacities)].sum())
    units = np.clip(capacities * (_SCALE / max(total, 1e-12)), 1, INFINITE).astype(np.int64)
    if len(edges) <= MAX_EDGES or SOLVER not in sys.modules:
        max_paths = MAX_VISITS // (2 * len(edges))
        found = _by_paths(rows.tolist(), cols.tolist(), units.tolist(), num_nodes, max_paths)
        if found is not None:
            return found
    # Here, as importing SciPy takes longer than all of incrax, and few programs need it.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # Edges between the same nodes are added up.
    graph = csr_array((units, (rows, cols)), shape=(num_nodes, num_nodes))
    graph.data = np.minimum(graph.data, INFINITE).astype(np.int32)
    flow = maximum_flow(graph, _SOURCE, _SINK).flow
    residual = csr_array(graph - flow)
    residual.eliminate_zeros()
    is_reached = np.zeros(num_nodes, bool)
    is_reached[breadth_first_order(residual, _SOURCE, return_predecessors=False)] = True
    return is_reached


def _by_paths(
    rows: Sequence[int], cols: Sequence[int], units: Sequence[int], num_nodes: int, max_paths: int
) -> np.ndarray | None:
    """The same by shortest augmenting paths: whatever maximum flow is found, the nodes that the
    source still reaches are the same. None: these are too many.
    """
    left: list[dict[int, int]] = [{} for _ in range(num_nodes)]
    for start, end, room in zip(rows, cols, units, strict=True):
        left[start][end] = min(left[start].get(end, 0) + room, INFINITE)
        left[end].setdefault(start, 0)
    for _ in range(max_paths):
        before = _reached_from_source(left)
        if _SINK not in before:
            return np.array([node in before for node in range(num_nodes)])
        path = [_SINK]
        while path[-1] != _SOURCE:
            path.append(before[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        flow = min(left[start][end] for start, end in steps)
        for start, end in steps:
            left[start][end] -= flow
            left[end][start] += flow
    return None


def _reached_from_source(left: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The nodes that can be reached where room is left, each with the one before it, nearest first."""
    before = {_SOURCE: _SOURCE}
    reached = [_SOURCE]
    for node in reached:  # which grows as it is walked
        found = [end for end, room in left[node].items() if room and end not in before]
        before.update(dict.fromkeys(found, node))
        reached += found
    return before


def _trimmed(
    listing: Listing,
    ran: Collection[int],
    available: Iterable[Var],
    targets: Iterable[Var],
    must_run: Collection[int],
) -> Frontier:
    """Without equations and loads that nothing in the choice reads (ties of the cut can leave
    some).
    """
    loads = {var for var in available if listing.writer[var] not in ran}
    needed = set(targets)
    kept = []
    for number in sorted(ran, reverse=True):
        if number in must_run or not needed.isdisjoint(written_vars(listing.eqns[number])):
            kept.append(number)
            needed.update(listing.read[number])
    loads &= needed
    numbers = sorted({listing.writer[var] for var in loads})
    written = (var for number in numbers for var in written_vars(listing.eqns[number]))
    return Frontier(tuple(reversed(kept)), tuple(var for var in written if var in loads))
