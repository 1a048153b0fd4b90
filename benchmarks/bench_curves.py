"""Question: how do the time of a call and its gain grow with rows, inputs and operations, when one
input changes?

One input changes, call after call, against jax.jit and the form hoisted by hand: the mixture with
one yield changed for 1e3 to 1e6 rows and a sum of normals with one mean changed for 3 to 192
inputs, value and gradient; a chain of operations whose last input changes for 16 to 512 operations,
value. Timed after 100 calls, in which plans are timed against the whole program. Targets: never
above 1.05x of jax.jit's time; with the most rows >= 1.25x, with the most inputs and with the
longest chain >= 5x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import harness
import jax
from harness import JIT, OURS, Form, Line, Options, Speed
from problems import growing, mixture

import incrax

HAND = "hand"
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
OPERATIONS = (16, 32, 64, 128, 256, 512)
NUM_ROWS = 50_000
STEP = 1e-4
SETTLED = 100
"""Calls before those that are timed."""


class Sized(NamedTuple):
    """One size: the function, its arguments with one input moved, and the form hoisted by hand."""

    function: Form
    arguments: Callable[[int], tuple[Any, ...]]
    hand: Form


# --- problems of a size ---------------------------------------------------------------------------


def of_rows(num_rows: int) -> Sized:
    """The mixture with one yield changed."""
    p, x = mixture.truth(num_rows), mixture.make_data(num_rows)
    arguments = lambda number: ({**p, "n1": p["n1"] * (1.0 + STEP * (number + 1))}, x)
    return Sized(jax.value_and_grad(mixture.nll), arguments, mixture.hoisted_gradient_yield(p, x))


def of_components(num: int) -> Sized:
    """A sum of normals, three inputs each, with the first one's mean changed."""
    p, x = growing.make_components(num), 10.0 * jax.numpy.linspace(0.0, 1.0, NUM_ROWS) ** 2
    mean = p["mean"][0]
    arguments = lambda number: (
        {**p, "mean": [mean * (1.0 + STEP * (number + 1)), *p["mean"][1:]]},
        x,
    )
    return Sized(
        jax.value_and_grad(growing.components), arguments, growing.hoisted_components(p, x)
    )


def of_operations(num: int) -> Sized:
    """A chain of operations on rows whose last input changes; only the last step depends on it."""
    p, x = growing.make_parameters(num // 2), jax.numpy.linspace(0.1, 1.0, NUM_ROWS)
    last = p[-1]
    arguments = lambda number: ([*p[:-1], last * (1.0 + STEP * (number + 1))], x)
    return Sized(growing.long_chain, arguments, growing.hoisted_chain(p, x))


# --- lines ----------------------------------------------------------------------------------------


def lines(
    options: Options,
    sizes: Sequence[int],
    describe: Callable[[int], str],
    make: Callable[[int], Sized],
    gain: float,
) -> Iterator[Line]:
    """One line per size; the largest has the target."""
    for size in sizes[:2] if options.quick else sizes:
        case = describe(size)
        if options.only in case:
            made = make(size)
            forms = {
                JIT: jax.jit(made.function),
                OURS: incrax.incremental(made.function, tuning=harness.SETTLED),
                HAND: made.hand,
            }
            timings = harness.compare(
                forms, made.arguments, options.rounds, 10 if options.quick else SETTLED
            )
            targets = [harness.never_slower(), *([Speed(JIT, gain)] if size == sizes[-1] else [])]
            line = harness.timing_line(case, timings, [] if options.quick else targets)
            line.numbers["size"] = size
            yield line


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=40, quick_rounds=2)
    rows = lines(options, ROWS, lambda n: f"mixture, {n:,} rows", of_rows, 1.25)
    harness.report("Call time against rows", rows, options)
    inputs = lines(options, COMPONENTS, lambda n: f"normals, {3 * n} inputs", of_components, 5.0)
    harness.report("Call time against inputs", inputs, options)
    chain = lines(options, OPERATIONS, lambda n: f"chain, {n} operations", of_operations, 5.0)
    harness.report("Call time against operations", chain, options)


if __name__ == "__main__":
    main()
