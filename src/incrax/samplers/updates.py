"""How a block moves while all else stays: a random walk, Hamiltonian dynamics, a kernel of another
library, a draw from its conditional over all values that it can take; and walks on the host.

In: where a chain is, a block. Out: where it is next. It must not know other blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from incrax._messages import check_function, checked_count, listed
from incrax.errors import ProposalError

MANY_GAIN = 10.0
"""Sweeps of a warm-up in which widths change by all that they are off, before they settle."""


class Position(NamedTuple):
    """Where a chain is: all parameters in one vector, and the log-density there."""

    x: np.ndarray
    value: float


@dataclass
class Block:
    """A block of a chain on the host, which walks."""

    names: tuple[str, ...]
    """Of its elements."""
    places: np.ndarray
    """Of its elements in the vector."""
    value: Callable[[np.ndarray], float]
    """The log-density of a vector."""
    width: np.ndarray
    """Of a step along each element."""
    times: int
    """Steps in a row."""
    target: float | None
    """The share of steps that the warm-up wants accepted; None: widths are given."""
    accepted: int = 0
    """Steps of this chain, since the warm-up."""
    log_scale: float = 0.0
    """By how much the warm-up has widened its steps."""

    def restart(self) -> None:
        """Another chain begins."""
        self.accepted = 0
        self.log_scale = 0.0

    def adapt(self, sweep: int) -> None:
        """A sweep of the warm-up is done: its steps do not count, and tell the width."""
        if self.target is not None:
            missed = self.accepted / self.times - self.target
            self.log_scale += adaptation_gain(sweep) * missed
        self.accepted = 0

    def moved(self, place: Position, rng: np.random.Generator) -> Position:
        """Where the chain is after so many steps."""
        width = self.width * np.exp(self.log_scale)
        for _ in range(self.times):
            x = place.x.copy()
            x[self.places] += width * rng.normal(size=width.size)
            proposed = Position(x, self.value(x))
            is_accepted = np.log(rng.uniform()) < proposed.value - place.value
            place = proposed if is_accepted else place
            self.accepted += int(is_accepted)
        return place


@dataclass(frozen=True)
class Walk:
    """Random-walk Metropolis: normal steps of these widths.

    Args:
        width: standard deviation of a step: one number, or one for each element of the block, in
            the order in which the block names them. None: one for each block, by rows or not,
            found in the warm-up, by which about 44 % of its steps are accepted, 23 % where it has
            several elements.
        times: steps in a row.

    Example:
        >>> from incrax import samplers
        >>> moves = {"mu": samplers.Walk(0.5, times=2)}
        >>> samplers.gibbs(lambda mu: -(mu**2), 0.0, updates=moves, key=0, num_sweeps=10).samples.shape
        (10, 1)
    """

    width: ArrayLike | None = None
    times: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", checked_count("Walk(times=...)", self.times))


@dataclass(frozen=True)
class Hamiltonian:
    """Hamiltonian Monte Carlo: leapfrog steps along the gradient by the block, which alone is
    differentiated.

    Args:
        step_size: of a leapfrog step, in units of `width`. None: found in the warm-up, by which
            about 80 % of the trajectories are accepted; of rows that move by themselves, one each.
        num_steps: leapfrog steps of a trajectory; varied at random between half of it and all.
        width: typical widths of the block's conditional: one number, or one for each element, in
            the order in which the block names them.

    Example:
        >>> from incrax import samplers
        >>> log_density = lambda mu: -0.5 * mu**2
        >>> moves = {"mu": samplers.Hamiltonian(step_size=0.3, num_steps=5)}
        >>> samplers.gibbs(log_density, 0.0, updates=moves, key=0, num_sweeps=10).samples.shape
        (10, 1)
    """

    step_size: float | None = None
    num_steps: int = 10
    width: ArrayLike = 1.0

    def __post_init__(self) -> None:
        num_steps = checked_count("Hamiltonian(num_steps=...)", self.num_steps)
        object.__setattr__(self, "num_steps", num_steps)


@dataclass(frozen=True)
class Categorical:
    """A draw from the conditional distribution of what takes one of a few values, such as labels or
    spins: of each row along the first axis by itself, given all else.

    Args:
        values: all values that a row can take, shape (k,) or (k, *shape of a row); a number k:
            0, 1, ..., k - 1.
        random_walk: whether the next value is proposed among all alike, and accepted or not.
        modified: whether another value than the present one is proposed, and accepted or not.

    Raises:
        ProposalError: there are less than two values.

    Cost: of a row, what its k values change of the log-density, in one vectorised step, however it
        moves.

    Source: J. S. Liu, Peskun's theorem and a modified discrete-state Gibbs sampler (1996).

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from incrax import samplers
        >>> bonds = lambda s: 0.4 * jnp.sum(s * jnp.roll(s, 1))
        >>> spins = {"s": samplers.Categorical([-1, 1])}
        >>> chain = samplers.gibbs(bonds, np.ones(20, int), updates=spins, key=0, num_sweeps=10)
        >>> chain.tree().shape
        (10, 20)
    """

    values: ArrayLike
    random_walk: bool = False
    modified: bool = False

    def __post_init__(self) -> None:
        if self.candidates.ndim == 0 or len(self.candidates) < 2:
            raise ProposalError(
                f"`Categorical` got {self.values!r}; a row must have two values or more to draw "
                "from. Nothing was sampled. Pass how many labels there are, or all values, such as "
                "[-1, 1]."
            )

    @property
    def candidates(self) -> np.ndarray:
        """The values, along the first axis."""
        given = np.asarray(self.values)
        return np.arange(int(given)) if given.ndim == 0 and given.dtype.kind in "iu" else given


@dataclass(frozen=True)
class Kernel:
    """Steps of a kernel of BlackJAX on a block, or on each row of an input, inside compiled sweeps:
    its log-density is that of the block given all else.

    Args:
        make: function (log_density, step_size) -> `blackjax.SamplingAlgorithm`, such as
            `blackjax.mala` or `blackjax.normal_random_walk`; or anything else with `init(position,
            rng_key)` and `step(rng_key, state)`, which returns a state with a `position` and what
            is known of the step. A position is one vector of the elements of the block, or of the
            row, in the order of `Chain.names`. The kernel must leave its log-density invariant
            without memory: each step begins by `init`.
        step_size: one number. None: found in the warm-up, of rows that move by themselves, one
            each.
        target: the share of accepted steps that the warm-up wants, by `acceptance_rate` of what is
            known of a step, or by whether the position changed; 0.57 is best for MALA, 0.44 for a
            random walk of one element and 0.23 of many.
        times: steps in a row.

    Cost: of a step that of the kernel, of which each evaluation reads what its block or row
        reaches, and one evaluation more; `Chain.num_evaluations` counts one. Rows that do not
        interact move at once. Sweeps are compiled once for each `make`: define it once.

    Example:
        >>> import blackjax, jax.numpy as jnp, numpy as np
        >>> from incrax import samplers
        >>> f = lambda p, y: -0.5 * jnp.sum((y - p["x"]) ** 2) - jnp.sum(jnp.cosh(p["x"]))
        >>> hmc = lambda log_density, step: blackjax.hmc(log_density, step, jnp.ones(1), 5)
        >>> moves = {"p['x'][*]": samplers.Kernel(hmc, 0.3)}
        >>> at = {"x": np.zeros(20)}, np.ones(20)
        >>> samplers.gibbs(f, *at, updates=moves, key=0, num_sweeps=10).samples.shape
        (10, 20)
    """

    make: Callable[[Callable[[Any], Any], Any], Any]
    step_size: float | None = None
    target: float = 0.8
    times: int = 1

    def __post_init__(self) -> None:
        check_function("Kernel(make)", self.make)
        object.__setattr__(self, "times", checked_count("Kernel(times=...)", self.times))


# --- widths ---------------------------------------------------------------------------------------


def target_of(update: Any, size: int) -> float | None:
    """The share of steps of so many elements that the warm-up wants accepted, at which widths are
    best, of a normal distribution; None: their widths are given.

    Source: of walks Gelman, Roberts & Gilks (1996), in one dimension and in many; of trajectories
    the Stan Reference Manual (`delta`).
    """
    if isinstance(update, Walk):
        best, given = 0.44 if size == 1 else 0.234, update.width
    elif isinstance(update, Hamiltonian):
        best, given = 0.8, update.step_size
    elif isinstance(update, Kernel):
        best, given = update.target, update.step_size
    else:
        return None
    return best if given is None else None


def adaptation_gain(sweep: int) -> float:
    """By how much a sweep of the warm-up, counted from 0, changes the logarithm of a width, times
    share of accepted steps - target: sum of gains infinite, sum of their squares finite.

    Source: Robbins & Monro (1951), as in Andrieu & Thoms (2008).
    """
    return min(1.0, (MANY_GAIN / (sweep + 1)) ** 0.6)


def widths_of(update: str, width: Any, names: Sequence[str]) -> np.ndarray:
    """A width for each of these elements.

    Raises:
        ProposalError: there are other numbers of them, or one is not positive.
    """
    try:
        widths = np.asarray(1.0 if width is None else width, np.float64)
    except (TypeError, ValueError):
        widths = np.array(np.nan)
    is_positive = np.all((widths > 0) & np.isfinite(widths))
    if widths.shape not in ((), (len(names),)) or not is_positive:
        raise ProposalError(
            f"`{update}` got {width!r} for the block of {listed(names)}. Nothing was sampled. Pass "
            f"one positive number, or one for each of its {len(names)} elements."
        )
    return np.broadcast_to(widths, (len(names),))
