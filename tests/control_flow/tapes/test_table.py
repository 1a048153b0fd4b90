"""Every function of the table equals eager Python: values, derivatives, and what ran."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same_array

import incrax

spec = importlib.util.spec_from_file_location("tapes_table", Path(__file__).parent / "table.py")
table = importlib.util.module_from_spec(spec)
sys.modules["tapes_table"] = table
spec.loader.exec_module(table)
CASES = table.CASES


def eager(fun, args):
    return fun(*jax.tree.map(jnp.asarray, args))


def close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        y = jnp.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        same_array(x, y, 256.0)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_eager_python_and_each_path_is_recorded_once(name):
    case = CASES[name]
    f = incrax.guarded(case.fun)
    for _ in range(2):
        for args in case.calls:
            close(f(*args), eager(case.fun, args))
        assert f.stats.recordings == case.num_paths
    assert f.stats.compiles <= 3 * case.num_paths
    assert f.stats.calls == 2 * len(case.calls) == f.stats.hits + f.stats.misses


def last_float(args):
    number = max(n for n, x in enumerate(args) if np.asarray(x).dtype == float)
    return number, jnp.asarray(args[number])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_differentiable])
def test_gradients_inside_and_outside_are_those_of_eager_python(name):
    case = CASES[name]
    number = last_float(case.calls[0])[0]
    inside = incrax.guarded(jax.value_and_grad(case.fun, number))
    outside = jax.grad(incrax.guarded(case.fun), number)
    for args in case.calls:
        args = tuple(map(jnp.asarray, args))
        value, gradient = jax.value_and_grad(case.fun, number)(*args)
        close(inside(*args), (value, gradient))
        close(outside(*args), gradient)
