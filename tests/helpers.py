"""Comparisons with plain JAX, and counters of what ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

import incrax
from incrax.engine.store.store import check_invariants

MINIMAL = incrax.Tuning(planner="minimal")
FAST = incrax.Tuning(race=False, calibrate=False, compile_s=math.inf)
EAGER = incrax.Tuning(race=False, calibrate=False, compile_s=math.inf, hot_after=1)


def same(actual: Any, expected: Any, *, factor: float = 64.0) -> None:
    """Same tree, dtypes, weak types and NaN positions; values within `factor` ulp of the largest element."""
    left, left_tree = jax.tree.flatten(actual)
    right, right_tree = jax.tree.flatten(expected)
    assert left_tree == right_tree
    for x, y in zip(left, right, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert getattr(x, "weak_type", False) == getattr(y, "weak_type", False)
        same_array(x, y, factor)


def same_array(x: Any, y: Any, factor: float) -> None:
    if jax.dtypes.issubdtype(y.dtype, jax.dtypes.prng_key):
        np.testing.assert_array_equal(jax.random.key_data(x), jax.random.key_data(y))
        return
    a, b = np.asarray(x), np.asarray(y)
    if not jax.numpy.issubdtype(y.dtype, jax.numpy.inexact):
        np.testing.assert_array_equal(a, b)
        return
    eps = float(jax.numpy.finfo(y.dtype).eps)
    wide = np.complex128 if np.iscomplexobj(b) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    finite = np.isfinite(b)
    np.testing.assert_array_equal(np.isfinite(a), finite)
    scale = np.abs(b[finite]).max(initial=1.0)
    np.testing.assert_allclose(a[finite], b[finite], rtol=factor * eps, atol=factor * eps * scale)


def check_calls(
    fun: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    tuning: incrax.Tuning,
    factor: float = 64.0,
    **options: Any,
) -> Any:
    """Every call of `incremental(fun)` equals `jax.jit(fun)`, and the store keeps its invariants."""
    ours, plain = incrax.incremental(fun, tuning=tuning, **options), jax.jit(fun)
    for args in calls:
        same(ours(*args), plain(*args), factor=factor)
        check(ours)
    return ours


def identical(actual: Any, expected: Any) -> None:
    """Same tree, dtypes, weak types, and bits."""
    same(actual, expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jax.dtypes.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def check(function: Any) -> None:
    for traced in function._traces.table.values():
        check_invariants(traced.engine.store, traced.engine.facts.mask)


def ran_by(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Equations that one call runs, fills included."""
    before = function.stats.ran + function.stats.filled
    function(*args, **kwargs)
    return function.stats.ran + function.stats.filled - before


def primitives_run(function: Any) -> list[str]:
    """Primitives of the last call, in order."""
    return [step["primitive"] for step in function.explain().as_dict()["ran"]]


class Failed(jax.Array):
    """An array whose computation failed after it was handed out."""

    def __init__(self):
        pass

    def is_deleted(self):
        return False

    def is_ready(self):
        return True

    def block_until_ready(self):
        raise RuntimeError("the program failed")


class Running(Failed):
    """An array whose program still runs."""

    def is_ready(self):
        return False


Failed.__abstractmethods__ = Running.__abstractmethods__ = frozenset()
