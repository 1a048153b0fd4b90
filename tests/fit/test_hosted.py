"""Searches step by step: options of the function given, what a second fit does not do again.

Counters, never clocks.
"""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import fit
from incrax.fit.levenberg import hosted
from incrax.fit.problem import problem

X = np.linspace(0, 3, 40)
Y = 2 * np.exp(-1.3 * X) + 0.5
START = {"a": 1.0, "c": 0.0, "k": 0.3}


def counted():
    """Residuals, and a list with an entry for each time they are traced."""
    traces = []

    def residuals(p, x, y):
        traces.append(1)
        return p["a"] * jnp.exp(-p["k"] * x) + p["c"] - y

    return residuals, traces


def kept(fun):
    return hosted(fun, problem("fit", fun, (START, X, Y), None, None).layout)


@pytest.mark.parametrize("make", [incrax.incremental, lambda fun: fun])
def test_a_second_search_traces_nothing(make):
    plain, traces = counted()
    fun = make(plain)
    watch = lambda p, cost: None
    first = fit.levenberg_marquardt(fun, START, X, Y, callback=watch)
    num = len(traces)
    second = fit.levenberg_marquardt(fun, START, X, Y + 0.25, callback=watch)
    assert first.is_converged
    assert second.is_converged
    assert len(traces) == num


def test_options_of_an_incremental_function_hold_in_its_fit():
    plain, _ = counted()
    fun = incrax.incremental(plain, policy="exact", memory=3_000_000, versions=3)
    fit.levenberg_marquardt(fun, START, X, Y)
    for function in kept(fun):
        options = function._traces.options
        assert (options.is_exact, options.memory, options.versions) == (True, 1_000_000, 3)
    assert sum(function.stats.saved_bytes for function in kept(fun)) <= 3_000_000


def test_equal_fits_of_an_incremental_function_run_nothing_twice():
    plain, _ = counted()
    fun = incrax.incremental(plain)
    watch = lambda p, cost: True  # one step
    first = fit.levenberg_marquardt(fun, START, X, Y, callback=watch)
    counts = [(f.stats.calls, f.stats.unchanged) for f in kept(fun)]
    second = fit.levenberg_marquardt(fun, START, X, Y, callback=watch)
    np.testing.assert_array_equal(first.values, second.values)
    for function, (calls, unchanged) in zip(kept(fun), counts, strict=True):
        assert function.stats.calls > calls
        assert function.stats.unchanged > unchanged


def test_derivatives_of_an_incremental_function_go_with_it():
    plain, _ = counted()
    fun = incrax.incremental(plain)
    fit.levenberg_marquardt(fun, START, X, Y)
    made = weakref.ref(kept(fun).jacobian)
    del fun
    gc.collect()
    assert made() is None
