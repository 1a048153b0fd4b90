"""Chains of which whole sweeps are one compiled program: rows of an input are sites, and a step of
one reads and writes its own rows alone.

In: a log-density, blocks that walk. Out: a `Chain`. It must not know other updates.

A step of site i is Metropolis: theta_i' = theta_i + w_i z, accepted where log u < f(theta') - f(theta).
f(theta') is `Sites.look`, theta' is written by `Sites.settle`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax._messages import not_by_rows
from incrax._progress import Meter
from incrax.engine.call.sites import Sites, SitesState
from incrax.engine.inputs.paths import is_within
from incrax.samplers.chain import Chain, generator
from incrax.samplers.density import Density
from incrax.samplers.messages import bad_start, not_compiled, unequal_rows, wrong_number
from incrax.samplers.updates import Update, Walk, widths_of

ROWS = "[*]"
"""After a path: each row along the first axis is a block of its own."""

CHUNK_S = 0.25
"""Seconds, about, of sweeps that run without a look at the clock: so long Ctrl-C may wait."""

MAX_NUMBERS = 2**20
"""Random numbers, about, that are drawn for one chunk."""


def is_by_rows(name: Any) -> bool:
    """Whether a block's name says that each row is a block of its own."""
    parts = name if isinstance(name, tuple) else (name,)
    return any(isinstance(part, str) and part.endswith(ROWS) for part in parts)


class _Walkers(NamedTuple):
    """A block that moves as a whole, or blocks of which each has one row of the same inputs.

    Fields: how the user names it; paths of the inputs; how many rows these have, None: it moves as
    a whole; steps in a row.
    """

    name: str
    paths: tuple[str, ...]
    num_rows: int | None
    times: int

    @property
    def num_steps(self) -> int:
        """In a sweep."""
        return self.times * (1 if self.num_rows is None else self.num_rows)


def compiled_gibbs(
    density: Density,
    updates: Mapping[Any, Update],
    groups: Sequence[tuple[str, ...]],
    key: Any,
    num: int,
    *,
    progress: bool,
) -> Chain:
    """A chain by compiled sweeps.

    Args:
        density: what is sampled.
        updates: by block.
        groups: names of the elements of each block.
        key: for the random numbers.
        num: of sweeps.
        progress: whether to show it.

    Raises:
        TypeError: an update is no `Walk`.
        BlockError: inputs that move together by rows have different numbers of them.
        StepTypeError: rows of a number are to move.
        ProposalError, StartError: as from `gibbs`.
    """
    if num < 1:
        raise wrong_number("num_sweeps", num)
    numbers = {name: k for k, name in enumerate(density.names)}
    walkers: list[_Walkers] = []
    widths: list[dict[str, np.ndarray]] = []
    for (name, update), names in zip(updates.items(), groups, strict=True):
        if not isinstance(update, Walk):
            raise not_compiled(str(name), type(update).__name__)
        if update.times < 1:
            raise wrong_number("Walk(times=...)", update.times)
        of_elements = np.zeros(len(numbers))
        of_elements[[numbers[each] for each in names]] = widths_of("Walk", update.width, names)
        moved = {
            path: part
            for path, part in zip(density.selection.paths, density.split(of_elements), strict=True)
            if np.any(part)
        }
        walkers.append(_walkers(name, update, moved))
        widths.append(moved)
    moves = [_move(each) for each in walkers]
    function: Any = density.function
    state, sites = function.sites(*density.bare(density.arguments(density.x0)), moves=moves)
    value = sites.look(state, {})[1]
    if not np.isfinite(value):
        raise bad_start(float(value))
    run = _Run(sites, tuple(walkers), widths, num)
    samples, values, accepted = run.chain(state, value, generator(key), progress=progress)
    parts = [np.asarray(samples[path], np.float64) for path in density.selection.paths]
    return Chain(
        np.concatenate([part.reshape(num, -1) for part in parts], axis=1),
        tuple(numbers),
        np.asarray(values, np.float64),
        {
            each.name: float(count) / (num * each.num_steps)
            for each, count in zip(walkers, accepted, strict=True)
        },
        num * sum(each.num_steps for each in walkers),
        density,
    )


def _walkers(name: Any, update: Walk, moved: Mapping[str, np.ndarray]) -> _Walkers:
    parts = name if isinstance(name, tuple) else (name,)
    if not is_by_rows(name):
        return _Walkers(", ".join(parts), tuple(moved), None, update.times)
    by_rows = [part.removesuffix(ROWS) for part in parts if part.endswith(ROWS)]
    lengths: dict[str, int | None] = dict.fromkeys(moved)
    for path, x in moved.items():
        if any(is_within(path, part) for part in by_rows):
            if not x.ndim:
                raise not_by_rows(path, x.shape)
            lengths[path] = len(x)
    found = set(lengths.values())
    if len(found) > 1:
        raise unequal_rows(", ".join(parts), lengths)
    return _Walkers(", ".join(parts), tuple(moved), found.pop(), update.times)


def _move(walkers: _Walkers) -> tuple[str, ...]:
    """As `Incremental.sites` names it."""
    suffix = "" if walkers.num_rows is None else ROWS
    return tuple(path + suffix for path in walkers.paths)


# --- the program ----------------------------------------------------------------------------------


class _Record(NamedTuple):
    """Samples after each sweep, by path, and log-densities; how many steps of each block were
    accepted.
    """

    samples: dict[str, Any]
    values: Any
    accepted: Any


class _Run:
    """Sweeps of one chain."""

    def __init__(
        self,
        sites: Sites,
        walkers: tuple[_Walkers, ...],
        widths: Sequence[Mapping[str, np.ndarray]],
        num: int,
    ) -> None:
        self.sites = sites
        self.walkers = walkers
        self.widths = widths
        self.num = num
        numbers = sum(
            block.num_steps + block.times * sum(x.size for x in width.values())
            for block, width in zip(walkers, widths, strict=True)
        )
        self.most = max(min(MAX_NUMBERS // numbers, num), 1)

    def chain(
        self, state: SitesState, value: Any, rng: np.random.Generator, *, progress: bool
    ) -> _Record:
        """All sweeps, from a state with this value."""
        inputs = self.sites.inputs(state)
        empty = lambda x: jnp.empty((self.num, *x.shape), x.dtype)
        accepted = jnp.zeros(len(self.walkers), np.int32)
        record = _Record(jax.tree.map(empty, inputs), empty(value), accepted)
        dtypes = {path: x.dtype for path, x in inputs.items()}
        place: Any = (state, value)
        done, count, is_compiled = 0, 1, False
        with Meter("chain", self.num, is_shown=progress) as meter:
            while done < self.num:
                begin_s = time.perf_counter()
                draws = self._draws(rng, count, dtypes, value.dtype)
                ends = np.int32(done), np.int32(done + count)
                place, record = _sweeps(
                    self.sites, place, record, draws, *ends, walkers=self.walkers
                )
                jax.block_until_ready(record)
                each_s = (time.perf_counter() - begin_s) / count
                done += count
                meter.advance(count)
                # The first chunk compiles, which tells nothing of a sweep.
                count = max(int(CHUNK_S / each_s), 1) if is_compiled else 1
                count = min(count, self.most, self.num - done)
                is_compiled = True
        return record

    def _draws(
        self, rng: np.random.Generator, count: int, dtypes: Mapping[str, Any], dtype: Any
    ) -> list[_Draws]:
        """For the blocks, in so many sweeps; room for the most sweeps of a chunk.

        They are drawn here, sweep by sweep: in the program they take 0.3 s to compile.
        """
        made = []
        for block, width in zip(self.walkers, self.widths, strict=True):
            shape = (self.most, block.num_steps)
            rows = {path: x.shape[block.num_rows is not None :] for path, x in width.items()}
            moves = {path: np.zeros((*shape, *rows[path]), dtypes[path]) for path in width}
            made.append(_Draws(moves, np.zeros(shape, dtype)))
        for number in range(count):
            for block, width, draws in zip(self.walkers, self.widths, made, strict=True):
                for path, x in width.items():
                    of_step = np.repeat(
                        x if block.num_rows is not None else x[None], block.times, axis=0
                    )
                    draws.moves[path][number] = of_step * rng.normal(size=of_step.shape)
                draws.bounds[number] = np.log(1.0 - rng.random(block.num_steps))
        return made


class _Draws(NamedTuple):
    """Random numbers of a block, by sweep and step: by how much each input moves, by path; what
    the gain in log-density is compared with.
    """

    moves: dict[str, Any]
    bounds: Any


@functools.partial(jax.jit, static_argnames="walkers", donate_argnames="record")
def _sweeps(
    sites: Sites,
    place: tuple[SitesState, Any],
    record: _Record,
    draws: Sequence[_Draws],
    begin: Any,
    end: Any,
    *,
    walkers: tuple[_Walkers, ...],
) -> tuple[tuple[SitesState, Any], _Record]:
    """Sweeps from one number to another, entered in the record."""

    def sweep(number: Any, carry: Any) -> Any:
        place, record = carry
        own = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, number - begin, keepdims=False), draws
        )
        counts = []
        for block, drawn in zip(walkers, own, strict=True):
            place, count = _walk(sites, place, block, drawn)
            counts.append(count)
        state, value = place
        samples = {
            path: lax.dynamic_update_index_in_dim(record.samples[path], x, number, 0)
            for path, x in sites.inputs(state).items()
        }
        values = lax.dynamic_update_index_in_dim(record.values, value, number, 0)
        return place, _Record(samples, values, record.accepted + jnp.stack(counts))

    return lax.fori_loop(begin, end, sweep, (place, record))


def _walk(
    sites: Sites, place: tuple[SitesState, Any], block: _Walkers, draws: _Draws
) -> tuple[tuple[SitesState, Any], Any]:
    """All steps of a block in one sweep, and how many were accepted."""
    numbers = np.arange(block.num_steps, dtype=np.int32) // block.times

    def step(carry: Any, turn: Any) -> Any:
        state, value, count = carry
        number, (moves, bound) = turn
        inputs = sites.inputs(state)
        changes: dict[str, Any] = {}
        for path, x in moves.items():
            if block.num_rows is None:
                changes[path] = inputs[path] + x
            else:
                row = lax.dynamic_index_in_dim(inputs[path], number, keepdims=False)
                changes[path] = (number, row + x)
        delta, proposed = sites.look(state, changes)
        accept = bound < proposed - value  # false where it is NaN
        state = sites.settle(state, delta, accept)
        return (state, jnp.where(accept, proposed, value), count + accept), None

    (state, value, count), _ = lax.scan(step, (*place, np.int32(0)), (numbers, draws))
    return (state, value), count
