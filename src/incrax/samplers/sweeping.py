"""Chains block by block: compiled sweeps where blocks are rows of inputs, else calls on the host, of
which each runs what its block reaches and reads the rest from saved values.

In: a log-density, blocks and how they move, a key. Out: a `Chain`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax._forecast import Forecast
from incrax._jax_options import spelled_here
from incrax._messages import ambiguous_input, checked_count, listed, wrong_option
from incrax._progress import Meter
from incrax.engine.inputs.paths import completed
from incrax.errors import BlockError, NotCalledError, PositionError, SelectionError
from incrax.samplers.chain import Chain, Job, generators
from incrax.samplers.checkpoints import saved_warmup
from incrax.samplers.compiled_sweeps import compiled_chain
from incrax.samplers.density import Density
from incrax.samplers.messages import bad_start
from incrax.samplers.sweep_blocks import ROWS, is_by_rows, named, parts_of
from incrax.samplers.updates import (
    Block,
    Categorical,
    Hamiltonian,
    Kernel,
    Position,
    Walk,
    target_of,
    widths_of,
)

Moves = Mapping[Any, Any]
"""How each block moves, by its name: a path, or a tuple of those."""

COMPILED = (Hamiltonian, Kernel, Categorical)
"""Updates that are part of a compiled sweep only."""
MIN_ROWS = 16
"""Rows of an input from which on walks that name them one by one are compiled; of fewer, the calls
take less than compiling.
"""


@spelled_here
def gibbs(
    log_density: Callable[..., Any],
    *args: Any,
    updates: Mapping[Any, Walk | Hamiltonian | Kernel | Categorical] | None = None,
    key: jax.Array | int,
    num_sweeps: int,
    num_warmup: int | None = None,
    chains: int | None = None,
    starts: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    devices: Sequence[Any] | None = None,
    wrt: Any = None,
    progress: bool = True,
) -> Chain:
    """Sample block by block: Metropolis within Gibbs, HMC within Gibbs, draws of discrete
    parameters, in any mixture.

    Args:
        log_density: function of pytrees that returns one real number; an incremental one is
            evaluated as it is, so that its `stats` count.
        *args: its arguments at the start; those that are not sampled stay.
        updates: for each block, named by a path as `explain()` prints it or a tuple of paths, how
            it moves: a `Walk`, a `Hamiltonian`, a `Kernel` or a `Categorical`. Each moves once a
            sweep, in this order. `"theta[*]"`: each row of theta, along its first axis, is a block
            of its own. None: each row of each input, or number, walks by itself, with widths from
            the warm-up.
        key: a key of `jax.random`, or an integer.
        num_sweeps: samples of a chain, one after each sweep.
        num_warmup: sweeps before the first sample, in which widths that are not given are found.
            None: those of the checkpoint, if there is one, else half of `num_sweeps` where there are
            such widths, else 0.
        chains: how many; results then have an axis for them. None: one, without that axis.
        starts: where each chain starts: a tree in the shape of what is sampled, with the chains
            along the first axis of each leaf. None: all at the arguments.
        checkpoint: a file to which compiled sweeps write every ten seconds where they are, and from
            which the same call goes on, to the bit as if nothing had happened; with more sweeps, it
            adds to them.
        devices: where chains run, by turns, such as `jax.devices()`; samples are those of one
            device, to the bit where devices are alike. Each compiles the sweeps, and has a copy of
            the data. None: all where the data are.
        wrt: what is sampled; see `grad`. None: the first argument.
        progress: whether a chain of over two seconds shows its progress on a terminal.

    Returns:
        The chain, or chains; see `Chain`. Equal keys give equal chains.

    Raises:
        BlockError: a parameter is in two blocks, or in none.
        ProposalError: widths, or values of a `Categorical`, do not fit a block.
        StartError: the log-density at the start is not finite, or the checkpoint is of another run.
        PositionError: `starts` have another structure or shape.
        UnknownInputError: a block names nothing that is sampled.
        SelectionError: an array of integers is sampled, and no `Categorical` draws it; or
            something complex is.
        TypeError: an update is none, or the function returns something else than one number.

    Cost: per step one evaluation of what its block reaches; of a row some microseconds, see
        `Incremental.sites`, which also says what makes a step read all rows. Compiling sweeps takes
        about a second. Several chains take turns, side by side on as many cores as there are. A
        `Hamiltonian` evaluates value and gradient by its block alone.

    Whole sweeps are one compiled program, unless all blocks walk and none names rows: then each
    step is a call of the incremental function. Where `updates` is None, or walks name 16 rows of
    an input or more one by one, they are compiled without being asked, too, but for a function with
    effects, or that calls the host: `Chain.why_on_host` says why.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p: -0.5 * (p["a"] ** 2 + (p["b"] - p["a"]) ** 2)
        >>> walks = {"p['a']": samplers.Walk(1.5), "p['b']": samplers.Hamiltonian(0.5)}
        >>> chain = samplers.gibbs(f, {"a": 0.0, "b": 0.0}, updates=walks, key=1, num_sweeps=20)
        >>> chain.samples.shape, chain.names
        ((20, 2), ("p['a']", "p['b']"))
    """
    given = {} if updates is None else updates
    if not isinstance(given, Mapping):
        raise wrong_option("gibbs(updates)", updates, "a mapping of blocks to how they move")
    density = Density("gibbs", log_density, args, wrt, _drawn_paths(given))
    moves = {_full(density.names, name): update for name, update in given.items()}
    apart = moves
    if updates is None:
        rows = _rows_of(density)
        moves = dict.fromkeys(rows, Walk())
        apart = {names: Walk() for of in rows.values() for names in of}
    num_warmup = _warmup(num_warmup, checkpoint, num_sweeps, moves)
    asked = Job(key, num_sweeps, num_warmup, chains, starts, checkpoint, devices, progress)
    _check_covered(density, moves)
    _check_real(density)
    job = _checked(asked, density)
    merged = _merged(density, moves)
    if any(map(is_by_rows, given)) or any(isinstance(x, COMPILED) for x in given.values()):
        return compiled_chain(density, merged or moves, job)
    return _sampled(density, moves if updates is None else merged, apart, job)


# --- what is asked --------------------------------------------------------------------------------


def _drawn_paths(updates: Moves) -> list[str]:
    """Inputs that a `Categorical` draws.

    Raises:
        TypeError: an update is none.
    """
    for name, update in updates.items():
        if not isinstance(update, (Walk, *COMPILED)):
            raise TypeError(
                f"`gibbs(updates=...)` got {type(update).__name__} for `{name}`. Nothing was "
                "sampled. Pass a `Walk`, a `Hamiltonian`, a `Kernel` or a `Categorical` for each "
                "block."
            )
    drawn = [name for name, update in updates.items() if isinstance(update, Categorical)]
    paths = [part for name in drawn for part in parts_of(name) if isinstance(part, str)]
    return [path.removesuffix(ROWS) for path in paths]


def _warmup(num_warmup: int | None, checkpoint: Any, num_sweeps: int, moves: Moves) -> int:
    """Sweeps of the warm-up: as given, else those of the checkpoint, else as many as widths need."""
    if num_warmup is None:
        num_warmup = saved_warmup(checkpoint)
    if num_warmup is None:
        is_adapted = any(target_of(update, 1) for update in moves.values())
        num_warmup = num_sweeps // 2 if is_adapted else 0
    return num_warmup


def _check_covered(density: Density, moves: Moves) -> None:
    """Each element moves, and once.

    Raises:
        BlockError: a parameter is in two blocks, or in none.
    """
    found = Counter(name for move in moves for name in named(density.names, move))
    if twice := [name for name in density.names if found[name] > 1]:
        raise BlockError(
            f"{listed(twice)} belong to more than one block. Nothing was sampled. Name each "
            "parameter, or each element of a small array, in one block."
        )
    if missing := [name for name in density.names if not found[name]]:
        raise BlockError(
            f"{listed(missing)} belong to no block, so that they would never move. Nothing was "
            "sampled. Name them in a block, or leave them out of `wrt`: what is not selected stays "
            "fixed."
        )


def _check_real(density: Density) -> None:
    """Moves are real numbers.

    Raises:
        SelectionError: an input is complex: its imaginary part would stay.
    """
    for path, dtype in zip(density.paths, density.dtypes, strict=True):
        if np.issubdtype(dtype, np.complexfloating):
            raise SelectionError(
                f"`gibbs` was asked to move `{path}` of type {dtype}, and steps are real: its "
                "imaginary part would stay where it is. Nothing was sampled. Pass real and "
                "imaginary part as two parameters, or leave it out of `wrt`."
            )


def _checked(job: Job, density: Density) -> Job:
    """The same with starts by path.

    Raises:
        TypeError, ValueError: a number is no integer, or out of range.
        PositionError: starts of another shape.
    """
    job = job._replace(
        num_sweeps=checked_count("gibbs(num_sweeps=...)", job.num_sweeps),
        num_warmup=checked_count("gibbs(num_warmup=...)", job.num_warmup, 0),
        chains=None if job.chains is None else checked_count("gibbs(chains=...)", job.chains),
    )
    devices = job.devices
    if devices is not None:
        devices = tuple(devices) if isinstance(devices, Iterable) else (devices,)
    if devices is not None and not (devices and all(isinstance(x, jax.Device) for x in devices)):
        raise wrong_option("devices", devices, "one device of JAX, or several")
    starts = None if job.starts is None else density.placed(job.starts)
    for (path, x), shape in zip((starts or {}).items(), density.shapes, strict=False):
        expected = (job.num_chains, *shape)
        if np.shape(x) != expected:
            raise PositionError(
                f"`gibbs(starts=...)` got `{path}` of shape {np.shape(x)}; expected {expected}, the "
                "chains along the first axis. Nothing was sampled. Pass a start for each chain, in "
                "the shape of what is sampled."
            )
    return job._replace(starts=starts, devices=devices)


# --- how blocks are named -------------------------------------------------------------------------


def _full(names: Sequence[str], asked: Any) -> Any:
    """A name, or each of a tuple, as a whole path: `theta[*]` may be `p['theta'][*]`."""
    if isinstance(asked, tuple):
        return tuple(_full(names, part) for part in asked)
    if not isinstance(asked, str):
        return asked
    name = asked.removesuffix(ROWS)
    found = completed(names, name)
    if len(found) > 1:
        raise ambiguous_input(name, found)
    return f"{found[0]}{asked[len(name) :]}" if found else asked


def _rows_of(density: Density) -> dict[str, list[tuple[str, ...]]]:
    """Names of the elements of each row, by what the rows are called: `theta[*]`, or the path of a
    number.
    """
    rows = {}
    for path, (first, last, shape) in zip(density.paths, density.ends.parts(), strict=True):
        step = (last - first) // shape[0] if shape and shape[0] else 1
        cut = [density.names[start : start + step] for start in range(first, last, step)]
        if cut:
            rows[path + ROWS if shape else path] = cut
    return rows


# --- compiled sweeps, or calls on the host --------------------------------------------------------

APART = "blocks other than walks of each row of an input move one call after another"
"""Why sweeps are not compiled that could be."""


def _sampled(density: Density, merged: Moves | None, apart: Moves, job: Job) -> Chain:
    """A chain by compiled sweeps of merged blocks; if there are none, or the function cannot be
    compiled, by calls of the function, block after block.
    """
    why = APART
    if merged is not None:
        try:
            return compiled_chain(density, merged, job)
        except NotCalledError as error:
            why = str(error)
    blocks = [_block(density, *move) for move in apart.items()]
    return _run(density, blocks, job, why)


def _merged(density: Density, moves: Moves) -> Moves | None:
    """Walks of all rows of an input one after the other, as one block by rows; None: there are
    none.
    """
    blocks = [(named(density.names, name), name, update) for name, update in moves.items()]
    for name, rows in _rows_of(density).items():
        groups = [names for names, *_ in blocks]
        first = groups.index(rows[0]) if rows[0] in groups else 0
        own = slice(first, first + len(rows))
        walks = [update for *_, update in blocks[own] if isinstance(update, Walk)]
        is_same = len({(walk.times, walk.width is None) for walk in walks}) == 1
        if len(rows) < MIN_ROWS or groups[own] != rows or len(walks) < len(rows) or not is_same:
            continue
        width = None
        if walks[0].width is not None:
            pairs = zip(walks, rows, strict=True)
            width = np.concatenate([widths_of("Walk", walk.width, of) for walk, of in pairs])
        blocks[own] = [((), name, Walk(width, walks[0].times))]
    is_merged = len(blocks) < len(moves)
    return {name: update for _, name, update in blocks} if is_merged else None


# --- on the host ----------------------------------------------------------------------------------


def _run(density: Density, blocks: Sequence[Block], job: Job, why: str) -> Chain:
    """All chains, one after the other."""
    _check_options(job, why)
    places = [Position(x, density.value(x)) for x in _starts(density, job)]
    for place in places:
        if not np.isfinite(place.value):
            raise bad_start(place.value)
    found: list[Position] = []
    accepted = np.zeros(len(blocks))
    total = job.num_chains * job.num_all
    forecast = Forecast(lambda: [density.function], total)
    with Meter("chain", total, is_shown=job.progress) as meter:
        for place, rng in zip(places, generators(job.key, job.chains), strict=True):
            for each in _sweeps(blocks, place, rng, job):
                found.append(each)
                forecast.advance()
                meter.advance()
            accepted += [block.accepted for block in blocks]
    samples, values = (
        np.reshape(x, (job.num_chains, job.num_all, -1)) for x in zip(*found, strict=True)
    )
    times = np.array([block.times for block in blocks])
    shares = zip(blocks, accepted / (job.num_chains * job.num_sweeps * times), strict=True)
    return Chain(
        job.shown(samples[:, job.num_warmup :]),
        density.names,
        job.shown(values[:, job.num_warmup :, 0]),
        {block.names[0]: float(share) for block, share in shares},
        total * int(times.sum()),
        density,
        why,
    )


def _sweeps(
    blocks: Sequence[Block], place: Position, rng: np.random.Generator, job: Job
) -> Iterator[Position]:
    """Where one chain is after each sweep, those of the warm-up first."""
    for block in blocks:
        block.restart()
    for turn in range(job.num_all):
        for block in blocks:
            place = block.moved(place, rng)
        if turn < job.num_warmup:
            for block in blocks:
                block.adapt(turn)
        yield place


def _check_options(job: Job, why: str) -> None:
    for option, what in {"checkpoint": "checkpoints", "devices": "devices of their own"}.items():
        if getattr(job, option) is not None:
            raise ValueError(
                f"Chains on the host have no {what}, and this one cannot be compiled: {why}. "
                f"Nothing was sampled. Leave `{option}` out."
            )


def _starts(density: Density, job: Job) -> list[np.ndarray]:
    """A vector for each chain."""
    if job.starts is None:
        return [density.flat.x0] * job.num_chains
    parts = [np.reshape(x, (job.num_chains, -1)) for x in job.starts.values()]
    return list(np.concatenate(parts, axis=1).astype(np.float64))


def _block(density: Density, name: Any, walk: Walk) -> Block:
    """A block, and how it moves."""
    names = named(density.names, name)
    width = widths_of("Walk", walk.width, names)
    target = target_of(walk, len(names))
    return Block(names, density.places(names), density.value, width, walk.times, target)
