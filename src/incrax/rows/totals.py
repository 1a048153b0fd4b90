"""Partial results of runs of chunks, combined once, so that an append reads a few of them and not
one per chunk.

In: chunks in their order, results of a chunk. Out: fewer partial results, in the same order. It
must not know engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from incrax.engine.inputs.chunks import Chunk
from incrax.engine.store.store import is_any_deleted
from incrax.primitives.row_axis import Reduction
from incrax.rows.combining import combine_all

RUN = 8
"""Chunks of a run. It depends on nothing else which ones are in it, so that equal chunks give equal
bits.
"""

Results = list[Any]


class Totals:
    """Combined results of the runs of one pass, by version and the numbers of their chunks."""

    def __init__(self, kinds: tuple[Reduction, ...]) -> None:
        self.kinds = kinds
        self.known: dict[tuple[int, tuple[int, ...]], Results] = {}
        self.num_reused = 0

    def copy(self) -> Totals:
        """The same for another table."""
        other = Totals(self.kinds)
        other.known = dict(self.known)
        return other

    def of(self, version: int, run: Sequence[Chunk], result: Callable[[Chunk], Results]) -> Results:
        """The total of a run; made from the results of its chunks, if it is not known."""
        key = version, tuple([chunk.lineage.number for chunk in run])
        found = self.known.get(key)
        if found is not None and not is_any_deleted(found):
            self.num_reused += len(run)
            return found
        total = self.known[key] = combine_all(self.kinds, [result(chunk) for chunk in run])
        return total

    def take_reused(self) -> int:
        """Chunks whose results were not looked up since this was asked for."""
        found = self.num_reused
        self.num_reused = 0
        return found

    def keep(self, versions: frozenset[int], chunks: frozenset[int]) -> None:
        """Forget the totals of other versions and of other chunks."""
        self.known = {
            key: x
            for key, x in self.known.items()
            if key[0] in versions and chunks.issuperset(key[1])
        }


def runs_of(chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
    """The chunks cut into runs; the last ones, which the next append would change, and few chunks
    one by one.
    """
    num_in_runs = len(chunks) - len(chunks) % RUN if len(chunks) > 2 * RUN else 0
    yield from (chunks[start : start + RUN] for start in range(0, num_in_runs, RUN))
    yield from (chunks[number : number + 1] for number in range(num_in_runs, len(chunks)))


def in_runs(
    totals: Totals, version: int, chunks: Sequence[Chunk], result: Callable[[Chunk], Results]
) -> list[Results]:
    """Partial results in order: the totals of runs, known or made, and the results of the other
    chunks.
    """
    return [
        result(run[0]) if len(run) == 1 else totals.of(version, run, result)
        for run in runs_of(chunks)
    ]
