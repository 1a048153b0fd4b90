"""`guarded(f)`: compiled Python control flow that stays right; `check_tape`, what it would guard.

In: a function of pytrees. Out: a function with the same results, whose usual path is one compiled
program.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import jax
import numpy as np

from incrax import _jax
from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._locations import NO_VALUE, place_of_error
from incrax._messages import check_function, checked_count, wrong_option
from incrax._names import WrapsFunction, name_of, names_in, reduced
from incrax._program import OtherTypesError, Values
from incrax._tables import LruTable, program_bytes
from incrax._tuning import is_disabled
from incrax.control_flow.loops.padded import Names
from incrax.control_flow.tapes.explanation import (
    TapeExplanation,
    TapeReport,
    branches_of,
    explain,
    outcomes_of,
)
from incrax.control_flow.tapes.making import (
    RecordedFunction,
    TapeOptions,
    as_static,
    make_path,
    of_static,
    static_arguments,
)
from incrax.control_flow.tapes.paths import Path, Tape, TapeStats, int_of
from incrax.engine.inputs.leaves import has_tracer
from incrax.engine.inputs.signature import Args, Function, Kwargs, Signature
from incrax.errors import PythonBranchError, TooManyPathsError

P = ParamSpec("P")
R = TypeVar("R")

MAX_SIGNATURES = 64
"""Structures, shapes and dtypes of arguments, and combinations of static ones, kept per function."""


def _tapes_bytes(tapes: Sequence[Tape]) -> int:
    """Estimated bytes of the programs of some tapes."""
    paths = [path for tape in list(tapes) for path in list(tape.paths)]
    return program_bytes(sum(len(path.program.eqns) for path in paths), len(paths))


class Guarded(WrapsFunction, Generic[P, R]):
    """A function compiled path by path; made by `guarded`.

    Example:
        >>> import incrax
        >>> f = incrax.guarded(lambda x: x**2 if x > 0 else -x)
        >>> [float(f(x)) for x in (3.0, -2.0, 4.0)]
        [9.0, 2.0, 16.0]
        >>> f.stats.recordings, f.stats.calls
        (2, 3)
    """

    def __init__(self, fun: Callable[P, R], options: TapeOptions, make: Any = None) -> None:
        self._fun = fun
        self._options = options
        self._make = make
        self._subject = RecordedFunction(
            of_static(fun), name_of(fun), options, (fun, options.guard)
        )
        self._stats = TapeStats()
        self._tapes: LruTable[Any, list[Tape]] = LruTable(MAX_SIGNATURES, weigh=_tapes_bytes)
        self._latest: Tape | None = None
        self._has_warned = False
        self._is_disabled = is_disabled()
        self._lock = threading.RLock()
        functools.update_wrapper(self, fun, updated=())

    # --- calls ------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate at these arguments; equals `f(*args, **kwargs)`."""
        static = self._options.static
        if static is None:
            return self._called(args, kwargs)
        return self._called(*static.replaced(args, kwargs, as_static))

    def _called(self, args: Args, kwargs: Kwargs) -> Any:
        """A call, by the path that is expected where that can be."""
        tape = self._latest
        if tape is None:
            return self._call(args, kwargs)
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        path = tape.likely
        if path is None or not path.is_simple or treedef != tape.treedef or not _jax.is_top_level():
            return self._call(args, kwargs)
        if not tape.all_dynamic or not tape.captured.is_current() or _jax.checks_values():
            return self._call(args, kwargs)
        if np.ma.MaskedArray in map(type, leaves):
            return self._call(args, kwargs)
        try:
            results, failing = path.run(path.consts, *leaves)
        except (OtherTypesError, TypeError):
            return self._call(args, kwargs)
        self._stats.calls += 1
        if not path.num_guards or (number := int_of(failing)) == path.num_guards:
            tape.count(path, is_hit=True)
            return jax.tree_util.tree_unflatten(path.out_tree, results)
        other = tape.after(path, number, leaves)
        return self._answer(tape, tape.signature, leaves, other)

    def _call(self, args: Args, kwargs: Kwargs) -> Any:
        """A call that the path expected by the latest tape may not answer."""
        self._stats.calls += 1
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        if not _jax.is_top_level() or has_tracer(leaves):
            return self._transformed(leaves, args, kwargs)
        if _jax.is_jit_disabled() or self._is_disabled:
            self._stats.transparent += 1
            return self._plain(args, kwargs)
        signature, dynamic = self._subject.signed(args, kwargs)
        tape = self._tape_for(signature)
        self._latest = tape
        first = None if tape is None else tape.likely
        return self._answer(tape, signature, dynamic, first, is_expected=True)

    def _answer(
        self,
        tape: Tape | None,
        signature: Signature,
        leaves: Any,
        first: Path | None,
        *,
        is_expected: bool = False,
    ) -> Any:
        """The results of the path that is right, `first` tried first; it is recorded if there is
        none.
        """
        found = None if tape is None else tape.search(first, lambda p: p.attempt(leaves), leaves)
        is_hit = is_expected and found is not None and found[0] is first
        if tape is not None and found is not None:
            path, results = found
        else:
            with self._lock:
                recorded = self._recorded(signature, leaves)
            if recorded is None:
                self._stats.eager += 1
                return self._plain(*signature.rebuild(leaves))
            tape, path = recorded
            results = path.first_results(leaves)
        tape.count(path, is_hit=is_hit)
        return jax.tree_util.tree_unflatten(path.out_tree, results)

    def _plain(self, args: Any, kwargs: Any) -> Any:
        return self._subject.fun(*args, **kwargs)

    # --- recording --------------------------------------------------------------------------------

    def _tape_for(self, signature: Signature) -> Tape | None:
        """The tape of a signature whose captured values are those of now."""
        with self._lock:
            tapes = self._tapes.get(signature.key) or ()
            return next((tape for tape in tapes if tape.captured.is_current()), None)

    def _recorded(self, signature: Signature, leaves: Any) -> tuple[Tape, Path] | None:
        """A new path, in the tape of captured values as they are before it runs; None if there are
        too many.
        """
        tapes = self._tapes.get(signature.key) or []
        if sum(len(tape.paths) for tape in tapes) >= self._options.max_paths:
            return self._too_many(tapes)
        tape = self._tape_for(signature)
        try:
            path, captured = make_path(self._subject, signature, leaves, self._stats)
        except BaseException:
            self._stats.aborted += 1
            raise
        if tape is None:
            tape = Tape(signature, captured, self._stats)
            self._tapes.add(signature.key, [*(self._tapes.get(signature.key) or ()), tape])
        known = tape.add(path)
        if known is path:
            self._stats.recordings += 1
            if self._make is not None:
                path.be_incremental(self._make, self._subject.name, signature.dynamic_paths)
        self._latest = tape
        return tape, known

    def _too_many(self, tapes: Sequence[Tape]) -> None:
        """Say once which guards have too many outcomes.

        Raises:
            TooManyPathsError: the user asked for an error.
        """
        options = self._options
        seen = (
            f"`guarded({self._subject.name})` has met more than {options.max_paths} paths. "
            f"Outcomes seen, by guard: {'; '.join(outcomes_of(tapes))}. The usual cause is a "
            "branch inside a loop over elements, or a Python integer that takes many values. Use "
            "`jnp.where` or `jax.lax.cond` for the first of these guards."
        )
        if options.fallback == "error":
            raise TooManyPathsError(f'{seen} Raise `max_paths`, or pass `fallback="eager"`.')
        if not self._has_warned:
            self._has_warned = True
            rest = "on any other the function is called as it is, operation by operation."
            warnings.warn(f"{seen} Recorded paths stay compiled; {rest}", UserWarning, stacklevel=6)

    # --- under other transformations --------------------------------------------------------------

    def _transformed(self, leaves: Values, args: Any, kwargs: Any) -> Any:
        """A call inside a transformation: the right path if values are known, else the plain
        function.
        """
        self._stats.transparent += 1
        concrete = [_jax.concrete_value(x) if isinstance(x, _jax.Tracer) else x for x in leaves]
        is_unknown = any(x is None or isinstance(x, _jax.Tracer) for x in concrete)
        if is_unknown or self._subject.captured().tracers:
            return self._without_values(args, kwargs)
        tree = jax.tree_util.tree_structure((args, kwargs))
        signature, known = self._subject.signed(*jax.tree_util.tree_unflatten(tree, concrete))
        path = self._path_at(signature, known)
        if path is None:
            return self._plain(args, kwargs)
        results = path.results(path.consts, *signature.dynamic_leaves(leaves))
        return jax.tree_util.tree_unflatten(path.out_tree, results)

    def _without_values(self, args: Any, kwargs: Any) -> Any:
        """The plain function, which can be traced where Python asks for nothing."""
        try:
            return self._plain(args, kwargs)
        except NO_VALUE as error:
            raise PythonBranchError(
                f"`guarded({self._subject.name})` was called inside `jit`, `vmap`, `scan` or "
                "another transformation that knows no values, and Python asks for one: "
                f"{place_of_error(error)}. Which path is right cannot be known there; under "
                "`vmap`, rows may need different ones. Use `jax.lax.cond` (or `jnp.where`) for "
                "this branch, call it outside the transformation, or put `guarded` outside: "
                "`guarded(jax.grad(f))`, and a loop over rows instead of `vmap`."
            ) from error

    def _path_at(self, signature: Signature, leaves: Values) -> Path | None:
        """The path that is right at these values, recorded if need be; None if there are too
        many.
        """
        attempt = lambda path: (path.first_failing(leaves), None)
        with self._lock:
            tape = self._tape_for(signature)
            with jax.ensure_compile_time_eval():
                found = None if tape is None else tape.search(tape.recent(), attempt, leaves)
            if found is not None:
                return found[0]
            recorded = self._recorded(signature, leaves)
            return None if recorded is None else recorded[1]

    # --- reports and control ----------------------------------------------------------------------

    @property
    def stats(self) -> TapeStats:
        """Counters of all calls so far."""
        return self._stats

    def explain(self) -> TapeExplanation:
        """Paths, the guards behind each, how often each was right or wrong, seconds of recording
        and compiling.
        """
        with self._lock:
            tapes = (tape for group in self._tapes.values() for tape in group)
            return explain(self._stats, tapes)

    def clear(self) -> None:
        """Forget all paths and programs."""
        with self._lock:
            self._latest = None
            self._tapes.clear()

    def _with_incremental_paths(self, make: Any) -> Guarded[P, R]:
        """The same function with another way to evaluate paths: `make(function of flat leaves)`."""
        return Guarded(self._fun, self._options, make)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; paths stay behind."""
        return reduced(self, (Guarded, (self._fun, self._options, self._make)))

    def __repr__(self) -> str:
        """Name and counters."""
        stats = self._stats
        return (
            f"guarded({self._subject.name}): {stats.calls} calls, {stats.hits} hits, "
            f"{stats.recordings} recordings"
        )


# --- what users call ------------------------------------------------------------------------------

Fallback = Literal["eager", "error"]
FALLBACKS = get_args(Fallback)


class _Options(TypedDict, total=False):
    guard: Function | None
    static: str | int | Names
    max_paths: int
    fallback: Fallback
    constant: str | Sequence[str]


@overload
def guarded(f: Callable[P, R], **options: Unpack[_Options]) -> Guarded[P, R]: ...


@overload
def guarded(
    f: None = None, **options: Unpack[_Options]
) -> Callable[[Callable[P, R]], Guarded[P, R]]: ...


@spelled_here
def guarded(
    f: Callable[P, R] | None = None,
    *,
    guard: Function | None = None,
    static: str | int | Names = (),
    max_paths: int = 64,
    fallback: Fallback = "eager",
    constant: str | Sequence[str] = (),
) -> Guarded[P, R] | Callable[[Callable[P, R]], Guarded[P, R]]:
    """Compile a function with Python control flow, path by path, so that it stays right on every
    path.

    Promise: `guarded(f)(*args)` equals `f(*args)` for every sequence of calls, up to a few units in
    the last place, or raises an error that says why it cannot.

    The first call runs `f` once and records a straight-line program, and a guard for each thing
    that Python learned of a traced value: the side of an `if`, the value of an `int(x)`, with file,
    line and expression. Later calls run the path that is expected as one program, which also gives
    the number of the first guard that does not hold. On a miss the right path is looked up by the
    outcomes of guards, or recorded.

    Args:
        f: function of pytrees of arrays, with any Python control flow on their values, and any JAX
            transformation inside: pass `jax.value_and_grad(loss)` for compiled derivatives. May be
            left out to use `guarded(...)` as a decorator with options.
        guard: function of the same arguments; what it returns (booleans, integers) selects the path
            first.
        static: names or positions of arguments that are Python values; each combination has its own
            paths.
        max_paths: paths recorded per structure and types of the arguments, at most.
        fallback: beyond `max_paths`, `"eager"`: warn once, with the outcomes of each guard, and
            call `f` as it is; `"error"`: raise.
        constant: names of captured variables that never change; they are not compared.

    Returns:
        A callable with the signature of `f`, and `stats`, `explain()` and `clear()`. Under
        `jax.grad`, `jvp`, `vjp`, `jacobian` and `hessian` of known values it takes the right path,
        to any order. Inside another guarded function it is part of the outer path. Of an
        incremental function, or given to `incremental`, it saves values per path.

    Raises:
        TapeError: at a call whose path no tape can hold; subclasses say what it is:
            `FloatGuardError`, `GuardOnEffectError`, `CapturedStateError`, `NotReproducibleError`,
            `PythonBranchError` (inside `jit` or `vmap`, where values are not known),
            `TooManyPathsError`.

    Cost: a call on the expected path costs one program and some microseconds; a miss, one more
        program per wrong guess. Recording runs `f` as a trace, and the equations that guards depend
        on one by one. Paths with effects or loops that may not end run their guards as a program of
        their own first. What `f` captures (cells, globals, attributes, defaults) is compared at
        each call.

    Not handled: effects of Python itself (printing, appending) happen when a path is recorded, as
        under `jax.jit`; code of installed packages is taken as constant.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.guarded
        ... def f(x):
        ...     return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2
        >>> float(f(jnp.array([0.5, 0.0]))), float(f(jnp.array([1.0, 1.0]))), float(f(jnp.array([0.0, 0.5])))
        (0.25, 8.0, 0.25)
        >>> f.stats.recordings
        2
    """
    _check(f, guard, max_paths, fallback)
    options = TapeOptions(guard, max_paths, fallback, names_in("guarded(constant=...)", constant))

    def wrap(fun: Callable[P, R]) -> Guarded[P, R]:
        plain = _plain(fun)
        own = options._replace(static=static_arguments(plain, static) if static != () else None)
        if not isinstance(fun, Incremental):
            return Guarded(fun, own)
        saved = fun._traces.options
        return Guarded(plain, own, lambda path: Incremental(path, saved))

    return wrap if f is None else wrap(f)


def _check(f: Any, guard: Any, max_paths: Any, fallback: Any) -> None:
    """Raise TypeError or ValueError for wrong options."""
    if f is not None:
        check_function("guarded(f)", f)
    if guard is not None and not callable(guard):
        raise wrong_option("guarded(guard=...)", guard, "a function of the same arguments")
    checked_count("guarded(max_paths=...)", max_paths)
    if fallback not in FALLBACKS:
        text = f'`guarded(fallback=...)` got {fallback!r}; use "eager" or "error".'
        if fallback == "cond":
            text += (
                ' "cond" was removed: write branches that have too many paths as `jax.lax.cond` by '
                "hand."
            )
        raise ValueError(text)


def _plain(f: Function) -> Function:
    """The function that the user wrote."""
    return f._fun if isinstance(f, (Guarded, Incremental)) else f


def check_tape(f: Function, *args: Any, **kwargs: Any) -> TapeReport:
    """Which branches of a function depend on values, before it is compiled with something
    unguarded.

    Args:
        f: function of pytrees of arrays.
        *args: arguments; the path that they take is looked at.
        **kwargs: keyword arguments.

    Returns:
        A report, false if there are such branches; it lists `file:line`, the expression, and what
        was learned, and what the function captures that `jax.jit` would take as constant.

    Cost: one trace of `f`, and the equations that its branches depend on. Effects do not run.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> bool(incrax.check_tape(lambda x: jnp.where(x > 0, x, 0.0), 1.0))
        True
        >>> report = incrax.check_tape(lambda x: x if x > 0 else 0.0, 1.0)
        >>> bool(report), len(report.branches)
        (False, 1)
    """
    check_function("check_tape(f)", f)
    return branches_of(_plain(f), args, kwargs)
