"""Many calls from many threads, interrupts at random moments, configuration changed between
calls.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check, end_together, same
from jax._src import core

import incrax

X = np.linspace(0.1, 2.0, 500)
NUM_THREADS, NUM_CALLS = 8, 1_000
NUM_INTERRUPTS = 200


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x)) + jnp.sin(a)


def points(seed, num):
    """Numbers from a small set, so that calls meet each other's values."""
    rng = random.Random(seed)
    return [(rng.choice((0.5, 1.0, 1.5, 2.0)), rng.choice((0.3, 0.6, 0.9))) for _ in range(num)]


@pytest.mark.parametrize("policy", ["fast", "exact"])
def test_threads_get_right_results_and_end(policy):
    f = incrax.incremental(model, policy=policy)
    expected = {point: float(jax.jit(model)(*point, X)) for point in points(0, 200)}
    wrong = []

    def work(seed):
        for point in points(seed, NUM_CALLS):
            if not np.isclose(float(f(*point, X)), expected[point], rtol=1e-12):
                wrong.append(point)

    threads = [
        threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(NUM_THREADS)
    ]
    end_together(threads)
    assert not wrong
    assert f.stats.calls == NUM_THREADS * NUM_CALLS
    check(f)


def was_interrupt(error):
    """Whether an interrupt is the error, or what JAX made another error of where it struck
    inside.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        if "KeyboardInterrupt" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def is_torn_cache(error):
    """Whether an interrupt left an entry of a cache of JAX marked as being computed, which only
    clearing it undoes.
    """
    return isinstance(error, RecursionError) and "Recursively calling <weakref" in str(error)


def unless_torn(f, *args):
    """A call after an interrupt, once more where that left such an entry, or no trace at all:
    `Primitive.bind` takes the trace away before the `try` that gives it back.
    """
    if core.trace_ctx.trace is None:
        core.trace_ctx.set_trace(core.eval_trace)
    try:
        return f(*args)
    except RecursionError as error:
        if not is_torn_cache(error):
            raise
        jax.clear_caches()
        return f(*args)


# Python swallows an interrupt inside a destructor or a callback of the collector and tells so in a
# warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that interrupt"
)
@pytest.mark.skipif(
    sys.gettrace() is not None,
    reason="an interrupt leaves the lock of what measures coverage locked",
)
@pytest.mark.parametrize("policy", ["fast", "exact"])
def test_interrupts_lose_nothing(policy):
    f, plain = incrax.incremental(model, policy=policy), jax.jit(model)
    rng = random.Random(1)
    calls = iter(points(2, 10**6))
    f(0.5, 0.3, X)
    start = time.perf_counter()
    for _ in range(200):
        f(*next(calls), X)
    call_s = (time.perf_counter() - start) / 200
    caught = 0
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(NUM_INTERRUPTS):
            if number % 20 == 0:
                f.clear()
            delay_s = rng.uniform(1e-5, 20 * call_s)
            try:
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                for _ in range(10_000):
                    f(*next(calls), X)
            except BaseException as error:
                if is_torn_cache(error):
                    jax.clear_caches()
                elif not was_interrupt(error):
                    raise
                caught += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            point = next(calls)
            same(unless_torn(f, *point, X), unless_torn(plain, *point, X))
            check(f)
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert caught >= NUM_INTERRUPTS // 2


def test_configuration_changed_between_calls():
    f, plain = incrax.incremental(model), jax.jit(model)
    rng = random.Random(3)
    contexts = [
        lambda: jax.enable_x64(True),
        lambda: jax.enable_x64(False),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.debug_nans(True),
        lambda: jax.numpy_dtype_promotion("standard"),
        jax.disable_jit,
    ]
    for number, point in enumerate(points(4, 60)):
        if number % 15 == 14:
            jax.clear_caches()
        with rng.choice(contexts)():
            same(f(*point, X), plain(*point, X))
    check(f)
