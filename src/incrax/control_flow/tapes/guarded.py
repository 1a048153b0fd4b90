"""`guarded(f)`: compiled Python control flow that stays right.

In: a function of pytrees. Out: a function with the same results, whose usual path is one compiled
program.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

import jax
import numpy as np

from incrax import _jax
from incrax._locations import NO_VALUE, place_of_error
from incrax._names import name_of, reduced
from incrax._tables import LruTable, program_bytes
from incrax._tuning import is_disabled
from incrax.control_flow.loops.ragged import RaggedArguments, exact
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.explanation import TapeExplanation, explain, outcomes_of
from incrax.control_flow.tapes.making import RecordedFunction, TapeOptions, make_path
from incrax.control_flow.tapes.messages import (
    constant_of_derivative,
    eager_from_now,
    other_way,
    too_many_paths,
    unknown_branch,
)
from incrax.control_flow.tapes.paths import OtherTypes, Path, int_of
from incrax.control_flow.tapes.statics import Split, StaticNames, split
from incrax.control_flow.tapes.tape import Tape, evaluate, first_results
from incrax.control_flow.tapes.tree import OtherWay
from incrax.engine.inputs.leaves import has_tracer
from incrax.engine.inputs.signature import Signature, make_signature

P = ParamSpec("P")
R = TypeVar("R")

MAX_SIGNATURES = 64
"""Structures, shapes and dtypes of arguments, or combinations of static ones, kept per function."""


def _tapes_bytes(tapes: Sequence[Tape]) -> int:
    """Estimated bytes of the programs of some tapes."""
    paths = [path for tape in list(tapes) for path in list(tape.tree.paths)]
    return program_bytes(sum(len(path.program.eqns) for path in paths), len(paths))


class Guarded(Generic[P, R]):
    """A function compiled path by path; made by `guarded`."""

    def __init__(
        self,
        fun: Callable[P, R],
        options: TapeOptions,
        statics: StaticNames,
        make: Any = None,
        roots: Sequence[Any] = (),
    ) -> None:
        self._fun = fun
        self._options = options
        self._statics = statics
        self._make = make
        names = options.dynamic
        options = options._replace(dynamic=())
        guards = [] if options.guard is None else [options.guard]
        self._subject = RecordedFunction(fun, name_of(fun), options, [fun, *roots, *guards])
        self._stats = TapeStats()
        self._tapes: LruTable[Any, list[Tape]] = LruTable(MAX_SIGNATURES, weigh=_tapes_bytes)
        self._kin: LruTable[Any, Guarded[..., R]] = LruTable(MAX_SIGNATURES)
        self._ragged = (
            RaggedArguments(fun, names, "guarded", "guarded(dynamic=...)") if names else None
        )
        self._latest: Tape | None = None
        self._has_warned = False
        self._is_disabled = is_disabled()
        self._lock = threading.RLock()
        functools.update_wrapper(self, fun, updated=())

    # --- calls ------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate at these arguments; equals `f(*args, **kwargs)`."""
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
        except (OtherTypes, TypeError):
            return self._call(args, kwargs)
        self._stats.calls += 1
        if not path.num_guards or (number := int_of(failing)) == path.num_guards:
            self._stats.hits += 1
            path.hits += 1
            tape.latest = path
            tape.likely = path.successor
            return jax.tree_util.tree_unflatten(path.out_tree, results)
        return self._answer(
            tape, leaves, args, kwargs, tape.after(path, number, leaves), is_hit=False
        )

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the path expected by the latest tape may not answer."""
        if self._ragged is not None:
            return self._of_rows(self._ragged, args, kwargs)
        if self._statics:
            return self._of_statics(args, kwargs)
        self._stats.calls += 1
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        if not _jax.is_top_level() or has_tracer(leaves):
            return self._transformed(leaves, args, kwargs)
        if _jax.is_jit_disabled() or self._is_disabled:
            self._stats.transparent += 1
            return self._plain(args, kwargs)
        signature = make_signature(self._fun, args, kwargs, is_watched=True)
        dynamic = signature.dynamic_leaves(leaves)
        tape = self._tape_for(signature)
        if tape is None:
            return self._record(None, signature, dynamic, args, kwargs)
        self._latest = tape
        return self._answer(tape, dynamic, args, kwargs, tape.likely, is_hit=True)

    def _answer(
        self, tape: Tape, leaves: Any, args: Any, kwargs: Any, first: Path | None, *, is_hit: bool
    ) -> Any:
        """The results of the path that is right, `first` tried first; it is recorded if there is
        none.
        """
        found = tape.search(first, lambda path: self._attempt(path, leaves), leaves)
        if found is None:
            return self._record(tape, tape.signature, leaves, args, kwargs)
        path, results = found
        tape.count(path, is_hit=is_hit and path is first)
        return jax.tree_util.tree_unflatten(path.out_tree, results)

    def _attempt(self, path: Path, leaves: Sequence[Any]) -> tuple[int, Any]:
        if self._make is None:
            return evaluate(path, leaves)
        failing = path.first_failing(leaves)
        return failing, path.incremental(*leaves) if failing == path.num_guards else None

    def _plain(self, args: Any, kwargs: Any) -> Any:
        fun: Any = self._fun
        return fun(*args, **kwargs)

    def _of_rows(self, ragged: RaggedArguments, args: Any, kwargs: Any) -> Any:
        """A call with arguments of any number of rows: tapes of their own, of padded arguments."""
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        is_known = all(
            _jax.concrete_value(x) is not None for x in leaves if isinstance(x, _jax.Tracer)
        )
        args, kwargs, lengths = (ragged.padded if is_known else ragged.wrapped)(args, kwargs)
        return exact(self._rows_kin()(*args, **kwargs), lengths)

    def _rows_kin(self) -> Guarded[..., R]:
        with self._lock:
            kin = self._kin.get("rows")
            if kin is None:
                kin = Guarded(self._fun, self._subject.options, self._statics, self._make)
                kin._stats = self._stats
                self._kin.add("rows", kin)
        return kin

    def _of_statics(self, args: Any, kwargs: Any) -> Any:
        """A call with static arguments: tapes of their own for each combination."""
        found = split(self._fun, self._statics, args, kwargs)
        return self._static_kin(found)(*found.args, **found.kwargs)

    def _static_kin(self, found: Split) -> Guarded[..., R]:
        with self._lock:
            kin = self._kin.get(found.key)
            if kin is None:
                roots = [self._fun, *found.statics]
                kin = Guarded(
                    cast(Any, found.fun),
                    self._subject.options,
                    StaticNames.none(),
                    self._make,
                    roots,
                )
                kin._stats = self._stats
                self._kin.add(found.key, kin)
        return kin

    # --- recording --------------------------------------------------------------------------------

    def _tape_for(self, signature: Signature) -> Tape | None:
        """The tape of a signature whose captured values are those of now."""
        with self._lock:
            tapes = self._tapes.get(signature.key) or ()
            return next((tape for tape in tapes if tape.captured.is_current()), None)

    def _record(
        self, tape: Tape | None, signature: Signature, leaves: Any, args: Any, kwargs: Any
    ) -> Any:
        """Record the path of a call and run it."""
        known = tape, 0 if tape is None else len(tape.tree.paths)
        with self._lock:
            tape = self._tape_for(signature)
            if (
                tape is not None and (tape, len(tape.tree.paths)) != known
            ):  # another thread has recorded meanwhile
                found = tape.search(
                    tape.tree.root.likely, lambda path: self._attempt(path, leaves), leaves
                )
                if found is not None:
                    tape.count(found[0], is_hit=False)
                    return jax.tree_util.tree_unflatten(found[0].out_tree, found[1])
            path = self._path_if_few(signature, leaves)
        if path is None:
            self._stats.eager += 1
            return self._plain(args, kwargs)
        results = self._first_results(path, leaves)
        return jax.tree_util.tree_unflatten(path.out_tree, results)

    def _first_results(self, path: Path, leaves: Any) -> Any:
        """The results of a path that was just recorded; it is forgotten if its program cannot be
        compiled or run.
        """
        try:
            results = (
                first_results(path, leaves) if self._make is None else path.incremental(*leaves)
            )
        except BaseException:
            self._stats.aborted += 1
            with self._lock:
                for tape in [tape for tapes in self._tapes.values() for tape in tapes]:
                    tape.forget(path)
            raise
        return results

    def _path_if_few(
        self, signature: Signature, leaves: Any, *, is_call: bool = True
    ) -> Path | None:
        """A new path; None if there are too many."""
        if self._is_full(signature):
            return self._too_many(signature)
        return self._new_path(self._tape_for(signature), signature, leaves, is_call=is_call)

    def _new_path(
        self, tape: Tape | None, signature: Signature, leaves: Any, *, is_call: bool = True
    ) -> Path:
        """Record a path and put it in its tape, which is that of captured values as they are before
        it runs.
        """
        num_roots = len(self._subject.roots)
        try:
            path, captured = make_path(self._subject, signature, leaves, self._stats)
        except BaseException:
            self._stats.aborted += 1
            raise
        if len(self._subject.roots) != num_roots:
            self._tapes.clear()
            tape = None
        if tape is None:
            tape = Tape(signature, captured, self._stats)
            self._tapes.add(signature.key, [*(self._tapes.get(signature.key) or ()), tape])
        try:
            known = tape.tree.insert(path)
        except OtherWay as error:
            raise other_way(self._subject.name, str(error)) from None
        if known is path:
            self._stats.recordings += 1
            if self._make is not None:
                path.be_incremental(self._make, self._subject.name, signature.dynamic_paths)
        self._latest = tape
        if is_call:
            tape.count(known, is_hit=False)
        return known

    def _is_full(self, signature: Signature) -> bool:
        """Whether no more paths may be recorded."""
        tapes = self._tapes.get(signature.key) or []
        return sum(len(tape.tree.paths) for tape in tapes) >= self._options.max_paths

    def _too_many(self, signature: Signature) -> None:
        """Say once which guards have too many outcomes.

        Raises:
            TooManyPathsError: the user asked for an error.
        """
        options = self._subject.options
        tapes = self._tapes.get(signature.key) or []
        lines = outcomes_of(tapes)
        if options.fallback == "error":
            raise too_many_paths(self._subject.name, options.max_paths, lines)
        if not self._has_warned:
            self._has_warned = True
            text = eager_from_now(self._subject.name, options.max_paths, lines)
            warnings.warn(text, UserWarning, stacklevel=6)

    # --- under other transformations --------------------------------------------------------------

    def _transformed(self, leaves: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """A call inside a transformation: the right path if values are known, else the plain
        function.
        """
        self._stats.transparent += 1
        concrete = [_jax.concrete_value(x) if isinstance(x, _jax.Tracer) else x for x in leaves]
        if (
            any(x is None or isinstance(x, _jax.Tracer) for x in concrete)
            or self._subject.captured().tracers
        ):
            try:
                return self._plain(args, kwargs)
            except NO_VALUE as error:
                raise unknown_branch(self._subject.name, place_of_error(error)) from error
        known = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure((args, kwargs)), concrete)
        signature = make_signature(self._fun, *known, is_watched=True)
        path = self._path_at(signature, signature.dynamic_leaves(concrete))
        if path is None:
            return self._plain(args, kwargs)
        if path.floats and has_tracer(leaves):
            raise constant_of_derivative(self._subject.name, path.floats)
        results = path.results(path.consts, *signature.dynamic_leaves(leaves))
        return jax.tree_util.tree_unflatten(path.out_tree, results)

    def _path_at(self, signature: Signature, leaves: Sequence[Any]) -> Path | None:
        """The path that is right at these values, recorded if need be; None if there are too
        many.
        """
        with self._lock:
            tape = self._tape_for(signature)
            with jax.ensure_compile_time_eval():
                attempt = lambda path: (path.first_failing(leaves), None)
                found = (
                    None if tape is None else tape.search(tape.tree.root.likely, attempt, leaves)
                )
            if found is not None:
                return found[0]
            return self._path_if_few(signature, leaves, is_call=False)

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
            return explain(self._stats, self._all_tapes())

    def _all_tapes(self) -> list[Tape]:
        own = [tape for group in self._tapes.values() for tape in group]
        return own + [tape for kin in self._kin.values() for tape in kin._all_tapes()]

    def clear(self) -> None:
        """Forget all paths and programs."""
        with self._lock:
            self._latest = None
            self._tapes.clear()
            self._kin.clear()

    def with_incremental_paths(self, make: Any) -> Guarded[P, R]:
        """The same function with another way to evaluate paths: `make(function of flat leaves)`."""
        return Guarded(self._fun, self._options, self._statics, make)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument: a static value, unless its class is a
        pytree.
        """
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; paths stay behind."""
        return reduced(self, (Guarded, (self._fun, self._options, self._statics, self._make)))

    def __repr__(self) -> str:
        """Name and counters."""
        stats = self._stats
        return (
            f"guarded({self._subject.name}): {stats.calls} calls, {stats.hits} hits, "
            f"{stats.recordings} recordings"
        )
