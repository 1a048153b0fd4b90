"""The byte budget under load, what goes first, what does not fit, and a device that is out of
memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, check, primitives_run, same

import incrax

BLOCKS, SIZE = 10, 2_000
BLOCK_BYTES = 8 * SIZE
MARKS = incrax.Tuning(timed=False)


def blocks(theta, x):
    """A term for each parameter, whose dear part is one saved value of `BLOCK_BYTES`."""
    return sum(jnp.sum((x + k) * jnp.exp(jnp.sin(theta[k] * x))) for k in range(BLOCKS))


def timeline(num_calls, seed=0):
    rng = np.random.default_rng(seed)
    theta, x = rng.uniform(0.1, 1.0, BLOCKS), incrax.frozen(rng.uniform(0.0, 1.0, SIZE))
    for _ in range(num_calls):
        theta[rng.choice(BLOCKS, rng.integers(1, 4), replace=False)] = rng.uniform(0.1, 1.0)
        yield theta.copy(), x


# --- a budget that is far too small ---------------------------------------------------------------


@pytest.mark.parametrize("tuning", [MINIMAL, EAGER, None], ids=["minimal", "cost", "raced"])
@pytest.mark.parametrize("derive", [lambda f: f, jax.value_and_grad], ids=["value", "gradient"])
def test_values_of_ten_times_the_budget_give_right_results_within_it(tuning, derive):
    needed, budget = BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES // 10
    f, plain = (
        incrax.incremental(derive(blocks), tuning=tuning, memory=budget),
        jax.jit(derive(blocks)),
    )
    for theta, x in timeline(10):
        same(f(theta, x), plain(theta, x))
        assert f.stats.saved_bytes <= budget < needed
        check(f)


def test_the_stress_above_evicts():
    f = incrax.incremental(blocks, tuning=MINIMAL, memory=BLOCKS * BLOCK_BYTES // 10)
    for theta, x in timeline(10):
        f(theta, x)
    assert f.stats.evicted > 10


def test_a_budget_that_suffices_evicts_nothing():
    f = incrax.incremental(blocks, tuning=MINIMAL)
    for theta, x in timeline(10):
        f(theta, x)
    assert f.stats.evicted == 0
    assert f.stats.saved_bytes > BLOCKS * BLOCK_BYTES / 10


def test_spare_buffers_count():
    """Buffers of dropped versions wait to be written again; with the saved values they keep to the
    budget.
    """
    budget = 3 * BLOCKS * BLOCK_BYTES // 10
    large = incrax.frozen(np.linspace(0.0, 1.0, 10 * SIZE))
    f = incrax.incremental(blocks, tuning=MINIMAL, memory=10 * budget)
    for theta, _ in timeline(8):
        f(theta, large)
        store = f._traces.latest.engine.store
        assert store.saved_bytes + store.pool.num_bytes <= 10 * budget


# --- what goes first ------------------------------------------------------------------------------


def saved_primitives(f):
    """Primitives of the values that the latest version has."""
    engine = f._traces.latest.engine
    eqns = [
        eqn
        for eqn in engine.facts.program.eqns
        if any(v in engine.store.states[-1].saved for v in eqn.outvars)
    ]
    return [eqn.primitive.name for eqn in eqns]


@pytest.mark.parametrize("is_dear_first", [True, False])
def test_values_whose_segment_takes_longest_per_byte_outlive_others(is_dear_first):
    """Whichever of the two was computed first."""

    def f(a, b, c, data):
        terms = lambda: jnp.sinh(jnp.cosh(jnp.tan(c * data))), lambda: jnp.sqrt(b * data)
        first, second = [term() for term in (terms if is_dear_first else terms[::-1])]
        return jnp.sum(a * first * second)

    ours = incrax.incremental(f, tuning=MINIMAL, memory=BLOCK_BYTES + 100)
    for a in (1.0, 2.0, 3.0):
        ours(a, 1.5, 0.5, np.linspace(1.0, 2.0, SIZE))
    assert "sinh" in saved_primitives(ours)
    assert "sqrt" not in saved_primitives(ours)


def test_seconds_per_byte_decide_and_not_seconds():
    """The long segment takes more seconds in all, the short one more for each of its bytes."""

    def f(a, b, c, long, short):
        return jnp.sum(a * jnp.tanh(jnp.tan(b * long))) + jnp.sum(
            a * jnp.sinh(jnp.cosh(jnp.tan(c * short)))
        )

    ours = incrax.incremental(f, tuning=MINIMAL, memory=40 * BLOCK_BYTES + 100)
    for a in (1.0, 2.0, 3.0):
        ours(a, 1.5, 0.5, np.linspace(0.0, 1.0, 40 * SIZE), np.linspace(0.0, 1.0, 10 * SIZE))
    assert "sinh" in saved_primitives(ours)
    assert "tanh" not in saved_primitives(ours)


def test_saved_values_of_no_bytes_are_ordered_too():
    """Their seconds per byte have no bytes to be divided by."""

    def f(a, b, data):
        return jnp.sum(a * jnp.exp(b * data)), a * jnp.sin(b * data[:0])

    ours = incrax.incremental(f, tuning=MINIMAL, memory=100)
    data = np.linspace(0.0, 1.0, SIZE)
    for a, b in [(1.0, 2.0), (2.0, 2.0), (2.0, 3.0), (3.0, 3.0)]:
        same(ours(a, b, data), jax.jit(f)(a, b, data))
        check(ours)
    assert ours.stats.evicted


def test_marked_values_outlive_all_others():
    def f(a, b, c, data):
        cheap = incrax.keep(jnp.sqrt(b * data), "cheap")
        return jnp.sum(a * cheap * jnp.sinh(jnp.cosh(jnp.tan(c * data))))

    ours = incrax.incremental(f, tuning=MINIMAL, memory=BLOCK_BYTES + 100)
    for a in (1.0, 2.0, 3.0):
        ours(a, 1.5, 0.5, np.linspace(1.0, 2.0, SIZE))
    assert ours.explain().as_dict()["kept"] == {"cheap": "loaded"}
    assert "sqrt" not in primitives_run(ours)


# --- what does not fit ----------------------------------------------------------------------------


def test_marked_values_that_do_not_fit_are_computed_at_each_call():
    def f(a, b, data):
        return jnp.sum(a * incrax.keep(jnp.exp(b * data), "spectrum"))

    ours = incrax.incremental(f, tuning=MINIMAL, memory=1000)
    for a in (1.0, 2.0, 3.0):
        same(ours(a, 2.0, np.ones(SIZE)), jax.jit(f)(a, 2.0, np.ones(SIZE)))
    assert ours.stats.saved_bytes == 0


def test_a_value_too_large_for_the_budget_is_left_to_the_whole_program_and_reported():
    f = incrax.incremental(blocks, tuning=EAGER, memory=4)
    for theta, x in timeline(4):
        same(f(theta, x), jax.jit(blocks)(theta, x))
    assert f.explain().served_by == "whole"


# --- out of memory --------------------------------------------------------------------------------


def failing(f, times, error=jax.errors.JaxRuntimeError):
    """Let every program of a function fail together a number of times."""
    faults = [error("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.")] * times

    def wrap(program):
        def call(*args):
            if faults:
                raise faults.pop()
            return program(*args)

        return Proxy(program, call)

    replace_programs(f, wrap)


class Proxy:
    """An object that is called otherwise."""

    def __init__(self, target, call):
        self.target, self.call = target, call

    def __call__(self, *args):
        return self.call(*args)

    def __getattr__(self, name):
        return getattr(self.target, name)


def replace_programs(f, wrap):
    """Put others in the place of a function's whole program and plans."""
    engine = f._traces.latest.engine
    chooser = engine.chooser
    engine.whole = chooser.whole = wrap(chooser.whole)
    for entry in chooser.entries.values():
        entry.program = entry.program and wrap(entry.program)


def planned():
    f = incrax.incremental(blocks, tuning=MINIMAL)
    (theta, x), *_ = timeline(1)
    for step in range(3):
        f(np.append(theta[:-1], 0.1 * step), x)
    assert f.stats.saved_bytes
    return f, np.append(theta[:-1], 0.9), x


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError, ValueError])
def test_out_of_memory_drops_saved_values_and_runs_the_whole_function(error, caplog):
    f, theta, x = planned()
    failing(f, 1, error)
    same(f(theta, x), jax.jit(blocks)(theta, x))
    assert f.stats.saved_bytes == 0
    assert f.explain().served_by == "whole"
    assert "the device has no memory left: 0.16 MB were dropped" in caplog.text
    check(f)
    same(f(theta, x), jax.jit(blocks)(theta, x))
    assert f.stats.saved_bytes


def test_out_of_memory_without_saved_values_is_the_error_of_jax(monkeypatch):
    f, theta, x = planned()
    failing(f, 2)
    engine = f._traces.latest.engine
    monkeypatch.setattr(engine, "fresh", lambda leaves: engine.whole(leaves, ()))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        f(theta, x)
    check(f)


def test_out_of_memory_where_something_is_printed_is_not_tried_again(capsys):
    def f(a, x):
        jax.debug.print("seen {}", a)
        return jnp.sum(a * jnp.exp(x))

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(1.0, np.ones(SIZE))
    ours(1.5, np.ones(SIZE))
    failing(ours, 1)
    with pytest.raises(jax.errors.JaxRuntimeError):
        ours(2.0, np.ones(SIZE))
    same(
        ours(2.0, np.ones(SIZE)), jax.jit(lambda a, x: jnp.sum(a * jnp.exp(x)))(2.0, np.ones(SIZE))
    )
    jax.effects_barrier()
    assert capsys.readouterr().out.count("seen 2.0") == 1


def test_other_errors_of_the_runtime_are_raised_as_they_are():
    f, theta, x = planned()

    def call(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    replace_programs(f, lambda program: Proxy(program, call))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: something else"):
        f(theta, x)
    assert f.stats.saved_bytes


LIMITED = """
import resource
import jax, jax.numpy as jnp, numpy as np, incrax
jax.config.update("jax_enable_x64", True)
N = 4_000_000

def f(a, b):
    y = jnp.exp(b * jnp.arange(N, dtype=float) / N)
    z, w = jnp.sort(y * jnp.sin(b)), jnp.sort(jnp.cos(y * b))
    return jnp.sum(jnp.sort(a * y)), jnp.sum(z * a), jnp.sum(jnp.sort(w * a))

g, plain = incrax.incremental(f, tuning=incrax.Tuning(planner="minimal")), jax.jit(f)
expected = [float(x) for x in plain(4.0, 3.0)]
for a in (1.0, 2.0, 3.0):
    g(a, 2.0)
assert g.stats.saved_bytes > 1e8
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 48_000_000,) * 2)
np.testing.assert_allclose([float(x) for x in g(4.0, 3.0)], expected, rtol=1e-10)
print(g.stats.saved_bytes)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="the size of a process is read from /proc"
)
def test_a_process_at_its_limit_goes_on_without_saved_values():
    script = [sys.executable, "-c", textwrap.dedent(LIMITED)]
    run = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip() == "0"
