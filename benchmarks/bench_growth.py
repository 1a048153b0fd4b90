"""Question: how do analysis, planning, call overhead and memory grow when equations, parameters or
rows double?

Targets: twice the equations, or twice the parameters with their equations, take at most 2.3 times
as long (mean of three doublings), and 1e5 equations are analysed and planned in less than 10 s with
less than 1 GB. A call costs beyond its program at most 20 us more than with 100 equations, and less
than 2.3 times as much for twice the parameters; planning does not depend on the rows.

Seconds of stages are those of the process' CPU time, each in a process of its own; nothing is
compiled there. The overhead of a call is its time less that in the compiled programs it calls.
"trace" is JAX's own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from bench_overhead import resident_mb
from harness import Check, Line, Options
from problems import growing, mixture

import incrax
from incrax._program import trace
from incrax.engine.call.analysis import facts_of
from incrax.engine.compile.executables import Executable
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import plan_dirty
from incrax.engine.plan.segmentation import Segmentation
from incrax.engine.policy.materialize import lasting_needs
from incrax.engine.store.budget import MAX_DEFAULT_BYTES

EQUATIONS = tuple(100 * 2**k for k in range(11))
PARAMETERS = tuple(8 * 2**k for k in range(7))
ROWS = tuple(10_000 * 2**k for k in range(11))
NUM_PARAMETERS = 64
PER_PARAMETER = 8
NUM_ROWS = 1_000
NUM_CALLED_ROWS = 4_000
NUM_CALLS = 300
"""Of a job."""
SHORT_ROWS = 16
"""Rows where a program is so short that Python's code stays in the processor's cache."""

PER_DOUBLING = 2.3
MAX_SECONDS = 10.0
MAX_MB = 1_000.0
MAX_MORE_US = 20.0
DOUBLINGS = 3
"""Doublings whose mean counts; a single one has the noise of two measurements."""
MIN_SIZE = 500
SHORT_S = 1.0
"""Seconds of a measurement below which it is made three times."""

STAGES = ("analysis", "plan, fast", "plan, exact")
EAGER = incrax.Tuning(timed=False, compile_s=float("inf"), hot_after=1)
"""A plan at the first change, whatever it costs."""
MINIMAL = incrax.Tuning(planner="minimal")
"""A plan even where saving does not pay."""


# --- stages, without a compiler -------------------------------------------------------------------


def plan_segments(segmentation: Segmentation) -> None:
    """The top and every segment."""
    segmentation.top_plan()
    for group in segmentation.groups.values():
        segmentation.plan(group)


def plan_changes(facts: Facts) -> None:
    """Plans for one parameter, another one, all of them, and the data, with the segments that they
    want.
    """
    layout = facts.dependence.layout
    data = layout.leaf_mask(len(facts.program.invars) - 1)
    segmentation = Segmentation(facts)
    for dirty in (layout.leaf_mask(0), layout.leaf_mask(1), layout.full & ~data, data):
        segmentation.want(plan_dirty(facts, dirty, wanted=segmentation.wanted).base_loads)
    plan_segments(segmentation)


def plan_exactly(facts: Facts) -> None:
    """The segments of the exact policy."""
    segmentation = Segmentation(facts)
    segmentation.want(lasting_needs(facts, MAX_DEFAULT_BYTES))
    plan_segments(segmentation)


def measure(name: str, num_equations: int, num_parameters: int) -> dict[str, float]:
    """CPU seconds of the stages, equations, and the most memory beyond what there was before, in
    MB.

    Short ones are the best of three, but for JAX's trace, which it remembers.
    """
    args = (growing.make_parameters(num_parameters), np.linspace(0.1, 1.0, NUM_ROWS))
    stages_once(growing.FUNCTIONS[name](100, 8), (args[0][:8], args[1]))
    before_mb = resident_mb()
    function = growing.FUNCTIONS[name](num_equations, num_parameters)
    found = [stages_once(function, args)]
    while sum(found[0][stage] for stage in STAGES) < SHORT_S and len(found) < 3:
        found.append(stages_once(function, args))
    peak_mb = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / 1e3
        * (1e-3 if sys.platform == "darwin" else 1.0)
    )
    best = {key: min(one[key] for one in found) for key in found[0]}
    return best | {"trace": found[0]["trace"], "MB": max(peak_mb - before_mb, 0.0)}


def stages_once(function: harness.Form, args: tuple[Any, ...]) -> dict[str, float]:
    """CPU seconds of each stage, and the number of equations."""
    clock = [time.process_time()]
    program = trace(function, *args)
    clock.append(time.process_time())
    facts = facts_of(program, incrax.Tuning(timed=False), is_exact=False)
    _ = facts.total_seconds
    clock.append(time.process_time())
    for plan in (plan_changes, plan_exactly):
        plan(facts)
        clock.append(time.process_time())
    seconds = dict(zip(("trace", *STAGES), np.diff(clock).tolist(), strict=True))
    return seconds | {"equations": len(facts.program.eqns)}


def measured(
    name: str, num_equations: int, num_parameters: int, options: Options
) -> dict[str, float]:
    """The measurement in a process of its own; in this one if quick."""
    if options.quick:
        return measure(name, num_equations, num_parameters)
    command = [sys.executable, __file__, "--child", name, str(num_equations), str(num_parameters)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {num_equations} equations: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the overhead of a call -----------------------------------------------------------------------


class Inside:
    """The calling thread's CPU seconds in compiled programs."""

    def __init__(self) -> None:
        """Start to count, in every program of this process."""
        self.seconds = 0.0
        call = Executable.__call__

        def counted(*args: Any) -> list[Any]:
            begin = time.thread_time()
            results = call(*args)
            self.seconds += time.thread_time() - begin
            return results

        Executable.__call__ = counted


INSIDE = Inside()


def overhead_s(ours: harness.Form, arguments: harness.Arguments, rounds: int) -> float:
    """CPU seconds of a changed call, less those in compiled programs: the lower quartile, as noise
    only adds.
    """
    seconds = []
    for number in range(8 + rounds):
        args, inside_s, begin = arguments(number), INSIDE.seconds, time.thread_time()
        result = ours(*args)
        seconds.append(time.thread_time() - begin - (INSIDE.seconds - inside_s))
        jax.block_until_ready(result)
    return float(np.percentile(seconds[8:], 25))


def overhead_of(
    function: harness.Form, num_parameters: int, rounds: int, tuning: incrax.Tuning
) -> tuple[float, str]:
    """The overhead where the first parameter changes, in seconds, and what serves the call."""
    num_rows = SHORT_ROWS if tuning is MINIMAL else NUM_CALLED_ROWS
    params, x = growing.make_parameters(num_parameters), jnp.linspace(0.1, 1.0, num_rows)
    ours = incrax.incremental(function, tuning=tuning)
    found = overhead_s(ours, lambda number: ([params[0] + 1e-4 * number, *params[1:]], x), rounds)
    return found, ours.explain().as_dict()["served_by"]


# --- lines ----------------------------------------------------------------------------------------


def per_doubling(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """The factor of one doubling, as a mean of the last ones; None where there are not enough."""
    if len(values) <= DOUBLINGS or sizes[-1 - DOUBLINGS] < MIN_SIZE:
        return None
    return float((values[-1] / values[-1 - DOUBLINGS]) ** (1 / DOUBLINGS))


def stage_line(case: str, found: dict[str, float], growth: float | None) -> Line:
    """Seconds of all stages, their growth, and memory."""
    cells = {"equations": f"{found['equations']:.0f}"}
    cells |= {stage: f"{found[stage]:.3g} s" for stage in ("trace", *STAGES)}
    each_us = 1e6 * sum(found[stage] for stage in STAGES) / found["equations"]
    cells |= {
        "an equation": f"{each_us:.0f} us",
        "per doubling": "-" if growth is None else f"{growth:.2f}x",
    }
    cells["memory"] = f"{found['MB']:.0f} MB"
    checks = [
        harness.limit(
            f"analysis and {plan}", found["analysis"] + found[f"plan, {plan}"], MAX_SECONDS, "s"
        )
        for plan in ("fast", "exact")
    ]
    checks.append(harness.limit("memory", found["MB"], MAX_MB, "MB"))
    if growth is not None:
        checks.append(harness.limit("per doubling", growth, PER_DOUBLING, "x"))
    return Line(
        case,
        cells,
        {**found, "an equation, us": each_us, "per doubling": growth or float("nan")},
        checks,
    )


def stage_lines(
    options: Options,
    sizes: Sequence[int],
    describe: Callable[[str, int], str],
    shape: Callable[[int], tuple[int, int]],
) -> Iterator[Line]:
    """Every function at every size; `shape` gives the numbers of equations and of parameters."""
    for name in growing.FUNCTIONS:
        seconds: list[float] = []
        equations: list[int] = []
        for size in sizes:
            case = describe(name, size)
            if options.only in case:
                found = measured(name, *shape(size), options)
                seconds.append(found["analysis"] + found["plan, fast"])
                equations.append(int(found["equations"]))
                yield stage_line(case, found, per_doubling(equations, seconds))


def overhead_lines(options: Options) -> Iterator[Line]:
    """The overhead of a call for more equations, and for more parameters."""
    equations, parameters = ((100, 200), (8, 16)) if options.quick else (EQUATIONS[1:5], PARAMETERS)
    for name, tuning in (("terms", EAGER), ("blocks", MINIMAL)):
        first_us = None
        for size in equations:
            case = f"{name}, {size} equations, 10 parameters"
            if options.only in case:
                found_s, served_by = overhead_of(
                    growing.FUNCTIONS[name](size, 10), 10, options.rounds, tuning
                )
                first_us = 1e6 * found_s if first_us is None else first_us
                more = harness.limit(
                    "more than with the fewest", 1e6 * found_s - first_us, MAX_MORE_US, "us"
                )
                yield _overhead_line(case, found_s, served_by, [more])
    sizes: list[int] = []
    seconds: list[float] = []
    for size in parameters:
        case = f"penalty, {size} parameters"
        if options.only in case:
            found_s, served_by = overhead_of(growing.penalty, size, options.rounds, MINIMAL)
            sizes.append(MIN_SIZE * size)
            seconds.append(found_s)
            growth = per_doubling(sizes, seconds)
            checks = (
                [] if growth is None else [harness.limit("per doubling", growth, PER_DOUBLING, "x")]
            )
            yield _overhead_line(case, found_s, served_by, checks)


def _overhead_line(case: str, found_s: float, served_by: str, checks: list[Check]) -> Line:
    return Line(
        case,
        {"overhead": f"{1e6 * found_s:.1f} us", "served by": served_by},
        {"overhead, s": found_s},
        checks,
    )


def used_lines(options: Options) -> Iterator[Line]:
    """Whole jobs by default: the first of many parameters moves at each call."""
    for size in (1_000,) if options.quick else (1_000, 10_000):
        case = f"blocks, {size:,} equations, a job"
        if options.only in case:
            yield _used_line(case, used(size))


def used(size: int) -> dict[str, float]:
    """Seconds of the job's first call, and of all, plainly and by plans; calls until one was served
    by these.
    """
    num_parameters = max(size // PER_PARAMETER // 4, 2)
    params, x = growing.make_parameters(num_parameters), jnp.linspace(0.1, 1.0, NUM_CALLED_ROWS)
    function = growing.blocks(size, num_parameters)
    ours = incrax.incremental(function, tuning=incrax.Tuning(remember=False))
    found: dict[str, float] = {}
    for name, form in (("jax.jit", jax.jit(function)), ("incrax", ours)):
        begin_s = time.perf_counter()
        first_s = 0.0
        for number in range(NUM_CALLS):
            jax.block_until_ready(form([params[0] + 1e-4 * number, *params[1:]], x))
            first_s = first_s or time.perf_counter() - begin_s
            if form is ours and ours.stats.loaded:
                found.setdefault("calls before a plan", number)
        found |= {f"{name}, first": first_s, name: time.perf_counter() - begin_s}
    return found


def _used_line(case: str, found: dict[str, float]) -> Line:
    ratio = found["jax.jit"] / found["incrax"]
    plan = found.get("calls before a plan")
    cells = {name: f"{found[name]:.3g} s" for name in ("jax.jit, first", "jax.jit", "incrax")}
    cells |= {"calls before a plan": "none" if plan is None else f"{plan:.0f}"}
    cells |= {"jax.jit / incrax": f"{ratio:.2f}"}
    checks = [harness.limit("calls before a plan", plan or NUM_CALLS, NUM_CALLS // 2)]
    checks.append(harness.limit("of jax.jit's seconds", 1 / ratio, 1.1))
    return Line(case, cells, found, checks)


def row_lines(options: Options) -> Iterator[Line]:
    """The mixture with one yield changed, for more rows."""
    first: dict[str, float] | None = None
    for size in ROWS[:2] if options.quick else ROWS:
        case = f"mixture, {size:,} rows"
        if options.only in case:
            found = rows_measured(size, options.rounds)
            first = found if first is None else first
            cells = {"analysis and plans": f"{1e3 * found['planning, s']:.3g} ms"}
            cells |= {
                "overhead": f"{1e6 * found['overhead, s']:.1f} us",
                "saved": f"{found['saved, MB']:.3g} MB",
            }
            cells["saved a row"] = f"{1e6 * found['saved, MB'] / size:.0f} bytes"
            checks = [
                harness.limit(
                    "planning",
                    found["planning, s"] / first["planning, s"],
                    1.5,
                    "of the first line's",
                ),
                harness.limit(
                    "saved", found["saved, MB"] / first["saved, MB"] * ROWS[0] / size, 1.1, "a row"
                ),
            ]
            yield Line(case, cells, found, checks)


def rows_measured(size: int, rounds: int) -> dict[str, float]:
    """CPU seconds of analysis and planning, the overhead of a call, and saved MB."""
    params, x = mixture.truth(size), jnp.asarray(mixture.make_data(size))
    function = jax.value_and_grad(mixture.nll)
    stages = [stages_once(function, (params, x)) for _ in range(5)]
    ours = incrax.incremental(function, tuning=EAGER)
    name = mixture.NAMES[0]
    found_s = overhead_s(
        ours, lambda number: ({**params, name: params[name] * (1 + 1e-4 * number)}, x), rounds
    )
    return {
        "planning, s": min(sum(one[stage] for stage in STAGES) for one in stages),
        "overhead, s": found_s,
        "saved, MB": ours.stats.saved_bytes / 1e6,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this script."""
    parser.add_argument(
        "--child", nargs=3, metavar=("NAME", "EQUATIONS", "PARAMETERS"), help=argparse.SUPPRESS
    )


def main() -> None:
    """Run and print everything; as a child process, one measurement."""
    options = harness.start(__doc__, rounds=200, quick_rounds=10, extend=add_options)
    if options.extra.child:
        name, num_equations, num_parameters = options.extra.child
        print(json.dumps(measure(name, int(num_equations), int(num_parameters))))
        return
    equations, parameters = ((100, 200), (8, 16)) if options.quick else (EQUATIONS, PARAMETERS)
    lines = stage_lines(
        options, equations, lambda name, n: f"{name}, {n} equations", lambda n: (n, NUM_PARAMETERS)
    )
    harness.report("Growth with equations", lines, options)
    lines = stage_lines(
        options,
        parameters,
        lambda name, n: f"{name}, {n} parameters",
        lambda n: (PER_PARAMETER * n, n),
    )
    harness.report("Growth with parameters", lines, options)
    harness.report("Growth of the overhead of a call", overhead_lines(options), options)
    harness.report("Plans of large functions", used_lines(options), options)
    harness.report("Growth with rows", row_lines(options), options)


if __name__ == "__main__":
    main()
