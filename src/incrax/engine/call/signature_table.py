"""The traced signatures of one function, each with its engine, in a bounded table.

In: the arguments of calls. Out: the trace that serves them. It must not know what users call it
for.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._messages import many_functions, nothing_saved
from incrax._names import groups_in, name_of
from incrax._program import Function, Results, Values
from incrax._stats import Stats
from incrax._tables import LruTable, program_bytes
from incrax._tuning import Policy, Tuning, differing
from incrax.engine.call.analysis import (
    RULE_KEEPING_PASSES,
    Analysis,
    analyse,
    has_mutable_inputs,
    trace_for,
)
from incrax.engine.call.engine import Engine
from incrax.engine.call.pure import Step
from incrax.engine.call.site_changes import named_move
from incrax.engine.call.sites import Sites, SitesState, make_sites
from incrax.engine.call.traced import Given, Traced, of_leaves
from incrax.engine.compile.executables import Compiler
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.compile.recycling import can_recycle
from incrax.engine.inputs.leaves import has_tracer, is_frozen
from incrax.engine.inputs.rows import has_rows
from incrax.engine.inputs.signature import Args, Kwargs, Signature, make_signature
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.expectations import calls_without_look
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.log import Journal, note_forgotten, note_trace
from incrax.engine.policy.verdict import Verdict, together
from incrax.engine.store.budget import MAX_DEFAULT_BYTES, Limits, make_limits

MAX_SIGNATURES = 16
"""Traces that are kept per function."""


class Options(NamedTuple):
    """How a function is made incremental: the options of `incremental`, those of `Tuning` in one."""

    policy: Policy = "fast"
    versions: int = 2
    memory: int | None = None
    tuning: Tuning = Tuning()
    algebra: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether equal inputs give equal bits."""
        return self.policy == "exact"

    def __str__(self) -> str:
        """What differs from the defaults, as `incremental` takes it."""
        return differing(self._asdict(), self._field_defaults)

    def limits(self, num_parts: int) -> Limits:
        """What the store may keep, found out when it is needed: asking for free memory starts JAX's
        runtime.
        """
        return make_limits(self.versions, self.memory, is_exact=self.is_exact, num_parts=num_parts)

    def own_tuning(self) -> Tuning:
        """The tuning; without times where processes must decide alike."""
        return replace(self.tuning, timed=False) if jax.process_count() > 1 else self.tuning


class Traces:
    """The table; `latest` is the trace that the last call used, and the only one of which calls may not
    have been counted yet: one that is not the latest may be forgotten at any time.
    """

    def __init__(self, fun: Function, options: Options, stats: Stats) -> None:
        self.fun = fun
        self.name = name_of(fun)
        self.options = options
        self.stats = stats
        self.calls = HostCalls(MAX_DEFAULT_BYTES if options.memory is None else options.memory)
        weigh_traced = lambda traced: traced.num_bytes
        weigh_step = lambda step: program_bytes(2 * step.num_equations)
        # By key of the signature, of steps with their frozen data.
        self.table: LruTable[Hashable, Any] = LruTable(MAX_SIGNATURES, weigh=weigh_traced)
        self.steps: LruTable[Hashable, Step] = LruTable(MAX_SIGNATURES, weigh=weigh_step)
        self.latest: Any = None
        self._has_warned = False  # of functions among the arguments

    def all(self) -> Results:
        """The traces that are kept, and the latest, which serves on where others made room for it."""
        kept = self.table.values()
        return kept if self.latest is None or self.latest in kept else [*kept, self.latest]

    @property
    def verdict(self) -> Verdict | None:
        """Whether saving has been worth it; None where no times are taken."""
        choosers = [chooser for traced in self.all() for chooser in traced.choosers]
        verdicts = [found for each in choosers if (found := each.verdict) is not None]
        return together(verdicts) if verdicts else None

    # --- calls ------------------------------------------------------------------------------------

    def serving(self, leaves: Values, treedef: Any, args: Args, kwargs: Kwargs) -> Given | None:
        """What a call gives to its trace; None if none serves it as it is."""
        latest = self.latest
        if latest is not None and latest.accepts(treedef):
            given = latest.given(leaves)
            if given is not None:
                return given
        if has_tracer(leaves):
            return None
        if has_rows(leaves):
            return self.serving_rows(leaves, treedef, args, kwargs)
        signature = make_signature(self.fun, args, kwargs)
        found = self.table.get(signature.key)
        if found is None:
            found = self._enter(signature, self._make(signature, leaves, self.stats))
        if has_mutable_inputs(found.analysis):
            return None
        self.set_latest(found)
        dynamic = signature.dynamic_leaves(leaves)
        return Given(found, dynamic, found.changed_leaves(dynamic))

    def set_latest(self, traced: Any) -> None:
        """Have a trace be the latest, now that the calls of the one before it are counted."""
        before = self.latest
        if before is not None and before is not traced:
            before.count_calls()
        self.latest = traced

    def serving_rows(
        self, leaves: Values, treedef: Any, args: Args, kwargs: Kwargs
    ) -> Given | None:
        """The same with `Rows` among the leaves: none here; see `RowTraces`."""
        del leaves, treedef, args, kwargs
        return None

    def aside(self, args: Args, kwargs: Kwargs, *, keeps: bool = True) -> Given | None:
        """What a call gives to its trace, which does not become the latest one, and for which none is
        forgotten; None: call the function as it is. A trace that is not kept counts nothing.
        """
        leaves = jax.tree.leaves((args, kwargs))
        if has_tracer(leaves):
            return None
        signature = make_signature(self.fun, args, kwargs)
        traced = self.table.peek(signature.key)
        if traced is None:
            traced = self._make(signature, leaves, self.stats if keeps else Stats())
            if keeps:
                self._note_trace(signature)
            if keeps and len(self.table) < MAX_SIGNATURES:
                self.table.add(signature.key, traced)
        if has_mutable_inputs(traced.analysis):
            return None
        return Given(traced, signature.dynamic_leaves(leaves), None)

    def looked_up(self, args: Args, kwargs: Kwargs, method: str) -> Given:
        """What a call with these arguments would give, for a report: nothing is stored or
        forgotten.

        Raises:
            NotCalledError: calls with these arguments are not tracked.
        """
        given = self.aside(args, kwargs, keeps=False)
        if given is None:
            raise nothing_saved(method)
        return given

    def _make(self, signature: Signature, leaves: Values, stats: Stats) -> Traced:
        options = self.options
        is_exact = options.is_exact
        tuning = options.own_tuning()
        dynamic = signature.dynamic_leaves(leaves)
        analysis = analyse(
            self.fun,
            signature,
            dynamic,
            tuning,
            self.calls,
            is_exact=is_exact,
            algebra=options.algebra,
        )
        make = functools.partial(self._made_engine, signature, analysis, stats)
        # Who says how often it will be called wants to be told at once what that comes to.
        may_wait = not (is_exact or tuning.planner == "minimal" or tuning.calls or tuning.changing)
        find_idle = functools.partial(
            calls_without_look, analysis.traced, tuning, is_algebra=options.algebra
        )
        return Traced(signature, analysis, make, stats, find_idle if may_wait else None)

    def _made_engine(
        self, signature: Signature, analysis: Analysis, stats: Stats, ledger: Ledger
    ) -> Engine:
        """What evaluates a traced function."""
        facts = analysis.facts
        options = self.options
        limits = options.limits(signature.num_parts)
        tuning = options.own_tuning()
        compiler = Compiler(
            facts, self.calls, self.name, recycles=can_recycle(), placed=signature.placed
        )
        journal = Journal(self.name, signature.dynamic_paths, facts.layout)
        whole = compiler.compile_whole(analysis.traced, of_leaves(analysis, signature))
        chooser = Chooser(
            whole,
            compiler,
            tuning,
            stats,
            limits.planned_bytes,
            journal,
            ledger,
            is_exact=options.is_exact,
        )
        if tuning.timed and chooser.is_timed:
            same = signature.strong_key
            like = [traced for traced in self.all() if traced.signature.strong_key == same]
            kin = [known.expectations for traced in like for known in traced.choosers]
            chooser.expectations.kin = kin
        return Engine(chooser, limits)

    def _enter(self, signature: Signature, traced: Any) -> Any:
        """A new trace in the table; logs and warnings say what became of others."""
        made_room = self.table.add(signature.key, traced)
        self._note_trace(signature, made_room)
        for _ in made_room:
            note_forgotten(self.name, MAX_SIGNATURES)
            self._warn_of_functions(signature)
        return traced

    def _note_trace(self, signature: Signature, made_room: Values = ()) -> None:
        self.stats.traces += 1
        known = (traced.signature for traced in (*made_room, *self.table.values()))
        note_trace(self.name, signature, known, MAX_SIGNATURES)

    def _warn_of_functions(self, signature: Signature) -> None:
        """Say once that functions among the arguments may be why so many traces are made."""
        functions = [path for path, x in signature.named_statics.items() if callable(x)]
        if functions and not self._has_warned:
            self._has_warned = True
            shown = ", ".join(f"`{path}`" for path in functions)
            warnings.warn(many_functions(shown, MAX_SIGNATURES), UserWarning, stacklevel=6)

    # --- the pure form ----------------------------------------------------------------------------

    def step(self, signature: Signature, leaves: Values) -> Step:
        """The step for a signature and frozen data; kept, so that what compiled it once is
        compiled.

        Raises:
            NotCalledError: an input is mutable.
        """
        is_traced = not _jax.is_top_level() or has_tracer(leaves)
        # By identity: the step holds them.
        data = tuple((i, id(x)) for i, x in enumerate(leaves) if is_frozen(x))
        key = signature.key, data
        found = None if is_traced else self.steps.get(key)
        if found is None:
            analysis = self._analysed(
                signature,
                leaves,
                "pure()",
                is_exact=self.options.is_exact,
                passes=RULE_KEEPING_PASSES,
            )
            budget_bytes = self.options.limits(signature.num_parts).planned_bytes
            retrace = functools.partial(trace_for, self.fun, signature)
            found = Step(analysis, signature, leaves, budget_bytes, self.calls, retrace)
            if not is_traced:
                self.steps.add(key, found)
        return found

    def _analysed(
        self, signature: Signature, leaves: Values, method: str, **options: Any
    ) -> Analysis:
        """The function as a form for compiled loops has it."""
        tuning = self.options.own_tuning()
        analysis = analyse(self.fun, signature, leaves, tuning, self.calls, **options)
        if has_mutable_inputs(analysis):
            raise nothing_saved(method)
        return analysis

    def sites(
        self, signature: Signature, leaves: Values, moves: Sequence[str | Sequence[str]]
    ) -> tuple[SitesState, Sites]:
        """The state at some leaves and the sites of a signature, for these moves.

        Raises:
            NotCalledError: an input is mutable, or the function has effects.
            UnknownInputError: a path names no input.
        """
        analysis = self._analysed(signature, leaves, "sites()", is_exact=False)
        paths = signature.dynamic_paths
        shapes = [np.shape(x) for x in leaves]
        found = [named_move(paths, shapes, move) for move in groups_in("sites(moves=...)", moves)]
        return make_sites(analysis.facts, paths, leaves, analysis.out_tree, found)
