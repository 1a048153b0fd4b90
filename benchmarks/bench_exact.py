"""Question: what does `policy="exact"` cost against `policy="fast"` and jax.jit?

The mixture likelihood (problem A), value and gradient, with one kind of change call after call. No
targets: the exact policy promises bits, not speed. Every line also asserts that each exact result
has the bits that a function without saved values returns at the same point.
"""

from __future__ import annotations

from collections.abc import Iterator

import harness
import jax
import numpy as np
from bench_mixture import CHANGES, QUICK_EVENTS, TRANSFORMS, changes
from harness import JIT, Line, Options
from problems import mixture

import incrax

EXACT, FAST = 'policy="exact"', 'policy="fast"'


def lines(options: Options) -> Iterator[Line]:
    """Value and gradient under every kind of change."""
    num_events = QUICK_EVENTS if options.quick else mixture.NUM_EVENTS
    p, x = mixture.truth(num_events), mixture.make_data(num_events)
    for kind in ("value", "value+grad(8)"):
        for change, names in CHANGES.items():
            case = f"{kind}, {change}"
            if options.only in case:
                function = TRANSFORMS[kind](mixture.nll)
                exact = incrax.incremental(function, policy="exact")
                forms = {
                    JIT: jax.jit(function),
                    FAST: incrax.incremental(function, tuning=harness.SETTLED),
                    EXACT: exact,
                }
                arguments = changes(p, names, x)
                timings = harness.compare(forms, arguments, options.rounds)
                anew = incrax.incremental(function, policy="exact")
                for number in (3, options.rounds):
                    anew.clear()
                    exact(*arguments(number + 1))
                    pairs = zip(
                        *map(
                            jax.tree.leaves, (exact(*arguments(number)), anew(*arguments(number)))
                        ),
                        strict=True,
                    )
                    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
                yield harness.timing_line(case, timings, ours=EXACT)


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=100)
    harness.report("exact policy", lines(options), options)
