"""Draws of rows that take one of a few values.

In: a state with its log-density, a block, uniform numbers. Out: the next state, and how many rows
took another value.

A draw looks at all values of a row, and takes one with p(v) ~ exp f(theta_i = v).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax.engine.call.sites import Sites
from incrax.samplers.sweep_blocks import SweepBlock
from incrax.samplers.sweep_steps import Position, colours_of, where_rows


def drawn_rows(
    sites: Sites, position: Position, block: SweepBlock, uniform: Any, candidates: Any
) -> tuple[Position, Any]:
    """Each row of a categorical block in one sweep, by a uniform number for each, and how many took
    another value.
    """
    draw = _draw_together if block.is_together else _draw_each
    return draw(sites, position, block, uniform, candidates)


def _draw_each(
    sites: Sites, position: Position, block: SweepBlock, uniform: Any, candidates: Any
) -> tuple[Position, Any]:
    (path,) = block.paths
    before = sites.inputs(position[0])[path]
    turns = np.arange(block.num_steps, dtype=np.int32), uniform
    step = lambda position, turn: (_drawn(sites, position, block, candidates, *turn), None)
    position, _ = lax.scan(step, position, turns)
    # Not in the steps: a row that is read there and used after the write costs a copy of all rows.
    return position, _num_changed(block, before, sites.inputs(position[0])[path])


def _drawn(
    sites: Sites, position: Position, block: SweepBlock, candidates: Any, number: Any, uniform: Any
) -> Position:
    """A draw of the row with this number."""
    (path,) = block.paths
    state, value = position
    change = lambda row: row if block.num_rows is None else (number, row)
    deltas, found = jax.vmap(lambda row: sites.look(state, {path: change(row)}))(candidates)
    row = sites.inputs(state)[path]
    if block.num_rows is not None:
        row = lax.dynamic_index_in_dim(row, number, keepdims=False)
    chosen, is_possible = _chosen(block, candidates, row, found, uniform)
    take = lambda x: lax.dynamic_index_in_dim(x, chosen, keepdims=False)
    state = sites.settle(state, jax.tree.map(take, deltas), is_possible)
    return state, jnp.where(is_possible, take(found), value)


def _num_changed(block: SweepBlock, before: Any, after: Any) -> Any:
    by_row = jnp.any((before != after).reshape(block.num_blocks, -1), axis=1)
    return jnp.sum(by_row, dtype=np.int32)


def _draw_together(
    sites: Sites, position: Position, block: SweepBlock, uniform: Any, candidates: Any
) -> tuple[Position, Any]:
    """For rows that do not interact: one evaluation for each value, of all rows."""
    state, _ = position
    (path,) = block.paths
    before = sites.inputs(state)[path]
    chosen_of = functools.partial(_chosen, block, candidates)
    rows = before
    for own in colours_of(sites, state, block):
        at = lambda row, rows=rows, own=own: where_rows(
            own, jnp.broadcast_to(row, rows.shape), rows
        )
        all_at = lambda row, at=at: sites.parts(state, {path: at(row)})
        log_weights = lax.map(all_at, candidates)
        chosen, is_possible = jax.vmap(chosen_of, (0, 1, 0))(rows, log_weights, uniform)
        rows = where_rows(is_possible & own, candidates[chosen], rows)
    state = sites.start({path: rows}, state)
    return (state, sites.look(state, {})[1]), _num_changed(block, before, rows)


def _chosen(
    block: SweepBlock, candidates: Any, row: Any, log_weights: Any, uniform: Any
) -> tuple[Any, Any]:
    """One of some values of these weights, that in whose part of all probabilities a uniform number
    lies; and whether any has a weight.
    """
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    highest = jnp.max(log_weights)
    shares = jnp.exp(log_weights - highest)
    if block.random_walk or block.modified:
        is_same = (candidates == row).reshape(len(candidates), -1)
        own = jnp.argmax(jnp.all(is_same, axis=1))
        moves = (
            _random_walk(block, log_weights, own) if block.random_walk else _modified(shares, own)
        )
        is_own = jnp.arange(len(moves)) == own
        moves = jnp.where(is_own, 0, moves)
        shares = jnp.where(is_own, jnp.maximum(1 - jnp.sum(moves), 0), moves)
    sums = jnp.cumsum(shares)
    total = sums[-1]
    # Rounding up to the whole sum would choose what has no weight.
    at = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.sum(sums <= at, dtype=np.int32), jnp.isfinite(highest)


def _random_walk(block: SweepBlock, log_weights: Any, own: Any) -> Any:
    """Each value, or each other one, is proposed alike, and accepted with min(1, p' / p)."""
    ratio = jnp.exp(jnp.minimum(log_weights - log_weights[own], 0))
    return jnp.where(log_weights > -jnp.inf, ratio, 0) / (len(ratio) - block.modified)


def _modified(weights: Any, own: Any) -> Any:
    """Probabilities of other values: p' / (1 - p) proposes one, min(1, (1 - p) / (1 - p')) accepts.

    Source: Liu (1996), Peskun's theorem and a modified discrete-state Gibbs sampler.
    """
    top = jnp.argmax(weights)
    # Beside a weight of nearly all, a difference would lose the others.
    beside_top = jnp.sum(jnp.where(jnp.arange(len(weights)) == top, 0, weights))
    others = (jnp.sum(weights) - weights).at[top].set(beside_top)
    return weights / jnp.maximum(others[own], others)
