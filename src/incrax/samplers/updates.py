"""How a block moves while all else stays: a random walk, Hamiltonian dynamics, a draw from its
conditional.

In: where a chain is, a block. Out: where it is next. It must not know other blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from incrax.samplers.messages import wrong_draw, wrong_number, wrong_width


class Position(NamedTuple):
    """Where a chain is: all parameters in one vector, and the log-density there."""

    x: np.ndarray
    value: float


@dataclass
class Block:
    """A block of a chain.

    Fields: names of its elements; their places in the vector; the log-density of a vector; that and
    its gradient by the block, of a vector; all of a vector as the arguments of the log-density;
    counters.
    """

    names: tuple[str, ...]
    places: np.ndarray
    value: Callable[[np.ndarray], float]
    value_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]]
    arguments: Callable[[np.ndarray], tuple[Any, ...]]
    tried: int = 0
    accepted: int = 0
    evaluations: int = 0

    def at(self, x: np.ndarray, part: np.ndarray) -> np.ndarray:
        """The vector with other values of the block."""
        x = x.copy()
        x[self.places] = part
        return x

    def decided(
        self, place: Position, moved: Position, log_ratio: float, rng: np.random.Generator
    ) -> Position:
        """Where the chain is after a proposal that is accepted with probability exp(log_ratio)."""
        self.tried += 1
        is_accepted = np.log(rng.uniform()) < log_ratio
        self.accepted += int(is_accepted)
        return moved if is_accepted else place


class Update(Protocol):
    """A way to move a block."""

    def move(self, place: Position, block: Block, rng: np.random.Generator) -> Position:
        """The next place."""
        ...


@dataclass(frozen=True)
class Walk:
    """Random-walk Metropolis: normal steps of these widths.

    Args:
        width: standard deviation of a step: one number, or one for each element of the block, in
            the order in which the block names them.
        times: steps in a row.
    """

    width: Any
    times: int = 1

    def move(self, place: Position, block: Block, rng: np.random.Generator) -> Position:
        """So many steps."""
        if self.times < 1:
            raise wrong_number("Walk(times=...)", self.times)
        width = widths_of("Walk", self.width, block.names)
        for _ in range(self.times):
            x = block.at(place.x, place.x[block.places] + width * rng.normal(size=width.size))
            moved = Position(x, block.value(x))
            block.evaluations += 1
            place = block.decided(place, moved, moved.value - place.value, rng)
        return place


@dataclass(frozen=True)
class Hamiltonian:
    """Hamiltonian Monte Carlo: leapfrog steps along the gradient by the block, which alone is
    differentiated.

    Args:
        step_size: of a leapfrog step, in units of `width`.
        num_steps: leapfrog steps of a trajectory; varied at random between half of it and all.
        width: typical widths of the block's conditional: one number, or one for each element, in
            the order in which the block names them.
    """

    step_size: float
    num_steps: int = 10
    width: Any = 1.0

    def move(self, place: Position, block: Block, rng: np.random.Generator) -> Position:
        """One trajectory; where it leaves the support it is rejected."""
        if self.num_steps < 1:
            raise wrong_number("Hamiltonian(num_steps=...)", self.num_steps)
        widths_of("Hamiltonian", self.step_size, block.names)
        width = widths_of("Hamiltonian", self.width, block.names)
        momentum = rng.normal(size=width.size)
        start_kinetic = 0.5 * momentum @ momentum
        num_steps = int(rng.integers((self.num_steps + 1) // 2, self.num_steps + 1))
        x, (value, gradient) = place.x, block.value_and_gradient(place.x)
        block.evaluations += 1 + num_steps
        # Half a kick, then drifts and kicks by turns: p -> p + eps/2 dlogp/dq, q -> q + eps p, in
        # units of the widths.
        momentum = momentum + 0.5 * self.step_size * width * gradient
        for turn in range(num_steps):
            x = block.at(x, x[block.places] + self.step_size * width * momentum)
            value, gradient = block.value_and_gradient(x)
            last = turn == num_steps - 1
            momentum = momentum + (0.5 if last else 1.0) * self.step_size * width * gradient
        log_ratio = float(value - place.value + start_kinetic - 0.5 * momentum @ momentum)
        return block.decided(
            place, Position(x, value), log_ratio if log_ratio == log_ratio else -np.inf, rng
        )


@dataclass(frozen=True)
class Conditional:
    """A draw from the block's conditional distribution, known in closed form; always accepted.

    Args:
        draw: function (numpy generator, *arguments of the log-density) -> new values of the block
            in one vector, in the order in which the block names its elements.
    """

    draw: Callable[..., Any]

    def move(self, place: Position, block: Block, rng: np.random.Generator) -> Position:
        """The draw."""
        part = np.asarray(self.draw(rng, *block.arguments(place.x)), np.float64)
        if part.shape not in ((len(block.names),), ()) or part.size != len(block.names):
            raise wrong_draw(
                block.names, f"an array of shape {part.shape}", f"{len(block.names)} elements"
            )
        x = block.at(place.x, part.reshape(-1))
        block.tried += 1
        block.accepted += 1
        block.evaluations += 1
        drawn = Position(x, block.value(x))
        if not np.all(np.isfinite(part)) or drawn.value == -np.inf:
            raise wrong_draw(
                block.names,
                f"{part.tolist()}, where the density is zero",
                "sampled where it is not",
            )
        return drawn


def widths_of(update: str, width: Any, names: Sequence[str]) -> np.ndarray:
    """A width for each of these elements.

    Raises:
        ProposalError: there are other numbers of them, or one is not positive.
    """
    widths = np.asarray(width, np.float64)
    is_fitting = widths.shape in ((), (len(names),)) and bool(
        np.all(widths > 0) and np.all(np.isfinite(widths))
    )
    if not is_fitting:
        raise wrong_width(update, repr(width), names)
    return np.broadcast_to(widths, (len(names),))
