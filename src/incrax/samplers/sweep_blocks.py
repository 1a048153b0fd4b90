"""What moves in a sweep: blocks, with the data of each.

In: a log-density, names and updates. Out: `SweepBlock`s. It must not know how they move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from incrax._messages import listed, not_by_rows, unknown_input
from incrax.engine.call.sites import Sites, SitesState
from incrax.engine.inputs.paths import is_within
from incrax.engine.program.functions import Identity
from incrax.errors import BlockError, ProposalError
from incrax.samplers.density import Density
from incrax.samplers.updates import Categorical, Hamiltonian, Kernel, Walk, target_of, widths_of

ROWS = "[*]"
"""After a path: each row along the first axis is a block of its own."""

MIN_OF_COLOUR = 64
"""Rows of a colour, on average, from which on they move at once."""

Data = dict[str, np.ndarray]
"""Of a block, by path: widths in the shape of the input, or the values that a row may take."""


def parts_of(name: Any) -> tuple[Any, ...]:
    """The paths that name a block, of which there may be one."""
    return name if isinstance(name, tuple) else (name,)


def named(names: Sequence[str], asked: Any) -> tuple[str, ...]:
    """The elements that a path, a prefix of paths, or a tuple of these names, by rows or not, in the
    order in which they are named.

    Raises:
        UnknownInputError: one names nothing.
    """
    found: dict[str, None] = {}
    for part in parts_of(asked):
        path = part.removesuffix(ROWS) if isinstance(part, str) else None
        own = [name for name in names if path is not None and is_within(name, path)]
        if not own:
            raise unknown_input(str(part), names)
        found.update(dict.fromkeys(own))
    return tuple(found)


def is_by_rows(name: Any) -> bool:
    """Whether a block's name says that each row is a block of its own."""
    return any(isinstance(part, str) and part.endswith(ROWS) for part in parts_of(name))


class SweepBlock(NamedTuple):
    """A block that moves as a whole, or blocks of which each has one row of the same inputs."""

    name: str
    """As the user names it."""
    paths: tuple[str, ...]
    """Of its inputs."""
    num_rows: int | None
    """Of its inputs; None: it moves as a whole."""
    times: int = 1
    """Steps in a row."""
    num_values: int | None = None
    """That it takes; None: it moves continuously."""
    target: float | None = None
    """The share of steps that the warm-up wants accepted; None: widths are given."""
    random_walk: bool = False
    """Of values, whether the next one is proposed at random; see `Categorical`."""
    modified: bool = False
    """Of values, whether the next one is never the same."""
    num_leaps: int = 0
    """Leapfrog steps of a trajectory, at most; 0: it walks."""
    step_size: float = 1.0
    """Of a leapfrog step, or of a kernel."""
    num_colours: int = 0
    """By which rows move: one if they do not interact; 0: one by one."""
    kernel: Identity | None = None
    """The function that makes its kernel."""
    elements: tuple[int, ...] | None = None
    """Of a block that is a part of its inputs: their numbers; None: it is all of them."""

    @property
    def num_blocks(self) -> int:
        """One, or one for each row."""
        return 1 if self.num_rows is None else self.num_rows

    @property
    def is_together(self) -> bool:
        """Whether all rows, or all of a colour, move at once."""
        return self.num_colours > 0

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


def coloured(block: SweepBlock, sites: Sites, state: SitesState) -> SweepBlock:
    """A block by rows that knows which of them may move at once."""
    colours = sites.colours(state, block.paths)
    num = 0 if colours is None else int(colours.max()) + 1
    # An evaluation of all rows for each colour must cost less than a step of each row.
    is_worth_it = num == 1 or num * MIN_OF_COLOUR <= block.num_blocks
    return block._replace(num_colours=num if is_worth_it else 0)


def made_block(
    density: Density, name: Any, update: Walk | Hamiltonian | Kernel | Categorical
) -> tuple[SweepBlock, Data]:
    """A block of the sweep, and its data."""
    names = named(density.names, name)
    shown = ", ".join(parts_of(name))
    if isinstance(update, Categorical):
        return _categorical(density, shown, update, np.isin(density.names, names))
    if not isinstance(update, Walk):
        widths_of(type(update).__name__, update.step_size, names[:1])
    moved = _widths(density, names, update)
    num_rows = _num_rows(name, shown, moved)
    size = len(names) // (num_rows or 1)
    block = SweepBlock(shown, tuple(moved), num_rows, target=target_of(update, size))
    if isinstance(update, (Hamiltonian, Kernel)):
        block = block._replace(step_size=float(update.step_size or 1.0))
    if isinstance(update, Hamiltonian):
        return block._replace(num_leaps=update.num_steps), moved
    block = block._replace(times=update.times)
    if isinstance(update, Kernel):
        is_own = np.concatenate([np.ravel(x) > 0 for x in moved.values()])
        part = None if np.all(is_own) else tuple(np.flatnonzero(is_own).tolist())
        return block._replace(kernel=Identity(update.make), elements=part), {}
    if update.width is None:
        # A vector of d normal elements wants steps of 2.4 / sqrt(d).
        moved = {path: x / np.sqrt(size) for path, x in moved.items()}
    return block, moved


def _widths(density: Density, names: Sequence[str], update: Walk | Hamiltonian | Kernel) -> Data:
    """Of what moves: elements in the order of the vector, widths in that in which the block names
    them.
    """
    widths = np.zeros(len(density.names))
    width = 1.0 if isinstance(update, Kernel) else update.width
    widths[density.places(names)] = widths_of(type(update).__name__, width, names)
    return _by_path(density, widths)


def _by_path(density: Density, x: np.ndarray) -> Data:
    """A vector, without leaves in which all is zero."""
    leaves = zip(density.paths, density.ends.split(x), strict=True)
    return {path: leaf for path, leaf in leaves if np.any(leaf)}


def _num_rows(name: Any, shown: str, moved: Mapping[str, np.ndarray]) -> int | None:
    """How many rows move by themselves; None: none.

    Raises:
        BlockError: different numbers.
    """
    by_rows = [part.removesuffix(ROWS) for part in parts_of(name) if part.endswith(ROWS)]
    if not by_rows:
        return None
    lengths: dict[str, int | None] = dict.fromkeys(moved)
    for path, x in moved.items():
        if any(is_within(path, part) for part in by_rows):
            if not x.ndim:
                raise not_by_rows(path, x.shape)
            lengths[path] = len(x)
    found, *others = set(lengths.values())
    if others:
        seen = ", ".join(
            f"`{path}` has {'no rows there' if num is None else f'{num} rows'}"
            for path, num in lengths.items()
        )
        raise BlockError(
            f"Rows of `{shown}` cannot move together: {seen}. Nothing was sampled. Name inputs with "
            "as many rows, each with `[*]`, or make them blocks of their own."
        )
    return found


def _categorical(
    density: Density, shown: str, update: Categorical, is_own: np.ndarray
) -> tuple[SweepBlock, Data]:
    own = _by_path(density, is_own)
    if len(own) > 1 or not all(map(np.all, own.values())):
        raise BlockError(
            f"`{shown}` stands for elements of {listed(own)}; a `Categorical` "
            "draws the rows of one whole input, each by itself. Nothing was sampled. Make each "
            "input a block of its own."
        )
    ((path, x),) = own.items()
    dtype = density.dtypes[density.paths.index(path)]
    values = update.candidates
    expected = x.shape[1:]
    by_number = " To draw each number of a matrix, sample it as a vector." if expected else ""
    if values.shape[1:] != expected or not np.array_equal(values.astype(dtype), values):
        raise ProposalError(
            f"The `Categorical` of `{shown}` has values of dtype {values.dtype} and shape "
            f"{values.shape}, where a row has dtype {dtype} and shape {expected}. Nothing was "
            f"sampled. Pass values of the type and shape of one row.{by_number}"
        )
    num_rows = len(x) if x.ndim else None
    block = SweepBlock(
        shown, (path,), num_rows, 1, len(values),
        random_walk=update.random_walk, modified=update.modified,
    )  # fmt: skip
    return block, {path: values.astype(dtype)}
