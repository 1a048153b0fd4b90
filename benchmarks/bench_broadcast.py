"""Question: does the gradient of a polynomial over many points pay only for the fields that it is
asked for?

The polynomial of ninth order of Zygote.jl#323, `sum(p(x))`, by one field (c2), by three, and by all
ten; 1e3 and 1e6 points that stay, while the fields that are differentiated change. Forms: reverse
and forward mode of JAX, and what an expert hoists by hand (the powers of x summed once: the sum is
linear in the fields). Targets: the gradient by c2 alone at 1e6 points, in which nothing depends on
c2, <= 100 us; value and gradient by c2 >= 2x `jax.jit`; always at most 1.05 times the best of JAX's
forms; by hand is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import OURS, Line, Options, Speed, limit

import incrax

REVERSE = "jax.jit, reverse"
FORWARD = "jax.jit, forward"
HAND = "hand"
FIELDS = {
    "one field": ("c2",),
    "three fields": ("c1", "c2", "c7"),
    "all fields": tuple(f"c{k}" for k in range(10)),
}
RUN = 8
"""Calls in a row of each form."""


def poly(p: dict[str, Any], x: Any) -> Any:
    """Sum of a polynomial of ninth order over points."""
    return jnp.sum(sum(p[f"c{k}"] * x**k for k in range(10)))


def of_fields(fields: tuple[str, ...], derivative: Any) -> Any:
    """JAX's derivative by some fields."""
    return lambda p, x: derivative(lambda q: poly({**p, **q}, x))(
        {name: p[name] for name in fields}
    )


def with_value(transform: Any) -> Any:
    """Value and derivative, by a mode of differentiation."""
    return lambda f: lambda q: (f(q), transform(f)(q))


def hoisted(x: Any, fields: tuple[str, ...], *, is_valued: bool) -> Any:
    """By hand: the sums of powers are computed once."""
    sums = {f"c{k}": jnp.sum(x**k) for k in range(10)}
    gradient = {name: sums[name] for name in fields}
    value = jax.jit(lambda p: sum(p[name] * sums[name] for name in sums))
    return lambda p, _: (value(p), gradient) if is_valued else gradient


def lines(options: Options) -> Iterator[Line]:
    """One line per number of points, fields, and gradient alone or with the value."""
    for num_points in (1_000, 10_000) if options.quick else (1_000, 1_000_000):
        for label, fields in FIELDS.items():
            for is_valued in (False, True):
                case = (
                    f"{'value and gradient' if is_valued else 'gradient'}, {label}, "
                    f"{num_points:.0e} points"
                )
                if options.only in case:
                    yield line(case, num_points, fields, is_valued, options)


def line(
    case: str, num_points: int, fields: tuple[str, ...], is_valued: bool, options: Options
) -> Line:
    """One case."""
    x = incrax.frozen(np.random.default_rng(1).uniform(0.1, 1.0, num_points))
    start = {f"c{k}": 1.0 / (k + 1) for k in range(10)}

    def at(number: int) -> tuple[Any, ...]:
        return ({**start, **{name: start[name] * (1.0 + 1e-3 * number) for name in fields}}, x)

    derivative = incrax.value_and_grad if is_valued else incrax.grad
    ours = derivative(poly, wrt={name: name in fields for name in start})
    wrap = with_value if is_valued else lambda transform: transform
    reverse = jax.value_and_grad if is_valued else jax.grad
    forms = {
        OURS: ours,
        REVERSE: jax.jit(of_fields(fields, reverse)),
        FORWARD: jax.jit(of_fields(fields, wrap(jax.jacfwd))),
        HAND: hoisted(x, fields, is_valued=is_valued),
    }
    timings = harness.compare(forms, at, options.rounds, warm=12, run=RUN)
    best = min((REVERSE, FORWARD), key=lambda name: timings[name].median)
    made = harness.timing_line(case, timings, [] if options.quick else [harness.never_slower(best)])
    if num_points == 1_000_000 and label_of(fields) == "one field":
        extra = (
            Speed(REVERSE, 2.0).check(timings, OURS)
            if is_valued
            else limit("us", timings[OURS].median * 1e6, 100)
        )
        made.checks.append(extra)
    return made


def label_of(fields: tuple[str, ...]) -> str:
    """The name of a set of fields."""
    return next(label for label, known in FIELDS.items() if known == fields)


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=30, quick_rounds=2)
    harness.report("broadcast adjoints", lines(options), options)
