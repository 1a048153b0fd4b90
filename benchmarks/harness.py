"""What all benchmarks share: options, alternating timing, tables of ratios with a verdict per line,
JSON records.

Only ratios within one process carry over to another machine: the forms of a case take turns, call
by call, and the order of a round is reversed in every second one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from machine import cpu_model

import incrax

Form = Callable[..., Any]
Arguments = Callable[[int], tuple[Any, ...]]

OURS = "incrax"
JIT = "jax.jit"
SLOWEST = 1.05
"""Never slower: the share of jax.jit's time that a call may take."""


# --- options --------------------------------------------------------------------------------------


SETTLED = incrax.Tuning(compile_s=60.0)
"""For calls that are timed after learning, which is paid on trust here; `bench_jobs` has it paid
for.
"""


class Options(NamedTuple):
    """What every script takes; `extra` holds a script's own options."""

    quick: bool
    rounds: int
    only: str
    json: Path | None
    extra: argparse.Namespace


def start(
    description: str | None, *, rounds: int, quick_rounds: int = 5, extend: Any = None
) -> Options:
    """Parse the command line and switch JAX to float64; `extend(parser)` adds a script's own
    options.
    """
    os.environ.setdefault("INCRAX_REMEMBER", "0")  # what one run learned is nothing to the next
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes: a smoke test in seconds, no valid figures",
    )
    parser.add_argument("--rounds", type=int, help=f"timed calls of each form (default {rounds})")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="run only the cases whose name contains TEXT"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append a record of all figures to FILE"
    )
    if extend is not None:
        extend(parser)
    given = parser.parse_args()
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds must be at least 1")
    jax.config.update("jax_enable_x64", True)
    return Options(
        given.quick,
        given.rounds or (quick_rounds if given.quick else rounds),
        given.only,
        given.json,
        given,
    )


# --- timing ---------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """Seconds of one form: median and quartiles."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        """Median and quartiles with one unit for the three."""
        factor, unit = (1e6, "us") if self.median < 1e-3 else (1e3, "ms")
        median, lower, upper = (f"{factor * seconds:.3g}" for seconds in self)
        return f"{median} {unit} [{lower}-{upper}]"


def summary(seconds: Sequence[float]) -> Timing:
    """Median and quartiles."""
    lower, median, upper = np.percentile(seconds, (25, 50, 75))
    return Timing(float(median), float(lower), float(upper))


def compare(
    forms: Mapping[str, Form],
    arguments: Arguments,
    rounds: int,
    warm: int = 10,
    *,
    before: Arguments | None = None,
    rtol: float | None = 1e-8,
    run: int = 1,
) -> dict[str, Timing]:
    """Time the forms by turns on `arguments(0)`, `arguments(1)`, ...; the first `warm` rounds are
    not counted.

    Every form sees every argument, and `before(number)`, if given, in an untimed call ahead of it.
    In a turn a form makes `run` calls, each timed by itself: a call of microseconds that follows
    one of milliseconds on other data is slowed down by caches that the other form filled, which
    does not happen in a fit. With `rtol`, the results of the last round must agree to within `rtol`
    of the largest element of each output.
    """
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    results: dict[str, Any] = {}
    for number in range(warm + rounds):
        numbers = range(number * run, (number + 1) * run)
        turn = [(arguments(k), None if before is None else before(k)) for k in numbers]
        for name in list(forms) if number % 2 == 0 else reversed(list(forms)):
            for args, args_before in turn:
                if args_before is not None:
                    jax.block_until_ready(forms[name](*args_before))
                begin = time.perf_counter()
                results[name] = jax.block_until_ready(forms[name](*args))
                if number >= warm:
                    seconds[name].append(time.perf_counter() - begin)
    if rtol is not None:
        _check_agreement(results, rtol)
    return {name: summary(times) for name, times in seconds.items()}


def in_turn(form: Form) -> Form:
    """A form that calls `form` on each of a list of arguments and waits for each result, as a
    minimiser does.
    """

    def call_all(*calls: tuple[Any, ...]) -> list[Any]:
        return [jax.block_until_ready(form(*args)) for args in calls]

    return call_all


def _check_agreement(results: Mapping[str, Any], rtol: float) -> None:
    (first, expected), *others = results.items()
    for name, actual in others:
        error = max(map(relative_error, jax.tree.leaves(actual), jax.tree.leaves(expected)))
        if not error <= rtol:
            raise AssertionError(
                f"{name!r} and {first!r} differ by {error:.2g} of the largest element"
            )


def relative_error(actual: Any, expected: Any) -> float:
    """Largest difference relative to the largest element expected."""
    a, b = np.asarray(actual), np.asarray(expected)
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-300))


# --- lines of a report ----------------------------------------------------------------------------


class Check(NamedTuple):
    """One target of a line: its text, the figure reached, whether that is enough, and the ratio
    that it is about.
    """

    target: str
    reached: str
    is_met: bool
    ratio: str = ""


@dataclass
class Line:
    """One line of a report: what was run, the figures shown and recorded, the targets (none:
    reported only).

    `timings` are seconds by form, `ratios` another form's median divided by ours, `numbers` all
    other figures.
    """

    case: str
    cells: dict[str, str]
    numbers: dict[str, float]
    checks: list[Check] = field(default_factory=list)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`ok`, or `short` with what was reached; empty without targets."""
        missed = [check for check in self.checks if not check.is_met]
        if missed:
            return "short: " + ", ".join(check.reached for check in missed)
        return "ok" if self.checks else ""


class Speed(NamedTuple):
    """A target: the form's median divided by ours must be at least `factor`."""

    against: str
    factor: float

    def check(self, timings: Mapping[str, Timing], ours: str) -> Check:
        """Whether it is reached."""
        reached = timings[self.against].median / timings[ours].median
        slower = 1.0 / self.factor
        target = (
            f">={self.factor:.3g}x {self.against}"
            if self.factor >= 1.0
            else f"<={slower:.3g} t({self.against})"
        )
        shown = (
            f"{reached:.2f}x {self.against}"
            if self.factor >= 1.0
            else f"{1.0 / reached:.2f} t({self.against})"
        )
        return Check(target, shown, reached >= self.factor, f"{self.against} / {ours}")


def never_slower(against: str = JIT) -> Speed:
    """The target of all cases: at most 1.05 times the time of jax.jit."""
    return Speed(against, 1.0 / SLOWEST)


def within(factor: float, against: str) -> Speed:
    """The target: at most `factor` times another form's time."""
    return Speed(against, 1.0 / factor)


def timing_line(
    case: str, timings: Mapping[str, Timing], targets: Iterable[Speed] = (), ours: str = OURS
) -> Line:
    """A line with the time of every form and each one's ratio to ours (above 1: ours is faster)."""
    cells = {name: str(timing) for name, timing in timings.items()}
    ratios = {
        f"{name} / {ours}": t.median / timings[ours].median
        for name, t in timings.items()
        if name != ours
    }
    cells |= {name: f"{ratio:.2f}" for name, ratio in ratios.items()}
    return Line(
        case, cells, {}, [target.check(timings, ours) for target in targets], timings, ratios
    )


def limit(name: str, value: float, at_most: float, unit: str = "") -> Check:
    """The target: a figure must not exceed a bound."""
    return Check(
        f"{name} <={at_most:g} {unit}".rstrip(),
        f"{name} {value:.3g} {unit}".rstrip(),
        value <= at_most,
    )


# --- reports --------------------------------------------------------------------------------------


def report(title: str, made: Iterable[Line], options: Options) -> None:
    """Print a table with a target and a verdict per line and what it ran on; append it to the JSON
    file, if given.

    Lines are noted on the error stream as they are made, with the seconds that each took.
    """
    machine = environment()
    lines = list(_noted(title, made))
    if not lines:
        return
    print(f"\n{title}{'  (--quick: figures mean nothing)' if options.quick else ''}")
    print("  ".join(f"{key} {value}" for key, value in machine.items()))
    columns = list(dict.fromkeys(name for line in lines for name in line.cells))
    rows = [["case", *columns, "target", "verdict"]]
    for line in lines:
        targets = ", ".join(check.target for check in line.checks)
        rows.append(
            [line.case, *(line.cells.get(name, "") for name in columns), targets, line.verdict]
        )
    _print_rows(rows)
    missed = [line for line in lines if line.verdict.startswith("short")]
    print(
        f"{sum(bool(line.checks) for line in lines)} lines with a target, {len(missed)} short",
        flush=True,
    )
    if options.json is not None:
        head = {"title": title, "quick": options.quick, "rounds": options.rounds, **machine}
        _append(options.json, head, lines)


def _noted(title: str, lines: Iterable[Line]) -> Iterator[Line]:
    begin = time.perf_counter()
    for line in lines:
        seconds = time.perf_counter() - begin
        print(f"{title}: {line.case} ({seconds:.1f} s) {line.verdict}", file=sys.stderr, flush=True)
        yield line
        begin = time.perf_counter()


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _append(path: Path, head: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """One table a line, as `suite/schema.py` reads it; figures that are not finite are left out."""
    with path.open("a") as file:
        file.write(json.dumps({**head, "lines": [_record(line) for line in lines]}) + "\n")


def _record(line: Line) -> dict[str, Any]:
    return {
        "case": line.case,
        "cells": line.cells,
        "timings": {name: timing._asdict() for name, timing in line.timings.items()},
        "ratios": dict(line.ratios),
        "figures": {name: float(x) for name, x in line.numbers.items() if math.isfinite(x)},
        "checks": [check._asdict() | {"is_met": bool(check.is_met)} for check in line.checks],
    }


def environment() -> dict[str, str]:
    """What the figures were measured on and with."""
    return {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "cpu": f"{cpu_model()} x {os.cpu_count()}",
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "incrax": incrax.__version__,
    }
