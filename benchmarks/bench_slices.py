"""Question: does a call in which one row changed cost one row, where the function is vectorised?

One row of an input changes at random in each call. Forms: `jax.jit` of the whole, and, where
there is one, the update that an expert writes by hand. Settled calls: learning was paid before. Whole
job: as many calls as take `jax.jit` three seconds, 1,068 at most, of a new function, from the first
one on, compiling and learning included; more of them, each in its own process, are in `jobs`. Flat:
the same number of dirty rows among more and more. Controls: functions in which a row reaches all
others, which must not become slower.

Targets: groups value >= 2.5x, gradient >= 5x; by look-up 5x and 15x; Cholesky factors 10x and 20x;
factorisation 10x; a network 2x, 12x with `incrax.at`; amplitudes 10x; 5e6 rows 100x; a filter 3x; a
lattice 10x; blur, pooling, smoothing, hazards, recurrences, graphs and pairs 5x; at most 1.6 times what the update
by hand takes; controls >= 0.97x `jax.jit`; whole jobs >= 0.97x; a call among 1e7 rows takes at most
1.3 times that among 1e4; at most 4 compiled programs a function.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import harness
import jax
from harness import JIT, OURS, SETTLED, Check, Line, Options, Speed, limit, within
from problems import slices
from problems.slices import Problem

import incrax

HAND = "hand"
RUN = 8
"""Calls in a row of each form."""

SETTLED_BY = 60
"""Calls before the timed ones: programs are compiled and timed."""

JOB_S = 3.0
JOB_CALLS = 1_068
JOB_ROUNDS = 3
"""Seconds of `jax.jit` that a whole job is to take, and calls at most; jobs of each form."""


def cases(*, is_quick: bool) -> dict[str, Callable[[], Problem]]:
    """By name; each is made when it is run."""
    part = 10 if is_quick else 1
    size = 1_000 // part
    return {
        "groups 500 x 1000, value": lambda: slices.groups(500, size, is_gradient=False),
        "groups 500 x 1000, gradient": lambda: slices.groups(500, size, is_gradient=True),
        "look-up 500 x 1000, value": lambda: slices.looked_up(500, size, is_gradient=False),
        "look-up 500 x 1000, gradient": lambda: slices.looked_up(
            500, size, is_gradient=True, least=15.0
        ),
        "45 Cholesky factors, value": lambda: slices.processes(45, 150 // part, is_gradient=False),
        "45 Cholesky factors, gradient": lambda: slices.processes(
            45, 150 // part, is_gradient=True
        ),
        "factorisation, value": lambda: slices.factors(
            3_000 // part, 2_000 // part, 300_000 // part, is_gradient=False
        ),
        "factorisation, gradient": lambda: slices.factors(
            3_000 // part, 2_000 // part, 300_000 // part, is_gradient=True
        ),
        "network, one row of 20,000": lambda: slices.network(20_000 // part),
        "network, one row told": lambda: slices.network(20_000 // part, is_told=True),
        "amplitudes, one width, value": lambda: slices.waves(100_000 // part, is_gradient=False),
        "amplitudes, one width, gradient": lambda: slices.waves(100_000 // part, is_gradient=True),
        "5e6 rows, one group of 1000": lambda: slices.looked_up(
            5_000 // part, size, is_gradient=False, least=100.0
        ),
        "Kalman filter, one of 20,000 steps": lambda: slices.filtered(20_000 // part),
        "hidden states, one of 20,000 steps, value": lambda: slices.hidden_states(
            20_000 // part, is_gradient=False
        ),
        "hidden states, one of 20,000 steps, gradient": lambda: slices.hidden_states(
            20_000 // part, is_gradient=True
        ),
        "control, random walk": lambda: slices.walk(20_000),
        "blur, one line of 1,000": lambda: slices.blurred(1_000 // part),
        "blur, one line, gradient": lambda: slices.blurred(1_000 // part, is_gradient=True),
        "max-pool, one line of 1,000": lambda: slices.pooled(1_000 // part),
        "max-pool, one line, gradient": lambda: slices.pooled(1_000 // part, is_gradient=True),
        "smoothing, one of 1e6": lambda: slices.smoothed(1_000_000 // part),
        "late hazard, the last 2,000 of 200,000": lambda: slices.late_hazard(200_000 // part),
        "recurrence read at its end, one of 65,536": lambda: slices.recurrence(
            13 if is_quick else 16
        ),
        "lattice 512 x 512, one spin told": lambda: slices.lattice(512 // part),
        "graph, two hops, one of 20,000 nodes": lambda: slices.graph(20_000 // part),
        "graph, two hops, gradient": lambda: slices.graph(20_000 // part, is_gradient=True),
        "games of two of 2,000 players": lambda: slices.games(2_000 // part, 200_000 // part),
        "all pairs of 2,000 points": lambda: slices.all_pairs(2_000 // part),
        **{
            f"control, {kind}": lambda kind=kind: slices.control(kind, 20_000)
            for kind in ("soft-max", "sorted", "centred")
        },
    }


def lines(options: Options) -> Iterator[Line]:
    """One line per case, and one for each number of rows."""
    for name, make in cases(is_quick=options.quick).items():
        if options.only in name:
            line = _line(name, make(), options)
            _add_job(line, make, options)
            yield line
    yield from _flat(options)


def _line(name: str, problem: Problem, options: Options) -> Line:
    at = problem.arguments()
    ours = incrax.incremental(problem.function, tuning=SETTLED)
    for number in range(SETTLED_BY):
        jax.block_until_ready(ours(*at(number)))
    forms = {OURS: lambda number: ours(*at(number)), JIT: _jitted(problem, at)}
    if problem.hand is not None:
        hand = problem.hand
        forms[HAND] = lambda number: hand(at(number)[0], problem.row(number))
    for number in range(SETTLED_BY + (options.rounds + 2) * RUN):
        at(number)
    found = harness.compare(
        forms, lambda k: (SETTLED_BY + k,), options.rounds, warm=2, run=RUN, rtol=1e-7
    )
    targets = [Speed(JIT, problem.least)]
    targets += [within(1.6, HAND)] if problem.hand is not None else []
    line = harness.timing_line(name, found, targets)
    line.checks.append(limit("programs", ours.stats.compiles, 4))
    line.cells["served by"] = ours.explain().served_by
    return line


def _add_job(line: Line, make: Callable[[], Problem], options: Options) -> None:
    """The seconds of a job from its first call on, of each form in turns: medians."""
    num_calls = int(min(JOB_CALLS, JOB_S / line.timings[JIT].median)) if not options.quick else 20
    found: dict[str, list[float]] = {JIT: [], OURS: []}
    for number in range(1 if options.quick else JOB_ROUNDS):
        for form in (JIT, OURS) if number % 2 == 0 else (OURS, JIT):
            found[form].append(_job_s(make(), FORMS[form], num_calls))
    seconds = {form: statistics.median(each) for form, each in found.items()}
    ratio = seconds[JIT] / seconds[OURS]
    line.cells |= {"job of": f"{num_calls} calls, {seconds[JIT]:.2g} s", "job": f"{ratio:.2f}"}
    line.numbers["whole job, jax.jit / incrax"] = ratio
    line.checks.append(Check("job >=0.97x", f"job {ratio:.2f}x", ratio >= 0.97))


def _job_s(problem: Problem, transform: Callable, num_calls: int) -> float:
    """Seconds of a job of a function that JAX has not seen, compiling included."""
    at = problem.arguments()
    at(num_calls)
    whole = transform(problem.function)
    begin_s = time.perf_counter()
    for number in range(num_calls):
        jax.block_until_ready(whole(*at(number)))
    return time.perf_counter() - begin_s


FORMS: dict[str, Callable] = {JIT: jax.jit, OURS: incrax.incremental}


def _jitted(problem: Problem, at: Callable[[int], tuple]) -> Callable:
    whole = jax.jit(problem.function)
    return lambda number: whole(*at(number))


def _flat(options: Options) -> Iterator[Line]:
    """A call with one group of 1,000 dirty rows, among more and more."""
    first = None
    for num_groups in (10, 100) if options.quick else (10, 100, 1_000, 10_000):
        name = f"flat, {num_groups * 1_000:.0e} rows"
        if options.only not in name:
            continue
        line = _line(name, slices.looked_up(num_groups, 1_000, is_gradient=False), options)
        seconds = line.timings[OURS].median
        first = seconds if first is None else first
        line.checks = [limit("times the first", seconds / first, 1.3)]
        yield line


def main() -> None:
    """All cases."""
    options = harness.start(__doc__, rounds=15, quick_rounds=2)
    harness.report("A row changes: slices of vectorised functions", lines(options), options)


if __name__ == "__main__":
    main()
