"""Question: what does a call cost beyond the program it runs, and does anything grow in 10,000
calls?

Targets: a changed call of a function too cheap to be worth saving <= 40 us beyond the executable
itself at 10 leaves and <= 150 us at 200 leaves; nothing changed <= 20 us at 10 leaves; 10,000
calls: memory grows by < 5 MB, and no program is compiled after warm-up. "The executable itself" is
jax.jit called with arrays that are on the device already, so that what it costs to bring Python and
NumPy leaves there counts as ours; the column "beyond jit" has jax.jit with the same arguments
subtracted instead.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Arguments, Check, Form, Line, Options
from problems import mixture

import incrax

EXECUTABLE = "executable"
MAX_CHANGED_US = {10: 40.0, 50: None, 200: 150.0}
MAX_UNCHANGED_US = {10: 20.0, 50: None, 200: None}
MAX_GROWTH_MB = 5.0
NUM_GIVEN = 64
"""Sets of arguments that take turns, more than versions are saved. All were read by a program and
none is freed meanwhile: the first program that reads an array, and the call that holds it last, take
0.4 us more for it each, whichever form they are of.
"""
NUM_CALLS = 10_000
NUM_EVENTS = 2_000
VECTOR = 4

MAKERS: dict[str, Callable[[float], Any]] = {
    "Python floats": float,
    "NumPy scalars": np.float64,
    f"NumPy arrays of {VECTOR}": lambda value: np.full(VECTOR, value),
    "jax arrays": jnp.float64,
}


def cheap(*leaves: Any) -> Any:
    """A function with next to no work."""
    return 2.0 * jnp.sum(sum(leaves[1:], leaves[0]))


# --- overhead of a call ---------------------------------------------------------------------------


def overhead_lines(options: Options) -> Iterator[Line]:
    """Every number and kind of leaves: one changed, all changed, none changed."""
    for num_leaves in MAX_CHANGED_US:
        for kind, make in MAKERS.items():
            for change, num_changed in {
                "one changed": 1,
                "all changed": num_leaves,
                "none changed": 0,
            }.items():
                case = f"{num_leaves} {kind}, {change}"
                if options.only in case:
                    yield overhead_line(case, make, num_leaves, num_changed, options.rounds)


def overhead_line(
    case: str, make: Callable[[float], Any], num_leaves: int, num_changed: int, rounds: int
) -> Line:
    """The time of a call, of jax.jit's, and of the executable with arguments on the device."""
    made = leaves_that_change(make, num_leaves, num_changed)
    ours, plain = incrax.incremental(cheap), jax.jit(cheap)
    given = [made(number) for number in range(NUM_GIVEN)]
    for args in given:
        jax.block_until_ready(plain(*args))
    ready = [jax.block_until_ready(tuple(map(jnp.asarray, args))) for args in given]
    timings = harness.compare(
        {JIT: plain, OURS: ours}, lambda number: given[number % NUM_GIVEN], rounds, warm=50
    )
    on_device = harness.compare(
        {EXECUTABLE: plain}, lambda number: ready[number % NUM_GIVEN], rounds, warm=50
    )
    line = harness.timing_line(case, {**timings, **on_device})
    call_us, jit_us, executable_us = (
        1e6 * t.median for t in (timings[OURS], timings[JIT], on_device[EXECUTABLE])
    )
    served_by = ours.explain().as_dict()["served_by"]
    line.cells = {name: line.cells[name] for name in (JIT, EXECUTABLE, OURS)}
    line.cells |= {
        "beyond jit": f"{call_us - jit_us:.1f} us",
        "beyond executable": f"{call_us - executable_us:.1f} us",
    }
    line.cells["served by"] = served_by
    line.numbers |= {
        "beyond jit, us": call_us - jit_us,
        "beyond executable, us": call_us - executable_us,
    }
    line.checks = list(_overhead_checks(num_leaves, num_changed, call_us - executable_us, call_us))
    return line


def leaves_that_change(
    make: Callable[[float], Any], num_leaves: int, num_changed: int
) -> Arguments:
    """Arguments of which the first ones are new in every call; the others are the same objects."""
    fixed = [make(float(k)) for k in range(num_leaves)]
    return lambda number: (
        *(make(k + 1e-3 * (number + 1)) for k in range(num_changed)),
        *fixed[num_changed:],
    )


def _overhead_checks(
    num_leaves: int, num_changed: int, beyond_us: float, call_us: float
) -> Iterator[Check]:
    at_most = MAX_CHANGED_US[num_leaves] if num_changed else MAX_UNCHANGED_US[num_leaves]
    if at_most is not None and num_changed:
        yield harness.limit("beyond", beyond_us, at_most, "us")
    elif at_most is not None:
        yield harness.limit("a call", call_us, at_most, "us")


# --- what grows -----------------------------------------------------------------------------------


def one_parameter(rng: np.random.Generator, p: dict[str, float], x: jax.Array) -> tuple[Any, ...]:
    """One random parameter changes, data stay."""
    name = mixture.NAMES[rng.integers(len(mixture.NAMES))]
    return {**p, name: p[name] * rng.uniform(0.99, 1.01)}, x


def random_subset(rng: np.random.Generator, p: dict[str, float], x: jax.Array) -> tuple[Any, ...]:
    """A random subset of the parameters changes: 255 dirty sets."""
    is_changed = rng.uniform(size=len(p)) < 0.5
    changed = {
        name: p[name] * rng.uniform(0.99, 1.01)
        for name, new in zip(p, is_changed, strict=True)
        if new
    }
    return {**p, **changed}, x


def new_data(rng: np.random.Generator, p: dict[str, float], x: jax.Array) -> tuple[Any, ...]:
    """All data are replaced by a new NumPy array, parameters stay."""
    return p, rng.uniform(mixture.LOW, mixture.HIGH, x.size)


TIMELINES = {"one parameter": one_parameter, "random subsets": random_subset, "new data": new_data}


def growth_lines(options: Options) -> Iterator[Line]:
    """10,000 calls of the mixture's value and gradient on few events, half as many before as
    warm-up.
    """
    num_calls = NUM_CALLS // 50 if options.quick else NUM_CALLS
    function = jax.value_and_grad(mixture.nll)
    for name, draw in TIMELINES.items():
        case = f"{num_calls} calls, {name}"
        if options.only in case:
            ours = incrax.incremental(function)
            yield growth_line(case, ours, lambda rng, p, x, draw=draw: draw(rng, p, x), num_calls)
            ours.clear()


def growth_line(case: str, ours: incrax.Incremental[..., Any], draw: Form, num_calls: int) -> Line:
    """Memory, compiled programs and device arrays before and after the calls."""
    rng = np.random.default_rng(0)
    p, x = mixture.truth(NUM_EVENTS), mixture.make_data(NUM_EVENTS)
    _call_often(ours, draw, (rng, p, x), num_calls // 2)
    before = _resources()
    _call_often(ours, draw, (rng, p, x), num_calls)
    after = _resources()
    numbers = {
        f"{name} {when}": value
        for when, found in (("before", before), ("after", after))
        for name, value in found.items()
    }
    growth_mb = after["MB"] - before["MB"]
    cells = {
        "memory": f"{growth_mb:+.2f} MB",
        "programs": f"{before['programs']:.0f} -> {after['programs']:.0f}",
        "arrays": f"{before['arrays']:.0f} -> {after['arrays']:.0f}",
    }
    new_programs = after["programs"] - before["programs"]
    checks = [
        harness.limit("growth", growth_mb, MAX_GROWTH_MB, "MB"),
        harness.limit("new programs", new_programs, 0),
    ]
    return Line(case, cells, numbers, checks)


def _call_often(ours: Form, draw: Form, state: tuple[Any, ...], num_calls: int) -> None:
    for _ in range(num_calls):
        jax.block_until_ready(ours(*draw(*state)))


class Programs:
    """Counts every program that XLA compiles in this process."""

    EVENT = "/jax/core/compile/backend_compile_duration"

    def __init__(self) -> None:
        """Start to listen."""
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        self.count += event == self.EVENT


def _resources() -> dict[str, float]:
    gc.collect()
    return {"MB": resident_mb(), "programs": PROGRAMS.count, "arrays": len(jax.live_arrays())}


def resident_mb() -> float:
    """Memory of this process, in MB: what is resident now, or the most there was where /proc is
    missing.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


PROGRAMS = Programs()


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=1000, quick_rounds=20)
    harness.report("Overhead of a call", overhead_lines(options), options)
    harness.report("What grows", growth_lines(options), options)


if __name__ == "__main__":
    main()
