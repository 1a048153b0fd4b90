"""What there is to run: every script with its question, its targets, what it needs and how long it
takes.

Question and targets are those of the script's docstring, so that they are written once.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

FOLDER = Path(__file__).parents[1]
"""The folder of the scripts."""
LEAST_LIMIT_S = 300.0
LIMIT_FACTOR = 4.0
"""A script may take so many times as long as it usually does; machines differ."""
EVERYTHING = "all"

T = TypeVar("T")


class UnknownBenchmarkError(ValueError):
    """A name that is no benchmark; the message lists those that are."""


@dataclass(frozen=True)
class Benchmark:
    """One script.

    `needs` must be installed for it to run at all, `uses` add lines where they are; `arguments` are
    given to the script in a full run, and `data` is an environment variable that says where its
    data lie.
    """

    name: str
    minutes: float
    needs: Sequence[str] = ()
    uses: Sequence[str] = ()
    arguments: Sequence[str] = ()
    script: str = ""
    data: str = ""

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / (self.script or f"bench_{self.name}.py")

    @property
    def limit_s(self) -> float:
        """Seconds after which it is stopped, if nothing else is said."""
        return max(LEAST_LIMIT_S, LIMIT_FACTOR * 60 * self.minutes)

    @property
    def paragraphs(self) -> list[str]:
        """The script's docstring, a line each."""
        text = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        return [" ".join(each.split()) for each in text.split("\n\n")]

    @property
    def question(self) -> str:
        """What it answers."""
        text = self.paragraphs[0].removeprefix("Question: ")
        return text[:1].upper() + text[1:]

    @property
    def targets(self) -> str:
        """What is to be reached, from the word on; empty where the script only reports."""
        for paragraph in self.paragraphs[1:]:
            found = re.search(r"\b(Targets?[,:]|Target:|No targets?:).*", paragraph)
            if found:
                return found[0]
        return ""

    @property
    def missing(self) -> list[str]:
        """What it needs and is not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    @property
    def skip_reason(self) -> str | None:
        """Why it cannot run here; None where it can."""
        if self.missing:
            return (
                f"needs {', '.join(self.missing)}, not installed: pip install "
                f"{' '.join(self.missing)}"
            )
        return None

    def command(self, *, quick: bool = False) -> str:
        """How to run it by itself, as one would type it."""
        return " ".join(["python -m benchmarks --run", self.name, *(["--quick"] if quick else [])])


BENCHMARKS = (
    Benchmark("jobs", 22),
    Benchmark("readme", 2),
    Benchmark(
        "analyses",
        15,
        uses=(
            "pyhf",
            "numpyro",
            "tinygp",
            "diffrax",
            "ampform",
            "tensorwaves",
            "cogent3",
            "flowjax",
            "zfit",
        ),
    ),
    Benchmark("slices", 6),
    Benchmark("impacts", 2, needs=("iminuit",)),
    Benchmark("mixture", 2, uses=("iminuit",)),
    Benchmark("amplitude", 7),
    Benchmark("calls", 1),
    Benchmark("overhead", 2),
    Benchmark("compile", 7),
    Benchmark("pure", 2),
    Benchmark("sweeps", 7, uses=("numpyro",)),
    Benchmark("posterior", 14, uses=("numpyro", "blackjax")),
    Benchmark("algebra", 4),
    Benchmark("exact", 1),
    Benchmark("rows", 2),
    Benchmark("row_sparse", 2, needs=("optax",)),
    Benchmark("sparse_hessian", 1),
    Benchmark("pullback", 1),
    Benchmark("broadcast", 1),
    Benchmark("guarded", 1),
    Benchmark("loops", 1),
    Benchmark(
        "least_squares",
        3,
        uses=("optimistix", "jaxopt", "lmfit", "iminuit", "lsqfit"),
        data="NIST_STRD",
    ),
    Benchmark("fits", 15, needs=("iminuit",), arguments=("--rounds", "2")),
    Benchmark("growth", 12),
    Benchmark("predictions", 2),
    Benchmark("curves", 8),
    Benchmark("hold", 4),
    Benchmark("bijectors", 3, needs=("flowjax",)),
)
"""In the order of the page."""


def by_name() -> dict[str, Benchmark]:
    """All of them."""
    return {each.name: each for each in BENCHMARKS}


def named(kind: str, known: Mapping[str, T], names: Iterable[str]) -> list[T]:
    """What these names stand for, once each; `all` stands for everything.

    Raises:
        UnknownBenchmarkError: there is none of this name.
    """
    found: dict[str, T] = {}
    for name in names:
        if name == EVERYTHING:
            found |= known
        elif name in known:
            found[name] = known[name]
        else:
            raise UnknownBenchmarkError(
                f"no {kind} is called {name!r}; known are {EVERYTHING}, {', '.join(known)}."
            )
    return list(found.values())


def chosen(names: Iterable[str]) -> list[Benchmark]:
    """The benchmarks of these names, once each; `all` stands for every one.

    Raises:
        UnknownBenchmarkError: there is none of this name.
    """
    return named("benchmark", by_name(), names)


def as_dict(benchmark: Benchmark) -> dict[str, object]:
    """What `--list --json` tells."""
    return {
        "name": benchmark.name,
        "question": benchmark.question,
        "targets": benchmark.targets,
        "needs": list(benchmark.needs),
        "uses": list(benchmark.uses),
        "data": benchmark.data,
        "minutes": benchmark.minutes,
        "script": f"benchmarks/{benchmark.path.name}",
        "skipped": benchmark.skip_reason,
    }


def data_note(benchmark: Benchmark) -> str:
    """Where its data are looked for, if it has some."""
    if not benchmark.data:
        return ""
    place = os.environ.get(benchmark.data)
    return f"data: {place}" if place else f"data: where {benchmark.data} says"
