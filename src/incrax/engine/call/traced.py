"""One signature of a function: its trace, and the engine that serves its calls.

A first call is served as by JAX alone: what may be known of the program is of no use to it, and
takes as long as tracing. Many signatures have no second one (a start in integers, the types of an
initial state). Later calls bypass where nothing came of looking at them in an earlier process, or until
a large function, of which nothing is known, was called long enough for its analysis.

In: leaves of calls, what makes an engine. Out: results. It must not know other signatures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import jax

from incrax import _jax
from incrax._names import as_program_name, name_of
from incrax._program import Results, Values
from incrax._stats import Stats
from incrax._tables import program_bytes
from incrax.engine.call.analysis import Analysis
from incrax.engine.call.bypass import NO_CALL, Bypass, awaited, of_arguments
from incrax.engine.call.engine import Engine, FirstCall
from incrax.engine.call.rehearsal import warm_up
from incrax.engine.call.streak import Streak, streak_of
from incrax.engine.call.verification import check_outputs, verify
from incrax.engine.compile.background import read_settings, set_as
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.signature import Signature
from incrax.engine.policy.chooser import Chooser
from incrax.engine.policy.expectations import Idle
from incrax.engine.policy.ledger import Ledger

Evaluate: TypeAlias = Callable[[Sequence[Any], Sequence[int] | None, float], list[Any]]
"""The outputs of a call by its leaves, those that are other objects than in the latest version, if
known, and when it began, of `perf_counter`.
"""


ANALYSIS_SHARE = 0.01
"""Of the seconds of all calls, what the analysis of a function may take of which nothing is known. It
took 2 % of a job of 120 calls of 3,900 equations, 1.3 s, in which nothing could be gained so soon.
"""

EQUATION_S = 8e-6
"""Seconds to analyse an equation, of programs of 400 to 4,000."""

LEAST_S = 0.004
"""Seconds of an analysis below which it is not put off."""


class Traced:
    """One traced signature; its engine is made when a second call comes, or a report asks for it."""

    def __init__(
        self,
        signature: Signature,
        analysis: Analysis,
        make_engine: Callable[[Ledger], Engine],
        stats: Stats,
        find_idle: Callable[[], Idle | None] | None = None,
    ) -> None:
        """`find_idle` says which calls after the first need not have the engine; None: options say
        that the first one must.
        """
        self.signature = signature
        self.analysis = analysis
        self.out_tree = analysis.out_tree
        self.stats = stats
        self.evaluate: Evaluate = self._evaluate_early  # a call; by the engine, once there is one
        self.bypass: Bypass | None = None  # for calls that nobody looks at
        self._ledger = Ledger()  # of these, and of the engine
        self._engine: Engine | None = None
        # Until there is one:
        self._make_engine: Callable[[Ledger], Engine] | None = make_engine
        self._settings = read_settings()  # a report may ask where others hold
        self._find_idle = find_idle
        may_wait = bool(find_idle) and signature.num_parts == 1 and analysis.is_plain
        # What serves in its place; None: it must serve the first call itself.
        self._run_first = of_leaves(analysis, signature) if may_wait else None
        self._first: FirstCall | None = None
        self._num_turns = 0  # calls that are counted, of which the equations are not

    @property
    def engine(self) -> Engine:
        """What evaluates it; made when this is first asked for."""
        if self._engine is not None:
            return self._engine
        assert self._make_engine is not None
        start_s = perf_counter()
        with set_as(self._settings), _jax.outside_traces():
            engine = self._make_engine(self._ledger)
            if self._first is not None:
                engine.enter(self._first)
        engine.ledger.note_learning(perf_counter() - start_s)
        self.stats.ran += self._num_turns * engine.num_eqns
        self._engine = engine
        self.evaluate = engine.call
        self._make_engine = self._first = self._run_first = None
        if self.bypass is None:
            self.bypass = self._made_bypass(engine)
        if self.bypass is not None:
            self.bypass.whole = engine.whole
        engine.bypass = self.bypass
        if self._ledger.is_put_off:  # what was to be spared is done
            self._ledger.end()
        return engine

    def _made_bypass(self, engine: Engine | None = None) -> Bypass | None:
        analysis = self.analysis
        signature = self.signature
        if analysis.jitted is None:
            return None
        jitted = of_arguments(analysis.jitted, signature)
        calls = engine.calls if engine is not None and engine.must_wait else None
        if calls is not None:
            jitted = awaited(jitted, calls)
        result_bytes = sum(_jax.aval_bytes(atom.aval) for atom in analysis.traced.outvars)
        has_effects = engine is not None and engine.always != 0
        return Bypass(
            jitted,
            signature,
            self.out_tree,
            result_bytes,
            self._ledger,
            self.stats,
            has_effects=has_effects,
            calls_host=calls is not None,
        )

    # --- a call -----------------------------------------------------------------------------------

    def accepts(self, treedef: Any) -> bool:
        """Whether a call may have this signature: same tree and configuration."""
        return self.signature.is_of(treedef)

    def given(self, leaves: Values) -> Given | None:
        """What a call of the same tree gives; None if its signature is another."""
        signature = self.signature
        if signature.statics and not signature.same_statics(leaves):
            return None
        dynamic = signature.dynamic_leaves(leaves)
        changed = self.changed_leaves(dynamic)
        engine = self._engine
        states = () if engine is None else engine.store.states
        anchors = states[-1].anchors if states else ()
        numbers = range(len(dynamic)) if changed is None else changed
        is_same = signature.same_types(dynamic, numbers, anchors)
        return Given(self, dynamic, changed) if is_same else None

    def changed_leaves(self, dynamic: Values) -> list[int] | None:
        """The leaves that are other objects than in the latest version; None without one."""
        engine = self._engine
        return None if engine is None else engine.comparison.changed_leaves(dynamic)

    def _evaluate_early(self, leaves: Values, *_: Any) -> Results:
        """As `Engine.call`, while there is no engine: a first call and those that need not be
        looked at have none.
        """
        if self._run_first is not None:
            evaluate = self._evaluate_first if self._first is None else self._evaluate_in_turn
            outputs = evaluate(self._run_first, leaves)
            if outputs is not None:
                return outputs
        engine = self.engine
        return engine.call(leaves, engine.comparison.changed_leaves(leaves), perf_counter())

    def _evaluate_first(self, run: Callable[..., Results], leaves: Values) -> Results | None:
        """The outputs of a first call; None where it failed."""
        values = tuple([LeafValue(x) for x in leaves])
        start_s = perf_counter()
        try:
            outputs = jax.block_until_ready(run(*[value.feed for value in values]))
        except Exception:  # noqa: BLE001  the engine has the right words for it
            return None
        self._first = FirstCall(values, outputs, perf_counter() - start_s)
        assert self._find_idle is not None  # else there were no `run`
        idle = self._find_idle()
        if idle is None:
            idle = Idle(self._num_put_off())
            self._ledger.is_put_off = idle.num_calls > 0
        bypass = self._made_bypass() if idle.num_calls > 1 else None
        if bypass is not None:
            self._ledger.grant(idle.num_calls)
            bypass.whole_s = idle.whole_s
            self.bypass = bypass
        return outputs

    def _num_put_off(self) -> int:
        """How many more calls need not be looked at, where nothing is known of the function, since its
        analysis would take more than `ANALYSIS_SHARE` of all calls so far; that takes a call's
        seconds, so that the first two are granted without.
        """
        assert self._first is not None
        ledger = self._ledger
        analysis_s = EQUATION_S * len(self.analysis.traced.eqns)
        so_far_s = self._first.program_s + ledger.skipped * ledger.turn_s
        missing_s = analysis_s / ANALYSIS_SHARE - so_far_s
        if analysis_s < LEAST_S or missing_s <= 0:
            return 0
        return math.ceil(missing_s / ledger.turn_s) if ledger.turn_s else 2

    def _evaluate_in_turn(self, run: Callable[..., Results], leaves: Values) -> Results | None:
        """The outputs of a call that need not be looked at, after one of other types, or after the last
        one that was granted; None where there are none left.
        """
        ledger = self._ledger
        if ledger.is_put_off and ledger.turn_s and not ledger.left:
            num_more = self._num_put_off()
            if num_more > 1:
                ledger.grant_more(num_more)
        for _ in ledger.turns:
            try:
                outputs = run(*leaves)
            except BaseException as error:
                ledger.take_back()
                if not isinstance(error, Exception):
                    raise
                break  # the engine has the right words for it
            self.stats.calls -= 1  # it is counted as one that bypassed
            return outputs
        return None

    def streak(self) -> Streak | None:
        """What serves calls like the last one, if that went the short way."""
        engine = self._engine
        if engine is None or engine.repeated is None:
            return None
        engine.streak = streak_of(self.signature, self.out_tree, engine, engine.repeated)
        return engine.streak

    # --- as a function's methods ask it -----------------------------------------------------------

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values."""
        return 0 if self._engine is None else self._engine.store.saved_bytes

    @property
    def choosers(self) -> list[Chooser]:
        """What decides, of those whose times tell whether saving has been worth it."""
        return [] if self._engine is None else [self._engine.chooser]

    @property
    def num_bytes(self) -> int:
        """Estimated bytes of its programs."""
        engine = self._engine
        if engine is None:
            traced = self.analysis.traced
            return program_bytes(2 * len(traced.eqns), 1)
        plans = engine.plans()
        num_eqns = 2 * engine.num_eqns + sum(len(plan.eqns) for plan in plans)
        return program_bytes(num_eqns, 1 + len(plans))

    def catch_up(self) -> None:
        """Enter all that happened in the counters, where it did not do so itself."""
        if self._engine is not None or self._first is not None:
            self.engine.catch_up()

    def count_calls(self) -> None:
        """The same of calls; of equations that ran only where there is an engine already."""
        if self._engine is not None:
            self._engine.catch_up()
            return
        number = self._ledger.uncounted()
        self.stats.calls += number
        self._num_turns += number

    def check(self, name: str, leaves: Values, _: Any, outputs: Values, settings: verify) -> None:
        """Compare outputs with a fresh evaluation.

        Raises:
            StaleResultError: they differ.
        """
        engine = self.engine
        evaluate = lambda: engine.fresh(leaves)
        check_outputs(name, outputs, evaluate, engine.changed_paths, engine.clear, settings)

    def warm_up(self, leaves: Values, changing: Iterable[Sequence[str]]) -> None:
        """Compile and fill for named changes; the next call is looked at, so that this serves it."""
        warm_up(self.engine, leaves, changing)
        self.engine.begin_look()

    def expect(self, calls: int) -> None:
        """So many more calls will come. Which calls need not be looked at was found without knowing
        that in an earlier process, but not in this one: drivers say it again as they go on.
        """
        is_news = self._engine is None
        self.engine.expect(calls)
        if is_news:
            self.engine.begin_look()

    def clear(self) -> None:
        """Drop saved values, and hold nothing of the last call."""
        self.engine.clear()
        if self.bypass is not None:
            self.bypass.last = NO_CALL


class Given(NamedTuple):
    """What a call gives: the trace that serves it, the leaves that are values, and which are other
    objects than before.

    `changed` is None where that is not known; of a `RowEngine` it is the `Rows`.
    """

    traced: Any
    leaves: Values
    changed: Any


def of_leaves(analysis: Analysis, signature: Signature) -> Callable[..., Results] | None:
    """`jax.jit` of the function, as one of its dynamic leaves."""
    jitted = analysis.jitted
    if jitted is None:
        return None
    treedef = signature.treedef

    def run(*leaves: Any) -> Results:
        if signature.statics:
            return jax.tree.leaves(jitted(*leaves))
        args, kwargs = jax.tree.unflatten(treedef, leaves)
        return jax.tree.leaves(jitted(*args, **kwargs))

    run.__name__ = as_program_name(name_of(jitted))
    return run
