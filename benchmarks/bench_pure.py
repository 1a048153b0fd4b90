"""Question: how much faster is a chain wholly inside `lax.scan` when steps carry saved values?

Metropolis within Gibbs over 10 blocks (`problems/chain.py`). Target: at least 3x the same chain
with the whole posterior in each step, and the chain identical: same decisions, same parameters.
Shown beside it: the form by hand, which carries the lines and asks of each whether its parameters
changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import harness
import jax
import numpy as np
from harness import JIT, OURS, Line, Options, Speed, within
from problems import chain

import incrax

BY_HAND = "by hand"


def lines(options: Options) -> Iterator[Line]:
    """One line per number of channels."""
    num_steps = 50 if options.quick else 400
    for num_channels in (2_000,) if options.quick else (chain.NUM_CHANNELS, 4 * chain.NUM_CHANNELS):
        case = f"chain of {num_steps} steps, {num_channels:,} channels"
        if options.only in case:
            yield _chain_line(case, num_channels, num_steps, options)


def _chain_line(case: str, num_channels: int, num_steps: int, options: Options) -> Line:
    theta, x, y = chain.make_data(num_channels)
    x, y = incrax.frozen((x, y))
    state, step = incrax.incremental(chain.log_posterior).pure(theta, x, y)
    hand_state, by_hand = chain.hoisted(theta, x, y)
    evaluators = {
        OURS: (state, lambda state, theta: step(state, theta, x, y)),
        JIT: ((), lambda state, theta: (state, chain.log_posterior(theta, x, y))),
        BY_HAND: (hand_state, by_hand),
    }
    forms = {
        name: jax.jit(
            lambda theta, start, evaluate=evaluate: chain.sample(evaluate, start, theta, num_steps)
        )
        for name, (_, evaluate) in evaluators.items()
    }
    forms = {
        name: (lambda theta, form=form, start=evaluators[name][0]: form(theta, start))
        for name, form in forms.items()
    }
    chains = [form(theta) for form in forms.values()]
    for other in chains[1:]:
        np.testing.assert_array_equal(other.theta, chains[0].theta)
    timings = harness.compare(forms, lambda _: (theta,), options.rounds, warm=1)
    return harness.timing_line(case, timings, [Speed(JIT, 3.0), within(1.2, BY_HAND)])


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=7, quick_rounds=3)
    harness.report("chain inside lax.scan", lines(options), options)
