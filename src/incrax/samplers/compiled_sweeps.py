"""Chains of which whole sweeps are one compiled program: rows of an input are sites, and a step of
one reads and writes its own rows alone.

In: a log-density, blocks that walk, follow the gradient, move by a kernel of another library or
take one of a few values. Out: samples. It must not know other updates.

A step of a walk is Metropolis: theta_i' = theta_i + w_i z, accepted where log u < f(theta') -
f(theta). f(theta') is `Sites.look`, theta' is written by `Sites.settle`. A Hamiltonian step is the
same with theta' at the end of a trajectory along the gradient of `look`. A kernel has `look` as its
log-density, and decides itself. A step of a categorical site looks at all its values, and draws one
with p(v) ~ exp f(theta_i = v). Rows that are known not to interact, f = c + sum_i p_i(theta_i),
move all at once, each by its own p_i: given all else their conditional distributions are
independent, and the same random numbers give the same chain.

Several chains take turns: their programs run side by side as far as there are cores, or devices,
and each costs what it costs alone.
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
from jax.flatten_util import ravel_pytree

from incrax._messages import not_by_rows
from incrax._progress import Meter
from incrax.engine.call.sites import Sites, SitesState
from incrax.engine.inputs.paths import is_within
from incrax.engine.program.functions import Identity
from incrax.samplers.chain import Chain, Job, generators
from incrax.samplers.checkpoints import Checkpoint
from incrax.samplers.density import Density
from incrax.samplers.messages import (
    bad_start,
    not_compiled,
    not_one_input,
    other_candidates,
    other_checkpoint,
    unequal_rows,
)
from incrax.samplers.updates import (
    Categorical,
    Hamiltonian,
    Kernel,
    Walk,
    adaptation_gain,
    target_of,
    widths_of,
)

ROWS = "[*]"
"""After a path: each row along the first axis is a block of its own."""

CHUNK_S = 0.25
"""Seconds, about, of sweeps that run without a look at the clock: so long Ctrl-C may wait."""

MIN_OF_COLOUR = 64
"""Rows of a colour, on average, from which on they move at once."""

KEY_SIZE = 2
"""Words of 32 bits of a key of the kernels of others."""

MAX_NUMBERS = 2**20
"""Random numbers, about, that are drawn for one chunk."""


def is_by_rows(name: Any) -> bool:
    """Whether a block's name says that each row is a block of its own."""
    parts = name if isinstance(name, tuple) else (name,)
    return any(isinstance(part, str) and part.endswith(ROWS) for part in parts)


class SweepBlock(NamedTuple):
    """A block that moves as a whole, or blocks of which each has one row of the same inputs.

    Fields: how the user names it; paths of the inputs; how many rows these have, None: it moves as
    a whole; steps in a row; how many values it takes, None: it moves continuously; which share of
    steps the warm-up wants accepted, None: widths are given; whether rows are known not to
    interact; of values, whether the next one is proposed at random, and never the same, see
    `Categorical`; of trajectories, how many leapfrog steps they have at most and of which size, 0:
    it walks; by how many colours rows move that interact with few others, 0: one by one; the
    function that makes its kernel, None: it has none; of a block that is a part of its inputs,
    numbers of its elements, None: it is all of them.
    """

    name: str
    paths: tuple[str, ...]
    num_rows: int | None
    times: int = 1
    num_values: int | None = None
    target: float | None = None
    is_independent: bool = False
    random_walk: bool = False
    modified: bool = False
    num_leaps: int = 0
    step_size: float = 1.0
    num_colours: int = 0
    kernel: Identity | None = None
    elements: tuple[int, ...] | None = None

    @property
    def num_blocks(self) -> int:
        """One, or one for each row."""
        return 1 if self.num_rows is None else self.num_rows

    @property
    def is_together(self) -> bool:
        """Whether all rows, or all of a colour, move at once."""
        return self.is_independent or self.num_colours > 0

    @property
    def num_steps(self) -> int:
        """In a sweep."""
        return self.times * self.num_blocks

    @property
    def num_looks(self) -> int:
        """In a sweep, at most; a gradient counts as one."""
        of_step = self.num_values or 1
        return self.num_steps * (self.num_leaps + 2 if self.num_leaps else of_step)

    @property
    def move(self) -> tuple[str, ...]:
        """As `Incremental.sites` names it."""
        suffix = "" if self.num_rows is None else ROWS
        return tuple(path + suffix for path in self.paths)


def _coloured(block: SweepBlock, sites: Sites, state: SitesState) -> SweepBlock:
    """A block by rows that knows which of them may move at once."""
    if sites.are_independent(state, block.paths):
        return block._replace(is_independent=True)
    colours = sites.colours(state, block.paths)
    num = 0 if colours is None else int(colours.max()) + 1
    # An evaluation of all rows for each colour must cost less than a step of each row.
    return block._replace(num_colours=num if num * MIN_OF_COLOUR <= block.num_blocks else 0)


Data = dict[str, np.ndarray]
"""Of a block, by path: widths in the shape of the input, or the values that a row may take."""


def compiled_chain(
    density: Density, updates: Mapping[Any, Any], groups: Sequence[tuple[str, ...]], job: Job
) -> Chain:
    """Chains by compiled sweeps.

    Args:
        density: what is sampled.
        updates: by block.
        groups: names of the elements of each block.
        job: how much of it.

    Raises:
        TypeError: an update is a `Conditional`.
        BlockError: inputs that move together by rows have different numbers of them.
        StepTypeError: rows of a number are to move.
        NotCalledError: the function has effects or calls the host.
        ProposalError, StartError: as from `gibbs`.
    """
    made = [
        _made(density, name, update, names)
        for (name, update), names in zip(updates.items(), groups, strict=True)
    ]
    blocks = tuple(block for block, _ in made)
    function: Any = density.function
    state, sites = function.sites(*density.start(), moves=[block.move for block in blocks])
    blocks = tuple(
        block if block.num_rows is None else _coloured(block, sites, state) for block in blocks
    )
    run = _Run(sites, blocks, [data for _, data in made], job)
    records = run.chains(_started(sites, state, blocks, job))
    paths = density.selection.paths
    parts = [np.stack([np.asarray(each.samples[path]) for each in records]) for path in paths]
    shape = (len(records), job.num_sweeps)
    samples = np.concatenate([np.float64(x.reshape(*shape, -1)) for x in parts], axis=-1)
    values = np.stack([np.asarray(each.values, np.float64) for each in records])
    steps = job.num_sweeps * len(records) * np.array([block.num_steps for block in blocks])
    shares = sum(each.accepted for each in records) / steps
    return Chain(
        samples if job.chains is not None else samples[0],
        density.names,
        values if job.chains is not None else values[0],
        {block.name: float(share) for block, share in zip(blocks, shares, strict=True)},
        job.num_all * len(records) * sum(block.num_looks for block in blocks),
        density,
    )


# --- blocks ---------------------------------------------------------------------------------------


def _made(
    density: Density, name: Any, update: Any, names: Sequence[str]
) -> tuple[SweepBlock, Data]:
    """A block of the sweep, and its data."""
    shown = ", ".join(name) if isinstance(name, tuple) else name
    is_own = np.isin(density.names, names)
    if isinstance(update, Categorical):
        return _categorical(density, shown, update, is_own)
    if not isinstance(update, (Walk, Hamiltonian, Kernel)):
        raise not_compiled(shown, type(update).__name__)
    update.check(names)
    # Elements in the order of the vector, widths in that in which the block names them.
    order = {each: k for k, each in enumerate(density.names)}
    widths = np.zeros(len(order))
    kind = type(update).__name__
    width = 1.0 if isinstance(update, Kernel) else update.width
    widths[[order[each] for each in names]] = widths_of(kind, width, names)
    moved = {path: x for path, x in _by_path(density, widths) if np.any(x)}
    num_rows = _num_rows(name, shown, moved)
    size = len(names) // (num_rows or 1)
    block = SweepBlock(shown, tuple(moved), num_rows, target=target_of(update, size))
    if isinstance(update, Hamiltonian):
        leaps = {"num_leaps": update.num_steps, "step_size": float(update.step)}
        return block._replace(**leaps), moved
    if isinstance(update, Kernel):
        is_own = np.concatenate([np.ravel(x) > 0 for x in moved.values()])
        part = None if np.all(is_own) else tuple(np.flatnonzero(is_own).tolist())
        step_size = 1.0 if update.step_size is None else float(update.step_size)
        block = block._replace(kernel=Identity(update.make), elements=part, step_size=step_size)
        return block._replace(times=update.times), {}
    if update.width is None:
        # A vector of d normal elements wants steps of 2.4 / sqrt(d); see `sweeping.WIDTH`.
        moved = {path: x / np.sqrt(size) for path, x in moved.items()}
    return block._replace(times=update.times), moved


def _by_path(density: Density, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return list(zip(density.selection.paths, density.split(x), strict=True))


def _num_rows(name: Any, shown: str, moved: Mapping[str, np.ndarray]) -> int | None:
    """How many rows move by themselves; None: none.

    Raises:
        BlockError: different numbers.
    """
    if not is_by_rows(name):
        return None
    parts = name if isinstance(name, tuple) else (name,)
    by_rows = [part.removesuffix(ROWS) for part in parts if part.endswith(ROWS)]
    lengths: dict[str, int | None] = dict.fromkeys(moved)
    for path, x in moved.items():
        if any(is_within(path, part) for part in by_rows):
            if not x.ndim:
                raise not_by_rows(path, x.shape)
            lengths[path] = len(x)
    found = set(lengths.values())
    if len(found) > 1:
        raise unequal_rows(shown, lengths)
    return found.pop()


def _categorical(
    density: Density, shown: str, update: Categorical, is_own: np.ndarray
) -> tuple[SweepBlock, Data]:
    own = [(path, x) for path, x in _by_path(density, is_own) if np.any(x)]
    if len(own) > 1 or not np.all(own[0][1]):
        raise not_one_input(shown, [path for path, _ in own])
    path, x = own[0]
    place = density.selection.paths.index(path)
    dtype = jax.dtypes.result_type(density.selection.values[place])
    values = update.candidates
    expected = x.shape[1:]
    if values.shape[1:] != expected or not np.array_equal(values.astype(dtype), values):
        seen = f"dtype {values.dtype} and shape {values.shape}"
        raise other_candidates(shown, seen, f"a row has dtype {dtype} and shape {expected}")
    num_rows = len(x) if x.ndim else None
    block = SweepBlock(
        shown, (path,), num_rows, 1, len(values),
        random_walk=update.random_walk, modified=update.modified,
    )  # fmt: skip
    return block, {path: values.astype(dtype)}


# --- the program ----------------------------------------------------------------------------------


class _Start(NamedTuple):
    """Where a chain is: the state, its log-density, and by how much the warm-up has widened the
    steps of each block, or row.
    """

    state: SitesState
    value: Any
    log_scales: tuple[Any, ...]


class _Record(NamedTuple):
    """Samples after each sweep, by path, and log-densities; how many steps of each block were
    accepted, on the device those of a chunk.
    """

    samples: dict[str, Any]
    values: Any
    accepted: Any


class _Draws(NamedTuple):
    """Random numbers of a block, by sweep and step: by how much each input moves, or its velocity
    at the start of a trajectory, by path; what the gain in log-density is compared with, or where
    among all probabilities the value lies; how many leapfrog steps; the key of a kernel.
    """

    moves: dict[str, Any]
    bounds: Any
    num_leaps: Any = None
    keys: Any = None


def _started(
    sites: Sites, state: SitesState, blocks: Sequence[SweepBlock], job: Job
) -> list[_Start]:
    """Where each chain starts.

    Raises:
        StartError: where the density is zero, or no number.
    """
    start = jax.jit(lambda sites, state, changes: sites.start(changes, state))
    states = [state] * job.num_chains
    given = job.starts
    if given is not None:
        dtypes = {path: x.dtype for path, x in sites.inputs(state).items()}
        for number in range(job.num_chains):
            own = {path: jnp.asarray(x[number], dtypes[path]) for path, x in given.items()}
            states[number] = start(sites, state, own)
    scales = tuple(jnp.zeros(block.num_blocks) for block in blocks)
    places = []
    for own in states:
        value = sites.look(own, {})[1]
        if not np.isfinite(value):
            raise bad_start(float(value))
        places.append(_Start(own, value, tuple(x.astype(value.dtype) for x in scales)))
    return places


class _Run:
    """Sweeps of some chains."""

    def __init__(
        self, sites: Sites, blocks: tuple[SweepBlock, ...], data: Sequence[Data], job: Job
    ) -> None:
        num_devices = 1 if job.devices is None else len(job.devices)
        self.sites = job.placed([sites] * min(num_devices, job.num_chains))
        self.blocks = blocks
        self.data = data
        self.job = job
        self.shared = tuple(
            {path: jnp.asarray(x) for path, x in own.items()}
            if block.num_values is not None or block.num_leaps
            else None
            for block, own in zip(blocks, data, strict=True)
        )
        numbers = job.num_chains * sum(
            block.num_steps + block.times * sum(x.size for x in own.values())
            for block, own in zip(blocks, data, strict=True)
        )
        self.most = max(min(MAX_NUMBERS // numbers, job.num_all), 1)

    def chains(self, places: list[_Start]) -> list[_Record]:
        """All sweeps of all chains, from these places, or from a checkpoint."""
        job = self.job
        rngs = generators(job.key, job.chains)
        inputs = self.sites[0].inputs(places[0].state)
        empty = lambda x: jnp.empty((job.num_sweeps, *x.shape), x.dtype)
        none = np.zeros(len(self.blocks), np.int32)
        records = [
            _Record(jax.tree.map(empty, inputs), empty(place.value), none) for place in places
        ]
        accepted = [none.astype(np.int64) for _ in places]
        dtypes = {path: x.dtype for path, x in inputs.items()}
        kept = Checkpoint(job.checkpoint, self._plan(inputs))
        done, (places, records, accepted) = kept.restore((places, records, accepted), rngs, job)
        places = job.placed(places)
        records = job.placed(records)
        if done:
            self._check_density(places[0], kept.path)
        count = 1
        is_compiled = False
        with Meter("chain", job.num_all, is_shown=job.progress) as meter:
            meter.advance(done)
            while done < job.num_all:
                begin_s = time.perf_counter()
                begin = done - job.num_warmup
                gains = np.zeros(self.most, places[0].value.dtype)
                sweeps = range(done, min(done + count, job.num_warmup))
                gains[: len(sweeps)] = [adaptation_gain(sweep) for sweep in sweeps]
                for number, rng in enumerate(rngs):
                    draws = self._draws(rng, count, dtypes, gains.dtype)
                    places[number], records[number] = _sweeps(
                        self.sites[number % len(self.sites)],
                        places[number],
                        records[number],
                        (draws, self.shared, gains),
                        np.int32(begin),
                        np.int32(begin + count),
                        blocks=self.blocks,
                    )
                jax.block_until_ready(records)
                for number, record in enumerate(records):
                    accepted[number] = accepted[number] + np.asarray(record.accepted)
                    records[number] = record._replace(accepted=none)
                each_s = (time.perf_counter() - begin_s) / count
                done += count
                meter.advance(count)
                kept.save(done, (places, records, accepted), rngs, job)
                # The first chunk compiles, which tells nothing of a sweep.
                count = max(int(CHUNK_S / each_s), 1) if is_compiled else 1
                count = min(count, self.most, job.num_all - done)
                is_compiled = True
        return [
            record._replace(accepted=total) for record, total in zip(records, accepted, strict=True)
        ]

    def _check_density(self, place: _Start, path: Any) -> None:
        """Other data of the same shapes make another log-density.

        Raises:
            StartError: it is another one.
        """
        sites = self.sites[0]
        anew = sites.start(sites.inputs(place.state), place.state)
        value = sites.look(anew, {})[1]
        if not np.allclose(value, place.value, rtol=1e-4, atol=1e-4):
            raise other_checkpoint(str(path))

    def _plan(self, inputs: Mapping[str, Any]) -> list[Any]:
        """What a checkpoint must have been made of."""
        shapes = [[path, list(x.shape), str(x.dtype)] for path, x in inputs.items()]
        digits = [[float(np.sum(x)) for x in own.values()] for own in self.data]
        # Of a kernel a file can have the name alone.
        named = [[*block._replace(kernel=None), _kernel_name(block)] for block in self.blocks]
        return [shapes, named, digits, self.job.num_chains]

    def _draws(
        self, rng: np.random.Generator, count: int, dtypes: Mapping[str, Any], dtype: Any
    ) -> tuple[_Draws, ...]:
        """For the blocks, in so many sweeps; room for the most sweeps of a chunk.

        They are drawn here, sweep by sweep: in the program they take 0.3 s to compile.
        """
        made = []
        for block, own in zip(self.blocks, self.data, strict=True):
            shape = (self.most, block.num_steps)
            moves = {}
            for path, x in own.items() if block.num_values is None else ():
                row = x.shape[block.num_rows is not None :]
                moves[path] = np.zeros((*shape, *row), dtypes[path])
            leaps = np.zeros(shape, np.int32) if block.num_leaps else None
            keys = None if block.kernel is None else np.zeros((*shape, KEY_SIZE), np.uint32)
            made.append(_Draws(moves, np.zeros(shape, dtype), leaps, keys))
        for number in range(count):
            for block, own, draws in zip(self.blocks, self.data, made, strict=True):
                if block.kernel is not None:
                    words = rng.integers(2**32, size=draws.keys.shape[1:], dtype=np.uint32)
                    draws.keys[number] = words
                    continue
                for path, into in draws.moves.items():
                    x = own[path] if block.num_rows is not None else own[path][None]
                    of_step = np.repeat(x, block.times, axis=0)
                    into[number] = of_step * rng.normal(size=of_step.shape)
                uniform = rng.random(block.num_steps)
                is_drawn = block.num_values is not None
                draws.bounds[number] = uniform if is_drawn else np.log(1.0 - uniform)
                if block.num_leaps:
                    low, high = (block.num_leaps + 1) // 2, block.num_leaps + 1
                    draws.num_leaps[number] = rng.integers(low, high, block.num_steps)
        return tuple(made)


def _kernel_name(block: SweepBlock) -> str | None:
    if block.kernel is None:
        return None
    make = block.kernel.value
    return getattr(make, "__qualname__", type(make).__name__)


@functools.partial(jax.jit, static_argnames="blocks", donate_argnames="record")
def _sweeps(
    sites: Sites,
    place: _Start,
    record: _Record,
    numbers: tuple[Sequence[_Draws], Sequence[Any], Any],
    begin: Any,
    end: Any,
    *,
    blocks: tuple[SweepBlock, ...],
) -> tuple[_Start, _Record]:
    """Sweeps from one number to another, entered in the record; those below zero are the warm-up,
    which is not. `numbers`: random ones; by path the values of a categorical block, or widths of
    trajectories; gains of the warm-up by sweep.
    """
    draws, shared, gains = numbers

    def sweep(number: Any, carry: Any) -> Any:
        place, record = carry
        at = lambda x: lax.dynamic_index_in_dim(x, number - begin, keepdims=False)
        position = place.state, place.value
        counts, scales = [], []
        rows = zip(blocks, jax.tree.map(at, draws), shared, place.log_scales, strict=True)
        for block, drawn, own, scale in rows:
            if block.num_values is not None:
                values = own[block.paths[0]]
                position, count = drawn_rows(sites, position, block, drawn.bounds, values)
            else:
                move = _step_together if block.is_together else _step_each
                position, count, share = move(sites, position, block, drawn, scale, own)
                if block.target is not None:
                    scale = scale + at(gains) * (share - block.target)
            counts.append(count)
            scales.append(scale)
        place = _Start(*position, tuple(scales))
        index = jnp.maximum(number, 0)  # the first sample is written over the warm-up's
        write = lambda into, x: lax.dynamic_update_index_in_dim(into, x, index, 0)
        samples = jax.tree.map(write, record.samples, sites.inputs(place.state))
        counted = jnp.where(number < 0, 0, jnp.stack(counts))
        values = write(record.values, place.value)
        return place, _Record(samples, values, record.accepted + counted)

    return lax.fori_loop(begin, end, sweep, (place, record))


Position = tuple[SitesState, Any]
"""A state and its log-density."""


def _step_each(
    sites: Sites, position: Position, block: SweepBlock, draws: _Draws, log_scale: Any,
    widths: Data | None = None,
) -> tuple[Position, Any, Any]:  # fmt: skip
    """All steps of a block in one sweep; how many were accepted, and, where widths are adapted, of
    each row which share.
    """
    numbers = np.arange(block.num_steps, dtype=np.int32) // block.times
    is_adapted = block.target is not None
    scales = jnp.exp(log_scale)[numbers] if is_adapted else None

    def step(carry: Any, turn: Any) -> Any:
        state, value, count = carry
        number, drawn, scale, own_widths = turn
        inputs = sites.inputs(state)
        start = {path: inputs[path] for path in block.paths}
        changes = lambda rows: rows
        if block.num_rows is not None:
            row_of = lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False)
            start = jax.tree.map(row_of, start)
            changes = lambda rows: {path: (number, row) for path, row in rows.items()}
        log_density = lambda rows: sites.look(state, changes(rows))[1]
        if block.kernel is not None:
            rows, accept, share = _by_kernel(block, log_density, start, drawn.keys, scale)
            delta, proposed = sites.look(state, changes(rows))
        else:
            rows, gained = _proposed(block, log_density, start, drawn, scale, own_widths)
            delta, proposed = sites.look(state, changes(rows))
            log_ratio = proposed - value + gained
            accept = drawn.bounds < log_ratio  # false where it is NaN
            share = accept
        state = sites.settle(state, delta, accept)
        value = jnp.where(accept, proposed, value)
        return (state, value, count + accept), share if is_adapted else None

    if widths is not None and block.num_rows is None:
        widths = {path: x[None] for path, x in widths.items()}
    turns = numbers, draws, scales, widths
    (state, value, count), shares = lax.scan(step, (*position, np.int32(0)), turns)
    share = jnp.mean(shares.reshape(-1, block.times), 1, value.dtype) if is_adapted else None
    return (state, value), count, share


def _step_together(
    sites: Sites, position: Position, block: SweepBlock, draws: _Draws, log_scale: Any,
    widths: Data | None = None,
) -> tuple[Position, Any, Any]:  # fmt: skip
    """The same for rows that do not interact: all rows make their first step, then their second."""
    state, value = position
    inputs = sites.inputs(state)
    rows = {path: inputs[path] for path in block.paths}
    # Random numbers are in the order in which rows take turns.
    turns = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(block.num_blocks, block.times, *x.shape[1:]), 1, 0), draws
    )
    move = _Together(sites, state, block, turns, log_scale, widths)
    steps = move.by_walks if block.kernel is None else move.by_kernels
    count: Any = 0
    total: Any = 0
    for own in _colours(sites, state, block):
        rows, more, of_share = steps(rows, own)
        count = count + more
        total = total + of_share
    state = sites.start(rows, state)
    share = total.astype(value.dtype) / block.times
    return (state, sites.look(state, {})[1]), jnp.sum(count, dtype=np.int32), share


class _Together(NamedTuple):
    """Steps side by side of those rows of a block that have one colour.

    Fields: where they start; the block; random numbers by turn and row; logarithms of what widens
    steps; widths. Its methods take all rows, and which of them are the colour's own; they return the
    rows, how many steps of each were accepted, and the sum of the shares to adapt by.
    """

    sites: Sites
    state: SitesState
    block: SweepBlock
    turns: _Draws
    log_scale: Any
    widths: Data | None

    def by_kernels(self, rows: Rows, own: Any) -> tuple[Rows, Any, Any]:
        """By a kernel for each row: none needs the new values of the others."""
        sites = self.sites
        at = sites.start(rows, self.state)
        numbers = np.arange(self.block.num_blocks, dtype=np.int32)

        def step_of_row(number: Any, row: Rows, key: Any, scale: Any) -> Any:
            changes = lambda row: {path: (number, x) for path, x in row.items()}
            log_density = lambda row: sites.look(at, changes(row))[1]
            return _by_kernel(self.block, log_density, row, key, scale)

        def step(carry: Any, drawn: Any) -> Any:
            rows, count, total = carry
            scales = jnp.exp(self.log_scale)
            new, accept, share = jax.vmap(step_of_row)(numbers, rows, drawn.keys, scales)
            accept = own & accept
            rows = {path: _where(accept, new[path], x) for path, x in rows.items()}
            return (rows, count + accept, total + jnp.where(own, share, 0)), None

        none = jnp.zeros(self.block.num_blocks, np.int32)
        carry = rows, none, none.astype(jnp.result_type(float))
        (rows, count, total), _ = lax.scan(step, carry, self.turns)
        return rows, count, total

    def by_walks(self, rows: Rows, own: Any) -> tuple[Rows, Any, Any]:
        """By walks, or along the gradient; each accepted by what its row adds to the density."""
        block = self.block
        sites = self.sites
        is_coloured = not block.is_independent
        parts_of = lambda rows: jnp.where(
            own, sites.parts(self.state, rows, coloured=is_coloured), 0
        )
        # What others do not move has no gradient, and no velocity.
        free = lambda new: {path: _where(own, new[path], x) for path, x in rows.items()}

        def step(carry: Any, drawn: Any) -> Any:
            rows, parts, count = carry
            log_density = lambda rows: jnp.sum(parts_of(free(rows)))
            drawn = drawn._replace(moves={p: _where(own, x, 0) for p, x in drawn.moves.items()})
            scale = jnp.exp(self.log_scale)
            proposal, gained = _proposed(block, log_density, rows, drawn, scale, self.widths)
            proposed = parts_of(proposal)
            accept = own & (drawn.bounds < proposed - parts + gained)  # false where it is NaN
            rows = {path: _where(accept, proposal[path], x) for path, x in rows.items()}
            return (rows, jnp.where(accept, proposed, parts), count + accept), None

        carry = rows, parts_of(rows), jnp.zeros(block.num_blocks, np.int32)
        (rows, _, count), _ = lax.scan(step, carry, self.turns)
        return rows, count, count


Rows = dict[str, Any]
"""Of the inputs of a block, by path: one row of each, or all that move together."""


def _proposed(
    block: SweepBlock, log_density: Any, start: Rows, drawn: _Draws, scale: Any, widths: Any
) -> tuple[Rows, Any]:
    """Where a step leads, and how much kinetic energy is lost on the way, of each row where rows
    move together; `scale` widens steps, of each row or of one.
    """
    widened = lambda x, by: x if by is None else (x * _by_row(by, x)).astype(x.dtype)
    if not block.num_leaps:
        return {path: x + widened(drawn.moves[path], scale) for path, x in start.items()}, 0
    # q' = v, v' = w^2 dlogp/dq: Hamilton's equations in velocities v = w^2 p, of masses 1 / w^2.
    step = block.step_size if scale is None else block.step_size * scale
    gradient = jax.grad(log_density)
    num_axes = jnp.ndim(drawn.bounds)
    num_leaps = jnp.reshape(drawn.num_leaps, -1)[0]

    def kinetic(velocity: Rows) -> Any:
        """Of each row, or all."""
        total = 0
        for path, v in velocity.items():
            of = jnp.where(widths[path] > 0, v / widths[path], 0)
            total = total + 0.5 * jnp.sum(of**2, axis=tuple(range(num_axes, of.ndim)))
        return total

    def kick(rows: Rows, velocity: Rows, share: Any) -> Rows:
        found = gradient(rows)
        return {
            path: v + jnp.where(widths[path] > 0, widened(widths[path] ** 2 * x, share * step), 0)
            for (path, v), x in zip(velocity.items(), found.values(), strict=True)
        }

    def leap(turn: Any, carry: Any) -> Any:
        rows, velocity = carry
        rows = {path: x + widened(velocity[path], step) for path, x in rows.items()}
        return rows, kick(rows, velocity, jnp.where(turn == num_leaps - 1, 0.5, 1.0))

    carry = start, kick(start, drawn.moves, 0.5)
    rows, velocity = lax.fori_loop(0, num_leaps, leap, carry)
    return rows, kinetic(drawn.moves) - kinetic(velocity)


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
    step_size = block.step_size if scale is None else block.step_size * scale
    algorithm = block.kernel.value(lambda x: log_density(at(x)), step_size)
    # Not by the default generator, whose keys the user may have made longer.
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    position = flat if is_whole else flat[elements]
    found, info = algorithm.step(key, algorithm.init(position, key))
    has_moved = jnp.any(found.position != position)
    rate = getattr(info, "acceptance_rate", has_moved)
    return at(found.position), has_moved, jnp.asarray(rate).astype(flat.dtype)


def _by_row(factor: Any, x: Any) -> Any:
    """One factor, or one of each row, in as many axes as rows have."""
    factor = jnp.asarray(factor)
    return factor.reshape(*factor.shape, *[1] * (x.ndim - factor.ndim))


def _colours(sites: Sites, state: SitesState, block: SweepBlock) -> list[Any]:
    """Of each colour, which rows have it; of rows that do not interact all have one."""
    if block.is_independent:
        return [np.ones(block.num_blocks, bool)]
    colours = sites.colours(state, block.paths)
    return [colours == colour for colour in range(block.num_colours)]


def _where(accept: Any, new: Any, old: Any) -> Any:
    """Row by row."""
    return jnp.where(accept.reshape(-1, *[1] * (new.ndim - 1)), new, old)


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

    def step(position: Any, turn: Any) -> Any:
        state, value = position
        number, uniform = turn
        change = lambda row: row if block.num_rows is None else (number, row)
        deltas, found = jax.vmap(lambda row: sites.look(state, {path: change(row)}))(candidates)
        row = sites.inputs(state)[path]
        if block.num_rows is not None:
            row = lax.dynamic_index_in_dim(row, number, keepdims=False)
        chosen, is_possible = _chosen(block, candidates, row, found, uniform)
        take = lambda x: lax.dynamic_index_in_dim(x, chosen, keepdims=False)
        state = sites.settle(state, jax.tree.map(take, deltas), is_possible)
        return (state, jnp.where(is_possible, take(found), value)), None

    before = sites.inputs(position[0])[path]
    turns = np.arange(block.num_steps, dtype=np.int32), uniform
    position, _ = lax.scan(step, position, turns)
    # Not in the steps: a row that is read there and used after the write costs a copy of all rows.
    is_other = before != sites.inputs(position[0])[path]
    by_row = jnp.any(is_other.reshape(block.num_blocks, -1), axis=1)
    return position, jnp.sum(by_row, dtype=np.int32)


def _draw_together(
    sites: Sites, position: Position, block: SweepBlock, uniform: Any, candidates: Any
) -> tuple[Position, Any]:
    """For rows that do not interact: one evaluation for each value, of all rows."""
    state, _ = position
    (path,) = block.paths
    before = sites.inputs(state)[path]
    chosen_of = functools.partial(_chosen, block, candidates)
    coloured = not block.is_independent
    rows = before
    for own in _colours(sites, state, block):
        at = lambda row, rows=rows, own=own: _where(own, jnp.broadcast_to(row, rows.shape), rows)
        all_at = lambda row, at=at: sites.parts(state, {path: at(row)}, coloured=coloured)
        log_weights = lax.map(all_at, candidates)
        chosen, is_possible = jax.vmap(chosen_of, (0, 1, 0))(rows, log_weights, uniform)
        rows = _where(is_possible & own, candidates[chosen], rows)
    state = sites.start({path: rows}, state)
    is_other = jnp.any((rows != before).reshape(block.num_blocks, -1), axis=1)
    return (state, sites.look(state, {})[1]), jnp.sum(is_other, dtype=np.int32)


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
        if block.random_walk:
            # Each value, or each other one, is proposed alike, and accepted with min(1, p' / p).
            ratio = jnp.exp(jnp.minimum(log_weights - log_weights[own], 0))
            moves = jnp.where(log_weights > -jnp.inf, ratio, 0) / (len(ratio) - block.modified)
        else:
            moves = _modified(shares, own)
        is_own = jnp.arange(len(moves)) == own
        moves = jnp.where(is_own, 0, moves)
        shares = jnp.where(is_own, jnp.maximum(1 - jnp.sum(moves), 0), moves)
    sums = jnp.cumsum(shares)
    total = sums[-1]
    # Rounding up to the whole sum would choose what has no weight.
    at = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.sum(sums <= at, dtype=np.int32), jnp.isfinite(highest)


def _modified(weights: Any, own: Any) -> Any:
    """Probabilities of other values: p' / (1 - p) proposes one, min(1, (1 - p) / (1 - p')) accepts.

    Source: Liu (1996), Peskun's theorem and a modified discrete-state Gibbs sampler.
    """
    top = jnp.argmax(weights)
    # Beside a weight of nearly all, a difference would lose the others.
    beside_top = jnp.sum(jnp.where(jnp.arange(len(weights)) == top, 0, weights))
    others = (jnp.sum(weights) - weights).at[top].set(beside_top)
    return weights / jnp.maximum(others[own], others)
