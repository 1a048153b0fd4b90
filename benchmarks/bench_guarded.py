"""Question: what does a call of a guarded function cost beyond `jax.jit` of the path that it takes?

Targets, for a function with next to no work: one guard <= 15 us beyond jax.jit, 50 guards <= 25 us;
calls that alternate between two known paths, or take one at random, <= 2.2 times a call that takes
one; value and gradient likewise. "jax.jit" is the path as a straight-line function, compiled: what
an expert writes who knows that no other path will be taken; it checks nothing. Both forms get
arrays that are on the device already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Check, Line, Options

import incrax

MAX_BEYOND_US = {1: 15.0, 10: None, 50: 25.0}
MAX_ALTERNATING = 2.2
SIZE = 8


def branching(num_guards: int) -> Callable[[Any], Any]:
    """A function with that many branches, all taken alike for x in (0, 1); the first goes the other
    way for x < 0.
    """

    def fun(x: Any) -> Any:
        y = jnp.sum(x)
        total = y * 2.0 if y > 0 else y * 3.0
        for n in range(num_guards - 1):
            if y < n + 100.0:
                total = total + 1.0
        return total

    return fun


def straight(num_guards: int) -> Callable[[Any], Any]:
    """The path of `branching` for x in (0, 1)."""

    def fun(x: Any) -> Any:
        total = jnp.sum(x) * 2.0
        for _ in range(num_guards - 1):
            total = total + 1.0
        return total

    return fun


def point(number: int, *, is_low: bool = False) -> Any:
    """An argument on the device."""
    sign = -1.0 if is_low else 1.0
    return jax.block_until_ready(jnp.full(SIZE, sign * (0.01 + 0.001 * (number % 16)) / SIZE))


def lines(options: Options) -> Iterator[Line]:
    """One path, then two paths by turns and at random, of values and of values with gradients."""
    for name, transform in {"value": lambda f: f, "value and gradient": jax.value_and_grad}.items():
        for num_guards in MAX_BEYOND_US:
            case = f"{name}, {num_guards} guard{'s' if num_guards > 1 else ''}"
            if options.only in case:
                yield one_path(case, transform, num_guards, options)
        for order in ("by turns", "at random"):
            case = f"{name}, two paths {order}"
            if options.only in case:
                yield two_paths(case, transform, order, options)


def one_path(case: str, transform: Any, num_guards: int, options: Options) -> Line:
    """Calls that all take the same path."""
    forms = {
        JIT: jax.jit(transform(straight(num_guards))),
        OURS: incrax.guarded(transform(branching(num_guards))),
    }
    ready = [point(number) for number in range(16)]
    timings = harness.compare(
        forms, lambda number: (ready[number % 16],), options.rounds, warm=50, run=8
    )
    line = harness.timing_line(case, timings)
    beyond_us = 1e6 * (timings[OURS].median - timings[JIT].median)
    line.cells["beyond jit"] = f"{beyond_us:.1f} us"
    line.numbers["beyond jit, us"] = beyond_us
    most = MAX_BEYOND_US[num_guards]
    if most is not None and not options.quick:
        line.checks = [harness.limit("us beyond jit", beyond_us, most)]
    return line


def two_paths(case: str, transform: Any, order: str, options: Options) -> Line:
    """Calls that take one of two known paths, against those that take one."""
    ours = incrax.guarded(transform(branching(1)))
    alone = incrax.guarded(transform(branching(1)))
    rng = np.random.default_rng(1)
    sides = [bool(n % 2) if order == "by turns" else bool(rng.integers(2)) for n in range(4096)]
    ready = {side: [point(n, is_low=side) for n in range(16)] for side in (False, True)}
    for side in (False, True):
        ours(ready[side][0]), alone(ready[side][0])
    numbers = iter(range(10**9))

    def call_ours(x: Any) -> Any:
        return ours(ready[sides[next(numbers) % 4096]][0])

    forms = {"one path": alone, OURS: call_ours}
    timings = harness.compare(
        forms, lambda n: (ready[False][n % 16],), options.rounds, warm=50, run=8, rtol=None
    )
    line = harness.timing_line(case, timings)
    ratio = timings[OURS].median / timings["one path"].median
    if not options.quick:
        line.checks = [
            Check(
                f"<={MAX_ALTERNATING:g} t(one path)",
                f"{ratio:.2f} t(one path)",
                ratio <= MAX_ALTERNATING,
            )
        ]
    return line


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=300, quick_rounds=10)
    harness.report("guarded calls", lines(options), options)
