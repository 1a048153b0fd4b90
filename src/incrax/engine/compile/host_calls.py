"""Functions outside JAX that programs call: what they returned is remembered by the bits of their
operands.

A saved value spares a call where no input changed that it depends on. Remembered results spare what
saved values cannot know: an iteration of a loop, a branch that reads more, a row of a batch, a
version that was dropped. They cost a call from the program to the host, but not the function.

In: functions and operands, from inside programs. Out: results. It must not know programs or saved
values.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Function, Results, Values
from incrax.engine.program.cost import host_bytes, num_host_calls
from incrax.engine.program.functions import function_key
from incrax.engine.program.nested import num_turns

T = TypeVar("T")

MAX_BYTES = 2**26
MEMORY_SHARE = 0.25
"""Bytes of remembered results and operands: so many, and at most this share of the budget of saved
values.
"""

ENTRY_SHARE = 0.25
"""Share of these bytes above which one call is not remembered."""

ENTRY_BYTES = 600
"""That a remembered call takes beside the bits of its operands and results: measured."""

NUM_EVALUATIONS = 64
"""Evaluations of a program, at least, whose calls are remembered, if nothing of it has to be saved."""


class _Thread(threading.local):
    """For whose programs this thread runs a function on the host."""

    callers: tuple[HostCalls, ...] = ()


_thread = _Thread()


class HostCalls:
    """The calls to the host of one function's programs, and of its forks'.

    `seconds` passed in functions on the host so far. `num_final` of their runs must not be repeated
    where their program fails: those with an effect, and those that raised.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.max_bytes = min(MAX_BYTES, int(MEMORY_SHARE * budget_bytes))
        self.num_bytes = 0
        self.seconds = 0.0
        self.num_final = 0
        self._max_entry_bytes = int(ENTRY_SHARE * self.max_bytes)
        self._results: OrderedDict[_Key, tuple[list[np.ndarray], int]] = OrderedDict()
        self._lock = threading.Lock()
        self._unremembered: set[object] = set()

    def now(self) -> float:
        """A clock that stands still while a function on the host runs: whichever program calls it,
        it must run.
        """
        return time.perf_counter() - self.seconds

    # --- in programs ------------------------------------------------------------------------------

    def wrap(self, eqns: Iterable[Equation], *, is_awaited: bool = True) -> tuple[Equation, ...]:
        """Equations whose functions on the host go through here; `is_awaited`: by a call that holds
        its lock.
        """

        def wrapped(eqn: Equation) -> _HostFunction:
            is_pure = eqn.primitive.name == "pure_callback"
            return _HostFunction(eqn.params["callback"], self, is_pure, is_awaited)

        return tuple([_jax.with_host_functions(eqn, wrapped) for eqn in eqns])

    def is_awaited_here(self) -> bool:
        """Whether this thread runs a function on the host for a call, or a fresh evaluation, which
        holds its lock and waits.
        """
        return self in _thread.callers

    def spared(self, eqns: Iterable[Equation]) -> Sequence[Equation]:
        """Those of a program's equations whose results must be saved, or functions on the host would
        run again at operands that they had: none, where what they take and return in one evaluation
        is remembered for many. A check that no good value fails has no calls.
        """

        def is_called(eqn: Equation) -> bool:
            return num_host_calls(eqn) > 0 or host_bytes(eqn) > self._max_entry_bytes

        called = [eqn for eqn in eqns if not eqn.effects and is_called(eqn)]
        sizes = [host_bytes(eqn) + ENTRY_BYTES * num_host_calls(eqn) for eqn in called]
        is_bounded = all(num_turns(eqn) is not None for eqn in _jax.with_inner(called))
        is_remembered = is_bounded and sum(sizes) <= self.max_bytes / NUM_EVALUATIONS
        return () if is_remembered else called

    # --- what is remembered -----------------------------------------------------------------------

    def results(self, function: Function, operands: Values) -> Results:
        """What a pure function returns; it runs if it was not called with these bits, or that was
        forgotten.
        """
        key = None if self._unremembered else _key(function, operands, self._max_entry_bytes)
        if key is None:
            return self._run(function, operands)
        with self._lock:
            found = self._results.get(key)
            if found is not None:
                self._results.move_to_end(key)
                return found[0]
        return self._remember(key, self._run(function, operands))

    def unremembered(self, run: Callable[[], T]) -> T:
        """The awaited results of `run`, in which every function on the host runs, as it does
        meanwhile in other threads.
        """
        token = object()
        try:
            self._unremembered.add(token)
            return jax.block_until_ready(run())
        finally:
            self._unremembered.discard(token)

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._results.clear()
            self.num_bytes = 0

    def _run(self, function: Function, operands: Values) -> Results:
        start_s = time.perf_counter()
        try:
            return list(function(*operands))
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - start_s

    def _remember(self, key: _Key, results: Values) -> list[np.ndarray]:
        """Private copies: a function may return the same buffer each time."""
        kept = [np.array(x) for x in results]
        sizes = [len(bits) for _, _, bits in key[1]] + [x.nbytes for x in kept]
        num_bytes = ENTRY_BYTES + sum(sizes)
        with self._lock:
            if num_bytes <= self._max_entry_bytes and key not in self._results:
                self._results[key] = kept, num_bytes
                self.num_bytes += num_bytes
            while self._results and self.num_bytes > self.max_bytes:
                self.num_bytes -= self._results.popitem(last=False)[1][1]
        return kept


@dataclass(frozen=True)
class _HostFunction:
    """A function on the host as programs call it, on flat operands."""

    function: Function
    calls: HostCalls
    is_pure: bool
    is_awaited: bool

    def __call__(self, *operands: Any) -> Any:
        before = _thread.callers
        _thread.callers = (*before, self.calls) if self.is_awaited else before
        is_final = not self.is_pure
        try:
            if self.is_pure:
                return self.calls.results(self.function, operands)
            return self.function(*operands)
        except BaseException:
            is_final = True
            raise
        finally:
            self.calls.num_final += is_final
            _thread.callers = before


_Key = tuple[Hashable, tuple[tuple[Any, Any, bytes], ...]]
"""A function, by identity, and the shapes, dtypes and bits of its operands."""


def _key(function: Function, operands: Values, max_bytes: int) -> _Key | None:
    """The key of a call; None where operands are too large or no plain arrays."""
    bits = []
    for x in operands:
        if _jax.is_key_dtype(x.dtype):
            return None
        array = np.asarray(x)
        max_bytes -= array.nbytes
        if max_bytes < 0:
            return None
        bits.append((array.shape, array.dtype, array.tobytes()))
    return function_key(function), tuple(bits)
