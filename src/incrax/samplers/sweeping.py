"""Chains on the host, block by block: an evaluation runs what its block reaches, the rest is saved
values.

In: a log-density, blocks and how they move, a key. Out: a `Chain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax import value_and_grad
from incrax._forecast import Forecast
from incrax._messages import unknown_input
from incrax._progress import Meter
from incrax.engine.inputs.paths import is_within
from incrax.samplers.blocking import Blocks
from incrax.samplers.chain import Chain, generator
from incrax.samplers.compiled_sweeps import ROWS, compiled_gibbs, is_by_rows
from incrax.samplers.density import Density
from incrax.samplers.messages import (
    bad_start,
    missing_in_blocks,
    not_an_update,
    overlapping_blocks,
    wrong_covariance,
    wrong_number,
)
from incrax.samplers.updates import Block, Conditional, Hamiltonian, Position, Update, Walk

WIDTH = 2.4
"""Width of a step over the root of the number of parameters, in units of the covariance's: the best
for a normal.
"""


def gibbs(
    log_density: Callable[..., Any],
    *args: Any,
    updates: Mapping[Any, Update],
    key: Any,
    num_sweeps: int,
    wrt: Any = None,
    progress: bool = True,
) -> Chain:
    """Sample block by block: Metropolis within Gibbs, HMC within Gibbs, draws from conditionals, in
    any mixture.

    Args:
        log_density: function of pytrees that returns one real number; an incremental one is
            evaluated as it is, so that its `stats` count.
        *args: its arguments at the start; those that are not sampled stay.
        updates: for each block, named by a path as `explain()` prints it or a tuple of paths, how
            it moves: a `Walk`, a `Hamiltonian` or a `Conditional`. Each moves once a sweep, in this
            order. `"theta[*]"`: each row of theta, along its first axis, is a block of its own;
            whole sweeps are then one compiled program, and all blocks must walk.
        key: a key of `jax.random`, or an integer.
        num_sweeps: samples, one after each sweep.
        wrt: what is sampled; see `grad`. None: the first argument.
        progress: whether a chain of over two seconds shows its progress on a terminal.

    Returns:
        The chain; see `Chain`. Equal keys give equal chains.

    Raises:
        BlockError: a parameter is in two blocks, or in none.
        ProposalError: widths do not fit a block.
        StartError: the log-density at the start is not finite.
        UnknownInputError: a block names nothing that is sampled.
        TypeError: an update is none, or the function returns something else than one number.

    Cost: per step one evaluation of what its block reaches; of a row some microseconds, see
        `Incremental.sites`, which also says what makes a step read all rows. A `Hamiltonian`
        evaluates value and gradient by its block alone, by an incremental function of its own.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p: -0.5 * (p["a"] ** 2 + (p["b"] - p["a"]) ** 2)
        >>> walks = {"p['a']": samplers.Walk(1.5), "p['b']": samplers.Hamiltonian(0.5)}
        >>> chain = samplers.gibbs(f, {"a": 0.0, "b": 0.0}, updates=walks, key=1, num_sweeps=20)
        >>> chain.samples.shape, chain.names
        ((20, 2), ("p['a']", "p['b']"))
    """
    density = Density("gibbs", log_density, args, wrt)
    for name, update in updates.items():
        if not isinstance(update, (Walk, Hamiltonian, Conditional)):
            raise not_an_update(str(name), type(update).__name__)
    groups = [_named(density.names, name) for name in updates]
    _check_cover(density.names, groups)
    if any(map(is_by_rows, updates)):
        return compiled_gibbs(density, updates, groups, key, num_sweeps, progress=progress)
    made = [_block(density, names) for names in groups]
    pairs = list(zip(made, updates.values(), strict=True))

    def sweep(place: Position, rng: np.random.Generator) -> Position:
        for block, update in pairs:
            place = update.move(place, block, rng)
        return place

    return _run(density, made, sweep, key, num_sweeps, progress=progress)


def metropolis(
    log_density: Callable[..., Any],
    *args: Any,
    blocks: Blocks,
    covariance: Any,
    key: Any,
    num_sweeps: int,
    wrt: Any = None,
    progress: bool = True,
) -> Chain:
    """Random-walk Metropolis by blocks of slow and fast parameters, the fast ones oversampled.

    A step of a block moves it, and those after it along their correlations with it. In a sweep each
    block makes as many steps as it has parameters, times its `oversample`. A fast step evaluates
    what the fast parameters reach and reads the rest from saved values, also after a rejected slow
    step.

    Args:
        log_density: as for `gibbs`.
        *args: as for `gibbs`.
        blocks: from `samplers.blocks`, or made by hand.
        covariance: of the parameters, as far as it is known: variances of shape (n,), or a matrix
            of shape (n, n), in the order of `Chain.names`.
        key: as for `gibbs`.
        num_sweeps: as for `gibbs`.
        wrt: as for `gibbs`.
        progress: as for `gibbs`.

    Returns:
        The chain, one sample a sweep; see `Chain`.

    Raises:
        ProposalError: the covariance is none.
        BlockError, StartError, UnknownInputError, TypeError: as from `gibbs`.

    Cost: a sweep takes `blocks.sweep_s`.

    Source: A. Lewis, arXiv:1304.4473, for proposals by the Cholesky factor in the order of the
    blocks.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p, x: -0.5 * p["a"] ** 2 - jnp.sum(jnp.exp(p["k"]) * x) + 10 * p["k"]
        >>> args = ({"a": 0.0, "k": 0.0}, jnp.ones(10))
        >>> found = samplers.blocks(f, *args, measure=False)
        >>> chain = samplers.metropolis(f, *args, blocks=found, covariance=[1.0, 0.1], key=0, num_sweeps=50)
        >>> len(chain.samples)
        50
    """
    density = Density("metropolis", log_density, args, wrt)
    groups = [_named(density.names, names) for names in blocks.blocks]
    _check_cover(density.names, groups)
    made = [_block(density, names) for names in groups]
    order = np.concatenate([block.places for block in made])
    root = _root(covariance, order)
    ends = np.cumsum([block.places.size for block in made])

    def sweep(place: Position, rng: np.random.Generator) -> Position:
        for block, end, times in zip(made, ends, blocks.oversample, strict=True):
            size = block.places.size
            columns = root[:, end - size : end] * WIDTH / np.sqrt(size)
            for _ in range(size * times):
                x = place.x.copy()
                x[order] += columns @ rng.normal(size=size)
                moved = Position(x, density.value(x))
                block.evaluations += 1
                place = block.decided(place, moved, moved.value - place.value, rng)
        return place

    return _run(density, made, sweep, key, num_sweeps, progress=progress)


Sweep = Callable[[Position, np.random.Generator], Position]


def _run(
    density: Density, made: Sequence[Block], sweep: Sweep, key: Any, num: int, *, progress: bool
) -> Chain:
    if num < 1:
        raise wrong_number("num_sweeps", num)
    rng = generator(key)
    x0 = density.flat.x0
    place = Position(x0, density.value(x0))
    if not np.isfinite(place.value):
        raise bad_start(place.value)
    samples = np.empty((num, x0.size))
    values = np.empty(num)
    gradients = [block.value_and_gradient for block in made]
    functions = [density.function, *(g.function for g in gradients if isinstance(g, _Gradient))]
    forecast = Forecast(lambda: functions, num)
    with Meter("chain", num, is_shown=progress) as meter:
        for number in range(num):
            place = sweep(place, rng)
            samples[number], values[number] = place
            forecast.advance()
            meter.advance()
    acceptance = {block.names[0]: block.accepted / max(block.tried, 1) for block in made}
    return Chain(
        samples,
        density.names,
        values,
        acceptance,
        sum(block.evaluations for block in made),
        density,
    )


# --- blocks ---------------------------------------------------------------------------------------


def _named(names: Sequence[str], asked: Any) -> tuple[str, ...]:
    """The elements that a path, a prefix of paths, or a tuple of these names, in the order in which
    they are named.
    """
    parts = asked if isinstance(asked, tuple) else (asked,)
    for part in parts:
        if not isinstance(part, str) or not any(_is_of(name, part) for name in names):
            raise unknown_input(str(part), names)
    return tuple(dict.fromkeys(name for part in parts for name in names if _is_of(name, part)))


def _is_of(name: str, part: str) -> bool:
    """Whether an element is within what a path names, by rows or not."""
    return is_within(name, part.removesuffix(ROWS))


def _check_cover(names: Sequence[str], groups: Sequence[Sequence[str]]) -> None:
    found = Counter(name for group in groups for name in group)
    twice = [name for name in names if found[name] > 1]
    if twice:
        raise overlapping_blocks(twice)
    missing = [name for name in names if not found[name]]
    if missing:
        raise missing_in_blocks(missing)


def _block(density: Density, names: tuple[str, ...]) -> Block:
    numbers = {name: k for k, name in enumerate(density.names)}
    places = np.array([numbers[name] for name in names])
    return Block(names, places, density.value, _Gradient(density, names), density.flat.arguments)


class _Gradient:
    """Log-density and its gradient by a block, through saved values of its own; made when first
    asked for.
    """

    def __init__(self, density: Density, names: tuple[str, ...]) -> None:
        paths = density.selection.paths
        self.paths = tuple(path for path in paths if any(is_within(name, path) for name in names))
        of_paths = [
            name for name in density.names if any(is_within(name, path) for path in self.paths)
        ]
        self.places = [of_paths.index(name) for name in names]
        self.density = density
        self.function: Any = value_and_grad(density.plain, wrt=self.paths)

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Both at a vector; -inf where the value is NaN."""
        value, gradient = self.function(*self.density.arguments(x))
        parts = [np.asarray(part, np.float64).ravel() for part in jax.tree.leaves(gradient)]
        value = float(value)
        return value if value == value else -np.inf, np.concatenate(parts)[self.places]


def _root(covariance: Any, order: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a covariance, in the order of the blocks."""
    num = order.size
    given = np.asarray(covariance, np.float64)
    seen = f"an array of shape {given.shape}"
    if given.shape not in ((num,), (num, num)):
        raise wrong_covariance(seen, num, "the shape does not fit")
    matrix = np.diag(given) if given.ndim == 1 else given
    if not np.allclose(matrix, matrix.T, rtol=1e-8, atol=0):
        raise wrong_covariance(seen, num, "it is not symmetric")
    try:
        return np.linalg.cholesky(matrix[np.ix_(order, order)])
    except np.linalg.LinAlgError:
        raise wrong_covariance(seen, num, "it is not positive definite") from None
