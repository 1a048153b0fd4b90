"""The public face: `incremental(f)` and the object it returns."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from incrax import _jax
from incrax._errors import not_called, wrong_option
from incrax._tuning import Tuning
from incrax.report.deps import DependenceTable, dependence_table
from incrax.report.explain import Explanation, explain_call
from incrax.running.limits import make_limits
from incrax.running.pure import PureState, Step
from incrax.running.signature import make_signature
from incrax.running.stats import Stats
from incrax.running.traces import Options, Traces
from incrax.running.warming import warm_up

P = ParamSpec("P")
R = TypeVar("R")


class Incremental(Generic[P, R]):
    """A function that is re-evaluated only where its inputs changed. Made by `incremental`."""

    def __init__(self, fun: Callable[P, R], options: Options) -> None:
        """Wrap `fun`; see `incremental`."""
        self._fun = fun
        self._stats = Stats()
        self._lock = threading.RLock()
        self._traces = Traces(fun, options, self._stats)
        functools.update_wrapper(self, fun, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate at these arguments; equals `jax.jit(f)(*args, **kwargs)`."""
        if self._is_off():
            self._stats.transparent += 1
            return self._fun(*args, **kwargs)
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        with self._lock:
            self._stats.calls += 1
            try:
                traced, changed = self._traces.serving(leaves, treedef, args, kwargs)
                if traced is None:
                    self._stats.transparent += 1
                    return self._fun(*args, **kwargs)
                outputs = traced.engine.call(traced.signature.dynamic_leaves(leaves), changed)
            except BaseException:
                self._stats.aborted += 1
                raise
            return jax.tree_util.tree_unflatten(traced.analysis.out_tree, outputs)

    @staticmethod
    def _is_off() -> bool:
        """Whether the function is called as it is: under another transformation, or where nothing is compiled."""
        return not _jax.is_top_level() or _jax.is_jit_disabled()

    # --- inside compiled loops -----------------------------------------------------------------------------------

    def pure(self, *args: P.args, **kwargs: P.kwargs) -> tuple[PureState, Step]:
        """A form for compiled loops: saved values in a state that `lax.scan` can carry.

        `state, step = f.pure(*args)`, then `state, out = step(state, *args)`, under `jit`, `scan`, `grad`, `vmap`.
        `out` and its derivatives of any order with respect to the arguments are those of the function; the state has
        none. What an argument reaches is computed if its bits differ from the state's, else `lax.cond` skips it.

        Args:
            *args: example arguments. Frozen data must be the same objects in every step, and are never compared.
            **kwargs: example keyword arguments.

        Returns:
            The state at these arguments, a pytree of arrays, and the step; see `Step`.

        Raises:
            UnsupportedLeafError: an argument is an array that JAX has no type for, or a static value without a hash.

        Cost: traces and plans once per signature; one evaluation. A step compares all inputs that are not frozen,
            unless `changed=` tells. A derivative of a step computes anew what depends on the inputs that it is taken
            for; `incremental(jax.value_and_grad(f)).pure` saves partial derivatives as well. Under `vmap` both sides of
            a `cond` run, so that nothing is skipped.
        """
        leaves = jax.tree.leaves((args, kwargs))
        with self._lock:
            signature = make_signature(self._fun, args, kwargs)
            dynamic = signature.dynamic_leaves(leaves)
            step = self._traces.step(signature, dynamic)
        return step.start(dynamic), step

    # --- reports -------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """Counters of all calls so far, and the bytes saved now."""
        self._stats.saved_bytes = sum(t.engine.store.saved_bytes for t in list(self._traces.table.values()))
        return self._stats

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """What the last call did and why; with arguments, what a call with them would do (nothing is evaluated).

        Returns:
            A report that prints as a table; `as_dict()` gives it to programs.

        Raises:
            NotCalledError: without arguments before the first call.
        """
        with self._lock:
            if args or kwargs:
                traced, leaves = self._traces.looked_up(args, kwargs, "explain()")
                return explain_call(traced.engine, traced.signature.dynamic_leaves(leaves))
            if self._traces.latest is None:
                raise not_called("explain()")
            return explain_call(self._traces.latest.engine, None)

    def deps(self, *args: P.args, **kwargs: P.kwargs) -> DependenceTable:
        """Which part of the work depends on which input leaf; with arguments, for their signature.

        Raises:
            NotCalledError: without arguments before the first call.
        """
        with self._lock:
            if args or kwargs:
                return dependence_table(self._traces.looked_up(args, kwargs, "deps()")[0].engine)
            if self._traces.latest is None:
                raise not_called("deps()")
            return dependence_table(self._traces.latest.engine)

    # --- control -------------------------------------------------------------------------------------------------

    def warm_up(self, *args: Any, changing: Iterable[str | Sequence[str]] = (), **kwargs: Any) -> None:
        """Trace, compile and fill for the named changes, so that the first calls are fast already.

        Args:
            *args: example arguments, as for a call.
            changing: what will change: paths of leaves as `explain()` prints them (`"mu"`, `"params['mu']"`), elements
                of small arrays (`"theta[3]"`), or tuples of paths that change together.
            **kwargs: example keyword arguments.

        Raises:
            UnknownInputError: a path names no input.

        Cost: one evaluation and, per named change, up to two compilations; shows progress on a terminal.
        """
        with self._lock:
            self(*args, **kwargs)
            if self._is_off():
                return
            leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
            traced, _ = self._traces.serving(leaves, treedef, args, kwargs)
            if traced is not None:
                warm_up(traced.engine, traced.signature.dynamic_leaves(leaves), changing)

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate from scratch; saved values are neither read nor written."""
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        with self._lock:
            traced = None if self._is_off() else self._traces.aside(leaves, args, kwargs)
        if traced is None:
            return self._fun(*args, **kwargs)
        outputs = traced.engine.fresh(traced.signature.dynamic_leaves(leaves))
        return jax.tree_util.tree_unflatten(traced.analysis.out_tree, outputs)

    def clear(self) -> None:
        """Drop all saved values; traces and compiled programs stay."""
        with self._lock:
            for traced in self._traces.table.values():
                traced.engine.clear()

    def fork(self) -> Incremental[P, R]:
        """An independent function that shares saved values and compiled programs so far, with counters at zero."""
        with self._lock:
            other = Incremental(self._fun, self._traces.options)
            other._traces = self._traces.fork(other._stats)
        return other

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument: a static value, unless its class is a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """Name and counters."""
        name = getattr(self._fun, "__name__", repr(self._fun))
        return f"incremental({name}): {self._stats.calls} calls, {self._stats.unchanged} unchanged"


def _is_integer(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


@overload
def incremental(
    f: Callable[P, R], *, policy: str = ..., memory: int | None = ..., versions: int = ..., tuning: Tuning | None = ...
) -> Incremental[P, R]: ...


@overload
def incremental(
    f: None = None, *, policy: str = ..., memory: int | None = ..., versions: int = ..., tuning: Tuning | None = ...
) -> Callable[[Callable[P, R]], Incremental[P, R]]: ...


def incremental(
    f: Callable[P, R] | None = None,
    *,
    policy: str = "fast",
    memory: int | None = None,
    versions: int = 2,
    tuning: Tuning | None = None,
) -> Incremental[P, R] | Callable[[Callable[P, R]], Incremental[P, R]]:
    """Make a function pay only for what changed since values were last saved.

    Law: `incremental(f)(*args)` equals `jax.jit(f)(*args)` for every sequence of calls, up to a few units in the last
    place (different programs fuse differently). With `policy="exact"` it also equals, bit for bit, what a new function
    made with the same options returns. A call with nothing changed runs no equation.

    Args:
        f: pure function of pytrees of arrays and static Python values (str, None, functions), with any JAX
            transformation inside: pass `jax.value_and_grad(loss)` to save partial derivatives too. May be left out to
            use `incremental(...)` as a decorator with options.
        policy: `"fast"`, programs are fused, timed and chosen for each set of changed inputs; `"exact"`, the same
            programs compute the same values whatever was called before, so that equal inputs give equal bits.
        memory: bytes of saved values to keep at most; None: a quarter of the free memory, at most 2 GB.
        versions: how many input points keep their saved values; 2 serve gradients by differences, line searches and
            rejected steps.
        tuning: how plans are chosen; see `Tuning`.

    Returns:
        A callable with the signature of `f`, and the methods `explain`, `stats`, `deps`, `warm_up`, `fresh`, `clear`
        and `fork`. Under another JAX transformation it is `f` itself.

    Raises:
        UnsupportedLeafError: at a call with an array that JAX has no type for, or a static value without a hash.
        DeletedInputError: at a call with a donated or deleted array.

    Cost: the first call traces and compiles once. A set of changed inputs that comes back gets a program of its own,
        which is raced against the whole function; small arrays are tracked element by element. The call overhead is
        some tens of microseconds.

    Not handled: values that are not arguments (closures are constants, as under `jax.jit`).

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
        >>> x = jnp.zeros(3)
        >>> float(f(2.0, x)), float(f(3.0, x)), float(f(3.0, x))
        (6.0, 9.0, 9.0)
        >>> f.stats.unchanged
        1
    """
    if policy not in ("fast", "exact"):
        raise ValueError(f'`incremental(policy=...)` got {policy!r}; use "fast" or "exact".')
    if f is not None and not callable(f):
        raise wrong_option("incremental(f)", f, "a function")
    if memory is not None and not _is_integer(memory):
        raise wrong_option("incremental(memory=...)", memory, "an integer number of bytes, or None")
    if not _is_integer(versions):
        raise wrong_option("incremental(versions=...)", versions, "an integer")
    if tuning is not None and not isinstance(tuning, Tuning):
        raise wrong_option("incremental(tuning=...)", tuning, "an incrax.Tuning, or None")
    if memory is not None and memory < 0:
        raise ValueError(f"`incremental(memory=...)` got {memory}; it is a number of bytes, at least 0.")
    if versions < 1:
        raise ValueError(f"`incremental(versions=...)` got {versions}; at least 1 version must be kept.")
    settings = Tuning() if tuning is None else tuning
    is_exact = policy == "exact"
    options = Options(is_exact, make_limits(versions, memory, is_exact=is_exact), settings)

    def wrap(fun: Callable[P, R]) -> Incremental[P, R]:
        return Incremental(fun, options)

    return wrap if f is None else wrap(f)
