"""Chains of which whole sweeps are one compiled program: rows of an input are sites, and a step of
one reads and writes its own rows alone.

In: a log-density, blocks and their updates. Out: samples. `sweep_blocks` says what moves,
`sweep_steps` and `sweep_draws` how; here is what a sweep records, and how chains run.

Several chains take turns: their programs run side by side as far as there are cores, or devices,
and each costs what it costs alone. Under `vmap` both sides of each branch of a step would run.
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

from incrax._progress import Meter
from incrax.engine.call.sites import Sites, SitesState
from incrax.samplers.chain import Chain, Job, generators
from incrax.samplers.checkpoints import Checkpoint
from incrax.samplers.density import Density
from incrax.samplers.messages import bad_start, other_checkpoint
from incrax.samplers.sweep_blocks import Data, SweepBlock, coloured, made_block
from incrax.samplers.sweep_draws import drawn_rows
from incrax.samplers.sweep_steps import Draws, step_each, step_together
from incrax.samplers.updates import adaptation_gain

CHUNK_S = 0.25
"""Seconds, about, of sweeps that run without a look at the clock: so long Ctrl-C may wait."""

KEY_SIZE = 2
"""Words of 32 bits of a key of the kernels of others."""

MAX_NUMBERS = 2**20
"""Random numbers, about, that are drawn for one chunk."""


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
        made_block(density, name, update, names)
        for (name, update), names in zip(updates.items(), groups, strict=True)
    ]
    blocks = tuple(block for block, _ in made)
    function: Any = density.function
    state, sites = function.sites(*density.start(), moves=[block.move for block in blocks])
    blocks = tuple(
        block if block.num_rows is None else coloured(block, sites, state) for block in blocks
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
                sweeps = range(done, done + count)
                for number, rng in enumerate(rngs):
                    sites = self.sites[number % len(self.sites)]
                    at = places[number], records[number]
                    places[number], records[number] = self._chunk(sites, at, rng, sweeps)
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

    def _chunk(
        self, sites: Sites, at: tuple[_Start, _Record], rng: np.random.Generator, sweeps: range
    ) -> tuple[_Start, _Record]:
        """Some sweeps of a chain, whose numbers count the warm-up."""
        place, record = at
        dtypes = {path: x.dtype for path, x in sites.inputs(place.state).items()}
        draws = self._draws(rng, len(sweeps), dtypes, place.value.dtype)
        gains = np.zeros(self.most, place.value.dtype)
        warmup = [sweep for sweep in sweeps if sweep < self.job.num_warmup]
        gains[: len(warmup)] = [adaptation_gain(sweep) for sweep in warmup]
        begin = np.int32(sweeps.start - self.job.num_warmup)
        end = np.int32(sweeps.stop - self.job.num_warmup)
        numbers = draws, self.shared, gains
        return _sweeps(sites, place, record, numbers, begin, end, blocks=self.blocks)

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
    ) -> tuple[Draws, ...]:
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
            made.append(Draws(moves, np.zeros(shape, dtype), leaps, keys))
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
    numbers: tuple[Sequence[Draws], Sequence[Any], Any],
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
                move = step_together if block.is_together else step_each
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
