"""How blocks move within a compiled sweep: walks, trajectories along the gradient, kernels of other
libraries; row by row, or all rows side by side.

In: a state with its log-density, a block, random numbers. Out: the next state, and what was
accepted. It must not know what is recorded of a sweep.

A step of a walk is Metropolis: theta_i' = theta_i + w_i z, accepted where log u < f(theta') -
f(theta). f(theta') is `Sites.look`, theta' is written by `Sites.settle`. A Hamiltonian step is the
same with theta' at the end of a trajectory along the gradient of `look`. A kernel has `look` as its
log-density, and decides itself. Rows that are known not to interact, f = c + sum_i p_i(theta_i),
move all at once, each by its own p_i: given all else their conditional distributions are
independent, and the same random numbers give the same chain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from incrax.engine.call.sites import Sites, SitesState
from incrax.samplers.messages import of_two_arguments
from incrax.samplers.sweep_blocks import Data, SweepBlock

Position = tuple[SitesState, Any]
"""A state and its log-density."""

Rows = dict[str, Any]
"""Of the inputs of a block, by path: one row of each, or all that move together."""


class Draws(NamedTuple):
    """Random numbers of a block, by sweep and step."""

    moves: dict[str, Any]
    """By path: by how much each input moves, or its velocity at the start of a trajectory."""
    bounds: Any
    """What the gain in log-density is compared with, or where among all probabilities the value
    lies.
    """
    num_leaps: Any = None
    """Leapfrog steps."""
    keys: Any = None
    """Of kernels."""


def step_each(
    sites: Sites, position: Position, block: SweepBlock, draws: Draws, log_scale: Any, widths: Data
) -> tuple[Position, Any, Any]:
    """All steps of a block in one sweep; how many were accepted, and, where widths are adapted, of
    each row which share.
    """
    numbers = np.arange(block.num_steps, dtype=np.int32) // block.times
    is_adapted = block.target is not None
    scales = jnp.exp(log_scale)[numbers] if is_adapted else None
    of_rows: Any = None
    if block.num_leaps:
        of_rows = widths if block.num_rows is not None else {p: x[None] for p, x in widths.items()}

    def step(carry, turn):
        position, count = carry
        position, accept, share = _step(sites, position, block, *turn)
        return (position, count + accept), share if is_adapted else None

    turns = numbers, draws, scales, of_rows
    (position, count), shares = lax.scan(step, (position, np.int32(0)), turns)
    if shares is not None:
        shares = jnp.mean(shares.reshape(-1, block.times), 1, position[1].dtype)
    return position, count, shares


def _step(
    sites: Sites,
    position: Position,
    block: SweepBlock,
    number: Any,
    drawn: Draws,
    scale: Any,
    widths: Any,
) -> tuple[Position, Any, Any]:
    """One step of a block, or of its row with this number: the next position, whether it was
    accepted, and the share to adapt by.
    """
    state, value = position
    inputs = sites.inputs(state)
    start = {path: inputs[path] for path in block.paths}
    changes = lambda rows: rows
    if block.num_rows is not None:
        row_of = lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False)
        start = jax.tree.map(row_of, start)
        changes = lambda rows: {path: (number, row) for path, row in rows.items()}
    look = lambda rows: sites.look(state, changes(rows))
    log_density = lambda rows: look(rows)[1]
    if block.kernel is not None:
        rows, accept, share = _by_kernel(block, log_density, start, drawn.keys, scale)
        delta, proposed = look(rows)
    else:
        rows, gained = proposal_of(block, log_density, start, drawn, scale, widths)
        delta, proposed = look(rows)
        share = accept = drawn.bounds < proposed - value + gained  # false where it is NaN
    state = sites.settle(state, delta, accept)
    return (state, jnp.where(accept, proposed, value)), accept, share


def step_together(
    sites: Sites, position: Position, block: SweepBlock, draws: Draws, log_scale: Any, widths: Data
) -> tuple[Position, Any, Any]:
    """The same for rows that do not interact, or of one colour after the other: all rows make their
    first step, then their second.
    """
    state, value = position
    inputs = sites.inputs(state)
    rows = {path: inputs[path] for path in block.paths}
    # Random numbers are in the order in which rows take turns.
    turns = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(block.num_blocks, block.times, *x.shape[1:]), 1, 0), draws
    )
    scale = jnp.exp(log_scale)
    step_of = _walks_of_rows if block.kernel is None else _kernels_of_rows
    count: Any = jnp.zeros(block.num_blocks, jnp.int32)
    total: Any = jnp.zeros(block.num_blocks)
    for own in colours_of(sites, state, block):
        parts, step = step_of(sites, state, block, rows, own, scale, widths)
        turn = functools.partial(_turn, step, own)
        (rows, _, count, total), _ = lax.scan(turn, (rows, parts, count, total), turns)
    state = sites.start(rows, state)
    share = total.astype(value.dtype) / block.times
    return (state, sites.look(state, {})[1]), jnp.sum(count, dtype=np.int32), share


def _turn(step: Any, own: Any, carry: Any, drawn: Draws) -> tuple[Any, None]:
    """A step of each row of a colour, counted."""
    rows, parts, count, total = carry
    rows, parts, accept, share = step(rows, parts, drawn)
    return (rows, parts, count + accept, total + jnp.where(own, share, 0)), None


def _kernels_of_rows(
    sites: Sites, state: SitesState, block: SweepBlock, rows: Rows, own: Any, scale: Any, _: Data
) -> tuple[Any, Any]:
    """A step by a kernel for each row of a colour: none needs the new values of the others.

    The step gives the rows, and of each whether it was accepted, and the share to adapt by.
    """
    at = sites.start(rows, state)
    numbers = np.arange(block.num_blocks, dtype=np.int32)

    def step_of_row(number, row: Rows, key, scale):
        changes = lambda row: {path: (number, x) for path, x in row.items()}
        log_density = lambda row: sites.look(at, changes(row))[1]
        return _by_kernel(block, log_density, row, key, scale)

    def step(rows: Rows, parts, drawn: Draws):
        new, accept, share = jax.vmap(step_of_row)(numbers, rows, drawn.keys, scale)
        accept = own & accept
        return _where_accepted(accept, new, rows), parts, accept, share

    return None, step


def _walks_of_rows(
    sites: Sites,
    state: SitesState,
    block: SweepBlock,
    rows: Rows,
    own: Any,
    scale: Any,
    widths: Data,
) -> tuple[Any, Any]:
    """What each row of a colour adds to the density; and a step by walks, or along the gradient,
    each accepted by that.
    """
    parts_of = lambda rows: jnp.where(own, sites.parts(state, rows), 0)
    # What others do not move has no gradient, and no velocity.
    log_density = lambda new: jnp.sum(parts_of(_where_accepted(own, new, rows)))

    def step(rows: Rows, parts, drawn: Draws):
        drawn = drawn._replace(moves={p: where_rows(own, x, 0) for p, x in drawn.moves.items()})
        proposal, gained = proposal_of(block, log_density, rows, drawn, scale, widths)
        proposed = parts_of(proposal)
        accept = own & (drawn.bounds < proposed - parts + gained)  # false where it is NaN
        parts = jnp.where(accept, proposed, parts)
        return _where_accepted(accept, proposal, rows), parts, accept, accept

    return parts_of(rows), step


def proposal_of(
    block: SweepBlock, log_density: Any, start: Rows, drawn: Draws, scale: Any, widths: Any
) -> tuple[Rows, Any]:
    """Where a step leads, and how much kinetic energy is lost on the way, of each row where rows
    move together; `scale` widens steps, of each row or of one.
    """
    if not block.num_leaps:
        return _moved(start, drawn.moves, scale), 0
    leapfrog = _Leapfrog(jax.grad(log_density), widths, _step_size(block, scale))
    rows, velocity = leapfrog.end(start, drawn.moves, jnp.reshape(drawn.num_leaps, -1)[0])
    num_axes = jnp.ndim(drawn.bounds)
    gained = leapfrog.kinetic(drawn.moves, num_axes) - leapfrog.kinetic(velocity, num_axes)
    return rows, gained


class _Leapfrog(NamedTuple):
    """q' = v, v' = w^2 dlogp/dq: Hamilton's equations in velocities v = w^2 p, of masses 1 / w^2,
    with w the widths, by path.
    """

    gradient: Callable[[Rows], Rows]
    widths: Rows
    step: Any

    def kinetic(self, velocity: Rows, num_axes: int) -> Any:
        """The kinetic energy, of each row where there is an axis for them."""
        total = 0
        for path, v in velocity.items():
            of = jnp.where(self.widths[path] > 0, v / self.widths[path], 0)
            total = total + 0.5 * jnp.sum(of**2, axis=tuple(range(num_axes, of.ndim)))
        return total

    def kicked(self, rows: Rows, velocity: Rows, share: Any) -> Rows:
        """Velocities after this share of a step."""
        found = {}
        for path, x in self.gradient(rows).items():
            width = self.widths[path]
            kick = _widened(width**2 * x, share * self.step)
            found[path] = velocity[path] + jnp.where(width > 0, kick, 0)
        return found

    def end(self, rows: Rows, velocity: Rows, num_leaps: Any) -> tuple[Rows, Rows]:
        """Rows and velocities after so many steps, with half a kick at both ends."""

        def leap(turn, carry):
            rows, velocity = carry
            rows = _moved(rows, velocity, self.step)
            return rows, self.kicked(rows, velocity, jnp.where(turn == num_leaps - 1, 0.5, 1.0))

        return lax.fori_loop(0, num_leaps, leap, (rows, self.kicked(rows, velocity, 0.5)))


def _moved(rows: Rows, moves: Rows, scale: Any) -> Rows:
    return {path: x + _widened(moves[path], scale) for path, x in rows.items()}


def _step_size(block: SweepBlock, scale: Any) -> Any:
    return block.step_size if scale is None else block.step_size * scale


def _by_kernel(
    block: SweepBlock, log_density: Any, start: Rows, words: Any, scale: Any
) -> tuple[Rows, Any, Any]:
    """A step of a kernel of another library: where it leads, whether it moved, and with which
    probability it was accepted.
    """
    assert block.kernel is not None
    flat, rows_of = ravel_pytree([start[path] for path in block.paths])
    is_whole = block.elements is None
    elements = np.array(() if is_whole else block.elements, int)
    filled = lambda x: x if is_whole else flat.at[elements].set(x)
    at = lambda x: dict(zip(block.paths, rows_of(filled(x)), strict=True))
    try:
        algorithm = block.kernel.value(lambda x: log_density(at(x)), _step_size(block, scale))
    except TypeError as error:
        error.add_note(of_two_arguments())
        raise
    # Not by the default generator, whose keys the user may have made longer.
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    position = flat if is_whole else flat[elements]
    found, info = algorithm.step(key, algorithm.init(position, key))
    has_moved = jnp.any(found.position != position)
    rate = getattr(info, "acceptance_rate", has_moved)
    return at(found.position), has_moved, jnp.asarray(rate).astype(flat.dtype)


def _widened(x: Any, scale: Any) -> Any:
    """Rows times one factor, or one of each; None: as they are."""
    if scale is None:
        return x
    factor = jnp.asarray(scale)
    return (x * factor.reshape(*factor.shape, *[1] * (x.ndim - factor.ndim))).astype(x.dtype)


def colours_of(sites: Sites, state: SitesState, block: SweepBlock) -> list[Any]:
    """Of each colour, which rows have it."""
    colours = sites.colours(state, block.paths)
    return [colours == colour for colour in range(block.num_colours)]


def where_rows(accept: Any, new: Any, old: Any) -> Any:
    """Row by row."""
    return jnp.where(accept.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _where_accepted(accept: Any, new: Rows, old: Rows) -> Rows:
    return {path: where_rows(accept, new[path], x) for path, x in old.items()}
