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
from incrax.samplers.checkpoints import Checkpoint, digest
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


def compiled_chain(density: Density, updates: Mapping[Any, Any], job: Job) -> Chain:
    """Chains by compiled sweeps.

    Args:
        density: what is sampled.
        updates: by block.
        job: how much of it.

    Raises:
        BlockError: inputs that move together by rows have different numbers of them.
        StepTypeError: rows of a number are to move.
        NotCalledError: the function has effects or calls the host.
        ProposalError, StartError: as from `gibbs`.
    """
    made = [made_block(density, name, update) for name, update in updates.items()]
    blocks, data = zip(*made, strict=True)
    function: Any = density.function
    state, sites = function.sites(*density.start(), moves=[block.move for block in blocks])
    blocks = tuple(
        block if block.num_rows is None else coloured(block, sites, state) for block in blocks
    )
    run = _Run(sites, blocks, data, job, density.selection.others)
    records, accepted = run.chains(_started(sites, state, blocks, job))
    num_chains = len(records)
    steps = job.num_sweeps * num_chains * np.array([block.num_steps for block in blocks])
    shares = zip(blocks, sum(accepted) / steps, strict=True)
    return Chain(
        job.shown(_samples(density.paths, records)),
        density.names,
        job.shown(np.stack([np.asarray(each.values, np.float64) for each in records])),
        {block.name: float(share) for block, share in shares},
        job.num_all * num_chains * sum(block.num_looks for block in blocks),
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
    """Samples after each sweep, by path, and log-densities."""

    samples: dict[str, Any]
    values: Any


def _samples(paths: Sequence[str], records: Sequence[_Record]) -> np.ndarray:
    """Those of all chains, shape (chains, sweeps, n)."""
    known = [path for path in paths if path in records[0].samples]  # what has elements
    leaves = [np.stack([np.asarray(each.samples[path]) for each in records]) for path in known]
    return np.concatenate([np.float64(x.reshape(*x.shape[:2], -1)) for x in leaves], axis=-1)


def _started(
    sites: Sites, state: SitesState, blocks: Sequence[SweepBlock], job: Job
) -> list[_Start]:
    """Where each chain starts.

    Raises:
        StartError: where the density is zero, or no number.
    """
    start = jax.jit(lambda sites, state, changes: sites.start(changes, state))
    dtypes = _dtypes(sites, state)
    places = []
    for number in range(job.num_chains):
        given = {
            path: jnp.asarray(x[number], dtypes[path]) for path, x in (job.starts or {}).items()
        }
        own = start(sites, state, given) if given else state
        value = sites.look(own, {})[1]
        if not np.isfinite(value):
            raise bad_start(float(value))
        scales = tuple(jnp.zeros(block.num_blocks, value.dtype) for block in blocks)
        places.append(_Start(own, value, scales))
    return places


def _dtypes(sites: Sites, state: SitesState) -> dict[str, Any]:
    return {path: x.dtype for path, x in sites.inputs(state).items()}


class _Run:
    """Sweeps of some chains; `fixed` are arguments of the log-density that are not sampled."""

    def __init__(
        self,
        sites: Sites,
        blocks: tuple[SweepBlock, ...],
        data: Sequence[Data],
        job: Job,
        fixed: Sequence[Any],
    ) -> None:
        num_devices = 1 if job.devices is None else len(job.devices)
        self.sites = job.placed([sites] * min(num_devices, job.num_chains))
        self.blocks = blocks
        self.data = data
        self.job = job
        self.fixed = fixed
        self.shared = jax.tree.map(jnp.asarray, tuple(data))
        numbers = job.num_chains * sum(
            block.num_steps + block.times * sum(x.size for x in own.values())
            for block, own in zip(blocks, data, strict=True)
        )
        self.most = max(min(MAX_NUMBERS // numbers, job.num_all), 1)

    def chains(self, places: list[_Start]) -> tuple[list[_Record], list[np.ndarray]]:
        """All sweeps of all chains, from these places, or from a checkpoint: what they were, and
        how many steps of each block were accepted.
        """
        job = self.job
        rngs = generators(job.key, job.chains)
        inputs = self.sites[0].inputs(places[0].state)
        empty = lambda x: jnp.empty((job.num_sweeps, *x.shape), x.dtype)
        records = [jax.tree.map(empty, _Record(inputs, place.value)) for place in places]
        accepted = [np.zeros(len(self.blocks), np.int64) for _ in places]
        kept = Checkpoint(job, None if job.checkpoint is None else self._plan(places[0]))
        done, (places, accepted), records = kept.restore((places, accepted), records, rngs)
        places = job.placed(places)
        records = job.placed(records)
        if done:
            self._check_density(places[0])
        count = 1
        is_compiled = False
        with Meter("chain", job.num_all, is_shown=job.progress) as meter:
            meter.advance(done)
            while done < job.num_all:
                begin_s = time.perf_counter()
                counts = self._turn(places, records, rngs, range(done, done + count))
                accepted = [x + np.asarray(more) for x, more in zip(accepted, counts, strict=True)]
                each_s = (time.perf_counter() - begin_s) / count
                done += count
                meter.advance(count)
                kept.save(done, (places, accepted), records, rngs)
                # The first chunk compiles, which tells nothing of a sweep.
                wanted = int(CHUNK_S / each_s) if is_compiled else 1
                count = min(max(wanted, 1), self.most, job.num_all - done)
                is_compiled = True
        return records, accepted

    def _turn(
        self,
        places: list[_Start],
        records: list[_Record],
        rngs: Sequence[np.random.Generator],
        sweeps: range,
    ) -> list[Any]:
        """Some sweeps of each chain, entered in the lists; how many steps of each block were
        accepted.
        """
        counts = []
        for number, rng in enumerate(rngs):
            at = places[number], records[number]
            found = self._chunk(self.sites[number % len(self.sites)], *at, rng, sweeps)
            places[number], records[number], accepted = found
            counts.append(accepted)
        return counts

    def _chunk(
        self, sites: Sites, place: _Start, record: _Record, rng: np.random.Generator, sweeps: range
    ) -> tuple[_Start, _Record, Any]:
        """Some sweeps of a chain, whose numbers count the warm-up."""
        draws = self._draws(rng, len(sweeps), _dtypes(sites, place.state), place.value.dtype)
        gains = np.zeros(self.most, place.value.dtype)
        warmup = [sweep for sweep in sweeps if sweep < self.job.num_warmup]
        gains[: len(warmup)] = [adaptation_gain(sweep) for sweep in warmup]
        ends = np.array([sweeps.start, sweeps.stop], np.int32) - np.int32(self.job.num_warmup)
        numbers = draws, self.shared, gains
        return _sweeps(sites, place, record, numbers, *ends, blocks=self.blocks)

    def _check_density(self, place: _Start) -> None:
        """Another function, or other data that it closes over, make another log-density.

        Raises:
            StartError: it is another one.
        """
        sites = self.sites[0]
        anew = sites.start(sites.inputs(place.state), place.state)
        value = sites.look(anew, {})[1]
        rtol = min(np.sqrt(jnp.finfo(value.dtype).eps), 1e-4)
        if not np.allclose(value, place.value, rtol=rtol, atol=1e-4):
            raise other_checkpoint(str(self.job.checkpoint))

    def _plan(self, place: _Start) -> list[Any]:
        """What a checkpoint must have been made of."""
        paths = list(self.sites[0].inputs(place.state))
        types = [[list(x.shape), str(x.dtype)] for x in jax.tree.leaves(place)]
        data = digest([*self.fixed, *(x for own in self.data for x in own.values())])
        # Of a kernel a file can have the name alone.
        named = [[*block._replace(kernel=None), _kernel_name(block)] for block in self.blocks]
        return [paths, types, named, data, self.job.chains]

    def _draws(
        self, rng: np.random.Generator, count: int, dtypes: Mapping[str, Any], dtype: Any
    ) -> Any:
        """For the blocks, in so many sweeps; room for the most sweeps of a chunk.

        They are drawn here, sweep by sweep: in the program they take 0.3 s to compile.
        """

        def padded(*rows) -> np.ndarray:
            into = np.zeros((self.most, *rows[0].shape), rows[0].dtype)
            into[:count] = rows
            return into

        pairs = [*zip(self.blocks, self.data, strict=True)]
        sweeps = [tuple(_drawn(*pair, rng, dtypes, dtype) for pair in pairs) for _ in range(count)]
        return jax.tree.map(padded, *sweeps)


def _drawn(
    block: SweepBlock, data: Data, rng: np.random.Generator, dtypes: Mapping[str, Any], dtype: Any
) -> Draws:
    """Random numbers of a block in one sweep."""
    num = block.num_steps
    if block.kernel is not None:
        return Draws({}, None, keys=rng.integers(2**32, size=(num, KEY_SIZE), dtype=np.uint32))
    if block.num_values is not None:
        return Draws({}, rng.random(num).astype(dtype))
    moves = {}
    for path, x in data.items():
        of_step = np.repeat(x if block.num_rows is not None else x[None], block.times, axis=0)
        moves[path] = (of_step * rng.normal(size=of_step.shape)).astype(dtypes[path])
    bounds = np.log(1.0 - rng.random(num)).astype(dtype)
    if not block.num_leaps:
        return Draws(moves, bounds)
    num_leaps = rng.integers((block.num_leaps + 1) // 2, block.num_leaps + 1, num)
    return Draws(moves, bounds, num_leaps.astype(np.int32))


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
) -> tuple[_Start, _Record, Any]:
    """Sweeps from one number to another, entered in the record; those below zero are the warm-up,
    which is not. Also how many steps of each block were accepted. `numbers`: random ones; by path
    the values of a categorical block, or widths; gains of the warm-up by sweep.
    """
    draws, shared, gains = numbers

    def sweep(number, carry):
        place, record, accepted = carry
        at = lambda x: lax.dynamic_index_in_dim(x, number - begin, keepdims=False)
        place, counts = _swept(sites, place, blocks, jax.tree.map(at, draws), shared, at(gains))
        index = jnp.maximum(number, 0)  # the first sample is written over the warm-up's
        write = lambda into, x: lax.dynamic_update_index_in_dim(into, x, index, 0)
        record = jax.tree.map(write, record, _Record(sites.inputs(place.state), place.value))
        return place, record, accepted + jnp.where(number < 0, 0, counts)

    none = jnp.zeros(len(blocks), jnp.int32)
    return lax.fori_loop(begin, end, sweep, (place, record, none))


def _swept(
    sites: Sites,
    place: _Start,
    blocks: Sequence[SweepBlock],
    draws: Sequence[Draws],
    shared: Sequence[Any],
    gain: Any,
) -> tuple[_Start, Any]:
    """Each block once, and how many of its steps were accepted."""
    position = place.state, place.value
    counts = []
    scales = []
    for block, drawn, own, scale in zip(blocks, draws, shared, place.log_scales, strict=True):
        if block.num_values is not None:
            values = own[block.paths[0]]
            position, count = drawn_rows(sites, position, block, drawn.bounds, values)
        else:
            move = step_together if block.is_together else step_each
            position, count, share = move(sites, position, block, drawn, scale, own)
            if block.target is not None:
                scale = scale + gain * (share - block.target)
        counts.append(count)
        scales.append(scale)
    return _Start(*position, tuple(scales)), jnp.stack(counts)
