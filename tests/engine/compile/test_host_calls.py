"""What functions on the host returned is kept by the bits of their operands; their time is no
program's.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax
from incrax import _jax
from incrax._program import trace
from incrax.engine.compile import host_calls
from incrax.engine.compile.host_calls import ENTRY_BYTES, ENTRY_SHARE, MAX_BYTES, HostCalls

BUDGET = 4 * MAX_BYTES


def outside(host, shape=(), dtype=np.float64):
    return lambda *xs: jax.pure_callback(host, jax.ShapeDtypeStruct(shape, dtype), *xs)


class Counting:
    """A function on the host that keeps its operands."""

    def __init__(self, function=lambda x: np.asarray(x) * 1.0):
        self.function = function
        self.seen = []

    def __call__(self, *xs):
        self.seen.append([np.array(x) for x in xs])
        return self.function(*xs)


def wrapped(calls, fun, *args, **options):
    """`fun` with its functions on the host going through `calls`, as a function of a list of
    leaves.
    """
    program = trace(fun, *args)
    program = program.with_eqns(calls.wrap(program.eqns, **options))
    run = jax.jit(jax.extend.core.jaxpr_as_fun(program.as_jaxpr()))
    return lambda *leaves: jax.block_until_ready(run(*leaves))


def test_a_function_runs_once_for_the_same_bits():
    calls, host = HostCalls(BUDGET), Counting()
    run = wrapped(calls, outside(host), 1.0)
    assert [float(run(x)[0]) for x in (1.0, 2.0, 1.0, 2.0, 1.0)] == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert len(host.seen) == 2


@pytest.mark.parametrize(
    ("x", "y"), [(0.0, -0.0), (1.0, np.nextafter(1.0, 2.0))], ids=["zeros", "neighbours"]
)
def test_numbers_that_are_nearly_equal_are_others(x, y):
    host = Counting()
    run = wrapped(HostCalls(BUDGET), outside(host), 1.0)
    assert [float(1 / run(z)[0]) for z in (x, y)] == [float(1 / jnp.float64(z)) for z in (x, y)]
    assert len(host.seen) == 2


def test_a_nan_is_the_same_number():
    host = Counting()
    run = wrapped(HostCalls(BUDGET), outside(host), 1.0)
    assert all(np.isnan(run(np.nan)[0]) for _ in range(3))
    assert len(host.seen) == 1


def test_shapes_dtypes_and_functions_are_told_apart():
    host, other = (
        Counting(lambda x: np.sum(np.asarray(x), dtype=float)),
        Counting(lambda x: np.float64(7.0)),
    )

    def fun(x):
        square = x.reshape(2, 2)
        bits = jax.lax.bitcast_convert_type(x, jnp.int64)
        return outside(host)(x), outside(host)(square), outside(host)(bits), outside(other)(x)

    run = wrapped(HostCalls(BUDGET), fun, np.zeros(4))
    for _ in range(2):
        run(np.zeros(4))
    assert len(host.seen) == 3
    assert len(other.seen) == 1


class Multiple(Counting):
    """One of several functions that call themselves equal."""

    def __init__(self, number):
        super().__init__(lambda x: np.asarray(x) * number)

    def __eq__(self, other):
        return isinstance(other, Multiple)

    def __hash__(self):
        return 1

    def method(self, x):
        return self(x)


@pytest.mark.parametrize(
    "of", [lambda multiple: multiple, lambda multiple: multiple.method], ids=["callable", "method"]
)
def test_functions_that_call_themselves_equal_are_told_apart(of):
    two, three = Multiple(2.0), Multiple(3.0)

    def fun(x, y):
        return outside(of(two))(x) + outside(of(three))(x) * y + outside(of(two))(x)

    ours, plain = incrax.incremental(fun), jax.jit(fun)
    for x, y in [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0), (1.0, 2.0)]:
        assert float(ours(x, y)) == float(plain(x, y)) == 4.0 * x + 3.0 * x * y
    two.seen.clear()
    ours(5.0, 1.0)
    assert len(two.seen) == 1


def test_a_function_that_fails_is_not_remembered():
    host = Counting(lambda x: [][0] if len(host.seen) == 1 else np.asarray(x))
    run = wrapped(HostCalls(BUDGET), outside(host), 1.0)
    with pytest.raises(Exception, match="IndexError"):
        jax.block_until_ready(run(1.0))
    assert float(run(1.0)[0]) == 1.0


def test_what_was_used_least_recently_is_forgotten_first():
    num_bytes = 800 + ENTRY_BYTES
    calls, host = HostCalls(4 * 4 * num_bytes), Counting(lambda x: np.full(99, x))
    run = wrapped(calls, outside(host, (99,)), 1.0)
    for x in (1.0, 2.0, 3.0, 4.0, 1.0, 5.0):
        run(x)
    assert calls.num_bytes == calls.max_bytes == 4 * num_bytes
    host.seen.clear()
    for x in (1.0, 3.0, 4.0, 5.0):
        run(x)
    assert host.seen == []
    run(2.0)
    assert len(host.seen) == 1


@pytest.mark.parametrize("is_operand", [True, False], ids=["operands", "results"])
def test_large_calls_are_not_remembered(is_operand):
    num = int(ENTRY_SHARE * MAX_BYTES) // 8 + 1
    calls, host = HostCalls(BUDGET), Counting(lambda x: np.zeros(() if is_operand else num))
    x = np.zeros(num if is_operand else 1)
    run = wrapped(calls, outside(host, () if is_operand else (num,)), x)
    run(x), run(x)
    assert len(host.seen) == 2
    assert calls.num_bytes == 0


def test_results_are_private():
    buffer = np.zeros(3)
    host = Counting(lambda x: np.copyto(buffer, x) or buffer)
    run = wrapped(HostCalls(BUDGET), outside(host, (3,)), 1.0)
    run(1.0), run(2.0)
    assert run(1.0)[0].tolist() == [1.0, 1.0, 1.0]


def test_functions_with_effects_run_each_time():
    host = Counting()
    result = jax.ShapeDtypeStruct((), np.float64)
    run = wrapped(HostCalls(BUDGET), lambda x: jax.experimental.io_callback(host, result, x), 1.0)
    run(1.0), run(1.0)
    assert len(host.seen) == 2


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `hours_of_work` moves."""
    told = [0.0]
    monkeypatch.setattr(host_calls, "time", SimpleNamespace(perf_counter=lambda: told[0]))
    return told


def hours_of_work(clock):
    def host(x):
        clock[0] += 3600.0
        return np.asarray(x)

    return host


def test_the_clock_stands_still_while_the_host_works(clock):
    calls = HostCalls(BUDGET)
    run = wrapped(calls, outside(hours_of_work(clock)), 1.0)
    run(1.0), run(2.0), run(1.0)
    assert calls.seconds == 7200.0
    assert calls.now() == 0.0
    clock[0] += 1.0
    assert calls.now() == 1.0


def test_a_failure_takes_its_time_too(clock):
    def host(x):
        clock[0] += 3600.0
        raise ArithmeticError

    calls = HostCalls(BUDGET)
    with pytest.raises(Exception, match="ArithmeticError"):
        wrapped(calls, outside(host), 1.0)(1.0)
    assert calls.now() == 0.0


def test_programs_are_timed_without_the_host(clock):
    f = incrax.incremental(lambda a, b: outside(hours_of_work(clock))(a) * b)
    for number in range(12):
        f(float(number), 1.0 + number % 3)
    chooser = f._traces.latest.engine.chooser
    assert f._traces.calls.seconds == 12 * 3600.0
    assert (chooser.race.lost_s, chooser.clock.spent_s, chooser.clock.passed_s) == (0.0, 0.0, 0.0)


def test_memory_follows_the_budget():
    assert HostCalls(400).max_bytes == 100
    assert HostCalls(10**12).max_bytes == MAX_BYTES
    f = incrax.incremental(lambda a: outside(Counting())(a), memory=1000)
    assert f._traces.calls.max_bytes == 250


# --- equations ------------------------------------------------------------------------------------


def test_equations_that_call_nothing_stay_the_same_objects():
    program = trace(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3), 1.0)
    wrap = lambda eqn: pytest.fail("there is no function on the host")
    assert all(_jax.with_host_functions(eqn, wrap) is eqn for eqn in program.eqns)


def test_functions_inside_loops_branches_and_calls_are_found():
    host = Counting()

    def fun(x):
        call = outside(host)
        x = jax.lax.cond(x > 0, lambda x: jax.jit(call)(x) + 1, lambda x: x, x)
        x = jax.lax.scan(lambda c, _: (call(c) * 1.0, None), x, None, length=2)[0]
        return jax.lax.while_loop(lambda c: c < 4, lambda c: call(c) + 1, x)

    calls = HostCalls(BUDGET)
    run = wrapped(calls, fun, 1.0)
    assert float(run(1.0)[0]) == 4.0
    assert [float(x) for (x,) in host.seen] == [1.0, 2.0, 3.0]
    run(1.0)
    assert len(host.seen) == 3


# --- who waits ------------------------------------------------------------------------------------


def awaited_inside(calls, evaluate=lambda run: run(), **options):
    """What a function on the host is told of whether a call waits for it."""
    told = []
    run = wrapped(
        calls,
        outside(lambda x: told.append(calls.is_awaited_here()) or np.asarray(x)),
        1.0,
        **options,
    )
    evaluate(lambda: run(1.0))
    return told


def test_a_function_on_the_host_knows_that_a_call_waits_for_it():
    calls = HostCalls(BUDGET)
    assert awaited_inside(calls) == [True]
    assert not calls.is_awaited_here()


def test_a_call_waits_while_another_thread_evaluates_anew():
    calls = HostCalls(BUDGET)
    begun, may_end = threading.Event(), threading.Event()

    def held(x):
        begun.set()
        assert may_end.wait(60)
        return np.asarray(x)

    run = wrapped(calls, outside(held), 1.0)
    thread = threading.Thread(target=lambda: calls.unremembered(lambda: run(1.0)))
    thread.start()
    assert begun.wait(60)
    told = awaited_inside(calls)
    may_end.set()
    thread.join()
    assert told == [True]


def test_nobody_waits_in_other_threads_and_in_compiled_loops():
    calls = HostCalls(BUDGET)
    assert awaited_inside(calls, is_awaited=False) == [False]
    assert awaited_inside(calls, calls.unremembered) == [True]
    told = []

    def elsewhere(x):
        thread = threading.Thread(target=lambda: told.append(calls.is_awaited_here()))
        thread.start()
        thread.join()
        return np.asarray(x)

    wrapped(calls, outside(elsewhere), 1.0)(1.0)
    assert told == [False]


def test_a_function_that_failed_is_awaited_no_more():
    calls = HostCalls(BUDGET)
    with pytest.raises(Exception, match="IndexError"):
        wrapped(calls, outside(lambda x: [][0]), 1.0)(1.0)
    assert not calls.is_awaited_here()


def test_functions_are_awaited_for_all_that_wait():
    """One inside another: both calls wait for the inner one."""
    calls, others = HostCalls(BUDGET), HostCalls(BUDGET)
    told = []
    inner = lambda x: (
        told.append((calls.is_awaited_here(), others.is_awaited_here())) or np.asarray(x)
    )
    run = wrapped(others, outside(inner), 1.0)
    wrapped(calls, outside(lambda x: np.asarray(run(float(x))[0])), 1.0)(1.0)
    assert told == [(True, True)]


def test_constants_beside_them_stay_in_functions_compiled_inside_loops():
    shift = np.arange(1.0, 4.0)
    moved = jax.jit(lambda x: outside(np.sin, (3,))(x) + shift)

    def fun(s, x):
        last, _ = jax.lax.scan(lambda c, _: (jax.checkpoint(moved)(c), None), x, None, length=2)
        return s * jnp.sum(last)

    f = incrax.incremental(fun, tuning=MINIMAL)
    for s in (1.0, 2.0, 3.0):
        same(f(s, np.ones(3)), jax.jit(fun)(s, np.ones(3)))
