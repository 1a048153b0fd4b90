"""The public face: `incremental(f)` and the object it returns."""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from incrax import _jax
from incrax._errors import many_functions, not_called, nothing_saved, wrong_option
from incrax._tuning import Tuning
from incrax.report.deps import DependenceTable, dependence_table
from incrax.report.explain import Explanation, explain_call
from incrax.running.analysis import RULE_KEEPING_PASSES, Analysis, analyse, has_mutable_inputs
from incrax.running.compiled import Compiler
from incrax.running.engine import Engine
from incrax.running.leaves import is_frozen
from incrax.running.limits import Limits, make_limits
from incrax.running.packing import packable
from incrax.running.pure import PureState, Step, make_step
from incrax.running.recycling import can_recycle
from incrax.running.signature import Signature, make_signature
from incrax.running.stats import Stats
from incrax.running.warming import warm_up

P = ParamSpec("P")
R = TypeVar("R")


class Incremental(Generic[P, R]):
    """A function that is re-evaluated only where its inputs changed. Made by `incremental`."""

    def __init__(self, fun: Callable[P, R], *, is_exact: bool, limits: Limits, tuning: Tuning) -> None:
        """Wrap `fun`; see `incremental`."""
        self._fun = fun
        self._is_exact = is_exact
        self._tuning = tuning
        self._limits = limits
        self._stats = Stats()
        self._lock = threading.RLock()
        self._traced: OrderedDict[Hashable, _Traced] = OrderedDict()
        self._latest: _Traced | None = None
        self._steps: OrderedDict[Hashable, Step] = OrderedDict()
        self._has_warned = False
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
                traced, changed = self._traced_for(leaves, treedef, args, kwargs)
                if traced is None:
                    self._stats.transparent += 1
                    return self._fun(*args, **kwargs)
                outputs = traced.engine.call(traced.signature.dynamic_leaves(leaves), changed)
            except BaseException:
                self._stats.aborted += 1
                raise
            return jax.tree_util.tree_unflatten(traced.analysis.out_tree, outputs)

    def _traced_for(
        self, leaves: Sequence[Any], treedef: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Traced | None, list[int] | None]:
        """The trace for these arguments (None: call the function as it is), and which leaves are other objects."""
        latest = self._latest
        if latest is not None and latest.serves(treedef):
            changed = latest.changed_leaves(leaves)
            if changed is not None:
                return latest, changed
        if any(isinstance(leaf, _jax.Tracer) for leaf in leaves):
            return None, None
        signature = make_signature(self._fun, args, kwargs)
        found = self._traced.get(signature.key)
        if found is None:
            found = self._trace(signature, leaves)
        self._traced.move_to_end(signature.key)
        if has_mutable_inputs(found.analysis):
            return None, None
        self._latest = found
        return found, found.engine.comparison.changed_leaves(signature.dynamic_leaves(leaves))

    @staticmethod
    def _is_off() -> bool:
        """Whether the function is called as it is: under another transformation, or where nothing is compiled."""
        return not _jax.is_top_level() or _jax.is_jit_disabled()

    def _traced_aside(self, leaves: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Traced | None:
        """The trace for these arguments (None: call the function as it is), without becoming the latest."""
        if any(isinstance(leaf, _jax.Tracer) for leaf in leaves):
            return None
        signature = make_signature(self._fun, args, kwargs)
        traced = self._traced.get(signature.key)
        if traced is None:
            traced = self._make_trace(signature, leaves, self._stats)
            self._stats.traces += 1
            if len(self._traced) < self._tuning.max_signatures:
                self._traced[signature.key] = traced
        return None if has_mutable_inputs(traced.analysis) else traced

    def _looked_up(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: str) -> tuple[_Traced, list[Any]]:
        """The trace for these arguments and their leaves, for a report: nothing is stored or forgotten."""
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        if any(isinstance(leaf, _jax.Tracer) for leaf in leaves):
            raise nothing_saved(method)
        signature = make_signature(self._fun, args, kwargs)
        traced = self._traced.get(signature.key)
        if traced is None:
            traced = self._make_trace(signature, leaves, Stats())
        if has_mutable_inputs(traced.analysis):
            raise nothing_saved(method)
        return traced, leaves

    def _make_trace(self, signature: Signature, leaves: Sequence[Any], stats: Stats) -> _Traced:
        dynamic = signature.dynamic_leaves(leaves)
        analysis = analyse(self._fun, signature, dynamic, self._tuning, is_exact=self._is_exact)
        paths = [path for path, is_value in zip(signature.paths, signature.is_dynamic, strict=True) if is_value]
        facts, is_exact = analysis.facts, self._is_exact
        recycles = can_recycle() and not signature.has_committed_leaves
        on_host = frozenset() if is_exact else packable(dynamic, facts.rough_seconds)
        compiler = Compiler(facts, on_host=on_host, recycles=recycles)
        engine = Engine(facts, analysis.traced, paths, compiler, self._tuning, stats, self._limits, is_exact=is_exact)
        return _Traced(signature, analysis, engine)

    def _trace(self, signature: Signature, leaves: Sequence[Any]) -> _Traced:
        traced = self._traced[signature.key] = self._make_trace(signature, leaves, self._stats)
        self._stats.traces += 1
        if len(self._traced) > self._tuning.max_signatures:
            _, forgotten = self._traced.popitem(last=False)
            self._latest = None if forgotten is self._latest else self._latest
            self._warn_of_functions(signature)
        return traced

    def _warn_of_functions(self, signature: Signature) -> None:
        """Say once that functions among the arguments may be why so many traces are made."""
        static = [path for path, is_value in zip(signature.paths, signature.is_dynamic, strict=True) if not is_value]
        functions = [path for path, x in zip(static, signature.statics, strict=True) if callable(x)]
        if functions and not self._has_warned:
            self._has_warned = True
            shown = ", ".join(f"`{path}`" for path in functions)
            warnings.warn(many_functions(shown, self._tuning.max_signatures), UserWarning, stacklevel=5)

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
            step = self._pure_step(signature, dynamic)
        return step.start(dynamic), step

    def _pure_step(self, signature: Signature, leaves: Sequence[Any]) -> Step:
        """The step for a signature and frozen data; kept, so that what compiled it once is compiled."""
        is_traced = not _jax.is_top_level() or any(isinstance(x, _jax.Tracer) for x in leaves)
        key = (signature.key, tuple(id(x) for x in leaves if is_frozen(x)))
        found = None if is_traced else self._steps.get(key)
        if found is None:
            passes = RULE_KEEPING_PASSES
            analysis = analyse(self._fun, signature, leaves, self._tuning, is_exact=self._is_exact, passes=passes)
            if has_mutable_inputs(analysis):
                raise nothing_saved("pure()")
            found = make_step(analysis, signature, leaves, self._limits.planned_bytes)
        if not is_traced:
            self._steps[key] = found
            self._steps.move_to_end(key)
            if len(self._steps) > self._tuning.max_signatures:
                self._steps.popitem(last=False)
        return found

    # --- reports -------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """Counters of all calls so far, and the bytes saved now."""
        self._stats.saved_bytes = sum(t.engine.store.saved_bytes for t in list(self._traced.values()))
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
                traced, leaves = self._looked_up(args, kwargs, "explain()")
                return explain_call(traced.engine, traced.signature.dynamic_leaves(leaves))
            if self._latest is None:
                raise not_called("explain()")
            return explain_call(self._latest.engine, None)

    def deps(self, *args: P.args, **kwargs: P.kwargs) -> DependenceTable:
        """Which part of the work depends on which input leaf; with arguments, for their signature.

        Raises:
            NotCalledError: without arguments before the first call.
        """
        with self._lock:
            if args or kwargs:
                return dependence_table(self._looked_up(args, kwargs, "deps()")[0].engine)
            if self._latest is None:
                raise not_called("deps()")
            return dependence_table(self._latest.engine)

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
            traced, _ = self._traced_for(leaves, treedef, args, kwargs)
            if traced is not None:
                warm_up(traced.engine, traced.signature.dynamic_leaves(leaves), changing)

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate from scratch; saved values are neither read nor written."""
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        with self._lock:
            traced = None if self._is_off() else self._traced_aside(leaves, args, kwargs)
        if traced is None:
            return self._fun(*args, **kwargs)
        outputs = traced.engine.fresh(traced.signature.dynamic_leaves(leaves))
        return jax.tree_util.tree_unflatten(traced.analysis.out_tree, outputs)

    def clear(self) -> None:
        """Drop all saved values; traces and compiled programs stay."""
        with self._lock:
            for traced in self._traced.values():
                traced.engine.clear()

    def fork(self) -> Incremental[P, R]:
        """An independent function that shares saved values and compiled programs so far, with counters at zero."""
        other = Incremental(self._fun, is_exact=self._is_exact, limits=self._limits, tuning=self._tuning)
        with self._lock:
            for key, traced in self._traced.items():
                other._traced[key] = _Traced(traced.signature, traced.analysis, traced.engine.fork(other._stats))
                if traced is self._latest:
                    other._latest = other._traced[key]
        return other

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument: a static value, unless its class is a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """Name and counters."""
        name = getattr(self._fun, "__name__", repr(self._fun))
        return f"incremental({name}): {self._stats.calls} calls, {self._stats.unchanged} unchanged"


class _Traced:
    """One traced signature with its engine."""

    __slots__ = ("analysis", "engine", "signature")

    def __init__(self, signature: Signature, analysis: Analysis, engine: Engine) -> None:
        self.signature = signature
        self.analysis = analysis
        self.engine = engine

    def serves(self, treedef: Any) -> bool:
        """Whether a call may have this signature: same tree and configuration."""
        return treedef == self.signature.treedef and _jax.config_key() == self.signature.config

    def changed_leaves(self, leaves: Sequence[Any]) -> list[int] | None:
        """Numbers of the dynamic leaves that are other objects than before; None if the signature differs."""
        signature = self.signature
        if signature.statics and not signature.same_statics(leaves):
            return None
        dynamic = signature.dynamic_leaves(leaves)
        changed = self.engine.comparison.changed_leaves(dynamic)
        numbers = range(len(dynamic)) if changed is None else changed
        states = self.engine.store.states
        anchors = states[-1].anchors if states else ()
        return list(numbers) if signature.same_types(dynamic, numbers, anchors) else None


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
    limits = make_limits(versions, memory, is_exact=is_exact)

    def wrap(fun: Callable[P, R]) -> Incremental[P, R]:
        return Incremental(fun, is_exact=is_exact, limits=limits, tuning=settings)

    return wrap if f is None else wrap(f)
