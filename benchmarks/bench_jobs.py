"""Question: does a whole job end earlier than under `jax.jit`, learning and compiling included?

Each form runs each job in fresh processes, by turns: from the first call to the last result, after
imports and data. `incrax` knows nothing of the job; `incrax again` finds what that process learned,
and programs that it kept (`INCRAX_REMEMBER=programs`); `jax.jit again` finds its own programs, too.
`eager` compiles whatever it sees, at once: the faster of it and `jax.jit` is the best decision in
hindsight, which shows how much of a target compiling leaves within reach; `calls given` knows by
`calls=` how many calls will come, as hindsight does. Seconds of processors stand beside the wall
clock's: they say what is lost where other work makes both of these noise.
Targets: no job is slower than 0.98 of jax.jit's speed; jobs that can gain have their own; none takes
more than 1.1 times the best in hindsight.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import numpy as np
from harness import JIT, OURS, Line, Options, Speed
from problems.jobs import JOBS

import incrax

LIMIT_S = 300
AGAIN = "incrax again"
JIT_AGAIN = "jax.jit again"
EAGER = "eager"
GIVEN = "calls given"

MAX_OVER_HINDSIGHT = 1.1
"""Of the faster of `jax.jit` and `eager`: what a job is to take at most."""

STEADY_S = 4.0
"""Seconds that the runs of each form are to take together: the machine changes its pace for seconds at
a time, by up to 2.8, and one of two runs may fall into that.
"""

MAX_ROUNDS = 7

ON_TRUST = incrax.Tuning(compile_s=math.inf)

LAST = 0.25
"""Share of the calls at the end whose median is the settled one."""


def run(name: str, form: str) -> dict[str, Any]:
    """One job in this process: seconds in all, of the first call, of a settled one; the results'
    sum.
    """
    make, size = JOBS[name]
    job = make(size)
    num_calls = sum(1 for _ in job.calls()) if form == GIVEN else None
    jax.block_until_ready(jax.numpy.zeros(3) + 1)  # the runtime is up
    seconds = []
    total = 0.0
    start_cpu_s = _cpu_s()
    start_s = time.perf_counter()
    made = {
        JIT: lambda: jax.jit(job.function),
        OURS: lambda: incrax.incremental(job.function),
        GIVEN: lambda: incrax.incremental(job.function, calls=num_calls),
        EAGER: lambda: incrax.incremental(job.function, tuning=ON_TRUST),
    }
    f = made[form]()
    for args in job.calls():
        begin_s = time.perf_counter()
        results = jax.block_until_ready(f(*args))
        seconds.append(time.perf_counter() - begin_s)
        total += float(jax.tree.leaves(results)[0])
    whole_s = time.perf_counter() - start_s
    settled = seconds[-int(LAST * len(seconds)) :]
    return {
        "whole": whole_s,
        "cpu": _cpu_s() - start_cpu_s,
        "first": seconds[0],
        "settled": float(np.median(settled)),
        "sum": total,
        "compiles": 1 if form == JIT else f.stats.compiles,
    }


def _cpu_s() -> float:
    """Seconds of processors that this process took: other processes hardly change them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def in_process(name: str, form: str, folder: str) -> dict[str, Any]:
    """The same in a fresh process; what is learned is kept in a folder."""
    command = [sys.executable, __file__, "--job", name, "--form", form]
    env = {**os.environ, "INCRAX_REMEMBER": "programs", "INCRAX_CACHE_DIR": folder}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env
    )
    if ended.returncode:
        raise RuntimeError(f"{name}, {form}: {ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def lines(options: Options) -> Iterator[Line]:
    """A line for each job."""
    for name in JOBS:
        if options.only in name:
            yield _line(name, options.rounds)


def _line(name: str, rounds: int) -> Line:
    forms = (JIT, JIT_AGAIN, OURS, AGAIN, GIVEN, EAGER)
    found: dict[str, list[dict[str, Any]]] = {form: [] for form in forms}
    pairs = [(JIT, JIT_AGAIN), (OURS, AGAIN)]
    number = 0
    while number < _rounds(rounds, found[JIT]):
        for first, again in pairs if number % 2 else reversed(pairs):
            with tempfile.TemporaryDirectory() as folder:
                found[first].append(in_process(name, first, folder))
                found[again].append(in_process(name, first, folder))
        for form in (GIVEN, EAGER) if number < rounds else ():
            with tempfile.TemporaryDirectory() as folder:
                found[form].append(in_process(name, form, folder))
        number += 1
    expected = found[JIT][0]["sum"]
    for run in found[OURS] + found[AGAIN] + found[GIVEN]:
        error = abs(run["sum"] - expected) / max(abs(expected), 1e-300)
        if not error <= 1e-8:
            raise AssertionError(f"{name}: the results' sums differ by {error:.2g}")
    timing = lambda form, key: harness.summary([run[key] for run in found[form]])
    make, size = JOBS[name]
    whole = {form: timing(form, "whole") for form in found}
    job = make(size)
    best = min((JIT, EAGER), key=lambda form: whole[form].median)
    targets = [Speed(JIT, job.least), harness.within(MAX_OVER_HINDSIGHT, best)]
    line = harness.timing_line(name, whole, targets)
    line.checks += [target.check(whole, GIVEN) for target in targets]
    line.cells[f"{JIT} / {AGAIN}"] = f"{whole[JIT].median / whole[AGAIN].median:.2f}"
    line.cells[f"{JIT} / {GIVEN}"] = f"{whole[JIT].median / whole[GIVEN].median:.2f}"
    line.cells[f"{JIT_AGAIN} / {AGAIN}"] = f"{whole[JIT_AGAIN].median / whole[AGAIN].median:.2f}"
    for plain, ours in ((JIT, OURS), (JIT_AGAIN, AGAIN)):
        ratio = timing(plain, "cpu").median / timing(ours, "cpu").median
        line.cells[f"CPU: {plain} / {ours}"] = f"{ratio:.2f}"
    line.checks.append(Speed(JIT, job.least_again).check(whole, AGAIN))
    for key in ("settled", "first"):
        ratio = timing(JIT, key).median / timing(OURS, key).median
        line.cells[f"{key} call"] = f"{ratio:.2f}"
        line.numbers[f"{key} call, {JIT} / {OURS}"] = ratio
    line.cells["a call"] = str(timing(JIT, "settled"))
    line.cells["compiled"] = str(found[OURS][0]["compiles"])
    return line


def _rounds(rounds: int, runs: list[dict[str, Any]]) -> int:
    """As many rounds as asked for; of a short job more, but in a smoke test."""
    if rounds == 1 or not runs:
        return rounds
    enough = math.ceil(STEADY_S / runs[0]["whole"])
    return max(rounds, min(enough, MAX_ROUNDS))


def _extend(parser: Any) -> None:
    parser.add_argument("--job", choices=JOBS, help="run one job here, once, and print its seconds")
    parser.add_argument("--form", choices=(JIT, OURS, GIVEN, EAGER), default=OURS)


def main() -> None:
    """All jobs, or one of them in this process."""
    options = harness.start(__doc__, rounds=5, quick_rounds=1, extend=_extend)
    if options.extra.job is not None:
        print(json.dumps(run(options.extra.job, options.extra.form)))
        return
    harness.report(
        f"Whole jobs in fresh processes ({Path(sys.executable).name})", lines(options), options
    )


if __name__ == "__main__":
    main()
