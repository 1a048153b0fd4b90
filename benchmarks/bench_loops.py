"""Question: what do loops cost whose length changes from call to call?

The recurrent cell of 16 units, value and gradient, 50 random lengths to 1,000. Targets: at most 8
programs compiled; the first pass over the lengths at least 10x faster than `lax.scan`, which
compiles one for each; a warm call at most 1.3 times the time of `lax.scan` compiled for its length.
And the gradient of a `while_loop` of 10,000 turns within its memory budget (memory of the compiled
program beside arguments and results, as XLA counts it), beside the same number of turns by
`lax.scan`, which stores all residuals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import harness
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
from harness import OURS, Check, Line, Options, limit, within

import incrax

SCAN = "lax.scan"
UNITS = 16
BUDGET = 2**20
"""Bytes for the residuals of the while loop."""

_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: _compiled.append(name) if "backend_compile" in name else None
)


def cell(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """One step of a recurrent network."""
    h = jnp.tanh(p["w"] @ h + p["u"] @ x + p["b"])
    return h, h


def loss(p: Any, xs: Any, scan: Any = incrax.scan) -> Any:
    """Of the last state."""
    h, _ = scan(partial(cell, p), jnp.zeros(UNITS), xs)
    return jnp.sum(h**2)


def parameters() -> Any:
    """Weights of a network that forgets slowly."""
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, UNITS, UNITS)) / np.sqrt(UNITS)
    return jax.tree.map(jnp.asarray, {"w": w, "u": u, "b": np.zeros(UNITS)})


def lines(options: Options) -> Iterator[Line]:
    """Lengths that are new, lengths that are known, many turns."""
    rng = np.random.default_rng(1)
    longest, num, turns = (100, 6, 200) if options.quick else (1000, 50, 10_000)
    sequences = [rng.normal(size=(n, UNITS)) for n in rng.integers(1, longest + 1, num)]
    forms = {
        OURS: incrax.bucketed(jax.value_and_grad(loss), ragged="xs"),
        SCAN: jax.jit(jax.value_and_grad(partial(loss, scan=jax.lax.scan))),
    }
    if options.only in "lengths":
        yield _first_pass(forms, sequences)
        yield _warm(forms, sequences, options)
    if options.only in "turns":
        yield _many_turns(turns, options)


def _first_pass(forms: Any, sequences: list[Any]) -> Line:
    p, seconds, compiled = parameters(), {}, {}
    for name, form in forms.items():
        before, begin = len(_compiled), time.perf_counter()
        for xs in sequences:
            jax.block_until_ready(form(p, xs))
        seconds[name], compiled[name] = time.perf_counter() - begin, len(_compiled) - before
    ratio = seconds[SCAN] / seconds[OURS]
    cells = {name: f"{seconds[name]:.3g} s, {compiled[name]} compiled" for name in forms}
    numbers = {f"{name} (seconds)": s for name, s in seconds.items()} | {
        f"{n} (compiled)": c for n, c in compiled.items()
    }
    checks = [
        limit("compiled", compiled[OURS], 8),
        Check(f">=10x {SCAN}", f"{ratio:.1f}x {SCAN}", ratio >= 10),
    ]
    return Line(
        f"lengths, {len(sequences)} new ones",
        {**cells, f"{SCAN} / {OURS}": f"{ratio:.1f}"},
        numbers,
        checks,
    )


def _warm(forms: Any, sequences: list[Any], options: Options) -> Line:
    p, num = parameters(), len(sequences)
    rounds = max(options.rounds, num)
    timings = harness.compare(forms, lambda k: (p, sequences[k % num]), rounds, warm=num)
    return harness.timing_line(f"lengths, {num} known ones", timings, [within(1.3, SCAN)])


def _many_turns(turns: int, options: Options) -> Line:
    """A damped pendulum until its time is up, 64 of them."""
    start = np.linspace(0.1, 1.0, 64), np.zeros(64)

    def move(k: Any, state: Any) -> Any:
        x, v = state
        v = v - 1e-3 * (jnp.sin(x) + k * v)
        return x + 1e-3 * v, v

    def ours(k: Any, most: Any) -> Any:
        turn = lambda c: (c[0] + 1, move(k, c[1]))
        return jnp.sum(
            incrax.while_loop(lambda c: c[0] < most, turn, (0, start), memory=BUDGET)[1][0]
        )

    def plain(k: Any, _: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda c, _: (move(k, c), None), start, None, turns)[0][0])

    programs = {
        name: jax.jit(jax.grad(f)).lower(0.3, turns).compile()
        for name, f in ((OURS, ours), (SCAN, plain))
    }
    used = {
        name: program.memory_analysis().temp_size_in_bytes for name, program in programs.items()
    }
    timings = harness.compare(
        programs, lambda k: (0.3 + 0.01 * k, turns), min(options.rounds, 10), warm=2
    )
    line = harness.timing_line(f"turns, {turns:,} of a while loop", timings)
    line.cells |= {f"memory, {name}": f"{used[name] / 1e6:.3g} MB" for name in programs}
    line.numbers |= {f"{name} (bytes)": number for name, number in used.items()}
    line.checks.append(limit("memory", used[OURS] / BUDGET, 1.0, "budget"))
    return line


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=200)
    harness.report("loops of any length", lines(options), options)
