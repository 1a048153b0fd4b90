"""Two results line by line: better, worse, the same within the noise, new or gone.

What is compared are ratios of ratios: (other form's time / ours) in the second result over that in
the first, so that a faster machine is no progress. The noise of a ratio is that of its four
medians, each taken as half the distance of its quartiles on a logarithmic scale, added in
quadrature, and never less than `FLOOR`. Targets without a ratio (counts, bounds) compare by whether
they are met.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.suite.schema import Line, Result, Timing

FLOOR = 0.05
"""Changes below five percent are never told from noise: two runs of one program differ by that."""
BETTER, WORSE, SAME, NEW, GONE = "better", "worse", "same", "new", "gone"
ORDER = (WORSE, BETTER, GONE, NEW, SAME)


class ComparisonError(ValueError):
    """Two results that cannot be compared; the message says why."""


@dataclass(frozen=True)
class Change:
    """One ratio, or one target without a ratio (`first` and `second` are 1 where it was met, else
    0).
    """

    name: str
    first: float
    second: float
    noise: float
    status: str
    has_target: bool

    @property
    def factor(self) -> float:
        """Second over first; above 1 is better."""
        return self.second / self.first if self.first else math.inf


@dataclass(frozen=True)
class Compared:
    """One line."""

    benchmark: str
    title: str
    case: str
    status: str
    has_target: bool
    changes: list[Change]

    @property
    def telling(self) -> Change | None:
        """The change that decides, or else the one farthest from none."""
        ranked = sorted(
            self.changes, key=lambda each: (each.status != self.status, -_distance(each))
        )
        return ranked[0] if ranked else None

    @property
    def is_worse_target(self) -> bool:
        """Whether a target of this line got worse."""
        return any(change.status == WORSE and change.has_target for change in self.changes)


def compare(first: Sequence[Result], second: Sequence[Result]) -> list[Compared]:
    """All lines of both, in the order of the second, then those that are gone.

    Raises:
        ComparisonError: nothing is in common, or one is of a quick run and the other not.
    """
    old, new = _by_benchmark(first), _by_benchmark(second)
    common = [name for name in new if name in old]
    if not common:
        raise ComparisonError(
            f"nothing to compare: the first has figures of {', '.join(old) or 'none'}, "
            f"the second of {', '.join(new) or 'none'}."
        )
    for name in common:
        if old[name].options.quick != new[name].options.quick:
            raise ComparisonError(
                f"one result of {name!r} is of a quick run (small sizes, no valid figures), the "
                "other is not. "
                "Compare runs of one kind."
            )
    return [line for name in common for line in _compare_two(old[name], new[name])]


def _by_benchmark(results: Iterable[Result]) -> dict[str, Result]:
    """The newest of each benchmark that was not skipped."""
    found: dict[str, Result] = {}
    for result in sorted(results, key=lambda each: each.date):
        if result.skipped is None:
            found[result.benchmark] = result
    return found


def _compare_two(old: Result, new: Result) -> list[Compared]:
    before = {(title, line.case): line for title, line in old.lines}
    after = {(title, line.case): line for title, line in new.lines}
    made = []
    for key in [*after, *(key for key in before if key not in after)]:
        if key not in before or key not in after:
            if (new if key in before else old).only:
                continue  # a run of some cases says nothing of the others
            line, status = (after[key], NEW) if key in after else (before[key], GONE)
            made.append(Compared(new.benchmark, *key, status, bool(line.checks), []))
        else:
            changes = line_changes(before[key], after[key])
            has_target = bool(before[key].checks or after[key].checks)
            made.append(Compared(new.benchmark, *key, _status(changes), has_target, changes))
    return made


def line_changes(old: Line, new: Line) -> list[Change]:
    """Every ratio that both have, then every target without a ratio."""
    wanted = {check.ratio for line in (old, new) for check in line.checks}
    changes = []
    for name in [name for name in new.ratios if name in old.ratios]:
        noise = math.hypot(_ratio_noise(old, name), _ratio_noise(new, name), 0.0)
        noise = max(noise, math.log1p(FLOOR))
        first, second = old.ratios[name], new.ratios[name]
        step = math.log(second / first) if first > 0 and second > 0 else 0.0
        status = SAME if abs(step) <= noise else BETTER if step > 0 else WORSE
        changes.append(Change(name, first, second, noise, status, name in wanted))
    return changes + _flipped(old, new)


def _flipped(old: Line, new: Line) -> list[Change]:
    before = {check.target: check.is_met for check in old.checks if not check.ratio}
    made = []
    for check in new.checks:
        if not check.ratio and check.target in before:
            first, second = before[check.target], check.is_met
            status = SAME if first == second else BETTER if second else WORSE
            made.append(
                Change(check.target, float(first), float(second), 0.0, status, has_target=True)
            )
    return made


def _ratio_noise(line: Line, name: str) -> float:
    """Of log(other / ours): both medians' noise in quadrature; none is known where a form has no
    quartiles.
    """
    other, _, ours = name.rpartition(" / ")
    return math.hypot(*(_timing_noise(line.timings.get(form)) for form in (other, ours)))


def _timing_noise(timing: Timing | None) -> float:
    if timing is None or timing.lower <= 0:
        return 0.0
    return 0.5 * math.log(timing.upper / timing.lower)


def _status(changes: Iterable[Change]) -> str:
    """Worse before better: what got lost must be seen."""
    found = {change.status for change in changes}
    return next((status for status in (WORSE, BETTER) if status in found), SAME)


def _distance(change: Change) -> float:
    return (
        abs(math.log(change.factor)) / max(change.noise, 1e-9)
        if 0 < change.factor < math.inf
        else math.inf
    )


# --- showing --------------------------------------------------------------------------------------


def as_rows(lines: Sequence[Compared]) -> list[list[str]]:
    """A header and a row per line, what changed first."""
    rows = [["", "benchmark", "case", "what", "first", "second", "factor", "noise", "target"]]
    for line in sorted(lines, key=lambda each: ORDER.index(each.status)):
        shown = ["", "", "", "", ""] if line.telling is None else _cells(line.telling)
        rows.append(
            [line.status, line.benchmark, line.case, *shown, "yes" if line.has_target else ""]
        )
    return rows


def _cells(change: Change) -> list[str]:
    if not change.noise:
        met = ("missed", "met")
        return [change.name, met[int(change.first)], met[int(change.second)], "", ""]
    noise = f"±{100 * math.expm1(change.noise):.0f} %"
    return [
        change.name,
        f"{change.first:.3g}",
        f"{change.second:.3g}",
        f"{change.factor:.2f}",
        noise,
    ]


def as_dicts(lines: Sequence[Compared]) -> list[dict[str, Any]]:
    """What `--json` tells."""
    return [asdict(line) | {"is_worse_target": line.is_worse_target} for line in lines]


def remarks(first: Sequence[Result], second: Sequence[Result]) -> list[str]:
    """What a reader must know about the two."""
    found = []
    cpus = [{each.machine.get("cpu", "unknown") for each in results} for results in (first, second)]
    if cpus[0] != cpus[1]:
        both = "; ".join(", ".join(sorted(names)) for names in cpus)
        found.append(f"different machines ({both}): even ratios differ between processors")
    for name, results in (("first", first), ("second", second)):
        busy = sorted({each.benchmark for each in results if each.conditions == "busy"})
        if busy:
            found.append(f"the {name} was measured on a busy machine: {', '.join(busy)}")
    for name, results in (("first", first), ("second", second)):
        parts = sorted({f"{each.benchmark} ({each.only!r})" for each in results if each.only})
        if parts:
            found.append(
                f"the {name} has some cases only (--only), others are not compared: "
                f"{', '.join(parts)}"
            )
    if any(each.options.quick for each in (*first, *second)):
        found.append("quick runs: the sizes are small, the figures mean nothing")
    return found
