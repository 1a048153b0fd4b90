"""The object that `incremental` returns: calls, reports, control."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

import jax

from incrax import _jax
from incrax._context import are_switches_on, switches
from incrax._jax_options import METHODS, missing
from incrax._messages import called_plainly, checked_count, not_called
from incrax._names import WrapsFunction, check_taken, groups_in, reduced
from incrax._program import Args, Kwargs
from incrax._stats import Stats
from incrax._table import many
from incrax._tuning import is_disabled
from incrax.engine.call.bypass import NO_CALL, NOT_HELD, Bypass
from incrax.engine.call.pure import PureState, Step
from incrax.engine.call.signature_table import Options
from incrax.engine.call.sites import Sites, SitesState
from incrax.engine.call.streak import NOT_ALIKE, Streak
from incrax.engine.call.traced import Given
from incrax.engine.call.verification import due_verification, verifying
from incrax.engine.inputs.rows import as_plain
from incrax.engine.inputs.signature import make_signature, what_differs
from incrax.errors import ReentrantCallError
from incrax.explanation import (
    DependenceTable,
    Explanation,
    dependence_table,
    explain_given,
)
from incrax.rows.traces import RowTraces

logger = logging.getLogger("incrax")

_CURRENT = _jax.traces
_EVALUATING = _jax.evaluating

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Asked(NamedTuple):
    """What a report is about: a trace, and what a call gives that was not made, if one is asked
    about.
    """

    traced: Any
    given: Given | None = None


class Incremental(WrapsFunction, Generic[P, R]):
    """A function that is re-evaluated only where its inputs changed. Made by `incremental`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
        >>> x = jnp.zeros(3)
        >>> float(f(2.0, x)), float(f(5.0, x)), float(f.fresh(5.0, x))
        (6.0, 15.0, 15.0)
        >>> list(f.explain().as_dict()["changed"]), f.stats.calls
        (['scale'], 2)
    """

    __wrapped__: Callable[P, R]

    def __init__(self, fun: Callable[P, R], options: Options) -> None:
        """Wrap `fun`; see `incremental`."""
        self._fun = fun
        self._stats = Stats()
        self._is_disabled = is_disabled()
        self._adopt(RowTraces(fun, options, self._stats))
        functools.update_wrapper(self, fun, updated=())
        _living.add(self)

    def _adopt(self, traces: RowTraces) -> None:
        self._traces = traces
        self._bypass: Bypass | None = None
        self._streak: Streak | None = None
        self._lock = threading.RLock()

    if not TYPE_CHECKING:  # else a checker would take any name

        def __getattr__(self, name: str) -> Any:
            """Never found: the error says what has the place of a method of `jax.jit`'s functions."""
            raise missing(self, name, METHODS)

    def _locked(self) -> threading.RLock:
        """The lock of saved values, programs and counters.

        Raises:
            ReentrantCallError: this thread works for a call that holds it.
        """
        calls = self._traces.calls
        if calls.is_awaited_here():
            name = self._name
            raise ReentrantCallError(
                f"`{name}` was called from a callback (`pure_callback`, `io_callback`, "
                f"`debug.callback`) that a call of `{name}` waits for. One call at a time holds "
                "the saved values, so that the two would wait for one another. Nothing "
                "was evaluated or stored. Call the plain function there, "
                f"`{name}.__wrapped__`, under `jax.jit`."
            )
        return self._lock

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: C901  all ways of a call
        """Evaluate at these arguments; equals `jax.jit(f)(*args, **kwargs)`."""
        bypass = streak = None
        is_at_top = _CURRENT.trace is _EVALUATING
        if is_at_top and not verifying() and (not switches or are_switches_on()):
            bypass = self._bypass
            streak = self._streak
        if bypass is not None:
            last = bypass.last[0]
            # Nearly always the first one differs: that is one comparison, not a loop.
            if args and last and args[0] is last[0] and not kwargs:
                result = bypass.held(args)
                if result is not NOT_HELD:
                    return result
            for _ in bypass.ledger.turns:  # one turn, if there is one: a countdown in C
                try:
                    result = bypass.jitted(*args, **kwargs)
                except BaseException as error:
                    if not isinstance(error, Exception) or isinstance(error, bypass.final_errors):
                        self._stats.aborted += 1
                        raise
                    bypass.ledger.take_back()  # the long way has the right words for it
                    break
                bypass.last = (args, kwargs, result, None) if bypass.holds_results else NO_CALL
                return result
        if streak is not None:
            with self._lock:  # another thread may have ended it while this one waited
                result = streak.call(args, kwargs) if streak is self._streak else NOT_ALIKE
            if result is not NOT_ALIKE:
                if bypass is not None and bypass.takes_leaves:
                    bypass.hold(args, kwargs, result)
                return result
            streak = None  # it holds a version
        return self._looked_at(args, kwargs, bypass)

    def _looked_at(self, args: Args, kwargs: Kwargs, bypass: Bypass | None) -> Any:
        """A call that is compared with the last ones, or one that is not ours; the bypass, if there
        is one, may have its last call timed.
        """
        if self._is_off():
            return self._plain(args, kwargs)
        if self._is_disabled:
            self._stats.transparent += 1
            return self.fresh(*args, **kwargs)
        if bypass is not None:
            bypass.wait()
        start_s = time.perf_counter()
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        with self._locked():
            try:
                result = NOT_HELD if bypass is None else bypass.timed(args, kwargs)
                if result is not NOT_HELD:
                    return result
                self._stats.calls += 1
                given = self._traces.serving(leaves, treedef, args, kwargs)
                if given is None:
                    return self._plain(args, kwargs)
                traced, dynamic, changed = given
                self._bypass = None
                self._streak = None
                outputs = traced.evaluate(dynamic, changed, start_s)
                self._streak = traced.streak()
                settings = due_verification()
                if settings is not None:
                    traced.check(self._name, dynamic, changed, outputs, settings)
            except BaseException:
                self._stats.aborted += 1
                raise
            result = jax.tree_util.tree_unflatten(traced.out_tree, outputs)
            bypass = traced.bypass
            if bypass is not None and are_switches_on():  # `jax.jit` does not know them
                bypass.hold(args, kwargs, result)
                self._bypass = bypass
            return result

    def _plain(self, args: Args, kwargs: Kwargs) -> Any:
        """The function as it is, of arrays; the log says so once."""
        if not self._stats.transparent:
            logger.debug(
                "`%s` was called with a tracer (inside jit, grad, vmap or scan), with a mutable "
                "array, or with `jax.jit` disabled. It is the plain function there: right values "
                "and derivatives, nothing saved. This is said once. In a compiled loop, carry saved "
                "values by `%s.pure`.",
                self._name,
                self._name,
            )
        self._stats.transparent += 1
        args, kwargs = as_plain((args, kwargs))
        fun: Any = self._fun
        return fun(*args, **kwargs)

    @staticmethod
    def _is_off() -> bool:
        """Whether the function is called as it is: under another transformation, or where nothing
        is compiled.
        """
        return not _jax.is_top_level() or _jax.is_jit_disabled()

    # --- inside compiled loops --------------------------------------------------------------------

    def pure(self, *args: P.args, **kwargs: P.kwargs) -> tuple[PureState, Step]:
        """A form for compiled loops: saved values in a state that `lax.scan` can carry.

        `state, step = f.pure(*args)`, then `state, out = step(state, *args)`, under `jit`, `scan`,
        `grad`, `vmap`. `out` and its derivatives of any order with respect to the arguments are
        those of the function; the state has none. What an argument reaches is computed if its bits
        differ from the state's, else `lax.cond` skips it.

        Args:
            *args: example arguments. Frozen data must be the same objects in every step, or arguments
                of the function that is compiled, which is known by a fingerprint of 128 bits.
            **kwargs: example keyword arguments.

        Returns:
            The state at these arguments, a pytree of arrays, and the step; see `Step`.

        Raises:
            UnsupportedLeafError: an argument is an array that JAX has no type for, or a static
                value without a hash.

        Cost: traces and plans once per signature; one evaluation. A step compares all inputs that
            are not frozen, unless `changed=` says which changed. A derivative of a step computes again what
            depends on the inputs that it is taken for; `incremental(jax.value_and_grad(f)).pure`
            saves partial derivatives as well. Under `vmap` both sides of a `cond` run, so that
            nothing is skipped.
        """
        given = as_plain((args, kwargs))
        with self._locked():
            signature = make_signature(self._fun, *given)
            dynamic = signature.dynamic_leaves(jax.tree.leaves(given))
            step = self._traces.step(signature, dynamic)
        return step.start(dynamic), step

    def sites(
        self, *args: Any, moves: Sequence[str | Sequence[str]], **kwargs: Any
    ) -> tuple[SitesState, Sites]:
        """Proposals of a few rows for compiled loops: what the function would be, and the rows
        written, or not.

        `state, sites = f.sites(*args, moves=["theta[*]"])`, and in a step of `lax.scan`:
        `delta, out = sites.look(state, {"theta": (i, row)})`, then
        `state = sites.settle(state, delta, accept)`. A step costs the rows that it reads, whatever
        the number of all rows, and writes as many.

        Args:
            *args: the arguments at the start.
            moves: what will change: paths as `explain()` prints them; `"theta[*]"`: rows of
                `theta` along its first axis; a tuple: together. Other inputs stay. A change that
                none of these names, of inputs that they name, is right but slower.
            **kwargs: keyword arguments.

        Returns:
            The state, a pytree of arrays that a loop carries, and `Sites`, a pytree of the data
            that stay: give both to a compiled function as arguments.

        Raises:
            UnknownInputError: a path names no input.
            StepTypeError: rows of a number.
            NotCalledError: the function has effects or calls the host, or an input is mutable.

        Cost: traces and plans once; one evaluation. `look` keeps a difference for each sum. A sum is
            computed from scratch after as many differences as there are rows (at least 512), or
            where digits would be lost; under `vmap`, for all candidates or chains if for one.

        Example:
            >>> import incrax, jax, jax.numpy as jnp
            >>> f = incrax.incremental(lambda theta, y: -jnp.sum((y - theta[:, None]) ** 2))
            >>> state, sites = f.sites(jnp.zeros(100), jnp.ones((100, 5)), moves=["theta[*]"])
            >>> delta, out = sites.look(state, {"theta": (7, 1.0)})
            >>> float(out)
            -495.0
            >>> float(sites.inputs(sites.settle(state, delta))["theta"].sum())
            1.0
        """
        given = as_plain((args, kwargs))
        with self._locked():
            signature = make_signature(self._fun, *given)
            leaves = signature.dynamic_leaves(jax.tree.leaves(given))
            return self._traces.sites(signature, leaves, moves)

    # --- reports ----------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """Counters of all calls so far, the bytes saved now, and whether and by how much it has been
        worth it.
        """
        self._catch_up()
        self._stats.saved_bytes = sum(traced.saved_bytes for traced in self._traces.all())
        verdict = self._traces.verdict
        self._stats.verdict = "" if verdict is None else verdict.sentence
        self._stats._gained_s = math.nan if verdict is None else verdict.ahead_s
        return self._stats

    def _catch_up(self) -> None:
        """Enter calls in the counters that did not do so themselves."""
        if self._lock.acquire(blocking=False):  # else a call is under way, which enters them
            try:
                for traced in self._traces.all():
                    traced.catch_up()
            finally:
                self._lock.release()

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What the last call did and why; with arguments, what a call with them would do (nothing
        is evaluated).

        Returns:
            A report that prints as a table; `as_dict()` gives it to programs.

        Raises:
            NotCalledError: without arguments before the first call.
        """
        with self._locked():
            asked = self._asked("explain()", args, kwargs)
            known = [each.signature for each in self._traces.all()]
            unlike = what_differs(asked.traced.signature, known)
            return replace(explain_given(*asked), num_signatures=len(known), unlike=unlike)

    def _asked(self, method: str, args: Args, kwargs: Kwargs) -> Asked:
        """What a report is about: a call with these arguments, or the last one; under the lock of
        calls.

        Raises:
            NotCalledError: there are neither arguments nor calls.
            TypeError: the function does not take these arguments.
        """
        self._catch_up()
        if args or kwargs:
            try:
                given = self._traces.looked_up(args, kwargs, method)
            except TypeError:
                check_taken(method, self._fun, args, kwargs)
                raise
            return Asked(given.traced, given)
        latest = self._traces.latest
        if latest is None or latest.engine is None:
            raise (called_plainly if self._stats.transparent else not_called)(method)
        return Asked(latest)

    def deps(self, *args: Any, **kwargs: Any) -> DependenceTable:
        """Which part of the work depends on which input leaf; with arguments, for their signature.

        Raises:
            NotCalledError: without arguments before the first call.
        """
        with self._locked():
            return dependence_table(self._asked("deps()", args, kwargs).traced.engine)

    @property
    def num_equations(self) -> int:
        """Equations of the whole program, of the signature that was called last.

        Raises:
            NotCalledError: before the first call.
        """
        with self._locked():
            engine = self._asked("num_equations", (), {}).traced.engine
            return engine.num_eqns

    # --- control ----------------------------------------------------------------------------------

    def warm_up(
        self, *args: Any, changing: Iterable[str | Sequence[str]] = (), **kwargs: Any
    ) -> None:
        """Trace, compile and fill for the named changes, so that the first calls are fast already.

        Args:
            *args: example arguments, as for a call.
            changing: what will change: paths of leaves as `explain()` prints them (`"mu"`,
                `"params['mu']"`), elements of small arrays (`"theta[3]"`), or tuples of paths that
                change together.
            **kwargs: example keyword arguments.

        Raises:
            UnknownInputError: a path names no input.

        Cost: one evaluation and, per named change, up to two compilations; shows progress on a
        terminal.
        """
        with self._locked():
            self(*args, **kwargs)
            if self._is_off() or self._is_disabled:
                return
            leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
            given = self._traces.serving(leaves, treedef, args, kwargs)
            if given is not None:
                given.traced.warm_up(given.leaves, groups_in("warm_up(changing=...)", changing))

    def expect(self, calls: int) -> None:
        """Say that so many more calls like those so far will come.

        A plan that pays over them is compiled at the next call that it serves, rather than when the
        calls so far would have repaid it. It changes speed, never results. Samplers and scans say
        it of the functions that they call; of a function that was not called yet, say it by
        `incremental(f, calls=...)`.

        Args:
            calls: how many, of the signature that was called last.

        Raises:
            TypeError, ValueError: no integer, or a negative one.

        Example:
            >>> import incrax, jax.numpy as jnp
            >>> f = incrax.incremental(lambda a, b: jnp.sin(a) * jnp.cos(b))
            >>> result = f(0.1, 0.2)
            >>> f.expect(100_000)
        """
        calls = checked_count("expect(calls)", calls, 0)
        with self._locked():
            traced = self._traces.latest
            if traced is not None:
                traced.expect(calls)

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate from scratch; saved values are neither read nor written.

        With `policy="exact"` the result has the bits of a call.

        Raises:
            ReentrantCallError: in a callback that a call, or another fresh evaluation, waits for.
        """
        args, kwargs = cast(Any, as_plain((args, kwargs)))
        with self._locked():
            given = None if self._is_off() else self._traces.aside(args, kwargs)
            engine = None if given is None else given.traced.engine
        if given is None or engine is None:
            return self._fun(*args, **kwargs)
        options = self._traces.options
        dynamic = given.leaves
        if self._is_disabled or not (options.is_exact or engine.must_wait):
            outputs = engine.fresh(dynamic)
        else:
            # As in a call, segments are compiled, and their buffers taken; and functions on the host
            # are waited for, which know by whom, but not whether it holds the lock.
            with self._locked():
                is_exact = options.is_exact
                outputs = engine.fresh_by_segments(dynamic) if is_exact else engine.fresh(dynamic)
        return jax.tree_util.tree_unflatten(given.traced.out_tree, outputs)

    def clear(self) -> None:
        """Drop all saved values; traces and compiled programs stay."""
        with self._locked():
            self._streak = None
            for traced in self._traces.all():
                traced.clear()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: Incremental[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Incremental[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method, whose signature checkers know."""
        return super().__get__(instance, owner)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; saved values and
        programs stay behind.
        """
        return reduced(self, (Incremental, (self._fun, self._traces.options)))

    @property
    def _name(self) -> str:
        return self._traces.name

    def __repr__(self) -> str:
        """Name, options that differ from the defaults, and counters."""
        self._catch_up()
        named = ", ".join(filter(None, [self._name, str(self._traces.options)]))
        calls = many(self._stats.calls, "call")
        return f"incremental({named}): {calls}, {self._stats.unchanged} unchanged"


_living: weakref.WeakSet[Incremental[..., Any]] = weakref.WeakSet()


def _forget_in_child() -> None:
    """After a fork of the process: programs and buffers of the parent must not be used, nor a lock
    that it held.
    """
    for function in list(_living):
        options = function._traces.options
        stats = function._stats
        function._adopt(RowTraces(function._fun, options, stats))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
