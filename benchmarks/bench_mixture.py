"""Question: how much faster than jax.jit is a mixture likelihood when few of its 8 parameters
change (problem A)?

Targets, against jax.jit in the same process after ten calls: value >= 1.35x for one yield; value
and gradient >= 1.25x for one yield and >= 1.5x for one mean, each within 1.1x of the form hoisted
by hand; 16 probes of a numeric gradient by one flat vector >= 1.5x with a dirty set of 1 element
each; nothing changed <= 20 us; nothing ever above 1.05x of jax.jit's time. The Hessian is reported
only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import harness
import jax
import numpy as np
from harness import JIT, OURS, Arguments, Check, Form, Line, Options, Speed
from problems import mixture

import incrax

HAND = "hand"
CLOSED = "hand, closed form"
MAX_UNCHANGED_US = 20
STEP = 1e-4
HESSIAN_SHARE = 6
"""The Hessian, some 40 times slower than the value, is timed in this part of the rounds."""
QUICK_EVENTS = 5_000
QUICK_CHANGES = ("one yield", "one mean", "nothing changed")

TRANSFORMS: dict[str, Callable[[Form], Form]] = {
    "value": lambda f: f,
    "value+grad(8)": jax.value_and_grad,
    "hessian": jax.hessian,
}
CHANGES: dict[str, Sequence[str]] = {
    "one yield": ("n1",),
    "one mean": ("mu1",),
    "one width": ("s1",),
    "lambda": ("lam",),
    "two means": ("mu1", "mu2"),
    "all changed": mixture.NAMES,
    "nothing changed": (),
}
BY_HAND: dict[tuple[str, str], dict[str, Callable[..., Form]]] = {
    ("value", "one yield"): {HAND: mixture.hoisted_value_yield},
    ("value", "one mean"): {HAND: mixture.hoisted_value_mean},
    ("value+grad(8)", "one yield"): {HAND: mixture.hoisted_gradient_yield},
    ("value+grad(8)", "one mean"): {
        HAND: mixture.hoisted_gradient_mean,
        CLOSED: mixture.closed_gradient_mean,
    },
}
TARGETS: dict[tuple[str, str], list[Speed]] = {
    ("value", "one yield"): [Speed(JIT, 1.35), harness.within(1.1, HAND)],
    ("value+grad(8)", "one yield"): [Speed(JIT, 1.25), harness.within(1.1, HAND)],
    ("value+grad(8)", "one mean"): [Speed(JIT, 1.5), harness.within(1.1, HAND)],
}


# --- one kind of change, call after call ----------------------------------------------------------


def moved(p: mixture.Parameters, names: Sequence[str], number: int) -> dict[str, float]:
    """The parameters with some of them moved a little further at every number."""
    return {
        name: value * (1.0 + STEP * (number + 1)) if name in names else value
        for name, value in p.items()
    }


def changes(p: mixture.Parameters, names: Sequence[str], x: jax.Array) -> Arguments:
    """Arguments in which the named parameters are new in every call."""
    return lambda number: (moved(p, names, number), x)


def case_lines(options: Options) -> Iterator[Line]:
    """Every transform and every change, each with a fresh incremental function."""
    num_events = QUICK_EVENTS if options.quick else mixture.NUM_EVENTS
    p, x = mixture.truth(num_events), mixture.make_data(num_events)
    for kind, transform in TRANSFORMS.items():
        function = transform(mixture.nll)
        plain = jax.jit(function)
        rounds = max(options.rounds // HESSIAN_SHARE, 3) if kind == "hessian" else options.rounds
        for change, names in CHANGES.items():
            case = f"{kind}, {change}"
            if options.only in case and (not options.quick or change in QUICK_CHANGES):
                hoisted = {
                    name: make(p, x) for name, make in BY_HAND.get((kind, change), {}).items()
                }
                forms = {
                    JIT: plain,
                    OURS: incrax.incremental(function, tuning=harness.SETTLED),
                    **hoisted,
                }
                timings = harness.compare(forms, changes(p, names, x), rounds)
                yield harness.timing_line(case, timings, _targets(kind, change))


def _targets(kind: str, change: str) -> list[Speed]:
    return [] if kind == "hessian" else [harness.never_slower(), *TARGETS.get((kind, change), [])]


# --- mixed changes with one incremental function --------------------------------------------------


def sweeps(p: mixture.Parameters, x: jax.Array) -> Arguments:
    """Eight calls a round, each parameter moved in turn and staying there, as in coordinate
    sweeps.
    """

    def calls(number: int) -> tuple[Any, ...]:
        before = moved(p, mixture.NAMES, number)
        after = moved(p, mixture.NAMES, number + 1)
        mixed = [
            {n: (after if k <= last else before)[n] for k, n in enumerate(p)}
            for last in range(len(p))
        ]
        return tuple((q, x) for q in mixed)

    return calls


def random_subsets(p: mixture.Parameters, x: jax.Array) -> Arguments:
    """Eight calls a round, each changing a random subset of the parameters."""

    def calls(number: int) -> tuple[Any, ...]:
        rng = np.random.default_rng(number)
        masks = rng.uniform(size=(8, len(p))) < 0.5
        factors = 1.0 + STEP * rng.uniform(size=(8, len(p)))
        points = np.cumprod(np.where(masks, factors, 1.0), axis=0) * np.array(list(p.values()))
        return tuple((dict(zip(p, map(float, point), strict=True)), x) for point in points)

    return calls


def mixed_lines(options: Options) -> Iterator[Line]:
    """Changes that differ from call to call, served by one incremental function."""
    num_events = QUICK_EVENTS if options.quick else mixture.NUM_EVENTS
    p, x = mixture.truth(num_events), mixture.make_data(num_events)
    for kind in ("value", "value+grad(8)"):
        function = TRANSFORMS[kind](mixture.nll)
        for name, make in {"each in turn": sweeps, "random subsets": random_subsets}.items():
            case = f"{kind}, {name} (8 calls)"
            if options.only in case:
                forms = {
                    JIT: harness.in_turn(jax.jit(function)),
                    OURS: harness.in_turn(incrax.incremental(function, tuning=harness.SETTLED)),
                }
                yield harness.timing_line(
                    case,
                    harness.compare(forms, make(p, x), options.rounds),
                    [harness.never_slower()],
                )


# --- numeric gradients by one flat vector ---------------------------------------------------------


def probes(theta: np.ndarray, x: jax.Array) -> list[tuple[Any, ...]]:
    """The 16 calls of a central numeric gradient: each parameter one step up and one step down."""
    points = []
    for k in range(len(theta)):
        for sign in (1.0, -1.0):
            point = theta.copy()
            point[k] *= 1.0 + sign * STEP
            points.append((point, x))
    return points


class Gradients:
    """Points that move from round to round, each with the 16 probes around it."""

    def __init__(self, num_events: int) -> None:
        """Prepare the data."""
        self.theta = np.array(list(mixture.truth(num_events).values()))
        self.x = mixture.make_data(num_events)

    def centre(self, number: int) -> tuple[Any, ...]:
        """The point of a round."""
        return (self.theta * (1.0 + STEP * np.cos(number + np.arange(len(self.theta)))), self.x)

    def around(self, number: int) -> tuple[Any, ...]:
        """The probes of a round."""
        return tuple(probes(self.centre(number)[0], self.x))

    def with_centre(self, number: int) -> tuple[Any, ...]:
        """The point, then its probes."""
        return (self.centre(number), *self.around(number))


def gradient_lines(options: Options) -> Iterator[Line]:
    """16 probes around a point that moves; the call at the point itself is not timed in the first
    line.
    """
    if options.only not in "numeric gradient":
        return
    gradients = Gradients(QUICK_EVENTS if options.quick else mixture.NUM_EVENTS)
    plain, ours = (
        jax.jit(mixture.nll_flat),
        incrax.incremental(mixture.nll_flat, tuning=harness.SETTLED),
    )
    forms = {JIT: harness.in_turn(plain), OURS: harness.in_turn(ours)}
    timings = harness.compare(
        forms, gradients.around, options.rounds, before=lambda number: (gradients.centre(number),)
    )
    line = harness.timing_line("numeric gradient, 16 probes", timings, [Speed(JIT, 1.5)])
    largest = max(dirty_sizes(ours, gradients, options.rounds + 100))
    line.numbers["largest dirty set"] = largest
    line.checks.append(Check("dirty set 1 element", f"dirty set {largest} elements", largest == 1))
    yield line
    forms[OURS] = harness.in_turn(incrax.incremental(mixture.nll_flat, tuning=harness.SETTLED))
    timings = harness.compare(forms, gradients.with_centre, options.rounds)
    yield harness.timing_line(
        "numeric gradient, point and 16 probes", timings, [harness.never_slower()]
    )
    points = minuit_points(plain, gradients)
    if points:
        forms[OURS] = harness.in_turn(incrax.incremental(mixture.nll_flat, tuning=harness.SETTLED))
        timings = harness.compare(forms, lambda _: points, max(options.rounds // 10, 3), warm=1)
        yield harness.timing_line(
            f"numeric gradient, the {len(points)} calls of a Minuit fit",
            timings,
            [harness.never_slower()],
        )


def dirty_sizes(ours: incrax.Incremental[..., Any], gradients: Gradients, number: int) -> list[int]:
    """How many elements each probe of one more gradient finds changed."""
    ours(*gradients.centre(number))
    sizes = []
    for probe in gradients.around(number):
        ours(*probe)
        sizes.append(len(ours.explain().as_dict()["changed"]))
    return sizes


def minuit_points(plain: Form, gradients: Gradients) -> tuple[Any, ...]:
    """Every point at which iminuit's MIGRAD, without a gradient, evaluates; none if iminuit is not
    installed.
    """
    try:
        from iminuit import Minuit
    except ImportError:
        return ()
    points: list[tuple[Any, ...]] = []

    def recorded(theta: np.ndarray) -> float:
        points.append((np.array(theta), gradients.x))
        return float(plain(theta, gradients.x))

    cost: Any = recorded
    minuit = Minuit(cost, gradients.theta * 1.01, name=mixture.NAMES)
    minuit.errordef = Minuit.LIKELIHOOD
    minuit.migrad()
    return tuple(points)


def unchanged_line(options: Options) -> Iterator[Line]:
    """The call with nothing changed, in microseconds."""
    if options.only not in "nothing changed":
        return
    num_events = QUICK_EVENTS if options.quick else mixture.NUM_EVENTS
    args = (mixture.truth(num_events), mixture.make_data(num_events))
    ours = incrax.incremental(mixture.nll, tuning=harness.SETTLED)
    timings = harness.compare({OURS: ours}, lambda _: args, 100 * options.rounds)
    line = harness.timing_line("the same call again (9 inputs)", timings)
    line.checks.append(harness.limit("a call", 1e6 * timings[OURS].median, MAX_UNCHANGED_US, "us"))
    yield line


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=60)
    harness.report("Mixture, one kind of change", case_lines(options), options)
    lines = itertools.chain(mixed_lines(options), gradient_lines(options), unchanged_line(options))
    harness.report("Mixture, changes that differ from call to call", lines, options)


if __name__ == "__main__":
    main()
