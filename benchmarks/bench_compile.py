"""Question: how long is the first call, with tracing and compilation, against jax.jit's?

Target: at most 2x jax.jit's first call, in a fresh process; the unrolled amplitude analysis with 80
couplings must not take minutes (<= 60 s). Every first call runs in a process of its own with a time
limit. Shown beside it: the first call of a second function in the same process after
`jax.clear_caches()` (what a process does once is not in it), and the 19 calls after the first, with
one kind of change, in which programs for that change are compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import harness
import jax
from harness import JIT, OURS, Arguments, Check, Form, Line, Options
from problems import amplitude, mixture

import incrax

MAX_RATIO = 2.0
MAX_LARGE_S = 60.0
LIMIT_S = 200.0
SLOW_S = 15.0
"""First calls longer than this are neither repeated in their process nor measured in further
ones.
"""
QUICK_EVENTS = 1_000
NUM_CALLS = 20

Runs = dict[str, list[dict[str, float]]]


# --- what is compiled -----------------------------------------------------------------------------


class Case(NamedTuple):
    """A function, and its arguments at every number."""

    function: Form
    arguments: Arguments


def mixture_case(transform: Callable[[Form], Form], is_quick: bool) -> Case:
    """Problem A, one mean changes."""
    num_events = QUICK_EVENTS if is_quick else mixture.NUM_EVENTS
    p, x = mixture.truth(num_events), mixture.make_data(num_events)
    return Case(transform(mixture.nll), lambda number: ({**p, "mu1": p["mu1"] + 1e-4 * number}, x))


def amplitude_case(nll: Form, num: int, transform: Callable[[Form], Form], is_quick: bool) -> Case:
    """Problem B, the couplings change."""
    inputs = amplitude.make_inputs(num, QUICK_EVENTS if is_quick else amplitude.NUM_EVENTS)

    def arguments(number: int) -> tuple[Any, ...]:
        couplings = {
            name: values * (1.0 + 1e-4 * number) for name, values in inputs.couplings.items()
        }
        return couplings, *inputs[1:]

    return Case(transform(nll), arguments)


def make_case(name: str, is_quick: bool) -> Case:
    """The case of a name in `NAMES`."""
    problem, *size, kind = name.split(", ")
    if problem == "A":
        return mixture_case(TRANSFORMS[kind], is_quick)
    num_couplings = int(size[0].split()[0])
    return amplitude_case(FORMS[problem.split()[1]], num_couplings // 2, TRANSFORMS[kind], is_quick)


TRANSFORMS: dict[str, Callable[[Form], Form]] = {
    "value": lambda f: f,
    "value+grad": jax.value_and_grad,
}
FORMS = {"vectorised": amplitude.nll_vectorised, "unrolled": amplitude.nll_unrolled}
NAMES = (
    *(f"A, {kind}" for kind in TRANSFORMS),
    *(
        f"B {form}, {num} couplings, {kind}"
        for form in FORMS
        for kind in TRANSFORMS
        for num in (40, 80)
    ),
)
QUICK_NAMES = ("A, value", "A, value+grad", "B vectorised, 40 couplings, value")


# --- one measurement, in a process of its own -----------------------------------------------------


def measure(case: Case, make: Callable[[Form], Form]) -> dict[str, float]:
    """Seconds of the first call, of the next 19, and of the first call of another function (NaN:
    left out).
    """
    jax.block_until_ready(jax.jit(lambda x: x + 1.0)(1.0))
    function = make(case.function)
    first_s = _seconds(function, [case.arguments(0)])
    next_s = _seconds(function, [case.arguments(number) for number in range(1, NUM_CALLS)])
    again_s = math.nan
    if first_s < SLOW_S:
        jax.clear_caches()
        again_s = _seconds(make(case.function), [case.arguments(0)])
    return {"first": first_s, "again": again_s, "next": next_s}


def _seconds(function: Form, calls: Sequence[tuple[Any, ...]]) -> float:
    begin = time.perf_counter()
    for args in calls:
        jax.block_until_ready(function(*args))
    return time.perf_counter() - begin


def in_process(name: str, form: str, options: Options) -> dict[str, float] | None:
    """The measurement of a case in a new process; None if it takes longer than the limit."""
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        form,
        *(["--quick"] if options.quick else []),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.extra.limit, check=True
        )
    except subprocess.TimeoutExpired:
        return None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{name}, {form}: {error.stderr.strip()}") from error
    return json.loads(done.stdout.splitlines()[-1])


# --- lines ----------------------------------------------------------------------------------------


def case_lines(options: Options) -> Iterator[Line]:
    """Every case by both forms, by turns."""
    for name in QUICK_NAMES if options.quick else NAMES:
        if options.only in name:
            yield line(name, repeated(name, options), options.extra.limit)


def repeated(name: str, options: Options) -> Runs:
    """Measurements of both forms by turns; a slow form is measured once."""
    found: Runs = {JIT: [], OURS: []}
    again = [JIT, OURS]
    for _ in range(options.rounds):
        for form in tuple(again):
            times = in_process(name, form, options)
            found[form] += [] if times is None else [times]
            if times is None or times["first"] > SLOW_S:
                again.remove(form)
    return found


def line(name: str, found: Runs, limit_s: float) -> Line:
    """Medians over the processes; a form that never ended counts with the limit."""
    cells, numbers = {}, {}
    for form, runs in found.items():
        for key in ("first", "again", "next"):
            seconds = statistics.median([times[key] for times in runs]) if runs else math.inf
            cells[f"{form}, {key}"] = _shown(seconds, limit_s)
            if math.isfinite(seconds):
                numbers[f"{form}, {key}, s"] = seconds
    ours_s, jit_s = (numbers.get(f"{form}, first, s", limit_s) for form in (OURS, JIT))
    ratio = numbers[f"{OURS} / {JIT}"] = ours_s / jit_s
    cells[f"{OURS} / {JIT}"] = f"{ratio:.2f}"
    is_over = not found[OURS]
    checks = [
        Check(
            f"<={MAX_RATIO:g} t({JIT})", f"{ratio:.2f} t({JIT})", ratio <= MAX_RATIO and not is_over
        )
    ]
    if "80 couplings" in name:
        checks.append(harness.limit("first", math.inf if is_over else ours_s, MAX_LARGE_S, "s"))
    return Line(name, cells, numbers, checks)


def _shown(seconds: float, limit_s: float) -> str:
    if math.isinf(seconds):
        return f"> {limit_s:g} s"
    return "-" if math.isnan(seconds) else f"{seconds:.3g} s"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this script."""
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help=f"seconds per process (default {LIMIT_S:g})"
    )
    parser.add_argument("--child", nargs=2, metavar=("CASE", "FORM"), help=argparse.SUPPRESS)


def main() -> None:
    """Run and print everything; as a child process, one measurement."""
    options = harness.start(__doc__, rounds=3, quick_rounds=1, extend=add_options)
    if options.extra.child:
        name, form = options.extra.child
        print(
            json.dumps(
                measure(
                    make_case(name, options.quick), jax.jit if form == JIT else incrax.incremental
                )
            )
        )
    else:
        harness.report("First call", case_lines(options), options)


if __name__ == "__main__":
    main()
