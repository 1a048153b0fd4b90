"""The tree of guards: which paths share which outcomes, and where a call that misses one finds the
next.

In: recorded paths. Out: the path for outcomes seen so far. It must not run anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from incrax.control_flow.tapes.guards import Guard
from incrax.control_flow.tapes.paths import Path


class GuardNode:
    """A guard that paths with the same outcomes so far meet next, with one child per outcome; or
    the end of a path.
    """

    __slots__ = ("children", "guard", "likely", "path")

    def __init__(self) -> None:
        self.guard: Guard | None = None
        self.children: dict[Hashable, GuardNode] = {}
        self.path: Path | None = None
        self.likely: Path | None = None
        """The path below that was right last."""


class OtherWay(Exception):
    """A path with the outcomes of another meets another guard next; carries the place."""


class Tree:
    """All paths of one signature.

    Invariant: paths that share a node had the same outcomes before it, and met the same guard
    there.
    """

    def __init__(self) -> None:
        self.root = GuardNode()
        self.paths: list[Path] = []

    def insert(self, path: Path) -> Path:
        """Add a path; returns the one that is there already if one has its outcomes.

        Raises:
            OtherWay: the function is not a function of what it was seen to read.
        """
        node = self.root
        nodes: list[GuardNode] = []
        for guard in path.guards:
            if node.path is not None or (node.guard is not None and node.guard.site != guard.site):
                raise OtherWay(guard.place)
            nodes.append(node)
            node = node.children.get(guard.key) or GuardNode()
        if node.guard is not None:
            raise OtherWay(f"{node.guard.place}, which was not reached")
        if node.path is not None:
            return node.path
        return self._add(path)

    def _add(self, path: Path) -> Path:
        node = self.root
        for guard in path.guards:
            node.guard = node.guard or guard
            path.nodes.append(node)
            node = node.children.setdefault(guard.key, GuardNode())
        node.path = path
        path.nodes.append(node)
        self.paths.append(path)
        mark_likely(path)
        return path

    def remove(self, path: Path) -> None:
        """Forget a path whose program cannot run."""
        self.paths.remove(path)
        for node in path.nodes:
            node.likely = None if node.likely is path else node.likely
        path.nodes[-1].path = None
        for node, guard in zip(reversed(path.nodes[:-1]), reversed(path.guards), strict=True):
            child = node.children[guard.key]
            if not child.children and child.path is None:
                del node.children[guard.key]

    def next_after(self, path: Path, failing: int, key: Hashable) -> Path | None:
        """The path to try where guard `failing` of `path` learned `key`."""
        child = path.nodes[failing].children.get(key)
        return None if child is None else child.likely

    def walk(self) -> Iterator[tuple[int, GuardNode]]:
        """Every node with a guard and its depth, parents first."""
        waiting: list[tuple[int, GuardNode]] = [(0, self.root)]
        while waiting:
            depth, node = waiting.pop()
            if node.guard is not None:
                yield depth, node
            waiting += [(depth + 1, child) for child in reversed(list(node.children.values()))]


def mark_likely(path: Path) -> None:
    """Try this path first at all nodes that it passes."""
    for node in path.nodes:
        node.likely = path


def outcomes(tree: Tree) -> dict[str, set[Any]]:
    """Which outcomes each place had, the place with most first."""
    seen: dict[str, set[Any]] = {}
    for _, node in tree.walk():
        assert node.guard is not None
        seen.setdefault(node.guard.place, set()).update(node.children)
    return seen
