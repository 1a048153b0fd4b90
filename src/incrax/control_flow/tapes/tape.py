"""A tape: the paths of one signature, which of them to expect, and what to do where none is right.

In: leaves. Out: results. It must not know about signatures or trees of arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from incrax import _jax
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.paths import Path, int_of
from incrax.control_flow.tapes.tree import Tree, mark_likely

Attempt = Callable[[Path], tuple[int, Any]]
"""Try a path: the number of its first guard that fails, and its results if none does."""


class Tape:
    """Paths of one signature under one state of what the function captures."""

    def __init__(self, signature: Any, captured: Any, stats: TapeStats) -> None:
        self.signature = signature
        self.captured = captured
        self.treedef = signature.treedef
        self.all_dynamic = all(signature.is_dynamic)
        self.tree = Tree()
        self.stats = stats
        self.likely: Path | None = None
        """The path to try first."""
        self.latest: Path | None = None
        """The path of the latest call."""

    def search(
        self, path: Path | None, attempt: Attempt, leaves: Sequence[Any]
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

    def after(self, path: Path, failing: int, leaves: Sequence[Any]) -> Path | None:
        """The path to try after one whose guard `failing` is the first that does not hold."""
        path.misses += 1
        is_bool = path.guards[failing].kind == "bool"
        key = not path.guards[failing].key if is_bool else path.key_at(failing, leaves)
        return self.tree.next_after(path, failing, key)

    def forget(self, path: Path) -> None:
        """Remove a path, if it is one of this tape and has never given results."""
        if path not in self.tree.paths or path.hits > 1:
            return
        self.tree.remove(path)
        self.likely = self.latest = None
        for other in self.tree.paths:
            other.successor = other if other.successor is path else other.successor

    def count(self, path: Path, *, is_hit: bool) -> None:
        """Note which path was right, and expect the one that followed it before."""
        self.stats.hits += is_hit
        self.stats.misses += not is_hit
        if not is_hit:
            self._learn(path)
            mark_likely(path)
        path.hits += 1
        self.latest = path
        self.likely = path.successor

    def _learn(self, path: Path) -> None:
        """Where a path was followed by another than expected twice in a row, expect the latest."""
        before = self.latest
        if before is None:
            return
        if before.doubted_at == before.hits - 1:
            before.successor = path
        before.doubted_at = before.hits


def evaluate(path: Path, leaves: Sequence[Any]) -> tuple[int, Any]:
    """Try a path: guards alone first where running the wrong one could be noticed."""
    if path.needs_check or _jax.checks_values():
        failing = path.first_failing(leaves)
        return failing, path.results(path.consts, *leaves) if failing == path.num_guards else None
    results, failing = path.run(path.consts, *leaves)
    return (int_of(failing) if path.num_guards else 0), results


def first_results(path: Path, leaves: Sequence[Any]) -> Any:
    """The results of a path that was just recorded; its compilation is timed."""
    begin = time.perf_counter()
    results = (
        path.results(path.consts, *leaves)
        if path.needs_check
        else path.run(path.consts, *leaves)[0]
    )
    path.compile_s = path.compile_s or time.perf_counter() - begin
    return results
