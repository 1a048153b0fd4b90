"""Stages 1 to 4 in order: a function and a call's leaves become the traced program and `Facts`."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from incrax import _jax
from incrax._collection import paused
from incrax._jax import Equation
from incrax._locations import NO_VALUE, place_of_error
from incrax._messages import (
    branch_in_incremental,
    first_few,
    numbers_of_module,
    numpy_in_incremental,
    numpyro_in_place_of_function,
)
from incrax._names import as_program_name, name_of
from incrax._program import (
    STATEFUL,
    Args,
    Function,
    Kwargs,
    Program,
    Values,
    as_traced,
    trace_jitted,
)
from incrax._tuning import Tuning, is_disabled
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.inputs.leaves import LeafValue, is_dynamic
from incrax.engine.inputs.signature import Signature, argument_names, leaf_path
from incrax.engine.plan.facts import AlgebraState, Facts
from incrax.engine.program.cost import Calibration, assumed_prices
from incrax.engine.program.dependence import MAX_LEAF_ELEMENTS, depend, make_layout
from incrax.engine.program.simplify import (
    Pass,
    drop_dead,
    fold_constants,
    inline,
    inline_but_rules,
    merge_equal,
    run_passes,
)
from incrax.engine.rewrites.loop_invariants import hoist_invariants
from incrax.engine.rewrites.read_rows import make_read_rows
from incrax.engine.rewrites.row_reductions import reduce_rows_last

PASSES = (inline, hoist_invariants, fold_constants, merge_equal, drop_dead)
RULE_KEEPING_PASSES = (inline_but_rules, fold_constants, merge_equal, drop_dead)


@dataclass(frozen=True)
class Analysis:
    """A traced function: the program as traced, its output tree, `jax.jit` of it, if there is one:
    of its arguments, or of those leaves that are not static where some are; what finds out
    `facts`, which takes as long as tracing and is not done before it is asked for; whether nothing
    but results comes of the program, one device holds all that it reads, and nobody marked values
    in it.

    Functions on the host that the jitted one calls are remembered.
    """

    traced: Program
    out_tree: Any
    jitted: Function | None
    find_facts: Callable[[], Facts]
    is_plain: bool

    @functools.cached_property
    def facts(self) -> Facts:
        """What is known of the program."""
        return self.find_facts()


def analyse(
    fun: Function,
    signature: Signature,
    dynamic: Values,
    tuning: Tuning,
    calls: HostCalls,
    **options: Any,
) -> Analysis:
    """Trace a function for one signature, to be analysed with these options of `facts_of`."""
    feeds = [LeafValue(x).feed for x in dynamic]
    traced, out_tree, jitted = _trace(fun, signature, feeds)
    special = [eqn for eqn in _jax.with_inner(traced.eqns) if _is_special(eqn)]
    calls_host = any(map(_jax.calls_host, special))
    if calls_host and jitted is not None and not is_disabled():
        in_tree = signature.dynamic_tree
        run = as_traced(traced.with_eqns(calls.wrap(traced.eqns)), in_tree, out_tree)
        run.__name__ = name_of(jitted)
        jitted = jax.jit(run)
    num_parts = signature.num_parts
    find_facts = functools.partial(facts_of, traced, tuning, num_parts=num_parts, **options)
    arrays = [x for x in traced.consts if isinstance(x, jax.Array)]
    is_plain = not special and all(map(_jax.is_held_whole, arrays))
    return Analysis(traced, out_tree, jitted, find_facts, is_plain)


def _is_special(eqn: Equation) -> bool:
    """Whether more than results comes of an equation, or somebody marked what it writes."""
    name = eqn.primitive.name
    return bool(eqn.effects) or _jax.calls_host(eqn) or name in _SPECIAL


_SPECIAL = STATEFUL | {_jax.KEEP}


@paused()
def facts_of(
    traced: Program,
    tuning: Tuning,
    *,
    is_exact: bool,
    num_parts: int = 1,
    algebra: bool = False,
    passes: Sequence[Pass] = PASSES,
) -> Facts:
    """Simplify and analyse a traced program; with the same prices on every machine if `is_exact`."""
    program = run_passes(traced, passes)
    if num_parts == 1:
        narrowed = make_read_rows(program)
        program = program if narrowed is program else drop_dead(narrowed)
        program = reduce_rows_last(program) if is_exact else program
    layout = make_layout([var.aval for var in program.invars], MAX_LEAF_ELEMENTS)
    is_minimal = tuning.planner == "minimal"
    if is_minimal or is_exact:
        prices = Calibration()
    elif tuning.timed:
        prices = None
    else:
        prices = assumed_prices(num_parts)
    dependence = depend(program, layout)
    return Facts(program, dependence, prices, is_minimal, AlgebraState(algebra), traced.digest)


def _trace(
    fun: Function, signature: Signature, feeds: Values
) -> tuple[Program, Any, Function | None]:
    """The program, its output tree, and `jax.jit` of it."""
    name = f"{as_program_name(name_of(fun))}_whole"
    args, kwargs = signature.rebuild(feeds)

    @functools.wraps(fun)
    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = signature.rebuild(leaves)
        return fun(*args, **kwargs)

    try:
        if signature.statics:
            return trace_jitted(of_leaves, name, tuple(feeds), {})
        return trace_jitted(fun, name, args, kwargs)
    except NO_VALUE as error:
        is_numpy = isinstance(error, jax.errors.TracerArrayConversionError)
        refused = numpy_in_incremental if is_numpy else branch_in_incremental
        instead = refused(name_of(fun), place_of_error(error))
        _note_module(instead, fun, args, kwargs)
        raise instead from error
    except Exception as error:
        note_inputs(error, fun, args, kwargs)
        raise


def note_inputs(error: Exception, fun: Function, args: Args, kwargs: Kwargs) -> None:
    """Say of an error of a function that is traced what about it, or its inputs, may be why: it is
    a model of NumPyro; a module has numbers that Python reads; an input is no array.
    """
    if _is_from_numpyro(error):
        error.add_note(numpyro_in_place_of_function(name_of(fun)))
    elif not _note_module(error, fun, args, kwargs):
        _note_statics(error, fun, args, kwargs)


def _is_from_numpyro(error: Exception) -> bool:
    """Whether a model of NumPyro asked for a random number, which it has only in an inference."""
    if not isinstance(error, AssertionError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("numpyro.")


def _note_module(error: Exception, fun: Function, args: Args, kwargs: Kwargs) -> bool:
    """Say which whole numbers are attributes, as those of FlowJAX's `shape`; whether there are any."""
    names = argument_names(fun, len(args))
    kinds = (int, float) if "integer" in str(error) else int  # `bind` makes floats of them
    numbers = [
        f"`{leaf_path(names, path)}`"
        for path, x in jax.tree.leaves_with_path((args, kwargs))
        if isinstance(x, kinds) and x % 1 == 0 and any(isinstance(key, GetAttrKey) for key in path)
    ]
    if numbers:
        error.add_note(numbers_of_module(name_of(fun), numbers))
    return bool(numbers)


def _note_statics(error: Exception, fun: Function, args: Args, kwargs: Kwargs) -> None:
    """Say which inputs are no arrays: None or a text where a number was meant is an error somewhere
    inside.
    """
    names = argument_names(fun, len(args))
    leaves = jax.tree.leaves_with_path((args, kwargs), is_leaf=lambda x: x is None)
    statics = [
        f"`{leaf_path(names, path)}` of type {type(x).__name__}"
        for path, x in leaves
        if not is_dynamic(x)
    ]
    if statics:
        error.add_note(
            f"`{name_of(fun)}` was traced with inputs that are no arrays, which it gets as they are: "
            f"{first_few(statics)}. If one of these was to be a number, that is why. Nothing "
            "was evaluated or stored."
        )


def trace_for(fun: Function, signature: Signature, leaves: Values) -> Program:
    """The program of a function for leaves, or types of leaves, that differ from a signature's in
    weak types.
    """
    return _trace(fun, signature, leaves)[0]


def has_mutable_inputs(analysis: Analysis) -> bool:
    """Whether an input, or what is closed over, is a mutable reference, which no saved value can
    describe.
    """
    traced = analysis.traced
    return any(_jax.is_ref(var.aval) for var in (*traced.invars, *traced.constvars))
