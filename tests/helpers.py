"""Comparisons with plain JAX, and counters of what ran."""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest

import incrax
from incrax._jax import Tracer, Var
from incrax.engine.program.dependence import ALWAYS
from incrax.engine.store.store import Store

MINIMAL = incrax.Tuning(planner="minimal")
FAST = incrax.Tuning(timed=False, compile_s=math.inf)
EAGER = incrax.Tuning(timed=False, compile_s=math.inf, hot_after=1)


def examples(share: float) -> hypothesis.settings:
    """A share of the examples that the profile of this run draws."""
    return hypothesis.settings(
        max_examples=max(round(hypothesis.settings.default.max_examples * share), 1)
    )


def end_together(threads: Sequence[threading.Thread], timeout_s: float = 300.0) -> None:
    """Start threads, and wait until all of them have ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=timeout_s)
    assert not any(thread.is_alive() for thread in threads)


def same(
    actual: Any,
    expected: Any,
    *,
    factor: float = 64.0,
    terms: float = 0.0,
    is_zero_signed: bool = True,
) -> None:
    """Same tree, dtypes, weak types, NaN, infinities, signs of zeros; values within `factor` ulp of
    their row's size.

    A row is what one index of the first axis selects: of a vector, one number. A small row is thus
    compared by its own size, whatever stands beside it. Where a result is what is left of terms
    that cancel, its error is that of the terms: `terms` is their size. `is_zero_signed=False` is
    for zeros whose sign XLA itself does not keep from one program to another (a sum that it
    reorders, -x and 0 - x); the reason stands beside the call.
    """
    left, left_tree = jax.tree.flatten(actual)
    right, right_tree = jax.tree.flatten(expected)
    assert left_tree == right_tree
    for x, y in zip(left, right, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert getattr(x, "weak_type", False) == getattr(y, "weak_type", False)
        same_array(x, y, factor, terms, is_zero_signed)


def same_array(
    x: Any, y: Any, factor: float, terms: float = 0.0, is_zero_signed: bool = True
) -> None:
    if jax.dtypes.issubdtype(y.dtype, jax.dtypes.prng_key):
        np.testing.assert_array_equal(jax.random.key_data(x), jax.random.key_data(y))
        return
    if not jax.numpy.issubdtype(y.dtype, jax.numpy.inexact):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        return
    a, b = _rows(x), _rows(y)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(np.where(np.isfinite(a), 0.0, a), np.where(finite, 0.0, b))
    zeros = (a == 0) & (b == 0)
    if is_zero_signed:
        np.testing.assert_array_equal(np.signbit(a[zeros]), np.signbit(b[zeros]), "signs of zeros")
    info = jax.numpy.finfo(y.dtype)
    sizes = np.abs(np.where(finite, b, 0.0)).max(axis=1, keepdims=True, initial=terms)
    # What is below `tiny` XLA flushes to zero in one program and not in another.
    bounds = np.broadcast_to(
        factor * np.maximum(float(info.eps) * sizes, float(info.tiny)), b.shape
    )
    errors = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    wrong = errors > bounds
    assert not wrong.any(), (
        f"{a[wrong]} is not {b[wrong]}: errors {errors[wrong]} beyond {bounds[wrong]}"
    )


def _rows(x: Any) -> np.ndarray:
    """The numbers of each index of the first axis, in double precision; a complex number is two."""
    x = np.asarray(x)
    x = x.astype(np.complex128 if np.issubdtype(x.dtype, np.complexfloating) else np.float64)
    rows = x.shape[0] if x.ndim else 1
    return np.ascontiguousarray(x.reshape(rows, x.size // max(rows, 1))).view(np.float64)


def check_text(
    error: type[Exception], text: str, fun: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """A call ends in an error of this very class and text."""
    with pytest.raises(error) as caught:
        fun(*args, **kwargs)
    assert type(caught.value) is error
    assert str(caught.value) == text


def check_calls(
    fun: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    tuning: incrax.Tuning,
    factor: float = 64.0,
    **options: Any,
) -> Any:
    """Every call of `incremental(fun)` equals `jax.jit(fun)`, and the store keeps its
    invariants.
    """
    ours, plain = incrax.incremental(fun, tuning=tuning, **options), jax.jit(fun)
    for args in calls:
        same(ours(*args), plain(*args), factor=factor)
        check(ours)
    return ours


def last_repeat(engine: Any) -> Any:
    """What the next call may do once more, if it is like the last; None: it is looked at in full."""
    if engine.repeated is not None:
        return engine.repeated.repeat
    return next(reversed(engine.repeats.by_kind.values()), None)


def aligned(size: int, value: float = 0.0) -> np.ndarray:
    """An array of one value whose memory JAX may share."""
    memory = np.empty(8 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + 8 * size].view(np.float64)
    array[:] = value
    return array


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


def file_moves(run: Callable[[], Any]) -> int:
    """How often what runs moves from one file of incrax to another, by calls and returns."""
    root, visited = os.path.dirname(incrax.__file__), []

    def profile(frame: Any, event: str, _: Any) -> None:
        frame = frame.f_back if event == "return" else frame
        if event not in ("call", "return") or frame is None:
            return
        name = frame.f_code.co_filename
        if name.startswith(root) and visited[-1:] != [name]:
            visited.append(name)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(visited)


def num_functions(run: Callable[[], Any]) -> int:
    """How many functions of Python run, those of JAX and NumPy included."""
    calls = []
    gc.disable()  # JAX is told of each collection
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(calls)


def check_invariants(store: Store, mask: Callable[[Var], int]) -> None:
    """Raise AssertionError where an invariant of the store does not hold."""
    assert len(store.states) <= store.versions
    assert store.saved_bytes + store.pool.num_bytes <= max(store.budget_bytes, store.bound_bytes)
    assert store.saved_bytes <= store.budget_bytes
    for state in store.states:
        assert not any(mask(var) & ALWAYS for var in state.saved)
        assert not any(isinstance(x, Tracer) for x in [*state.outputs, *state.saved.values()])
