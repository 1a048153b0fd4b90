"""A call while saving does not pay: the whole program, and nothing that can be left for later.

The engine then has nothing to load and nothing to save. What it must know at its next look, or when
it is asked, are the last two calls: they are held as they came, and become versions of the store
only then (`Engine.catch_up`).

In: the arguments of a call. Out: its result, if it is like one that went the long way: the same
leaves are other objects than before, of the same types, and one of them is another value, as far
as that is known at once. It is one function of few steps: after a user's program has taken the
processor's caches, each line costs a microsecond, and most of the call is that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._context import context_key
from incrax._stats import Stats
from incrax.engine.call.record import History
from incrax.engine.compile.executables import Executable
from incrax.engine.inputs.leaves import IMMUTABLE, SMALL_BYTES
from incrax.engine.inputs.signature import Signature
from incrax.engine.policy.bypass import Watch

MAX_KINDS = 64
"""Of changes that are remembered."""

MAX_COPIED_BYTES = 2**16
"""Of an array of NumPy up to which it is copied at every call; its owner may change it."""

MISSED = object()
"""Stands for a result: the call must go the long way."""

_ARRAY = _jax.ArrayImpl
_SCALARS = IMMUTABLE - {_ARRAY}
_TRACES = _jax.traces
_EVALUATING = _jax.evaluating


class RestedCall(NamedTuple):
    """Leaves, arrays of NumPy copied; outputs; the leaves that were other objects."""

    leaves: tuple[Any, ...]
    outputs: list[Any]
    changed: Sequence[int]


NO_CALL = RestedCall((), [], ())


class Resting:
    """The short way of one engine; `num_left` calls may go it, `num_calls` went it since the engine
    last caught up.
    """

    __slots__ = (
        "_before",
        "_config",
        "_kinds",
        "_latest",
        "_num_flat",
        "_run",
        "_treedef",
        "_types",
        "_unflatten",
        "_watch",
        "_widths",
        "history",
        "num_calls",
        "num_eqns",
        "num_left",
        "stats",
    )

    def __init__(
        self,
        executable: Executable,
        num_eqns: int,
        widths: Sequence[int],
        watch: Watch,
        stats: Stats,
        history: History,
    ) -> None:
        """Of the whole program, which has so many equations, and leaves of which so many elements
        are told apart; `watch` says how long the rest is.
        """
        self._run = executable.direct or (lambda *leaves: executable(leaves, ()))
        self._num_flat = -1
        self.num_eqns = num_eqns
        self._widths = widths
        self._watch = watch
        self.stats = stats
        self.history = history
        self.num_calls = 0
        self.num_left = 0
        self._config: Any = None
        self._treedef: Any = None
        self._unflatten: Any = None
        self._types: tuple[type, ...] = ()
        self._kinds: dict[bytes, tuple[Sequence[int], bool]] = {}
        self._latest: tuple[Any, ...] = NO_CALL
        self._before: tuple[Any, ...] = NO_CALL

    def bind(self, signature: Signature, out_tree: Any) -> None:
        """Serve calls of a signature; one with static leaves is left to the long way."""
        if not signature.statics:
            self._config = signature.config
            self._treedef = signature.treedef
            is_single = out_tree == jax.tree.structure(0)
            self._unflatten = None if is_single else out_tree.unflatten
            num_leaves = signature.treedef.num_leaves
            flat = jax.tree.structure(((0,) * num_leaves, {}))
            self._num_flat = num_leaves if signature.treedef == flat else -1

    def start(self, call: RestedCall) -> None:
        """After a call that went the long way, and before those that may go this one."""
        if self._treedef is None:
            return
        changed = frozenset(call.changed)
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._types = tuple(map(type, call.leaves))
        has_arrays = any(self._types[k] not in _SCALARS for k in changed)
        kind = bytes([k not in changed for k in range(len(call.leaves))])
        self._kinds[kind] = call.changed, has_arrays
        leaves = tuple([x.copy() if type(x) is np.ndarray else x for x in call.leaves])
        self._latest = call._replace(leaves=leaves)
        self.num_left = self._watch.to_look

    def take(self) -> tuple[RestedCall, ...]:
        """The last two calls that went this way, or the last one; none can from now on."""
        num_known = min(self.num_calls, 2)
        calls = (self._before, self._latest)[2 - num_known :]
        self._latest = self._before = NO_CALL
        self.num_calls = 0
        self.num_left = 0
        return tuple(RestedCall(*call) for call in calls)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: C901  one frame
        """The result, or `MISSED`; under the lock of calls."""
        begin_s = perf_counter()
        if self.num_left <= 0 or _TRACES.trace is not _EVALUATING:
            return MISSED
        if context_key() != self._config:
            return MISSED
        if len(args) == self._num_flat and not kwargs:
            leaves = args  # what is no leaf has another type than the leaf in its place
        else:
            flat, treedef = _jax.flatten((args, kwargs))
            if treedef != self._treedef:
                return MISSED
            leaves = tuple(flat)
        latest = self._latest
        kind = self._kinds.get(bytes(map(is_, leaves, latest[0])))
        if kind is None or tuple(map(type, leaves)) != self._types:
            return MISSED
        changed, has_arrays = kind
        if has_arrays:
            leaves = _others(leaves, latest[0], changed)
            if leaves is None:
                return MISSED
        elif leaves == latest[0]:
            return MISSED
        if self.num_left == 1 and not self._goes_on(latest[0], leaves, changed):
            return MISSED
        try:
            outputs = self._run(*leaves)
        except Exception:  # noqa: BLE001  the long way has the right words for it
            return MISSED
        self._before = latest
        self._latest = leaves, outputs, changed  # a named tuple takes three times as long
        self.num_left -= 1
        self.num_calls += 1
        self.stats.calls += 1
        self.stats.ran += self.num_eqns
        self.history.note_rested(begin_s, changed)
        return outputs[0] if self._unflatten is None else self._unflatten(outputs)

    def _goes_on(self, old: tuple[Any, ...], new: tuple[Any, ...], changed: Sequence[int]) -> bool:
        """Whether a call that is to be looked at changes as much as those before the rest, which
        the long way would find as well, in ten times as long.
        """
        watch = self._watch
        num_calls = watch.look_every
        if watch.counts_rows or watch.rest - self.num_calls <= num_calls:
            return False
        num_changed = _num_changed(old, new, changed, self._widths)
        if num_changed is None or 2 * num_changed <= watch.usual:
            return False
        self.num_left += num_calls
        return True


def _num_changed(
    old: tuple[Any, ...], new: tuple[Any, ...], changed: Sequence[int], widths: Sequence[int]
) -> int | None:
    """How many elements are others, of leaves up to a size; None where a large array would have to
    be read, or one cannot be.
    """
    found = 0
    for index in changed:
        x = old[index]
        y = new[index]
        if type(x) is _ARRAY and (y.nbytes > SMALL_BYTES or not isinstance(y.dtype, np.dtype)):
            return None
        try:
            num_others = int(np.count_nonzero(np.asarray(x) != np.asarray(y)))
        except Exception:  # noqa: BLE001  one was deleted, or failed: the long way has the words
            return None
        found += min(num_others, widths[index])  # one where elements are not told apart
    return found


def _others(
    leaves: tuple[Any, ...], old: tuple[Any, ...], changed: Sequence[int]
) -> tuple[Any, ...] | None:
    """The leaves, arrays of NumPy copied; None where all may have the bits of the old ones, or one
    is of another shape or dtype.
    """
    copies = list(leaves)
    is_other = False
    for index in changed:
        x = leaves[index]
        y = old[index]
        kind = type(x)
        if kind is _ARRAY:
            if x.aval is not y.aval or x.committed or y.committed:
                return None
            is_other = is_other or _may_differ(x, y)
        elif kind is np.ndarray:
            if x.dtype is not y.dtype or x.shape != y.shape or x.nbytes > MAX_COPIED_BYTES:
                return None
            copies[index] = x.copy()
            is_other = is_other or x.tobytes() != y.tobytes()
        elif kind in _SCALARS:
            is_other = is_other or x != y
        else:
            return None
    return tuple(copies) if is_other else None


def _may_differ(x: Any, y: Any) -> bool:
    """Whether two arrays of one type are not known to have the same bits: large ones are not read,
    and nothing is waited for.
    """
    if x.nbytes > SMALL_BYTES or not isinstance(x.dtype, np.dtype):
        return True
    if x.is_deleted() or y.is_deleted() or not (x.is_ready() and y.is_ready()):
        return True
    return np.asarray(x).tobytes() != np.asarray(y).tobytes()
