"""Other libraries that solve the same problems: what there is.

A peer has a list of requirements (`benchmarks/peers/NAME.txt`, whose first line names the Pythons
it runs on) and a script (`benchmarks/peers/peer_NAME.py`). `environments` makes its environment,
once, under a cache folder; `turns` times it and us by turns. What does not install, or finds no
Python, is skipped with the reason, which is the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite.catalogue import FOLDER, named

HOME = FOLDER / "peers"


@dataclass(frozen=True)
class Peer:
    """One library: what is asked of it, to what the figures of both sides must agree, and its
    targets.

    A target is the least factor by which the peer's time of a case exceeds ours.
    """

    name: str
    question: str
    rtol: float = 1e-8
    targets: tuple[tuple[str, float], ...] = ()

    @property
    def requirements(self) -> Path:
        """What its environment has."""
        return HOME / f"{self.name}.txt"

    @property
    def script(self) -> Path:
        """Its side."""
        return HOME / f"peer_{self.name}.py"

    @property
    def pythons(self) -> list[str]:
        """Versions of Python that it runs on, best first."""
        first = self.requirements.read_text(encoding="utf-8").splitlines()[0]
        return first.removeprefix("# python:").split()

    def target(self, case: str) -> float | None:
        """The factor to reach in a case."""
        return next((factor for part, factor in self.targets if part in case), None)

    def as_dict(self) -> dict[str, Any]:
        """What `--list --json` tells."""
        return {
            "name": self.name,
            "question": self.question,
            "pythons": self.pythons,
            "rtol": self.rtol,
        }


EVERY_CASE = (("", 1.0),)
PEERS = (
    Peer(
        "zfit",
        "the mixture likelihood in zfit (TensorFlow), one parameter changed",
        targets=EVERY_CASE,
    ),
    Peer(
        "root", "the mixture likelihood in RooFit, which keeps components itself", 1e-7, EVERY_CASE
    ),
    Peer(
        "tensorwaves",
        "amplitude couplings in tensorwaves, which precomputes what is constant",
        1e-8,
        EVERY_CASE,
    ),
    Peer("optimistix", "certified fits of least squares by Levenberg-Marquardt", 1e-5, EVERY_CASE),
    Peer("flowjax", "the log-density of own samples of flows in plain FlowJAX", targets=EVERY_CASE),
    Peer("torch", "mixture, polynomial and rows of a table in PyTorch, eager", 1e-6, EVERY_CASE),
)


def chosen(names: Iterable[str]) -> list[Peer]:
    """The peers of these names; `all` stands for every one.

    Raises:
        UnknownBenchmarkError: there is none of this name.
    """
    return named("peer", {each.name: each for each in PEERS}, names)
