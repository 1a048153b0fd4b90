"""Question: what does a gradient of a large table cost of which few rows are read?

A table of 1e6 rows of 64 numbers, float32, 64 rows read, one of them twice. Forms: incrax,
`jax.jit` of the same program (dense gradient), and the sparse program that one would write by hand.
Steps get their tables donated. Targets: gradient and `t - rate * g` within 1.5 of the hand-written
form and at least 300x faster than dense; Adam at least 3x faster than dense, although it changes
every row; momentum, which does too, never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness import JIT, OURS, Form, Line, Options, Speed, within

import incrax

RUN = 8
"""Calls in a row of each form."""
BY_HAND = "by hand"


def loss_of_rows(rows: Any) -> Any:
    """A loss of the rows read."""
    return jnp.sum(jnp.tanh(rows) ** 2)


def loss(t: Any, ids: Any) -> Any:
    """The same of the table."""
    return loss_of_rows(t[ids])


def lines(options: Options) -> Iterator[Line]:
    """Gradient, then one line per optimiser."""
    num_rows = 20_000 if options.quick else 1_000_000
    made = {"gradient": _gradient, "SGD by hand": _by_hand}
    made |= {name: partial(_optimised, optimiser) for name, optimiser in OPTIMISERS.items()}
    for case, make in made.items():
        name = f"{case}, {num_rows:,} x 64, 64 rows read"
        if options.only in name:
            yield make(name, num_rows, options)


def _table(num_rows: int) -> Any:
    return jnp.asarray(np.random.default_rng(0).normal(size=(num_rows, 64)).astype(np.float32))


def _ids(number: int, num_rows: int) -> Any:
    ids = np.random.default_rng(number).integers(0, num_rows, 64).astype(np.int32)
    ids[1] = ids[0]
    return jnp.asarray(ids)


def _gradient(name: str, num_rows: int, options: Options) -> Line:
    t = _table(num_rows)
    forms = {
        OURS: incrax.grad(loss, sparse="rows"),
        JIT: jax.jit(jax.grad(loss)),
        BY_HAND: jax.jit(lambda t, ids: (ids, jax.grad(loss_of_rows)(t[ids]))),
    }
    ids = _ids(0, num_rows)
    assert harness.relative_error(forms[OURS](t, ids).todense(), forms[JIT](t, ids)) <= 1e-6
    timings = harness.compare(
        forms, lambda k: (t, _ids(k, num_rows)), options.rounds, warm=3, rtol=None, run=RUN
    )
    return harness.timing_line(name, timings, [within(1.5, BY_HAND), Speed(JIT, 300.0)])


class _Stepping:
    """A form that gives its results of the last call, donated, to the next."""

    def __init__(self, step: Form, *state: Any) -> None:
        self._step, self.state = step, state

    def __call__(self, ids: Any) -> Any:
        result = self._step(*self.state, ids)
        self.state = result if isinstance(result, tuple) else (result,)
        return self.state


def _compared(
    name: str, steps: dict[str, Form], start: Callable[[], Any], num_rows: int, options: Options
) -> dict[str, Any]:
    forms = {form: _Stepping(step, *start()) for form, step in steps.items()}
    timings = harness.compare(
        forms, lambda k: (_ids(k, num_rows),), options.rounds, warm=3, rtol=None, run=RUN
    )
    expected = jax.tree.leaves(forms[JIT].state)
    for form in steps:
        pairs = zip(jax.tree.leaves(forms[form].state), expected, strict=True)
        assert max(harness.relative_error(a, b) for a, b in pairs) <= 1e-5, (name, form)
    return timings


def _by_hand(name: str, num_rows: int, options: Options) -> Line:
    step = lambda t, ids: t - 0.1 * jax.grad(loss)(t, ids)
    steps = {
        OURS: incrax.structured(step, donate_argnums=0),
        JIT: jax.jit(step, donate_argnums=0),
        BY_HAND: jax.jit(
            lambda t, ids: t.at[ids].add(-0.1 * jax.grad(loss_of_rows)(t[ids])), donate_argnums=0
        ),
    }
    timings = _compared(name, steps, lambda: (_table(num_rows),), num_rows, options)
    return harness.timing_line(name, timings, [within(1.5, BY_HAND), Speed(JIT, 300.0)])


OPTIMISERS = {
    "clip and SGD (optax)": (
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        300.0,
    ),
    "Adagrad (optax)": (lambda: optax.adagrad(0.1), 300.0),
    "SGD with momentum (optax)": (lambda: optax.sgd(0.1, momentum=0.9), 1.0 / harness.SLOWEST),
    "Adam (optax)": (lambda: optax.adam(0.1), 3.0),
}
"""How to make each, and how much faster than dense it must be."""


def _optimised(
    made: tuple[Callable[[], Any], float], name: str, num_rows: int, options: Options
) -> Line:
    optimiser = made[0]()

    def step(t: Any, state: Any, ids: Any) -> Any:
        updates, state = optimiser.update(jax.grad(loss)(t, ids), state, t)
        return optax.apply_updates(t, updates), state

    steps = {
        OURS: incrax.structured(step, donate_argnums=(0, 1)),
        JIT: jax.jit(step, donate_argnums=(0, 1)),
    }

    def start() -> Any:
        t = _table(num_rows)
        return t, optimiser.init(t)

    timings = _compared(name, steps, start, num_rows, options)
    return harness.timing_line(name, timings, [Speed(JIT, made[1])])


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=10, quick_rounds=3)
    harness.report("row-sparse gradients", lines(options), options)
