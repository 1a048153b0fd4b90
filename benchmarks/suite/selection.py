"""What the page shows of many results: the best one of each benchmark, its gains, its growth, its
words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.suite import catalogue
from benchmarks.suite.schema import Check, Line, Result

JIT, OURS = "jax.jit", "incrax"
PEERS = "peers-"
VERSIONS = ("python", "jax", "incrax")
"""Those that a page names; a result has more."""
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Gain:
    """A line whose target is a gain, what was reached, and in which of the result's tables it
    is.
    """

    result: Result
    table: int
    line: Line
    check: Check
    ratio: float


def jax_of(result: Result) -> str:
    """The version of JAX, `0.10`; empty where a result has none."""
    return ".".join(result.versions.get("jax", "").split(".")[:2])


def jax_versions(results: Iterable[Result]) -> list[str]:
    """All versions of JAX, that of most results first."""
    counted = Counter(version for each in results if (version := jax_of(each)))
    return sorted(counted, key=lambda version: (-counted[version], version))


def best(results: Sequence[Result], jax: str | None = None) -> dict[str, Result]:
    """By benchmark the newest of a quiet machine, or else the newest; parts and skipped ones where
    nothing else is. Of the newest version of incrax, and of one of JAX, by default that of most
    results.
    """
    found: dict[str, Result] = {}
    newest = max(map(_version, results), default=())
    results = [each for each in results if _version(each) == newest]
    usual = [jax] if jax is not None else jax_versions(results)[:1]
    for result in results:
        if not result.options.quick and jax_of(result) in ("", *usual):
            known = found.get(result.benchmark)
            found[result.benchmark] = (
                result if known is None or _rank(result) >= _rank(known) else known
            )
    order = [each.name for each in catalogue.BENCHMARKS]
    place = lambda name: (order.index(name) if name in order else len(order), name)
    return {name: found[name] for name in sorted(found, key=place)}


def _version(result: Result) -> tuple[int, ...]:
    """Of incrax: what an older one took says nothing of this one."""
    return tuple(map(int, NUMBER.findall(result.versions.get(OURS, ""))))


def _rank(result: Result) -> tuple[bool, bool, bool, str]:
    return result.skipped is None, not result.only, result.conditions == "quiet", result.date


def gains(chosen: Iterable[Result]) -> list[Gain]:
    """Lines whose target is to be faster than another form by a factor, the first such target of
    each.
    """
    made = []
    for result in chosen:
        for number, table in enumerate(result.tables, 1):
            for line in table.lines:
                aims = [
                    check
                    for check in line.checks
                    if check.target.startswith(">=") and check.ratio in line.ratios
                ]
                if aims:
                    made.append(Gain(result, number, line, aims[0], line.ratios[aims[0].ratio]))
    return made


def short(chosen: Iterable[Result]) -> list[tuple[Result, str, Line]]:
    """Lines of which a target was missed."""
    return [
        (result, title, line) for result in chosen for title, line in result.lines if line.missed
    ]


def num_targets(chosen: Iterable[Result]) -> tuple[int, int]:
    """Lines with a target, and those of which one was missed."""
    lines = [line for result in chosen for _, line in result.lines if line.checks]
    return len(lines), sum(bool(line.missed) for line in lines)


# --- words ----------------------------------------------------------------------------------------


def measured(result: Result) -> str:
    """When and on what, in one sentence."""
    cores = f" x {result.machine['cores']}" if "cores" in result.machine else ""
    on = f"{result.machine.get('cpu', 'unknown processor')}{cores}"
    used = ", ".join(
        f"{name} {result.versions[name]}" for name in VERSIONS if name in result.versions
    )
    commit = f", commit {result.commit}" if result.commit else ""
    return f"Measured {result.date[:10]} on {on}; {used}{commit}; {state(result)}."


def state(result: Result) -> str:
    """How busy the machine was."""
    told = {
        "quiet": "on a quiet machine",
        "busy": "**while other programs kept the machine busy**",
        "unknown": "how busy the machine was is not recorded",
    }[result.conditions]
    if result.busy:
        told += f" (others took {100 * max(result.busy):.0f} % of the processors"
        told += f", load average {result.load[0]:g})" if result.load else ")"
    return told


def times(ratio: float) -> str:
    """A ratio in words."""
    return f"{ratio:.3g} times"


def span(sizes: Sequence[float], gains: Sequence[float], unit: str) -> str:
    """The ends of a curve of gains."""
    return (
        f"{sizes[0]:,.0f} to {sizes[-1]:,.0f} {unit}: from {times(gains[0])} to {times(gains[-1])} "
        f"as fast as {JIT}, "
        f"at most {times(max(gains))}"
    )
