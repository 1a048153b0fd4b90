"""Question: what does a call cost beyond the program that serves it, in a row and with cold caches?

Each form makes blocks of calls by turns, in one process; a figure is the median over the turns of
the difference between the medians of two blocks. Cold: another program of 3 MB runs before each
call, as in a fit that does something else as well. Targets: a bypassed call <= 1.5 us over
`jax.jit`, cold <= 5; a planned call with one of 10 leaves changed <= 15 us over the program of its
plan, cold <= 35, one of 200 <= 60; the same objects again <= 2 us, equal small arrays made anew
<= 12 us, over a function of Python that has the result at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Line, Options

import incrax

PROGRAM = "program"
GIVEN = "result at hand"
BLOCK = 60
WARM_CALLS = 400
MAX_LEARNING = 5_000
COLD_SIZE = 400_000

Call = Callable[[int], Any]
"""The result of the call of a number."""


def lines(options: Options) -> Iterator[Line]:
    """Bypassed calls, planned ones, and those in which nothing changed."""
    cases = {
        "bypassed, 2 leaves": (bypassed(2), JIT, (1.5, 5.0)),
        "bypassed, 10 leaves": (bypassed(10), JIT, (1.5, 5.0)),
        "planned, one of 10 leaves": (planned(10, 20_000), PROGRAM, (15.0, 35.0)),
        "planned, one of 200 leaves": (planned(200, 2_000), PROGRAM, (60.0, None)),
        "the same objects again": (unchanged(lambda a: a), GIVEN, (2.0, None)),
        "equal small arrays anew": (unchanged(np.array), GIVEN, (12.0, None)),
    }
    for name, (calls, other, limits) in cases.items():
        for state, at_most in zip(("in a row", "cold"), limits, strict=True):
            if options.only in name and at_most is not None:
                yield line(f"{name}, {state}", calls, other, at_most, options, state == "cold")


def line(
    case: str,
    calls: dict[str, Call],
    other: str,
    at_most: float,
    options: Options,
    is_cold: bool,
) -> Line:
    """One case: seconds of each form, and what ours takes beyond the other."""
    number = iter(range(10**9))
    for call in calls.values():
        for _ in range(WARM_CALLS):
            jax.block_until_ready(call(next(number)))
    others = jax.jit(lambda y: y * 1.0001)
    y = jnp.ones(COLD_SIZE)
    found: dict[str, list[float]] = {form: [] for form in calls}
    for turn in range(options.rounds):
        for form, call in list(calls.items())[:: 1 if turn % 2 else -1]:
            seconds = []
            for _ in range(BLOCK):
                if is_cold:
                    jax.block_until_ready(others(y))
                k = next(number)
                begin_s = time.perf_counter()
                jax.block_until_ready(call(k))
                seconds.append(time.perf_counter() - begin_s)
            found[form].append(float(np.median(seconds)))
    timings = {form: harness.summary(medians) for form, medians in found.items()}
    base = np.array(found[other])
    beyond_us = float(np.median(np.array(found[OURS]) - base)) * 1e6
    made = harness.timing_line(case, timings)
    made.cells["beyond"] = f"{beyond_us:.1f} us"
    made.numbers["beyond, us"] = beyond_us
    made.checks.append(harness.limit("beyond", beyond_us, at_most, "us"))
    return made


def term(k: int, v: Any, x: Any) -> Any:
    """What one leaf adds."""
    return jnp.sum(jnp.exp(-v * x) * jnp.sin((k + 1) * x))


def total(leaves: dict[str, Any], x: Any) -> Any:
    """The sum of what all leaves add."""
    return sum(term(k, v, x) for k, v in enumerate(leaves.values()))


def start(num_leaves: int) -> dict[str, float]:
    """The leaves at the start, by name."""
    return {f"p{k}": 1.0 + 0.01 * k for k in range(num_leaves)}


def bypassed(num_leaves: int) -> dict[str, Call]:
    """All leaves are new in each call."""
    x = jnp.linspace(0.0, 1.0, 1_500 // num_leaves)
    leaves = start(num_leaves)
    at = lambda k: {name: v + 1e-6 * k for name, v in leaves.items()}
    ours, plain = incrax.incremental(total), jax.jit(total)
    return {JIT: lambda k: plain(at(k), x), OURS: lambda k: ours(at(k), x)}


def planned(num_leaves: int, num_points: int) -> dict[str, Call]:
    """One leaf is new in each call."""
    x = jnp.linspace(0.0, 1.0, num_points)
    leaves = start(num_leaves)
    at = lambda k: {**leaves, "p0": 1.0 + 1e-6 * k}
    ours = incrax.incremental(total, calls=10**6)
    ours(at(1), x)
    engine = ours._traces.latest.engine
    repeat = None
    for k in range(MAX_LEARNING):
        ours(at(-k), x)
        repeat = next(reversed(engine.repeats.by_kind.values()), None)
        if repeat is not None and k > WARM_CALLS:
            break
    if repeat is None:
        raise AssertionError(f"{num_leaves} leaves: no plan came to serve")
    executable = repeat.program.executable
    loads = repeat.loads_of(engine.store.states[-1])

    def program(k: int) -> Any:
        feeds = [*at(k).values(), x]
        return executable(feeds, loads)

    return {PROGRAM: program, OURS: lambda k: ours(at(k), x)}


def unchanged(made: Callable[[Any], Any]) -> dict[str, Call]:
    """Nothing is new: the call before had the same vector."""
    x = jnp.linspace(0.0, 1.0, 20_000)
    a = jnp.array([1.0, 2.0, 3.0])
    ours = incrax.incremental(lambda a, x: a[0] * jnp.sum(jnp.exp(-a[1] * x)) + a[2])
    result = ours(a, x)

    def given(a: Any, x: Any) -> Any:
        return result

    return {GIVEN: lambda k: given(made(a), x), OURS: lambda k: ours(made(a), x)}


def main() -> None:
    """All cases."""
    options = harness.start(__doc__, rounds=40, quick_rounds=3)
    harness.report("Calls beyond their programs", lines(options), options)


if __name__ == "__main__":
    main()
