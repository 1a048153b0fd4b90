"""Calls that nobody looks at, while nothing pays: `jax.jit` of the function.

Between two looks (`engine.policy.ledger`) a call is neither flattened nor compared nor recorded;
`jax.jit` dispatches it by its own fast path. Arguments of another tree or other types make it trace
the function, which refuses (`OtherTypesError`): such a call is looked at. How many calls may go by
is granted by `Ledger.note_call`, and taken back by `Engine.begin_look`. `Incremental.__call__`
does all this by itself, since a call through more functions of Python takes longer than what they do.

In: the arguments of calls. Out: what is held of the last one.
"""

from __future__ import annotations

import math
import time
from operator import is_
from typing import Any, TypeAlias

import jax

from incrax._context import context_key
from incrax._program import Args, Function, Kwargs, OtherTypesError
from incrax._stats import Stats
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.compile.timing import TimedProgram, wait
from incrax.engine.inputs.leaves import IMMUTABLE
from incrax.engine.inputs.signature import Signature
from incrax.engine.policy.ledger import Ledger
from incrax.engine.store.store import is_array_deleted

MAX_HELD_BYTES = 2**20
"""Of results up to which the last one is held, for a call with the same arguments."""

NOT_HELD: Any = object()
"""Stands for a result."""

LastCall: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Any, "list[jax.Array] | None"]
"""Arguments by position and by keyword, the result or `NOT_HELD`, and what must not have been
deleted for it to be returned once more, None before it is.
"""

NO_CALL: LastCall = ((), {}, NOT_HELD, None)


class Bypass:
    """Calls of one signature.

    Fields: `jax.jit` of the function of its arguments; the ledger; the last call; whether results
    are held, and may be asked for once more, as where arguments are leaves; the configuration that
    the program is for; counters; the whole program, when there is an engine, and its seconds, if they
    are known before.

    What it knows of the arguments are their objects: the same immutable ones have the last result.
    Nothing is known of what is in a list, a dict or an array of NumPy, which may have changed.
    """

    def __init__(
        self,
        jitted: Function,
        signature: Signature,
        out_tree: Any,
        result_bytes: int,
        ledger: Ledger,
        stats: Stats,
        *,
        has_effects: bool,
        calls_host: bool,
    ) -> None:
        self.jitted = jitted
        self.ledger = ledger
        self.config = signature.config
        self.stats = stats
        self.whole: TimedProgram | None = None
        self.whole_s = math.inf
        shape = jax.tree.unflatten(out_tree, [0] * out_tree.num_leaves)
        is_small = result_bytes <= MAX_HELD_BYTES and _is_of_tuples(shape)
        self.holds_results = is_small and not has_effects
        self.takes_leaves = signature.takes_leaves
        # Errors that end a call, by whatever class JAX calls one of the host; after others it goes
        # the long way, which has better words for them, but runs the function once more.
        failed = jax.errors.JaxRuntimeError, ValueError
        self.final_errors = failed if has_effects or calls_host else ()
        self.last: LastCall = NO_CALL

    @property
    def was_held(self) -> bool:
        """Whether the latest call was answered by the result of the one before."""
        return self.last[3] is not None

    def wait(self) -> None:
        """Wait for the last call, if it bypassed: the next one is looked at, and timed."""
        result = self.last[2]
        if self.ledger.granted and result is not NOT_HELD:
            wait(result)

    def hold(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Hold the result of a call that did not bypass, for another one with the same arguments,
        if there can be one.
        """
        can_be = self.holds_results and not kwargs and IMMUTABLE.issuperset(map(type, args))
        self.last = (args, kwargs, result, None) if can_be else NO_CALL

    def timed(self, args: Args, kwargs: Kwargs) -> Any:
        """The result of the last call before a look, which is timed; `NOT_HELD` where the call is
        to be looked at. Those before it have ended, if their results are small enough to be held.
        """
        ledger = self.ledger
        if not ledger.is_timing_due or ledger.left:
            return NOT_HELD
        start_s = time.perf_counter()
        try:
            result = jax.block_until_ready(self.jitted(*args, **kwargs))
        except self.final_errors:
            raise
        except Exception:  # noqa: BLE001  the long way has the right words for it
            return NOT_HELD
        whole_s = self.whole_s if self.whole is None else self.whole.seconds
        ledger.note_turn(time.perf_counter() - start_s, whole_s or math.inf)
        self.last = (args, kwargs, result, None) if self.holds_results else NO_CALL
        return result

    def held(self, args: tuple[Any, ...]) -> Any:
        """The last result, if it is that of these arguments; else `NOT_HELD`."""
        last, kwargs, result, arrays = self.last
        if len(args) != len(last) or not all(map(is_, args, last)) or kwargs:
            return NOT_HELD
        if arrays is None:
            if result is NOT_HELD or not IMMUTABLE.issuperset(map(type, args)):
                return NOT_HELD
            arrays = [x for x in (*args, *jax.tree.leaves(result)) if isinstance(x, jax.Array)]
        if any(map(is_array_deleted, arrays)) or context_key() != self.config:
            self.last = NO_CALL
            return NOT_HELD
        self.last = last, kwargs, result, arrays
        self.stats.calls += 1
        self.stats.unchanged += 1
        self.ledger.unchanged += 1
        return result


def _is_of_tuples(result: Any) -> bool:
    """Whether the containers of a result, whose leaves are integers here, cannot be changed by whom
    it is given to.
    """
    if type(result) is tuple:
        return all(map(_is_of_tuples, result))
    return type(result) is int


def of_arguments(jitted: Function, signature: Signature) -> Function:
    """The function of its arguments; `jitted` is one of these or, where some leaves are static, of
    those that are not. It raises OtherTypesError where the static ones are others.
    """
    if not signature.statics:
        return jitted

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = signature.leaves_of(args, kwargs)
        if leaves is None or not signature.same_statics(leaves):
            raise OtherTypesError
        return jitted(*signature.dynamic_leaves(leaves))

    return run


def awaited(jitted: Function, calls: HostCalls) -> Function:
    """The same of one that calls functions on the host: its errors come at once.

    It raises OtherTypesError, too, in a function on the host that a call waits for, and where it
    failed before anything ran on the host that must not run once more.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if calls.is_awaited_here():
            raise OtherTypesError
        num_final = calls.num_final
        try:
            return jax.block_until_ready(jitted(*args, **kwargs))
        except Exception as error:
            if calls.num_final == num_final:
                raise OtherTypesError from error
            raise

    return run
