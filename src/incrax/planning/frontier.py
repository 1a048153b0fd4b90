"""Stage 5, frontier: which values a program loads and which equations it runs.

In: a program, the variables wanted, and the price of loading each. Out: the cheapest choice, by a minimum cut.
It must not know why a variable may be loaded.

A[v] = 1 if variable v is available in the program, R[e] = 1 if equation e runs. With prices load(v) and run(e),
minimise  sum_e run(e) R[e] + sum_v load(v) A[v] (1 - R[equation of v])
subject to  A[wanted] = 1  and  R[e] <= A[u] for each input u of e.
All terms are submodular, so a minimum cut between a source (0) and a sink (1) finds the optimum:
    source -> R[e] of capacity run(e),   R[e] -> A[v] of capacity load(v),   A[u] -> R[e] infinite for each input u,
    A[wanted] -> sink infinite,          source -> A[input] of capacity load(input).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from incrax._jax import Equation, Var
from incrax.facts.program import read_vars, written_vars

INFINITE = 1 << 30
_SCALE = 1 << 28


class Frontier(NamedTuple):
    """Equation numbers to run, in program order, and variables to load, in program order."""

    run: tuple[int, ...]
    load: tuple[Var, ...]


def choose_frontier(
    eqns: Sequence[Equation],
    targets: Sequence[Var],
    must_run: Sequence[int],
    load_seconds: Callable[[Var], float | None],
    run_seconds: Callable[[int], float],
) -> Frontier:
    """The cheapest set of equations to run and values to load that makes all targets available.

    Args:
        eqns: the equations of a program, in order.
        targets: variables that must be available.
        must_run: numbers of equations that must run (effects).
        load_seconds: price of loading a variable; None where it cannot be loaded.
        run_seconds: price of running an equation, by its number.

    Returns:
        The frontier. Variables that no equation writes (inputs, constants) are always loaded and not listed.
    """
    producer = {var: number for number, eqn in enumerate(eqns) for var in written_vars(eqn)}
    reachable = _needed(eqns, producer, targets, must_run, load_seconds)
    if not any(load_seconds(var) is not None for var in reachable.loadable):
        return Frontier(tuple(sorted(reachable.eqns)), ())
    available, ran = _minimum_cut(eqns, producer, reachable, targets, must_run, load_seconds, run_seconds)
    loads = [v for v in reachable.loadable if v in available and producer[v] not in ran]
    loads.sort(key=lambda var: producer[var])
    return _trim(eqns, Frontier(tuple(sorted(ran)), tuple(loads)), targets, must_run)


class _Needed(NamedTuple):
    eqns: list[int]
    loadable: list[Var]


def _needed(
    eqns: Sequence[Equation],
    producer: dict[Var, int],
    targets: Sequence[Var],
    must_run: Sequence[int],
    load_seconds: Callable[[Var], float | None],
) -> _Needed:
    """Equations from which a target can be reached, and the loadable variables among what they write."""
    seen: set[int] = set()
    stack = [*must_run, *(producer[var] for var in targets if var in producer)]
    while stack:
        number = stack.pop()
        if number in seen:
            continue
        seen.add(number)
        stack.extend(producer[var] for var in read_vars(eqns[number]) if var in producer)
    loadable = [var for number in seen for var in written_vars(eqns[number]) if load_seconds(var) is not None]
    return _Needed(sorted(seen), loadable)


def _minimum_cut(
    eqns: Sequence[Equation],
    producer: dict[Var, int],
    needed: _Needed,
    targets: Sequence[Var],
    must_run: Sequence[int],
    load_seconds: Callable[[Var], float | None],
    run_seconds: Callable[[int], float],
) -> tuple[set[Var], set[int]]:
    nodes: dict[object, int] = {}
    edges: list[tuple[int, int, float]] = []
    source, sink = 0, 1

    def node(key: object) -> int:
        return nodes.setdefault(key, len(nodes) + 2)

    for number in needed.eqns:
        ran = node(number)
        edges.append((source, ran, run_seconds(number)))
        for var in read_vars(eqns[number]):
            if var in producer:
                edges.append((node(var), ran, np.inf))
        for var in written_vars(eqns[number]):
            price = load_seconds(var)
            edges.append((ran, node(var), np.inf if price is None else price))
    edges.extend((node(var), sink, np.inf) for var in targets if var in producer)
    edges.extend((node(number), sink, np.inf) for number in must_run)
    on_source_side = _source_side(edges, len(nodes) + 2)
    sink_side = {key for key, index in nodes.items() if index not in on_source_side}
    return {k for k in sink_side if isinstance(k, Var)}, {k for k in sink_side if isinstance(k, int)}


def _source_side(edges: list[tuple[int, int, float]], num_nodes: int) -> set[int]:
    """Nodes that the residual graph of a maximum flow still reaches from the source."""
    rows, cols, capacities = (np.array(column) for column in zip(*edges, strict=True))
    finite = np.isfinite(capacities)
    scale = _SCALE / max(float(capacities[finite].sum()), 1e-12)
    units = np.where(finite, np.maximum(np.where(finite, capacities, 0) * scale, 1), INFINITE).astype(np.int64)
    graph = csr_array((units, (rows, cols)), shape=(num_nodes, num_nodes))
    graph.sum_duplicates()
    graph.data = np.minimum(graph.data, INFINITE)
    graph = csr_array(graph.astype(np.int32))
    flow = maximum_flow(graph, 0, 1).flow
    residual = csr_array(graph - flow)
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, 0, return_predecessors=False).tolist())


def _trim(eqns: Sequence[Equation], frontier: Frontier, targets: Sequence[Var], must_run: Sequence[int]) -> Frontier:
    """Drop equations and loads that nothing in the choice reads (ties of the cut can leave some)."""
    loads, needed = set(frontier.load), set(targets)
    kept = []
    for number in reversed(frontier.run):
        if number in must_run or any(v in needed and v not in loads for v in written_vars(eqns[number])):
            kept.append(number)
            needed.update(read_vars(eqns[number]))
    return Frontier(tuple(reversed(kept)), tuple(var for var in frontier.load if var in needed))
