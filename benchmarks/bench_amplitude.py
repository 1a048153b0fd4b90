"""Question: how much faster than JAX without hoisting is an amplitude analysis when few inputs
change (problem B)?

Targets, after ten calls: couplings changed, value >= 4x and value and gradient of all couplings >=
12x the best form without hoisting; one width changed, value and its derivative >= 15x; each within
1.2x of the form hoisted by hand in the user's complex arithmetic (real arithmetic is shown beside
it); nothing ever above 1.05x of jax.jit's time for the same form. Without hoisting there are three
forms: vectorised, unrolled, and unrolled with data and simulation in a program each.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import harness
import jax
from harness import JIT, OURS, Arguments, Form, Line, Options, Speed, Timing
from problems import amplitude

import incrax

HAND = "hand"
REAL = "hand, real"
BEST = "best uncached"
TWO = "two programs"
FORMS: dict[str, Form] = {
    "vectorised": amplitude.nll_vectorised,
    "unrolled": amplitude.nll_unrolled,
}
STEP = 1e-4
QUICK_EVENTS = 1_000
QUICK_AMPLITUDES = 4


class Kind(NamedTuple):
    """A transform of the likelihood, and whether one width is its first argument."""

    transform: Callable[[Form], Form]
    by_width: bool

    def of(self, nll: Form) -> Form:
        """The function that is timed."""
        return self.transform(amplitude.of_width(nll) if self.by_width else nll)


COUPLINGS, WIDTH, EVERYTHING, NOTHING = (
    "couplings changed",
    "one width changed",
    "all changed",
    "nothing changed",
)
VALUE, GRADIENT, DERIVATIVE = "value", "value+grad(couplings)", "value+grad(width)"
KINDS: dict[str, Kind] = {
    VALUE: Kind(lambda f: f, by_width=False),
    GRADIENT: Kind(jax.value_and_grad, by_width=False),
    DERIVATIVE: Kind(jax.value_and_grad, by_width=True),
}
CASES: dict[tuple[str, str], list[Speed]] = {
    (VALUE, COUPLINGS): [Speed(BEST, 4.0), harness.within(1.2, HAND)],
    (VALUE, WIDTH): [harness.within(1.2, HAND)],
    (VALUE, EVERYTHING): [],
    (VALUE, NOTHING): [],
    (GRADIENT, COUPLINGS): [Speed(BEST, 12.0), harness.within(1.2, HAND)],
    (GRADIENT, WIDTH): [],
    (GRADIENT, EVERYTHING): [],
    (GRADIENT, NOTHING): [],
    (DERIVATIVE, WIDTH): [Speed(BEST, 15.0), harness.within(1.2, HAND)],
}


# --- arguments ------------------------------------------------------------------------------------


def arguments(kind: Kind, change: str, inputs: amplitude.Inputs) -> Arguments:
    """Arguments in which what changes is new in every call; what does not is the same object."""

    def at(number: int) -> tuple[Any, ...]:
        factor = 1.0 + STEP * (number + 1)
        couplings, shapes = inputs.couplings, inputs.shapes
        if change in (COUPLINGS, EVERYTHING):
            couplings = {name: values * factor for name, values in couplings.items()}
        if change == EVERYTHING:
            shapes = {name: values * factor for name, values in shapes.items()}
        if kind.by_width:
            return (shapes["width"][amplitude.WIDTH] * factor, couplings, shapes, *inputs[2:])
        if change == WIDTH:
            widths = shapes["width"].copy()
            widths[amplitude.WIDTH] *= factor
            shapes = {**shapes, "width": widths}
        return (couplings, shapes, *inputs[2:])

    return at


# --- forms ----------------------------------------------------------------------------------------


class Functions:
    """The compiled functions of one kind, shared by its cases."""

    def __init__(self, kind: Kind, inputs: amplitude.Inputs, forms: Sequence[str]) -> None:
        """Make them; each incremental function is called once, so that its cases can start from a
        fork of it.
        """
        self.kind = kind
        self.inputs = inputs
        self.plain: dict[str, Form] = {form: jax.jit(kind.of(FORMS[form])) for form in forms}
        self.ours = {
            form: incrax.incremental(kind.of(FORMS[form]), tuning=harness.SETTLED) for form in forms
        }
        if "unrolled" in forms:
            self.plain[TWO] = amplitude.in_two_programs(kind.transform, by_width=kind.by_width)
        first = arguments(kind, NOTHING, inputs)(0)
        for function in self.ours.values():
            jax.block_until_ready(function(*first))

    def by_hand(self, change: str) -> dict[str, Form]:
        """The hoisted forms of a change, as far as there are any."""
        with_gradient = self.kind.transform is jax.value_and_grad
        if change == COUPLINGS:
            return {
                HAND: amplitude.hoisted_couplings(self.inputs, self.kind.transform),
                REAL: amplitude.hoisted_couplings_real(self.inputs, self.kind.transform),
            }
        if change == WIDTH and self.kind.by_width == with_gradient:
            return {
                HAND: amplitude.hoisted_width(self.inputs, with_gradient=with_gradient),
                REAL: amplitude.hoisted_width_real(self.inputs, with_gradient=with_gradient),
            }
        return {}

    def forms(self, change: str) -> dict[str, Form]:
        """All forms of a case, by name; the incremental ones start fresh."""
        ours = {f"{OURS} {form}": copy.copy(function) for form, function in self.ours.items()}
        return {**self.plain, **ours, **self.by_hand(change)}


# --- cases ----------------------------------------------------------------------------------------


def case_lines(options: Options) -> Iterator[Line]:
    """Every kind and change: one line per form of the user's code, all forms timed by turns."""
    inputs = make_inputs(options)
    forms = list(FORMS) if options.extra.form == "both" else [options.extra.form]
    for name, kind in KINDS.items():
        wanted = [targets[0] for targets in CASES.items() if targets[1] or not options.quick]
        changes = [
            change
            for other, change in wanted
            if other == name and options.only in f"{name}, {change}"
        ]
        functions = Functions(kind, inputs, forms) if changes else None
        for change in changes:
            assert functions is not None
            at = arguments(kind, change, inputs)
            timings = harness.compare(functions.forms(change), at, options.rounds)
            yield from (line(name, change, form, forms, timings) for form in forms)


def make_inputs(options: Options) -> amplitude.Inputs:
    """Inputs of the size asked for."""
    num_amplitudes = options.extra.amplitudes or (
        QUICK_AMPLITUDES if options.quick else amplitude.NUM_AMPLITUDES
    )
    return amplitude.make_inputs(
        num_amplitudes, QUICK_EVENTS if options.quick else amplitude.NUM_EVENTS
    )


def line(
    kind: str, change: str, form: str, forms: Sequence[str], timings: Mapping[str, Timing]
) -> Line:
    """The line of one form: its jax.jit, the best form without hoisting, ours, and those hoisted by
    hand.
    """
    uncached = {name: timings[name] for name in (*forms, TWO) if name in timings}
    best = min(uncached, key=lambda name: uncached[name].median)
    shown = {JIT: timings[form], BEST: timings[best], OURS: timings[f"{OURS} {form}"]}
    shown |= {name: timings[name] for name in (HAND, REAL) if name in timings}
    targets = [harness.never_slower(), *CASES[kind, change]]
    made = harness.timing_line(f"{kind}, {change}, {form}", shown, targets)
    made.cells[BEST] += f" ({best})"
    return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this script."""
    parser.add_argument(
        "--amplitudes", type=int, help="number of amplitudes (default 20; twice as many couplings)"
    )
    parser.add_argument(
        "--form", choices=(*FORMS, "both"), default="both", help="the user's form to measure"
    )


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=12, quick_rounds=3, extend=add_options)
    amplitudes = len(make_inputs(options).shapes["mass"])
    harness.report(f"Amplitude analysis, {amplitudes} amplitudes", case_lines(options), options)


if __name__ == "__main__":
    main()
