"""A tape: the paths of one signature, which of them to expect, and which to try where one is wrong.

In: leaves. Out: results. It must not know about signatures or trees of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from incrax._program import Values
from incrax.control_flow.tapes.paths import Path, TapeStats
from incrax.errors import NotReproducibleError

Attempt = Callable[[Path], tuple[int, Any]]
"""Try a path: the number of its first guard that fails, and its results if none does."""


class Tape:
    """Paths of one signature under one state of what the function captures.

    Invariant: two paths meet the same guards up to the first whose outcomes differ, and there is
    one.
    """

    def __init__(self, signature: Any, captured: Any, stats: TapeStats) -> None:
        self.signature = signature
        self.captured = captured
        self.treedef = signature.treedef
        self.all_dynamic = all(signature.is_dynamic)
        self.paths: list[Path] = []
        self.stats = stats
        self.likely: Path | None = None
        """The path to try first."""
        self.latest: Path | None = None
        """The path of the latest call."""
        self._turn = 0

    def add(self, path: Path) -> Path:
        """Add a path; returns the one that is there already if one has its outcomes.

        Raises:
            NotReproducibleError: the function is not a function of what it was seen to read.
        """
        for other in self.paths:
            number = _first_difference(path, other)
            if number == path.num_guards == other.num_guards:
                return other
            ours = path.guards[number:]
            theirs = other.guards[number:]
            if not ours or not theirs or ours[0].site != theirs[0].site:
                place = ours[0].place if ours else f"{theirs[0].place}, which was not reached"
                raise NotReproducibleError(
                    f"`guarded({self.captured.name})` went another way than before although all it "
                    f"had read was the same: at {place}. It depends on something that is no "
                    "argument and was not seen to be captured: a file, an iterator, an object "
                    "inside an installed package. Nothing was recorded; paths recorded before are "
                    "as they were. Pass it as an argument, or as `static=`."
                )
        self.paths.append(path)
        self._prefer(path)
        return path

    def recent(self) -> Path | None:
        """The path that was right last where another was expected."""
        return _latest(self.paths)

    def search(
        self, path: Path | None, attempt: Attempt, leaves: Values
    ) -> tuple[Path, Any] | None:
        """The recorded path that is right at these leaves, and its results; `path` is tried first.

        None is also the answer where paths send the call to one another, their programs rounding a
        guard differently.
        """
        tried: list[Path] = []
        while path is not None and path not in tried:
            tried.append(path)
            failing, results = attempt(path)
            if failing == path.num_guards:
                return path, results
            path = self.after(path, failing, leaves)
        return None

    def after(self, path: Path, failing: int, leaves: Values) -> Path | None:
        """The path to try after one whose guard `failing` is the first that does not hold."""
        path.misses += 1
        guard = path.guards[failing]
        key = not guard.key if guard.kind == "bool" else path.key_at(failing, leaves)
        outcomes = [*(g.key for g in path.guards[:failing]), key]
        return _latest(
            [x for x in self.paths if [g.key for g in x.guards[: failing + 1]] == outcomes]
        )

    def count(self, path: Path, *, is_hit: bool) -> None:
        """Note which path was right, and expect the one that followed it before."""
        self.stats.hits += is_hit
        self.stats.misses += not is_hit
        before = self.latest
        if not is_hit and before is not None:
            # Twice in a row another path than expected followed.
            if before.doubted_at == before.hits - 1:
                before.successor = path
            before.doubted_at = before.hits
        if not is_hit:
            self._prefer(path)
        path.hits += 1
        self.latest = path
        self.likely = path.successor

    def _prefer(self, path: Path) -> None:
        self._turn += 1
        path.preferred_at = self._turn


def _first_difference(a: Path, b: Path) -> int:
    """The number of the first guard that two paths do not share with its outcome."""
    number = 0
    for ours, theirs in zip(a.guards, b.guards, strict=False):
        if (ours.site, ours.key) != (theirs.site, theirs.key):
            break
        number += 1
    return number


def _latest(paths: Sequence[Path]) -> Path | None:
    return max(paths, key=lambda path: path.preferred_at, default=None)
